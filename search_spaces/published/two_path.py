"""Two-Path (Mills et al., AAAI 2023, arXiv 2211.17226): two parallel chains of blocks.

                      ┌─ 2-4 blocks ─┐
image ─ conv ─ conv ──┤              ├─ concat ─ conv ─ pooling, linear
                      └─ 2-4 blocks ─┘
"""

from __future__ import annotations

from math import comb
from typing import NamedTuple

from search_spaces.choosers import Trial
from search_spaces.common.errors import InputError
from search_spaces.domains import Choice
from search_spaces.ir.builder import Network, Tensor
from search_spaces.published.gennape import (
    Family,
    chosen_operations,
    literal,
    operation_choices,
    suggest_operations,
)
from search_spaces.registry import register_space
from search_spaces.space import Architecture

CONVOLUTIONS = (
    "conv3x3",
    "double3x3",
    "conv5x5",
    "bottleneck-r2-k3",
    "bottleneck-r4-k3",
    "bottleneck-e2-k3",
    "inception_s3x3",
    "inception_s5x5",
)
SUPPLEMENTS = ("conv1x1", "bottleneck-r2-k1", "bottleneck-e2-k1", "avgpool3x3", "maxpool3x3")
PATHS = ("path1", "path2")
MIN_BLOCKS, MAX_BLOCKS = 2, 4
MAX_OPERATIONS = 3


@register_space("two-path")
class TwoPath(Family):
    """Two-Path: two concatenated paths of 2-4 blocks between a stem and a classifier.

    A 3×3 convolution (512 channels) precedes the classifier. A block is 1-3 operations, at most one
    of them a supplement. In two blocks of each path, the first convolution halves the size and
    doubles the channels; the other blocks are residual. The notation is a dictionary with the
    operations of each path's blocks, and the positions of the two blocks that reduce:

        {'path1': [['conv3x3'], ['maxpool3x3', 'conv5x5']], 'path1_reduce_inds': [0, 1], 'path2': …}
    """

    least_channels = 4

    @property
    def size(self) -> int:
        convolutions = len(CONVOLUTIONS)
        supplements = len(SUPPLEMENTS)
        blocks = convolutions  # of one operation
        for n in range(2, MAX_OPERATIONS + 1):
            blocks += convolutions**n + n * supplements * convolutions ** (n - 1)
        paths = 0
        for n in range(MIN_BLOCKS, MAX_BLOCKS + 1):
            paths += comb(n, 2) * blocks**n  # two of the blocks reduce
        return paths**2

    def ask(self, trial: Trial) -> list[Path]:
        """Choose both paths."""
        return [_ask_path(trial, path) for path in PATHS]

    def build(self, trial: Trial, net: Network) -> Tensor:
        x = net.conv_bn(net.input, self.channels)
        x = net.relu6(x)
        x = net.conv_bn(x, stride=2)
        x = net.relu6(x)
        ends = [_path(net, x, path) for path in self.ask(trial)]
        joined = net.concat(*ends)
        x = net.conv_bn(joined, 16 * self.channels)
        return net.classifier(net.relu6(x))

    def parse(self, native: str) -> Architecture:
        """Read the dictionary of the paths."""
        what = "a dictionary of path1, path1_reduce_inds, path2, path2_reduce_inds"
        network = literal(native, what)
        keys = {name for path in PATHS for name in (path, f"{path}_reduce_inds")}
        if not isinstance(network, dict) or network.keys() != keys:
            raise InputError(f"not {what}: {native[:200]!r}")
        choices: dict[str, Choice] = {}
        for path in PATHS:
            blocks, reduce = network[path], network[f"{path}_reduce_inds"]
            lists = isinstance(blocks, list)
            lists = lists and all(isinstance(block, list) and block for block in blocks)
            if not lists or not isinstance(reduce, list) or len(reduce) != 2:
                raise InputError(
                    f"two-path: {path} must be lists of operations, with 2 reduce_inds: "
                    f"{native[:200]!r}"
                )
            choices[f"{path}_blocks"] = len(blocks)
            choices[f"{path}_reduce0"] = reduce[0]
            choices[f"{path}_reduce1"] = reduce[1]
            for b, operations in enumerate(blocks):
                choices |= operation_choices(f"{path}_block{b}", operations, SUPPLEMENTS)
        return self.architecture(choices)

    def format(self, arch: Architecture) -> str:
        """Write the dictionary of the paths."""
        chosen = arch.as_dict()
        written = {}
        for path in PATHS:
            names = [f"{path}_block{b}" for b in range(chosen[f"{path}_blocks"])]
            written[path] = [chosen_operations(chosen, name) for name in names]
            written[f"{path}_reduce_inds"] = [chosen[f"{path}_reduce0"], chosen[f"{path}_reduce1"]]
        return repr(written)


class Path(NamedTuple):
    """Operations of every block, and positions of the two blocks that halve the size."""

    blocks: list[list[str]]
    reducing: tuple[int, int]


def _ask_path(trial: Trial, name: str) -> Path:
    blocks = trial.suggest_int(f"{name}_blocks", MIN_BLOCKS, MAX_BLOCKS)
    first = trial.suggest_int(f"{name}_reduce0", 0, blocks - 2)
    second = trial.suggest_int(f"{name}_reduce1", first + 1, blocks - 1)
    operations = []
    for b in range(blocks):
        block = f"{name}_block{b}"
        operations.append(
            suggest_operations(trial, block, 1, MAX_OPERATIONS, CONVOLUTIONS, SUPPLEMENTS)
        )
    return Path(operations, (first, second))


def _path(net: Network, x: Tensor, path: Path) -> Tensor:
    for b, operations in enumerate(path.blocks):
        with net.block("block"):
            x = _block(net, x, operations, b in path.reducing)
    return x


def _block(
    net: Network,
    x: Tensor,
    operations: list[str],
    reduce: bool,
) -> Tensor:
    y = x
    for name in operations:
        reducing = reduce and name in CONVOLUTIONS
        with net.block("operation"):
            y = _operation(net, y, name, 2 if reducing else 1)
        reduce = reduce and not reducing
    return net.add(x, y) if y.shape == x.shape else y


def _operation(
    net: Network,
    x: Tensor,
    name: str,
    factor: int,
) -> Tensor:
    """Apply an operation whose stride is `factor` and which multiplies the channels by `factor`."""
    kind, *sizes = name.split("-")
    if kind == "avgpool3x3":
        return net.batch_norm(net.avg_pool(x))
    if kind == "maxpool3x3":
        return net.batch_norm(net.max_pool(x))
    kernel = int(name[-1])
    width = int(x.shape[1])
    channels = factor * width
    if kind.startswith("conv"):
        return net.relu6(net.conv_bn(x, channels, kernel, stride=factor))
    if kind.startswith("inception_s"):
        x = net.relu6(net.conv_bn(x, channels, (1, kernel), stride=factor))
        return net.relu6(net.conv_bn(x, kernel=(kernel, 1)))

    # Two convolutions with another width between them: expanded or reduced.
    inner = width
    if sizes:
        inner = {"e2": 2 * width, "r2": width // 2, "r4": width // 4}[sizes[0]]
    x = net.relu6(net.conv_bn(x, inner, kernel, stride=factor))
    return net.relu6(net.conv_bn(x, channels, kernel))
