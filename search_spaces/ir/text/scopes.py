"""Nested scopes of the nodes of a graph, each in canonical order. Scopes of equal structure call
one function.

Lines and scopes number values relative to their own first value, so that recurring ones are the
same object and are analysed once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from search_spaces.ir.graph import Graph, Value
from search_spaces.ir.text.blocks import ItemAttrs, Ref, new_item
from search_spaces.ir.text.canonical import CanonicalBlock, NotConvexError, RawBlock, canonical
from search_spaces.ir.text.lines import Line

MIN_FUNCTION_NODES = 3

Path = tuple[Hashable, ...]
"""The scopes around a node, from the outermost."""


@dataclass(eq=False, slots=True)
class Scope:
    """A scope. Value numbers are relative to its first value.

    Attributes:
        children: lines and scopes inside, each with its first value.
        inputs, outputs: values that it reads from outside and that are read outside, in canonical
            order.
        reads: how often each input is read inside.
        uses: how often each output is read outside.
        numbers: values of the attributes that may be parameters, in canonical order.
        size: number of nodes, including those of inner scopes.
    """

    children: tuple[Child, ...]
    canonical: CanonicalBlock
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    reads: tuple[tuple[int, int], ...]
    uses: tuple[int, ...]
    numbers: tuple[Value, ...]
    size: int

    @property
    def op(self) -> str:
        return self.canonical.certificate

    @property
    def calls(self) -> list[Scope]:
        return [child for _, child in self.children if isinstance(child, Scope)]

    def ranked(self, ranks: Mapping[Value, Ref]) -> ItemAttrs:
        """The arguments of a call: the `ranks` of its numbers."""
        return tuple([(str(i), ranks[number]) for i, number in enumerate(self.numbers)])


Child = tuple[int, Line | Scope]


def scoped(graph: Graph, lines: Sequence[Child], paths: Sequence[Path]) -> Scope:
    """The graph as one scope, with the scopes inside that are worth a function.

    Without inner scopes if they would be cyclic: two that each read an output of the other.

    Args:
        lines: the lines of the graph, each with its first value.
        paths: the scopes around each line.
    """
    try:
        return _whole(graph, _settled(_tree(paths, lines)))
    except NotConvexError:
        return _whole(graph, lines)


def regrouped(
    root: Scope, groups: Mapping[str, Sequence[Path]], graph: Graph, lines: Sequence[Child]
) -> Scope:
    """The graph with new scopes around items of functions.

    Args:
        groups: by certificate, the new scopes around each item of the canonical body.
    """
    try:
        return _whole(graph, _Regrouping(groups).children(root, swapped=False))
    except NotConvexError:
        return _whole(graph, lines)


def distinct(root: Scope) -> dict[str, list[Scope]]:
    """All distinct scopes by certificate, in the order of the first calls."""
    found: dict[str, list[Scope]] = {}
    seen = {root}
    waiting = [root]
    while waiting:
        following: list[Scope] = []
        for scope in waiting:
            found.setdefault(scope.op, []).append(scope)
            for i in scope.canonical.order:
                child = scope.children[i][1]
                if isinstance(child, Scope) and child not in seen:
                    seen.add(child)
                    following.append(child)
        waiting = following
    return found


# --- scopes
# ----------------------------------------------------------------------------------------------------------

Tree = list["Child | Tree"]
"""The children of a scope that is not closed yet."""


def _tree(paths: Sequence[Path], lines: Sequence[Child]) -> Tree:
    """The lines in nested scopes; a scope takes the position of its first line."""
    root: Tree = []
    scopes: dict[Path, Tree] = {(): root}
    for path, line in zip(paths, lines, strict=True):
        (scopes.get(path) or _opened(path, scopes)).append(line)
    return root


def _opened(path: Path, scopes: dict[Path, Tree]) -> Tree:
    if path not in scopes:
        scopes[path] = []
        _opened(path[:-1], scopes).append(scopes[path])
    return scopes[path]


def _settled(tree: Tree) -> list[Child]:
    """The children of a scope, closed; ambiguous scopes are replaced by their children."""
    children: list[Child] = []
    for child in tree:
        first, inner = _call(_settled(child)) if isinstance(child, list) else child
        if isinstance(inner, Scope) and inner.canonical.ambiguous:
            children += _written_out(first, inner.children)
        else:
            children.append((first, inner))
    return children


def _written_out(first: int, children: Sequence[Child]) -> list[Child]:
    return [(first + offset, child) for offset, child in children]


def _call(children: Sequence[Child]) -> Child:
    """The scope of these children, and its first value."""
    first = children[0][0]
    return first, _closed(tuple([(value - first, child) for value, child in children]))


@lru_cache(maxsize=16384)
def _closed(children: tuple[Child, ...]) -> Scope:
    return _canonical(children, None)


def _canonical(children: Sequence[Child], graph: Graph | None) -> Scope:
    """The scope of these children in canonical order; `graph` is given for the outermost scope."""
    left: dict[int, int] = {}
    for first, child in children:
        if len(child.uses) == 1:
            left[first + child.outputs[0]] = child.uses[0]
        else:
            left.update(zip([first + v for v in child.outputs], child.uses, strict=True))
    made = list(left)
    reads: dict[int, int] = dict.fromkeys(graph.inputs, 0) if graph else {}
    for first, child in children:
        for v, times in child.reads:
            if first + v in left:
                left[first + v] -= times
            else:
                reads[first + v] = reads.get(first + v, 0) + times
    inputs, outputs = list(reads), graph.outputs if graph else [v for v in made if left[v]]
    local = {value: i for i, value in enumerate([*inputs, *made])}
    distinct_numbers = {n for _, child in children if child.numbers for n in child.numbers}
    numbers = sorted(distinct_numbers, key=lambda n: (isinstance(n, tuple), n))
    ranks = {n: _rank(i) for i, n in enumerate(numbers)}
    items = [
        new_item(
            (
                child.op,
                tuple([local[first + v] for v in child.inputs]),
                child.ranked(ranks),
                len(child.outputs),
            )
        )
        for first, child in children
    ]
    form = canonical(
        RawBlock(len(inputs), tuple(items), tuple([local[v] for v in outputs]), graph is not None)
    )
    ins, outs = tuple([inputs[i] for i in form.inputs]), tuple([outputs[o] for o in form.outputs])
    return Scope(
        children=tuple(children),
        canonical=form,
        inputs=ins,
        outputs=outs,
        reads=tuple([(v, reads[v]) for v in ins]),
        uses=tuple([left[v] for v in outs]) if graph is None else (),
        numbers=tuple([numbers[rank] for rank in form.holes]),
        size=sum([child.size for _, child in children]),
    )


@lru_cache(maxsize=256)
def _rank(i: int) -> Ref:
    return Ref(str(i))


# --- which scopes there are
# ------------------------------------------------------------------------------------------


def _whole(graph: Graph, children: Sequence[Child]) -> Scope:
    """The outermost scope; only scopes that are worth a function remain inside."""
    while worthless := _worthless(children):
        children = _Dissolving(worthless).children(children)
    return _canonical(children, graph)


def _worthless(children: Sequence[Child]) -> set[str]:
    """The certificates of scopes that are not worth a function."""
    sites = list(_sites(children, set()))
    count = Counter([call.op for call in sites])
    return {call.op for call in sites if not _is_worth(call, count)}


def _is_worth(scope: Scope, count: Counter[str]) -> bool:
    if scope.size < MIN_FUNCTION_NODES or count[scope.op] < 2:
        return False
    inner = scope.children[0][1]
    return not (len(scope.children) == 1 and isinstance(inner, Scope) and _is_worth(inner, count))


def _sites(children: Sequence[Child], seen: set[str]) -> Iterator[Scope]:
    """The call sites; each distinct block is searched once."""
    for _, call in children:
        if isinstance(call, Scope):
            yield call
            if call.op not in seen:
                seen.add(call.op)
                yield from _sites(call.children, seen)


class _Dissolving:
    """Expands the calls of worthless functions, also in inner scopes."""

    def __init__(self, worthless: set[str]) -> None:
        self.worthless = worthless
        self.done: dict[Scope, list[Child]] = {}

    def children(self, children: Sequence[Child]) -> list[Child]:
        found: list[Child] = []
        for first, child in children:
            found += self._replaced(first, child) if isinstance(child, Scope) else [(first, child)]
        return found

    def _replaced(self, first: int, scope: Scope) -> list[Child]:
        if scope not in self.done:
            inner = self.children(scope.children)
            if scope.op not in self.worthless:
                inner = [(0, scope)] if tuple(inner) == scope.children else _settled([[*inner]])
            self.done[scope] = inner
        return _written_out(first, self.done[scope])


class _Regrouping:
    """Puts new scopes around the items of functions."""

    def __init__(self, groups: Mapping[str, Sequence[Path]]) -> None:
        self.groups = groups
        self.done: dict[tuple[Scope, bool], list[Child]] = {}

    def children(self, scope: Scope, swapped: bool) -> list[Child]:
        """The children of the scope in new scopes; `swapped`: with its two interchangeable inputs
        swapped.
        """
        if (scope, swapped) not in self.done:
            self.done[scope, swapped] = self._children(scope, swapped)
        return self.done[scope, swapped]

    def _children(self, scope: Scope, swapped: bool) -> list[Child]:
        inner, form = self.groups[scope.op], scope.canonical
        number = {
            value: i for i, value in enumerate(scope.inputs[::-1] if swapped else scope.inputs)
        }
        placed: list[tuple[Child, Path]] = []
        for position, i in enumerate(form.mirror if swapped else form.order):
            first, child = scope.children[i]
            for value in child.outputs:
                number[first + value] = len(number)
            if isinstance(child, Scope):
                # A block that is symmetric in its inputs has the same half in a group in all calls.
                ends = [number[first + value] for value in child.inputs]
                crossed = bool(child.canonical.mirror) and ends[0] > ends[1]
                child = _call(self.children(child, crossed))[1]
            placed.append(((first, child), inner[position]))
        placed.sort(key=lambda place: place[0][0])
        return _settled(_tree([path for _, path in placed], [child for child, _ in placed]))
