"""Variants of the RLM for ablations. A plug-in's name is its file and class.

`nas compare --predictors rlm,experiments/variants.py:FineTuned …`, the same with `FittedKernels`,
and `experiments.pareto --only rlm,rlm-independent`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from predictors import Predictions
from predictors.base import Inputs, Metrics
from predictors.rlm.predictor import RLM

STEPS = 60  # of fine-tuning, half a minute with 100 examples on one core
KERNEL_STEPS = 30  # half a minute with 500 examples on one core


class FineTuned(RLM):
    """The RLM with a `fit` that first trains encoder, reader and decoder on the examples."""

    def __init__(self, seed: int = 0, steps: int = STEPS, **options: Any) -> None:
        super().__init__(seed, steps=steps, **options)


class FittedKernels(RLM):
    """The RLM with a `fit` that fits the kernels of the reader to the examples.

    It does so by their marginal likelihood.
    """

    def __init__(self, seed: int = 0, kernel_steps: int = KERNEL_STEPS, **options: Any) -> None:
        super().__init__(seed, kernel_steps=kernel_steps, **options)


class Independent(RLM):
    """The RLM with independent samples.

    Each metric keeps its distribution, but not its relation to the others.
    """

    def predict(
        self,
        architectures: Inputs,
        metrics: Sequence[str],
        given: Metrics | None = None,
        samples: int = 64,
        seed: int = 0,
    ) -> Predictions:
        """As `RLM.predict`, with each metric's samples in a random order.

        All networks share this order.
        """
        joint = super().predict(architectures, metrics, given, samples, seed)
        rng = np.random.default_rng((self.seed, seed))
        columns = [joint.samples[:, rng.permutation(samples), j] for j in range(len(metrics))]
        return Predictions.of_samples(metrics, np.stack(columns, 2))
