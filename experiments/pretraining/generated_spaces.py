"""Random search spaces: `random_space(seed)` draws one that belongs to no published family.

A predictor that is pretrained on many of them has seen many ways to build a network, but none of the spaces on which it
is tested. There are four families: cells in a macro skeleton, stages of layers, tokens and vectors, and mixtures.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count
from math import gcd
from typing import Any, NamedTuple

import numpy as np

from search_spaces.base import SearchSpace
from search_spaces.choosers import RandomChooser, Trial
from search_spaces.graph.builder import Network, Tensor
from search_spaces.graph.costs import graph_flops, graph_params
from search_spaces.graph.ir import Attrs
from search_spaces.graph.standard import shortest

FAMILIES = {"cells": 0.45, "stages": 0.35, "tokens": 0.12, "mixed": 0.08}
"""Probability of each family."""
CHOICES, NODES, PARAMS, FLOPS = (4, 30), 360, 20_000_000, 1_000_000_000
"""Bounds (choices: from, to; others: at most) for a network of a space, checked on a sample of networks."""
_SAMPLE = 12

# Each word is a convolution: kernel (k: the block's), output channels (=: as the input, o: the block's, i: narrower,
# e: expanded), then s: strided, d: depthwise, g: grouped, 2: dilated, r: one row, c: one column, -: no activation.
# M: pooling, S: channel shuffle, P: patches; a leading "+": residual.
RECIPES = {
    "conv": "kosg", "dil": "kos2", "double": "kosg kog", "separable": "k=sd- 1o", "dilsep": "k=sd2- 1o",
    "depthwise": "k=sd 1o-", "line": "kosr- koc", "neck": "1i kisg 1o-", "wide": "1e kesd 1o-",
    "shuffle": "1ig S kisd 1o-", "residual": "+ kosg kog-", "bottleneck": "+ 1i kisg 1o-",
    "inverted": "+ 1e kesd 1o-", "fused": "+ kes 1o-",
    "next": "+ k=sd- 1e 1o-", "cheap": "+ 1is kod-",
}  # fmt: skip
_SIZED = [f"{kind}_{k}" for kind in ("conv", "dil", "separable", "depthwise", "line", "dilsep") for k in (3, 5)]
OPERATIONS = ["skip", "none", "act", "se", "gate", "global", "conv_1", "conv_7", "line_7", *_SIZED, "avg_3", "avg_5"]
OPERATIONS += ["max_3", "max_5", "max_7", "neck_3", "neck_5", "wide_3", "wide_5", "shuffle_3", "double_3", "group_3"]
BLOCKS = [*RECIPES, "dense", "inception", "split", "skip"]
MIXERS = ("attention", "shared", "mlp", "pool", "gated")
ACTIVATIONS = ("Relu", "Relu", "Relu", "relu6", "HardSwish", "Gelu", "silu", "Elu", "LeakyRelu", "Tanh", "Mish", "Selu")
STEMS = {1: ("3o", "5o", "3o 3o", "1o"), 2: ("3os", "5os", "2P", "3o M"), 4: ("7os M", "4P", "3os 3os")}


class Draw:
    """Draws the random decisions about a space."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng

    def one(self, *options: Any) -> Any:
        return options[int(self.rng.integers(len(options)))]

    def some(self, options: Iterable[Any], low: int, high: int) -> list[Any]:
        """Between `low` and `high` different options, in random order."""
        listed, number = list(dict.fromkeys(options)), int(self.rng.integers(low, high + 1))
        return [listed[int(i)] for i in self.rng.permutation(len(listed))[:number]]

    def chance(self, probability: float) -> bool:
        return bool(self.rng.random() < probability)

    def knob(self, name: str, options: Iterable[Any], fixed: float = 0.3, scopes: tuple[int, ...] = (0, 1, 1)) -> Knob:
        """A knob with 2 to 4 of the options or, with probability `fixed`, one. Its scope is one of `scopes`."""
        chosen = self.some(options, 1, 1) if self.chance(fixed) else self.some(options, 2, 4)
        return Knob(name, tuple(sorted(chosen) if self.chance(0.8) else chosen), self.one(*scopes))


class Knob(NamedTuple):
    """A property of a space's networks, constant or chosen: once (scope 0), per stage (1) or per layer (2)."""

    name: str
    options: tuple[Any, ...]
    scope: int = 0

    def ask(self, trial: Trial, *place: int) -> Any:
        if len(self.options) == 1:
            return self.options[0]
        return trial.suggest_categorical("_".join([self.name, *map(str, place[: self.scope])]), self.options)


class Style:
    """The style of a space's networks: order of convolution, normalization and activation; stem, head, downsampling."""

    def __init__(self, draw: Draw, size: int) -> None:
        strides = (2, 4) if size > 100 else (1, 2, 4) if size > 40 else (1, 1, 1, 2) if size > 16 else (1,)
        self.order = draw.one(*["conv norm act"] * 3, *["act conv norm"] * 2, "norm act conv", "conv act norm")
        self.activation, self.norm = (
            draw.one(*ACTIVATIONS),
            draw.one(*["batch"] * 7, "plain", "group", "instance", "none"),
        )
        self.stem = draw.one(*STEMS[draw.one(*strides)])
        self.head = draw.one("plain", "plain", "plain", "wide", "hidden", "max", "normal", "both")
        self.down = draw.one("conv", "conv", "avg", "max", "residual", "inception", "space", "inside", "inside")
        self.shortcut = draw.chance(0.6)


class Maker:
    """Builds parts of a network in a style."""

    def __init__(self, net: Network, style: Style, activation: str | None = None) -> None:
        self.net, self.style, self.activation = net, style, activation or style.activation

    def activate(self, x: Tensor, kind: str | None = None) -> Tensor:
        kind = kind or self.activation
        if kind == "relu6":
            return self.net.relu6(x)
        return self.net.mul(x, self.net.sigmoid(x)) if kind == "silu" else self.net.op(kind, x)

    def normalize(self, x: Tensor, kind: str | None = None) -> Tensor:
        kind = kind or self.style.norm
        if kind == "group":
            return self.net.op("GroupNormalization", x, attrs=(("num_groups", gcd(_channels(x), 4)),))
        if kind in ("batch", "plain"):
            return self.net.batch_norm(x, affine=kind == "batch")
        operators = {"instance": "InstanceNormalization", "layer": "LayerNormalization", "rms": "RMSNormalization"}
        return self.net.op(operators[kind], x) if kind in operators else x

    def unit(
        self, x: Tensor, channels: int, kernel: int | tuple[int, int] = 1, stride: int = 1, dilation: int = 1,
        groups: int = 1, active: bool = True,
    ) -> Tensor:  # fmt: skip
        """A convolution with normalization and, if `active`, activation, in the style's order (fixed on the input)."""
        groups = gcd(groups, gcd(channels, _channels(x)))
        for step in (self.style.order if x.number else "conv norm act").split():
            if step == "conv":
                x = self.net.conv(x, channels, kernel, stride, dilation, groups, bias=self.style.norm == "none")
            elif step == "norm":
                x = self.normalize(x)
            elif active:
                x = self.activate(x)
        return x

    def pooled(self, x: Tensor, kind: str = "avg", kernel: int = 2, stride: int = 2) -> Tensor:
        pool = self.net.avg_pool if kind == "avg" else self.net.max_pool
        return pool(x, kernel, stride, ceil=kernel == 2 and _size(x) % 2 == 1) if _size(x) > 1 else x

    def fit(self, x: Tensor, channels: int, stride: int = 1) -> Tensor:
        """Pool and project x to the stride and channels; x itself if it already fits."""
        x = self.pooled(x) if stride > 1 else x
        return x if _channels(x) == channels else self.unit(x, channels, active=False)

    def run(
        self, recipe: str, x: Tensor, widths: dict[str, int], kernel: int = 3, stride: int = 2, by: int = 1
    ) -> Tensor:
        """Apply one of `RECIPES` or `STEMS`."""
        for step in recipe.removeprefix("+").split():
            k, width = kernel if step[0] == "k" else 3 if step in "MS" else int(step[0]), _channels(x)
            if step == "M":
                x = self.net.max_pool(x, 3, 2)
            elif step == "S":
                x = self.net.channel_shuffle(x, gcd(2, width))
            elif step[1] == "P":
                x = self.normalize(self.net.conv(x, widths["o"], k, k, bias=True, pads=(0, 0, 0, 0)))
            else:
                shape = (1, k) if "r" in step else (k, 1) if "c" in step else k
                to, groups = widths.get(step[1], width), width if "d" in step else by if "g" in step else 1
                x = self.unit(x, to, shape, stride if "s" in step else 1, 1 + ("2" in step), groups, "-" not in step)
        return x

    def block(
        self, kind: str, x: Tensor, channels: int, stride: int = 1, kernel: int = 3, ratio: float = 2, groups: int = 1,
        se: bool = False,
    ) -> Tensor:  # fmt: skip
        """One of `BLOCKS` or `OPERATIONS` (whose names contain the kernel). ratio: of inner and outer widths."""
        kind, _, size = kind.partition("_")
        k, inner, net = int(size or kernel), max(4, int(channels / ratio)), self.net
        if kind == "group":
            kind, groups = "conv", 4
        if kind in RECIPES:
            widths = {"o": channels, "i": inner, "e": int(_channels(x) * ratio)}
            y = self.run(RECIPES[kind], x, widths, k, stride, groups)
        elif kind == "dense":
            x = self.fit(x, channels, stride)
            y = net.concat(x, self.unit(self.unit(x, inner), inner, k))
        elif kind == "inception":
            branches = self.unit(x, inner, 1, stride), self.unit(self.unit(x, inner), inner, k, stride)
            y = self.fit(net.concat(*branches, self.pooled(x, "max", 3, stride)), channels)
        elif kind in ("avg", "max"):
            y = self.fit(self.pooled(x, kind, k, stride), channels)
        else:
            y = self._pointwise(kind, self.fit(x, channels, stride), k)
        y = net.squeeze_excite(y, max(2, channels // 8)) if se and kind != "skip" else y
        if not RECIPES.get(kind, "").startswith("+") or (x.shape != y.shape and not self.style.shortcut):
            return y
        return net.add(y, self.fit(x, channels, stride))

    def _pointwise(self, kind: str, x: Tensor, k: int) -> Tensor:
        """An operation that keeps the shape."""
        net, channels, half = self.net, _channels(x), _channels(x) // 2
        if kind == "split" and channels % 2 == 0:
            y = self.unit(net.slice(x, 1, half, channels), half, k)
            return net.channel_shuffle(net.concat(net.slice(x, 1, 0, half), y), 2)
        if kind == "gate":
            return net.mul(x, net.sigmoid(net.conv(x, kernel=k, groups=channels)))
        if kind == "global":
            return net.add(x, net.conv(net.global_avg_pool(x), kernel=1, bias=True))
        if kind == "se":
            return net.squeeze_excite(x, max(2, channels // 4), "sigmoid")
        return net.zero(x) if kind == "none" else self.activate(x) if kind == "act" else x

    def down(self, x: Tensor, channels: int) -> Tensor:
        """Halve the size and change the channels."""
        if self.style.down == "space" and _size(x) % 2 == 0:
            return self.unit(self.net.op("SpaceToDepth", x, attrs=(("blocksize", 2),)), channels)
        return self.block("conv" if self.style.down == "space" else self.style.down, x, channels, 2)

    def head(self, x: Tensor) -> Tensor:
        net, kind = self.net, self.style.head
        if kind == "wide":
            x = self.unit(x, 2 * _channels(x))
        if kind == "normal" or self.style.order == "act conv norm":
            x = self.activate(self.normalize(x))
        if kind not in ("hidden", "max", "both"):
            return net.classifier(x)
        mean, top = net.op("Flatten", net.global_avg_pool(x)), net.op("Flatten", net.op("GlobalMaxPool", x))
        if kind == "hidden":
            return net.linear(self.activate(net.linear(mean, 64)), net.num_classes)
        return net.linear(net.concat(mean, top) if kind == "both" else top, net.num_classes)

    def mixer(self, kind: str, x: Tensor, heads: int) -> Tensor:
        """Mix the tokens of x (N, tokens, channels)."""
        net, tokens, width = self.net, _channels(x), _size(x)
        if kind in ("mlp", "gated"):
            y = net.op("Transpose", x, attrs=(("perm", (0, 2, 1)),))
            y = net.linear(net.op("Gelu", net.linear(y, 2 * tokens)) if kind == "mlp" else y, tokens)
            y = net.op("Transpose", y, attrs=(("perm", (0, 2, 1)),))
            return y if kind == "mlp" else net.linear(net.mul(net.linear(x, width), y), width)
        if kind == "pool":
            return net.add(net.linear(x, width), net.op("ReduceMean", x, attrs=(("axes", (1,)),)))
        heads = gcd(heads, width)

        def split(number: int, perm: tuple[int, ...]) -> Tensor:
            shape: Attrs = (("shape", (0, 0, number, width // heads)),)
            y = net.op("Reshape", net.linear(x, width // heads * number), attrs=shape)
            return net.op("Transpose", y, attrs=(("perm", perm),))

        shared = heads if kind == "attention" else 1
        queries, keys, values = split(heads, (0, 2, 1, 3)), split(shared, (0, 2, 3, 1)), split(shared, (0, 2, 1, 3))
        products = net.op("Mul", net.op("MatMul", queries, keys), attrs=(("B", shortest((width // heads) ** -0.5)),))
        y = net.op("MatMul", net.op("Softmax", products), values)
        y = net.op("Transpose", y, attrs=(("perm", (0, 2, 1, 3)),))
        return net.linear(net.op("Reshape", y, attrs=(("shape", (0, 0, width)),)), width)

    def tokens(self, x: Tensor, width: int, patch: int) -> Tensor:
        """Split an image into patches, as tokens (N, tokens, width)."""
        x = self.net.conv(x, width, patch, patch, pads=(0, 0, 0, 0), bias=True)
        x = self.net.op("Reshape", x, attrs=(("shape", (0, 0, _size(x) ** 2 if _size(x) > 1 else 0)),))
        return self.net.op("Transpose", x, attrs=(("perm", (0, 2, 1)),))


def _channels(x: Tensor) -> int:
    return int(x.shape[1])


def _size(x: Tensor) -> int:
    return int(x.shape[2])


class GeneratedSpace(SearchSpace):
    """Base class of the families. It draws input shape, classes, style and widths."""

    def __init__(self, draw: Draw, name: str) -> None:
        size = draw.one(8, 12, 14, 16, 20, 24, 28, 28, 32, 32, 32, 32, 40, 48, 56, 64, 64, 96, 128, 224)
        classes = draw.one(2, 3, 5, 10, 10, 10, 16, 20, 43, 62, 100, 120, 200, 365, 1000)
        super().__init__((draw.one(1, 3, 3, 3), size, size), classes)
        self.name, self.style = name, Style(draw, size)
        stages = draw.one(1, 2) if size <= 12 else draw.one(2, 3) if size <= 32 else draw.one(2, 3, 4)
        base, growth = draw.one(6, 8, 10, 12, 16, 18, 20, 24, 28, 32, 40), draw.one(1, 1.25, 1.5, 1.5, 2, 2)
        self.widths = [base * growth**i for i in range(stages)]
        self.width = draw.knob("width", (0.5, 0.75, 1, 1.25, 1.5, 2), fixed=0.6)

    def channels(self, trial: Trial, stage: int) -> int:
        return 4 * max(1, round(self.widths[stage] * self.width.ask(trial, stage) / 4))

    def stem(self, trial: Trial, make: Maker, x: Tensor) -> Tensor:
        return make.run(self.style.stem, x, {"o": self.channels(trial, 0)})


class Cell:
    """A cell: its nodes, their possible inputs and operations. It asks for choices and builds the network.

    Modes: "edges" has an operation per edge; "pairs" has two edges per node, each with a source and an operation;
    "chain" and "sets" have an operation per node, with one chosen source or any set of sources.
    """

    def __init__(self, draw: Draw, name: str) -> None:
        self.name, self.inputs = name, draw.one(1, 1, 2)
        self.mode = draw.one("edges", "edges", "edges", "pairs", "pairs", "chain", "sets")
        self.operations = [draw.one(*_SIZED), *draw.some(OPERATIONS, 2, 7)]
        self.operations = draw.some(self.operations, 8, 8)
        nodes = range(self.inputs, self.inputs + draw.one(2, 3, 4, *(() if self.mode == "edges" else (5, 6))))
        most = draw.one(3, 8)  # sources of a node at most
        self.sources = [sorted(draw.some(range(n), min(n, most // 2), most)) for n in nodes]
        self.merge = draw.one("sum", "sum", "sum", "concat", "max")
        self.output = draw.one("last", "last", "concat", "sum", "leaves")
        self.zeros, self.project, self.residual = draw.chance(0.5), draw.chance(0.7), draw.chance(0.25)

    def _edges(self, trial: Trial, name: str, sources: list[int]) -> list[tuple[int, str]]:
        """Source and operation of each edge into a node."""
        ask, operations = trial.suggest_categorical, self.operations
        if self.mode == "pairs":
            return [(ask(f"{name}_from{i}", sources), ask(f"{name}_op{i}", operations)) for i in (0, 1)]
        if self.mode == "edges":
            return [(s, ask(f"{name}_{s}", operations)) for s in sources]
        if self.mode == "chain":
            return [(ask(f"{name}_from", sources), "skip")]
        return [(s, "skip") for s in sources if ask(f"{name}_{s}", (False, True))]

    def build(self, trial: Trial, make: Maker, inputs: tuple[Tensor, Tensor], channels: int, stride: int) -> Tensor:
        """Build the cell from the outputs of the last two cells. stride: of operations on these inputs."""
        first, x = inputs
        values, used = [make.fit(x, channels)], set[int]()
        if self.inputs == 2:  # `first` may still have the size before the last reduction
            values.append(make.fit(first, channels, 1 if _size(first) == _size(x) else 2))
        for node, sources in enumerate(self.sources):
            edges = [e for e in self._edges(trial, f"{self.name}_{node}", sources) if self.zeros or e[1] != "none"]
            used.update(source for source, _ in edges)
            terms = [make.block(op, values[s], channels, stride if s < self.inputs else 1) for s, op in edges]
            terms = terms or [make.net.zero(make.fit(values[0], channels, stride))]
            if len(terms) == 1 or self.merge == "sum":
                y = make.net.add(*terms)
            else:
                y = make.net.op("Max", *terms) if self.merge == "max" else make.fit(make.net.concat(*terms), channels)
            if self.mode in ("chain", "sets"):
                y = make.block(trial.suggest_categorical(f"{self.name}_{node}_op", self.operations), y, channels)
            values.append(y)
        made = [v for i, v in enumerate(values) if i >= self.inputs and not (self.output == "leaves" and i in used)]
        made = made[-1:] if self.output == "last" else made
        y = make.net.concat(*made) if self.output == "concat" else make.net.add(*made)
        y = make.fit(y, channels) if self.project else y
        return make.net.add(y, make.fit(x, _channels(y), stride)) if self.residual else y


class CellSpace(GeneratedSpace):
    """Stacks of one cell, or of one cell per stage. The size is halved between stages or in reduction cells."""

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
            channels, inside = self.channels(trial, stage), self.style.down == "inside" or self.reduction is not None
            if stage and not inside:
                previous, x = x, make.down(x, channels)
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
        self.layer = [draw.knob("mixer", draw.some(MIXERS, 1, 3), 0.4), draw.knob("heads", (1, 2, 3, 4, 6, 8), 0.2)]
        self.layer += [draw.knob("mlp", (0.5, 1, 2, 3, 4), 0.2)]
        self.dim = draw.knob("dim", (24, 32, 48, 64, 96, 120, 144, 192), 0.4, (0,))
        self.norm, self.first = draw.one("layer", "layer", "layer", "rms"), draw.chance(0.75)
        self.activation, self.position = draw.one("Gelu", "Gelu", "Relu", "silu", "HardSwish"), draw.chance(0.6)
        self.top, self.parallel = draw.one("ReduceMean", "ReduceMean", "ReduceMax"), draw.chance(0.2)

    def build(self, trial: Trial, make: Maker, x: Tensor) -> Tensor:
        """Build logits from tokens (N, tokens, channels)."""
        net, width = make.net, _size(x)
        before, after = (self.norm, "none") if self.first else ("none", self.norm)
        if self.position:
            x = net.add(x, net.op("Param", attrs=(("shape", (1, _channels(x), width)),)))
        for layer in range(self.depth.ask(trial)):
            kind, heads, ratio = (knob.ask(trial, layer) for knob in self.layer)
            with net.block("layer"):
                y = make.mixer(kind, make.normalize(x, before), heads)
                x = x if self.parallel else make.normalize(net.add(x, y), after)
                z = make.activate(net.linear(make.normalize(x, before), int(width * ratio)), self.activation)
                z = net.linear(z, width)
                x = make.normalize(net.add(x, y, z) if self.parallel else net.add(x, z), after)
        x = net.op(self.top, make.normalize(x, before), attrs=(("axes", (1,)), ("keepdims", 0)))
        return net.linear(x, net.num_classes)


class TokenSpace(GeneratedSpace):
    """Patches and an encoder, or a multilayer perceptron on vectors."""

    def __init__(self, draw: Draw, name: str) -> None:
        super().__init__(draw, name)
        self.encoder, size = Encoder(draw), self.input_shape[1]
        self.patch = draw.knob("patch", (size // 8, size // 7, size // 4, size // 3), 0.7, (0,))
        if draw.chance(0.3):
            self.input_shape = (int(draw.rng.integers(4, 800)),)
        self.depth, self.residual = draw.knob("depth", range(2, 9), 0.2), draw.chance(0.4)
        self.layer = [draw.knob("features", (8, 16, 32, 48, 64, 100, 128, 256), 0, (1,))]
        self.layer += [draw.knob("norm", ("batch", "layer", "none"), 0.6), draw.knob("activation", ACTIVATIONS, 0.4)]

    def build(self, trial: Trial, net: Network) -> Tensor:
        make, x = Maker(net, self.style), net.input
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

    In the family "mixed", an encoder or as many upsampling stages follow, or the resolution is a choice.
    """

    def __init__(self, draw: Draw, name: str) -> None:
        super().__init__(draw, name)
        self.form = draw.one("encoder", "encoder", "up", "resolution") if "mixed" in name else "plain"
        self.encoder, self.join = Encoder(draw), draw.knob("join", ("add", "concat", "none"), 0.5)
        self.resolution, scopes = draw.knob("resolution", (1, 2, 3, 4), 0, (0,)), (0, 1, 1, 2, 2)
        self.depth = draw.knob("depth", (1, 2, 3, 4), fixed=0.2)
        kinds, ratios = draw.some(BLOCKS, 1, 5), (1, 1.5, 2, 3, 4, 6)
        self.layer = [draw.knob("kind", kinds, 0.3, scopes), draw.knob("kernel", (1, 3, 5, 7), 0.25, scopes)]
        self.layer += [draw.knob("ratio", ratios, 0.4, scopes), draw.knob("groups", (1, 2, 4, 8), 0.75)]
        self.layer += [draw.knob("se", (False, True), 0.75, scopes)]
        self.activation = draw.knob("activation", [self.style.activation] if draw.chance(0.8) else ACTIVATIONS)

    def stage(self, trial: Trial, net: Network, x: Tensor, stage: int) -> Tensor:
        channels, inside = self.channels(trial, stage), self.style.down == "inside"
        make = Maker(net, self.style, self.activation.ask(trial, stage))
        x = make.down(x, channels) if stage and not inside else x
        for layer in range(self.depth.ask(trial, stage)):
            kind, *rest = (knob.ask(trial, stage, layer) for knob in self.layer)
            with net.block("block"):
                x = make.block(kind, x, channels, 2 if stage and inside and not layer else 1, *rest)
        return x

    def build(self, trial: Trial, net: Network) -> Tensor:
        make, shrink = Maker(net, self.style), self.resolution.ask(trial) if self.form == "resolution" else 1
        x, passed = self.stem(trial, make, net.avg_pool(net.input, shrink, shrink) if shrink > 1 else net.input), []
        for stage in range(len(self.widths)):
            x = self.stage(trial, net, x, stage)
            passed.append(x)
        if self.form == "encoder":
            x = make.tokens(x, self.encoder.dim.ask(trial), 2 if _size(x) > 12 else 1)
            return self.encoder.build(trial, make, x)
        for stage, skip in enumerate(passed[-2::-1] if self.form == "up" else ()):
            width, size, join = _channels(skip), _size(skip), self.join.ask(trial, stage)
            attrs: Attrs = (("kernel_shape", (2, 2)), ("strides", (2, 2)))
            attrs = attrs if width == _channels(x) else (("channels", width), *attrs)
            x = net.op("ConvTranspose", x, attrs=attrs) if _size(x) < size else make.fit(x, width)
            x = net.slice(net.slice(x, 2, 0, size), 3, 0, size)
            x = net.add(x, skip) if join == "add" else net.concat(x, skip) if join == "concat" else x
            x = make.unit(x, width, 3)
        return make.head(x)


def random_space(seed: int) -> SearchSpace:
    """The search space of a seed, always the same one. Its sampled networks are within the bounds of this module."""
    family = str(np.random.default_rng(seed).choice(list(FAMILIES), p=list(FAMILIES.values())))
    space = {"cells": CellSpace, "tokens": TokenSpace}.get(family, StageSpace)
    draws = (Draw(np.random.default_rng([seed, attempt])) for attempt in count())
    return next(filter(_is_usable, (space(draw, f"generated-{family}-{seed}") for draw in draws)))


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
