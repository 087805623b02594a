"""Measures the metrics of a network: trained accuracy, latency, peak memory, parameters and
FLOPs.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from nas.evaluation import energy, int8, memory
from nas.evaluation.datasets import Dataset, load_dataset
from nas.evaluation.device_command import DeviceCommand, check_runtimes, measure_on_device
from nas.evaluation.devices import PredictedDevice, device_of
from nas.evaluation.export import preprocessing, trained_model
from nas.evaluation.int8 import score_metrics
from nas.evaluation.latency import CPU, Latency, LatencyTask, time_model, time_serialized
from nas.evaluation.metrics import FIDELITY, LANGUAGE_METRICS, check_metrics
from nas.evaluation.runtimes import RUNTIME_METRICS, get_runtime
from nas.evaluation.tasks import TrainingTask, training_task
from nas.evaluation.trainable import State, Trainable
from search_spaces.common.errors import InputError
from search_spaces.common.progress import Progress
from search_spaces.ir.costs import graph_flops, graph_params

if TYPE_CHECKING:
    import onnx

    from nas.evaluation.training import Report
    from search_spaces.ir.graph import Shape

SIZE = "size_mb"  # of the ONNX file, in MB (10⁶ bytes)


class Measured(NamedTuple):
    """A value in its metric's unit, with an interval.

    Attributes:
        value: the value.
        low, high: ends of the interval; equal to the value if it was not measured repeatedly.
        spread: what the interval is, in words.
    """

    value: float
    low: float
    high: float
    spread: str = ""


@dataclass(frozen=True)
class Measurements:
    """The measured values of a network, and its weights if it was trained.

    Attributes:
        values: the requested metrics; after a training, also `Dataset.metric` and
            `Dataset.test_metric`.
        state: trained weights, of several trainings those with the best validation score; None
            without a training or if all diverged.
        about: metadata for a file with these weights: their scores and the normalization of inputs.
        int8: the quantized network with these weights, an ONNX file; None if no metric needs it.
    """

    values: dict[str, Measured]
    state: State | None = None
    about: dict[str, str] = field(default_factory=dict)
    int8: bytes | None = None


@dataclass(frozen=True, eq=False)
class Measurement:
    """Which metrics are measured, and how. Only the listed metrics cost time.

    Example: an accuracy in %, as the mean of two trainings, and a latency in ms on this machine.

        >>> import nas
        >>> digits = nas.load_dataset("digits")
        >>> measurement = nas.Measurement(("digits_accuracy", "cpu_latency_ms"), digits, seeds=(0, 1))
        >>> space = nas.load_benchmark("digits201").space
        >>> problem = nas.Problem(space, measurement, {"digits_accuracy": "max", "cpu_latency_ms": "min"})

    Args:
        metrics: names, all among `known_metrics`.
        data: data set for the metrics that need a training: `Dataset.metric`,
            `Dataset.test_metric`, and the same scores after quantization (`nas.evaluation.int8`).
        seeds: one training per seed; the score is their mean.
        training: how networks are trained.
        latency: how `cpu_latency_ms` (or that of another provider) and `cpu_int8_latency_ms` are
            timed. Its batch and threads also apply to `peak_memory_mb`, measured on the CPU, and to
            the other runtimes (`nas.evaluation.runtimes`), whose metrics begin with their names.
        device: torch device for training.
        commands: measure metrics on other devices.
        devices: predict latencies on other devices.
        calibration: inputs that set the ranges of activations of quantized networks. None for
            inputs of the training, and for noise where only the latency is measured.

    Raises:
        InputError: a metric is unknown, a runtime is not installed, or a command has the name of a
            latency that is measured on this machine.
    """

    metrics: tuple[str, ...]
    data: Dataset | None = None
    seeds: tuple[int, ...] = (0,)
    training: TrainingTask = field(default_factory=TrainingTask)
    latency: LatencyTask = field(default_factory=LatencyTask)
    device: str = "cpu"
    commands: tuple[DeviceCommand, ...] = ()
    devices: tuple[PredictedDevice, ...] = ()
    calibration: int8.Calibration | None = None

    @property
    def external_devices(self) -> tuple[DeviceCommand | PredictedDevice, ...]:
        """Devices other than this machine, measured by a command or predicted."""
        return (*self.commands, *self.devices)

    def __post_init__(self) -> None:
        of_commands = [metric.name for one in self.commands for metric in one.metrics]
        if taken := {*of_commands} & {self.latency.metric, int8.LATENCY, *RUNTIME_METRICS}:
            raise InputError(
                f"{taken.pop()} is measured on this machine: give the command another name"
            )
        if energy.METRIC in self.metrics:
            energy.check_energy()
        for command in self.commands:
            check_runtimes(command)
        if self.data and not self.data.labelled and self.data.metric in self.metrics:
            remedy = f"add y, or search by {FIDELITY} to a trained model (--model)"
            raise InputError(f"{self.data.source} has inputs, but no targets: {remedy}")
        check_metrics(self.metrics, known_metrics(self.latency, self.data, self.external_devices))
        for metric in RUNTIME_METRICS.keys() & {*self.metrics}:
            get_runtime(RUNTIME_METRICS[metric].runtime).check_installed(metric)
        if (
            FIDELITY in self.metrics
            and self.data
            and {self.data.metric, *score_metrics(self.data)} & {*self.metrics}
        ):
            raise InputError(
                f"{FIDELITY} and {self.data.metric} are scores of different trainings: give one of "
                "them"
            )

    @property
    def settings(self) -> dict[str, Any]:
        """What the values depend on, as JSON values, which `measurement_of` reads."""
        settings: dict[str, Any] = {
            "metrics": list(self.metrics),
            "data": self.data and {"source": self.data.source, "sha256": self.data.fingerprint},
            "seeds": list(self.seeds),
            "training": asdict(self.training),
            "latency": asdict(self.latency),
        }
        if self.commands:
            settings["commands"] = [command.settings for command in self.commands]
        if self.devices:
            settings["devices"] = [device.settings for device in self.devices]
        if self.calibration:
            settings["calibration"] = self.calibration.settings
        return settings

    def __call__(
        self,
        network: Trainable,
        model: onnx.ModelProto | Callable[[], onnx.ModelProto],
        checkpoint: Path | None = None,
        progress: Progress | None = None,
        report: Report | None = None,
        until: int | None = None,
    ) -> Measurements:
        """Measure the metrics of a network.

        Args:
            network: the network to train.
            model: the same network as ONNX, or a function that makes it and is called for latency
                and memory only, as the model may be large. Its weights do not matter.
            checkpoint: file for the state of the training, which resumes from it after an
                interruption.
            progress: called with the name of the step, the amount done and the total.
            report: see `nas.evaluation.training.train`.
            until: see `nas.evaluation.training.train`.

        Returns:
            The values; scores are NaN if a training diverged.
        """
        values: dict[str, Measured] = {}
        # 1. Short measurements come first, so that an unreachable device is noticed before a training.
        make_model = cache(model) if callable(model) else lambda: model
        measurements = self._without_training(network, make_model)
        for metric in self.metrics:
            if metric not in measurements:
                continue
            if progress:
                progress(metric, 0, 1)
            values[metric] = measurements[metric]()
        del make_model, measurements  # and with them the model: a training needs the memory
        if values.keys() == {*self.metrics} or self.data is None:
            return Measurements(values)

        # 2. The training, and its scores after quantization.
        trained = self._trained(
            Measurements(values), network, self.data, checkpoint, progress, report, until
        )
        if set(score_metrics(self.data)) & set(self.metrics):
            if progress:
                progress("quantization", 0, 1)
            trained = self._quantized(trained, network, self.data)

        # 3. The requested metrics in their order, then the others.
        requested = {metric: trained.values[metric] for metric in self.metrics}
        return replace(trained, values=requested | trained.values)

    @property
    def timed_here(self) -> tuple[str, ...]:
        """Those of the metrics that are latencies on this machine."""
        here = (self.latency.metric, int8.LATENCY)
        return tuple(metric for metric in self.metrics if metric in here)

    def time_together(
        self, models: Sequence[Callable[[], onnx.ModelProto]], progress: Progress | None = None
    ) -> list[dict[str, Measured]]:
        """Latencies of n networks in one interleaved pass, which compares them best.

        Args:
            models: functions that make the networks as ONNX.
            progress: called with the metric, the rounds of windows done and their number.

        Returns:
            For each network the metrics `timed_here`.
        """
        values: list[dict[str, Measured]] = [{} for _ in models]
        for metric in self.timed_here:
            if metric == int8.LATENCY:
                files = [int8.quantize(model(), self._calibration) for model in models]
                task = self._int8_latency
            else:
                files = [model().SerializeToString() for model in models]
                task = self.latency

            def advance(_: str, done: int, total: int, metric: str = metric) -> None:
                if progress:
                    progress(f"{metric}, measured together", done, total)

            latencies = time_serialized(files, task, advance)
            for of_network, latency in zip(values, latencies, strict=True):
                of_network[metric] = Measured(*latency)
        return values

    @property
    def _int8_latency(self) -> LatencyTask:
        """How quantized networks are timed: on the CPU, whose integer operators they use."""
        return replace(self.latency, provider=CPU)

    @property
    def _calibration(self) -> int8.Samples | None:
        """The user's calibration inputs, if there are any."""
        return self.calibration.samples if self.calibration else None

    def _without_training(
        self, network: Trainable, model: Callable[[], onnx.ModelProto]
    ) -> dict[str, Callable[[], Measured]]:
        """Measurements that need no training, by metric. Each is made when it is called."""
        return {
            "params": lambda: _exact(graph_params(network.graph)),
            "flops": lambda: _exact(graph_flops(network.graph)),
            SIZE: lambda: _exact(model().ByteSize() / 1e6),
            **self._in_onnx_runtime(model),
            **self._of_language(network),
            **self._in_runtimes(model),
            **self._on_devices(network, model),
        }

    def _in_onnx_runtime(
        self, model: Callable[[], onnx.ModelProto]
    ) -> dict[str, Callable[[], Measured]]:
        """Measurements in ONNX Runtime, on this machine."""

        def latency() -> Measured:
            return Measured(*time_model(model(), self.latency))

        def int8_latency() -> Measured:
            quantized = int8.quantize(model(), self._calibration)
            (of_network,) = time_serialized([quantized], self._int8_latency)
            return Measured(*of_network)

        def peak_memory() -> Measured:
            batch, threads = self.latency.batch, self.latency.threads
            return _exact(memory.measure_memory(model(), batch=batch, threads=threads))

        def energy_of_inference() -> Measured:
            return Measured(*energy.measure_energy(model(), self.latency))

        return {
            self.latency.metric: latency,
            int8.LATENCY: int8_latency,
            memory.METRIC: peak_memory,
            energy.METRIC: energy_of_inference,
        }

    def _on_devices(
        self, network: Trainable, model: Callable[[], onnx.ModelProto]
    ) -> dict[str, Callable[[], Measured]]:
        """Measurements by commands, and predictions for stored devices.

        A command tells all its metrics in one pass.
        """

        @cache
        def measure(command: DeviceCommand) -> dict[str, Latency]:
            return measure_on_device(model(), command, self.latency.batch, self._calibration)

        def measured(command: DeviceCommand, metric: str) -> Measured:
            return Measured(*measure(command)[metric])

        def predicted(device: PredictedDevice) -> Measured:
            median, low, high = device.predict([network.text])[0].tolist()
            count = len(device.texts)
            meaning = f"median, 10 % and 90 % quantile, predicted from {count} networks"
            return Measured(median, low, high, meaning)

        measurements: dict[str, Callable[[], Measured]] = {}
        for command in self.commands:
            for metric in command.metrics:
                measurements[metric.name] = partial(measured, command, metric.name)
        for device in self.devices:
            measurements[device.metric] = partial(predicted, device)
        return measurements

    def _of_language(self, network: Trainable) -> dict[str, Callable[[], Measured]]:
        """Measurements of language models. One pass tells them all."""

        @cache
        def results() -> Mapping[str, Latency | float]:
            from nas.evaluation.language import measure_language

            return measure_language(network, replace(self.latency, provider=CPU))

        def measured(metric: str) -> Measured:
            result = results()[metric]
            return _exact(result) if isinstance(result, float) else Measured(*result)

        return {metric: partial(measured, metric) for metric in LANGUAGE_METRICS}

    def _in_runtimes(
        self, model: Callable[[], onnx.ModelProto]
    ) -> dict[str, Callable[[], Measured]]:
        """Measurements in the runtimes whose metrics are requested. One child process tells all
        quantities of a runtime but its memory.
        """
        from nas.evaluation.runtimes.measuring import measure_in_runtime, measure_memory_in_runtime

        results = cache(lambda runtime: measure_in_runtime(model(), runtime, self.latency))

        def measured(runtime: str, quantity: str) -> Measured:
            if quantity == "peak_memory_mb":
                return _exact(measure_memory_in_runtime(model(), runtime, self.latency))
            result = results(runtime)
            if quantity == "latency_ms":
                return Measured(*result.latency)
            return _exact(getattr(result, quantity))

        requested = [metric for metric in self.metrics if metric in RUNTIME_METRICS]
        return {metric: partial(measured, *RUNTIME_METRICS[metric]) for metric in requested}

    def _quantized(self, trained: Measurements, network: Trainable, data: Dataset) -> Measurements:
        """The same with the quantized network, and its validation and test score.

        The scores are NaN if the training diverged.
        """
        if trained.state is None:
            quantized, scores = None, (math.nan, math.nan)
        else:
            parts = data.with_validation(self.training.validation)
            model = trained_model(network, trained.state)
            quantized = int8.quantize(model, self._calibration or [int8.calibration_samples(parts)])
            scores = int8.scores(quantized, parts)
        values = dict(zip(score_metrics(data), map(_exact, scores), strict=True))
        return replace(trained, values=trained.values | values, int8=quantized)

    def _trained(
        self,
        measurements: Measurements,
        network: Trainable,
        data: Dataset,
        checkpoint: Path | None,
        progress: Progress | None,
        report: Report | None,
        until: int | None,
    ) -> Measurements:
        from nas.evaluation.training import train

        data = self._goal(data, network)
        trained = train(
            network,
            data,
            self.seeds,
            self.training,
            device=self.device,
            checkpoint=checkpoint,
            progress=progress,
            report=report,
            until=until,
        )
        scores = {data.metric: trained.validation, data.test_metric: trained.test}
        kept = {metric: score[trained.best] for metric, score in scores.items()}
        about = {"scores": json.dumps(kept), **preprocessing(data)}
        means = {metric: _mean(score) for metric, score in scores.items()}
        return replace(
            measurements, values=measurements.values | means, state=trained.state, about=about
        )

    def _goal(self, data: Dataset, network: Trainable) -> Dataset:
        """The data with the targets that a training has: for `FIDELITY`, the teacher's outputs."""
        if FIDELITY not in self.metrics:
            return data
        from nas.evaluation.inheritance import imitated

        return imitated(data, network)

    def probe(self, network: Trainable) -> float:
        """Seconds that the trainings of a network would take, from a few training steps."""
        from nas.evaluation.training import probe

        if self.data is None:
            return 0.0
        data = self._goal(self.data, network)
        return probe(network, data, self.seeds, self.training, device=self.device)


def _mean(scores: list[float]) -> Measured:
    mean = float(np.mean(scores))
    if len(scores) == 1:
        return Measured(mean, mean, mean, "one training")
    std = float(np.std(scores, ddof=1))
    return Measured(
        mean, mean - std, mean + std, f"mean ± standard deviation over {len(scores)} seeds"
    )


def _exact(value: float) -> Measured:
    return Measured(value, value, value)


def metrics_of(devices: Iterable[DeviceCommand | PredictedDevice]) -> list[str]:
    """Names of the metrics that devices measure or predict."""
    names = []
    for device in devices:
        if isinstance(device, DeviceCommand):
            names += [metric.name for metric in device.metrics]
        else:
            names.append(device.metric)
    return names


def known_metrics(
    latency: LatencyTask,
    data: Dataset | None = None,
    devices: Iterable[DeviceCommand | PredictedDevice] = (),
) -> tuple[str, ...]:
    """Names of the metrics that can be measured; scores need a data set."""
    scores = [data.metric, data.test_metric, *score_metrics(data)] if data and data.labelled else []
    scores += [FIDELITY] if data else []
    return (
        *scores,
        latency.metric,
        *metrics_of(devices),
        int8.LATENCY,
        memory.METRIC,
        SIZE,
        energy.METRIC,
        *RUNTIME_METRICS,
        *LANGUAGE_METRICS,
        "params",
        "flops",
    )


def trains(
    metrics: Iterable[str],
    latency: LatencyTask,
    devices: Iterable[DeviceCommand | PredictedDevice] = (),
) -> bool:
    """True if any of these metrics needs a training."""
    untrained = known_metrics(latency, None, devices)
    return any(metric not in untrained for metric in metrics)


def measurement_of(
    settings: Mapping[str, Any],
    shape: Shape | None = None,
    path: str | None = None,
    device: str = "cpu",
) -> Measurement:
    """The measurement with these settings.

    Args:
        settings: `Measurement.settings`.
        shape: input shape of the networks, see `load_dataset`.
        path: path of the data set, if it differs from the recorded one.
        device: torch device for training.

    Raises:
        InputError: the data set or a predicted device has another content than recorded.
    """
    data = None
    if (stored := settings["data"]) is not None:
        data = load_dataset(path or stored["source"], shape)
        if data.fingerprint != stored["sha256"]:
            raise InputError(
                f"{path or stored['source']}: this is not the data set that the search trains on"
            )
    calibration = None
    if "calibration" in settings:
        calibration = int8.Calibration.of_settings(settings["calibration"], shape)
    return Measurement(
        metrics=tuple(settings["metrics"]),
        data=data,
        seeds=tuple(settings["seeds"]),
        training=training_task(settings["training"]),
        latency=LatencyTask(**settings["latency"]),
        device=device,
        commands=tuple(map(DeviceCommand.of_settings, settings.get("commands", ()))),
        devices=tuple(map(device_of, settings.get("devices", ()))),
        calibration=calibration,
    )
