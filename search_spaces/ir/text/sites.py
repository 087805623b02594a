"""Shapes and costs of the items of a program, and how often its functions run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from math import prod
from typing import NamedTuple

from search_spaces.common.errors import InputError
from search_spaces.ir.graph import Attrs, Shape
from search_spaces.ir.operator_costs import multiply_accumulates
from search_spaces.ir.operators import output_shape
from search_spaces.ir.owned_weights import weights
from search_spaces.ir.text.blocks import ItemAttrs
from search_spaces.ir.text.program import Block, Program, Ref

MAX_DEPTH = 32  # nested function calls


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


def sites(program: Program) -> tuple[Site, ...]:
    """Shapes and cost of every item of the main block.

    Raises:
        InputError: if shapes or calls do not match, or functions call each other more than
            `MAX_DEPTH` deep.
    """
    functions = program.functions
    calling = {
        name
        for name, block in functions.items()
        if any(item.op in functions for item in block.items)
    }
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
            raise InputError(
                f"functions call each other more than {MAX_DEPTH} deep; a function must not call "
                "itself"
            )
        run = (
            partial(_outcome, evaluate=partial(evaluate, depth=depth + 1))
            if op in calling
            else _leaf_outcome
        )
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


def _outcome(
    function: Block, shapes: tuple[Shape, ...], arguments: Attrs, evaluate: Evaluate
) -> Outcome:
    values, found = _run(function, shapes, arguments, evaluate)
    return tuple([values[v] for v in function.outputs]), total_cost(found)


def total_cost(sites: Sequence[Site]) -> Cost:
    """Sum of the costs."""
    costs = [site.cost for site in sites]
    return Cost(sum([params for params, _ in costs]), sum([flops for _, flops in costs]))


@lru_cache(maxsize=16384)
def _leaf_outcome(function: Block, shapes: tuple[Shape, ...], arguments: Attrs) -> Outcome:
    """Outcome of a function that calls no other; cached, since texts of one space share such
    functions.
    """
    return _outcome(function, shapes, arguments, operator_outcome)


def bind(attrs: ItemAttrs, arguments: Attrs) -> Attrs:
    """An item's attributes with the values of the function's parameters; `InputError` if one has no
    value.
    """
    given = dict(arguments)
    try:
        return tuple(
            [
                (name, given[value.name] if isinstance(value, Ref) else value)
                for name, value in attrs
            ]
        )
    except KeyError as error:
        raise InputError(
            f"a call does not give the function's parameter {error.args[0]}"
        ) from error


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
                for name, times in inside[item.op].items():
                    total[name] = total.get(name, 0) + times
        return total

    return count(program.main)
