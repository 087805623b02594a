"""Multiply-accumulates of single operators.

An operator is counted, or it is known to multiply no more than element by element (`FREE`), or it
is refused by name: none counts 0 because nobody thought of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import lru_cache
from math import ceil, log2, prod
from typing import Any

from search_spaces.common.errors import InputError
from search_spaces.ir import standard
from search_spaces.ir.convolutions import CONVOLUTIONS
from search_spaces.ir.dimensions import count, known_size, positive
from search_spaces.ir.graph import Attrs, Dim, Shape
from search_spaces.ir.operators import NET_OPERATORS, output_shape
from search_spaces.ir.owned_weights import RECURRENT, weights

# Element by element, moves, pooling, interpolation, normalization, comparison, random numbers.
FREE = (NET_OPERATORS - {*CONVOLUTIONS, "Linear"}) | frozenset(
    [
        "Abs", "Acos", "Acosh", "Add", "And", "ArgMax", "ArgMin", "Asin", "Asinh", "Atan", "Atanh",
        "AveragePool", "BatchNormalization", "Bernoulli", "BitCast", "BitShift", "BitwiseAnd", "BitwiseNot",
        "BitwiseOr", "BitwiseXor", "BlackmanWindow", "Cast", "CastLike", "Ceil", "Celu", "CenterCropPad",
        "Clip", "Col2Im", "Compress", "Concat", "Constant", "ConstantOfShape", "Cos", "Cosh", "CumProd",
        "CumSum", "DepthToSpace", "DequantizeLinear", "Div", "Dropout", "DynamicQuantizeLinear", "Elu",
        "Equal", "Erf", "Exp", "Expand", "EyeLike", "Flatten", "Floor", "Gather", "GatherElements",
        "GatherND", "Gelu", "GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool", "Greater",
        "GreaterOrEqual", "GridSample", "GroupNormalization", "HammingWindow", "HannWindow", "HardSigmoid",
        "HardSwish", "Hardmax", "Identity", "InstanceNormalization", "IsInf", "IsNaN", "LRN",
        "LayerNormalization", "LeakyRelu", "Less", "LessOrEqual", "Log", "LogSoftmax", "LpNormalization",
        "LpPool", "Max", "MaxPool", "MaxRoiPool", "MaxUnpool", "Mean", "MeanVarianceNormalization",
        "MelWeightMatrix", "Min", "Mish", "Mod", "Mul", "Multinomial", "Neg", "NegativeLogLikelihoodLoss",
        "NonMaxSuppression", "NonZero", "Not", "OneHot", "Or", "PRelu", "Pad", "Pow", "QuantizeLinear",
        "RMSNormalization", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike",
        "Range", "Reciprocal", "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax",
        "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare", "Relu", "Reshape",
        "Resize", "ReverseSequence", "RoiAlign", "RotaryEmbedding", "Round", "ScatterElements", "ScatterND",
        "Selu", "Shape", "Shrink", "Sigmoid", "Sign", "Sin", "Sinh", "Size", "Slice", "Softmax",
        "SoftmaxCrossEntropyLoss", "Softplus", "Softsign", "SpaceToDepth", "Split", "Sqrt", "Squeeze",
        "Sub", "Sum", "SwiGLU", "Swish", "Tan", "Tanh", "TensorScatter", "TfIdfVectorizer",
        "ThresholdedRelu", "Tile", "TopK", "Transpose", "Trilu", "Unique", "Unsqueeze", "Where", "Xor",
    ]
)  # fmt: skip


@lru_cache(maxsize=65536)
def multiply_accumulates(op: str, attrs: Attrs, shapes: tuple[Shape, ...]) -> int:
    """Multiply-accumulates of one node for a batch of one.

    Convolutions, linear and recurrent layers, attention, matrix products, Fourier transforms and
    determinants count, operators of `FREE` are 0.

    Raises:
        InputError: if a size that counts is not a number, or it is not known what the operator
            costs.
    """
    if op in (*CONVOLUTIONS, "ConvTranspose") and len(shapes) == 1:
        weight = weights(op, attrs, shapes)[0]
        moved = shapes[0] if op == "ConvTranspose" else output_shape(op, attrs, shapes)
        return prod(weight.shape) * count((moved[0], *moved[2:]))
    if op == "Linear":
        return count(shapes[0]) * positive(attrs, "features")
    if op in COUNTED:
        return COUNTED[op](op, attrs, shapes)
    if op in FREE:
        return 0
    raise InputError(
        f"it is not known how many multiply-accumulates operator {op} takes: leave out the metric "
        "flops"
    )


def _operands(op: str, attrs: Attrs, shapes: tuple[Shape, ...]) -> dict[str, Shape]:
    """The shapes of the operands that are inputs, by ONNX's names."""
    called = standard.call(op, attrs, shapes)
    names = standard.operand_names(op)
    return {
        names[i]: shapes[o]
        for i, o in enumerate(called.operands)
        if isinstance(o, int) and i < len(names)
    }


def _first_output(op: str, attrs: Attrs, shapes: tuple[Shape, ...]) -> Shape:
    return output_shape(
        op, tuple([(name, value) for name, value in attrs if name != "output"]), shapes
    )


def _convolution(op: str, attrs: Attrs, shapes: tuple[Shape, ...]) -> int:
    """Every element of the output sums over the channels of its group and the kernel."""
    operands = _operands(op, attrs, shapes)
    kernel = next(operands[name] for name in ("W", "w", "weight") if name in operands)
    return count(_first_output(op, attrs, shapes)) * count(kernel[1:])


def _transposed_convolution(op: str, attrs: Attrs, shapes: tuple[Shape, ...]) -> int:
    """Every element of the input is multiplied by the kernels of its group."""
    return count(shapes[0]) * count(shapes[1][1:])


def _product(op: str, attrs: Attrs, shapes: tuple[Shape, ...]) -> int:
    operands = _operands(op, attrs, shapes)
    left = operands["a"] if "a" in operands else operands["A"]
    inner = left[-2] if op == "Gemm" and dict(attrs).get("transA") else left[-1]
    return count((*_first_output(op, attrs, shapes), inner))


def _recurrent(op: str, attrs: Attrs, shapes: tuple[Shape, ...]) -> int:
    given: dict[str, Any] = dict(attrs)
    hidden = int(given["hidden_size"])
    directions = 2 if given.get("direction") == "bidirectional" else 1
    return (
        count(shapes[0][:-1])
        * directions
        * RECURRENT[op]
        * hidden
        * (known_size(shapes[0][-1]) + hidden)
    )


def _attention(op: str, attrs: Attrs, shapes: tuple[Shape, ...]) -> int:
    """Queries times keys, then attention weights times values; keys of the past count, masked ones,
    too.
    """
    operands = _operands(op, attrs, shapes)
    past = known_size(operands["past_key"][-2]) if "past_key" in operands else 0
    keys = known_size(operands["K"][-2]) + past
    return (count(operands["Q"]) + count(_first_output(op, attrs, shapes))) * keys


def _linear_attention(op: str, attrs: Attrs, shapes: tuple[Shape, ...]) -> int:
    """Per token and head: outer product of key and value, state times query, and for `delta` state
    times key.
    """
    operands, given = _operands(op, attrs, shapes), dict(attrs)
    queries, heads = int(given["q_num_heads"]), int(given["kv_num_heads"])  # type: ignore[arg-type]
    key, value = (known_size(operands[name][-1]) // heads for name in ("key", "value"))
    updates = 2 if "delta" in str(given.get("update_rule", "gated_delta")) else 1
    return count(operands["query"][:-1]) * key * value * (updates * heads + queries)


def _fourier(op: str, attrs: Attrs, shapes: tuple[Shape, ...]) -> int:
    """n · log2(n) per transform of n real numbers, twice that for complex ones, as fast Fourier
    transforms take.
    """
    operands, given = _operands(op, attrs, shapes), dict(attrs)
    if op == "STFT":
        frames, bins = _first_output(op, attrs, shapes)[-3:-1]
        size = given.get("frame_length") or (
            operands["window"][0] if "window" in operands else None
        )
        length = known_size(size) if isinstance(size, (int, str)) else 2 * (known_size(bins) - 1)
        signal = operands["signal"]
        transforms, parts = (
            count(signal[:1]) * known_size(frames),
            2 if len(signal) > 2 and signal[-1] == 2 else 1,
        )
    else:
        shape = operands["input"]
        axis = given.get("axis", -2)
        if not isinstance(axis, int):
            raise InputError("DFT along a computed axis: its multiply-accumulates are not known")
        size = given.get("dft_length") or shape[axis]
        length = known_size(size) if isinstance(size, (int, str)) else 1
        others = [dim for i, dim in enumerate(shape[:-1]) if i != axis % len(shape)]
        transforms, parts = count(tuple(others)), 2 if shape[-1] == 2 else 1
    return transforms * parts * ceil(length * log2(max(length, 1)))


def _determinant(op: str, attrs: Attrs, shapes: tuple[Shape, ...]) -> int:
    """LU decomposition of n × n matrices: (n³ - n) / 3."""
    size = known_size(shapes[0][-1])
    return count(shapes[0][:-2]) * (size**3 - size) // 3


def _affine_grid(op: str, attrs: Attrs, shapes: tuple[Shape, ...]) -> int:
    """Every coordinate is a row of the matrix times a position."""
    return count(_first_output(op, attrs, shapes)) * known_size(shapes[0][-1])


def _einsum_node(op: str, attrs: Attrs, shapes: tuple[Shape, ...]) -> int:
    return _einsum(str(dict(attrs)["equation"]).replace(" ", ""), shapes)


COUNTED: dict[str, Callable[[str, Attrs, tuple[Shape, ...]], int]] = {
    **dict.fromkeys(
        ("Conv", "DeformConv", "ConvInteger", "QLinearConv", "CausalConvWithState"), _convolution
    ),
    "ConvTranspose": _transposed_convolution,
    **dict.fromkeys(("MatMul", "MatMulInteger", "QLinearMatMul", "Gemm"), _product),
    **dict.fromkeys(RECURRENT, _recurrent),
    "Attention": _attention,
    "LinearAttention": _linear_attention,
    "Einsum": _einsum_node,
    "DFT": _fourier,
    "STFT": _fourier,
    "Det": _determinant,
    "AffineGrid": _affine_grid,
}
"""ONNX's operators whose multiply-accumulates are counted, with their rules."""


def _einsum(equation: str, shapes: tuple[Shape, ...]) -> int:
    """Multiply-accumulates of an Einsum that multiplies its operands from left to right, as ONNX
    Runtime does.
    """
    inputs, _, output = equation.partition("->")
    terms = [
        _indices(term, len(shape)) for term, shape in zip(inputs.split(","), shapes, strict=True)
    ]
    sizes: dict[str, Dim] = {}
    for term, shape in zip(terms, shapes, strict=True):
        sizes |= {
            index: size for index, size in zip(term, shape, strict=True) if sizes.get(index, 1) == 1
        }
    times = Counter("".join(terms))
    last = (
        _indices(output, len(sizes))
        if output
        else [i for i, n in times.items() if n == 1 or i.isdigit()]
    )
    total, held = 0, set(terms[0])
    for i, term in enumerate(terms[1:], start=2):
        held |= set(term)
        total += count(tuple([sizes[index] for index in held]))
        held &= set("".join(terms[i:])) | set(last)
    return total


def _indices(term: str, rank: int) -> str:
    """The indices of a term; digits stand for the dimensions of an ellipsis, the last one for the
    last of them.
    """
    named = term.replace("...", "")
    return term.replace("...", "".join(map(str, range(len(named) - rank, 0))).replace("-", ""))
