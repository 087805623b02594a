"""Genotypes: notations for networks of normal and reduction cells.

Three notations are read, followed by `, width=32, cells=8` if they do not contain the skeleton:

    Genotype(normal=[('sep_conv_3x3', 1), …], normal_concat=[2, 3], reduce=[…], reduce_concat=[…])
    {"width": 32, "depth": 8, "genotype": {"normal": [["sep_conv_3x3", 1], …], …}}
    [[(1, 3), (0, 2), …], [(0, 0), …]]

The first is that of DARTS (arXiv 1806.09055), which `write` produces. The second is the JSON of "On
Network Design Spaces" (arXiv 1905.13214), alone or within a whole record. The third are NASLib's
compact pairs (input, operation) of the normal and the reduction cell, for the space of DARTS.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any, NamedTuple

from search_spaces.common.errors import InputError

Edge = tuple[str, int]
"""Operation and its input: 0 and 1 are the two preceding cells, i + 2 is node i of the cell."""

COMPACT_OPERATIONS = (
    "max_pool_3x3",
    "avg_pool_3x3",
    "skip_connect",
    "sep_conv_3x3",
    "sep_conv_5x5",
    "dil_conv_3x3",
    "dil_conv_5x5",
)
_MAX_CHARACTERS = 20_000


class Genotype(NamedTuple):
    """A network of two cells; fields are None if the notation leaves them to the search space.

    Attributes:
        normal: edges of the normal cell, two per node.
        normal_concat: nodes that are concatenated to its output.
        reduce: edges of the reduction cell.
        reduce_concat: nodes that are concatenated to its output.
        width: channels of the first cells' nodes.
        cells: number of cells.
    """

    normal: tuple[Edge, ...]
    normal_concat: tuple[int, ...] | None
    reduce: tuple[Edge, ...]
    reduce_concat: tuple[int, ...] | None
    width: int | None = None
    cells: int | None = None


def write(genotype: Genotype) -> str:
    """Write a genotype in the notation of DARTS, with the skeleton as keywords."""
    fields = genotype._asdict()
    skeleton = {name: fields.pop(name) for name in ("width", "cells")}
    cells = ", ".join(f"{name}={list(value)}" for name, value in fields.items())
    written = f"Genotype({cells})"
    for name, value in skeleton.items():
        if value is not None:
            written += f", {name}={value}"
    return written


def read(native: str) -> Genotype:
    """Read a genotype in any of the three notations; InputError for anything else."""
    try:
        if len(native) > _MAX_CHARACTERS:
            raise InputError(f"longer than {_MAX_CHARACTERS} characters")
        call = ast.parse(f"_({native.strip()})", mode="eval").body
        if not isinstance(call, ast.Call) or len(call.args) != 1:
            raise InputError("expected one genotype, then width=… and cells=…")
        return _with_skeleton(_genotype(_value(call.args[0])), _keywords(call))
    except InputError as error:
        reason = str(error)
    except (SyntaxError, ValueError, TypeError, LookupError, RecursionError, MemoryError):
        reason = "see the notations in search_spaces/published/genotypes.py"
    raise InputError(f"not a genotype: {native[:200]!r} ({reason})")


def _with_skeleton(genotype: Genotype, keywords: dict[str, Any]) -> Genotype:
    for name, value in keywords.items():
        if name not in ("width", "cells"):
            raise InputError(f"unknown keyword {name!r}; known: width, cells")
        if getattr(genotype, name) not in (None, value):
            raise InputError(f"{name} is given twice with different values")
        genotype = genotype._replace(**{name: _number(value)})  # type: ignore[arg-type]
    return genotype


def _genotype(value: Any) -> Genotype:
    if isinstance(value, Genotype):
        return value
    if isinstance(value, list):
        return _from_compact(*value)
    if "net" in value:
        value = value["net"]
    if "genotype" in value:
        genotype = _from_fields(**value["genotype"])
        return genotype._replace(width=_number(value["width"]), cells=_number(value["depth"]))
    return _from_fields(**value)


def _from_fields(
    normal: list[Any],
    normal_concat: list[Any],
    reduce: list[Any],
    reduce_concat: list[Any],
) -> Genotype:
    return Genotype(
        _edges(normal), _numbers(normal_concat), _edges(reduce), _numbers(reduce_concat)
    )


def _from_compact(normal: list[Any], reduce: list[Any]) -> Genotype:
    def edges(cell: list[Any]) -> tuple[Edge, ...]:
        return _edges([(COMPACT_OPERATIONS[_number(op)], source) for source, op in cell])

    return Genotype(edges(normal), None, edges(reduce), None)


def _edges(pairs: list[Any]) -> tuple[Edge, ...]:
    edges = tuple((operation, _number(source)) for operation, source in pairs)
    if not all(isinstance(operation, str) for operation, _ in edges):
        raise InputError("an edge must be ('operation', input)")
    return edges


def _numbers(values: list[Any]) -> tuple[int, ...]:
    return tuple(_number(value) for value in values)


def _number(value: Any) -> int:
    if type(value) is not int:
        raise InputError(f"expected a number, not {value!r}")
    return value


# --- literals of Python and JSON, `Genotype(…)` and `range(…)`, without evaluating code

_JSON_NAMES = {"true": True, "false": False, "null": None}
_CALLS: dict[str, Callable[..., Any]] = {
    "Genotype": _from_fields,
    "range": lambda start, end: range(start, min(end, 99)),
}


def _value(node: ast.expr) -> Any:
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.List | ast.Tuple):
        return [_value(element) for element in node.elts]
    if isinstance(node, ast.Dict):
        entries = {}
        for key, value in zip(node.keys, node.values, strict=True):
            if key:  # None for `**other`
                entries[_value(key)] = _value(value)
        return entries
    if isinstance(node, ast.Name) and node.id in _JSON_NAMES:
        return _JSON_NAMES[node.id]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _CALLS:
        return _CALLS[node.func.id](*map(_value, node.args), **_keywords(node))
    raise InputError(f"{ast.unparse(node)[:80]!r} does not belong there")


def _keywords(call: ast.Call) -> dict[str, Any]:
    return {keyword.arg: _value(keyword.value) for keyword in call.keywords if keyword.arg}
