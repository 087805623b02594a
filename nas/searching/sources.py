"""Where a search's values come from, as plain values by which another process can go on with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from nas.benchmarks import load_benchmark
from nas.evaluation.datasets import Dataset, load_dataset
from nas.evaluation.latency import LatencyTask
from nas.evaluation.measurement import Measurement
from nas.evaluation.training import training_task
from nas.searching.evaluators import MeasuredEvaluator, PredictionEvaluator, TableEvaluator
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
        return {"benchmark": evaluator.benchmark.name, "sha256": evaluator.benchmark.checksum(evaluator.metrics)}
    if isinstance(evaluator, PredictionEvaluator) and evaluator.name:
        return {"predictor": evaluator.name, "sha256": checksum(evaluator.name)}
    if isinstance(evaluator, MeasuredEvaluator):
        return {"measurement": evaluator.measurement.settings}
    settings = getattr(evaluator, "settings", None)
    return {"evaluator": settings} if settings else {}


def open_evaluator(
    source: Source,
    space: SearchSpace,
    metrics: Sequence[str],
    path_override: str | None = None,
    device: str = "cpu",
) -> Evaluator:
    """The evaluator of a source.

    path_override: path of the table, the checkpoint or the data set on this machine, if it differs from the name.
    device: to train on. Raises InputError where the data set is another one.
    """
    if "benchmark" in source:
        return TableEvaluator(load_benchmark(path_override or source["benchmark"]), metrics)
    if "predictor" in source:
        return PredictionEvaluator.load(path_override or source["predictor"], space, metrics)
    if "measurement" not in source:
        raise InputError("how this search evaluates is known to the script that began it only: start that once more")
    settings = source["measurement"]
    measurement = Measurement(
        tuple(settings["metrics"]),
        _dataset(settings["data"], path_override, space),
        tuple(settings["seeds"]),
        training_task(settings["training"]),
        LatencyTask(**settings["latency"]),
        device,
    )
    return MeasuredEvaluator(space, measurement)


def _dataset(data: Mapping[str, str] | None, path_override: str | None, space: SearchSpace) -> Dataset | None:
    if data is None:
        return None
    found = load_dataset(path_override or data["name"], space.input_shape)
    if found.fingerprint != data["sha256"]:
        raise InputError(f"{path_override or data['name']}: another data set than the one that the search trains on")
    return found
