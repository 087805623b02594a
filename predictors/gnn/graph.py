"""Text to tensors: each distinct block of a batch occurs once, functions in levels below the blocks
that call them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import log2, prod

import numpy as np
import torch
from torch import Tensor

from predictors.features import kind_attributes, reading
from search_spaces.ir.graph import Value
from search_spaces.ir.ops import NET_OPERATORS
from search_spaces.ir.text.program import Block, Item, Ref, Site, total_cost

SIZES = ("channels", "features", "kernel", "kernel_shape", "strides", "dilations", "group", "pads")
KIND_NUMBERS = len(SIZES)
_FLOW_NUMBERS = 5
_SITE_NUMBERS = 6
NODE_NUMBERS = _FLOW_NUMBERS + _SITE_NUMBERS
TEXT_NUMBERS = 3

# --- one text
# ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Kind:
    """An operator with its attributes; equal operators share one object."""

    words: tuple[str, ...]  # the operator, and one word per attribute
    numbers: tuple[float, ...]  # (KIND_NUMBERS,) scaled log2 of the sizes among the attributes


_INPUT = Kind(("input",), (0.0,) * KIND_NUMBERS)


@dataclass(frozen=True, eq=False)
class BlockGraph:
    """A block as a graph of n nodes (its inputs, then its items) and e edges; equal blocks share
    one object.
    """

    kinds: tuple[Kind, ...]  # (n,) kinds of the nodes
    callees: tuple[tuple[int, BlockGraph], ...]  # node and called block of every call
    edges: np.ndarray  # (2, e) producer and consumer
    outputs: np.ndarray  # nodes whose values the block returns
    numbers: np.ndarray  # (n, NODE_NUMBERS) features of the nodes' positions
    level: int  # 0 without calls, otherwise one above the highest callee


@dataclass(frozen=True, eq=False)
class TextGraph:
    """The graphs of one text."""

    main: BlockGraph  # graph of the main block
    parts: tuple[
        tuple[BlockGraph, float], ...
    ]  # graph of every function, and its share of all calls
    numbers: tuple[
        float, ...
    ]  # (TEXT_NUMBERS,) scaled log2 of params, FLOPs, and items of the main block plus calls

    @property
    def blocks(self) -> list[BlockGraph]:
        """The main block, then the functions."""
        return [self.main, *(part for part, _ in self.parts)]


@lru_cache(maxsize=32768)
def text_graph(text: str) -> TextGraph:
    """The graphs of a text.

    Raises:
        InputError: if it is not the text of an architecture.
    """
    program, places, runs = reading(text)
    graphs: dict[str, BlockGraph] = {}

    def graph(block: Block) -> BlockGraph:
        callees = tuple(
            [called(item.op) if item.op in program.functions else None for item in block.items]
        )
        if not any(callees):
            return _flat(block)
        items = [
            Item("call", *item[1:]) if callee else item
            for item, callee in zip(block.items, callees, strict=True)
        ]
        return _calling(_flat(block._replace(items=tuple(items))), callees)

    def called(name: str) -> BlockGraph:
        if name not in graphs:
            graphs[name] = graph(program.functions[name])
        return graphs[name]

    total = sum(runs.values())
    main = graph(program.main)
    at_nodes = main.numbers.copy()  # of functions, shapes and costs depend on the call
    if places:
        at_nodes[len(at_nodes) - len(places) :, _FLOW_NUMBERS:] = [
            _site_numbers(site) for site in places
        ]
    main = replace(main, numbers=at_nodes)
    numbers = tuple([log2(1 + count) / 8 for count in (*total_cost(places), len(places) + total)])
    return TextGraph(main, tuple((graphs[name], n / total) for name, n in runs.items()), numbers)


@lru_cache(maxsize=32768)
def _calling(flat: BlockGraph, callees: tuple[BlockGraph | None, ...]) -> BlockGraph:
    """A block's graph joined to those of its callees; `callees` has one entry per item, None for
    operators.
    """
    first = len(flat.kinds) - len(callees)
    calls = [(node, callee) for node, callee in enumerate(callees, start=first) if callee]
    return replace(flat, callees=tuple(calls), level=1 + max([callee.level for _, callee in calls]))


@lru_cache(maxsize=32768)
def _flat(block: Block) -> BlockGraph:
    """A block's graph without callees; cached, since most texts of a space differ in the callees
    alone.
    """
    owner = list(range(block.inputs))
    edges: list[tuple[int, int]] = []
    for node, item in enumerate(block.items, start=block.inputs):
        edges += [(owner[value], node) for value in item.inputs]
        owner += [node] * item.outputs
    outputs = [owner[value] for value in block.outputs]
    kinds = (*[_INPUT] * block.inputs, *[_kind(item.op, item.attrs) for item in block.items])
    numbers = np.zeros((len(kinds), NODE_NUMBERS), np.float32)
    heavy = [kind.words[0] == "call" or kind.words[0] in NET_OPERATORS for kind in kinds]
    numbers[:, :_FLOW_NUMBERS] = _flow(heavy, edges, outputs)
    return BlockGraph(
        kinds=kinds,
        callees=(),
        edges=np.array(edges, np.int64).reshape(-1, 2).T,
        outputs=np.array(outputs, np.int64),
        numbers=numbers,
        level=0,
    )


def _flow(heavy: list[bool], edges: list[tuple[int, int]], outputs: list[int]) -> np.ndarray:
    """Features (n, 5) of the nodes' positions in the data flow.

    The columns are depth from the inputs, depth to the outputs, log2 of the number of paths from
    the inputs and to the outputs, and whether the node is an output. Depth counts heavy nodes:
    those that own weights or call a function.
    """
    n = len(heavy)
    reached = {target for _, target in edges}
    depth_in, paths_in = [0] * n, [0 if node in reached else 1 for node in range(n)]
    for source, target in edges:  # sorted topologically by target
        depth_in[target] = max(depth_in[target], depth_in[source] + heavy[source])
        paths_in[target] += paths_in[source]
    depth_out, paths_out = [0] * n, [0] * n
    for node in outputs:
        paths_out[node] += 1
    for source, target in reversed(edges):
        depth_out[source] = max(depth_out[source], depth_out[target] + heavy[target])
        paths_out[source] += paths_out[target]
    paths = [[log2(1 + count) for count in column] for column in (paths_in, paths_out)]
    ends = set(outputs)
    return np.array([depth_in, depth_out, *paths, [4 * (node in ends) for node in range(n)]]).T / 4


@lru_cache(maxsize=16384)
def _site_numbers(site: Site) -> list[float]:
    """Scaled log2 of width and positions of the first input and output (N, width, positions...),
    and of the cost.
    """
    numbers = []
    for shapes in (site.inputs, site.outputs):
        sizes = [float(d) if isinstance(d, int) else 1.0 for d in (shapes[0][1:] if shapes else ())]
        numbers += [log2(1 + sizes[0]) / 8 if sizes else 0.0, log2(1 + prod(sizes[1:])) / 8]
    return [*numbers, *[log2(1 + cost) / 16 for cost in site.cost]]


@lru_cache(maxsize=65536)
def _kind(op: str, attrs: tuple[tuple[str, Value | Ref], ...]) -> Kind:
    words = [f"{op} {attribute}" for attribute in kind_attributes(attrs)]
    sizes = dict(attrs)
    return Kind((op, *words), tuple(_size(sizes.get(name)) for name in SIZES))


def _size(value: Value | Ref | None) -> float:
    """Scaled log2 of a size or of a product of sizes; 0 if it is missing or a parameter of the
    function.
    """
    factors = value if isinstance(value, tuple) and not isinstance(value, Ref) else (value,)
    if not all(isinstance(factor, int | float) for factor in factors):
        return 0.0
    return log2(1 + prod(abs(factor) for factor in factors)) / 8  # type: ignore[arg-type]


# --- a batch of texts
# -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Level:
    """The n nodes of all b blocks of one level."""

    blocks: int  # b
    node_kind: Tensor  # (n,) number of each node's kind
    node_block: Tensor  # (n,) block of each node, numbered within the level
    numbers: Tensor  # (n, NODE_NUMBERS)
    calls: Tensor  # (2, c) calling node, and called block, numbered through all levels
    edges: Tensor  # (2, e) producer and consumer
    outputs: Tensor  # (2, o) output node, and its block, numbered within the level


@dataclass(frozen=True)
class Batch:
    """Tensors of t texts with p functions; blocks are numbered through all levels."""

    kinds: tuple[Kind, ...]  # distinct kinds
    levels: tuple[Level, ...]  # from the lowest
    main: Tensor  # (t,) main block of each text
    numbers: Tensor  # (t, TEXT_NUMBERS)
    part_text: Tensor  # (p,) text of each function
    part_block: Tensor  # (p,) block of each function
    part_share: Tensor  # (p,) share of the text's calls


def collate(texts: Sequence[TextGraph]) -> Batch:
    """Join texts to a batch in which each distinct block occurs once."""
    by_level: dict[int, dict[BlockGraph, None]] = {}
    for text in texts:
        for block in text.blocks:
            by_level.setdefault(block.level, {})[block] = None
    kinds: dict[Kind, int] = {}
    number: dict[BlockGraph, int] = {}
    levels = [_level(list(by_level[level]), kinds, number) for level in sorted(by_level)]
    parts = [
        (i, number[block], share) for i, text in enumerate(texts) for block, share in text.parts
    ]
    return Batch(
        kinds=tuple(kinds),
        levels=tuple(levels),
        main=torch.tensor([number[text.main] for text in texts]),
        numbers=torch.tensor([text.numbers for text in texts]),
        part_text=torch.tensor([p[0] for p in parts], dtype=torch.long),
        part_block=torch.tensor([p[1] for p in parts], dtype=torch.long),
        part_share=torch.tensor([p[2] for p in parts], dtype=torch.float32),
    )


def _level(
    blocks: list[BlockGraph], kinds: dict[Kind, int], number: dict[BlockGraph, int]
) -> Level:
    first = len(number)
    number.update((block, first + i) for i, block in enumerate(blocks))
    sizes = np.array([len(block.kinds) for block in blocks])
    starts = np.cumsum(sizes) - sizes
    placed = list(zip(blocks, starts.tolist(), strict=True))
    edges = np.concatenate([block.edges + start for block, start in placed], axis=1)
    outputs = np.concatenate([block.outputs + start for block, start in placed])
    output_block = np.repeat(np.arange(len(blocks)), [len(block.outputs) for block in blocks])
    called = [
        (start + node, number[callee]) for block, start in placed for node, callee in block.callees
    ]
    return Level(
        blocks=len(blocks),
        node_kind=torch.tensor(
            [kinds.setdefault(kind, len(kinds)) for block in blocks for kind in block.kinds]
        ),
        node_block=torch.from_numpy(np.repeat(np.arange(len(blocks)), sizes)),
        numbers=torch.from_numpy(np.concatenate([block.numbers for block in blocks])),
        calls=torch.tensor(called, dtype=torch.long).reshape(-1, 2).T,
        edges=torch.from_numpy(edges),
        outputs=torch.from_numpy(np.stack([outputs, output_block])),
    )


class Vocabulary:
    """The words of the training texts' kinds; other words are ignored."""

    def __init__(self, words: Sequence[str]) -> None:
        self.words = tuple(words)
        self._number = {word: i for i, word in enumerate(self.words)}

    @classmethod
    def of(cls, texts: Sequence[TextGraph], known: Sequence[str] = ()) -> Vocabulary:
        """The `known` words in their order, followed by the other words of the texts."""
        kinds = {
            kind
            for block in {block for text in texts for block in text.blocks}
            for kind in block.kinds
        }
        return cls(
            [*known, *sorted({word for kind in kinds for word in kind.words}.difference(known))]
        )

    def __len__(self) -> int:
        return len(self.words)

    def features(self, kinds: Sequence[Kind]) -> Tensor:
        """Features (kinds, words + KIND_NUMBERS): 1 for every word of a kind, then its sizes."""
        features = np.zeros((len(kinds), len(self) + KIND_NUMBERS), np.float32)
        for row, kind in zip(features, kinds, strict=True):
            row[[self._number[word] for word in kind.words if word in self._number]] = 1
            row[len(self) :] = kind.numbers
        return torch.from_numpy(features)
