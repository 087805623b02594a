"""Once-for-all (Cai et al., ICLR 2020, arXiv 1908.09791): sub-networks of the three released
supernets.

    image ─ stem ─ stage ─ stage ─ stage ─ stage ─ … ─ head          r × r pixels
                   d layers each; every layer has its kernel ks and expansion e

    ofa-mbv3        MobileNetV3-Large: inverted residual layers, some with squeeze-and-excitation
    ofa-proxyless   ProxylessNAS: inverted residual layers
    ofa-resnet50    ResNet-50-D: bottleneck blocks; widths w are elastic, too

The notation has the lists of the authors' `set_active_subnet`, with an entry per layer of the
supernet, and resolution:

    {'ks': [3, 5, …], 'e': [4, 6, …], 'd': [2, 3, …], 'r': 224}        ofa-mbv3, ofa-proxyless
    {'d': [2, 0, …], 'e': [0.2, 0.35, …], 'w': [0, 2, …], 'r': 224}    ofa-resnet50

Entries of layers beyond a stage's depth are not part of the architecture: `parse` ignores them,
`format` writes 0, as the authors' encoder does. Choices are named by list and position: `ks0`,
`ks1`, …
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

from search_spaces.choosers import ReplayChooser, Trial
from search_spaces.common.errors import InputError
from search_spaces.domains import Choice
from search_spaces.ir.builder import Network, Tensor
from search_spaces.registry import register_space
from search_spaces.space import Architecture, SearchSpace

RESOLUTIONS = range(128, 225, 4)
KERNELS = (3, 5, 7)
EXPANSIONS = (3, 4, 6)
DEPTHS = (2, 3, 4)


def divisible(channels: float) -> int:
    """Round channels to a multiple of 8 as MobileNet does.

    The result is the nearest multiple that is at least 8 and 90 % of `channels`.
    """
    rounded = max(8, int(channels + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * channels else rounded


class _OnceForAll(SearchSpace):
    """Sub-networks of a supernet.

    `lists` are those of the notation: length, and type of the entries.

    Args:
        resolution: height and width of the input; None to make it a choice.
        num_classes: number of classes.
    """

    lists: ClassVar[dict[str, tuple[int, type]]]

    def __init__(self, resolution: int | None = None, num_classes: int = 1000) -> None:
        if resolution is not None and resolution < 32:
            raise InputError(f"{self.name}: the resolution must be at least 32, not {resolution}")
        if num_classes < 1:
            raise InputError(
                f"{self.name}: the number of classes must be positive, not {num_classes}"
            )
        self.resolution = resolution
        self.num_classes = num_classes
        largest = resolution or RESOLUTIONS[-1]
        self.input_shape = (3, largest, largest)

    @property
    def options(self) -> dict[str, Any]:
        return {"resolution": self.resolution, "num_classes": self.num_classes}

    @property
    def _resolutions(self) -> int:
        """Number of resolutions to choose from."""
        return 1 if self.resolution else len(RESOLUTIONS)

    def _size(self, trial: Trial) -> int:
        """Height and width of the input in pixels, chosen unless fixed."""
        return self.resolution or trial.suggest_categorical("r", RESOLUTIONS)

    def _built(self, trial: Trial) -> tuple[Network, Tensor]:
        size = self._size(trial)
        net = Network((3, size, size), self.num_classes)
        return net, self.build(trial, net)

    def parse(self, native: str) -> Architecture:
        """Read the lists; `r` may be omitted if the space fixes the resolution."""
        try:
            network = ast.literal_eval(native)
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            network = None
        if not isinstance(network, dict) or {*network, "r"} != {*self.lists, "r"}:
            raise InputError(
                f"not a dictionary of the lists {', '.join(self.lists)} and of r: {native[:200]!r}"
            )
        size = network.get("r", self.resolution)
        if type(size) is not int:
            raise InputError(
                f"{self.name}: the resolution r must be a whole number, not {str(size)[:50]}"
            )
        if self.resolution not in (None, size):
            raise InputError(
                f"{self.name}: the space has resolution {self.resolution}, the network {size}"
            )
        choices: dict[str, Choice] = {"r": size}
        for key, (length, kind) in self.lists.items():
            entries = network[key]
            kinds = [type(entry) for entry in entries] if isinstance(entries, list) else None
            if kinds != [kind] * length:
                raise InputError(
                    f"{self.name}: {key!r} must be {length} {kind.__name__}s, not "
                    f"{str(entries)[:200]}"
                )
            for i, entry in enumerate(entries):
                choices[f"{key}{i}"] = entry
        return self._chosen(ReplayChooser(choices))

    def format(self, arch: Architecture) -> str:
        """Write the lists."""
        chosen = arch.as_dict()
        network: dict[str, Any] = {}
        for key, (length, kind) in self.lists.items():
            network[key] = [chosen.get(f"{key}{i}", kind(0)) for i in range(length)]
        network["r"] = chosen.get("r", self.resolution)
        return repr(network)


# --- MobileNetV3 and ProxylessNAS


class Stage(NamedTuple):
    """Inverted residual layers of one width; the first has the stride."""

    width: int
    stride: int
    activation: Callable[[Network, Tensor], Tensor]
    squeeze: bool = False
    depths: tuple[int, ...] = DEPTHS


class _MobileNet(_OnceForAll):
    """Stages of 2-4 inverted residual layers.

    Each layer has its own kernel (3, 5, 7) and expansion (3, 4, 6).

    Args:
        resolution: height and width of the input; None to make it a choice.
        width: factor of all layers' channels, which are rounded by `divisible`.
        num_classes: number of classes.
    """

    stages: ClassVar[tuple[Stage, ...]]

    def __init__(
        self, resolution: int | None = None, width: float = 1.0, num_classes: int = 1000
    ) -> None:
        super().__init__(resolution, num_classes)
        if width <= 0:
            raise InputError(f"{self.name}: the width multiplier must be positive, not {width}")
        self.width = width

    @property
    def options(self) -> dict[str, Any]:
        return {**super().options, "width": self.width}

    @property
    def size(self) -> int:
        layer = len(KERNELS) * len(EXPANSIONS)
        size = self._resolutions
        for stage in self.stages:
            size *= sum(layer**depth for depth in stage.depths)
        return size

    def _scaled(self, channels: int) -> int:
        return divisible(channels * self.width)

    def ask(self, trial: Trial) -> list[list[tuple[int, int]]]:
        """Choose the size of the input, then kernel and expansion of every layer, by stage."""
        self._size(trial)
        stages = []
        first = 0  # number of the stage's first layer in the supernet
        for number, stage in enumerate(self.stages):
            depth = trial.suggest_categorical(f"d{number}", stage.depths)
            stages.append([_ask_layer(trial, first + i) for i in range(depth)])
            first += max(stage.depths)
        return stages

    def _layers(self, trial: Trial, net: Network, x: Tensor) -> Tensor:
        for stage, layers in zip(self.stages, self.ask(trial), strict=True):
            scaled = stage._replace(width=self._scaled(stage.width))
            for layer, (kernel, expansion) in enumerate(layers):
                strided = scaled._replace(stride=1) if layer else scaled
                x = _inverted_residual(net, x, strided, kernel, expansion)
        return x


def _ask_layer(trial: Trial, layer: int) -> tuple[int, int]:
    """Choose kernel and expansion of a layer."""
    kernel = trial.suggest_categorical(f"ks{layer}", KERNELS)
    expansion = trial.suggest_categorical(f"e{layer}", EXPANSIONS)
    return kernel, expansion


def _inverted_residual(
    net: Network,
    x: Tensor,
    stage: Stage,
    kernel: int,
    expansion: int,
) -> Tensor:
    """1×1 convolution to `expansion` times the channels, a depthwise and a 1×1 convolution.

    The latter has the stage's width.
    """
    with net.block("layer"):
        with net.block("depthwise"):
            y = x
            if expansion != 1:
                y = net.conv_bn(y, divisible(int(x.shape[1]) * expansion), kernel=1)
                y = stage.activation(net, y)
            middle = int(y.shape[1])
            y = net.conv_bn(y, kernel=kernel, stride=stage.stride, groups=middle)
            y = stage.activation(net, y)
        with net.block("project"):
            if stage.squeeze:
                with net.block("squeeze"):
                    y = net.squeeze_excite(y, divisible(middle // 4))
            y = net.conv_bn(y, stage.width, kernel=1)
        return net.add(x, y) if y.shape == x.shape else y


@register_space("ofa-mbv3")
class OFAMobileNetV3(_MobileNet):
    """MobileNetV3-Large with elastic kernel, expansion, depth and resolution.

    It was released with width 1.0 and 1.2. Dropout is omitted: it has no effect in evaluation mode.
    """

    lists: ClassVar = {"ks": (20, int), "e": (20, int), "d": (5, int)}
    stages = (
        Stage(24, 2, Network.relu),
        Stage(40, 2, Network.relu, squeeze=True),
        Stage(80, 2, Network.hard_swish),
        Stage(112, 1, Network.hard_swish, squeeze=True),
        Stage(160, 2, Network.hard_swish, squeeze=True),
    )

    def build(self, trial: Trial, net: Network) -> Tensor:
        # 1. The stem, and a block without choices.
        x = net.conv_bn(net.input, self._scaled(16), stride=2)
        x = net.hard_swish(x)
        first = Stage(self._scaled(16), 1, Network.relu)
        x = _inverted_residual(net, x, first, kernel=3, expansion=1)
        # 2. The stages.
        x = self._layers(trial, net, x)
        # 3. The head.
        x = net.conv_bn(x, self._scaled(960), kernel=1)
        x = net.global_avg_pool(net.hard_swish(x))
        x = net.conv(x, self._scaled(1280), kernel=1)
        x = net.op("Flatten", net.hard_swish(x))
        return net.linear(x, self.num_classes)


@register_space("ofa-proxyless")
class OFAProxyless(_MobileNet):
    """ProxylessNAS's skeleton of MobileNetV2 layers (ReLU6, no squeeze-and-excitation).

    It was released with width 1.3. The last of the six stages has one layer. Batch normalization
    has epsilon 1e-5 instead of the authors' 1e-3, and dropout is omitted.
    """

    lists: ClassVar = {"ks": (21, int), "e": (21, int), "d": (6, int)}
    stages = (
        Stage(24, 2, Network.relu6),
        Stage(40, 2, Network.relu6),
        Stage(80, 2, Network.relu6),
        Stage(96, 1, Network.relu6),
        Stage(192, 2, Network.relu6),
        Stage(320, 1, Network.relu6, depths=(1,)),
    )

    def __init__(
        self, resolution: int | None = None, width: float = 1.3, num_classes: int = 1000
    ) -> None:
        super().__init__(resolution, width, num_classes)

    def build(self, trial: Trial, net: Network) -> Tensor:
        # 1. The stem, and a block without choices.
        x = net.conv_bn(net.input, self._scaled(32), stride=2)
        x = net.relu6(x)
        first = Stage(self._scaled(16), 1, Network.relu6)
        x = _inverted_residual(net, x, first, kernel=3, expansion=1)
        # 2. The stages.
        x = self._layers(trial, net, x)
        # 3. The head.
        x = net.conv_bn(x, self._scaled(1280), kernel=1)
        return net.classifier(net.relu6(x))


# --- ResNet-50

RATIOS = (0.2, 0.25, 0.35)
WIDTHS = (0.65, 0.8, 1.0)
_STAGES = ((256, 2, 1), (512, 2, 2), (1024, 4, 2), (2048, 2, 2))
"""Width, smallest depth and stride of every stage."""


class ResNet(NamedTuple):
    """The choices of a network.

    Attributes:
        inner: width multiplier of the stem's inner convolutions.
        residual: whether the stem has its residual convolution.
        outer: width multiplier of the stem's last convolution.
        stages: width multiplier, and bottleneck ratio of every block, by stage.
    """

    inner: float
    residual: bool
    outer: float
    stages: list[tuple[float, list[float]]]


@register_space("ofa-resnet50")
class OFAResNet50(_OnceForAll):
    """ResNet-50-D with elastic depth, bottleneck ratio, width and resolution.

    The lists of the notation are
    - d: whether the stem has its residual convolution (2: yes, 0: no), then 0-2 additional blocks
      of each stage;
    - e: bottleneck ratio of each of 18 blocks;
    - w: position in (0.65, 0.8, 1.0) of the width multipliers of the stem's inner convolutions, of
      its last one, and of each stage.
    Widths that round to the same multiple of 8 give equal networks: 0.65 and 0.8 for the stem's
    inner convolutions.
    """

    lists: ClassVar = {"d": (5, int), "e": (18, float), "w": (6, int)}

    @property
    def size(self) -> int:
        size = self._resolutions * 2 * len(WIDTHS) ** 6
        for _, depth, _ in _STAGES:
            size *= sum(len(RATIOS) ** (depth + more) for more in range(3))
        return size

    def ask(self, trial: Trial) -> ResNet:
        """Choose the size of the input, then stem and stages."""
        self._size(trial)

        def width(position: int) -> float:
            return WIDTHS[trial.suggest_categorical(f"w{position}", range(len(WIDTHS)))]

        inner = width(0)
        residual = trial.suggest_categorical("d0", (0, 2))
        outer = width(1)
        stages: list[tuple[float, list[float]]] = []
        first = 0  # number of the stage's first block in the supernet
        for number, (_, depth, _) in enumerate(_STAGES):
            wide = width(2 + number)
            blocks = depth + trial.suggest_int(f"d{number + 1}", 0, 2)
            ratios = []
            for block in range(first, first + blocks):
                ratios.append(trial.suggest_categorical(f"e{block}", RATIOS))
            stages.append((wide, ratios))
            first += depth + 2
        return ResNet(inner, bool(residual), outer, stages)

    def build(self, trial: Trial, net: Network) -> Tensor:
        chosen = self.ask(trial)
        stem = divisible(divisible(64 * chosen.inner) // 2)
        x = net.conv_bn_relu(net.input, stem, stride=2)
        if chosen.residual:
            x = net.add(x, net.conv_bn_relu(x))
        x = net.conv_bn_relu(x, divisible(64 * chosen.outer))
        x = net.max_pool(x, stride=2)
        for (channels, _, stride), (wide, ratios) in zip(_STAGES, chosen.stages, strict=True):
            scaled = divisible(channels * wide)
            for block, ratio in enumerate(ratios):
                middle = divisible(round(scaled * ratio))
                with net.block("block"):
                    x = _bottleneck(net, x, scaled, middle, 1 if block else stride)
        return net.classifier(x)


def _bottleneck(
    net: Network,
    x: Tensor,
    channels: int,
    middle: int,
    stride: int,
) -> Tensor:
    """The bottleneck block of ResNet-D (arXiv 1812.01187).

    Its shortcut halves the size by average pooling.
    """
    y = net.conv_bn_relu(x, middle, kernel=1)
    y = net.conv_bn_relu(y, kernel=3, stride=stride)
    y = net.conv_bn(y, channels, kernel=1)
    if stride != 1:
        x = net.avg_pool(x, 2, stride=2, ceil=True)
    if x.shape != y.shape:
        x = net.conv_bn(x, channels, kernel=1)
    return net.relu(net.add(x, y))
