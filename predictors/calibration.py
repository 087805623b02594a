"""Conformal calibration of prediction intervals for groups, such as families, without training
examples.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from predictors.base import Predictor
from predictors.exact import conditioning_costs
from predictors.metrics import EXACT
from predictors.scores import Scores

FOLDS = 5
COVERAGE = 0.9  # nominal coverage of the central interval
MIN_EXAMPLES = 8
SAMPLES = 64
MIN_HALF_WIDTH = 1e-3  # of an interval, in normal scores

FitRows = Callable[[np.ndarray, Sequence[str]], Predictor]
"""Fits a predictor of some metrics to the examples with the given row numbers."""


def widening_factors(
    fit_rows: FitRows,
    texts: Sequence[str],
    values: Mapping[str, np.ndarray],
    groups: np.ndarray,
    seed: int = 0,
) -> dict[str, float]:
    """Factors by which `widen` must widen the samples of each metric to cover networks of new
    groups.

    Cross-conformal calibration: groups are split into `FOLDS`, and each fold is predicted from the
    others. With its factor, the central interval of nominal coverage `COVERAGE` covers that share
    of the left-out values. Distances are measured in normal scores. Exact costs that are known of
    all examples of a device metric are given to it, as in predictions of new networks.

    Args:
        fit_rows: fits a predictor to a part of the examples.
        texts: texts of the n examples.
        values: (n,) per metric, NaN where missing.
        groups: (n,) group number, from 0, of each example.
        seed: seed of the folds and samples.

    Returns:
        A factor per metric, at least 1; 1 if fewer than `MIN_EXAMPLES` values could be predicted,
        and for exact costs.
    """
    count = int(groups.max()) + 1
    fold = (np.random.default_rng(seed).permutation(count) % FOLDS)[groups]
    return {
        name: 1.0 if name in EXACT else _factor(fit_rows, texts, name, values, fold, seed)
        for name in values
    }


def _factor(
    fit_rows: FitRows,
    texts: Sequence[str],
    name: str,
    values: Mapping[str, np.ndarray],
    fold: np.ndarray,
    seed: int,
) -> float:
    column = values[name]
    known = ~np.isnan(column)
    costs = [
        cost for cost in conditioning_costs(name, values) if not np.isnan(values[cost][known]).any()
    ]
    scale = Scores.fit(column[known], by_rank=True)
    ratios = [np.zeros(0)]
    for k in range(FOLDS):
        learned, left_out = (
            np.flatnonzero(known & (fold != k)),
            np.flatnonzero(known & (fold == k)).tolist(),
        )
        if len(learned) < MIN_EXAMPLES or not len(left_out):
            continue
        given = {cost: values[cost][left_out] for cost in costs}
        fitted = fit_rows(learned, [name, *costs])
        predicted = fitted.predict(
            [texts[i] for i in left_out], [name], given=given, samples=SAMPLES, seed=seed
        )
        ratios.append(
            _distances(
                scale.normalize(predicted.samples[:, :, 0]), scale.normalize(column[left_out])
            )
        )
    found = np.concatenate(ratios)
    return max(1.0, float(np.quantile(found, COVERAGE))) if len(found) >= MIN_EXAMPLES else 1.0


def _distances(samples: np.ndarray, true: np.ndarray) -> np.ndarray:
    """Distances (n,) of true values from the medians of samples (n, s), in half widths of the
    interval on that side.
    """
    levels = [(1 - COVERAGE) / 2, 0.5, (1 + COVERAGE) / 2]
    low, median, high = np.quantile(
        samples, levels, axis=1, method="hazen"
    )  # samples are middles of equal parts
    half = np.where(true > median, high - median, median - low)
    return np.abs(true - median) / np.maximum(half, MIN_HALF_WIDTH)


def widen(samples: np.ndarray, factor: float) -> np.ndarray:
    """Samples (n, s) with their distances from the medians multiplied by `factor`."""
    median = np.median(samples, 1, keepdims=True)
    return median + factor * (samples - median)
