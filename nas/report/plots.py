"""Figures: Pareto fronts, hypervolume against evaluations, predicted against true values."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from nas.evaluation.runtimes import RUNTIME_METRICS, RUNTIMES
from nas.search.objectives import to_losses
from nas.search.pareto import non_dominated
from predictors.metrics import Metric
from search_spaces.common.files import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from nas.comparison.studies import Studies

# Palette of Okabe and Ito, which colour-blind readers can tell apart; black is reserved for the
# truth.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")  # one more than colours: styles do not repeat
_LINES = ("-", "--", "-.", ":")
_CLOUD: dict[str, Any] = {
    "s": 5,
    "c": "#B4BAC2",
    "alpha": 0.35,
    "linewidths": 0,
    "rasterized": True,
}
_TRUTH: dict[str, Any] = {"color": "black", "linewidth": 1.3, "linestyle": (0, (4, 2))}
_STYLE: Any = {
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": "#E8E8E8",
    "legend.frameon": False,
    "savefig.dpi": 200,
    "svg.fonttype": "none",
    "svg.hashsalt": "rlm-nas",
}
_METADATA: dict[str, dict[str, Any]] = {".svg": {"Date": None}}  # equal figures give equal files
_UNITS = {"percent": "%"} | {
    unit.lower(): unit.replace("u", "µ")
    for unit in (
        "ns",
        "us",
        "ms",
        "s",
        "nJ",
        "uJ",
        "mJ",
        "J",
        "mW",
        "W",
        "kB",
        "KiB",
        "MB",
        "MiB",
        "GB",
        "GiB",
    )
}
_WORDS = {
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "imagenet16": "ImageNet16",
    "flops": "FLOPs",
} | {word: word.upper() for word in ("fpga", "cpu", "gpu", "onnx")}


def metric_label(metric: str, prefix: str = "", unit: str = "") -> str:
    """Axis label with the unit.

    That of `cifar10_validation_accuracy` is `CIFAR-10 validation accuracy (%)`.

    Args:
        metric: name of the metric.
        prefix: words before it.
        unit: the metric's unit, if its name does not say it.
    """
    # 1. A runtime has its own name, as it writes it.
    title = ""
    quantity = metric
    if metric in RUNTIME_METRICS:
        runtime, quantity = RUNTIME_METRICS[metric]
        title = RUNTIMES[runtime].title

    # 2. The last word may be a unit, unless it stands behind "per".
    *words, last = quantity.split("_")
    is_divisor = not words or words[-1] == "per"
    of_name = None if is_divisor else _UNITS.get(last.lower())
    if of_name is None:
        words.append(last)
        of_name = unit or ("%" if "accuracy" in words else "")

    # 3. The words, with the names of data sets as they are written.
    spelled = [_WORDS.get(word, word) for word in words]
    label = " ".join([*prefix.split(), *title.split(), *spelled])
    behind = f" ({of_name})" if of_name else ""
    if title and not prefix:
        return label + behind
    return label[:1].upper() + label[1:] + behind


def _with_arrow(metric: Metric) -> str:
    """Label of an axis, with ↑ if more is better and ↓ if less is."""
    arrow = "↑" if metric.direction == "maximize" else "↓"
    return f"{metric_label(metric.name, unit=metric.unit)} {arrow}"


# --- the figures of searches


def plot_studies(folder: Path, studies: Studies, kind: str = "png") -> list[Path]:
    """Write the figures `hypervolume`, `pareto` or `parallel`, and `predicted`.

    `pareto` is for two objectives, `parallel` for more. `predicted` needs a first search with a
    predictor.

    Args:
        folder: for the figures.
        studies: the searches.
        kind: "png", "svg" or "pdf".

    Returns:
        The paths of the figures.
    """
    objectives = studies.objectives
    paths = [folder / f"hypervolume.{kind}"]
    yardstick = "best front found" if studies.benchmark is None else "true front"
    plot_hypervolume(paths[0], studies.curves(), yardstick)
    if studies.front_networks and len(objectives) == 2:
        paths.append(folder / f"pareto.{kind}")
        _plot_study_fronts(paths[-1], studies)
    if studies.front_networks and len(objectives) > 2:
        paths.append(folder / f"parallel.{kind}")
        plot_parallel(paths[-1], _values_of_rows(studies.front_rows, objectives), objectives)
    if predicted := studies.first.predicted:
        paths.append(folder / f"predicted.{kind}")
        plot_predicted(paths[-1], predicted)
    return paths


def _plot_study_fronts(path: Path, studies: Studies) -> None:
    """Plot the front of every search, and the table's values and true front if there is one."""
    objectives = studies.objectives
    fronts = {}
    for name, results in studies.results.items():
        fronts[name] = [_values_of_rows(result.front_rows, objectives) for result in results]
    if studies.benchmark is None:
        plot_front(path, None, None, fronts, objectives)
        return
    columns = [studies.benchmark.values(objective.name) for objective in objectives]
    signs = [objective.sign for objective in objectives]
    true_front = studies.reference.true_front * signs
    plot_front(path, np.stack(columns, axis=1), true_front, fronts, objectives)


def _values_of_rows(rows: Sequence[Mapping[str, Any]], objectives: Sequence[Metric]) -> np.ndarray:
    """Objective values (k, m) of the k rows of a front."""
    values = [[row[objective.name] for objective in objectives] for row in rows]
    return np.array(values, dtype=float).reshape(-1, len(objectives))


# --- single figures


def plot_front(
    path: str | Path,
    table_values: np.ndarray | None,
    true_front: np.ndarray | None,
    fronts: Mapping[str, Sequence[np.ndarray]],
    objectives: Sequence[Metric],
) -> None:
    """Plot the front of each search, and the true front if it is known.

    All values are in the metrics' own units. The view shows the true front if it is known, else the
    fronts found.

    Args:
        path: of the figure.
        table_values: (n, 2) values of the whole table, drawn as a grey cloud; None without a table.
        true_front: (k, 2) values of the true front; None if it is unknown.
        fronts: for each sampler, values (n, 2) of one search per seed, of which the non-dominated
            ones are drawn, the first sampler's on top.
        objectives: the two metrics.
    """
    with _figure(path, (6.0, 4.8)) as figure:
        axes = figure.subplots()

        # 1. The table: all of its networks and the true front, which decides what is in view.
        shown = [_front(values, objectives) for seeds in fronts.values() for values in seeds]
        if table_values is not None:
            axes.scatter(table_values[:, 0], table_values[:, 1], **_CLOUD, label="all networks")
        if true_front is not None:
            shown = [_front(true_front, objectives)]
            axes.plot(*_staircase(shown[0], objectives), **_TRUTH, zorder=4, label="true front")

        # 2. The front of each search: points, and the border of what they dominate.
        dots: dict[str, Any] = {
            "linestyle": "",
            "markersize": 5.5,
            "markeredgecolor": "white",
            "markeredgewidth": 0.5,
        }
        for i, (name, seeds) in enumerate(fronts.items()):
            look: dict[str, Any] = {
                "color": _COLOURS[i % len(_COLOURS)],
                "zorder": 3 - i / len(fronts),
            }
            marker = _MARKERS[i % len(_MARKERS)]
            for seed, values in enumerate(seeds):
                front = _front(values, objectives)
                label = "" if seed else name  # one entry of the legend for all seeds
                axes.plot(*_staircase(front, objectives), **look, linewidth=1, alpha=0.5)
                axes.plot(*front.T, **look, **dots, marker=marker, label=label)
        points = [front for front in shown if len(front)]
        if points:
            _zoom(axes, *_span(np.concatenate(points)))
        axes.set_xlabel(_with_arrow(objectives[0]))
        axes.set_ylabel(_with_arrow(objectives[1]))
        _legend(figure, axes)


def plot_hypervolume(
    path: str | Path,
    curves: Mapping[str, np.ndarray],
    yardstick: str = "true front",
    unit: str = "True evaluations",
) -> None:
    """Plot the hypervolume ratio over evaluations or cost.

    The line is the mean over seeds, with a band of ± one standard deviation.

    Args:
        path: of the figure.
        curves: for each sampler, ratios (seeds, n) of `nas.search.pareto.Reference.curve`.
        yardstick: name of the front whose ratio is 1.
        unit: label of the horizontal axis.
    """
    with _figure(path, (6.0, 4.4)) as figure:
        axes = figure.subplots()
        for i, (name, ratios) in enumerate(curves.items()):
            evaluations = np.arange(1, ratios.shape[1] + 1)
            mean = ratios.mean(axis=0)
            std = ratios.std(axis=0)
            colour = _COLOURS[i % len(_COLOURS)]
            line = _LINES[i % len(_LINES)]
            look: dict[str, Any] = {"color": colour, "zorder": 3 - i / len(curves)}
            # A hypervolume stays until an evaluation improves it.
            steps: dict[str, Any] = {"drawstyle": "steps-post"} if len(ratios) == 1 else {}
            axes.plot(evaluations, mean, **look, **steps, linestyle=line, linewidth=1.8, label=name)
            band = (mean - std, np.minimum(mean + std, 1))
            axes.fill_between(evaluations, *band, **look, alpha=0.13, linewidth=0)
        axes.axhline(1, **_TRUTH, label=yardstick)
        # Every search starts near 0; the view begins where curves begin to differ.
        starts = []
        for ratios in curves.values():
            first_part = ratios.shape[1] // 20
            starts.append(float(ratios.mean(axis=0)[first_part]))
        start = min(starts, default=0.0)
        axes.set_ylim(max(0.0, start - 0.05), 1.01)
        axes.set_xlim(0, max((ratios.shape[1] for ratios in curves.values()), default=1))
        axes.set_xlabel(unit)
        axes.set_ylabel(f"Hypervolume / that of the {yardstick}")
        _legend(figure, axes)


def plot_learning_curves(path: str | Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Plot Kendall's τ over the number of training architectures.

    The band is ± one standard deviation.

    Args:
        path: of the figure.
        rows: from `nas.comparison.compare.Compared.rows`.
    """
    with _figure(path, (5.6, 4.2)) as figure:
        axes = figure.subplots()
        names = dict.fromkeys(row["predictor"] for row in rows)
        for i, name in enumerate(names):
            of_predictor = [row for row in rows if row["predictor"] == name]
            of_predictor.sort(key=lambda row: row["size"])
            sizes = np.array([row["size"] for row in of_predictor])
            tau = np.array([row["tau"] for row in of_predictor])
            std = np.array([row["tau_std"] for row in of_predictor])
            colour = _COLOURS[i % len(_COLOURS)]
            axes.plot(
                sizes,
                tau,
                color=colour,
                linestyle=_LINES[i % len(_LINES)],
                marker=_MARKERS[i % len(_MARKERS)],
                markersize=5,
                linewidth=1.8,
                label=name,
            )
            axes.fill_between(sizes, tau - std, tau + std, color=colour, alpha=0.13, linewidth=0)
        ticks = sorted({row["size"] for row in rows})
        axes.set_xscale("log")
        axes.set_xticks(ticks, [f"{size:,}" for size in ticks])
        axes.minorticks_off()
        axes.set_xlabel("Architectures trained on")
        axes.set_ylabel("Kendall's τ on all others")
        _legend(figure, axes)


def plot_scores(
    path: str | Path, scores: Mapping[str, Mapping[str, Mapping[str, float]]], label: str
) -> None:
    """Plot means ± one standard deviation, with a mark per row at each column.

    Args:
        path: of the figure.
        scores: scores[row][column] has `mean` and `std`. Rows may lack columns.
        label: of the vertical axis.
    """
    columns = list(dict.fromkeys(column for row in scores.values() for column in row))
    with _figure(path, (1.1 * len(columns) + 1.2, 4.2)) as figure:
        axes = figure.subplots()
        for i, (name, row) in enumerate(scores.items()):
            # The marks of a column stand side by side within 70 % of its width.
            offset = 0.7 * ((i + 0.5) / len(scores) - 0.5)
            axes.errorbar(
                [columns.index(column) + offset for column in row],
                [cell["mean"] for cell in row.values()],
                [cell["std"] for cell in row.values()],
                color=_COLOURS[i % len(_COLOURS)],
                fmt=_MARKERS[i % len(_MARKERS)],
                markersize=5,
                elinewidth=1.2,
                label=name,
            )
        axes.set_xticks(
            range(len(columns)), columns, rotation=30 if len(columns) > 6 else 0, ha="center"
        )
        axes.grid(visible=False, axis="x")
        for border in range(1, len(columns)):
            axes.axvline(border - 0.5, color="#E8E8E8", linewidth=0.8)
        axes.set_xlim(-0.5, len(columns) - 0.5)
        axes.set_ylabel(label)
        _legend(figure, axes)


def plot_kendall(
    path: str | Path, panels: Mapping[tuple[str, str], tuple[np.ndarray, np.ndarray]]
) -> None:
    """Plot predicted against true values, one panel per predictor and metric.

    Kendall's τ is in the panel's title. All predictors of a metric share a view, which omits the
    outermost 2 % of values on each side. τ covers all pairs.

    Args:
        path: of the figure.
        panels: by (predictor, metric), true and predicted values (n,) in the metric's own unit.
            Pairs with NaN are omitted.
    """
    from scipy.stats import kendalltau

    predictors = list(dict.fromkeys(predictor for predictor, _ in panels))
    metrics = list(dict.fromkeys(metric for _, metric in panels))
    with _figure(path, (2.7 * len(predictors) + 0.3, 2.75 * len(metrics)), "compressed") as figure:
        grid = figure.subplots(len(metrics), len(predictors), squeeze=False)
        for axes in grid.flat:
            axes.set_visible(False)
        for (predictor, metric), (true, predicted) in panels.items():
            column = predictors.index(predictor)
            axes = grid[metrics.index(metric), column]
            axes.set_visible(True)

            # 1. Points; many are smaller and paler, to show their density.
            is_complete = np.isfinite(true) & np.isfinite(predicted)
            pairs = np.stack([true[is_complete], predicted[is_complete]], axis=1)  # (n, 2)
            sparsity = min(1.0, 1000 / max(1, len(pairs)))
            look: dict[str, Any] = {"c": _COLOURS[column % len(_COLOURS)], "linewidths": 0}
            look |= {"s": 6 * sparsity**0.4, "alpha": max(0.08, 0.3 * sparsity)}
            axes.scatter(*pairs.T, **look, rasterized=True)

            # 2. The view of the metric's row.
            row = [pair for (_, other), pair in panels.items() if other == metric]
            values = np.concatenate([np.concatenate(pair) for pair in row])
            low, high = np.nanquantile(values, [0.02, 0.98])
            axes.axline((low, low), slope=1, **_TRUTH)
            _zoom(axes, np.array([low, low]), np.array([high, high]))
            axes.set_aspect("equal")
            tau = np.nan_to_num(kendalltau(*pairs.T).statistic)
            axes.set_title(f"{predictor}   τ = {tau:.3f}")
            axes.set_xlabel(metric_label(metric, "true"), fontsize=8)
            axes.set_ylabel(metric_label(metric, "predicted"), fontsize=8)


def plot_ranks(
    path: str | Path,
    panels: Mapping[str, tuple[np.ndarray, np.ndarray]],
    metric: str,
    bins: int = 20,
) -> None:
    """Plot predicted against true ranks as a heat map, one panel per predictor.

    Kendall's τ is in the panel's title. Ranks are in % of all networks, with the best at the lower
    left. Colour is the number of networks in a cell, in multiples of the number for a random
    ranking.

    Args:
        path: of the figure.
        panels: for each predictor, true values of `metric` (n,) and predictions (n,).
        metric: in the syntax of `Metric.parse`, which gives the direction.
        bins: cells per axis.
    """
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import PowerNorm
    from scipy.stats import kendalltau, rankdata

    sign = Metric.parse(metric).sign
    maps = {}
    for name, (true, predicted) in panels.items():
        true_ranks = 100 * (rankdata(sign * true) - 0.5) / len(true)  # (n,), in %
        predicted_ranks = 100 * (rankdata(sign * predicted) - 0.5) / len(predicted)
        edges = np.linspace(0, 100, bins + 1)
        counts, _, _ = np.histogram2d(true_ranks, predicted_ranks, bins=[edges, edges])
        maps[name] = counts * bins**2 / len(true)
    norm = PowerNorm(0.5, 0, max(float(np.quantile(counts, 0.995)) for counts in maps.values()))
    with _figure(path, (2.7 * len(panels) + 0.9, 3.4), "compressed") as figure:
        grid = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
        for axes, (name, counts) in zip(grid, maps.items(), strict=True):
            axes.imshow(counts.T, cmap="Blues", norm=norm, origin="lower", extent=(0, 100, 0, 100))
            axes.axline((0, 0), slope=1, **_TRUTH)
            axes.grid(visible=False)
            axes.set_xticks(range(0, 100, 20))
            tau = np.nan_to_num(kendalltau(*panels[name]).statistic)
            axes.set_title(f"{name}   τ = {tau:.3f}")
            axes.set_xlabel("True rank (%, best first)", fontsize=8)
        grid[0].set_ylabel("Predicted rank (%, best first)", fontsize=8)
        bar = figure.colorbar(ScalarMappable(norm, "Blues"), ax=grid, extend="max", aspect=30)
        bar.set_label("Networks, in multiples of chance", fontsize=8)


def plot_predicted(path: str | Path, panels: Mapping[str, np.ndarray]) -> None:
    """Plot predictions of a search for its evaluated networks against measured values.

    Bars are ± one standard deviation.

    Args:
        path: of the figure.
        panels: for each metric (n, 3): predicted mean, its standard deviation and measured value,
            in the metric's unit.
    """
    columns = min(2, len(panels))
    rows = math.ceil(len(panels) / columns)
    with _figure(path, (3.4 * columns + 0.2, 3.1 * rows)) as figure:
        grid = figure.subplots(rows, columns, squeeze=False).ravel()
        for axes in grid[len(panels) :]:
            axes.set_visible(False)
        for axes, (metric, values) in zip(grid, panels.items(), strict=False):
            mean, std, measured = values.T
            look: dict[str, Any] = {"color": _COLOURS[0], "alpha": 0.7}
            axes.errorbar(
                measured, mean, std, **look, fmt="o", markersize=3, elinewidth=0.7, linewidth=0
            )
            axes.axline((measured[0], measured[0]), slope=1, **_TRUTH)
            axes.locator_params(axis="x", nbins=3)  # numbers of many digits, side by side
            axes.set_xlabel(metric_label(metric, "measured"))
            axes.set_ylabel(metric_label(metric, "predicted"))


def plot_parallel(path: str | Path, front: np.ndarray, objectives: Sequence[Metric]) -> None:
    """Plot a front (k, m) of many objectives in parallel coordinates.

    A network is a line; up is better on each axis.
    """
    losses = to_losses(front, objectives)
    low = losses.min(axis=0)
    high = losses.max(axis=0)
    heights = 1 - (losses - low) / np.where(high > low, high - low, 1.0)
    with _figure(path, (1.4 * len(objectives) + 1, 3.8)) as figure:
        axes = figure.subplots()
        axes.grid(visible=False)
        worse, better = np.array_split(np.argsort(heights[:, 0]), [len(heights) // 2])
        by = f"better half by {metric_label(objectives[0].name).partition(' (')[0]}"
        for rows, colour, label in ((better, _COLOURS[0], by), (worse, _COLOURS[1], "other half")):
            for row in rows:
                axes.plot(
                    heights[row],
                    color=colour,
                    alpha=0.6,
                    linewidth=1.2,
                    label=label if row == rows[0] else None,
                )
        for column, objective in enumerate(objectives):
            axes.axvline(column, color="black", linewidth=0.8)
            for height, loss in ((1.03, low[column]), (-0.09, high[column])):
                value = loss * objective.sign
                shown = f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.4g}"
                axes.annotate(shown, (column, height), ha="center", annotation_clip=False)
        axes.set_xticks(
            range(len(objectives)), [metric_label(o.name).replace(" (", "\n(") for o in objectives]
        )
        axes.tick_params(axis="x", pad=18, length=0)
        axes.set_yticks([])
        axes.set_ylabel("better →")
        axes.spines[:].set_visible(False)
        axes.set_ylim(-0.02, 1.02)
        _legend(figure, axes)


def _front(values: np.ndarray, objectives: Sequence[Metric]) -> np.ndarray:
    """The distinct non-dominated rows of values (n, 2), sorted by the first objective."""
    is_best = non_dominated(to_losses(values, objectives))  # (n,)
    return np.unique(values[is_best], axis=0)


def _staircase(front: np.ndarray, objectives: Sequence[Metric]) -> np.ndarray:
    """Corners (2, 2k-1) of the border of the region that a front (k, 2) dominates."""
    best_first = front[np.argsort(front[:, 0] * objectives[0].sign)]
    # Each step goes along the first axis before it goes along the second.
    x = np.repeat(best_first[:, 0], 2)[1:]
    y = np.repeat(best_first[:, 1], 2)[:-1]
    return np.stack([x, y])


def _span(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Lowest and highest values (2,) of points (n, 2)."""
    return points.min(axis=0), points.max(axis=0)


def _zoom(axes: Axes, low: np.ndarray, high: np.ndarray) -> None:
    """Show the rectangle between two corners (2,), with a margin."""
    without_width = np.where(high != 0, np.abs(high), 1.0)
    margin = 0.08 * np.where(high > low, high - low, without_width)
    axes.set_xlim(low[0] - margin[0], high[0] + margin[0])
    axes.set_ylim(low[1] - margin[1], high[1] + margin[1])


def _legend(figure: Figure, axes: Axes) -> None:
    """Add a legend above the axes, where it covers no data and fits narrow screens."""
    handles, labels = axes.get_legend_handles_labels()
    # Up to four columns, of similar length.
    columns = 1
    if labels:
        lines = math.ceil(len(labels) / 4)
        columns = math.ceil(len(labels) / lines)
    place: dict[str, Any] = {"loc": "outside upper left", "ncols": columns, "columnspacing": 1.2}
    legend = figure.legend(handles, labels, **place, markerscale=1.3)
    for handle in legend.legend_handles:
        if handle is not None:
            handle.set_alpha(1)


@contextmanager
def _figure(
    path: str | Path,
    size: tuple[float, float],
    layout: Literal["constrained", "compressed"] = "constrained",
) -> Iterator[Figure]:
    """Create a figure in the common style, and write it atomically to `path` at the end.

    Layout "compressed" is for panels of a fixed aspect ratio, whose titles "constrained" may cut.
    """
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    path = Path(path)
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=size, layout=layout)
        FigureCanvasAgg(figure)
        yield figure
        look: dict[str, Any] = {
            "transparent": path.suffix == ".svg",
            "metadata": _METADATA.get(path.suffix),
        }
        with replacing(path) as file:
            figure.savefig(file, format=path.suffix[1:], **look)
