"""Claims about reports of all kinds of studies: by cost, failed, few, unsatisfiable, joint, with
further metrics.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import optuna
import pytest

from nas.benchmarks import load_benchmark
from nas.comparison.runs import (
    Budget,
    SearchOptions,
    open_studies,
    run_measured_studies,
    run_studies,
)
from nas.comparison.studies import Studies
from nas.evaluation.measurement import Measurement
from nas.report.folders import save_studies
from nas.search.own_evaluator import FunctionEvaluator
from nas.search.study.networks import is_test_score
from nas.search.study.storage import open_storage
from search_spaces import SearchSpace, get_space
from search_spaces.ir.builder import Network, Tensor

pytestmark = pytest.mark.slow
Open = Callable[..., Any]
optuna.logging.set_verbosity(optuna.logging.WARNING)

TRAINING = """
def evaluate(model, architecture, report, epochs=1):
    width = architecture.as_dict()["width0"]
    if width == 5:
        raise MemoryError("too wide for the device")
    for epoch in range(1, 5):
        if not report(epoch, {"quality": 50 + 2 * width + epoch}):
            break
    return {"quality": 50 + 2 * width + epoch, "energy": 7.0 * width, "test_quality": 40.0 + width}
"""


class Widths(SearchSpace):
    """125 networks. Those whose first width is 5 cannot be trained."""

    name = "widths"
    input_shape = (1, 4, 4)
    num_classes = 2

    def build(self, trial: Any, net: Network) -> Tensor:
        x = net.input
        for i in range(3):
            x = net.conv_bn_relu(x, trial.suggest_int(f"width{i}", 1, 5))
        return net.classifier(x)


def data_of(folder: Path) -> dict[str, Any]:
    """The data that a page shows."""
    page = (folder / "report.html").read_text()
    (data,) = re.findall(r'<script type="application/json" id="data">(.*)</script>', page)
    return json.loads(data)


def own_studies(
    folder: Path,
    samplers: Sequence[str] = ("random",),
    evaluations: int = 8,
    constraints: Sequence[str] = (),
    budget: Budget | None = None,
) -> Studies:
    """Reported searches with a function of the user's."""
    (folder / "training.py").write_text(TRAINING)
    measurement = Measurement(("params",))
    evaluator = FunctionEvaluator(
        Widths(), f"{folder}/training.py:evaluate", ["quality"], measurement
    )
    studies = run_measured_studies(
        evaluator, "quality:max,params", samplers, evaluations, (0,), folder, constraints,
        options=SearchOptions(budget=budget),
    )  # fmt: skip
    save_studies(folder, studies)
    return studies


# --- by cost


@pytest.fixture(scope="module")
def by_cost(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Studies]:
    folder = tmp_path_factory.mktemp("cost")
    return folder, own_studies(folder, ["ridge"], budget=Budget((1, 2, 4), 110.0))


def test_a_search_by_cost_shows_what_it_paused_and_what_it_would_train_next(
    by_cost: tuple[Path, Studies], open_page: Open
) -> None:
    folder, _ = by_cost
    data = data_of(folder)
    ended = {network["notation"] for network in data["networks"] if network["evaluation"]}
    assert len(data["paused"]) > 5
    assert not {training["notation"] for training in data["paused"]} & ended
    assert {training["epochs"] for training in data["paused"]} <= {"1 of 4", "2 of 4"}
    page = open_page(folder)
    assert f"{len(data['paused'])} trainings not completed" in page.locator("#about").inner_text()
    assert page.locator("#paused tbody tr").count() == len(data["paused"])
    assert page.locator("#next tbody tr").count() == 5
    assert re.fullmatch(
        r"to epoch [124], (new|paused at [12])", page.locator("#next tbody td").first.inner_text()
    )
    page.locator("#next tbody button").first.click()
    assert "Next: to epoch" in page.locator("#network").inner_text()


def test_a_search_by_cost_keeps_what_its_predictor_expected_of_trainings(
    by_cost: tuple[Path, Studies],
) -> None:
    folder, studies = by_cost
    (found,) = data_of(folder)["agreement"]
    assert found["metric"] == "quality", "params were known when the trainings went on"
    assert found["networks"] == len(studies.first.predicted["quality"]) > 0
    lines = (folder / "nas.log").read_text().splitlines()
    paused = [
        line
        for line in lines
        if re.search(r"INFO ridge-0, trial \d+: epochs 0 to 1, quality \d+", line)
    ]
    assert len(paused) > 10
    assert any(
        re.search(r"epochs 2 to 4, quality 5\d \(predicted [\d.]+ ± [\d.e-]+\), params \d+", x)
        for x in lines
    )


def test_a_proposal_without_prediction_can_be_opened(tmp_path: Path, open_page: Open) -> None:
    own_studies(tmp_path, ["asha"], budget=Budget((1, 2, 4), 40.0))
    page = open_page(tmp_path)
    for proposal in page.locator("#next tbody button").all():
        proposal.click()
        assert page.locator("#drawings svg rect").count() > 3
    assert page.locator("#next-legend").is_hidden(), "none is in the chart"


# --- few, none, failed


def test_a_single_network_is_shown_without_empty_panels(tmp_path: Path, open_page: Open) -> None:
    own_studies(tmp_path, evaluations=1)
    page = open_page(tmp_path)
    assert page.locator("#about").inner_text() == "1 network evaluated by random."
    assert page.locator("#advice").inner_text() == "Only 1 network has been evaluated."
    for empty in ("#limits", "#curves", "#all"):
        assert page.locator(empty).is_hidden(), empty
    assert "±" not in page.locator("#samplers").inner_text(), "one search has no spread"


def test_where_no_network_keeps_a_constraint_the_nearest_is_shown_with_what_it_breaks(
    tmp_path: Path, open_page: Open
) -> None:
    studies = own_studies(tmp_path, constraints=["quality >= 99"])
    page = open_page(tmp_path)
    best = max(row["quality"] for row in studies.first.least_violating)
    assert f"breaks quality ≥ 99 by {99 - best:.0f}" in page.locator("#network").inner_text()
    assert "inf" not in page.locator("#samplers").inner_text()


def test_failures_of_every_search_are_listed(tmp_path: Path, open_page: Open) -> None:
    studies = own_studies(tmp_path, ["random", "nsga2"], evaluations=20)
    failed = [len(results[0].failures) for results in studies.results.values()]
    assert all(failed)
    page = open_page(tmp_path)
    rows = page.locator("#failures tbody tr").all_inner_texts()
    assert len(rows) == sum(failed)
    assert sum("nsga2" in row for row in rows) == failed[1]
    assert all("MemoryError: too wide for the device" in row for row in rows)


# --- what there is of each network


def test_further_metrics_are_columns_and_limits_and_test_scores_are_neither(
    tmp_path: Path, open_page: Open
) -> None:
    own_studies(tmp_path)
    page = open_page(tmp_path)
    headers = page.locator("#table thead th").all_inner_texts()
    assert headers == ["Network", "Quality", "Params", "Energy", "FLOPs", "Trial"]
    page.get_by_label("Limit of Energy as a number").fill("7")
    page.get_by_role("checkbox").check()
    assert set(page.locator("#table tbody td:nth-child(4)").all_inner_texts()) == {"7"}
    assert "Test quality" in page.locator("#network").inner_text()
    assert page.locator("#network small").all_inner_texts() == ["not to choose by"]


@pytest.mark.parametrize(
    ("metric", "expected"),
    [("test_quality", True), ("digits_test_accuracy", True), ("latest_loss", False)],
)
def test_scores_are_test_scores_by_their_names(metric: str, expected: bool) -> None:
    assert is_test_score(metric) == expected


def test_every_network_of_the_joint_front_has_its_model(tmp_path: Path, open_page: Open) -> None:
    studies = own_studies(tmp_path, ["random", "tpe"], evaluations=12)
    networks = data_of(tmp_path)["networks"]
    front = [
        network
        for network in networks
        if network["place"] is not None and network["search"] == "tpe"
    ]
    assert front, "a network of the second search is on the front"
    for network in front:
        file = tmp_path / "front" / f"{network['place']:02d}.onnx"
        model = onnx.load(file)
        about = {entry.key: entry.value for entry in model.metadata_props}
        assert about["weights"] == "trained"
        assert json.loads(about["values"])["quality"] == network["values"][0]
    index = networks.index(front[0])
    page = open_page(tmp_path, fragment=f"#network-{index}")
    assert page.locator("#network").get_by_role("link", name="ONNX model").count() == 1
    assert len(list((tmp_path / "front").glob("*.onnx"))) == len(studies.front_rows)


def test_trials_have_the_numbers_of_the_study(tmp_path: Path, open_page: Open) -> None:
    study = optuna.create_study(directions=["minimize"] * 2, storage=open_storage(tmp_path / "j"))
    for x in (0.5, 0.5, 0.1):  # the second repeats the first
        study.enqueue_trial({"x": x})
    study.optimize(
        lambda trial: (trial.suggest_float("x", 0, 1), 1 - trial.params["x"]), n_trials=3
    )
    save_studies(tmp_path, open_studies(tmp_path / "j"))
    page = open_page(tmp_path)
    assert page.locator("#table tbody th").all_inner_texts() == ["Trial 2", "Trial 0"]
    assert page.locator("#table thead th").all_inner_texts() == [
        "Trial",
        "Objective 1",
        "Objective 2",
    ]


# --- how it was made


def test_unused_settings_are_not_shown(tmp_path: Path) -> None:
    own_studies(tmp_path, evaluations=2)
    names = {name for part in data_of(tmp_path)["made"] for name, _ in part["rows"]}
    assert "evaluator: measurement: metrics" in names
    assert not any("training" in name or "latency" in name for name in names)


def test_a_long_command_fits_a_narrow_screen(tmp_path: Path, open_page: Open) -> None:
    study = optuna.create_study(storage=open_storage(tmp_path / "j"))
    command = f"nas search --objectives quality:accuracy:max,params --out /{'folder-' * 30}"
    study.set_user_attr("nas:identity", {"command": command})
    study.optimize(lambda trial: trial.suggest_float("x", 0, 1), n_trials=3)
    save_studies(tmp_path, open_studies(tmp_path / "j"))
    page = open_page(tmp_path, width=390)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert page.locator("#made dd").last.text_content().strip() == command


def test_axes_distinguish_close_values(tmp_path: Path, open_page: Open) -> None:
    study = optuna.create_study(directions=["minimize"] * 2, storage=open_storage(tmp_path / "j"))
    for x in (0.0, 1e-6, 2e-6):
        study.enqueue_trial({"x": x})
    study.optimize(
        lambda trial: (90 + trial.suggest_float("x", 0, 1), -trial.params["x"]), n_trials=3
    )
    save_studies(tmp_path, open_studies(tmp_path / "j"))
    formatted = open_page(tmp_path).evaluate(
        "echarts.getInstanceByDom(document.querySelector('#charts "
        ".chart')).getOption().xAxis[0].axisLabel"
        ".formatter(90.0000005)"
    )
    assert formatted == "90.0000005"


def test_the_first_of_many_metrics_are_shown_and_the_others_can_be_opened(
    tmp_path: Path, open_page: Open
) -> None:
    space, rng = get_space("tiny-resnet"), np.random.default_rng(0)
    names = [f"device{i}_latency_ms" for i in range(15)]
    rows = {
        a: [space.params(a) ** 0.5, *rng.random(15)] for a in [space.sample(rng) for _ in range(30)]
    }
    lines = [",".join([f'"{space.format(a)}"', *map(str, row)]) for a, row in rows.items()]
    (tmp_path / "t.csv").write_text(
        "\n".join([",".join(["architecture", "top1_accuracy", *names]), *lines])
    )
    table = load_benchmark(tmp_path / "t.csv", "tiny-resnet")
    goals = "top1_accuracy,device3_latency_ms"
    save_studies(
        tmp_path,
        run_studies(table, goals, ["random"], 10, (0,), tmp_path, ["device5_latency_ms <= 0.9"]),
    )
    page = open_page(tmp_path)
    shown = page.locator("#sliders .slider").all_inner_texts()
    assert [text.partition(" (")[0].partition(":")[0].strip() for text in shown] == [
        "Top1 accuracy", "Device3 latency", "Device5 latency", "Params", "FLOPs",
    ]  # fmt: skip
    assert page.locator("#network dt:visible").count() == 5
    page.locator("#network summary").first.click()
    assert page.locator("#network dt:visible").count() == 18
    page.locator("#limits summary").last.click()
    page.get_by_label("Limit of Device0 latency (ms) as a number").fill("0")
    assert page.locator("#advice").inner_text().startswith("No network satisfies")


def test_equal_values_have_an_axis_with_labels(tmp_path: Path, open_page: Open) -> None:
    study = optuna.create_study(directions=["minimize"] * 2, storage=open_storage(tmp_path / "j"))
    for x in (0.0, 0.5):
        study.enqueue_trial({"x": x})
    study.optimize(
        lambda trial: (20 + 1e-12 * trial.suggest_float("x", 0, 1), -trial.params["x"]), n_trials=2
    )
    save_studies(tmp_path, open_studies(tmp_path / "j"))
    axis = "echarts.getInstanceByDom(document.querySelector('#charts .chart')).getOption().xAxis[0]"
    low, high = open_page(tmp_path).evaluate(f"[{axis}.min, {axis}.max]")
    assert high - low > 1
