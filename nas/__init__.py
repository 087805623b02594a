"""Multi-objective neural architecture search: problems, searches, Pareto fronts, and predictors
that guide them.

import nas

problem = nas.Problem(build, evaluate, {"accuracy": "max", "cpu_latency_ms": "min"})
result = nas.search(problem, sampler="rlm", evaluations=60, out="results/mine")
print(result.front)
"""

from __future__ import annotations

import importlib
import sys
import warnings
from typing import TYPE_CHECKING

if sys.platform not in ("linux", "darwin"):
    warnings.warn(
        "rlm-nas is made for Linux and macOS, not tested here: on Windows, use WSL", stacklevel=2
    )

if TYPE_CHECKING:
    __version__: str
    from nas.api import compare, load_search, rank, report, retrain, search
    from nas.evaluation.datasets import load_dataset
    from nas.evaluation.measurement import Measurement
    from nas.evaluation.onnx_module import OnnxModule
    from nas.problem import Benchmark, Problem, load_benchmark
    from nas.profiling import profile
    from nas.search.evaluators import Evaluator, PredictionEvaluator, TableEvaluator
    from nas.search.measured_evaluator import MeasuredEvaluator
    from nas.search.objectives import Constraint, parse_constraints, parse_objectives
    from nas.search.own_evaluator import FunctionEvaluator
    from nas.search.pareto import Reference
    from nas.search.sampler import PredictorSampler
    from nas.search.samplers import create_sampler, list_samplers
    from nas.search.shortlist import check_limits
    from nas.search.study.result import SearchResult
    from predictors.metrics import Metric
    from predictors.rlm.predictor import RLM
    from search_spaces import SearchSpace, TorchSpace, set_precision
    from search_spaces.common.errors import (
        CheckpointError,
        EvaluatorError,
        Infeasible,
        InputError,
        MeasurementError,
        NasError,
        StorageError,
    )
    from search_spaces.subnetworks import Subnetworks

# The packages `nas.search` and `nas.report` have the names of functions. Python makes a package an
# attribute of `nas` when it is loaded for the first time: that happens here, so that the attribute
# is the function ever after.
for _package in ("report", "search"):
    importlib.import_module(f"nas.{_package}")
    del globals()[_package]

# Loaded on first use: optuna and torch take seconds to import, and the command line must answer at
# once.
_MODULES = {
    "Benchmark": "nas.problem",
    "CheckpointError": "search_spaces.common.errors",
    "Constraint": "nas.search.objectives",
    "Evaluator": "nas.search.evaluators",
    "EvaluatorError": "search_spaces.common.errors",
    "FunctionEvaluator": "nas.search.own_evaluator",
    "Infeasible": "search_spaces.common.errors",
    "InputError": "search_spaces.common.errors",
    "MeasuredEvaluator": "nas.search.measured_evaluator",
    "Measurement": "nas.evaluation.measurement",
    "MeasurementError": "search_spaces.common.errors",
    "Metric": "predictors.metrics",
    "NasError": "search_spaces.common.errors",
    "OnnxModule": "nas.evaluation.onnx_module",
    "PredictionEvaluator": "nas.search.evaluators",
    "PredictorSampler": "nas.search.sampler",
    "Problem": "nas.problem",
    "RLM": "predictors.rlm.predictor",
    "Reference": "nas.search.pareto",
    "SearchResult": "nas.search.study.result",
    "SearchSpace": "search_spaces",
    "StorageError": "search_spaces.common.errors",
    "Subnetworks": "search_spaces.subnetworks",
    "TableEvaluator": "nas.search.evaluators",
    "TorchSpace": "search_spaces",
    "check_limits": "nas.search.shortlist",
    "compare": "nas.api",
    "create_sampler": "nas.search.samplers",
    "list_samplers": "nas.search.samplers",
    "load_benchmark": "nas.problem",
    "load_dataset": "nas.evaluation.datasets",
    "load_search": "nas.api",
    "parse_constraints": "nas.search.objectives",
    "parse_objectives": "nas.search.objectives",
    "profile": "nas.profiling",
    "rank": "nas.api",
    "report": "nas.api",
    "retrain": "nas.api",
    "search": "nas.api",
    "set_precision": "search_spaces",
}
__all__ = [
    "RLM",
    "Benchmark",
    "CheckpointError",
    "Constraint",
    "Evaluator",
    "EvaluatorError",
    "FunctionEvaluator",
    "Infeasible",
    "InputError",
    "MeasuredEvaluator",
    "Measurement",
    "MeasurementError",
    "Metric",
    "NasError",
    "OnnxModule",
    "PredictionEvaluator",
    "PredictorSampler",
    "Problem",
    "Reference",
    "SearchResult",
    "SearchSpace",
    "StorageError",
    "Subnetworks",
    "TableEvaluator",
    "TorchSpace",
    "__version__",
    "check_limits",
    "compare",
    "create_sampler",
    "list_samplers",
    "load_benchmark",
    "load_dataset",
    "load_search",
    "parse_constraints",
    "parse_objectives",
    "profile",
    "rank",
    "report",
    "retrain",
    "search",
    "set_precision",
]


def __getattr__(name: str) -> object:
    if name == "__version__":
        from importlib.metadata import version

        return version("rlm-nas")
    if name not in _MODULES:
        raise AttributeError(f"module 'nas' has no attribute {name!r}")
    value: object = getattr(importlib.import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
