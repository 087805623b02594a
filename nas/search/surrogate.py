"""The surrogate model of a search: a predictor that is refitted on the evaluations, and its cached
predictions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

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
        self._exact: dict[str, list[float]] = {}  # values of `given` by text
        self._measured: dict[str, np.ndarray] = {}  # (m,) measured values by text
        # (m,) values of evaluated and measured architectures, NaN where unknown
        self._observed: dict[Architecture, np.ndarray] = {}
        self.fitted: Predictor | None = None
        self._seed = 0
        self._sampled: dict[str | Architecture, np.ndarray] = {}
        self._estimated: dict[str | Architecture, np.ndarray] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Omit the fitted predictor and its predictions, which may be large.

        Every proposal starts with a fit.
        """
        return vars(self) | {"fitted": None, "_sampled": {}, "_estimated": {}, "_observed": {}}

    def fit(
        self,
        evaluated: Mapping[Architecture, np.ndarray],
        seed: int,
        measured: Mapping[Architecture, np.ndarray] = MappingProxyType({}),
    ) -> None:
        """Fit the predictor to the evaluated architectures.

        Args:
            evaluated: values (m,) of each of the n architectures, in the metrics' own units; NaN
                for metrics that are not known of it.
            seed: seed of the samples.
            measured: known values (m,) of architectures that may be evaluated, NaN where unknown.
                They condition the predictions of these networks.
        """
        self._seed = seed
        self._sampled, self._estimated, self._measured = {}, {}, {}
        self._observed = dict(evaluated)
        self.condition(measured)
        if not self.predicted:
            return
        architectures = list(evaluated)
        columns = np.array(list(evaluated.values())).T  # (m, n)
        targets = dict(zip(self.metrics, columns, strict=True))
        targets |= self._exact_metrics(architectures)
        predictor = self.predictor()
        self.fitted = predictor.fit(self.texts.inputs(predictor, architectures), targets)

    def condition(self, measured: Mapping[Architecture, np.ndarray]) -> None:
        """Add known values (m,) of architectures to those of `fit`."""
        for text, values in zip(self.texts(measured), measured.values(), strict=True):
            self._measured[text] = values
        self._observed.update(measured)
        for key in self._inputs_of(measured):
            self._sampled.pop(key, None)

    def samples(self, architectures: Sequence[Architecture]) -> np.ndarray:
        """Draw joint samples (n, SAMPLES, m) of the metrics of n architectures.

        They are in the metrics' own units.
        """

        def draw(predictor: Predictor, new: Sequence[Architecture]) -> np.ndarray:
            return predictor.predict(
                self.texts.inputs(predictor, new),
                self.predicted,
                given=self._conditions(new),
                samples=SAMPLES,
                seed=self._seed,
            ).samples

        return self._cached(architectures, self._sampled, SAMPLES, draw)

    def estimates(self, architectures: Sequence[Architecture]) -> np.ndarray:
        """Point estimates (n, m) of the metrics of n architectures.

        They cost far less than samples. What has been observed of an architecture is not estimated.
        """

        def estimate(predictor: Predictor, new: Sequence[Architecture]) -> np.ndarray:
            inputs = self.texts.inputs(predictor, new)
            estimates = predictor.estimate(inputs, self.predicted, given=self._exact_metrics(new))
            return estimates[:, None]  # (n, 1, predicted)

        # 1. What has been observed, NaN elsewhere.
        values = np.full((len(architectures), len(self.metrics)), np.nan)  # (n, m)
        for row, architecture in zip(values, architectures, strict=True):
            if architecture in self._observed:
                row[:] = self._observed[architecture]

        # 2. Estimates take the place of NaN.
        is_unknown = np.isnan(values)
        rows = np.flatnonzero(is_unknown.any(axis=1)).tolist()
        if rows:
            incomplete = [architectures[row] for row in rows]
            estimated = self._cached(incomplete, self._estimated, 1, estimate)[:, 0]  # (rows, m)
            values[rows] = np.where(is_unknown[rows], estimated, values[rows])
        return values

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
        """All metrics (n, samples, m), predicted once for each input of the predictor.

        Architectures with equal inputs, such as equal texts, share one prediction.
        """
        inputs = self._inputs_of(architectures)

        # 1. One architecture for each input without a prediction.
        new: dict[str | Architecture, Architecture] = {}
        for key, architecture in zip(inputs, architectures, strict=True):
            if key not in cache:
                new[key] = architecture

        # 2. Predict these, and insert exact metrics, which are equal in all samples.
        if new:
            representatives = list(new.values())
            predicted = np.empty((len(new), samples, 0))
            if self.fitted is not None:
                predicted = predict(self.fitted, representatives)
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

    def _inputs_of(self, architectures: Iterable[Architecture]) -> Sequence[str | Architecture]:
        """What the fitted predictor reads; texts without one."""
        if self.fitted is None:
            return self.texts(architectures)
        return self.texts.inputs(self.fitted, architectures)

    def _conditions(self, architectures: Sequence[Architecture]) -> dict[str, np.ndarray]:
        """Values (n,) by metric that condition the predictions of n architectures.

        They are exact values, and those measured for at least one of the architectures, NaN where
        unknown.
        """
        conditions = self._exact_metrics(architectures)
        if not self._measured:
            return conditions
        unknown = np.full(len(self.metrics), np.nan)
        texts = self.texts(architectures)
        rows = np.array([self._measured.get(text, unknown) for text in texts])  # (n, m)
        for metric, column in zip(self.metrics, rows.T, strict=True):
            if metric in self.predicted and not np.isnan(column).all():
                conditions[metric] = column
        return conditions

    def _exact_metrics(self, architectures: Sequence[Architecture]) -> dict[str, np.ndarray]:
        """Exact metrics (n,) by name. Equal texts are counted once."""
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


# --- what a fit learns from

# Up to so many examples, a fit learns from measured networks that were not trained, too.
MAX_PARTIAL_EXAMPLES = 500
T = TypeVar("T")


def learned_of_measured(measured: Sequence[T], examples: int) -> Sequence[T]:
    """The networks that were only measured and that a fit learns from, beside its examples.

    They are the latest ones, as long as all together are at most `MAX_PARTIAL_EXAMPLES`.

    Args:
        measured: networks that were only measured, in their order.
        examples: number of networks that were trained.
    """
    space_left = max(0, MAX_PARTIAL_EXAMPLES - examples)
    first = max(0, len(measured) - space_left)
    return measured[first:]
