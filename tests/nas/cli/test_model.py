"""`nas search --model`: the sub-networks of a trained model on the command line."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from nas import cli
from nas.evaluation.datasets import load_dataset
from nas.evaluation.tasks import TrainingTask
from nas.evaluation.trainable import Trainable
from nas.evaluation.training import train
from search_spaces import Subnetworks, get_space, load_model, to_text

CODE = """
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        wide = 2 * width
        self.layers = nn.Sequential(
            nn.Conv2d(width, wide, 3, padding=1), nn.BatchNorm2d(wide), nn.ReLU(), nn.Conv2d(wide, width, 1)
        )

    def forward(self, x):
        return x + self.layers(x)


def net():
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), Block(16), Block(16),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10),
    )


net.example_input = torch.zeros(1, 1, 8, 8)
made = net()
made.example_input = torch.zeros(1, 1, 8, 8)
number = 3


def needs(width):
    return nn.Linear(width, 10)


def tiny():
    return nn.Linear(64, 10)


tiny.example_input = torch.zeros(1, 64)


class Depends(nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x


def depends():
    return Depends()


depends.example_input = torch.zeros(1, 8)


def evaluate(model, architecture, report, **options):
    score = model.eval()(torch.zeros(1, 1, 8, 8)).abs().sum()
    return {"own_score": float(score), "weights": float(sum(p.abs().sum() for p in model.parameters()))}
"""


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["nas", *arguments])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    return int(stop.value.code or 0)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model's code and its trained weights."""
    folder = tmp_path_factory.mktemp("model")
    (folder / "my_net.py").write_text(CODE)
    network = Trainable.of(
        get_space(f"{folder}/my_net.py:net"), get_space(f"{folder}/my_net.py:net").parse("{}")
    )
    state = train(network, load_dataset("digits"), task=TrainingTask(8)).state
    assert state is not None
    save_file({name: x.contiguous() for name, x in state.items()}, folder / "trained.safetensors")
    return folder


def _front(folder: Path) -> list[dict[str, str]]:
    with (folder / "front.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_trained_model_is_searched_without_training(
    trained: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    model = (
        "--model",
        f"{trained}/my_net.py:net",
        "--weights",
        str(trained / "trained.safetensors"),
    )
    chosen = ("--width", "0.5,1", "--round-to", "4", "--keep", "0")
    task = ("--dataset", "digits", "--epochs", "0", "--objectives", "digits_accuracy,params")
    out = tmp_path / "results"
    command = (
        "search",
        *model,
        *chosen,
        *task,
        "--sampler",
        "random",
        "--evaluations",
        "10",
        "--out",
        str(out),
        "-q",
    )
    assert run(monkeypatch, *command) == 0, capsys.readouterr().err
    rows = _front(out)
    # Recalibrated parts of a trained network are far from guessing (10 %).
    assert max(float(row["digits_accuracy"]) for row in rows) > 50
    weights = {
        "weights": str(trained / "trained.safetensors"),
        "start": "inherited",
        "width": [0.5, 1],
        "round_to": 4,
    }
    space = get_space(f"{trained}/my_net.py:net", **weights, keep=["0"])
    best = max(range(len(rows)), key=lambda i: float(rows[i]["digits_accuracy"]))
    arch = space.parse(rows[best]["architecture"])
    (file,) = [path for path in (out / "front").glob("*.onnx") if int(path.stem) == best]
    assert to_text(load_model(str(file))) == space.to_text(arch)
    # The same command resumes; another file of weights is another search.
    assert run(monkeypatch, *command) == 0
    other = tmp_path / "other.safetensors"
    state = {name: 0 * tensor for name, tensor in space.model.state_dict().items()}  # type: ignore[attr-defined]
    save_file(state, other)
    changed = [
        str(other) if part == str(trained / "trained.safetensors") else part for part in command
    ]
    assert run(monkeypatch, *changed) != 0
    assert "holds another search" in capsys.readouterr().err


def test_fidelity_needs_inputs_alone(
    trained: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    digits = load_dataset("digits")
    np.savez(tmp_path / "images.npz", x=np.concatenate([digits.train.inputs, digits.test.inputs]))
    model = (
        "--model",
        f"{trained}/my_net.py:made",
        "--weights",
        str(trained / "trained.safetensors"),
    )
    task = ("--dataset", f"raw:{tmp_path / 'images.npz'}", "--objectives", "fidelity,flops")
    options = (
        "--sampler",
        "random",
        "--evaluations",
        "6",
        "-q",
        "--training",
        "shift=0",
        "--training",
        "noise=0",
    )
    scores = []
    for epochs in ("0", "3"):
        out = tmp_path / epochs
        assert (
            run(
                monkeypatch,
                "search",
                *model,
                *task,
                *options,
                "--epochs",
                epochs,
                "--out",
                str(out),
            )
            == 0
        ), capsys.readouterr().err
        scores.append({row["architecture"]: float(row["fidelity"]) for row in _front(out)})
    assert all(10 < score <= 100 for of in scores for score in of.values())
    # The network can be retrained with the same inputs alone.
    retrain = ("retrain", str(tmp_path / "0"), "--point", "0", "--epochs", "1", "--trust", "-q")
    assert run(monkeypatch, *retrain) == 0, capsys.readouterr().err
    assert "test_fidelity" in (tmp_path / "0" / "retrained" / "00" / "summary.json").read_text()
    both = scores[0].keys() & scores[1].keys()
    assert np.mean([scores[1][arch] for arch in both]) > np.mean([scores[0][arch] for arch in both])


@pytest.mark.parametrize("epochs", ["0", "1"])
def test_fewer_inputs_than_a_batch_are_enough_for_the_fidelity(
    trained: Path,
    tmp_path: Path,
    epochs: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    np.savez(tmp_path / "few.npz", x=load_dataset("digits").train.inputs[:30])
    model = ("--model", f"{trained}/my_net.py:made", "--dataset", f"raw:{tmp_path / 'few.npz'}")
    goals = ("--objectives", "fidelity,flops", "--epochs", epochs, "--sampler", "random")
    size = ("--evaluations", "2", "-q", "--out", str(tmp_path / "out"))
    assert run(monkeypatch, "search", *model, *goals, *size) == 0, capsys.readouterr().err


def test_a_users_evaluator_receives_inherited_weights(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = (
        "--model",
        f"{trained}/my_net.py:net",
        "--weights",
        str(trained / "trained.safetensors"),
        "--width",
        "1",
    )
    own = (
        "--evaluator",
        f"{trained}/my_net.py:evaluate",
        "--objectives",
        "own_score:max,weights:max",
    )
    out = tmp_path / "results"
    assert (
        run(
            monkeypatch,
            "search",
            *model,
            *own,
            "--sampler",
            "random",
            "--evaluations",
            "3",
            "--out",
            str(out),
            "-q",
        )
        == 0
    )
    space = get_space(
        f"{trained}/my_net.py:net",
        start="inherited",
        weights=str(trained / "trained.safetensors"),
        width=[1],
    )
    for row in _front(out):
        module = space.module(space.parse(row["architecture"]))  # type: ignore[attr-defined]
        total = float(sum(p.abs().sum() for p in module.parameters()))
        assert float(row["weights"]) == pytest.approx(total, rel=1e-4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--model", "F:none"), "made"),
        (("--model", "F:number"), "cannot be the model"),
        (("--model", "F:needs"), "cannot be the model"),
        (("--model", "F:tiny"), "nothing of the model can be left out"),
        (("--model", "F:depends"), "depends on the data"),
        (("--model", "F:net", "--space", "tiny-resnet"), "leave out --space"),
        (("--model", "F:net", "--keep", "head"), "layer in keep"),
        (("--model", "F:net", "--width", "half"), "--width half"),
        (("--model", "F:net", "--width", "2"), "at most 1"),
        (("--model", "F:net", "--kernel", "4"), "odd"),
        (("--model", "F:net", "--start", "warm"), "start"),
        (("--model", "F:net", "--weights", "none.pt"), "no such file of weights"),
        (("--model", "F:net", "--weights", "W"), "missing"),
        (("--space", "tiny-resnet", "--width", "0.5"), "give --model"),
        (("--space", "tiny-resnet", "--epochs", "0"), "a training of 0 epochs needs"),
        (("--model", "F:net", "--start", "fresh", "--epochs", "0"), "a training of 0 epochs needs"),
    ],
)
def test_bad_input_is_one_line(
    trained: Path, tmp_path: Path, options: tuple[str, ...], message: str, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    save_file({"other.weight": torch.zeros(2)}, tmp_path / "other.safetensors")
    places = {"F": f"{trained}/my_net.py", "W": str(tmp_path / "other.safetensors")}
    words = [
        part.replace("F:", f"{places['F']}:") if part.startswith("F:") else places.get(part, part)
        for part in options
    ]
    objectives = "digits_accuracy,params" if "--epochs" in options else "params,flops"
    common = (
        "--objectives",
        objectives,
        "--out",
        str(tmp_path / "out"),
        "-q",
        "--evaluations",
        "2",
    )
    status = run(monkeypatch, "search", *words, *common, "--sampler", "random")
    error = capsys.readouterr().err
    assert status != 0
    assert message in error
    assert "Traceback" not in error


def test_recalibration_and_distillation_in_python(trained: Path) -> None:
    """Calibrated statistics lift narrow networks from guessing; the teacher changes the
    training.
    """
    reference = f"{trained}/my_net.py:net"
    options = {
        "weights": str(trained / "trained.safetensors"),
        "round_to": 4,
        "width": [0.75, 1],
        "depth": False,
    }
    space = get_space(reference, start="inherited", **options)
    assert isinstance(space, Subnetworks)
    data = load_dataset("digits").with_validation(0.2)
    assert data.validation is not None
    rng, calibrated, stale = np.random.default_rng(0), [], []
    for arch in [space.sample(rng) for _ in range(8)]:
        calibrated += train(Trainable.of(space, arch), data, task=TrainingTask(0)).validation
        with torch.no_grad():
            answers = space.module(arch)(torch.from_numpy(data.validation.inputs)).argmax(1).numpy()
        stale.append(100 * float((answers == data.validation.targets).mean()))
    assert np.mean(calibrated) > np.mean(stale) + 5
    without = get_space(reference, start="inherited", teacher="none", **options)
    narrow = space.uniform(0.75)
    states = [
        train(Trainable.of(of, narrow), data, task=TrainingTask(3)).state for of in (space, without)
    ]
    distilled, plain = states
    assert distilled is not None
    assert plain is not None
    assert any(not torch.equal(distilled[name], plain[name]) for name in distilled)


def test_short_trainings_first_count_from_inherited_weights(
    trained: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    model = (
        "--model",
        f"{trained}/my_net.py:net",
        "--weights",
        str(trained / "trained.safetensors"),
    )
    task = (
        "--dataset",
        "digits",
        "--objectives",
        "digits_accuracy,params",
        "--width",
        "0.75,1",
        "--round-to",
        "4",
    )
    spent = (
        "--fidelities",
        "1,2",
        "--budget",
        "8",
        "--sampler",
        "asha",
        "--training",
        "learning_rate=0.02",
    )
    assert (
        run(monkeypatch, "search", *model, *task, *spent, "--out", str(tmp_path / "out"), "-q") == 0
    ), capsys.readouterr().err
    assert max(float(row["digits_accuracy"]) for row in _front(tmp_path / "out")) > 25


def test_a_profile_says_whether_a_limit_can_be_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code = tmp_path / "my_net.py"
    code.write_text(CODE)
    options = ["--samples", "20", "--json", "--constraint", "params <= 1"]
    monkeypatch.setattr(sys, "argv", ["nas", "profile", f"{code}:net", *options])
    with pytest.raises(SystemExit) as end:
        cli.main()
    printed = capsys.readouterr()
    assert end.value.code == 1
    assert "no network was met that satisfies params <= 1" in printed.err
    profile = json.loads(printed.out)
    space = get_space(f"{code}:net", start="inherited")
    assert isinstance(space, Subnetworks)
    assert profile["metrics"]["params"]["max"] == space.params(space.whole)
    assert profile["constraints"][0]["share"] == 0
    assert profile["constraints"][0]["nearest"] == profile["metrics"]["params"]["min"]


@pytest.mark.usefixtures("brief_clocks")
def test_a_profile_counts_mixed_precisions_of_a_model_and_refuses_them_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code = tmp_path / "my_net.py"
    code.write_text(CODE)
    options = ["--samples", "4", "--measured", "1", "--metrics", "cpu_int8_latency_ms"]
    chosen = [*options, "--precision", "fp32,int8"]
    assert run(monkeypatch, "profile", f"{code}:net", *chosen, "--json") == 0
    metrics = json.loads(capsys.readouterr().out)["metrics"]
    assert metrics["cpu_int8_latency_ms"]["min"] > 0
    assert run(monkeypatch, "profile", "tiny-resnet", *chosen) == 2
    assert "--precision applies to a trained model" in capsys.readouterr().err
    assert run(monkeypatch, "profile", f"{code}:net", *options, "--precision", "int3") == 2
    assert "int3" in capsys.readouterr().err


SPACE = """
import torch
from torch import nn


def build(trial):
    width = trial.suggest_categorical("width", [4, 8])
    return nn.Sequential(nn.Conv2d(1, width, 3), nn.ReLU(), nn.Flatten(), nn.Linear(36 * width, 10))


build.example_input = torch.zeros(1, 1, 8, 8)
"""


@pytest.mark.slow
def test_a_search_starts_with_the_weights_of_a_supernet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.py").write_text(SPACE)
    space, file = f"{tmp_path}/mine.py:build", tmp_path / "super.safetensors"
    train_it = ["supernet", "--space", space, "--out", str(file), "--epochs", "4", "--json", "-q"]
    assert run(monkeypatch, *train_it) == 0
    scores = json.loads(capsys.readouterr().out)
    assert scores["largest"] > 20
    assert not list(tmp_path.glob("*.pt"))
    assert run(monkeypatch, *train_it) == 2  # what was trained is not overwritten
    assert "exists" in capsys.readouterr().err
    options = ["--objectives", "digits_accuracy,params", "--epochs", "0", "--sampler", "random"]
    options += ["--start", str(file), "--evaluations", "2", "--out", str(tmp_path / "out"), "-q"]
    assert run(monkeypatch, "search", "--space", space, *options) == 0
    rows = list(csv.DictReader((tmp_path / "out" / "front.csv").open()))
    best = max(scores["smallest"], scores["largest"])  # the space has these two networks
    assert max(float(row["digits_accuracy"]) for row in rows) == pytest.approx(best)
