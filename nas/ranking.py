"""Ranks networks that exist, such as those of timm and one's own, for a device: by measured values
where there are some, and by predictions elsewhere.

    1. The networks are read as texts.
    2. The user's own measurements become further examples of the checkpoint. A device that the
       checkpoint does not know is predicted from the devices that it knows (`nas.evaluation.new_device`).
    3. Joint samples of all metrics give each network's probability of being on the Pareto front.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from nas.benchmarks.csv_file import parse_csv, read_bytes
from nas.evaluation.devices import quantiles
from nas.evaluation.new_device import relative_samples
from nas.networks import matching, network_text
from nas.sampling import draw
from nas.search.objectives import (
    Constraint,
    ConstraintsLike,
    ObjectivesLike,
    metric_names,
    parse_constraints,
    parse_objectives,
    to_losses,
)
from nas.search.pareto import non_dominated
from predictors import Predictor
from predictors.features import exact_costs
from predictors.metrics import EXACT, Metric
from predictors.registry import load, load_trained
from search_spaces.common.errors import InputError, unknown
from search_spaces.common.progress import Progress

if TYPE_CHECKING:
    import pandas as pd

MIN_MEASURED = 3  # networks measured on a new device; fewer give no estimate of the spread
# Share of these networks that a known device must have, too, to be a covariate of the new one
MIN_SHARED = 0.5


class RankedNetworks(NamedTuple):
    """Networks in their order, the best first.

    Attributes:
        networks: a dictionary per network: `network`, `front` (True if its medians are on the front
            of the feasible networks), `front_probability`, by metric `median`, `low` and `high` (90
            % interval) and `measured`, `constraints_kept` (probability), and `novelty`
            (`Predictor.novelty`; None without a prediction).
        not_read: for each network that a pattern matched and that could not be read, the reason.
    """

    networks: list[dict[str, Any]]
    not_read: list[str]

    @property
    def table(self) -> pd.DataFrame:
        """One row per network.

        It has the name, the probability of the front, and of each metric the median and 90 %
        interval.
        """
        import pandas as pd

        rows = []
        for network in self.networks:
            row = {name: value for name, value in network.items() if not isinstance(value, dict)}
            for name, value in network.items():
                if isinstance(value, dict):
                    row |= {
                        name: value["median"],
                        f"{name}_low": value["low"],
                        f"{name}_high": value["high"],
                    }
            rows.append(row)
        return pd.DataFrame(rows)


def rank_networks(
    networks: Sequence[str],
    *,
    checkpoint: str,
    objectives: ObjectivesLike,
    constraints: ConstraintsLike = None,
    measured: str | Path | None = None,
    samples: int = 64,
    seed: int = 0,
    progress: Progress | None = None,
) -> RankedNetworks:
    """Rank networks for a device, with uncertainty.

    Example: three networks by an accuracy that a saved predictor knows, and by their weights.

        >>> import nas, tempfile
        >>> from pathlib import Path
        >>> table = nas.load_benchmark("digits201")
        >>> texts = [table.space.to_text(network) for network in table.architectures[:43]]
        >>> accuracies = table.values("digits_accuracy")[:40]
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     model = nas.RLM().fit(texts[:40], {"digits_accuracy": accuracies})
        ...     model.save(f"{folder}/model")
        ...     files = [f"{folder}/{i}.txt" for i in range(3)]
        ...     for file, text in zip(files, texts[40:]):
        ...         _ = Path(file).write_text(text)
        ...     ranked = nas.rank(files, checkpoint=f"{folder}/model", objectives="digits_accuracy,params")
        >>> len(ranked.networks)  # the most probable network of the front first
        3

    Args:
        networks: sources of networks, such as `"timm:resnet*"`, `"net.onnx"` or `"mine.py:build"`.
        checkpoint: folder or name of a predictor with examples, such as `"rlm-zoo"`.
        objectives: see `nas.Problem`; metrics of the checkpoint, of `measured`, params and flops.
        constraints: see `nas.Problem`.
        measured: CSV file of your own measurements: a column `network` and one per metric. For an
            RLM.
        samples: joint samples per network.
        seed: of the samples.
        progress: called with a network, the number that was read and the total.

    Raises:
        InputError: a metric is not known, a network that is named without a pattern cannot be read,
            or `measured` is malformed or too small.
    """
    goals = parse_objectives(objectives)
    bounds = parse_constraints(constraints)
    model = load(checkpoint) if measured is not None else load_trained(checkpoint)
    own = None if measured is None else _own_measurements(Path(measured))
    known_devices = [] if own is None else _extend(model, own)
    check_metrics(model, goals, bounds)

    # 1. Read the networks.
    sources = list(dict.fromkeys(source for pattern in networks for source in matching(pattern)))
    texts, names, not_read = [], [], []
    for i, source in enumerate(sources):
        try:
            texts.append(network_text(source))
            names.append(source)
        except InputError as error:
            if source in networks:
                raise
            not_read.append(str(error))
        if progress:
            progress(source, i + 1, len(sources))
    if not texts:
        raise InputError(f"none of the networks could be read; the first: {not_read[0]}")

    # 2. Latencies on known devices are covariates of those on a new one.
    others = covariates(model, texts, known_devices, samples, seed)
    given = {name: np.median(values, 1) for name, values in others.items()}
    drawn = (
        _of_new_devices(model, own, texts, others, samples, seed)
        if own is not None and others
        else None
    )

    # 3. Rank.
    ranking = rank(model, texts, goals, bounds, given, samples, seed, drawn)
    predicted = [name for name in ranking.metrics if name in model.metrics and name not in EXACT]
    novelty = model.novelty(texts, predicted)
    rows = [_row(ranking, i, names[i], float(novelty[i])) for i in ranking.order]
    return RankedNetworks(rows, not_read)


def _row(ranking: Ranking, i: int, name: str, novelty: float) -> dict[str, Any]:
    """One network of `RankedNetworks.networks`."""
    row: dict[str, Any] = {
        "network": name,
        "front": bool(ranking.on_front[i]),
        "front_probability": float(ranking.front[i]),
    }
    for j, metric in enumerate(ranking.metrics):
        values = ranking.samples[i, :, j]
        low, median, high = quantiles(values[None], [0.05, 0.5, 0.95])[:, 0].tolist()
        row[metric] = {
            "median": median,
            "low": low,
            "high": high,
            "measured": bool(ranking.measured[i, j]),
        }
    return {
        **row,
        "constraints_kept": float(ranking.kept[i]),
        "novelty": None if novelty != novelty else novelty,
    }


# --- the user's own measurements


class OwnMeasurements(NamedTuple):
    """Texts of n networks, and columns (n,) with NaN for missing values."""

    texts: list[str]
    columns: dict[str, np.ndarray]


def _own_measurements(path: Path) -> OwnMeasurements:
    """Read the CSV file. Raises InputError that names the line."""
    table = parse_csv(read_bytes(path), path, ("network",))
    texts: list[str] = []
    for line, source in zip(table.lines, table.archs, strict=True):
        try:
            text = network_text(source)
        except InputError as error:
            raise InputError(f"{path}, line {line}: {error}") from error
        if text in texts:
            raise InputError(
                f"{path}, line {line}: {source} is measured above: keep one row, or their means"
            )
        texts.append(text)
    for name, values in table.columns.items():
        if Metric.parse(name).unit not in ("", "%") and (wrong := np.flatnonzero(values <= 0)).size:
            line, value = table.lines[wrong[0]], values[wrong[0]]
            raise InputError(
                f"{path}, line {line}: {name} is {value:g}, which is not a positive number"
            )
    return OwnMeasurements(texts, dict(table.columns))


def _extend(model: Predictor, own: OwnMeasurements) -> list[str]:
    """Add the user's measurements to the examples.

    Returns the device metrics that can be covariates of a new device.
    """
    before = model.examples_of(own.texts)
    for name, values in own.columns.items():
        count = int((~np.isnan(values)).sum())
        if name not in before and count < MIN_MEASURED:
            raise InputError(
                f"--measured: the checkpoint does not know {name}, and {count} values are too "
                f"few: give at least {MIN_MEASURED}, or better ten"
            )
    model.extend(own.texts, own.columns)
    if all(name in before for name in own.columns):
        return []

    def is_covariate(name: str, values: np.ndarray) -> bool:
        shared = float(np.mean(~np.isnan(values)))
        return (
            name not in own.columns
            and Metric.parse(name).kind == "measured"
            and shared >= MIN_SHARED
        )

    return [name for name, values in before.items() if is_covariate(name, values)]


def _of_new_devices(
    model: Predictor,
    own: OwnMeasurements,
    texts: list[str],
    others: dict[str, np.ndarray],
    samples: int,
    seed: int,
) -> dict[str, np.ndarray]:
    """Samples (n, samples) of each metric of a new device.

    `others` has samples of known devices for the same n networks.
    """
    of_own = covariates(model, own.texts, list(others), samples, seed)
    known = np.stack([np.median(values, 1) for values in of_own.values()], 1)
    query_latencies = np.stack(list(others.values()), 1)
    drawn = {}
    for name, values in own.columns.items():
        rows = np.flatnonzero(~np.isnan(values))
        if (
            name not in others
            and Metric.parse(name).kind == "measured"
            and (values[rows] > 0).all()
        ):
            measured = [own.texts[i] for i in rows]
            drawn[name] = relative_samples(
                model, measured, values[rows], known[rows], texts, query_latencies, samples, seed
            )
    return drawn


# --- ranking by joint samples


@dataclass(frozen=True)
class Ranking:
    """A ranking of n networks by m metrics.

    Attributes:
        metrics: objectives, then further constrained metrics.
        samples: (n, s, m) in the metrics' own units.
        measured: (n, m) True where a value was measured, or is an exact count.
        kept: (n,) probability that all constraints are satisfied.
        front: (n,) probability of being on the front of the feasible networks.
        on_front: (n,) True if the medians are on that front.
        order: (n,) indices from the best on: the front by its first objective, then the others by
            `front`.
    """

    metrics: tuple[str, ...]
    samples: np.ndarray
    measured: np.ndarray
    kept: np.ndarray
    front: np.ndarray
    on_front: np.ndarray
    order: np.ndarray


def rank(
    model: Predictor,
    texts: Sequence[str],
    objectives: Sequence[Metric],
    constraints: Sequence[Constraint] = (),
    measured: Mapping[str, np.ndarray] | None = None,
    samples: int = 64,
    seed: int = 0,
    drawn: Mapping[str, np.ndarray] | None = None,
) -> Ranking:
    """Rank networks by objectives under constraints.

    Args:
        model: a predictor with examples.
        texts: of the n networks.
        objectives: metrics to optimize.
        constraints: bounds to satisfy.
        measured: further metrics (n,) that condition the predictions, NaN where unknown.
        samples: joint samples per network.
        seed: of the samples.
        drawn: samples (n, samples) of metrics that the model does not predict itself.

    Raises:
        InputError: a metric is neither predicted nor exact.
    """
    names = metric_names(objectives, constraints)
    check_metrics(model, objectives, constraints)
    exact = exact_costs(texts, names)
    known = {
        name: values
        for name, values in model.examples_of(texts).items()
        if name in names and name not in exact
    }
    predicted = [name for name in names if name not in exact and name not in (drawn or {})]
    given = {**(measured or {}), **{name: known[name] for name in predicted}}
    by_name = draw(model, texts, predicted, given, samples, seed)
    by_name |= {
        name: np.repeat(np.array(values)[:, None], samples, 1) for name, values in exact.items()
    }
    by_name |= {
        name: _with(known[name], values) for name, values in (drawn or {}).items() if name in names
    }
    joint = np.stack([by_name[name] for name in names], 2)
    is_known = np.stack([~np.isnan(known.get(name, np.zeros(len(texts)))) for name in names], 1)
    order = np.random.default_rng(seed).permuted(
        np.tile(np.arange(samples), (len(texts), 1)), axis=1
    )
    # Samples of different networks are independent
    joint = np.take_along_axis(joint, order[:, :, None], 1)
    return _ranked(names, joint, is_known, objectives, constraints)


def _with(known: np.ndarray, drawn: np.ndarray) -> np.ndarray:
    """Samples (n, s), replaced by known values (n,) where these are not NaN."""
    return np.where(np.isnan(known)[:, None], drawn, known[:, None])


def check_metrics(
    model: Predictor, objectives: Sequence[Metric], constraints: Sequence[Constraint]
) -> None:
    """Raise InputError for a metric that is neither predicted by the model nor exact."""
    for name in metric_names(objectives, constraints):
        if name not in EXACT and name not in model.metrics:
            raise unknown("metric", name, [*model.metrics, *EXACT])


def covariates(
    model: Predictor, texts: Sequence[str], metrics: Sequence[str], samples: int = 64, seed: int = 0
) -> dict[str, np.ndarray]:
    """Sorted samples (n, samples) of metrics that are covariates of a new device.

    All samples of a measured value are equal. Other values are predicted, each metric separately.
    """
    if not metrics:
        return {}
    measured = model.examples_of(texts)  # (n,) per metric, NaN where unknown
    by_metric = {}
    for name in metrics:
        drawn = draw(model, texts, [name], None, samples, seed)[name]  # (n, samples)
        by_metric[name] = np.sort(_with(measured[name], drawn), 1)
    return by_metric


def _ranked(
    names: tuple[str, ...],
    samples: np.ndarray,
    measured: np.ndarray,
    objectives: Sequence[Metric],
    constraints: Sequence[Constraint],
) -> Ranking:
    count = len(objectives)
    medians = np.median(samples, 1)  # (n, M)

    # 1. Which samples, and which medians, keep the constraints.                (n, s) and (n,)
    keeps = np.ones(samples.shape[:2], bool)
    keeps_median = np.ones(len(samples), bool)
    for constraint in constraints:
        column = names.index(constraint.metric)
        keeps &= constraint.violation(samples[:, :, column]) <= 0
        keeps_median &= constraint.violation(medians[:, column]) <= 0

    # 2. The share of samples in which a network is on the front.                          (n,)
    losses = to_losses(samples[:, :, :count], objectives)  # (n, s, m)
    kept_losses = np.where(keeps[:, :, None], losses, np.nan)
    on_fronts = [non_dominated(kept_losses[:, s]) for s in range(samples.shape[1])]
    front = np.mean(on_fronts, axis=0)

    # 3. First the front of the medians, by the first objective; then the others by that share.
    loss = to_losses(medians[:, :count], objectives)  # (n, m)
    on_front = non_dominated(np.where(keeps_median[:, None], loss, np.nan))
    by_share = np.where(on_front, 0.0, -front)
    order = np.lexsort((loss[:, 0], by_share, ~on_front))
    return Ranking(names, samples, measured, keeps.mean(1), front, on_front, order)
