"""What is counted in an architecture's text, not predicted: exact costs, operators, short paths."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import log2
from typing import NamedTuple, TypeVar

import numpy as np

from predictors.metrics import EXACT
from search_spaces.common.errors import InputError
from search_spaces.ir.costs import graph_flops, graph_params
from search_spaces.ir.graph import Attrs, Value
from search_spaces.ir.text import expand, read
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
    requested = [name for name in COUNTS if name in metrics]
    if not requested:
        return {}
    graphs = [expand(read(text)) for text in texts]
    costs = {}
    for name in requested:
        count = COUNTS[name]
        costs[name] = [float(count(graph)) for graph in graphs]
    return costs


def with_exact_costs(
    texts: Sequence[str],
    metrics: Sequence[str],
    samples: np.ndarray,
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
            (value,) = counted[metrics[column]]
            samples[row, :, column] = value
    return samples


# --- features


Features = Mapping[str, float]
"""Features of one network by name; those that it lacks are 0."""


def named_matrix(networks: Sequence[Features], names: Sequence[str]) -> np.ndarray:
    """Matrix (n, features) of the named features of n networks."""
    column_of = {name: column for column, name in enumerate(names)}
    matrix = np.zeros((len(networks), len(names)))
    for row, of_network in zip(matrix, networks, strict=True):
        for name, value in of_network.items():
            if name in column_of:
                row[column_of[name]] = value
    return matrix


def varying_names(networks: Sequence[Features], least: float = 1) -> list[str]:
    """Names of the features that differ between networks, and that at least `least` of them have."""
    names = sorted(set().union(*networks))
    matrix = named_matrix(networks, names)  # (n, features)
    differs = np.ptp(matrix, 0) > 0
    occurrences = np.count_nonzero(matrix, 0)
    selected = np.flatnonzero(differs & (occurrences >= least))
    return [names[column] for column in selected]


def least_frequent(networks: int) -> float:
    """How many of n networks must have a feature that counts as frequent: 2, and 1 % of them."""
    return max(2, networks / 100)


def feature_matrix(texts: Sequence[str], names: Sequence[str]) -> np.ndarray:
    """Matrix (n, features) of the named `features` of n texts; 0 where a text lacks a feature."""
    return named_matrix([features(text) for text in texts], names)


def select_features(texts: Sequence[str]) -> list[str]:
    """Names of the `features` that differ between texts and are frequent (`least_frequent`)."""
    return varying_names([features(text) for text in texts], least_frequent(len(texts)))


@lru_cache(maxsize=_CACHED_TEXTS)
def features(text: str) -> dict[str, float]:
    """Features of an architecture by name: log2 of costs, and counts of paths.

    A path has 1 to `PATH_NODES` operators. A path such as `x > Conv > Relu` counts how often
    operators of these kinds follow each other within a block, times the number of runs of the
    block. `x` is the block's input, `y` its output.

    Raises:
        InputError: if it is not the text of an architecture.
    """
    program, at_sites, runs = reading(text)
    functions = frozenset(program.functions)
    total = dict(_paths(program.main, functions))
    for name, times in runs.items():
        of_function = _paths(program.functions[name], functions)
        for path, count in of_function.items():
            total[path] = total.get(path, 0) + count * times
    cost = total_cost(at_sites)
    return {
        "log2 params": log2(1 + cost.params),
        "log2 flops": log2(1 + cost.flops),
        **total,
    }


@lru_cache(maxsize=_CACHED_TEXTS)
def _paths(block: Block, functions: frozenset[str]) -> dict[str, int]:
    """Number of paths of 1 to `PATH_NODES` operators in a block, by the kinds of the operators."""
    total: Paths = {}
    # 1. Per value: the paths that end with the operator that makes it.
    ending: list[Paths] = [{("x",): 1}] * block.inputs
    for item in block.items:
        kind = _kind(item, functions)
        paths: Paths = {(kind,): 1}
        for value in item.inputs:
            longer: Paths = {}
            for path, count in ending[value].items():
                if len(path) < PATH_NODES:
                    longer[(*path, kind)] = count
            _add(paths, longer)
        _add(total, paths)
        ending += [paths] * item.outputs

    # 2. The paths that end at an output of the block; a full one loses its first operator.
    for value in block.outputs:
        for path, count in ending[value].items():
            last = path[-PATH_NODES + 1 :]
            _add(total, {(*last, "y"): count})
    return {" > ".join(path): count for path, count in total.items()}


def _kind(item: Item, functions: frozenset[str]) -> str:
    """An operator with its attributes, or `call`."""
    if item.op in functions:
        return "call"
    return " ".join([item.op, *kind_attributes(item.attrs)])


def kind_attributes(attrs: ItemAttrs) -> list[str]:
    """Attributes as `name=value` strings, without widths, which may take any value."""
    words = []
    for name, value in attrs:
        if name not in WIDTHS:
            without_spaces = str(value).replace(" ", "")
            words.append(f"{name}={without_spaces}")
    return words


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


class _Copy(NamedTuple):
    """The copy of a function for the kernel sizes that calls pass to it."""

    function: str
    kernels: Attrs

    @property
    def name(self) -> str:
        return f"{self.function} {self.kernels}" if self.kernels else self.function


def with_kernels(program: Program) -> Program:
    """The program with one copy of a function per kernel size.

    This way the operators of a function state the size.
    """
    if not _passes_kernels(program):
        return program
    # 1. The calls of the main block say which copies are needed.
    main, needed = _bind_kernels(program.main, {}, program.functions)

    # 2. Each copy is made once, and its calls may need further ones.
    copies: dict[str, Block] = {}
    while needed:
        copy = needed.pop()
        if copy.name not in copies:
            function = program.functions[copy.function]
            block, further = _bind_kernels(function, dict(copy.kernels), program.functions)
            copies[copy.name] = block
            needed += further
    return Program(main, copies, program.input_shapes, program.output_shapes)


def _bind_kernels(
    block: Block, kernels: Mapping[str, Value], functions: Mapping[str, Block]
) -> tuple[Block, list[_Copy]]:
    """The block with its kernel sizes filled in, and the copies that its calls then need.

    Args:
        block: the main block, or the body of a function.
        kernels: kernel sizes by the parameter that has them.
        functions: the program's functions by name.
    """
    items = []
    needed = []
    for item in block.items:
        # 1. Replace references to the block's own kernel sizes by their values.
        attrs = _with_values(item.attrs, kernels)
        op = item.op

        # 2. A call with kernel sizes becomes a call of the copy for these sizes.
        if op in functions:
            passed = _kernels(attrs)
            attrs = tuple([pair for pair in attrs if pair not in passed])
            copy = _Copy(op, passed)
            op = copy.name
            needed.append(copy)
        items.append(item._replace(op=op, attrs=attrs))
    return block._replace(items=tuple(items)), needed


def _passes_kernels(program: Program) -> bool:
    """True if a call anywhere states a kernel size."""
    for block in (program.main, *program.functions.values()):
        for item in block.items:
            if item.op in program.functions and _kernels(item.attrs):
                return True
    return False


def _with_values(attrs: ItemAttrs, value_of: Mapping[str, Value]) -> ItemAttrs:
    """Attributes with the values of those parameters that have one."""
    bound: list[tuple[str, Value | Ref]] = []
    for name, value in attrs:
        if isinstance(value, Ref):
            bound.append((name, value_of.get(value.name, value)))
        else:
            bound.append((name, value))
    return tuple(bound)


def _kernels(attrs: ItemAttrs) -> Attrs:
    """The kernel sizes among the attributes of a call: those that are tuples."""
    return tuple([(name, value) for name, value in attrs if type(value) is tuple])
