"""Claims about figures."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import matplotlib.figure
import matplotlib.image
import numpy as np
import pytest

from nas.report.plots import (
    metric_label,
    plot_front,
    plot_hypervolume,
    plot_kendall,
    plot_predicted,
    plot_ranks,
)
from nas.search.objectives import parse_objectives
from search_spaces.common.errors import InputError

OBJECTIVES = parse_objectives("cifar10_validation_accuracy,fpga_latency_ms")
FRONT = np.array([[90.0, 4.0], [80.0, 2.0], [70.0, 1.0]])
VALUES = np.vstack([FRONT - [1, 0], [[60.0, 9.0], [np.nan, 1.0]]])


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[matplotlib.figure.Figure]:
    """The figures that are saved."""
    saved: list[matplotlib.figure.Figure] = []
    savefig = matplotlib.figure.Figure.savefig

    def record(figure: matplotlib.figure.Figure, *arguments: Any, **options: Any) -> None:
        saved.append(figure)
        savefig(figure, *arguments, **options)

    monkeypatch.setattr(matplotlib.figure.Figure, "savefig", record)
    return saved


@pytest.mark.parametrize(
    ("metric", "label"),
    [
        ("cifar10_validation_accuracy", "CIFAR-10 validation accuracy (%)"),
        ("fpga_latency_ms", "FPGA latency (ms)"),
        ("digits_test_accuracy", "Digits test accuracy (%)"),
        ("flops", "FLOPs"),
        ("ms", "Ms"),
        ("energy_mJ", "Energy (mJ)"),
        ("peak_memory_mb", "Peak memory (MB)"),
        ("images_per_s", "Images per s"),
        ("openvino_latency_ms", "OpenVINO latency (ms)"),
        ("ncnn_size_mb", "ncnn size (MB)"),
        ("torch_compile_latency_ms", "torch.compile latency (ms)"),
    ],
)
def test_axis_labels_carry_units(metric: str, label: str) -> None:
    assert metric_label(metric) == label


def test_only_non_dominated_points_are_drawn_and_every_sampler_is_named_once(
    tmp_path: Path, figures: list[matplotlib.figure.Figure]
) -> None:
    plot_front(
        tmp_path / "pareto.png", VALUES, FRONT, {"a": [VALUES, VALUES], "b": [FRONT]}, OBJECTIVES
    )
    (figure,) = figures
    marked = [
        np.asarray(line.get_xydata())
        for line in figure.axes[0].lines
        if line.get_marker() != "None"
    ]
    assert [sorted(points.tolist()) for points in marked] == [
        sorted((FRONT - [1, 0]).tolist())
    ] * 2 + [sorted(FRONT.tolist())]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [
        "all networks",
        "true front",
        "a",
        "b",
    ]
    image = matplotlib.image.imread(tmp_path / "pareto.png")
    assert image.shape[1] > 1000


def test_the_staircase_borders_what_the_front_dominates(
    tmp_path: Path, figures: list[matplotlib.figure.Figure]
) -> None:
    plot_front(tmp_path / "pareto.png", None, FRONT, {}, OBJECTIVES)
    corners = np.asarray(figures[0].axes[0].lines[0].get_xydata()).tolist()
    assert corners == [[90, 4], [80, 4], [80, 2], [70, 2], [70, 1]]


def test_fronts_are_drawn_without_a_true_front(tmp_path: Path) -> None:
    plot_front(
        tmp_path / "new" / "pareto.png",
        None,
        None,
        {"a": [VALUES], "empty": [VALUES[:0]]},
        OBJECTIVES,
    )
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["pareto.png"]


def test_hypervolume_shows_the_mean_over_seeds(
    tmp_path: Path, figures: list[matplotlib.figure.Figure]
) -> None:
    plot_hypervolume(
        tmp_path / "hypervolume.png",
        {"a": np.array([[0.2, 0.4], [0.4, 0.8]]), "b": np.array([[0.1, 0.2]])},
    )
    lines = figures[0].axes[0].lines
    np.testing.assert_allclose(np.asarray(lines[0].get_ydata()), [0.3, 0.6])
    np.testing.assert_allclose(np.asarray(lines[1].get_ydata()), [0.1, 0.2])


def test_kendall_titles_carry_tau_over_all_known_pairs(
    tmp_path: Path, figures: list[matplotlib.figure.Figure]
) -> None:
    true = np.array([1.0, 2.0, 3.0, np.nan])
    panels = {
        ("rlm", "fpga_latency_ms"): (true, true * 2),
        ("gnn", "fpga_latency_ms"): (true, -true),
        ("rlm", "flops"): (true, true),
    }
    plot_kendall(tmp_path / "kendall.png", panels)
    titles = [axes.get_title() for axes in figures[0].axes if axes.get_visible()]
    assert titles == ["rlm   τ = 1.000", "gnn   τ = -1.000", "rlm   τ = 1.000"]


def test_rank_maps_have_the_best_at_the_lower_left(
    tmp_path: Path, figures: list[matplotlib.figure.Figure]
) -> None:
    accuracy = np.arange(100.0)
    panels = {
        "right": (accuracy, accuracy),
        "worst": (accuracy, -accuracy),
        "no idea": (accuracy, np.zeros(100)),
    }
    plot_ranks(tmp_path / "ranks.png", panels, "my_accuracy", bins=10)
    maps = (np.asarray(axes.images[0].get_array()) for axes in figures[0].axes[:3])
    right, worst, no_idea = maps
    assert np.array_equal(right, 10 * np.eye(10)), (
        "all of a tenth is in one cell of ten: ten times what chance has"
    )
    assert np.array_equal(worst, 10 * np.eye(10)[::-1])
    assert [axes.get_title() for axes in figures[0].axes[:3]] == [
        "right   τ = 1.000", "worst   τ = -1.000", "no idea   τ = 0.000",
    ]  # fmt: skip
    assert no_idea.sum() == 100
    best_found = (
        np.where(accuracy > 89, accuracy, 0.0),
        accuracy,
    )  # the best ten alone are told apart
    for metric, corner in (("my_accuracy", (0, 0)), ("my_latency_ms", (9, 9))):
        plot_ranks(tmp_path / "ranks.png", {"a": best_found}, metric, bins=10)
        assert np.asarray(figures[-1].axes[0].images[0].get_array())[corner] == 10


def test_a_figure_that_cannot_be_written_is_named_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"a\.png: cannot be written"):
        plot_hypervolume(tmp_path / "file" / "a.png", {"a": np.ones((1, 3))})
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_searches_that_draw_at_the_same_time_in_one_folder_leave_whole_figures(
    tmp_path: Path,
) -> None:
    """The second one draws the figure that the first one has drawn but not yet moved into place."""
    path, begun = tmp_path / "a.png", matplotlib.figure.Figure.savefig

    def while_another_draws(figure: matplotlib.figure.Figure, file: Path, **options: Any) -> None:
        begun(figure, file, **options)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(matplotlib.figure.Figure, "savefig", begun)
            plot_hypervolume(path, {"b": np.ones((1, 3))})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(matplotlib.figure.Figure, "savefig", while_another_draws)
        plot_hypervolume(path, {"a": np.ones((1, 3))})
    assert matplotlib.image.imread(path).ndim == 3
    assert [file.name for file in tmp_path.iterdir()] == ["a.png"]


def test_numbers_below_an_axis_of_predictions_do_not_overlap(
    figures: list[matplotlib.figure.Figure], tmp_path: Path
) -> None:
    """Latencies that differ in their fourth digit, as those of two predicted networks."""
    latency = np.array([[0.0075, 0.005, 0.01278], [0.0142, 0.004, 0.01418]])
    accuracy = np.array([[29.0, 80.0, 49.7], [77.0, 15.0, 90.5]])
    path = tmp_path / "predicted.png"
    plot_predicted(path, {"digits_accuracy": accuracy, "cpu_latency_ms": latency})
    for axes in figures[0].axes:
        low, high = sorted(axes.get_xlim())
        boxes = [
            tick.label1.get_window_extent()
            for tick in axes.xaxis.get_major_ticks()
            if low <= tick.get_loc() <= high
        ]
        boxes.sort(key=lambda box: box.x0)
        assert len(boxes) > 1
        assert all(left.x1 < right.x0 for left, right in itertools.pairwise(boxes))
