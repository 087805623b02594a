"""Claims about measured searches: they resume, never mix measurements, and are compared with the
best front found.
"""

from __future__ import annotations

import csv
import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nas.benchmarks import load_benchmark
from nas.benchmarks.table import Benchmark, Header, Table
from nas.comparison.runs import SearchOptions, run_measured_studies, run_studies
from nas.comparison.studies import Studies
from nas.evaluation.latency import LatencyTask
from nas.evaluation.measurement import Measured, Measurement, Measurements
from nas.report.folders import save_studies
from nas.search.measured_evaluator import MeasuredEvaluator
from search_spaces import SearchSpace
from search_spaces.common.errors import InputError

GOALS = "params:max,flops"


def run(space: SearchSpace, folder: Path, **changes: Any) -> Studies:
    measurement = changes.pop("measurement", Measurement(("params", "flops")))
    settings: dict[str, Any] = {
        "objectives": GOALS, "samplers": ["random", "nsga2"],
        "evaluations": 5, "seeds": (0, 1), **changes,
    }  # fmt: skip
    return run_measured_studies(MeasuredEvaluator(space, measurement), folder=folder, **settings)


def test_results_are_compared_with_the_best_front_of_all_searches(
    switches: SearchSpace, tmp_path: Path
) -> None:
    studies = run(switches, tmp_path)
    values = np.concatenate(
        [r.evaluated.values for group in studies.results.values() for r in group]
    )
    summary = studies.summary()
    assert summary["space"] == "switches"
    # By default the hypervolume goes up to the worst value of each objective that was measured.
    assert summary["reference_point"] == {"params": values[:, 0].min(), "flops": values[:, 1].max()}
    for row in studies.table():
        assert 0 < float(row["HV@5"].split()[0]) <= 1
    assert max(r for s in summary["samplers"].values() for r in s["hypervolume_ratio"]) <= 1
    whole = run(switches, tmp_path / "whole", evaluations=8, seeds=(0,), samplers=["random"])
    assert whole.summary()["samplers"]["random"]["hypervolume_ratio"] == [pytest.approx(1)]


def test_hypervolume_is_counted_by_evaluations_without_prior_observations(
    switches: SearchSpace, tmp_path: Path
) -> None:
    first = run(switches, tmp_path / "first", seeds=(0,), samplers=["random"])
    save_studies(tmp_path / "first", first)
    front = tmp_path / "first" / "front.csv"
    known = len(front.read_text().splitlines()) - 1
    second = run(
        switches,
        tmp_path / "second",
        seeds=(0,),
        samplers=["random"],
        options=SearchOptions(prior=front),
        evaluations=3,
    )
    (curve,) = second.curves()["random"]
    assert len(second.first.evaluated.architectures) == known + 3
    assert len(curve) == 3, "known networks count for the front, but not as evaluations"
    assert curve[0] >= second.reference.curve(second.first.feasible_values)[known - 1] > 0
    assert "HV@3" in second.table()[0]


def test_hypervolume_goes_up_to_the_given_point(switches: SearchSpace, tmp_path: Path) -> None:
    near, far = (
        run(switches, tmp_path, point=point).summary()["samplers"]["random"]["hypervolume"]
        for point in ([0, 1e4], [0, 2e4])
    )
    assert all(0 < a < b for a, b in zip(near, far, strict=True))
    with pytest.raises(InputError, match="1 values for 2 objectives"):
        run(switches, tmp_path, point=[1.0])


def test_results_are_written_with_the_costs(switches: SearchSpace, tmp_path: Path) -> None:
    studies = run(switches, tmp_path, objectives="flops")
    save_studies(tmp_path, studies)
    rows = list(csv.DictReader((tmp_path / "front.csv").open()))
    assert [float(row["flops"]) for row in rows] == [
        row["flops"] for row in studies.first.front_rows
    ]
    assert all(
        int(row["params"]) == switches.params(switches.parse(row["architecture"])) for row in rows
    )
    assert json.loads((tmp_path / "summary.json").read_text())["table"] == studies.table()
    assert (tmp_path / "front" / "00.onnx").is_file()


def test_two_objectives_are_drawn(switches: SearchSpace, tmp_path: Path) -> None:
    save_studies(tmp_path, run(switches, tmp_path))
    assert (tmp_path / "pareto.png").stat().st_size > 1000


def test_a_search_resumes_where_it_stopped(
    switches: SearchSpace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[object] = []
    original = Measurement.__call__

    def count(self: Measurement, network: Any, *rest: Any, **named: Any) -> Any:
        measured.append(network)
        return original(self, network, *rest, **named)

    monkeypatch.setattr(Measurement, "__call__", count)
    run(switches, tmp_path, evaluations=3, seeds=(0,), samplers=["random"])
    assert len(measured) == 3
    run(switches, tmp_path, evaluations=5, seeds=(0,), samplers=["random"])
    assert len(measured) == 5


def test_values_of_different_measurements_are_not_mixed(
    switches: SearchSpace, tmp_path: Path
) -> None:
    def timed(runs: int) -> Measurement:
        return Measurement(
            ("params", "flops", "cpu_latency_ms"),
            latency=LatencyTask(warmup=0, runs=runs, windows=1),
        )

    run(switches, tmp_path, measurement=timed(1))
    with pytest.raises(InputError, match=r"started with measurement\.latency\.runs 1, not 2"):
        run(switches, tmp_path, measurement=timed(2))


def test_a_space_without_measurable_networks_is_an_error(
    switches: SearchSpace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing = Measured(float("nan"), float("nan"), float("nan"))
    found = Measurements({"params": nothing, "flops": nothing})
    monkeypatch.setattr(Measurement, "__call__", lambda *_, **__: found)
    with pytest.raises(InputError, match=r"no network of switches has values: params is nan"):
        run(switches, tmp_path)


SMALL_SPACE = """from search_spaces import SearchSpace
class Small(SearchSpace):
    input_shape, num_classes = (1, 4, 4), 2
    def build(self, trial, net):
        return net.classifier(net.conv(net.input, trial.suggest_int("width", 1, 4)))
"""


@pytest.mark.usefixtures("cache")
def test_progress_shows_that_the_texts_of_a_table_are_written_first(tmp_path: Path) -> None:
    (tmp_path / "small.py").write_text(SMALL_SPACE)
    header = Header("test", f"{tmp_path / 'small.py'}:Small", by_text=True, is_whole=True)
    space = header.open_space()
    rows = [space.format(arch) for arch in space.enumerate()]
    Table(header, rows, {"x_ms": np.arange(4.0)}).save(tmp_path / "table")
    steps: list[tuple[str, int, int]] = []
    table = Benchmark(tmp_path / "table")
    run_studies(
        table,
        "x_ms",
        ["random"],
        2,
        (0,),
        tmp_path / "out",
        progress=lambda *step: steps.append(step),
    )
    assert steps[:4] == [("texts", done, 4) for done in (1, 2, 3, 4)]
    assert steps[-1][1:] == (2, 2)


@pytest.mark.slow
def test_a_search_of_the_demos_table_is_ahead_of_random_after_20_evaluations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = load_benchmark("digits201")
    monkeypatch.setattr(
        table.space, "to_text", cache(table.space.to_text)
    )  # all searches write the same texts

    def share(sampler: str, seeds: int) -> float:
        """Share of the true hypervolume, mean over the seeds."""
        goals, limits = "digits_accuracy,cpu_latency_ms", ["digits_accuracy >= 50"]
        studies = run_studies(table, goals, [sampler], 20, range(seeds), tmp_path / sampler, limits)
        return float(studies.curves()[sampler][:, -1].mean())

    assert share("rlm", 24) > share("random", 24) + 0.02  # deviation between seeds: 0.12 and 0.09
