"""Claims about measured networks: spaces are built for the data set, and a mismatch is named with
its remedy.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from nas.evaluation.subjects import open_space, subject_of_file, subject_of_space
from search_spaces import get_space
from search_spaces.common.errors import InputError

SMALL = {"channels": 4, "cells": 1}


def test_space_is_built_for_the_data_set() -> None:
    space, data = open_space("nasbench201", SMALL, "digits")
    assert (space.input_shape, space.num_classes) == ((1, 8, 8), 10)
    assert data is not None
    assert data.name == "digits"
    assert space.options["channels"] == 4


def test_without_data_set_a_space_is_as_it_is() -> None:
    space, data = open_space("nasbench201", SMALL, None)
    assert (space.input_shape, data) == ((3, 32, 32), None)


def test_space_of_another_shape_is_refused_with_the_remedy(tmp_path: Path) -> None:
    file = tmp_path / "my_space.py"
    file.write_text(
        "from search_spaces import SearchSpace\n"
        "class Plain(SearchSpace):\n"
        "    def build(self, trial, net):\n"
        "        return net.classifier(net.conv(net.input, trial.suggest_int('width', 2, 4)))\n"
        "class Fixed(Plain):\n"
        "    def __init__(self):\n"
        "        pass\n"
    )
    assert open_space(f"{file}:Plain", {}, "digits")[0].input_shape == (1, 8, 8)
    with pytest.raises(InputError, match=r"--option input_shape=1,8,8 --option num_classes=10"):
        open_space(f"{file}:Fixed", {}, "digits")
    with pytest.raises(InputError, match=r"inputs \(1, 9, 9\)"):
        open_space("nasbench201", {"input_shape": (1, 9, 9)}, "digits")


def test_data_that_do_not_fit_a_model_are_refused_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "my_net.py").write_text(
        "import torch\n"
        "net = torch.nn.Sequential(torch.nn.Linear(7, 32), torch.nn.ReLU(), torch.nn.Linear(32, 2))\n"
        "net.example_input = torch.zeros(1, 7)\n"
    )
    message = r"give --dataset a \.npz file whose x has the shape \(n, 7\)"
    with pytest.raises(InputError, match=message):
        open_space(f"{tmp_path / 'my_net.py'}:net", {"start": "inherited"}, "digits")


def test_a_model_without_an_example_input_takes_what_a_file_holds(tmp_path: Path) -> None:
    (tmp_path / "my_net.py").write_text(
        "from torch import nn\n"
        "def net():\n"
        "    pool = nn.AdaptiveAvgPool2d(1)\n"
        "    return nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), pool, nn.Flatten(), "
        "nn.Linear(16, 2))\n"
    )
    rng = np.random.default_rng(0)
    images = rng.integers(0, 255, (20, 3, 12, 10), np.uint8)
    np.savez(tmp_path / "images.npz", x=images, y=rng.integers(0, 2, 20))
    np.savez(tmp_path / "ids.npz", x=rng.integers(0, 9, (20, 6)), y=rng.integers(0, 2, 20))

    model = f"{tmp_path / 'my_net.py'}:net"
    space, data = open_space(model, {"start": "fresh"}, str(tmp_path / "images.npz"))
    assert data is not None
    assert space.input_shape == data.shape == (3, 12, 10)
    # A search that goes on opens the space by its options alone.
    assert get_space(model, **space.options).input_shape == (3, 12, 10)
    for unclear in (None, "digits", str(tmp_path / "ids.npz")):
        with pytest.raises(InputError, match=r"no example input: .* --option input_shape=3,32,32"):
            open_space(model, {"start": "fresh"}, unclear)


def test_architecture_is_the_given_one_or_drawn_from_the_seed() -> None:
    native = "|nor_conv_1x1~0|+|none~0|none~1|+|none~0|none~1|skip_connect~2|"
    assert subject_of_space("nasbench201", SMALL, None, native, 0).name == native
    drawn = [
        subject_of_space("nasbench201", SMALL, "digits", None, seed).name for seed in (0, 0, 1)
    ]
    assert drawn[0] == drawn[1] != drawn[2]


def test_images_are_resized_for_the_model_in_a_file(tmp_path: Path) -> None:
    from PIL import Image

    for name in ("cat", "dog"):
        (tmp_path / "pets" / name).mkdir(parents=True)
        for i in range(3):
            Image.fromarray(np.full((9, 9, 3), 80 * i, np.uint8)).save(
                tmp_path / "pets" / name / f"{i}.png"
            )
    space = get_space("nasbench201", **SMALL, input_shape=(1, 8, 8), num_classes=2)
    path = tmp_path / "net.onnx"
    path.write_bytes(space.to_onnx(space.sample(np.random.default_rng(0))).SerializeToString())
    subject = subject_of_file(str(path), str(tmp_path / "pets"))
    assert subject.data is not None
    assert subject.data.shape == (1, 8, 8)


def test_file_that_is_no_model_is_named(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    path.write_bytes(b"nothing")
    with pytest.raises(InputError, match=r"net\.onnx: "):
        subject_of_file(str(path), None)
