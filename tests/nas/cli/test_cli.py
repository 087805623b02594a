"""Claims about the command line: quick help, useful output, one clear line for every bad input."""

from __future__ import annotations

import csv
import json
import resource
import subprocess
import sys
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

import predictors
from nas import cli
from nas.benchmarks.csv_file import ORIGIN_COLUMNS
from nas.cli.console import print_table
from nas.report import folders
from search_spaces import get_space

pytestmark = pytest.mark.usefixtures("brief_guidance")
SPACE = get_space("nasbench201", channels=4, cells=1, input_shape=(1, 8, 8))
ARCHS = [f"|{a}~0|+|{b}~0|{c}~1|+|skip_connect~0|none~1|{d}~2|" for a, b, c, d in [
    ("none", "none", "nor_conv_3x3", "nor_conv_1x1"), ("skip_connect", "none", "nor_conv_1x1", "nor_conv_3x3"),
    ("nor_conv_3x3", "avg_pool_3x3", "none", "skip_connect"), ("none", "nor_conv_3x3", "none", "avg_pool_3x3"),
    ("avg_pool_3x3", "none", "skip_connect", "none"), ("nor_conv_1x1", "skip_connect", "none", "nor_conv_1x1"),
]]  # fmt: skip


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """Exit status of `nas …` in this process."""
    monkeypatch.setattr(sys, "argv", ["nas", *arguments])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    return int(stop.value.code or 0)


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's CSV of six architectures; the cache is kept out of the user's home."""
    monkeypatch.setenv("NAS_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "mine.csv"
    rows = [f"{arch},{90 - i},{1.5 + i * i}" for i, arch in enumerate(ARCHS)]
    path.write_text("\n".join(["arch,my_accuracy,my_latency_ms", *rows]) + "\n")
    return path


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "net.onnx"
    path.write_bytes(SPACE.to_onnx(SPACE.parse(ARCHS[0])).SerializeToString())
    return path


def test_help_is_shown_at_once() -> None:
    """The limit of 0.7 s is for a quiet machine. The best processor time of three runs excludes
    other work.
    """

    def spent() -> float:
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime

    times, limit = [], 0.7 * 2
    for _ in range(3):
        start = spent()
        subprocess.run([sys.executable, "-m", "nas.cli", "--help"], check=True, capture_output=True)
        times.append(spent() - start)
        if times[-1] < limit:
            break
    assert 0.05 < min(times) < limit


def test_searches_and_workers_import_torch_only_to_train() -> None:
    code = "import sys, nas.search.joining; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys, nas.cli; sys.exit(bool({'torch', 'optuna', 'transformers', 'matplotlib'} "
        "& "
        "set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_spaces_and_samples_as_json(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run(monkeypatch, "spaces", "--json") == 0
    about = {row["space"]: row["about"] for row in json.loads(capsys.readouterr().out)}
    assert "nasbench201" in about
    assert all(sentence.endswith(".") for sentence in about.values())  # none is cut at a line
    assert (
        run(
            monkeypatch,
            "sample",
            "--space",
            "tiny-resnet",
            "--count",
            "2",
            "--out",
            str(tmp_path),
            "--json",
        )
        == 0
    )
    rows = json.loads(capsys.readouterr().out)
    assert len(rows) == 2
    assert rows[0]["params"] > 0
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "0000.onnx",
        "0000.txt",
        "0001.onnx",
        "0001.txt",
    ]


def test_a_table_that_is_too_wide_is_transposed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    rows = [
        {"who": "a", **{f"metric {i}": i / 8 for i in range(9)}},
        {"who": "b", "metric 8": 0.25, "only b": 7},
    ]
    print_table("Scores", rows)
    shown = [
        [cell.strip() for cell in line.split("│")[1:-1]]
        for line in capsys.readouterr().out.splitlines()
    ]
    assert ["metric 1", "0.125", ""] in shown
    assert ["metric 8", "1", "0.25"] in shown
    assert ["only b", "", "7"] in shown


def test_text_of_a_model(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], model: Path
) -> None:
    assert run(monkeypatch, "text", str(model)) == 0
    assert capsys.readouterr().out == SPACE.to_text(SPACE.parse(ARCHS[0]))


def test_train_then_predict(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    table: Path,
    model: Path,
    tmp_path: Path,
) -> None:
    out = tmp_path / "checkpoint"
    train = (
        "train",
        "ridge",
        "--benchmark",
        str(table),
        "--metrics",
        "my_accuracy,my_latency_ms",
        "--out",
        str(out),
    )
    assert run(monkeypatch, *train) == 0
    capsys.readouterr()
    assert run(monkeypatch, "predict", str(model), "--checkpoint", str(out), "--json") == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert set(row) == {"network", "my_accuracy", "my_latency_ms", "novelty"}
    assert 80 < row["my_accuracy"]["mean"] < 95


def test_costs_are_counted_and_not_predicted_from_a_checkpoint(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    table: Path,
    model: Path,
    tmp_path: Path,
) -> None:
    out, arch = tmp_path / "checkpoint", SPACE.parse(ARCHS[0])
    rows = table.read_text().splitlines()
    costs = tmp_path / "costs.csv"
    costs.write_text(
        "\n".join(
            [f"{rows[0]},params,flops", *(f"{row},{i},{i}" for i, row in enumerate(rows[1:], 1))]
        )
    )
    train = (
        "train",
        "ridge",
        "--benchmark",
        str(costs),
        "--metrics",
        "my_accuracy,params,flops",
        "--out",
        str(out),
    )
    assert run(monkeypatch, *train) == 0
    capsys.readouterr()
    assert run(monkeypatch, "predict", str(model), "--checkpoint", str(out), "--json") == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["params"] == {"mean": SPACE.params(arch), "std": 0.0}
    assert row["flops"] == {"mean": SPACE.flops(arch), "std": 0.0}
    assert row["my_accuracy"]["std"] > 0


def compare_command(folder: Path) -> tuple[str, ...]:
    """`nas compare` on a table of 30 networks and their parameters, written to `folder`."""
    archs = [SPACE.format(a) for a, _ in zip(SPACE.enumerate(), range(3000), strict=False)][::100]
    costs = [SPACE.params(SPACE.parse(arch)) for arch in archs]
    path = folder / "t.csv"
    rows = [f"{arch},{cost},{-cost}" for arch, cost in zip(archs, costs, strict=True)]
    path.write_text("\n".join(["arch,d_latency_ms,e_accuracy", *rows]))
    return ("compare", "--benchmark", str(path), "--metric", "d_latency_ms")


@pytest.mark.slow
def test_compare_gives_a_row_per_predictor_and_resumes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("NAS_CACHE", str(tmp_path / "cache"))
    command = (*compare_command(tmp_path), "--predictors", "ridge,forest")
    command = (
        *command,
        "--sizes",
        "10,15",
        "--seeds",
        "2",
        "--out",
        str(tmp_path / "out"),
        "--json",
    )
    assert run(monkeypatch, *command) == 0
    first = capsys.readouterr().out
    result = json.loads(first)
    assert [(r["predictor"], r["size"], r["seeds"]) for r in result["predictors"]] == [
        ("ridge", 10, 2), ("forest", 10, 2), ("ridge", 15, 2), ("forest", 15, 2),
    ]  # fmt: skip
    assert [(p["size"], p["first"], p["second"]) for p in result["pairs"]] == [
        (n, "ridge", "forest") for n in (10, 15)
    ]
    assert "2 seeds" in result["pairs"][0]["sentence"]
    assert run(monkeypatch, *command) == 0
    assert capsys.readouterr().out == first  # times included: nothing was computed again
    with (tmp_path / "out" / "scores.csv").open(newline="") as file:
        assert len(list(csv.DictReader(file))) == 8
    for figure in ("tau", "predicted", "ranks"):
        assert (tmp_path / "out" / f"{figure}.png").stat().st_size > 10_000


@pytest.mark.slow
def test_compare_accepts_several_metrics(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("NAS_CACHE", str(tmp_path / "cache"))
    command = (
        *compare_command(tmp_path),
        "--metric",
        "e_accuracy",
        "--predictors",
        "ridge",
        "--sizes",
        "10",
    )
    assert run(monkeypatch, *command, "--seeds", "1", "--out", str(tmp_path / "out"), "--json") == 0
    rows = json.loads(capsys.readouterr().out)["predictors"]
    assert [row["metric"] for row in rows] == ["d_latency_ms", "e_accuracy"]
    assert rows[0]["regret"] == rows[1]["regret"], "less latency is better, and so is more accuracy"
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "t-d_latency_ms",
        "t-e_accuracy",
    }


@pytest.mark.slow
def test_compare_gives_the_same_scores_with_any_number_of_processes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("NAS_CACHE", str(tmp_path / "cache"))
    command = (
        *compare_command(tmp_path),
        "--predictors",
        "ridge,rlm",
        "--sizes",
        "12",
        "--seeds",
        "2",
        "--json",
    )
    rows = []
    for jobs in ("1", "2"):
        assert run(monkeypatch, *command, "--jobs", jobs) == 0
        made = json.loads(capsys.readouterr().out)["predictors"]
        rows.append([{name: v for name, v in row.items() if "seconds" not in name} for row in made])
    assert rows[0] == rows[1]


@pytest.mark.slow
def test_compare_on_other_seeds_uses_other_splits_and_stores_scores_separately(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def taus(*options: str) -> list[float]:
        assert run(monkeypatch, *command, *options, "--json") == 0
        return [row["tau"] for row in json.loads(capsys.readouterr().out)["predictors"]]

    monkeypatch.setenv("NAS_CACHE", str(tmp_path / "cache"))
    command = (
        *compare_command(tmp_path),
        "--predictors",
        "ridge",
        "--sizes",
        "10",
        "--out",
        str(tmp_path / "out"),
    )
    (first,), (second,) = taus("--seeds", "1"), taus("--first-seed", "1", "--seeds", "1")
    assert first != second
    assert taus("--seeds", "2") == pytest.approx([(first + second) / 2])


def test_search_writes_its_results(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("NAS_CACHE", str(tmp_path / "cache"))
    space = get_space("nasbench201")
    path, out = tmp_path / "t.csv", tmp_path / "out"
    lines = [
        f"{space.format(a)},{i % 97},{(i * 7) % 101 + 1}" for i, a in enumerate(space.enumerate())
    ]
    path.write_text("\n".join(["arch,x_accuracy,d_latency_ms", *lines]))
    command = (
        "search",
        "--benchmark",
        str(path),
        "--objectives",
        "x_accuracy,d_latency_ms",
        "--sampler",
        "random",
    )
    assert run(monkeypatch, *command, "--evaluations", "30", "--out", str(out), "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert result["front"]
    names = {p.name for p in out.iterdir()}
    assert names >= {
        "front",
        "front.csv",
        "summary.json",
        "pareto.png",
        "hypervolume.png",
        "studies",
    }
    assert len(list((out / "front").glob("*.onnx"))) == len(result["front"])


SMALL = ("nasbench201", "--option", "channels=4", "--option", "cells=1")


@pytest.mark.slow
@pytest.mark.usefixtures("brief_clocks")
def test_evaluate_measures_a_network_and_resumes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    command = (
        "evaluate",
        *SMALL,
        "--arch",
        ARCHS[0],
        "--seeds",
        "2",
        "--epochs",
        "1",
        "--resume",
        str(tmp_path),
    )
    metrics = ("--metrics", "digits_accuracy,cpu_latency_ms,params")
    assert run(monkeypatch, *command, *metrics, "--json") == 0
    first = json.loads(capsys.readouterr().out)
    assert first["network"] == ARCHS[0]
    assert first["params"]["value"] == SPACE.params(SPACE.parse(ARCHS[0]))
    assert set(first["cpu_latency_ms"]) == {"value", "low", "high", "spread"}
    (checkpoint,) = tmp_path.glob("*.pt")
    written = checkpoint.stat().st_mtime_ns
    assert run(monkeypatch, *command, "--metrics", "digits_accuracy", "--json") == 0
    assert json.loads(capsys.readouterr().out)["digits_accuracy"] == first["digits_accuracy"]
    assert checkpoint.stat().st_mtime_ns == written  # nothing was trained again
    assert run(monkeypatch, *command, "--training", "shift=0") == 2
    assert (
        "a training that differs in task" in capsys.readouterr().err
    )  # all metrics by default: none is refused


def test_evaluate_accepts_a_model_and_data_set_of_the_user(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], model: Path, tmp_path: Path
) -> None:
    images = np.random.default_rng(0).integers(0, 256, (80, 8, 8), np.uint8)
    np.savez(tmp_path / "mine.npz", x=images, y=np.arange(80) % 10)
    command = ("evaluate", str(model), "--dataset", str(tmp_path / "mine.npz"), "--epochs", "1")
    assert (
        run(monkeypatch, *command, "--training", "batch=16", "--metrics", "mine_accuracy,flops")
        == 0
    )
    output = capsys.readouterr().out
    assert "mine_accuracy" in output
    assert str(SPACE.flops(SPACE.parse(ARCHS[0]))) in output


@pytest.mark.slow
def test_search_by_measuring_writes_its_results_and_resumes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    command = (
        "search",
        "--space",
        *SMALL,
        "--objectives",
        "digits_accuracy,flops",
        "--constraint",
        "params <= 1e6",
        # Fmt: skip
        "--sampler",
        "random",
        "--evaluations",
        "3",
        "--epochs",
        "1",
        "--reference",
        "0,1e7",
    )
    assert run(monkeypatch, *command, "--out", str(tmp_path), "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert {p.name for p in tmp_path.iterdir()} >= {
        "front",
        "front.csv",
        "summary.json",
        "pareto.png",
        "studies",
    }
    measured = {"architecture", "digits_accuracy", "flops", "digits_test_accuracy"}
    assert set(result["front"][0]) == {*measured, *ORIGIN_COLUMNS}
    header = (tmp_path / "front.csv").read_text().splitlines()[0]
    assert set(header.split(",")) == {*measured, "params", *ORIGIN_COLUMNS}
    assert run(monkeypatch, *command, "--out", str(tmp_path), "--json") == 0
    again = json.loads(capsys.readouterr().out)
    assert len(result.pop("durations")) == 2, "before the start and after the first evaluation"
    assert again.pop("durations") == [], "nothing is left to do"
    assert again == result
    assert run(monkeypatch, *command, "--out", str(tmp_path), "--trainings", "2") == 2
    assert "started with measurement.seeds [0], not [0, 1]" in capsys.readouterr().err


@pytest.mark.slow
def test_every_search_has_a_folder_of_its_own_by_default(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    for slow in ("plot_studies", "write_report"):
        monkeypatch.setattr(folders, slow, lambda *arguments: None)
    code = (
        "from search_spaces.published.tiny_resnet import TinyResNet\nclass Mine(TinyResNet):\n "
        " "
        "  num_classes = {}\n"
    )
    (tmp_path / "mine.py").write_text(code.format(10))
    command = ("search", "--space", "mine.py:Mine", "--sampler", "random", "--objectives")

    def written(objectives: str, *arguments: str, evaluations: int = 3) -> str:
        assert (
            run(monkeypatch, *command, objectives, "--evaluations", str(evaluations), *arguments)
            == 0
        )
        return capsys.readouterr().out.splitlines()[-1].removeprefix("written to ")

    first = written("params,flops")
    assert first.startswith("results/Mine-params+flops-20")
    front = (tmp_path / first / "front.csv").read_bytes()
    assert len({first, written("params"), written("params:max,flops")}) == 3
    constrained = written("params,flops", "--constraint", "params <= 1e7")
    assert written("params,flops", "--constraint", "params <= 1e7", evaluations=5) == constrained, (
        "it goes on"
    )
    assert written("params,flops", "--new") not in (first, constrained)
    assert (tmp_path / first / "front.csv").read_bytes() == front
    assert written("params,flops", evaluations=8) == first
    assert run(monkeypatch, *command, "params", "--out", first) == 2
    assert (
        "started with objectives ['params:min', 'flops:min'], not ['params:min']"
        in capsys.readouterr().err
    )
    (tmp_path / "mine.py").write_text(code.format(12))
    assert run(monkeypatch, *command, "params,flops") == 2
    assert "builds other networks" in (error := capsys.readouterr().err)
    assert "--new" in error
    assert run(monkeypatch, *command, "params", "--new", "--storage", "sqlite:///x.db") == 2
    assert "choose another --study" in capsys.readouterr().err


@pytest.mark.slow
def test_search_by_predictions_alone_finds_their_front(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    space = get_space("tiny-resnet")
    archs = [space.sample(np.random.default_rng(seed)) for seed in range(40)]
    latency = np.array([space.flops(arch) / 1e6 for arch in archs])
    texts = [space.to_text(arch) for arch in archs]
    predictors.create("ridge").fit(texts, {"my_latency_ms": latency}).save(tmp_path / "mine")
    command = (
        "search",
        "--space",
        "tiny-resnet",
        "--objectives",
        "params:max,my_latency_ms",
        "--sampler",
        "nsga2",
    )
    trained = (
        "--predictor",
        str(tmp_path / "mine"),
        "--evaluations",
        "60",
        "--out",
        str(tmp_path / "out"),
        "--json",
    )
    assert run(monkeypatch, *command, *trained) == 0
    front = json.loads(capsys.readouterr().out)["front"]
    predicted = predictors.load(tmp_path / "mine")
    best = space.parse(front[0]["architecture"])
    assert front[0]["params"] == space.params(best)
    expected = predicted.predict([space.to_text(best)], ["my_latency_ms"]).median[0, 0]
    assert front[0]["my_latency_ms"] == pytest.approx(expected)
    assert run(monkeypatch, *command, *trained, "--epochs", "1") == 2
    assert "--predictor needs --space" in capsys.readouterr().err


TABLE_METRIC = ("--benchmark", "T", "--metric", "my_accuracy")
SEARCH = ("search", "--benchmark", "T", "--objectives")
TRAIN = ("train", "ridge", "--benchmark", "T", "--out", "x", "--metrics")
BAD = {
    "unknown space": (("sample", "--space", "nasbench21"), "did you mean 'nasbench201'"),
    "unknown benchmark": (
        ("search", "--benchmark", "digit201", "--objectives", "a"),
        "did you mean 'digits201'",
    ),
    "unknown predictor": (("train", "rml", *TRAIN[2:], "my_accuracy"), "did you mean 'rlm'"),
    "nothing to train on": (
        ("train", "rlm", "--out", "x"),
        "either --benchmark and --metrics, or --table",
    ),
    "benchmark without metrics": (TRAIN[:-1], "--benchmark needs --metrics"),
    "missing text table": (
        ("train", "rlm", "--table", "none.csv", "--out", "x"),
        "none.csv: cannot be read",
    ),
    "missing backbone": (
        ("train", "rlm", *TRAIN[2:], "my_accuracy", "--backbone", "./none"),
        "no T5Gemma could be loaded",
    ),
    "unknown metric": ((*TRAIN, "my_acuracy"), "did you mean 'my_accuracy'"),
    "unknown objective": ((*SEARCH, "my_latency"), "did you mean 'my_latency_ms'"),
    "unknown sampler": ((*SEARCH, "my_accuracy", "--sampler", "nsga"), "did you mean 'nsga"),
    "bad constraint": (
        (*SEARCH, "my_accuracy", "--constraint", "my_latency_ms < x"),
        "my_latency_ms < x",
    ),
    "size beyond the table": (
        ("compare", *TABLE_METRIC, "--sizes", "99"),
        "cannot train on 99 of 6",
    ),
    "negative first seed": (
        ("compare", *TABLE_METRIC, "--sizes", "3", "--first-seed", "-1"),
        "whole number from 0",
    ),
    "test metrics that do not match": (
        (
            "compare",
            *TABLE_METRIC,
            "--sizes",
            "3",
            "--test-metric",
            "my_accuracy",
            "--test-metric",
            "params",
        ),
        "one --test-metric for each",
    ),
    "unknown predictor to compare": (
        ("compare", *TABLE_METRIC, "--predictors", "rlm,gmn"),
        "did you mean 'gnn'",
    ),
    "predictor file that is missing": (
        ("compare", *TABLE_METRIC, "--predictors", "x.py:X"),
        "no such Python file",
    ),
    "metric to compare that is no column": (
        ("compare", "--benchmark", "T", "--metric", "params", "--sizes", "3"),
        "unknown metric of",
    ),
    "library without a name": (("text", "timm:"), "write for example timm:resnet50"),
    "value that is given twice": (
        (
            "predict",
            "M",
            "--checkpoint",
            "rlm-zoo",
            "--given",
            "rtx4090_ms=1",
            "--given",
            "rtx4090_ms=2",
        ),
        "give it once",
    ),
    "value that is not finite": (
        ("predict", "M", "--checkpoint", "rlm-zoo", "--given", "rtx4090_ms=nan"),
        "write METRIC=NUMBER",
    ),
    "sizes that are no numbers": (("compare", *TABLE_METRIC, "--sizes", "1,b"), "whole numbers"),
    "missing model": (("text", "none.onnx"), "none.onnx: no such file"),
    "model that is none": (("text", "T"), "not an ONNX model"),
    "a cost that is given": (
        ("predict", "M", "--checkpoint", "rlm-base", "--given", "params=5"),
        "params is counted in each network",
    ),
    "prediction without examples": (
        ("predict", "M", "--checkpoint", "rlm-base"),
        "rlm-base: this checkpoint has no examples to predict from: give rlm-zoo",
    ),
    "ranking without examples": (
        ("rank", "M", "--checkpoint", "rlm-generated", "--objectives", "params"),
        "rlm-generated: this checkpoint has no examples to predict from: give rlm-zoo",
    ),
    "search by predictions without examples": (
        (
            "search",
            "--space",
            "tiny-resnet",
            "--predictor",
            "rlm-base",
            "--objectives",
            "top1_accuracy",
        ),
        "rlm-base: this checkpoint has no examples to predict from: give rlm-zoo",
    ),
    "missing checkpoint": (("predict", "M", "--checkpoint", "rlm-zo"), "did you mean 'rlm-zoo'"),
    "folder without a checkpoint": (("predict", "M", "--checkpoint", "/tmp"), "not a checkpoint"),
    "neither table nor space": (
        ("search", "--objectives", "params"),
        "give --benchmark, a table to search, --space, whose networks to measure, or --model",
    ),
    "table of another space": (
        (*SEARCH, "my_accuracy", "--space", "tiny-resnet"),
        "line 2: not a dictionary of choices",
    ),
    "measuring a table": ((*SEARCH, "my_accuracy", "--epochs", "3"), "--epochs applies to --space"),
    "unknown metric to measure": (
        ("evaluate", *SMALL, "--metrics", "cpu_latency"),
        "did you mean 'cpu_latency_ms'",
    ),
    "unknown data set": (("evaluate", *SMALL, "--dataset", "digit"), "did you mean 'digits'"),
    "unknown training": (("evaluate", *SMALL, "--training", "epoch=3"), "did you mean 'epochs'"),
    "training of a wrong kind": (
        ("evaluate", *SMALL, "--training", "noise=much"),
        "a value has the wrong type",
    ),
    "training without value": (("evaluate", *SMALL, "--training", "noise"), "write NAME=VALUE"),
    "unknown provider": (
        ("evaluate", *SMALL, "--metrics", "x_latency_ms", "--provider", "XExecutionProvider"),
        "known: ",
    ),
    "space of another shape": (
        ("evaluate", *SMALL, "--option", "num_classes=3"),
        "--option num_classes=10",
    ),
    "architecture of a file": (("evaluate", "M", "--arch", "x"), "apply to spaces"),
    "reference that is no number": (
        ("search", "--space", *SMALL, "--objectives", "flops", "--reference", "x"),
        "numbers separated by commas",
    ),
    "settings of a command for measurements": (
        ("device", "add", "pi", "--space", "tiny-resnet", "--measurements", "T", "--batch", "4"),
        "--batch, --calibration and --latency-setting belong to a command",
    ),
    "unknown placeholder": (
        ("evaluate", "tiny-resnet", "--metric-command", "ram_kb=./m {file}", "--metrics", "ram_kb"),
        "{model}, {int8}, {tflite}, {openvino}, {ncnn}, {mnn}, {pte}",
    ),
    "metric of two commands": (
        (
            "evaluate",
            "tiny-resnet",
            "--metric-command",
            "ram_kb=./m {model}",
            "--metric-command",
            "ram_kb=./n {model}",
        ),
        "two commands measure ram_kb",
    ),
    "unknown build": (("benchmarks", "build", "digits"), "did you mean 'digits201'"),
    "unwritable folder": (
        ("sample", "--space", "tiny-resnet", "--out", "/proc/none"),
        "/proc/none",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_clear_line(
    case: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    table: Path,
    model: Path,
    tmp_path: Path,
) -> None:
    arguments, message = BAD[case]
    monkeypatch.chdir(tmp_path)
    named = {"T": str(table), "M": str(model)}
    assert run(monkeypatch, *(named.get(a, a) for a in arguments)) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert message in lines[-1]
    assert lines[-1].startswith("nas: ")
    assert not any("Traceback" in line for line in lines)


def test_seeds_are_checked_before_a_folder_is_made(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], table: Path, tmp_path: Path
) -> None:
    command = (
        "search",
        "--benchmark",
        str(table),
        "--objectives",
        "my_accuracy",
        "--sampler",
        "random",
    )
    out = tmp_path / "out"
    for options, named in (
        (("--seed", "-1"), "'--seed'"),
        (("--seed", "4294967295", "--seeds", "2"), "4294967296"),
    ):
        assert run(monkeypatch, *command, *options, "--out", str(out)) == 2
        assert named in capsys.readouterr().err
        assert not out.exists()


def test_a_file_that_is_none_of_a_checkpoint_is_not_overwritten(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], table: Path, tmp_path: Path
) -> None:
    other = tmp_path / "config.json"
    other.write_text('{"mine": true}')
    command = ("train", "ridge", "--benchmark", str(table), "--metrics", "my_accuracy", "--out")
    assert run(monkeypatch, *command, str(tmp_path)) == 2
    assert f"{other} is not of a checkpoint" in capsys.readouterr().err
    assert other.read_text() == '{"mine": true}'
    for _ in range(2):  # a checkpoint of this project is replaced
        assert run(monkeypatch, *command, str(tmp_path / "checkpoint")) == 0


@pytest.mark.parametrize(("table", "seen"), [("digits-nasbench101", True), ("digits201", False)])
def test_a_population_that_the_rlm_was_pretrained_with_is_named(
    table: str,
    seen: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    command = (
        "search",
        "--benchmark",
        table,
        "--objectives",
        "digits_accuracy",
        "--evaluations",
        "2",
        "--quiet",
    )
    for sampler in ("rlm", "random"):
        assert (
            run(monkeypatch, *command, "--sampler", sampler, "--out", str(tmp_path / sampler)) == 0
        )
        assert ("pretrained with the accuracies" in capsys.readouterr().err) is (
            seen and sampler == "rlm"
        )


def test_a_front_can_be_prior_observations_of_another_search(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    space = get_space("tiny-resnet")
    archs = list(islice(space.enumerate(), 12))
    rows = [f'"{space.format(a)}",{i},{i if i % 2 else ""}' for i, a in enumerate(archs)]
    (tmp_path / "größe.csv").write_text(
        "\n".join(["arch,größe_accuracy,board_ms", *rows]), encoding="utf-8"
    )
    command = (
        "search",
        "--benchmark",
        str(tmp_path / "größe.csv"),
        "--space",
        "tiny-resnet",
        "--sampler",
        "random",
    )
    first, second = tmp_path / "first", tmp_path / "second"
    options = ("--objectives", "größe_accuracy,params", "--evaluations")
    assert run(monkeypatch, *command, *options, "12", "--out", str(first)) == 0
    front = (first / "front.csv").read_text(encoding="utf-8")
    header = front.splitlines()[0].split(",")
    assert header[:3] == ["architecture", "größe_accuracy", "params"]
    assert {"board_ms", "sampler", "seed"} <= {*header}
    assert "nan" not in front
    known = ("--known", str(first / "front.csv"))
    assert run(monkeypatch, *command, *options, "5", *known, "--out", str(second)) == 0, (
        capsys.readouterr().err
    )


@pytest.mark.slow
def test_an_error_in_an_own_predictor_names_its_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("NAS_CACHE", str(tmp_path / "cache"))
    code = ["from predictors.baselines import Ridge", "class Mine(Ridge):", "    kind = 'mine'"]
    own, table, space = tmp_path / "own.py", tmp_path / "table.csv", get_space("tiny-resnet")
    own.write_text(
        "\n".join([*code, "    def fit(self, architectures, metrics):", "        return 1 / 0", ""])
    )
    rows = [f'"{space.format(a)}",{i}' for i, a in enumerate(islice(space.enumerate(), 16))]
    table.write_text("\n".join(["arch,my_accuracy", *rows]))
    data = ("--benchmark", str(table), "--space", "tiny-resnet")
    compared = (
        "compare",
        *data,
        "--metric",
        "my_accuracy",
        "--seeds",
        "1",
        "--predictors",
        f"{own}:Mine",
    )
    for command in (
        (*compared, "--sizes", "3"),
        (*compared, "--sizes", "3,5", "--jobs", "2"),
        ("train", f"{own}:Mine", *data, "--metrics", "my_accuracy", "--out", str(tmp_path / "c")),
    ):
        assert run(monkeypatch, *command, "--quiet") == 2
        assert (
            capsys.readouterr().err == f"nas: {own}, line 5: ZeroDivisionError: division by zero\n"
        )


def test_an_error_of_this_project_keeps_its_traceback(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise KeyError("a mistake of ours")

    monkeypatch.setattr("predictors.create", broken)
    monkeypatch.setattr(
        sys,
        "argv",
        ["nas", "train", "ridge", "--benchmark", "digits201", "--metrics", "params", "--out"],
    )
    sys.argv.append(str(tmp_path))
    monkeypatch.setattr(
        "search_spaces.common.errors.is_users_file", lambda _: False
    )  # this test is a user's code, too
    with pytest.raises(KeyError, match="a mistake of ours"):
        cli.main()


def test_truncated_model_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], model: Path
) -> None:
    model.write_bytes(model.read_bytes()[:-200])
    assert run(monkeypatch, "text", str(model)) == 2
    assert str(model) in capsys.readouterr().err


def test_text_that_does_not_parse_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], table: Path, tmp_path: Path
) -> None:
    out, broken = tmp_path / "c", tmp_path / "broken.txt"
    assert (
        run(
            monkeypatch,
            "train",
            "ridge",
            "--benchmark",
            str(table),
            "--metrics",
            "my_accuracy",
            "--out",
            str(out),
        )
        == 0
    )
    broken.write_text("net (float[N,3] x) => {")
    assert run(monkeypatch, "predict", str(broken), "--checkpoint", str(out)) == 2
    assert f"{broken}: not ONNX text" in capsys.readouterr().err


def test_checkpoint_of_another_version_is_refused(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    table: Path,
    model: Path,
    tmp_path: Path,
) -> None:
    out = tmp_path / "c"
    assert (
        run(
            monkeypatch,
            "train",
            "ridge",
            "--benchmark",
            str(table),
            "--metrics",
            "my_accuracy",
            "--out",
            str(out),
        )
        == 0
    )
    config = json.loads((out / "config.json").read_text())
    (out / "config.json").write_text(json.dumps({**config, "version": 99}))
    assert run(monkeypatch, "predict", str(model), "--checkpoint", str(out)) == 2
    assert "format version 99" in capsys.readouterr().err


def test_an_interruption_says_how_to_resume(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], model: Path
) -> None:
    def interrupted(source: str) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr("nas.networks.network_text", interrupted)
    assert run(monkeypatch, "text", str(model)) == 130
    assert capsys.readouterr().err == "nas: interrupted; run the same command again to continue\n"


def test_names_are_shown_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    print_table("on nets.py:two", [{"cost [/h]": "[b]", "Énergie [mJ]": 2}])
    shown = capsys.readouterr().out
    assert all(part in shown for part in ("nets.py:two", "cost [/h]", "[b]", "Énergie [mJ]"))


def test_a_closed_standard_error_does_not_end_a_command(
    monkeypatch: pytest.MonkeyPatch, table: Path, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    command = (
        "search",
        "--benchmark",
        str(table),
        "--objectives",
        "my_accuracy",
        "--sampler",
        "random",
    )
    assert run(monkeypatch, *command, "--evaluations", "2", "--out", str(tmp_path / "out")) == 0


def test_huge_integers_are_shown_in_short(capsys: pytest.CaptureFixture[str]) -> None:
    print_table("Scores", [{"params": 123456789.0, "score": -2e300}])
    shown = capsys.readouterr().out
    assert "123,456,789" in shown
    assert "-2e+300" in shown
