"""A problem: which networks there are, how one is evaluated, and what is better.

A search, a comparison and a report are given one `Problem` instead of space, objectives and
evaluator one by one, so that each of these is said once:

    choices ──space──▶ network ──evaluator──▶ values by metric ──objectives, constraints──▶ front
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nas import benchmarks
from nas.evaluation.datasets import Dataset, load_dataset
from nas.evaluation.latency import LatencyTask
from nas.evaluation.measurement import Measurement, known_metrics, trains
from nas.evaluation.metrics import check_metrics
from nas.evaluation.subjects import fits
from nas.search.evaluators import Evaluator, EvaluatorLike, TableEvaluator, as_evaluator
from nas.search.measured_evaluator import MeasuredEvaluator
from nas.search.objectives import (
    ConstraintsLike,
    ObjectivesLike,
    metric_names,
    parse_constraints,
    parse_objectives,
)
from nas.search.own_evaluator import FunctionEvaluator
from search_spaces import SearchSpace, TorchSpace, get_space
from search_spaces.common.errors import InputError

if TYPE_CHECKING:
    from predictors.metrics import Metric


class Benchmark(benchmarks.Benchmark):
    """A table of measured architectures, from which a search can take its values.

    Example:

        >>> import nas
        >>> table = nas.load_benchmark("digits201")
        >>> best = table.architectures[table.values("digits_accuracy").argmax()]
        >>> sorted(table.query(best, ["digits_accuracy", "params"]))
        ['digits_accuracy', 'params']
        >>> problem = table.problem({"digits_accuracy": "max", "params": "min"})

    See `nas.benchmarks.Benchmark` for its attributes.
    """

    def problem(
        self,
        objectives: ObjectivesLike,
        constraints: ConstraintsLike = None,
        cheap: Sequence[str] | None = None,
    ) -> Problem:
        """The problem whose values are those of this table. See `Problem`.

        Args:
            objectives, constraints: as there.
            cheap: metrics among these that count as measured without a training: a guided search
                looks them up for several networks before it chooses one (`nas.search(measure=…)`).

        Raises:
            InputError: a cheap metric is no objective and has no constraint.
        """
        problem = Problem(self, None, objectives, constraints)
        if cheap is not None:
            problem.evaluator = TableEvaluator(self, problem.metrics, cheap)
        return problem


def load_benchmark(
    benchmark: str | Path, space: str | None = None, space_options: Mapping[str, Any] | None = None
) -> Benchmark:
    """Load a table by name, or from a CSV file. See `nas.benchmarks.load_benchmark`.

    Example:

        >>> import nas
        >>> table = nas.load_benchmark("digits201")
        >>> len(table), "digits_accuracy" in table.metrics
        (6040, True)
    """
    table = benchmarks.load_benchmark(benchmark, space, space_options)
    opened = Benchmark(table.path)
    opened.source = table.source
    return opened


SpaceLike = str | SearchSpace | type[SearchSpace] | benchmarks.Benchmark | Callable[..., Any]
"""What users may give as a space: see `Problem`."""
EvaluateLike = (
    str | Callable[..., Mapping[str, float]] | Evaluator | EvaluatorLike | Measurement | None
)
"""What users may give as evaluation: see `Problem`."""

_SPACES = (
    "a name of `nas spaces`, FILE.py:NAME, a SearchSpace, a function build(trial) with "
    ".example_input, or a table"
)
_EVALUATIONS = (
    "a function evaluate(model, architecture, report), FILE.py:FUNCTION, an evaluator, or None"
)


class Problem:
    """A multi-objective problem over a search space.

    Example: two counted objectives of a function that builds PyTorch modules.

        >>> import nas, torch
        >>> from torch import nn
        >>> def build(trial):
        ...     width = trial.suggest_int("width", 4, 32, step=4)
        ...     depth = trial.suggest_int("depth", 1, 3)
        ...     return nn.Sequential(nn.Linear(8, width), *[nn.Linear(width, width) for _ in range(depth)])
        >>> build.example_input = torch.zeros(1, 8)
        >>> def evaluate(model, architecture, report):
        ...     return {"capacity": float(sum(weight.numel() for weight in model.parameters()) ** 0.5)}
        >>> problem = nas.Problem(build, evaluate, {"capacity": "max", "params": "min"}, ["params <= 2000"])
        >>> [metric.name for metric in problem.objectives], problem.metrics
        (['capacity', 'params'], ('capacity', 'params'))

    Args:
        space: name of a space, `FILE.py:NAME`, a `SearchSpace` or its class, a function
            `build(trial)` that returns a `torch.nn.Module` and has an `example_input`, or a
            `Benchmark`.
        evaluate: how a network gets its values:
            - a function `evaluate(model, architecture, report) -> {metric: value}`, or its place
              `FILE.py:FUNCTION`, which other processes can open, too. Metrics that this machine
              counts or measures, such as `params` and `cpu_latency_ms`, are added to what it
              returns;
            - an `Evaluator`, or a `Measurement` of the built-in training;
            - None: values of the table; of a space, those that need no function, and the built-in
              training on the digits for the others.
        objectives: metrics and directions, `{"accuracy": "max", "params": "min"}`, or see
            `nas.search.objectives.parse_objectives`.
        constraints: such as `["cpu_latency_ms <= 8"]`, see
            `nas.search.objectives.parse_constraints`.
        checkpoints: folder for the states of trainings, from which these resume. A search with
            fidelities keeps them in its `out` by default.

    Attributes:
        space: the search space.
        evaluator: gives the values of all metrics.
        objectives: m objectives.
        constraints: bounds that networks must keep.

    Raises:
        InputError: an argument is of no such kind, or the evaluation does not give a metric.
    """

    def __init__(
        self,
        space: SpaceLike,
        evaluate: EvaluateLike = None,
        objectives: ObjectivesLike = (),
        constraints: ConstraintsLike = None,
        *,
        checkpoints: str | Path | None = None,
    ) -> None:
        self.objectives: tuple[Metric, ...] = parse_objectives(objectives)
        self.constraints = parse_constraints(constraints)
        self.metrics = metric_names(self.objectives, self.constraints)
        folder = None if checkpoints is None else Path(checkpoints)
        self.evaluator: Evaluator
        if isinstance(space, benchmarks.Benchmark):
            self.space = space.space
            self.evaluator = _table_evaluator(space, evaluate, self.metrics)
        else:
            self.space = _open_space(space)
            self.evaluator = _evaluator(self.space, evaluate, self.metrics, folder)
        check_metrics(self.metrics, self.evaluator.metrics)

    def __repr__(self) -> str:
        parts = [self.space.name, ", ".join(map(str, self.objectives)), *map(str, self.constraints)]
        return f"Problem({'; '.join(parts)})"


def _open_space(space: SpaceLike) -> SearchSpace:
    """The search space that a user means."""
    if isinstance(space, SearchSpace):
        return space
    if isinstance(space, str):
        return get_space(space)
    if isinstance(space, type) and issubclass(space, SearchSpace):
        return space()
    if callable(space) and not isinstance(space, type):
        return TorchSpace(space)
    raise InputError(f"{space!r} is no search space: give {_SPACES}")


def _table_evaluator(
    table: benchmarks.Benchmark, evaluate: EvaluateLike, metrics: tuple[str, ...]
) -> Evaluator:
    """Values of a table, or of another evaluator on the table's space."""
    if evaluate is None:
        return TableEvaluator(table, metrics)
    return _evaluator(table.space, evaluate, metrics, None)


def _evaluator(
    space: SearchSpace, evaluate: EvaluateLike, metrics: tuple[str, ...], checkpoints: Path | None
) -> Evaluator:
    """The evaluator that a user means.

    Args:
        space: the search space.
        evaluate: see `Problem`.
        metrics: metrics of objectives and constraints.
        checkpoints: folder for the states of trainings.
    """
    if isinstance(evaluate, Measurement):
        return MeasuredEvaluator(space, evaluate, checkpoints)
    measured_here = known_metrics(LatencyTask())
    if evaluate is None:
        data = _digits(space) if trains(metrics, LatencyTask()) else None
        return MeasuredEvaluator(space, Measurement(metrics, data), checkpoints)
    if isinstance(evaluate, str) or (callable(evaluate) and not hasattr(evaluate, "metrics")):
        returned = [metric for metric in metrics if metric not in measured_here]
        measured = tuple(metric for metric in metrics if metric in measured_here)
        return FunctionEvaluator(
            space, evaluate, returned, Measurement(measured), checkpoints=checkpoints
        )
    if hasattr(evaluate, "metrics"):
        return as_evaluator(evaluate)
    raise InputError(f"{evaluate!r} evaluates nothing: give {_EVALUATIONS}")


def _digits(space: SearchSpace) -> Dataset:
    """The digits, on which the built-in training trains networks without further settings."""
    data = load_dataset("digits", space.input_shape)
    if not fits(space, data):
        raise InputError(
            f"{space.name} has inputs {tuple(space.input_shape)} and {space.num_classes} outputs, "
            f"but the digits have inputs {tuple(data.shape)} and {data.outputs} classes: give "
            "evaluate, a function or a nas.Measurement with your data"
        )
    return data
