"""Inception (Mills et al., AAAI 2023, arXiv 2211.17226): stages of blocks of one to four parallel
paths.

    image ─ conv ─ stage 1 ─ stage 2 ─ stage 3 ─ stage 4 ─ conv ─ pooling, linear
            32     32        64        128       256       512 channels

              ┌─ path ─┐
    block:  ──┼─ path ─┼─ concat ─ 1×1 conv ─ + ──
              ├────────┘                      │
              └───────────────────────────────┘
"""

from __future__ import annotations

from itertools import product
from math import prod
from typing import Any, NamedTuple

from search_spaces.choosers import ReplayChooser, Trial
from search_spaces.common.errors import InputError
from search_spaces.domains import Choice
from search_spaces.ir.builder import Network, Tensor
from search_spaces.ir.ops.convolution import Convolution, same_pads
from search_spaces.published.gennape import Family, literal, operation_choices, suggest_operations
from search_spaces.registry import register_space
from search_spaces.space import Architecture

CONVOLUTIONS = (
    "conv3x3",
    "inception_s3x3",
    "inception_p3x3",
    "depthwise3x3",
    "conv5x5",
    "depthwise5x5",
    "inception_s5x5",
    "inception_p5x5",
)
SUPPLEMENTS = ("conv1x1", "double1x1", "avgpool3x3", "maxpool3x3")
RESIZING = (*CONVOLUTIONS, "conv1x1", "double1x1")
"""Operations that can change the number of channels."""
STAGES = 4
MIN_BLOCKS, MAX_BLOCKS = 2, 6
OPERATIONS = {1: (1, 3), 2: (1, 4), 3: (2, 8), 4: (2, 10)}
"""By number of paths: fewest operations per path, most operations of all paths together."""
MIN_WIDTH = 16


class Path(NamedTuple):
    """One path of a block.

    Attributes:
        operations: names of the operations.
        inner: channels between the first and the last operation that can change them.
        outer: channels after the last of these.
    """

    operations: list[str]
    inner: int
    outer: int


@register_space("inception")
class Inception(Family):
    """GENNAPE's Inception: a stem, four stages of 2-6 equal blocks, and a classifier.

    The stem has 32 channels; a 3×3 convolution (512 channels) precedes the classifier. Stages two
    to four begin by doubling the channels and halving the size. A block concatenates 1-4 paths,
    restores the stage's width by a 1×1 convolution if needed, and is residual if it keeps the
    shape. A path is 1-6 operations, at most one of them a supplement. Its first convolution has the
    stride. Between the first and the last operation that can change channels, its width may be
    halved or doubled. As published, convolutions have a bias before batch normalization; the
    convolution that changes the channels for a depthwise one has neither bias nor normalization.

    The notation is a list with one dictionary per stage:

        {'n_blocks': 3, 'paths': [{'ops': ['conv3x3', 'conv1x1'], 'C_internal': 16, 'C_out': 32}]}
    """

    least_channels = 4

    @property
    def size(self) -> int:
        lengths = MAX_BLOCKS - MIN_BLOCKS + 1
        return prod(lengths * _count_blocks(self._width(stage)) for stage in range(STAGES))

    def _width(self, stage: int) -> int:
        return self.channels * 2**stage

    def ask(self, trial: Trial) -> list[tuple[int, list[Path]]]:
        """Choose the number of blocks of every stage, and the paths of each."""
        stages = []
        for stage in range(STAGES):
            stages.append(_suggest_stage(trial, f"stage{stage}", self._width(stage)))
        return stages

    def build(self, trial: Trial, net: Network) -> Tensor:
        x = _conv(net, net.input, self.channels, (3, 3))
        for stage, (blocks, paths) in enumerate(self.ask(trial)):
            width = self._width(stage)
            for index in range(blocks):
                stride = 2 if stage and not index else 1
                with net.block("block"):
                    x = _block(net, x, paths, width, stride)
        return net.classifier(_conv(net, x, 16 * self.channels, (3, 3)))

    def parse(self, native: str) -> Architecture:
        """Read the list of the stages."""
        what = (
            f"a list of {STAGES} stages "
            f"{{'n_blocks': …, 'paths': [{{'ops': …, 'C_internal': …, 'C_out': …}}]}}"
        )
        stages = literal(native, what)
        try:
            choices: dict[str, Choice] = {}
            for number in range(STAGES):
                choices |= _stage_choices(f"stage{number}", stages[number])
        except (TypeError, LookupError, ValueError) as error:
            raise InputError(f"not {what}: {native[:200]!r}") from error
        arch = self._chosen(ReplayChooser(choices))
        if literal(self.format(arch), what) != stages:
            raise InputError(
                "inception: these channels or numbers of stages are not in the space: "
                f"{native[:200]!r}"
            )
        return arch

    def format(self, arch: Architecture) -> str:
        """Write the list of the stages."""
        stages = []
        for blocks, paths in self.ask(ReplayChooser(arch.as_dict())):
            written = []
            for path in paths:
                written.append(
                    {"ops": path.operations, "C_internal": path.inner, "C_out": path.outer}
                )
            stages.append({"n_blocks": blocks, "paths": written})
        return repr(stages)


# --- choices


def _widths(channels: int, paths: int, widest: int) -> list[int]:
    """Channels of the paths, at least 16.

    They are equal shares of the stage's; of three paths, one has half and two have a quarter.
    """
    part = channels // (4 if paths == 3 else paths)
    widths = [part] * paths
    if paths == 3:
        widths[widest] = 2 * part
    return [max(MIN_WIDTH, width) for width in widths]


def _suggest_stage(trial: Trial, prefix: str, channels: int) -> tuple[int, list[Path]]:
    """Choose the number of blocks, and the paths of each."""
    # 1. How many blocks and paths, and which path is the widest, if they cannot be equal.
    blocks = trial.suggest_int(f"{prefix}_blocks", MIN_BLOCKS, MAX_BLOCKS)
    count = trial.suggest_int(f"{prefix}_paths", 1, len(OPERATIONS))
    widest = 0
    if count == 3 and len(set(_widths(channels, 3, 0))) > 1:
        widest = trial.suggest_int(f"{prefix}_widest", 0, 2)

    # 2. The operations of each path. The paths after it need their share of the operations.
    fewest, room = OPERATIONS[count]
    paths: list[Path] = []
    for p, outer in enumerate(_widths(channels, count, widest)):
        path = f"{prefix}_path{p}"
        paths_after = count - p - 1
        limit = room - fewest * paths_after
        operations = suggest_operations(trial, path, fewest, limit, CONVOLUTIONS, SUPPLEMENTS)
        room -= len(operations)

        # 3. Its inner width: half, equal or double.
        inner = outer
        if _resizable(operations):
            can_be_halved = outer >= 2 * MIN_WIDTH
            scale = trial.suggest_int(f"{path}_inner", -1 if can_be_halved else 0, 1)
            inner = {-1: outer // 2, 0: outer, 1: outer * 2}[scale]
        paths.append(Path(operations, inner, outer))
    return blocks, paths


def _stage_choices(prefix: str, stage: Any) -> dict[str, Choice]:
    """The choices for a stage of the notation, including some that `ask` may not make."""
    outer = [path["C_out"] for path in stage["paths"]]
    choices: dict[str, Choice] = {}
    choices[f"{prefix}_blocks"] = stage["n_blocks"]
    choices[f"{prefix}_paths"] = len(outer)
    choices[f"{prefix}_widest"] = outer.index(max(outer, default=0))
    for p, path in enumerate(stage["paths"]):
        name = f"{prefix}_path{p}"
        choices |= operation_choices(name, path["ops"], SUPPLEMENTS)
        wider = path["C_internal"] > path["C_out"]
        narrower = path["C_internal"] < path["C_out"]
        choices[f"{name}_inner"] = wider - narrower
    return choices


def _resizable(operations: list[str]) -> bool:
    """True if at least two operations can change channels: one changes, another restores them."""
    return sum(name in RESIZING for name in operations) > 1


def _count_blocks(channels: int) -> int:
    """Number of different choices for a block."""
    total = 0
    for count, (fewest, most) in OPERATIONS.items():
        widths = _widths(channels, count, 0)
        blocks = 0
        for lengths in product(range(fewest, most + 1), repeat=count):
            if sum(lengths) <= most:
                blocks += prod(map(_count_paths, lengths, widths))
        total += blocks * (3 if len(set(widths)) > 1 else 1)  # any of three may be the widest
    return total


def _count_paths(length: int, outer: int) -> int:
    """Number of different choices for a path of `length` operations."""
    inner = 3 if outer >= 2 * MIN_WIDTH else 2  # widths inside
    convolutions = len(CONVOLUTIONS)
    resizing = len(RESIZING) - convolutions
    if length == 1:
        return convolutions
    # 1. Convolutions alone.
    plain = convolutions**length * inner
    # 2. One of them replaced by a supplement, which may change the width.
    places = length * convolutions ** (length - 1)
    changing = places * resizing * inner
    keeping = places * (len(SUPPLEMENTS) - resizing)
    if length > 2:
        keeping *= inner
    return plain + changing + keeping


# --- network


def _block(
    net: Network,
    x: Tensor,
    paths: list[Path],
    channels: int,
    stride: int,
) -> Tensor:
    ys = [_path(net, x, path, stride) for path in paths]
    y = net.concat(*ys) if len(ys) > 1 else ys[0]
    if y.shape[1] != channels:
        y = _conv_bn(net, y, channels, (1, 1))
    return net.add(x, y) if y.shape == x.shape else y


def _path(
    net: Network,
    x: Tensor,
    path: Path,
    stride: int,
) -> Tensor:
    """Build the operations of a path; the first convolution has the stride."""
    strided = next(i for i, name in enumerate(path.operations) if name in CONVOLUTIONS)
    resizing = [i for i, name in enumerate(path.operations) if name in RESIZING]
    for i, name in enumerate(path.operations):
        channels = int(x.shape[1])
        if i == resizing[0]:
            channels = path.inner
        elif i == resizing[-1]:
            channels = path.outer
        x = _operation(net, x, name, channels, stride if i == strided else 1)
    return x


def _operation(
    net: Network,
    x: Tensor,
    name: str,
    channels: int,
    stride: int,
) -> Tensor:
    kernel = int(name[-1])
    square, row, column = (kernel, kernel), (1, kernel), (kernel, 1)
    if name == "avgpool3x3":
        return net.batch_norm(net.avg_pool(x))
    if name == "maxpool3x3":
        return net.batch_norm(net.max_pool(x))
    if name.startswith("inception_s"):
        with net.block("inception_s"):
            x = _conv(net, x, channels, row, (1, stride))
            return _conv(net, x, channels, column, (stride, 1))
    if name.startswith("inception_p"):
        with net.block("inception_p"):
            return _inception_p(net, x, channels, row, column, stride)
    if name.startswith("double"):
        with net.block("double"):
            x = _conv(net, x, channels, square)
            return _conv(net, x, channels, square)
    if name.startswith("depthwise"):
        if x.shape[1] != channels:
            x = net.conv(x, channels, kernel=1)
        return _conv(net, x, channels, square, (stride, stride), groups=channels)
    return _conv(net, x, channels, square, (stride, stride))


def _inception_p(
    net: Network,
    x: Tensor,
    channels: int,
    row: tuple[int, int],
    column: tuple[int, int],
    stride: int,
) -> Tensor:
    """Row and column convolutions in parallel, for half of the channels each.

    With a stride, each is followed by the other.
    """
    half = channels // 2
    a = _conv_bn(net, x, half, row, (1, stride))
    b = _conv_bn(net, x, channels - half, column, (stride, 1))
    if stride != 1:
        a = _conv_bn(net, a, half, column, (stride, 1))
        b = _conv_bn(net, b, channels - half, row, (1, stride))
    return net.relu6(net.concat(a, b))


def _conv(
    net: Network,
    x: Tensor,
    channels: int,
    kernel: tuple[int, int],
    strides: tuple[int, int] = (1, 1),
    groups: int = 1,
) -> Tensor:
    with net.block("conv"):
        return net.relu6(_conv_bn(net, x, channels, kernel, strides, groups))


def _conv_bn(
    net: Network,
    x: Tensor,
    channels: int,
    kernel: tuple[int, int],
    strides: tuple[int, int] = (1, 1),
    groups: int = 1,
) -> Tensor:
    conv = Convolution(
        int(x.shape[1]),
        channels,
        kernel,
        strides,
        same_pads(kernel),
        (1, 1),
        groups,
        bias=True,
    )
    return net.batch_norm(net.op("Conv", x, attrs=conv.attrs))
