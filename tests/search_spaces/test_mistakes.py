"""Claims about mistakes in a user's `build`: one line that names file, line and remedy."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from search_spaces import InputError, SearchSpace, get_space
from search_spaces.space import check_repeatable

BUILDER = """
import random
from search_spaces import SearchSpace

class Mine(SearchSpace):
    input_shape, num_classes = (1, 8, 8), 10

    def build(self, trial, net):
        width = trial.suggest_categorical("width", [4, 8])
        {body}
"""
MODULE = """
import random
import torch
from torch import nn

class Recursive(nn.Module):
    def forward(self, x):
        return self(x)

def build(trial):
    width = trial.suggest_categorical("width", [4, 8])
    {body}

build.example_input = torch.zeros(1, 1, 8, 8)
"""
IN_BUILDER = {
    "return net.classifier(net.con_bn(net.input, "
    "width))": r"line 10: AttributeError: unknown method of the builder "
    r"'con_bn': did you mean 'conv_bn'\?",
    "net.classifier(net.conv(net.input, "
    "width))": "build returned NoneType, not the network's output",
    "return width": "build returned int, not the network's output",
    "return net.conv(net.op('Flatten', net.input), "
    "width)": r"line 10: Conv needs an input of shape \(N, channels",
    "return net.classifier(net.op('LeakyRelu', net.input, attrs={'alfa': "
    "0.1}))": "LeakyRelu has no attribute",
    "return net.classifier(net.conv(net.input, width, "
    "groups=3))": "line 10: group = 3 must divide 1 input",
    "return 1 / 0": "line 10: ZeroDivisionError: division by zero",
    "return self.build(trial, net)": r"line \d+: RecursionError: maximum recursion depth exceeded",
    "trial.suggest_categorical('width', [16, "
    "32])": r"line 10: 'width' is suggested twice, from 4, 8 and from 16, 32",
    "trial.suggest_categorical('layer', [str, "
    "int])": r"line 10: 'layer' has the option <class 'str'>: give strings",
    "trial.sugest_int('depth', 1, "
    "3)": r"line 10: AttributeError: a trial has no 'sugest_int': it has suggest_categ",
}
IN_MODULE = {
    "nn.Conv2d(1, width, 3)": "build returned NoneType: it must return a torch.nn.Module",
    "return nn.Conv2d": "build returned type: it must return a torch.nn.Module",
    "return nn.Conv2D(1, width, "
    "3)": "line 12: AttributeError: module 'torch.nn' has no attribute 'Conv2D'",
    "return nn.Sequential(nn.Flatten(), nn.Conv2d(1, width, "
    "3))": r"mine.py: a convolution with weights .* has an"
    r" input of shape \[1, 64\] \(in layer '1', Conv2d\)",
    "return nn.Linear(width + 1, 3)": r"a linear layer with weights .* has an input of shape",
    "return nn.utils.parametrizations.orthogonal(nn.Linear(4, "
    "4))": "line 12: .* reads a weight's numbers",
    "return Recursive()": "line 8: RecursionError: maximum recursion depth exceeded",
    "return nn.Conv2d(1, width, 3, "
    "groups=3)": "line 12: ValueError: in_channels must be divisible by groups",
    "return nn.FractionalMaxPool2d(2, "
    "4)": "torch's function 'fractional_max_pool2d.*' is not supported",
    "trial.suggest_categorical('width', [16, "
    "32])": r"line 12: 'width' is suggested twice, from 4, 8 and from 16, 32",
    "trial.suggest_categorical('layer', [str, "
    "int])": r"line 12: 'layer' has the option <class 'str'>: give strings",
    "trial.sugest_int('depth', 1, "
    "3)": r"line 12: AttributeError: a trial has no 'sugest_int': it has suggest_categ",
}
CASES = [
    *((BUILDER, body, message) for body, message in IN_BUILDER.items()),
    *((MODULE, body, message) for body, message in IN_MODULE.items()),
]


def written(folder: Path, template: str, body: str) -> str:
    (folder / "mine.py").write_text(template.format(body=body))
    return f"{folder}/mine.py"


@pytest.mark.parametrize(
    ("template", "body", "message"), CASES, ids=[body[:40] for _, body, _ in CASES]
)
def test_a_mistake_is_one_line_with_its_place(
    tmp_path: Path, template: str, body: str, message: str
) -> None:
    space = get_space(written(tmp_path, template, body))
    with pytest.raises(InputError, match=message) as raised:
        space.to_text(space.sample(np.random.default_rng(0)))
    assert "mine.py" in str(raised.value)
    assert "\n" not in str(raised.value)


RANDOM = {
    BUILDER: "return net.classifier(net.conv(net.input, random.randrange(1, 999)))",
    MODULE: "return nn.Sequential(nn.Conv2d(1, random.randrange(1, 999), 3), nn.Flatten())",
}


@pytest.mark.parametrize("template", RANDOM, ids=["builder", "module"])
def test_randomness_in_build_is_noticed(tmp_path: Path, template: str) -> None:
    random.seed(0)
    space = get_space(written(tmp_path, template, RANDOM[template]))
    with pytest.raises(
        InputError, match=r"build made two networks of the same choices \('.*' and '.*'\)"
    ):
        check_repeatable(space)


def test_random_questions_are_noticed(tmp_path: Path) -> None:
    random.seed(0)
    body = (
        "return net.classifier(net.conv(net.input, trial.suggest_int(f'w{random.random()}', 1, 9)))"
    )
    with pytest.raises(InputError, match=r"the choice 'w0.*' is missing"):
        check_repeatable(get_space(written(tmp_path, BUILDER, body)))


def test_a_function_of_the_choices_is_repeatable(switches: SearchSpace) -> None:
    check_repeatable(switches)
