"""Samples predictions of metrics, with exact costs of networks as conditions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from predictors import Predictor
from predictors.exact import exact_costs
from predictors.metrics import EXACT, Metric


def draw(
    model: Predictor,
    texts: Sequence[str],
    metrics: Sequence[str],
    given: Mapping[str, np.ndarray] | None = None,
    samples: int = 64,
    seed: int = 0,
) -> dict[str, np.ndarray]:
    """Sample predictions of n networks.

    If the model was fitted to parameters or FLOPs, device metrics are conditioned on their exact counts. Accuracies are
    not, because that ranks worse. The two kinds are then sampled separately.

    Args:
        model: a fitted predictor.
        texts: of the n networks.
        metrics: names to predict.
        given: known values (n,) by metric, NaN where unknown.
        samples: per network.
        seed: of the samples.

    Returns:
        Samples (n, samples) by metric.
    """
    learned = [name for name in EXACT if name in model.metrics]
    devices = [name for name in metrics if Metric.parse(name).kind == "measured"] if learned else []
    costs = {name: np.array(values) for name, values in exact_costs(texts, learned).items()} if devices else {}
    found: dict[str, np.ndarray] = {}
    for names, further in (([name for name in metrics if name not in devices], {}), (devices, costs)):
        if names:
            known = {**(given or {}), **further}
            predicted = model.predict(texts, names, given=known or None, samples=samples, seed=seed)
            found |= {name: predicted.samples[:, :, j] for j, name in enumerate(names)}
    return found
