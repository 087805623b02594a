"""From a flat graph to a program: repeated blocks become functions, nodes get one canonical order.

Two graphs that differ only in names or in the order of nodes give the same program. Blocks are the scopes of the nodes;
a block that occurs at least twice, up to the number of channels, becomes a function with those numbers as parameters.
Canonical order: colour refinement (Weisfeiler and Leman) over the block, ties broken by trying the tied nodes.
"""

from __future__ import annotations

import hashlib
import heapq
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from search_spaces.errors import InputError
from search_spaces.graph import Attrs, Graph, Node, Shape, Value
from search_spaces.operators import COMMUTATIVE, canonical_attrs, output_shape

PARAMETRIC = frozenset({"channels", "features"})
MIN_FUNCTION_NODES = 3
_MAX_TIE_LEAVES = 64


class Ref(NamedTuple):
    """An attribute value that a function takes as its parameter `name`."""

    name: str


ItemAttrs = tuple[tuple[str, Value | Ref], ...]


class Item(NamedTuple):
    """One line of a block: an operator, or a call of a function by its name."""

    op: str
    inputs: tuple[int, ...]
    attrs: ItemAttrs
    outputs: int = 1


class Block(NamedTuple):
    """Values 0..inputs-1 are the block's inputs; every item's outputs are numbered on from there."""

    inputs: int
    items: tuple[Item, ...]
    outputs: tuple[int, ...]
    params: tuple[str, ...] = ()


@dataclass(frozen=True)
class Program:
    """Main block, the functions it calls (callers before callees), and the graph's input and output shapes."""

    main: Block
    functions: dict[str, Block]
    input_shapes: tuple[Shape, ...]
    output_shapes: tuple[Shape, ...]


class _Raw(NamedTuple):
    """A block as it stands, in node order: what the canonical form is computed (and remembered) from.

    In `items` the attribute values in PARAMETRIC are replaced by their rank among the block's distinct ones.
    """

    inputs: int
    items: tuple[Item, ...]
    outputs: tuple[int, ...]
    ordered_inputs: bool


class _Canonical(NamedTuple):
    """`body` with canonical order; `inputs`, `outputs`: the raw block's input and output positions in that order."""

    body: Block
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    certificate: str


class _NotConvexError(Exception):
    """A scope whose nodes can't run as one call, because another node stands between them."""


# --- canonical order -------------------------------------------------------------------------------------------------


def _ranks(keys: list[tuple]) -> list[int]:
    order = {key: rank for rank, key in enumerate(sorted(set(keys)))}
    return [order[key] for key in keys]


def _producers(raw: _Raw) -> list[tuple[int, int]]:
    """For every value: (entity, output number); entities are the inputs, then the items."""
    values = [(i, 0) for i in range(raw.inputs)]
    for i, item in enumerate(raw.items):
        values += [(raw.inputs + i, k) for k in range(item.outputs)]
    return values


class _Canonicalizer:
    """Colour refinement with individualization on one raw block."""

    def __init__(self, raw: _Raw) -> None:
        self.raw = raw
        self.producers = _producers(raw)
        self.commutes = [item.op in COMMUTATIVE for item in raw.items]
        self.consumers: list[list[tuple[int, int, int]]] = [[] for _ in range(raw.inputs + len(raw.items))]
        for i, item in enumerate(raw.items):
            for position, value in enumerate(item.inputs):
                entity, k = self.producers[value]
                self.consumers[entity].append((raw.inputs + i, -1 if self.commutes[i] else position, k))
        self.leaves = 0

    def start(self) -> list[int]:
        raw = self.raw
        outside = set(raw.outputs)
        keys: list[tuple] = [("", "", e if raw.ordered_inputs else 0, ()) for e in range(raw.inputs)]
        value = raw.inputs
        for item in raw.items:
            escapes = tuple(v in outside for v in range(value, value + item.outputs))
            keys.append((item.op, repr(item.attrs), len(item.inputs), escapes))
            value += item.outputs
        return _ranks(keys)

    def refine(self, colours: list[int]) -> list[int]:
        raw, classes = self.raw, len(set(colours))
        while classes < len(colours):
            keys: list[tuple] = []
            for entity, colour in enumerate(colours):
                before: list[tuple[int, int]] = []
                if entity >= raw.inputs:
                    item = raw.items[entity - raw.inputs]
                    before = [(colours[e], k) for e, k in (self.producers[v] for v in item.inputs)]
                    if self.commutes[entity - raw.inputs]:
                        before.sort()
                after = sorted((colours[e], position, k) for e, position, k in self.consumers[entity])
                keys.append((colour, tuple(before), tuple(after)))
            colours = _ranks(keys)
            if len(set(colours)) == classes:
                break
            classes = len(set(colours))
        return colours

    def best(self, colours: list[int]) -> _Canonical:
        """The smallest serialization over the ways of breaking ties (bounded: then the first)."""
        colours = self.refine(colours)
        tied = [colour for colour, count in sorted(Counter(colours).items()) if count > 1]
        if not tied:
            self.leaves += 1
            return self.serialize(colours)
        best: _Canonical | None = None
        for entity in [e for e, colour in enumerate(colours) if colour == tied[0]]:
            if best is not None and self.leaves >= _MAX_TIE_LEAVES:
                break
            chosen = [2 * c + (c == tied[0] and e != entity) for e, c in enumerate(colours)]
            candidate = self.best(chosen)
            if best is None or candidate.certificate < best.certificate:
                best = candidate
        assert best is not None
        return best

    def serialize(self, colours: list[int]) -> _Canonical:
        raw = self.raw
        inputs = tuple(sorted(range(raw.inputs), key=lambda e: colours[e]))
        number = {value: i for i, value in enumerate(inputs)}
        first = [0] * len(raw.items)
        waiting = [0] * len(raw.items)
        value = raw.inputs
        for i, item in enumerate(raw.items):
            first[i], value = value, value + item.outputs
            waiting[i] = sum(v >= raw.inputs for v in item.inputs)
        ready = [(colours[raw.inputs + i], i) for i, count in enumerate(waiting) if count == 0]
        heapq.heapify(ready)
        items: list[Item] = []
        while ready:
            i = heapq.heappop(ready)[1]
            item = raw.items[i]
            sources = [number[v] for v in item.inputs]
            items.append(item._replace(inputs=tuple(sorted(sources) if self.commutes[i] else sources)))
            for k in range(item.outputs):
                number[first[i] + k] = len(number)
            for consumer, _, _ in self.consumers[raw.inputs + i]:
                waiting[consumer - raw.inputs] -= 1
                if waiting[consumer - raw.inputs] == 0:
                    heapq.heappush(ready, (colours[consumer], consumer - raw.inputs))
        if len(items) < len(raw.items):
            raise _NotConvexError
        outputs = tuple(sorted(range(len(raw.outputs)), key=lambda o: number[raw.outputs[o]]))
        if raw.ordered_inputs:
            outputs = tuple(range(len(raw.outputs)))
        body = Block(raw.inputs, tuple(items), tuple(number[raw.outputs[o]] for o in outputs))
        digest = hashlib.blake2b(repr(body).encode(), digest_size=16).hexdigest()
        return _Canonical(body, inputs, outputs, digest)


@lru_cache(maxsize=16384)
def _canonical(raw: _Raw) -> _Canonical:
    canonicalizer = _Canonicalizer(raw)
    return canonicalizer.best(canonicalizer.start())


# --- scopes ----------------------------------------------------------------------------------------------------------


@dataclass
class _Scope:
    """A scope and what stands in it, in order of first appearance."""

    depth: int
    children: list[Node | _Scope] = field(default_factory=list)
    named: dict[str, _Scope] = field(default_factory=dict)
    size: int = 0
    # Filled in by _close:
    canonical: _Canonical = None  # type: ignore[assignment]
    numbers: tuple[int, ...] = ()
    inputs: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()
    calls: tuple[_Scope, ...] = ()

    @property
    def certificate(self) -> str:
        return self.canonical.certificate


def _tree(graph: Graph, scopes: list[tuple[str, ...]]) -> _Scope:
    root = _Scope(0)
    for node, path in zip(graph.nodes, scopes, strict=True):
        scope = root
        scope.size += 1
        for name in path:
            if name not in scope.named:
                child = _Scope(scope.depth + 1)
                scope.named[name] = child
                scope.children.append(child)
            scope = scope.named[name]
            scope.size += 1
        scope.children.append(node)
    return root


def _escapes(graph: Graph, scopes: list[tuple[str, ...]]) -> list[int]:
    """For every value, the depth of the deepest scope that holds its producer and all its consumers."""
    home: list[tuple[str, ...]] = [()] * len(graph.shapes)
    never = 1 << 30
    depth = [never] * len(graph.shapes)
    for node, path in zip(graph.nodes, scopes, strict=True):
        for value in node.outputs:
            home[value] = path
    for node, path in zip(graph.nodes, scopes, strict=True):
        for value in node.inputs:
            if depth[value]:
                common = _common(home[value], path)
                depth[value] = min(depth[value], common)
    for value in (*graph.outputs, *graph.inputs):
        depth[value] = 0
    return depth


def _common(a: tuple[str, ...], b: tuple[str, ...]) -> int:
    if a == b:
        return len(a)
    count = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        count += 1
    return count


def _close(scope: _Scope, escapes: list[int], graph: Graph) -> None:
    """Compute the canonical form of a scope and of all below it."""
    lines: list[tuple[str, tuple[int, ...], tuple[int, ...], Attrs, tuple[int, ...]]] = []
    calls = []
    for child in scope.children:
        if isinstance(child, _Scope):
            _close(child, escapes, graph)
            calls.append(child)
            lines.append((child.certificate, child.inputs, child.outputs, (), child.numbers))
        else:
            parametric = tuple([v for name, v in child.attrs if name in PARAMETRIC])
            lines.append((child.op, child.inputs, child.outputs, child.attrs, parametric))  # type: ignore[arg-type]
    numbers = tuple(sorted({n for line in lines for n in line[4]}))
    rank = {n: r for r, n in enumerate(numbers)}
    raw_inputs, raw_outputs, items = _localize(scope, lines, rank, escapes, graph)
    canonical = _canonical(_Raw(len(raw_inputs), items, tuple(raw_outputs[1]), scope.depth == 0))
    scope.canonical, scope.numbers, scope.calls = canonical, numbers, tuple(calls)
    scope.inputs = tuple(raw_inputs[i] for i in canonical.inputs)
    scope.outputs = tuple(raw_outputs[0][o] for o in canonical.outputs)


def _localize(
    scope: _Scope, lines: list, rank: dict[int, int], escapes: list[int], graph: Graph
) -> tuple[list[int], tuple[list[int], list[int]], tuple[Item, ...]]:
    """Number the values of a scope locally: its inputs first, then its lines' outputs."""
    made = {value for line in lines for value in line[2]}
    inputs = list(graph.inputs) if scope.depth == 0 else []
    seen = set(inputs)
    for line in lines:
        for value in line[1]:
            if value not in made and value not in seen:
                seen.add(value)
                inputs.append(value)
    local = {value: i for i, value in enumerate(inputs)}
    for line in lines:
        for value in line[2]:
            local[value] = len(local)
    if scope.depth == 0:
        outputs = list(graph.outputs)
    else:
        outputs = [value for line in lines for value in line[2] if escapes[value] < scope.depth]
    items = tuple(
        [
            Item(op, tuple([local[v] for v in ins]), _abstract(attrs, numbers, rank), len(outs))
            for op, ins, outs, attrs, numbers in lines
        ]
    )
    return inputs, (outputs, [local[v] for v in outputs]), items


def _abstract(attrs: Attrs, numbers: tuple[int, ...], rank: dict[int, int]) -> ItemAttrs:
    """Attributes with every parametric number replaced by its rank; a call's numbers become its arguments."""
    if not attrs:
        return tuple([(str(i), Ref(str(rank[n]))) for i, n in enumerate(numbers)])
    if not numbers:
        return attrs
    return tuple([(name, Ref(str(rank[v])) if name in PARAMETRIC else v) for name, v in attrs])  # type: ignore[index]


def _walk_distinct(scope: _Scope, seen: set[str]) -> Iterator[_Scope]:
    """Every call site, each distinct block entered once."""
    for call in scope.calls:
        yield call
        if call.certificate not in seen:
            seen.add(call.certificate)
            yield from _walk_distinct(call, seen)


def _function_scopes(graph: Graph, root: _Scope) -> list[tuple[str, ...]] | None:
    """The nodes' scopes, cut down to those that are worth a function; None where all are."""
    sites = list(_walk_distinct(root, set()))
    count = Counter(call.certificate for call in sites)
    if all(call.size >= MIN_FUNCTION_NODES and count[call.certificate] >= 2 for call in sites):
        return None
    keep: dict[int, tuple[str, ...]] = {}

    def visit(scope: _Scope, path: tuple[str, ...]) -> None:
        for child in scope.children:
            if isinstance(child, Node):
                keep[child.outputs[0]] = path
        for name, child in scope.named.items():
            chosen = child.size >= MIN_FUNCTION_NODES and count[child.certificate] >= 2
            visit(child, (*path, name) if chosen else path)

    # A cut-out scope's name may stand in two outer scopes: the path of kept names tells them apart only
    # together with the dropped ones, so kept names are written out in full.
    def full(scope: _Scope, prefix: str) -> None:
        scope.named = {f"{prefix}{name}": child for name, child in scope.named.items()}
        for name, child in scope.named.items():
            full(child, f"{name}.")

    full(root, "")
    visit(root, ())
    return [keep[node.outputs[0]] for node in graph.nodes]


def compact(graph: Graph) -> Program:
    """The program of a graph: functions for its repeated blocks, everything in canonical order."""
    scopes = [node.scope for node in graph.nodes]
    try:
        root = _closed_tree(graph, scopes)
        chosen = _function_scopes(graph, root)
        if chosen is not None:
            root = _closed_tree(graph, chosen)
    except _NotConvexError:
        root = _closed_tree(graph, [()] * len(graph.nodes))
    return _emit(graph, root)


def _closed_tree(graph: Graph, scopes: list[tuple[str, ...]]) -> _Scope:
    root = _tree(graph, scopes)
    _close(root, _escapes(graph, scopes), graph)
    return root


# --- functions and their parameters ----------------------------------------------------------------------------------


def _param_names() -> Iterator[str]:
    yield from "cdefghijklmnopqrstuvw"
    index = 0
    while True:
        yield f"c{index}"
        index += 1


def _instances(root: _Scope) -> dict[str, list[_Scope]]:
    """All call sites by certificate."""
    found: dict[str, list[_Scope]] = {}

    def visit(scope: _Scope) -> None:
        for call in scope.calls:
            found.setdefault(call.certificate, []).append(call)
            visit(call)

    visit(root)
    return found


def _emit(graph: Graph, root: _Scope) -> Program:
    instances = _instances(root)
    bodies = {certificate: scopes[0].canonical.body for certificate, scopes in instances.items()}
    # Rank -> number where all call sites agree, else a parameter.
    values: dict[str, list[Value | Ref]] = {}
    for certificate, scopes in instances.items():
        names = _param_names()
        columns = zip(*(scope.numbers for scope in scopes), strict=True)
        values[certificate] = [c[0] if len(set(c)) == 1 else Ref(next(names)) for c in columns]
    names_of: dict[str, str] = {}
    functions: dict[str, Block] = {}

    def block(body: Block, numbers: list[Value | Ref]) -> Block:
        items = []
        for item in body.items:
            op, attrs = item.op, item.attrs
            if op in bodies:
                attrs = tuple((p.name, attrs[r][1]) for r, p in enumerate(values[op]) if isinstance(p, Ref))
                op = names_of.setdefault(op, f"F{len(names_of) + 1}")
            bound = tuple((n, numbers[int(v.name)] if isinstance(v, Ref) else v) for n, v in attrs)
            items.append(item._replace(op=op, attrs=bound))
        return body._replace(items=tuple(items))

    main = block(root.canonical.body, list(root.numbers))
    done = 0
    while done < len(names_of):
        certificate, name = list(names_of.items())[done]
        done += 1
        numbers = values[certificate]
        params = tuple(v.name for v in numbers if isinstance(v, Ref))
        functions[name] = block(bodies[certificate], numbers)._replace(params=params)
    inputs = tuple(graph.shapes[v] for v in graph.inputs)
    return Program(main, functions, inputs, tuple(graph.shapes[v] for v in graph.outputs))


# --- and back --------------------------------------------------------------------------------------------------------

_MAX_NODES = 100_000


def expand(program: Program) -> Graph:
    """The flat graph of a program: every call replaced by its function's body, with the call as scope."""
    shapes: list[Shape] = list(program.input_shapes)
    nodes: list[Node] = []
    calls: Counter[str] = Counter()

    def run(block: Block, inputs: list[int], arguments: dict[str, Value], scope: tuple[str, ...]) -> list[int]:
        if len(scope) > 32:
            raise InputError("functions call each other more than 32 deep; a function must not call itself")
        values = list(inputs)
        for item in block.items:
            attrs = tuple((n, _bind(v, arguments)) for n, v in item.attrs)
            ins = [values[v] for v in item.inputs]
            function = program.functions.get(item.op)
            if function is not None:
                calls[item.op] += 1
                if len(ins) != function.inputs:
                    raise InputError(f"function {item.op} takes {function.inputs} inputs, not {len(ins)}")
                values += run(function, ins, dict(attrs), (*scope, f"{item.op}_{calls[item.op]}"))
                continue
            if len(nodes) >= _MAX_NODES:
                raise InputError(f"the network has more than {_MAX_NODES} nodes")
            given = tuple(shapes[v] for v in ins)
            shape = output_shape(item.op, attrs, given)
            nodes.append(Node(item.op, tuple(ins), (len(shapes),), canonical_attrs(item.op, attrs, given), scope))
            shapes.append(shape)
            values.append(len(shapes) - 1)
        return [values[v] for v in block.outputs]

    inputs = list(range(len(program.input_shapes)))
    outputs = run(program.main, inputs, {}, ())
    return Graph(tuple(inputs), tuple(nodes), tuple(outputs), tuple(shapes))


def _bind(value: Value | Ref, arguments: dict[str, Value]) -> Value:
    if not isinstance(value, Ref):
        return value
    if value.name not in arguments:
        raise InputError(f"a function's parameter {value.name} is not given by its caller")
    return arguments[value.name]
