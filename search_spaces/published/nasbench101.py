"""NAS-Bench-101 (Ying et al., ICML 2019, arXiv 1902.09635): 423,624 cells of at most seven vertices and nine edges."""

from __future__ import annotations

import ast
from functools import lru_cache
from itertools import permutations
from typing import Any, NamedTuple

from search_spaces.base import Architecture, SearchSpace
from search_spaces.choosers import ReplayChooser, Trial
from search_spaces.common.errors import InputError, unknown
from search_spaces.graph.builder import Network, Tensor
from search_spaces.registry import register_space

OPERATIONS = ("conv3x3-bn-relu", "conv1x1-bn-relu", "maxpool3x3")
NONE = "none"
MAX_VERTICES = 7
MAX_EDGES = 9
_OUTPUT = MAX_VERTICES - 1

Edges = frozenset[tuple[int, int]]
Operations = tuple[str, ...]


class Cell(NamedTuple):
    """Vertices 0 (input) to n-1 (output) on paths from input to output."""

    sources: tuple[tuple[int, ...], ...]
    """Of every vertex, in ascending order."""
    labels: tuple[tuple[int, ...], ...]
    """Of vertices 1 to n-2: the operation's number, then the output channels in every stack where these are known."""

    @property
    def output(self) -> int:
        return len(self.sources) - 1


@register_space("nasbench101")
class NASBench101(SearchSpace):
    """The official network: stem, three stacks of `modules` cells, max-pooling and twice the channels in between.

    Choices are those of a 7 × 7 matrix: the operations, `none` for a vertex that is not there, and of the edges
    `source->target` those that leave each vertex on a path from input to output and the cell within nine edges. So
    every choice gives a valid cell, and every cell can be chosen.

    Vertices that feed the output share its channels; where these do not divide, the first vertices get one more. By
    default that is the order of the matrix, so that isomorphic matrices may differ by some parameters, as they do in
    the benchmark's own code and in NASLib. `canonical=True` takes the order of the one graph of each class that the
    benchmark trained: exactly 423,624 networks.
    """

    def __init__(
        self,
        channels: int = 128,
        stacks: int = 3,
        modules: int = 3,
        input_shape: tuple[int, ...] = (3, 32, 32),
        num_classes: int = 10,
        canonical: bool = False,
    ) -> None:
        if min(stacks, modules, num_classes, *input_shape) < 1:
            raise InputError("nasbench101: stacks, modules, classes and input sizes must be positive")
        if channels < MAX_VERTICES - 2:
            raise InputError(f"nasbench101: five vertices may share the channels: give at least 5, not {channels}")
        self.channels, self.stacks, self.modules, self.canonical = channels, stacks, modules, canonical
        self.input_shape, self.num_classes = tuple(input_shape), num_classes

    @property
    def size(self) -> int:
        """Number of cells that are not isomorphic; each can be chosen with its vertices in any order."""
        return 423_624

    @property
    def options(self) -> dict[str, Any]:
        return {
            "channels": self.channels,
            "stacks": self.stacks,
            "modules": self.modules,
            "input_shape": self.input_shape,
            "num_classes": self.num_classes,
            "canonical": self.canonical,
        }

    def ask(self, trial: Trial) -> tuple[Edges, Operations]:
        """Edges and the five operations of a valid cell.

        Edges are asked from the output backwards, so that all vertices before a target need just one more edge each:
        the one from the vertex before them feeds both.
        """
        operations = tuple([trial.suggest_categorical(f"op{v}", (*OPERATIONS, NONE)) for v in range(1, _OUTPUT)])
        vertices = [0, *(v for v, operation in enumerate(operations, start=1) if operation != NONE), _OUTPUT]
        edges: set[tuple[int, int]] = set()
        feeding, fed = {0}, set()
        for at in range(len(vertices) - 1, 0, -1):
            target = vertices[at]
            for source in vertices[at - 1 :: -1]:
                if len(edges) + at > MAX_EDGES:
                    break
                needed = (source == vertices[at - 1] and source not in feeding) or (source == 0 and target not in fed)
                if needed or trial.suggest_categorical(_name(source, target), (False, True)):
                    edges.add((source, target))
                    feeding.add(source)
                    fed.add(target)
        return frozenset(edges), operations

    def build(self, trial: Trial, net: Network) -> Tensor:
        channels = tuple(self.channels * 2**stack for stack in range(self.stacks))
        cell = _cell(*self.ask(trial), channels, self.canonical)
        x = net.conv_bn_relu(net.input, self.channels)
        for stack, width in enumerate(channels):
            if stack:
                x = net.max_pool(x, 2, stride=2)
            for _ in range(self.modules):
                x = net.repeated("module", _module, (x,), cell, stack, width)
        return net.classifier(x)

    def parse(self, native: str) -> Architecture:
        """Read the official notation, `{"matrix": [[0, 1, …], …], "ops": ["input", …, "output"]}`.

        Vertices that are on no path from input to output are pruned.
        """
        edges, operations = _read(native)
        edges = _prune(edges)
        if not edges or len(edges) > MAX_EDGES:
            problem = f"{len(edges)} edges, but {MAX_EDGES} at most" if edges else "no path from input to output"
            raise InputError(f"not a NAS-Bench-101 cell: {problem}: {native[:200]!r}")
        kept = {vertex for edge in edges for vertex in edge}
        given: dict[str, Any] = {f"op{v}": operations[v] if v in kept else NONE for v in range(1, _OUTPUT)}
        given |= {_name(s, t): (s, t) in edges for t in range(MAX_VERTICES) for s in range(t)}
        chooser = ReplayChooser(given)
        self.ask(chooser)
        return Architecture(self.name, tuple(chooser.choices.items()))

    def format(self, arch: Architecture) -> str:
        """Write the official notation, 7 × 7; a vertex without edges is written with the first operation."""
        edges, operations = self.ask(ReplayChooser(arch.as_dict()))
        matrix = [[int((s, t) in edges) for t in range(MAX_VERTICES)] for s in range(MAX_VERTICES)]
        inner = [OPERATIONS[0] if operation == NONE else operation for operation in operations]
        return repr({"matrix": matrix, "ops": ["input", *inner, "output"]})


def _name(source: int, target: int) -> str:
    return f"{source}->{target}"


# --- the order of the vertices ---------------------------------------------------------------------------------------


@lru_cache(maxsize=4096)
def _cell(edges: Edges, operations: Operations, channels: tuple[int, ...], canonical: bool) -> Cell:
    """The cell with its vertices' channels, in an order that isomorphic cells with equal channels share."""
    inner = [v for v in range(1, _OUTPUT) if operations[v - 1] != NONE]
    number = {v: i for i, v in enumerate((0, *inner, _OUTPUT))}
    named = sorted((number[s], number[t]) for s, t in edges)
    sources = tuple(tuple(s for s, t in named if t == vertex) for vertex in number.values())
    cell = Cell(sources, tuple((OPERATIONS.index(operations[v - 1]),) for v in inner))
    if canonical:
        cell = _ordered(cell)
    widths = [_widths(cell, c) for c in channels]
    labels = zip(cell.labels, *(w[1:-1] for w in widths), strict=True)
    return _ordered(cell._replace(labels=tuple((*label, *more) for label, *more in labels)))


def _ordered(cell: Cell) -> Cell:
    """The isomorphic cell that comes first in the benchmark's enumeration of all graphs, which is the one it trained.

    Matrices count up as binary numbers, column by column, the first entry the least significant; then the labels.
    """
    edges = [(s, t) for t, sources in enumerate(cell.sources) for s in sources]
    best: tuple[int, list[tuple[int, ...]]] | None = None
    for inner in permutations(range(1, cell.output)):
        number = (0, *inner, cell.output)
        bits = 0
        for source, target in edges:
            s, t = number[source], number[target]
            if s > t:
                break
            bits |= 1 << (s + t * (t - 1) // 2)
        else:
            if best is None or bits <= best[0]:
                labels = [label for _, label in sorted(zip(inner, cell.labels, strict=True))]
                best = (bits, labels) if best is None else min(best, (bits, labels))
    assert best is not None
    bits, labels = best
    sources = tuple(tuple(s for s in range(t) if bits >> (s + t * (t - 1) // 2) & 1) for t in range(cell.output + 1))
    return Cell(sources, tuple(labels))


# --- the network -----------------------------------------------------------------------------------------------------


def _widths(cell: Cell, channels: int) -> list[int]:
    """Output channels of every vertex. The output's sources share its channels, the first of them the remainder.

    Any other vertex has as many as the widest that it feeds; narrower ones take the first channels of it.
    """
    widths = [0] * cell.output + [channels]
    sharing = [source for source in cell.sources[cell.output] if source]
    for i, source in enumerate(sharing):
        widths[source] = channels // len(sharing) + (i < channels % len(sharing))
    for vertex in range(cell.output - 1, 0, -1):
        if vertex not in sharing:
            widths[vertex] = max(widths[t] for t in range(vertex + 1, cell.output) if vertex in cell.sources[t])
    return widths


def _module(net: Network, x: Tensor, cell: Cell, stack: int, channels: int) -> Tensor:
    """The vertices between add up their sources, the output concatenates its own; the input is added by projections.

    Projections stand before the body, which is then the same whether the module changes the number of channels or not.
    """
    widths = [int(x.shape[1]), *(label[1 + stack] for label in cell.labels), channels]
    projected = {
        vertex: net.conv_bn_relu(x, widths[vertex], kernel=1)
        for vertex, sources in enumerate(cell.sources)
        if 0 in sources
    }
    with net.block("body"):
        return _body(net, cell, widths, projected)


def _body(net: Network, cell: Cell, widths: list[int], projected: dict[int, Tensor]) -> Tensor:
    values: dict[int, Tensor] = {}
    cut: dict[tuple[int, int], Tensor] = {}  # the first channels of a vertex, for a narrower one
    for vertex in range(1, cell.output):
        terms = [projected[vertex]] if vertex in projected else []
        for source in cell.sources[vertex]:
            if source:
                part = source, widths[vertex]
                if part not in cut:
                    cut[part] = net.slice(values[source], 1, 0, widths[vertex])
                terms.append(cut[part])
        values[vertex] = _operation(net, net.add(*terms), OPERATIONS[cell.labels[vertex - 1][0]])
    last = [values[source] for source in cell.sources[cell.output] if source]
    terms = [net.concat(*last)] if len(last) > 1 else last
    return net.add(*terms, *([projected[cell.output]] if cell.output in projected else []))


def _operation(net: Network, x: Tensor, operation: str) -> Tensor:
    if operation == "maxpool3x3":
        return net.max_pool(x, 3)
    return net.conv_bn_relu(x, kernel=3 if operation == "conv3x3-bn-relu" else 1)


# --- the official notation -------------------------------------------------------------------------------------------


def _read(native: str) -> tuple[Edges, list[str]]:
    """Edges and operations of a literal; its last vertex is numbered as the output of a 7 × 7 matrix."""
    try:
        cell = ast.literal_eval(native)
        matrix, operations = [list(row) for row in cell["matrix"]], list(cell["ops"])
    except (ValueError, SyntaxError, TypeError, KeyError, MemoryError, RecursionError):
        raise InputError(f'not a literal {{"matrix": [[…], …], "ops": […]}}: {native[:200]!r}') from None
    size = len(operations)
    if not 2 <= size <= MAX_VERTICES or [len(row) for row in matrix] != [size] * size:
        raise InputError(f"not a NAS-Bench-101 cell: matrix and ops must be of one size, 2 to 7: {native[:200]!r}")
    if any(matrix[s][t] not in ((0, 1) if s < t else (0,)) for s in range(size) for t in range(size)):
        raise InputError(f"not a NAS-Bench-101 cell: the matrix must be 0 or 1, upper triangular: {native[:200]!r}")
    if operations[0] != "input" or operations[-1] != "output":
        raise InputError(f"not a NAS-Bench-101 cell: ops must go from 'input' to 'output': {native[:200]!r}")
    for operation in operations[1:-1]:
        if operation not in OPERATIONS:
            raise unknown("NAS-Bench-101 operation", str(operation), OPERATIONS)
    number = [*range(size - 1), _OUTPUT]
    return frozenset((number[s], number[t]) for s in range(size) for t in range(size) if matrix[s][t]), operations


def _prune(edges: Edges) -> Edges:
    """The edges on paths from input to output."""
    fed, feeding = {0}, {_OUTPUT}
    for source, target in sorted(edges):
        if source in fed:
            fed.add(target)
    for source, target in sorted(edges, reverse=True):
        if target in feeding:
            feeding.add(source)
    return frozenset((s, t) for s, t in edges if s in fed and t in feeding)
