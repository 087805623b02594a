"""The interface of all predictors: architectures in, metrics with uncertainty out.

`Predictor` is the contract: `fit`, `predict`, `save`. A predictor of one's own implements its
abstract methods; the checks of inputs below do what every implementation needs first. The
predictors of this package derive from `SamplingPredictor`, which leaves only the drawing of samples
to them.
"""

from __future__ import annotations

import gc
import inspect
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self

import numpy as np

from predictors.checkpoint import read, write
from predictors.features import with_exact_costs
from predictors.metrics import EXACT, MAX_VALUE, MIN_RANGE
from search_spaces import Architecture, to_text
from search_spaces.common.errors import InputError, unknown
from search_spaces.common.process import with_few_threads
from search_spaces.common.seeds import check_seed

if TYPE_CHECKING:
    import onnx

Inputs = Sequence["str | onnx.ModelProto | Architecture"]
Stream = Iterable["str | onnx.ModelProto | Architecture"]
Metrics = Mapping[str, Sequence[float] | np.ndarray]

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
        return cls(
            metrics=tuple(metrics),
            mean=samples.mean(1),
            median=np.median(samples, 1),
            std=samples.std(1),
            samples=samples,
        )

    def __getitem__(self, metric: str) -> np.ndarray:
        """Point estimate (n,) of one metric: the median of its samples.

        The median is robust to outliers among the samples.
        """
        return self.median[:, self.metrics.index(metric)]


class Predictor(ABC):
    """Base class of predictors.

    A predictor learns metrics from architectures and ignores which direction is better. The same
    seed and inputs give the same predictions. Methods use one thread, which is faster for inputs as
    small as these, unless the user has chosen a number
    (`search_spaces.common.process.few_threads`).

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

    def save(self, folder: str | Path) -> None:
        """Write `config.json` and `model.safetensors`, each atomically.

        Raises:
            InputError: if the predictor is not trained.
        """
        write(Path(folder), self.kind, *self._state())

    @abstractmethod
    def _state(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Configuration (JSON) and tensors of a checkpoint."""

    @classmethod
    @abstractmethod
    def _restore(cls, config: dict[str, Any], tensors: dict[str, np.ndarray]) -> Self:
        """Rebuild the predictor from what `_state` returned."""

    # --- what some predictors do better or cheaper

    def estimate(
        self,
        architectures: Inputs,
        metrics: Sequence[str],
        given: Metrics | None = None,
    ) -> np.ndarray:
        """Point estimates (n, m), cheaper than `predict`; see there for the arguments."""
        return self.predict(architectures, metrics, given, samples=ESTIMATE_SAMPLES).median

    def novelty(self, architectures: Inputs, metrics: Sequence[str] = ()) -> np.ndarray:
        """Distance (n,) of architectures from the training examples.

        It is relative to the distances among the examples. Above 1, it is farther than 95 % of the
        examples from their nearest other one. If metrics are named, only examples that have them
        count. NaN if the predictor cannot tell.
        """
        return np.full(len(architectures), np.nan)

    def examples_of(self, architectures: Inputs) -> dict[str, np.ndarray]:
        """Stored values (n,) per metric of n architectures.

        They are NaN for architectures that are not among the examples. The result is empty if the
        predictor keeps no examples.
        """
        return {}

    def extend(self, architectures: Inputs, metrics: Metrics) -> None:
        """Add further examples, possibly with new metrics, to those of `fit`.

        The arguments are those of `fit`.

        Raises:
            InputError: if the predictor does not keep its examples.
        """
        raise InputError(
            f"{self.kind}: only a predictor that keeps its examples, such as rlm, can be extended"
        )

    # --- any number of architectures

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
        options = {"metrics": metrics, "samples": samples, "seed": seed}
        return self._stream("predict", architectures, jobs, options)

    def estimate_stream(
        self,
        architectures: Stream,
        metrics: Sequence[str],
        jobs: int = 1,
    ) -> Iterator[np.ndarray]:
        """Point estimates (n, m) of one chunk after another; see `predict_stream`."""
        return self._stream("estimate", architectures, jobs, {"metrics": metrics})

    def _stream(
        self,
        method: str,
        architectures: Stream,
        jobs: int,
        options: dict[str, Any],
    ) -> Iterator[Any]:
        chunks = self._chunks(architectures)
        if jobs == 1:
            for chunk in chunks:
                yield getattr(self, method)(chunk, **options)
            return
        from joblib import Parallel, delayed

        with TemporaryDirectory() as folder:
            self.save(folder)
            in_workers = Parallel(n_jobs=jobs, pre_dispatch="2*n_jobs", return_as="generator")
            yield from in_workers(
                delayed(_in_worker)(type(self), folder, method, chunk, options) for chunk in chunks
            )

    def _chunks(self, architectures: Stream) -> Iterator[list[Any]]:
        """`STREAM_CHUNK` inputs after another, in a form that can be sent to another process."""
        remaining = iter(architectures)
        while chunk := list(islice(remaining, STREAM_CHUNK)):
            yield chunk if self.reads_choices else as_texts(chunk)


@lru_cache(maxsize=1)
def _loaded(kind: type[Predictor], folder: str) -> Predictor:
    """Load a saved predictor once per process."""
    import torch

    torch.set_num_threads(1)
    loaded = kind._restore(*read(Path(folder)))
    gc.freeze()  # the predictor lives as long as the process: scanning it took a tenth of the time
    return loaded


def _in_worker(
    kind: type[Predictor],
    folder: str,
    method: str,
    texts: list[Any],
    options: dict[str, Any],
) -> Any:
    return getattr(_loaded(kind, folder), method)(texts, **options)


class SamplingPredictor(Predictor):
    """Base class of the predictors of this package: `_draw` gets a checked request; given values
    and exact costs then replace drawn values.
    """

    _metrics: tuple[str, ...] = ()

    @property
    def metrics(self) -> tuple[str, ...]:
        return self._metrics

    def predict(
        self,
        architectures: Inputs,
        metrics: Sequence[str],
        given: Metrics | None = None,
        samples: int = 64,
        seed: int = 0,
    ) -> Predictions:
        observed = check_request(self, architectures, metrics, given, samples)
        drawn = self._draw(architectures, metrics, observed, samples, seed)  # (n, samples, m)
        # Params and FLOPs do not follow from choices alone.
        if not self.reads_choices and any(name in EXACT for name in metrics):
            drawn = with_exact_costs(as_texts(architectures), metrics, drawn)
        for column, name in enumerate(metrics):
            if name in observed:
                values = observed[name]
                is_observed = ~np.isnan(values)
                drawn[is_observed, :, column] = values[is_observed, None]
        return Predictions.of_samples(metrics, drawn)

    @abstractmethod
    def _draw(
        self,
        architectures: Inputs,
        metrics: Sequence[str],
        observed: dict[str, np.ndarray],
        samples: int,
        seed: int,
    ) -> np.ndarray:
        """Samples (n, samples, m), conditioned on observed values.

        observed: values (n,) per metric, NaN where not observed.
        """

    def _config(self) -> dict[str, Any]:
        """The configuration that the checkpoints of all trained predictors share."""
        if not self.metrics:
            raise InputError(f"the {self.kind} predictor is not trained: there is nothing to save")
        return {"seed": self.seed, "metrics": list(self.metrics)}


# --- checks of inputs


class HasMetrics(Protocol):
    """The attributes of a predictor that `check_request` reads."""

    kind: str

    @property
    def metrics(self) -> tuple[str, ...]: ...


def as_texts(architectures: Inputs) -> list[str]:
    """Convert ONNX models to texts; texts stay as they are.

    Raises:
        InputError: for any other type.
    """
    if isinstance(architectures, str):
        raise InputError(f"give a list of texts, not a text: [{architectures[:60]!r}]")
    texts = []
    for network in architectures:
        if isinstance(network, Architecture):
            raise InputError(
                "this predictor reads text: give space.to_text(architecture), not "
                f"{str(network)[:80]}"
            )
        if not isinstance(network, str) and not hasattr(network, "graph"):
            raise InputError(
                f"this predictor reads texts and ONNX models, not {type(network).__name__}"
            )
        if isinstance(network, str):
            texts.append(network)
        else:
            texts.append(to_text(network))
    return texts


def as_targets(architectures: Inputs, metrics: Metrics) -> dict[str, np.ndarray]:
    """Check training targets of n architectures.

    Returns:
        float64 (n,) per metric, NaN where missing. Values below `MIN_RANGE` become 0.

    Raises:
        InputError: if there is no architecture or metric, a metric has no value or a range between
            0 and `MIN_RANGE`, or `as_given` refuses the values.
    """
    if not len(architectures):
        raise InputError("there is no architecture to learn from")
    if not metrics:
        raise InputError("there is no metric to learn")
    targets = as_given(architectures, metrics)
    for name, values in targets.items():
        observed = values[~np.isnan(values)]
        if not len(observed):
            raise InputError(f"metric {name!r} has no value to learn from")
        span = np.ptp(observed)
        if 0 < span < MIN_RANGE:
            raise InputError(f"metric {name!r} spans {span:.3g}: give it in a larger unit")
        targets[name] = np.where(np.abs(values) < MIN_RANGE, 0.0, values)
    return targets


def as_given(architectures: Inputs, metrics: Metrics | None) -> dict[str, np.ndarray]:
    """Check known values of n architectures.

    Returns:
        float64 (n,) per metric, NaN where unknown.

    Raises:
        InputError: if values are not numbers, are infinite or above `MAX_VALUE`, or if there are
            not n of them.
    """
    checked: dict[str, np.ndarray] = {}
    for name, values in (metrics or {}).items():
        try:
            array = np.asarray(values, np.float64)
        except (TypeError, ValueError) as error:
            raise InputError(f"metric {name!r} has a value that is not a number") from error
        if array.shape != (len(architectures),):
            raise InputError(
                f"metric {name!r} has shape {array.shape} for {len(architectures)} architectures"
            )
        if np.isinf(array).any():
            raise InputError(f"metric {name!r} has an infinite value; use NaN for a missing one")
        if (np.abs(array) > MAX_VALUE).any():
            largest = np.nanmax(np.abs(array))
            raise InputError(
                f"metric {name!r} has the value {largest:.3g}: give it in another unit"
            )
        checked[name] = array
    return checked


def check_request(
    predictor: HasMetrics,
    architectures: Inputs,
    metrics: Sequence[str],
    given: Metrics | None,
    samples: int,
) -> dict[str, np.ndarray]:
    """Check the arguments of `Predictor.predict`.

    Returns:
        The given values, float64 (n,) per metric.

    Raises:
        InputError: if the predictor is not trained, a metric is unknown, samples < 1, or `as_given`
            refuses a value.
    """
    if not predictor.metrics:
        raise InputError(
            f"the {predictor.kind} predictor is not trained: call fit first, or load a checkpoint"
        )
    for name in metrics:
        if name not in predictor.metrics:
            raise unknown("metric", name, predictor.metrics)
    check_samples(samples)
    observed = as_given(architectures, given)
    for name in observed:
        if name not in predictor.metrics:
            raise unknown("given metric", name, predictor.metrics)
    return observed


def check_samples(samples: int) -> None:
    """Check a number of samples.

    Raises:
        InputError: if it is not a whole number of at least 1.
    """
    if isinstance(samples, float) or samples < 1:
        raise InputError(f"samples must be a whole number of at least 1, not {samples}")


def group_by_observed(
    count: int,
    observed: Metrics,
) -> list[tuple[np.ndarray, list[str]]]:
    """Row numbers and observed metrics of each group of `count` rows in which the same ones are
    observed; NaN means not observed.
    """
    if not observed:
        everything = np.arange(count)
        return [(everything, [])] if count else []
    names = list(observed)
    columns = np.stack([observed[name] for name in names], 1)  # (count, names)
    groups = []
    for rows, is_observed in rows_by_pattern(~np.isnan(columns)):
        names_of_rows = [names[column] for column in np.flatnonzero(is_observed)]
        groups.append((rows, names_of_rows))
    return groups


def rows_by_pattern(mask: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Row numbers of each group of equal rows of a mask (n, k), and that row (k,)."""
    patterns, pattern_of_row = np.unique(mask, axis=0, return_inverse=True)
    pattern_of_row = pattern_of_row.ravel()
    for number, pattern in enumerate(patterns):
        yield np.flatnonzero(pattern_of_row == number), pattern


def restore_values(
    config: Mapping[str, Any],
    tensors: Mapping[str, np.ndarray],
    inputs: str,
) -> dict[str, np.ndarray]:
    """The values (n,) per metric of a checkpoint's examples, checked together with their inputs.

    Args:
        config: configuration with the names of the metrics.
        tensors: tensors of the checkpoint.
        inputs: name of the tensor (n, d) of the examples' inputs.

    Raises:
        InputError: if inputs and values do not match or are not finite.
    """
    names, matrix = config["metrics"], tensors[inputs]
    values = dict(zip(names, tensors["values"], strict=True))
    if not all(isinstance(name, str) for name in names) or len(values) < len(names):
        raise InputError("damaged checkpoint: the names of its metrics are not distinct strings")
    if matrix.ndim != 2 or not np.isfinite(matrix).all():
        raise InputError(f"damaged checkpoint: {inputs} is not a matrix of finite numbers")
    try:
        return as_targets([""] * len(matrix), values)
    except InputError as error:
        raise InputError(f"damaged checkpoint: {error}") from error
