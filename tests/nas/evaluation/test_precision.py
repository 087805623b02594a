"""Claims about precision as a choice: the text carries it, and the int8 file has exactly these blocks
on integers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
import torch
from torch import nn

import nas
from nas.evaluation import int8
from nas.evaluation.export import trained_model
from nas.evaluation.trainable import Trainable
from search_spaces import InputError, SearchSpace, from_text, to_text
from search_spaces.ir.precision import quantized_nodes

PRECISIONS = ["fp32", "int8"]


class Blocks(SearchSpace):
    """Three residual blocks."""

    name = "blocks"
    input_shape = (1, 8, 8)
    num_classes = 10

    def build(self, trial: Any, net: Any) -> Any:
        with net.precision("fp32"):
            x = net.conv_bn_relu(net.input, 8)
        for i in range(3):
            with net.precision(trial.suggest_categorical(f"block{i}", PRECISIONS)):
                x = net.relu(net.add(x, net.conv_bn(net.conv_bn_relu(x))))
        with net.precision("fp32"):
            return net.classifier(x)


class Plain(Blocks):
    """The same network without a word about precision."""

    def build(self, trial: Any, net: Any) -> Any:
        x = net.conv_bn_relu(net.input, 8)
        for _ in range(3):
            x = net.relu(net.add(x, net.conv_bn(net.conv_bn_relu(x))))
        return net.classifier(x)


def assignment(*precisions: str) -> Any:
    return Blocks().architecture({f"block{i}": p for i, p in enumerate(precisions)})


def integer_layers(quantized: bytes) -> set[str]:
    """Names of the convolutions and products whose weights are integers in a file."""
    graph = onnx.load_from_string(quantized).graph
    makers = {output: node for node in graph.node for output in node.output}
    return {
        node.name
        for node in graph.node
        if node.op_type in ("Conv", "Gemm", "MatMul")
        and node.input[1] in makers
        and makers[node.input[1]].op_type == "DequantizeLinear"
    }


def test_the_text_carries_precisions_through_onnx_and_back() -> None:
    space, texts = Blocks(), set()
    for precisions in (("fp32", "int8", "fp32"), ("int8",) * 3, ("fp32",) * 3):
        text = space.to_text(assignment(*precisions))
        model = space.to_onnx(assignment(*precisions))
        onnx.checker.check_model(model)
        assert to_text(model) == text
        assert to_text(from_text(text)) == text
        texts.add(text)
    assert len(texts) == 3
    assert 'net.ConvBn <kernel = [3,3], precision = "int8"> (' in texts.pop() + "".join(texts)


def test_a_network_without_precisions_has_none_in_its_text() -> None:
    text = Plain().to_text(Plain().architecture({}))
    assert "precision" not in text
    assert quantized_nodes(Plain().to_onnx(Plain().architecture({}))) is None
    marked = Blocks().to_text(assignment("fp32", "fp32", "fp32"))
    assert marked.replace(', precision = "fp32"', "").replace("precision", "") == text


def test_the_int8_file_has_exactly_the_chosen_blocks_on_integers() -> None:
    samples = np.random.default_rng(0).standard_normal((32, 1, 8, 8)).astype(np.float32)
    for precisions, count in ((("int8", "fp32", "int8"), 4), (("int8",) * 3, 6)):
        model = Blocks().to_onnx(assignment(*precisions))
        found = integer_layers(int8.quantize(model, samples))
        assert found == set(quantized_nodes(model) or ())
        assert len(found) == count
    floats = Blocks().to_onnx(assignment("fp32", "fp32", "fp32"))
    assert not integer_layers(int8.quantize(floats, samples))
    assert (
        len(integer_layers(int8.quantize(Plain().to_onnx(Plain().architecture({})), samples))) == 8
    )


def test_activations_between_integer_layers_are_integers_too() -> None:
    samples = np.random.default_rng(0).standard_normal((32, 1, 8, 8)).astype(np.float32)
    operators = []
    for precisions in (("int8",) * 3, ("int8", "fp32", "int8")):
        graph = onnx.load_from_string(
            int8.quantize(Blocks().to_onnx(assignment(*precisions)), samples)
        ).graph
        operators.append([node.op_type for node in graph.node].count("Relu"))
    # Quantization clips at zero by itself, where nothing but integers meet.
    assert operators[0] < operators[1]


def build(trial: Any) -> nn.Module:
    precision = trial.suggest_categorical("precision", PRECISIONS)
    return nn.Sequential(
        nas.set_precision(nn.Conv2d(1, 8, 3), precision),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3),
        nn.Flatten(),
        nas.set_precision(nn.Sequential(nn.Linear(128, 10), nn.Linear(10, 10)), "int8"),
    )


def test_modules_say_their_precision() -> None:
    space = nas.TorchSpace(build, torch.zeros(1, 1, 8, 8))
    chosen, other = (space.architecture({"precision": p}) for p in ("int8", "fp32"))
    text = space.to_text(chosen)
    assert text.count('precision = "int8"') == 3
    assert space.to_text(other).count('precision = "int8"') == 2
    # Of trained weights, too; the layer that says nothing stays as it is.
    model = trained_model(Trainable.of(space, chosen), space.module(chosen).state_dict())
    samples = np.random.default_rng(0).standard_normal((8, 1, 8, 8)).astype(np.float32)
    assert len(integer_layers(int8.quantize(model, samples))) == 3


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.inner(x)


class Net(nn.Module):
    """A stem, two residual blocks, a head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 16, 3, padding=1)
        self.blocks = nn.ModuleList(Residual() for _ in range(2))
        self.head = nn.Linear(16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x.relu().mean((2, 3)))


def test_blocks_of_a_trained_model_choose_their_precision() -> None:
    x = torch.zeros(1, 1, 8, 8)
    space = nas.Subnetworks(Net(), x, precision=("fp32", "int8"))
    assert list(space.precision_blocks) == ["stem", "blocks.0", "blocks.1", "head"]
    assert space.precision_blocks["blocks.1"] == ["blocks.1.inner.0", "blocks.1.inner.2"]
    chosen = space.architecture(
        space.whole.as_dict() | {"precision.blocks.1": "int8", "precision.head": "int8"}
    )
    model = space.to_onnx(chosen)
    assert len(quantized_nodes(model) or ()) == 3
    assert to_text(model) == space.to_text(chosen)
    # Left out with its block, and no trace without the option.
    assert to_text(space.to_onnx(space.shallow(0.5))).count("precision") == 4
    floats, integers = space.initial_designs(2)
    assert floats == space.whole
    assert len(quantized_nodes(space.to_onnx(integers)) or ()) == 6
    plain = nas.Subnetworks(Net(), x)
    assert "precision" not in plain.to_text(plain.whole)
    assert "precision" not in plain.options
    assert space.options["precision"] == ["fp32", "int8"]


def test_a_search_by_int8_scores_quantizes_what_each_network_says() -> None:
    seen: list[int] = []
    x, y = torch.randn(64, 1, 8, 8), torch.randint(10, (64,))

    def evaluate(model: nn.Module, architecture: Any, report: Any) -> dict[str, float]:
        nn.functional.cross_entropy(model.train()(x), y).backward()
        if isinstance(model, nas.OnnxModule):
            seen.append(architecture.as_dict()["block0"] == "int8")
        return {"accuracy": float((model.eval()(x).argmax(1) == y).float().mean())}

    problem = nas.Problem(Blocks(), evaluate, {"int8_accuracy": "max"})
    result = nas.search(problem, sampler="random", evaluations=2)
    assert len(result.networks) == len(seen) == 2


@pytest.mark.parametrize(
    ("precision", "message"),
    [("int4", "unknown precision 'int4'"), ("fp16", "precision fp16 is for GPUs")],
)
def test_unknown_precisions_are_refused(precision: str, message: str) -> None:
    x = torch.zeros(1, 1, 8, 8)
    with pytest.raises(InputError, match=message):
        nas.Subnetworks(Net(), x, precision=("fp32", precision))
    with pytest.raises(InputError, match=message):
        nas.set_precision(Net(), precision)
    text = Blocks().to_text(assignment("int8", "int8", "int8"))
    with pytest.raises(InputError, match=message):
        from_text(text.replace('"int8"', f'"{precision}"'))
