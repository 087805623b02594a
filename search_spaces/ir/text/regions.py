"""Blocks of a graph, found from its edges alone: the nodes between a value and the node where its
paths meet again.

1. The graph is cut wherever a single value is live. The lines between two cuts are a piece
   (`pieces`); pieces of equal lines are analysed once.
2. The main chains of all pieces are joined to one that runs through the graph.
3. Links of chains, and repetitions in them, are blocks. Those that occur once are left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, pairwise
from typing import NamedTuple

from search_spaces.ir.graph import Attrs, Graph, Value
from search_spaces.ir.text.pieces import ROOT, Blocks, Chain, DeadEnd, Link, Piece, interleaved
from search_spaces.ir.text.program import PARAMETRIC, ItemAttrs, Ref

_MAX_CACHED_LINES = 128  # larger pieces are not cached, to limit memory

Label = tuple[str, str, int]
"""Operator, attributes and number of inputs."""
Path = tuple[Hashable, ...]
"""The blocks around a node, from the outermost."""


@dataclass(eq=False, slots=True)
class Line:
    """A node of a graph.

    Value numbers are relative to the first output of the node, so `inputs` are negative.

    Attributes:
        reads: each distinct input, and how often the node reads it.
        uses: how often each output is read.
        numbers: values of the attributes that may be parameters of a function.
        label: equal for nodes that may correspond in two calls of a function.
        size: number of nodes.
    """

    op: str
    attrs: Attrs
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    reads: tuple[tuple[int, int], ...]
    uses: tuple[int, ...]
    numbers: tuple[Value, ...]
    label: Label
    size = 1

    def ranked(self, ranks: Mapping[Value, Ref]) -> ItemAttrs:
        """The attributes, with the values that may be parameters replaced by their `ranks`."""
        if not self.numbers:
            return self.attrs
        attrs: list[tuple[str, Value | Ref]] = []
        for name, value in self.attrs:
            attrs.append((name, ranks[value] if name in PARAMETRIC else value))
        return tuple(attrs)


def placed_lines(graph: Graph) -> list[tuple[int, Line]]:
    """The nodes of the graph as lines, each with the number of its first output."""
    uses = Counter(chain.from_iterable([node.inputs for node in graph.nodes]))
    uses.update(graph.outputs)
    lines = []
    for op, inputs, outputs, attrs, _ in graph.nodes:
        first = outputs[0]
        read = tuple([value - first for value in inputs])
        used = tuple([uses[value] for value in outputs])
        lines.append((first, _line(op, attrs, read, used)))
    return lines


@lru_cache(maxsize=16384)
def _line(
    op: str,
    attrs: Attrs,
    inputs: tuple[int, ...],
    uses: tuple[int, ...],
) -> Line:
    numbers = [value for name, value in attrs if name in PARAMETRIC]
    return Line(
        op,
        attrs,
        inputs,
        outputs=tuple(range(len(uses))),
        reads=tuple(Counter(inputs).items()),
        uses=uses,
        numbers=tuple(numbers),
        label=_label(op, attrs, len(inputs)),
    )


@lru_cache(maxsize=4096)
def _label(op: str, attrs: Attrs, inputs: int) -> Label:
    without_sizes = []
    for name, value in attrs:
        without_sizes.append((name, None if name in PARAMETRIC else value))
    return op, repr(without_sizes), inputs


# --- blocks of lines


def regions(graph: Graph, lines: Sequence[tuple[int, Line]]) -> list[Path]:
    """The blocks around each line of a graph; they do not depend on the order of the nodes."""
    return _Regions(graph, lines).paths()


class _Placed(NamedTuple):
    """A link of a chain through several pieces.

    Attributes:
        link: the link.
        piece: its piece; None for a line alone between two cuts.
        shift: number of the piece's node 0 among the lines of the graph.
    """

    link: Link
    piece: Piece | None
    shift: int


_PlacedChain = list[tuple[_Placed, list[DeadEnd[_Placed]]]]


class _UnconnectedError(Exception):
    """A piece without a chain from its first to its last node."""


class _Regions:
    """The analysis of one graph.

    Attributes:
        lines: the lines of the graph.
        count: their number.
        pieces: pieces between two cuts, by their lines.
        labels, exact: label of each line without and with widths and kernel sizes.
    """

    def __init__(self, graph: Graph, lines: Sequence[tuple[int, Line]]) -> None:
        self.graph = graph
        self.lines = tuple([line for _, line in lines])
        self.count = len(lines)
        self.pieces: dict[tuple[Line, ...], Piece] = {}
        distinct = set(self.lines)
        self.labels = self._ranks({line: line.label for line in distinct})
        # Exact labels serve only to order nodes that no output needs.
        self.exact = self.labels
        if any(0 in line.uses for line in distinct):
            self.exact = self._ranks({line: _exact_label(line) for line in distinct})

    def _ranks(self, labels: dict[Line, Label]) -> tuple[int, ...]:
        """The labels of the lines as numbers that do not depend on the order of the nodes."""
        ranks = {label: rank for rank, label in enumerate(sorted(set(labels.values())))}
        numbers = {line: ranks[label] for line, label in labels.items()}
        return tuple([numbers[line] for line in self.lines])

    def paths(self) -> list[Path]:
        """The blocks around each node, without blocks that occur once."""
        # 1. Put the links of all chains into blocks.
        blocks = Blocks(0)
        for placed_links in self._chains():
            links = [placed.link for placed in placed_links]
            around = blocks.repeated(links, 0)
            for (link, piece, shift), outer in zip(placed_links, around, strict=True):
                block, inner = blocks.place(link, outer, shift)
                if inner and piece:
                    nested = piece.nested(link, blocks.depth[block])
                    blocks.insert(nested, block, shift)

        # 2. The path to each block.
        recurring = blocks.recurring()
        path: list[Path] = [()]
        for i in range(1, len(blocks.outer)):
            above = path[blocks.outer[i]]
            is_kept = blocks.structure[i] in recurring
            path.append((*above, i) if is_kept else above)
        innermost = [blocks.innermost.get(node, 0) for node in range(self.count)]
        return [path[block] for block in innermost]

    def _chains(self) -> list[list[_Placed]]:
        """The outermost chains; the first one runs through all pieces."""
        try:
            return self._joined(self._cuts())
        except _UnconnectedError:
            return self._joined([0, self.count])

    def _cuts(self) -> list[int]:
        """Positions between lines where one value is live, and both ends.

        The value is no input of the graph.
        """
        inputs = len(self.graph.inputs)
        first = inputs  # the first output of the next line
        reads_to_come = [0] * len(self.graph.shapes)  # of each value
        live = 0  # number of values that are still read
        cuts = [0]
        for end, line in enumerate(self.lines, start=1):
            for offset, times in line.reads:
                value = first + offset
                if value < inputs:
                    cuts = [0]  # an input is live up to here
                elif reads_to_come[value] == times:
                    live -= 1
                else:
                    reads_to_come[value] -= times
            for times in line.uses:
                reads_to_come[first] = times
                first += 1
                live += times > 0
            if live == 1:
                cuts.append(end)
        if min(self.graph.outputs, default=0) < inputs:
            cuts = [0]
        return cuts if cuts[-1] == self.count else [*cuts, self.count]

    def _joined(self, cuts: list[int]) -> list[list[_Placed]]:
        """The outermost chains for these cuts."""
        main: _PlacedChain = []
        others = []
        for start, end in pairwise(cuts):
            # 1. A line alone between two cuts is a link.
            line = self.lines[start]
            if end - start == 1 and line.inputs and line.uses != (0,):
                alone = _Placed(_single(self.labels[start]), None, start)
                main.append((alone, []))
                continue

            # 2. The main chain of a piece continues that of the pieces before.
            piece = self._piece(start, end)
            if not piece.connected:
                raise _UnconnectedError
            shift = start - bool(start)  # node 0 of later pieces is the line before them
            for links in piece.chains:
                placed = _placed(links, piece, shift)
                if links is not piece.main:
                    others.append(interleaved(placed))
                elif start:
                    # The first link is the last one of the piece before, perhaps with further
                    # dead ends.
                    (_, further_ends), *following = placed
                    _, dead_ends = main[-1]
                    dead_ends += further_ends
                    main += following
                else:
                    main += placed
        return [interleaved(main), *others]

    def _piece(self, start: int, end: int) -> Piece:
        """The piece of the lines between two cuts; it reads the node before the first cut."""
        lines = self.lines[start:end]
        if lines in self.pieces:
            return self.pieces[lines]
        first = start == 0
        last = end == self.count
        inputs = len(self.graph.inputs) if first else 0
        read = tuple([value for value in self.graph.outputs if value < inputs])
        labels = self.labels[start:end]
        exact = labels
        if self.exact is not self.labels:
            exact = self.exact[start:end]
        is_cached = len(lines) <= _MAX_CACHED_LINES
        analysed = _analysed if is_cached else _analysed.__wrapped__
        piece = analysed(lines, labels, exact, inputs, read, first, last)
        if not first and not last:
            self.pieces[lines] = piece
        return piece


@lru_cache(maxsize=1024)
def _analysed(
    lines: tuple[Line, ...],
    labels: tuple[int, ...],
    exact: tuple[int, ...],
    inputs: int,
    read: tuple[int, ...],
    first: bool,
    last: bool,
) -> Piece:
    """The piece of these lines.

    Args:
        inputs, read: if the piece is the first, number of graph inputs, and the inputs that are
            graph outputs.
        first, last: True for the first and the last piece of the graph.
    """
    # 1. The node or entry that produces each value. Values of earlier pieces are those of node 0.
    owner = {value: ROOT - 1 - value for value in range(inputs)}
    entries = list(owner.values()) if first else [ROOT - 1]
    producers = [] if first else [entries]
    label_before = [] if first else [ROOT]  # of node 0 of a later piece

    # 2. The nodes.
    outer_reads: dict[int, int] = {}  # reads of each value outside of the piece
    value = inputs
    for line in lines:
        owners = [owner.get(value + offset, 0) for offset in line.inputs]
        node = len(producers)
        producers.append(list(dict.fromkeys(owners)))
        for offset, times in line.reads:
            if value + offset in outer_reads:
                outer_reads[value + offset] -= times
        for times in line.uses:
            owner[value] = node
            outer_reads[value] = times
            value += 1

    # 3. The nodes that are read outside.
    outputs = [owner[v] for v in read]
    outputs += [owner[v] for v, times in outer_reads.items() if times]
    if not first and not outputs:
        outputs = [0]
    return Piece(
        producers,
        entries,
        outputs,
        labels=[*label_before, *labels],
        exact=[*label_before, *exact],
        first=first,
        last=last,
    )


def _placed(links: Chain, piece: Piece, shift: int) -> _PlacedChain:
    """The links of a chain and their dead ends, with their piece and offset."""
    placed: _PlacedChain = []
    for link, dead_ends in links:
        placed_ends = []
        for structure, exact, dead in dead_ends:
            placed_ends.append(DeadEnd(structure, exact, _Placed(dead, piece, shift)))
        placed.append((_Placed(link, piece, shift), placed_ends))
    return placed


@lru_cache(maxsize=256)
def _single(label: int) -> Link:
    return Link([0], 0, [], (label,))


def _exact_label(line: Line) -> Label:
    return line.op, repr(line.attrs), len(line.inputs)
