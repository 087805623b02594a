"""Claims about searches of tables that lack architectures of their space."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import optuna
import pytest

from nas import PredictorSampler, Problem, TableEvaluator, create_sampler, load_benchmark, search
from nas.benchmarks import Benchmark
from nas.search.joining import join
from nas.search.rows import RowSpace
from predictors import create
from search_spaces import Architecture, InputError, get_space

SPACE = get_space("tiny-resnet")
METRICS = ["x_accuracy", "y_latency_ms"]


@pytest.fixture
def table(cache: Path, tmp_path: Path) -> Benchmark:
    """60 architectures of the space. Accuracy grows with the widths, and every fifth latency is
    missing.
    """
    rng = np.random.default_rng(0)
    rows = list(dict.fromkeys(SPACE.sample(rng) for _ in range(70)))[:60]
    path = tmp_path / "mine.csv"
    lines = [
        f'"{SPACE.format(a)}",{accuracy(a)},{"" if i % 5 == 4 else SPACE.flops(a) / 1e6}'
        for i, a in enumerate(rows)
    ]
    path.write_text("\n".join(["architecture,x_accuracy,y_latency_ms", *lines]))
    return load_benchmark(path, "tiny-resnet")


def accuracy(architecture: Architecture) -> float:
    choices = dict(architecture.choices)
    return (
        sum(value for name, value in choices.items() if name.startswith("width"))
        + choices["stage0_kernel"] / 10
    )


@pytest.mark.parametrize(
    "sampler",
    ["random", "nsga2", "tpe", "ridge", pytest.param("optuna-gp", marks=pytest.mark.slow)],
)
def test_a_partial_table_is_searched_among_its_rows_by_any_sampler(
    table: Benchmark, sampler: str
) -> None:
    result = search(
        Problem(table.space, TableEvaluator(table, METRICS), ",".join(METRICS)),
        sampler=sampler,
        evaluations=15,
    )
    found = result.evaluated
    assert len(set(found.architectures)) == 15
    assert not result.failures
    assert np.isfinite(found.values).all(), "rows without a value are left out"
    for architecture, values in zip(found.architectures, found.values.tolist(), strict=True):
        row = table.query(architecture)
        assert values == [row["x_accuracy"], row["y_latency_ms"]]


def test_all_rows_that_have_the_values_are_evaluated_and_the_search_ends(table: Benchmark) -> None:
    result = search(
        Problem(table.space, TableEvaluator(table, METRICS), ",".join(METRICS)),
        sampler="nsga2",
        evaluations=100,
    )
    assert len(result.evaluated.architectures) == 48
    by_accuracy = search(
        Problem(table.space, TableEvaluator(table, METRICS[:1]), "x_accuracy"),
        sampler="random",
        evaluations=100,
    )
    assert len(by_accuracy.evaluated.architectures) == 60


def test_a_sampler_still_learns_which_rows_are_good(table: Benchmark) -> None:
    def found(sampler: str) -> float:
        evaluator = TableEvaluator(table, METRICS[:1])
        seeds = [
            search(
                Problem(table.space, evaluator, "x_accuracy"),
                sampler=sampler,
                evaluations=25,
                seed=seed,
            ).evaluated.values
            for seed in range(4)
        ]
        return float(np.mean([values[-10:].mean() for values in seeds]))

    assert found("tpe") > found("random") + 1


def test_a_sampler_of_the_users_own_proposes_rows_too(table: Benchmark) -> None:
    evaluator = TableEvaluator(table, METRICS)
    sampler = create_sampler(
        "ridge", SPACE, ",".join(METRICS), n_startup=4
    )  # made for the whole space
    result = search(
        Problem(table.space, evaluator, ",".join(METRICS)), sampler=sampler, evaluations=12
    )
    assert len(result.evaluated.architectures) == 12
    assert not result.failures
    plain = search(
        Problem(table.space, evaluator, ",".join(METRICS)),
        sampler=optuna.samplers.TPESampler(seed=1),
        evaluations=12,
    )
    assert len(plain.evaluated.architectures) == 12


def test_a_row_has_no_prediction_of_another_network(table: Benchmark) -> None:
    own = PredictorSampler(table.space, lambda: create("ridge"), METRICS, n_startup=8)
    result = search(
        Problem(table.space, TableEvaluator(table, METRICS), METRICS), sampler=own, evaluations=24
    )
    same = search(
        Problem(table.space, TableEvaluator(table, METRICS), METRICS),
        sampler="ridge",
        evaluations=24,
    )
    for predicted in (result.predicted, same.predicted):
        for mean, std, true in (row for rows in predicted.values() for row in rows):
            assert abs(mean - true) < 6 * std + abs(true)
    assert len(result.expected) < len(same.expected)


def test_a_worker_searches_the_same_rows_of_the_same_table(
    table: Benchmark, tmp_path: Path
) -> None:
    storage, evaluator = tmp_path / "j.log", TableEvaluator(table, METRICS)
    search(
        Problem(table.space, evaluator, ",".join(METRICS)),
        sampler="random",
        evaluations=9,
        storage=storage,
        seconds=0,
    )
    result = join(storage)
    assert len(result.evaluated.architectures) == 9
    assert not result.failures


def test_a_table_without_any_complete_row_is_refused(cache: Path, tmp_path: Path) -> None:
    first, second = list(SPACE.enumerate())[:2]
    lines = [f'"{SPACE.format(first)}",1,', f'"{SPACE.format(second)}",,2']
    (tmp_path / "gaps.csv").write_text("\n".join(["arch,x_accuracy,y_latency_ms", *lines]))
    table = load_benchmark(tmp_path / "gaps.csv", "tiny-resnet")
    with pytest.raises(
        InputError, match="no row of gaps has all of the metrics x_accuracy, y_latency_ms"
    ):
        search(
            Problem(table.space, TableEvaluator(table, METRICS), ",".join(METRICS)),
            sampler="random",
            evaluations=3,
        )


def test_proposals_become_the_nearest_rows_that_are_not_taken() -> None:
    rows = [SPACE.sample(np.random.default_rng(seed)) for seed in range(20)]
    space, rng = RowSpace(SPACE, rows), np.random.default_rng(0)
    for row in rows:
        assert space.nearest(row.as_dict(), set(), rng) == row
    other = space.nearest(rows[0].as_dict(), {rows[0]}, rng)
    assert other is not None

    def shared(row: Architecture) -> int:
        return len(set(row.choices) & set(rows[0].choices))

    assert shared(other) == max(shared(row) for row in rows[1:])
    assert space.nearest(rows[0].as_dict(), set(rows), rng) is None
    assert {space.sample(rng) for _ in range(200)} == set(rows)
    assert all(space.mutate(row, rng) in {*rows} - {row} for row in rows)
    children = {space.crossover(rows[0], rows[1], rng) for _ in range(20)}
    assert children <= set(rows)
    assert len(children) > 1
    assert set(space.enumerate()) == set(rows)


@pytest.mark.slow
def test_the_shipped_partial_table_is_searched(cache: Path) -> None:
    table = load_benchmark("digits-darts")
    objectives = "digits_accuracy,cpu_latency_ms"
    result = search(
        Problem(table.space, TableEvaluator(table, objectives.split(",")), objectives),
        sampler="nsga2",
        evaluations=10,
    )
    assert len(result.evaluated.architectures) == 10
    assert not result.failures
