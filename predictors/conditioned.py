"""Predictors that are told metrics which are known already: rows with the same ones given are answered together."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np

from predictors.base import GUESSES, Inputs, Metrics, Predictions, Predictor, as_texts, check_request, patterns
from predictors.estimate import Estimator, Seen
from predictors.metrics import is_chosen, is_measured
from predictors.noise import text_noise


class Conditioned(Predictor):
    """`predict` and `estimate`, from answers for texts with the same metrics given; what is given comes back."""

    def predict(
        self,
        architectures: Inputs,
        metrics: Sequence[str],
        given: Metrics | None = None,
        samples: int = 64,
        seed: int = 0,
    ) -> Predictions:
        """Sample `metrics`, each conditioned on `given`; a given one comes back."""
        known = check_request(self, architectures, metrics, given, samples)
        texts = as_texts(architectures)
        drawn = np.empty((len(texts), samples, len(metrics)))
        for rows, here, asked, forced in self._requests(texts, metrics, known):
            found = {name: values[:, None] for name, values in forced.items()}
            if asked:
                found |= zip(asked, self._sample(here, asked, forced, samples, seed), strict=True)
            for column, name in enumerate(metrics):
                drawn[rows, :, column] = found[name]
        return Predictions.of_samples(metrics, drawn)

    def estimate(self, architectures: Inputs, metrics: Sequence[str], given: Metrics | None = None) -> np.ndarray:
        """Point estimates (n, metrics): what its processes expect of all that these have learned."""
        known = check_request(self, architectures, metrics, given, GUESSES)
        texts = as_texts(architectures)
        found = np.empty((len(texts), len(metrics)))
        for rows, here, asked, forced in self._requests(texts, metrics, known):
            expected = forced | self._expected(here, asked, forced)
            found[rows] = np.stack([expected[name] for name in metrics], 1)
        return found

    def _requests(
        self, texts: Sequence[str], metrics: Sequence[str], known: Mapping[str, np.ndarray]
    ) -> Iterator[tuple[np.ndarray, list[str], list[str], dict[str, np.ndarray]]]:
        """Rows, their texts, the metrics asked of them in the order of answering, and the values of those given."""
        for rows, names in patterns(len(texts), known) if texts and metrics else ():
            forced = {name: known[name][rows] for name in self._ordered(names)}
            yield rows, [texts[i] for i in rows], self._ordered(n for n in metrics if n not in forced), forced

    def _ordered(self, names: Iterable[str]) -> list[str]:
        """Metrics in the order in which they are answered."""
        return list(names)

    @abstractmethod
    def _sample(
        self, texts: list[str], metrics: list[str], given: Mapping[str, np.ndarray], samples: int, seed: int
    ) -> list[np.ndarray]:
        """Samples (n, samples) of each metric, where `given` (n,) is known."""

    @abstractmethod
    def _expected(self, texts: list[str], metrics: list[str], given: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """What is expected (n,) of each metric, where `given` (n,) is known."""


def is_told(metric: str, given: Iterable[str]) -> bool:
    """Whether it depends on what was chosen, and this is given; only processes can be told it, and so they answer."""
    return is_measured(metric) and any(map(is_chosen, given))


def estimated(
    estimator: Estimator,
    texts: Sequence[str],
    seen: Seen,
    given: Mapping[str, np.ndarray],
    counts: Mapping[str, int],
    seed: Sequence[int],
) -> dict[str, np.ndarray]:
    """So many samples (n, count) of each metric by its process, where there is one; seen: of the n texts."""
    wanted = {name: count for name, count in counts.items() if count}
    noise = {count: text_noise(texts, count, len(counts), seed) for count in set(wanted.values())}
    column = {name: i for i, name in enumerate(counts)}
    drawn = {n: estimator.sample(n, seen, given, noise[count][:, :, column[n]]) for n, count in wanted.items()}
    return {name: values for name, values in drawn.items() if values is not None}


def mixed(
    metrics: Sequence[str],
    samples: int,
    found: Mapping[str, np.ndarray],
    draw: Callable[[list[str], int], Mapping[str, np.ndarray]],
) -> list[np.ndarray]:
    """(n, samples) of each metric: what was found (n, k), and before it as many as are left of those that are drawn.

    draw: (n, count) of each metric that it is asked for, by the metrics' names and the count.
    """
    left = {name: samples - found[name].shape[1] if name in found else samples for name in metrics}
    asked = [name for name in metrics if left[name]]
    drawn = draw(asked, max(left.values())) if asked else {}
    first = {name: drawn[name][:, : left[name]] for name in asked}
    return [np.concatenate([part[name] for part in (first, found) if name in part], 1) for name in metrics]
