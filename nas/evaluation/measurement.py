"""What is measured of a network on this machine, and how: trained accuracy, latency, peak memory, exact costs."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from nas.evaluation import int8, memory
from nas.evaluation.datasets import Dataset, load_dataset
from nas.evaluation.device_command import DeviceCommand, time_on_device
from nas.evaluation.devices import PredictedDevice, device_of
from nas.evaluation.export import preprocessing, trained_model
from nas.evaluation.int8 import score_metrics
from nas.evaluation.latency import CPU, Latency, LatencyTask, time_model, time_serialized
from nas.evaluation.metrics import check_metrics
from nas.evaluation.tasks import TrainingTask, training_task
from nas.evaluation.trainable import State, Trainable
from nas.evaluation.training import Report, train
from search_spaces.common.errors import InputError
from search_spaces.graph.costs import graph_flops, graph_params

if TYPE_CHECKING:
    import onnx

    from search_spaces.graph.ir import Shape

Progress = Callable[[str, int, int], None]


class Measured(NamedTuple):
    """A value in its metric's unit, between `low` and `high`, whose meaning `spread` gives."""

    value: float
    low: float
    high: float
    spread: str = ""


@dataclass(frozen=True)
class Measurements:
    """What was measured of a network: its values, and the weights that it was trained to, if it was trained.

    values: of the metrics that were asked for; if the network was trained, of `Dataset.test_metric`, too. about: what a
    file with the weights is to say beside them: the scores of these weights, of several trainings the best, and how
    inputs were normalized.
    """

    values: dict[str, Measured]
    state: State | None = None
    about: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Measurement:
    """Which metrics are measured, and how. `known_metrics` names all that can be; nothing but `metrics` costs time.

    data: what networks are trained on, where `Dataset.metric` or `Dataset.test_metric` is asked for, or the same after
    quantization (`nas.evaluation.int8`). seeds: of the trainings, whose mean score counts. latency: gives
    `cpu_latency_ms` (of the provider's name) and `cpu_int8_latency_ms`. Memory (`peak_memory_mb`) is measured on the
    CPU, at latency's batch and threads. commands: give latencies on other devices. devices: of which latencies are
    predicted.
    """

    metrics: tuple[str, ...]
    data: Dataset | None = None
    seeds: tuple[int, ...] = (0,)
    training: TrainingTask = field(default_factory=TrainingTask)
    latency: LatencyTask = field(default_factory=LatencyTask)
    device: str = "cpu"
    commands: tuple[DeviceCommand, ...] = ()
    devices: tuple[PredictedDevice, ...] = ()

    def __post_init__(self) -> None:
        if taken := {command.metric for command in self.commands} & {self.latency.metric, int8.LATENCY}:
            raise InputError(f"{taken.pop()} is measured on this machine: give the latency command another name")
        check_metrics(self.metrics, known_metrics(self.latency, self.data, (*self.commands, *self.devices)))

    @property
    def settings(self) -> dict[str, Any]:
        """All that the values depend on, as plain values; `measurement_of` makes a measurement of them again."""
        commands = {"commands": [asdict(command) for command in self.commands]} if self.commands else {}
        devices = {"devices": [device.settings for device in self.devices]} if self.devices else {}
        return {
            "metrics": list(self.metrics),
            "data": self.data and {"source": self.data.source, "sha256": self.data.fingerprint},
            "seeds": list(self.seeds),
            "training": asdict(self.training),
            "latency": asdict(self.latency),
            **commands,
            **devices,
        }

    def __call__(
        self,
        network: Trainable,
        model: onnx.ModelProto,
        checkpoint: Path | None = None,
        progress: Progress | None = None,
        report: Report | None = None,
        until: int | None = None,
    ) -> Measurements:
        """The metrics of a network; scores are NaN where a training diverged.

        model: the network as ONNX, for what is timed and weighed; its weights do not matter. checkpoint: file in which
        the training's state is kept, to go on after an interruption. progress: called with what is done, how far, of
        how much. report, until: see `nas.evaluation.training.train`.
        """
        values: dict[str, Measured] = {}
        timed = self._timed(network, model)
        # What takes little time comes first: a device that cannot be reached is noticed before a training.
        for metric in [name for name in self.metrics if name in timed]:
            if progress:
                progress(metric, 0, 1)
            values[metric] = timed[metric]()
        if values.keys() == {*self.metrics} or self.data is None:
            return Measurements(values)
        found = self._trained(Measurements(values), network, self.data, checkpoint, progress, report, until)
        if set(score_metrics(self.data)) & set(self.metrics):
            if progress:
                progress("quantization", 0, 1)
            found.values.update(self._quantized(network, found.state, self.data))
        ordered = {metric: found.values[metric] for metric in self.metrics}
        return replace(found, values=ordered | found.values)

    def _timed(self, network: Trainable, model: onnx.ModelProto) -> dict[str, Callable[[], Measured]]:
        """What is measured without training, by metric."""

        batch, threads, runs = self.latency.batch, self.latency.threads, f"{self.latency.runs} runs"

        def at_quantiles(times: Latency, runs: str) -> Measured:
            return Measured(*times, f"median, 10 % and 90 % quantile of {runs}")

        def on_device(command: DeviceCommand) -> Callable[[], Measured]:
            return lambda: at_quantiles(time_on_device(model, command, batch), f"{command.runs} calls")

        def predicted(device: PredictedDevice) -> Callable[[], Measured]:
            def predict() -> Measured:
                median, low, high = device.predict([network.text])[0].tolist()
                return Measured(median, low, high, f"median, 10 % and 90 % quantile, predicted from {count} networks")

            count = len(device.texts)
            return predict

        return {
            self.latency.metric: lambda: at_quantiles(time_model(model, self.latency), runs),
            int8.LATENCY: lambda: at_quantiles(
                time_serialized(int8.quantize(model), replace(self.latency, provider=CPU)), runs
            ),
            memory.METRIC: lambda: _exact(memory.measure_memory(model, batch=batch, threads=threads)),
            "params": lambda: _exact(graph_params(network.graph)),
            "flops": lambda: _exact(graph_flops(network.graph)),
            **{command.metric: on_device(command) for command in self.commands},
            **{device.metric: predicted(device) for device in self.devices},
        }

    def _quantized(self, network: Trainable, state: State | None, data: Dataset) -> dict[str, Measured]:
        """Scores on the validation and the test part after quantization; NaN where the training diverged."""
        parts = data.with_validation(self.training.validation)
        assert parts.validation is not None
        if state is None:
            return dict.fromkeys(score_metrics(data), _exact(math.nan))
        model = int8.quantize(trained_model(network, state), int8.calibration_samples(parts))
        scores = [int8.score(model, data, part) for part in (parts.validation, parts.test)]
        return {metric: _exact(value) for metric, value in zip(score_metrics(data), scores, strict=True)}

    def _trained(
        self,
        found: Measurements,
        network: Trainable,
        data: Dataset,
        checkpoint: Path | None,
        progress: Progress | None,
        report: Report | None,
        until: int | None,
    ) -> Measurements:
        trained = train(
            network, data, self.seeds, self.training, device=self.device, checkpoint=checkpoint,
            progress=progress and (lambda done, total: progress("training, epochs", done, total)), report=report,
            until=until,
        )  # fmt: skip
        scores = {data.metric: trained.validation, data.test_metric: trained.test}
        kept = {metric: score[trained.best] for metric, score in scores.items()}
        about = {"scores": json.dumps(kept), **preprocessing(data)}
        means = {metric: _mean(score) for metric, score in scores.items()}
        return replace(found, values=found.values | means, state=trained.state, about=about)


def _mean(scores: list[float]) -> Measured:
    mean = float(np.mean(scores))
    if len(scores) == 1:
        return Measured(mean, mean, mean, "one training")
    std = float(np.std(scores, ddof=1))
    return Measured(mean, mean - std, mean + std, f"mean ± standard deviation over {len(scores)} seeds")


def _exact(value: float) -> Measured:
    return Measured(value, value, value)


def known_metrics(
    latency: LatencyTask, data: Dataset | None = None, devices: Iterable[DeviceCommand | PredictedDevice] = ()
) -> tuple[str, ...]:
    """Names of the metrics that can be measured, with a data set to train on or without."""
    scores = [data.metric, data.test_metric, *score_metrics(data)] if data else []
    return (
        *scores,
        latency.metric,
        *[device.metric for device in devices],
        int8.LATENCY,
        memory.METRIC,
        "params",
        "flops",
    )


def trains(
    metrics: Iterable[str], latency: LatencyTask, devices: Iterable[DeviceCommand | PredictedDevice] = ()
) -> bool:
    """True if a network must be trained for any of these metrics: nothing else gives one."""
    untrained = known_metrics(latency, None, devices)
    return any(metric not in untrained for metric in metrics)


def measurement_of(
    settings: Mapping[str, Any], shape: Shape | None = None, path: str | None = None, device: str = "cpu"
) -> Measurement:
    """The measurement with these `Measurement.settings`.

    shape: of one input, see `load_dataset`. path: of the data set, if it has moved. Raises InputError where it is
    another one.
    """
    known, data = settings["data"], None
    if known is not None:
        data = load_dataset(path or known["source"], shape)
        if data.fingerprint != known["sha256"]:
            raise InputError(f"{path or known['source']}: another data set than the one that the search trains on")
    return Measurement(
        tuple(settings["metrics"]), data, tuple(settings["seeds"]), training_task(settings["training"]),
        LatencyTask(**settings["latency"]), device,
        tuple(DeviceCommand(**command) for command in settings.get("commands", ())),
        tuple(map(device_of, settings.get("devices", ()))),
    )  # fmt: skip
