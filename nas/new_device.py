"""A new device's latencies from a few measurements, with the same networks' latencies on other devices known."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np

from predictors import Predictor

RATIO = "ratio_ms"  # of the new device to a known one, as a logarithm
MAX_DEVICES = 24  # known ones: those whose ratios to the new one vary least
MIN_VARIANCE = 1e-6  # of logarithms: a thousandth is what measurements repeat to


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
    """Samples (q, samples) of a new device's values for q networks, in order for each network.

    What is learned is the ratio to a known device, from all ratios between known devices and from the text: two GPUs
    may differ by less than a tenth, over networks that differ a thousandfold. Each known device is the base once, and
    samples are geometric means over the bases, whose weights are the inverse variances of the measured ratios.

    Args:
        model: whose way of predicting is used; its own examples stay as they are.
        texts: of the n networks that were measured on the new device.
        values: (n,), positive, of the new device.
        known: (n, d), positive, of d other devices, d at least 1.
        asked: texts of the q networks.
        known_asked: (q, d) of the other devices, or samples (q, d, samples) in order, where these are predicted, too:
            the new device is then as uncertain as they are together.
        samples: of each network.
        seed: of the samples.
    """
    sampled = np.log(known_asked if known_asked.ndim == 3 else known_asked[:, :, None])  # (q, d, samples or 1)
    logs, logs_asked, target = np.log(known), np.median(sampled, 2), np.log(values)
    variance = np.maximum((target[:, None] - logs).var(0), MIN_VARIANCE)
    kept = np.sort(np.argsort(variance, kind="stable")[:MAX_DEVICES])
    logs, logs_asked, sampled, inverse = logs[:, kept], logs_asked[:, kept], sampled[:, kept], 1 / variance[kept]
    drawn = np.zeros((len(asked), samples))
    for base, weight in enumerate(inverse / inverse.sum()):
        examples, queries = _covariates(logs, logs_asked, base)
        ratios = {RATIO: target - logs[:, base]}
        fitted = copy.copy(model).fit(texts, {**ratios, **examples})
        found = fitted.predict(asked, [RATIO], given=queries, samples=samples, seed=seed).samples[:, :, 0]
        drawn += weight * (sampled[:, base] + np.sort(found, 1))
    return np.exp(drawn)


def _covariates(logs: np.ndarray, asked: np.ndarray, base: int) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Of examples (n, d) and queries (q, d): the base's value, and the others' ratios to it, all of unit variance."""
    rows = np.concatenate([logs, asked])
    columns = np.where(np.arange(rows.shape[1]) == base, rows, rows - rows[:, [base]])
    spread = columns.std(0)
    columns = columns / np.where(spread > 0, spread, 1.0)
    named = {f"known{j}_ms": column for j, column in enumerate(columns.T)}
    return {k: v[: len(logs)] for k, v in named.items()}, {k: v[len(logs) :] for k, v in named.items()}
