"""Claims about the comparison of searches: rows of a curve, and finished rows that are drawn
again.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from experiments import pareto
from experiments.pareto import main, scores
from search_spaces.common.errors import InputError

ROOT = Path(__file__).parents[2]


def test_marks_and_shares_of_a_curve() -> None:
    row = scores(np.linspace(0.01, 1.0, 100))
    assert (row["HV@20"], row["HV@50"], row["HV@100"]) == pytest.approx((0.2, 0.5, 1.0))
    assert "HV@200" not in row
    assert (row["to 90%"], row["to 95%"], row["to 99%"]) == pytest.approx((90, 95, 99), abs=1)
    assert (row["at 1"], row["at 100"]) == pytest.approx((0.01, 1.0))


def test_a_share_that_is_not_reached_counts_one_evaluation_more_than_were_made() -> None:
    assert scores(np.full(30, 0.92)) | {"to 90%": 1.0, "to 95%": 31.0, "to 99%": 31.0} == scores(
        np.full(30, 0.92)
    )


def test_a_missing_hebo_is_named_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in [key for key in sys.modules if key.split(".")[0] == "hebo"] + ["hebo"]:
        monkeypatch.setitem(sys.modules, module, None)
    options = {"problems": "digits-nasbench101", "only": "hebo", "evaluations": 2, "seeds": 1}
    with pytest.raises(InputError, match=r"^HEBO is missing .*see experiments/rivals\.py$"):
        main(**options, out=tmp_path)  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.skipif(
    "NAS_DATA" not in os.environ, reason="NAS_DATA does not name a folder with nasbench201.csv.gz"
)
def test_finished_searches_are_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = {
        "evaluations": 20,
        "seeds": 1,
        "problems": "S1,S3",
        "only": "random,nsga2",
        "out": tmp_path,
    }
    main(**options, as_json=True)  # type: ignore[arg-type]
    first = capsys.readouterr().out
    assert [(row["problem"], row["sampler"]) for row in json.loads(first)] == [
        ("S1", "random"), ("S1", "nsga2"), ("S3", "random"), ("S3", "nsga2"),
    ]  # fmt: skip
    pareto.PROBLEMS, kept = {"S1": "", "S3": ""}, pareto.PROBLEMS  # nothing can be searched again
    try:
        main(**options, as_json=True)  # type: ignore[arg-type]
    finally:
        pareto.PROBLEMS = kept
    assert capsys.readouterr().out == first
    assert {path.name for path in tmp_path.glob("*.png")} == {
        "hypervolume-S1.png",
        "hypervolume-S3.png",
    }


@pytest.mark.slow
def test_searches_run_in_several_processes_from_the_command_line(tmp_path: Path) -> None:
    searches = [
        "--only",
        "random",
        "--evaluations",
        "3",
        "--seeds",
        "2",
        "--problems",
        "digits-nasbench101",
    ]
    options = [*searches, "--jobs", "2", "--json", "--out", str(tmp_path)]
    command = [sys.executable, "-m", "experiments.pareto", *options]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert json.loads(run.stdout)[0]["seeds"] == 2
