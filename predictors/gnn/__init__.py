"""A graph neural network on the ONNX graph."""

from predictors.gnn.predictor import GNN

__all__ = ["GNN"]
