"""The operators: output shapes and canonical attributes.

Operators that own weights, or whose constant operands are written as attributes, belong to the
text's `net` domain. All others are those of ONNX. The domain's own operators have one input unless
stated otherwise. Their attributes, with defaults in parentheses:

    Conv, ConvBn, ConvBnRelu6
                    channels (default: the input's), kernel, strides (1), pads (same), dilations
                        (1), bias (0),
                    group (1) or depthwise (0; 1: one group per input channel); any number of
                    spatial dimensions
    Linear          features, bias (1); on the last dimension of any rank
    BatchNorm       epsilon (1e-5), affine (1; 0: no trained scale and shift)
    Embedding       rows, features: a row of a learned table for each integer of the input
    Param           shape, element ("float"): a learned constant; no input
    Buffer          shape, element ("float"), limit: a constant that is not learned and too long to be written, such as
                    a table of positions or a mask; integers are below `limit`; no input
    Zero            zeros of the input's shape
    ChannelShuffle  groups: interleaves that many groups of channels (arXiv 1707.01083)
    Reshape         shape: 0 keeps the input's dimension, -1 stands for the one dimension that is not a known number
    Expand          shape: as in ONNX, but 0 is the batch size; with `input = c`, it has no input and repeats c
    Slice           axes, starts, ends, steps (1): in ONNX they are operands

These operators of ONNX own their weights here, have one input, and keep ONNX's attributes beside
the following:

    ConvTranspose                                   channels, kernel_shape, bias (0)
    LayerNormalization, RMSNormalization            affine (1); LayerNormalization: bias (1)
    InstanceNormalization, GroupNormalization       affine (1)
    RNN, GRU, LSTM                                  hidden_size, bias (1)

Any other operator of ONNX takes constant operands as attributes (`search_spaces.ir.standard`), and
weights from `Param`. `ConvBn` is a convolution followed by batch normalization and takes the
attributes of both; `ConvBnRelu6` is `ConvBn` followed by clipping to [0, 6].
"""

from __future__ import annotations

from functools import lru_cache

from search_spaces.common.errors import InputError
from search_spaces.ir import standard
from search_spaces.ir.convolutions import CONVOLUTIONS, convolution
from search_spaces.ir.dimensions import misfit
from search_spaces.ir.graph import Attrs, Shape, Typed, Value, element_type, typed
from search_spaces.ir.owned_weights import BATCH_NORM_EPSILON, OWNERS, onnx_attrs, weights
from search_spaces.ir.shapes import SHAPES, broadcast_shape, reshape_attrs, slice_attrs

COMMUTATIVE = frozenset({"Add", "Sum", "Mul", "Max", "Min", "Mean"})
OWN_OPERATORS = frozenset(
    {
        *CONVOLUTIONS,
        "Linear",
        "BatchNorm",
        "Embedding",
        "Zero",
        "ChannelShuffle",
        "Reshape",
        "Expand",
        "Slice",
    }
)
SOURCES = frozenset({"Param", "Buffer"})  # without inputs
NET_OPERATORS = frozenset({*OWN_OPERATORS, *SOURCES, "Clip"})
OPERATORS = frozenset({*SHAPES, *OWNERS})
_NORM_DEFAULTS: dict[str, Value] = {"affine": 1, "epsilon": BATCH_NORM_EPSILON}
_DEFAULTS: dict[str, Value] = {**_NORM_DEFAULTS, "bias": 1, "element": "float", "allowzero": 0}
_CONV_ATTRIBUTES = (
    "bias",
    "channels",
    "depthwise",
    "dilations",
    "group",
    "kernel",
    "pads",
    "strides",
)
_ATTRIBUTES: dict[str, tuple[str, ...]] = {
    "Conv": _CONV_ATTRIBUTES,
    "ConvBn": (*_CONV_ATTRIBUTES, "affine", "epsilon"),
    "ConvBnRelu6": (*_CONV_ATTRIBUTES, "affine", "epsilon"),
    "Linear": ("bias", "features"),
    "BatchNorm": ("affine", "epsilon"),
    "Embedding": ("features", "rows"),
    "Param": ("element", "shape"),
    "Buffer": ("element", "limit", "shape"),
    "Zero": (),
    "ChannelShuffle": ("groups",),
    "Reshape": ("allowzero", "shape"),
    "Expand": ("input", "shape"),
    "Slice": ("axes", "ends", "starts", "steps"),
}


@lru_cache(maxsize=65536)
def output_shape(op: str, attrs: Attrs, shapes: tuple[Shape, ...]) -> Shape:
    """Shape of an operator's output.

    Args:
        op: name of the operator.
        attrs: attributes.
        shapes: shapes of the inputs.

    Raises:
        InputError: if the operator is not supported, or attributes and shapes do not match.
    """
    try:
        return _output_shape(op, attrs, shapes)
    except InputError:
        raise
    except (KeyError, IndexError, TypeError, ValueError, OverflowError) as error:
        raise misfit(op, attrs, shapes) from error


def _output_shape(op: str, attrs: Attrs, shapes: tuple[Shape, ...]) -> Shape:
    if is_own(op, len(shapes)):
        return _own_shape(op, attrs, shapes)
    if op in OWNERS and len(shapes) == 1:
        owned = tuple([typed(w.shape, element_type(shapes[0])) for w in weights(op, attrs, shapes)])
        return (
            shapes[0]
            if op == "GroupNormalization"
            else standard.infer(op, onnx_attrs(op, attrs), (*shapes, *owned))
        )
    plain = not any(isinstance(shape, Typed) for shape in shapes)
    first = not any(name == "output" for name, _ in attrs)  # the indices of MaxPool are integers
    if (
        op in SHAPES
        and plain
        and first
        and not (attrs and SHAPES[op] is broadcast_shape)
        and op != "Conv"
    ):
        return SHAPES[op](attrs, shapes)
    if op == "Tile" and len(shapes) == 1:  # ONNX does not infer a dimension N or N times a number
        return typed(SHAPES[op](attrs, shapes), element_type(shapes[0]))
    return standard.infer(op, attrs, shapes)


def is_own(op: str, inputs: int) -> bool:
    """True for an operator of the `net` domain; ONNX's operator of the same name has more
    inputs.
    """
    return (
        op in SOURCES or (op in OWN_OPERATORS and inputs == 1) or (op == "Expand" and inputs == 0)
    )


def _own_shape(op: str, attrs: Attrs, shapes: tuple[Shape, ...]) -> Shape:
    shape = SHAPES[op](attrs, shapes)
    if op in SOURCES or op == "Embedding" or not any(isinstance(s, Typed) for s in shapes):
        return tuple(shape) if op == "Embedding" else shape
    return typed(shape, element_type(shapes[0]))


@lru_cache(maxsize=65536)
def canonical_attrs(op: str, attrs: Attrs, shapes: tuple[Shape, ...]) -> Attrs:
    """The operator's attributes in their shortest form, so that equal computations have equal
    attributes.

    Raises:
        InputError: if the operator does not have an attribute.
    """
    if not is_own(op, len(shapes)):
        if op in OWNERS and len(shapes) == 1:
            return _owner_attrs(op, attrs, shapes)
        return standard.canonical(op, attrs, shapes)
    for name, _ in attrs:
        if name not in _ATTRIBUTES[op]:
            raise InputError(
                f"{op} has no attribute {name!r}; it has {', '.join(_ATTRIBUTES[op]) or 'none'}"
            )
    if op == "Slice":
        return slice_attrs(attrs, shapes[0])
    if op == "Reshape":
        return reshape_attrs(attrs, shapes[0])
    if op in CONVOLUTIONS:
        norm = tuple([(n, v) for n, v in attrs if n in _NORM_DEFAULTS])
        return tuple(sorted((*convolution(attrs, shapes[0]).attrs, *_without_defaults(norm))))
    return tuple(sorted(_without_defaults(attrs)))


def _owner_attrs(op: str, attrs: Attrs, shapes: tuple[Shape, ...]) -> Attrs:
    ours = {name: value for name, value in attrs if name in OWNERS[op]}
    inputs = shapes[0][1] if op == "ConvTranspose" else None
    default = {"affine": 1, "bias": 0 if op == "ConvTranspose" else 1, "channels": inputs}
    kept = {name: value for name, value in ours.items() if value != default[name]}
    if op == "LayerNormalization" and not ours.get("affine", 1):
        kept.pop("bias", None)  # an untrained shift is 0, as is none
    return tuple(
        sorted({**kept, **dict(standard.canonical(op, onnx_attrs(op, attrs), shapes))}.items())
    )


def _without_defaults(attrs: Attrs) -> Attrs:
    return tuple([(name, value) for name, value in attrs if _DEFAULTS.get(name) != value])
