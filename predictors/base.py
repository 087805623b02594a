"""The interface of all predictors: architectures in, metrics with uncertainty out."""

from __future__ import annotations

import gc
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar, Self

import numpy as np

from predictors.files import read, write
from predictors.inputs import Inputs, Metrics, Stream, as_texts
from search_spaces.common.errors import InputError
from search_spaces.common.seeds import check_seed
from search_spaces.common.threads import with_few_threads

Progress = Callable[
    [int, int, float], None
]  # called as `progress(step, steps, loss)` during training
STREAM_CHUNK = 256  # architectures per call of `predict` in a stream
ESTIMATE_SAMPLES = 4  # samples behind a point estimate
# Methods of predictors, also of a user's own, that run with one thread unless the user has chosen a
# number.
_COMPUTING = (
    "fit",
    "predict",
    "estimate",
    "novelty",
    "examples_of",
    "extend",
    "calibrate",
    "states",
    "proxies",
)


@dataclass(frozen=True)
class Predictions:
    """Predictions of m metrics for n architectures, in the metrics' own units.

    Attributes:
        metrics: names of the m columns.
        mean: (n, m).
        median: (n, m).
        std: (n, m) standard deviations.
        samples: (n, samples, m), drawn jointly over the metrics.
    """

    metrics: tuple[str, ...]
    mean: np.ndarray
    median: np.ndarray
    std: np.ndarray
    samples: np.ndarray

    @classmethod
    def of_samples(cls, metrics: Sequence[str], samples: np.ndarray) -> Predictions:
        """Summarize samples (n, samples, m) by mean, median and standard deviation."""
        samples = np.asarray(samples, np.float64)
        return cls(tuple(metrics), samples.mean(1), np.median(samples, 1), samples.std(1), samples)

    def __getitem__(self, metric: str) -> np.ndarray:
        """Point estimate (n,) of one metric: the median, which is robust to outliers among the
        samples.
        """
        return self.median[:, self.metrics.index(metric)]


class Predictor(ABC):
    """Base class of predictors. A predictor learns metrics from architectures and ignores which
    direction is better.

    The same seed and inputs give the same predictions. Methods use one thread, which is faster for
    inputs as small as these, unless the user has chosen a number
    (`search_spaces.common.threads.few_threads`).

    Args:
        seed: seed of training and sampling, at least 0.

    Raises:
        InputError: if the seed is negative or not an integer.
    """

    kind: str = ""
    # True: inputs are `Architecture`s; False: texts or ONNX models
    reads_choices: ClassVar[bool] = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name in _COMPUTING:
            if inspect.isfunction(method := vars(cls).get(name)):
                setattr(cls, name, with_few_threads(method))

    def __init__(self, seed: int = 0) -> None:
        self.seed = check_seed(seed)

    @property
    @abstractmethod
    def metrics(self) -> tuple[str, ...]:
        """Names of the metrics that can be predicted; empty before `fit`."""

    @abstractmethod
    def fit(self, architectures: Inputs, metrics: Metrics) -> Self:
        """Learn from n architectures.

        Args:
            architectures: n texts or ONNX models; `Architecture`s if `reads_choices`.
            metrics: (n,) values per metric, NaN where missing.

        Returns:
            The predictor itself.

        Raises:
            InputError: if there is no architecture or metric, a metric has no value, an infinite
                value or another length, or an input is not an architecture.
        """

    @abstractmethod
    def predict(
        self,
        architectures: Inputs,
        metrics: Sequence[str],
        given: Metrics | None = None,
        samples: int = 64,
        seed: int = 0,
    ) -> Predictions:
        """Predict m metrics for n architectures.

        Args:
            architectures: n texts or ONNX models; `Architecture`s if `reads_choices`.
            metrics: names of the m metrics.
            given: (n,) known values per metric, NaN where unknown. Predictions are conditioned on
                them; a metric that is both given and requested keeps its given values.
            samples: samples per architecture, at least 1.
            seed: seed of the samples.

        Raises:
            InputError: if the predictor is not trained, a metric is unknown, or a given value is
                infinite.
        """

    def estimate(
        self, architectures: Inputs, metrics: Sequence[str], given: Metrics | None = None
    ) -> np.ndarray:
        """Point estimates (n, m), cheaper than `predict`; see there for the arguments."""
        return self.predict(architectures, metrics, given, samples=ESTIMATE_SAMPLES).median

    def novelty(self, architectures: Inputs, metrics: Sequence[str] = ()) -> np.ndarray:
        """Distance (n,) of architectures from the training examples, relative to the distances
        among the examples.

        Above 1, it is farther than 95 % of the examples from their nearest other one. If metrics
        are named, only examples that have them count. NaN if the predictor cannot tell.
        """
        return np.full(len(architectures), np.nan)

    def examples_of(self, architectures: Inputs) -> dict[str, np.ndarray]:
        """Stored values (n,) per metric of n architectures; NaN for architectures that are not
        among the examples.

        Empty if the predictor keeps no examples.
        """
        return {}

    def extend(self, architectures: Inputs, metrics: Metrics) -> None:
        """Add further examples, possibly with new metrics, to those of `fit`; same arguments as
        `fit`.

        Raises:
            InputError: if the predictor does not keep its examples.
        """
        raise InputError(
            f"{self.kind}: only a predictor that keeps its examples, such as rlm, can be extended"
        )

    def predict_stream(
        self,
        architectures: Stream,
        metrics: Sequence[str],
        samples: int = 64,
        seed: int = 0,
        jobs: int = 1,
    ) -> Iterator[Predictions]:
        """Predict any number of architectures in constant memory, `STREAM_CHUNK` at a time.

        Args:
            architectures: may be a generator; the next three arguments are those of `predict`.
            jobs: worker processes, each with one thread and a copy of the predictor made by `save`.

        Yields:
            The predictions of one chunk.
        """
        return self._stream(
            "predict", architectures, jobs, {"metrics": metrics, "samples": samples, "seed": seed}
        )

    def estimate_stream(
        self, architectures: Stream, metrics: Sequence[str], jobs: int = 1
    ) -> Iterator[np.ndarray]:
        """Point estimates (n, m) of one chunk after another; see `predict_stream`."""
        return self._stream("estimate", architectures, jobs, {"metrics": metrics})

    def _stream(
        self, method: str, architectures: Stream, jobs: int, options: dict[str, Any]
    ) -> Iterator[Any]:
        remaining = iter(architectures)
        chunks = iter(lambda: self._prepared(list(islice(remaining, STREAM_CHUNK))), [])
        if jobs == 1:
            yield from (getattr(self, method)(chunk, **options) for chunk in chunks)
            return
        from joblib import Parallel, delayed

        with TemporaryDirectory() as folder:
            self.save(folder)
            work = (
                delayed(_in_worker)(type(self), folder, method, chunk, options) for chunk in chunks
            )
            yield from Parallel(n_jobs=jobs, pre_dispatch="2*n_jobs", return_as="generator")(work)

    def _prepared(self, architectures: Inputs) -> list[Any]:
        """Inputs in a form that can be sent to another process."""
        return list(architectures) if self.reads_choices else as_texts(architectures)

    @abstractmethod
    def _state(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Configuration (JSON) and tensors of a checkpoint."""

    @classmethod
    @abstractmethod
    def _restore(cls, config: dict[str, Any], tensors: dict[str, np.ndarray]) -> Self:
        """Rebuild the predictor from what `_state` returned."""

    def save(self, folder: str | Path) -> None:
        """Write `config.json` and `model.safetensors`, each atomically.

        Raises:
            InputError: if the predictor is not trained.
        """
        write(Path(folder), self.kind, *self._state())


@lru_cache(maxsize=1)
def _loaded(kind: type[Predictor], folder: str) -> Predictor:
    """Load a saved predictor once per process."""
    import torch

    torch.set_num_threads(1)
    loaded = kind._restore(*read(Path(folder)))
    gc.freeze()  # the predictor lives as long as the process: scanning it took a tenth of the time
    return loaded


def _in_worker(
    kind: type[Predictor], folder: str, method: str, texts: list[Any], options: dict[str, Any]
) -> Any:
    return getattr(_loaded(kind, folder), method)(texts, **options)
