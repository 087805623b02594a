"""Constant folding: values of an ONNX model that do not depend on the elements of its inputs.

Two different sizes are assumed for every open size of the model, such as the batch size. Results
that are equal for both are constants; results that differ depend on an open size.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from math import prod

import numpy as np
import onnx

from search_spaces.common.errors import InputError
from search_spaces.ir import standard
from search_spaces.ir.graph import BATCH, UNKNOWN, Dim, Shape, element_type, typed

_MODULE_PATH = re.compile(r"(.*/)?\w+(\.\w+)+")

# Symbols of open sizes, and the sizes assumed for them: primes, so that their products are
# distinct, too.
LETTERS = (BATCH, "L", "M", "K", "P", "Q", "R", "S")
_ASSUMED = dict(
    zip(
        LETTERS,
        [(7, 11), (13, 17), (19, 23), (29, 31), (37, 41), (43, 47), (53, 59), (61, 67)],
        strict=True,
    )
)
MAX_ELEMENTS = 1 << 18  # of one folded value
FEW_ELEMENTS = 64  # results such as shapes, which are always computed
MAX_TOTAL_ELEMENTS = 1 << 24  # of all folded values of a model

_ELEMENTWISE = frozenset(
    [
        "Abs", "Add", "And", "Cast", "CastLike", "Ceil", "Clip", "Cos", "DequantizeLinear", "Div", "Dropout", "Equal",
        "Erf", "Exp", "Floor", "Greater", "GreaterOrEqual", "Identity", "Less", "LessOrEqual", "Log", "Max", "Min",
        "Mod", "Mul", "Neg", "Not", "Or", "Pow", "QuantizeLinear", "Reciprocal", "Round", "Sigmoid", "Sign", "Sin",
        "Sqrt", "Sub", "Sum", "Tanh", "Where", "Xor",
    ]
)  # fmt: skip
_REDUCTIONS = frozenset(
    [
        "CumSum",
        "ReduceL2",
        "ReduceMax",
        "ReduceMean",
        "ReduceMin",
        "ReduceProd",
        "ReduceSum",
        "ReduceSumSquare",
    ]
)
_MOVES = frozenset(
    ["Concat", "Flatten", "Reshape", "Slice", "Squeeze", "Transpose", "Trilu", "Unsqueeze"]
)
_MAKERS = frozenset(["ConstantOfShape", "Expand", "Gather", "Range", "Tile"])
_FOLDED = _ELEMENTWISE | _MOVES | _REDUCTIONS | _MAKERS


@dataclass
class Known:
    """A value that is known without running the model.

    Attributes:
        shape: its shape.
        computed: its arrays at the first and second assumed sizes, if it was computed.
        tensor: its tensor in the file, if it was not.
        learned: True if it comes from an initializer, unless that is a setting.
        placed: True if an operator reads it where weights belong, see
            `search_spaces.ir.onnx.weight_uses`.
        sources: name and number of elements of the initializers that it was computed from.
    """

    shape: Shape
    computed: tuple[np.ndarray, np.ndarray] | None = None
    tensor: onnx.TensorProto | None = None
    learned: bool = False
    placed: bool = False
    sources: frozenset[tuple[str, int]] = frozenset()

    @cached_property
    def values(self) -> tuple[np.ndarray, np.ndarray] | None:
        """The arrays at the first and second assumed sizes; None for learned numbers, which are not
        read.
        """
        if self.tensor is None:
            return self.computed
        array = _array(self.tensor)
        return array, array

    @property
    def static(self) -> np.ndarray | None:
        """The array; None if it depends on open sizes, or was not read."""
        if self.values is None:
            return None
        first, second = self.values
        return (
            first
            if first is second or np.array_equal(first, second, equal_nan=first.dtype.kind == "f")
            else None
        )

    @property
    def is_whole(self) -> bool:
        """True if it has as many elements as the initializers that it was computed from."""
        return not self.sources or prod(map(int, self.shape)) == sum(
            count for _, count in self.sources
        )


def _array(tensor: onnx.TensorProto) -> np.ndarray:
    try:
        return onnx.numpy_helper.to_array(tensor)
    except (ValueError, TypeError) as error:
        raise InputError(f"tensor {tensor.name!r} is damaged: {error}") from error


def is_weight(known: Known) -> bool:
    """True for a learned tensor, of which only the shape is part of the architecture.

    The numbers of scalars and integers are part of the architecture, unless they are in the place
    of weights, or a scalar is a module's parameter.
    """
    if not known.learned:
        return False
    if known.placed or (
        is_learnable(known) and (prod(map(int, known.shape)) > 1 or _is_parameter(known))
    ):
        return True
    return known.values is None


def _is_parameter(known: Known) -> bool:
    """True if the tensor is named as a parameter in torch's exports (`0.gate.bias`) or in ours
    (`F1/Linear.bias`).
    """
    name = known.tensor.name if known.tensor is not None else ""
    return bool(_MODULE_PATH.fullmatch(name)) and "constant" not in name.split(
        "."
    )  # Paddle: helper.constant.0


def is_learnable(known: Known) -> bool:
    """True if the value has an element type of weights: a float or a quantized one."""
    element = element_type(known.shape)
    return (
        known.placed
        or "float" in element
        or element in ("double", "int4", "int8", "uint4", "uint8")
    )


def constant(array: np.ndarray, element: str) -> Known:
    """A known value that does not depend on open sizes."""
    return Known(typed(array.shape, element), (array, array))


def assumed(shape: Shape) -> list[tuple[int, int]] | None:
    """Every dimension at the first and second assumed sizes; None if a dimension depends on the
    data.
    """
    return None if UNKNOWN in shape else [_assumed(dim) for dim in shape]


@cache
def _assumed(dim: Dim) -> tuple[int, int]:
    factors = [
        (int(part),) * 2 if part.isdecimal() else _ASSUMED[part] for part in str(dim).split("_")
    ]
    return prod(a for a, _ in factors), prod(b for _, b in factors)


def from_assumed(first: np.ndarray, second: np.ndarray, element: str) -> Known:
    """A known value with these arrays at the first and second assumed sizes."""
    dims = [_open(a, b) for a, b in zip(first.shape, second.shape, strict=True)]
    return Known(typed(dims, element), (first, second))


def _open(a: int, b: int) -> Dim:
    """The dimension that is `a` at the first and `b` at the second assumed sizes."""
    if a == b:
        return a
    for letter, (x, y) in _ASSUMED.items():
        if a % x == 0 and b % y == 0 and a // x == b // y:
            return letter if a == x else f"{letter}_{a // x}"
    return UNKNOWN


def sizes(known: Known) -> tuple[int, ...] | None:
    """The numbers of a known list of sizes, with 0 for the batch size; None if it has other open
    sizes.
    """
    if known.values is None or len(known.shape) != 1:
        return None
    return _common(*(values.tolist() for values in known.values))


def open_sizes(known: Known) -> tuple[int, ...] | None:
    """The shape of a known value, with 0 for the batch size; None if it has other open sizes."""
    return None if known.values is None else _common(*(values.shape for values in known.values))


def _common(first: Sequence[int], second: Sequence[int]) -> tuple[int, ...] | None:
    found = []
    for a, b in zip(first, second, strict=True):
        if a != b and (a, b) != _ASSUMED[BATCH]:
            return None
        found.append(a if a == b else 0)
    return tuple(found)


class Folder:
    """Computes nodes whose operands are known, up to limits on the size of one and all results.

    Args:
        opset: opset of the model.
    """

    def __init__(self, opset: int) -> None:
        self.opset, self.spent = opset, 0

    def fold(self, node: onnx.NodeProto, operands: list[Known | None]) -> list[Known] | None:
        """The outputs of a node with known operands (None if omitted); None if the node is not
        folded.

        Raises:
            InputError: if the operands do not match.
        """
        given = [known for known in operands if known is not None]
        if node.op_type not in _FOLDED or not given:
            return None
        if any(is_weight(known) or known.values is None for known in given):
            return self._fold_shape(node, operands)
        pairs = [known.values for known in given if known.values is not None]
        first = self._run(node, operands, [a for a, _ in pairs])
        if first is None:
            return None
        second = (
            first
            if all(a is b for a, b in pairs)
            else self._run(node, operands, [b for _, b in pairs])
        )
        if second is None:
            return None
        elements = [
            standard.element_name(onnx.helper.np_dtype_to_tensor_dtype(a.dtype)) for a in first
        ]
        return [
            from_assumed(a, b, element)
            for a, b, element in zip(first, second, elements, strict=True)
        ]

    def _run(
        self, node: onnx.NodeProto, operands: list[Known | None], arrays: list[np.ndarray]
    ) -> list[np.ndarray] | None:
        from onnx.reference import ReferenceEvaluator

        size = _result_size(node, arrays)
        if size > MAX_ELEMENTS or (size > FEW_ELEMENTS and self.spent + size > MAX_TOTAL_ELEMENTS):
            return None
        self.spent += size
        names = [
            name for name, known in zip(node.input, operands, strict=True) if known is not None
        ]
        try:
            with np.errstate(all="ignore"):
                evaluator = ReferenceEvaluator(node, opsets={"": self.opset})
                return [
                    np.asarray(a)
                    for a in evaluator.run(None, dict(zip(names, arrays, strict=True)))
                ]
        except Exception as error:  # the file's numbers may cause any error
            raise InputError(
                f"constants do not match: {' '.join(str(error).split())[:160]}"
            ) from error

    def _fold_shape(self, node: onnx.NodeProto, operands: list[Known | None]) -> list[Known] | None:
        """The outputs of a node with learned operands: learned tensors whose shapes are
        inferred.
        """
        schema = standard.schema(node.op_type)
        if schema is None or node.op_type in ("Expand", "Tile", "Range", "ConstantOfShape"):
            return None
        types, data = {}, {}
        for name, known in zip(node.input, operands, strict=True):
            if known is not None:
                types[name] = standard.type_proto(known.shape)
                if not is_weight(known) and known.static is not None and known.static.size <= 64:
                    data[name] = onnx.numpy_helper.from_array(known.static)
        versions = [onnx.helper.make_opsetid("", standard.opset(node.op_type))]
        try:
            found = onnx.shape_inference.infer_node_outputs(
                schema, node, types, data, None, versions
            )
        except Exception:  # of the native library: the node is then added to the graph
            return None
        shapes = [standard.shape_of(found[name]) for name in node.output if name in found]
        if any(shape is None or any(isinstance(dim, str) for dim in shape) for shape in shapes):
            return None
        weights = {
            name: k
            for name, k in zip(node.input, operands, strict=True)
            if k is not None and is_weight(k)
        }
        sources = [k.sources or {(name, prod(map(int, k.shape)))} for name, k in weights.items()]
        placed = any(k.placed for k in weights.values())
        union = frozenset().union(*sources)
        return [
            Known(s, learned=bool(weights), placed=placed, sources=union)
            for s in shapes
            if s is not None
        ]


def _result_size(node: onnx.NodeProto, arrays: list[np.ndarray]) -> int:
    """Upper bound of the number of elements in a node's result."""
    op = node.op_type
    largest = max(a.size for a in arrays)
    if op == "ConstantOfShape":
        return _count(arrays[0])
    if op == "Range":
        start, limit, delta = (float(a) for a in arrays)
        return int(min(abs((limit - start) / delta), 1e18)) + 1 if delta else MAX_ELEMENTS + 1
    if op == "Tile":
        return arrays[0].size * _count(arrays[1])
    if op == "Gather":
        return arrays[0].size * arrays[1].size
    if op == "Expand":
        return max(largest, 1) * _count(arrays[1])
    if op in _ELEMENTWISE:
        dims = zip(*[(1,) * (8 - a.ndim) + a.shape for a in arrays if a.ndim <= 8], strict=True)
        return prod(max(sizes) for sizes in dims)
    return sum(a.size for a in arrays)


def _count(array: np.ndarray) -> int:
    return (
        prod(abs(int(size)) for size in array.ravel()[:64])
        if array.size <= 64
        else MAX_ELEMENTS + 1
    )


def read_tensor(tensor: onnx.TensorProto, learned: bool) -> Known:
    """A tensor of the file as a known value; numbers of large or external tensors are not read.

    Raises:
        InputError: if a dimension is negative.
    """
    element = standard.element_name(tensor.data_type)
    shape = typed(tensor.dims, element)
    if min(tensor.dims, default=1) < 0:
        raise InputError(f"tensor {tensor.name!r} has negative dimensions {list(tensor.dims)}")
    if prod(tensor.dims) > MAX_ELEMENTS or tensor.data_location == onnx.TensorProto.EXTERNAL:
        return Known(shape, learned=True)
    return Known(shape, tensor=tensor, learned=learned)
