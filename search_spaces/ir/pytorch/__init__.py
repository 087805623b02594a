"""PyTorch modules as graphs: one call of `forward` is recorded on tensors without data. Imports
torch.

`recording` calls the module, `recorder` intercepts its calls of torch functions, and the other modules
say which operators they are, under the headings of torch's documentation.
"""

from search_spaces.ir.pytorch.modules import failed_tool, is_lazy, run, without_weights
from search_spaces.ir.pytorch.recording import (
    example_tensors,
    layer_of,
    record,
    record_with_numbers,
)

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
