"""Gaussian processes of scikit-learn: on features of the text, and on one-hot choices."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any, ClassVar

import numpy as np

from predictors.inputs import Inputs
from predictors.regression import Regression, RegressionPredictor
from search_spaces.common.errors import InputError


class TextGP(RegressionPredictor):
    """A Gaussian process on features of the text: Matérn-5/2 kernel and noise, of maximum marginal
    likelihood.

    Samples are independent between metrics.
    """

    kind = "gp"
    # The time of a fit grows with the cube of the number of points
    max_points: ClassVar[int] = 1000

    def _fitted(self, inputs: np.ndarray, scores: np.ndarray) -> Regression:
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.gaussian_process import GaussianProcessRegressor
        from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

        kernel = ConstantKernel(1.0, (1e-2, 1e2)) * Matern(1.0, (5e-2, 5e1), nu=2.5) + WhiteKernel(
            0.2, (1e-4, 1e1)
        )
        optimizer = "fmin_l_bfgs_b" if len(scores) > 2 and np.ptp(scores) > 0 else None
        process = GaussianProcessRegressor(
            kernel, optimizer=optimizer, normalize_y=False, random_state=self.seed
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            process.fit(inputs, scores)
        return Regression(partial(process.predict, return_std=True), np.full(len(scores), np.nan))


class ChoicesGP(TextGP):
    """A Gaussian process on one-hot choices; a float choice is one numerical input.

    It reads `Architecture`s, not texts.
    """

    kind = "gp-choices"
    reads_choices: ClassVar[bool] = True

    def _select(self, architectures: Inputs) -> list[str]:
        found = [_options(a) for a in architectures]
        names = sorted(set().union(*found))
        return [name for name in names if len({options.get(name, 0.0) for options in found}) > 1]

    def _encode(self, architectures: Inputs) -> np.ndarray:
        found = [
            [options.get(name, 0.0) for name in self._names]
            for options in map(_options, architectures)
        ]
        return np.array(found).reshape(len(found), len(self._names))


def _options(architecture: Any) -> dict[str, float]:
    """Inputs of an architecture by name: 1 per chosen option; the value itself for a float
    choice.
    """
    from search_spaces import Architecture

    if not isinstance(architecture, Architecture):
        raise InputError(
            f"gp-choices reads architectures with their choices, not {str(architecture)[:60]!r}"
        )
    return dict(
        (name, value) if isinstance(value, float) else (f"{name}={value}", 1.0)
        for name, value in architecture.choices
    )
