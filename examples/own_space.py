"""A search space of your own, searched for networks that are accurate and small.

python examples/own_space.py [EVALUATIONS]
"""

import sys

import nas
from nas.evaluation.training import TrainingTask
from search_spaces import SearchSpace
from search_spaces.testing import check_space


class InvertedResiduals(SearchSpace):
    """A small MobileNet: stages of inverted residual blocks, each at half of the size before."""

    name = "inverted-residuals"
    input_shape = (1, 8, 8)  # channels, height, width
    num_classes = 10

    def build(self, trial, net):
        width = trial.suggest_categorical("width", [8, 12, 16])
        x = net.conv_bn_relu(net.input, width)
        for stage in range(trial.suggest_int("stages", 1, 3)):
            kernel = trial.suggest_categorical(f"kernel{stage}", [3, 5])
            expansion = trial.suggest_categorical(f"expansion{stage}", [1, 2, 4])
            inner = expansion * x.shape[1]
            y = net.conv_bn_relu(x, inner, kernel=1)
            y = net.conv_bn_relu(y, kernel=kernel, groups=inner)  # depthwise
            if trial.suggest_categorical(f"attention{stage}", [False, True]):
                y = net.squeeze_excite(y, inner // 2)
            x = net.add(x, net.conv_bn(y, x.shape[1], kernel=1))
            x = net.conv_bn_relu(x, width * 2 ** (stage + 1), kernel=1, stride=2)
        return net.classifier(x)


if __name__ == "__main__":
    evaluations = int(sys.argv[1]) if len(sys.argv) > 1 else 60
    space = InvertedResiduals()
    check_space(space, count=5)
    metrics = ("digits_accuracy", "params")
    training = nas.Measurement(metrics, nas.load_dataset("digits"), training=TrainingTask(epochs=2))
    problem = nas.Problem(space, training, {"digits_accuracy": "max", "params": "min"})
    result = nas.search(problem, sampler="rlm", evaluations=evaluations, seed=0)
    print(result.front[[*metrics, "architecture"]].to_string())
