"""Every experiment runs with its `--quick` setting, to its end and into the folder that it is
given.
"""

from __future__ import annotations

import importlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import predictors
from experiments.pretraining.whole_table import Kind
from nas.benchmarks import load_benchmark
from search_spaces import InputError

pytestmark = pytest.mark.usefixtures("brief_guidance")
needs_tables = pytest.mark.skipif(
    "NAS_DATA" not in os.environ, reason="NAS_DATA names no folder with the tables"
)


def run(name: str, capsys: pytest.CaptureFixture[str], **options: Any) -> Any:
    """Output of `python -m NAME --quick --json`."""
    importlib.import_module(name).main(**options, quick=True, as_json=True)
    return json.loads(capsys.readouterr().out)


@pytest.mark.slow
@needs_tables
@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("experiments.joint_metrics", 8),
        ("experiments.new_device", 8),
        ("experiments.cell_spaces", 10),
        ("experiments.unseen_spaces", 7),
    ],
)
def test_tables_have_a_row_for_each_rival(
    name: str,
    rows: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    found = run(name, capsys, out=tmp_path / "out")
    assert len(found) == rows
    scores = [value["mean"] for row in found for value in row.values() if isinstance(value, dict)]
    assert np.mean(scores) > 0.05, "on average, predictors rank better than chance"
    assert [path.name for path in tmp_path.iterdir()] == ["out"], "nothing is written elsewhere"
    assert {"table.md", "table.png"} <= {path.name for path in (tmp_path / "out").rglob("*")}


@pytest.mark.slow
@needs_tables
def test_counts_are_those_of_the_published_tables(capsys: pytest.CaptureFixture[str]) -> None:
    tables = run("tests.stress.exactness", capsys)["tables"]
    assert len(tables) > 5
    assert {table["params equal"] for table in tables} <= {"100 %"}


@pytest.mark.slow
@needs_tables
def test_proxies_are_compared_with_published_ones(capsys: pytest.CaptureFixture[str]) -> None:
    found = run("tests.stress.proxies", capsys)
    assert found["seconds_per_network"] > 0
    assert len(found["proxies"]) == len({row["proxy"] for row in found["proxies"]}) > 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("tests.stress.spaces", 15),
        ("experiments.timing.export", 1),
        ("experiments.timing.modules", 2),
        ("experiments.timing.decoding", 6),
        ("experiments.timing.texts", 15),
    ],
)
def test_checks_and_timings_run_without_published_tables(
    name: str, rows: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert len(run(name, capsys)) == rows


@pytest.mark.slow
def test_forms_of_the_text_differ_in_length_and_in_what_another_order_changes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    result = run("experiments.canonical_text", capsys)
    forms = {row["form"]: row for row in result["forms"] if row["networks"] == "nasbench201"}
    assert forms["text"]["tokens"] < forms["without functions"]["tokens"]
    assert forms["text"]["kept by a new order"] == 1 > forms["as built"]["kept by a new order"]
    assert [row["form"] for row in result["ranks"]] == list(forms)


@pytest.mark.slow
def test_speeds_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    importlib.import_module("experiments.timing.overview").main(quick=True)
    assert "choices → text" in capsys.readouterr().out


@pytest.mark.slow
def test_the_picture_of_the_readme_is_drawn(tmp_path: Path) -> None:
    out = tmp_path / "picture.png"
    importlib.import_module("experiments.picture").main(out=out, quick=True)
    assert out.stat().st_size > 10_000


@pytest.mark.slow
def test_the_demo_draws_its_figures(tmp_path: Path) -> None:
    importlib.import_module("experiments.demo").main(out=tmp_path, quick=True)
    names = {path.name for path in tmp_path.iterdir()}
    assert {"kendall.png", "pareto.png", "hypervolume.png", "summary.json", "report.html"} <= names


@pytest.mark.slow
def test_pretraining_makes_bases(tmp_path: Path) -> None:
    for name in ("pretrain", "pretrain_gnn"):
        importlib.import_module(f"experiments.pretraining.{name}").main(out=tmp_path, quick=True)
    model = predictors.load(tmp_path / "rlm-base").fit(["a", "b", "c"], {"x_ms": [1.0, 2.0, 3.0]})
    assert np.isfinite(model.predict(["d"], ["x_ms"]).mean).all()
    assert "params" in predictors.load(tmp_path / "gnn-label-free").metrics


@pytest.mark.slow
def test_pretraining_is_compared_with_and_without_a_kind_of_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("NAS_DATA", raising=False)
    found = run("experiments.pretraining.ablation", capsys, out=tmp_path)
    assert [(row["pretrained with"], row["metric"]) for row in found] == [
        (name, metric)
        for name in ("all tasks", "no random functions")
        for metric in ("accuracy", "latency")
    ]
    weights = {path.read_bytes() for path in tmp_path.glob("*/model.safetensors")}
    assert len(weights) == 2, "each row has weights of its own"


@pytest.mark.slow
def test_a_teacher_is_measured_by_the_axes_that_are_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = run("experiments.pretraining.teacher", capsys, out=tmp_path)
    assert [row["the graph network's embedding"] for row in found] == [
        "0 axes given",
        "2 axes given",
        "6 axes given",
    ]
    taus = [row["tau"]["mean"] for row in found]
    assert min(taus) > 0.1, "50 examples rank better than chance"
    assert len(set(taus)) == 3, "the embedding is read"


@pytest.mark.slow
@needs_tables
@pytest.mark.parametrize("kind", Kind)
def test_checkpoints_of_the_table_are_made(kind: Kind, tmp_path: Path) -> None:
    importlib.import_module("experiments.pretraining.whole_table").main(
        out=tmp_path, kind=kind, quick=True
    )
    assert "cifar10_test_accuracy" in predictors.load(tmp_path / f"{kind}-nasbench201").metrics


@pytest.mark.slow
def test_few_labels_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = run("experiments.few_labels", capsys, out=tmp_path)
    names = [row["predictor"] for row in found["predictors"]]
    fitted = "experiments/variants.py:FittedKernels"
    assert names == ["rlm", fitted, "gnn", "gp", "gp-choices", "forest", "ridge"]
    assert {path.name for path in tmp_path.iterdir()} == {
        "predicted.png", "ranks.png", "scores.csv", "scores.jsonl", "summary.json", "tables.md", "tau.png",
    }  # fmt: skip
    assert (tmp_path / "tables.md").read_text().startswith("| τ | 8 |\n|---|---|\n| rlm | ")


@pytest.mark.slow
@needs_tables
def test_a_front_that_was_predicted_is_checked_by_true_latencies(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = run("experiments.fbnet_devices", capsys)
    assert [row["device"] for row in found["devices"]] == ["raspi4", "pixel3", "eyeriss", "fpga"]
    assert all(0 < row["fastest (ms)"] < row["slowest (ms)"] for row in found["devices"])


@pytest.mark.slow
def test_networks_of_user_written_spaces_are_trained_and_timed(tmp_path: Path) -> None:
    families = importlib.import_module("experiments.own_families")
    families.main(out=tmp_path, quick=True)
    for family, population in families.POPULATIONS.items():
        table = load_benchmark(families.table(family, tmp_path), population.space)
        assert len(set(table.load_texts())) == len(table.architectures) == families.QUICK_NETWORKS
        assert (table.values("digits_accuracy") > 2).all()
        assert (table.values("cpu_latency_ms") > 0).all()


def test_a_family_that_was_not_trained_is_named_with_its_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    unseen = importlib.import_module("experiments.unseen_spaces")
    with pytest.raises(
        InputError, match=r"digits-own-widths.csv.gz does not exist: run `.* --only own-widths`"
    ):
        unseen.main(out=tmp_path / "out", families="own-widths", only="ridge", quick=True)


def test_latencies_are_learned_if_requested(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    unseen = importlib.import_module("experiments.unseen_spaces")
    found = run(
        "experiments.unseen_spaces",
        capsys,
        out=tmp_path,
        families="digits-nasbench101",
        metric=unseen.Learned.latency,
        only="rlm",
    )
    assert found[0]["metric"] == "latency"
    assert found[0]["tau"]["mean"] > 0.5, "counts of lines tell latencies after 16 measurements"


@pytest.mark.slow
def test_latencies_of_two_passes_are_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = run("experiments.latencies", capsys, out=tmp_path)
    assert len(rows) == 9  # three ways; none, one or both passes beside a busy process
    assert {row["way"] for row in rows} == {"in a row", "alone", "together"}
    assert all(0 <= row["covered (%)"] <= 100 for row in rows)
    assert len(list(tmp_path.glob("pass-*.json"))) == 4
