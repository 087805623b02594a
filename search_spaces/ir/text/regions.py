"""Blocks of a graph, found from its edges alone: the nodes between a value and the node where its
paths meet again.

The graph is cut wherever a single value is live. The lines between two cuts are a piece (`pieces`);
pieces of equal lines are analysed once.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import lru_cache
from itertools import pairwise

from search_spaces.ir.graph import Graph
from search_spaces.ir.text.lines import Label, Line
from search_spaces.ir.text.pieces import ROOT, Blocks, Chain, End, Link, Piece, interleaved

_MAX_CACHED_LINES = 128  # larger pieces are not cached, to limit memory

Path = tuple[Hashable, ...]
"""The blocks around a node, from the outermost."""


def regions(graph: Graph, lines: Sequence[tuple[int, Line]]) -> list[Path]:
    """The blocks around each line of a graph; they do not depend on the order of the nodes."""
    return _Regions(graph, lines).paths()


_Placed = tuple[Link, "Piece | None", int]
"""A link, its piece (None for a line alone between two cuts), and the offset of the piece's node numbers."""


class _UnconnectedError(Exception):
    """A piece without a chain from its first to its last node."""


class _Regions:
    def __init__(self, graph: Graph, lines: Sequence[tuple[int, Line]]) -> None:
        self.graph, self.lines, self.count = graph, tuple([line for _, line in lines]), len(lines)
        self.pieces: dict[tuple[Line, ...], Piece] = {}
        distinct = set(self.lines)
        self.labels = self._ranks({line: line.label for line in distinct})
        unread = any(0 in line.uses for line in distinct)
        # Exact labels, with widths and kernel sizes, serve only to order nodes that no output
        # needs.
        self.exact = (
            self._ranks({line: _exact_label(line) for line in distinct}) if unread else self.labels
        )

    def _ranks(self, labels: dict[Line, Label]) -> tuple[int, ...]:
        """The labels of the lines as numbers that do not depend on the order of the nodes."""
        ranks = {label: rank for rank, label in enumerate(sorted(set(labels.values())))}
        numbers = {line: ranks[label] for line, label in labels.items()}
        return tuple([numbers[line] for line in self.lines])

    def paths(self) -> list[Path]:
        """The blocks around each node, without blocks that occur once."""
        blocks = Blocks(0)
        for chain in self._chains():
            around = blocks.repeated([link for link, _, _ in chain], 0)
            for (link, piece, shift), outer in zip(chain, around, strict=True):
                block, inner = blocks.place(link, outer, shift)
                if inner and piece:
                    blocks.insert(piece.nested(link, blocks.depth[block]), block, shift)
        kept = blocks.recurring()
        path: list[Path] = [()]
        for i in range(1, len(blocks.outer)):
            above = path[blocks.outer[i]]
            path.append((*above, i) if blocks.structure[i] in kept else above)
        return [path[blocks.homes.get(node, 0)] for node in range(self.count)]

    def _chains(self) -> list[list[_Placed]]:
        """The outermost chains; the first one runs through all pieces."""
        try:
            return self._joined(self._cuts())
        except _UnconnectedError:
            return self._joined([0, self.count])

    def _cuts(self) -> list[int]:
        """Positions between lines where one value is live, which is no input of the graph; and both
        ends.
        """
        first = inputs = len(self.graph.inputs)
        left, waiting, found = [0] * len(self.graph.shapes), 0, [0]
        for end, line in enumerate(self.lines, start=1):
            for v, times in line.reads:
                value = first + v
                if value < inputs:
                    found = [0]
                elif left[value] == times:
                    waiting -= 1
                else:
                    left[value] -= times
            for times in line.uses:
                left[first] = times
                first += 1
                waiting += times > 0
            if waiting == 1:
                found.append(end)
        if min(self.graph.outputs, default=0) < inputs:
            found = [0]
        return found if found[-1] == self.count else [*found, self.count]

    def _joined(self, cuts: list[int]) -> list[list[_Placed]]:
        main: list[tuple[_Placed, list[End[_Placed]]]] = []
        found = []
        for start, end in pairwise(cuts):
            line = self.lines[start]
            if end - start == 1 and line.inputs and line.uses != (0,):
                main.append(((_single(self.labels[start]), None, start), []))
                continue
            piece = self._piece(start, end)
            if not piece.connected:
                raise _UnconnectedError
            shift = start - bool(start)
            for chain in piece.chains:
                placed = _placed(chain, piece, shift)
                if chain is not piece.main:
                    found.append(interleaved(placed))
                elif start:
                    main[-1][1].extend(placed[0][1])
                    main += placed[1:]
                else:
                    main += placed
        return [interleaved(main), *found]

    def _piece(self, start: int, end: int) -> Piece:
        """The piece of the lines between two cuts; it reads the node before the first cut."""
        lines = self.lines[start:end]
        if lines in self.pieces:
            return self.pieces[lines]
        inputs = 0 if start else len(self.graph.inputs)
        read = tuple([value for value in self.graph.outputs if value < inputs])
        analysed = _analysed if end - start <= _MAX_CACHED_LINES else _analysed.__wrapped__
        labels = self.labels[start:end]
        exact = labels if self.exact is self.labels else self.exact[start:end]
        piece = analysed(lines, labels, exact, inputs, read, start == 0, end == self.count)
        if start and end < self.count:
            self.pieces[lines] = piece
        return piece


@lru_cache(maxsize=1024)
def _analysed(
    lines: tuple[Line, ...], labels: tuple[int, ...], exact: tuple[int, ...], inputs: int, read: tuple[int, ...],
    first: bool, last: bool,
) -> Piece:  # fmt: skip
    """The piece of these lines.

    Args:
        inputs, read: if the piece is the first, number of graph inputs, and the inputs that are
            graph outputs.
        first, last: True for the first and the last piece of the graph.
    """
    owner = {value: ROOT - 1 - value for value in range(inputs)}
    entries = [*owner.values()] if first else [ROOT - 1]
    producers = [] if first else [entries]
    before = [ROOT] * len(producers)
    left: dict[int, int] = {}
    value = inputs
    for line in lines:
        producers.append([*dict.fromkeys([owner.get(value + v, 0) for v in line.inputs])])
        for v, times in line.reads:
            if value + v in left:
                left[value + v] -= times
        for times in line.uses:
            owner[value], left[value] = len(producers) - 1, times
            value += 1
    outputs = [owner[v] for v in read] + [owner[v] for v, times in left.items() if times]
    if not first and not outputs:
        outputs = [0]
    return Piece(producers, entries, outputs, [*before, *labels], [*before, *exact], first, last)


def _placed(chain: Chain, piece: Piece, shift: int) -> list[tuple[_Placed, list[End[_Placed]]]]:
    """The links of a chain and their ends, with their piece and offset."""
    return [
        (
            (link, piece, shift),
            [(structure, exact, (end, piece, shift)) for structure, exact, end in ends],
        )
        for link, ends in chain
    ]


@lru_cache(maxsize=256)
def _single(label: int) -> Link:
    return Link([0], 0, [], (label,))


def _exact_label(line: Line) -> Label:
    return (line.op, repr(line.attrs), len(line.inputs))
