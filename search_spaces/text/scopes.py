"""Nested scopes of a graph's nodes, each in canonical order: scopes of one structure are calls of one function."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from search_spaces.graph.ir import Attrs, Graph, Node, Value
from search_spaces.text.blocks import PARAMETRIC, Item, ItemAttrs, Ref
from search_spaces.text.canonical import CanonicalBlock, NotConvexError, RawBlock, canonical

MIN_FUNCTION_NODES = 3

Path = tuple[Hashable, ...]
"""The scopes around a node, from the outermost."""


@dataclass
class Scope:
    """A scope and what stands in it: nodes by their number, and scopes.

    `begin`, `end`: its nodes' places in the order in which a walk through all scopes meets them. Everything from
    `canonical` on is known once the scope is closed: `inputs` and `outputs` are values of the graph and `numbers` the
    parametric numbers, in canonical order.
    """

    children: list[int | Scope] = field(default_factory=list)
    named: dict[Hashable, Scope] = field(default_factory=dict)
    begin: int = 0
    end: int = 0
    canonical: CanonicalBlock = None  # type: ignore[assignment]
    numbers: tuple[Value, ...] = ()
    inputs: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()

    @property
    def certificate(self) -> str:
        return self.canonical.certificate

    @property
    def size(self) -> int:
        """Number of nodes, those of inner scopes included."""
        return self.end - self.begin

    @property
    def calls(self) -> list[Scope]:
        return [child for child in self.children if isinstance(child, Scope)]


def scoped(graph: Graph, paths: Sequence[Path]) -> Scope:
    """The graph's nodes in those of the scopes that are worth a function.

    None is where the scopes don't fit the graph: two of them that each need what the other makes.
    """
    try:
        return _Closing(graph, paths).closed()
    except NotConvexError:
        return _Closing(graph, [()] * len(graph.nodes)).closed()


def regrouped(root: Scope, groups: Mapping[str, Sequence[Path]], graph: Graph) -> list[Path]:
    """The nodes' scopes with more of them: `groups` has, by certificate, the new scopes around each canonical item."""
    paths: list[Path] = [()] * len(graph.nodes)

    def visit(scope: Scope, path: Path, swapped: bool) -> None:
        inner, form = groups[scope.certificate], scope.canonical
        number = {value: i for i, value in enumerate(scope.inputs[::-1] if swapped else scope.inputs)}
        for position, i in enumerate(form.mirror if swapped else form.order):
            child, around = scope.children[i], (*path, *[("group", g) for g in inner[position]])
            for value in outputs(child):
                number[value] = len(number)
            if isinstance(child, Scope):
                # Of a block that looks the same from both inputs, always the same half is in a group.
                crossed = bool(child.canonical.mirror) and number[child.inputs[0]] > number[child.inputs[1]]
                visit(child, (*around, i), crossed)
            else:
                paths[child] = around

    def outputs(child: int | Scope) -> tuple[int, ...]:
        return child.outputs if isinstance(child, Scope) else graph.nodes[child].outputs

    visit(root, (), swapped=False)
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


class _Closing:
    """Closes the scopes of these paths; the outermost, which is the largest, only when the others are those to stay."""

    def __init__(self, graph: Graph, paths: Sequence[Path]) -> None:
        self.graph, self.root = graph, _tree(paths)
        self.lines = [_line(node) for node in graph.nodes]
        place = _places(self.root)
        self.first_use, self.last_use = [len(place)] * len(graph.shapes), [-1] * len(graph.shapes)
        used = [(value, place[i]) for i, node in enumerate(graph.nodes) for value in node.inputs]
        for value, at in [*used, *((value, len(place)) for value in graph.outputs)]:
            self.first_use[value] = min(self.first_use[value], at)
            self.last_use[value] = max(self.last_use[value], at)

    def closed(self) -> Scope:
        """The outermost scope, with no scopes in it but those that are worth a function."""
        self._close_calls(self.root)
        while worthless := _worthless(self.root):
            self._dissolve(self.root, worthless)
        self._close(self.root)
        return self.root

    def _close_calls(self, scope: Scope) -> None:
        for call in scope.calls:
            self._close_calls(call)
            self._close(call)
        _write_out(scope, {id(call) for call in scope.calls if call.canonical.ambiguous})

    def _dissolve(self, scope: Scope, worthless: set[str]) -> bool:
        """Write out the calls of these functions, in inner scopes, too; whether there were any."""
        gone = {id(call) for call in scope.calls if call.certificate in worthless}
        changed = [call for call in scope.calls if self._dissolve(call, worthless)]
        for call in changed:
            if id(call) not in gone:
                self._close(call)
                gone |= {id(call)} if call.canonical.ambiguous else set()
        _write_out(scope, gone)
        return bool(changed or gone)

    def _close(self, scope: Scope) -> None:
        """Compute the canonical form of a scope whose calls are closed."""
        lines = [_call(c) if isinstance(c, Scope) else self.lines[c] for c in scope.children]
        numbers = sorted({n for line in lines for n in line.numbers}, key=lambda n: (isinstance(n, tuple), n))
        ranks = {n: Ref(str(i)) for i, n in enumerate(numbers)}
        raw, inputs, outputs = self._localized(scope, lines, ranks)
        form = scope.canonical = canonical(raw)
        scope.numbers = tuple([numbers[rank] for rank in form.holes])
        scope.inputs = tuple([inputs[i] for i in form.inputs])
        scope.outputs = tuple([outputs[o] for o in form.outputs])

    def _localized(
        self, scope: Scope, lines: list[_Line], ranks: dict[Value, Ref]
    ) -> tuple[RawBlock, list[int], list[int]]:
        """The scope as a block, values numbered from its inputs on; the graph's values that are inputs and outputs."""
        whole = scope is self.root
        made = [value for line in lines for value in line.outputs]
        within = set(made)
        read = dict.fromkeys([v for line in lines for v in line.inputs if v not in within])
        inputs = list(dict.fromkeys([*self.graph.inputs, *read]) if whole else read)
        local = {value: i for i, value in enumerate([*inputs, *made])}
        first, last = self.first_use, self.last_use
        outputs = [v for v in made if first[v] < scope.begin or last[v] >= scope.end]
        outputs = list(self.graph.outputs) if whole else outputs
        items = tuple([line.item(local, ranks) for line in lines])
        return RawBlock(len(inputs), items, tuple([local[v] for v in outputs]), whole), inputs, outputs


def _write_out(scope: Scope, calls: set[int]) -> None:
    """Put what stands in these calls, by their identity, in their places."""
    if calls:
        scope.children = [
            inner
            for child in scope.children
            for inner in (child.children if isinstance(child, Scope) and id(child) in calls else [child])
        ]


def _worthless(root: Scope) -> set[str]:
    """The certificates of the scopes that are not worth a function."""
    sites = list(_sites(root, set()))
    count = Counter(call.certificate for call in sites)

    def worth(scope: Scope) -> bool:
        if scope.size < MIN_FUNCTION_NODES or count[scope.certificate] < 2:
            return False
        return not (len(scope.children) == 1 and scope.calls and worth(scope.calls[0]))

    return {call.certificate for call in sites if not worth(call)}


def _sites(scope: Scope, seen: set[str]) -> Iterator[Scope]:
    """Every call site, each distinct block entered once."""
    for call in scope.calls:
        yield call
        if call.certificate not in seen:
            seen.add(call.certificate)
            yield from _sites(call, seen)


def _tree(paths: Sequence[Path]) -> Scope:
    root = Scope()
    for node, path in enumerate(paths):
        scope = root
        for name in path:
            if name not in scope.named:
                scope.named[name] = Scope()
                scope.children.append(scope.named[name])
            scope = scope.named[name]
        scope.children.append(node)
    return root


def _places(root: Scope) -> dict[int, int]:
    """Every node's place in the order in which a walk through the scopes meets them; sets `begin` and `end`."""
    place: dict[int, int] = {}

    def visit(scope: Scope) -> None:
        scope.begin = len(place)
        for child in scope.children:
            if isinstance(child, Scope):
                visit(child)
            else:
                place[child] = len(place)
        scope.end = len(place)

    visit(root)
    return place


class _Line(NamedTuple):
    """A node or call; `numbers`: the parametric values of its attributes, which are all that a call has."""

    op: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    attrs: Attrs
    numbers: tuple[Value, ...]
    call: bool

    def item(self, local: dict[int, int], ranks: dict[Value, Ref]) -> Item:
        attrs: ItemAttrs = self.attrs
        if self.numbers:
            attrs = tuple([(n, ranks[v] if v in ranks and (self.call or n in PARAMETRIC) else v) for n, v in attrs])
        return Item(self.op, tuple([local[v] for v in self.inputs]), attrs, len(self.outputs))


def _line(node: Node) -> _Line:
    return _Line(node.op, node.inputs, node.outputs, node.attrs, _parametric(node.attrs), call=False)


@lru_cache(maxsize=4096)
def _parametric(attrs: Attrs) -> tuple[Value, ...]:
    return tuple([value for name, value in attrs if name in PARAMETRIC])


def _call(scope: Scope) -> _Line:
    arguments = tuple([(str(i), number) for i, number in enumerate(scope.numbers)])
    return _Line(scope.certificate, scope.inputs, scope.outputs, arguments, scope.numbers, call=True)
