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

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, NamedTuple

import numpy as np
import onnx

from search_spaces.ir import standard
from search_spaces.ir.constants import Known, is_weight, read_tensor, uniform_number
from search_spaces.ir.graph import Shape, element_type
from search_spaces.ir.ops import get_operator
from search_spaces.ir.ops.operator import is_own_constant

_LOOKUPS = ("Gather", "GatherElements", "GatherND")
_SHAPES_ONLY = ("Shape", "Size", "ConstantOfShape")
_AFFINE = ("Add", "Mul")
# Operators between a normalization and its scale and shift
_PASSING = ("Cast", "Identity", "Reshape", "Transpose", "Squeeze", "Unsqueeze", "DequantizeLinear")
_LOOK_BACK = 6  # operators between a normalization and its scale and shift
# Producer of files in which equal vectors of different layers are stored once
_MERGES_VECTORS = "pytorch"
_INTEGERS_OF_TABLES = frozenset({"int4", "int8", "uint4", "uint8"})
_INTEGERS_OF_WEIGHTS = _INTEGERS_OF_TABLES | {
    "int2",
    "int16",
    "int32",
    "uint2",
    "uint16",
}


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


_Read = tuple[int, int]
"""Number of a node, and position of the operand that it reads."""
_Origins = frozenset[tuple[str, _Read | None]]
"""Stored tensors that a name is computed from: name, and the first read on the way (None: the tensor
itself)."""


class _Finder:
    """The steps of `find_weights`.

    Attributes:
        constants: nodes that hold a tensor, by the name of their output.
        makers: number of the node that computes a name.
        origins: for each name that stored tensors determine, their names, with the node and operand
            that read them.
        uses: uses of each stored tensor.
        kernels: names of the stored tensors that are used as kernels.
    """

    def __init__(
        self, nodes: list[onnx.NodeProto], stored: dict[str, Known], producer: str
    ) -> None:
        self.nodes, self.producer = nodes, producer
        self.tensors = dict(stored)
        self.constants: dict[str, onnx.NodeProto] = {}
        self.makers: dict[str, int] = {}
        self.origins: dict[str, _Origins] = {}
        self.uses: dict[str, list[_Use]] = defaultdict(list)
        self.kernels: set[str] = set()

    def run(self) -> Weights:
        # 1. Follow stored tensors to the operators that read them beside values of the network.
        self._follow()
        for name, uses in self.uses.items():
            if any(self._is_at("kernels", use) for use in uses):
                self.kernels.add(name)

        # 2. Constants in the positions of weights are stored as initializers are.
        weights = self._weights()
        moved = weights & self.constants.keys()
        for name in moved:
            tensor = _tensor(self.constants[name])
            self.tensors[name] = read_tensor(tensor, learned=True)
        for name in weights:
            self.tensors[name].placed = True

        # 3. Initializers that are only settings are not learned.
        for name in self.tensors.keys() - weights:
            uses = self.uses[name]
            if uses and all(self._is_setting(use) for use in uses):
                self.tensors[name].learned = False

        # 4. Give vectors that an exporter stored once back to their layers.
        self._separate()
        nodes = [node for node in self.nodes if moved.isdisjoint(node.output)]
        shared = {name for name in self.tensors if self._is_shared(name)}
        return Weights(nodes, self.tensors, shared)

    def _is_shared(self, name: str) -> bool:
        """True for a weight that is read more than once.

        A vector may also be a batch normalization's statistics. What is looked up in a table at
        stored places, such as a bias by relative positions, is read once: by the lookup, however
        many operators use the result.
        """
        if not is_weight(self.tensors[name]):
            return False
        reads = [use for use in self.uses[name] if not self._is_setting(use)]
        return len({self._read_at(use) for use in reads}) > 1

    def _read_at(self, use: _Use) -> tuple[int, int]:
        """Node and position at which a tensor is read: of a lookup in it, or of the use itself."""
        reader, operand = use.direct
        if self.nodes[reader].op_type in _LOOKUPS and operand == 0:
            return use.direct
        return use.node, use.position

    # --- where tensors are read

    def _follow(self) -> None:
        """Follow every stored tensor to the nodes that use it."""
        for name in self.tensors:
            self.origins[name] = frozenset({(name, None)})
        for number, node in enumerate(self.nodes):
            self.makers.update(dict.fromkeys(node.output, number))
            # 1. Constants begin a path, unless they are numbers of the user's code.
            if node.op_type == "Constant":
                self._follow_constant(node)
                continue

            # 2. Sizes of stored tensors are known, but hold none of their numbers.
            operands = [name for name in node.input if name]
            if node.op_type in _SHAPES_ONLY:
                if all(name in self.origins for name in operands):
                    no_tensors: _Origins = frozenset()
                    self.origins.update(dict.fromkeys(node.output, no_tensors))
                continue

            # 3. The tensors that each operand holds, and who read them first.
            read: list[tuple[int, _Origins]] = []
            for position, name in enumerate(node.input):
                if name not in self.origins:
                    continue
                this_read = (number, position)
                first_reads = set()
                for origin, first_read in self.origins[name]:
                    first_reads.add((origin, first_read or this_read))
                read.append((position, frozenset(first_reads)))

            # 4. Through a node that reads nothing else, the path goes on; its settings are uses.
            rules = get_operator(node.op_type)
            reads_nothing_else = len(read) == len(operands)
            if read and reads_nothing_else and not _has_body(node):
                data = read[:1] if rules.rearranges else read
                joined: _Origins = frozenset().union(*[origins for _, origins in data])
                self.origins.update(dict.fromkeys(node.output, joined))
                read = [operand for operand in read if operand[0] in rules.settings]

            # 5. Elsewhere it ends: the tensors are used.
            for position, origins in read:
                for origin, first_read in origins:
                    assert first_read is not None
                    self.uses[origin].append(_Use(number, position, direct=first_read))

    def _follow_constant(self, node: onnx.NodeProto) -> None:
        name = node.output[0]
        if is_own_constant(node) or not _may_be_weight(node):
            self.origins[name] = frozenset()
            return
        self.constants[name] = node
        self.origins[name] = frozenset({(name, None)})

    def _kernels_of(self, number: int) -> frozenset[str]:
        """Names of the stored tensors in the kernel positions of a node."""
        node = self.nodes[number]
        kernels: set[str] = set()
        for position in get_operator(node.op_type).kernels:
            if position < len(node.input):
                origins = self.origins.get(node.input[position], frozenset())
                kernels.update(name for name, _ in origins)
        return frozenset(kernels)

    def _is_at(self, positions: str, use: _Use) -> bool:
        """True for a use at one of the operator's `kernels`, `vectors` or `settings`."""
        rules = get_operator(self.nodes[use.node].op_type)
        return use.position in getattr(rules, positions)

    # --- what is a weight

    def _weights(self) -> set[str]:
        """Names of the stored tensors that are weights."""
        # 1. What an operator reads at the position of a weight.
        placed = set()
        for name, uses in self.uses.items():
            if any(self._is_weight(use) for use in uses) and not self._is_untrained(name):
                placed.add(name)
        # 2. In files that keep the kernels of layers in `Constant` nodes, other constants, too.
        are_kernels_constants = bool(self.kernels & self.constants.keys())
        if not are_kernels_constants or self.kernels & self.tensors.keys():
            return placed
        for name in self.constants.keys() - placed:
            if self._is_weight_beside_constant_kernels(name):
                placed.add(name)
        return placed

    def _is_weight_beside_constant_kernels(self, name: str) -> bool:
        """True for floats, more than one, that multiply or shift values of the network."""
        if not self._is_float(name) or _elements(self._shape(name)) <= 1:
            return False
        uses = self.uses[name]
        if any(self._is_scale_of_activations(use) for use in uses):
            return False
        return any(self.nodes[use.node].op_type in _AFFINE for use in uses)

    def _is_weight(self, use: _Use) -> bool:
        """True for a use as a weight.

        This is at a kernel's or vector's position, as a layer's bias, or
        as scale or shift of a normalization.
        """
        node = self.nodes[use.node]
        name = self._origin(use)
        if not self._is_learnable(name) or self._is_setting(use):
            return False
        is_scalar = len(self._shape(name)) == 0
        if self._is_at("kernels", use):
            looks_up_architecture = node.op_type in _LOOKUPS and not self._is_table(name)
            return not is_scalar and not looks_up_architecture
        if self._is_at("vectors", use):
            return not is_scalar
        if node.op_type in _AFFINE and len(node.input) == 2:
            other = node.input[1 - use.position]
            return self._is_bias(node, name, other) or self._is_affine_of_norm(name, other)
        return False

    def _origin(self, use: _Use) -> str:
        """Name of the stored tensor of a use."""
        node, position = use.direct
        return self.nodes[node].input[position]

    def _is_bias(self, node: onnx.NodeProto, name: str, other: str) -> bool:
        """True for a vector that is added to the output of a layer with one number per channel."""
        layer = self._layer_of(other)
        shape = self._shape(name)
        if node.op_type != "Add" or layer is None or not shape:
            return False
        # One number per channel, also as (channels, 1, 1).
        is_vector = max(shape) == _elements(shape)
        return is_vector and max(shape) == self._channels(layer)

    def _layer_of(self, name: str) -> onnx.NodeProto | None:
        """The layer that computes a name; None if there is none.

        Dynamic quantization casts the integers of its product and multiplies them by a scale.
        """
        node = self._maker(name)
        for _ in range(_LOOK_BACK):
            if node is None or node.op_type not in ("Cast", "Mul") or _is_linear(node):
                break
            node = self._maker_of_scaled(node)
        return node if node is not None and _is_linear(node) else None

    def _maker_of_scaled(self, node: onnx.NodeProto) -> onnx.NodeProto | None:
        """The layer, or the cast of its integers, that a cast or a product with a scale reads."""
        for operand in node.input:
            if operand in self.origins:
                continue
            maker = self._maker(operand)
            if maker is not None and (_is_linear(maker) or maker.op_type == "Cast"):
                return maker
        return None

    def _makers_before(self, node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
        for name in node.input:
            maker = self._maker(name)
            if maker is not None:
                yield maker

    def _channels(self, layer: onnx.NodeProto) -> int | None:
        """Number of channels that a layer computes, if it follows from its kernel alone."""
        # 1. The shape of its only kernel.
        kernels = self._kernels_of(self.makers[layer.output[0]])
        if len(kernels) != 1:
            return None
        (kernel,) = kernels
        shape = self._shape(kernel)
        if not shape:
            return None

        # 2. Where the channels stand in it.
        attributes = {a.name: a.i for a in layer.attribute}
        if layer.op_type in ("Conv", "DeformConv", "ConvInteger"):
            return shape[0]
        if layer.op_type == "ConvTranspose":
            groups = attributes.get("group", 1)
            return shape[1] * groups if len(shape) > 1 else None
        if layer.op_type == "Gemm":
            return shape[0] if attributes.get("transB") else shape[-1]
        # A product's kernel may be stored transposed; then the file transposes it.
        is_transposed = any(self._is_transposed(name) for name in layer.input)
        return shape[0] if is_transposed and len(shape) == 2 else shape[-1]

    def _is_transposed(self, name: str) -> bool:
        maker = self._maker(name)
        while maker is not None and name in self.origins:
            if maker.op_type == "Transpose":
                return True
            name = maker.input[0] if maker.input else ""
            maker = self._maker(name)
        return False

    def _is_affine_of_norm(self, name: str, other: str) -> bool:
        """True for a vector that scales or shifts a normalized value.

        The normalization is an operator, or (x - mean) / sqrt(variance).
        """
        shape = self._shape(name)
        if _elements(shape) < 2 or max(shape, default=1) != _elements(shape):
            return False
        for _ in range(_LOOK_BACK):
            maker = self._maker(other)
            if maker is None:
                return False
            if get_operator(maker.op_type).role == "normalization":
                return True
            if self._divides_by_root(maker):
                return True
            if maker.op_type not in _AFFINE and maker.op_type not in _PASSING:
                return False
            data = [n for n in maker.input if n and n not in self.origins]
            if len(data) != 1:
                return False
            (other,) = data
        return False

    def _divides_by_root(self, node: onnx.NodeProto) -> bool:
        """True for x / sqrt(v) and x · (1 / sqrt(v))."""
        if node.op_type == "Div":
            divisor = self._maker(node.input[1])
            return divisor is not None and divisor.op_type == "Sqrt"
        if node.op_type != "Mul":
            return False
        # The operands and what they are computed from contain a Reciprocal and a Sqrt.
        read = list(self._makers_before(node))
        before_those: list[onnx.NodeProto] = []
        for maker in read:
            before_those += self._makers_before(maker)
        has_inverse = any(maker.op_type == "Reciprocal" for maker in read)
        has_root = any(maker.op_type == "Sqrt" for maker in (*read, *before_those))
        return has_inverse and has_root

    def _is_scale_of_activations(self, use: _Use) -> bool:
        """True for a quantized layer's scale, which is multiplied by that of the activations."""
        node = self.nodes[use.node]
        if node.op_type != "Mul":
            return False
        maker = self._maker(node.input[1 - use.position])
        return maker is not None and maker.op_type == "DynamicQuantizeLinear" and use.position < 2

    def _is_untrained(self, name: str) -> bool:
        """True for a scale of ones or shift of zeros in a `Constant`.

        Exporters write it for layers that have none. A batch normalization without statistics in
        `Constant` nodes keeps its weights as initializers.
        """
        if name not in self.constants or uniform_number(self._known(name)) not in (0.0, 1.0):
            return False
        for use in self.uses[name]:
            node = self.nodes[use.node]
            is_norm = get_operator(node.op_type).role == "normalization"
            if not is_norm or not self._is_at("vectors", use):
                return False
            statistics = node.input[3:5] if node.op_type == "BatchNormalization" else []
            if any(statistic in self.constants for statistic in statistics):
                return False
        return not self.kernels & self.constants.keys()

    def _is_setting(self, use: _Use) -> bool:
        """True for a use that learns nothing.

        This is a setting of the operator, or numbers that stand where a layer has none.
        """
        node = self.nodes[use.node]
        if use.position in get_operator(node.op_type).zero_by_default:  # an initial state of zeros
            return self._number(use) == 0
        if node.op_type == "InstanceNormalization" and use.position in (1, 2):
            # Group normalization as exporters write it has its scale and shift behind; ones and
            # zeros stand here.
            neutral = 2 - use.position
            before = self._maker(node.input[0])
            follows_reshape = before is not None and before.op_type == "Reshape"
            return follows_reshape and self._number(use) == neutral
        return self._is_at("settings", use) or self._is_scale_of_activations(use)

    def _number(self, use: _Use) -> float | None:
        """The number of a tensor that holds no other; None for any other tensor."""
        return uniform_number(self._known(self._origin(use)))

    # --- vectors that an exporter stored once

    def _separate(self) -> None:
        """Copy vectors of zeros or ones that exporters stored once for several layers."""
        if not self.producer.startswith(_MERGES_VECTORS):
            return
        for name in sorted(self.tensors):
            known = self.tensors[name]
            uses = self.uses[name]
            if not known.learned or len(uses) < 2 or uniform_number(known) is None:
                continue
            longest = max(map(int, known.shape), default=1)
            is_vector = longest == _elements(known.shape)
            is_kernel = any(self._is_at("kernels", use) for use in uses)
            if is_vector and not is_kernel:
                self._separate_vector(name, uses)

    def _separate_vector(self, name: str, uses: list[_Use]) -> None:
        """One copy of a vector for each layer that reads it; calls of one layer share a kernel."""
        # 1. The layer of a use is the nearest operator before it with a kernel. Uses that follow
        #    the same call of it in the same way are numbered.
        uses_of_layer: dict[tuple[Any, ...], list[_Use]] = defaultdict(list)
        uses_after_call: Counter[tuple[Any, ...]] = Counter()
        for use in sorted(uses):
            call, kernels = self._nearest_kernel(use.node)
            layer = kernels or (use.node,)
            place = (self.nodes[use.node].op_type, use.position)
            number = uses_after_call[call, place]
            uses_after_call[call, place] += 1
            uses_of_layer[layer, number, place].append(use)

        # 2. The first layer keeps the tensor, each other one gets a copy.
        first, *others = uses_of_layer.values()
        self.uses[name] = first
        for i, uses_of_copy in enumerate(others, start=2):
            copy = f"{name}#{i}"
            self.tensors[copy] = replace(self.tensors[name])
            self.uses[copy] = uses_of_copy
            for use in uses_of_copy:
                reader, position = use.direct
                changed = onnx.NodeProto()
                changed.CopyFrom(self.nodes[reader])
                changed.input[position] = copy
                self.nodes[reader] = changed

    def _nearest_kernel(self, number: int) -> tuple[int, tuple[str, ...]]:
        """The nearest node at or before a node that has a kernel, and the kernel's names.

        Breadth first; (-1, ()) if there is none.
        """
        level = [number]
        seen = {number}
        while level:
            for candidate in level:
                if kernels := self._kernels_of(candidate):
                    return candidate, tuple(sorted(kernels))
            next_level = []
            for candidate in level:
                for name in self.nodes[candidate].input:
                    maker = self.makers.get(name)
                    if maker is not None and maker not in seen:
                        seen.add(maker)
                        next_level.append(maker)
            level = next_level
        return -1, ()

    # --- tensors

    def _maker(self, name: str) -> onnx.NodeProto | None:
        number = self.makers.get(name)
        return None if number is None else self.nodes[number]

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
        """True for the elements of embeddings; tables of other integers are architecture."""
        return self._is_float(name) or self._element(name) in _INTEGERS_OF_TABLES

    def _is_learnable(self, name: str) -> bool:
        return self._is_float(name) or self._element(name) in _INTEGERS_OF_WEIGHTS


def _is_linear(node: onnx.NodeProto) -> bool:
    return get_operator(node.op_type).role == "linear"


def _has_body(node: onnx.NodeProto) -> bool:
    """True for control flow, and for a sequence's map."""
    return node.op_type == "SequenceMap" or not get_operator(node.op_type).is_in_graphs


def _elements(shape: Shape) -> int:
    """Number of elements."""
    return prod(map(int, shape))


def _may_be_weight(node: onnx.NodeProto) -> bool:
    """True for a `Constant` of a tensor or a list of floats."""
    return any(a.name in ("value", "value_floats") for a in node.attribute)


def _tensor(node: onnx.NodeProto) -> onnx.TensorProto:
    """The tensor of a `Constant` node."""
    attribute = node.attribute[0]
    if attribute.name == "value":
        return attribute.t
    return onnx.numpy_helper.from_array(np.array(attribute.floats, np.float32), node.output[0])
