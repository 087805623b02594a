"""The contract of all predictors: ONNX text (or models) in, metrics with uncertainty out."""

from __future__ import annotations

import gc
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from predictors.files import read, write
from predictors.inputs import Inputs, Metrics, as_texts
from search_spaces.common.errors import InputError

if TYPE_CHECKING:
    import onnx

    from search_spaces import Architecture

STREAM_CHUNK = 256  # architectures that one process predicts at a time
ESTIMATE_SAMPLES = 4  # samples of a point estimate


@dataclass(frozen=True)
class Predictions:
    """Predictions of m metrics for n architectures, in the metrics' own units.

    mean, median, std: (n, m). samples: (n, samples, m), joint over the metrics. `metrics` names the columns.
    """

    metrics: tuple[str, ...]
    mean: np.ndarray
    median: np.ndarray
    std: np.ndarray
    samples: np.ndarray

    @classmethod
    def of_samples(cls, metrics: Sequence[str], samples: np.ndarray) -> Predictions:
        """Summaries of samples (n, samples, m)."""
        samples = np.asarray(samples, np.float64)
        return cls(tuple(metrics), samples.mean(1), np.median(samples, 1), samples.std(1), samples)

    def __getitem__(self, metric: str) -> np.ndarray:
        """The point estimate (n,) of one metric: the median, which a rare wrong exponent does not move."""
        return self.median[:, self.metrics.index(metric)]


class Predictor(ABC):
    """Learns metrics from architectures. Higher and lower values are just numbers here: no direction is assumed.

    The same seeds and inputs give the same numbers.
    """

    kind: str = ""
    reads_choices: ClassVar[bool] = False  # True if it gets `Architecture`s instead of texts

    def __init__(self, seed: int = 0) -> None:
        if not isinstance(seed, int | np.integer) or seed < 0:
            raise InputError(f"seed must be a whole number from 0, not {str(seed)[:60]}")
        self.seed = int(seed)

    @property
    @abstractmethod
    def metrics(self) -> tuple[str, ...]:
        """Metrics that can be predicted."""

    @abstractmethod
    def fit(self, architectures: Inputs, metrics: Metrics) -> Self:
        """Learn from n architectures and, per metric, n values; NaN where a value is missing."""

    @abstractmethod
    def predict(
        self,
        architectures: Inputs,
        metrics: Sequence[str],
        given: Metrics | None = None,
        samples: int = 64,
        seed: int = 0,
    ) -> Predictions:
        """Predict `metrics` for n architectures; `given` holds n known values of other metrics (NaN: unknown)."""

    def estimate(self, architectures: Inputs, metrics: Sequence[str], given: Metrics | None = None) -> np.ndarray:
        """Point estimates (n, metrics), as cheap as this predictor can make them; see `predict` for the arguments."""
        return self.predict(architectures, metrics, given, samples=ESTIMATE_SAMPLES).median

    def novelty(self, architectures: Inputs) -> np.ndarray:
        """How far (n,) architectures are from those learned, in units of how far these are apart; NaN if unknown."""
        return np.full(len(architectures), np.nan)

    def examples_of(self, architectures: Inputs) -> dict[str, np.ndarray]:
        """Values (n,) per metric of n architectures that the predictor was given; NaN, or no metric, for others."""
        return {}

    def extend(self, architectures: Inputs, metrics: Metrics) -> None:
        """Learn further measurements, metrics that are new among them, without forgetting those before."""
        raise InputError(f"{self.kind}: only a predictor that keeps its examples, such as an rlm, takes further ones")

    def predict_stream(
        self,
        architectures: Iterable[str | onnx.ModelProto | Architecture],
        metrics: Sequence[str],
        samples: int = 64,
        seed: int = 0,
        jobs: int = 1,
    ) -> Iterator[Predictions]:
        """Predict any number of architectures in constant memory: `predict` of 256 at a time.

        jobs: processes of one thread each that share the work; each begins with what `save` writes.
        """
        options = {"metrics": metrics, "samples": samples, "seed": seed}
        yield from self._stream("predict", architectures, jobs, options)

    def estimate_stream(
        self, architectures: Iterable[str | onnx.ModelProto | Architecture], metrics: Sequence[str], jobs: int = 1
    ) -> Iterator[np.ndarray]:
        """`estimate`, of 256 at a time; see `predict_stream`."""
        yield from self._stream("estimate", architectures, jobs, {"metrics": metrics})

    def _stream(
        self,
        method: str,
        architectures: Iterable[str | onnx.ModelProto | Architecture],
        jobs: int,
        options: dict[str, Any],
    ) -> Iterator[Any]:
        remaining = iter(architectures)
        chunks = iter(lambda: self._prepared(list(islice(remaining, STREAM_CHUNK))), [])
        if jobs == 1:
            yield from (getattr(self, method)(chunk, **options) for chunk in chunks)
            return
        from joblib import Parallel, delayed

        with TemporaryDirectory() as folder:
            self.save(folder)
            asked = delayed(_in_worker)
            work = (asked(type(self), folder, method, chunk, options) for chunk in chunks)
            yield from Parallel(n_jobs=jobs, pre_dispatch="2*n_jobs", return_as="generator")(work)

    def _prepared(self, architectures: Inputs) -> list[Any]:
        """What other processes get."""
        return list(architectures) if self.reads_choices else as_texts(architectures)

    @abstractmethod
    def _state(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Configuration (JSON) and tensors that `_restore` rebuilds the predictor from."""

    @classmethod
    @abstractmethod
    def _restore(cls, config: dict[str, Any], tensors: dict[str, np.ndarray]) -> Self:
        """The inverse of `_state`."""

    def save(self, folder: str | Path) -> None:
        """Write `config.json` and `model.safetensors`; each file appears whole or not at all."""
        write(Path(folder), self.kind, *self._state())


@lru_cache(maxsize=1)
def _loaded(kind: type[Predictor], folder: str) -> Predictor:
    """A saved predictor, once per process."""
    import torch

    torch.set_num_threads(1)
    loaded = kind._restore(*read(Path(folder)))
    gc.freeze()  # what is there stays: looking at it again and again took the collector a tenth of the time
    return loaded


def _in_worker(kind: type[Predictor], folder: str, method: str, texts: list[Any], options: dict[str, Any]) -> Any:
    return getattr(_loaded(kind, folder), method)(texts, **options)
