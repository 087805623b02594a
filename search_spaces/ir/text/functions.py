"""From a flat graph to its program: repeated blocks become functions, all in canonical order.

Graphs that differ only in names or in the order of their nodes give the same program.

1. Nodes become lines. Their value numbers are relative, so that recurring nodes are one object
   (`placed_lines`).
2. `regions` finds recurring blocks of lines from the edges alone.
3. Each block becomes a scope: its children in canonical order (`canonical`), inner scopes first.
   Scopes of equal canonical form are call sites of one function. Scopes that are not worth one are
   written out.
4. `repeats` finds groups of lines that recur within these blocks. They become scopes, too, as long
   as this shortens the program.
5. Widths and kernel sizes in which the call sites of a function differ become its parameters.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import count

from search_spaces.common.process import collection_paused
from search_spaces.ir.graph import Graph, Value
from search_spaces.ir.text.canonical import CanonicalBlock, NotConvexError, RawBlock, canonical
from search_spaces.ir.text.program import Block, ItemAttrs, Program, Ref, new_item
from search_spaces.ir.text.regions import Line, Path, placed_lines, regions
from search_spaces.ir.text.repeats import length, repeats

MIN_FUNCTION_NODES = 3


@collection_paused()
def compact(graph: Graph) -> Program:
    """The program of a graph, in canonical order and with functions for repeated blocks."""
    lines = placed_lines(graph)
    root = scoped(graph, lines, regions(graph, lines))
    while (shorter := _shortened(graph, lines, root)) is not None:
        root = shorter
    return _program(graph, root)


def compact_regions(graph: Graph) -> Program:
    """As `compact`, with functions for regions only: without step 4."""
    lines = placed_lines(graph)
    return _program(graph, scoped(graph, lines, regions(graph, lines)))


def flat_program(graph: Graph) -> Program:
    """The program of a graph in canonical order, without functions."""
    lines = placed_lines(graph)
    no_scopes: list[Path] = [()] * len(lines)
    return _program(graph, scoped(graph, lines, no_scopes))


def _shortened(graph: Graph, lines: list[tuple[int, Line]], root: Scope) -> Scope | None:
    """The graph with scopes around repeats in the blocks of `root`; None if that saves no line."""
    blocks = _bodies(root)
    groups = repeats(tuple(blocks.values()))
    if groups is None:
        return None
    around = dict(zip(blocks, groups, strict=True))
    shorter = _regrouped(root, around, graph, lines)
    saves = length(_bodies(shorter).values()) < length(blocks.values())
    return shorter if saves else None


def _bodies(root: Scope) -> dict[str, Block]:
    """The canonical body of each distinct scope, by certificate."""
    bodies = {}
    for certificate, scopes in _distinct(root).items():
        bodies[certificate] = scopes[0].canonical.body
    return bodies


# --- 3. scopes


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
        """The operator of a call: the certificate of its function."""
        return self.canonical.certificate

    def ranked(self, ranks: Mapping[Value, Ref]) -> ItemAttrs:
        """The arguments of a call: the `ranks` of its numbers."""
        return tuple([(str(i), ranks[number]) for i, number in enumerate(self.numbers)])


Child = tuple[int, Line | Scope]
"""A line or scope, and the number of its first value."""


def scoped(graph: Graph, lines: Sequence[Child], paths: Sequence[Path]) -> Scope:
    """The graph as one scope, with the scopes inside that are worth a function.

    Without inner scopes if they would be cyclic: two that each read an output of the other.

    Args:
        lines: the lines of the graph, each with its first value.
        paths: the scopes around each line.
    """
    try:
        return _outermost_scope(graph, _closed_children(_tree(paths, lines)))
    except NotConvexError:
        return _outermost_scope(graph, lines)


def _distinct(root: Scope) -> dict[str, list[Scope]]:
    """All distinct scopes by certificate, in the order of the first calls."""
    scopes_of: dict[str, list[Scope]] = {}
    seen = {root}
    waiting = [root]
    while waiting:
        following: list[Scope] = []
        for scope in waiting:
            scopes_of.setdefault(scope.op, []).append(scope)
            for i in scope.canonical.order:
                child = scope.children[i][1]
                if isinstance(child, Scope) and child not in seen:
                    seen.add(child)
                    following.append(child)
        waiting = following
    return scopes_of


Tree = list["Child | Tree"]
"""The children of a scope before they are put into canonical order; a list is a scope inside."""


def _tree(paths: Sequence[Path], lines: Sequence[Child]) -> Tree:
    """The lines in nested scopes; a scope takes the position of its first line."""
    root: Tree = []
    scopes: dict[Path, Tree] = {(): root}
    for path, line in zip(paths, lines, strict=True):
        scope = scopes.get(path) or _opened(path, scopes)
        scope.append(line)
    return root


def _opened(path: Path, scopes: dict[Path, Tree]) -> Tree:
    if path not in scopes:
        scopes[path] = []
        outer = _opened(path[:-1], scopes)
        outer.append(scopes[path])
    return scopes[path]


def _closed_children(tree: Tree) -> list[Child]:
    """The children of a scope, inner scopes first; ambiguous ones are replaced by their children."""
    children: list[Child] = []
    for node in tree:
        first, child = _call_of(_closed_children(node)) if isinstance(node, list) else node
        if isinstance(child, Scope) and child.canonical.ambiguous:
            children += _written_out(first, child.children)
        else:
            children.append((first, child))
    return children


def _written_out(first: int, children: Sequence[Child]) -> list[Child]:
    return [(first + offset, child) for offset, child in children]


def _call_of(children: Sequence[Child]) -> Child:
    """The scope of these children, and its first value."""
    first = children[0][0]
    relative = [(value - first, child) for value, child in children]
    return first, _scope(tuple(relative))


@lru_cache(maxsize=16384)
def _scope(children: tuple[Child, ...]) -> Scope:
    return _canonical_scope(children, None)


def _canonical_scope(children: Sequence[Child], graph: Graph | None) -> Scope:
    """The scope of these children in canonical order.

    Args:
        children: the children.
        graph: for the outermost scope, the graph, whose inputs and outputs keep their order.
    """
    # 1. The values that the children produce, each with the number of times it is read.
    outer_reads: dict[int, int] = {}
    for first, child in children:
        for output, times in zip(child.outputs, child.uses, strict=True):
            outer_reads[first + output] = times
    produced = list(outer_reads)

    # 2. What they read: each other's values, whose remaining reads are outside, and inputs.
    reads: dict[int, int] = {}
    if graph:
        reads = dict.fromkeys(graph.inputs, 0)
    for first, child in children:
        for offset, times in child.reads:
            value = first + offset
            if value in outer_reads:
                outer_reads[value] -= times
            else:
                reads[value] = reads.get(value, 0) + times
    inputs = list(reads)
    outputs = graph.outputs if graph else [value for value in produced if outer_reads[value]]

    # 3. The items, with local numbers of values, and with ranks instead of widths and kernel sizes:
    #    only their order counts.
    local = {value: i for i, value in enumerate([*inputs, *produced])}
    numbers = _ranked_numbers(children)
    ranks = {number: _rank(i) for i, number in enumerate(numbers)}
    items = []
    for first, child in children:
        read = tuple([local[first + offset] for offset in child.inputs])
        attrs = child.ranked(ranks)
        items.append(new_item((child.op, read, attrs, len(child.outputs))))

    # 4. The canonical order.
    returned = tuple([local[value] for value in outputs])
    raw = RawBlock(len(inputs), tuple(items), returned, ordered_inputs=graph is not None)
    form = canonical(raw)
    inputs_in_order = [inputs[i] for i in form.inputs]
    outputs_in_order = [outputs[i] for i in form.outputs]
    uses = () if graph else tuple([outer_reads[value] for value in outputs_in_order])
    return Scope(
        children=tuple(children),
        canonical=form,
        inputs=tuple(inputs_in_order),
        outputs=tuple(outputs_in_order),
        reads=tuple([(value, reads[value]) for value in inputs_in_order]),
        uses=uses,
        numbers=tuple([numbers[rank] for rank in form.holes]),
        size=sum([child.size for _, child in children]),
    )


def _ranked_numbers(children: Sequence[Child]) -> list[Value]:
    """The distinct widths and kernel sizes of the children, sorted; kernel sizes are last."""
    distinct: set[Value] = set()
    for _, child in children:
        distinct.update(child.numbers)
    return sorted(distinct, key=lambda number: (isinstance(number, tuple), number))


@lru_cache(maxsize=256)
def _rank(i: int) -> Ref:
    return Ref(str(i))


# --- which scopes there are


def _outermost_scope(graph: Graph, children: Sequence[Child]) -> Scope:
    """The outermost scope; only scopes that are worth a function remain inside."""
    while worthless := _worthless(children):
        children = _Dissolving(worthless).children(children)
    return _canonical_scope(children, graph)


def _worthless(children: Sequence[Child]) -> set[str]:
    """The certificates of scopes that are not worth a function."""
    sites = list(_call_sites(children, set()))
    times = Counter([call.op for call in sites])
    return {call.op for call in sites if not _is_worth(call, times)}


def _is_worth(scope: Scope, times: Counter[str]) -> bool:
    if scope.size < MIN_FUNCTION_NODES or times[scope.op] < 2:
        return False
    if len(scope.children) > 1:
        return True
    inner = scope.children[0][1]  # a function that only calls another one
    return not (isinstance(inner, Scope) and _is_worth(inner, times))


def _call_sites(children: Sequence[Child], seen: set[str]) -> Iterator[Scope]:
    """The call sites; each distinct block is searched once."""
    for _, call in children:
        if isinstance(call, Scope):
            yield call
            if call.op not in seen:
                seen.add(call.op)
                yield from _call_sites(call.children, seen)


class _Dissolving:
    """Expands the calls of worthless functions, also in inner scopes."""

    def __init__(self, worthless: set[str]) -> None:
        self.worthless = worthless
        self.done: dict[Scope, list[Child]] = {}

    def children(self, children: Sequence[Child]) -> list[Child]:
        dissolved: list[Child] = []
        for first, child in children:
            if isinstance(child, Scope):
                dissolved += _written_out(first, self._replaced(child))
            else:
                dissolved.append((first, child))
        return dissolved

    def _replaced(self, scope: Scope) -> list[Child]:
        if scope not in self.done:
            inner = self.children(scope.children)
            if scope.op in self.worthless:
                self.done[scope] = inner
            elif tuple(inner) == scope.children:
                self.done[scope] = [(0, scope)]
            else:
                self.done[scope] = _closed_children([[*inner]])
        return self.done[scope]


# --- 4. scopes around repeats


def _regrouped(
    root: Scope,
    groups: Mapping[str, Sequence[Path]],
    graph: Graph,
    lines: Sequence[Child],
) -> Scope:
    """The graph with new scopes around items of functions.

    Args:
        groups: by certificate, the new scopes around each item of the canonical body.
    """
    try:
        return _outermost_scope(graph, _Regrouping(groups).children(root, swapped=False))
    except NotConvexError:
        return _outermost_scope(graph, lines)


class _Regrouping:
    """Puts new scopes around the items of functions."""

    def __init__(self, groups: Mapping[str, Sequence[Path]]) -> None:
        self.groups = groups
        self.done: dict[tuple[Scope, bool], list[Child]] = {}

    def children(self, scope: Scope, swapped: bool) -> list[Child]:
        """The children of the scope in new scopes.

        swapped: True to swap its two interchangeable inputs.
        """
        if (scope, swapped) not in self.done:
            self.done[scope, swapped] = self._children(scope, swapped)
        return self.done[scope, swapped]

    def _children(self, scope: Scope, swapped: bool) -> list[Child]:
        # 1. The children in canonical order, each with its new scopes.
        form = scope.canonical
        inputs = scope.inputs[::-1] if swapped else scope.inputs
        order = form.mirror if swapped else form.order
        number = {value: i for i, value in enumerate(inputs)}  # of values, in canonical order
        placed: list[tuple[Child, Path]] = []
        for i, path in zip(order, self.groups[scope.op], strict=True):
            first, child = scope.children[i]
            for value in child.outputs:
                number[first + value] = len(number)
            if isinstance(child, Scope):
                # A block that is symmetric in its inputs has the same half in a group in all calls.
                is_swapped = False
                if child.canonical.mirror:
                    first_input, second_input = child.inputs
                    is_swapped = number[first + first_input] > number[first + second_input]
                _, child = _call_of(self.children(child, is_swapped))
            placed.append(((first, child), path))

        # 2. Back in the order of the graph.
        placed.sort(key=lambda place: place[0][0])
        children = [child for child, _ in placed]
        paths = [path for _, path in placed]
        return _closed_children(_tree(paths, children))


# --- 5. functions and their parameters


def _program(graph: Graph, root: Scope) -> Program:
    # 1. A name for each function, and its numbers: constants or parameters.
    scopes_of = _distinct(root)
    del scopes_of[root.op]
    names: dict[str, str] = {}
    arguments: dict[str, list[Value | Ref]] = {}
    for i, (certificate, scopes) in enumerate(scopes_of.items(), start=1):
        names[certificate] = f"F{i}"
        arguments[certificate] = _arguments(scopes)

    def filled(body: Block, numbers: Sequence[Value | Ref]) -> Block:
        """The body with its numbers filled in.

        Calls are by name and pass only arguments that vary.
        """
        next_number = iter(numbers)
        items = []
        for op, inputs, attrs_with_holes, outputs in body.items:
            attrs: list[tuple[str, Value | Ref]] = []
            for name, value in attrs_with_holes:
                attrs.append((name, next(next_number) if isinstance(value, Ref) else value))
            if op in names:
                values = [value for _, value in attrs]
                attrs = _passed(arguments[op], values)
                op = names[op]
            items.append(new_item((op, inputs, tuple(attrs), outputs)))
        return body._replace(items=tuple(items))

    # 2. The functions, and the main block.
    functions = {}
    for certificate, scopes in scopes_of.items():
        numbers = arguments[certificate]
        params = dict.fromkeys([number.name for number in numbers if isinstance(number, Ref)])
        body = filled(scopes[0].canonical.body, numbers)
        functions[names[certificate]] = body._replace(params=tuple(params))
    return Program(
        main=filled(root.canonical.body, root.numbers),
        functions=functions,
        input_shapes=tuple([graph.shapes[value] for value in graph.inputs]),
        output_shapes=tuple([graph.shapes[value] for value in graph.outputs]),
    )


def _passed(
    numbers: Sequence[Value | Ref],
    values: Sequence[Value | Ref],
) -> list[tuple[str, Value | Ref]]:
    """The arguments of a call: the values of those numbers of the function that are parameters."""
    passed: dict[str, Value | Ref] = {}
    for number, value in zip(numbers, values, strict=True):
        if isinstance(number, Ref):
            passed[number.name] = value
    return list(passed.items())


def _arguments(scopes: list[Scope]) -> list[Value | Ref]:
    """The numbers of a function: a constant if all calls agree, else a parameter.

    Equal columns share one parameter.
    """
    sizes = _param_names("cdefghijlmnopqrstuvw")
    kernels = _param_names("k")
    params: dict[tuple[Value, ...], Ref] = {}
    arguments: list[Value | Ref] = []
    by_call = [scope.numbers for scope in scopes]
    for column in zip(*by_call, strict=True):
        first = column[0]
        varies = len(set(column)) > 1
        if varies and column not in params:
            names = kernels if isinstance(first, tuple) else sizes
            params[column] = Ref(next(names))
        arguments.append(params.get(column, first))
    return arguments


def _param_names(letters: str) -> Iterator[str]:
    yield from letters
    for index in count():
        yield f"{letters[0]}{index}"
