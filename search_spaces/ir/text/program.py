"""Conversion of a flat graph to a program, in canonical order and with functions for repeated
blocks, and back.

Graphs that differ only in names or in the order of their nodes give the same program. Functions are
found from the edges alone: recurring blocks of the graph (`regions`, made scopes by `scopes`), then
groups of lines that repeat in these (`repeats`). A function has parameters for the widths and
kernel sizes in which its calls differ.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

from search_spaces.common.collecting import collection_paused
from search_spaces.common.errors import InputError
from search_spaces.ir.graph import Graph, Node, Shape, Value
from search_spaces.ir.operators import canonical_attrs, output_shape
from search_spaces.ir.text.blocks import Block, Item, Ref, new_item
from search_spaces.ir.text.lines import Line, placed_lines
from search_spaces.ir.text.regions import regions
from search_spaces.ir.text.repeats import length, repeats
from search_spaces.ir.text.scopes import Scope, distinct, regrouped, scoped

__all__ = ["Block", "Item", "Program", "Ref", "compact", "expand"]

_MAX_DEPTH = 32
_MAX_NODES = 100_000


@dataclass(frozen=True)
class Program:
    """A network as a main block and functions.

    Attributes:
        functions: functions by name, callers before callees.
        input_shapes, output_shapes: shapes of the inputs and outputs of the main block.
    """

    main: Block
    functions: dict[str, Block]
    input_shapes: tuple[Shape, ...]
    output_shapes: tuple[Shape, ...]


@collection_paused()
def compact(graph: Graph) -> Program:
    """The program of a graph, in canonical order and with functions for repeated blocks."""
    lines = placed_lines(graph)
    root = scoped(graph, lines, regions(graph, lines))
    while (shorter := _shortened(graph, lines, root)) is not None:
        root = shorter
    return _program(graph, root)


def _shortened(graph: Graph, lines: list[tuple[int, Line]], root: Scope) -> Scope | None:
    """The graph with scopes around repeats in the blocks of `root`; None if that saves no line."""
    blocks = _bodies(root)
    groups = repeats(tuple(blocks.values()))
    if groups is None:
        return None
    around = dict(zip(blocks, groups, strict=True))
    shorter = regrouped(root, around, graph, lines)
    return shorter if length(_bodies(shorter).values()) < length(blocks.values()) else None


def _bodies(root: Scope) -> dict[str, Block]:
    return {certificate: scopes[0].canonical.body for certificate, scopes in distinct(root).items()}


# --- functions and their parameters
# ----------------------------------------------------------------------------------


def _program(graph: Graph, root: Scope) -> Program:
    found = distinct(root)
    del found[root.op]
    names = {certificate: f"F{i}" for i, certificate in enumerate(found, start=1)}
    arguments = {certificate: _arguments(scopes) for certificate, scopes in found.items()}

    def written(body: Block, numbers: list[Value | Ref]) -> Block:
        """The body with its numbers filled in; calls are by name and pass only arguments that
        vary.
        """
        filled = iter(numbers)
        items = []
        for item in body.items:
            op, inputs, attrs, outputs = item
            if attrs:
                attrs = tuple(
                    [(name, next(filled) if isinstance(v, Ref) else v) for name, v in attrs]
                )
            if op in names:
                given = zip(arguments[op], attrs, strict=True)
                attrs = tuple(
                    {p.name: value for p, (_, value) in given if isinstance(p, Ref)}.items()
                )
                item = new_item((names[op], inputs, attrs, outputs))
            elif attrs:
                item = new_item((op, inputs, attrs, outputs))
            items.append(item)
        return body._replace(items=tuple(items))

    functions = {}
    for certificate, scopes in found.items():
        params = tuple(dict.fromkeys(p.name for p in arguments[certificate] if isinstance(p, Ref)))
        body = written(scopes[0].canonical.body, arguments[certificate])
        functions[names[certificate]] = body._replace(params=params)
    main = written(root.canonical.body, list(root.numbers))
    inputs = tuple(graph.shapes[v] for v in graph.inputs)
    return Program(main, functions, inputs, tuple(graph.shapes[v] for v in graph.outputs))


def _arguments(scopes: list[Scope]) -> list[Value | Ref]:
    """The numbers of a function: a constant if all calls agree, else a parameter. Equal columns
    share one.
    """
    sizes, kernels = _param_names("cdefghijlmnopqrstuvw"), _param_names("k")
    params: dict[tuple[Value, ...], Ref] = {}
    arguments: list[Value | Ref] = []
    for column in zip(*(scope.numbers for scope in scopes), strict=True):
        if len(set(column)) > 1 and column not in params:
            params[column] = Ref(next(kernels if isinstance(column[0], tuple) else sizes))
        arguments.append(params.get(column, column[0]))
    return arguments


def _param_names(letters: str) -> Iterator[str]:
    yield from letters
    for index in count():
        yield f"{letters[0]}{index}"


# --- and back
# --------------------------------------------------------------------------------------------------------


def expand(program: Program) -> Graph:
    """The flat graph of a program: each call is replaced by the body of its function, and names the
    scope.

    Raises:
        InputError: if the program is recursive, too large, or not well-formed.
    """
    shapes: list[Shape] = list(program.input_shapes)
    nodes: list[Node] = []
    calls: Counter[str] = Counter()

    def run(
        block: Block, inputs: list[int], arguments: dict[str, Value], scope: tuple[str, ...]
    ) -> list[int]:
        if len(scope) > _MAX_DEPTH:
            raise InputError(
                f"functions call each other more than {_MAX_DEPTH} deep; a function must not call "
                "itself"
            )
        values = list(inputs)
        for item in block.items:
            made = evaluate(item, [values[v] for v in item.inputs], arguments, scope)
            if len(made) != item.outputs:
                raise InputError(f"{item.op} has {len(made)} outputs, not {item.outputs}")
            values += made
        return [values[v] for v in block.outputs]

    def evaluate(
        item: Item, ins: list[int], arguments: dict[str, Value], scope: tuple[str, ...]
    ) -> list[int]:
        attrs = tuple((n, _bind(v, arguments)) for n, v in item.attrs)
        function = program.functions.get(item.op)
        if function is not None:
            if len(ins) != function.inputs:
                raise InputError(
                    f"function {item.op} takes {function.inputs} inputs, not {len(ins)}"
                )
            calls[item.op] += 1
            if calls[item.op] > _MAX_NODES:
                raise InputError(f"function {item.op} is called more than {_MAX_NODES} times")
            return run(function, ins, dict(attrs), (*scope, f"{item.op}_{calls[item.op]}"))
        if len(nodes) >= _MAX_NODES:
            raise InputError(f"the network has more than {_MAX_NODES} nodes")
        given = tuple(shapes[v] for v in ins)
        shape = output_shape(item.op, attrs, given)
        nodes.append(
            Node(item.op, tuple(ins), (len(shapes),), canonical_attrs(item.op, attrs, given), scope)
        )
        shapes.append(shape)
        return [len(shapes) - 1]

    inputs = list(range(len(program.input_shapes)))
    outputs = run(program.main, inputs, {}, ())
    return Graph(tuple(inputs), tuple(nodes), tuple(outputs), tuple(shapes))


def _bind(value: Value | Ref, arguments: dict[str, Value]) -> Value:
    if not isinstance(value, Ref):
        return value
    if value.name not in arguments:
        raise InputError(f"a function's parameter {value.name} is not given by its caller")
    return arguments[value.name]
