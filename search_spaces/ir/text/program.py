"""Programs: a network as a main block and functions, and the interpreter that runs them.

    net (x) => (y)            main block
      a = ConvBn <…> (x)        item: an operator
      b = F1 <c = 8> (a)        item: a call with the argument c
      y = F1 <c = 16> (b)
    F1 <c> (x) => (y)         function with the parameter c
      …

Values are numbered, not named: those that a block reads come first, then the outputs of its items.

Everything that follows calls is an `Interpreter`: `expand` writes a program out as a flat graph,
`sites` finds the shapes and the cost of every item, and `calls` counts how often functions run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from math import prod
from typing import Generic, NamedTuple, TypeVar

from search_spaces.common.errors import InputError
from search_spaces.ir.graph import MAX_DEPTH, Attrs, Graph, Node, Shape, Value
from search_spaces.ir.ops import canonical_attrs, multiply_accumulates, output_shape, weights

PARAMETRIC = frozenset({"channels", "features", "kernel"})
"""Attributes that may be parameters of a function."""
MAX_CALLS = 100_000  # calls that are run in one program; equal ones may count once
MAX_NODES = 100_000  # nodes of an expanded network


class Ref(NamedTuple):
    """An attribute value that is the parameter `name` of a function."""

    name: str


ItemAttrs = tuple[tuple[str, Value | Ref], ...]


class Item(NamedTuple):
    """One line of a block: an operator, or the call of a function by its name.

    Attributes:
        inputs: numbers of the values that it reads.
        outputs: number of values that it produces.
    """

    op: str
    inputs: tuple[int, ...]
    attrs: ItemAttrs
    outputs: int = 1


new_item: Callable[[tuple[str, tuple[int, ...], ItemAttrs, int]], Item] = partial(
    tuple.__new__, Item
)
"""`Item` from a tuple of its fields; a third faster, since blocks have dozens of items."""


class Block(NamedTuple):
    """A sequence of items.

    Values 0 to `inputs - 1` are the inputs; the outputs of the items follow in order.

    Attributes:
        inputs: number of inputs.
        outputs: numbers of the values that the block returns.
        params: names of the parameters of a function.
    """

    inputs: int
    items: tuple[Item, ...]
    outputs: tuple[int, ...]
    params: tuple[str, ...] = ()


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


# --- the interpreter

AnyValue = TypeVar("AnyValue")
Result = TypeVar("Result")


class Interpreter(Generic[AnyValue, Result]):
    """Runs a program: binds parameters, follows calls, and limits both their depth and number.

    A subclass says what a value is, such as its shape or its number in a graph, and what an
    operator and a block result in, such as a cost.

    Attributes:
        program: the program.
        scope: names of the calls around the item that runs, from the outermost.
    """

    runs_equal_calls_once = True
    """Calls of one function with equal inputs and arguments share their outcome."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.scope: tuple[str, ...] = ()
        self._times: Counter[str] = Counter()  # by function, of calls that have been run
        self._calls = 0
        self._outcomes: dict[
            tuple[str, tuple[AnyValue, ...], Attrs], tuple[tuple[AnyValue, ...], Result]
        ] = {}

    def operator(
        self, op: str, inputs: tuple[AnyValue, ...], attrs: Attrs
    ) -> tuple[tuple[AnyValue, ...], Result]:
        """The outputs of an operator, and its result; subclasses define this."""
        raise NotImplementedError

    def block(
        self,
        name: str,
        block: Block,
        values: list[AnyValue],
        results: list[Result],
    ) -> Result:
        """The result of a block that has run; subclasses define this.

        Args:
            name: name of the function; empty for the main block.
            block: the block.
            values: the values of its inputs, then of the outputs of its items.
            results: the result of each item.
        """
        raise NotImplementedError

    def run(self, inputs: Sequence[AnyValue]) -> tuple[tuple[AnyValue, ...], Result]:
        """The outputs and the result of the main block.

        Raises:
            InputError: if a call or an operator has other inputs, outputs or parameters than its
                definition, or there are more than `MAX_CALLS` calls or `MAX_DEPTH` nested ones.
        """
        return self._run("", self.program.main, inputs, ())

    def _run(
        self,
        name: str,
        block: Block,
        inputs: Sequence[AnyValue],
        arguments: Attrs,
    ) -> tuple[tuple[AnyValue, ...], Result]:
        values = list(inputs)
        results = []
        for op, numbers, attrs, count in block.items:
            read = tuple([values[v] for v in numbers])
            bound = _bind(attrs, arguments) if block.params else attrs
            made, result = self._item(op, read, bound)
            if len(made) != count:
                raise InputError(f"{op} has {len(made)} outputs, not {count}")
            values += made
            results.append(result)
        outputs = tuple([values[v] for v in block.outputs])
        return outputs, self.block(name, block, values, results)

    def _item(
        self, op: str, inputs: tuple[AnyValue, ...], attrs: Attrs
    ) -> tuple[tuple[AnyValue, ...], Result]:
        function = self.program.functions.get(op)
        if function is None:
            return self.operator(op, inputs, attrs)
        if not self.runs_equal_calls_once:
            return self._call(op, function, inputs, attrs)
        call = (op, inputs, attrs)
        if call not in self._outcomes:
            self._outcomes[call] = self._call(op, function, inputs, attrs)
        return self._outcomes[call]

    def _call(
        self,
        name: str,
        function: Block,
        inputs: tuple[AnyValue, ...],
        arguments: Attrs,
    ) -> tuple[tuple[AnyValue, ...], Result]:
        if len(inputs) != function.inputs:
            raise InputError(f"function {name} takes {function.inputs} inputs, not {len(inputs)}")
        if len(self.scope) == MAX_DEPTH:
            raise InputError(
                f"functions call each other more than {MAX_DEPTH} deep; a function must not call "
                "itself"
            )
        self._calls += 1
        if self._calls > MAX_CALLS:
            raise InputError(f"functions are called more than {MAX_CALLS} times")
        self._times[name] += 1
        outer = self.scope
        self.scope = (*outer, f"{name}_{self._times[name]}")
        outcome = self._run(name, function, inputs, arguments)
        self.scope = outer
        return outcome


def _bind(attrs: ItemAttrs, arguments: Attrs) -> Attrs:
    """An item's attributes with the values of the function's parameters."""
    value_of = dict(arguments)
    bound = []
    for name, value in attrs:
        if isinstance(value, Ref):
            if value.name not in value_of:
                raise InputError(f"a call does not give the function's parameter {value.name}")
            value = value_of[value.name]
        bound.append((name, value))
    return tuple(bound)


# --- a program as a graph


def expand(program: Program) -> Graph:
    """The flat graph of a program.

    Each call is replaced by the body of its function, and names the scope.

    Raises:
        InputError: if the program is recursive, too large, or not well-formed.
    """
    inputs = tuple(range(len(program.input_shapes)))
    expansion = _Expansion(program)
    outputs, _ = expansion.run(inputs)
    return Graph(inputs, tuple(expansion.nodes), outputs, tuple(expansion.shapes))


class _Expansion(Interpreter[int, None]):
    """Values are numbers of values in the graph."""

    runs_equal_calls_once = False

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self.shapes = list(program.input_shapes)
        self.nodes: list[Node] = []

    def operator(
        self, op: str, inputs: tuple[int, ...], attrs: Attrs
    ) -> tuple[tuple[int, ...], None]:
        if len(self.nodes) == MAX_NODES:
            raise InputError(f"the network has more than {MAX_NODES} nodes")
        shapes = tuple([self.shapes[v] for v in inputs])
        shape = output_shape(op, attrs, shapes)  # first, since it checks the inputs
        outputs = (len(self.shapes),)
        attrs = canonical_attrs(op, attrs, shapes)
        self.nodes.append(Node(op, inputs, outputs, attrs, self.scope))
        self.shapes.append(shape)
        return outputs, None

    def block(
        self,
        name: str,
        block: Block,
        values: list[int],
        results: list[None],
    ) -> None:
        return None


# --- shapes and costs of items


class Cost(NamedTuple):
    """Trained weights, and multiply-accumulates of one input."""

    params: int
    flops: int


class Site(NamedTuple):
    """Shapes and cost of one item of the main block; a call has the cost of all that it runs."""

    inputs: tuple[Shape, ...]
    outputs: tuple[Shape, ...]
    cost: Cost


Outcome = tuple[tuple[Shape, ...], Cost]
"""Output shapes and cost of an operator or a call."""


def sites(program: Program) -> tuple[Site, ...]:
    """Shapes and cost of every item of the main block.

    Raises:
        InputError: if shapes or calls do not match, or functions call each other more than
            `MAX_DEPTH` deep.
    """
    costing = _Costing(program)
    costing.run(program.input_shapes)
    return tuple(costing.sites)


class _Costing(Interpreter[Shape, Cost]):
    """Values are shapes."""

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self.sites: list[Site] = []

    def operator(self, op: str, inputs: tuple[Shape, ...], attrs: Attrs) -> Outcome:
        return operator_outcome(op, inputs, attrs)

    def block(
        self,
        name: str,
        block: Block,
        values: list[Shape],
        results: list[Cost],
    ) -> Cost:
        if not name:
            first = block.inputs
            for item, cost in zip(block.items, results, strict=True):
                inputs = tuple([values[v] for v in item.inputs])
                outputs = tuple(values[first : first + item.outputs])
                self.sites.append(Site(inputs, outputs, cost))
                first += item.outputs
        return _sum(results)


@lru_cache(maxsize=65536)
def operator_outcome(op: str, inputs: tuple[Shape, ...], attrs: Attrs) -> Outcome:
    """Output shape and cost of an operator; `InputError` if it does not take these inputs."""
    shape = output_shape(op, attrs, inputs)  # first, since it checks the inputs
    params = sum(prod(weight.shape) for weight in weights(op, attrs, inputs) if weight.trained)
    return (shape,), Cost(params, multiply_accumulates(op, attrs, inputs))


def total_cost(sites: Sequence[Site]) -> Cost:
    """Sum of the costs."""
    return _sum([site.cost for site in sites])


def _sum(costs: list[Cost]) -> Cost:
    params = sum([cost.params for cost in costs])
    flops = sum([cost.flops for cost in costs])
    return Cost(params, flops)


# --- numbers of calls


def calls(program: Program) -> dict[str, int]:
    """Number of times that each function runs in one forward pass, in the order of first calls.

    Raises:
        InputError: if functions call each other more than `MAX_DEPTH` deep.
    """
    return _Counting(program).run([None] * program.main.inputs)[1]


class _Counting(Interpreter[None, dict[str, int]]):
    """Values do not matter."""

    def operator(
        self, op: str, inputs: tuple[None, ...], attrs: Attrs
    ) -> tuple[tuple[None, ...], dict[str, int]]:
        return (None,), {}

    def block(
        self,
        name: str,
        block: Block,
        values: list[None],
        results: list[dict[str, int]],
    ) -> dict[str, int]:
        total = {name: 1} if name else {}
        for runs in results:
            for function, times in runs.items():
                total[function] = total.get(function, 0) + times
        return total
