"""Where a search's values come from, as plain values by which another process can go on with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nas.benchmarks import load_benchmark
from nas.evaluation import memory
from nas.evaluation.measurement import measurement_of
from nas.searching.evaluators import MeasuredEvaluator, PredictionEvaluator, TableEvaluator
from nas.searching.own_evaluator import FunctionEvaluator
from predictors.checkpoint import checksum
from search_spaces.common.errors import InputError

if TYPE_CHECKING:
    from nas.searching.evaluators import Evaluator
    from search_spaces import SearchSpace

Source = Mapping[str, Any]


def source_of(evaluator: Evaluator) -> dict[str, Any]:
    """A table or a predictor by name and checksum, or how networks are measured.

    Of an evaluator of the user's own its `settings`, plain values on which its values depend; {} if it has none.
    """
    if isinstance(evaluator, TableEvaluator):
        return {**evaluator.benchmark.source, "sha256": evaluator.benchmark.checksum(evaluator.metrics)}
    if isinstance(evaluator, PredictionEvaluator) and evaluator.name:
        return {"predictor": evaluator.name, "sha256": checksum(evaluator.name)}
    if isinstance(evaluator, MeasuredEvaluator):
        return {"measurement": evaluator.settings}
    settings = getattr(evaluator, "settings", None)
    return {"evaluator": settings} if settings else {}


def measured_metrics(source: Source) -> list[str]:
    """Metrics whose values depend on the machine, or on what trains there."""
    own = source.get("evaluator", {})
    return [*own.get("metrics", ()), *(own or source).get("measurement", {}).get("metrics", ())]


def used_settings(source: Source) -> dict[str, Any]:
    """The settings of a source, without those of a training or of timing where it does neither."""
    kept = dict(source)
    if isinstance(kept.get("evaluator"), Mapping):
        kept["evaluator"] = used_settings(kept["evaluator"])
    if isinstance(kept.get("measurement"), Mapping) and "metrics" in kept["measurement"]:
        measurement = dict(kept["measurement"])
        if not measurement.get("data"):
            unused = ("seeds", "training")
            measurement = {name: value for name, value in measurement.items() if name not in unused}
        if not any(metric.endswith("_latency_ms") or metric == memory.METRIC for metric in measurement["metrics"]):
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
    """The evaluator of a source.

    path_override: path of the table, the checkpoint or the data set on this machine, if it differs from the name.
    device: to train on. function: the user's own, `FILE.py:function`, which is run; required where the source is one.
    checkpoints: folder for the states of trainings. Raises InputError where the data set is another one.
    """
    if "benchmark" in source:
        path = path_override or source["benchmark"]
        return TableEvaluator(load_benchmark(path, source.get("space"), source.get("space_options")), metrics)
    if "predictor" in source:
        return PredictionEvaluator.load(path_override or source["predictor"], space, metrics)
    if "evaluator" in source:
        return FunctionEvaluator.of_settings(space, source["evaluator"], function, checkpoints=checkpoints)
    if "measurement" not in source:
        raise InputError("how this search evaluates is known to the script that began it only: start that once more")
    measurement = measurement_of(source["measurement"], space.input_shape, path_override, device)
    return MeasuredEvaluator(space, measurement, checkpoints)
