"""Claims about the report in a browser: what clicks, keys and sliders do, and that the page asks no
server.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import optuna
import pytest

from nas.comparison.runs import open_studies, run_studies
from nas.comparison.studies import Studies
from nas.report.folders import save_studies
from nas.search.pareto import non_dominated
from nas.search.study.storage import open_storage

axe = pytest.importorskip(
    "axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed"
)
pytestmark = pytest.mark.slow

GOALS = "digits_accuracy,cpu_latency_ms"
BOUND = 0.04  # ms
HOSTILE = "<td><img src=x onerror='window.hacked=1'></script><script>window.hacked=1</script>"
Open = Callable[..., Any]
optuna.logging.set_verbosity(optuna.logging.WARNING)


@pytest.fixture(scope="module")
def guided(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Studies]:
    """A guided search with a constraint that it sometimes violates."""
    folder = tmp_path_factory.mktemp("guided")
    options = {"n_startup": 10, "refit_every": 5, "fresh": 40}
    limits = [f"cpu_latency_ms <= {BOUND}"]
    studies = run_studies(
        "digits201", GOALS, ["ridge"], 40, (0,), folder, constraints=limits, sampler_options=options
    )
    save_studies(folder, studies)
    return folder, studies


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three objectives, searched by two samplers."""
    folder = tmp_path_factory.mktemp("three")
    save_studies(
        folder, run_studies("digits201", f"{GOALS},params", ["random", "nsga2"], 25, (0,), folder)
    )
    return folder


def knee(values: np.ndarray) -> np.ndarray:
    """Row of values (n, 2) (accuracy, latency) on the front that is farthest from the line between
    its extremes, among those with at most half as many errors again as the best.
    """
    losses = values * [-1, 1]
    front = np.unique(losses[non_dominated(losses)], axis=0)
    most_accurate = -front[:, 0].min()
    front = front[-front[:, 0] >= most_accurate - (100 - most_accurate) / 2]
    first, last = front[0], front[-1]
    offsets = (front - first) / np.maximum(np.abs(last - first), 1e-12)
    distances = -offsets.sum(axis=1) / np.sqrt(
        2
    )  # towards the ideal, from the line in spans of the front
    if len(front) > 2:
        distances[[0, -1]] = -np.inf  # the extremes balance nothing
    return front[np.argmax(distances.round(9))] * [-1, 1]


def shown(card: Any) -> list[float]:
    """Values of a card, without their spreads."""
    return [
        float(text.partition(": ")[2].split(" ")[0].replace(",", ""))
        for text in card.locator("span").all_inner_texts()
    ]


def pixel(page: Any, chart: int, series: str, which: int = 0) -> tuple[float, float, int]:
    """Where a chart of the trade-off draws a point, in pixels of the page, and the index of its
    network.
    """
    found = page.evaluate(
        """([chart, id, which]) => {
            const node = document.querySelectorAll('#charts .chart')[chart], own = echarts.getInstanceByDom(node);
            node.scrollIntoView();
            const { value, network } = own.getOption().series.find((series) => series.id === id).data[which];
            const [x, y] = own.convertToPixel({ xAxisIndex: 0, yAxisIndex: 0 }, value);
            const box = node.getBoundingClientRect();
            return [box.x + x, box.y + y, network];
        }""",
        [chart, series, which],
    )
    return found[0], found[1], found[2]


def window(page: Any, chart: int = 0) -> list[float]:
    """The part of both axes that a chart shows."""
    code = (
        "(i) => echarts.getInstanceByDom(document.querySelectorAll('#charts "
        ".chart')[i]).getOption().dataZoom"
    )
    return [zoom[end] for zoom in page.evaluate(code, chart) for end in ("startValue", "endValue")]


def test_the_page_starts_with_the_network_to_ship(
    guided: tuple[Path, Studies], open_page: Open
) -> None:
    folder, studies = guided
    page = open_page(folder)
    values = studies.first.evaluated.values
    kept = values[values[:, 1] <= BOUND]
    cards = page.locator(".card")
    np.testing.assert_allclose(shown(cards.nth(0)), knee(kept), rtol=2e-3)
    assert cards.nth(0).locator("strong").inner_text().startswith("Best balance (knee)")
    most_accurate = cards.filter(has_text=f"Best digits accuracy with CPU latency ≤ {BOUND}")
    assert shown(most_accurate)[0] == pytest.approx(kept[:, 0].max(), rel=2e-3)
    assert page.title() == "Digits accuracy (%), CPU latency (ms) on digits201"
    for made in ("cpu_latency_ms <= 0.04", "ridge", "optuna", "command"):
        assert page.locator("#made").get_by_text(made, exact=False).count(), made


def test_a_point_tells_about_its_network_when_pointed_at_and_opens_it_when_clicked(
    guided: tuple[Path, Studies], open_page: Open
) -> None:
    folder, _ = guided
    page = open_page(folder)
    x, y, index = pixel(page, 0, "front", 0)
    page.mouse.move(x, y)
    data = json.loads(page.locator("#data").inner_text() or page.locator("#data").text_content())
    accuracy = data["networks"][index]["values"][0]
    page.get_by_text(f"Digits accuracy (%): {int(accuracy)}.").last.wait_for()
    page.mouse.click(x, y)
    panel = page.locator("#network")
    assert (
        panel.get_by_role("heading").inner_text()
        == f"Network {data['networks'][index]['place']:02d}"
    )
    terms = panel.locator("dt").all_inner_texts()
    assert terms[:4] == ["Digits accuracy (%)", "CPU latency (ms)", "Params", "FLOPs"]
    assert "± standard deviation over 2 seeds" in panel.inner_text()
    drawings = page.locator("#drawings")
    assert drawings.locator("svg rect").count() > 3
    assert page.url.endswith(f"#network-{index}")
    place = data["networks"][index]["place"]
    model = base64.b64decode(
        panel.get_by_role("link", name="ONNX model").get_attribute("href").partition(",")[2]
    )
    onnx.checker.check_model(onnx.load_from_string(model))
    assert model == (folder / "front" / f"{place:02d}.onnx").read_bytes()
    drawings.get_by_text("ONNX text").last.click()
    assert (
        drawings.locator("pre").inner_text().strip()
        == (folder / "front" / f"{place:02d}.txt").read_text().strip()
    )
    again = open_page(folder, fragment=f"#network-{index}")
    assert again.locator("#network-title").inner_text() == f"Network {place:02d}"


def test_charts_zoom_by_buttons_wheel_and_keys(
    guided: tuple[Path, Studies], open_page: Open
) -> None:
    page = open_page(guided[0])
    first = window(page)
    page.get_by_role("button", name="Show all networks").click()
    everything = window(page)
    assert everything[0] <= first[0]
    assert everything[1] >= first[1]
    page.locator("#charts .chart").focus()
    page.keyboard.press("+")
    assert window(page)[1] - window(page)[0] == pytest.approx(0.6 * (everything[1] - everything[0]))
    page.get_by_role("button", name="Zoom to the front").click()
    assert window(page) == pytest.approx(first)
    x, y, _ = pixel(page, 0, "front", 0)
    page.mouse.move(x, y)
    page.keyboard.down("Control")
    page.mouse.wheel(0, -300)
    page.wait_for_function(
        "(before) => JSON.stringify(before) !== JSON.stringify(echarts.getInstanceByDom("
        "document.querySelector('#charts .chart')).getOption().dataZoom[0].startValue)",
        arg=first[0],
    )
    assert window(page)[1] - window(page)[0] < first[1] - first[0]


def test_limits_filter_table_and_recommendation(
    guided: tuple[Path, Studies], open_page: Open
) -> None:
    folder, studies = guided
    page = open_page(folder)
    before = page.locator(".card").first.inner_text()
    names = [objective.name for objective in studies.objectives]
    # Duplicates are one network, with their mean values.
    values = np.array(
        [[network.values[name] for name in names] for network in studies.distinct]
    )  # (n, 2)
    kept = values[values[:, 1] <= BOUND]
    limit = float(np.sort(kept[:, 0])[-5])  # percent
    page.get_by_label("Limit of Digits accuracy (%) as a number").fill(str(limit))
    np.testing.assert_allclose(
        shown(page.locator(".card").first), knee(kept[kept[:, 0] >= limit]), rtol=2e-3
    )
    page.get_by_role("checkbox").check()
    column = page.locator("#table tbody td:nth-child(2)").all_inner_texts()
    assert len(column) == (values[:, 0] >= limit).sum()
    assert all(float(text.split(" ")[0]) >= limit - 0.5 for text in column)  # as rounded
    slider = page.get_by_role("slider", name="Limit of CPU latency (ms)")
    slider.focus()
    page.keyboard.press("Home")  # the fastest only
    assert slider.get_attribute("aria-valuetext") == f"CPU latency (ms) ≤ {values[:, 1].min():.5g}"
    page.get_by_role("button", name="No limits").click()
    page.wait_for_function(
        "(text) => document.querySelector('.card').innerText === text", arg=before
    )
    assert page.locator("#table tbody tr").count() == len(values)
    assert slider.input_value() == slider.get_attribute("max")


def test_the_page_says_if_no_network_satisfies_the_limits(
    guided: tuple[Path, Studies], open_page: Open
) -> None:
    page = open_page(guided[0])
    page.get_by_label("Limit of Digits accuracy (%) as a number").fill("1000")
    assert page.locator(".card").count() == 0
    assert (
        page.locator("#advice")
        .inner_text()
        .startswith("No network satisfies all constraints within the limits.")
    )


def test_the_table_sorts_by_every_column(guided: tuple[Path, Studies], open_page: Open) -> None:
    page = open_page(guided[0])
    page.get_by_role("checkbox").check()
    button = page.locator("#table").get_by_role("button", name="Params")
    for way in ("ascending", "descending"):
        button.click()
        numbers = [
            int(text.replace(",", ""))
            for text in page.locator("#table tbody td:nth-child(4)").all_inner_texts()
        ]
        assert numbers == sorted(numbers, reverse=way == "descending")
        assert page.locator("#table th[aria-sort]").nth(3).get_attribute("aria-sort") == way
        assert page.evaluate("document.activeElement.textContent") == "Params"
    with page.expect_download() as download:
        page.get_by_role("button", name="Save as CSV").click()
    assert len(Path(download.value.path()).read_text().splitlines()) == len(numbers) + 1


def test_the_page_works_by_keyboard(guided: tuple[Path, Studies], open_page: Open) -> None:
    page = open_page(guided[0])
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the table of networks"
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")  # the first recommendation
    assert page.evaluate("document.activeElement.id") == "network"
    assert page.locator(".card").nth(0).get_attribute("aria-pressed") == "true"
    chart = page.locator("#charts .chart")
    chart.focus()
    walked = []
    for key in ("ArrowLeft", "ArrowLeft", "ArrowRight"):
        page.keyboard.press(key)
        walked.append(
            float(page.locator("#said").inner_text().split("CPU latency (ms): ")[1].split(" ")[0])
        )
    assert walked[2] == walked[0] > walked[1]


def test_predictions_stand_beside_measurements_and_before_what_comes_next(
    guided: tuple[Path, Studies], open_page: Open
) -> None:
    folder, studies = guided
    page = open_page(folder)
    assert page.locator("#agreement figcaption").count() == 2
    caption = page.locator("#agreement figcaption").first.inner_text()
    assert re.search(r"3\d networks, Kendall's τ", caption)
    proposals = page.locator("#next tbody tr")
    assert proposals.count() == 5
    known = {studies.first.space.format(a) for a in studies.first.evaluated.architectures}
    data = json.loads(page.locator("#data").text_content())
    assert not known & {
        network["notation"] for network in data["networks"] if not network["evaluation"]
    }
    proposals.first.get_by_role("button").click()
    assert "Not evaluated yet" in page.locator("#network").inner_text()
    assert page.locator("#drawings svg rect").count() > 3


def test_three_objectives_are_linked(three: Path, open_page: Open) -> None:
    page = open_page(three)
    assert page.locator("#charts .chart").count() == 2
    x, y, index = pixel(page, 0, "front", 1)
    page.mouse.click(x, y)
    assert pixel(page, 1, "chosen")[2] == index
    assert "up is better" in page.locator("#parallel-note").inner_text()
    axes = "echarts.getInstanceByDom(document.getElementById('parallel')).getOption().parallelAxis"
    ends = page.evaluate(f"{axes}.map((axis) => [axis.inverse, axis.nameLocation])")
    assert ends == [[False, "end"], [True, "start"], [True, "start"]], (
        "names stand above their axes"
    )
    lines = (
        "echarts.getInstanceByDom(document.getElementById('parallel')).getOption().series[0].data"
    )
    assert page.evaluate(
        f"{lines}.filter((line) => line.lineStyle.width === 4).map((line) => line.network)"
    ) == [index]
    # A line is clicked beside the first axis, at the network that has the best accuracy.
    x, y, best = page.evaluate(
        """() => {
            const node = document.getElementById('parallel'), own = echarts.getInstanceByDom(node);
            node.scrollIntoView({ block: 'center' });
            const lines = own.getOption().series[0].data, values = lines.map((line) => line.value[0]);
            const line = lines[values.indexOf(Math.max(...values))], box = node.getBoundingClientRect();
            const [x, y] = own.getModel().getComponent('parallel').coordinateSystem.dataToPoint(line.value[0], 'dim0');
            return [box.x + x, box.y + y, line.network];
        }"""
    )
    page.mouse.click(x, y)
    assert page.url.endswith(f"#network-{best}")
    assert best != index
    assert page.locator("#samplers tbody tr").count() == 2
    assert page.locator("#table thead th").last.inner_text() == "Trial"
    assert "Found by" in page.locator("#table thead").inner_text()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_has_no_accessibility_violations(
    guided: tuple[Path, Studies], open_page: Open, scheme: str
) -> None:
    found = axe.Axe().run(open_page(guided[0], scheme=scheme))
    assert found.violations_count == 0, found.generate_report()


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_fits_wide_and_narrow_screens_in_light_and_dark(
    three: Path, open_page: Open, width: int, scheme: str
) -> None:
    page = open_page(three, width, scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert background == ("rgb(255, 255, 255)" if scheme == "light" else "rgb(21, 24, 28)")
    for chart in page.locator(".chart:visible").all():
        assert 0 < chart.bounding_box()["width"] <= width
    for value in page.locator("#made dd").all():
        assert value.bounding_box()["width"] > width / 5, "no word is broken into letters"
    assert (
        f"{'left' if width < 600 else 'up'} is better"
        in page.locator("#parallel-note").inner_text()
    )
    page.emulate_media(color_scheme="dark" if scheme == "light" else "light")
    page.wait_for_function(
        "(before) => getComputedStyle(document.body).backgroundColor !== before", arg=background
    )


def test_names_are_shown_and_never_executed(tmp_path: Path, open_page: Open) -> None:
    study = optuna.create_study(
        directions=["minimize", "minimize"],
        storage=open_storage(tmp_path / "j"),
        study_name=HOSTILE,
    )
    study.set_metric_names([f"a {HOSTILE}", "b"])
    study.set_user_attr(HOSTILE, HOSTILE)

    def objective(trial: optuna.Trial) -> tuple[float, float]:
        x = trial.suggest_float(HOSTILE, 0, 1)
        return x, 1 - x

    study.optimize(objective, n_trials=4)
    save_studies(tmp_path, open_studies(tmp_path / "j"))
    page = open_page(tmp_path)
    page.mouse.move(*pixel(page, 0, "front", 1)[:2])
    page.mouse.click(*pixel(page, 0, "front", 1)[:2])
    page.wait_for_timeout(200)
    assert page.evaluate("window.hacked") is None
    assert page.locator("img, td td").count() == 0
    assert HOSTILE in page.locator("h1").inner_text()


def test_a_study_of_mere_numbers_has_its_front_chart_and_table(
    tmp_path: Path, open_page: Open
) -> None:
    study = optuna.create_study(
        directions=["minimize", "maximize"], storage=open_storage(tmp_path / "j"), study_name="mine"
    )

    def objective(trial: optuna.Trial) -> tuple[float, float]:
        x, y = trial.suggest_float("x", 0, 5), trial.suggest_float("y", 0, 3)
        return 4 * x**2 + 4 * y**2, -((x - 5) ** 2) - (y - 5) ** 2

    study.optimize(objective, n_trials=20)
    save_studies(tmp_path, open_studies(tmp_path / "j"))
    page = open_page(tmp_path)
    assert page.locator("h1").inner_text() == "Objective 1, Objective 2 on mine"
    assert page.locator("#table tbody tr").count() == len(study.best_trials)
    x, y, _ = pixel(page, 0, "front", 0)
    page.mouse.click(x, y)
    assert page.locator("#network-title").inner_text().startswith("Trial ")
    assert page.locator("#table thead th").first.inner_text() == "Trial"
    assert page.locator("#next-legend").is_hidden(), "nothing is proposed"
    assert "'x':" in page.locator("#network code").inner_text()


def test_the_best_balance_is_not_the_worst_in_one_objective(
    tmp_path: Path, open_page: Open
) -> None:
    study = optuna.create_study(
        storage=open_storage(tmp_path / "j"), directions=["minimize", "minimize"]
    )
    asked: dict[str, optuna.distributions.BaseDistribution] = {
        "x": optuna.distributions.FloatDistribution(0, 9)
    }
    for x, values in enumerate(([0.0, 10.0], [6.0, 6.5], [10.0, 0.0])):
        study.add_trial(
            optuna.trial.create_trial(values=values, params={"x": x}, distributions=asked)
        )
    save_studies(tmp_path, open_studies(tmp_path / "j"))
    card = open_page(tmp_path).locator(".card").filter(has_text="Best balance")
    assert shown(card) == [6.0, 6.5]


def test_the_others_stay_in_view_if_one_network_is_best_in_everything(
    tmp_path: Path, open_page: Open
) -> None:
    study = optuna.create_study(
        storage=open_storage(tmp_path / "j"), directions=["minimize", "minimize"]
    )
    study.optimize(
        lambda trial: (trial.suggest_float("x", 0, 1), trial.params["x"] ** 2), n_trials=6
    )
    save_studies(tmp_path, open_studies(tmp_path / "j"))
    page = open_page(tmp_path)
    assert "1 trial is the best in every objective" in page.locator("#advice").inner_text()
    low, high, lowest, highest = window(page)
    assert all(
        low <= trial.values[0] <= high and lowest <= trial.values[1] <= highest
        for trial in study.trials
    )


def test_one_objective_is_shown_over_the_evaluations(tmp_path: Path, open_page: Open) -> None:
    study = optuna.create_study(storage=open_storage(tmp_path / "j"))
    study.optimize(lambda trial: trial.suggest_float("x", 0, 1), n_trials=6)
    save_studies(tmp_path, open_studies(tmp_path / "j"))
    page = open_page(tmp_path)
    assert shown(page.locator(".card").first)[0] == pytest.approx(study.best_value, rel=5e-4)
    assert page.locator("#charts .chart").count() == 1
    assert pixel(page, 0, "picks")[2] == 0


def test_axes_are_those_of_the_figures_with_the_better_direction(
    guided: tuple[Path, Studies], open_page: Open
) -> None:
    names = "['xAxis', 'yAxis'].map((axis) => scatters[0].chart.getOption()[axis][0].name)"
    assert open_page(guided[0]).evaluate(names) == ["Digits accuracy (%) ↑", "CPU latency (ms) ↓"]


def test_sliders_rise_from_left_to_right_whichever_direction_is_better(
    guided: tuple[Path, Studies], open_page: Open
) -> None:
    page = open_page(guided[0])
    accuracy = page.get_by_role("slider", name="Limit of Digits accuracy (%)")
    latency = page.get_by_role("slider", name="Limit of CPU latency (ms)")
    text = "aria-valuetext"
    assert accuracy.input_value() == "0", "any accuracy: the slider is at the left"
    accuracy.focus()
    page.keyboard.press("ArrowRight")
    assert accuracy.get_attribute(text).startswith("Digits accuracy (%) ≥ ")
    page.keyboard.press("Home")
    assert accuracy.get_attribute(text) == "Digits accuracy (%): any"
    latency.focus()
    page.keyboard.press("ArrowLeft")
    assert latency.get_attribute(text).startswith("CPU latency (ms) ≤ ")
    page.keyboard.press("End")
    assert latency.get_attribute(text) == "CPU latency (ms): any"


def test_chosen_network_that_breaks_a_new_limit_says_so_and_leads_to_one_within(
    guided: tuple[Path, Studies], open_page: Open
) -> None:
    page = open_page(guided[0])
    page.locator(".card").first.click()
    panel = page.locator("#network")
    assert panel.locator(".warning").count() == 0
    box = page.get_by_label("Limit of CPU latency (ms) as a number")
    box.fill("0.02")
    assert "beyond your limit: CPU latency (ms) ≤ 0.02" in panel.locator(".warning").inner_text()
    panel.get_by_role("button", name="Show the nearest network within").click()
    assert panel.locator(".warning").count() == 0
    assert page.evaluate("state.chosen.values[1]") <= 0.02


def test_numbers_have_as_many_digits_as_their_error_allows(
    guided: tuple[Path, Studies], open_page: Open
) -> None:
    page = open_page(guided[0])
    for value, error, shown in (
        (84.93271, 1.1, "84.9 ± 1.1"),
        (0.0712345, 0.00312, "0.0712 ± 0.0031"),
        (1234.5678, 210, "1,235 ± 210"),
        (55218, 0, "55,218"),
        (0.03722345, 0, "0.03722"),
    ):
        assert page.evaluate(f"withError({value}, {error})") == shown


def test_a_buyer_is_told_what_cheaper_networks_cost(tmp_path: Path, open_page: Open) -> None:
    study = optuna.create_study(
        storage=open_storage(tmp_path / "j"), directions=["maximize", "minimize"]
    )
    study.set_metric_names(["top1_accuracy", "latency_ms"])
    kinds: dict[str, optuna.distributions.BaseDistribution] = {
        "x": optuna.distributions.FloatDistribution(0, 99)
    }
    for x, values in enumerate(([90.0, 10.0], [89.4, 7.0], [88.0, 4.0], [86.0, 2.0], [20.0, 1.0])):
        study.add_trial(
            optuna.trial.create_trial(values=values, params={"x": x}, distributions=kinds)
        )
    save_studies(tmp_path, open_studies(tmp_path / "j"))
    page = open_page(tmp_path)
    titles = page.locator(".card strong").all_inner_texts()
    assert "Least latency within 1 point of the best" in " · ".join(titles)
    assert any("Half the latency costs 2 points" in title for title in titles)
    assert (
        "It is sought among trials with Top1 accuracy (%) ≥ 85"
        in page.locator("#advice").inner_text()
    )
    values = page.evaluate(
        "[...recommendations().picks.keys()].map((network) => network.values[0])"
    )
    assert 20 not in values, "the fastest is of no use"
