"""Predicts latencies of a new device from a few measurements and from latencies on known
devices.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np
from scipy.optimize import nnls

from predictors import Predictor

RATIO = "ratio_ms"  # metric: log ratio of the new device's latency to a known device's
MAX_DEVICES = 24  # known devices, those whose ratio to the new one varies least
MIN_VARIANCE = 1e-6  # of log ratios; measurements repeat to about a thousandth
# Penalty of the weights of an additive model, in relative errors: it decides between equal fits only
PENALTY = 0.1


def relative_samples(
    model: Predictor,
    texts: Sequence[str],
    values: np.ndarray,
    known: np.ndarray,
    query_texts: Sequence[str],
    query_known: np.ndarray,
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
        query_texts: texts of the q networks.
        query_known: (q, d) latencies on the known devices, or sorted samples (q, d, samples) if
            these are predicted. Their uncertainty then adds to that of the new device.
        samples: number of samples per network.
        seed: of the samples.

    Returns:
        (q, samples) latencies in the unit of `values`, sorted for each network.
    """
    # 1. Logarithms: of examples on the known devices (n, d) and on the new one (n,), and of
    #    queries (q, d, samples or 1) and their medians (q, d).
    logs = np.log(known)
    target = np.log(values)
    sampled = np.log(query_known if query_known.ndim == 3 else query_known[:, :, None])
    query_logs = np.median(sampled, 2)

    # 2. The devices whose ratios to the new one vary least, weighted by the inverse variance.
    variance = np.maximum((target[:, None] - logs).var(0), MIN_VARIANCE)
    kept = np.sort(np.argsort(variance, kind="stable")[:MAX_DEVICES])
    logs = logs[:, kept]
    query_logs = query_logs[:, kept]
    sampled = sampled[:, kept]
    inverse = 1 / variance[kept]
    weights = inverse / inverse.sum()

    # 3. The mean over the bases.                                                (q, samples)
    drawn = np.zeros((len(query_texts), samples))
    for base, weight in enumerate(weights):
        examples, queries = _covariates(logs, query_logs, base)
        ratio = target - logs[:, base]
        center = np.median(ratio)  # of signed numbers: the model takes positive ones for latencies
        fitted = copy.copy(model).fit(texts, {RATIO: ratio - center, **examples})
        predicted = fitted.predict(query_texts, [RATIO], given=queries, samples=samples, seed=seed)
        ratios = np.sort(predicted.samples[:, :, 0], 1)
        drawn += weight * (sampled[:, base] + center + ratios)
    return np.exp(drawn)


def _covariates(
    logs: np.ndarray, query_logs: np.ndarray, base: int
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Covariates of examples (n, d) and queries (q, d): value of the base and ratios to it.

    All have median 0 and variance 1.
    """
    # 1. The base's own values, and the logarithms of ratios to it.                (n + q, d)
    rows = np.concatenate([logs, query_logs])
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


# --- with costs that are counted


def samples_with_costs(
    model: Predictor,
    texts: Sequence[str],
    values: np.ndarray,
    known: np.ndarray,
    costs: np.ndarray,
    query_texts: Sequence[str],
    query_known: np.ndarray,
    query_costs: np.ndarray,
    samples: int = 64,
    seed: int = 0,
) -> np.ndarray:
    """As `relative_samples`, with counted costs of the networks, such as FLOPs and operators.

    A device's time is nearly a sum: so much per operator, per FLOP, per byte. An additive model of
    latencies on the known devices and of costs (`additive_latency`) is one more known device, to
    which the model learns the ratio. Its own prediction and the model's have the same weight.

    Args:
        model, texts, values, known, query_texts, query_known, samples, seed: see
            `relative_samples`; `query_known` is (q, d).
        costs: (n, k) counts of the n networks.
        query_costs: (q, k) counts of the q networks.

    Returns:
        (q, samples) latencies in the unit of `values`, sorted for each network.
    """
    # 1. Parts of the sum: latencies, costs, and a constant.           (n, d + k + 1), (q, d + k + 1)
    parts = np.hstack([known, costs, np.ones((len(known), 1))])
    query_parts = np.hstack([query_known, query_costs, np.ones((len(query_known), 1))])

    # 2. Latencies by the additive model. It has seen the examples: theirs are of models without
    #    them, so that the ratios are as uncertain as those of the queries.
    others = [np.arange(len(values)) != i for i in range(len(values))]
    left_out = [
        additive_latency(parts[rows], values[rows], parts[[i]])[0] for i, rows in enumerate(others)
    ]
    query_added = additive_latency(parts, values, query_parts)  # (q,)

    # 3. The ratio to all devices, this one among them.                               (q, samples)
    drawn = relative_samples(
        model,
        texts,
        values,
        np.column_stack([known, left_out]),
        query_texts,
        np.column_stack([query_known, query_added]),
        samples,
        seed,
    )
    return np.sqrt(drawn * query_added[:, None])


def additive_latency(parts: np.ndarray, values: np.ndarray, query_parts: np.ndarray) -> np.ndarray:
    """Latencies as a weighted sum of non-negative parts, with weights that are not negative.

    The weights minimize the squares of the relative errors.

    Args:
        parts: (n, k) parts of the n networks that were measured.
        values: (n,) their positive latencies.
        query_parts: (q, k) parts of further networks.

    Returns:
        (q,) latencies in the unit of `values`.
    """
    # 1. A typical part is worth a typical latency, so that the penalty treats all parts alike.
    typical = np.vstack([parts, query_parts]).mean(axis=0)  # (k,)
    scale = np.where(typical > 0, typical, 1.0) / np.median(values)

    # 2. Least squares of the relative errors, and of the penalty.            (n + k, k), (n + k,)
    relative = parts / scale / values[:, None]
    inputs = np.vstack([relative, PENALTY * np.eye(len(scale))])
    targets = np.concatenate([np.ones(len(values)), np.zeros(len(scale))])
    weights, _ = nnls(inputs, targets)

    # 3. The median of the ratios is 1, which few outliers change.
    center = np.median(values / (parts / scale @ weights))
    return center * (query_parts / scale @ weights)
