"""Claims about the experiment of searches by cost."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import optuna
import pytest
from optuna.trial import TrialState, create_trial

from experiments import front_by_cost
from nas import Reference, SearchResult, parse_objectives
from nas.search.study.load import read_study
from nas.search.study.schema import COST_KEY


def _result() -> SearchResult:
    """A paused training of 12 epochs, then two full ones. The second one completes the front."""
    study = optuna.create_study(directions=["maximize", "minimize"])
    study.set_metric_names(["top1", "cpu_latency_ms"])
    study.add_trial(create_trial(state=TrialState.PRUNED, user_attrs={COST_KEY: 12.0}))
    for values in ([60.0, 2.0], [90.0, 1.0]):
        study.add_trial(
            create_trial(state=TrialState.COMPLETE, values=values, user_attrs={COST_KEY: 200.0})
        )
    return read_study(study)


def test_shares_count_what_is_finished_within_the_cost() -> None:
    table = np.array([[90.0, 1.0], [60.0, 2.0], [95.0, 3.0]])
    reference = Reference.of_table(table, parse_objectives("top1,cpu_latency_ms"))
    shares = front_by_cost.shares_by_cost(_result(), reference, 4, 200)
    assert shares[0] == 0.0  # 212 epochs are more than 200
    assert shares[1] == pytest.approx(reference.ratio(table[1:2]))
    assert shares[2] == shares[3] == pytest.approx(reference.ratio(table[:2]))


@pytest.mark.slow
def test_policies_are_compared(
    tmp_path: Path, nas_data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    front_by_cost.main(out=tmp_path, quick=True, problems="S1", as_json=True)
    assert (tmp_path / "front-by-cost-S1.png").is_file()
    assert "HV@10" in capsys.readouterr().out


@pytest.mark.slow
def test_digits_are_searched_by_seconds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    front_by_cost.main(
        out=tmp_path, quick=True, problems="digits", only="asha,random", as_json=True
    )
    rows = {row["policy"]: row for row in json.loads(capsys.readouterr().out)}
    assert 0 < rows["random"]["HV@5"]["mean"] < rows["random"]["HV@10"]["mean"] < 1
    problem = front_by_cost.CostProblem.named("digits")
    assert problem.unit == pytest.approx(16 * problem.table.values("epoch_s").mean())
