"""Claims about reports of searches: one page that needs no other file, of finished and of
interrupted searches.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

from nas import Problem, search
from nas.benchmarks import load_benchmark
from nas.cli import app
from nas.comparison.runs import open_studies, run_measured_studies, run_studies
from nas.evaluation.measurement import Measurement
from nas.report import page_data
from nas.report.drawing import draw, draw_blocks
from nas.report.folders import save_studies, write_report
from nas.search import search as search_loop
from nas.search.evaluators import TableEvaluator
from nas.search.measured_evaluator import MeasuredEvaluator
from nas.search.own_evaluator import FunctionEvaluator
from search_spaces import Architecture, SearchSpace, TorchSpace, get_space, list_spaces
from search_spaces.common.errors import InputError
from search_spaces.ir.text.program import Block, Item

GOALS = "digits_accuracy,cpu_latency_ms"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two searches with a guided sampler and two without."""
    folder = tmp_path_factory.mktemp("searches")
    guided = {"n_startup": 5, "refit_every": 5, "fresh": 40}
    run_studies("digits201", GOALS, ["ridge", "random"], 15, (0, 1), folder, sampler_options=guided)
    return folder


def data_of(folder: Path) -> dict[str, Any]:
    """The data that a page shows."""
    page = (folder / "report.html").read_text()
    (data,) = re.findall(r'<script type="application/json" id="data">(.*)</script>', page)
    return json.loads(data)


@pytest.mark.slow
def test_the_report_of_a_folder_says_what_its_searches_found(folder: Path) -> None:
    result = CliRunner().invoke(app, ["report", str(folder), "--json"])
    assert result.exit_code == 0, result.output
    studies = open_studies(folder)
    assert json.loads(result.output) == studies.summary()
    assert list(studies.results) == ["ridge", "random"]
    assert studies.summary()["benchmark"] == "digits201"
    networks = {network["notation"]: network for network in data_of(folder)["networks"]}
    assert len(studies.front_rows) > 0
    for place, row in enumerate(studies.front_rows):  # of all searches together
        network = networks[row["architecture"]]
        assert network["place"] == place
        assert network["values"][:2] == [row["digits_accuracy"], row["cpu_latency_ms"]]
        assert network["model"].startswith("data:application/octet-stream;base64,")
        assert network["text"] == (folder / "front" / f"{place:02d}.txt").read_text()


def test_models_that_are_large_stay_beside_the_page(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_data, "MAX_MODEL_BYTES", 100)
    (folder / "front").mkdir(exist_ok=True)
    (folder / "front" / "00.onnx").write_bytes(bytes(101))
    write_report(folder / "report.html", open_studies(folder))
    assert "front/00.onnx" in [network["model"] for network in data_of(folder)["networks"]]


def test_the_page_without_models_is_small(folder: Path, tmp_path: Path) -> None:
    write_report(tmp_path / "report.html", open_studies(folder))
    assert (tmp_path / "report.html").stat().st_size < 1_200_000


def test_predictions_of_a_guided_sampler_are_stored_beside_measurements(folder: Path) -> None:
    guided, random = open_studies(folder).results.values()
    for metric, column in guided[0].predicted.items():
        mean, std, measured = column.T
        assert len(column) == 10
        assert (std > 0).all()
        assert np.isfinite(mean).all()
        assert set(measured) <= set(load_benchmark("digits201").values(metric))
    assert random[0].predicted == {}


def test_figures_are_drawn_from_a_journal_alone(folder: Path, tmp_path: Path) -> None:
    journal = str(folder / "studies" / "ridge-0.journal")
    result = CliRunner().invoke(app, ["plot", journal, "--out", str(tmp_path), "--kind", "svg"])
    assert result.exit_code == 0, result.output
    assert {path.name for path in tmp_path.iterdir()} == {
        "pareto.svg",
        "hypervolume.svg",
        "predicted.svg",
    }
    alone = open_studies(journal).summary()
    assert 0 < alone["best_front"] <= len(open_studies(journal).first.front_rows)
    assert "true_front" not in alone
    true_front = open_studies(folder).summary()["true_front"]
    assert open_studies(journal, "digits201").summary()["true_front"] == true_front


def test_three_objectives_are_shown_side_by_side(tmp_path: Path) -> None:
    studies = run_studies("digits201", f"{GOALS},params", ["random"], 8, (0,), tmp_path)
    save_studies(tmp_path, studies)
    assert (tmp_path / "parallel.png").is_file()
    assert data_of(tmp_path)["objectives"] == 3


@pytest.mark.slow
def test_a_search_in_a_database_is_reported(tmp_path: Path) -> None:
    table = load_benchmark("digits201")
    storage = f"sqlite:///{tmp_path}/search.db"
    evaluator = TableEvaluator(table, GOALS.split(","))
    search(
        Problem(table.space, evaluator, GOALS),
        sampler="random",
        evaluations=6,
        storage=storage,
        name="mine",
    )
    result = CliRunner().invoke(app, ["report", storage, "--study", "mine", "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert (tmp_path / "report.html").is_file()


def test_a_search_without_a_front_is_reported_too(tmp_path: Path) -> None:
    for goals in (GOALS, f"{GOALS},params"):
        folder = tmp_path / str(len(goals))
        studies = run_studies(
            "digits201", goals, ["random"], 4, (0,), folder, constraints=["digits_accuracy >= 101"]
        )
        save_studies(folder, studies)
        assert studies.first.front_rows == []
        assert not any(network["feasible"] for network in data_of(folder)["networks"])


def test_a_search_that_trains_nothing_says_which_limit_is_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search_loop, "MAX_RULED_OUT", 50)
    with pytest.raises(InputError, match=r"networks was trained: each breaks a .* params <= 1"):
        run_studies("digits201", GOALS, ["random"], 4, (0,), tmp_path, constraints=["params <= 1"])


def test_a_search_that_has_evaluated_nothing_is_named(tmp_path: Path) -> None:
    class Broken(TableEvaluator):
        def __call__(self, architectures: Sequence[Architecture]) -> np.ndarray:
            raise KeyboardInterrupt

    table = load_benchmark("digits201")
    journal = tmp_path / "studies" / "random-0.journal"
    with pytest.raises(KeyboardInterrupt):
        search(
            Problem(table.space, Broken(table, GOALS.split(",")), GOALS),
            sampler="random",
            evaluations=3,
            storage=journal,
        )
    with pytest.raises(InputError, match="nothing has been evaluated"):
        open_studies(tmp_path)


def test_a_study_without_finite_values_is_named(tmp_path: Path) -> None:
    storage = f"sqlite:///{tmp_path}/inf.db"
    study = optuna.create_study(directions=["minimize"] * 2, storage=storage, study_name="mine")
    study.optimize(lambda trial: (trial.suggest_float("x", 0, 1) + np.inf, 1.0), 2)
    with pytest.raises(InputError, match="no trial of study 'mine' has finite values"):
        open_studies(storage)


def test_a_storage_without_a_search_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has no searches"):
        open_studies(tmp_path)
    with pytest.raises(InputError, match="no study 'other'"):
        open_studies(folder / "studies" / "ridge-0.journal", name="other")
    with pytest.raises(InputError, match="benchmark 'digits201', not 'digits-darts'"):
        run_studies("digits-darts", "digits_accuracy,params", ["random"], 3, (0,), folder)
    for arguments in (["plot", str(tmp_path / "none")], ["plot", str(folder), "--kind", "bmp"]):
        result = CliRunner().invoke(app, arguments)
        assert isinstance(result.exception, InputError)


@pytest.mark.parametrize("name", list_spaces())
def test_blocks_of_every_space_are_drawn_without_overlap(name: str) -> None:
    space = get_space(name)
    drawn = draw_blocks(space.to_text(space.sample(np.random.default_rng(0))))
    for svg in drawn.values():
        boxes = [
            tuple(map(float, box))
            for box in re.findall(r'<rect x="([\d.e-]+)" y="([\d.e-]+)"', svg)
        ]
        assert len(boxes) == len(set(boxes)) >= 3


def labels_of(svg: str) -> list[str]:
    return re.findall(r"<text [^>]*>(?:<title>[^<]*</title>)?([^<]*)</text>", svg)


def test_a_drawing_has_all_outputs() -> None:
    items = (Item("Relu", (0,), ()), Item("Tanh", (1,), ()))
    block = Block(1, items, outputs=(1, 2))
    assert labels_of(draw(block)) == ["in", "Relu", "Tanh", "out 1", "out 2"]
    named = draw(block, ["a <b> & c", "a_name_that_is_long"])
    assert labels_of(named)[-2:] == ["→ a &lt;b&gt; &amp; c", "→ a_name_that_i…"]
    assert "<title>→ a_name_that_is_long</title>" in named
    assert labels_of(draw(block._replace(outputs=(2,)))) == ["in", "Relu", "Tanh", "out"]


class TwoHeads(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.body, self.mask, self.depth = (
            nn.Linear(4, width),
            nn.Linear(width, 2),
            nn.Linear(width, 1),
        )

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        features = self.body(x).relu()
        return {"mask": self.mask(features), "depth": self.depth(features)}


def test_the_drawing_names_outputs_as_the_module_does(tmp_path: Path) -> None:
    space = TorchSpace(lambda trial: TwoHeads(trial.suggest_int("width", 1, 9)), torch.zeros(1, 4))
    evaluator = MeasuredEvaluator(space, Measurement(("params",)))
    studies = run_measured_studies(evaluator, "params", ["random"], 2, (0,), tmp_path)
    save_studies(tmp_path, studies)
    for network in data_of(tmp_path)["networks"]:
        assert labels_of(network["drawings"]["net"])[-2:] == ["→ mask", "→ depth"]


SPACE_FILE = """
from search_spaces import SearchSpace

class Mine(SearchSpace):
    input_shape, num_classes = (1, 8, 8), 10

    def build(self, trial, net):
        return net.classifier(net.conv(net.input, trial.suggest_int("width", 1, 9)))
"""


@pytest.mark.parametrize("trust", [[], ["--trust"]])
def test_the_page_is_titled_by_the_name_of_a_file_and_not_by_its_folder(
    trust: list[str], tmp_path: Path
) -> None:
    folder, space = tmp_path / "found", tmp_path / "mine.py"
    space.write_text(SPACE_FILE)
    search = ["search", "--space", f"{space}:Mine", "--objectives", "params,flops"]
    options = ["--sampler", "random", "--evaluations", "2", "--out", str(folder)]
    assert CliRunner().invoke(app, [*search, *options]).exit_code == 0
    assert data_of(folder)["searched"] == "mine.py:Mine"
    reported = CliRunner().invoke(app, ["report", str(folder), "--json", *trust])
    assert data_of(folder)["searched"] == "mine.py:Mine"
    assert json.loads(reported.stdout)["space"] == f"{space}:Mine", "precise for programs"


@pytest.mark.usefixtures("brief_clocks")
def test_measurements_are_shown_with_their_spread(switches: SearchSpace, tmp_path: Path) -> None:
    evaluator = MeasuredEvaluator(switches, Measurement(("cpu_latency_ms", "params")))
    studies = run_measured_studies(
        evaluator, "cpu_latency_ms,params", ["random"], 3, (0,), tmp_path
    )
    save_studies(tmp_path, studies)
    for network in data_of(tmp_path)["networks"]:
        low, high, meaning = network["spreads"][0]
        assert low <= network["values"][0] <= high
        assert meaning.startswith("90 % interval for a later measurement; ")
        assert network["spreads"][1] is None


@pytest.mark.parametrize("name", ["val:loss", "energy:min", ":", "", " ", "_ms"])
def test_a_further_metric_may_have_any_name(tmp_path: Path, name: str) -> None:
    space = get_space("tiny-resnet")
    evaluator = FunctionEvaluator(
        space, lambda model, architecture, report: {"top1": 1.0, name: 2.0}, ["top1"]
    )
    search(
        Problem(space, evaluator, "top1"),
        sampler="random",
        evaluations=1,
        storage=tmp_path / "s.journal",
    )
    write_report(tmp_path / "report.html", open_studies(str(tmp_path / "s.journal")))
    data = data_of(tmp_path)
    assert [metric["name"] for metric in data["metrics"]][:2] == ["top1", name]
    assert data["networks"][0]["values"][:2] == [1.0, 2.0]
