"""Graphs to ONNX models: the nodes in standard ONNX, then initial or trained weights.

A model is returned in memory (`to_model`), or written to a file without ever holding all weights
(`write_model`).
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from math import prod, sqrt
from typing import BinaryIO, NamedTuple

import numpy as np
import onnx
from onnx import GraphProto, ModelProto, TensorProto, helper
from onnx.helper import tensor_dtype_to_np_dtype

from search_spaces.common.errors import InputError
from search_spaces.ir import standard
from search_spaces.ir.costs import graph_params
from search_spaces.ir.graph import BATCH, UNKNOWN, Attrs, Graph, Node, Shape, Value, element_type
from search_spaces.ir.ops import get_operator, is_own, onnx_attrs, weights
from search_spaces.ir.ops.operator import ExportedNode, Weight
from search_spaces.ir.precision import mark

Numbers = Mapping[int, Sequence[np.ndarray]]

# Weights of a model in memory, by default: 0.4 GB, and `to_model` needs twice as much
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
    initial = _InitialWeights(graph, seed)
    outline = Outline(graph, numbers)
    for stored in outline.tensors:
        outline.model.graph.initializer.append(stored.tensor)
        parts = initial.parts(stored)
        outline.model.graph.initializer[-1].raw_data = b"".join(parts)
    return outline.model


def write_model(
    graph: Graph,
    file: BinaryIO,
    seed: int = 0,
    numbers: Numbers | None = None,
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Write the model of `to_model` to a file.

    It never holds all weights in memory, and thus has not their limit.

    Args:
        graph: the network.
        file: binary file at the position to write to.
        seed: as in `to_model`.
        numbers: as in `to_model`.
        metadata: entries of the model's `metadata_props`.

    Raises:
        ModelTooLarge: the file would be larger than `MAX_BYTES`.
    """
    initial = _InitialWeights(graph, seed)
    outline = Outline(graph, numbers)
    for key, value in (metadata or {}).items():
        outline.model.metadata_props.add(key=key, value=value)

    # 1. Everything but the numbers: the model, its graph as the last field, its initializers as
    #    the graph's last fields.
    heads = [_initializer_head(stored.tensor) for stored in outline.tensors]
    numbers_size = sum(_byte_size(stored.tensor) for stored in outline.tensors)
    initializers_size = sum(map(len, heads)) + numbers_size
    nodes = outline.model.graph.SerializeToString()
    outline.model.ClearField("graph")
    model = outline.model.SerializeToString()
    graph_header = _field(ModelProto.GRAPH_FIELD_NUMBER, len(nodes) + initializers_size)
    start = model + graph_header + nodes
    size = len(start) + initializers_size
    if size > MAX_BYTES:
        raise ModelTooLarge(
            f"the ONNX file would have {size:,} bytes: no program reads more than {MAX_BYTES:,}"
        )

    # 2. The numbers, part by part.
    _reserve(file, size)
    file.write(start)
    for head, stored in zip(heads, outline.tensors, strict=True):
        file.write(head)
        file.writelines(initial.parts(stored))


def max_weights() -> int:
    """Largest number of weights of a model in memory: `NAS_MAX_WEIGHTS`, or `MAX_WEIGHTS`.

    Raises:
        InputError: if the variable is not a number.
    """
    text = os.environ.get(VARIABLE, "").replace("_", "")
    if not text:
        return MAX_WEIGHTS
    if not text.isdecimal() or not int(text):
        raise InputError(f"{VARIABLE}={text}: write a number of weights, such as 300000000")
    return int(text)


def check_size(graph: Graph) -> None:
    """Raise InputError if the network has more weights than a model in memory may have."""
    count = graph_params(graph)
    limit = max_weights()
    if count > limit:
        gigabytes = 3 * 4 * count / 1e9
        raise InputError(
            f"the network has {count:,} weights, more than the limit of {limit:,} for models that "
            f"are measured: if the memory suffices (about {gigabytes:.1f} GB), set the environment "
            f"variable {VARIABLE}={count}"
        )


# --- nodes


class StoredTensor(NamedTuple):
    """An initializer of a model.

    Attributes:
        tensor: the tensor without numbers.
        weight: its initialization.
        array: its trained numbers; None for initial ones.
    """

    tensor: TensorProto
    weight: Weight
    array: np.ndarray | None


class Outline:
    """The ONNX model of a graph without weights; names contain the scopes, as in torch's exports.

    The rules of operators see it as `search_spaces.ir.ops.operator.Exporter`.

    Args:
        graph: the network.
        numbers: arrays of the weights and long constants of each node, by its output value.

    Attributes:
        model: the model without initializers.
        tensors: the initializers.
        names: names of the values that were written.
        results: names of the graph's outputs.
    """

    def __init__(self, graph: Graph, numbers: Numbers | None = None) -> None:
        self.graph = graph
        self.numbers = numbers or {}
        self.tensors: list[StoredTensor] = []
        self.times_used: Counter[str] = Counter()
        self.constants: dict[tuple[str, tuple[int, ...], bytes], str] = {}

        # 1. The model, in the lowest opset that has all operators.
        ops = {node.op for node in graph.nodes}
        opsets = [standard.opset(op) for op in ops]
        self.model = onnx.ModelProto(ir_version=standard.IR_VERSION)
        self.model.opset_import.add(domain="", version=max(opsets, default=standard.OPSET))
        self.proto = self.model.graph
        self.proto.name = "net"

        # 2. Inputs and outputs.
        self.names = _numbered("input", graph.inputs)
        self.results = self._output_names()
        for value, name in self.names.items():
            self.proto.input.append(_value_info(name, graph.shapes[value]))
        for value, name in self.results.items():
            self.proto.output.append(_value_info(name, graph.shapes[value]))

        # 3. Nodes.
        for node in graph.nodes:
            self._write(node)

    def _output_names(self) -> dict[int, str]:
        """Names of the outputs: those of the graph, unless another value has them."""
        if not self.graph.output_names:
            return _numbered("output", self.graph.outputs)
        taken = {*self.names.values()}
        results = {}
        for value, name in zip(self.graph.outputs, self.graph.output_names, strict=True):
            # Of an operator's result, `NAME_out` is the name: it becomes `NAME_2_out`.
            self.times_used[name.removesuffix("_out")] += name.endswith("_out")
            results[value] = f"{name}_output" if name in taken else name
        return results

    def _write(self, node: Node) -> None:
        shapes = tuple([self.graph.shapes[v] for v in node.inputs])
        value = node.outputs[0]
        name = self._unique("/".join((*node.scope, node.op)))

        # 1. Weights take the first arrays; another one is that of a long constant.
        arrays = iter(self.numbers.get(value, ()))
        element = element_type(self.graph.shapes[value])
        owned = []
        for weight in weights(node.op, node.attrs, shapes):
            owned.append(self._weight(f"{name}.{weight.name}", weight, element, arrays))

        # 2. The node, by the operator's rule or as ONNX's operator.
        self.names[value] = self.results.get(value) or f"{name}_out"
        exported = ExportedNode(
            op=node.op,
            name=name,
            attrs=node.attrs,
            shapes=shapes,
            inputs=[self.names[v] for v in node.inputs],
            weights=owned,
            output=self.names[value],
            numbers=next(arrays, None),
        )
        written = len(self.proto.node)
        rule = get_operator(node.op).write
        if rule is not None and is_own(node.op, len(shapes)):
            rule(self, exported)
        else:
            self._add_standard(exported)
        mark(self.proto.node[written:], node.attrs)

    def _add_standard(self, node: ExportedNode) -> None:
        """Add a standard operator, whose constant operands are attributes of the graph's node."""
        called = standard.call(node.op, onnx_attrs(node.op, node.attrs), node.shapes)
        operands = []
        for operand in called.operands:
            if operand is None:
                operands.append("")
            elif isinstance(operand, int):
                operands.append(node.inputs[operand])
            else:
                operands.append(self.constant(operand))
        self.proto.node.add(
            op_type=node.op,
            name=node.name,
            input=[*operands, *node.weights],
            output=standard.output_names(node.op, called.output, node.output),
            attribute=_attributes(node.op, called.attrs),
        )

    def _weight(
        self,
        name: str,
        weight: Weight,
        element: str,
        arrays: Iterator[np.ndarray],
    ) -> str:
        """Name of a weight: an initializer, or a constant if it is not stored."""
        if not weight.trained and weight.name in ("scale", "shift"):
            fill = float(weight.init == "ones")
            return self.constant(np.full(weight.shape, fill, standard.numpy_type(element)))
        array = next(arrays, None)
        if array is not None and array.shape != weight.shape:
            raise InputError(f"weight {name} has shape {weight.shape}, not {array.shape}")
        tensor = TensorProto(name=name, dims=weight.shape, data_type=standard.enum(element))
        self.tensors.append(StoredTensor(tensor, weight, array))
        return name

    def add(
        self,
        op: str,
        name: str,
        inputs: list[str],
        output: str,
        attrs: Attrs = (),
    ) -> None:
        """Add a node with one output."""
        self.proto.node.add(
            op_type=op,
            name=name,
            input=inputs,
            output=[output],
            attribute=_attributes(op, attrs),
        )

    def add_constant(self, name: str, array: np.ndarray, output: str) -> None:
        """Add a `Constant` node; an initializer would be read as a weight."""
        value = onnx.AttributeProto(name="value", type=onnx.AttributeProto.TENSOR)
        value.t.CopyFrom(onnx.numpy_helper.from_array(array))
        self.proto.node.add(op_type="Constant", name=name, output=[output], attribute=[value])

    def constant(self, array: np.ndarray) -> str:
        """Name of a `Constant` node with this value; equal constants are one."""
        key = (array.dtype.name, array.shape, array.tobytes())
        if key not in self.constants:
            name = self.constants[key] = f"constant{len(self.constants)}"
            self.add_constant(name, array, name)
        return self.constants[key]

    def sizes(self, name: str, sizes: tuple[int, ...]) -> str:
        """Name of a value that holds these sizes; 0 stands for the batch size."""
        if 0 not in sizes:
            return self.constant(np.array(sizes, np.int64))
        parts = []
        for size in sizes:
            is_batch = size == 0
            parts.append(self._batch_size() if is_batch else self._size(size))
        self.add("Concat", name, parts, name, (("axis", 0),))
        return name

    def _size(self, size: int) -> str:
        """Name of the constant that holds a size as a list of one number."""
        return self.constant(np.array((size,), np.int64))

    def _batch_size(self) -> str:
        """Name of the value that holds the batch size as a list of one number."""
        if self.times_used["batch_size"]:
            return "batch_size"
        inputs = [v for v in self.graph.inputs if BATCH in self.graph.shapes[v]]
        if not inputs:
            raise InputError(f"Expand to the batch size needs an input with a dimension {BATCH}")
        axis = self.graph.shapes[inputs[0]].index(BATCH)
        name = self._unique("batch_size")
        attrs: Attrs = (("end", axis + 1), ("start", axis))
        self.add("Shape", name, [self.names[inputs[0]]], "batch_size", attrs)
        return "batch_size"

    def _unique(self, name: str) -> str:
        self.times_used[name] += 1
        times = self.times_used[name]
        return name if times == 1 else f"{name}_{times}"


def _numbered(name: str, values: tuple[int, ...]) -> dict[int, str]:
    """Names of a graph's inputs or outputs; the only one has no number."""
    if len(values) == 1:
        return {values[0]: name}
    return {value: f"{name}{i}" for i, value in enumerate(values)}


def _value_info(name: str, shape: Shape) -> onnx.ValueInfoProto:
    dims = [None if dim == UNKNOWN else dim for dim in shape]
    return helper.make_tensor_value_info(name, standard.enum(element_type(shape)), dims)


@lru_cache(maxsize=4096)
def _attributes(op: str, attrs: Attrs) -> tuple[onnx.AttributeProto, ...]:
    """The attributes with the types of the operator's schema."""
    schema = standard.schema(op)
    assert schema is not None
    attributes = []
    for name, value in attrs:
        kind = int(schema.attributes[name].type)  # type: ignore[call-overload]
        attributes.append(_attribute(op, name, value, kind))
    return tuple(attributes)


def _attribute(
    op: str,
    name: str,
    value: Value,
    kind: int,
) -> onnx.AttributeProto:
    try:
        return helper.make_attribute(name, value, attr_type=kind)
    except (TypeError, ValueError) as error:
        type_name = onnx.AttributeProto.AttributeType.Name(kind).lower()
        raise InputError(f"{op}: {name} = {value} is not of type {type_name}") from error


# --- numbers


class _InitialWeights:
    """Numbers of a graph's tensors, in order.

    Attributes:
        noise: the random stream.
        position: what was taken from it.
    """

    def __init__(self, graph: Graph, seed: int) -> None:
        length = 1 << graph_params(graph).bit_length()
        self.noise = _noise(seed, min(_NOISE, length))
        self.position = 0

    def parts(self, stored: StoredTensor) -> Iterator[bytes | memoryview]:
        """Yield the bytes of a tensor's numbers, in parts: those of its array, or initial ones."""
        tensor, weight, array = stored
        size = prod(tensor.dims)
        dtype = tensor_dtype_to_np_dtype(tensor.data_type)
        if array is not None:
            yield np.ascontiguousarray(array, dtype).tobytes()
            return
        if weight.init != "kaiming":
            yield _filled(size, float(weight.init == "ones"), dtype)
            return
        fan_in = weight.fan_in or max(1, prod(tensor.dims[1:]))
        std = np.float32(sqrt(2 / fan_in))
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


# --- bytes of the file


def _reserve(file: BinaryIO, size: int) -> None:
    """Allocate the bytes on disk at once if possible, which is faster than part by part."""
    with suppress(AttributeError, OSError):  # not supported by every system, nor by files in memory
        os.posix_fallocate(file.fileno(), file.tell(), size)


def _initializer_head(tensor: TensorProto) -> bytes:
    """Protobuf encoding of a graph's initializer up to its numbers."""
    size = _byte_size(tensor)
    head = tensor.SerializeToString() + _field(TensorProto.RAW_DATA_FIELD_NUMBER, size)
    return _field(GraphProto.INITIALIZER_FIELD_NUMBER, len(head) + size) + head


def _field(number: int, size: int) -> bytes:
    """Protobuf header of a field of `size` bytes.

    It is the number and wire type, then the size as a varint: seven bits per byte, the lowest
    first.
    """
    encoded = [number << 3 | 2]
    while size > 0x7F:
        encoded.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes([*encoded, size])


def _byte_size(tensor: TensorProto) -> int:
    """Size of a tensor's numbers in bytes."""
    return prod(tensor.dims) * tensor_dtype_to_np_dtype(tensor.data_type).itemsize
