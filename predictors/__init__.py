"""Predictors: a regression language model on ONNX text, a graph network, and two simple baselines."""

from predictors.base import Predictions, Predictor, create, list_predictors, load

__all__ = ["Predictions", "Predictor", "create", "list_predictors", "load"]
