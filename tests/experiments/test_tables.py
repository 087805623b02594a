"""Claims about tables of experiments: finished rows are kept, and seeds are summarized."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import predictors
from experiments import tables
from experiments.tables import chosen, compute, integers, pivot, publish, summarize
from search_spaces import InputError, get_space

TASKS = [("rlm", 16, 0), ("rlm", 16, 1), ("gnn", 16, 0)]


def _score(predictor: str, size: int, seed: int) -> dict[str, float]:
    return {"tau": size / 100 + seed + (predictor == "gnn")}


def test_rows_come_in_the_order_of_their_tasks_and_are_computed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = compute(TASKS, _score, tmp_path)
    assert [row["tau"] for row in rows] == [0.16, 1.16, 1.16]
    monkeypatch.setattr(tables, "_score", None)
    assert compute(TASKS[::-1], _score, tmp_path) == rows[::-1]


@pytest.mark.slow
def test_two_processes_compute_the_rows_of_one(tmp_path: Path) -> None:
    def score(
        size: int, seed: int
    ) -> dict[str, float]:  # of a network with random weights: threads, seeds, order
        space, rng = get_space("tiny-resnet"), np.random.default_rng(seed)
        texts = [space.to_text(space.sample(rng)) for _ in range(size)]
        model = predictors.create("gnn", seed=seed, steps=3).fit(
            texts, {"x": np.arange(float(size))}
        )
        return {"mean": float(model.predict(texts, ["x"]).mean.sum())}

    tasks = [(size, seed) for size in (5, 6) for seed in (0, 1)]
    one, two = (compute(tasks, score, tmp_path / str(jobs), jobs) for jobs in (1, 2))
    assert one == two
    assert len({row["mean"] for row in one}) == 4


def test_rows_of_another_predictor_version_are_computed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compute(TASKS, lambda *task: {"tau": 0.0}, tmp_path)
    monkeypatch.setattr(tables, "version", lambda: "another")
    assert compute(TASKS, _score, tmp_path)[0]["tau"] == 0.16


def test_seeds_are_summarized_by_mean_and_deviation(tmp_path: Path) -> None:
    rlm, gnn = summarize(TASKS, compute(TASKS, _score, tmp_path))
    assert (rlm["task0"], rlm["task1"], rlm["seeds"]) == ("rlm", 16, 2)
    assert rlm["tau"] == {"mean": pytest.approx(0.66), "std": pytest.approx(0.5**0.5)}
    assert gnn["tau"] == {"mean": pytest.approx(1.16), "std": 0.0}


def test_a_table_is_written_and_drawn_with_gaps_where_nothing_was_measured(tmp_path: Path) -> None:
    tasks = [("rlm", "darts", 0), ("rlm", "darts", 1), ("rlm", "enas", 0), ("gnn", "enas", 0)]
    rows = [{"tau": tau} for tau in (0.5, 0.7, 0.25, 0.75)]
    publish(tmp_path, pivot(summarize(tasks, rows), "tau"), "τ", digits=2)
    lines = (tmp_path / "table.md").read_text().splitlines()
    assert lines[0] == "| τ | darts | enas | mean |"
    assert lines[2] == "| rlm | 0.60 ± 0.14 | 0.25 ± 0.00 | 0.42 |"
    assert lines[3] == "| gnn | – | 0.75 ± 0.00 | 0.75 |"
    assert (tmp_path / "table.png").read_bytes().startswith(b"\x89PNG")


def test_unknown_names_are_refused() -> None:
    assert chosen("gnn,rlm", ("rlm", "gnn")) == ["gnn", "rlm"]
    with pytest.raises(InputError, match="gmn"):
        chosen("rlm,gmn", ("rlm", "gnn"))


def test_numbers_of_labels_are_whole() -> None:
    assert integers("16,50") == [16, 50]
    for wrong in ("16,fifty", "0", "16,", "-5"):
        with pytest.raises(InputError, match="is no whole number from 1"):
            integers(wrong)
