"""The source of a search's values, as plain values from which another process recreates the
evaluator.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nas.benchmarks import load_benchmark
from nas.evaluation import memory
from nas.evaluation.measurement import measurement_of
from nas.search.evaluators import MeasuredEvaluator, PredictionEvaluator, TableEvaluator
from nas.search.own_evaluator import FunctionEvaluator
from predictors.checkpoint import checksum
from search_spaces.common.errors import InputError

if TYPE_CHECKING:
    from nas.search.evaluators import Evaluator
    from search_spaces import SearchSpace

Source = Mapping[str, Any]
SCRIPT = "script"  # key of a source that only the script that started the search can open


def source_of(evaluator: Evaluator) -> dict[str, Any]:
    """The source of an evaluator's values, as plain values.

    It is the name and checksum of a table or predictor, or the settings of a measurement. For an
    evaluator of the user's it is its attribute `settings`, plain values that its results depend on;
    {} without that attribute.
    """
    if isinstance(evaluator, TableEvaluator):
        return {
            **evaluator.benchmark.source,
            "sha256": evaluator.benchmark.checksum(evaluator.metrics),
        }
    if isinstance(evaluator, PredictionEvaluator) and evaluator.name:
        return {"predictor": evaluator.name, "sha256": checksum(evaluator.name)}
    if isinstance(evaluator, MeasuredEvaluator):
        return {"measurement": evaluator.settings}
    if isinstance(evaluator, FunctionEvaluator) and not evaluator.reference:
        return {SCRIPT: evaluator.script}
    settings = getattr(evaluator, "settings", None)
    return {"evaluator": settings} if settings else {}


def measured_metrics(source: Source) -> list[str]:
    """Metrics that are measured, or returned by a function of the user's: machine and packages may
    affect them.
    """
    own = source.get("evaluator", {})
    return [*own.get("metrics", ()), *(own or source).get("measurement", {}).get("metrics", ())]


def used_settings(source: Source) -> dict[str, Any]:
    """The settings of a source that its metrics use: none of training without a data set, none of
    timing without it.
    """
    kept = dict(source)
    if isinstance(kept.get("evaluator"), Mapping):
        kept["evaluator"] = used_settings(kept["evaluator"])
    if isinstance(kept.get("measurement"), Mapping) and "metrics" in kept["measurement"]:
        measurement = dict(kept["measurement"])
        if not measurement.get("data"):
            unused = ("seeds", "training")
            measurement = {name: value for name, value in measurement.items() if name not in unused}
        if not any(
            metric.endswith("_latency_ms") or metric == memory.METRIC
            for metric in measurement["metrics"]
        ):
            measurement.pop("latency", None)
        kept["measurement"] = measurement
    return kept


def open_evaluator(
    source: Source,
    space: SearchSpace,
    metrics: Sequence[str],
    path_override: str | None = None,
    device: str = "cpu",
    function: str | None = None,
    checkpoints: Path | None = None,
) -> Evaluator:
    """Recreate the evaluator of a source.

    Args:
        source: see `source_of`.
        space: the search space.
        metrics: metrics of a table or predictor; a measurement and a function have their own.
        path_override: path of the table, checkpoint or data set on this machine, if it differs.
        device: PyTorch device to train on.
        function: the user's evaluator, `FILE.py:function`, which is run; required if the source is
            one.
        checkpoints: folder for training checkpoints.

    Raises:
        InputError: the data set or function is another one, or the evaluator exists only in the
            script that started the search.
    """
    if "benchmark" in source:
        path = path_override or source["benchmark"]
        return TableEvaluator(
            load_benchmark(path, source.get("space"), source.get("space_options")), metrics
        )
    if "predictor" in source:
        return PredictionEvaluator.load(path_override or source["predictor"], space, metrics)
    if "evaluator" in source:
        return FunctionEvaluator.of_settings(
            space, source["evaluator"], function, checkpoints=checkpoints
        )
    if "measurement" not in source:
        raise InputError(
            "only the script that started this search knows its evaluator: run that script again"
        )
    measurement = measurement_of(source["measurement"], space.input_shape, path_override, device)
    return MeasuredEvaluator(space, measurement, checkpoints)
