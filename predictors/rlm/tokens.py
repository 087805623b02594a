"""Text to tokens, the input of the encoder, and the parts of what the encoder makes of them.

A token of ONNX text is one operator. The text is unrolled first: every call is replaced by the
tokens of its function, and every token has the shapes and costs that follow from the text. Any
other text has one token per word, number or sign. Equal calls, of one function with equal arguments
and input shapes, share their tokens, so that the encoder reads them once.

Two sketches are sums of random signs per token type. No training can make them blind to a type:
signs of different types are almost orthogonal, so that a linear function of a sketch can
approximate any linear function of the counts per type.

Sizes in comments: n tokens, w words of all tokens, e edges of the data flow.
"""

from __future__ import annotations

import hashlib
import re
import zlib
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from math import log2, prod
from typing import NamedTuple

import numpy as np

from predictors.features import kind_attributes
from search_spaces.common.errors import InputError
from search_spaces.ir.graph import Attrs, Graph, Shape, Value
from search_spaces.ir.text import read
from search_spaces.ir.text.program import Block, Interpreter, Program, operator_outcome

BUCKETS = 8192  # of hashed words; bucket 0 is padding
MAX_TOKENS = 60_000
MAX_PLAIN_NUMBER = 1e30  # larger numbers in other texts are read as this one

# --- sizes of a token
OPERATOR_NUMBERS = 9  # log2 of costs and sizes
TOKEN_NUMBERS = OPERATOR_NUMBERS + 2  # and of the longest paths from the inputs and to the outputs

# --- sizes of the parts of a text's state, the same for every configuration of the encoder
QUALITY = 64
COUNTS = 128
NEIGHBOURS = 512
PROXIES = 8
ACCURACIES = 2
TEXT_NUMBERS = 5  # log2 of params, multiply-accumulates, output elements, tokens, depth
COMMON = PROXIES + ACCURACIES + TEXT_NUMBERS  # these mean the same in every space

COUNT_STEPS = 64  # steps per octave to which the count sketch rounds sizes
HOPS = 2  # tokens up and down the data flow that the neighbour sketch looks at
_HASH_BITS = 64
_WORD = re.compile(r"\d+(?:\.\d+)?(?:[eE][+-]?\d+)?|[^\W\d]\w*|[^\w\s]|\s+")


class Tokens(NamedTuple):
    """The n tokens of a text, all calls unrolled."""

    words: np.ndarray  # (w,) hashed words, token after token
    starts: np.ndarray  # (n,) index of each token's first word
    numbers: np.ndarray  # (n, TOKEN_NUMBERS) log2 of costs, of sizes, and of the longest paths
    edges: np.ndarray  # (2, e) token that produces a value, token that reads it
    position: np.ndarray  # (n,) relative position along the longest path, in [0, 1]
    totals: np.ndarray  # (TEXT_NUMBERS,) log2 of 1 + each quantity
    counts: np.ndarray  # (COUNTS,) count sketch: sum of the tokens' `token_type_sketch`
    neighbours: np.ndarray  # (NEIGHBOURS,) `neighbour_sketch` of the tokens
    shared: np.ndarray  # (n,) from 0; equal for one token of a function in equal calls


class TextFeatures(NamedTuple):
    """The parts of the states (n, S) of n texts, in the order in which a state holds them."""

    structure: np.ndarray  # (n, the rest), learned: linear in the encoder's pooled tokens
    quality: np.ndarray  # (n, QUALITY), learned: nonlinear
    counts: np.ndarray  # (n, COUNTS), count sketch of the token types
    neighbours: np.ndarray  # (n, NEIGHBOURS), sketch of the tokens around each token
    common: np.ndarray  # (n, COMMON), predicted proxies and accuracies, and exact costs

    @classmethod
    def split(cls, states: np.ndarray) -> TextFeatures:
        """Views of the parts of states (n, S)."""
        ends = np.cumsum(cls.sizes(states.shape[1])[:-1])
        return cls(*np.split(states, ends, axis=1))

    @staticmethod
    def sizes(size: int) -> list[int]:
        """Size of every part of a state of `size` numbers."""
        fixed = [QUALITY, COUNTS, NEIGHBOURS, COMMON]
        return [size - sum(fixed), *fixed]


def learned_features(states: np.ndarray) -> np.ndarray:
    """Structure and quality of states (n, S): distances between texts are measured on them."""
    return states[:, : -COUNTS - NEIGHBOURS - COMMON]


# --- from a text to its tokens


@lru_cache(maxsize=8192)
def tokenize(text: str) -> Tokens:
    """The tokens of a text.

    Raises:
        InputError: if the text is empty or too long, or begins like ONNX text but is not that of an
            architecture.
    """
    if not text.strip():
        raise InputError("an empty text has nothing to predict from")
    if not text.startswith("<ir_version"):
        return _tokenize_plain(text)
    program = read(text)
    _, (body, shared) = _Unroller(program).run(program.input_shapes)
    if not body.tokens:
        raise InputError("the network has no operator")
    return _finish(body.tokens, body.edges, shared)


def tokenize_graph(graph: Graph) -> Tokens:
    """The tokens of a graph. Faster than `tokenize` of its text; only the order differs."""
    maker = dict.fromkeys(graph.inputs, -1)  # node of each value; -1 for inputs
    tokens = []
    edges = []
    for i, node in enumerate(graph.nodes):
        shapes = tuple([graph.shapes[value] for value in node.inputs])
        _, body = _operator(node.op, shapes, node.attrs)
        tokens += body.tokens
        for value in node.inputs:
            if maker[value] >= 0:
                edges.append((maker[value], i))
        maker |= dict.fromkeys(node.outputs, i)
    return _finish(tokens, _as_edges(edges), range(len(tokens)))


def _tokenize_plain(text: str) -> Tokens:
    """The tokens of any other text: one per word, each of which reads the one before."""
    parts = _WORD.findall(text)
    n = len(parts)
    if n > MAX_TOKENS:
        raise InputError(f"the text has {n} words, numbers and signs; the limit is {MAX_TOKENS}")

    # 1. Every number is the same word "#"; its size is in the token's numbers, as that of operators.
    tokens = []
    for part in parts:
        numbers = np.zeros(OPERATOR_NUMBERS, np.float32)
        word = part
        if part[0].isdecimal():
            word = "#"
            size = min(float(part), MAX_PLAIN_NUMBER)
            numbers[0] = log2(1 + size)
        words = np.array([bucket(word)])
        tokens.append(_Token(words, numbers, np.zeros(3), token_type_sketch(words, numbers)))

    # 2. A chain of tokens.
    producers = np.arange(n - 1)
    edges = np.stack([producers, producers + 1])  # (2, n - 1)
    return _finish(tokens, edges, range(n))


@lru_cache(maxsize=65536)
def bucket(word: str) -> int:
    """Hash bucket of a word, from 1 to BUCKETS - 1."""
    checksum = zlib.crc32(word.encode())
    return 1 + checksum % (BUCKETS - 1)


class _Token(NamedTuple):
    """What a token is by itself, before it has a place in a text."""

    words: np.ndarray  # (k,) hashed words
    numbers: np.ndarray  # (OPERATOR_NUMBERS,) log2 of costs and sizes, float32
    costs: np.ndarray  # (3,) parameters, multiply-accumulates, output elements
    sketch: np.ndarray  # (COUNTS,) `token_type_sketch`


class _Body(NamedTuple):
    """The n tokens of one call, before they have a position in the whole text."""

    tokens: list[_Token]  # n of them
    edges: np.ndarray  # (2, e) between tokens of the call
    reads: tuple[tuple[int, int], ...]  # number of an input of the call, token that reads it
    sources: tuple[int, ...]  # per output: token that produces it, or -1 - i for the call's input i
    calls: int = 0  # number of calls inside


_Unrolled = tuple[_Body, list[int]]  # the tokens of a call, and `Tokens.shared` of each


class _Unroller(Interpreter[Shape, _Unrolled]):
    """Unrolls the calls of one program. Values are shapes; equal calls are unrolled once."""

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self.distinct = 0  # number of distinct tokens so far

    def operator(
        self,
        op: str,
        inputs: tuple[Shape, ...],
        attrs: Attrs,
    ) -> tuple[tuple[Shape, ...], _Unrolled]:
        shape, body = _operator(op, inputs, attrs)
        self.distinct += 1
        return (shape,), (body, [self.distinct - 1])

    def block(
        self,
        name: str,
        block: Block,
        values: list[Shape],
        results: list[_Unrolled],
    ) -> _Unrolled:
        """The tokens of a block, from those of its items."""
        # Values are numbered: the block's inputs first, then the outputs of its items.
        makers = [-1 - i for i in range(block.inputs)]  # token of each value; below 0 for inputs
        tokens: list[_Token] = []
        shared: list[int] = []
        edges = [_NO_EDGES]  # inside of each part, (2, e)
        links: list[tuple[int, int]] = []  # between parts
        reads: list[tuple[int, int]] = []  # of the block's own inputs
        calls = 0
        for item, (part, numbers) in zip(block.items, results, strict=True):
            # 1. Connect what the item reads to the tokens that produce it; tokens are numbered on.
            count = len(tokens)
            if part.edges.size:
                edges.append(part.edges + count)
            for i, token in part.reads:
                maker = makers[item.inputs[i]]
                if maker >= 0:
                    links.append((maker, token + count))
                else:
                    reads.append((-1 - maker, token + count))

            # 2. Note which tokens produce its outputs. An output may be an input passed through.
            for source in part.sources:
                if source < 0:
                    passed = item.inputs[-1 - source]
                    makers.append(makers[passed])
                else:
                    makers.append(source + count)
            tokens += part.tokens
            shared += numbers

            # 3. Stop in time: calls of functions without operators add no tokens.
            calls += part.calls
            if max(len(tokens), calls) > MAX_TOKENS:
                raise InputError(f"the network has more than {MAX_TOKENS} operators or calls")
        body = _Body(
            tokens,
            edges=np.concatenate([*edges, _as_edges(links)], 1),
            reads=tuple(reads),
            sources=tuple([makers[value] for value in block.outputs]),
            calls=calls + 1,
        )
        return body, shared


@lru_cache(maxsize=65536)
def _operator(
    op: str,
    shapes: tuple[Shape, ...],
    attrs: Attrs,
) -> tuple[Shape, _Body]:
    """The shape of an operator's output, and its token.

    The token's words are the operator and its attributes without widths.
    """
    # 1. The words.
    words = np.array([bucket(word) for word in (op, *kind_attributes(attrs))])

    # 2. The numbers: costs, and sizes of the output, the first input and the attributes.
    (shape,), cost = operator_outcome(op, shapes, attrs)
    elements = prod(size for size in shape[1:] if isinstance(size, int))
    costs = np.array([*cost, elements], float)
    width, extent = _extent(shape)
    input_width = _extent(shapes[0])[0] if shapes else 0.0
    values = dict(attrs)
    kernel = values.get("kernel", values.get("kernel_shape", (1,)))
    group = values.get("group", 1)
    sizes = [
        width,
        extent,
        input_width,
        _log2_product(kernel),
        _log2_product(values.get("strides", (1,))),
        log2(max(group, 1)) if isinstance(group, int) else 0.0,
    ]
    log_costs = np.log2(1 + costs)
    numbers = np.array([*log_costs, *sizes], np.float32)
    token = _Token(words, numbers, costs, token_type_sketch(words, numbers))
    reads = tuple([(i, 0) for i in range(len(shapes))])
    return shape, _Body([token], _NO_EDGES, reads, sources=(0,))


def _log2_product(sizes: Value) -> float:
    """log2 of a product of integers; 0 for any other value."""
    if not isinstance(sizes, tuple):
        return 0.0
    integers = [size for size in sizes if isinstance(size, int)]
    if len(integers) < len(sizes):
        return 0.0
    return log2(max(prod(integers), 1))


def _extent(shape: Shape) -> tuple[float, float]:
    """log2 of a shape's width, and half of log2 of its other sizes.

    The width is the first of more than two sizes, as in images, and otherwise the last one.
    """
    sizes = [size for size in shape[1:] if isinstance(size, int)]
    width = 1
    if sizes:
        is_image = len(sizes) > 2
        width = sizes.pop(0 if is_image else -1)
    positions = prod(sizes)
    return log2(max(width, 1)), log2(max(positions, 1)) / 2


_NO_EDGES = np.zeros((2, 0), np.int64)


def _as_edges(pairs: list[tuple[int, int]]) -> np.ndarray:
    """Array (2, e) of e pairs."""
    return np.array(pairs, np.int64).reshape(-1, 2).T


def _finish(tokens: Sequence[_Token], edges: np.ndarray, shared: Sequence[int]) -> Tokens:
    """The n tokens of a whole text, each with its depth, height and position in the data flow."""
    n = len(tokens)
    # 1. The longest paths from the inputs and to the outputs: the height is the depth in the
    #    reversed graph, in which token i is token n - 1 - i.                                   (n,)
    depth = _longest_paths(n, edges)
    reversed_edges = n - 1 - edges[::-1]
    height = _longest_paths(n, reversed_edges)[::-1]
    longest = depth.max()
    position = (depth - 0.5) / longest  # (n,)

    # 2. The tokens' own words and numbers.
    words = np.concatenate([token.words for token in tokens])  # (w,)
    lengths = np.array([len(token.words) for token in tokens])  # (n,)
    paths = np.log2(np.stack([depth, height], 1))  # (n, 2)
    operator_numbers = np.array([token.numbers for token in tokens])  # (n, OPERATOR_NUMBERS)
    numbers = np.concatenate([operator_numbers, paths.astype(np.float32)], 1)

    # 3. Sums over the text. Equal tokens are one object, mostly: each counts as often as it occurs.
    times = Counter(map(id, tokens))
    distinct = {id(token): token for token in tokens}.values()
    counted = np.array(list(times.values()))  # (k,), in the order of `distinct`
    costs = counted @ np.array([token.costs for token in distinct])  # (3,)
    sketches = np.array([token.sketch for token in distinct])  # (k, COUNTS)
    return Tokens(
        words=words,
        starts=np.cumsum(lengths) - lengths,
        numbers=numbers,
        edges=edges,
        position=position.astype(np.float32),
        totals=np.log2(1 + np.array([*costs, n, longest])).astype(np.float32),
        counts=counted.astype(np.float32) @ sketches,
        neighbours=neighbour_sketch(words, lengths, edges),
        shared=np.array(shared),
    )


def _longest_paths(count: int, edges: np.ndarray) -> np.ndarray:
    """Number (count,) of tokens on the longest path that ends with each token.

    Every edge must lead to a later token.
    """
    depth = [1] * count
    by_target = np.argsort(edges[1], kind="stable")
    # Two flat lists: a list of pairs would be thousands of objects for the garbage collector.
    sources, targets = edges[:, by_target].tolist()
    for source, target in zip(sources, targets, strict=True):
        length = depth[source] + 1
        if length > depth[target]:
            depth[target] = length
    return np.array(depth)


# --- sketches


def token_type_sketch(words: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """Pseudo-random signs (COUNTS,) of one token type, whose sums are the count sketch.

    A type is the token's words and its numbers, rounded to 1 / `COUNT_STEPS`. The latency of
    operators that run in sequence, for instance, is a linear function of the counts per type.
    """
    sizes = np.rint(numbers * COUNT_STEPS).astype(np.int32)
    content = words.astype(np.int32).tobytes() + sizes.tobytes()
    digest = hashlib.blake2b(content, digest_size=COUNTS // 8).digest()
    digest_bytes = np.frombuffer(digest, np.uint8)
    return _signs(np.unpackbits(digest_bytes))


def _signs(bits: np.ndarray) -> np.ndarray:
    """Bits 0 and 1 of any shape as -1 and 1, float32."""
    return bits.astype(np.float32) * 2 - 1


def neighbour_sketch(
    words: np.ndarray,
    lengths: np.ndarray,
    edges: np.ndarray,
) -> np.ndarray:
    """Sum (NEIGHBOURS,) of pseudo-random signs of each token, and of what is around it.

    These are the labels of Weisfeiler and Leman's colour refinement, `HOPS` tokens along and
    against the data flow. They tell where in a cell an operator is. Sizes are left out, so that
    copies of a cell count together.

    Args:
        words: (w,) hashed words, token after token.
        lengths: (n,) words per token.
        edges: (2, e) token that produces a value, token that reads it.
    """
    # 1. The label of a token alone: a hash of its words.                                   (n,)
    count = len(lengths)
    token_of_word = np.repeat(np.arange(count), lengths)  # (w,)
    hashes = _mix(words.astype(np.uint64))
    own = _mix(_sum_hashes(count, token_of_word, hashes))

    # 2. Each hop mixes a token's label with the labels of its neighbours on one side. (n,) per side
    source, target = edges
    above = below = own
    labels = [own]
    for _ in range(HOPS):
        read = _sum_hashes(count, target, _mix(above[source]))
        above = _mix(3 * own + read)
        readers = _sum_hashes(count, source, _mix(~below[target]))
        below = _mix(5 * own + readers)
        labels += [above, below]

    # 3. Every distinct label gets NEIGHBOURS signs, which count as often as the label occurs.
    distinct, times = np.unique(np.concatenate(labels), return_counts=True)  # (k,)
    columns = np.arange(1, NEIGHBOURS // _HASH_BITS + 1, dtype=np.uint64)
    hashes = _mix(distinct[:, None] + columns * 1_000_003)  # (k, NEIGHBOURS / 64)
    label_bytes = hashes.astype("<u8").view(np.uint8)
    signs = _signs(np.unpackbits(label_bytes, axis=1))  # (k, NEIGHBOURS)
    return times.astype(np.float32) @ signs


def _sum_hashes(
    count: int,
    rows: np.ndarray,
    hashes: np.ndarray,
) -> np.ndarray:
    """Sums (count,) of hashes by row. They overflow, and so do not depend on the order."""
    sums = np.zeros(count, np.uint64)
    np.add.at(sums, rows, hashes)
    return sums


def _mix(hashes: np.ndarray) -> np.ndarray:
    """Hashes of 64-bit numbers (splitmix64)."""
    hashes = hashes + np.uint64(0x9E3779B97F4A7C15)
    hashes = hashes ^ (hashes >> np.uint64(30))
    hashes = hashes * np.uint64(0xBF58476D1CE4E5B9)
    hashes = hashes ^ (hashes >> np.uint64(27))
    hashes = hashes * np.uint64(0x94D049BB133111EB)
    return hashes ^ (hashes >> np.uint64(31))
