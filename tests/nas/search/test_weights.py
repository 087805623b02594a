"""Claims about trained weights: only networks on the front keep them, and they give the reported
scores.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from nas import Measurement, Problem, cli, search
from nas.evaluation.datasets import Dataset, digits
from nas.evaluation.export import load_weights, save_weights
from nas.evaluation.trainable import Trainable
from nas.evaluation.training import TrainingTask
from nas.search.joining import join
from nas.search.measured_evaluator import MeasuredEvaluator
from nas.search.own_evaluator import FunctionEvaluator
from nas.search.study.files import WeightFolder, find_weights, write_network, write_weights
from nas.search.study.load import read_search
from nas.search.study.result import SearchResult
from nas.search.study.schema import WEIGHTS_KEY
from search_spaces import Architecture, SearchSpace, get_space

GOALS = "digits_accuracy,params"


@pytest.fixture(scope="module")
def space() -> SearchSpace:
    """Networks that learn in a fifth of a second."""
    return get_space("nasbench201", channels=8, cells=1, input_shape=(1, 8, 8))


@pytest.fixture(scope="module")
def data() -> Dataset:
    torch.set_num_threads(1)
    return digits(train_images=256)


def run(
    space: SearchSpace, data: Dataset, folder: Path, evaluations: int = 6, name: str = "random-0"
) -> SearchResult:
    evaluator = MeasuredEvaluator(
        space, Measurement(("digits_accuracy", "params"), data, training=TrainingTask(2))
    )
    journal, weights = folder / "studies" / f"{name}.journal", folder / "studies" / "weights" / name
    return search(
        Problem(space, evaluator, GOALS),
        sampler="random",
        evaluations=evaluations,
        storage=journal,
        weights=weights,
    )


def kept(folder: Path) -> set[str]:
    return {path.name for path in folder.rglob("studies/weights/**/*.safetensors")}


def accuracy(model: Path, inputs: np.ndarray, targets: np.ndarray) -> float:
    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    logits = session.run(None, {session.get_inputs()[0].name: inputs})[0]
    return float(100 * (np.asarray(logits).argmax(1) == targets).mean())


@pytest.mark.slow
def test_the_fronts_onnx_files_reproduce_the_reported_accuracies(
    space: SearchSpace, data: Dataset, tmp_path: Path
) -> None:
    result = run(space, data, tmp_path)
    result.save(tmp_path)
    assert data.validation is not None
    assert len(result.front_rows) > 1
    for place, row in enumerate(result.front_rows):
        model = tmp_path / "front" / f"{place:02d}.onnx"
        further = result.further[space.parse(row["architecture"])]
        one_image = 100.5 / len(data.test)
        assert accuracy(model, data.validation.inputs, data.validation.targets) == pytest.approx(
            row["digits_accuracy"], abs=one_image
        )
        assert accuracy(model, data.test.inputs, data.test.targets) == pytest.approx(
            further["digits_test_accuracy"], abs=one_image
        )
        said = {entry.key: entry.value for entry in onnx.load(model).metadata_props}
        assert said["weights"] == "trained"
        assert json.loads(said["values"]) == row | further
        assert json.loads(said["scores"]) == {
            name: (row | further)[name] for name in (data.metric, data.test_metric)
        }
        state, _ = load_weights(model.with_suffix(".safetensors"))
        Trainable.of(space, space.parse(row["architecture"])).module().load_state_dict(state)


@pytest.mark.slow
def test_only_networks_on_the_front_keep_weights(
    space: SearchSpace, data: Dataset, tmp_path: Path
) -> None:
    result = run(space, data, tmp_path)
    front = {space.parse(row["architecture"]) for row in result.front_rows}
    paths = {
        Path(trial.user_attrs[WEIGHTS_KEY]).name
        for trial in result.study.trials
        if space.architecture(trial.params) in front and WEIGHTS_KEY in trial.user_attrs
    }
    assert kept(tmp_path) == paths
    assert len(paths) == len(front) < len(result.evaluated.architectures)
    assert result.missing_weights(tmp_path) == {}


@pytest.mark.slow
def test_an_interrupted_search_goes_on_with_its_weights(
    space: SearchSpace, data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = MeasuredEvaluator.train
    calls: list[int] = []

    def killed(self: Any, *arguments: Any) -> Any:
        calls.append(1)
        found = before(self, *arguments)
        if len(calls) == 4:
            raise KeyboardInterrupt  # after the weights were written, and before the values are
        return found

    monkeypatch.setattr(MeasuredEvaluator, "train", killed)
    with pytest.raises(KeyboardInterrupt):
        run(space, data, tmp_path / "cut", 6)
    monkeypatch.setattr(MeasuredEvaluator, "train", before)
    result = run(space, data, tmp_path / "cut", 6)
    assert len(result.evaluated.architectures) == 6
    assert len(kept(tmp_path / "cut")) == len(result.front_rows)
    assert result.missing_weights(tmp_path / "cut") == {}


@pytest.mark.slow
def test_a_second_search_of_one_process_keeps_weights_that_the_first_one_removed(
    space: SearchSpace, tmp_path: Path
) -> None:
    """Equal networks are trained once, but their weights may have been removed in the meantime."""
    measurement = Measurement(
        ("digits_accuracy", "params"), digits(train_images=64), training=TrainingTask(1)
    )
    evaluator = MeasuredEvaluator(space, measurement)
    one = search(
        Problem(space, evaluator, GOALS), sampler="random", evaluations=4, weights=tmp_path / "one"
    )
    alone = {path.name for path in (tmp_path / "one").iterdir()}
    # The same architectures, but other objectives: all large networks are on this front.
    two = search(
        Problem(space, evaluator, ["digits_accuracy", "params:max"]),
        sampler="random",
        evaluations=4,
        weights=tmp_path / "two",
    )
    assert len(alone) == len(one.front_rows)
    assert len(list((tmp_path / "two").iterdir())) == len(two.front_rows)


@pytest.mark.slow
def test_weights_are_found_in_a_folder_that_was_moved_and_missed_otherwise(
    space: SearchSpace, data: Dataset, tmp_path: Path
) -> None:
    run(space, data, tmp_path / "old", 3)
    (tmp_path / "old").rename(tmp_path / "new")
    result = read_search(tmp_path / "new" / "studies" / "random-0.journal")
    assert result.missing_weights(tmp_path / "new") == {}
    result.save(tmp_path / "new")
    assert len(list((tmp_path / "new" / "front").glob("*.safetensors"))) == len(result.front_rows)
    assert result.missing_weights(tmp_path / "elsewhere").keys() == set(
        range(len(result.front_rows))
    )
    result.save(tmp_path / "elsewhere")
    model = onnx.load(tmp_path / "elsewhere" / "front" / "00.onnx")
    assert {entry.key: entry.value for entry in model.metadata_props}["weights"] == "initial"


@pytest.mark.slow
def test_a_worker_keeps_weights_where_the_search_does(
    space: SearchSpace, data: Dataset, tmp_path: Path
) -> None:
    run(space, digits(), tmp_path, 2)
    journal = tmp_path / "studies" / "random-0.journal"
    begun = read_search(journal).study
    begun.set_user_attr("nas:evaluations", 4)
    result = join(journal)
    assert len(result.evaluated.architectures) == 4
    assert len(kept(tmp_path)) == len(result.front_rows)
    begun.set_user_attr("nas:evaluations", 6)
    result = join(journal, weights=tmp_path / "mine")
    trials = {trial.number: trial.user_attrs for trial in result.study.trials}
    assert all(Path(trials[number][WEIGHTS_KEY]).parent.name == "mine" for number in (4, 5))
    assert result.missing_weights(tmp_path) == {}


@pytest.fixture
def folder(tmp_path: Path) -> WeightFolder:
    found = WeightFolder(tmp_path)
    for number in range(6):
        found.write(number, ({"x": torch.zeros(1)}, {}))
    return found


def left(folder: WeightFolder) -> list[int]:
    return sorted(int(path.stem) for path in folder.folder.iterdir())


def test_a_dominated_network_loses_its_weights_at_once(folder: WeightFolder) -> None:
    a, b, c, d = (Architecture("s", (("x", i),)) for i in range(4))
    folder.settle(a, 0, np.array([1.0, 5.0]))
    folder.settle(b, 1, np.array([5.0, 1.0]))
    folder.settle(c, 2, np.array([6.0, 2.0]))
    assert left(folder) == [0, 1, 3, 4, 5]  # 3 to 5 are still being evaluated
    folder.settle(d, 3, np.array([1.0, 1.0]))
    assert left(folder) == [3, 4, 5]
    folder.settle(a, 4, None)
    assert left(folder) == [3, 5]


def test_of_two_trials_of_an_architecture_the_first_counts(folder: WeightFolder) -> None:
    a = Architecture("s", (("x", 0),))
    folder.settle(a, 3, np.array([1.0, 1.0]))
    folder.settle(a, 5, np.array([0.0, 0.0]))
    assert left(folder) == [0, 1, 2, 3, 4]
    folder.settle(a, 1, np.array([2.0, 2.0]))
    assert left(folder) == [0, 1, 2, 4]


def test_weights_are_found_where_they_were_written_and_in_the_results(tmp_path: Path) -> None:
    written = tmp_path / "run" / "rlm-0" / "3.safetensors"
    assert find_weights(str(written), tmp_path) is None
    copy = tmp_path / "studies" / "weights" / "rlm-0" / "3.safetensors"
    write_weights(copy, ({"w": torch.ones(9)}, {}))
    assert find_weights(str(written), tmp_path) == copy
    copy.write_bytes(copy.read_bytes()[:-4])
    assert find_weights(str(written), tmp_path) is None, "a damaged file is none"
    write_weights(written, ({"w": torch.ones(9)}, {}))
    assert find_weights(str(written), tmp_path) == written


def test_weights_that_the_users_function_leaves_are_kept(
    space: SearchSpace, tmp_path: Path
) -> None:
    def evaluate(
        model: torch.nn.Module, architecture: Architecture, report: Any
    ) -> Mapping[str, float]:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(0.25)
        return {"quality": float(len(architecture.choices))}

    evaluator = FunctionEvaluator(space, evaluate, ["quality"], Measurement(("params",)))
    result = search(
        Problem(space, evaluator, "quality:max,params"),
        sampler="random",
        evaluations=3,
        weights=tmp_path / "weights",
    )
    result.save(tmp_path)
    model = onnx.load(tmp_path / "front" / "00.onnx")
    trained = [t for t in model.graph.initializer if not t.name.endswith((".mean", ".var"))]
    assert trained
    assert all((onnx.numpy_helper.to_array(tensor) == 0.25).all() for tensor in trained)


LARGE = """
import torch
from torch import nn

def build(trial):
    width = trial.suggest_int("width", 1, 3)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 40 * width), nn.ReLU(), nn.Linear(40 * width, 10))

build.example_input = torch.zeros(1, 1, 8, 8)

def evaluate(model, architecture, report):
    return {"quality": float(architecture.as_dict()["width"])}
"""


@pytest.fixture
def small_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A limit of a thousand weights, which every network of the space `large.py:build` exceeds."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NAS_MAX_WEIGHTS", "1_000")
    Path("large.py").write_text(LARGE)


def command(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int | str | None:
    monkeypatch.setattr("sys.argv", ["nas", *arguments])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    return stop.value.code or 0


SEARCH = (
    "search",
    "--space",
    "large.py:build",
    "--sampler",
    "random",
    "--evaluations",
    "3",
    "--quiet",
    "--out",
    "found",
)


@pytest.mark.slow
@pytest.mark.parametrize(
    "objectives",
    [
        ("--objectives", "params,flops"),
        ("--objectives", "quality,flops", "--evaluator", "large.py:evaluate"),
    ],
)
def test_networks_above_the_limit_are_searched_if_nothing_needs_their_weights(
    objectives: tuple[str, ...], small_limit: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert command(monkeypatch, *SEARCH, *objectives) == 0
    assert any(Path("found/front").glob("*.onnx")), (
        "a file is written part by part, without the limit"
    )
    assert command(monkeypatch, "evaluate", "large.py:build", "--metrics", "params,flops") == 0


def test_the_limit_names_the_setting_that_raises_it(
    small_limit: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    evaluate = (
        "evaluate",
        "large.py:build",
        "--metrics",
        "cpu_latency_ms",
        "--arch",
        "{'width': 1}",
    )
    assert command(monkeypatch, *evaluate) == 2
    error = capsys.readouterr().err
    assert "3,010 weights, more than the limit of 1,000" in error
    assert "NAS_MAX_WEIGHTS=3010" in error
    monkeypatch.setenv("NAS_MAX_WEIGHTS", "3010")
    assert command(monkeypatch, *evaluate) == 0
    monkeypatch.setenv("NAS_MAX_WEIGHTS", "many")
    assert command(monkeypatch, *evaluate) == 2
    assert "NAS_MAX_WEIGHTS=many: write a number of weights" in capsys.readouterr().err


@pytest.mark.slow
def test_the_weights_of_the_front_are_stored_once_beside_the_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("large.py").write_text(LARGE)
    assert (
        command(
            monkeypatch,
            *SEARCH,
            "--objectives",
            "quality:max,params",
            "--evaluator",
            "large.py:evaluate",
        )
        == 0
    )
    kept = {path.stat().st_ino for path in Path("found/studies/weights").rglob("*.safetensors")}
    shown = {path.stat().st_ino for path in Path("found/front").glob("*.safetensors")}
    assert shown
    assert shown <= kept, "hard links to the files of the trials"


def test_tied_weights_and_views_are_written_as_they_are(tmp_path: Path) -> None:
    base = torch.arange(6.0)
    state = {"a": base, "tied": base, "part": base[2:4], "turned": base.view(2, 3).T}
    save_weights(tmp_path / "w.safetensors", state)
    read, _ = load_weights(tmp_path / "w.safetensors")
    assert all(torch.equal(read[name], tensor) for name, tensor in state.items())


def test_a_model_that_a_file_cannot_hold_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("search_spaces.ir.onnx.writing.MAX_BYTES", 10_000)
    space = get_space("tiny-resnet")
    write_network(tmp_path / "00", space, space.sample(np.random.default_rng(0)), {}, None)
    assert {path.name for path in tmp_path.iterdir()} == {"00.txt"}
    assert "00.onnx is not written: the ONNX file would have" in caplog.text
