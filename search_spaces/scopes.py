"""Nested scopes of a graph's nodes, each in canonical order: scopes of one structure are calls of one function."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from search_spaces.blocks import Item, ItemAttrs, Ref
from search_spaces.canonical import CanonicalBlock, NotConvexError, RawBlock, canonical
from search_spaces.graph import Attrs, Graph, Node, Value

PARAMETRIC = frozenset({"channels", "features"})
MIN_FUNCTION_NODES = 3

Path = tuple[Hashable, ...]
"""The scopes around a node, from the outermost."""


@dataclass
class Scope:
    """A scope and what stands in it: nodes by their number, and scopes.

    Everything from `canonical` on is known once the scope is closed: `inputs` and `outputs` are values of the graph and
    `numbers` the parametric numbers, in canonical order.
    """

    depth: int
    children: list[int | Scope] = field(default_factory=list)
    named: dict[Hashable, Scope] = field(default_factory=dict)
    size: int = 0
    canonical: CanonicalBlock = None  # type: ignore[assignment]
    numbers: tuple[int, ...] = ()
    inputs: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()

    @property
    def certificate(self) -> str:
        return self.canonical.certificate

    @property
    def calls(self) -> list[Scope]:
        return [child for child in self.children if isinstance(child, Scope)]


def scoped(graph: Graph, paths: Sequence[Path]) -> Scope:
    """The graph's nodes in those of the scopes that are worth a function.

    None is where the scopes don't fit the graph: two of them that each need what the other makes.
    """
    try:
        root = _closed(graph, paths)
    except NotConvexError:
        return _closed(graph, [()] * len(graph.nodes))
    while (kept := _worthwhile(root, len(graph.nodes))) is not None:
        root = _closed(graph, kept)
    return root


def regrouped(root: Scope, groups: Mapping[str, Sequence[Path]], nodes: int) -> list[Path]:
    """The nodes' scopes with more of them: `groups` has, by certificate, the new scopes around each canonical item."""
    paths: list[Path] = [()] * nodes

    def visit(scope: Scope, path: Path) -> None:
        inner = groups[scope.certificate]
        for position, i in enumerate(scope.canonical.order):
            child, around = scope.children[i], (*path, *[("group", g) for g in inner[position]])
            if isinstance(child, Scope):
                visit(child, (*around, i))
            else:
                paths[child] = around

    visit(root, ())
    return paths


def distinct(root: Scope) -> dict[str, list[Scope]]:
    """All scopes by certificate, in the order in which the functions are first called."""
    found: dict[str, list[Scope]] = {}
    waiting = [root]
    while waiting:
        following: list[Scope] = []
        for scope in waiting:
            found.setdefault(scope.certificate, []).append(scope)
            children = [scope.children[i] for i in scope.canonical.order]
            following += [child for child in children if isinstance(child, Scope)]
        waiting = following
    return found


# --- which scopes ----------------------------------------------------------------------------------------------------


def _worthwhile(root: Scope, nodes: int) -> list[Path] | None:
    """The nodes' scopes, cut down to those that are worth a function; None where all are."""
    sites = list(_sites(root, set()))
    count = Counter(call.certificate for call in sites)

    def worth(scope: Scope) -> bool:
        if scope.size < MIN_FUNCTION_NODES or count[scope.certificate] < 2:
            return False
        return not (len(scope.children) == 1 and scope.calls and worth(scope.calls[0]))

    if all(map(worth, sites)):
        return None
    paths: list[Path] = [()] * nodes

    def visit(scope: Scope, path: Path) -> None:
        for i, child in enumerate(scope.children):
            if not isinstance(child, Scope):
                paths[child] = path
            else:
                visit(child, (*path, (id(scope), i)) if worth(child) else path)

    visit(root, ())
    return paths


def _sites(scope: Scope, seen: set[str]) -> Iterator[Scope]:
    """Every call site, each distinct block entered once."""
    for call in scope.calls:
        yield call
        if call.certificate not in seen:
            seen.add(call.certificate)
            yield from _sites(call, seen)


# --- from paths to closed scopes -------------------------------------------------------------------------------------


def _closed(graph: Graph, paths: Sequence[Path]) -> Scope:
    root = _tree(paths)
    _close(root, _escapes(graph, paths), graph)
    return root


def _tree(paths: Sequence[Path]) -> Scope:
    root = Scope(0)
    for node, path in enumerate(paths):
        scope = root
        scope.size += 1
        for name in path:
            if name not in scope.named:
                scope.named[name] = Scope(scope.depth + 1)
                scope.children.append(scope.named[name])
            scope = scope.named[name]
            scope.size += 1
        scope.children.append(node)
    return root


def _escapes(graph: Graph, paths: Sequence[Path]) -> list[int]:
    """For every value, the depth of the deepest scope that holds its producer and all its consumers."""
    home: list[Path] = [()] * len(graph.shapes)
    never = 1 << 30
    depth = [never] * len(graph.shapes)
    for node, path in zip(graph.nodes, paths, strict=True):
        for value in node.outputs:
            home[value] = path
    for node, path in zip(graph.nodes, paths, strict=True):
        for value in node.inputs:
            if depth[value]:
                depth[value] = min(depth[value], _common(home[value], path))
    for value in (*graph.outputs, *graph.inputs):
        depth[value] = 0
    return depth


def _common(a: Path, b: Path) -> int:
    if a == b:
        return len(a)
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _close(scope: Scope, escapes: list[int], graph: Graph) -> None:
    """Compute the canonical form of a scope and of all below it."""
    for call in scope.calls:
        _close(call, escapes, graph)
    if any(call.canonical.ambiguous for call in scope.calls):
        scope.children = [inner for child in scope.children for inner in _unless_ambiguous(child)]
    lines = [_call(c) if isinstance(c, Scope) else _line(graph.nodes[c]) for c in scope.children]
    numbers = sorted({n for line in lines for n in line.numbers})
    raw, inputs, outputs = _localized(scope, lines, {n: Ref(str(i)) for i, n in enumerate(numbers)}, escapes, graph)
    form = scope.canonical = canonical(raw)
    scope.numbers = tuple([numbers[rank] for rank in form.holes])
    scope.inputs = tuple([inputs[i] for i in form.inputs])
    scope.outputs = tuple([outputs[o] for o in form.outputs])


def _unless_ambiguous(child: int | Scope) -> list[int | Scope]:
    """What stands in a scope, if calls could not tell its inputs or outputs apart."""
    return child.children if isinstance(child, Scope) and child.canonical.ambiguous else [child]


class _Line(NamedTuple):
    """A node or call; `numbers`: the parametric values of its attributes, which are all that a call has."""

    op: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    attrs: Attrs
    numbers: tuple[int, ...]
    call: bool

    def item(self, local: dict[int, int], ranks: dict[Value, Ref]) -> Item:
        attrs: ItemAttrs = self.attrs
        if self.numbers:
            attrs = tuple([(n, ranks[v] if v in ranks and (self.call or n in PARAMETRIC) else v) for n, v in attrs])
        return Item(self.op, tuple([local[v] for v in self.inputs]), attrs, len(self.outputs))


def _line(node: Node) -> _Line:
    numbers = tuple([value for name, value in node.attrs if name in PARAMETRIC and isinstance(value, int)])
    return _Line(node.op, node.inputs, node.outputs, node.attrs, numbers, call=False)


def _call(scope: Scope) -> _Line:
    arguments = tuple([(str(i), number) for i, number in enumerate(scope.numbers)])
    return _Line(scope.certificate, scope.inputs, scope.outputs, arguments, scope.numbers, call=True)


def _localized(
    scope: Scope, lines: list[_Line], ranks: dict[Value, Ref], escapes: list[int], graph: Graph
) -> tuple[RawBlock, list[int], list[int]]:
    """The scope as a block, values numbered from its inputs on; those of the graph that are its inputs and outputs."""
    made = {value for line in lines for value in line.outputs}
    given = graph.inputs if scope.depth == 0 else ()
    inputs = list(dict.fromkeys([*given, *(v for line in lines for v in line.inputs if v not in made)]))
    local = {value: i for i, value in enumerate(inputs)}
    for line in lines:
        for value in line.outputs:
            local[value] = len(local)
    if scope.depth == 0:
        outputs = list(graph.outputs)
    else:
        outputs = [value for line in lines for value in line.outputs if escapes[value] < scope.depth]
    items = tuple([line.item(local, ranks) for line in lines])
    return RawBlock(len(inputs), items, tuple([local[v] for v in outputs]), scope.depth == 0), inputs, outputs
