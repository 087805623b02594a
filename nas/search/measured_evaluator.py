"""Evaluators that build networks on this machine: what needs no training is measured, the rest is
trained.

`NetworkEvaluator` is their base, with the network that is at work and the files of paused trainings.
`MeasuredEvaluator` has the built-in training; `nas.search.own_evaluator.FunctionEvaluator` calls a
function of the user's.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
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
from search_spaces import Subnetworks
from search_spaces.common.errors import InputError
from search_spaces.ir.text import fingerprint

if TYPE_CHECKING:
    from nas.evaluation.measurement import Measured, Measurement
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

    def probe(self, architectures: Sequence[Architecture]) -> float | None:
        """As in `Evaluator`: some steps of each training, and one latency of this machine."""
        began = time.monotonic()
        measuring = 0.0
        trainings = list[float]()
        if not self.unprobed:
            self.measure(architectures[0], EvaluationLogger())
            measuring = time.monotonic() - began
        elif not self.trained:
            return None
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
        values = values_of(trained.values)
        spreads = spreads_of(trained.values)
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
        check_trained(self.trained, self.metrics)
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
