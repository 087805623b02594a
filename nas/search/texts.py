"""Texts of the architectures of a search."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from search_spaces.common.errors import InputError

if TYPE_CHECKING:
    from search_spaces import Architecture, SearchSpace


class Texts:
    """Writes the text of each architecture of a space once.

    A space's `build` may fail for some choices. Such architectures are no candidates of a search.
    """

    def __init__(self, space: SearchSpace) -> None:
        self.space = space
        self._texts: dict[Architecture, str] = {}
        self._failed: set[Architecture] = set()

    def __call__(self, architectures: Iterable[Architecture]) -> list[str]:
        """Texts of the architectures.

        Raises:
            InputError: if one cannot be built.
        """
        architectures = list(architectures)
        for architecture in architectures:
            if architecture not in self._texts:
                self._texts[architecture] = self.space.to_text(architecture)
        return [self._texts[architecture] for architecture in architectures]

    def can_be_written(self, architecture: Architecture) -> bool:
        """False if the architecture cannot be built."""
        if architecture in self._failed:
            return False
        try:
            self([architecture])
        except InputError:
            self._failed.add(architecture)
            return False
        return True

    def known(self, architectures: Iterable[Architecture]) -> list[str]:
        """The texts that are stored of these architectures."""
        return [self._texts[a] for a in architectures if a in self._texts]

    def forget_all_but(self, architectures: Iterable[Architecture]) -> None:
        """Drop the texts of all other architectures."""
        self._texts = {a: self._texts[a] for a in architectures if a in self._texts}
