"""Graph ⇄ ONNX model: weights are made when a model is written and reduced to their shapes when one is read."""

from __future__ import annotations

import hashlib
from collections import Counter
from functools import lru_cache
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from search_spaces.cost import graph_params
from search_spaces.errors import InputError
from search_spaces.fusion import fuse
from search_spaces.graph import Attrs, Graph, Node, Shape, Value
from search_spaces.operators import CONSTANT_OPERANDS, Convolution, Weight, convolution, output_shape, pair, weights
from search_spaces.text import IR_VERSION, OPSET, attribute_value

BATCH_NORM_EPSILON = 1e-5
MAX_WEIGHTS = 500_000_000  # protobuf's limit of 2 GB, in float32


def to_model(graph: Graph, seed: int = 0) -> onnx.ModelProto:
    """A runnable ONNX model with freshly initialized weights (He normal; batch normalization at identity)."""
    if graph_params(graph) > MAX_WEIGHTS:
        raise InputError(f"the network has {graph_params(graph):,} weights; one ONNX file holds {MAX_WEIGHTS:,}")
    writer = _Writer(graph, np.random.default_rng(seed))
    for node in graph.nodes:
        writer.write(node)
    inputs = [helper.make_tensor_value_info(writer.names[v], TensorProto.FLOAT, graph.shapes[v]) for v in graph.inputs]
    outputs = [
        helper.make_tensor_value_info(writer.names[v], TensorProto.FLOAT, graph.shapes[v]) for v in graph.outputs
    ]
    proto = helper.make_graph(writer.nodes, "net", inputs, outputs, writer.initializers)
    return helper.make_model(proto, ir_version=IR_VERSION, opset_imports=[helper.make_opsetid("", OPSET)])


class _Writer:
    """Writes weightless nodes as ONNX nodes; names carry the scope, as torch's exporter does."""

    def __init__(self, graph: Graph, rng: np.random.Generator) -> None:
        self.graph, self.rng = graph, rng
        self.names = {v: f"input{i}" if len(graph.inputs) > 1 else "input" for i, v in enumerate(graph.inputs)}
        self.results = {v: f"output{i}" if len(graph.outputs) > 1 else "output" for i, v in enumerate(graph.outputs)}
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self.used: Counter[str] = Counter()

    def write(self, node: Node) -> None:
        shapes = tuple(self.graph.shapes[v] for v in node.inputs)
        name = self._unique("/".join((*node.scope, node.op)))
        output = self.results.get(node.outputs[0], f"{name}_out")
        tensors = [self._tensor(f"{name}.{w.name}", w) for w in weights(node.op, node.attrs, shapes)]
        inputs = [self.names[v] for v in node.inputs]
        self.names[node.outputs[0]] = output
        if node.op in ("Conv", "ConvBn"):
            self._convolution(name, node, convolution(node.attrs, shapes[0]), inputs, tensors, output)
        elif node.op == "Linear":
            self._linear(name, len(shapes[0]), inputs, tensors, output)
        elif node.op == "BatchNorm":
            self._norm(name, node, [*inputs, *tensors], output)
        elif node.op == "ChannelShuffle":
            self._channel_shuffle(name, node, shapes[0], inputs[0], output)
        elif node.op in CONSTANT_OPERANDS:
            self._with_constants(node.op, name, inputs[0], dict(node.attrs), output)
        elif node.op == "Zero":
            zero = onnx.numpy_helper.from_array(np.zeros((), np.float32), f"{name}.zero")
            self.initializers.append(zero)
            self._add("Mul", name, [*inputs, zero.name], output)
        elif node.op == "Param":
            self._add("Identity", name, tensors, output)
        else:
            self._add(node.op, name, inputs, output, **dict(node.attrs))

    def _convolution(
        self, name: str, node: Node, conv: Convolution, inputs: list[str], tensors: list[str], output: str
    ) -> None:
        attrs = {
            "kernel_shape": conv.kernel,
            "strides": conv.strides,
            "pads": conv.pads,
            "dilations": conv.dilations,
            "group": conv.group,
        }
        if node.op == "Conv":
            self._add("Conv", name, [*inputs, *tensors], output, **attrs)
            return
        self._add("Conv", f"{name}.conv", [*inputs, tensors[0]], f"{name}.conv_out", **attrs)
        self._norm(f"{name}.norm", node, [f"{name}.conv_out", *tensors[1:]], output)

    def _norm(self, name: str, node: Node, inputs: list[str], output: str) -> None:
        epsilon = dict(node.attrs).get("epsilon", BATCH_NORM_EPSILON)
        self._add("BatchNormalization", name, inputs, output, epsilon=epsilon)

    def _channel_shuffle(self, name: str, node: Node, shape: Shape, x: str, output: str) -> None:
        groups = int(dict(node.attrs)["groups"])  # type: ignore[arg-type]
        channels, *size = (int(d) for d in shape[1:])
        split, swapped = f"{name}.split_out", f"{name}.swap_out"
        self._with_constants("Reshape", f"{name}.split", x, {"shape": (0, groups, channels // groups, *size)}, split)
        self._add("Transpose", f"{name}.swap", [split], swapped, perm=[0, 2, 1, 3, 4])
        self._with_constants("Reshape", f"{name}.join", swapped, {"shape": (0, channels, *size)}, output)

    def _with_constants(self, op: str, name: str, x: str, attrs: dict[str, Any], output: str) -> None:
        """An operator whose attributes are constant operands in ONNX."""
        operands = [self._constant(attrs[name]) if name in attrs else "" for name in CONSTANT_OPERANDS[op]]
        while operands and not operands[-1]:
            operands.pop()
        self._add(op, name, [x, *operands], output)

    def _constant(self, value: Value) -> str:
        """The name of a `Constant` node with this value: an initializer would be taken for a weight."""
        kind = np.float32 if isinstance(value, float) else np.int64
        return self._constant_array(f"constant_{value}", np.array(value, kind))

    def _constant_array(self, name: str, array: np.ndarray) -> str:
        if name not in self.used:
            self.used[name] = 1
            self._add("Constant", name, [], name, value=onnx.numpy_helper.from_array(array))
        return name

    def _linear(self, name: str, rank: int, inputs: list[str], tensors: list[str], output: str) -> None:
        if rank != 2:
            raise InputError(f"Linear needs an input of rank 2, not {rank}")
        self._add("Gemm", name, [*inputs, *tensors], output, transB=1)

    def _add(self, op: str, name: str, inputs: list[str], output: str, **attrs: Any) -> None:
        self.nodes.append(helper.make_node(op, inputs, [output], name=name, **attrs))

    def _unique(self, name: str) -> str:
        self.used[name] += 1
        return name if self.used[name] == 1 else f"{name}_{self.used[name]}"

    def _tensor(self, name: str, weight: Weight) -> str:
        if not weight.trained and weight.name in ("scale", "shift"):
            fill = 1.0 if weight.init == "ones" else 0.0
            return self._constant_array(f"{weight.init}_{weight.shape[0]}", np.full(weight.shape, fill, np.float32))
        if weight.init == "kaiming":
            fan_in = max(1, int(np.prod(weight.shape[1:])))
            data = self.rng.standard_normal(weight.shape, np.float32) * np.float32(np.sqrt(2 / fan_in))
        else:
            data = np.full(weight.shape, 1.0 if weight.init == "ones" else 0.0, np.float32)
        self.initializers.append(onnx.numpy_helper.from_array(data, name))
        return name


# --- reading ---------------------------------------------------------------------------------------------------------


def from_model(model: onnx.ModelProto) -> Graph:
    """The weightless graph of an ONNX model; scopes are read from the node names (`stage1/cell2/Conv`)."""
    try:
        onnx.checker.check_model(model)
    except (onnx.checker.ValidationError, ValueError, RuntimeError) as error:
        raise InputError(f"not a valid ONNX model: {' '.join(str(error).split())[:300]}") from None
    try:
        return _Reader(model).read()
    except InputError:
        raise
    except (
        Exception
    ) as error:  # any field of a damaged file may be wrong: text that is no UTF-8, attributes of a wrong kind
        raise InputError(f"damaged ONNX model: {type(error).__name__}: {' '.join(str(error).split())[:200]}") from None


@lru_cache(maxsize=1024)
def _defaults(op: str) -> dict[str, object]:
    schema = onnx.defs.get_schema(op, OPSET)
    return {
        name: helper.get_attribute_value(a.default_value)
        for name, a in schema.attributes.items()
        if a.default_value.name
    }


class _Reader:
    """Reads ONNX nodes as weightless ones: weights become attributes, a convolution's BatchNormalization joins it."""

    def __init__(self, model: onnx.ModelProto) -> None:
        versions = {o.domain: o.version for o in model.opset_import}
        if versions.get("", OPSET) < 13:
            raise InputError(f"the model uses opset {versions.get('')}; export it with opset 13 or later")
        self.proto = model.graph
        self.initializers = {t.name: t for t in self.proto.initializer}
        self.constants: dict[str, np.ndarray] = {}
        self.values: dict[str, int] = {}
        self.shapes: list[Shape] = []
        self.nodes: list[Node] = []

    def read(self) -> Graph:
        inputs = [info for info in self.proto.input if info.name not in self.initializers]
        for info in inputs:
            self.values[info.name] = len(self.shapes)
            self.shapes.append(_input_shape(info))
        for node in self.proto.node:
            self._node(node)
        outputs = [self._output(info.name, len(inputs)) for info in self.proto.output]
        return fuse(Graph(tuple(range(len(inputs))), tuple(self.nodes), tuple(outputs), tuple(self.shapes)))

    def _output(self, name: str, inputs: int) -> int:
        value = self._value(name)
        return value if value >= inputs else self._emit("Identity", (value,), (), ())

    def _value(self, name: str) -> int:
        """The value of that name; a float initializer outside of a known operator is a `Param`."""
        if name not in self.values:
            tensor = self.initializers.get(name)
            if tensor is None or tensor.data_type != TensorProto.FLOAT:
                raise InputError(f"the value {name!r} is not a float tensor made by an earlier node")
            self.values[name] = self._emit("Param", (), (("shape", tuple(tensor.dims)),), ())
        return self.values[name]

    def _emit(self, op: str, inputs: tuple[int, ...], attrs: Attrs, scope: tuple[str, ...]) -> int:
        shape = output_shape(op, attrs, tuple(self.shapes[v] for v in inputs))
        self.shapes.append(shape)
        self.nodes.append(Node(op, inputs, (len(self.shapes) - 1,), attrs, scope))
        return len(self.shapes) - 1

    def _node(self, node: onnx.NodeProto) -> None:
        if node.domain not in ("", "ai.onnx"):
            raise InputError(
                f"operator {node.domain}.{node.op_type} (node {node.name!r}) is not a standard ONNX operator"
            )
        if len([name for name in node.output if name]) != 1:
            raise InputError(f"operator {node.op_type} (node {node.name!r}) with several outputs is not supported")
        if node.op_type == "Constant":
            self.constants[node.output[0]] = _constant_value(node)
            return
        scope = tuple(part for part in node.name.split("/")[:-1] if part)
        attrs = {a.name: attribute_value(node.op_type, a) for a in node.attribute}
        reader = {
            "Conv": self._conv,
            "Gemm": self._gemm,
            "BatchNormalization": self._batch_norm,
            "Mul": self._mul,
            "Identity": self._identity,
            "Dropout": self._identity,
            "Slice": self._slice,
            "Reshape": self._reshape,
            "Clip": self._clip,
        }.get(node.op_type, self._standard)
        self.values[node.output[0]] = reader(node, attrs, scope)

    def _weight(self, node: onnx.NodeProto, position: int) -> tuple[int, ...]:
        tensor = self.initializers.get(node.input[position])
        if tensor is None:
            raise InputError(f"{node.op_type} (node {node.name!r}) needs its weights as initializers")
        return tuple(tensor.dims)

    def _conv(self, node: onnx.NodeProto, attrs: dict[str, Any], scope: tuple[str, ...]) -> int:
        weight = self._weight(node, 1)
        x = self._value(node.input[0])
        if len(weight) != 4 or attrs.get("auto_pad", "NOTSET") != "NOTSET":
            raise InputError(f"Conv (node {node.name!r}): only 2-D convolutions with explicit pads are supported")
        kernel, dilations = (weight[2], weight[3]), attrs.get("dilations", (1, 1))
        in_channels = self.shapes[x][1]
        if weight[1] * attrs.get("group", 1) != in_channels:
            raise InputError(f"Conv (node {node.name!r}): weights {list(weight)} do not fit {in_channels} channels")
        conv = Convolution(
            in_channels=int(in_channels),
            channels=weight[0],
            kernel=kernel,
            strides=pair(attrs.get("strides", 1)),
            pads=attrs.get("pads", (0, 0, 0, 0)),
            dilations=dilations,
            group=attrs.get("group", 1),
            bias=len(node.input) > 2 and node.input[2] != "",
        )
        return self._emit("Conv", (x,), conv.attrs, scope)

    def _gemm(self, node: onnx.NodeProto, attrs: dict[str, Any], scope: tuple[str, ...]) -> int:
        if {attrs.get("alpha", 1.0), attrs.get("beta", 1.0)} != {1.0} or attrs.get("transA", 0):
            raise InputError(f"Gemm (node {node.name!r}): only alpha = beta = 1 and transA = 0 are supported")
        weight = self._weight(node, 1)
        features = weight[0] if attrs.get("transB", 0) else weight[1]
        bias = len(node.input) > 2 and node.input[2] != ""
        given: Attrs = (("features", features),) if bias else (("bias", 0), ("features", features))
        return self._emit("Linear", (self._value(node.input[0]),), given, scope)

    def _batch_norm(self, node: onnx.NodeProto, attrs: dict[str, Any], scope: tuple[str, ...]) -> int:
        x = self._value(node.input[0])
        epsilon = float(np.float32(attrs.get("epsilon", BATCH_NORM_EPSILON)))
        given: dict[str, Value] = {} if epsilon == float(np.float32(BATCH_NORM_EPSILON)) else {"epsilon": epsilon}
        scale, shift = (self.constants.get(name) for name in node.input[1:3])
        if scale is not None and shift is not None and (scale == 1).all() and (shift == 0).all():
            given["affine"] = 0
        return self._emit("BatchNorm", (x,), tuple(sorted(given.items())), scope)

    def _known(self, node: onnx.NodeProto, position: int) -> np.ndarray | None:
        """The value of a constant operand; None where it is left out."""
        if len(node.input) <= position or not node.input[position]:
            return None
        name = node.input[position]
        if name in self.constants:
            return self.constants[name]
        if name not in self.initializers:
            raise InputError(f"{node.op_type} (node {node.name!r}): operand {name!r} must be a constant")
        return onnx.numpy_helper.to_array(self.initializers[name])

    def _slice(self, node: onnx.NodeProto, attrs: dict[str, Any], scope: tuple[str, ...]) -> int:
        x = self._value(node.input[0])
        starts, ends, axes, steps = (self._known(node, i) for i in range(1, 5))
        if starts is None or ends is None or (steps is not None and (steps != 1).any()):
            raise InputError(f"Slice (node {node.name!r}) needs starts and ends, and only steps of 1 are supported")
        shape = self.shapes[x]
        ranges = {}
        for axis, start, end in zip(range(len(starts)) if axes is None else axes, starts, ends, strict=True):
            size = shape[int(axis)]
            if isinstance(size, int):
                ranges[int(axis) % len(shape)] = slice(int(start), int(end)).indices(size)[:2]
        ranges = {axis: r for axis, r in sorted(ranges.items()) if r != (0, shape[axis])}
        if not ranges:
            return x
        first, last = zip(*ranges.values(), strict=True)
        return self._emit("Slice", (x,), (("axes", tuple(ranges)), ("ends", last), ("starts", first)), scope)

    def _reshape(self, node: onnx.NodeProto, attrs: dict[str, Any], scope: tuple[str, ...]) -> int:
        shape = self._known(node, 1)
        if shape is None or (shape < 0).any() or not len(shape) or shape[0] != 0:
            raise InputError(f"Reshape (node {node.name!r}): only constant shapes that keep the batch are supported")
        return self._emit("Reshape", (self._value(node.input[0]),), (("shape", tuple(shape.tolist())),), scope)

    def _clip(self, node: onnx.NodeProto, attrs: dict[str, Any], scope: tuple[str, ...]) -> int:
        bounds = {"min": self._known(node, 1), "max": self._known(node, 2)}
        given = tuple(sorted((name, float(value)) for name, value in bounds.items() if value is not None))
        return self._emit("Clip", (self._value(node.input[0]),), given, scope)

    def _mul(self, node: onnx.NodeProto, attrs: dict[str, Any], scope: tuple[str, ...]) -> int:
        for x, factor in (node.input, reversed(node.input)):
            tensor = self.initializers.get(factor)
            if tensor is not None and not tensor.dims and onnx.numpy_helper.to_array(tensor) == 0:
                return self._emit("Zero", (self._value(x),), (), scope)
        return self._standard(node, attrs, scope)

    def _identity(self, node: onnx.NodeProto, attrs: dict[str, Any], scope: tuple[str, ...]) -> int:
        return self._value(node.input[0])

    def _standard(self, node: onnx.NodeProto, attrs: dict[str, Any], scope: tuple[str, ...]) -> int:
        defaults = _defaults(node.op_type)
        kept = {n: v for n, v in attrs.items() if _plain(defaults.get(n)) != v and not _neutral(n, v)}
        inputs = tuple(self._value(name) for name in node.input if name)
        return self._emit(node.op_type, inputs, tuple(sorted(kept.items())), scope)


def _constant_value(node: onnx.NodeProto) -> np.ndarray:
    for attr in node.attribute:
        if attr.name == "value":
            return onnx.numpy_helper.to_array(attr.t)
        if attr.name in ("value_int", "value_ints", "value_float", "value_floats"):
            kind = np.int64 if "int" in attr.name else np.float32
            return np.array(helper.get_attribute_value(attr), kind)
    raise InputError(f"Constant (node {node.name!r}) holds neither a tensor nor numbers")


def _plain(value: object) -> object:
    return value.decode() if isinstance(value, bytes) else value


def _neutral(name: str, value: Value) -> bool:
    """Attributes that have no default in ONNX's schema but mean the same as leaving them out."""
    if not isinstance(value, tuple):
        return False
    return (name in ("strides", "dilations") and set(value) == {1}) or (name == "pads" and set(value) == {0})


def _input_shape(info: onnx.ValueInfoProto) -> Shape:
    tensor = info.type.tensor_type
    if tensor.elem_type != TensorProto.FLOAT:
        raise InputError(f"input {info.name!r} is not a float tensor")
    dims = [d.dim_param or d.dim_value for d in tensor.shape.dim]
    return ("N", *dims[1:])


def load_model(path: str) -> onnx.ModelProto:
    """Read an `.onnx` file, checking that it is one; `InputError` names the file."""
    try:
        return onnx.load(path, load_external_data=False)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except Exception as error:  # protobuf's decode errors share no public base class
        raise InputError(f"{path}: not an ONNX model ({' '.join(str(error).split())[:200]})") from None


def fingerprint(text: str) -> str:
    """Short name of a network: the first 16 hexadecimal digits of its text's SHA-256."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]
