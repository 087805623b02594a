"""FBNet (Wu et al., CVPR 2019, arXiv 1812.03443) as in HW-NAS-Bench (arXiv 2103.10584): 22 layers
of nine blocks.

    image ─ conv ─ 1 ─ 4 ─ 4 ─ 4 ─ 4 ─ 4 ─ 1 layers ─ 1×1 conv ─ pooling, linear
            16     16  24  32  64 112 184 352 channels

    layer:  ┌─ 1×1 conv, e times the channels ─ k×k depthwise ─ 1×1 conv ─┐
          ──┴─────────────────────────────────────────────────────────────+──   or a skip
"""

from __future__ import annotations

import ast
from typing import Any, NamedTuple

from search_spaces.choosers import Trial
from search_spaces.common.errors import InputError, unknown
from search_spaces.ir.builder import Network, Tensor
from search_spaces.registry import register_space
from search_spaces.space import Architecture, SearchSpace


class Block(NamedTuple):
    """Inverted residual: expansion by a 1×1 convolution, depthwise convolution, 1×1 convolution."""

    kernel: int
    expansion: int
    groups: int = 1


BLOCKS: dict[str, Block | None] = {
    "k3_e1": Block(3, 1),
    "k3_e1_g2": Block(3, 1, groups=2),
    "k3_e3": Block(3, 3),
    "k3_e6": Block(3, 6),
    "k5_e1": Block(5, 1),
    "k5_e1_g2": Block(5, 1, groups=2),
    "k5_e3": Block(5, 3),
    "k5_e6": Block(5, 6),
    "skip": None,
}
NAMES = tuple(BLOCKS)
_NUMBERS = {str(number): name for number, name in enumerate(NAMES)}
STAGES = ((16, 1), (24, 4), (32, 4), (64, 4), (112, 4), (184, 4), (352, 1))
"""Channels and number of layers of every stage."""
LAYERS = sum(layers for _, layers in STAGES)


class Skeleton(NamedTuple):
    """The variant of a data set.

    Attributes:
        input_shape: shape of one input.
        num_classes: number of classes.
        head: channels of the last convolution.
        strides: strides of stem and stages.
    """

    input_shape: tuple[int, ...]
    num_classes: int
    head: int
    strides: tuple[int, ...]


SKELETONS = {
    "cifar100": Skeleton((3, 32, 32), 100, 1504, (1, 1, 1, 2, 2, 1, 2, 1)),
    "imagenet": Skeleton((3, 224, 224), 1000, 1984, (2, 1, 2, 2, 2, 1, 2, 1)),
}


@register_space("fbnet")
class FBNet(SearchSpace):
    """FBNet as HW-NAS-Bench measured it: stem, seven stages of blocks, 1×1 convolution, classifier.

    Args:
        skeleton: the variant, "cifar100" or "imagenet".
        width: factor of all layers' channels, which are rounded to even numbers since some blocks
            have two groups.
        input_shape: shape of one input; None for the variant's.
        num_classes: number of classes; None for the variant's.
    """

    def __init__(
        self,
        skeleton: str = "cifar100",
        width: float = 1.0,
        input_shape: tuple[int, ...] | None = None,
        num_classes: int | None = None,
    ) -> None:
        if skeleton not in SKELETONS:
            raise unknown("FBNet skeleton", skeleton, SKELETONS)
        variant = SKELETONS[skeleton]
        self.skeleton = skeleton
        self.width = width
        self.input_shape = tuple(input_shape or variant.input_shape)
        self.num_classes = variant.num_classes if num_classes is None else num_classes
        if not (width > 0 and min(self.num_classes, *self.input_shape) > 0):
            raise InputError("fbnet: width, classes and input sizes must be positive")

    @property
    def size(self) -> int:
        return len(BLOCKS) ** LAYERS

    @property
    def options(self) -> dict[str, Any]:
        return {
            "skeleton": self.skeleton,
            "width": self.width,
            "input_shape": self.input_shape,
            "num_classes": self.num_classes,
        }

    def ask(self, trial: Trial) -> list[str]:
        """Choose the block of every layer."""
        return [trial.suggest_categorical(_choice(layer), NAMES) for layer in range(LAYERS)]

    def build(self, trial: Trial, net: Network) -> Tensor:
        names = iter(self.ask(trial))
        variant = SKELETONS[self.skeleton]
        stem_stride, *strides = variant.strides
        stem = self._channels(STAGES[0][0])
        x = net.conv_bn_relu(net.input, stem, stride=stem_stride)
        for (channels, layers), stage_stride in zip(STAGES, strides, strict=True):
            for layer in range(layers):
                block = BLOCKS[next(names)]
                stride = 1 if layer else stage_stride
                x = _layer(net, x, block, self._channels(channels), stride)
        x = net.conv_bn_relu(x, self._channels(variant.head), kernel=1)
        return net.classifier(x)

    def _channels(self, channels: int) -> int:
        return max(2, 2 * round(channels * self.width / 2))

    def parse(self, native: str) -> Architecture:
        """Read 22 block numbers or names: `[4, 8, …]`, `4-8-…` or `['k5_e1', 'skip', …]`."""
        names = [_block_name(block) for block in _blocks(native)]
        if len(names) != LAYERS:
            raise InputError(
                f"an FBNet architecture has {LAYERS} blocks, not {len(names)}: {native[:200]!r}"
            )
        choices = tuple((_choice(layer), name) for layer, name in enumerate(names))
        return Architecture(self.name, choices)

    def format(self, arch: Architecture) -> str:
        """Write the block numbers as HW-NAS-Bench does: `[4, 8, …]`."""
        chosen = arch.as_dict()
        return repr([NAMES.index(chosen[_choice(layer)]) for layer in range(LAYERS)])


def _choice(layer: int) -> str:
    return f"layer{layer}"


def _blocks(native: str) -> list[Any]:
    if not native.lstrip().startswith(("[", "(")):
        return native.split("-")
    try:
        return list(ast.literal_eval(native.strip()))
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError) as error:
        raise InputError(f"not a list of {LAYERS} FBNet blocks: {native[:200]!r}") from error


def _block_name(block: object) -> str:
    name = str(block).strip()
    if name in _NUMBERS:
        return _NUMBERS[name]
    if name not in NAMES:
        raise unknown("FBNet block", name, [*NAMES, *_NUMBERS])
    return name


def _layer(
    net: Network,
    x: Tensor,
    block: Block | None,
    channels: int,
    stride: int,
) -> Tensor:
    """Build a block; a skip is an operator only if the shape changes."""
    keeps_shape = stride == 1 and channels == x.shape[1]
    if block is None:
        return x if keeps_shape else net.conv_bn_relu(x, channels, kernel=1, stride=stride)
    with net.block("block"):
        inner = int(x.shape[1]) * block.expansion
        y = net.conv_bn(x, inner, kernel=1, groups=block.groups)
        with net.block("depthwise"):
            y = net.relu(y)
            if block.groups > 1:
                y = net.channel_shuffle(y, block.groups)
            y = net.conv_bn_relu(y, kernel=block.kernel, stride=stride, groups=inner)
        y = net.conv_bn(y, channels, kernel=1, groups=block.groups)
        return net.add(x, y) if keeps_shape else y
