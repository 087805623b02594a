"""PyTorch modules as graphs: one call of `forward` is recorded on tensors without data. Imports
torch.
"""

from search_spaces.ir.pytorch.building import is_lazy, run, without_weights
from search_spaces.ir.pytorch.recording import (
    example_tensors,
    layer_of,
    record,
    record_with_numbers,
)
from search_spaces.ir.pytorch.transformed_modules import failed_tool

__all__ = [
    "example_tensors",
    "failed_tool",
    "is_lazy",
    "layer_of",
    "record",
    "record_with_numbers",
    "run",
    "without_weights",
]
