"""Check that `build` depends on the choices alone, on which everything else relies."""

from __future__ import annotations

import difflib

import numpy as np

from search_spaces.common.errors import Infeasible, InputError
from search_spaces.space import SearchSpace

CHECKED = 3  # architectures


def check_repeatable(space: SearchSpace, seed: int = 0) -> None:
    """Build `CHECKED` random architectures twice.

    Raises:
        InputError: if equal choices give different networks or other choices, or if no architecture
            can be built.
    """
    rng = np.random.default_rng(seed)
    errors: list[InputError] = []
    for _ in range(CHECKED):
        arch = space.sample(rng)
        try:
            first = space.to_text(arch)
            second = space.to_text(arch)
            again = space.architecture(arch.as_dict())
        except Infeasible:  # `build` may raise it after `ask` has made all choices
            continue
        except InputError as error:  # `build` may fail for some choices
            errors.append(error)
            continue
        if again != arch:
            raise InputError(
                f"{space.name}: build does not make the same choices again for {space.format(arch)}"
            )
        if first != second:
            raise InputError(
                f"{space.name}: build made two networks of the same choices "
                f"({_difference(first, second)}): it must "
                "depend on the trial alone, without random numbers and state; choices: "
                f"{space.format(arch)}"
            )
    if len(errors) == CHECKED:
        raise errors[0]


def _difference(first: str, second: str) -> str:
    """The first line of each text that the other lacks."""
    changed = [
        line for line in difflib.ndiff(first.splitlines(), second.splitlines()) if line[:1] in "-+"
    ]
    a = next((line[2:].strip() for line in changed if line.startswith("-")), "nothing")
    b = next((line[2:].strip() for line in changed if line.startswith("+")), "nothing")
    return f"{a!r} and {b!r}"
