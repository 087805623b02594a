"""Features of an architecture's text: shapes and costs of its operators, counts of operators and of short paths."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from math import log2, prod
from typing import NamedTuple, TypeVar

import numpy as np

from search_spaces import read
from search_spaces.common.errors import InputError
from search_spaces.graph.ir import Attrs, Shape, Value
from search_spaces.graph.operator_costs import multiply_accumulates
from search_spaces.graph.operators import output_shape
from search_spaces.graph.owned_weights import weights
from search_spaces.text.blocks import ItemAttrs
from search_spaces.text.program import Block, Program, Ref

MAX_DEPTH = 32  # nested function calls
WIDTHS = frozenset({"channels", "features"})
PATH_NODES = 4  # operators in the longest path


class Cost(NamedTuple):
    """Trained weights, and multiply-accumulates of one input."""

    params: int
    flops: int


class Site(NamedTuple):
    """Shapes and cost of one item of the main block; a call has the cost of all that it runs."""

    inputs: tuple[Shape, ...]
    outputs: tuple[Shape, ...]
    cost: Cost


Outcome = tuple[tuple[Shape, ...], Cost]  # output shapes and cost of an operator or call
Evaluate = Callable[[str, tuple[Shape, ...], Attrs], Outcome]
Paths = dict[tuple[str, ...], int]
Name = TypeVar("Name")


def sites(program: Program) -> tuple[Site, ...]:
    """Shapes and cost of every item of the main block.

    Raises:
        InputError: if shapes or calls do not match, or functions call each other more than `MAX_DEPTH` deep.
    """
    functions = program.functions
    calling = {name for name, block in functions.items() if any(item.op in functions for item in block.items)}
    known: dict[tuple[str, tuple[Shape, ...], Attrs], Outcome] = {}

    def evaluate(op: str, inputs: tuple[Shape, ...], attrs: Attrs, depth: int = 0) -> Outcome:
        if op not in functions:
            return operator_outcome(op, inputs, attrs)
        key = op, inputs, attrs
        if key in known:
            return known[key]
        function = functions[op]
        if len(inputs) != function.inputs:
            raise InputError(f"function {op} takes {function.inputs} inputs, not {len(inputs)}")
        if depth == MAX_DEPTH:
            raise InputError(f"functions call each other more than {MAX_DEPTH} deep; a function must not call itself")
        run = partial(_outcome, evaluate=partial(evaluate, depth=depth + 1)) if op in calling else _leaf_outcome
        return known.setdefault(key, run(function, inputs, attrs))

    return tuple(_run(program.main, program.input_shapes, (), evaluate)[1])


def _run(
    block: Block, shapes: tuple[Shape, ...], arguments: Attrs, evaluate: Evaluate
) -> tuple[list[Shape], list[Site]]:
    """Shapes of all values, and the site of every item."""
    values, found = list(shapes), []
    for op, numbers, attrs, makes in block.items:
        inputs = tuple([values[v] for v in numbers])
        outputs, cost = evaluate(op, inputs, bind(attrs, arguments) if block.params else attrs)
        if len(outputs) != makes:
            raise InputError(f"{op} has {len(outputs)} outputs, not {makes}")
        values += outputs
        found.append(Site(inputs, outputs, cost))
    return values, found


def _outcome(function: Block, shapes: tuple[Shape, ...], arguments: Attrs, evaluate: Evaluate) -> Outcome:
    values, found = _run(function, shapes, arguments, evaluate)
    return tuple([values[v] for v in function.outputs]), total_cost(found)


def total_cost(sites: Sequence[Site]) -> Cost:
    """Sum of the costs."""
    costs = [site.cost for site in sites]
    return Cost(sum([params for params, _ in costs]), sum([flops for _, flops in costs]))


@lru_cache(maxsize=16384)
def _leaf_outcome(function: Block, shapes: tuple[Shape, ...], arguments: Attrs) -> Outcome:
    """Outcome of a function that calls no other; cached, since texts of one space share such functions."""
    return _outcome(function, shapes, arguments, operator_outcome)


def bind(attrs: ItemAttrs, arguments: Attrs) -> Attrs:
    """An item's attributes with the values of the function's parameters; `InputError` if one has no value."""
    given = dict(arguments)
    try:
        return tuple([(name, given[value.name] if isinstance(value, Ref) else value) for name, value in attrs])
    except KeyError as error:
        raise InputError(f"a call does not give the function's parameter {error.args[0]}") from None


@lru_cache(maxsize=65536)
def operator_outcome(op: str, inputs: tuple[Shape, ...], attrs: Attrs) -> Outcome:
    """Output shape and cost of an operator; `InputError` if it does not take these inputs."""
    shape = output_shape(op, attrs, inputs)  # first, since it checks the inputs
    params = sum(prod(weight.shape) for weight in weights(op, attrs, inputs) if weight.trained)
    return (shape,), Cost(params, multiply_accumulates(op, attrs, inputs))


def calls(program: Program) -> dict[str, int]:
    """Number of times that each function runs in one forward pass.

    Recursion would not end here: call `sites` first, which refuses it.
    """
    inside: dict[str, dict[str, int]] = {}

    def count(block: Block) -> dict[str, int]:
        total: dict[str, int] = {}
        for item in block.items:
            if item.op in program.functions:
                if item.op not in inside:
                    inside[item.op] = {item.op: 1, **count(program.functions[item.op])}
                _add(total, inside[item.op])
        return total

    return count(program.main)


def with_kernels(program: Program) -> Program:
    """The program with one copy of a function per kernel size, so that its operators state the size.

    Recursion would not end here: call `sites` first, which refuses it.
    """
    calls = [item for block in (program.main, *program.functions.values()) for item in block.items]
    if not any(item.op in program.functions and any(type(v) is tuple for _, v in item.attrs) for item in calls):
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
            attrs = tuple([(n, kernels.get(v.name, v) if isinstance(v, Ref) else v) for n, v in item.attrs])
            if item.op in program.functions:
                given = tuple([(n, v) for n, v in attrs if isinstance(v, tuple) and not isinstance(v, Ref)])
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
    """Features of an architecture by name: log2 of costs, and counts of paths of 1 to `PATH_NODES` operators.

    A path such as `x > Conv > Relu` counts how often operators of these kinds follow each other within a block, times
    the number of runs of the block. `x` is the block's input, `y` its output.
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
            _add(here, {(*path, kind): n for path, n in ends[value].items() if len(path) < PATH_NODES})
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
    """Names of the features that differ between texts and occur in at least 2 texts and 1 % of them."""
    names = sorted(set().union(*map(features, texts)))
    matrix = feature_matrix(texts, names)
    tells = (np.ptp(matrix, 0) > 0) & (np.count_nonzero(matrix, 0) >= max(2, len(texts) / 100))
    return [name for name, differs in zip(names, tells, strict=True) if differs]
