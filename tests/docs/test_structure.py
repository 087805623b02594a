"""The drawing of the code's structure is correct: its arrows are the imports between packages."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.test_layers import DOORS, ROOT, imports, modules

DRAWING = Path(__file__).parents[2] / "docs" / "concepts" / "structure.md"


def package(module: str) -> str:
    """The folder that a module lives in: at most one below its package, and the rooms of the
    compiler. The door of a package belongs to the package that it opens into.

    The operators are no room of their own: graphs are below them, costs and fusion above.
    """
    parts = module.split(".")
    if module in DOORS:
        return parts[0]
    is_room = parts[:2] == ["search_spaces", "ir"] and parts[2:3] != ["ops"]
    depth = 3 if is_room else 2
    return next(
        ".".join(parts[:n])
        for n in range(depth, 0, -1)
        if len(parts) >= n and ROOT.joinpath(*parts[:n]).is_dir()
    )


def import_arrows() -> set[tuple[str, str]]:
    """Imports between packages, without those that follow from others. The `__init__` of a package
    does not count.
    """
    gathering = {
        name for name, path in modules().items() if path.name == "__init__.py" and "." not in name
    }
    arrows = {
        (package(module), package(imported))
        for module, path in modules().items()
        for imported in imports(path)
        if module not in gathering and package(module) != package(imported)
    }
    between = {end for arrow in arrows for end in arrow}
    return {
        (a, b) for a, b in arrows if not any((a, c) in arrows and (c, b) in arrows for c in between)
    }


def drawn_arrows() -> set[tuple[str, str]]:
    names = dict(re.findall(r"^ +(\w+)\[\"`?([\w.]+)", DRAWING.read_text(), re.MULTILINE))
    arrows = re.findall(r"^ +(\w+) --> (\w+)$", DRAWING.read_text(), re.MULTILINE)
    return {(names[a], names[b]) for a, b in arrows}


@pytest.mark.slow
def test_the_drawing_has_the_arrows_of_the_imports() -> None:
    assert drawn_arrows() == import_arrows()
