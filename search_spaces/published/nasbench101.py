"""NAS-Bench-101 (Ying et al., ICML 2019, arXiv 1902.09635): 423,624 cells of at most seven vertices
and nine edges.

    image ─ conv ─ 3 cells ─ max pool ─ 3 cells ─ max pool ─ 3 cells ─ pooling, linear
            128    128       /2         256       /2         512 channels

    cell:   input ─▶ 1×1 conv ─▶ vertices 1 to 5, each the sum of its sources through an operation
                                 ─▶ output: their results concatenated, plus the input if it leads there
"""

from __future__ import annotations

import ast
from functools import lru_cache
from itertools import permutations
from typing import Any, NamedTuple

from search_spaces.choosers import ReplayChooser, Trial
from search_spaces.common.errors import InputError, unknown
from search_spaces.ir.builder import Network, Tensor
from search_spaces.registry import register_space
from search_spaces.space import Architecture, SearchSpace

OPERATIONS = ("conv3x3-bn-relu", "conv1x1-bn-relu", "maxpool3x3")
NONE = "none"
MAX_VERTICES = 7
MAX_EDGES = 9
_OUTPUT = MAX_VERTICES - 1

Edges = frozenset[tuple[int, int]]
Operations = tuple[str, ...]


class Cell(NamedTuple):
    """A cell of n vertices, from 0 (input) to n - 1 (output), all on paths from input to output.

    Attributes:
        sources: predecessors of every vertex, in ascending order.
        labels: of vertices 1 to n - 2, the number of the operation, followed by the output channels
            in every stack if these are known.
    """

    sources: tuple[tuple[int, ...], ...]
    labels: tuple[tuple[int, ...], ...]

    @property
    def output(self) -> int:
        """Number of the output vertex."""
        return len(self.sources) - 1


@register_space("nasbench101")
class NASBench101(SearchSpace):
    """NAS-Bench-101: a stem, three stacks of cells with max-pooling in between, and a classifier.

    After each pooling, there are twice the channels. The choices are the operations of a 7 × 7
    matrix, `none` for a missing vertex, and its edges `source->target`. Edges are restricted so
    that every vertex is on a path from input to output and the cell has at most nine edges: every
    combination is a valid cell, and every cell can be chosen.

    Vertices that feed the output share its channels; the first of them get the remainder. By
    default the order is that of the matrix, so isomorphic matrices may differ by some parameters,
    as in the benchmark's code and in NASLib.

    Args:
        channels: channels of the first stack, at least 5.
        stacks: number of stacks.
        modules: cells per stack.
        input_shape: shape of one input.
        num_classes: number of classes.
        canonical: order the vertices as in the one matrix of each isomorphism class that the
            benchmark trained. There are then exactly 423,624 networks.
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
            raise InputError(
                "nasbench101: stacks, modules, classes and input sizes must be positive"
            )
        if channels < MAX_VERTICES - 2:
            raise InputError(
                "nasbench101: five vertices may share the channels: give at least 5, not "
                f"{channels}"
            )
        self.channels = channels
        self.stacks = stacks
        self.modules = modules
        self.canonical = canonical
        self.input_shape = tuple(input_shape)
        self.num_classes = num_classes

    @property
    def size(self) -> int:
        """Number of isomorphism classes of cells.

        Each can be chosen with its vertices in any order.
        """
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
        """Choose edges and the five operations of a valid cell.

        Edges are chosen from the output backwards. Every vertex before the target then needs only
        one more edge: an edge from the vertex before it connects both.
        """
        options = (*OPERATIONS, NONE)
        operations = []
        vertices = [0]
        for vertex in range(1, _OUTPUT):
            operation = trial.suggest_categorical(f"op{vertex}", options)
            operations.append(operation)
            if operation != NONE:
                vertices.append(vertex)
        vertices.append(_OUTPUT)
        edges: set[tuple[int, int]] = set()
        feeding = {0}  # vertices with an edge to a later one
        fed = set()  # vertices with an edge from an earlier one
        for at in range(len(vertices) - 1, 0, -1):
            target = vertices[at]
            for source in vertices[at - 1 :: -1]:
                # Each of the `at` vertices before the target may need one more edge.
                if len(edges) + at > MAX_EDGES:
                    break
                last_chance = source == vertices[at - 1] and source not in feeding
                last_source = source == 0 and target not in fed
                needed = last_chance or last_source
                if needed or trial.suggest_categorical(_name(source, target), (False, True)):
                    edges.add((source, target))
                    feeding.add(source)
                    fed.add(target)
        return frozenset(edges), tuple(operations)

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

        Vertices that are not on a path from input to output are pruned.
        """
        edges, operations = _read(native)
        edges = _prune(edges)
        problem = ""
        if not edges:
            problem = "no path from input to output"
        elif len(edges) > MAX_EDGES:
            problem = f"{len(edges)} edges, but {MAX_EDGES} at most"
        if problem:
            raise InputError(f"not a NAS-Bench-101 cell: {problem}: {native[:200]!r}")
        kept = {vertex for edge in edges for vertex in edge}
        choices: dict[str, Any] = {}
        for vertex in range(1, _OUTPUT):
            choices[f"op{vertex}"] = operations[vertex] if vertex in kept else NONE
        for target in range(MAX_VERTICES):
            for source in range(target):
                choices[_name(source, target)] = (source, target) in edges
        chooser = ReplayChooser(choices)
        self.ask(chooser)
        return Architecture(self.name, tuple(chooser.choices.items()))

    def format(self, arch: Architecture) -> str:
        """Write the official notation with a 7 × 7 matrix.

        Vertices without edges get the first operation.
        """
        edges, operations = self.ask(ReplayChooser(arch.as_dict()))
        matrix = [[0] * MAX_VERTICES for _ in range(MAX_VERTICES)]
        for source, target in edges:
            matrix[source][target] = 1
        inner = [OPERATIONS[0] if operation == NONE else operation for operation in operations]
        return repr({"matrix": matrix, "ops": ["input", *inner, "output"]})


def _name(source: int, target: int) -> str:
    return f"{source}->{target}"


# --- the order of the vertices


@lru_cache(maxsize=4096)
def _cell(
    edges: Edges,
    operations: Operations,
    channels: tuple[int, ...],
    canonical: bool,
) -> Cell:
    """The cell with its vertices' channels.

    Isomorphic cells with equal channels share the order.

    Args:
        edges: edges of the 7 × 7 matrix.
        operations: the five operations.
        channels: output channels of every stack.
        canonical: order the vertices before they share the channels.
    """
    # 1. The cell of the vertices that have an operation.
    inner = [vertex for vertex in range(1, _OUTPUT) if operations[vertex - 1] != NONE]
    number = {vertex: i for i, vertex in enumerate((0, *inner, _OUTPUT))}
    renumbered = [(number[source], number[target]) for source, target in edges]
    sources: list[list[int]] = [[] for _ in number]
    for source, target in sorted(renumbered):
        sources[target].append(source)
    labels = []
    for vertex in inner:
        operation = operations[vertex - 1]
        labels.append((OPERATIONS.index(operation),))
    cell = Cell(tuple(map(tuple, sources)), tuple(labels))
    if canonical:
        cell = _ordered(cell)

    # 2. The channels of its vertices depend on their order, and then tell vertices apart.
    widths = [_widths(cell, count) for count in channels]
    wide_labels = []
    for vertex, label in enumerate(cell.labels, start=1):
        own_widths = [of_stack[vertex] for of_stack in widths]
        wide_labels.append((*label, *own_widths))
    return _ordered(cell._replace(labels=tuple(wide_labels)))


def _ordered(cell: Cell) -> Cell:
    """The isomorphic cell that comes first in the benchmark's enumeration of graphs.

    This is the one that the benchmark trained. Matrices are ordered as binary numbers, column by
    column, with the first entry the least significant; equal matrices by their labels.
    """
    edges = []
    for target, sources in enumerate(cell.sources):
        edges += [(source, target) for source in sources]

    # 1. The smallest matrix of all orders of the inner vertices.
    best: tuple[int, list[tuple[int, ...]]] | None = None
    for inner in permutations(range(1, cell.output)):
        number = (0, *inner, cell.output)
        matrix = 0
        for source, target in edges:
            s = number[source]
            t = number[target]
            if s > t:
                break  # no topological order
            matrix |= _bit(s, t)
        else:
            if best is None or matrix <= best[0]:
                numbered = sorted(zip(inner, cell.labels, strict=True))
                labels = [label for _, label in numbered]
                candidate = (matrix, labels)
                best = candidate if best is None else min(best, candidate)
    assert best is not None

    # 2. Its cell.
    matrix, labels = best
    ordered = []
    for t in range(cell.output + 1):
        ordered.append(tuple([s for s in range(t) if matrix & _bit(s, t)]))
    return Cell(tuple(ordered), tuple(labels))


def _bit(source: int, target: int) -> int:
    """The entry of an edge in a matrix that is a binary number: column by column."""
    return 1 << (source + target * (target - 1) // 2)


# --- the network


def _widths(cell: Cell, channels: int) -> list[int]:
    """Output channels of every vertex.

    The predecessors of the output share its channels; the first of them get the remainder. Any
    other vertex has as many channels as its widest successor; narrower successors read the first
    channels.
    """
    widths = [0] * cell.output + [channels]

    # 1. The predecessors of the output; the input, vertex 0, is added and shares nothing.
    sharing = [source for source in cell.sources[cell.output] if source != 0]
    for i, source in enumerate(sharing):
        share, remainder = divmod(channels, len(sharing))
        widths[source] = share + 1 if i < remainder else share

    # 2. The others, backwards: the widths of their successors are known.
    for vertex in range(cell.output - 1, 0, -1):
        if vertex in sharing:
            continue
        for successor in range(vertex + 1, cell.output):
            if vertex in cell.sources[successor]:
                widths[vertex] = max(widths[vertex], widths[successor])
    return widths


def _module(
    net: Network,
    x: Tensor,
    cell: Cell,
    stack: int,
    channels: int,
) -> Tensor:
    """Build a cell: inner vertices add their predecessors, the output concatenates them.

    Projections add the input. They are outside of the body, which is then the same whether or not
    the cell changes the number of channels.
    """
    inner = [label[1 + stack] for label in cell.labels]
    widths = [int(x.shape[1]), *inner, channels]
    projected = {}
    for vertex, sources in enumerate(cell.sources):
        if 0 in sources:
            projected[vertex] = net.conv_bn_relu(x, widths[vertex], kernel=1)
    with net.block("body"):
        return _body(net, cell, widths, projected)


def _body(
    net: Network,
    cell: Cell,
    widths: list[int],
    projected: dict[int, Tensor],
) -> Tensor:
    """The cell's output, from the projections of its input that some vertices read."""
    # 1. Each vertex adds what it reads.
    values: dict[int, Tensor] = {}
    cut: dict[tuple[int, int], Tensor] = {}  # first channels of a vertex, for narrower successors
    for vertex in range(1, cell.output):
        width = widths[vertex]
        terms = [projected[vertex]] if vertex in projected else []
        for source in cell.sources[vertex]:
            if source:
                part = (source, width)
                if part not in cut:
                    cut[part] = net.slice(values[source], 1, 0, width)
                terms.append(cut[part])
        label = cell.labels[vertex - 1]
        values[vertex] = _operation(net, net.add(*terms), OPERATIONS[label[0]])

    # 2. The output joins the last ones.
    last = [values[source] for source in cell.sources[cell.output] if source]
    terms = [net.concat(*last)] if len(last) > 1 else last
    if cell.output in projected:
        terms = [*terms, projected[cell.output]]
    return net.add(*terms)


def _operation(net: Network, x: Tensor, operation: str) -> Tensor:
    if operation == "maxpool3x3":
        return net.max_pool(x, 3)
    return net.conv_bn_relu(x, kernel=3 if operation == "conv3x3-bn-relu" else 1)


# --- the official notation


def _read(native: str) -> tuple[Edges, list[str]]:
    """Edges and operations of the official notation.

    The last vertex gets the number of a 7 × 7 matrix's output.
    """
    try:
        cell = ast.literal_eval(native)
        matrix = [list(row) for row in cell["matrix"]]
        operations = list(cell["ops"])
    except (ValueError, SyntaxError, TypeError, KeyError, MemoryError, RecursionError) as error:
        raise InputError(
            f'not a literal {{"matrix": [[…], …], "ops": […]}}: {native[:200]!r}'
        ) from error
    size = len(operations)
    if not 2 <= size <= MAX_VERTICES or [len(row) for row in matrix] != [size] * size:
        raise InputError(
            "not a NAS-Bench-101 cell: matrix and ops must be of one size, 2 to 7: "
            f"{native[:200]!r}"
        )
    number = [*range(size - 1), _OUTPUT]
    edges = set()
    for source, row in enumerate(matrix):
        for target, entry in enumerate(row):
            if entry not in ((0, 1) if source < target else (0,)):
                raise InputError(
                    "not a NAS-Bench-101 cell: the matrix must be 0 or 1, upper triangular: "
                    f"{native[:200]!r}"
                )
            if entry:
                edges.add((number[source], number[target]))
    if operations[0] != "input" or operations[-1] != "output":
        raise InputError(
            f"not a NAS-Bench-101 cell: ops must go from 'input' to 'output': {native[:200]!r}"
        )
    for operation in operations[1:-1]:
        if operation not in OPERATIONS:
            raise unknown("NAS-Bench-101 operation", str(operation), OPERATIONS)
    return frozenset(edges), operations


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
