"""Evaluation by a function of the user's, which trains a network and returns its metrics."""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

from nas.evaluation.export import trained_model
from nas.evaluation.int8 import InputRecorder, float_metric, int8_metric, quantize
from nas.evaluation.machine import MeasurementPause
from nas.evaluation.measurement import Measurement, measurement_of
from nas.evaluation.trainable import State, Trainable
from nas.search.evaluators import Values
from nas.search.measured_evaluator import NetworkEvaluator, spreads_of, values_of
from nas.search.study.bound_values import FLOATS, BoundValues, bound_values
from nas.search.study.schema import SCRIPT
from nas.search.study.trial_logger import EvaluationLogger, plain_number, whole_epoch
from nas.search.trainings import Fidelities, Segment
from search_spaces.common.errors import EvaluatorError, InputError, exits_as_errors
from search_spaces.common.plug_ins import function_from_file

if TYPE_CHECKING:
    from torch import nn

    from search_spaces import Architecture, SearchSpace

_log = logging.getLogger(__name__)
# Of torch before each network is built, so that its initial weights depend on the architecture only
INITIAL_SEED = 0
_ARGUMENTS = ("model", "architecture", "report")

Report = Callable[[int, Mapping[str, float]], bool]
"""The function calls it after each epoch with the epoch's number and values by metric. False: end the training."""
EvaluateFunction = Callable[..., Mapping[str, float]]
"""`evaluate(model, architecture, report, **options) -> {metric: value}`, where model is a `torch.nn.Module`."""


class _Trained(NamedTuple):
    """What a training leaves: values by metric, weights, and the quantized network as an ONNX file
    if one of the values is its score.
    """

    values: dict[str, float]
    state: State
    int8: bytes | None = None


class FunctionEvaluator(NetworkEvaluator):
    """Evaluates networks by a function of the user's, and optionally measures latency and the like
    on this machine.

    The function receives the network as a PyTorch module with fresh weights, trains it in place,
    and returns values by metric. The trained weights and any further values are stored. If the
    function raises an exception, the trial fails.

    A metric such as `int8_accuracy` that the function does not return, while it returns `accuracy`,
    is the function's own value of the quantized network: its int8 file behind the signature of a
    module (`OnnxModule`). Inputs that the function trains on set the ranges of activations.

    Args:
        space: the search space.
        function: the function, or `FILE.py:function`, which other processes can open as well.
        metrics: metrics that the function returns.
        measurement: what is measured before the function is called, such as latency.
        options: keyword arguments of the function.
        checkpoints: folder for paused trainings in searches by cost (`nas.search.multi_fidelity`). A
            function with the argument `checkpoint` gets a path there for each network. It loads
            that file if it exists, and writes it before it returns.

    Raises:
        InputError: the function does not take these arguments.
    """

    def __init__(
        self,
        space: SearchSpace,
        function: EvaluateFunction | str,
        metrics: Sequence[str],
        measurement: Measurement | None = None,
        options: Mapping[str, Any] | None = None,
        checkpoints: Path | None = None,
    ) -> None:
        super().__init__(space, measurement or Measurement(()), checkpoints)
        self.reference = str(Path(function).absolute()) if isinstance(function, str) else ""
        self.function = (
            function_from_file(function, "evaluator") if isinstance(function, str) else function
        )
        self.returned = tuple(metrics)
        self.metrics = (*self.returned, *self.measurement.metrics)
        self.options = dict(options or {})
        # The function's option `device` says where networks are trained.
        self.device = str(self.options.get("device", "cpu"))
        self._check_signature()
        self.values = self._bound_values()
        self._was_called = False
        self._warned = False  # of a training that ended early

    @property
    def trained(self) -> tuple[str, ...]:
        return self.returned

    @classmethod
    def of_settings(
        cls,
        space: SearchSpace,
        settings: Mapping[str, Any],
        function: str | None,
        options: Mapping[str, Any] | None = None,
        checkpoints: Path | None = None,
    ) -> FunctionEvaluator:
        """The evaluator with stored `settings`.

        Args:
            space: the search space.
            settings: see `FunctionEvaluator.settings`.
            function: the same `FILE.py:function`, perhaps at another path.
            options: replace those of the settings.
            checkpoints: folder for paused trainings.

        Raises:
            InputError: no function is given, since a stored search must not run code by itself, or
                its code differs from that of the settings.
        """
        if function is None:
            raise InputError(
                f"the search evaluates with {settings['function']}, Python code that was not run: "
                "give --trust to run it, or --evaluator with its path on this machine"
            )
        replaced = {**settings["options"], **(options or {})}
        evaluator = cls(
            space,
            function,
            settings["metrics"],
            measurement_of(settings["measurement"], space.input_shape),
            replaced,
            checkpoints,
        )
        if evaluator.settings["sha256"] != settings["sha256"]:
            raise InputError(
                f"{function}: its code differs from the evaluator that the search was started with"
            )
        present = evaluator.values.known
        for name, old in settings.get("values", {}).items():
            # Computed numbers may differ in their last bits on another processor: `check_same`
            # decides.
            if present.get(name) != old and not old.startswith(FLOATS):
                raise InputError(
                    f"{function}: its value {name!r} differs from the evaluator that the search "
                    "was started with"
                )
        return evaluator

    @property
    def settings(self) -> Mapping[str, Any]:
        """All settings that the values depend on, as plain values; {} if the function was not given
        as a file.

        What the function reads from other files, and module-level values that it computes, are not
        among them.
        """
        if not self.reference:
            return {}
        return {
            "function": self.reference,
            "sha256": code_checksum(Path(self.reference.rpartition(":")[0] or self.reference)),
            "metrics": list(self.returned),
            "options": self.options,
            "measurement": self.measurement.settings,
            "values": self.values.known,
        }

    @property
    def script(self) -> dict[str, Any]:
        """As `settings`, of a function that was not given as a file and that only its own script
        can open.
        """
        return {
            "function": _name(self.function),
            "metrics": list(self.returned),
            "measurement": self.measurement.settings,
            "values": self.values.known,
        }

    @property
    def source(self) -> dict[str, Any]:
        return {"evaluator": self.settings} if self.reference else {SCRIPT: self.script}

    @property
    def uncompared(self) -> Mapping[str, str]:
        return self.values.unknown

    def _bound_values(self) -> BoundValues:
        """Values that the function is bound to, as they were before its first call in this process.

        Later differences of what the function itself changes, such as a list of results, are no
        changes by the user.
        """
        if self.reference:
            values = bound_values(self.function)
        else:
            values = bound_values(
                functools.partial(self.function, **self.options), with_module=True
            )
        kept = {
            name: text for name, text in _state_of(self.function).items() if name in values.known
        }
        return BoundValues({**values.known, **kept}, values.unknown)

    def measure(self, architecture: Architecture, log: EvaluationLogger) -> dict[str, float]:
        log.identify(self.network(architecture))
        measured = self._measured(self.measurement, architecture)
        log.spread(spreads_of(measured))
        return values_of(measured)

    def train(
        self,
        architecture: Architecture,
        observed: Values,
        log: EvaluationLogger,
        segment: Segment | None = None,
    ) -> dict[str, float]:
        if segment is not None:
            return self._train_segment(architecture, observed, log, segment)
        trained = self._train_network(self.network(architecture), architecture, log.report)
        values = {**observed, **trained.values}
        further = {m: value for m, value in values.items() if m not in self.metrics}
        log.keep(further, (trained.state, {}), trained.int8)
        return {metric: values[metric] for metric in self.metrics}

    def _train_segment(
        self, architecture: Architecture, observed: Values, log: EvaluationLogger, segment: Segment
    ) -> dict[str, float]:
        """Train up to a fidelity, where `report` returns False.

        The training fails if its function skips the fidelity, since the value of another epoch
        would be stored as its value. A function with a parameter `checkpoint` continues from that
        file. Any other starts again for each fidelity, which then costs all epochs from the first
        on.
        """
        until = segment.until
        has_ended = has_diverged = False

        def report(epoch: int, metrics: Values) -> bool:
            nonlocal has_ended, has_diverged
            epoch = whole_epoch(epoch)
            if has_ended and epoch != until:
                raise EvaluatorError(
                    f"report returned False after epoch {until}, but the evaluator trained on: it "
                    "must return then"
                )
            has_diverged = not log.report(epoch, metrics)
            if epoch > until:
                raise InputError(
                    f"the evaluator reported epoch {epoch}, but not {until}, where its training "
                    "pauses or ends: report each epoch in order, after a pause first the epoch in "
                    "the checkpoint"
                )
            has_ended = epoch == until
            return not has_diverged and not has_ended

        trained = self._train_network(
            self.network(architecture),
            architecture,
            report,
            self._pause_file(architecture) if self.continues else None,
        )
        if log.reported < until and not has_diverged and not self._warned:
            self._warned = True
            _log.warning(
                "the evaluator ended a training after epoch %d, but %d epochs are paid: report all "
                "epochs, from 1 to the last fidelity",
                log.reported,
                until,
            )
        values = {**observed, **trained.values}
        if segment.is_last:
            further = {m: value for m, value in values.items() if m not in self.metrics}
            log.keep(further, (trained.state, {}), trained.int8)
        return {metric: values[metric] for metric in self.metrics}

    def fidelities(self, levels: Sequence[int]) -> Fidelities:
        fidelities = Fidelities.of(levels, continues=self.continues)
        if self.continues:
            self._check_pause_folder()
        return fidelities

    def forget(self, architecture: Architecture) -> None:
        if self.continues:
            super().forget(architecture)

    @property
    def continues(self) -> bool:
        """True if the function can pause and continue trainings: it has an argument
        `checkpoint`.
        """
        return (
            "checkpoint" in inspect.signature(self.function).parameters
            and "checkpoint" not in self.options
        )

    def train_network(
        self,
        network: Trainable,
        architecture: Architecture,
        report: Report,
        checkpoint: Path | None = None,
        seed: int = INITIAL_SEED,
    ) -> tuple[dict[str, float], State]:
        """Call the function on a network with fresh weights, which `seed` draws.

        Returns:
            The values by metric and the trained weights.

        Raises:
            EvaluatorError: the function lacks a metric, returns one that is measured here, or
                changed the module's parameters.
            InputError: it returns no dictionary, or a value that is not a number.
        """
        trained = self._train_network(network, architecture, report, checkpoint, seed)
        return trained.values, trained.state

    def _train_network(
        self,
        network: Trainable,
        architecture: Architecture,
        report: Report,
        checkpoint: Path | None = None,
        seed: int = INITIAL_SEED,
    ) -> _Trained:
        """As `train_network`, with the quantized network if a metric is its score."""
        import torch

        # 1. Train, and record what the network is shown.
        torch.manual_seed(seed)
        module = network.module()
        names = module.state_dict().keys()
        paused = {"checkpoint": checkpoint} if checkpoint else {}
        before = None if self._was_called else self._bound_values()
        pause = MeasurementPause()

        def report_and_pause(epoch: int, metrics: Mapping[str, float]) -> bool:
            pause()  # while another process measures a latency on this machine
            return report(epoch, metrics)

        with InputRecorder(module) as recorder:
            returned = self._call(module, architecture, report_and_pause, self.options | paused)
        if before is not None:
            self._was_called = True
            self._remember_state(before)
        values = _plain(returned)
        if module.state_dict().keys() != names:
            raise EvaluatorError(
                "the evaluator added or removed weights of the model: train it as it is"
            )
        state = network.last_state(module)

        # 2. Score the quantized network, unless the function returns such scores itself.
        from nas.evaluation.onnx_module import OnnxModule, output_structure

        int8 = {metric: float_metric(metric) for metric in self.returned if metric not in values}
        if not any(metric in values for metric in int8.values()):
            self._check_returned(values)
            return _Trained(values, state)
        calibration = self.measurement.calibration
        samples = calibration.samples if calibration else recorder.samples
        quantized = quantize(trained_model(network, state), samples)
        structure = None if network.build is None else output_structure(module, network.example)
        scores = self.score(OnnxModule(quantized, structure), architecture)
        values |= {int8_metric(metric): value for metric, value in scores.items()}
        self._check_returned(values)
        return _Trained(values, state, quantized)

    def score(
        self, module: nn.Module, architecture: Architecture, epochs: int = 1
    ) -> dict[str, float]:
        """Values that the function returns of a module that is there already: one that does not
        learn, such as an `OnnxModule`, or one to fine-tune.

        The function runs as it is. After some epochs `report` returns False; if it has an argument
        `epochs`, it gets that number.

        Args:
            module: the module.
            architecture: its architecture.
            epochs: after which the function is told to end.

        Raises:
            InputError: it returns no dictionary, or a value that is not a number.
        """
        options = dict(self.options)
        if "epochs" in inspect.signature(self.function).parameters:
            options["epochs"] = min(epochs, int(options.get("epochs", epochs)))

        def report(epoch: int, metrics: Mapping[str, float]) -> bool:
            return whole_epoch(epoch) < epochs

        return _plain(self._call(module, architecture, report, options))

    def _call(
        self,
        module: nn.Module,
        architecture: Architecture,
        report: Report,
        options: Mapping[str, Any],
    ) -> object:
        """What the function returns."""
        with exits_as_errors():
            return self.function(module, architecture, report, **options)

    def train_again(self, architecture: Architecture, seed: int) -> dict[str, float]:
        options = self.options
        if "seed" in inspect.signature(self.function).parameters:
            self.options = {**options, "seed": seed}
        try:
            values, _ = self.train_network(
                self.network(architecture), architecture, EvaluationLogger().report, seed=seed
            )
        finally:
            self.options = options
        return {metric: values[metric] for metric in self.trained}

    def _remember_state(self, before: BoundValues) -> None:
        """Remember the values that the function's first call has changed."""
        after = self._bound_values().known
        changed = {name: text for name, text in before.known.items() if after.get(name) != text}
        _state_of(self.function).update(changed)

    def _check_returned(self, values: Mapping[str, float]) -> None:
        """Raise EvaluatorError if a metric is missing, or is one that is measured here."""
        if missing := [metric for metric in self.returned if metric not in values]:
            have = ", ".join(map(str, values)) or "nothing"
            raise EvaluatorError(f"the evaluator returned no {missing[0]!r}; it returned {have}")
        if measured := [metric for metric in self.measurement.metrics if metric in values]:
            raise EvaluatorError(
                f"the evaluator returned {measured[0]!r}, which nas measures itself: rename it"
            )

    def _check_signature(self) -> None:
        try:
            inspect.signature(self.function).bind(*_ARGUMENTS, **self.options)
        except TypeError as error:
            given = ", ".join((*_ARGUMENTS, *self.options))
            raise InputError(f"the evaluator must take ({given}): {error}") from error


def _plain(values: object) -> dict[str, float]:
    """A function's values as plain numbers."""
    if not isinstance(values, Mapping):  # perhaps a branch of the function lacks its return
        raise InputError(
            f"the evaluator must return {{metric: value}}, not {type(values).__name__}"
        )
    return {str(metric): plain_number(str(metric), value) for metric, value in values.items()}


_STATES: WeakKeyDictionary[Any, dict[str, str]] = WeakKeyDictionary()


def _state_of(function: Any) -> dict[str, str]:
    """Values that calls of a function or methods of its object change, as they were before the
    first call.
    """
    owner = getattr(function, "__self__", function)
    try:
        return _STATES.setdefault(owner, {})
    except TypeError:  # an object of a class with slots
        return {}


def _name(function: Any) -> str:
    """Name of a function, for messages; of a partial one, that of the function inside."""
    inner = function.func if isinstance(function, functools.partial) else function
    return str(getattr(inner, "__qualname__", type(inner).__qualname__))


def code_checksum(file: Path) -> str:
    """SHA-256 of the code of a Python file and of the files beside it that it imports, without
    comments and layout.
    """
    digest, seen, unread = hashlib.sha256(), {file}, [file]
    while unread:
        tree = _parsed(unread.pop(0))
        digest.update(ast.dump(tree).encode())
        unread += sorted({*_beside(file.parent, tree)} - seen)
        seen |= {*unread}
    return digest.hexdigest()


def _parsed(file: Path) -> ast.Module:
    try:
        return ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError) as error:
        raise InputError(f"{file}: cannot be read as Python ({error})") from error


def _beside(folder: Path, tree: ast.Module) -> Iterator[Path]:
    """The files in a folder that the code imports: modules, and all files of a package."""
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        for name in names:
            first = folder / name.partition(".")[0] if name else None
            if first and first.with_suffix(".py").is_file():
                yield first.with_suffix(".py")
            elif first and (first / "__init__.py").is_file():
                yield from first.rglob("*.py")
