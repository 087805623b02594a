"""A predictor refitted on the evaluations of a search, and what it says of architectures that are not evaluated."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from predictors import Predictor
    from search_spaces import Architecture, SearchSpace

SAMPLES = 32


class Surrogate:
    """A predictor refitted on the evaluations of a search. Its samples and estimates are used as they are.

    Architectures of equal text are *twins*: trainings of the same network. A predictor of texts gives them the same
    values, and each is an example of its own. Values are kept until the next fit.

    Args:
        space: the search space.
        predictor: makes an unfitted predictor for each refit.
        metrics: the m metrics to predict.
        given: the metrics among them that are known exactly (`"params"`, `"flops"`). They come from the space.
    """

    def __init__(
        self, space: SearchSpace, predictor: Callable[[], Predictor], metrics: Sequence[str], given: Sequence[str]
    ) -> None:
        self.space = space
        self.predictor = predictor
        self.metrics = tuple(metrics)
        self.given = tuple(given)
        self.asked = tuple(metric for metric in metrics if metric not in given)
        self._texts: dict[Architecture, str] = {}
        self._exact: dict[Architecture, list[float]] = {}

    def fit(self, evaluated: Mapping[Architecture, np.ndarray], seed: int, bounded: np.ndarray | None = None) -> None:
        """Fit a fresh predictor on the evaluated architectures.

        Args:
            evaluated: values (m,) of each of the n architectures, in the metrics' own units.
            seed: seed of the samples.
            bounded: clipped values (n, m) to learn instead of the measured ones.
        """
        self._seed = seed
        self._samples: dict[Hashable, np.ndarray] = {}
        self._estimates: dict[Hashable, np.ndarray] = {}
        self._fitted = self.predictor()
        if self.asked:
            values = np.array(list(evaluated.values())) if bounded is None else bounded
            targets = dict(zip(self.metrics, values.T, strict=True)) | self._given(evaluated)
            self._fitted.fit(self._inputs(evaluated), targets)

    def samples(self, architectures: Sequence[Architecture]) -> np.ndarray:
        """Samples (n, SAMPLES, m) of what evaluating each architecture would give, in the metrics' own units."""

        def predict(inputs: list[Any], given: dict[str, np.ndarray]) -> np.ndarray:
            return self._fitted.predict(inputs, self.asked, given, SAMPLES, self._seed).samples

        return self._values(architectures, self._samples, predict, SAMPLES)

    def estimates(self, architectures: Sequence[Architecture]) -> np.ndarray:
        """Point estimates (n, m) of the same, which cost far less than samples."""

        def estimate(inputs: list[Any], given: dict[str, np.ndarray]) -> np.ndarray:
            return self._fitted.estimate(inputs, self.asked, given)[:, None]

        return self._values(architectures, self._estimates, estimate, 1)[:, 0]

    def _values(
        self,
        architectures: Sequence[Architecture],
        kept: dict[Hashable, np.ndarray],
        predict: Callable[[list[Any], dict[str, np.ndarray]], np.ndarray],
        samples: int,
    ) -> np.ndarray:
        """Values (n, samples, m): exact, kept, or predicted as (n, samples, asked) and then kept."""
        inputs = self._inputs(architectures)
        if new := {one: a for one, a in zip(inputs, architectures, strict=True) if one not in kept}:
            exact = self._given(new.values())
            predicted = predict(list(new), exact) if self.asked else np.empty(0)
            columns = [
                np.repeat(exact[name][:, None], samples, 1)
                if name in exact
                else predicted[:, :, self.asked.index(name)]
                for name in self.metrics
            ]
            kept.update(zip(new, np.stack(columns, axis=2), strict=True))
        return np.array([kept[one] for one in inputs])

    def texts(self, architectures: Iterable[Architecture]) -> list[str]:
        """The architectures' texts, each made once."""
        return [
            self._texts[a] if a in self._texts else self._texts.setdefault(a, self.space.to_text(a))
            for a in architectures
        ]

    def forget_all_but(self, architectures: Iterable[Architecture]) -> None:
        """Drop texts and costs of architectures that will not be asked for again."""
        remaining = set(architectures)
        self._texts = {a: text for a, text in self._texts.items() if a in remaining}
        self._exact = {a: costs for a, costs in self._exact.items() if a in remaining}

    def _inputs(self, architectures: Iterable[Architecture]) -> list[Any]:
        """What the predictor reads."""
        return list(architectures) if self._fitted.reads_choices else self.texts(architectures)

    def _given(self, architectures: Iterable[Architecture]) -> dict[str, np.ndarray]:
        """The exact metrics (n,) by name, each computed once."""
        architectures = list(architectures)
        for a in architectures:
            if a not in self._exact:
                self._exact[a] = [float(getattr(self.space, metric)(a)) for metric in self.given]
        rows = np.array([self._exact[a] for a in architectures]).reshape(len(architectures), len(self.given))
        return dict(zip(self.given, rows.T, strict=True))
