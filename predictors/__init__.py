"""Predictors: the regression language model on ONNX text, a graph network, Gaussian processes,
simple baselines.
"""

from predictors.base import Predictions, Predictor
from predictors.metrics import Metric
from predictors.registry import create, list_predictors, load

__all__ = ["Metric", "Predictions", "Predictor", "create", "list_predictors", "load"]
