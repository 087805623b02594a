"""Graph ⇄ ONNX model: weights are made when a model is written and reduced to their shapes when one is read."""

from __future__ import annotations

import hashlib

from search_spaces.reading import from_model, load_model
from search_spaces.weights import to_model, write_model

__all__ = ["fingerprint", "from_model", "load_model", "to_model", "write_model"]


def fingerprint(text: str) -> str:
    """Short name of a network: the first 16 hexadecimal digits of its text's SHA-256."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]
