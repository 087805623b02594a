"""Claims about the search with real trainings: its rows say who was first, and it can be resumed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from experiments import real_search
from experiments.images import write_images
from experiments.real_search import QUICK_IMAGES, Trained, rows_of, run
from nas.evaluation.datasets import Dataset, load_dataset


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    path = tmp_path_factory.mktemp("images") / "images.npz"
    write_images(path, QUICK_IMAGES)
    return load_dataset(path)


def _trained(accuracies: list[float], latencies: list[float], test: list[float]) -> Trained:
    minutes = np.arange(1.0, len(accuracies) + 1)
    return Trained(np.stack([accuracies, latencies], 1), np.array(test), minutes)


def test_the_method_that_finds_the_front_first_needs_fewer_trainings(data: Dataset) -> None:
    front = [(90.0, 2.0), (80.0, 1.0)]
    poor = (70.0, 3.0)
    early = [*front, poor, poor]
    late = [poor, poor, *front]
    trained = {}
    for method, values in (("rlm", early), ("random", late)):
        accuracies, latencies = map(list, zip(*values, strict=True))
        trained[method] = _trained(accuracies, latencies, accuracies)
    rows = rows_of(trained, data)
    assert rows["rlm"]["trainings"] == rows["rlm"]["minutes"] == 2
    assert rows["random"]["trainings"] == rows["random"]["minutes"] == 4
    assert rows["rlm"]["HV@40"] == pytest.approx(1)
    assert rows["rlm"]["HV@10"] == rows["random"]["HV@10"]  # after all four


def test_fast_networks_count_by_test_accuracy_relative_to_the_best_of_any_method(
    data: Dataset,
) -> None:
    trained = {
        "rlm": _trained([90, 89], [2, 1], test=[80, 79.5]),
        "random": _trained([95, 70], [4, 0.5], test=[78, 60]),
    }
    rows = rows_of(trained, data)
    assert rows["rlm"]["ms within 1"] == 1
    assert np.isnan(rows["random"]["ms within 1"])  # 78 is two points below
    assert rows["random"]["ms within 3"] == 4


def test_a_method_that_never_reaches_the_goal_has_no_number_of_trainings(data: Dataset) -> None:
    trained = {
        "tpe": _trained([60.0], [3.0], [60.0]),
        "random": _trained([90.0], [1.0], [90.0]),
    }
    assert np.isnan(rows_of(trained, data)["tpe"]["trainings"])


@pytest.mark.slow
def test_a_finished_search_is_read_and_not_run_again(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(real_search, "QUICK_TRAININGS", 2)
    first = run("scaling", 0, data, tmp_path, quick=True)
    again = run("scaling", 0, data, tmp_path, quick=True)
    np.testing.assert_array_equal(first.values, again.values)
    assert len(first.values) == len(set(map(tuple, first.values))) == 2
    assert (np.diff(first.minutes) > 0).all()
