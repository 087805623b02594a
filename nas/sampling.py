"""Samples predictions of metrics, with exact costs of networks as conditions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from predictors import Predictor
from predictors.features import exact_costs
from predictors.metrics import conditioning_costs


def draw(
    model: Predictor,
    texts: Sequence[str],
    metrics: Sequence[str],
    given: Mapping[str, np.ndarray] | None = None,
    samples: int = 64,
    seed: int = 0,
) -> dict[str, np.ndarray]:
    """Sample predictions of n networks.

    If the model was fitted to parameters or FLOPs, device metrics are conditioned on their exact
    counts. Accuracies are not, because that ranks worse. The two kinds are then sampled separately.

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
    devices = [name for name in metrics if conditioning_costs(name, model.metrics)]
    counted = exact_costs(texts, model.metrics) if devices else {}
    costs = {name: np.array(values) for name, values in counted.items()}
    drawn: dict[str, np.ndarray] = {}
    for names, further in (
        ([name for name in metrics if name not in devices], {}),
        (devices, costs),
    ):
        if names:
            known = {**(given or {}), **further}
            predicted = model.predict(texts, names, given=known or None, samples=samples, seed=seed)
            drawn |= {name: predicted.samples[:, :, j] for j, name in enumerate(names)}
    return drawn
