"""Samples of metrics where a network's exact costs are known: `nas predict` and `nas rank` take this way."""

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
    """Samples (n, samples) of each metric.

    What a device needs is conditioned on parameters and multiply-accumulates, if the model was fitted to these, too:
    they are counted in each network. Accuracies are not, since they rank worse so; the two are then sampled apart.
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
