"""What simple formulas read off an architecture's text: sizes and costs, and counts of operators and of short paths."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from math import log2, prod
from typing import NamedTuple, TypeVar

import numpy as np

from search_spaces import read
from search_spaces.common.errors import InputError
from search_spaces.graph.ir import Shape, Value
from search_spaces.graph.operator_costs import multiply_accumulates
from search_spaces.graph.operators import output_shape
from search_spaces.graph.owned_weights import weights
from search_spaces.text.blocks import ItemAttrs
from search_spaces.text.program import Block, Item, Program, Ref

MAX_DEPTH = 32
WIDTHS = frozenset({"channels", "features"})
PATH_NODES = 4


class Cost(NamedTuple):
    """Trained weights and multiply-accumulates (for one input)."""

    params: int
    flops: int


class Site(NamedTuple):
    """One item of the main block in its place; a call has the costs of everything that it runs."""

    inputs: tuple[Shape, ...]
    outputs: tuple[Shape, ...]
    cost: Cost


Arguments = tuple[tuple[str, Value], ...]
Outcome = tuple[tuple[Shape, ...], Cost]  # of a call: the shapes of what it makes, and what it costs
Act = Callable[[str, tuple[Shape, ...], Arguments], Outcome]
Paths = dict[tuple[str, ...], int]
Name = TypeVar("Name")


def sites(program: Program) -> tuple[Site, ...]:
    """The items of the main block with their shapes and costs; `InputError` where sizes or calls do not fit."""
    functions = program.functions
    calling = {name for name, block in functions.items() if any(item.op in functions for item in block.items)}
    known: dict[tuple[str, tuple[Shape, ...], Arguments], Outcome] = {}

    def act(op: str, inputs: tuple[Shape, ...], attrs: Arguments, depth: int = 0) -> Outcome:
        """What an operator or a function makes of its inputs."""
        if op not in functions:
            return _operator(op, inputs, attrs)
        key = op, inputs, attrs
        if key in known:
            return known[key]
        function = functions[op]
        if len(inputs) != function.inputs:
            raise InputError(f"function {op} takes {function.inputs} inputs, not {len(inputs)}")
        if depth == MAX_DEPTH:
            raise InputError(f"functions call each other more than {MAX_DEPTH} deep; a function must not call itself")
        if op in calling:
            known[key] = _outcome(function, inputs, attrs, partial(act, depth=depth + 1))
        else:
            known[key] = _lowest(function, inputs, attrs)
        return known[key]

    return tuple([Site(*found) for found in _run(program.main, program.input_shapes, (), act)[1]])


def _run(
    block: Block, shapes: tuple[Shape, ...], arguments: Arguments, act: Act
) -> tuple[list[Shape], list[tuple[tuple[Shape, ...], tuple[Shape, ...], Cost]]]:
    """All values' shapes; and each item's inputs, outputs and cost."""
    values, found = list(shapes), []
    for op, numbers, attrs, makes in block.items:
        inputs = tuple([values[v] for v in numbers])
        outputs, cost = act(op, inputs, _bind(attrs, arguments) if block.params else attrs)
        if len(outputs) != makes:
            raise InputError(f"{op} makes {len(outputs)} values, not {makes}")
        values += outputs
        found.append((inputs, outputs, cost))
    return values, found


def _outcome(function: Block, shapes: tuple[Shape, ...], arguments: Arguments, act: Act) -> Outcome:
    values, found = _run(function, shapes, arguments, act)
    costs = [cost for _, _, cost in found]
    total = Cost(sum([params for params, _ in costs]), sum([flops for _, flops in costs]))
    return tuple([values[v] for v in function.outputs]), total


@lru_cache(maxsize=16384)
def _lowest(function: Block, shapes: tuple[Shape, ...], arguments: Arguments) -> Outcome:
    """Of a function that calls no other: the same in all texts that have it, as those of one space have some."""
    return _outcome(function, shapes, arguments, _operator)


def _bind(attrs: ItemAttrs, arguments: Arguments) -> Arguments:
    given = dict(arguments)
    try:
        return tuple((name, given[value.name] if isinstance(value, Ref) else value) for name, value in attrs)
    except KeyError as error:
        raise InputError(f"a function's parameter {error.args[0]} is not given by its caller") from None


@lru_cache(maxsize=65536)
def _operator(op: str, inputs: tuple[Shape, ...], attrs: Arguments) -> Outcome:
    shape = output_shape(op, attrs, inputs)  # first, since it refuses what does not fit
    params = sum(prod(weight.shape) for weight in weights(op, attrs, inputs) if weight.trained)
    return (shape,), Cost(params, multiply_accumulates(op, attrs, inputs))


def calls(program: Program) -> dict[str, int]:
    """How many times each function runs in one pass; call `sites` first, which finds functions that call themselves."""
    inside: dict[str, dict[str, int]] = {}

    def count(block: Block) -> dict[str, int]:
        total: dict[str, int] = {}
        for item in block.items:
            if item.op in program.functions:
                if item.op not in inside:
                    inside[item.op] = count(program.functions[item.op])
                total[item.op] = total.get(item.op, 0) + 1
                _add(total, inside[item.op])
        return total

    return count(program.main)


def with_kernels(program: Program) -> Program:
    """The program with a function for every kernel size that one is called with, so that its operators show theirs.

    Call `sites` first, which finds functions that call themselves.
    """
    if not any(_gives_kernels(item, program) for block in _blocks(program) for item in block.items):
        return program
    functions: dict[str, Block] = {}

    def called(name: str, kernels: Arguments) -> str:
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
                items.append(item._replace(op=called(item.op, given), attrs=attrs))
            else:
                items.append(item._replace(attrs=attrs))
        return block._replace(items=tuple(items))

    main = bound(program.main, {})
    return Program(main, functions, program.input_shapes, program.output_shapes)


def _blocks(program: Program) -> Iterator[Block]:
    yield program.main
    yield from program.functions.values()


def _gives_kernels(item: Item, program: Program) -> bool:
    return item.op in program.functions and any(type(value) is tuple for _, value in item.attrs)


class Reading(NamedTuple):
    """A text's program with its kernel sizes in view, the places of its main block, and how often functions run."""

    program: Program
    sites: tuple[Site, ...]
    calls: dict[str, int]


@lru_cache(maxsize=16384)
def reading(text: str) -> Reading:
    """A text, read once for all that look at it; `InputError` where it is not the text of an architecture."""
    program = read(text)
    found = sites(program)  # first, since it refuses functions that call themselves
    program = with_kernels(program)
    return Reading(program, found, calls(program))


@lru_cache(maxsize=16384)
def features(text: str) -> dict[str, float]:
    """Features of an architecture by name: costs on a log scale, operator and path counts.

    A count says how many times operators of these kinds follow each other in a block (`x` is the block's input, `y` its
    output), times how often the block runs.
    """
    program, found, runs = reading(text)
    functions = frozenset(program.functions)
    total = dict(_paths(program.main, functions))
    for name, times in runs.items():
        for path, n in _paths(program.functions[name], functions).items():
            total[path] = total.get(path, 0) + n * times
    params, flops = (sum(column) for column in zip(*(site.cost for site in found), strict=True)) if found else (0, 0)
    return {"log2 params": log2(1 + params), "log2 flops": log2(1 + flops), **total}


def feature_matrix(texts: Sequence[str], names: Sequence[str]) -> np.ndarray:
    """(n, features): the named features of every text, 0 where a text does not have one."""
    column = {name: i for i, name in enumerate(names)}
    matrix = np.zeros((len(texts), len(names)))
    for row, text in zip(matrix, texts, strict=True):
        for name, value in features(text).items():
            if name in column:
                row[column[name]] = value
    return matrix


@lru_cache(maxsize=16384)
def _paths(block: Block, functions: frozenset[str]) -> dict[str, int]:
    """How many paths of 1 to PATH_NODES operators there are, by their kinds."""
    ends: list[Paths] = [{("x",): 1}] * block.inputs
    counts: Paths = {}
    for item in block.items:
        kind = "call" if item.op in functions else kind_name(item)
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
    """What `Counter.update` does, which takes twice as long."""
    for name, n in more.items():
        counts[name] = counts.get(name, 0) + n


def kind_name(item: Item) -> str:
    """An operator with its attributes; widths are left out, since their number is not limited."""
    return " ".join([item.op, *kind_attributes(item)])


def kind_attributes(item: Item) -> list[str]:
    """The attributes of an operator, but for widths: one string for each."""
    return [f"{name}={str(value).replace(' ', '')}" for name, value in item.attrs if name not in WIDTHS]


def select_features(texts: Sequence[str]) -> list[str]:
    """Names of features that differ between texts and occur in at least two of them, and in one of a hundred."""
    names = sorted(set().union(*map(features, texts)))
    matrix = feature_matrix(texts, names)
    tells = (np.ptp(matrix, 0) > 0) & (np.count_nonzero(matrix, 0) >= max(2, len(texts) / 100))
    return [name for name, differs in zip(names, tells, strict=True) if differs]
