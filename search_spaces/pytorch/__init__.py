"""PyTorch modules as graphs: what a module's `forward` computes is recorded on tensors without data. Imports torch."""

from search_spaces.pytorch.building import without_weights
from search_spaces.pytorch.recording import record

__all__ = ["record", "without_weights"]
