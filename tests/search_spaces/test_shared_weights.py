"""Claims about weights that all networks of a space share."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from search_spaces import InputError, TorchSpace, get_space
from search_spaces.shared_weights import SharedWeights


def net(width: int, kernel: int) -> nn.Sequential:
    conv = nn.Conv2d(1, width, kernel, padding=kernel // 2)
    return nn.Sequential(conv, nn.BatchNorm2d(width), nn.Flatten(), nn.Linear(16 * width, 3))


def weight(shared: SharedWeights, layer: str) -> Tensor:
    (tensor,) = [x for key, x in shared.tensors.items() if key.startswith(f"{layer}.weight")]
    return tensor


def test_smaller_parameters_are_leading_parts_and_centres_of_kernels() -> None:
    shared, large, small = SharedWeights(), net(8, 5), net(4, 3)
    shared.grow(large)
    shared.load_into(small)
    assert torch.equal(
        small.get_parameter("0.weight"), large.get_parameter("0.weight")[:4, :, 1:4, 1:4]
    )
    assert torch.equal(small.get_parameter("3.weight"), large.get_parameter("3.weight")[:, :64])
    assert torch.equal(small.get_parameter("3.bias"), large.get_parameter("3.bias"))


def test_what_was_there_stays_where_it_is_when_others_need_more() -> None:
    shared, small, large = SharedWeights(), net(4, 3), net(8, 5)
    shared.grow(small)
    shared.grow(large)
    again = net(4, 3)
    shared.load_into(again)
    assert all(
        torch.equal(a, b) for a, b in zip(small.parameters(), again.parameters(), strict=True)
    )
    assert torch.equal(weight(shared, "0")[4:], large.get_parameter("0.weight")[4:])


def test_layers_of_other_kinds_share_nothing() -> None:
    shared = SharedWeights()
    shared.grow(nn.Sequential(nn.Linear(4, 4)))
    for other in (nn.LayerNorm(4), nn.Conv1d(4, 4, 1)):
        assert not shared.covers(nn.Sequential(other))


def test_slices_are_views_so_that_a_training_of_one_network_trains_the_others() -> None:
    shared, small = SharedWeights(), net(4, 3)
    shared.grow(net(8, 5))
    shared.slices(small)["0.weight"].zero_()
    assert (weight(shared, "0")[:4, :, 1:4, 1:4] == 0).all()


def test_a_network_that_was_not_met_is_refused(tmp_path: Path) -> None:
    shared = SharedWeights()
    shared.grow(net(4, 3))
    with pytest.raises(InputError, match=r"no weights for 0.weight of this network"):
        shared.load_into(net(8, 3))


def test_files_keep_the_weights_and_others_are_refused(tmp_path: Path) -> None:
    shared = SharedWeights(about={"seed": 3})
    shared.grow(net(4, 3))
    shared.save(tmp_path / "shared.safetensors")
    read = SharedWeights.load(tmp_path / "shared.safetensors")
    assert read.about == {"seed": 3}
    assert all(torch.equal(read.tensors[key], x) for key, x in shared.tensors.items())
    save_file({"x": torch.zeros(1)}, tmp_path / "other.safetensors")
    with pytest.raises(InputError, match="nas supernet"):
        SharedWeights.load(tmp_path / "other.safetensors")
    with pytest.raises(InputError, match="not a supernet"):
        SharedWeights.load(tmp_path / "none.safetensors")


CODE = """
import torch
from torch import nn


def build(trial):
    width = trial.suggest_categorical("width", [2, 4])
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(width), nn.ReLU(), nn.Linear(width, 3))


build.example_input = torch.zeros(1, 1, 4, 4)
"""


def test_a_space_with_a_start_builds_modules_with_these_weights(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(CODE)
    reference = f"{tmp_path}/mine.py:build"
    space = get_space(reference)
    assert isinstance(space, TorchSpace)
    wide = space.architecture({"width": 4})
    shared, module = SharedWeights(), space.with_sizes(space.module(wide))
    shared.grow(module)
    shared.save(tmp_path / "net.safetensors")
    started = get_space(reference, start=str(tmp_path / "net.safetensors"))
    assert isinstance(started, TorchSpace)
    narrow = started.module(started.architecture({"width": 2}))
    assert torch.equal(narrow.get_parameter("1.weight"), module.get_parameter("1.weight")[:2])
    assert get_space(reference, **started.options).options == started.options
    SharedWeights().save(tmp_path / "net.safetensors")
    with pytest.raises(InputError, match="not the weights"):
        get_space(reference, **started.options)
