"""Multi-objective neural architecture search: benchmarks, evaluators, samplers, searches, Pareto fronts."""

from __future__ import annotations

import importlib
from typing import Any

# Imported at first use: optuna and torch take seconds to load, and the command line must answer at once.
_HOME = {
    "Benchmark": "nas.benchmarks",
    "Constraint": "nas.objectives",
    "Evaluator": "nas.evaluation",
    "MeasuredEvaluator": "nas.evaluation",
    "Measurement": "nas.measurement",
    "Objective": "nas.objectives",
    "PredictionEvaluator": "nas.evaluation",
    "PredictorSampler": "nas.sampler",
    "Reference": "nas.pareto",
    "SearchResult": "nas.result",
    "TableEvaluator": "nas.evaluation",
    "create_sampler": "nas.samplers",
    "list_samplers": "nas.samplers",
    "load_benchmark": "nas.benchmarks",
    "load_dataset": "nas.datasets",
    "parse_constraints": "nas.objectives",
    "parse_objectives": "nas.objectives",
    "search": "nas.searching",
}
__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'nas' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return __all__
