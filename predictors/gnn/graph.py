"""Text to tensors: each distinct block of a batch occurs once, functions in levels below the blocks
that call them.

Sizes in comments: n nodes, e edges, b blocks, t texts, p functions of all texts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain
from math import log2, prod

import numpy as np
import torch
from torch import Tensor

from predictors.features import kind_attributes, reading
from search_spaces.ir.graph import Attrs, Value
from search_spaces.ir.ops import NET_OPERATORS
from search_spaces.ir.text.program import Block, Interpreter, Program, Ref, Site, total_cost

SIZES = ("channels", "features", "kernel", "kernel_shape", "strides", "dilations", "group", "pads")
KIND_NUMBERS = len(SIZES)
_FLOW_NUMBERS = 5
_SITE_NUMBERS = 6
NODE_NUMBERS = _FLOW_NUMBERS + _SITE_NUMBERS
TEXT_NUMBERS = 3

# --- one text


@dataclass(frozen=True, eq=False)
class Kind:
    """An operator with its attributes; equal operators share one object."""

    words: tuple[str, ...]  # the operator, and one word per attribute
    numbers: tuple[float, ...]  # (KIND_NUMBERS,) scaled log2 of the sizes among the attributes


_INPUT = Kind(("input",), (0.0,) * KIND_NUMBERS)


@dataclass(frozen=True, eq=False)
class BlockGraph:
    """A block as a graph of n nodes (its inputs, then its items) and e edges.

    Equal blocks share one object.
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
    parts: tuple[tuple[BlockGraph, float], ...]  # graph of every function, its share of all calls
    numbers: tuple[float, ...]  # (TEXT_NUMBERS,) scaled log2 of params, FLOPs, items plus calls

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
    program, sites, runs = reading(text)
    maker = _GraphMaker(program)
    _, main = maker.run([None] * program.main.inputs)
    assert main is not None  # only operators have no graph

    # 1. Shapes and costs are known at the nodes of the main block; those inside of functions depend
    #    on the call.
    if sites:
        numbers = main.numbers.copy()  # (n, NODE_NUMBERS)
        first = len(numbers) - len(sites)  # after the block's inputs
        numbers[first:, _FLOW_NUMBERS:] = [_site_numbers(site) for site in sites]
        main = replace(main, numbers=numbers)

    # 2. Functions count by their share of all calls.
    total = sum(runs.values())
    parts = []
    for name, count in runs.items():
        parts.append((maker.graphs[name], count / total))

    # 3. Costs and size of the whole text.
    sizes = (*total_cost(sites), len(sites) + total)
    scaled = tuple([log2(1 + size) / 8 for size in sizes])
    return TextGraph(main, tuple(parts), scaled)


class _GraphMaker(Interpreter[None, "BlockGraph | None"]):
    """Makes the graph of each block of a program. Values do not matter, nor do the arguments of a
    call: a function has one graph.
    """

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self.graphs: dict[str, BlockGraph] = {}  # by function; "" is the main block

    def operator(
        self,
        op: str,
        inputs: tuple[None, ...],
        attrs: Attrs,
    ) -> tuple[tuple[None, ...], None]:
        return (None,), None

    def block(
        self,
        name: str,
        block: Block,
        values: list[None],
        results: list[BlockGraph | None],
    ) -> BlockGraph:
        """The graph of a block, from those of its callees: one result per item."""
        if name not in self.graphs:
            self.graphs[name] = _block_graph(block, tuple(results))
        return self.graphs[name]


def _block_graph(block: Block, callees: tuple[BlockGraph | None, ...]) -> BlockGraph:
    """A block's graph joined to those of its callees.

    callees: one entry per item, None for operators.
    """
    if not any(callees):
        return _flat(block)
    # All calls are one kind of node; what they call is told apart by the callee, not by its name.
    items = []
    for item, callee in zip(block.items, callees, strict=True):
        items.append(item._replace(op="call") if callee else item)
    flat = _flat(block._replace(items=tuple(items)))
    return _calling(flat, callees)


@lru_cache(maxsize=32768)
def _calling(flat: BlockGraph, callees: tuple[BlockGraph | None, ...]) -> BlockGraph:
    """A block's graph with its callees.

    Cached, so that equal blocks of all texts share one object.
    """
    first = len(flat.kinds) - len(callees)  # after the block's inputs
    calls = []
    for node, callee in enumerate(callees, start=first):
        if callee:
            calls.append((node, callee))
    highest = max([callee.level for _, callee in calls])
    return replace(flat, callees=tuple(calls), level=1 + highest)


@lru_cache(maxsize=32768)
def _flat(block: Block) -> BlockGraph:
    """A block's graph without callees.

    Cached, since most texts of a space differ in the callees alone.
    """
    # 1. The edges. Values are numbered; each has the node that makes it.
    maker = list(range(block.inputs))
    edges: list[tuple[int, int]] = []
    for node, item in enumerate(block.items, start=block.inputs):
        edges += [(maker[value], node) for value in item.inputs]
        maker += [node] * item.outputs
    outputs = [maker[value] for value in block.outputs]

    # 2. The kinds of the nodes, and their positions.
    kinds = [_INPUT] * block.inputs
    kinds += [_kind(item.op, item.attrs) for item in block.items]
    ops = [kind.words[0] for kind in kinds]
    is_heavy = [op == "call" or op in NET_OPERATORS for op in ops]
    numbers = np.zeros((len(kinds), NODE_NUMBERS), np.float32)
    numbers[:, :_FLOW_NUMBERS] = _flow(is_heavy, edges, outputs)
    return BlockGraph(
        kinds=tuple(kinds),
        callees=(),
        edges=np.array(edges, np.int64).reshape(-1, 2).T,
        outputs=np.array(outputs, np.int64),
        numbers=numbers,
        level=0,
    )


def _flow(
    is_heavy: list[bool],
    edges: list[tuple[int, int]],
    outputs: list[int],
) -> np.ndarray:
    """Features (n, 5) of the nodes' positions in the data flow.

    The columns are depth from the inputs, depth to the outputs, log2 of the number of paths from
    the inputs and to the outputs, and whether the node is an output. Depth counts heavy nodes:
    those that own weights or call a function.
    """
    n = len(is_heavy)
    # 1. Forwards: edges are sorted topologically by target.
    reached = {target for _, target in edges}
    depth_in = [0] * n
    paths_in = [0 if node in reached else 1 for node in range(n)]
    for source, target in edges:
        depth = depth_in[source] + is_heavy[source]
        depth_in[target] = max(depth_in[target], depth)
        paths_in[target] += paths_in[source]

    # 2. Backwards, from the outputs.
    depth_out = [0] * n
    paths_out = [0] * n
    for node in outputs:
        paths_out[node] += 1
    for source, target in reversed(edges):
        depth = depth_out[target] + is_heavy[target]
        depth_out[source] = max(depth_out[source], depth)
        paths_out[source] += paths_out[target]

    # 3. The columns, scaled to about 1.
    is_output = np.zeros(n)
    is_output[outputs] = 1
    columns = [
        np.array(depth_in) / 4,
        np.array(depth_out) / 4,
        np.array([log2(1 + count) for count in paths_in]) / 4,
        np.array([log2(1 + count) for count in paths_out]) / 4,
        is_output,
    ]
    return np.stack(columns, 1)  # (n, 5)


@lru_cache(maxsize=16384)
def _site_numbers(site: Site) -> list[float]:
    """Scaled log2 of the sizes of the first input and output, and of the cost.

    The sizes are the width and the number of positions of a shape (N, width, positions...).
    """
    numbers = []
    for shapes in (site.inputs, site.outputs):
        shape = shapes[0][1:] if shapes else ()
        sizes = [float(size) if isinstance(size, int) else 1.0 for size in shape]
        width = sizes[0] if sizes else 0.0
        positions = prod(sizes[1:])
        numbers += [log2(1 + width) / 8, log2(1 + positions) / 8]
    numbers += [log2(1 + cost) / 16 for cost in site.cost]
    return numbers


@lru_cache(maxsize=65536)
def _kind(op: str, attrs: tuple[tuple[str, Value | Ref], ...]) -> Kind:
    words = [f"{op} {attribute}" for attribute in kind_attributes(attrs)]
    values = dict(attrs)
    sizes = [_size(values.get(name)) for name in SIZES]
    return Kind((op, *words), tuple(sizes))


def _size(value: Value | Ref | None) -> float:
    """Scaled log2 of a size or of a product of sizes.

    It is 0 if the size is missing or a parameter of the function.
    """
    sizes = value if type(value) is tuple else (value,)
    numbers = [size for size in sizes if isinstance(size, int | float)]
    if len(numbers) < len(sizes):
        return 0.0
    product = prod(map(abs, numbers))
    return log2(1 + product) / 8


# --- a batch of texts


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
    # 1. The distinct blocks of each level, in the order of their first occurrence.
    by_level: dict[int, dict[BlockGraph, None]] = {}
    for text in texts:
        for block in text.blocks:
            of_level = by_level.setdefault(block.level, {})
            of_level[block] = None

    # 2. Number kinds and blocks, from the lowest level.
    kinds: dict[Kind, int] = {}
    number: dict[BlockGraph, int] = {}
    levels = []
    for level in sorted(by_level):
        levels.append(_level(list(by_level[level]), kinds, number))

    # 3. The functions of all texts.                                                        (p,)
    part_text: list[int] = []
    part_block: list[int] = []
    part_share: list[float] = []
    for i, text in enumerate(texts):
        for block, share in text.parts:
            part_text.append(i)
            part_block.append(number[block])
            part_share.append(share)
    return Batch(
        kinds=tuple(kinds),
        levels=tuple(levels),
        main=torch.tensor([number[text.main] for text in texts]),
        numbers=torch.tensor([text.numbers for text in texts]),
        part_text=torch.tensor(part_text, dtype=torch.long),
        part_block=torch.tensor(part_block, dtype=torch.long),
        part_share=torch.tensor(part_share, dtype=torch.float32),
    )


def _level(
    blocks: list[BlockGraph],
    kinds: dict[Kind, int],
    number: dict[BlockGraph, int],
) -> Level:
    """The nodes of all blocks of one level; `kinds` and `number` are continued in place."""
    # 1. Number the blocks through all levels, and the nodes within this one.                 (b,)
    for block in blocks:
        number[block] = len(number)
    block_numbers = np.arange(len(blocks))
    sizes = np.array([len(block.kinds) for block in blocks])  # nodes per block
    starts = np.cumsum(sizes) - sizes  # first node of each block

    # 2. Shift each block's nodes to its first one.
    node_kind: list[int] = []
    calls: list[tuple[int, int]] = []
    edges: list[np.ndarray] = []
    outputs: list[np.ndarray] = []
    for block, start in zip(blocks, starts.tolist(), strict=True):
        node_kind += [kinds.setdefault(kind, len(kinds)) for kind in block.kinds]
        calls += [(start + node, number[callee]) for node, callee in block.callees]
        edges.append(block.edges + start)
        outputs.append(block.outputs + start)

    # 3. The block of each node and of each output.
    node_block = np.repeat(block_numbers, sizes)  # (n,)
    output_block = np.repeat(block_numbers, [len(nodes) for nodes in outputs])  # (o,)
    output_node = np.concatenate(outputs)
    numbers = np.concatenate([block.numbers for block in blocks])  # (n, NODE_NUMBERS)
    return Level(
        blocks=len(blocks),
        node_kind=torch.tensor(node_kind),
        node_block=torch.from_numpy(node_block),
        numbers=torch.from_numpy(numbers),
        calls=torch.tensor(calls, dtype=torch.long).reshape(-1, 2).T,
        edges=torch.from_numpy(np.concatenate(edges, axis=1)),
        outputs=torch.from_numpy(np.stack([output_node, output_block])),
    )


class Vocabulary:
    """The words of the training texts' kinds; other words are ignored."""

    def __init__(self, words: Sequence[str]) -> None:
        self.words = tuple(words)
        self._number = {word: i for i, word in enumerate(self.words)}

    @classmethod
    def of(
        cls,
        texts: Sequence[TextGraph],
        first_words: Sequence[str] = (),
    ) -> Vocabulary:
        """The `first_words` in their order, followed by the other words of the texts."""
        # Equal blocks and kinds are one object each: a set of them is small.
        blocks = set(chain.from_iterable([text.blocks for text in texts]))
        kinds = set(chain.from_iterable([block.kinds for block in blocks]))
        words = set(chain.from_iterable([kind.words for kind in kinds]))
        others = sorted(words.difference(first_words))
        return cls([*first_words, *others])

    def __len__(self) -> int:
        return len(self.words)

    def features(self, kinds: Sequence[Kind]) -> Tensor:
        """Features (kinds, words + KIND_NUMBERS): 1 for every word of a kind, then its sizes."""
        size = len(self) + KIND_NUMBERS
        features = np.zeros((len(kinds), size), np.float32)
        for row, kind in zip(features, kinds, strict=True):
            columns = [self._number[word] for word in kind.words if word in self._number]
            row[columns] = 1
            row[len(self) :] = kind.numbers
        return torch.from_numpy(features)
