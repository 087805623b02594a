"""What an evaluation leaves in its trial beside the objectives: learning curve, further values, trained weights."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from nas.searching import optuna_adapter

if TYPE_CHECKING:
    from pathlib import Path

    import optuna

    from nas.searching.weights import WeightFolder, Weights

EPOCH_KEY = "nas:epoch:"  # trial user attribute, with the epoch's number: values by metric after this epoch
FURTHER_KEY = "nas:further"  # trial user attribute: values by metric that no objective asked for, such as test scores
SPREAD_KEY = (
    "nas:spread"  # trial user attribute: low and high value by metric, and what they are, where it was repeated
)
WEIGHTS_KEY = "nas:weights"  # trial user attribute: path of the file with the trained weights, where they were written


class TrialRecord:
    """Writes into one running trial of a search. weights: where weights are kept; None: nowhere."""

    def __init__(self, study: optuna.Study, trial: optuna.Trial, weights: WeightFolder | None) -> None:
        self.study, self.trial, self.weights = study, trial, weights

    def report(self, epoch: int, metrics: Mapping[str, float]) -> bool:
        """Record values after an epoch; False where one is not finite, since the training has diverged.

        They are the user attribute `nas:epoch:N` of the trial. The first is also the trial's intermediate value of this
        step, which Optuna's plots read.
        """
        values = {name: float(value) for name, value in metrics.items()}
        self.trial.set_user_attr(f"{EPOCH_KEY}{epoch}", values)
        if values and math.isfinite(first := next(iter(values.values()))):
            optuna_adapter.set_intermediate_value(self.study, self.trial, epoch, first)
        return all(map(math.isfinite, values.values()))

    def spread(self, spreads: Mapping[str, tuple[float, float, str]]) -> None:
        """Keep between which values measurements lie, by metric: low, high, and what these are."""
        if spreads:
            known = self.trial.user_attrs.get(SPREAD_KEY, {})
            self.trial.set_user_attr(SPREAD_KEY, known | {metric: list(spread) for metric, spread in spreads.items()})

    def keep(self, further: Mapping[str, float], weights: Weights | None = None) -> Path | None:
        """Keep values that are no objectives, and trained weights, or a copy of their file; its path."""
        if finite := {name: value for name, value in further.items() if math.isfinite(value)}:
            self.trial.set_user_attr(FURTHER_KEY, finite)
        if weights is None or self.weights is None:
            return None
        path = self.weights.write(self.trial.number, weights)
        self.trial.set_user_attr(WEIGHTS_KEY, str(path))
        return path
