"""The surrogate model of a search: a predictor that is refitted on the evaluations, and its cached
predictions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from nas.search.candidates import Texts

if TYPE_CHECKING:
    from predictors import Predictor
    from search_spaces import Architecture, SearchSpace

SAMPLES = 32  # joint samples per candidate


class Surrogate:
    """Predicts the metrics of candidates. Each prediction is computed once per fit.

    Architectures with equal texts are trainings of the same network, so that an evaluated one is an
    example of the others.

    Args:
        space: the search space.
        predictor: creates an unfitted predictor for each refit.
        metrics: `predictors.Metric.key` of the m metrics.
        given: metrics that are known exactly, of `"params"` and `"flops"`. They condition the
            predictions.
    """

    def __init__(
        self,
        space: SearchSpace,
        predictor: Callable[[], Predictor],
        metrics: Sequence[str],
        given: Sequence[str],
    ) -> None:
        self.space = space
        self.predictor = predictor
        self.metrics = tuple(metrics)
        self.given = tuple(given)
        self.asked = tuple(metric for metric in metrics if metric not in given)
        self._fitted: Predictor | None = None
        self.texts = Texts(space)
        self._exact: dict[str, list[float]] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Omit the fitted predictor and its predictions, which may be large: every proposal starts
        with a fit.
        """
        return vars(self) | {"_fitted": None, "_sampled": {}, "_estimated": {}}

    def fit(self, evaluated: Mapping[Architecture, np.ndarray], seed: int) -> None:
        """Fit the predictor on the evaluated architectures.

        Args:
            evaluated: values (m,) of each of the n architectures, in the metrics' own units.
            seed: seed of the samples.
        """
        self._seed = seed
        self._sampled: dict[str | Architecture, np.ndarray] = {}
        self._estimated: dict[str | Architecture, np.ndarray] = {}
        architectures = list(evaluated)
        values = np.array(list(evaluated.values()))
        if self.asked:
            targets = dict(zip(self.metrics, values.T, strict=True)) | self._given(architectures)
            fitted = self.predictor()
            self._fitted = fitted.fit(self._inputs(fitted, architectures), targets)

    def samples(self, architectures: Sequence[Architecture]) -> np.ndarray:
        """Draw joint samples (n, SAMPLES, m) of the metrics of n architectures, in the metrics' own
        units.
        """

        def predict(predictor: Predictor, new: Sequence[Architecture]) -> np.ndarray:
            inputs, exact = self._inputs(predictor, new), self._given(new)
            return predictor.predict(
                inputs, self.asked, given=exact, samples=SAMPLES, seed=self._seed
            ).samples

        return self._cached(architectures, self._sampled, SAMPLES, predict)

    def estimates(self, architectures: Sequence[Architecture]) -> np.ndarray:
        """Point estimates (n, m) of the metrics of n architectures. They cost far less than
        samples.
        """

        def estimate(predictor: Predictor, new: Sequence[Architecture]) -> np.ndarray:
            return predictor.estimate(
                self._inputs(predictor, new), self.asked, given=self._given(new)
            )[:, None]

        return self._cached(architectures, self._estimated, 1, estimate)[:, 0]

    def forget_all_but(self, architectures: Iterable[Architecture]) -> None:
        """Drop the texts and exact costs of all other architectures."""
        kept = list(architectures)
        self.texts.forget_all_but(kept)
        self._exact = {
            text: self._exact[text] for text in self.texts.known(kept) if text in self._exact
        }

    def _cached(
        self,
        architectures: Sequence[Architecture],
        known: dict[str | Architecture, np.ndarray],
        samples: int,
        predict: Callable[[Predictor, Sequence[Architecture]], np.ndarray],
    ) -> np.ndarray:
        """All metrics (n, samples, m). Equal inputs of the predictor, such as equal texts, share
        one prediction.
        """
        inputs = (
            self._inputs(self._fitted, architectures) if self._fitted else self.texts(architectures)
        )
        if new := {
            key: one for key, one in zip(inputs, architectures, strict=True) if key not in known
        }:
            some = list(new.values())
            predicted = (
                predict(self._fitted, some) if self._fitted else np.empty((len(some), samples, 0))
            )
            known.update(zip(new, self._with_exact(self._given(some), predicted), strict=True))
        return np.array([known[key] for key in inputs])

    def _with_exact(self, exact: dict[str, np.ndarray], predicted: np.ndarray) -> np.ndarray:
        """All metrics (n, samples, m) from exact values (n,) by name and predicted samples (n,
        samples, asked).
        """
        columns = [
            np.repeat(exact[name][:, None], predicted.shape[1], 1)
            if name in exact
            else predicted[:, :, self.asked.index(name)]
            for name in self.metrics
        ]
        return np.stack(columns, axis=2)

    def _inputs(
        self, predictor: Predictor, architectures: Sequence[Architecture]
    ) -> Sequence[str | Architecture]:
        return list(architectures) if predictor.reads_choices else self.texts(architectures)

    def _given(self, architectures: Sequence[Architecture]) -> dict[str, np.ndarray]:
        """Exact metrics (n,) by name. Equal texts are counted once."""
        if not self.given:
            return {}
        texts = self.texts(architectures)
        for architecture, text in zip(architectures, texts, strict=True):
            if text not in self._exact:
                self._exact[text] = [
                    float(getattr(self.space, metric)(architecture)) for metric in self.given
                ]
        rows = np.array([self._exact[text] for text in texts]).reshape(len(texts), len(self.given))
        return dict(zip(self.given, rows.T, strict=True))
