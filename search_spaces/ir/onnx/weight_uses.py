"""Which tensors of an ONNX file are weights: decided by where operators read them, not by how the
file stores them.

A file keeps weights as initializers (PyTorch, TensorFlow) or in `Constant` nodes (Paddle,
OpenVINO), as they are or cast, transposed or quantized. `find_weights` follows every stored tensor
through the operators that only rearrange it to the operators that read it beside values of the
network:

1. Kernels, tables, gates, and scales and shifts of normalizations are weights wherever they are
   stored.
2. So is a vector that is added to what a layer computes (its bias), or scales and shifts a
   normalized value.
3. Scales and zero points of quantization, windows and bounds are not.
4. Elsewhere initializers are weights. A `Constant` is one in a file that keeps the kernels of its
   layers in `Constant` nodes; in others it is a number of the user's code.

A weight that several operators read counts once. Only exporters that are known to store equal
vectors of different layers once are an exception: such vectors (all zeros or ones) are given back
to their layers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import NamedTuple

import numpy as np
import onnx

from search_spaces.ir import standard
from search_spaces.ir.graph import Shape, element_type
from search_spaces.ir.onnx.folding import Known, is_weight, read_tensor

# Operands that are always weights, by position. The first of a layer is its kernel.
KERNELS: dict[str, tuple[int, ...]] = {
    "Conv": (1,),
    "ConvTranspose": (1,),
    "DeformConv": (1,),
    "ConvInteger": (1,),
    "QLinearConv": (3,),
    "CausalConvWithState": (1,),
    "MatMul": (1, 0),
    "MatMulInteger": (1, 0),
    "QLinearMatMul": (3, 0),
    "Gemm": (1, 0),
    "Einsum": tuple(range(16)),
    "Gather": (0,),
    "GatherElements": (0,),
    "GatherND": (0,),
    "RNN": (1, 2),
    "GRU": (1, 2),
    "LSTM": (1, 2, 7),
    "PRelu": (1,),
    "Attention": (0, 1, 2),
    "LinearAttention": (0, 1, 2),
}
VECTORS: dict[str, tuple[int, ...]] = {
    "Conv": (2,),
    "ConvTranspose": (2,),
    "DeformConv": (3,),
    "QLinearConv": (8,),
    "CausalConvWithState": (2,),
    "Gemm": (2,),
    "RNN": (3,),
    "GRU": (3,),
    "LSTM": (3,),
    "BatchNormalization": (1, 2),
    "InstanceNormalization": (1, 2),
    "GroupNormalization": (1, 2),
    "LayerNormalization": (1, 2),
    "RMSNormalization": (1,),
}
_LOOKUPS = ("Gather", "GatherElements", "GatherND")
# Operands that are numbers of the architecture, or of its quantization, even if they are long.
_SETTINGS: dict[str, tuple[int, ...]] = {
    "BatchNormalization": (3, 4),
    "Clip": (1, 2),
    "OneHot": (2,),
    "Pad": (2,),
    "Resize": (1, 2),
    "RotaryEmbedding": (1, 2),
    "STFT": (2,),
    "QuantizeLinear": (1, 2),
    "DequantizeLinear": (1, 2),
    "QLinearConv": (1, 2, 4, 5, 6, 7),
    "QLinearMatMul": (1, 2, 4, 5, 6, 7),
    "MatMulInteger": (2, 3),
    "ConvInteger": (2, 3),
}
_LINEAR = frozenset(
    {
        "Conv",
        "ConvTranspose",
        "DeformConv",
        "ConvInteger",
        "MatMul",
        "MatMulInteger",
        "QLinearMatMul",
        "Gemm",
        "Einsum",
    }
)
_NORMALIZATIONS = frozenset(
    {"BatchNormalization", "InstanceNormalization", "GroupNormalization", "LayerNormalization", "RMSNormalization",
     "LpNormalization", "MeanVarianceNormalization"}
)  # fmt: skip
# Of these only the first operand is data; the others say how it is rearranged
_FIRST_OPERAND = frozenset(
    {"Cast", "CastLike", "DequantizeLinear", "QuantizeLinear", "Reshape", "Expand", "Slice", "Squeeze", "Unsqueeze",
     "Transpose", "Identity", "Flatten", "Tile", "Pad", "Gather", "Split", "Clip"}
)  # fmt: skip
_SHAPES_ONLY = frozenset({"Shape", "Size", "ConstantOfShape"})
_AFFINE = frozenset({"Add", "Mul"})
_PASSING = frozenset(
    {"Cast", "Identity", "Reshape", "Transpose", "Squeeze", "Unsqueeze", "DequantizeLinear"}
)
_RECURRENT = frozenset({"RNN", "GRU", "LSTM"})
_CONTROL = frozenset({"If", "Loop", "Scan", "SequenceMap"})
# Producer of files in which equal vectors of different layers are stored once
_MERGES_VECTORS = "pytorch"
_LOOK_BACK = 6  # operators between a normalization and its scale and shift
_STORED_ELEMENTS = frozenset(
    {"int2", "int4", "int8", "int16", "int32", "uint2", "uint4", "uint8", "uint16"}
)


class _Use(NamedTuple):
    """A read of a stored tensor by an operator that also reads values of the network.

    Attributes:
        node: number of the operator.
        position: position among its operands.
        direct: number of the node and position of the operand that read the tensor itself.
    """

    node: int
    position: int
    direct: tuple[int, int]


@dataclass
class Weights:
    """The stored tensors of a file.

    Attributes:
        nodes: the nodes, without `Constant` nodes that hold weights.
        tensors: weights and other stored tensors by name.
        shared: names of weights that several operators read.
    """

    nodes: list[onnx.NodeProto]
    tensors: dict[str, Known]
    shared: set[str] = field(default_factory=set)


def find_weights(
    nodes: Sequence[onnx.NodeProto], stored: dict[str, Known], producer: str = ""
) -> Weights:
    """Tell weights from other stored tensors.

    Args:
        nodes: nodes in order, without subgraphs that matter.
        stored: initializers by name.
        producer: name of the program that wrote the file; "" if unknown.
    """
    return _Finder(list(nodes), stored, producer).run()


def transposed_copies(tensors: Sequence[onnx.TensorProto]) -> dict[str, str]:
    """Matrices that are another one transposed, by name: exporters fold the transpose of tied
    embeddings.

    Tensors in other files, and those of one number only, are not compared.
    """
    matrices = [t for t in tensors if len(t.dims) == 2 and min(t.dims) > 1 and t.raw_data]
    by_shape: dict[tuple[int, ...], list[onnx.TensorProto]] = defaultdict(list)
    for tensor in matrices:
        by_shape[(tensor.data_type, *tensor.dims)].append(tensor)
    copies: dict[str, str] = {}
    for tensor in matrices:
        others = by_shape.get((tensor.data_type, tensor.dims[1], tensor.dims[0]), [])
        originals = [t for t in others if t.name != tensor.name and t.name not in copies]
        original = next((t for t in originals if _is_transposed(tensor, t)), None)
        if original is not None:
            copies[tensor.name] = original.name
    return copies


def _is_transposed(tensor: onnx.TensorProto, other: onnx.TensorProto) -> bool:
    """True if both have the same different numbers, one transposed. Their corners are compared
    first.
    """
    size = len(tensor.raw_data) // prod(tensor.dims)
    if size * prod(tensor.dims) != len(tensor.raw_data) or len(tensor.raw_data) != len(
        other.raw_data
    ):
        return False
    if (
        tensor.raw_data[:size] != other.raw_data[:size]
        or tensor.raw_data[-size:] != other.raw_data[-size:]
    ):
        return False
    first, second = (
        np.frombuffer(t.raw_data, f"V{size}").reshape(tuple(t.dims)) for t in (tensor, other)
    )
    return bool((first == second.T).all()) and not bool((first == first[0, 0]).all())


def is_quantization(op: str, position: int) -> bool:
    """True for the position of a scale or zero point."""
    return position in _SETTINGS.get(op, ()) and ("Linear" in op or "Integer" in op)


def uniform_number(known: Known) -> float | None:
    """The number of which a tensor consists; None if there are several, or they are not read."""
    array = known.static
    if array is None or array.size == 0:
        return None
    first = array.flat[0]
    return float(first) if bool((array == first).all()) else None


def is_own_constant(maker: onnx.NodeProto | None) -> bool:
    """True for constants as `Outline` writes them. It stores weights as initializers, so its
    constants are none.
    """
    if maker is None:
        return False
    numbered = maker.name.removeprefix("constant").isdecimal() and maker.output[0] == maker.name
    return numbered or maker.output[0] == f"{maker.name}_out"


class _Finder:
    """The steps of `find_weights`.

    Attributes:
        constants: nodes that hold a tensor, by the name of their output.
        makers: number of the node that computes a name.
        origins: for each name that stored tensors determine, their names, with the node and operand
            that read them.
        uses: uses of each stored tensor.
    """

    def __init__(
        self, nodes: list[onnx.NodeProto], stored: dict[str, Known], producer: str
    ) -> None:
        self.nodes, self.producer = nodes, producer
        self.tensors = dict(stored)
        self.constants: dict[str, onnx.NodeProto] = {}
        self.makers: dict[str, int] = {}
        self.origins: dict[str, frozenset[tuple[str, tuple[int, int] | None]]] = {}
        self.uses: dict[str, list[_Use]] = defaultdict(list)

    def run(self) -> Weights:
        # 1. Follow stored tensors to the operators that read them beside values of the network.
        self._follow()
        # 2. Constants in the positions of weights are stored as initializers are.
        weights = self._weights()
        for name in weights & self.constants.keys():
            known = read_tensor(_tensor(self.constants[name]), learned=True)
            self.tensors[name] = known
        for name in weights:
            self.tensors[name].placed = True
        # 3. Initializers that are only settings are not learned.
        for name in self.tensors.keys() - weights:
            if self.uses[name] and all(self._is_setting(use) for use in self.uses[name]):
                self.tensors[name].learned = False
        # 4. Give vectors that an exporter stored once back to their layers.
        self._separate()
        moved = weights & self.constants.keys()
        nodes = [node for node in self.nodes if not moved.intersection(node.output)]
        return Weights(
            nodes, self.tensors, {name for name in self.tensors if self._is_shared(name)}
        )

    def _is_shared(self, name: str) -> bool:
        """True for a weight that is read more than once; a vector may also be a batch
        normalization's statistics.

        What is looked up in a table at stored places, such as a bias by relative positions, is read
        once: by the lookup, however many operators use the result.
        """
        reads = {self._read_at(use) for use in self.uses[name] if not self._is_setting(use)}
        return is_weight(self.tensors[name]) and len(reads) > 1

    def _read_at(self, use: _Use) -> tuple[int, int]:
        """Node and position at which a tensor is read: of a lookup in it, or of the use itself."""
        reader, operand = use.direct
        if self.nodes[reader].op_type in _LOOKUPS and operand == 0:
            return use.direct
        return use.node, use.position

    # --- where tensors are read

    def _follow(self) -> None:
        self.origins = {name: frozenset({(name, None)}) for name in self.tensors}
        for number, node in enumerate(self.nodes):
            self.makers.update(dict.fromkeys(node.output, number))
            if node.op_type == "Constant":
                if not is_own_constant(node) and _is_candidate(node):
                    self.constants[node.output[0]] = node
                    self.origins[node.output[0]] = frozenset({(node.output[0], None)})
                else:
                    self.origins[node.output[0]] = frozenset()
                continue
            if node.op_type in _SHAPES_ONLY:
                if all(name in self.origins for name in node.input if name):
                    self.origins.update((name, frozenset()) for name in node.output)
                continue
            read = [
                (
                    position,
                    {(origin, first or (number, position)) for origin, first in self.origins[name]},
                )
                for position, name in enumerate(node.input)
                if name in self.origins
            ]
            if len(read) == sum(map(bool, node.input)) and node.op_type not in _CONTROL and read:
                data = read[:1] if node.op_type in _FIRST_OPERAND else read
                joined = frozenset().union(*(origins for _, origins in data))
                self.origins.update((name, joined) for name in node.output)
                read = [
                    (position, origins)
                    for position, origins in read
                    if position in _SETTINGS.get(node.op_type, ())
                ]
            for position, origins in read:
                for origin, first in origins:
                    self.uses[origin].append(_Use(number, position, first))

    def _kernels(self, number: int) -> frozenset[str]:
        """Names of the stored tensors in the kernel positions of a node."""
        node = self.nodes[number]
        names = [node.input[p] for p in KERNELS.get(node.op_type, ()) if p < len(node.input)]
        origins = frozenset().union(*(self.origins.get(name, frozenset()) for name in names))
        return frozenset(name for name, _ in origins)

    # --- what is a weight

    def _weights(self) -> set[str]:
        by_position = {name for name, uses in self.uses.items() if any(map(self._is_weight, uses))}
        by_position -= {name for name in by_position if self._is_untrained(name)}
        # Layers that keep their kernels in `Constant` nodes: the file's other constants are
        # weights, too.
        kernels = {
            n
            for n, uses in self.uses.items()
            if any(_is_at(KERNELS, self.nodes[u.node], u) for u in uses)
        }
        in_constants = bool(kernels & self.constants.keys()) and not kernels & (self.tensors.keys())
        others = {
            name
            for name in self.constants.keys() - by_position
            if in_constants and self._is_float(name) and _count(self._shape(name)) > 1
            and any(self.nodes[use.node].op_type in _AFFINE for use in self.uses[name])
            and not any(self._is_scale_of_activations(use) for use in self.uses[name])
        }  # fmt: skip
        return by_position | others

    def _is_weight(self, use: _Use) -> bool:
        node = self.nodes[use.node]
        name = self._origin(use)
        shape = self._shape(name)
        if not self._is_learnable(name) or self._is_setting(use):
            return False
        if _is_at(KERNELS, node, use):
            return len(shape) > 0 and (
                not node.op_type.startswith("Gather") or self._is_table(name)
            )
        if _is_at(VECTORS, node, use):
            return len(shape) > 0
        if node.op_type in _AFFINE and len(node.input) == 2:
            other = node.input[1 - use.position]
            return self._is_bias(node, name, other) or self._is_affine_of_norm(name, other)
        return False

    def _origin(self, use: _Use) -> str:
        node, position = use.direct
        return self.nodes[node].input[position]

    def _is_bias(self, node: onnx.NodeProto, name: str, other: str) -> bool:
        """True for a vector that is added to the output of a layer with one number per channel."""
        size, shape = _count(self._shape(name)), self._shape(name)
        maker = self._maker(other)
        for _ in range(_LOOK_BACK):
            if maker is None or maker.op_type in _LINEAR:
                break
            # dynamic quantization casts the integers of a product and multiplies them by a scale
            if maker.op_type not in ("Cast", "Mul"):
                return False
            before = [
                made
                for n in maker.input
                if n not in self.origins and (made := self._maker(n)) is not None
            ]
            maker = next(
                (made for made in before if made.op_type in _LINEAR or made.op_type == "Cast"), None
            )
        if (
            node.op_type != "Add"
            or maker is None
            or maker.op_type not in _LINEAR
            or len(shape) == 0
        ):
            return False
        return max(self._shape(name)) == size and size == self._channels(maker)

    def _behind(self, node: onnx.NodeProto) -> set[str]:
        """Operators up to two steps before a node."""
        first = [maker for name in node.input if (maker := self._maker(name)) is not None]
        second = [
            maker
            for node in first
            for name in node.input
            if (maker := self._maker(name)) is not None
        ]
        return {maker.op_type for maker in (*first, *second)}

    def _channels(self, layer: onnx.NodeProto) -> int | None:
        """Number of channels that a layer computes, if it follows from its kernel alone."""
        number = self.makers[layer.output[0]]
        shapes = [self._shape(name) for name in self._kernels(number)]
        if len(shapes) != 1 or not shapes[0]:
            return None
        shape = shapes[0]
        attributes = {a.name: a.i for a in layer.attribute}
        if layer.op_type in ("Conv", "DeformConv", "ConvInteger"):
            return shape[0]
        if layer.op_type == "ConvTranspose":
            return shape[1] * attributes.get("group", 1) if len(shape) > 1 else None
        if layer.op_type == "Gemm":
            return shape[0] if attributes.get("transB") else shape[-1]
        # a product's kernel may be stored transposed; then the file transposes it
        turned = any(self._is_transposed(name) for name in layer.input)
        return shape[0] if turned and len(shape) == 2 else shape[-1]

    def _is_transposed(self, name: str) -> bool:
        maker = self._maker(name)
        while maker is not None and name in self.origins:
            if maker.op_type == "Transpose":
                return True
            name = maker.input[0] if maker.input else ""
            maker = self._maker(name)
        return False

    def _is_affine_of_norm(self, name: str, other: str) -> bool:
        """True for a vector that scales or shifts a normalized value: (x - mean) / sqrt(variance),
        or an operator.
        """
        shape = self._shape(name)
        if _count(shape) < 2 or max(shape, default=1) != _count(shape):
            return False
        for _ in range(_LOOK_BACK):
            maker = self._maker(other)
            if maker is None:
                return False
            if maker.op_type in _NORMALIZATIONS or (
                maker.op_type in ("Div", "Mul") and self._divides_by_root(maker)
            ):
                return True
            if maker.op_type not in _AFFINE | _PASSING:
                return False
            others = [n for n in maker.input if n and n not in self.origins]
            if len(others) != 1:
                return False
            other = others[0]
        return False

    def _divides_by_root(self, node: onnx.NodeProto) -> bool:
        """True for x / sqrt(v) and x · (1 / sqrt(v))."""
        makers = [maker.op_type for name in node.input if (maker := self._maker(name)) is not None]
        if node.op_type == "Div":
            second = self._maker(node.input[1])
            return second is not None and second.op_type == "Sqrt"
        return "Reciprocal" in makers and "Sqrt" in self._behind(node)

    def _is_scale_of_activations(self, use: _Use) -> bool:
        """True for a quantized layer's scale, which is multiplied by that of the activations."""
        node = self.nodes[use.node]
        if node.op_type != "Mul":
            return False
        maker = self._maker(node.input[1 - use.position])
        return maker is not None and maker.op_type == "DynamicQuantizeLinear" and use.position < 2

    def _is_untrained(self, name: str) -> bool:
        """True for a scale of ones or shift of zeros in a `Constant`: exporters write it for layers
        that have none.

        A batch normalization without statistics in `Constant` nodes keeps its weights as
        initializers.
        """
        if name not in self.constants or uniform_number(self._known(name)) not in (0.0, 1.0):
            return False
        for use in self.uses[name]:
            node = self.nodes[use.node]
            if node.op_type not in _NORMALIZATIONS or not _is_at(VECTORS, node, use):
                return False
            statistics = node.input[3:5] if node.op_type == "BatchNormalization" else []
            if any(statistic in self.constants for statistic in statistics):
                return False
        kernels = {
            n
            for n, uses in self.uses.items()
            if any(_is_at(KERNELS, self.nodes[u.node], u) for u in uses)
        }
        return not kernels & self.constants.keys()

    def _is_setting(self, use: _Use) -> bool:
        if self.nodes[use.node].op_type in _RECURRENT and use.position in (
            5,
            6,
        ):  # an initial state of zeros
            return uniform_number(self._known(self._origin(use))) == 0
        if self.nodes[use.node].op_type == "InstanceNormalization" and use.position in (1, 2):
            # Group normalization as exporters write it has its scale and shift behind; ones and
            # zeros stand here.
            before = self._maker(self.nodes[use.node].input[0])
            untrained = uniform_number(self._known(self._origin(use))) == 2 - use.position
            return untrained and before is not None and before.op_type == "Reshape"
        return _is_at(_SETTINGS, self.nodes[use.node], use) or self._is_scale_of_activations(use)

    # --- vectors that an exporter stored once

    def _separate(self) -> None:
        """Copy vectors of zeros or ones that exporters stored once for several layers."""
        if not self.producer.startswith(_MERGES_VECTORS):
            return
        for name in sorted(self.tensors):
            known, uses = self.tensors[name], self.uses[name]
            if not known.learned or len(uses) < 2 or uniform_number(known) is None:
                continue
            if max(map(int, known.shape), default=1) != _count(known.shape):
                continue
            if any(_is_at(KERNELS, self.nodes[use.node], use) for use in uses):
                continue
            self._separate_vector(name, uses)

    def _separate_vector(self, name: str, uses: list[_Use]) -> None:
        """One copy of a vector for each layer that reads it; calls of one layer share a kernel."""
        # 1. The layer of a use is the nearest operator before it with a kernel. Uses that follow
        # the same call of it
        #    in the same way are numbered.
        groups: dict[tuple, list[_Use]] = defaultdict(list)
        counted: dict[tuple, int] = defaultdict(int)
        for use in sorted(uses):
            node = self.nodes[use.node]
            call, kernels = self._nearest_kernel(use.node)
            at = (node.op_type, use.position)
            groups[(kernels or (use.node,), counted[(call, at)], at)].append(use)
            counted[(call, at)] += 1
        # 2. The first layer keeps the tensor, each other one gets a copy.
        for i, group in enumerate(list(groups.values())[1:], start=2):
            copy = f"{name}#{i}"
            self.tensors[copy] = replace(self.tensors[name])
            for use in group:
                number, position = use.direct
                changed = onnx.NodeProto()
                changed.CopyFrom(self.nodes[number])
                changed.input[position] = copy
                self.nodes[number] = changed
            moved = set(group)
            self.uses[copy] = group
            self.uses[name] = [use for use in self.uses[name] if use not in moved]

    def _nearest_kernel(self, number: int) -> tuple[int, tuple[str, ...]]:
        """The nearest node at or before a node that has a kernel, and the kernel's names; breadth
        first.
        """
        level, seen = [number], {number}
        while level:
            for n in level:
                if kernels := self._kernels(n):
                    return n, tuple(sorted(kernels))
            before = [
                self.makers[name]
                for n in level
                for name in self.nodes[n].input
                if name in self.makers
            ]
            level = [n for n in dict.fromkeys(before) if n not in seen]
            seen.update(level)
        return -1, ()

    # --- tensors

    def _maker(self, name: str) -> onnx.NodeProto | None:
        number = self.makers.get(name)
        return self.nodes[number] if number is not None else None

    def _known(self, name: str) -> Known:
        if name in self.tensors:
            return self.tensors[name]
        return read_tensor(_tensor(self.constants[name]), learned=False)

    def _shape(self, name: str) -> tuple[int, ...]:
        if name in self.tensors:
            return tuple(map(int, self.tensors[name].shape))
        return tuple(_tensor(self.constants[name]).dims)

    def _element(self, name: str) -> str:
        if name in self.tensors:
            return element_type(self.tensors[name].shape)
        return standard.element_name(_tensor(self.constants[name]).data_type)

    def _is_float(self, name: str) -> bool:
        return "float" in self._element(name) or self._element(name) == "double"

    def _is_table(self, name: str) -> bool:
        """True for the elements of embeddings; tables of other integers are part of the
        architecture.
        """
        return self._is_float(name) or self._element(name) in ("int4", "int8", "uint4", "uint8")

    def _is_learnable(self, name: str) -> bool:
        return self._is_float(name) or self._element(name) in _STORED_ELEMENTS


def _is_at(positions: dict[str, tuple[int, ...]], node: onnx.NodeProto, use: _Use) -> bool:
    return use.position in positions.get(node.op_type, ())


def _count(shape: Shape) -> int:
    return prod(map(int, shape))


def _is_candidate(node: onnx.NodeProto) -> bool:
    """True for a `Constant` that may be a weight: a tensor or list of floats, or a quantized
    tensor.
    """
    return any(a.name in ("value", "value_floats") for a in node.attribute)


def _tensor(node: onnx.NodeProto) -> onnx.TensorProto:
    """The tensor of a `Constant` node."""
    attribute = node.attribute[0]
    if attribute.name == "value":
        return attribute.t
    return onnx.numpy_helper.from_array(np.array(attribute.floats, np.float32), node.output[0])
