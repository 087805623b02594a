"""The cell spaces of "On Network Design Spaces for Visual Recognition" (NDS; ICCV 2019, arXiv
1905.13214).

NDS states five published cell spaces in one form, which this module follows. Operation sets, number
of nodes and output of a cell are those of its table. Operations, cells and skeletons are those of
its authors' code (facebookresearch/unnas), which equal those of DARTS (arXiv 1806.09055) except at
odd sizes.

    image ─ stem ─ normal cells ─ reduction cell ─ normal cells ─ reduction cell ─ normal cells ─
    pooling, linear                 each cell reads the outputs of the two cells before it

    cell:   0 ─┐  ┌─ op ─┐
               ├──┤      +── node 2      and so on for nodes 3, 4, …; the output concatenates nodes
            1 ─┘  └─ op ─┘

    space    operations  nodes  output        source
    nasnet   13          5      loose nodes   Zoph et al., arXiv 1707.07012
    amoeba    8          5      loose nodes   Real et al., arXiv 1802.01548
    pnas      8          5      all nodes     Liu et al., arXiv 1712.00559
    enas      5          5      loose nodes   Pham et al., arXiv 1802.03268
    darts     8          4      all nodes     Liu et al., arXiv 1806.09055

A node adds the results of two operations. Each operation reads one of the two preceding cells or of
the preceding nodes; both may read the same one. A loose node is read by no other node. A space of
`o` operations and `n` nodes has (o^n · (n + 1)!)^2 cells, the numbers of NDS' table; most networks
have several descriptions.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import factorial
from typing import Any, Literal, NamedTuple, get_args

from search_spaces.choosers import ReplayChooser, Trial
from search_spaces.common.errors import InputError, unknown
from search_spaces.ir.builder import Network, Tensor
from search_spaces.published import genotypes
from search_spaces.published.cells import cell, factorized_reduce
from search_spaces.published.genotypes import Edge, Genotype
from search_spaces.registry import register_space
from search_spaces.space import Architecture, SearchSpace

WIDTHS = (16, 24, 32)
DEPTHS = (4, 8, 12, 16, 20)
Skeleton = Literal["cifar", "imagenet"]


class _Design(NamedTuple):
    """All choices of a trial.

    Attributes:
        width: channels of the first cells' nodes.
        cells: number of cells.
        normal: edges of the normal cell.
        reduce: edges of the reduction cell.
    """

    width: int
    cells: int
    normal: tuple[Edge, ...]
    reduce: tuple[Edge, ...]


class CellSpace(SearchSpace):
    """Networks of one normal and one reduction cell; base class of the five spaces.

    Cells `cells // 3` and `2 * cells // 3` are reduction cells, which halve the size and double the
    channels. There is no auxiliary head. Operations without influence on the output are kept if
    they have weights, as in the published counts, and omitted otherwise. The nodes of an output are
    concatenated in a canonical order.

    Args:
        width: channels of the first cells' nodes, or several numbers to choose from; by default
            those of NDS.
        cells: number of cells, or several numbers to choose from; by default those of NDS.
        skeleton: "cifar" has a 3 × 3 stem of 3 · width channels, "imagenet" a stem that divides the
            size by 8.
        input_shape: shape of one input; None for that of the skeleton.
        num_classes: number of classes; None for 10 ("cifar") or 1000 ("imagenet").
        affine: scale and shift in the batch normalization of the cells' operations; stem and cell
            inputs always have them.
    """

    operations: tuple[str, ...]
    nodes = 5
    loose_output = True

    def __init__(
        self,
        width: int | Sequence[int] = WIDTHS,
        cells: int | Sequence[int] = DEPTHS,
        skeleton: Skeleton = "cifar",
        input_shape: tuple[int, ...] | None = None,
        num_classes: int | None = None,
        affine: bool = True,
    ) -> None:
        if skeleton not in get_args(Skeleton):
            raise unknown("skeleton", str(skeleton), get_args(Skeleton))
        imagenet = skeleton == "imagenet"
        self.widths = _values(width)
        self.depths = _values(cells)
        self.skeleton = skeleton
        self.affine = affine
        default_shape = (3, 224, 224) if imagenet else (3, 32, 32)
        self.input_shape = tuple(input_shape or default_shape)
        self.num_classes = num_classes or (1000 if imagenet else 10)
        smallest = 17 if imagenet else 3
        is_image = len(self.input_shape) == 3 and self.input_shape[0] > 0
        if not is_image or min(self.input_shape[1:]) < smallest:
            raise InputError(
                f"{self.name}: input_shape must be (channels, height, width), at least (1, "
                f"{smallest}, {smallest})"
            )
        if min(self.widths) < 2 or min(self.depths) < 1 or self.num_classes < 1:
            raise InputError(f"{self.name}: width must be at least 2, cells and classes at least 1")

    @property
    def options(self) -> dict[str, Any]:
        return {
            "width": self.widths,
            "cells": self.depths,
            "skeleton": self.skeleton,
            "input_shape": self.input_shape,
            "num_classes": self.num_classes,
            "affine": self.affine,
        }

    @property
    def size(self) -> int:
        cells = (len(self.operations) ** self.nodes * factorial(self.nodes + 1)) ** 2
        return cells**2 * len(self.widths) * len(self.depths)

    # --- choices

    def ask(self, trial: Trial) -> _Design:
        """Choose the size of the network, and the edges of both cells."""
        return _Design(
            _choose(trial, "width", self.widths),
            _choose(trial, "cells", self.depths),
            self._edges(trial, "normal"),
            self._edges(trial, "reduce"),
        )

    def _edges(self, trial: Trial, kind: str) -> tuple[Edge, ...]:
        edges = []
        for name, node in self._edge_names(kind):
            operation = trial.suggest_categorical(f"{name}_op", self.operations)
            source = trial.suggest_int(f"{name}_input", 0, node - 1)
            edges.append((operation, source))
        return tuple(edges)

    def _edge_names(self, kind: str) -> list[tuple[str, int]]:
        """Name and node of every edge: `normal_2a`, `normal_2b`, `normal_3a`, …"""
        names = []
        for node in range(2, 2 + self.nodes):
            names += [(f"{kind}_{node}a", node), (f"{kind}_{node}b", node)]
        return names

    def concat(self, edges: tuple[Edge, ...]) -> tuple[int, ...]:
        """The nodes that are concatenated to the output of a cell with these edges."""
        taken = {source for _, source in edges} if self.loose_output else ()
        return tuple(node for node in range(2, 2 + self.nodes) if node not in taken)

    # --- network

    def build(self, trial: Trial, net: Network) -> Tensor:
        design = self.ask(trial)
        chain = _Chain(net, self, design)
        third = design.cells // 3
        two_thirds = 2 * design.cells // 3
        sizes = (third, two_thirds - third, design.cells - two_thirds)
        # The later two stages begin with the same cells, which form a common block. Their last
        # cells are not part of it: the output of the cell before the network's last one has one
        # reader, in other stages it has two.
        common = max(0, min(sizes[1:]) - 1)
        for stage, size in enumerate(sizes):
            kinds = ["reduce" if stage and not i else "normal" for i in range(size)]
            if stage:
                with net.block("stage"):
                    chain.add(kinds[:common])
            chain.add(kinds[common:] if stage else kinds)
        return net.classifier(chain.last)

    # --- notation

    def parse(self, native: str) -> Architecture:
        """Read any notation of `published.genotypes`.

        It must have the skeleton unless the space fixes it.
        """
        genotype = genotypes.read(native)
        choices: dict[str, Any] = {}
        for name, options in (("width", self.widths), ("cells", self.depths)):
            value = getattr(genotype, name)
            if value is None and len(options) > 1:
                raise InputError(f"{self.name}: the genotype lacks {name}; append ', {name}=…'")
            if value is not None and value not in options:
                shown = " or ".join(map(str, options))
                raise InputError(
                    f"{self.name}: the genotype has {name}={value}, but the space has "
                    f"{name}={shown}"
                )
            if len(options) > 1:
                choices[name] = value
        cells = {
            "normal": (genotype.normal, genotype.normal_concat),
            "reduce": (genotype.reduce, genotype.reduce_concat),
        }
        for kind, (edges, concat) in cells.items():
            self._check_cell(kind, edges, concat)
            names = self._edge_names(kind)
            for (name, _), (operation, source) in zip(names, edges, strict=True):
                choices[f"{name}_op"] = operation
                choices[f"{name}_input"] = source
        chooser = ReplayChooser(choices)
        self.ask(chooser)
        return Architecture(self.name, tuple(chooser.choices.items()))

    def _check_cell(
        self, kind: str, edges: tuple[Edge, ...], concat: tuple[int, ...] | None
    ) -> None:
        if len(edges) != 2 * self.nodes:
            raise InputError(
                f"{self.name}: the {kind} cell has {len(edges)} edges instead of {2 * self.nodes}"
            )
        if concat is not None and tuple(sorted(concat)) != self.concat(edges):
            raise InputError(
                f"{self.name}: the {kind} cell's output is {list(self.concat(edges))}, not "
                f"{list(concat)}"
            )

    def format(self, arch: Architecture) -> str:
        """Write the notation of DARTS, with the skeleton as keywords."""
        width, cells, normal, reduce = self.ask(ReplayChooser(arch.as_dict()))
        genotype = Genotype(
            normal=normal,
            normal_concat=self.concat(normal),
            reduce=reduce,
            reduce_concat=self.concat(reduce),
            width=width,
            cells=cells,
        )
        return genotypes.write(genotype)


def _values(values: int | Sequence[int]) -> tuple[int, ...]:
    return (values,) if isinstance(values, int) else tuple(values)


def _choose(trial: Trial, name: str, values: tuple[int, ...]) -> int:
    """Choose one of the values; a single value is not a choice of the trial."""
    return trial.suggest_categorical(name, values) if len(values) > 1 else values[0]


class _Chain:
    """A sequence of cells; each reads the outputs of the two before it."""

    def __init__(self, net: Network, space: CellSpace, design: _Design) -> None:
        self.net = net
        self.space = space
        self.design = design
        self.channels = design.width
        self.after_reduction = space.skeleton == "imagenet"
        stem = self._imagenet_stem if self.after_reduction else self._cifar_stem
        self.before, self.last = stem()

    def _cifar_stem(self) -> tuple[Tensor, Tensor]:
        x = self.net.conv_bn(self.net.input, 3 * self.channels)
        return x, x

    def _imagenet_stem(self) -> tuple[Tensor, Tensor]:
        x = self.net.conv_bn_relu(self.net.input, self.channels // 2, stride=2)
        x = self.net.conv_bn(x, self.channels, stride=2)
        return x, self.net.conv_bn(self.net.relu(x), stride=2)

    def add(self, kinds: list[str]) -> None:
        for kind in kinds:
            stride = 2 if kind == "reduce" else 1
            edges = self.design.reduce if kind == "reduce" else self.design.normal
            self.channels *= stride
            nodes = _Cell(edges, self.space.concat(edges), stride, self.space.affine)
            inputs = (self.before, self.last)
            output = self.net.repeated(
                "cell", _cell, inputs, self.channels, self.after_reduction, nodes
            )
            self.before = self.last
            self.last = output
            self.after_reduction = kind == "reduce"


class _Cell(NamedTuple):
    """Settings of a cell.

    Attributes:
        edges: two edges per node.
        concat: nodes that are concatenated to the output.
        stride: stride of the operations on the inputs.
        affine: whether batch normalization has scale and shift.
    """

    edges: tuple[Edge, ...]
    concat: tuple[int, ...]
    stride: int
    affine: bool


def _cell(
    net: Network,
    before: Tensor,
    last: Tensor,
    channels: int,
    after_reduction: bool,
    nodes: _Cell,
) -> Tensor:
    """Build a cell on the outputs of the two cells before it.

    These are projected to equal size and to the cell's channels.
    """
    x = net.relu(last)
    if after_reduction:
        first = factorized_reduce(net, before, channels)
    else:
        first = net.conv_bn(x if before == last else net.relu(before), channels, kernel=1)
    second = net.conv_bn(x, channels, kernel=1)
    with net.block("nodes"):
        return cell(net, (first, second), nodes.edges, nodes.concat, nodes.stride, nodes.affine)


@register_space("nasnet")
class NASNet(CellSpace):
    """The cells of NASNet (arXiv 1707.07012)."""

    operations = (
        "skip_connect",
        "conv_3x1_1x3",
        "conv_7x1_1x7",
        "dil_conv_3x3",
        "avg_pool_3x3",
        "max_pool_3x3",
        "max_pool_5x5",
        "max_pool_7x7",
        "conv_1x1",
        "conv_3x3",
        "sep_conv_3x3",
        "sep_conv_5x5",
        "sep_conv_7x7",
    )


@register_space("amoeba")
class Amoeba(CellSpace):
    """The cells of AmoebaNet (arXiv 1802.01548)."""

    operations = (
        "skip_connect",
        "sep_conv_3x3",
        "sep_conv_5x5",
        "sep_conv_7x7",
        "avg_pool_3x3",
        "max_pool_3x3",
        "dil_sep_conv_3x3",
        "conv_7x1_1x7",
    )


@register_space("pnas")
class PNAS(CellSpace):
    """The cells of PNASNet (arXiv 1712.00559)."""

    operations = (
        "sep_conv_3x3",
        "sep_conv_5x5",
        "sep_conv_7x7",
        "conv_7x1_1x7",
        "skip_connect",
        "avg_pool_3x3",
        "max_pool_3x3",
        "dil_conv_3x3",
    )
    loose_output = False


@register_space("enas")
class ENAS(CellSpace):
    """The cells of ENAS' micro search (arXiv 1802.03268)."""

    operations = ("skip_connect", "sep_conv_3x3", "sep_conv_5x5", "avg_pool_3x3", "max_pool_3x3")


@register_space("darts")
class DARTS(CellSpace):
    """The cells of DARTS (arXiv 1806.09055)."""

    operations = ("none", *genotypes.COMPACT_OPERATIONS)
    nodes = 4
    loose_output = False
