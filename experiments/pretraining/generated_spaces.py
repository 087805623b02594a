"""Random search spaces: `random_space(seed)` draws one that belongs to no published family.

A predictor that is pretrained on many of them has seen many ways to build a network, but none of
the spaces on which it is tested. There are four families: cells in a macro skeleton, stages of
layers, tokens and vectors, and mixtures.
"""

from __future__ import annotations

import numpy as np

from experiments.pretraining.draws import Draw
from experiments.pretraining.generated_parts import (
    ACTIVATIONS,
    BLOCKS,
    MIXERS,
    OPERATIONS,
    SIZED,
    Maker,
    Style,
    channels_of,
    size_of,
)
from search_spaces.choosers import RandomChooser, Trial
from search_spaces.ir.builder import Network, Tensor
from search_spaces.ir.costs import graph_flops, graph_params
from search_spaces.ir.graph import Attrs
from search_spaces.space import SearchSpace

FAMILIES = {"cells": 0.45, "stages": 0.35, "tokens": 0.12, "mixed": 0.08}
"""Probability of each family."""

# What the networks of a space must keep, checked on a sample of them.
CHOICES = (4, 30)  # number of choices
NODES = 360  # operators at most
PARAMS = 20_000_000  # at most
FLOPS = 1_000_000_000  # at most
_SAMPLE = 12

# What a space draws from; repeated options are likelier.
_SIZES = (8, 12, 14, 16, 20, 24, 28, 28, 32, 32, 32, 32, 40, 48, 56, 64, 64, 96, 128, 224)
_CLASSES = (2, 3, 5, 10, 10, 10, 16, 20, 43, 62, 100, 120, 200, 365, 1000)
_WIDTHS = (6, 8, 10, 12, 16, 18, 20, 24, 28, 32, 40)


def _stage_counts(size: int) -> tuple[int, ...]:
    """Numbers of stages that suit an image of `size` rows."""
    if size <= 12:
        return (1, 2)
    return (2, 3) if size <= 32 else (2, 3, 4)


class GeneratedSpace(SearchSpace):
    """Base class of the families. It draws input shape, classes, style and widths."""

    def __init__(self, draw: Draw, name: str) -> None:
        size = draw.one(*_SIZES)
        classes = draw.one(*_CLASSES)
        super().__init__((draw.one(1, 3, 3, 3), size, size), classes)
        self.name = name
        self.style = Style(draw, size)
        stages = draw.one(*_stage_counts(size))
        base = draw.one(*_WIDTHS)
        growth = draw.one(1, 1.25, 1.5, 1.5, 2, 2)
        self.widths = [base * growth**stage for stage in range(stages)]
        self.width = draw.knob("width", (0.5, 0.75, 1, 1.25, 1.5, 2), fixed=0.6)

    def channels(self, trial: Trial, stage: int) -> int:
        """A multiple of four."""
        width = self.widths[stage] * self.width.ask(trial, stage)
        return 4 * max(1, round(width / 4))

    def stem(self, trial: Trial, make: Maker, x: Tensor) -> Tensor:
        return make.run(self.style.stem, x, {"o": self.channels(trial, 0)})


# --- cells


class Cell:
    """A cell: its nodes, their possible inputs and operations.

    It asks for choices and builds the network. Modes: "edges" has an operation per edge; "pairs" has
    two edges per node, each with a source and an operation; "chain" and "sets" have an operation per
    node, with one chosen source or any set of sources.
    """

    def __init__(self, draw: Draw, name: str) -> None:
        self.name = name
        self.inputs = draw.one(1, 1, 2)
        self.mode = draw.one("edges", "edges", "edges", "pairs", "pairs", "chain", "sets")

        # 1. Up to eight operations, one of them a convolution.
        operations = [draw.one(*SIZED), *draw.some(OPERATIONS, 2, 7)]
        self.operations = draw.some(operations, 8, 8)

        # 2. The nodes, and the values that each of them may read.
        counts = (2, 3, 4) if self.mode == "edges" else (2, 3, 4, 5, 6)
        nodes = range(self.inputs, self.inputs + draw.one(*counts))
        max_sources = draw.one(3, 8)
        self.sources = []
        for node in nodes:
            sources = draw.some(range(node), min(node, max_sources // 2), max_sources)
            self.sources.append(sorted(sources))

        # 3. How values come together.
        self.merge = draw.one("sum", "sum", "sum", "concat", "max")
        self.output = draw.one("last", "last", "concat", "sum", "leaves")
        self.zeros = draw.chance(0.5)
        self.project = draw.chance(0.7)
        self.residual = draw.chance(0.25)

    def build(
        self, trial: Trial, make: Maker, inputs: tuple[Tensor, Tensor], channels: int, stride: int
    ) -> Tensor:
        """Build the cell.

        Args:
            trial: asked for the choices.
            make: builds the parts.
            inputs: outputs of the last two cells.
            channels: of every node.
            stride: of operations on the inputs.
        """
        # 1. The inputs, with the channels of the cell.
        first, x = inputs
        values = [make.fit(x, channels)]
        if self.inputs == 2:  # `first` may still have the size before the last reduction
            is_larger = size_of(first) != size_of(x)
            values.append(make.fit(first, channels, 2 if is_larger else 1))

        # 2. Its nodes.
        read = set[int]()
        for node, sources in enumerate(self.sources):
            name = f"{self.name}_{node}"
            edges = self._edges(trial, name, sources)
            read.update(source for source, _ in edges)
            terms = []
            for source, operation in edges:
                of_edge = stride if source < self.inputs else 1
                terms.append(make.block(operation, values[source], channels, of_edge))
            if not terms:
                terms = [make.net.zero(make.fit(values[0], channels, stride))]
            y = self._merged(make, terms, channels)
            if self.mode in ("chain", "sets"):
                operation = trial.suggest_categorical(f"{name}_op", self.operations)
                y = make.block(operation, y, channels)
            values.append(y)

        # 3. The output: the last node, all of them, or those that no node reads.
        nodes = range(self.inputs, len(values))
        if self.output == "last":
            nodes = nodes[-1:]
        outputs = [values[i] for i in nodes if self.output != "leaves" or i not in read]
        y = make.net.concat(*outputs) if self.output == "concat" else make.net.add(*outputs)
        if self.project:
            y = make.fit(y, channels)
        if self.residual:
            y = make.net.add(y, make.fit(x, channels_of(y), stride))
        return y

    def _edges(self, trial: Trial, name: str, sources: list[int]) -> list[tuple[int, str]]:
        """Source and operation of each edge into a node."""
        ask = trial.suggest_categorical
        edges = []
        if self.mode == "pairs":
            for i in (0, 1):
                source = ask(f"{name}_from{i}", sources)
                edges.append((source, ask(f"{name}_op{i}", self.operations)))
        elif self.mode == "edges":
            edges = [(source, ask(f"{name}_{source}", self.operations)) for source in sources]
        elif self.mode == "chain":
            edges = [(ask(f"{name}_from", sources), "skip")]
        else:
            for source in sources:
                if ask(f"{name}_{source}", (False, True)):
                    edges.append((source, "skip"))
        return [edge for edge in edges if self.zeros or edge[1] != "none"]

    def _merged(self, make: Maker, terms: list[Tensor], channels: int) -> Tensor:
        if len(terms) == 1 or self.merge == "sum":
            return make.net.add(*terms)
        if self.merge == "max":
            return make.net.op("Max", *terms)
        return make.fit(make.net.concat(*terms), channels)


class CellSpace(GeneratedSpace):
    """Stacks of one cell, or of one cell per stage.

    The size is halved between stages or in reduction cells.
    """

    def __init__(self, draw: Draw, name: str) -> None:
        super().__init__(draw, name)
        cells = [Cell(draw, f"cell{i}") for i in range(len(self.widths))]
        self.cells = cells if draw.chance(0.15) else cells[:1] * len(cells)
        self.reduction = Cell(draw, "reduce") if draw.chance(0.2) else None
        self.depth = draw.knob("cells", (1, 2, 3), fixed=0.75)

    def build(self, trial: Trial, net: Network) -> Tensor:
        make = Maker(net, self.style)
        x = previous = self.stem(trial, make, net.input)
        for stage, cell in enumerate(self.cells):
            channels = self.channels(trial, stage)
            inside = self.style.down == "inside" or self.reduction is not None
            if stage and not inside:
                previous = x
                x = make.down(x, channels)
            for i in range(self.depth.ask(trial, stage)):
                halves = bool(stage and inside and not i)
                used = self.reduction if halves and self.reduction else cell
                stride = 2 if halves else 1
                with net.block("cell"):
                    y = used.build(trial, make, (previous, x), channels, stride)
                previous = x
                x = y
        return make.head(x)


# --- tokens and vectors


class Encoder:
    """Layers of a token mixer and a two-layer perceptron."""

    def __init__(self, draw: Draw) -> None:
        self.depth = draw.knob("layers", range(1, 7), 0.2, (0,))
        self.layer = [
            draw.knob("mixer", draw.some(MIXERS, 1, 3), 0.4),
            draw.knob("heads", (1, 2, 3, 4, 6, 8), 0.2),
            draw.knob("mlp", (0.5, 1, 2, 3, 4), 0.2),
        ]
        self.dim = draw.knob("dim", (24, 32, 48, 64, 96, 120, 144, 192), 0.4, (0,))
        self.norm = draw.one("layer", "layer", "layer", "rms")
        self.first = draw.chance(0.75)
        self.activation = draw.one("Gelu", "Gelu", "Relu", "silu", "HardSwish")
        self.position = draw.chance(0.6)
        self.top = draw.one("ReduceMean", "ReduceMean", "ReduceMax")
        self.parallel = draw.chance(0.2)

    def build(self, trial: Trial, make: Maker, x: Tensor) -> Tensor:
        """Build logits from tokens (N, tokens, channels)."""
        net = make.net
        width = size_of(x)
        before, after = (self.norm, "none") if self.first else ("none", self.norm)
        if self.position:
            shape = (1, channels_of(x), width)
            x = net.add(x, net.op("Param", attrs=(("shape", shape),)))
        for layer in range(self.depth.ask(trial)):
            kind, heads, ratio = (knob.ask(trial, layer) for knob in self.layer)
            with net.block("layer"):
                mixed = make.mixer(kind, make.normalize(x, before), heads)
                if not self.parallel:
                    x = make.normalize(net.add(x, mixed), after)
                hidden = net.linear(make.normalize(x, before), int(width * ratio))
                y = net.linear(make.activate(hidden, self.activation), width)
                y = net.add(x, mixed, y) if self.parallel else net.add(x, y)
                x = make.normalize(y, after)
        x = net.op(self.top, make.normalize(x, before), attrs=(("axes", (1,)), ("keepdims", 0)))
        return net.linear(x, net.num_classes)


class TokenSpace(GeneratedSpace):
    """Patches and an encoder, or a multilayer perceptron on vectors."""

    def __init__(self, draw: Draw, name: str) -> None:
        super().__init__(draw, name)
        self.encoder = Encoder(draw)
        size = self.input_shape[1]
        self.patch = draw.knob("patch", (size // 8, size // 7, size // 4, size // 3), 0.7, (0,))
        if draw.chance(0.3):
            self.input_shape = (int(draw.rng.integers(4, 800)),)
        self.depth = draw.knob("depth", range(2, 9), 0.2)
        self.residual = draw.chance(0.4)
        self.layer = [
            draw.knob("features", (8, 16, 32, 48, 64, 100, 128, 256), 0, (1,)),
            draw.knob("norm", ("batch", "layer", "none"), 0.6),
            draw.knob("activation", ACTIVATIONS, 0.4),
        ]

    def build(self, trial: Trial, net: Network) -> Tensor:
        make = Maker(net, self.style)
        x = net.input
        if len(self.input_shape) == 3:
            x = make.tokens(x, self.encoder.dim.ask(trial), self.patch.ask(trial))
            return self.encoder.build(trial, make, x)
        for layer in range(self.depth.ask(trial)):
            features, norm, activation = (knob.ask(trial, layer) for knob in self.layer)
            y = make.activate(make.normalize(net.linear(x, features), norm), activation)
            x = net.add(x, y) if self.residual and x.shape == y.shape else y
        return net.linear(x, net.num_classes)


# --- stages of layers


class StageSpace(GeneratedSpace):
    """Stages of blocks. Each property is constant, or chosen once, per stage or per layer.

    In the family "mixed", an encoder or as many upsampling stages follow, or the resolution is a
    choice.
    """

    def __init__(self, draw: Draw, name: str) -> None:
        super().__init__(draw, name)
        self.form = "plain"
        if "mixed" in name:
            self.form = draw.one("encoder", "encoder", "up", "resolution")
        self.encoder = Encoder(draw)
        self.join = draw.knob("join", ("add", "concat", "none"), 0.5)
        self.resolution = draw.knob("resolution", (1, 2, 3, 4), 0, (0,))
        scopes = (0, 1, 1, 2, 2)
        self.depth = draw.knob("depth", (1, 2, 3, 4), fixed=0.2)
        self.layer = [
            draw.knob("kind", draw.some(BLOCKS, 1, 5), 0.3, scopes),
            draw.knob("kernel", (1, 3, 5, 7), 0.25, scopes),
            draw.knob("ratio", (1, 1.5, 2, 3, 4, 6), 0.4, scopes),
            draw.knob("groups", (1, 2, 4, 8), 0.75),
            draw.knob("se", (False, True), 0.75, scopes),
        ]
        keeps_activation = draw.chance(0.8)
        activations = [self.style.activation] if keeps_activation else ACTIVATIONS
        self.activation = draw.knob("activation", activations)

    def build(self, trial: Trial, net: Network) -> Tensor:
        make = Maker(net, self.style)
        x = net.input
        shrink = self.resolution.ask(trial) if self.form == "resolution" else 1
        if shrink > 1:
            x = net.avg_pool(x, shrink, stride=shrink)
        x = self.stem(trial, make, x)
        stages = []
        for stage in range(len(self.widths)):
            x = self.stage(trial, net, x, stage)
            stages.append(x)
        if self.form == "encoder":
            patch = 2 if size_of(x) > 12 else 1
            x = make.tokens(x, self.encoder.dim.ask(trial), patch)
            return self.encoder.build(trial, make, x)
        if self.form == "up":
            for stage, skip in enumerate(stages[-2::-1]):
                x = self.up(make, x, skip, self.join.ask(trial, stage))
        return make.head(x)

    def stage(self, trial: Trial, net: Network, x: Tensor, stage: int) -> Tensor:
        """Blocks of one stage, which halves the size, but for the first one."""
        channels = self.channels(trial, stage)
        inside = self.style.down == "inside"
        make = Maker(net, self.style, self.activation.ask(trial, stage))
        if stage and not inside:
            x = make.down(x, channels)
        for layer in range(self.depth.ask(trial, stage)):
            kind, *settings = (knob.ask(trial, stage, layer) for knob in self.layer)
            halves = stage and inside and not layer
            with net.block("block"):
                x = make.block(kind, x, channels, 2 if halves else 1, *settings)
        return x

    def up(self, make: Maker, x: Tensor, skip: Tensor, join: str) -> Tensor:
        """Bring x to the size of an earlier stage's output, and join both, as a U-Net does."""
        net = make.net
        width = channels_of(skip)
        size = size_of(skip)
        if size_of(x) < size:
            attrs: Attrs = (("kernel_shape", (2, 2)), ("strides", (2, 2)))
            if width != channels_of(x):
                attrs = (("channels", width), *attrs)
            x = net.op("ConvTranspose", x, attrs=attrs)
        else:
            x = make.fit(x, width)
        x = net.slice(net.slice(x, 2, 0, size), 3, 0, size)
        if join == "add":
            x = net.add(x, skip)
        elif join == "concat":
            x = net.concat(x, skip)
        return make.unit(x, width, 3)


# --- a space of a seed


def random_space(seed: int) -> SearchSpace:
    """The search space of a seed, always the same one.

    Its sampled networks keep the bounds of this module.
    """
    names = list(FAMILIES)
    shares = list(FAMILIES.values())
    family = str(np.random.default_rng(seed).choice(names, p=shares))
    kind = {"cells": CellSpace, "tokens": TokenSpace}.get(family, StageSpace)
    attempt = 0
    while True:
        draw = Draw(np.random.default_rng([seed, attempt]))
        space = kind(draw, f"generated-{family}-{seed}")
        if _is_usable(space):
            return space
        attempt += 1


def _is_usable(space: GeneratedSpace) -> bool:
    """True if random networks are within the bounds and differ from each other."""
    seen = set()
    for i in range(_SAMPLE):
        chooser = RandomChooser(np.random.default_rng(i))
        net, output = space._built(chooser)
        graph = net.graph(output)
        seen.add(graph.nodes)
        is_small = (
            len(graph.nodes) <= NODES
            and graph_params(graph) <= PARAMS
            and graph_flops(graph) <= FLOPS
        )
        fewest, most = CHOICES
        if not is_small or not fewest <= len(chooser.choices) <= most:
            return False
    return len(seen) >= _SAMPLE - 1
