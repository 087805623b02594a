"""Evaluation by a function of the user's, which trains a network and returns its metrics."""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
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
"""The function calls it after each epoch with the epoch's number and values by metric.

It returns False to end the training.
"""
EvaluateFunction = Callable[..., Mapping[str, float]]
"""`evaluate(model, architecture, report, **options) -> {metric: value}`.

The model is a `torch.nn.Module`.
"""


class Trained(NamedTuple):
    """What a training by the function leaves.

    Attributes:
        values: by metric.
        state: the trained weights.
        int8: the quantized network as an ONNX file, if one of the values is its score.
    """

    values: dict[str, float]
    state: State
    int8: bytes | None = None


class FunctionEvaluator(NetworkEvaluator):
    """Evaluates networks by a function of the user's, which trains and returns values.

    The function receives the network as a PyTorch module with fresh weights, trains it in place,
    and returns values by metric. The trained weights and any further values are stored. If the
    function raises an exception, the trial fails. Latency and the like are measured on this machine
    before, so that what breaks a constraint costs no training.

    A metric such as `int8_accuracy` that the function does not return, while it returns `accuracy`,
    is the function's own value of the quantized network: its int8 file behind the signature of a
    module (`OnnxModule`). Inputs that the function trains on set the ranges of activations.

    Example:

        >>> import nas
        >>> def evaluate(model, architecture, report):
        ...     return {"layers": float(len(list(model.modules())))}
        >>> space = nas.load_benchmark("digits201").space
        >>> evaluator = nas.FunctionEvaluator(space, evaluate, ["layers"], nas.Measurement(("params",)))
        >>> evaluator.metrics, evaluator.trained
        (('layers', 'params'), ('layers',))

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
        self.function: EvaluateFunction
        if isinstance(function, str):
            self.reference = str(Path(function).absolute())
            self.function = function_from_file(function, "evaluator")
        else:
            self.reference = ""  # only a script that has the function can open it
            self.function = function
        self.returned = tuple(metrics)
        self.metrics = (*self.returned, *self.measurement.metrics)
        self.options = dict(options or {})
        # The function's option `device` says where networks are trained.
        self.device = str(self.options.get("device", "cpu"))
        self._check_signature()
        self.values = self._bound_values()
        self._was_called = False  # in this process
        self._has_warned = False  # of a training that ended early

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
        evaluator = cls(
            space,
            function,
            settings["metrics"],
            measurement_of(settings["measurement"], space.input_shape),
            {**settings["options"], **(options or {})},
            checkpoints,
        )
        if evaluator.settings["sha256"] != settings["sha256"]:
            raise InputError(
                f"{function}: its code differs from the evaluator that the search was started with"
            )
        present = evaluator.values.known
        for name, stored in settings.get("values", {}).items():
            # Computed numbers may differ in their last bits on another processor: `check_same`
            # decides.
            is_computed = stored.startswith(FLOATS)
            if present.get(name) != stored and not is_computed:
                raise InputError(
                    f"{function}: its value {name!r} differs from the evaluator that the search "
                    "was started with"
                )
        return evaluator

    @property
    def settings(self) -> Mapping[str, Any]:
        """All settings that the values depend on; {} if the function was not given as a file.

        They are plain values. What the function reads from other files, and module-level values
        that it computes, are not among them.
        """
        if not self.reference:
            return {}
        file = self.reference.rpartition(":")[0] or self.reference
        return {
            "function": self.reference,
            "sha256": code_checksum(Path(file)),
            "metrics": list(self.returned),
            "options": self.options,
            "measurement": self.measurement.settings,
            "values": self.values.known,
        }

    @property
    def script(self) -> dict[str, Any]:
        """As `settings`, of a function that only its own script can open."""
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
            present = bound_values(self.function)
        else:
            called = functools.partial(self.function, **self.options)
            present = bound_values(called, with_module=True)
        initial = {
            name: text for name, text in _state_of(self.function).items() if name in present.known
        }
        return BoundValues({**present.known, **initial}, present.unknown)

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
        trained = self.train_network(self.network(architecture), architecture, log.report)
        values = {**observed, **trained.values}
        self._keep(values, trained, log)
        return {metric: values[metric] for metric in self.metrics}

    def _train_segment(
        self, architecture: Architecture, observed: Values, log: EvaluationLogger, segment: Segment
    ) -> dict[str, float]:
        """Train up to a fidelity, where `report` returns False.

        A function with a parameter `checkpoint` continues from that file. Any other starts again
        for each fidelity, which then costs all epochs from the first on.
        """
        report = _SegmentReport(log, segment.until)
        checkpoint = self._pause_file(architecture) if self.continues else None
        trained = self.train_network(self.network(architecture), architecture, report, checkpoint)
        ended_early = log.reported < segment.until and not report.has_diverged
        if ended_early and not self._has_warned:
            self._has_warned = True
            _log.warning(
                "the evaluator ended a training after epoch %d, but %d epochs are paid: report all "
                "epochs, from 1 to the last fidelity",
                log.reported,
                segment.until,
            )
        values = {**observed, **trained.values}
        if segment.is_last:
            self._keep(values, trained, log)
        return {metric: values[metric] for metric in self.metrics}

    def _keep(self, values: Values, trained: Trained, log: EvaluationLogger) -> None:
        """Let the log keep what a whole training leaves besides the metrics."""
        further = {name: value for name, value in values.items() if name not in self.metrics}
        log.keep(further, (trained.state, {}), trained.int8)

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
        """True if the function can pause and continue trainings, by its argument `checkpoint`."""
        return self._takes("checkpoint") and "checkpoint" not in self.options

    def train_again(self, architecture: Architecture, seed: int) -> dict[str, float]:
        options = {**self.options, "seed": seed} if self._takes("seed") else self.options
        trained = self.train_network(
            self.network(architecture),
            architecture,
            EvaluationLogger().report,
            seed=seed,
            options=options,
        )
        return {metric: trained.values[metric] for metric in self.trained}

    def train_network(
        self,
        network: Trainable,
        architecture: Architecture,
        report: Report,
        checkpoint: Path | None = None,
        seed: int = INITIAL_SEED,
        options: Mapping[str, Any] | None = None,
    ) -> Trained:
        """Call the function on a network with fresh weights.

        Args:
            network: the network.
            architecture: its architecture.
            report: see `Report`.
            checkpoint: file that a paused training continues from; None for a whole training.
            seed: of torch, which draws the weights.
            options: keyword arguments of the function; `self.options` by default.

        Raises:
            EvaluatorError: the function lacks a metric, returns one that is measured here, or
                changed the module's parameters.
            InputError: it returns no dictionary, or a value that is not a number.
        """
        import torch

        options = self.options if options is None else options
        arguments = {**options, "checkpoint": checkpoint} if checkpoint else options
        pause = MeasurementPause()

        def report_and_pause(epoch: int, metrics: Mapping[str, float]) -> bool:
            pause()  # while another process measures a latency on this machine
            return report(epoch, metrics)

        # 1. Train, and record what the network is shown.
        torch.manual_seed(seed)
        module = network.module()
        names = module.state_dict().keys()
        with InputRecorder(module) as recorder, self._remembered_state():
            returned = self._call(module, architecture, report_and_pause, arguments)
        values = _plain(returned)
        if module.state_dict().keys() != names:
            raise EvaluatorError(
                "the evaluator added or removed weights of the model: train it as it is"
            )
        state = network.last_state(module)

        # 2. Score the quantized network for metrics as `int8_accuracy` that the function did not
        # return, if it returned `accuracy`.
        quantized = None
        missing = [metric for metric in self.returned if metric not in values]
        if any(float_metric(metric) in values for metric in missing):
            from nas.evaluation.onnx_module import OnnxModule, output_structure

            calibration = self.measurement.calibration
            samples = calibration.samples if calibration else recorder.samples
            quantized = quantize(trained_model(network, state), samples)
            structure = None
            if network.build is not None:
                structure = output_structure(module, network.example)
            scores = self.score(OnnxModule(quantized, structure), architecture, options=options)
            values |= {int8_metric(metric): value for metric, value in scores.items()}
        self._check_returned(values)
        return Trained(values, state, quantized)

    def score(
        self,
        module: nn.Module,
        architecture: Architecture,
        epochs: int = 1,
        options: Mapping[str, Any] | None = None,
    ) -> dict[str, float]:
        """Values that the function returns of a module that is there already.

        It is one that does not learn, such as an `OnnxModule`, or one to fine-tune. The function
        runs as it is. After some epochs `report` returns False; if it has an argument `epochs`, it
        gets that number.

        Args:
            module: the module.
            architecture: its architecture.
            epochs: after which the function is told to end.
            options: keyword arguments of the function; `self.options` by default.

        Raises:
            InputError: it returns no dictionary, or a value that is not a number.
        """
        arguments = dict(self.options if options is None else options)
        if self._takes("epochs"):
            arguments["epochs"] = min(epochs, int(arguments.get("epochs", epochs)))

        def report(epoch: int, metrics: Mapping[str, float]) -> bool:
            return whole_epoch(epoch) < epochs

        return _plain(self._call(module, architecture, report, arguments))

    def _call(
        self,
        module: nn.Module,
        architecture: Architecture,
        report: Report,
        arguments: Mapping[str, Any],
    ) -> object:
        """What the function returns."""
        with exits_as_errors():
            return self.function(module, architecture, report, **arguments)

    def _takes(self, argument: str) -> bool:
        """True if the function has a parameter of this name."""
        return argument in inspect.signature(self.function).parameters

    @contextmanager
    def _remembered_state(self) -> Iterator[None]:
        """Remember the values that the function's first call changes, as they were before."""
        if self._was_called:
            yield
            return
        before = self._bound_values().known
        yield
        self._was_called = True
        after = self._bound_values().known
        changed = {name: text for name, text in before.items() if after.get(name) != text}
        _state_of(self.function).update(changed)

    def _check_returned(self, values: Mapping[str, float]) -> None:
        """Raise EvaluatorError if a metric is missing, or is one that is measured here."""
        for metric in self.returned:
            if metric not in values:
                returned = ", ".join(values) or "nothing"
                raise EvaluatorError(
                    f"the evaluator returned no {metric!r}; it returned {returned}"
                )
        for metric in self.measurement.metrics:
            if metric in values:
                raise EvaluatorError(
                    f"the evaluator returned {metric!r}, which nas measures itself: rename it"
                )

    def _check_signature(self) -> None:
        """Raise InputError if the function cannot be called with its options."""
        try:
            inspect.signature(self.function).bind(*_ARGUMENTS, **self.options)
        except TypeError as error:
            arguments = ", ".join((*_ARGUMENTS, *self.options))
            raise InputError(f"the evaluator must take ({arguments}): {error}") from error


class _SegmentReport:
    """The `report` of a training that pauses or ends at a fidelity, where it returns False.

    The training fails if its function skips the fidelity, since the value of another epoch would be
    stored as its value.
    """

    def __init__(self, log: EvaluationLogger, until: int) -> None:
        self.log = log
        self.until = until
        self.has_ended = False  # at the fidelity
        self.has_diverged = False

    def __call__(self, epoch: int, metrics: Values) -> bool:
        epoch = whole_epoch(epoch)
        if self.has_ended and epoch != self.until:
            raise EvaluatorError(
                f"report returned False after epoch {self.until}, but the evaluator trained on: it "
                "must return then"
            )
        self.has_diverged = not self.log.report(epoch, metrics)
        if epoch > self.until:
            raise InputError(
                f"the evaluator reported epoch {epoch}, but not {self.until}, where its training "
                "pauses or ends: report each epoch in order, after a pause first the epoch in "
                "the checkpoint"
            )
        self.has_ended = epoch == self.until
        return not (self.has_diverged or self.has_ended)


def _plain(values: object) -> dict[str, float]:
    """A function's values as plain numbers."""
    if not isinstance(values, Mapping):  # perhaps a branch of the function lacks its return
        raise InputError(
            f"the evaluator must return {{metric: value}}, not {type(values).__name__}"
        )
    return {str(metric): plain_number(str(metric), value) for metric, value in values.items()}


# --- what the function depends on

_STATES: WeakKeyDictionary[Any, dict[str, str]] = WeakKeyDictionary()


def _state_of(function: Any) -> dict[str, str]:
    """Values that calls of a function change, as they were before the first call.

    All methods of an object share them.
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
    """SHA-256 of the code of a Python file and of the files beside it that it imports.

    Comments and layout do not count.
    """
    digest = hashlib.sha256()
    unread = [file]
    seen = {file}
    while unread:
        tree = _parsed(unread.pop(0))
        digest.update(ast.dump(tree).encode())
        imported = set(_imported_beside(file.parent, tree))
        unread += sorted(imported - seen)
        seen |= imported
    return digest.hexdigest()


def _parsed(file: Path) -> ast.Module:
    """The syntax tree of a Python file."""
    try:
        return ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError) as error:
        raise InputError(f"{file}: cannot be read as Python ({error})") from error


def _imported_beside(folder: Path, tree: ast.Module) -> Iterator[Path]:
    """The files in a folder that the code imports: modules, and all files of a package."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module]
        else:
            continue
        for name in names:
            top_level = folder / name.partition(".")[0]
            module = top_level.with_suffix(".py")
            if module.is_file():
                yield module
            elif (top_level / "__init__.py").is_file():
                yield from top_level.rglob("*.py")
