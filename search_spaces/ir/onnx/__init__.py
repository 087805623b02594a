"""ONNX models: to graphs, and from graphs with initial or trained weights."""

from search_spaces.ir.onnx.loading import load_model
from search_spaces.ir.onnx.reading import cost_error, from_model
from search_spaces.ir.onnx.writing import ModelTooLarge, to_model, write_model

__all__ = ["ModelTooLarge", "cost_error", "from_model", "load_model", "to_model", "write_model"]
