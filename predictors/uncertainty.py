"""The uncertainty of samples: noise per text, errors that are correlated between metrics, and
calibrated intervals.

Noise depends on text and seed, not on the position of the text in a batch. Intervals are calibrated
for groups, such as families, without training examples (conformal calibration). Sizes in comments: n
texts, s samples, m metrics.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from scipy.special import ndtri

from predictors.base import Predictor, rows_by_pattern
from predictors.metrics import EXACT, conditioning_costs
from predictors.transforms import TargetTransform

FOLDS = 5
COVERAGE = 0.9  # nominal coverage of the central interval
MIN_EXAMPLES = 8
SAMPLES = 64
MIN_HALF_WIDTH = 1e-3  # of an interval, in z
MIN_EIGENVALUE = 1e-6  # of an estimated correlation matrix
MAX_OBSERVED_ERROR = 2.0  # standard deviations: real errors have heavier tails than normal ones


# --- noise per text


def text_noise(
    texts: Sequence[str],
    samples: int,
    metrics: int,
    seed: Sequence[int],
) -> np.ndarray:
    """Standard normal noise (n, s, m), independent between texts and metrics.

    The samples of one text and metric are the quantiles of the normal distribution in random order.
    They sum to zero, so the mean of the samples is free of noise.

    Args:
        texts: n texts; equal texts get equal noise.
        samples: samples per text.
        metrics: number of metrics.
        seed: integers that seed the generator together with the text.
    """
    middles = (np.arange(samples) + 0.5) / samples  # (s,) of equal parts of the distribution
    levels = ndtri(middles)
    levels /= levels.std() or 1.0
    rows = np.tile(levels, (metrics, 1))  # (m, s)

    def draw(rng: np.random.Generator) -> np.ndarray:
        return rng.permuted(rows, axis=1)

    noise = np.array(draw_by_text(texts, seed, draw))
    noise = noise.reshape(len(texts), metrics, samples)
    return noise.transpose(0, 2, 1)


def draw_by_text(
    texts: Sequence[str],
    seed: Sequence[int],
    draw: Callable[[np.random.Generator], np.ndarray],
) -> list[np.ndarray]:
    """A random array per text, drawn by a generator that text and seed determine."""
    drawn = {}
    for text in set(texts):
        seed_of_text = zlib.crc32(text.encode())
        rng = np.random.default_rng([*seed, seed_of_text])
        drawn[text] = draw(rng)
    return [drawn[text] for text in texts]


# --- correlated errors


def conditional_errors(
    covariance: np.ndarray,
    observed: np.ndarray,
    noise: np.ndarray,
) -> np.ndarray:
    """Draw errors from a joint normal distribution, conditioned on observed errors.

    Args:
        covariance: (m, m) of the errors.
        observed: (n, s or 1, m), NaN where not observed; the pattern of NaN is the same for all
            samples of a row. Errors are clipped to `MAX_OBSERVED_ERROR`.
        noise: (n, s, m), standard normal.

    Returns:
        (n, s, m) errors, 0 where the error is observed.
    """
    deviations = np.sqrt(np.diag(covariance))  # (m,)
    limit = MAX_OBSERVED_ERROR * deviations
    observed = np.clip(observed, -limit, limit)
    errors = np.zeros_like(noise)

    # Rows that lack the same metrics are drawn together.
    is_missing = np.isnan(observed[:, 0])  # (n, m)
    for rows, free in rows_by_pattern(is_missing):
        fixed = ~free
        # 1. The blocks of the covariance: f free metrics and k observed ones.
        across = covariance[np.ix_(free, fixed)]  # (f, k)
        of_fixed = covariance[np.ix_(fixed, fixed)]  # (k, k)
        of_free = covariance[np.ix_(free, free)]  # (f, f)

        # 2. Mean and spread of the free errors, given the observed ones.
        weights = np.linalg.solve(of_fixed, across.T).T  # (f, k)
        spread = _square_root(of_free - weights @ across.T)  # (f, f)
        of_rows = observed[rows][:, :, fixed]  # (rows, s or 1, k)
        mean = of_rows @ weights.T  # (rows, s or 1, f)

        # 3. A draw.
        standard = noise[rows][:, :, free]  # (rows, s, f)
        drawn = np.zeros((len(rows), *noise.shape[1:]))
        drawn[:, :, free] = mean + standard @ spread.T
        errors[rows] = drawn
    return errors


def _square_root(covariance: np.ndarray, least: float = 0.0) -> np.ndarray:
    """A with A Aᵀ = covariance.

    Eigenvalues, which rounding can make negative, are raised to at least `least`.
    """
    values, vectors = np.linalg.eigh(covariance)
    return vectors * np.sqrt(np.maximum(values, least))


def second_moments(errors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sums (m, m) of the products of errors (n, m), and the number (m, m) of pairs in each sum.

    Errors are NaN where missing.
    """
    is_present = ~np.isnan(errors)
    filled = np.where(is_present, errors, 0.0)
    sums = filled.T @ filled
    counts = is_present.T.astype(float) @ is_present
    return sums, counts


def shrink_correlation(correlation: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Shrink estimated correlations towards 0 by the size that chance alone explains.

    This is the positive-part James-Stein estimator.

    Args:
        correlation: (m, m) estimates.
        counts: (m, m) number of pairs behind each estimate.

    Returns:
        (m, m) positive definite correlation matrix.
    """
    # 1. The share of each correlation that chance does not explain.                       (m, m)
    by_chance = 1 / np.maximum(counts, 1)  # expected square of a correlation of independent errors
    squares = np.maximum(correlation**2, 1e-12)
    kept = np.maximum(0.0, 1 - by_chance / squares)
    np.fill_diagonal(kept, 1.0)

    # 2. A factor with rows of length 1 makes a correlation matrix of any estimates.       (m, m)
    factor = _square_root(correlation * kept, MIN_EIGENVALUE)
    factor /= np.linalg.norm(factor, axis=1, keepdims=True)
    return factor @ factor.T


# --- calibrated intervals

FitRows = Callable[[np.ndarray, Sequence[str]], Predictor]
"""Fits a predictor of some metrics to the examples with the given row numbers."""


def widen(samples: np.ndarray, factor: float) -> np.ndarray:
    """Samples (n, s) with their distances from the medians multiplied by `factor`."""
    median = np.median(samples, 1, keepdims=True)
    return median + factor * (samples - median)


def widening_factors(
    fit_rows: FitRows,
    texts: Sequence[str],
    values: Mapping[str, np.ndarray],
    groups: np.ndarray,
    seed: int = 0,
) -> dict[str, float]:
    """Factors by which `widen` must widen the samples of each metric for networks of new groups.

    Cross-conformal calibration: groups are split into `FOLDS`, and each fold is predicted from the
    others. With its factor, the central interval of nominal coverage `COVERAGE` covers that share
    of the left-out values. Distances are measured in z. Exact costs that are known of all examples
    of a device metric are given to it, as in predictions of new networks.

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
    shuffled = np.random.default_rng(seed).permutation(count)
    fold_of_group = shuffled % FOLDS
    folds = fold_of_group[groups]  # (n,)
    factors = {}
    for name in values:
        factors[name] = 1.0
        if name not in EXACT:
            factors[name] = _factor(
                fit_rows,
                texts,
                name,
                values,
                folds=folds,
                seed=seed,
            )
    return factors


def _factor(
    fit_rows: FitRows,
    texts: Sequence[str],
    name: str,
    values: Mapping[str, np.ndarray],
    folds: np.ndarray,
    seed: int,
) -> float:
    """The factor of one metric."""
    column = values[name]
    is_known = ~np.isnan(column)
    transform = TargetTransform.fit(column[is_known], by_rank=True)

    # 1. Costs that are known wherever the metric is condition its predictions.
    costs = []
    for cost in conditioning_costs(name, values):
        if not np.isnan(values[cost][is_known]).any():
            costs.append(cost)

    # 2. Predict each fold from the others, and compare with its values in z.
    distances = [np.zeros(0)]
    for fold in range(FOLDS):
        learned = np.flatnonzero(is_known & (folds != fold))
        left_out = np.flatnonzero(is_known & (folds == fold))
        if len(learned) < MIN_EXAMPLES or not len(left_out):
            continue
        predictor = fit_rows(learned, [name, *costs])
        predicted = predictor.predict(
            [texts[i] for i in left_out.tolist()],
            [name],
            given={cost: values[cost][left_out] for cost in costs},
            samples=SAMPLES,
            seed=seed,
        )
        samples = transform.to_z(predicted.samples[:, :, 0])  # (n, s)
        true = transform.to_z(column[left_out])  # (n,)
        distances.append(_distances(samples, true))

    # 3. The distance within which the share `COVERAGE` of them are.
    all_distances = np.concatenate(distances)
    if len(all_distances) < MIN_EXAMPLES:
        return 1.0
    return max(1.0, float(np.quantile(all_distances, COVERAGE)))


def _distances(samples: np.ndarray, true: np.ndarray) -> np.ndarray:
    """Distances (n,) of true values from the medians of samples (n, s).

    The unit is the half width of the interval on that side.
    """
    outside = (1 - COVERAGE) / 2
    levels = [outside, 0.5, (1 + COVERAGE) / 2]
    # Samples are the middles of equal parts of the distribution: Hazen's plotting positions.
    low, median, high = np.quantile(samples, levels, axis=1, method="hazen")
    half_width = np.where(true > median, high - median, median - low)
    return np.abs(true - median) / np.maximum(half_width, MIN_HALF_WIDTH)
