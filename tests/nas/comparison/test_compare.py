"""Claims about comparisons: the meaning of scores, and which scores are stored or computed
again.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nas.benchmarks import Benchmark, load_benchmark
from nas.comparison import compare as comparing
from nas.comparison.compare import Compared, Comparison, Score, _ranking, compare
from search_spaces import get_space
from search_spaces.common.errors import InputError

SPACE = get_space("nasbench201", channels=4, cells=1, input_shape=(1, 8, 8))
MINE = """
from predictors import Predictions
from predictors.baselines import Ridge

class Mine(Ridge):
    def predict(self, architectures, metrics, given=None, samples=64, seed=0):
        found = super().predict(architectures, metrics, given, samples, seed)
        return Predictions.of_samples(metrics, {sign} * found.samples)
"""


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Benchmark:
    """Thirty networks with an accuracy and a latency, both by their parameters."""
    monkeypatch.setenv("NAS_CACHE", str(tmp_path / "cache"))
    archs = [arch for arch, _ in zip(SPACE.enumerate(), range(3000), strict=False)][::100]
    rows = [
        f"{SPACE.format(a)},{90 - SPACE.params(a) / 1e3},{SPACE.params(a) / 1e3}" for a in archs
    ]
    path = tmp_path / "t.csv"
    path.write_text("\n".join(["arch,my_accuracy,my_latency_ms", *rows]))
    return load_benchmark(str(path))


def comparison_of(table: Benchmark, **settings: Any) -> Comparison:
    usual: dict[str, Any] = {"predictors": ("ridge",), "sizes": (12,), "seeds": 1}
    return Comparison(table.name, "my_accuracy", "my_accuracy", **{**usual, **settings})


def test_regret_is_the_distance_of_the_best_of_ten_from_the_best() -> None:
    truth = np.arange(100.0)
    accuracy = _ranking(np.where(truth >= 95, -1, truth), truth, sign=-1.0)  # misses the five best
    assert (accuracy["regret"], accuracy["top10"]) == (99 - 94, float(np.mean(range(85, 95))))
    latency = _ranking(np.where(truth < 3, 1000, truth), truth, sign=1.0)  # misses the three best
    assert (latency["regret"], latency["top10"]) == (3, float(np.mean(range(3, 13))))
    perfect = _ranking(truth, truth, sign=1.0)
    assert (perfect["regret"], perfect["tau"], perfect["tau_top"]) == (0, 1, 1)


def test_the_direction_of_a_metric_can_be_declared(table: Benchmark) -> None:
    by_name = compare(comparison_of(table), table)
    declared = compare(replace(comparison_of(table), test_metric="my_accuracy:min"), table)
    values = np.sort(table.values("my_accuracy"))
    assert declared.rows()[0]["metric"] == "my_accuracy"
    assert (by_name.scores[0].tau, by_name.scores[0].rmse) == (
        declared.scores[0].tau,
        declared.scores[0].rmse,
    )
    assert declared.scores[0].top10 < values.mean() < by_name.scores[0].top10


@pytest.mark.filterwarnings("error")
def test_one_prediction_for_all_ranks_nothing() -> None:
    scores = _ranking(np.full(50, 3.0), np.arange(50.0), sign=-1.0)
    assert (scores["tau"], scores["spearman"], scores["tau_top"]) == (0, 0, 0)


def test_labels_are_counted_among_the_networks_that_have_one(
    tmp_path: Path, table: Benchmark
) -> None:
    known = np.random.default_rng(1).permutation(len(table))[:24]
    cells = [f"{table.values('my_accuracy')[i]}" if i in known else "" for i in range(len(table))]
    rows = [
        f"{arch},{cell},{i}"
        for i, (arch, cell) in enumerate(zip(table.notations, cells, strict=True))
    ]
    path = tmp_path / "sparse.csv"
    path.write_text("\n".join(["arch,my_accuracy,rank", *rows]))
    sparse = load_benchmark(str(path))
    found = compare(replace(comparison_of(sparse), sizes=(12,), seeds=2), sparse)
    assert len(found.predicted["ridge"].truth) == 24 - 12, (
        "12 of 24 labels are learned, whichever seed"
    )
    with pytest.raises(
        InputError, match=r"cannot train on 15 of 24 .* with a value of my_accuracy: give 1 to 14"
    ):
        compare(comparison_of(sparse, sizes=(15,)), sparse)
    other = replace(comparison_of(sparse), test_metric="rank:max")
    assert len(compare(other, sparse).predicted["ridge"].truth) == 30 - 12, (
        "networks without a label are ranked, too"
    )


def test_a_repeated_size_counts_once(table: Benchmark) -> None:
    once, twice = (
        compare(comparison_of(table, sizes=sizes, seeds=3), table) for sizes in ((12,), (12, 12))
    )
    assert [score.tau for score in once.scores] == [score.tau for score in twice.scores]


def test_a_seed_beyond_what_generators_take_is_refused(table: Benchmark) -> None:
    with pytest.raises(InputError, match="from 0 to 4294967295, not 4294967296"):
        compare(comparison_of(table, first_seed=2**32 - 1, seeds=2), table)


def test_predictions_of_the_largest_size_and_first_seed_are_kept(
    table: Benchmark, tmp_path: Path
) -> None:
    journal = tmp_path / "scores.jsonl"
    first = compare(comparison_of(table, sizes=(10, 12), seeds=2), table, journal)
    found = first.predicted["ridge"]
    unseen = np.random.default_rng(0).permutation(len(table))[12:]
    assert np.array_equal(found.truth, table.values("my_accuracy")[unseen])
    assert _ranking(found.predicted, found.truth, True)["tau"] == first.scores[1].tau
    later = compare(comparison_of(table, sizes=(10, 15), seeds=1, first_seed=1), table, journal)
    assert len(later.predicted["ridge"].predicted) == len(table) - 15


def test_scores_of_changed_code_are_computed_again(table: Benchmark, tmp_path: Path) -> None:
    file, journal = tmp_path / "mine.py", tmp_path / "scores.jsonl"
    taus = []
    for sign in (1, -1):
        file.write_text(MINE.format(sign=sign))
        (score,) = compare(
            comparison_of(table, predictors=(f"{file}:Mine",)), table, journal
        ).scores
        taus.append(score.tau)
    assert taus[0] == -taus[1] != 0


def test_stored_scores_are_not_computed_again(
    table: Benchmark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    comparison = comparison_of(table, seeds=2)
    first = compare(comparison, table, tmp_path / "scores.jsonl")
    monkeypatch.setattr(comparing, "_score", None)
    again = compare(comparison, table, tmp_path / "scores.jsonl")
    assert again.scores == first.scores
    assert np.array_equal(again.predicted["ridge"].predicted, first.predicted["ridge"].predicted)


def test_differences_are_paired_by_seed() -> None:
    def score(name: str, seed: int, tau: float) -> Score:
        return Score(name, 10, seed, *[tau] * 10)

    taus = {"b": [0.7, 0.1, 0.4], "a": [0.2, 0.5, 0.8]}
    scores = [
        score(name, seed, tau)
        for name, values in taus.items()
        for seed, tau in reversed([*enumerate(values)])
    ]
    comparison = Comparison("t", "x", "y", ("b", "a"), (10,), 3)
    (pair,) = Compared(comparison, scores, {}).pairs()
    assert pair["mean"] == pytest.approx(np.mean([0.5, -0.4, -0.4]))
    assert pair["std"] == pytest.approx(np.std([0.5, -0.4, -0.4], ddof=1))
    assert pair["sentence"].startswith("a is ahead of b by 0.100")
    assert (pair["benchmark"], pair["metric"], pair["seeds"]) == ("t", "y", 3)
