"""Ranks networks by measured values where available, and by predictions elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from nas.sampling import draw
from nas.searching.objectives import Constraint, to_losses
from nas.searching.pareto import non_dominated
from predictors import Predictor
from predictors.exact import exact_costs
from predictors.metrics import EXACT, Metric
from search_spaces.common.errors import unknown


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
        order: (n,) indices from the best on: the front by its first objective, then the others by `front`.
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
    names = tuple(dict.fromkeys([*(o.name for o in objectives), *(c.metric for c in constraints)]))
    check_metrics(model, objectives, constraints)
    exact = exact_costs(texts, names)
    known = {name: values for name, values in model.examples_of(texts).items() if name in names and name not in exact}
    predicted = [name for name in names if name not in exact and name not in (drawn or {})]
    given = {**(measured or {}), **{name: known[name] for name in predicted}}
    by_name = draw(model, texts, predicted, given, samples, seed)
    by_name |= {name: np.repeat(np.array(values)[:, None], samples, 1) for name, values in exact.items()}
    by_name |= {name: _with(known[name], values) for name, values in (drawn or {}).items() if name in names}
    joint = np.stack([by_name[name] for name in names], 2)
    is_known = np.stack([~np.isnan(known.get(name, np.zeros(len(texts)))) for name in names], 1)
    order = np.random.default_rng(seed).permuted(np.tile(np.arange(samples), (len(texts), 1)), axis=1)
    joint = np.take_along_axis(joint, order[:, :, None], 1)  # samples of different networks are independent
    return _ranked(names, joint, is_known, objectives, constraints)


def _with(known: np.ndarray, drawn: np.ndarray) -> np.ndarray:
    """Samples (n, s), replaced by known values (n,) where these are not NaN."""
    return np.where(np.isnan(known)[:, None], drawn, known[:, None])


def check_metrics(model: Predictor, objectives: Sequence[Metric], constraints: Sequence[Constraint]) -> None:
    """Raise InputError for a metric that is neither predicted by the model nor exact."""
    for name in [*(o.name for o in objectives), *(c.metric for c in constraints)]:
        if name not in EXACT and name not in model.metrics:
            raise unknown("metric", name, [*model.metrics, *EXACT])


def covariates(
    model: Predictor, texts: Sequence[str], metrics: Sequence[str], samples: int = 64, seed: int = 0
) -> dict[str, np.ndarray]:
    """Sorted samples (n, samples) of metrics that are covariates of a new device.

    All samples of a measured value are equal. Other values are predicted, each metric separately.
    """
    known = model.examples_of(texts) if metrics else {}
    drawn = {name: draw(model, texts, [name], None, samples, seed)[name] for name in metrics}
    return {name: np.sort(_with(known[name], values), 1) for name, values in drawn.items()}


def _ranked(
    names: tuple[str, ...],
    samples: np.ndarray,
    measured: np.ndarray,
    objectives: Sequence[Metric],
    constraints: Sequence[Constraint],
) -> Ranking:
    count = len(objectives)
    keeps = np.ones(samples.shape[:2], bool)
    medians = np.median(samples, 1)
    keeps_median = np.ones(len(samples), bool)
    for constraint in constraints:
        column = names.index(constraint.metric)
        keeps &= constraint.violation(samples[:, :, column]) <= 0
        keeps_median &= constraint.violation(medians[:, column]) <= 0
    losses = np.where(keeps[:, :, None], to_losses(samples[:, :, :count], objectives), np.nan)
    front = np.mean([non_dominated(losses[:, s]) for s in range(samples.shape[1])], axis=0)
    loss = to_losses(medians[:, :count], objectives)
    on_front = non_dominated(np.where(keeps_median[:, None], loss, np.nan))
    order = np.lexsort((loss[:, 0], np.where(on_front, 0.0, -front), ~on_front))
    return Ranking(names, samples, measured, keeps.mean(1), front, on_front, order)
