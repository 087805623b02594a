"""Features of an architecture's text: its costs, and counts of operators and of short paths."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import log2
from typing import NamedTuple, TypeVar

import numpy as np

from search_spaces import read
from search_spaces.ir.graph import Attrs, Value
from search_spaces.ir.text.program import (
    Block,
    ItemAttrs,
    Program,
    Ref,
    Site,
    calls,
    sites,
    total_cost,
)

WIDTHS = frozenset({"channels", "features"})
PATH_NODES = 4  # operators in the longest path

Paths = dict[tuple[str, ...], int]
Name = TypeVar("Name")


def with_kernels(program: Program) -> Program:
    """The program with one copy of a function per kernel size, so that its operators state the
    size.

    Recursion would not end here: call `sites` first, which refuses it.
    """
    calls = [item for block in (program.main, *program.functions.values()) for item in block.items]
    if not any(
        item.op in program.functions and any(type(v) is tuple for _, v in item.attrs)
        for item in calls
    ):
        return program
    functions: dict[str, Block] = {}

    def called(name: str, kernels: Attrs) -> str:
        instance = f"{name} {kernels}" if kernels else name
        if instance not in functions:
            functions[instance] = bound(program.functions[name], dict(kernels))
        return instance

    def bound(block: Block, kernels: dict[str, Value]) -> Block:
        items = []
        for item in block.items:
            attrs = tuple(
                [(n, kernels.get(v.name, v) if isinstance(v, Ref) else v) for n, v in item.attrs]
            )
            if item.op in program.functions:
                given = tuple(
                    [(n, v) for n, v in attrs if isinstance(v, tuple) and not isinstance(v, Ref)]
                )
                attrs = tuple([pair for pair in attrs if pair not in given])
                item = item._replace(op=called(item.op, given))
            items.append(item._replace(attrs=attrs))
        return block._replace(items=tuple(items))

    return Program(bound(program.main, {}), functions, program.input_shapes, program.output_shapes)


class Reading(NamedTuple):
    """A parsed text."""

    program: Program  # the program with kernel sizes filled in (`with_kernels`)
    sites: tuple[Site, ...]  # shapes and cost of every item of the main block
    calls: dict[str, int]  # number of times that each function runs


@lru_cache(maxsize=16384)
def reading(text: str) -> Reading:
    """Parse a text; cached, since features and graphs read the same texts.

    Raises:
        InputError: if it is not the text of an architecture.
    """
    program = read(text)
    found = sites(program)  # first, since it refuses recursion
    program = with_kernels(program)
    return Reading(program, found, calls(program))


@lru_cache(maxsize=16384)
def features(text: str) -> dict[str, float]:
    """Features of an architecture by name: log2 of costs, and counts of paths of 1 to `PATH_NODES`
    operators.

    A path such as `x > Conv > Relu` counts how often operators of these kinds follow each other
    within a block, times the number of runs of the block. `x` is the block's input, `y` its output.
    """
    program, found, runs = reading(text)
    functions = frozenset(program.functions)
    total = dict(_paths(program.main, functions))
    for name, times in runs.items():
        for path, n in _paths(program.functions[name], functions).items():
            total[path] = total.get(path, 0) + n * times
    cost = total_cost(found)
    return {"log2 params": log2(1 + cost.params), "log2 flops": log2(1 + cost.flops), **total}


def feature_matrix(texts: Sequence[str], names: Sequence[str]) -> np.ndarray:
    """Matrix (n, features) of the named features of n texts; 0 where a text lacks a feature."""
    column = {name: i for i, name in enumerate(names)}
    matrix = np.zeros((len(texts), len(names)))
    for row, text in zip(matrix, texts, strict=True):
        for name, value in features(text).items():
            if name in column:
                row[column[name]] = value
    return matrix


@lru_cache(maxsize=16384)
def _paths(block: Block, functions: frozenset[str]) -> dict[str, int]:
    """Number of paths of 1 to `PATH_NODES` operators in a block, by the kinds of the operators."""
    ends: list[Paths] = [{("x",): 1}] * block.inputs
    counts: Paths = {}
    for item in block.items:
        kind = "call" if item.op in functions else " ".join([item.op, *kind_attributes(item.attrs)])
        here: Paths = {(kind,): 1}
        for value in item.inputs:
            _add(
                here,
                {(*path, kind): n for path, n in ends[value].items() if len(path) < PATH_NODES},
            )
        _add(counts, here)
        ends += [here] * item.outputs
    for value in block.outputs:
        for path, n in ends[value].items():
            _add(counts, {(*path[-PATH_NODES + 1 :], "y"): n})
    return {" > ".join(path): n for path, n in counts.items()}


def _add(counts: dict[Name, int], more: Mapping[Name, int]) -> None:
    """Add counts in place; `Counter.update` takes twice as long."""
    for name, n in more.items():
        counts[name] = counts.get(name, 0) + n


def kind_attributes(attrs: ItemAttrs) -> list[str]:
    """Attributes as `name=value` strings, without widths, which may take any value."""
    return [f"{name}={str(value).replace(' ', '')}" for name, value in attrs if name not in WIDTHS]


def select_features(texts: Sequence[str]) -> list[str]:
    """Names of the features that differ between texts and occur in at least 2 texts and 1 % of
    them.
    """
    names = sorted(set().union(*map(features, texts)))
    matrix = feature_matrix(texts, names)
    tells = (np.ptp(matrix, 0) > 0) & (np.count_nonzero(matrix, 0) >= max(2, len(texts) / 100))
    return [name for name, differs in zip(names, tells, strict=True) if differs]
