"""Claims about int8 files: any training gives one, and its accuracy in ONNX Runtime is the reported
one.
"""

from __future__ import annotations

import copy
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from torch import nn

import nas
from nas import cli
from nas.evaluation.export import trained_model
from nas.evaluation.int8 import Calibration, quantize
from nas.evaluation.quantization_aware import plain_state, with_fake_quantization
from nas.evaluation.trainable import Trainable
from nas.search import retraining
from search_spaces import InputError

SPACE = """
import torch
from torch import nn

def build(trial):
    width = trial.suggest_categorical("width", [8, 12])
    return nn.Sequential(
        nn.Conv2d(1, width, 3, stride=2, padding=1), nn.BatchNorm2d(width), nn.ReLU(),
        nn.Flatten(), nn.Linear(16 * width, 10),
    )

build.example_input = torch.zeros(1, 1, 8, 8)
"""
TRAINING = """
import torch
from sklearn.datasets import load_digits

images, labels = load_digits(return_X_y=True)
x = torch.tensor(images / 16, dtype=torch.float32).reshape(-1, 1, 8, 8)
y = torch.tensor(labels)
calls = []

def calibration():
    return x[:100].numpy()

def evaluate(model, architecture, report, epochs=3):
    calls.append(type(model).__name__)
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    for epoch in range(1, epochs + 1):
        model.train()
        for rows in torch.randperm(1000).split(100):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            right = model(x[1000:]).argmax(1) == y[1000:]
        if not report(epoch, {"quality": right.float().mean()}):
            break
    return {"quality": right.float().mean(), "right": right.sum()}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a space, a training, and a search by the accuracy after quantization."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("int8")
    (folder / "space.py").write_text(SPACE)
    (folder / "training.py").write_text(TRAINING)
    goals = {"int8_quality": "max", "params": "min"}
    problem = nas.Problem(f"{folder}/space.py:build", f"{folder}/training.py:evaluate", goals)
    nas.search(problem, sampler="random", evaluations=2, out=folder / "found")
    return folder


def correct(file: Path) -> int:
    """Digits that a file classifies correctly in ONNX Runtime, of those that `TRAINING` holds
    out.
    """
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    x = (images[1000:] / 16).astype(np.float32).reshape(-1, 1, 8, 8)
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    (name,) = [value.name for value in session.get_inputs()]
    logits = np.asarray(session.run(None, {name: x})[0])
    return int((logits.argmax(1) == labels[1000:]).sum())


def test_a_search_writes_the_int8_files_whose_accuracies_it_reports(folder: Path) -> None:
    front = nas.load_search(folder / "found", trust=True).front
    for place, row in front.iterrows():
        file = folder / "found" / "front" / f"{place:02d}.int8.onnx"
        assert row["int8_right"] == correct(file)
        assert row["int8_quality"] == pytest.approx(correct(file) / 797)
        assert file.stat().st_size < file.with_name(f"{place:02d}.onnx").stat().st_size


def test_retraining_writes_an_int8_file_with_the_reported_count(folder: Path) -> None:
    summary = nas.retrain(folder / "found", 0, epochs=4, int8=True, trust=True)
    file = Path(summary["folder"]) / "00.int8.onnx"
    values = summary["int8"]["values"]
    assert values["int8_right"] == correct(file)
    assert values["right"] == correct(file.with_name("00.onnx"))
    assert values["cpu_int8_latency_ms"] > 0
    assert summary["int8"]["method"] == "static, 256 calibration samples"
    stored = json.loads((Path(summary["folder"]) / "summary.json").read_text())
    assert stored["int8"]["values"] == values


def test_a_trained_network_is_quantized_again_without_another_training(folder: Path) -> None:
    from search_spaces.common.plug_ins import function_from_file

    first = nas.retrain(folder / "found", 0, epochs=4, int8=True, trust=True)
    calls = function_from_file(f"{folder}/training.py:evaluate", "evaluator").__globals__["calls"]
    calls.clear()
    inputs = f"{folder}/training.py:calibration"
    second = nas.retrain(folder / "found", 0, epochs=4, int8=True, trust=True, calibration=inputs)
    assert set(calls) == {"OnnxModule"}
    assert second["values"] == first["values"]
    assert second["int8"]["method"] == "static, 100 calibration samples"


def test_the_function_itself_fine_tunes_a_network_that_loses_by_quantization(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retraining, "POINT", -1.0)  # as if every network lost
    problem = nas.Problem(
        f"{folder}/space.py:build", f"{folder}/training.py:evaluate", {"quality": "max"}
    )
    nas.search(problem, sampler="random", evaluations=1, out=tmp_path)
    short: dict[str, Any] = {"epochs": 1, "int8": True, "trust": True}
    static = nas.retrain(tmp_path, 0, int8_epochs=0, **short)["int8"]
    tuned = nas.retrain(tmp_path, 0, int8_epochs=3, **short)["int8"]
    assert static["method"].startswith("static")
    assert tuned["method"].startswith("3 quantization-aware epochs")
    assert tuned["values"]["int8_quality"] > static["values"]["int8_quality"]
    assert tuned["values"]["int8_right"] == correct(tmp_path / "retrained" / "00" / "00.int8.onnx")


def test_fake_quantization_computes_what_the_int8_file_computes() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(2, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 16, 5)
    )
    x = torch.randn(64, 2, 6, 6)
    x[0] *= 30  # sets the scale of all others, which then have few values
    for _ in range(20):
        net.train()(x)  # running statistics
    space = nas.TorchSpace(lambda trial: copy.deepcopy(net), x[:1])
    state = net.state_dict()
    model = trained_model(Trainable.of(space, space.architecture({})), state)
    quantized = nas.OnnxModule(quantize(model, [x.numpy()]))
    aware = with_fake_quantization(copy.deepcopy(net))
    for _ in range(50):
        aware.train()(x)  # moving averages of the ranges
    aware.load_state_dict(aware.state_dict() | {n: t for n, t in state.items() if "running" in n})
    with torch.no_grad():
        exact, simulated, measured = net.eval()(x), aware.eval()(x), quantized(x)
    assert (simulated - measured).abs().mean() < 0.8 * (exact - measured).abs().mean()
    assert plain_state(aware.state_dict()).keys() == state.keys()


def test_the_built_in_training_is_quantized_as_well(folder: Path, tmp_path: Path) -> None:
    goals = "digits_accuracy,params"
    problem = nas.Problem(f"{folder}/space.py:build", None, goals)
    nas.search(problem, sampler="random", evaluations=1, out=tmp_path)
    summary = nas.retrain(tmp_path, 0, epochs=2, int8=True, int8_epochs=1, trust=True)
    data = nas.load_dataset("digits")
    session = onnxruntime.InferenceSession(
        f"{summary['folder']}/00.int8.onnx", providers=["CPUExecutionProvider"]
    )
    logits = np.asarray(session.run(None, {session.get_inputs()[0].name: data.test.inputs})[0])
    right = int((logits.argmax(1) == data.test.targets).sum())
    share = summary["int8"]["values"]["digits_test_int8_accuracy"] / 100
    assert round(share * len(data.test)) == right


def test_an_onnx_file_is_called_like_its_module(folder: Path) -> None:
    model = nas.OnnxModule(folder / "found" / "front" / "00.onnx").eval()
    x = torch.rand(6, 1, 8, 8)
    with torch.no_grad():
        expected = nas.load_search(folder / "found", trust=True).model(0)(x)
        torch.testing.assert_close(model(x), expected, atol=1e-4, rtol=1e-4)
    # Code that trains runs on it, and changes nothing.
    before = model(x)
    optimizer = torch.optim.SGD(model.parameters(), 1.0, weight_decay=0.1)
    model.train()(x).sum().backward()
    optimizer.step()
    assert torch.equal(model(x), before)
    with pytest.raises(InputError, match="the model takes 1 inputs"):
        model(x, x)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nothing", "unknown calibration inputs in .*: 'nothing'"),
        ("SIX", "no calibration inputs, but int"),
        ("", "name the calibration inputs"),
    ],
)
def test_bad_calibration_inputs_are_named_before_a_training(
    folder: Path, tmp_path: Path, name: str, message: str
) -> None:
    (tmp_path / "inputs.py").write_text("SIX = 6\n")
    inputs = f"{tmp_path}/inputs.py:{name}".removesuffix(":")
    out = tmp_path / "out"
    with pytest.raises(InputError, match=message):
        nas.retrain(folder / "found", 0, int8=True, calibration=inputs, trust=True, out=out)
    assert not out.exists()


def test_settings_of_quantization_are_refused_without_it(folder: Path, tmp_path: Path) -> None:
    problem = nas.Problem(f"{folder}/space.py:build", None, "params")
    nas.search(problem, sampler="random", evaluations=1, out=tmp_path)
    with pytest.raises(InputError, match="calibration applies to a quantized network: add int8"):
        nas.retrain(tmp_path, 0, dataset="digits", calibration="digits", trust=True)


def test_a_function_that_trains_on_nothing_needs_calibration_inputs(tmp_path: Path) -> None:
    (tmp_path / "space.py").write_text(SPACE)
    (tmp_path / "training.py").write_text(
        "def evaluate(model, architecture, report):\n    return {'quality': 1.0}\n"
    )
    problem = nas.Problem(
        f"{tmp_path}/space.py:build", f"{tmp_path}/training.py:evaluate", {"int8_quality": "max"}
    )
    result = nas.search(problem, sampler="random", evaluations=1)
    reasons = str([trial.user_attrs for trial in result.study.trials])
    assert "int8 needs inputs that set the ranges of activations" in reasons


# --- calibration inputs of a search


def _search(monkeypatch: pytest.MonkeyPatch, folder: Path, *arguments: str) -> int:
    """Exit status of `nas search` in a space of two networks."""
    fixed = ("--space", f"{folder}/space.py:build", "--sampler", "random", "--evaluations", "1")
    monkeypatch.setattr(sys, "argv", ["nas", "search", *fixed, *arguments])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    return int(stop.value.code or 0)


def _calibrated(folder: Path) -> tuple[str, ...]:
    """Options of a search whose function trains on nothing, and shows no inputs."""
    (folder / "space.py").write_text(SPACE)
    (folder / "training.py").write_text(
        "def evaluate(model, architecture, report):\n    return {'quality': 1.0}\n"
    )
    (folder / "inputs.py").write_text("import numpy as np\nx = np.ones((9, 1, 8, 8), 'float32')\n")
    return (
        *("--evaluator", f"{folder}/training.py:evaluate", "--out", str(folder / "out")),
        *("--calibration", f"{folder}/inputs.py:x"),
    )


def test_a_search_quantizes_with_the_calibration_inputs_of_the_user(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    options = _calibrated(tmp_path)
    assert _search(monkeypatch, tmp_path, *options, "--objectives", "int8_quality:max,params") == 0
    assert (tmp_path / "out" / "front" / "00.int8.onnx").is_file()

    # It resumes with the same inputs only.
    (tmp_path / "inputs.py").write_text(
        "import numpy as np\nx = np.zeros((9, 1, 8, 8), 'float32')\n"
    )
    options = (*options, "--objectives", "int8_quality:max,params", "--evaluations", "2")
    assert _search(monkeypatch, tmp_path, *options) != 0


def test_calibration_inputs_without_a_metric_of_int8_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    options = _calibrated(tmp_path)
    assert _search(monkeypatch, tmp_path, *options, "--objectives", "quality:max,params") != 0
    assert "give a metric of int8" in capsys.readouterr().err


def test_calibration_inputs_serve_a_command_that_gets_the_file_in_int8(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    _calibrated(tmp_path)
    objectives = ("--objectives", "params,board_latency_ms", "--out", str(tmp_path / "out"))
    calibration = ("--calibration", f"{tmp_path}/inputs.py:x")
    command = "board=wc -c < "
    floats = ("--latency-command", f"{command}{{model}}")
    assert _search(monkeypatch, tmp_path, *objectives, *calibration, *floats) != 0
    assert "or a command with {int8}" in capsys.readouterr().err
    integers = ("--latency-command", f"{command}{{int8}}", "--latency-setting", "runs=1")
    assert _search(monkeypatch, tmp_path, *objectives, *calibration, *integers) == 0


def test_changed_calibration_inputs_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "inputs.py"
    file.write_text("import numpy as np\nx = np.ones((2, 1, 8, 8), 'float32')\n")
    stored = Calibration.read(f"{file}:x", (1, 8, 8)).settings
    assert len(Calibration.of_settings(stored, (1, 8, 8)).samples[0]) == 2
    file.write_text("x = None\n")
    with pytest.raises(InputError, match="not the calibration inputs"):
        _ = Calibration.of_settings(stored, (1, 8, 8)).samples


def test_a_worker_reads_calibration_inputs_only_if_it_is_trusted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "inputs.py").write_text(
        "import numpy as np\nx = np.ones((9, 3, 32, 32), 'float32')\n"
    )
    journal = str(tmp_path / "search.journal")
    options = [
        *("--space", "tiny-resnet", "--objectives", "cpu_int8_latency_ms,params"),
        *("--sampler", "random", "--evaluations", "1", "--prepare", "--storage", journal),
        *("--calibration", f"{tmp_path}/inputs.py:x", "--out", str(tmp_path / "out")),
    ]
    for arguments, status in (
        (["search", *options], 0),
        (["worker", "--storage", journal, "--study", "search-random-0"], 2),
        (["worker", "--storage", journal, "--study", "search-random-0", "--trust"], 0),
    ):
        monkeypatch.setattr(sys, "argv", ["nas", *arguments])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        shown = capsys.readouterr()
        assert (stop.value.code or 0) == status, shown.err
        assert status == 0 or "its calibration inputs" in shown.err
