"""Evaluators that build networks on this machine, measure what needs no training, and train.

`NetworkEvaluator` is their base, with the network that is at work and the files of paused
trainings. `MeasuredEvaluator` has the built-in training. A function of the user's is called by
`nas.search.own_evaluator.FunctionEvaluator`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from nas.evaluation.int8 import score_metrics as int8_scores
from nas.evaluation.measurement import known_metrics
from nas.evaluation.trainable import Trainable
from nas.search.evaluators import COSTS, Evaluator, Values, check_trained
from nas.search.study.trial_logger import EvaluationLogger
from nas.search.trainings import Fidelities, Segment
from search_spaces.common.errors import InputError
from search_spaces.ir.text import fingerprint

if TYPE_CHECKING:
    import onnx

    from nas.evaluation.measurement import Measured, Measurement, Measurements
    from search_spaces import Architecture, SearchSpace

MAX_PROBE_SECONDS = 2.0  # after which no further network is probed


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
        """The network of an architecture.

        The last one is kept, since it is measured and then trained.
        """
        if self._built is not None:
            built_architecture, network = self._built
            if built_architecture == architecture:
                return network
        network = Trainable.of(self.space, architecture)
        self._built = architecture, network
        return network

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
            # Several seeds have several files, and a function may write more beside its own.
            name = self._pause_file(architecture).stem
            for file in self.checkpoints.glob(f"{name}*"):
                file.unlink(missing_ok=True)

    def _measured(
        self, measurement: Measurement, architecture: Architecture
    ) -> dict[str, Measured]:
        """Values of a measurement without training."""
        if not measurement.metrics:
            return {}
        return measurement(self.network(architecture), self._model(architecture)).values

    def _model(self, architecture: Architecture) -> Callable[[], onnx.ModelProto]:
        """What builds the ONNX model of an architecture, for measurements that need it."""
        return partial(self.space.to_onnx, architecture)

    def _check_pause_folder(self) -> None:
        """Raise InputError without a folder for paused trainings."""
        if self.checkpoints is None:
            raise InputError(
                "paused trainings need a folder for their states: give nas.search(out=FOLDER), "
                "nas.Problem(checkpoints=FOLDER), or nas worker --checkpoints FOLDER"
            )

    def _pause_file(self, architecture: Architecture) -> Path:
        """The file that a paused training continues from."""
        assert self.checkpoints is not None
        self.checkpoints.mkdir(parents=True, exist_ok=True)
        name = fingerprint(self.space.format(architecture))[:32]
        return self.checkpoints / f"paused-{name}.pt"


def values_of(measured: Mapping[str, Measured]) -> dict[str, float]:
    """Values by metric."""
    return {metric: result.value for metric, result in measured.items()}


def spreads_of(measured: Mapping[str, Measured]) -> dict[str, tuple[float, float, str]]:
    """Low value, high value and what these are, of the metrics that were measured repeatedly."""
    return {
        metric: (result.low, result.high, result.spread)
        for metric, result in measured.items()
        if result.spread
    }


class _Training(NamedTuple):
    """The result of a whole training.

    Attributes:
        values: of the trained metrics.
        further: values of other metrics, such as test scores.
        spreads: as `spreads_of` returns them.
        weights: their file; None if they were not kept.
    """

    values: dict[str, float]
    further: dict[str, float]
    spreads: dict[str, tuple[float, float, str]]
    weights: Path | None


class MeasuredEvaluator(NetworkEvaluator):
    """Trains and measures networks on this machine. Duplicates are measured and trained once.

    Example: what is counted needs no training.

        >>> import nas
        >>> space = nas.load_benchmark("digits201").space
        >>> evaluator = nas.MeasuredEvaluator(space, nas.Measurement(("params", "flops")))
        >>> architecture = nas.load_benchmark("digits201").architectures[0]
        >>> evaluator([architecture]).tolist()  # (networks, metrics), in weights and multiply-accumulates
        [[18594.0, 119616.0]]

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
        training = measurement.training.of_weights(space.inherits)
        measurement = replace(measurement, training=training)
        super().__init__(space, measurement, checkpoints)
        _refuse_test_scores(measurement)
        self.metrics = measurement.metrics
        self.device = measurement.device
        # What is known without data needs no training.
        untrained = known_metrics(measurement.latency, None, measurement.external_devices)
        cheap = [metric for metric in self.metrics if metric in untrained]
        costly = [metric for metric in self.metrics if metric not in untrained]
        self._untrained = replace(measurement, metrics=tuple(cheap))
        self._trained = replace(measurement, metrics=tuple(costly))
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
        if training is not None and _serves(training, log):
            # The same network as an earlier one: its results are copied.
            log.spread(training.spreads)
            is_kept = training.weights is not None and training.weights.exists()
            log.keep(training.further, training.weights if is_kept else None)
        else:
            training = self._train(architecture, name, log)
            self._trainings[name] = training
        return {**observed, **training.values}

    def probe(self, architectures: Sequence[Architecture]) -> float | None:
        """As in `Evaluator`: some steps of each training, and one latency of this machine."""
        if self.unprobed and not self.trained:
            return None
        began = time.monotonic()

        # 1. Measurements take about as long for any network: one is enough.
        measuring = 0.0
        if not self.unprobed:
            self.measure(architectures[0], EvaluationLogger())
            measuring = time.monotonic() - began

        # 2. Trainings differ by the size of the network.
        trainings = []
        for architecture in architectures:
            trainings.append(self._trained.probe(self.network(architecture)))
            if time.monotonic() - began > MAX_PROBE_SECONDS:
                break
        return measuring + float(np.mean(trainings))

    @property
    def unprobed(self) -> tuple[str, ...]:
        measured = tuple(metric for metric in self.measured if metric not in COSTS)
        return () if measured == self.measurement.timed_here else measured

    def train_again(self, architecture: Architecture, seed: int) -> dict[str, float]:
        training = replace(self._trained, seeds=(seed,))
        values = training(self.network(architecture), self._model(architecture)).values
        return {metric: values[metric].value for metric in self.trained}

    def _train(self, architecture: Architecture, name: str, log: EvaluationLogger) -> _Training:
        """A whole training. An interrupted one continues from its checkpoint."""
        # 1. Train.
        checkpoint = None if self.checkpoints is None else self.checkpoints / f"{name}.pt"
        result = self._trained(
            self.network(architecture),
            self._model(architecture),
            checkpoint,
            report=log.report,
        )

        # 2. Keep its results.
        values = values_of(result.values)
        spreads = spreads_of(result.values)
        log.spread(spreads)
        further, weights = self._keep(values, result, log)

        # 3. Then its checkpoints, perhaps one for each group of seeds, are of no more use.
        if self.checkpoints is not None:
            for file in self.checkpoints.glob(f"{name}*.pt"):
                file.unlink()
        trained = {metric: values[metric] for metric in self.trained}
        return _Training(trained, further, spreads, weights)

    def _train_segment(
        self, architecture: Architecture, observed: Values, log: EvaluationLogger, segment: Segment
    ) -> dict[str, float]:
        """Continue a training, bit for bit from its checkpoint, and pause it at a fidelity."""
        result = self._trained(
            self.network(architecture),
            self._model(architecture),
            self._pause_file(architecture),
            report=log.report,
            until=segment.until,
        )
        values = {**observed, **values_of(result.values)}
        log.spread(spreads_of(result.values))
        log.report(segment.until, {metric: values[metric] for metric in self.trained})
        if segment.is_last:
            self._keep(values, result, log)
        return {metric: values[metric] for metric in self.metrics}

    def _keep(
        self, values: Values, result: Measurements, log: EvaluationLogger
    ) -> tuple[dict[str, float], Path | None]:
        """Let the log keep what a whole training leaves besides the metrics.

        Returns:
            Further values, and the file of the weights if they were kept.
        """
        further = {metric: value for metric, value in values.items() if metric not in self.metrics}
        weights = None if result.state is None else (result.state, result.about)
        return further, log.keep(further, weights, result.int8)

    def fidelities(self, levels: Sequence[int]) -> Fidelities:
        fidelities = Fidelities.of(levels, continues=True)

        # 1. The last one is a whole training.
        epochs = self.measurement.training.epochs
        if epochs != fidelities.last:
            raise InputError(
                f"the last fidelity is {levels[-1]}, but a training has {epochs} epochs: give "
                "--epochs"
            )

        # 2. A network without a training has a score if its weights are a trained model's.
        if levels[0] == 0 and not self.space.inherits:
            raise InputError(
                "fidelity 0 is a score before any training: it needs networks that inherit weights, "
                "as of --model"
            )

        check_trained(self.trained, self.metrics)
        self._check_pause_folder()
        return fidelities


def _refuse_test_scores(measurement: Measurement) -> None:
    """Raise InputError if a metric is a test score."""
    data = measurement.data
    if data is None:
        return
    int8_validation, int8_test = int8_scores(data)
    validation_of = {data.test_metric: data.metric, int8_test: int8_validation}
    for test, validation in validation_of.items():
        if test in measurement.metrics:
            raise InputError(
                f"{test} is kept for the final report: search by the validation score, {validation}"
            )


def _serves(training: _Training, log: EvaluationLogger) -> bool:
    """False if the log needs weights that another search has removed from its folder.

    Weights that are missing from the log's own folder belong to a dominated network and are not
    needed.
    """
    weights, folder = training.weights, log.weights
    if weights is None or folder is None:
        return True
    return weights.exists() or weights.parent == folder.folder
