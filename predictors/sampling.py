"""Base class of the predictors of this package: one implementation of all that surrounds the
drawing of samples.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np

from predictors.base import Predictions, Predictor
from predictors.exact import with_exact_costs
from predictors.inputs import Inputs, Metrics, check_request
from search_spaces.common.errors import InputError


class SamplingPredictor(Predictor):
    """A predictor whose `_draw` gets a checked request; given values and exact costs then replace
    drawn values.
    """

    _metrics: tuple[str, ...] = ()

    @property
    def metrics(self) -> tuple[str, ...]:
        return self._metrics

    def predict(
        self,
        architectures: Inputs,
        metrics: Sequence[str],
        given: Metrics | None = None,
        samples: int = 64,
        seed: int = 0,
    ) -> Predictions:
        known = check_request(self, architectures, metrics, given, samples)
        drawn = self._draw(architectures, metrics, known, samples, seed)
        if not self.reads_choices:  # params and FLOPs do not follow from choices alone
            drawn = with_exact_costs(architectures, metrics, drawn)
        for column, name in enumerate(metrics):
            if name in known:
                there = ~np.isnan(known[name])
                drawn[there, :, column] = known[name][there, None]
        return Predictions.of_samples(metrics, drawn)

    @abstractmethod
    def _draw(
        self,
        architectures: Inputs,
        metrics: Sequence[str],
        known: dict[str, np.ndarray],
        samples: int,
        seed: int,
    ) -> np.ndarray:
        """Samples (n, samples, m), conditioned on known values (n,) per metric, NaN where
        unknown.
        """

    def _config(self) -> dict[str, Any]:
        """The configuration that the checkpoints of all trained predictors share."""
        if not self.metrics:
            raise InputError(f"the {self.kind} predictor is not trained: there is nothing to save")
        return {"seed": self.seed, "metrics": list(self.metrics)}
