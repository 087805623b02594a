"""A small residual space, as an example of a plug-in and for tests.

image ─ conv ─ 1-3 blocks ─ conv, stride 2 ─ 1-3 blocks ─ conv, stride 2 ─ 1-3 blocks ─ classifier

block:  ──┬─ conv ─ conv ─ + ─ ReLU ──
          └────────────────┘
"""

from __future__ import annotations

from search_spaces.choosers import Trial
from search_spaces.ir.builder import Network, Tensor
from search_spaces.registry import register_space
from search_spaces.space import SearchSpace


@register_space("tiny-resnet")
class TinyResNet(SearchSpace):
    """Three stages of residual blocks.

    The choices are the width, and kernel, bottleneck and 1-3 blocks per stage.
    """

    input_shape = (3, 32, 32)
    num_classes = 10

    @property
    def size(self) -> int:
        return 3 * (3 * 2 * 2) ** 3

    def build(self, trial: Trial, net: Network) -> Tensor:
        width = trial.suggest_categorical("width", [8, 16, 32])
        x = net.conv_bn_relu(net.input, width)
        for stage in range(3):
            kernel = trial.suggest_categorical(f"stage{stage}_kernel", [3, 5])
            bottleneck = trial.suggest_categorical(f"stage{stage}_bottleneck", [False, True])
            if stage:
                x = net.conv_bn_relu(x, width * 2**stage, stride=2)
            for _ in range(trial.suggest_int(f"stage{stage}_blocks", 1, 3)):
                with net.block("block"):
                    x = _residual(net, x, kernel, bottleneck)
        return net.classifier(x)


def _residual(
    net: Network,
    x: Tensor,
    kernel: int,
    bottleneck: bool,
) -> Tensor:
    channels = int(x.shape[1])
    inner = channels // 2 if bottleneck else channels
    y = net.conv_bn_relu(x, inner, kernel=1 if bottleneck else kernel)
    y = net.conv_bn(y, channels, kernel=kernel)
    return net.relu(net.add(x, y))
