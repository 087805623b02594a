"""HiAML (Mills et al., AAAI 2023, arXiv 2211.17226): four stages, each built from one of 14 small
residual blocks.

    image ─ conv ─ A A ─ B B ─ C C ─ D D ─ pooling, linear
            64     64    128   128   256 channels
"""

from __future__ import annotations

from search_spaces.choosers import Trial
from search_spaces.common.errors import InputError
from search_spaces.ir.builder import Network, Tensor
from search_spaces.published.gennape import Family, literal
from search_spaces.registry import register_space
from search_spaces.space import Architecture

STAGES = 4
BLOCKS_PER_STAGE = 2

Step = tuple[str, tuple[int, ...]]

# Steps of a block: an operation and the values whose sum it reads; 0 is the block's input, n the
# result of step n. The last entry lists the values whose sum, after a ReLU, is the block's output.
# A step `…_keep` keeps channels and size even in a block that doubles the channels and halves the
# size.
BLOCKS: dict[str, tuple[tuple[Step, ...], tuple[int, ...]]] = {
    "hiaml_z": ((("conv3x3_relu", (0,)), ("inception_s", (1,))), (1, 2)),
    "hiaml_a22": ((("conv3x3_relu", (0,)), ("conv1x1_relu", (1,)), ("conv1x1", (2,))), (1, 3)),
    "hiaml_b23": ((("inception_s", (0,)), ("inception_s", (1,))), (0, 2)),
    "hiaml_j30": ((("conv3x3_relu", (0,)), ("inception_s", (1,))), (0, 2)),
    "hiaml_g30": ((("inception_s", (0,)), ("inception_s", (0, 1)), ("conv1x1", (2,))), (1, 3)),
    "hiaml_r30": ((("inception_s", (0,)), ("conv1x1", (0, 1)), ("inception_s", (1,))), (0, 2, 3)),
    "hiaml_l20": ((("conv3x3_relu", (0,)), ("conv1x1", (1,))), (2,)),
    "hiaml_t20": ((("conv1x1", (0,)), ("inception_s", (0,))), (1, 2)),
    "hiaml_t31": (
        (("inception_s", (0,)), ("conv1x1_relu", (1,)), ("inception_s", (0, 2))),
        (0, 2, 3),
    ),
    "hiaml_src0": ((("conv1x1_relu", (0,)), ("conv3x3_relu", (1,)), ("conv3x3", (2,))), (1, 3)),
    "hiaml_src1": (
        (("conv1x1_relu", (0,)), ("conv3x3_relu_keep", (0,)), ("conv3x3", (2,))),
        (1, 3),
    ),
    "hiaml_src3": (
        (("conv1x1", (0,)), ("conv1x1_relu_keep", (0,)), ("conv3x3_relu", (2,)), ("conv1x1", (3,))),
        (1, 4),
    ),
    "hiaml_src7": ((("conv1x1", (0,)), ("inception_s", (1,)), ("inception_s", (2,))), (1, 3)),
    "hiaml_src8": ((("conv1x1", (0,)), ("inception_s", (1,)), ("conv1x1", (2,))), (1, 3)),
}


@register_space("hiaml")
class HiAML(Family):
    """HiAML: a stem, four stages of two equal blocks, and a classifier; 14⁴ networks.

    The stem has stride 2 and 64 channels. The first blocks of the second and fourth stage double
    the channels and halve the size. The notation is a list of the four blocks' names, `['hiaml_z',
    'hiaml_a22', 'hiaml_src0', 'hiaml_t31']`.
    """

    default_channels = 64

    @property
    def size(self) -> int:
        return len(BLOCKS) ** STAGES

    def ask(self, trial: Trial) -> list[str]:
        """Choose the block of every stage."""
        names = tuple(BLOCKS)
        return [trial.suggest_categorical(f"stage{stage}", names) for stage in range(STAGES)]

    def build(self, trial: Trial, net: Network) -> Tensor:
        x = net.conv_bn_relu(net.input, self.channels, stride=2)
        for stage, name in enumerate(self.ask(trial)):
            for index in range(BLOCKS_PER_STAGE):
                reduces = stage % 2 == 1 and index == 0
                with net.block("block"):
                    x = _block(net, x, name, reduces)
        return net.classifier(x)

    def parse(self, native: str) -> Architecture:
        """Read the list of the four blocks' names."""
        what = f"a list of {STAGES} HiAML blocks"
        names = literal(native, what)
        if not isinstance(names, list) or len(names) != STAGES:
            raise InputError(f"not {what}: {native[:200]!r}")
        return self.architecture({f"stage{stage}": name for stage, name in enumerate(names)})

    def format(self, arch: Architecture) -> str:
        """Write the list of the four blocks' names."""
        chosen = arch.as_dict()
        return repr([chosen[f"stage{stage}"] for stage in range(STAGES)])


def _block(
    net: Network,
    x: Tensor,
    name: str,
    reduce: bool,
) -> Tensor:
    """Build one block; with `reduce` it doubles the channels and halves the size.

    The first operation on every path from the input reduces; where the input itself is added, a 1×1
    convolution does.
    """
    steps, outputs = BLOCKS[name]
    values = [x]
    full = [reduce]  # True for values that are still to be reduced

    def total(sources: tuple[int, ...]) -> Tensor:
        """Sum of values.

        A single value is returned as it is, since the operation that reads it reduces.
        """
        if len(sources) == 1:
            return values[sources[0]]
        terms = []
        for source in sources:
            value = values[source]
            terms.append(_convolve(net, value, "conv1x1", True) if full[source] else value)
        return net.add(*terms)

    for operation, sources in steps:
        keep = operation.endswith("_keep")
        late = len(sources) == 1 and full[sources[0]]
        kind = operation.removesuffix("_keep")
        values.append(_convolve(net, total(sources), kind, reduce=late and not keep))
        full.append(late and keep)
    return net.relu(total(outputs))


def _convolve(
    net: Network,
    x: Tensor,
    operation: str,
    reduce: bool,
) -> Tensor:
    stride = 2 if reduce else 1
    channels = stride * int(x.shape[1])
    if operation == "inception_s":
        with net.block("inception_s"):
            x = net.relu6(net.conv_bn(x, channels, kernel=(1, 3), stride=stride))
            return net.relu6(net.conv_bn(x, kernel=(3, 1)))
    kernel = 3 if operation.startswith("conv3x3") else 1
    x = net.conv_bn(x, channels, kernel=kernel, stride=stride)
    return net.relu6(x) if operation.endswith("_relu") else x
