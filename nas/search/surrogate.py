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
        self.predicted = tuple(metric for metric in metrics if metric not in given)
        self.texts = Texts(space)
        self._exact: dict[str, list[float]] = {}  # given metrics by text
        self._fitted: Predictor | None = None
        self._seed = 0
        self._sampled: dict[str | Architecture, np.ndarray] = {}
        self._estimated: dict[str | Architecture, np.ndarray] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Omit the fitted predictor and its predictions, which may be large: every proposal starts
        with a fit.
        """
        return vars(self) | {"_fitted": None, "_sampled": {}, "_estimated": {}}

    def fit(self, evaluated: Mapping[Architecture, np.ndarray], seed: int) -> None:
        """Fit the predictor to the evaluated architectures.

        Args:
            evaluated: values (m,) of each of the n architectures, in the metrics' own units.
            seed: seed of the samples.
        """
        self._seed = seed
        self._sampled, self._estimated = {}, {}
        if not self.predicted:
            return
        architectures = list(evaluated)
        columns = np.array(list(evaluated.values())).T  # (m, n)
        targets = dict(zip(self.metrics, columns, strict=True))
        targets |= self._exact_metrics(architectures)
        predictor = self.predictor()
        self._fitted = predictor.fit(self._inputs(predictor, architectures), targets)

    def samples(self, architectures: Sequence[Architecture]) -> np.ndarray:
        """Draw joint samples (n, SAMPLES, m) of the metrics of n architectures, in the metrics' own
        units.
        """

        def draw(predictor: Predictor, new: Sequence[Architecture]) -> np.ndarray:
            return predictor.predict(
                self._inputs(predictor, new),
                self.predicted,
                given=self._exact_metrics(new),
                samples=SAMPLES,
                seed=self._seed,
            ).samples

        return self._cached(architectures, self._sampled, SAMPLES, draw)

    def estimates(self, architectures: Sequence[Architecture]) -> np.ndarray:
        """Point estimates (n, m) of the metrics of n architectures. They cost far less than
        samples.
        """

        def estimate(predictor: Predictor, new: Sequence[Architecture]) -> np.ndarray:
            inputs = self._inputs(predictor, new)
            estimates = predictor.estimate(inputs, self.predicted, given=self._exact_metrics(new))
            return estimates[:, None]  # (n, 1, predicted)

        return self._cached(architectures, self._estimated, 1, estimate)[:, 0]

    def forget_all_but(self, architectures: Iterable[Architecture]) -> None:
        """Drop the texts and exact costs of all other architectures."""
        kept = list(architectures)
        self.texts.forget_all_but(kept)
        texts = self.texts.stored(kept)
        self._exact = {text: self._exact[text] for text in texts if text in self._exact}

    def _cached(
        self,
        architectures: Sequence[Architecture],
        cache: dict[str | Architecture, np.ndarray],
        samples: int,
        predict: Callable[[Predictor, Sequence[Architecture]], np.ndarray],
    ) -> np.ndarray:
        """All metrics (n, samples, m). Equal inputs of the predictor, such as equal texts, share
        one prediction.
        """
        if self._fitted is None:
            inputs: Sequence[str | Architecture] = self.texts(architectures)
        else:
            inputs = self._inputs(self._fitted, architectures)

        # 1. One architecture for each input without a prediction.
        new: dict[str | Architecture, Architecture] = {}
        for key, architecture in zip(inputs, architectures, strict=True):
            if key not in cache:
                new[key] = architecture

        # 2. Predict these, and insert exact metrics, which are equal in all samples.
        if new:
            representatives = list(new.values())
            predicted = np.empty((len(new), samples, 0))
            if self._fitted is not None:
                predicted = predict(self._fitted, representatives)
            exact = self._exact_metrics(representatives)
            columns = []
            for metric in self.metrics:
                if metric in exact:
                    columns.append(np.repeat(exact[metric][:, None], predicted.shape[1], axis=1))
                else:
                    columns.append(predicted[:, :, self.predicted.index(metric)])
            values = np.stack(columns, axis=2)  # (new, samples, m)
            cache.update(zip(new, values, strict=True))

        return np.array([cache[key] for key in inputs])

    def _inputs(
        self, predictor: Predictor, architectures: Sequence[Architecture]
    ) -> Sequence[str | Architecture]:
        """What the predictor reads: choices or texts."""
        return list(architectures) if predictor.reads_choices else self.texts(architectures)

    def _exact_metrics(self, architectures: Sequence[Architecture]) -> dict[str, np.ndarray]:
        """Given metrics (n,) by name. Equal texts are counted once."""
        if not self.given:
            return {}
        texts = self.texts(architectures)
        for architecture, text in zip(architectures, texts, strict=True):
            if text not in self._exact:
                counts = [getattr(self.space, metric)(architecture) for metric in self.given]
                self._exact[text] = [float(count) for count in counts]
        rows = np.array([self._exact[text] for text in texts])
        columns = rows.reshape(len(texts), len(self.given)).T
        return dict(zip(self.given, columns, strict=True))
