"""Evaluators: where the values of an architecture come from.

`Evaluator` states everything that a search may ask of one, with defaults:

    measure   what needs no training, such as parameters and latency; a network that breaks a limit
              by these values is never trained
    train     the other metrics, by a whole training or by one segment of it
    source    how another process opens the same evaluator

`TableEvaluator` looks values up, and `PredictionEvaluator` predicts them. Those that build networks,
to train and measure them, are in `nas.search.measured_evaluator` and `nas.search.own_evaluator`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from nas.evaluation.devices import devices_of
from nas.evaluation.metrics import check_metrics
from nas.search.study.trial_logger import EvaluationLogger, plain_number
from nas.search.trainings import Fidelities, Segment
from predictors.checkpoint import checksum
from predictors.metrics import Metric, at_fidelity, is_valid, split_fidelity
from search_spaces.common.errors import EvaluatorError, InputError, unknown

if TYPE_CHECKING:
    from nas.benchmarks import Benchmark
    from predictors import Predictor
    from search_spaces import Architecture, SearchSpace

COSTS = ("params", "flops")
# Networks that a guided search measures per training, at most, unless the user gives a number
MAX_PER_TRAINING = 5
Values = Mapping[str, float]


class Evaluator:
    """Base class of evaluators.

    A subclass has `metrics` and defines `__call__`, or `measure` and `train`. All other members have
    defaults. An object that is no subclass, but has `metrics` and `__call__`, is accepted, too.

    Example: values of a device of your own, which need no training.

        >>> import nas, numpy as np
        >>> class Board(nas.Evaluator):
        ...     metrics = ("board_ms",)
        ...     def __call__(self, architectures):
        ...         return np.array([[1.5 * len(a.choices)] for a in architectures])
        >>> problem = nas.Problem("tiny-resnet", Board(), "board_ms")
        >>> float(nas.search(problem, sampler="random", evaluations=2).front["board_ms"][0])
        15.0

    Attributes:
        metrics: names of the m metrics.
        space: the space whose networks it evaluates; None if another process need not know it.
        device: PyTorch device that trains networks; GPUs are assigned to processes in turn.
        checkpoints: folder for the states of trainings.
        reference: `FILE.py:FUNCTION` of the user's function, which other processes open.
        keeps_weights: True if trainings leave weights, for which a search then needs a folder.
        measured_per_training: networks that a guided search measures by default before it trains
            one of them (`nas.search.shortlist`); None decides by the seconds that both take.
    """

    metrics: tuple[str, ...]
    space: SearchSpace | None = None
    device: str = "cpu"
    checkpoints: Path | None = None
    reference: str = ""
    keeps_weights: bool = False
    measured_per_training: int | None = None

    @property
    def trained(self) -> tuple[str, ...]:
        """Metrics that `measure` does not give: those that cost a training."""
        return tuple(self.metrics)

    @property
    def measured(self) -> tuple[str, ...]:
        """Metrics that `measure` gives, without a training."""
        return tuple(metric for metric in self.metrics if metric not in self.trained)

    @property
    def settings(self) -> Mapping[str, Any]:
        """Plain values that the results depend on. A search resumes only with equal ones."""
        return {}

    @property
    def source(self) -> dict[str, Any]:
        """What the study stores about the evaluator, as plain values.

        If another process can open the evaluator, they are all that it needs for that
        (`nas.search.joining.open_evaluator`).
        """
        return {"evaluator": dict(self.settings)} if self.settings else {}

    @property
    def uncompared(self) -> Mapping[str, str]:
        """Values that the results depend on and that cannot be compared: kind by name.

        The search logs them, since it will not notice their changes when it resumes.
        """
        return {}

    @property
    def rows(self) -> list[Architecture] | None:
        """The only architectures that have values; None for the whole space."""
        return None

    def __call__(self, architectures: Sequence[Architecture]) -> np.ndarray:
        """Values of n architectures, outside of a search.

        Returns:
            (n, m) values in the metrics' own units; NaN marks a failure.
        """
        rows = []
        for architecture in architectures:
            log = EvaluationLogger()
            observed = self.measure(architecture, log)
            values = self.train(architecture, observed, log)
            rows.append([values[metric] for metric in self.metrics])
        return np.array(rows, dtype=float).reshape(-1, len(self.metrics))

    def measure(self, architecture: Architecture, log: EvaluationLogger) -> dict[str, float]:
        """Values of the metrics that need no training, by default of none.

        Args:
            architecture: the network.
            log: takes further results, such as the spread of a latency.

        Raises:
            MeasurementError: the network has no value of a metric. It is then not trained, and a
                search stores the reason.
        """
        return {}

    def train(
        self,
        architecture: Architecture,
        observed: Values,
        log: EvaluationLogger,
        segment: Segment | None = None,
    ) -> dict[str, float]:
        """Values of all m metrics after a training, by default one call of `__call__`.

        Args:
            architecture: the network.
            observed: values that are known before: those of `measure`, or of the segment before.
            log: takes learning curve, further values and weights.
            segment: the part of the training that is due; None for a whole training.

        Raises:
            EvaluatorError: the evaluator broke its contract, as by another number of values.
            InputError: a value is not a number.
        """
        if type(self).__call__ is Evaluator.__call__:
            raise EvaluatorError(
                f"{type(self).__name__} must define __call__, or measure and train"
            )
        row = _single_row(self([architecture]), self.metrics)
        return dict(zip(self.metrics, row.tolist(), strict=True))

    def fidelities(self, levels: Sequence[int]) -> Fidelities:
        """The fidelities at which trainings of this evaluator pause.

        Args:
            levels: rising epochs; the last is the full training.

        Raises:
            InputError: its trainings cannot pause at these.
        """
        raise InputError(
            "fidelities need a table, the built-in training, or a function that trains: predictions "
            "have none"
        )

    def forget(self, architecture: Architecture) -> None:
        """Remove what was kept to continue the training of a network, which has ended."""

    def probe(self, architectures: Sequence[Architecture]) -> float | None:
        """Mean seconds of an evaluation, estimated in about a second from parts of some.

        None if only a whole evaluation can tell it. The metrics `unprobed` are left out.
        """
        return None

    @property
    def unprobed(self) -> tuple[str, ...]:
        """Measured metrics, as of a runtime or a device, that may take longer than a second."""
        return ()


class _Called(Evaluator):
    """A user's object that has `metrics` and `__call__`, and perhaps attributes of `Evaluator`."""

    def __init__(self, evaluator: Any) -> None:
        self.evaluator = evaluator
        self.metrics = tuple(evaluator.metrics)
        for name in ("space", "device", "checkpoints", "reference"):
            setattr(self, name, getattr(evaluator, name, getattr(Evaluator, name)))

    @property
    def settings(self) -> Mapping[str, Any]:
        return getattr(self.evaluator, "settings", None) or {}

    def __call__(self, architectures: Sequence[Architecture]) -> np.ndarray:
        return self.evaluator(architectures)  # `train` checks it


class EvaluatorLike(Protocol):
    """What is accepted as an evaluator besides subclasses of `Evaluator`."""

    @property
    def metrics(self) -> Sequence[str]:
        """Names of the m metrics."""

    def __call__(self, architectures: Sequence[Architecture], /) -> np.ndarray:
        """Values (n, m) of n architectures."""


def as_evaluator(evaluator: Any) -> Evaluator:
    """The evaluator that a user gives: the only place that accepts objects of other classes."""
    return evaluator if isinstance(evaluator, Evaluator) else _Called(evaluator)


def _single_row(returned: Any, metrics: Sequence[str]) -> np.ndarray:
    """The values (m,) of a call with one architecture.

    Raises:
        EvaluatorError: there is another number of values.
        InputError: the evaluator returned None, or a value that is not a number.
    """
    if returned is None:
        raise InputError(f"the evaluator returned None, not an array of shape (1, {len(metrics)})")
    try:
        values = np.asarray(returned, dtype=float)
    except (TypeError, ValueError):  # one by one, to name what is not a number
        row: list[Any] = list(*returned)
        values = np.array([[plain_number(*pair) for pair in zip(metrics, row, strict=False)]])
    if values.shape != (1, len(metrics)):
        raise EvaluatorError(
            f"the evaluator returned shape {values.shape}, not (1, {len(metrics)})"
        )
    return values[0]


def check_trained(trained: Sequence[str], metrics: Sequence[str]) -> None:
    """Raise InputError if no metric depends on training."""
    if not trained:
        raise InputError(
            f"fidelities need an objective that depends on training, unlike {', '.join(metrics)}"
        )


def _refuse_devices(metrics: Sequence[str], available: Sequence[str], reason: str) -> None:
    """Raise InputError if a metric is the latency on an added device.

    Metrics in `available` have values and are accepted.
    """
    for device in devices_of(metrics, available):
        raise InputError(
            f"{device.metric} is predicted from the measurements of `nas device add "
            f"{device.name}`, {reason}: search with --space alone, which measures the other "
            "metrics"
        )


class TableEvaluator(Evaluator):
    """Looks values up in a benchmark's table.

    Accuracies count as trained, the other metrics as measured, unless `cheap` names the measured
    ones. With `cheap`, a guided search looks up these metrics of `MAX_PER_TRAINING` networks before
    it chooses one, as if they were measured. Without, only what is evaluated is looked up.

    Columns such as `accuracy@12` or `accuracy_12epochs` are lower fidelities: the first is a point
    of the learning curve of a full training, the second the result of a separate training of 12
    epochs.

    Example:

        >>> import nas
        >>> table = nas.load_benchmark("digits201")
        >>> evaluator = nas.TableEvaluator(table, ["digits_accuracy", "cpu_latency_ms"])
        >>> evaluator(table.architectures[:3]).shape  # in % and ms
        (3, 2)
        >>> evaluator.trained
        ('digits_accuracy',)

    Args:
        benchmark: the table.
        metrics: the m metrics that are looked up, in the table's own units.
        cheap: metrics among these that count as measured without a training.

    Raises:
        InputError: a metric, or later an architecture, is unknown.
    """

    def __init__(
        self, benchmark: Benchmark, metrics: Sequence[str], cheap: Sequence[str] | None = None
    ) -> None:
        _refuse_devices(
            metrics, benchmark.metrics, f"but the metrics of {benchmark.name} are looked up"
        )
        check_metrics(metrics, benchmark.known_metrics)
        benchmark.check_counts(metrics)
        self.benchmark = benchmark
        self.metrics = tuple(metrics)
        self.cheap = None if cheap is None else tuple(cheap)
        if self.cheap is None:
            self._trained = tuple(m for m in metrics if Metric.parse(m).kind == "accuracy")
            self.measured_per_training = 1
        else:
            if strange := [metric for metric in self.cheap if metric not in self.metrics]:
                raise unknown("cheap metric", strange[0], self.metrics)
            self._trained = tuple(metric for metric in metrics if metric not in self.cheap)
            self.measured_per_training = MAX_PER_TRAINING

    @property
    def trained(self) -> tuple[str, ...]:
        return self._trained

    @property
    def source(self) -> dict[str, Any]:
        source = {**self.benchmark.source, "sha256": self.benchmark.checksum(self.metrics)}
        return source if self.cheap is None else source | {"cheap": list(self.cheap)}

    @property
    def rows(self) -> list[Architecture] | None:
        """The architectures that have a value of every metric.

        None if these are the whole space. Raises InputError if there are none.
        """
        columns = np.array([self.benchmark.values(metric) for metric in self.metrics])  # (m, rows)
        is_complete = is_valid(columns).all(axis=0)  # (rows,)
        if is_complete.all() and self.benchmark.is_whole:
            return None
        if not is_complete.any():
            raise InputError(
                f"no row of {self.benchmark.name} has all of the metrics {', '.join(self.metrics)}"
            )
        return [self.benchmark.architectures[i] for i in np.flatnonzero(is_complete).tolist()]

    def __call__(self, architectures: Sequence[Architecture]) -> np.ndarray:
        rows = []
        for architecture in architectures:
            values = self.benchmark.query(architecture, self.metrics)
            rows.append([values[metric] for metric in self.metrics])
        return np.array(rows).reshape(-1, len(self.metrics))

    def measure(self, architecture: Architecture, log: EvaluationLogger) -> dict[str, float]:
        return self.benchmark.query(architecture, self.measured)

    def train(
        self,
        architecture: Architecture,
        observed: Values,
        log: EvaluationLogger,
        segment: Segment | None = None,
    ) -> dict[str, float]:
        if segment is None:
            return super().train(architecture, observed, log)
        # The last fidelity is the metric itself.
        level = math.inf if segment.is_last else segment.until
        columns = {metric: self._columns.get((metric, level), metric) for metric in self.metrics}
        row = self.benchmark.query(architecture, columns.values())
        values = {metric: row[column] for metric, column in columns.items()}
        log.report(segment.until, {metric: values[metric] for metric in self.trained})
        return values

    def fidelities(self, levels: Sequence[int]) -> Fidelities:
        fidelities = Fidelities.of(levels, continues=True)
        check_trained(self.trained, self.metrics)
        lower = [(metric, level) for metric in self.trained for level in levels[:-1]]
        for metric, level in lower:
            if (metric, level) not in self._columns:
                levels_of_metric = [epochs for name, epochs in self._columns if name == metric]
                available = sorted(int(epochs) for epochs in levels_of_metric if epochs < math.inf)
                where = ", ".join(map(str, available)) or "no other"
                raise InputError(
                    f"{self.benchmark.name} has no {metric} at fidelity {level}: it has it at {where}"
                )
        # Columns of learning curves are named otherwise than those of separate trainings.
        are_curves = all(self._columns[pair] == at_fidelity(*pair) for pair in lower)
        return fidelities._replace(continues=are_curves)

    @cached_property
    def _columns(self) -> dict[tuple[str, float], str]:
        """The table's columns by metric and fidelity."""
        return {split_fidelity(column): column for column in self.benchmark.metrics}


class PredictionEvaluator(Evaluator):
    """Predicts values as the medians of a fitted predictor's samples.

    Parameters and FLOPs are counted.

    Example:

        >>> import nas, predictors
        >>> table = nas.load_benchmark("digits201")
        >>> networks = table.architectures[:40]
        >>> texts = [table.space.to_text(network) for network in networks]
        >>> accuracies = table.values("digits_accuracy")[:40]
        >>> model = predictors.create("ridge").fit(texts, {"digits_accuracy": accuracies})
        >>> evaluator = nas.PredictionEvaluator(model, table.space, ["digits_accuracy", "params"])
        >>> evaluator(networks[:2]).shape
        (2, 2)

    Args:
        predictor: the fitted predictor.
        space: the search space.
        metrics: the m metrics to predict or count.
        name: the predictor's checkpoint.

    Raises:
        InputError: the predictor was not trained on one of the metrics.
    """

    space: SearchSpace

    def __init__(
        self, predictor: Predictor, space: SearchSpace, metrics: Sequence[str], name: str = ""
    ) -> None:
        self._predicted = [metric for metric in metrics if metric not in COSTS]
        _refuse_devices(
            self._predicted,
            predictor.metrics,
            "but a checkpoint predicts only what it was trained on",
        )
        check_metrics(self._predicted, predictor.metrics)
        self.predictor = predictor
        self.space = space
        self.metrics = tuple(metrics)
        self.name = name

    @classmethod
    def load(
        cls, checkpoint: str, space: SearchSpace, metrics: Sequence[str]
    ) -> PredictionEvaluator:
        """The evaluator with a checkpoint: a folder, or the name of a shipped one."""
        from predictors.registry import load, load_trained

        # A pretrained checkpoint without trained metrics serves if nothing is predicted.
        is_counted = all(metric in COSTS for metric in metrics)
        predictor = load(checkpoint) if is_counted else load_trained(checkpoint)
        return cls(predictor, space, metrics, checkpoint)

    @property
    def source(self) -> dict[str, Any]:
        return {"predictor": self.name, "sha256": checksum(self.name)} if self.name else {}

    def __call__(self, architectures: Sequence[Architecture]) -> np.ndarray:
        inputs: list[Any] = list(architectures)
        if not self.predictor.reads_choices:
            inputs = [self.space.to_text(architecture) for architecture in architectures]
        columns: dict[str, Any] = {}  # (n,) by metric
        for cost in COSTS:
            if cost in self.metrics:
                count = getattr(self.space, cost)
                columns[cost] = [count(architecture) for architecture in architectures]
        if self._predicted:
            medians = self.predictor.predict(inputs, self._predicted).median  # (n, predicted)
            columns |= dict(zip(self._predicted, medians.T, strict=True))
        return np.array([columns[metric] for metric in self.metrics], dtype=float).T
