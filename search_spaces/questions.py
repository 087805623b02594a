"""Memory of the choices that `build` makes, so that drawing known choices again builds no
network.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field

from search_spaces.choosers import Chooser
from search_spaces.common.errors import InputError
from search_spaces.domains import Choice, Domain

MAX_QUESTIONS = 20_000  # remembered per space


@dataclass(slots=True)
class _Question:
    """A choice, and the choice that follows each of its values; None where `build` ends."""

    name: str
    options: Domain
    after: dict[tuple[type, Choice], _Question | None] = field(default_factory=dict)


class Questions:
    """A tree of choices: `build` depends on the choices alone, so equal values lead to the same
    next choice.
    """

    def __init__(self) -> None:
        self._first: dict[tuple[type, Choice], _Question | None] = {}
        self._count = 0

    def ask(self, chooser: Chooser) -> bool:
        """Ask a new chooser for the known choices; True if these are all that `build` makes.

        False if the tree has an unknown branch, or the chooser raises InputError.
        """
        after, answer = self._first, _START
        with suppress(InputError):
            while answer in after:
                question = after[answer]
                if question is None:
                    return True
                answer = _key(chooser.answer(question.name, question.options))
                after = question.after
        return False

    def learn(self, chooser: Chooser) -> None:
        """Remember the choices of a chooser with which `build` has finished."""
        after, answer = self._first, _START
        for name, options in chooser.options.items():
            if answer not in after:
                if self._count == MAX_QUESTIONS:
                    return
                after[answer] = _Question(name, options)
                self._count += 1
            question = after[answer]
            if question is None or question.name != name:
                return  # `build` does not depend on the choices alone
            after, answer = question.after, _key(chooser.choices[name])
        after.setdefault(answer, None)


def _key(answer: Choice) -> tuple[type, Choice]:
    return type(answer), answer


_START = _key(None)
