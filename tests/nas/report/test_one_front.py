"""Claims about the front of several searches: it is one and the same everywhere, and its tables
begin a new search.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
from typer.testing import CliRunner

from nas.benchmarks import load_benchmark
from nas.cli import app
from nas.comparison.runs import open_studies
from nas.report.plots import _values_of_rows
from tests.nas.report.test_report import data_of

pytestmark = pytest.mark.slow

Open = Callable[..., Any]
GOALS = ("--benchmark", "digits201", "--objectives", "digits_accuracy,cpu_latency_ms")
ORIGIN = ("architecture", "sampler", "seed", "trial", "evaluations")
SEARCHES = [(sampler, seed) for sampler in ("random", "nsga2") for seed in ("0", "1")]


def command(*arguments: str) -> str:
    """The output of a command that must succeed."""
    result = CliRunner().invoke(app, arguments, env={"COLUMNS": "300"})
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A folder with four searches that evaluate many duplicates, and what the command printed."""
    folder = tmp_path_factory.mktemp("several") / "out"
    options = (
        "--sampler",
        "random,nsga2",
        "--seeds",
        "2",
        "--evaluations",
        "150",
        "--quiet",
        "--out",
        str(folder),
    )
    return folder, command("search", *GOALS, *options)


def rows_of(file: Path) -> list[dict[str, str]]:
    with file.open(newline="", encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


def architectures(file: Path) -> list[str]:
    return [row["architecture"] for row in rows_of(file)]


def test_terminal_files_page_and_python_show_the_same_front(searched: tuple[Path, str]) -> None:
    folder, shown = searched
    front = rows_of(folder / "front.csv")
    texts = {
        load_benchmark("digits201").space.to_text(n.architecture)
        for n in open_studies(folder).front_networks
    }
    assert len(texts) == len(front) > 3, "no network is there twice"
    values = [(float(row["digits_accuracy"]), float(row["cpu_latency_ms"])) for row in front]
    assert len(set(values)) == len(front), "in this table, equal values are those of one network"

    lines = [line.split("│")[1:-1] for line in shown.splitlines() if "front/" in line]
    assert [float(line[1]) for line in lines] == pytest.approx(
        [accuracy for accuracy, _ in values], rel=1e-3
    )
    assert [(line[3].strip(), line[4].strip()) for line in lines] == [
        (row["sampler"], row["seed"]) for row in front
    ]
    assert "Pareto front of all 4 searches" in shown

    names = [f"{place:02d}.{kind}" for place in range(len(front)) for kind in ("onnx", "txt")]
    assert sorted(path.name for path in (folder / "front").iterdir()) == names
    for place, row in enumerate(front):
        model = onnx.load(folder / "front" / f"{place:02d}.onnx")
        about = {entry.key: entry.value for entry in model.metadata_props}
        assert json.loads(about["values"])["architecture"] == row["architecture"]

    networks = data_of(folder)["networks"]
    on_page = [network["notation"] for network in networks if network["place"] is not None]
    assert on_page == [row["architecture"] for row in front]
    assert [network["notation"] for network in networks] == architectures(folder / "networks.csv")
    summary = json.loads((folder / "summary.json").read_text())
    assert [row["architecture"] for row in summary["front"]] == on_page


def test_the_front_of_several_searches_names_the_search_of_each_network(
    searched: tuple[Path, str],
) -> None:
    folder, _ = searched
    studies = open_studies(folder)
    assert {(row["sampler"], row["seed"]) for row in rows_of(folder / "networks.csv")} == {
        *SEARCHES
    }
    for row in rows_of(folder / "front.csv"):
        [result] = [
            r for r in studies.results[row["sampler"]] if r.settings["seed"] == int(row["seed"])
        ]
        trial = result.study.trials[int(row["trial"])]
        assert result.space.format(result.space.architecture(trial.params)) == row["architecture"]
        assert trial.values == [float(row["digits_accuracy"]), float(row["cpu_latency_ms"])]


def test_reports_and_figures_of_the_folder_keep_that_front(
    searched: tuple[Path, str], tmp_path: Path
) -> None:
    folder, _ = searched
    before = (folder / "front.csv").read_text()
    reported = json.loads(
        command("report", str(folder), "--out", str(tmp_path / "report"), "--json")
    )
    assert (tmp_path / "report" / "front.csv").read_text() == before
    assert [row["architecture"] for row in reported["front"]] == architectures(folder / "front.csv")
    for group in open_studies(folder).results.values():
        for result in group:
            values = _values_of_rows(result.front_rows, result.objectives)
            assert len(values) == len(result.front_rows) == len({*map(str, values)})


def test_json_lists_the_same_front(tmp_path: Path) -> None:
    options = (
        "--sampler",
        "random",
        "--seeds",
        "2",
        "--evaluations",
        "20",
        "--quiet",
        "--out",
        str(tmp_path / "out"),
    )
    printed = json.loads(command("search", *GOALS, *options, "--json").partition("\nwritten to")[0])
    front = rows_of(tmp_path / "out" / "front.csv")
    assert [row["architecture"] for row in printed["front"]] == [
        row["architecture"] for row in front
    ]
    assert [str(row["seed"]) for row in printed["front"]] == [row["seed"] for row in front]


def continued(table: Path, out: Path) -> int:
    """Begin a search with a table of known networks: how many it knows."""
    options = (
        "--sampler",
        "random",
        "--seed",
        "7",
        "--evaluations",
        "2",
        "--quiet",
        "--out",
        str(out),
    )
    result = CliRunner().invoke(app, ["search", *GOALS, *options, "--known", str(table)])
    assert result.exit_code == 0, result.output
    return int(open_studies(out).first.prior.sum())


@pytest.mark.parametrize("name", ["front.csv", "networks.csv"])
def test_tables_of_a_search_are_known_to_the_next(
    searched: tuple[Path, str], tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    table = searched[0] / name
    assert continued(table, tmp_path / "next") == len(rows_of(table))
    [warning] = [
        record.getMessage() for record in caplog.records if "not used" in record.getMessage()
    ]
    assert warning.endswith(
        "no metrics of this search: digits_accuracy_seed0, digits_accuracy_seed1"
    )
    prior = {
        row["architecture"]
        for row in rows_of(tmp_path / "next" / "networks.csv")
        if row["sampler"] == "known"
    }
    assert prior == {*architectures(table)}


@pytest.mark.parametrize("everything", [False, True])
def test_the_table_that_the_page_saves_is_known_to_the_next_search(
    searched: tuple[Path, str], tmp_path: Path, open_page: Open, everything: bool
) -> None:
    page = open_page(searched[0])
    page.get_by_role("checkbox").set_checked(everything)
    with page.expect_download() as download:
        page.get_by_role("button", name="Save as CSV").click()
    saved = tmp_path / "saved.csv"
    download.value.save_as(saved)
    written = rows_of(searched[0] / ("networks.csv" if everything else "front.csv"))
    assert continued(saved, tmp_path / "next") == len(written)
    for own, other in zip(rows_of(saved), written, strict=True):
        assert [own[name] for name in ORIGIN] == [other[name] for name in ORIGIN]
        for metric in ("digits_accuracy", "cpu_latency_ms", "params", "flops"):
            assert float(own[metric]) == float(other[metric])


def test_the_page_counts_and_names_the_networks_of_the_front(
    searched: tuple[Path, str], open_page: Open
) -> None:
    folder, _ = searched
    page = open_page(folder)
    front = len(rows_of(folder / "front.csv"))
    assert f"{front} networks are on the front" in page.locator("#advice").inner_text()
    shown = page.locator("#table tbody th").all_inner_texts()
    assert shown == [f"Network {place:02d}" for place in range(front)]
    repeated = next(
        n for n in data_of(folder)["networks"] if n["place"] is not None and n["others"]
    )
    page.locator("#table tbody").get_by_role(
        "button", name=f"Network {repeated['place']:02d}"
    ).click()
    said = page.locator("#network").inner_text()
    assert (
        f"Evaluated {len(repeated['others']) + 1} times, also as trial {repeated['others'][0][1]} "
        "of" in said
    )


def test_a_table_of_networks_can_be_searched_itself(
    searched: tuple[Path, str], tmp_path: Path
) -> None:
    table = load_benchmark(
        searched[0] / "networks.csv", "nasbench201", {"input_shape": [1, 8, 8], "num_classes": 10}
    )
    assert not {"sampler", "seed", "trial", "evaluations"} & {*table.metrics}
    assert len(table) == len(rows_of(searched[0] / "networks.csv"))
