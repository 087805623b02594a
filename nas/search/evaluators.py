"""Evaluators: where the values of an architecture come from.

`Evaluator` states everything that a search may ask of one, with defaults:

    measure   what needs no training, such as parameters and latency; a network that breaks a limit
              by these values is never trained
    train     the other metrics, by a whole training or by one segment of it
    source    how another process opens the same evaluator

`TableEvaluator` looks values up, `PredictionEvaluator` predicts them, `MeasuredEvaluator` trains and
measures networks, and `nas.search.own_evaluator.FunctionEvaluator` calls a function of the user's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from nas.evaluation.devices import devices_of
from nas.evaluation.int8 import score_metrics as int8_scores
from nas.evaluation.measurement import known_metrics
from nas.evaluation.metrics import check_metrics
from nas.evaluation.trainable import Trainable
from nas.search.study.trial_logger import EvaluationLogger, plain_number
from nas.search.trainings import Fidelities, Segment
from predictors.checkpoint import checksum
from predictors.metrics import Metric, at_fidelity, is_valid, split_fidelity
from search_spaces import Subnetworks
from search_spaces.common.errors import EvaluatorError, InputError, unknown
from search_spaces.ir.text import fingerprint

if TYPE_CHECKING:
    from nas.benchmarks import Benchmark
    from nas.evaluation.measurement import Measured, Measurement
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
        """What the study stores about the evaluator, as plain values: if another process can open
        it, all that it needs for that (`nas.search.joining.open_evaluator`).
        """
        return {"evaluator": dict(self.settings)} if self.settings else {}

    @property
    def uncompared(self) -> Mapping[str, str]:
        """Values that the results depend on and that cannot be compared when a search resumes: kind
        by name.
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
            log: takes what else is known, such as the spread of a latency.

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


def _check_trained(trained: Sequence[str], metrics: Sequence[str]) -> None:
    """Raise InputError if no metric depends on training."""
    if not trained:
        raise InputError(
            f"fidelities need an objective that depends on training, unlike {', '.join(metrics)}"
        )


def _refuse_devices(metrics: Sequence[str], known: Sequence[str], reason: str) -> None:
    """Raise InputError if one of the metrics is the latency on an added device and is not among the
    known ones.
    """
    for device in devices_of(metrics, known):
        raise InputError(
            f"{device.metric} is predicted from the measurements of `nas device add "
            f"{device.name}`, {reason}: "
            "search with --space alone, which measures the other metrics"
        )


class TableEvaluator(Evaluator):
    """Looks values up in a benchmark's table. Accuracies count as trained, the other metrics as
    measured, unless `cheap` names the measured ones.

    With `cheap`, a guided search looks up these metrics of `MAX_PER_TRAINING` networks before it
    chooses one, as if they were measured. Without, only what is evaluated is looked up.

    Columns such as `accuracy@12` or `accuracy_12epochs` are lower fidelities: the first is a point
    of the learning curve of a full training, the second the result of a separate training of 12
    epochs.

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
        """The architectures that have a value of every metric; None if these are the whole
        space.
        """
        known = is_valid(np.array([self.benchmark.values(metric) for metric in self.metrics])).all(
            axis=0
        )
        if known.all() and self.benchmark.is_whole:
            return None
        if not known.any():
            raise InputError(
                f"no row of {self.benchmark.name} has all of the metrics {', '.join(self.metrics)}"
            )
        return [self.benchmark.architectures[i] for i in np.flatnonzero(known).tolist()]

    def __call__(self, architectures: Sequence[Architecture]) -> np.ndarray:
        rows = [self.benchmark.query(architecture, self.metrics) for architecture in architectures]
        return np.array([[row[metric] for metric in self.metrics] for row in rows]).reshape(
            -1, len(self.metrics)
        )

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
        _check_trained(self.trained, self.metrics)
        lower = [(metric, level) for metric in self.trained for level in levels[:-1]]
        for metric, level in lower:
            if (metric, level) not in self._columns:
                known = sorted(
                    int(of) for name, of in self._columns if name == metric and of < math.inf
                )
                have = f"has it at {', '.join(map(str, known))}" if known else "has it at no other"
                raise InputError(
                    f"{self.benchmark.name} has no {metric} at fidelity {level}: it {have}"
                )
        curves = all(self._columns[pair] == at_fidelity(*pair) for pair in lower)
        return fidelities._replace(continues=curves)

    @cached_property
    def _columns(self) -> dict[tuple[str, float], str]:
        """The table's columns by metric and fidelity."""
        return {split_fidelity(column): column for column in self.benchmark.metrics}


class PredictionEvaluator(Evaluator):
    """Predicts values as the medians of a fitted predictor's samples. Parameters and FLOPs are
    counted.

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

        counted = all(metric in COSTS for metric in metrics)
        return cls(
            load(checkpoint) if counted else load_trained(checkpoint), space, metrics, checkpoint
        )

    @property
    def source(self) -> dict[str, Any]:
        return {"predictor": self.name, "sha256": checksum(self.name)} if self.name else {}

    def __call__(self, architectures: Sequence[Architecture]) -> np.ndarray:
        reads_choices = self.predictor.reads_choices
        inputs = (
            list(architectures) if reads_choices else [self.space.to_text(a) for a in architectures]
        )
        columns: dict[str, Any] = {}
        for cost in COSTS:
            if cost in self.metrics:
                columns[cost] = [getattr(self.space, cost)(a) for a in architectures]
        if self._predicted:
            medians = self.predictor.predict(inputs, self._predicted).median  # (n, predicted)
            columns |= dict(zip(self._predicted, medians.T, strict=True))
        return np.array([columns[metric] for metric in self.metrics], dtype=float).T


class NetworkEvaluator(Evaluator):
    """Base of evaluators that build networks on this machine: what needs no training is measured.

    Args:
        space: the search space.
        measurement: what is measured, and how.
        checkpoints: folder for the states of trainings.
    """

    space: SearchSpace
    keeps_weights = True

    def __init__(
        self, space: SearchSpace, measurement: Measurement, checkpoints: Path | None
    ) -> None:
        self.space = space
        self.measurement = measurement
        self.checkpoints = checkpoints
        self._built: tuple[Architecture, Trainable] | None = None

    def network(self, architecture: Architecture) -> Trainable:
        """The network of an architecture. The last one is kept, since it is measured and then
        trained.
        """
        if self._built is None or self._built[0] != architecture:
            self._built = architecture, Trainable.of(self.space, architecture)
        return self._built[1]

    @property
    def seeds(self) -> tuple[int, ...]:
        """Seeds of the search's own trainings of each network."""
        return self.measurement.seeds

    def train_again(self, architecture: Architecture, seed: int) -> dict[str, float]:
        """Values of `trained` after one training with another seed, whose weights are discarded.

        For a user's function, the seed is torch's, which draws initial weights and what the
        function draws with torch, and the function's argument `seed`, if it has one.
        """
        raise NotImplementedError

    def forget(self, architecture: Architecture) -> None:
        if self.checkpoints:
            for file in self.checkpoints.glob(f"{self._pause_file(architecture).stem}*"):
                file.unlink(missing_ok=True)

    def _measured(
        self, measurement: Measurement, architecture: Architecture
    ) -> dict[str, Measured]:
        """Values of a measurement without training."""
        if not measurement.metrics:
            return {}
        network = self.network(architecture)
        return measurement(network, lambda: self.space.to_onnx(architecture)).values

    def _check_pause_folder(self) -> None:
        """Raise InputError without a folder for paused trainings."""
        if self.checkpoints is None:
            raise InputError(
                "paused trainings need a folder for their states: give the evaluator "
                "checkpoints=FOLDER, or nas worker --checkpoints FOLDER"
            )

    def _pause_file(self, architecture: Architecture) -> Path:
        """The file that a paused training continues from."""
        assert self.checkpoints is not None
        self.checkpoints.mkdir(parents=True, exist_ok=True)
        name = fingerprint(self.space.format(architecture))[:32]
        return self.checkpoints / f"paused-{name}.pt"


def values_of(measured: Mapping[str, Measured]) -> dict[str, float]:
    """Values by metric."""
    return {metric: m.value for metric, m in measured.items()}


def spreads_of(measured: Mapping[str, Measured]) -> dict[str, tuple[float, float, str]]:
    """Low value, high value and what these are, of the metrics that were measured repeatedly."""
    return {metric: (m.low, m.high, m.spread) for metric, m in measured.items() if m.spread}


class _Training(NamedTuple):
    """The result of a whole training: values, further values, spreads, and the file of the
    weights.
    """

    values: dict[str, float]
    further: dict[str, float]
    spreads: dict[str, tuple[float, float, str]]
    weights: Path | None


class MeasuredEvaluator(NetworkEvaluator):
    """Trains and measures networks on this machine. Duplicates are measured and trained once.

    Args:
        space: the search space.
        measurement: what is measured, and how.
        checkpoints: folder for training checkpoints, from which interrupted trainings resume. A
            finished training removes its own.

    Raises:
        InputError: a metric is a test score. Networks are selected by their validation scores.
    """

    def __init__(
        self, space: SearchSpace, measurement: Measurement, checkpoints: Path | None = None
    ) -> None:
        super().__init__(space, measurement, checkpoints)
        _refuse_test_scores(measurement)
        self.metrics = measurement.metrics
        self.device = measurement.device
        untrained = known_metrics(measurement.latency, None, measurement.external_devices)
        cheap = tuple(metric for metric in self.metrics if metric in untrained)
        costly = tuple(metric for metric in self.metrics if metric not in untrained)
        self._untrained = replace(measurement, metrics=cheap)
        self._trained = replace(measurement, metrics=costly)
        # Of the networks so far, by the fingerprint of their identity:
        self._measurements: dict[str, dict[str, Measured]] = {}
        self._trainings: dict[str, _Training] = {}

    @property
    def trained(self) -> tuple[str, ...]:
        return self._trained.metrics

    @property
    def settings(self) -> Mapping[str, Any]:
        """All settings that the values depend on, as plain values."""
        return self.measurement.settings

    @property
    def source(self) -> dict[str, Any]:
        return {"measurement": self.settings}

    def measure(self, architecture: Architecture, log: EvaluationLogger) -> dict[str, float]:
        network = self.network(architecture)
        log.identify(network)
        name = fingerprint(network.identity)
        if name not in self._measurements:
            self._measurements[name] = self._measured(self._untrained, architecture)
        measured = self._measurements[name]
        log.spread(spreads_of(measured))
        return values_of(measured)

    def train(
        self,
        architecture: Architecture,
        observed: Values,
        log: EvaluationLogger,
        segment: Segment | None = None,
    ) -> dict[str, float]:
        if not self.trained:
            return dict(observed)
        if segment is not None:
            return self._train_segment(architecture, observed, log, segment)
        name = fingerprint(self.network(architecture).identity)
        training = self._trainings.get(name)
        if training is None or not _serves(training, log):
            training = self._trainings[name] = self._train(architecture, name, log)
        else:
            log.spread(training.spreads)
            is_kept = training.weights and training.weights.exists()
            log.keep(training.further, training.weights if is_kept else None)
        return {**observed, **training.values}

    def train_again(self, architecture: Architecture, seed: int) -> dict[str, float]:
        model = partial(self.space.to_onnx, architecture)
        trained = replace(self._trained, seeds=(seed,))(self.network(architecture), model)
        return {metric: trained.values[metric].value for metric in self.trained}

    def _train(self, architecture: Architecture, name: str, log: EvaluationLogger) -> _Training:
        """A whole training. An interrupted one continues from its checkpoint."""
        checkpoint = self.checkpoints / f"{name}.pt" if self.checkpoints else None
        trained = self._trained(
            self.network(architecture),
            lambda: self.space.to_onnx(architecture),
            checkpoint,
            report=log.report,
        )
        values, spreads = values_of(trained.values), spreads_of(trained.values)
        further = {metric: value for metric, value in values.items() if metric not in self.metrics}
        log.spread(spreads)
        weights = log.keep(
            further,
            None if trained.state is None else (trained.state, trained.about),
            trained.int8,
        )
        for done in self.checkpoints.glob(f"{name}*.pt") if self.checkpoints else ():
            done.unlink()
        return _Training({m: values[m] for m in self.trained}, further, spreads, weights)

    def _train_segment(
        self, architecture: Architecture, observed: Values, log: EvaluationLogger, segment: Segment
    ) -> dict[str, float]:
        """Continue a training, bit for bit from its checkpoint, and pause it at a fidelity."""
        trained = self._trained(
            self.network(architecture),
            lambda: self.space.to_onnx(architecture),
            self._pause_file(architecture),
            report=log.report,
            until=segment.until,
        )
        values = {**observed, **values_of(trained.values)}
        log.spread(spreads_of(trained.values))
        log.report(segment.until, {metric: values[metric] for metric in self.trained})
        if segment.is_last:
            further = {m: value for m, value in values.items() if m not in self.metrics}
            weights = None if trained.state is None else (trained.state, trained.about)
            log.keep(further, weights, trained.int8)
        return {metric: values[metric] for metric in self.metrics}

    def fidelities(self, levels: Sequence[int]) -> Fidelities:
        fidelities = Fidelities.of(levels, continues=True)
        epochs = self.measurement.training.epochs
        if epochs != fidelities.last:
            raise InputError(
                f"the last fidelity is {levels[-1]}, but a training has {epochs} epochs: give "
                "--epochs"
            )
        inherits = isinstance(self.space, Subnetworks) and self.space.start == "inherited"
        if levels[0] == 0 and not inherits:
            raise InputError(
                "fidelity 0 is a score before any training: it needs networks that inherit weights, "
                "as of --model"
            )
        _check_trained(self.trained, self.metrics)
        self._check_pause_folder()
        return fidelities


def _refuse_test_scores(measurement: Measurement) -> None:
    """Raise InputError if a metric is a test score."""
    data = measurement.data
    if data is None:
        return
    int8_validation, int8_test = int8_scores(data)
    for test, metric in {data.test_metric: data.metric, int8_test: int8_validation}.items():
        if test in measurement.metrics:
            raise InputError(
                f"{test} is kept for the final report: search by the validation score, {metric}"
            )


def _serves(training: _Training, log: EvaluationLogger) -> bool:
    """False if the log needs weights that another search has removed from its folder.

    Weights that are missing from the log's own folder belong to a dominated network and are not
    needed.
    """
    weights, folder = training.weights, log.weights
    return weights is None or folder is None or weights.exists() or weights.parent == folder.folder
