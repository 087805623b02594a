"""What is counted in an architecture's text, not predicted: exact costs, operators, short paths."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import log2
from typing import NamedTuple, TypeVar

import numpy as np

from predictors.metrics import EXACT
from search_spaces import expand, graph_flops, graph_params, read
from search_spaces.common.errors import InputError
from search_spaces.ir.graph import Attrs, Value
from search_spaces.ir.text.program import (
    Block,
    Item,
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
COUNTS = dict(zip(EXACT, (graph_params, graph_flops), strict=True))
_CACHED_TEXTS = 16384

KindPath = tuple[str, ...]  # kinds of operators that follow each other
Paths = dict[KindPath, int]  # how often each path occurs
Name = TypeVar("Name")


# --- exact costs


def exact_costs(texts: Sequence[str], metrics: Sequence[str]) -> dict[str, list[float]]:
    """Counts of n networks per exact metric among `metrics`.

    Raises:
        InputError: if a text is not that of a network.
    """
    requested = {name: count for name, count in COUNTS.items() if name in metrics}
    graphs = [expand(read(text)) for text in texts] if requested else []
    return {name: [float(count(graph)) for graph in graphs] for name, count in requested.items()}


def with_exact_costs(
    texts: Sequence[str], metrics: Sequence[str], samples: np.ndarray
) -> np.ndarray:
    """Write exact costs into the samples of exact metrics, in place.

    Texts that cannot be read as networks keep their predictions.

    Args:
        texts: n texts.
        metrics: names of the m metrics.
        samples: (n, s, m).

    Returns:
        The same array.
    """
    columns = [column for column, name in enumerate(metrics) if name in COUNTS]
    if not columns:
        return samples
    for row, text in enumerate(texts):
        try:
            counted = exact_costs([text], metrics)
        except InputError:
            continue
        for column in columns:
            samples[row, :, column] = counted[metrics[column]][0]
    return samples


# --- features


def feature_matrix(texts: Sequence[str], names: Sequence[str]) -> np.ndarray:
    """Matrix (n, features) of the named features of n texts; 0 where a text lacks a feature."""
    column_of = {name: column for column, name in enumerate(names)}
    matrix = np.zeros((len(texts), len(names)))
    for row, text in zip(matrix, texts, strict=True):
        for name, value in features(text).items():
            if name in column_of:
                row[column_of[name]] = value
    return matrix


def select_features(texts: Sequence[str]) -> list[str]:
    """Names of the features that differ between texts and occur in at least 2 texts and 1 % of
    them.
    """
    names = sorted(set().union(*map(features, texts)))
    matrix = feature_matrix(texts, names)
    differs = np.ptp(matrix, 0) > 0
    is_frequent = np.count_nonzero(matrix, 0) >= max(2, len(texts) / 100)
    return [name for name, kept in zip(names, differs & is_frequent, strict=True) if kept]


@lru_cache(maxsize=_CACHED_TEXTS)
def features(text: str) -> dict[str, float]:
    """Features of an architecture by name: log2 of costs, and counts of paths of 1 to `PATH_NODES`
    operators.

    A path such as `x > Conv > Relu` counts how often operators of these kinds follow each other
    within a block, times the number of runs of the block. `x` is the block's input, `y` its output.

    Raises:
        InputError: if it is not the text of an architecture.
    """
    program, at_sites, runs = reading(text)
    functions = frozenset(program.functions)
    total = dict(_paths(program.main, functions))
    for name, times in runs.items():
        for path, count in _paths(program.functions[name], functions).items():
            total[path] = total.get(path, 0) + count * times
    cost = total_cost(at_sites)
    return {"log2 params": log2(1 + cost.params), "log2 flops": log2(1 + cost.flops), **total}


@lru_cache(maxsize=_CACHED_TEXTS)
def _paths(block: Block, functions: frozenset[str]) -> dict[str, int]:
    """Number of paths of 1 to `PATH_NODES` operators in a block, by the kinds of the operators."""
    total: Paths = {}
    # Per value: the paths that end with the operator that makes it.
    ending: list[Paths] = [{("x",): 1}] * block.inputs
    for item in block.items:
        kind = _kind(item, functions)
        paths: Paths = {(kind,): 1}
        for value in item.inputs:
            longer = {
                (*path, kind): count
                for path, count in ending[value].items()
                if len(path) < PATH_NODES
            }
            _add(paths, longer)
        _add(total, paths)
        ending += [paths] * item.outputs
    for value in block.outputs:
        for path, count in ending[value].items():
            _add(total, {(*path[-PATH_NODES + 1 :], "y"): count})
    return {" > ".join(path): count for path, count in total.items()}


def _kind(item: Item, functions: frozenset[str]) -> str:
    """An operator with its attributes, or `call`."""
    if item.op in functions:
        return "call"
    return " ".join([item.op, *kind_attributes(item.attrs)])


def kind_attributes(attrs: ItemAttrs) -> list[str]:
    """Attributes as `name=value` strings, without widths, which may take any value."""
    return [f"{name}={str(value).replace(' ', '')}" for name, value in attrs if name not in WIDTHS]


def _add(counts: dict[Name, int], more: Mapping[Name, int]) -> None:
    """Add counts in place; `Counter.update` takes twice as long."""
    for name, count in more.items():
        counts[name] = counts.get(name, 0) + count


# --- reading a text


class Reading(NamedTuple):
    """A parsed text."""

    program: Program  # the program with kernel sizes filled in (`with_kernels`)
    sites: tuple[Site, ...]  # shapes and cost of every item of the main block
    calls: dict[str, int]  # number of times that each function runs


@lru_cache(maxsize=_CACHED_TEXTS)
def reading(text: str) -> Reading:
    """Parse a text; cached, since features and graphs read the same texts.

    Raises:
        InputError: if it is not the text of an architecture.
    """
    program = read(text)
    at_sites = sites(program)  # first, since it refuses recursion
    program = with_kernels(program)
    return Reading(program, at_sites, calls(program))


def with_kernels(program: Program) -> Program:
    """The program with one copy of a function per kernel size, so that its operators state the
    size.

    Recursion would not end here: call `sites` first, which refuses it.
    """
    blocks = (program.main, *program.functions.values())
    items = [item for block in blocks for item in block.items]
    if not any(item.op in program.functions and _kernels(item.attrs) for item in items):
        return program
    functions: dict[str, Block] = {}  # the copies, by name

    def copy_of(name: str, kernels: Attrs) -> str:
        copy = f"{name} {kernels}" if kernels else name
        if copy not in functions:
            functions[copy] = bound(program.functions[name], dict(kernels))
        return copy

    def bound(block: Block, kernels: dict[str, Value]) -> Block:
        new = []
        for item in block.items:
            # 1. Replace references to the block's own kernel sizes by their values.
            attrs = tuple(
                [
                    (name, kernels.get(value.name, value) if isinstance(value, Ref) else value)
                    for name, value in item.attrs
                ]
            )
            # 2. A call with kernel sizes becomes a call of the copy for these sizes.
            if item.op in program.functions:
                passed = _kernels(attrs)
                attrs = tuple([pair for pair in attrs if pair not in passed])
                item = item._replace(op=copy_of(item.op, passed))
            new.append(item._replace(attrs=attrs))
        return block._replace(items=tuple(new))

    main = bound(program.main, {})
    return Program(main, functions, program.input_shapes, program.output_shapes)


def _kernels(attrs: ItemAttrs) -> Attrs:
    """The kernel sizes among the attributes of a call: those that are tuples."""
    return tuple([(name, value) for name, value in attrs if type(value) is tuple])
