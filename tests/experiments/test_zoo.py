"""Claims about the experiments on real networks, on small networks with made-up numbers, and on the
real tables.
"""

from __future__ import annotations

import gzip
import importlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import predictors
from experiments import zoo, zoo_ceiling, zoo_checkpoint, zoo_tables, zoo_texts
from experiments.tables import spearman
from experiments.zoo_tables import SETTINGS, TOP1, Zoo, timm_source, zoo_rows
from search_spaces import InputError, get_space
from search_spaces.common.torchvision import prepare_torchvision

FAMILIES = 10
COUNT = 60


@pytest.fixture(scope="module")
def small_zoo() -> Zoo:
    """Networks of a small space in ten families, with invented accuracies and latencies. Some cells
    are empty.
    """
    rng = np.random.default_rng(0)
    space = get_space("tiny-resnet")
    drawn = {space.to_text(a): a for a in (space.sample(rng) for _ in range(8 * COUNT))}
    texts = list(drawn)[:COUNT]
    flops = np.array([space.flops(drawn[text]) for text in texts], float)
    params = np.array([space.params(drawn[text]) for text in texts], float)
    values = {name: flops * (1 + i) * 1e-6 + params * 1e-5 for i, name in enumerate(SETTINGS)}
    values[TOP1] = 50 + 5 * np.log10(flops)
    values["rtx3090_ms"][::7] = np.nan
    values[TOP1][::5] = np.nan
    return Zoo(
        [f"net{i}" for i in range(COUNT)],
        texts,
        np.array([f"family{i % FAMILIES}" for i in range(COUNT)]),
        values,
    )


@pytest.fixture
def tables(small_zoo: Zoo, monkeypatch: pytest.MonkeyPatch) -> Zoo:
    """The small zoo in place of timm's table."""
    monkeypatch.setattr(zoo, "timm_zoo", lambda every, everything=False: small_zoo)
    return small_zoo


def test_the_ceiling_is_what_a_predictor_of_qualities_reaches() -> None:
    rng = np.random.default_rng(0)
    qualities = rng.normal(78, 3, 2000)
    recipes = qualities[:, None] + rng.normal(0, 2, (2000, 3))
    values = recipes[:, 0]
    counts = np.full(2000, 3)
    counts[:500] = 2
    ranges = np.where(counts == 2, np.ptp(recipes[:, :2], 1), np.ptp(recipes, 1))
    deviation = zoo_ceiling.recipe_deviation(ranges, counts)
    assert deviation == pytest.approx(2, rel=0.1)
    rows = np.arange(2000)
    reached = spearman(qualities, values)
    assert zoo_ceiling.ceiling(values, deviation, rows, draws=20) == pytest.approx(
        reached, abs=0.02
    )
    assert zoo_ceiling.ceiling(values, 0.0, rows, draws=2) == 1


def test_families_are_held_out_as_a_whole(small_zoo: Zoo) -> None:
    chosen = [zoo.held_out_networks(small_zoo.families, seed) for seed in range(5)]
    for held_out in chosen:
        assert len(np.unique(small_zoo.families[held_out])) == 2
        assert not set(small_zoo.families[held_out]) & set(small_zoo.families[~held_out])
    assert len({held_out.tobytes() for held_out in chosen}) > 1


def test_networks_are_tested_where_they_were_measured(small_zoo: Zoo) -> None:
    held_out = zoo.held_out_networks(small_zoo.families, 0)
    for name, rows in zoo._tests(small_zoo, held_out, False):
        assert held_out[rows].all()
        assert not np.isnan(small_zoo.values[name][rows]).any()
    for _, rows in zoo._tests(small_zoo, held_out, True):
        assert not np.isnan([small_zoo.values[name][rows] for name in SETTINGS]).any(), (
            "other devices are given"
        )


@pytest.mark.parametrize("rival", [*zoo.FORMULAS, zoo.REGRESSION])
def test_baselines_learn_nothing_from_held_out_families(rival: str, small_zoo: Zoo) -> None:
    held_out = zoo.held_out_networks(small_zoo.families, 1)
    name = "rtx4090_ms"
    other = small_zoo._replace(
        values={**small_zoo.values, name: np.where(held_out, 1e3, small_zoo.values[name])}
    )
    (rows,) = (rows for metric, rows in zoo._tests(small_zoo, held_out, True) if metric == name)
    found, again = (zoo._plain(z, rival, name, held_out, 0)[rows] for z in (small_zoo, other))
    np.testing.assert_allclose(found, again)
    assert spearman(found, small_zoo.values[name][rows]) > 0.6


def test_perfect_predictions_score_one_and_wide_intervals_cover(small_zoo: Zoo) -> None:
    rows = np.arange(COUNT)
    true = small_zoo.values["rtx4090_ms"]
    around = true[:, None] * np.exp(np.linspace(-1, 1, 21))
    found = zoo._judged(small_zoo, {"rtx4090_ms": zoo.Judged(rows, true, around)})
    ranks = {"rtx4090": pytest.approx(1), "rtx4090 within": pytest.approx(1)}
    assert found == {**ranks, "rtx4090 error": 0, "rtx4090 covered": 1, "rtx4090 half": 1}
    beside = zoo._judged(small_zoo, {"rtx4090_ms": zoo.Judged(rows, 0.1 / true, around * 9)})
    assert beside["rtx4090"] == pytest.approx(-1)
    assert beside["rtx4090 covered"] == 0
    doubled = zoo._judged(small_zoo, {"rtx4090_ms": zoo.Judged(rows, 2 * true)})
    assert doubled == {**ranks, "rtx4090 error": pytest.approx(100)}


def test_a_novelty_that_grows_with_the_error_finds_the_worst_predictions() -> None:
    errors = np.arange(20.0)
    assert zoo._found_worst(errors**2, errors) == 1
    assert zoo._found_worst(-errors, errors) == 0


@pytest.mark.slow
def test_the_rlm_ranks_new_families_metric_by_metric_in_sequence_and_with_devices_given(
    tables: Zoo,
) -> None:
    alone, sequence = (zoo.score("families", name, 1, 0) for name in ("rlm", zoo.SEQUENCE))
    given = zoo.score("given", "rlm", 1, 0)
    for scores in (alone, sequence, given):
        assert min(scores[zoo._short(name)] for name in SETTINGS) > 0.7
        assert scores["i7_12700h covered"] > 0.5, "of 0.9 that the intervals promise"


@pytest.mark.slow
def test_a_new_device_is_ranked_from_ten_measurements(tables: Zoo) -> None:
    for rival in zoo.PREDICTORS["new"]:
        assert min(zoo.score("new", rival, 1, 0).values()) > 0.8, rival


@pytest.mark.slow
def test_every_row_of_a_study_is_kept_and_printed(
    tables: Zoo, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options: dict[str, Any] = {
        "out": tmp_path,
        "studies": "families",
        "only": "params,operators",
        "seeds": 2,
    }
    zoo.main(**options, as_json=True)
    rows = json.loads(capsys.readouterr().out)
    assert [(row["predictor"], row["seeds"]) for row in rows] == [("params", 2), ("operators", 2)]
    (journal,) = tmp_path.glob("rows-*.jsonl")
    assert len(journal.read_text().splitlines()) == 4
    assert (tmp_path / "families" / "table.md").read_text().count("\n| ") == 2


def test_joined_tables_have_each_text_once_with_all_its_values(small_zoo: Zoo) -> None:
    first = Zoo(["a", "b"], ["A", "B"], np.array(["f", "g"]), {"x_ms": np.array([1.0, np.nan])})
    second = Zoo(
        ["c", "d"],
        ["B", "C"],
        np.array(["h", "i"]),
        {"x_ms": np.array([2.0, 3.0]), "y_ms": np.array([4.0, 5.0])},
    )
    both = zoo_checkpoint.joined([first, second])
    assert (both.sources, both.texts, list(both.families)) == (
        ["a", "b", "d"],
        ["A", "B", "C"],
        ["f", "g", "i"],
    )
    np.testing.assert_array_equal(both.values["x_ms"], [1, 2, 3])
    np.testing.assert_array_equal(both.values["y_ms"], [np.nan, 4, 5])


@pytest.mark.slow
def test_a_checkpoint_contains_the_tables_and_its_card_says_so(
    small_zoo: Zoo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zoo_checkpoint, "timm_zoo", lambda every, everything: small_zoo)
    zoo_checkpoint.main(out=tmp_path / "rlm-zoo", quick=True)
    model = predictors.load(tmp_path / "rlm-zoo")
    assert model.metrics == (*small_zoo.values, "params", "flops")
    known = model.examples_of(small_zoo.texts[1:3])["rtx4090_ms"]
    np.testing.assert_array_equal(known, small_zoo.values["rtx4090_ms"][1:3])
    card = (tmp_path / "rlm-zoo" / "README.md").read_text()
    assert all(
        words in card for words in (f"with {COUNT} real networks", "Apache-2.0", "`rtx4090_ms`")
    )


def test_without_the_tables_the_remedy_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NAS_DATA", str(tmp_path))
    with pytest.raises(
        InputError,
        match=r"timm.csv.gz: no such file; set NAS_DATA to the folder that holds zoo/timm",
    ):
        zoo_rows("timm")


@pytest.mark.slow
def test_rows_of_a_table_are_sources_and_metrics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "zoo").mkdir()
    with gzip.open(tmp_path / "zoo" / "timm.csv.gz", "wt") as file:
        speeds = [f"{setting}_ms_per_image" for setting in SETTINGS.values()]
        file.write(
            ",".join(["architecture", "family", "img_size", "trained_on", "imagenet_top1", *speeds])
            + "\n"
        )
        file.write(
            "lcnet_050,mobilenet,64,in1k,63.1,0.5,,1,1,1,1\n"
            + "lcnet_050,mobilenet,96,extra_data,70,1,1,1,1,1,1\n"
        )
    monkeypatch.setenv("NAS_DATA", str(tmp_path))
    monkeypatch.setenv("NAS_CACHE", str(tmp_path / "cache"))
    zoo_tables.timm_zoo.cache_clear()
    found = zoo_tables.timm_zoo()
    zoo_tables.timm_zoo.cache_clear()
    assert (
        found.sources
        == [timm_source(row) for row in zoo_rows("timm")]
        == ["timm:lcnet_050@64", "timm:lcnet_050@96"]
    )
    np.testing.assert_array_equal(found.values[TOP1], [63.1, np.nan])
    np.testing.assert_array_equal(found.values["rtx3090_ms"], [0.5, 1])
    np.testing.assert_array_equal(found.values["rtx4090_ms"], [np.nan, 1])


@pytest.mark.slow
def test_reading_a_network_gives_its_length_and_exact_parameters() -> None:
    prepare_torchvision()
    timm = importlib.import_module("timm")
    params = sum(p.numel() for p in timm.create_model("lcnet_035").parameters())
    found = zoo_texts.read_entry(zoo_texts.Entry("timm", "timm:lcnet_035", params))
    assert found["exact"] == 1.0
    assert found["lines"] < found["words"] < found["operators"] * 4
    assert found["words"] < found["tokens"] < found["signs"] / 2
    assert found["signs"] > 3 * found["words"]
    assert found["encoded"] < found["operators"]  # its equal blocks are encoded once
    missing = zoo_texts.read_entry(zoo_texts.Entry("timm", "timm:resnet18x", 0))
    assert "resnet18x" in missing["reason"]


@pytest.mark.parametrize("name", ["timm", "aihub"])
def test_the_real_tables_name_networks_that_libraries_have(name: str, nas_data: Path) -> None:
    if not (nas_data / "zoo" / f"{name}.csv.gz").is_file():
        pytest.skip(f"NAS_DATA has no zoo/{name}.csv.gz")
    prepare_torchvision()
    timm = importlib.import_module("timm")
    sources = [entry.source for entry in zoo_texts.entries() if entry.table == name]
    assert len(sources) == len(set(sources)) > 50
    known = set(timm.list_models())
    assert all(
        s.removeprefix("timm:").split("@")[0] in known for s in sources if s.startswith("timm:")
    )
