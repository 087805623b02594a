"""The tutorials are correct: their files, Python, commands and entry points run."""

from __future__ import annotations

import csv
import importlib.util
import json
import os
import re
import runpy
import shlex
import sys
import tomllib
from pathlib import Path

import numpy as np
import onnx
import pytest

from nas import cli
from nas.search.samplers import list_samplers
from predictors import create, list_predictors, load
from predictors.testing import check_predictor
from search_spaces import InputError, get_space, list_spaces, registry
from search_spaces.common.torchvision import prepare_torchvision
from search_spaces.testing import check_space

pytestmark = pytest.mark.usefixtures("brief_guidance", "brief_clocks")
PAGES = (
    "../README.md",
    "index.md",
    "tutorial/own_networks.md",
    "tutorial/fewer_trainings.md",
    "concepts/text.md",
    "concepts/rlm.md",
    "concepts/search.md",
    "how-to/own_device.md",
    "how-to/own_table.md",
    "how-to/cheap_evaluations.md",
    "how-to/int8.md",
    "how-to/language_models.md",
    "how-to/many_machines.md",
    "how-to/real_networks.md",
    "how-to/reading_a_report.md",
    "how-to/tracking.md",
    "how-to/trained_model.md",
)
DOCS = Path(__file__).parents[2] / "docs"


def blocks_of(name: str) -> list[tuple[str, str]]:
    """Kind and content of a tutorial's blocks of code."""
    return re.findall(r"^```(\w+)\n(.*?)^```$", (DOCS / name).read_text(), re.MULTILINE | re.DOTALL)


def files_of(name: str) -> dict[str, str]:
    return {
        text.split()[1]: text
        for kind, text in blocks_of(name)
        if kind == "python" and text.startswith("# ")
    }


def run_command(monkeypatch: pytest.MonkeyPatch, line: str) -> None:
    """Run `nas …` in this process, with fewer evaluations."""
    short = re.sub(r"--evaluations \d+", "--evaluations 5", line)
    monkeypatch.setattr(sys, "argv", shlex.split(short))
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert not stop.value.code, line


def shorten_search(code: str) -> str:
    """With fewer evaluations, but enough for proposals after the initial design."""
    return re.sub(r"\bevaluations=\d{2,}", "evaluations=12", code)


def follow(tutorial: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """Run all blocks of a tutorial in a folder. Returns the number of its commands."""
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)  # as `python block.py` does
    prepare_torchvision()
    files, commands = files_of(tutorial), 0
    for name, text in files.items():
        Path(name).write_text(text)
    for kind, text in blocks_of(tutorial):
        if kind == "python" and text not in files.values():
            Path("block.py").write_text(shorten_search(text))
            runpy.run_path("block.py")
        for line in text.splitlines() if kind == "sh" else ():
            run_command(monkeypatch, line)
            commands += 1
    return commands


def first_row(path: str) -> dict[str, str]:
    with open(path, newline="") as file:
        return next(csv.DictReader(file))


def install(tutorial: str, module: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Install a tutorial's class as `my_package.MODULE` with its entry point. Returns the
    registered name.
    """
    (points,) = (
        tomllib.loads(text)["project"]["entry-points"]
        for kind, text in blocks_of(tutorial)
        if kind == "toml"
    )
    ((group, ((name, value),)),) = ((group, found.items()) for group, found in points.items())
    (folder / "my_package").mkdir()
    (folder / "my_package" / "__init__.py").touch()
    (folder / "my_package" / f"{module}.py").write_text(next(iter(files_of(tutorial).values())))
    metadata = folder / "my_package-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: my-package\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[{group}]\n{name} = {value}\n")
    for loaded in ("my_package", f"my_package.{module}"):
        monkeypatch.delitem(sys.modules, loaded, raising=False)
    monkeypatch.syspath_prepend(folder)
    return name


@pytest.mark.slow
def test_every_block_about_spaces_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert follow("how-to/own_space.md", tmp_path, monkeypatch) == 8
    assert {p.name for p in Path("results/my-resnet").iterdir()} >= {
        "front",
        "front.csv",
        "summary.json",
        "pareto.png",
    }
    assert "digits_accuracy" in capsys.readouterr().out


@pytest.mark.slow
def test_every_block_about_predictors_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert follow("how-to/own_predictor.md", tmp_path, monkeypatch) == 5
    output = capsys.readouterr().out
    assert "my_predictor.py:Nearest" in output
    assert "Predictions of my-nearest" in output
    assert Path(
        "results/guided/studies/my_predictor.Nearest-0.journal"
    ).exists()  # it guided the search
    assert load("my-nearest", type(create("my_predictor.py:Nearest"))).metrics == (
        "digits_accuracy",
    )
    with pytest.raises(
        InputError, match=r"'nearest', which no installed package provides: name its class"
    ):
        load("my-nearest")  # the file is there, but a checkpoint runs none


@pytest.mark.slow
def test_every_block_about_training_runs_and_the_shipped_network_has_the_reported_accuracy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_training", raising=False)
    assert follow("how-to/own_training.md", tmp_path, monkeypatch) == 5
    (found,) = re.findall(r"test accuracy: ([\d.]+)", capsys.readouterr().out)
    best = first_row("results/digits/front.csv")
    assert float(found) == pytest.approx(
        float(best["digits_test_accuracy"]), abs=100.5 / 642
    )  # one image
    for folder in ("digits", "own"):
        summary = json.loads(Path(f"results/{folder}/retrained/00/summary.json").read_text())
        row = first_row(f"results/{folder}/front.csv")
        metric = "digits_accuracy" if folder == "digits" else "quality"
        assert summary["architecture"] == row["architecture"]
        assert summary["values"][metric] > float(
            row[metric]
        )  # after more than twice as many epochs
    model = onnx.load("results/own/front/00.onnx")
    values = {entry.key: entry.value for entry in model.metadata_props}["values"]
    assert json.loads(values).keys() == {
        "architecture",
        "quality",
        "params",
        "cpu_latency_ms",
        "test_quality",
    }


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_every_block_of_a_page_runs(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("NAS_DEVICES", str(tmp_path / "devices"))
    assert follow(page, tmp_path, monkeypatch) == sum(
        len(text.splitlines()) for kind, text in blocks_of(page) if kind == "sh"
    )


@pytest.mark.slow
def test_every_block_about_models_of_libraries_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if importlib.util.find_spec("timm") is None:
        pytest.skip("timm is not installed")
    for name in ("my_vit", "my_bert"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    assert follow("how-to/own_model.md", tmp_path, monkeypatch) == 2
    for folder, shape in {"vit": (1, 1, 8, 8), "bert": (1, 24)}.items():
        model = onnx.load(f"results/{folder}/front/00.onnx")
        assert {entry.key: entry.value for entry in model.metadata_props}["weights"] == "trained"
        (taken,) = model.graph.input
        assert [dim.dim_value or 1 for dim in taken.type.tensor_type.shape.dim] == list(shape)


@pytest.mark.slow
def test_one_page_of_ones_own_ends_with_a_front_of_trained_networks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = "how-to/one_page.md"
    (code,) = files_of(page).values()
    assert len([line for line in code.splitlines()[1:] if line.strip()]) < 40
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    assert follow(page, tmp_path, monkeypatch) == 2
    (found,) = re.findall(r"test accuracy: ([\d.]+)", capsys.readouterr().out)
    best = first_row("results/mine/front.csv")
    assert float(found) == pytest.approx(float(best["test_accuracy"]), abs=100.5 / 397)  # one image
    assert 0 < float(best["desk_latency_ms"]) < 100
    with open("results/mine/front.csv", newline="") as file:
        count = len(list(csv.DictReader(file)))
    models = sorted(Path("results/mine/front").glob("*.onnx"))
    assert len(models) == count
    for path in models:
        assert {entry.key: entry.value for entry in onnx.load(path).metadata_props}[
            "weights"
        ] == "trained"
    assert Path("results/mine/retrained/00/00.onnx").is_file()


def test_a_predictor_of_ones_own_has_forty_lines() -> None:
    code = files_of("how-to/own_predictor.md")["my_predictor.py"]
    assert len([line for line in code.splitlines()[1:] if line.strip()]) <= 40


def test_a_class_derived_from_ours_keeps_its_own_checkpoints(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from predictors.baselines import Ridge\n\nclass Mine(Ridge):\n    pass\n"
    )
    space = get_space("tiny-resnet")
    texts = [space.to_text(arch) for _, arch in zip(range(8), space.enumerate(), strict=False)]
    mine = create(f"{tmp_path / 'mine.py'}:Mine").fit(texts, {"x": np.arange(8.0)})
    mine.save(tmp_path / "kept")
    with pytest.raises(
        InputError, match="a checkpoint of predictor 'Mine', which no installed package provides"
    ):
        load(tmp_path / "kept")
    with pytest.raises(InputError, match="a checkpoint of predictor 'Mine', not of 'gnn'"):
        load(tmp_path / "kept", type(create("gnn")))
    assert type(load(tmp_path / "kept", type(mine))) is type(mine)


def test_a_file_without_such_a_class_is_refused(tmp_path: Path) -> None:
    (tmp_path / "none.py").write_text("class Nearest: pass\n")
    with pytest.raises(
        InputError,
        match=r"none.py:Nearest cannot be the predictor: it is a class; give a subclass of Predictor",
    ):
        create(f"{tmp_path / 'none.py'}:Nearest")
    with pytest.raises(InputError, match=r"no such Python file"):
        create("my_none.py:Nearest")


def test_space_with_a_notation_conforms(tmp_path: Path) -> None:
    (tmp_path / "my_plain.py").write_text(files_of("how-to/own_space.md")["my_plain.py"])
    space = get_space(f"{tmp_path / 'my_plain.py'}:Plain", kernel=5, input_shape=(1, 8, 8))
    check_space(space, count=5)
    assert space.format(space.parse("8-16-32")) == "8-16-32"
    with pytest.raises(InputError, match="not three widths"):
        space.parse("8-x")


def test_installed_space_is_found_by_its_entry_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "_SPACES", dict(registry._SPACES))
    assert "my-resnet" not in list_spaces()
    name = install("how-to/own_space.md", "spaces", tmp_path, monkeypatch)
    assert name in list_spaces()
    space = get_space(name)
    assert (space.name, type(space).__module__) == ("my-resnet", "my_package.spaces")
    check_space(space, count=3)


def test_installed_predictor_is_found_by_its_entry_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "nearest" not in list_predictors()
    name = install("how-to/own_predictor.md", "predictors", tmp_path, monkeypatch)
    assert name in list_predictors()
    assert name in list_samplers()
    assert type(create(name)).__module__ == "my_package.predictors"
    check_predictor(lambda: create(name))  # its checkpoints are found by that name, too


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("1 / 0", "ZeroDivisionError on import"),
        ("class Nearest: pass", "Nearest is not a Predictor"),
    ],
)
def test_an_entry_point_that_is_broken_is_named(
    content: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = install("how-to/own_predictor.md", "predictors", tmp_path, monkeypatch)
    (tmp_path / "my_package" / "predictors.py").write_text(content)
    with pytest.raises(
        InputError, match=f"entry point 'nearest' of rlm_nas.predictors: .*{message}"
    ):
        create(name)
