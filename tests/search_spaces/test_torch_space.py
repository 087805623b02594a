"""Claims about `TorchSpace`: PyTorch code as it stands is a search space."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import nn

from search_spaces import InputError, TorchSpace, get_space, params, to_text
from search_spaces.testing import check_space


def convolutions(trial: Any, num_classes: int = 10) -> nn.Module:
    width = trial.suggest_int("width", 8, 32, step=8)
    layers: list[nn.Module] = [nn.Conv2d(1, width, 3, padding=1), nn.ReLU()]
    for _ in range(trial.suggest_int("depth", 0, 2)):
        layers += [
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
        ]
    return nn.Sequential(
        *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, num_classes)
    )


convolutions.example_input = torch.zeros(1, 1, 8, 8)  # type: ignore[attr-defined]


class Recurrent(nn.Module):
    """Token ids, embedded and read by an LSTM."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.words, self.lstm = nn.Embedding(20, width), nn.LSTM(width, width, batch_first=True)
        self.head = nn.Linear(width, 3)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(self.words(ids))[0][:, -1])


class Two(nn.Module):
    """Two inputs by name, one of them of vectors, and two outputs."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, width), nn.Linear(6, width)

    def forward(self, image: torch.Tensor, vector: torch.Tensor) -> dict[str, torch.Tensor]:
        y = self.first(image).mean(1) + self.second(vector)
        return {"sum": y, "mean": y.mean(-1)}


class Sequences(TorchSpace):
    """A space as a class."""

    name = "sequences"
    example_input = torch.zeros(2, 7, dtype=torch.int64)

    def build(self, trial: Any) -> nn.Module:  # type: ignore[override]
        return Recurrent(trial.suggest_categorical("width", [4, 8, 12]))


def two(trial: Any) -> nn.Module:
    return Two(trial.suggest_int("width", 1, 64))


TWO_INPUTS = {"vector": torch.zeros(3, 6), "image": torch.zeros(3, 5, 4)}
SPACES = {
    "images": lambda: TorchSpace(convolutions),
    "token ids": Sequences,
    "two inputs": lambda: TorchSpace(two, TWO_INPUTS),
}


@pytest.mark.parametrize("name", SPACES)
def test_spaces_of_modules_conform(name: str) -> None:
    check_space(SPACES[name](), count=3)


def test_costs_are_those_of_the_module() -> None:
    space = TorchSpace(convolutions)
    arch = space.architecture({"width": 16, "depth": 1})
    module = space.module(arch)
    assert (
        space.params(arch)
        == params(space.to_onnx(arch))
        == sum(p.numel() for p in module.parameters())
    )
    assert module(torch.zeros(4, 1, 8, 8)).shape == (4, 10)
    assert module.get_parameter("0.weight").std() > 0  # it has its initial weights
    assert to_text(space.to_onnx(arch)) == space.to_text(arch)


def test_keyword_arguments_of_build_are_options() -> None:
    space = TorchSpace(convolutions, num_classes=3)
    assert (space.options, space.num_classes, space.input_shape) == (
        {"num_classes": 3},
        3,
        (1, 8, 8),
    )
    with pytest.raises(TypeError, match="depth"):
        TorchSpace(convolutions, depth=3)


FILE = """
import torch
from torch import nn

def build(trial, input_shape=(1, 8, 8)):
    width = trial.suggest_categorical("width", [2, 3])
    return nn.Sequential(nn.Flatten(), nn.Linear(input_shape[1] * input_shape[2], width), nn.Linear(width, 10))

build.example_input = torch.zeros(1, 1, 8, 8)

def helper(x):
    return x
"""


@pytest.mark.parametrize("reference", ["my.py:build", "my.py"])
def test_function_in_a_file_is_a_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reference: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my.py").write_text(FILE)
    space = get_space(reference)
    assert space.name == reference
    assert space.params(space.architecture({"width": 2})) == 64 * 2 + 2 + 2 * 10 + 10
    wide = get_space(reference, input_shape=(1, 4, 4))
    assert (wide.input_shape, wide.params(wide.architecture({"width": 2}))) == (
        (1, 4, 4),
        16 * 2 + 2 + 2 * 10 + 10,
    )
    with pytest.raises(InputError, match="does not take these options"):
        get_space(reference, color="red")


NO_SPACES = """
import torch
from search_spaces import TorchSpace
from torch import nn

build = lambda trial: nn.Linear(4, trial.suggest_int("width", 1, 8))

class Module(nn.Module):
    pass

class Space(TorchSpace):
    pass

space = TorchSpace(build, torch.zeros(1, 4))
"""
MISTAKES = {
    "my.py:build": r"my.py:build has no example input: give one, such as `build.example_input = torch.zeros\(",
    "my.py:Space": r"my.py:Space has no example input: give one, such as `example_input = torch.zeros\(",
    "my.py:Module": r"my.py:Module cannot be the space or network: it is a class; give a function `build\(trial\)`",
    "my.py:nn": "my.py:nn cannot be the space or network: it is a value of type module",
    "my.py:space": "my.py:space cannot be the space or network: it is a value of type TorchSpace",
    "my.py:TorchSpace": "my.py:TorchSpace cannot be the space or network: it is a class of another "
    "file",
    "my.py:bild": "unknown space or network in my.py: 'bild': did you mean 'build'?",
    "my.py": "my.py: name the space or network, my.py:NAME, .*; the file has build, Space",
}


@pytest.mark.parametrize("reference", MISTAKES)
def test_a_name_that_is_not_a_space_says_what_is_missing(
    reference: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my.py").write_text(NO_SPACES)
    with pytest.raises(InputError, match=MISTAKES[reference]) as raised:
        get_space(reference)
    assert "\n" not in str(raised.value)


def test_a_lambda_is_a_space(tmp_path: Path) -> None:
    (tmp_path / "my.py").write_text(NO_SPACES + "build.example_input = torch.zeros(1, 4)\n")
    space = get_space(f"{tmp_path}/my.py:build")
    assert space.params(space.architecture({"width": 3})) == 15


def test_a_file_imports_those_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "layers_beside_it.py").write_text(
        "from torch import nn\n\ndef layer(width):\n    return nn.Linear(4, width)\n"
    )
    (tmp_path / "my.py").write_text(
        "import torch\n\ndef build(trial):\n    from layers_beside_it import layer\n"
        "    return layer(trial.suggest_int('width', 1, 8))\n\nbuild.example_input = "
        "torch.zeros(1, 4)\n"
    )
    space = get_space(f"{tmp_path}/my.py")
    assert space.params(space.architecture({"width": 3})) == 15


def test_random_texts_depend_on_choices_alone() -> None:
    space = Sequences()
    texts = {space.to_text(space.sample(np.random.default_rng(seed))) for seed in range(12)}
    assert len(texts) == 3


def test_sizes_of_lazy_layers_follow_from_the_example_input() -> None:
    def build(trial: Any) -> nn.Module:
        width = trial.suggest_categorical("width", [4, 8])
        return nn.Sequential(nn.LazyConv2d(width, 3), nn.Flatten(), nn.LazyLinear(10))

    space = TorchSpace(build, torch.zeros(1, 1, 8, 8))
    arch = space.architecture({"width": 4})
    assert space.params(arch) == 4 * 9 + 4 + 4 * 36 * 10 + 10
    assert space.num_classes == 10


def test_weights_that_build_loads_are_loaded_without_warnings() -> None:
    pretrained = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.GRU(30, 5))
    weights = pretrained.state_dict()

    def build(trial: Any) -> nn.Module:
        features = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
        features.load_state_dict(
            {name: x for name, x in weights.items() if not name.startswith("2.")}
        )
        with torch.no_grad():
            features.get_parameter("0.bias").copy_(weights["0.bias"])
        warnings.warn("the user's own", stacklevel=1)
        return nn.Sequential(
            features, nn.Flatten(), nn.Linear(3600, trial.suggest_int("classes", 2, 9))
        )

    space = TorchSpace(build, torch.zeros(1, 3, 32, 32))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        architecture = space.sample(np.random.default_rng(0))
        assert (
            space.params(architecture)
            == 3 * 4 * 9 + 4 + 2 * 4 + 3601 * architecture.as_dict()["classes"]
        )
    assert {str(warning.message) for warning in caught} == {"the user's own"}
    features = space.module(architecture).get_submodule("0")
    assert torch.equal(features.get_parameter("0.weight"), pretrained.get_parameter("0.weight")), (
        "training begins with the loaded weights"
    )
    with pytest.warns(UserWarning, match="no-op"):  # outside of `build`, torch's warning stays
        nn.Linear(2, 2, device="meta").load_state_dict(nn.Linear(2, 2).state_dict())


# --- names of outputs


class TwoHeads(nn.Module):
    """Returns a dictionary, whose keys may be names that an ONNX file has already."""

    def __init__(self, keys: tuple[str, str]) -> None:
        super().__init__()
        self.body, self.keys = nn.Linear(8, 4), keys

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        hidden = torch.relu(self.body(x))
        return {self.keys[0]: hidden, self.keys[1]: hidden.sum(1)}


@pytest.mark.parametrize(
    ("keys", "names"),
    [
        (("logits", "boxes"), ["logits", "boxes"]),
        (("input", "Relu_out"), ["input_output", "Relu_out"]),
    ],
)
def test_a_dictionary_keeps_its_keys_as_names_of_outputs(
    keys: tuple[str, str], names: list[str]
) -> None:
    def build(trial: object) -> nn.Module:
        return TwoHeads(keys)

    build.example_input = torch.zeros(2, 8)  # type: ignore[attr-defined]
    space = TorchSpace(build)
    model = space.to_onnx(space.sample(np.random.default_rng(0)))
    onnx.checker.check_model(model, full_check=True)
    assert [output.name for output in model.graph.output] == names
    session = onnxruntime.InferenceSession(model.SerializeToString())
    hidden, total = session.run(None, {"input": np.ones((3, 8), np.float32)})
    assert hidden.shape == (3, 4)
    np.testing.assert_allclose(hidden.sum(1), total, rtol=1e-4)


def test_outputs_that_are_no_dictionary_are_numbered_and_names_are_no_part_of_the_text() -> None:
    from search_spaces.ir.pytorch import record

    named = record(TwoHeads(("a", "b")), torch.zeros(2, 8))
    other = record(TwoHeads(("c", "d")), torch.zeros(2, 8))
    assert named == other
    assert named.output_names == ("a", "b")
    pair = nn.LSTM(8, 4, batch_first=True)
    assert record(pair, torch.zeros(2, 3, 8)).output_names == ()
