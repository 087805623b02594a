"""Graph to ONNX model without weights: every operator in terms of standard ONNX."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np
import onnx
from onnx import helper

from search_spaces.common.errors import InputError
from search_spaces.ir import standard
from search_spaces.ir.convolutions import CONVOLUTIONS, Convolution, convolution
from search_spaces.ir.graph import BATCH, UNKNOWN, Attrs, Graph, Node, Shape, Value, element_type
from search_spaces.ir.operators import is_own
from search_spaces.ir.owned_weights import OWNERS, Weight, onnx_attrs, weights

Numbers = Mapping[int, Sequence[np.ndarray]]


class Outline:
    """The ONNX model of a graph without weights; names contain the scopes, as in torch's exports.

    Args:
        graph: the network.
        numbers: arrays of the weights and long constants of each node, by its output value.

    Attributes:
        model: the model without initializers.
        tensors: per initializer, its tensor without numbers, its initialization, and its array in
            `numbers` or None.
    """

    def __init__(self, graph: Graph, numbers: Numbers | None = None) -> None:
        opset = max(
            [standard.opset(op) for op in {node.op for node in graph.nodes}], default=standard.OPSET
        )
        self.model = onnx.ModelProto(ir_version=standard.IR_VERSION)
        self.model.opset_import.add(domain="", version=opset)
        self.graph, self.proto = graph, self.model.graph
        self.numbers = numbers or {}
        self.tensors: list[tuple[onnx.TensorProto, Weight, np.ndarray | None]] = []
        self.used: Counter[str] = Counter()
        self.constants: dict[tuple[str, tuple[int, ...], bytes], str] = {}
        self.names = dict(zip(graph.inputs, _numbered("input", len(graph.inputs)), strict=True))
        self.results = dict(
            zip(graph.outputs, _numbered("output", len(graph.outputs)), strict=True)
        )
        self.proto.name = "net"
        self.proto.input.extend(
            _value_info(name, graph.shapes[v]) for v, name in self.names.items()
        )
        self.proto.output.extend(
            _value_info(name, graph.shapes[v]) for v, name in self.results.items()
        )
        for node in graph.nodes:
            self._write(node)

    def _write(self, node: Node) -> None:
        shapes = tuple([self.graph.shapes[v] for v in node.inputs])
        name = self._unique("/".join((*node.scope, node.op)))
        result = self.graph.shapes[node.outputs[0]]
        owned = weights(node.op, node.attrs, shapes)
        given = iter(self.numbers.get(node.outputs[0], ()))
        tensors = [self._tensor(f"{name}.{weight.name}", weight, result, given) for weight in owned]
        inputs = [self.names[v] for v in node.inputs]
        output = self.results.get(node.outputs[0]) or f"{name}_out"
        self.names[node.outputs[0]] = output
        if not is_own(node.op, len(inputs)):
            self._standard(node, name, inputs, tensors, shapes, output)
        elif node.op in CONVOLUTIONS:
            self._convolution(
                node, name, convolution(node.attrs, shapes[0]), inputs, tensors, output
            )
        elif node.op == "Linear":
            self._linear(name, len(shapes[0]), inputs[0], tensors, output)
        elif node.op == "BatchNorm":
            self._norm(name, node, [*inputs, *tensors], output)
        elif node.op == "Embedding":
            self._add("Gather", name, [*tensors, *inputs], output)
        elif node.op == "ChannelShuffle":
            self._channel_shuffle(name, dict(node.attrs), shapes[0], inputs[0], output)
        elif node.op == "Expand":
            self._expand(name, dict(node.attrs), inputs, output)
        elif node.op == "Zero":
            self._add("Mul", name, [*inputs, self._constant(np.zeros((), _dtype(result)))], output)
        elif node.op == "Param":
            self._add("Identity", name, tensors, output)
        elif node.op == "Buffer":
            self._buffer(name, dict(node.attrs), output, next(given, None))
        else:
            self._standard(node, name, inputs, tensors, shapes, output)

    def _convolution(
        self,
        node: Node,
        name: str,
        conv: Convolution,
        inputs: list[str],
        tensors: list[str],
        output: str,
    ) -> None:
        attributes = _conv_attributes(conv)
        if node.op == "Conv":
            self._add("Conv", name, [*inputs, *tensors], output, attributes)
            return
        own, norm = tensors[:-4], tensors[-4:]
        self._add("Conv", f"{name}.conv", [*inputs, *own], f"{name}.conv_out", attributes)
        if node.op == "ConvBn":
            self._norm(f"{name}.norm", node, [f"{name}.conv_out", *norm], output)
            return
        self._norm(f"{name}.norm", node, [f"{name}.conv_out", *norm], f"{name}.norm_out")
        bounds = [self._constant(np.array(bound, np.float32)) for bound in (0, 6)]
        self._add("Clip", f"{name}.relu6", [f"{name}.norm_out", *bounds], output)

    def _norm(self, name: str, node: Node, inputs: list[str], output: str) -> None:
        epsilon = tuple([(n, v) for n, v in node.attrs if n == "epsilon"])
        self._add(
            "BatchNormalization", name, inputs, output, _attributes("BatchNormalization", epsilon)
        )

    def _linear(self, name: str, rank: int, x: str, tensors: list[str], output: str) -> None:
        if rank == 2:
            self._add("Gemm", name, [x, *tensors], output, _attributes("Gemm", (("transB", 1),)))
            return
        matrix, *bias = tensors
        self._add("Transpose", f"{name}.transpose", [matrix], f"{name}.transposed")
        self._add(
            "MatMul",
            f"{name}.product",
            [x, f"{name}.transposed"],
            f"{name}.product_out" if bias else output,
        )
        if bias:
            self._add("Add", name, [f"{name}.product_out", *bias], output)

    def _channel_shuffle(
        self, name: str, attrs: dict[str, Any], shape: Shape, x: str, output: str
    ) -> None:
        groups, (channels, *size) = attrs["groups"], (int(d) for d in shape[1:])
        split, swapped = f"{name}.split_out", f"{name}.swap_out"
        self._add(
            "Reshape",
            f"{name}.split",
            [x, self._integers(0, groups, channels // groups, *size)],
            split,
        )
        order = (0, 2, 1, *range(3, len(shape) + 1))
        self._add(
            "Transpose",
            f"{name}.swap",
            [split],
            swapped,
            _attributes("Transpose", (("perm", order),)),
        )
        self._add("Reshape", f"{name}.join", [swapped, self._integers(0, channels, *size)], output)

    def _expand(self, name: str, attrs: dict[str, Any], inputs: list[str], output: str) -> None:
        source = inputs or [self._constant(np.array(attrs["input"], np.float32))]
        self._add("Expand", name, [*source, self._sizes(f"{name}.shape", attrs["shape"])], output)

    def _buffer(
        self, name: str, attrs: dict[str, Any], output: str, given: np.ndarray | None
    ) -> None:
        """Add a long constant; without given numbers, they are made up.

        Made-up numbers are neither equal, evenly spaced nor triangular, since such constants are
        written as operators. The first is the largest, so that the limit of integers survives.
        """
        count, limit = np.arange(prod(attrs["shape"])), attrs.get("limit", 2)
        dtype = standard.numpy_type(attrs.get("element", "float"))
        numbers = (
            limit - 1 - count * (count + 1) // 2 % limit if dtype.kind in "iub" else np.cos(count)
        )
        numbers = numbers if given is None else given
        tensor = onnx.numpy_helper.from_array(numbers.astype(dtype).reshape(attrs["shape"]))
        self._add("Constant", name, [], output, [helper.make_attribute("value", tensor)])

    def _sizes(self, name: str, sizes: tuple[int, ...]) -> str:
        """Name of a value that holds these sizes; 0 stands for the batch size."""
        if 0 not in sizes:
            return self._integers(*sizes)
        parts = [self._batch_size() if size == 0 else self._integers(size) for size in sizes]
        self._add("Concat", name, parts, name, _attributes("Concat", (("axis", 0),)))
        return name

    def _batch_size(self) -> str:
        """Name of the value that holds the batch size as a list of one number."""
        if not self.used["batch_size"]:
            found = [
                (v, self.graph.shapes[v].index(BATCH))
                for v in self.graph.inputs
                if BATCH in self.graph.shapes[v]
            ]
            if not found:
                raise InputError(
                    f"Expand to the batch size needs an input with a dimension {BATCH}"
                )
            value, axis = found[0]
            between = _attributes("Shape", (("end", axis + 1), ("start", axis)))
            self._add(
                "Shape", self._unique("batch_size"), [self.names[value]], "batch_size", between
            )
        return "batch_size"

    def _standard(
        self,
        node: Node,
        name: str,
        inputs: list[str],
        tensors: list[str],
        shapes: tuple[Shape, ...],
        output: str,
    ) -> None:
        """Add a standard operator, whose constant operands are attributes of the graph's node."""
        attrs = onnx_attrs(node.op, node.attrs) if node.op in OWNERS else node.attrs
        called = standard.call(node.op, attrs, shapes)
        operands = [
            "" if o is None else inputs[o] if isinstance(o, int) else self._constant(o)
            for o in called.operands
        ]
        outputs = standard.output_names(node.op, called.output, output)
        attributes = _attributes(node.op, called.attrs)
        operands += tensors
        self.proto.node.add(
            op_type=node.op, name=name, input=operands, output=outputs, attribute=attributes
        )

    def _add(
        self,
        op: str,
        name: str,
        inputs: list[str],
        output: str,
        attributes: Iterable[onnx.AttributeProto] = (),
    ) -> None:
        self.proto.node.add(
            op_type=op, name=name, input=inputs, output=[output], attribute=attributes
        )

    def _unique(self, name: str) -> str:
        self.used[name] += 1
        return name if self.used[name] == 1 else f"{name}_{self.used[name]}"

    def _integers(self, *values: int) -> str:
        return self._constant(np.array(values, np.int64))

    def _constant(self, array: np.ndarray) -> str:
        """Name of a `Constant` node with this value; an initializer would be read as a weight."""
        key = (array.dtype.name, array.shape, array.tobytes())
        if key not in self.constants:
            name = self.constants[key] = f"constant{len(self.constants)}"
            tensor = onnx.AttributeProto(name="value", type=onnx.AttributeProto.TENSOR)
            tensor.t.CopyFrom(onnx.numpy_helper.from_array(array))
            self._add("Constant", name, [], name, [tensor])
        return self.constants[key]

    def _tensor(self, name: str, weight: Weight, result: Shape, given: Iterator[np.ndarray]) -> str:
        if not weight.trained and weight.name in ("scale", "shift"):
            return self._constant(
                np.full(weight.shape, float(weight.init == "ones"), _dtype(result))
            )
        element = standard.enum(element_type(result))
        array = next(given, None)
        if array is not None and array.shape != weight.shape:
            raise InputError(f"weight {name} has shape {weight.shape}, not {array.shape}")
        self.tensors.append(
            (onnx.TensorProto(name=name, dims=weight.shape, data_type=element), weight, array)
        )
        return name


def _numbered(name: str, count: int) -> list[str]:
    return [name] if count == 1 else [f"{name}{i}" for i in range(count)]


def _value_info(name: str, shape: Shape) -> onnx.ValueInfoProto:
    dims = [None if d == UNKNOWN else d for d in shape]
    return helper.make_tensor_value_info(name, standard.enum(element_type(shape)), dims)


def _dtype(shape: Shape) -> np.dtype:
    return standard.numpy_type(element_type(shape))


@lru_cache(maxsize=4096)
def _conv_attributes(conv: Convolution) -> tuple[onnx.AttributeProto, ...]:
    given: Attrs = (
        ("dilations", conv.dilations),
        ("group", conv.group),
        ("kernel_shape", conv.kernel),
        ("pads", conv.pads),
        ("strides", conv.strides),
    )
    return _attributes(
        "Conv", tuple([(n, v) for n, v in given if v != 1 and not standard.neutral(n, v)])
    )


@lru_cache(maxsize=4096)
def _attributes(op: str, attrs: Attrs) -> tuple[onnx.AttributeProto, ...]:
    """The attributes with the types of the operator's schema."""
    schema = standard.schema(op)
    assert schema is not None
    kinds = {name: int(schema.attributes[name].type) for name, _ in attrs}  # type: ignore[call-overload]
    return tuple([_attribute(op, name, value, kinds[name]) for name, value in attrs])


def _attribute(op: str, name: str, value: Value, kind: int) -> onnx.AttributeProto:
    try:
        return helper.make_attribute(name, value, attr_type=kind)
    except (TypeError, ValueError) as error:
        wanted = onnx.AttributeProto.AttributeType.Name(kind).lower()
        raise InputError(f"{op}: {name} = {value} is not of type {wanted}") from error
