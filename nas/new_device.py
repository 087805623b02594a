"""Predicts latencies of a new device from a few measurements and from latencies on known
devices.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np

from predictors import Predictor

RATIO = "ratio_ms"  # metric: log ratio of the new device's latency to a known device's
MAX_DEVICES = 24  # known devices, those whose ratio to the new one varies least
MIN_VARIANCE = 1e-6  # of log ratios; measurements repeat to about a thousandth


def relative_samples(
    model: Predictor,
    texts: Sequence[str],
    values: np.ndarray,
    known: np.ndarray,
    asked: Sequence[str],
    known_asked: np.ndarray,
    samples: int = 64,
    seed: int = 0,
) -> np.ndarray:
    """Sample the latencies of q networks on a new device.

    The model learns the ratio to a known device, from the text and from the ratios between known
    devices. Ratios vary much less than latencies: two GPUs may differ by less than a tenth, over
    networks that differ a thousandfold. Each known device is the base once. Samples are geometric
    means over the bases, weighted by the inverse variances of the measured ratios.

    Args:
        model: predicts the ratios. Its own examples are not changed.
        texts: n networks that were measured on the new device.
        values: (n,) positive latencies on the new device.
        known: (n, d) positive latencies on d ≥ 1 known devices.
        asked: texts of the q networks.
        known_asked: (q, d) latencies on the known devices, or sorted samples (q, d, samples) if
            these are predicted. Their uncertainty then adds to that of the new device.
        samples: number of samples per network.
        seed: of the samples.

    Returns:
        (q, samples) latencies in the unit of `values`, sorted for each network.
    """
    sampled = np.log(
        known_asked if known_asked.ndim == 3 else known_asked[:, :, None]
    )  # (q, d, samples or 1)
    logs, logs_asked, target = np.log(known), np.median(sampled, 2), np.log(values)
    variance = np.maximum((target[:, None] - logs).var(0), MIN_VARIANCE)
    kept = np.sort(np.argsort(variance, kind="stable")[:MAX_DEVICES])
    logs, logs_asked, sampled, inverse = (
        logs[:, kept],
        logs_asked[:, kept],
        sampled[:, kept],
        1 / variance[kept],
    )
    drawn = np.zeros((len(asked), samples))
    for base, weight in enumerate(inverse / inverse.sum()):
        examples, queries = _covariates(logs, logs_asked, base)
        ratio = target - logs[:, base]
        center = np.median(ratio)  # of signed numbers: the model takes positive ones for latencies
        fitted = copy.copy(model).fit(texts, {RATIO: ratio - center, **examples})
        ratios = fitted.predict(asked, [RATIO], given=queries, samples=samples, seed=seed).samples[
            :, :, 0
        ]
        drawn += weight * (sampled[:, base] + center + np.sort(ratios, 1))
    return np.exp(drawn)


def _covariates(
    logs: np.ndarray, asked: np.ndarray, base: int
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Covariates of examples (n, d) and queries (q, d): value of the base and ratios to it.

    All have median 0 and variance 1.
    """
    # 1. The base's own values, and the logarithms of ratios to it.                (n + q, d)
    rows = np.concatenate([logs, asked])
    is_base = np.arange(rows.shape[1]) == base
    columns = np.where(is_base, rows, rows - rows[:, [base]])

    # 2. Median 0, variance 1.
    spread = columns.std(0)
    centred = columns - np.median(columns, 0)
    scaled = centred / np.where(spread > 0, spread, 1.0)

    # 3. Examples and queries apart.
    of_examples, of_queries = {}, {}
    for j, column in enumerate(scaled.T):
        name = f"known{j}_ms"
        of_examples[name] = column[: len(logs)]
        of_queries[name] = column[len(logs) :]
    return of_examples, of_queries
