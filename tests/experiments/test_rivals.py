"""Predictors and samplers of others keep this project's contracts, and read what their papers say."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

from experiments.rivals import BotorchSampler, HeboSampler, LightGBM, SmacSampler
from nas import Problem, search
from predictors.testing import check_predictor
from search_spaces import get_space


@pytest.mark.slow
def test_gradient_boosting_keeps_the_contract_of_predictors() -> None:
    pytest.importorskip("lightgbm")
    check_predictor(LightGBM)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["botorch", "smac", "hebo"])
def test_samplers_of_others_choose_in_our_loop(name: str, tmp_path: Path) -> None:
    pytest.importorskip(name)
    space = get_space("tiny-resnet")
    problem = Problem(space, None, {"params": "min", "flops": "max"})
    sampler: Any = BotorchSampler(space, 0, startup=6)
    if name == "smac":
        sampler = SmacSampler(space, 0, tmp_path, evaluations=12)
    elif name == "hebo":
        sampler = HeboSampler(space, 0)
    result = search(problem, sampler=sampler, evaluations=12, seed=0)
    assert len(result.evaluated.values) == 12
    if name == "botorch":
        assert len(result.networks) == 12, "no network is evaluated twice"


@pytest.mark.slow
def test_predictors_are_compared_with_errors_in_units(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    unseen = importlib.import_module("experiments.unseen_spaces")
    unseen.main(
        out=tmp_path,
        families="digits-nasbench101",
        metric=unseen.Learned.latency,
        only="forest,ridge",
        quick=True,
        as_json=True,
    )
    rows = json.loads(capsys.readouterr().out)
    assert [row["predictor"] for row in rows] == ["forest", "ridge"]
    assert all(1 < row["error"]["mean"] < 100 for row in rows), "in % of a latency"
