"""Claims about what a report says of the future: how lucky the front is, and what further evaluations
bring.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nas import Measurement, load_benchmark, search
from nas.comparison.runs import open_studies
from nas.problem import Problem
from nas.report.outlook import MORE, Prospects, outlook_of
from nas.search.objectives import parse_objectives
from nas.search.own_evaluator import FunctionEvaluator
from nas.search.pareto import Reference
from search_spaces import get_space


def test_expected_gain_of_a_random_search_comes_true_on_average() -> None:
    table, objectives = (
        load_benchmark("digits201"),
        parse_objectives("digits_accuracy,cpu_latency_ms"),
    )
    values = np.stack([table.values(o.name) for o in objectives], 1)
    reference = Reference.of_table(values, objectives)
    rng = np.random.default_rng(0)
    for n in (20, 80):
        expected, happened = [], []
        for _ in range(100):
            rows = rng.permutation(len(values))[: n + MORE]
            curve = reference.curve(values[rows])
            outlook = outlook_of(curve[:n])
            assert outlook is not None
            expected.append(outlook.gain)
            happened.append(curve[-1] / curve[n - 1] - 1)
        assert 0.7 < np.mean(expected) / np.mean(happened) < 1.4, n


def test_a_search_that_stands_still_may_stop() -> None:
    rising = np.concatenate([np.linspace(0, 1, 20), np.ones(60)])
    outlook = outlook_of(rising)
    assert outlook is not None
    assert outlook.may_stop
    assert outlook.stale == 60
    assert outlook.sentence == (
        "20 more evaluations are expected to bring 0.0 % more hypervolume; the last 60 did not "
        "improve the front. The search may stop here."
    )
    still_rising = outlook_of(np.linspace(0, 1, 40))
    assert still_rising is not None
    assert not still_rising.may_stop
    assert outlook_of(rising[:5]) is None, "five evaluations say nothing"


def test_predictor_does_not_expect_luck_to_repeat(tmp_path: Path) -> None:
    space = get_space("tiny-resnet", input_shape=(1, 8, 8))
    rng = np.random.default_rng(0)

    def luck(model: Any, architecture: Any, report: Any) -> dict[str, float]:
        return {"top1": 80 + 3 * rng.standard_normal()}

    evaluator = FunctionEvaluator(space, luck, ["top1"], Measurement(("params",)))
    problem = Problem(space, evaluator, "top1:accuracy:max,params")
    search(problem, sampler="ridge", evaluations=25, out=tmp_path)
    prospects = Prospects.of(open_studies(tmp_path, space=None))
    if not prospects.optimism:  # the space needs its options to be built
        pytest.fail(f"no optimism: {prospects}")
    (entry,) = prospects.optimism
    assert not entry.is_confirmed
    assert entry.measured > entry.later
    assert entry.later == pytest.approx(80, abs=2.5)
    assert "expect values between the two" in entry.sentence


def test_front_that_was_trained_again_says_what_came_of_it(tmp_path: Path) -> None:
    space = get_space("tiny-resnet", input_shape=(1, 8, 8))

    def lucky(model: Any, architecture: Any, report: Any, seed: int = 0) -> dict[str, float]:
        return {"top1": 80.0 if seed == 0 else 75.0 + seed}

    problem = Problem(
        space,
        FunctionEvaluator(space, lucky, ["top1"], Measurement(("params",))),
        "top1:accuracy:max,params",
    )
    search(problem, sampler="random", evaluations=4, out=tmp_path, confirm=2)
    (sentence, *_) = Prospects.of(open_studies(tmp_path)).sentences
    assert sentence == (
        "Top1, trained again with fresh seeds: the front's network reached 76.5 instead of 80 on "
        "average. The later values are what to expect."
    )
