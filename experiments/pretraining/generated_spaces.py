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
CHOICES, NODES, PARAMS, FLOPS = (4, 30), 360, 20_000_000, 1_000_000_000
"""Bounds (choices: from, to; others: at most) for a network of a space, checked on a sample of networks."""
_SAMPLE = 12


class GeneratedSpace(SearchSpace):
    """Base class of the families. It draws input shape, classes, style and widths."""

    def __init__(self, draw: Draw, name: str) -> None:
        size = draw.one(
            8, 12, 14, 16, 20, 24, 28, 28, 32, 32, 32, 32, 40, 48, 56, 64, 64, 96, 128, 224
        )
        classes = draw.one(2, 3, 5, 10, 10, 10, 16, 20, 43, 62, 100, 120, 200, 365, 1000)
        super().__init__((draw.one(1, 3, 3, 3), size, size), classes)
        self.name = name
        self.style = Style(draw, size)
        stages = (
            draw.one(1, 2) if size <= 12 else draw.one(2, 3) if size <= 32 else draw.one(2, 3, 4)
        )
        base = draw.one(6, 8, 10, 12, 16, 18, 20, 24, 28, 32, 40)
        growth = draw.one(1, 1.25, 1.5, 1.5, 2, 2)
        self.widths = [base * growth**i for i in range(stages)]
        self.width = draw.knob("width", (0.5, 0.75, 1, 1.25, 1.5, 2), fixed=0.6)

    def channels(self, trial: Trial, stage: int) -> int:
        return 4 * max(1, round(self.widths[stage] * self.width.ask(trial, stage) / 4))

    def stem(self, trial: Trial, make: Maker, x: Tensor) -> Tensor:
        return make.run(self.style.stem, x, {"o": self.channels(trial, 0)})


class Cell:
    """A cell: its nodes, their possible inputs and operations. It asks for choices and builds the
    network.

    Modes: "edges" has an operation per edge; "pairs" has two edges per node, each with a source and
    an operation; "chain" and "sets" have an operation per node, with one chosen source or any set
    of sources.
    """

    def __init__(self, draw: Draw, name: str) -> None:
        self.name = name
        self.inputs = draw.one(1, 1, 2)
        self.mode = draw.one("edges", "edges", "edges", "pairs", "pairs", "chain", "sets")
        self.operations = [draw.one(*SIZED), *draw.some(OPERATIONS, 2, 7)]
        self.operations = draw.some(self.operations, 8, 8)
        nodes = range(
            self.inputs, self.inputs + draw.one(2, 3, 4, *(() if self.mode == "edges" else (5, 6)))
        )
        most = draw.one(3, 8)  # sources of a node at most
        self.sources = [sorted(draw.some(range(n), min(n, most // 2), most)) for n in nodes]
        self.merge = draw.one("sum", "sum", "sum", "concat", "max")
        self.output = draw.one("last", "last", "concat", "sum", "leaves")
        self.zeros = draw.chance(0.5)
        self.project = draw.chance(0.7)
        self.residual = draw.chance(0.25)

    def _edges(self, trial: Trial, name: str, sources: list[int]) -> list[tuple[int, str]]:
        """Source and operation of each edge into a node."""
        ask, operations = trial.suggest_categorical, self.operations
        if self.mode == "pairs":
            return [
                (ask(f"{name}_from{i}", sources), ask(f"{name}_op{i}", operations)) for i in (0, 1)
            ]
        if self.mode == "edges":
            return [(s, ask(f"{name}_{s}", operations)) for s in sources]
        if self.mode == "chain":
            return [(ask(f"{name}_from", sources), "skip")]
        return [(s, "skip") for s in sources if ask(f"{name}_{s}", (False, True))]

    def build(
        self, trial: Trial, make: Maker, inputs: tuple[Tensor, Tensor], channels: int, stride: int
    ) -> Tensor:
        """Build the cell from the outputs of the last two cells. stride: of operations on these
        inputs.
        """
        first, x = inputs
        values = [make.fit(x, channels)]
        used = set[int]()
        if self.inputs == 2:  # `first` may still have the size before the last reduction
            values.append(make.fit(first, channels, 1 if size_of(first) == size_of(x) else 2))
        for node, sources in enumerate(self.sources):
            edges = [
                e
                for e in self._edges(trial, f"{self.name}_{node}", sources)
                if self.zeros or e[1] != "none"
            ]
            used.update(source for source, _ in edges)
            terms = [
                make.block(op, values[s], channels, stride if s < self.inputs else 1)
                for s, op in edges
            ]
            terms = terms or [make.net.zero(make.fit(values[0], channels, stride))]
            if len(terms) == 1 or self.merge == "sum":
                y = make.net.add(*terms)
            else:
                y = (
                    make.net.op("Max", *terms)
                    if self.merge == "max"
                    else make.fit(make.net.concat(*terms), channels)
                )
            if self.mode in ("chain", "sets"):
                y = make.block(
                    trial.suggest_categorical(f"{self.name}_{node}_op", self.operations),
                    y,
                    channels,
                )
            values.append(y)
        made = [
            v
            for i, v in enumerate(values)
            if i >= self.inputs and not (self.output == "leaves" and i in used)
        ]
        made = made[-1:] if self.output == "last" else made
        y = make.net.concat(*made) if self.output == "concat" else make.net.add(*made)
        y = make.fit(y, channels) if self.project else y
        return make.net.add(y, make.fit(x, channels_of(y), stride)) if self.residual else y


class CellSpace(GeneratedSpace):
    """Stacks of one cell, or of one cell per stage. The size is halved between stages or in
    reduction cells.
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
                halve = bool(stage and inside and not i)
                used = self.reduction if halve and self.reduction else cell
                with net.block("cell"):
                    previous, x = x, used.build(trial, make, (previous, x), channels, 1 + halve)
        return make.head(x)


class Encoder:
    """Layers of a token mixer and a two-layer perceptron."""

    def __init__(self, draw: Draw) -> None:
        self.depth = draw.knob("layers", range(1, 7), 0.2, (0,))
        self.layer = [
            draw.knob("mixer", draw.some(MIXERS, 1, 3), 0.4),
            draw.knob("heads", (1, 2, 3, 4, 6, 8), 0.2),
        ]
        self.layer += [draw.knob("mlp", (0.5, 1, 2, 3, 4), 0.2)]
        self.dim = draw.knob("dim", (24, 32, 48, 64, 96, 120, 144, 192), 0.4, (0,))
        self.norm = draw.one("layer", "layer", "layer", "rms")
        self.first = draw.chance(0.75)
        self.activation = draw.one("Gelu", "Gelu", "Relu", "silu", "HardSwish")
        self.position = draw.chance(0.6)
        self.top = draw.one("ReduceMean", "ReduceMean", "ReduceMax")
        self.parallel = draw.chance(0.2)

    def build(self, trial: Trial, make: Maker, x: Tensor) -> Tensor:
        """Build logits from tokens (N, tokens, channels)."""
        net, width = make.net, size_of(x)
        before, after = (self.norm, "none") if self.first else ("none", self.norm)
        if self.position:
            x = net.add(x, net.op("Param", attrs=(("shape", (1, channels_of(x), width)),)))
        for layer in range(self.depth.ask(trial)):
            kind, heads, ratio = (knob.ask(trial, layer) for knob in self.layer)
            with net.block("layer"):
                y = make.mixer(kind, make.normalize(x, before), heads)
                x = x if self.parallel else make.normalize(net.add(x, y), after)
                z = make.activate(
                    net.linear(make.normalize(x, before), int(width * ratio)), self.activation
                )
                z = net.linear(z, width)
                x = make.normalize(net.add(x, y, z) if self.parallel else net.add(x, z), after)
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
        self.layer = [draw.knob("features", (8, 16, 32, 48, 64, 100, 128, 256), 0, (1,))]
        self.layer += [
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


class StageSpace(GeneratedSpace):
    """Stages of blocks. Each property is constant, or chosen once, per stage or per layer.

    In the family "mixed", an encoder or as many upsampling stages follow, or the resolution is a
    choice.
    """

    def __init__(self, draw: Draw, name: str) -> None:
        super().__init__(draw, name)
        self.form = (
            draw.one("encoder", "encoder", "up", "resolution") if "mixed" in name else "plain"
        )
        self.encoder = Encoder(draw)
        self.join = draw.knob("join", ("add", "concat", "none"), 0.5)
        self.resolution = draw.knob("resolution", (1, 2, 3, 4), 0, (0,))
        scopes = (0, 1, 1, 2, 2)
        self.depth = draw.knob("depth", (1, 2, 3, 4), fixed=0.2)
        kinds = draw.some(BLOCKS, 1, 5)
        ratios = (1, 1.5, 2, 3, 4, 6)
        self.layer = [
            draw.knob("kind", kinds, 0.3, scopes),
            draw.knob("kernel", (1, 3, 5, 7), 0.25, scopes),
        ]
        self.layer += [
            draw.knob("ratio", ratios, 0.4, scopes),
            draw.knob("groups", (1, 2, 4, 8), 0.75),
        ]
        self.layer += [draw.knob("se", (False, True), 0.75, scopes)]
        self.activation = draw.knob(
            "activation", [self.style.activation] if draw.chance(0.8) else ACTIVATIONS
        )

    def stage(self, trial: Trial, net: Network, x: Tensor, stage: int) -> Tensor:
        channels = self.channels(trial, stage)
        inside = self.style.down == "inside"
        make = Maker(net, self.style, self.activation.ask(trial, stage))
        x = make.down(x, channels) if stage and not inside else x
        for layer in range(self.depth.ask(trial, stage)):
            kind, *rest = (knob.ask(trial, stage, layer) for knob in self.layer)
            with net.block("block"):
                x = make.block(kind, x, channels, 2 if stage and inside and not layer else 1, *rest)
        return x

    def build(self, trial: Trial, net: Network) -> Tensor:
        make = Maker(net, self.style)
        shrink = self.resolution.ask(trial) if self.form == "resolution" else 1
        x = self.stem(
            trial,
            make,
            net.avg_pool(net.input, shrink, stride=shrink) if shrink > 1 else net.input,
        )
        passed = []
        for stage in range(len(self.widths)):
            x = self.stage(trial, net, x, stage)
            passed.append(x)
        if self.form == "encoder":
            x = make.tokens(x, self.encoder.dim.ask(trial), 2 if size_of(x) > 12 else 1)
            return self.encoder.build(trial, make, x)
        for stage, skip in enumerate(passed[-2::-1] if self.form == "up" else ()):
            width = channels_of(skip)
            size = size_of(skip)
            join = self.join.ask(trial, stage)
            attrs: Attrs = (("kernel_shape", (2, 2)), ("strides", (2, 2)))
            attrs = attrs if width == channels_of(x) else (("channels", width), *attrs)
            x = net.op("ConvTranspose", x, attrs=attrs) if size_of(x) < size else make.fit(x, width)
            x = net.slice(net.slice(x, 2, 0, size), 3, 0, size)
            x = (
                net.add(x, skip)
                if join == "add"
                else net.concat(x, skip)
                if join == "concat"
                else x
            )
            x = make.unit(x, width, 3)
        return make.head(x)


def random_space(seed: int) -> SearchSpace:
    """The search space of a seed, always the same one. Its sampled networks are within the bounds
    of this module.
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
        costs = len(graph.nodes) / NODES, graph_params(graph) / PARAMS, graph_flops(graph) / FLOPS
        if max(costs) > 1 or not CHOICES[0] <= len(chooser.choices) <= CHOICES[1]:
            return False
    return len(seen) >= _SAMPLE - 1
