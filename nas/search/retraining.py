"""Preparing a network of a finished search for deployment: the search's training, usually with more
epochs, and the network in 8-bit integers.

    weights ─▶ float file ─▶ score in ONNX Runtime ─▶ static quantization ─▶ score in ONNX Runtime
                                                               │ loses more than a point
                                                               ▼
                                     quantization-aware epochs ─▶ static quantization ─▶ score

All scores are those of files in ONNX Runtime. With a function of the user's, it is this function
that scores them: it gets the file behind the signature of a module.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from nas.evaluation import int8
from nas.evaluation.datasets import Dataset
from nas.evaluation.export import load_weights, preprocessing, trained_model
from nas.evaluation.inheritance import imitated
from nas.evaluation.int8 import InputRecorder, Samples
from nas.evaluation.latency import CPU, time_serialized
from nas.evaluation.measurement import Measurement, measurement_of
from nas.evaluation.metrics import FIDELITY
from nas.evaluation.onnx_module import OnnxModule, output_structure
from nas.evaluation.quantization_aware import plain_state, with_fake_quantization
from nas.evaluation.tasks import training_task
from nas.evaluation.trainable import State, Trainable
from nas.evaluation.training import train
from nas.search.own_evaluator import FunctionEvaluator
from nas.search.study.files import INT8, Weights, write_network
from nas.search.study.provenance import Source
from predictors.metrics import Metric
from search_spaces.common.errors import InputError
from search_spaces.common.files import replacing
from search_spaces.common.progress import Progress
from search_spaces.ir.text import fingerprint

if TYPE_CHECKING:
    from torch import nn

    from search_spaces import Architecture, SearchSpace

SUMMARY = "summary.json"
CHECKPOINT = "training.pt"
POINT = 0.01  # loss by static quantization, as a share of the float score, that is fine-tuned away
FINE_TUNING_RATE = 0.1  # learning rate of the built-in fine-tuning, as a share of the training's


@dataclass(frozen=True)
class Quantization:
    """How a trained network becomes an int8 file.

    Attributes:
        epochs: of quantization-aware fine-tuning, if static quantization loses more than a point;
            0 for none.
        calibration: inputs that set the ranges of activations, see
            `nas.evaluation.int8.read_calibration`; "" for inputs of the training.
    """

    epochs: int = 2
    calibration: str = ""


@dataclass(frozen=True)
class Retraining:
    """Changes of a retraining to the training of its search.

    Attributes:
        settings: training settings that replace those of the search.
        device: PyTorch device to train on.
        data: path of the data set, if it has moved or if the search trained nothing.
        function: the user's evaluator, `FILE.py:function`, which is run; required if the search
            used one.
        int8: how the network is quantized after the training; None if it is not.
        objectives: of the search: the first that is trained, with its direction, decides how good a
            quantized network is.
    """

    settings: Mapping[str, Any]
    device: str = "cpu"
    data: str | None = None
    function: str | None = None
    int8: Quantization | None = None
    objectives: tuple[Metric, ...] = ()


def retrain(
    space: SearchSpace,
    architecture: Architecture,
    source: Source,
    changes: Retraining,
    stem: Path,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Train an architecture from scratch, and write its files (`nas.search.study.files`) and
    `summary.json`; with `changes.int8` also `STEM.int8.onnx`.

    Data set, split, seeds and all settings except `changes.settings` are those of the search. An
    interrupted built-in training resumes. A finished one is not repeated.

    Args:
        space: the search space.
        architecture: the architecture to train.
        source: the source of the search's values (`nas.search.study.schema.SearchAttributes`).
        changes: to the search's training.
        stem: folder and name of the files.
        progress: called with "epochs", the epochs done and the epochs in total.

    Returns:
        The summary: architecture, network, training settings, and scores by metric; with
        `changes.int8` also `int8`: its settings, its method, and the values of the int8 file.

    Raises:
        InputError: the folder holds another training, the search trained nothing and no data set is
            given, the training diverges, or the network cannot be quantized.
    """
    network = Trainable.of(space, architecture)
    training = _Own if "evaluator" in source else _BuiltIn
    run = training(space, source, changes)
    about = {
        "architecture": space.format(architecture),
        "network": fingerprint(network.text),
        "training": run.settings,
    }
    path = stem.parent / SUMMARY
    samples: Samples = ()
    if changes.int8 and changes.int8.calibration:  # read before a training that may take hours
        shape = network.graph.shapes[network.graph.inputs[0]][1:]
        samples = int8.read_calibration(changes.int8.calibration, shape)

    # 1. Train, unless that is done.
    if path.exists():
        summary = _read(path)
        if {key: summary.get(key) for key in about} != json.loads(json.dumps(about)):
            raise InputError(
                f"{stem.parent}: contains a network trained with other settings: give another --out"
            )
    else:
        values, weights = run(network, architecture, stem.parent / CHECKPOINT, progress)
        stem.parent.mkdir(parents=True, exist_ok=True)
        write_network(stem, space, architecture, values, weights)
        summary = {**about, "values": values}
        _write(path, summary)
        for checkpoint in stem.parent.glob(f"{Path(CHECKPOINT).stem}*.pt"):
            checkpoint.unlink()

    # 2. Quantize, unless that is done.
    quantized = stem.with_suffix(INT8)
    done = summary.get("int8", {}).get("settings")
    if changes.int8 is not None and not (quantized.is_file() and done == asdict(changes.int8)):
        if progress:
            progress("quantization", 0, 1)
        state, _ = load_weights(stem.with_suffix(".safetensors"))
        result = _quantize(run, network, architecture, state, samples, changes.int8.epochs)
        with replacing(quantized) as file:
            file.write_bytes(result.model)
        summary["int8"] = {
            "settings": asdict(changes.int8),
            "method": result.method,
            "values": result.values,
        }
        _write(path, summary)
    return summary


class _Quantized(NamedTuple):
    """A quantized network.

    Attributes:
        model: the ONNX file.
        values: scores and latency of this file, and scores and latency of the float file in ONNX
            Runtime, by metric.
        method: how it was made, for people.
    """

    model: bytes
    values: dict[str, float]
    method: str


def _quantize(
    run: _BuiltIn | _Own,
    network: Trainable,
    architecture: Architecture,
    state: State,
    samples: Samples,
    epochs: int,
) -> _Quantized:
    """Quantize a trained network, statically or, where this loses more than a point, after
    fine-tuning.

    Args:
        run: the training, which scores files and fine-tunes.
        network: the network.
        architecture: its architecture.
        state: its trained weights.
        samples: calibration inputs; inputs of the training if empty.
        epochs: of fine-tuning.
    """
    # 1. The float file: its score in ONNX Runtime is what quantization may lose from. A user's
    #    function shows its training inputs meanwhile.
    floating = trained_model(network, state)
    float_scores, shown = run.scores(network, architecture, floating.SerializeToString())
    metric = run.compared(float_scores)
    samples = samples or shown()
    count = len(samples[0])

    # 2. Static quantization.
    model = int8.quantize(floating, samples)
    scores, _ = run.scores(network, architecture, model)
    method = f"static, {count} calibration samples"

    # 3. Quantization-aware fine-tuning from the trained weights, kept if it is better.
    sign = 1 if metric.direction == "maximize" else -1
    before = float_scores[metric.name]
    lost = sign * (before - scores[metric.name])
    if epochs and lost > POINT * abs(before):
        tuned_state = run.fine_tuned(network, architecture, state, epochs)
        tuned = int8.quantize(trained_model(network, tuned_state), samples)
        tuned_scores, _ = run.scores(network, architecture, tuned)
        if sign * (before - tuned_scores[metric.name]) < lost:
            model, scores = tuned, tuned_scores
            method = f"{epochs} quantization-aware epochs, {count} calibration samples"

    # 4. Latencies of these very files, measured together.
    task = replace(run.latency, provider=CPU)
    times = time_serialized([floating.SerializeToString(), model], task)
    values = {int8.int8_metric(metric): score for metric, score in scores.items()}
    values |= {int8.LATENCY: times[1].median}
    values |= {**float_scores, "cpu_latency_ms": times[0].median}
    return _Quantized(model, values, method)


class _BuiltIn:
    """The built-in training."""

    def __init__(self, space: SearchSpace, source: Source, changes: Retraining) -> None:
        measured = source.get("measurement")
        if changes.data is None and (measured is None or measured["data"] is None):
            raise InputError("the search trained no network: give --dataset and training settings")
        if measured is None or measured["data"] is None:
            from nas.evaluation.datasets import load_dataset

            measured = Measurement((), load_dataset(str(changes.data), space.input_shape)).settings
        measurement = measurement_of(measured, space.input_shape, changes.data, changes.device)
        settings = asdict(measurement.training)
        if "optimizer" in changes.settings:
            settings["learning_rate"] = None  # the stored one is another optimizer's
        task = training_task({**settings, **changes.settings}).of_weights(space.inherits)
        self.measurement = replace(measurement, training=task)
        self.settings = {name: self.measurement.settings[name] for name in ("seeds", "training")}
        self.settings["data"] = self.measurement.settings["data"]["sha256"]
        self.latency = self.measurement.latency

    def __call__(
        self,
        network: Trainable,
        architecture: Architecture,
        checkpoint: Path,
        progress: Progress | None,
    ) -> tuple[dict[str, float], Weights]:
        m = self.measurement
        data = self._data(network)
        trained = train(
            network, data, m.seeds, m.training, device=m.device, checkpoint=checkpoint,
            progress=progress,
        )  # fmt: skip
        if trained.state is None:
            raise InputError("the training diverged: try a lower learning_rate")
        scores = {
            data.metric: trained.validation[trained.best],
            data.test_metric: trained.test[trained.best],
        }
        return scores, (trained.state, preprocessing(data))

    def _data(self, network: Trainable) -> Dataset:
        """The data set, with a teacher's outputs as targets if the search imitates it."""
        data = self.measurement.data
        assert data is not None
        imitates = FIDELITY in self.measurement.metrics or not data.labelled
        return imitated(data, network) if imitates else data

    # --- quantization

    def scores(
        self, network: Trainable, architecture: Architecture, model: bytes
    ) -> tuple[dict[str, float], Callable[[], Samples]]:
        """Scores of a file by the names of the float metrics, and what gives training inputs."""
        data = self._data(network).with_validation(self.measurement.training.validation)
        scores = zip((data.metric, data.test_metric), int8.scores(model, data), strict=True)
        return dict(scores), lambda: [int8.calibration_samples(data)]

    def compared(self, scores: Mapping[str, float]) -> Metric:
        """The metric that says how good a quantized network is: the validation score."""
        name = next(iter(scores))
        return Metric(name, direction="min" if name.endswith("_rmse") else "max")

    def fine_tuned(
        self, network: Trainable, architecture: Architecture, state: State, epochs: int
    ) -> State:
        """Weights after quantization-aware epochs."""

        def build() -> nn.Module:
            module = network.module()
            module.load_state_dict(dict(state))
            return with_fake_quantization(module)

        aware = replace(network, build=build, inherits=True)
        task = self.measurement.training
        rate = task.learning_rate
        if rate is not None:
            rate *= FINE_TUNING_RATE
        task = replace(task, epochs=epochs, learning_rate=rate, patience=None)
        seed = self.measurement.seeds[0]
        trained = train(aware, self._data(network), (seed,), task, device=self.measurement.device)
        return state if trained.state is None else plain_state(trained.state)


class _Own:
    """Training by the user's own function."""

    def __init__(self, space: SearchSpace, source: Source, changes: Retraining) -> None:
        if changes.data is not None:
            raise InputError(
                "the search trained with your own function, which loads its own data: omit "
                "--dataset"
            )
        self.objectives = changes.objectives
        device = {} if changes.device == "cpu" else {"device": changes.device}
        options = {**changes.settings, **device}
        self.evaluator = FunctionEvaluator.of_settings(
            space, source["evaluator"], changes.function, options
        )
        self.settings = {name: self.evaluator.settings[name] for name in ("sha256", "options")}
        self.latency = self.evaluator.measurement.latency

    def __call__(
        self,
        network: Trainable,
        architecture: Architecture,
        checkpoint: Path,
        progress: Progress | None,
    ) -> tuple[dict[str, float], Weights]:
        epochs = int(self.evaluator.options.get("epochs", 0))

        def report(epoch: int, metrics: Mapping[str, float]) -> bool:
            if progress:
                progress("epochs", epoch, max(epoch, epochs))
            return True

        trained = self.evaluator.train_network(network, architecture, report)
        return trained.values, (trained.state, {})

    # --- quantization

    def scores(
        self, network: Trainable, architecture: Architecture, model: bytes
    ) -> tuple[dict[str, float], Callable[[], Samples]]:
        """Values of the function for a file, and what gives inputs that it trains on."""
        structure = None
        if network.build is not None:
            structure = output_structure(network.module(), network.example)
        module = OnnxModule(model, structure)
        with InputRecorder(module) as recorder:
            values = self.evaluator.score(module, architecture)
        return values, lambda: recorder.samples

    def compared(self, scores: Mapping[str, float]) -> Metric:
        """The metric that says how good a quantized network is: the first of the search's
        objectives that the function returns.
        """
        for metric in self.objectives:
            name = metric.name if metric.name in scores else int8.float_metric(metric.name)
            if name in scores:
                return Metric(name, metric.kind, metric.direction)
        return Metric(next(iter(scores)))

    def fine_tuned(
        self, network: Trainable, architecture: Architecture, state: State, epochs: int
    ) -> State:
        """Weights after quantization-aware epochs of the function's own training."""
        module = network.module()
        module.load_state_dict(dict(state))
        with_fake_quantization(module.train())
        self.evaluator.score(module, architecture, epochs)
        return plain_state(network.last_state(module))


def _write(path: Path, summary: Mapping[str, Any]) -> None:
    with replacing(path) as file:
        file.write_text(json.dumps(summary, indent=1) + "\n")


def _read(path: Path) -> dict[str, Any]:
    try:
        summary = json.loads(path.read_text())
        return summary if isinstance(summary, dict) else {}
    except (OSError, ValueError):
        return {}
