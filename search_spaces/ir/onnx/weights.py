"""ONNX models with initial or trained weights, in memory or written to a file."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from math import prod, sqrt
from typing import BinaryIO

import numpy as np
from onnx import GraphProto, ModelProto, TensorProto
from onnx.helper import tensor_dtype_to_np_dtype

from search_spaces.common.errors import InputError
from search_spaces.ir.costs import graph_params
from search_spaces.ir.graph import Graph
from search_spaces.ir.onnx.writing import Numbers, Outline
from search_spaces.ir.owned_weights import Weight

# Of a model in memory, by default: 0.4 GB, and `to_model` needs twice as much
MAX_WEIGHTS = 100_000_000
VARIABLE = "NAS_MAX_WEIGHTS"  # environment variable that replaces it
MAX_BYTES = (1 << 31) - 1  # of an ONNX file: protobuf reads no more
_NOISE = 1 << 22  # length of the random stream, which then repeats
_PART = 1 << 17  # numbers written at once, which fit a CPU cache


class ModelTooLarge(InputError):
    """An ONNX file cannot hold the network's weights."""


def to_model(graph: Graph, seed: int = 0, numbers: Numbers | None = None) -> ModelProto:
    """A runnable ONNX model.

    Weights are initialized as He normal, normalizations as identity. The random numbers of a seed
    repeat after four million.

    Args:
        graph: the network.
        seed: seed of the weights.
        numbers: trained weights and long constants by output value, see `Outline`; None for initial
            weights.

    Raises:
        InputError: if the network has more than `max_weights()` weights.
    """
    check_size(graph)
    weights, outline = _Weights(graph, seed), Outline(graph, numbers)
    for tensor, weight, array in outline.tensors:
        outline.model.graph.initializer.append(tensor)
        outline.model.graph.initializer[-1].raw_data = b"".join(
            weights.parts(tensor, weight, array)
        )
    return outline.model


def write_model(
    graph: Graph,
    file: BinaryIO,
    seed: int = 0,
    numbers: Numbers | None = None,
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Write the model of `to_model` to a file, without holding all weights in memory and thus
    without their limit.

    Args:
        graph: the network.
        file: binary file at the position to write to.
        seed: as in `to_model`.
        numbers: as in `to_model`.
        metadata: entries of the model's `metadata_props`.

    Raises:
        ModelTooLarge: the file would be larger than `MAX_BYTES`.
    """
    weights, outline = _Weights(graph, seed), Outline(graph, numbers)
    for key, value in (metadata or {}).items():
        outline.model.metadata_props.add(key=key, value=value)
    heads = [_head(tensor) for tensor, *_ in outline.tensors]
    rest = sum(map(len, heads)) + sum(_size(tensor) for tensor, *_ in outline.tensors)
    nodes = outline.model.graph.SerializeToString()
    outline.model.ClearField("graph")
    start = (
        outline.model.SerializeToString()
        + _field(ModelProto.GRAPH_FIELD_NUMBER, len(nodes) + rest)
        + nodes
    )
    size = len(start) + rest
    if size > MAX_BYTES:
        raise ModelTooLarge(
            f"the ONNX file would have {size:,} bytes: no program reads more than {MAX_BYTES:,}"
        )
    _reserve(file, size)
    file.write(start)
    for head, described in zip(heads, outline.tensors, strict=True):
        file.write(head)
        file.writelines(weights.parts(*described))


def max_weights() -> int:
    """Largest number of weights of a model in memory: `NAS_MAX_WEIGHTS`, or `MAX_WEIGHTS`;
    InputError for no number.
    """
    text = os.environ.get(VARIABLE, "").replace("_", "")
    if not text:
        return MAX_WEIGHTS
    if not text.isdecimal() or not int(text):
        raise InputError(f"{VARIABLE}={text}: write a number of weights, such as 300000000")
    return int(text)


def check_size(graph: Graph) -> None:
    """Raise InputError if the network has more weights than a model in memory may have."""
    count, limit = graph_params(graph), max_weights()
    if count > limit:
        raise InputError(
            f"the network has {count:,} weights, more than the limit of {limit:,} for models that "
            "are measured: if the "
            f"memory suffices (about {3 * 4 * count / 1e9:.1f} GB), set the environment variable "
            f"{VARIABLE}={count}"
        )


def _reserve(file: BinaryIO, size: int) -> None:
    """Allocate the bytes on disk at once if possible, which is faster than part by part."""
    with suppress(AttributeError, OSError):  # not supported by every system, nor by files in memory
        os.posix_fallocate(file.fileno(), file.tell(), size)


def _head(tensor: TensorProto) -> bytes:
    """Protobuf encoding of a graph's initializer up to its numbers."""
    head = tensor.SerializeToString() + _field(TensorProto.RAW_DATA_FIELD_NUMBER, _size(tensor))
    return _field(GraphProto.INITIALIZER_FIELD_NUMBER, len(head) + _size(tensor)) + head


def _field(number: int, size: int) -> bytes:
    """Protobuf header of a field of `size` bytes: number and wire type, then the size as a
    varint.
    """
    encoded = [number << 3 | 2]
    while size > 0x7F:
        encoded.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes([*encoded, size])


def _size(tensor: TensorProto) -> int:
    """Size of a tensor's numbers in bytes."""
    return prod(tensor.dims) * tensor_dtype_to_np_dtype(tensor.data_type).itemsize


class _Weights:
    """Numbers of a graph's tensors, in order; `position` is the position in the random stream."""

    def __init__(self, graph: Graph, seed: int) -> None:
        count = graph_params(graph)
        self.noise, self.position = _noise(seed, min(_NOISE, 1 << count.bit_length())), 0

    def parts(
        self, tensor: TensorProto, weight: Weight, given: np.ndarray | None
    ) -> Iterator[bytes | memoryview]:
        """Yield the bytes of a tensor's numbers, in parts: the given numbers, or initial ones."""
        size, dtype = prod(tensor.dims), tensor_dtype_to_np_dtype(tensor.data_type)
        if given is not None:
            yield np.ascontiguousarray(given, dtype).tobytes()
            return
        if weight.init != "kaiming":
            yield _filled(size, float(weight.init == "ones"), dtype)
            return
        std = np.float32(sqrt(2 / (weight.fan_in or max(1, prod(tensor.dims[1:])))))
        while size > 0:
            start = self.position % len(self.noise)
            numbers = self.noise[start : start + min(size, _PART)] * std
            self.position += len(numbers)
            size -= len(numbers)
            yield numbers.astype(dtype, copy=False).view(np.uint8).data


@lru_cache(maxsize=4)
def _noise(seed: int, size: int) -> np.ndarray:
    """The first `size` standard normal numbers of a seed."""
    return np.random.default_rng(seed).standard_normal(size, np.float32)


@lru_cache(maxsize=4096)
def _filled(size: int, value: float, dtype: np.dtype) -> bytes:
    return np.full(size, value, dtype).tobytes()
