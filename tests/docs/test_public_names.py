"""Every public name of `nas` shows how it is used, and what it shows is true."""

from __future__ import annotations

import doctest
import inspect

import pytest

import nas


def _needs_example(name: str) -> bool:
    value = getattr(nas, name)
    is_raised_here = inspect.isclass(value) and issubclass(value, nas.NasError)
    return name == "Infeasible" or (name != "__version__" and not is_raised_here)


NAMES = [name for name in nas.__all__ if _needs_example(name)]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_example_of_a_public_name_runs(name: str) -> None:
    # Classes without the examples of their methods
    finder = doctest.DocTestFinder(recurse=False)
    (shown,) = finder.find(getattr(nas, name), name, globs={})
    assert shown.examples, f"nas.{name} has no example"
    assert doctest.DocTestRunner().run(shown).failed == 0
