"""Predictors and samplers of others keep this project's contracts, and read what their papers say."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments.rivals import BotorchSampler, Graf, LightGBM, SmacSampler, graf_features
from nas import Problem, search
from predictors.rlm.tokens import tokenize
from predictors.testing import check_predictor
from search_spaces import TorchSpace, get_space


def residual_text(blocks: int) -> str:
    """The text of a network: a 1×1 convolution, then 3×3 convolutions that can be passed by."""
    import torch
    from torch import nn

    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convolution = nn.Conv2d(3, 3, 3, padding=1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.convolution(x)

    def build(trial: Any) -> nn.Module:
        return nn.Sequential(nn.Conv2d(3, 3, 1), *[Residual() for _ in range(blocks)])

    build.example_input = torch.zeros(1, 3, 4, 4)  # type: ignore[attr-defined]
    space = TorchSpace(build)
    return space.to_text(space.sample(np.random.default_rng(0)))


def test_paths_count_the_operators_that_they_pass() -> None:
    two, three = (graf_features(residual_text(blocks)) for blocks in (2, 3))
    assert two["count all"] == len(tokenize(residual_text(2)).starts) == 5
    assert (two["longest all"], two["shortest all"]) == (5, 3)  # with and without convolutions
    assert (three["longest all"], three["shortest all"]) == (7, 4)
    convolutions = [name for name, value in three.items() if name[:5] == "count" and value == 3]
    paths = {(three[f"longest {n[6:]}"], three[f"shortest {n[6:]}"]) for n in convolutions}
    assert (3, 0) in paths, "a path can pass by every convolution"
    assert (3, 3) in paths, "but by no addition"


@pytest.mark.slow
def test_graph_features_keep_the_contract_of_predictors() -> None:
    check_predictor(lambda: Graf(trees=20))


@pytest.mark.slow
def test_gradient_boosting_keeps_the_contract_of_predictors() -> None:
    pytest.importorskip("lightgbm")
    check_predictor(LightGBM)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["botorch", "smac"])
def test_samplers_of_others_choose_in_our_loop(name: str, tmp_path: Path) -> None:
    pytest.importorskip(name)
    space = get_space("tiny-resnet")
    problem = Problem(space, None, {"params": "min", "flops": "max"})
    sampler: Any = BotorchSampler(space, 0, startup=6)
    if name == "smac":
        sampler = SmacSampler(space, 0, tmp_path, evaluations=12)
    result = search(problem, sampler=sampler, evaluations=12, seed=0)
    assert len(result.evaluated.values) == 12
    if name == "botorch":
        assert len(result.networks) == 12, "no network is evaluated twice"


@pytest.mark.slow
def test_rivals_are_compared_with_errors_in_units(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    unseen = importlib.import_module("experiments.unseen_spaces")
    unseen.main(
        out=tmp_path,
        families="digits-nasbench101",
        metric=unseen.Learned.latency,
        only="forest,experiments/rivals.py:Graf",
        quick=True,
        as_json=True,
    )
    rows = json.loads(capsys.readouterr().out)
    assert [row["predictor"] for row in rows] == ["forest", "experiments/rivals.py:Graf"]
    assert all(1 < row["error"]["mean"] < 100 for row in rows), "in % of a latency"
