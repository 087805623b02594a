"""Multi-objective neural architecture search: benchmarks, evaluators, samplers, searches, Pareto fronts."""

from __future__ import annotations

import importlib
import sys
import warnings
from typing import Any

if sys.platform not in ("linux", "darwin"):
    warnings.warn("rlm-nas is made for Linux and macOS, not tested here: on Windows, use WSL", stacklevel=2)

# Imported on first use, because optuna and torch take seconds to load and the command line must be fast.
_HOME = {
    "Benchmark": "nas.benchmarks",
    "Constraint": "nas.searching.objectives",
    "Evaluator": "nas.searching.evaluators",
    "FunctionEvaluator": "nas.searching.own_evaluator",
    "MeasuredEvaluator": "nas.searching.evaluators",
    "Measurement": "nas.evaluation.measurement",
    "Metric": "predictors.metrics",
    "PredictionEvaluator": "nas.searching.evaluators",
    "PredictorSampler": "nas.searching.sampler",
    "Reference": "nas.searching.pareto",
    "SearchResult": "nas.searching.result",
    "Subnetworks": "search_spaces.subnetworks",
    "TableEvaluator": "nas.searching.evaluators",
    "create_sampler": "nas.searching.samplers",
    "list_samplers": "nas.searching.samplers",
    "load_benchmark": "nas.benchmarks",
    "load_dataset": "nas.evaluation.datasets",
    "parse_constraints": "nas.searching.objectives",
    "parse_objectives": "nas.searching.objectives",
    "search": "nas.searching.loop",
    "search_by_cost": "nas.searching.by_cost.loop",
}
__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'nas' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return __all__
