"""ONNX models: read into graphs, and written from graphs with initial weights."""

from search_spaces.onnx.loading import load_model
from search_spaces.onnx.reading import from_model
from search_spaces.onnx.weights import to_model, write_model

__all__ = ["from_model", "load_model", "to_model", "write_model"]
