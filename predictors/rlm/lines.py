"""Text to lines: the input of the encoder.

ONNX text is unrolled: every call is replaced by the lines of its function, and every line is
    annotated with the shapes
and costs that follow from the text. Any other text has one line per word, number or sign.
Equal calls, of one function with equal arguments and input shapes, share their lines: the encoder
reads them once.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from functools import lru_cache
from math import log2, prod
from typing import Any, NamedTuple

import numpy as np

from predictors.features import kind_attributes
from predictors.rlm.sketches import COUNTS, kind_sketch, neighbour_sketch
from search_spaces import read
from search_spaces.common.errors import InputError
from search_spaces.ir.graph import Attrs, Graph, Shape, Value
from search_spaces.ir.text.program import MAX_DEPTH, Block, Program, bind, operator_outcome

BUCKETS = 8192  # of hashed words; bucket 0 is padding
MAX_LINES = 60_000
OPERATOR_NUMBERS = 9  # numbers of an operator: log2 of costs and sizes
LINE_NUMBERS = OPERATOR_NUMBERS + 2
TEXT_NUMBERS = 5
_TOKEN = re.compile(r"\d+(?:\.\d+)?(?:[eE][+-]?\d+)?|[^\W\d]\w*|[^\w\s]|\s+")


class Lines(NamedTuple):
    """The n lines of a text, all calls unrolled, with w words and e references."""

    words: np.ndarray  # (w,) hashed words, line after line
    starts: np.ndarray  # (n,) index of each line's first word
    # (n, LINE_NUMBERS) log2 of costs, sizes, and lines on the longest path from inputs, to outputs
    numbers: np.ndarray
    edges: np.ndarray  # (2, e) line that produces a value, line that reads it
    position: np.ndarray  # (n,) relative position of a line along the longest path, in [0, 1]
    totals: (
        np.ndarray
    )  # (TEXT_NUMBERS,) log2 of 1 + parameters, multiply-accumulates, output elements, lines, depth
    counts: np.ndarray  # (COUNTS,) sum of the lines' `kind_sketch`
    neighbours: np.ndarray  # (NEIGHBOURS,) `neighbour_sketch` of the lines
    shared: np.ndarray  # (n,) from 0; equal for one line of a function in equal calls


class _Body(NamedTuple):
    """The n lines of one call."""

    words: np.ndarray  # (w,) hashed words, line after line
    lengths: np.ndarray  # (n,) words per line
    numbers: np.ndarray  # (n, OPERATOR_NUMBERS)
    edges: np.ndarray  # (2, e) between lines of the call
    reads: np.ndarray  # (2, r) number of an input of the call, line that reads it
    sources: tuple[
        int, ...
    ]  # per output, the line that produces it, or -1 - i for input i of the call
    shapes: tuple[Shape, ...]  # shapes of the outputs
    costs: np.ndarray  # (3,) parameters, multiply-accumulates, output elements
    counts: np.ndarray  # (COUNTS,) sum of the lines' sketches
    calls: int = 0  # number of calls inside


@lru_cache(maxsize=65536)
def bucket(word: str) -> int:
    """Hash bucket of a word, from 1 to BUCKETS - 1."""
    return 1 + zlib.crc32(word.encode()) % (BUCKETS - 1)


@lru_cache(maxsize=8192)
def lines(text: str) -> Lines:
    """The lines of a text.

    Raises:
        InputError: if the text is empty or too long, or begins like ONNX text but is not that of an
            architecture.
    """
    if not text.strip():
        raise InputError("an empty text has nothing to predict from")
    if not text.startswith("<ir_version"):
        return _plain(text)
    program = read(text)
    body, shared = _Reader(program).body(program.main, program.input_shapes, ())
    if not len(body.lengths):
        raise InputError("the network has no operator")
    return _finished(body, shared)


class _Reader:
    """Unrolls the calls of one program. Equal calls are read once."""

    def __init__(self, program: Program) -> None:
        self.functions = program.functions
        self.depth = self.distinct = 0
        self.known: dict[tuple[str, tuple[Shape, ...], Attrs], tuple[_Body, list[int]]] = {}

    def body(
        self, block: Block, shapes: tuple[Shape, ...], arguments: Attrs
    ) -> tuple[_Body, list[int]]:
        """The n lines of a block for given input shapes and arguments, and `Lines.shared` of
        each.
        """
        parts, makers, known = [], [-1 - i for i in range(len(shapes))], list(shapes)
        if self.depth > MAX_DEPTH:
            raise InputError(
                f"functions call each other more than {MAX_DEPTH} deep; a function must not call "
                "itself"
            )
        count = calls = 0
        edges: list[np.ndarray] = []
        links: list[tuple[int, int]] = []  # edges between parts
        reads: list[tuple[int, int]] = []
        shared: list[int] = []
        for item in block.items:
            inputs = tuple([known[v] for v in item.inputs])
            part, numbers = self.call(
                item.op, inputs, bind(item.attrs, arguments) if block.params else item.attrs
            )
            if len(part.shapes) != item.outputs:
                raise InputError(f"{item.op} has {len(part.shapes)} outputs, not {item.outputs}")
            edges.append(part.edges + count)
            for i, line in part.reads.T.tolist():
                maker = makers[item.inputs[i]]
                (links if maker >= 0 else reads).append((max(maker, -1 - maker), line + count))
            makers += [s + count if s >= 0 else makers[item.inputs[-1 - s]] for s in part.sources]
            known += part.shapes
            count += len(part.lengths)
            calls += part.calls
            if max(count, calls) > MAX_LINES:  # calls of functions without operators add no lines
                raise InputError(f"the network has more than {MAX_LINES} operators or calls")
            parts.append(part)
            shared += numbers
        own = {
            "sources": tuple([makers[v] for v in block.outputs]),
            "shapes": tuple([known[v] for v in block.outputs]),
        }
        return _joined(
            parts, [*edges, _pairs(links)], reads=_pairs(reads), calls=calls + 1, **own
        ), shared

    def call(self, op: str, shapes: tuple[Shape, ...], attrs: Attrs) -> tuple[_Body, list[int]]:
        """The lines of an operator or a function call, and `Lines.shared` of each."""
        function = self.functions.get(op)
        if function is None:
            self.distinct += 1
            return _operator(op, shapes, attrs), [self.distinct - 1]
        if len(shapes) != function.inputs:
            raise InputError(f"function {op} takes {function.inputs} inputs, not {len(shapes)}")
        key = (op, shapes, attrs)
        if key not in self.known:
            self.depth += 1
            self.known[key] = self.body(function, shapes, attrs)
            self.depth -= 1
        return self.known[key]


@lru_cache(maxsize=65536)
def _operator(op: str, shapes: tuple[Shape, ...], attrs: Attrs) -> _Body:
    """The line of an operator."""
    (shape,), cost = operator_outcome(op, shapes, attrs)
    words = np.array([bucket(word) for word in (op, *kind_attributes(attrs))])
    costs = np.array([*cost, prod(d for d in shape[1:] if isinstance(d, int))], float)
    given = dict(attrs)
    kernel = given.get("kernel", given.get("kernel_shape", (1,)))
    strides = given.get("strides", (1,))
    group = given.get("group", 1)
    input_width = _extent(shapes[0])[0] if shapes else 0.0
    groups = log2(max(group, 1)) if isinstance(group, int) else 0.0
    sizes = [*_extent(shape), input_width, _log2_product(kernel), _log2_product(strides), groups]
    reads = np.array([range(len(shapes)), [0] * len(shapes)], np.int64)
    row = np.array([[*np.log2(1 + costs), *sizes]], np.float32)
    sketch = kind_sketch(words, row[0])
    return _Body(
        words, np.array([len(words)]), row, _NO_PAIRS, reads, (0,), (shape,), costs, sketch
    )


def _log2_product(sizes: Value) -> float:
    """log2 of a product of integers; 0 for any other value."""
    if not isinstance(sizes, tuple):
        return 0.0
    whole = [size for size in sizes if isinstance(size, int)]
    return log2(max(prod(whole), 1)) if len(whole) == len(sizes) else 0.0


def _extent(shape: Shape) -> tuple[float, float]:
    """log2 of the width, the first of more than two sizes or otherwise the last, and half of log2
    of the others.
    """
    sizes = [d for d in shape[1:] if isinstance(d, int)]
    width = sizes.pop(0 if len(sizes) > 2 else -1) if sizes else 1
    return log2(max(width, 1)), log2(max(prod(sizes), 1)) / 2


_NO_WORDS, _NO_PAIRS = np.zeros(0, np.int64), np.zeros((2, 0), np.int64)
_NO_LINES = _Body(
    _NO_WORDS, _NO_WORDS, np.zeros((0, OPERATOR_NUMBERS), np.float32), _NO_PAIRS, _NO_PAIRS, (), (), np.zeros(3),
    np.zeros(COUNTS, np.float32),
)  # fmt: skip


def _pairs(pairs: list[tuple[int, int]]) -> np.ndarray:
    return np.array(pairs, np.int64).reshape(-1, 2).T


def _joined(parts: list[_Body], edges: list[np.ndarray], **own: Any) -> _Body:
    """The lines of consecutive calls, with these edges and other fields."""
    parts = [_NO_LINES, *parts]
    return _NO_LINES._replace(
        words=np.concatenate([part.words for part in parts]),
        lengths=np.concatenate([part.lengths for part in parts]),
        numbers=np.concatenate([part.numbers for part in parts]),
        edges=np.concatenate(edges, 1),
        costs=np.sum([part.costs for part in parts], axis=0),
        counts=np.sum([part.counts for part in parts], axis=0),
        **own,
    )


def _finished(body: _Body, shared: Sequence[int]) -> Lines:
    """The lines of a whole text, with each line's depth, height and position in the data flow."""
    n = len(body.lengths)
    depth = _longest(n, body.edges)
    height = _longest(n, n - 1 - body.edges[::-1])[::-1]
    places = np.log2(np.stack([depth, height], 1)).astype(np.float32)
    return Lines(
        words=body.words,
        starts=np.cumsum(body.lengths) - body.lengths,
        numbers=np.concatenate([body.numbers, places], 1),
        edges=body.edges,
        position=((depth - 0.5) / depth.max()).astype(np.float32),
        totals=np.log2(1 + np.array([*body.costs, n, depth.max()])).astype(np.float32),
        counts=body.counts,
        neighbours=neighbour_sketch(body.words, body.lengths, body.edges),
        shared=np.array(shared),
    )


def _longest(count: int, edges: np.ndarray) -> np.ndarray:
    """Number (count,) of lines on the longest path that ends with each line; edges must lead to
    later lines.
    """
    depth = [1] * count
    for source, target in edges[:, np.argsort(edges[1], kind="stable")].T.tolist():
        if depth[source] >= depth[target]:
            depth[target] = depth[source] + 1
    return np.array(depth)


def graph_lines(graph: Graph) -> Lines:
    """The lines of a graph; faster than `lines` of its text, from which only their order
    differs.
    """
    maker = dict.fromkeys(graph.inputs, -1)
    parts, edges = [], []
    for i, node in enumerate(graph.nodes):
        parts.append(_operator(node.op, tuple([graph.shapes[v] for v in node.inputs]), node.attrs))
        edges += [(maker[v], i) for v in node.inputs if maker[v] >= 0]
        maker |= dict.fromkeys(node.outputs, i)
    return _finished(_joined(parts, [_pairs(edges)]), range(len(parts)))


def _plain(text: str) -> Lines:
    """The lines of any other text: one per token, each of which reads the one before."""
    tokens = _TOKEN.findall(text)
    if len(tokens) > MAX_LINES:
        raise InputError(
            f"the text has {len(tokens)} words, numbers and signs; the limit is {MAX_LINES}"
        )
    n = len(tokens)
    words = np.array([bucket("#" if token[0].isdecimal() else token) for token in tokens])
    numbers = np.zeros((n, OPERATOR_NUMBERS), np.float32)
    numbers[:, 0] = [
        log2(1 + min(float(token), 1e30)) if token[0].isdecimal() else 0.0 for token in tokens
    ]
    edges = np.stack([np.arange(n - 1), np.arange(1, n)])
    counts = np.sum(
        [kind_sketch(*kind) for kind in zip(words[:, None], numbers, strict=True)], axis=0
    )
    return _finished(
        _NO_LINES._replace(
            words=words, lengths=np.ones(n, int), numbers=numbers, edges=edges, counts=counts
        ),
        range(n),
    )
