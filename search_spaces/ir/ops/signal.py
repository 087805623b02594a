"""Signals: Fourier transforms, windows, and text as counts of words."""

from __future__ import annotations

from math import ceil, log2

from search_spaces.common.errors import InputError
from search_spaces.ir.graph import Dim, count, known_size
from search_spaces.ir.ops.operator import CountedNode, Operator, named


def _fast_fourier(transforms: int, length: int, is_complex: bool) -> int:
    """n · log2(n) per transform of n real numbers, twice that for complex ones."""
    parts = 2 if is_complex else 1
    return transforms * parts * ceil(length * log2(max(length, 1)))


def _count_dft(node: CountedNode) -> int:
    shape, attrs = node.operands["input"], node.attributes
    axis = attrs.get("axis", -2)
    if not isinstance(axis, int):
        raise InputError("DFT along a computed axis: its multiply-accumulates are not known")
    size = attrs.get("dft_length") or shape[axis]
    length = known_size(size) if isinstance(size, (int, str)) else 1
    # The last dimension holds real and imaginary parts; the others have a transform per place.
    *dims, parts = shape
    transformed = axis % len(shape)
    places = [dim for i, dim in enumerate(dims) if i != transformed]
    return _fast_fourier(count(tuple(places)), length, is_complex=parts == 2)


def _count_stft(node: CountedNode) -> int:
    """One transform per frame; output: (N, frames, bins, 2)."""
    signal = node.operands["signal"]
    *_, frames, bins, _ = node.output

    # 1. Samples per frame: an attribute, the length of the window, or as many as the bins tell.
    size: Dim | None = node.attributes.get("frame_length")
    if not size and "window" in node.operands:
        size = node.operands["window"][0]
    if not isinstance(size, (int, str)):
        size = 2 * (known_size(bins) - 1)

    # 2. A transform per signal and frame.
    transforms = count(signal[:1]) * known_size(frames)
    is_complex = len(signal) > 2 and signal[-1] == 2
    return _fast_fourier(transforms, known_size(size), is_complex)


OPERATORS = (
    Operator(name="DFT", count=_count_dft),
    Operator(name="STFT", count=_count_stft, settings=(2,)),
    *named(
        "BlackmanWindow",
        "HammingWindow",
        "HannWindow",
        "MelWeightMatrix",
        "TfIdfVectorizer",
    ),
)
