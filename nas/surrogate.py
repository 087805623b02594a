"""What is believed about architectures that have not been evaluated: predictions, corrected by measured twins."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from predictors import Predictor
    from search_spaces import Architecture, SearchSpace

SAMPLES = 32
_PRIOR_SHARE = 0.5  # of the predictor's uncertainty that is taken for measurement noise before twins have shown it
_PRIOR_WEIGHT = 4.0  # of that guess, in degrees of freedom


class Surrogate:
    """A predictor refitted on the evaluations of a search, with samples of what an evaluation would give.

    Architectures of equal text are *twins*: trainings of the same network, equal but for noise. A twin of an evaluated
    architecture is believed to lie between its prediction and what was measured (a Gaussian update), with the noise
    between twins as its uncertainty.

    metrics: the m metrics to predict. given: those known exactly (`"params"`, `"flops"`).
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
        self._exact: dict[str, list[float]] = {}

    def fit(self, evaluated: Mapping[Architecture, np.ndarray], seed: int, bounded: np.ndarray | None = None) -> None:
        """Fit a fresh predictor on the values (m,) of each evaluated architecture, in the metrics' own units.

        bounded: what is learned of the n architectures instead of their values (n, m), if these go too far.
        """
        self._seed = seed
        self._known: dict[str, np.ndarray] = {}
        self._estimated: dict[str, np.ndarray] = {}
        texts = self.texts(evaluated)
        measured = np.array(list(evaluated.values()))
        values = measured if bounded is None else bounded
        if self.asked:
            targets = dict(zip(self.metrics, values.T, strict=True)) | self._given(texts)
            self._fitted = self.predictor().fit(texts, targets)
        self._learn_from_twins(texts, values, _twins_are_equal(texts, measured))

    def samples(self, architectures: Sequence[Architecture]) -> np.ndarray:
        """Samples (n, SAMPLES, m) of what evaluating each architecture would give, in the metrics' own units."""
        texts = self.texts(architectures)
        new = [text for text in dict.fromkeys(texts) if text not in self._known]
        if new:
            self._known.update(zip(new, self._predict(new), strict=True))
        return np.array([self._known[text] for text in texts])

    def estimates(self, architectures: Sequence[Architecture]) -> np.ndarray:
        """Point estimates (n, m) of the same, which cost far less than samples."""
        texts = self.texts(architectures)
        new = [text for text in dict.fromkeys(texts) if text not in self._estimated]
        if new:
            self._estimated.update(zip(new, self._estimate(new), strict=True))
        return np.array([self._estimated[text] for text in texts])

    def forget_all_but(self, architectures: Iterable[Architecture]) -> None:
        """Drop the texts of architectures that will not be asked for again."""
        self._texts = {a: self._texts[a] for a in architectures if a in self._texts}
        self._exact = {text: self._exact[text] for text in self._texts.values()}

    def _estimate(self, texts: list[str]) -> np.ndarray:
        exact = self._given(texts)
        predicted = self._fitted.estimate(texts, self.asked, given=exact)[:, None] if self.asked else np.empty(0)
        return self._with_exact(exact, predicted, 1)[:, 0]

    def _predict(self, texts: list[str]) -> np.ndarray:
        exact = self._given(texts)
        predicted = np.empty(0)
        if self.asked:
            predicted = self._fitted.predict(texts, self.asked, given=exact, samples=SAMPLES, seed=self._seed).samples
        return self._with_exact(exact, predicted, SAMPLES)

    def _with_exact(self, exact: dict[str, np.ndarray], predicted: np.ndarray, samples: int) -> np.ndarray:
        """All metrics (n, samples, m), of exact values (n,) by name and predicted samples (n, samples, asked)."""
        columns = [
            np.repeat(exact[name][:, None], samples, 1) if name in exact else predicted[:, :, self.asked.index(name)]
            for name in self.metrics
        ]
        return np.stack(columns, axis=2)

    def _learn_from_twins(self, texts: list[str], values: np.ndarray, equal: bool) -> None:
        """Update the predictions of all measured texts by what was measured."""
        unique, group, counts = np.unique(texts, return_inverse=True, return_counts=True)
        measured = np.array([values[group == i].mean(axis=0) for i in range(len(unique))])
        samples = self._predict(unique.tolist())
        mean, variance = samples.mean(axis=1, keepdims=True), samples.var(axis=1, keepdims=True)
        squares = ((values - measured[group]) ** 2).sum(axis=0)
        freedom = len(values) - len(unique)
        prior = _PRIOR_SHARE**2 * np.median(variance, axis=0)
        noise = (_PRIOR_WEIGHT * prior + squares) / (_PRIOR_WEIGHT + freedom)  # (1, m) variance
        if equal:  # a twin is only looked up again: it can bring nothing new
            noise = np.zeros_like(noise)
        noise_of_mean = noise / counts[:, None, None]
        total = variance + noise_of_mean
        trust = np.divide(variance, total, out=np.zeros_like(total), where=total > 0)  # in what was measured
        spread = np.sqrt(noise + trust * noise_of_mean)  # noise of the next training and doubt about the network
        standard = np.divide(samples - mean, np.sqrt(variance), out=np.zeros_like(samples), where=variance > 0)
        believed = mean + trust * (measured[:, None, :] - mean) + spread * standard
        self._known.update(zip(unique.tolist(), believed, strict=True))
        self._estimated.update(zip(unique.tolist(), believed.mean(axis=1), strict=True))

    def texts(self, architectures: Sequence[Architecture] | Mapping[Architecture, np.ndarray]) -> list[str]:
        """The architectures' texts; texts and exact costs are made once."""
        for architecture in architectures:
            if architecture not in self._texts:
                text = self._texts[architecture] = self.space.to_text(architecture)
                if text not in self._exact:
                    self._exact[text] = [float(getattr(self.space, metric)(architecture)) for metric in self.given]
        return [self._texts[architecture] for architecture in architectures]

    def _given(self, texts: Sequence[str]) -> dict[str, np.ndarray]:
        columns = np.array([self._exact[text] for text in texts]).reshape(len(texts), len(self.given))
        return dict(zip(self.given, columns.T, strict=True))


def _twins_are_equal(texts: Sequence[str], values: np.ndarray) -> bool:
    """Whether there are twins, and each has exactly the values (n, m) of the other."""
    rows: dict[str, set[bytes]] = {}
    for text, row in zip(texts, values, strict=True):
        rows.setdefault(text, set()).add(row.tobytes())
    return len(rows) < len(texts) and all(len(found) == 1 for found in rows.values())
