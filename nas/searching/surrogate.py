"""Posterior samples for architectures that have not been evaluated: predictions, corrected by measured twins."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from predictors.metrics import CHOSEN, QUIETEST, is_measured

if TYPE_CHECKING:
    from predictors import Predictor
    from search_spaces import Architecture, SearchSpace

SAMPLES = 32
_PRIOR_SHARE = 0.5  # prior share of measurement noise in the predictor's standard deviation, before twins show it
_PRIOR_WEIGHT = 4.0  # weight of that prior, in degrees of freedom


class PredictorInput(NamedTuple):
    """The predictor's input for one architecture: its text, and the choice counts of options that vary."""

    text: str
    choice_counts: tuple[int, ...]


class TwinCorrection(NamedTuple):
    """The correction of predictions for one text by its measurements, in the metrics' own units.

    shift: (1, m), added to a prediction. spread: (1, m), the standard deviation of the next measurement.
    """

    shift: np.ndarray
    spread: np.ndarray


class Surrogate:
    """A predictor refitted on the evaluations of a search, with samples of what an evaluation would give.

    Architectures of equal text are *twins*: trainings of the same network. A device may run their operators
    differently, for example one whose result is multiplied by zero. Therefore the predictor also gets choice counts.
    The posterior of a twin of an evaluated architecture lies between the prediction and the measurement (a Gaussian
    update). The noise between twins is its uncertainty.

    Args:
        space: the search space.
        predictor: makes an unfitted predictor for each refit.
        metrics: the m metrics to predict.
        given: the metrics among them that are known exactly (`"params"`, `"flops"`).
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
        """Fit a fresh predictor on the evaluated architectures.

        Args:
            evaluated: values (m,) of each of the n architectures, in the metrics' own units.
            seed: seed of the posterior samples.
            bounded: clipped values (n, m) to learn instead of the measured ones.
        """
        self._seed = seed
        self._samples: dict[PredictorInput, np.ndarray] = {}
        self._estimated: dict[PredictorInput, np.ndarray] = {}
        texts = self.texts(evaluated)
        measured = np.array(list(evaluated.values()))
        values = measured if bounded is None else bounded
        looked_up = _twins_are_equal(texts, measured)
        self._options = [] if looked_up else _varying_options(evaluated)
        inputs = self._inputs(evaluated)
        if self.asked:
            targets = dict(zip(self.metrics, values.T, strict=True)) | self._given(inputs)
            self._fitted = self.predictor().fit(texts, targets)
        self._learn_from_twins(inputs, values, looked_up)

    def samples(self, architectures: Sequence[Architecture]) -> np.ndarray:
        """Samples (n, SAMPLES, m) of what evaluating each architecture would give, in the metrics' own units."""
        inputs = self._inputs(architectures)
        if new := [one for one in dict.fromkeys(inputs) if one not in self._samples]:
            predicted = zip(new, self._predict(new), strict=True)
            self._samples.update((one, self._posterior(one.text, samples)) for one, samples in predicted)
        return np.array([self._samples[one] for one in inputs])

    def estimates(self, architectures: Sequence[Architecture]) -> np.ndarray:
        """Point estimates (n, m) of the same, which cost far less than samples."""
        inputs = self._inputs(architectures)
        if new := [one for one in dict.fromkeys(inputs) if one not in self._estimated]:
            estimated = self._estimate(new)
            for one, values in zip(new, estimated, strict=True):
                twin = self._corrections.get(one.text)
                self._estimated[one] = values if twin is None else values + twin.shift[0]
        return np.array([self._estimated[one] for one in inputs])

    def forget_all_but(self, architectures: Iterable[Architecture]) -> None:
        """Drop the texts of architectures that will not be asked for again."""
        self._texts = {a: self._texts[a] for a in architectures if a in self._texts}
        self._exact = {text: self._exact[text] for text in self._texts.values()}

    def _estimate(self, inputs: Sequence[PredictorInput]) -> np.ndarray:
        exact = self._given(inputs)
        predicted = np.empty(0)
        if self.asked:
            predicted = self._fitted.estimate([one.text for one in inputs], self.asked, given=exact)[:, None]
        return self._with_exact(exact, predicted, 1)[:, 0]

    def _predict(self, inputs: Sequence[PredictorInput]) -> np.ndarray:
        exact = self._given(inputs)
        predicted = np.empty(0)
        if self.asked:
            texts = [one.text for one in inputs]
            predicted = self._fitted.predict(texts, self.asked, given=exact, samples=SAMPLES, seed=self._seed).samples
        return self._with_exact(exact, predicted, SAMPLES)

    def _with_exact(self, exact: dict[str, np.ndarray], predicted: np.ndarray, samples: int) -> np.ndarray:
        """All metrics (n, samples, m), of exact values (n,) by name and predicted samples (n, samples, asked)."""
        columns = [
            np.repeat(exact[name][:, None], samples, 1) if name in exact else predicted[:, :, self.asked.index(name)]
            for name in self.metrics
        ]
        return np.stack(columns, axis=2)

    def _learn_from_twins(self, inputs: Sequence[PredictorInput], values: np.ndarray, looked_up: bool) -> None:
        """Compute the correction of each measured text.

        Args:
            inputs: the n predictor inputs.
            values: their measured values (n, m).
            looked_up: True if twins have exactly equal values, as in a table. Then their noise is zero.
        """
        unique, first, group, counts = np.unique(
            [one.text for one in inputs], return_index=True, return_inverse=True, return_counts=True
        )
        samples = self._predict(inputs)
        away, variance = values - samples.mean(axis=1), samples[first].var(axis=1)
        away_of_text = np.array([away[group == i].mean(axis=0) for i in range(len(unique))])
        level = self._noise_scales(np.array([values[group == i].mean(axis=0) for i in range(len(unique))]))
        squares = (((away - away_of_text[group]) / level[group]) ** 2).sum(axis=0)
        freedom = len(values) - len(unique)
        prior = _PRIOR_SHARE**2 * np.median(variance / level**2, axis=0)
        usual = (_PRIOR_WEIGHT * prior + squares) / (_PRIOR_WEIGHT + freedom)  # (m,) variance
        noise = usual * level**2
        if looked_up:
            noise = np.zeros_like(noise)
        noise_of_mean = noise / counts[:, None]
        total = variance + noise_of_mean
        trust = np.divide(variance, total, out=np.zeros_like(total), where=total > 0)  # in what was measured
        spread = np.sqrt(noise + trust * noise_of_mean)  # noise of the next training and doubt about the network
        found = zip(unique.tolist(), (trust * away_of_text)[:, None], spread[:, None], strict=True)
        self._corrections = {text: TwinCorrection(*of_text) for text, *of_text in found}

    def _noise_scales(self, values: np.ndarray) -> np.ndarray:
        """Scale (k, m) of the noise around values (k, m), relative to its median. It grows with measured metrics."""
        sizes, measured = np.abs(values), np.array(list(map(is_measured, self.metrics)))
        usual = np.median(sizes, axis=0)
        levels = np.divide(sizes, usual, out=np.ones_like(sizes), where=measured & (usual > 0))
        return np.maximum(levels, QUIETEST)

    def _posterior(self, text: str, samples: np.ndarray) -> np.ndarray:
        """Posterior samples (SAMPLES, m): predicted ones, corrected if a training of the same network was measured."""
        if text not in self._corrections:
            return samples
        shift, spread = self._corrections[text]
        mean, std = samples.mean(axis=0), samples.std(axis=0)
        return mean + shift + spread * np.divide(samples - mean, std, out=np.zeros_like(samples), where=std > 0)

    def _inputs(self, architectures: Iterable[Architecture]) -> list[PredictorInput]:
        architectures = list(architectures)
        counts = [architecture.choice_counts() for architecture in architectures]
        chosen = [tuple([count[option] for option in self._options]) for count in counts]
        return list(map(PredictorInput, self.texts(architectures), chosen))

    def texts(self, architectures: Sequence[Architecture] | Mapping[Architecture, np.ndarray]) -> list[str]:
        """The architectures' texts; texts and exact costs are made once."""
        for architecture in architectures:
            if architecture not in self._texts:
                text = self._texts[architecture] = self.space.to_text(architecture)
                if text not in self._exact:
                    self._exact[text] = [float(getattr(self.space, metric)(architecture)) for metric in self.given]
        return [self._texts[architecture] for architecture in architectures]

    def _given(self, inputs: Sequence[PredictorInput]) -> dict[str, np.ndarray]:
        names = [*self.given, *[option + CHOSEN for option in self._options]]
        rows = np.array([[*self._exact[one.text], *one.choice_counts] for one in inputs]).reshape(
            len(inputs), len(names)
        )
        return dict(zip(names, rows.T, strict=True))


def _varying_options(architectures: Iterable[Architecture]) -> list[str]:
    """Options whose choice counts vary between the architectures."""
    counts = [architecture.choice_counts() for architecture in architectures]
    return [name for name in sorted(set().union(*counts)) if len({count[name] for count in counts}) > 1]


def _twins_are_equal(texts: Sequence[str], values: np.ndarray) -> bool:
    """Whether there are twins, and each has exactly the values (n, m) of the other."""
    rows: dict[str, set[bytes]] = {}
    for text, row in zip(texts, values, strict=True):
        rows.setdefault(text, set()).add(row.tobytes())
    return len(rows) < len(texts) and all(len(found) == 1 for found in rows.values())
