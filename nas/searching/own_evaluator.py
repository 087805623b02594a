"""An evaluation of the user's own: a function that trains a network and returns its metrics."""

from __future__ import annotations

import ast
import hashlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from nas.evaluation.measurement import Measurement, measurement_of
from nas.evaluation.trainable import State, Trainable
from nas.searching.evaluators import EvaluatorError
from search_spaces.common.errors import InputError, exits_as_errors
from search_spaces.common.plug_ins import function_from_file

if TYPE_CHECKING:
    from nas.searching.record import TrialRecord
    from search_spaces import Architecture, SearchSpace

INITIAL_SEED = 0  # of torch, before each network is built: its initial weights follow from the architecture
_ARGUMENTS = ("model", "architecture", "report")

Report = Callable[[int, Mapping[str, float]], bool]
"""Called by the function after an epoch with its number and values by metric; False if training should end."""
EvaluateFunction = Callable[..., Mapping[str, float]]
"""`evaluate(model, architecture, report, **options) -> {metric: value}`, where model is a `torch.nn.Module`."""


class FunctionEvaluator:
    """Values that a function of the user's own returns, beside those that are measured on this machine.

    The function gets the network as a trainable PyTorch module with fresh weights, trains it in place, and returns
    values by metric. Weights that the module then has are kept; further values that it returns are, too. What it raises
    makes the trial a failed one.

    Args:
        space: the search space.
        function: the function, or `FILE.py:function`, which other processes can open, too.
        metrics: those that the function returns.
        measurement: what is measured before the function is called, such as latency.
        options: keyword arguments of the function.
        checkpoints: folder for the states of paused trainings, where trainings are begun, paused and continued
            (`nas.searching.by_cost`). A function with the argument `checkpoint` gets the path of a file of the
            network's own there: it loads the file, if it exists, and writes it before it returns.

    Raises InputError for a function that does not take these arguments.
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
        self.space = space
        self.checkpoints = checkpoints
        self.reference = str(Path(function).absolute()) if isinstance(function, str) else ""
        self.function = function_from_file(function, "evaluator") if isinstance(function, str) else function
        self.returned = tuple(metrics)
        self.measurement = measurement or Measurement(())
        self.metrics = (*self.returned, *self.measurement.metrics)
        self.options = dict(options or {})
        self._check_signature()

    @property
    def device(self) -> str:
        """Where networks are trained, as far as the function lets its caller say it."""
        return str(self.options.get("device", "cpu"))

    @classmethod
    def of_settings(
        cls,
        space: SearchSpace,
        settings: Mapping[str, Any],
        function: str | None,
        options: Mapping[str, Any] | None = None,
        checkpoints: Path | None = None,
    ) -> FunctionEvaluator:
        """The evaluator with these `settings`; `function` is the same `FILE.py:function`, perhaps of another path.

        options: that replace those of the settings. Raises InputError for another function, and without one: its file
        is not run unless somebody names it.
        """
        if function is None:
            raise InputError(
                f"the search evaluates by {settings['function']}, Python code that was not run: give --trust to run "
                "it, or --evaluator with its path on this machine"
            )
        replaced = {**settings["options"], **(options or {})}
        found = cls(
            space, function, settings["metrics"], measurement_of(settings["measurement"]), replaced, checkpoints
        )
        if found.settings["sha256"] != settings["sha256"]:
            raise InputError(f"{function}: another evaluator than the one that the search was begun with")
        return found

    @property
    def settings(self) -> dict[str, Any]:
        """All that the values depend on, as plain values; {} for a function that no file is known of."""
        if not self.reference:
            return {}
        return {
            "function": self.reference,
            "sha256": code_checksum(Path(self.reference.rpartition(":")[0] or self.reference)),
            "metrics": list(self.returned),
            "options": self.options,
            "measurement": self.measurement.settings,
        }

    def __call__(self, architectures: Sequence[Architecture]) -> np.ndarray:
        values = [self.evaluate(architecture) for architecture in architectures]
        return np.array(values, dtype=float).reshape(-1, len(self.metrics))

    def evaluate(self, architecture: Architecture, record: TrialRecord | None = None) -> list[float]:
        network = Trainable.of(self.space, architecture)
        found: dict[str, float] = {}
        if self.measurement.metrics:
            measured = self.measurement(network, self.space.to_onnx(architecture)).values
            found = {metric: value.value for metric, value in measured.items()}
            if record:
                record.spread({metric: (m.low, m.high, m.spread) for metric, m in measured.items() if m.spread})
        returned, state = self.train(network, architecture, record.report if record else _go_on)
        found |= returned
        if record:
            record.keep({metric: value for metric, value in found.items() if metric not in self.metrics}, (state, {}))
        return [found[metric] for metric in self.metrics]

    @property
    def continues(self) -> bool:
        """True if the function keeps the states of its trainings, and goes on from them."""
        return "checkpoint" in inspect.signature(self.function).parameters and "checkpoint" not in self.options

    def train(
        self, network: Trainable, architecture: Architecture, report: Report, checkpoint: Path | None = None
    ) -> tuple[dict[str, float], State]:
        """What the function returns of a network with fresh weights, and the weights that it leaves."""
        torch.manual_seed(INITIAL_SEED)
        module = network.module()
        names = module.state_dict().keys()
        state = {"checkpoint": checkpoint} if checkpoint else {}
        with exits_as_errors():
            values = self.function(module, architecture, report, **self.options, **state)
        returned = self._returned(values)
        if module.state_dict().keys() != names:
            raise EvaluatorError("the evaluator changed which weights the model has: train it as it is")
        return returned, network.state(module)

    def _returned(self, values: object) -> dict[str, float]:
        """What the function returned, checked."""
        if not isinstance(values, Mapping):
            raise EvaluatorError(f"the evaluator must return {{metric: value}}, not {type(values).__name__}")
        if missing := [metric for metric in self.returned if metric not in values]:
            have = ", ".join(map(str, values)) or "nothing"
            raise EvaluatorError(f"the evaluator returned no {missing[0]!r}; it returned {have}")
        try:
            return {str(metric): float(value) for metric, value in values.items()}
        except (TypeError, ValueError):
            raise EvaluatorError(f"the evaluator returned a value that is no number: {dict(values)}") from None

    def _check_signature(self) -> None:
        try:
            inspect.signature(self.function).bind(*_ARGUMENTS, **self.options)
        except TypeError as error:
            given = ", ".join((*_ARGUMENTS, *self.options))
            raise InputError(f"the evaluator must take ({given}): {error}") from None


def _go_on(epoch: int, metrics: Mapping[str, float]) -> bool:
    return True


def code_checksum(file: Path) -> str:
    """SHA-256 of the code of a Python file and of those beside it that it imports; comments and layout do not count."""
    digest, seen, unread = hashlib.sha256(), {file}, [file]
    while unread:
        tree = _parsed(unread.pop(0))
        digest.update(ast.dump(tree).encode())
        unread += sorted({*_beside(file.parent, tree)} - seen)
        seen |= {*unread}
    return digest.hexdigest()


def _parsed(file: Path) -> ast.Module:
    try:
        return ast.parse(file.read_text())
    except (OSError, SyntaxError, ValueError) as error:
        raise InputError(f"{file}: cannot be read as Python ({error})") from None


def _beside(folder: Path, tree: ast.Module) -> Iterator[Path]:
    """The files of a folder that code imports: modules, and all of a package."""
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        for name in names:
            first = folder / name.partition(".")[0] if name else None
            if first and first.with_suffix(".py").is_file():
                yield first.with_suffix(".py")
            elif first and (first / "__init__.py").is_file():
                yield from first.rglob("*.py")
