"""Normalizations.

`BatchNorm (x)` is the net domain's; it owns scale, shift, mean and variance. ONNX's other
normalizations own their scale and shift if they have one input. `affine = 0` stands for no trained
scale and shift.

Exporters fold batch normalization into the preceding weights. `folded_norm` recovers it:
`torch.onnx.export(dynamo=True)` records the original torch call in the node's metadata: epsilon,
whether there are scale and shift, and whether the convolution had a bias. The TorchScript exporter
stores folded weights without a module's name: such a convolution is read as one without bias,
followed by a batch normalization with torch's default epsilon. Exports without folding are not
affected: `torch.onnx.export(…, optimize=False)`, or with `dynamo=False` the options
`training=TrainingMode.PRESERVE, do_constant_folding=False`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

import onnx

from search_spaces.common.errors import InputError
from search_spaces.ir.graph import Attrs, Shape, Value, known_size
from search_spaces.ir.ops.operator import (
    ExportedNode,
    Exporter,
    Importer,
    Operator,
    TrainedNode,
    Weight,
    named,
    node_attrs,
    same_shape,
)
from search_spaces.ir.ops.training import check_alone, of_rank
from search_spaces.ir.standard import shortest

if TYPE_CHECKING:
    from torch import nn

BATCH_NORM_EPSILON = 1e-5
NORM_ATTRIBUTES: dict[str, Value | None] = {"affine": 1, "epsilon": BATCH_NORM_EPSILON}


# --- weights


def batch_norm_weights(channels: int, attrs: Attrs) -> tuple[Weight, ...]:
    """Scale, shift, and the running statistics mean and variance."""
    is_affine = bool(dict(attrs).get("affine", 1))
    return (
        Weight("scale", (channels,), "ones", trained=is_affine),
        Weight("shift", (channels,), "zeros", trained=is_affine),
        Weight("mean", (channels,), "zeros", trained=False),
        Weight("var", (channels,), "ones", trained=False),
    )


def _batch_norm_weights(attrs: Attrs, shapes: tuple[Shape, ...]) -> tuple[Weight, ...]:
    return batch_norm_weights(known_size(shapes[0][1]), attrs)


def _channel_norm_weights(attrs: Attrs, shapes: tuple[Shape, ...]) -> tuple[Weight, ...]:
    return _scale_and_shift(attrs, (known_size(shapes[0][1]),))


def _layer_norm_weights(attrs: Attrs, shapes: tuple[Shape, ...]) -> tuple[Weight, ...]:
    scale, shift = _scale_and_shift(attrs, _last_dims(attrs, shapes[0]))
    return (scale, shift) if dict(attrs).get("bias", 1) else (scale,)


def _rms_norm_weights(attrs: Attrs, shapes: tuple[Shape, ...]) -> tuple[Weight, ...]:
    scale, _ = _scale_and_shift(attrs, _last_dims(attrs, shapes[0]))
    return (scale,)


def _scale_and_shift(attrs: Attrs, dims: tuple[int, ...]) -> tuple[Weight, Weight]:
    is_affine = bool(dict(attrs).get("affine", 1))
    scale = Weight("scale", dims, "ones", trained=is_affine)
    shift = Weight("shift", dims, "zeros", trained=is_affine)
    return scale, shift


def _last_dims(attrs: Attrs, shape: Shape) -> tuple[int, ...]:
    """The dimensions that are normalized together: those from `axis` on."""
    axis: Any = dict(attrs).get("axis", -1)
    return tuple([known_size(size) for size in shape[axis:]])


def _simplify_layer_norm(attrs: Attrs, shape: Shape) -> Attrs:
    """An untrained shift is 0, as is none, so `bias` has no meaning with `affine = 0`."""
    if dict(attrs).get("affine", 1):
        return attrs
    return tuple([(name, value) for name, value in attrs if name != "bias"])


# --- from ONNX


class FoldedNorm(NamedTuple):
    """A batch normalization that was folded into another operator.

    Attributes:
        attrs: attributes of the batch normalization.
        bias: whether the other operator had a bias before.
    """

    attrs: Attrs
    bias: bool


_CALL = re.compile(r"batch_norm\w*\.default\]\(args = \((.*)\), kwargs")
_WEIGHTED = re.compile(r"aten\.(?:conv\w*|linear)\.default\]\(args = \(%\w+, %\w+, %\w")
_UNNAMED = "onnx::Conv_"


def folded_norm(node: onnx.NodeProto) -> FoldedNorm | None:
    """The batch normalization that was folded into a `Conv`, `ConvTranspose` or `Gemm`.

    None if there is none.
    """
    # 1. TorchScript's exporter: weights without a module's name.
    weights = node.input[1:3]
    is_unnamed = len(weights) == 2 and all(name.startswith(_UNNAMED) for name in weights)
    if node.op_type == "Conv" and is_unnamed:
        return FoldedNorm((("affine", 1), ("epsilon", BATCH_NORM_EPSILON)), bias=False)
    # 2. The newer exporter: the original call.
    call = _CALL.search(_torch_call(node))
    if call is None:
        return None
    arguments = call[1].split(", ")
    is_affine = int(arguments[1] != "None")
    epsilon = shortest(float(arguments[-1]))
    # The bias of folding is named after the weights. In an untrained network it is zero and
    # omitted.
    has_bias = len(node.input) > 2 and node.input[2] != f"{node.input[1]}_bias"
    return FoldedNorm((("affine", is_affine), ("epsilon", epsilon)), has_bias)


def add_folded_norm(reader: Importer, value: int, norm: FoldedNorm | None) -> int:
    """Add the batch normalization that was folded into an operator, behind its value."""
    return value if norm is None else reader.emit("BatchNorm", (value,), norm.attrs)


def is_bias_left_out(node: onnx.NodeProto) -> bool:
    """True if torch's exporter omitted a layer's bias, as it does if all its numbers are zero."""
    return len(node.input) < 3 and _WEIGHTED.search(_torch_call(node)) is not None


def _torch_call(node: onnx.NodeProto) -> str:
    """The torch call that the exporter recorded in the node's metadata; "" if there is none."""
    return next((p.value for p in node.metadata_props if p.key == "pkg.torch.onnx.fx_node"), "")


def _read_batch_norm(reader: Importer, node: onnx.NodeProto) -> int | None:
    """Add a batch normalization; a constant scale of 1 and shift of 0 are omitted."""
    attrs = node_attrs(node)
    if attrs.get("training_mode", 0):
        raise InputError(
            "batch normalization in training mode: export the model in evaluation mode"
        )
    x = reader.value(node.input[0])
    shape = reader.shapes[x]
    channels = tuple(shape[1:2])
    for name in node.input[1:5]:
        stored = reader.stored(name)
        if stored is None or tuple(stored.shape) != channels:
            raise InputError(
                "scale, shift, mean and variance must be weights that fit an input of shape "
                f"{list(shape)}"
            )

    # Without scale and shift, or with those of several normalizations as operators of their own.
    scale, shift = node.input[1:3]
    is_identity = _is_constant(reader, scale, 1) and _is_constant(reader, shift, 0)
    is_shared = scale not in reader.known or shift not in reader.known
    norm: dict[str, Value] = {"epsilon": attrs.get("epsilon", BATCH_NORM_EPSILON)}
    if is_identity or is_shared:
        norm["affine"] = 0
    normalized = reader.emit("BatchNorm", (x,), tuple(norm.items()))
    return _add_scale_and_shift(reader, node, normalized) if is_shared else normalized


def _is_constant(reader: Importer, name: str, number: float) -> bool:
    """True for a tensor that is not learned and has this number everywhere."""
    stored = reader.stored(name)
    if stored is None or stored.learned or stored.static is None:
        return False
    return bool((stored.static == number).all())


def _add_scale_and_shift(reader: Importer, node: onnx.NodeProto, x: int) -> int:
    """Scale and shift a normalized value by vectors that other operators read, too."""
    channels, *positions = reader.shapes[x][1:]
    for op, name in zip(("Mul", "Add"), node.input[1:3], strict=True):
        vector = reader.value(name)
        if positions:
            sizes = (int(channels), *[1 for _ in positions])
            vector = reader.emit("Reshape", (vector,), (("shape", sizes),))
        x = reader.emit(op, (x, vector), ())
    return x


# --- to ONNX


def write_norm(
    exporter: Exporter,
    name: str,
    attrs: Attrs,
    inputs: list[str],
    output: str,
) -> None:
    """Add a BatchNormalization; `inputs` are the value and its four weights."""
    epsilon = tuple([(key, value) for key, value in attrs if key == "epsilon"])
    exporter.add("BatchNormalization", name, inputs, output, epsilon)


def _write_batch_norm(exporter: Exporter, node: ExportedNode) -> None:
    write_norm(exporter, node.name, node.attrs, [*node.inputs, *node.weights], node.output)


# --- the operators

# --- to torch

_BATCH_NORMS = {
    2: "BatchNorm1d",
    3: "BatchNorm1d",
    4: "BatchNorm2d",
    5: "BatchNorm3d",
}
_INSTANCE_NORMS = {
    3: "InstanceNorm1d",
    4: "InstanceNorm2d",
    5: "InstanceNorm3d",
}


def batch_norm_layer(node: TrainedNode) -> nn.Module:
    """Batch normalization of a node's output."""
    return _per_channel_layer(node, _BATCH_NORMS)


def _instance_norm_layer(node: TrainedNode) -> nn.Module:
    return _per_channel_layer(node, _INSTANCE_NORMS)


def _per_channel_layer(node: TrainedNode, names: dict[int, str]) -> nn.Module:
    new_layer = of_rank(node, names)
    return new_layer(
        int(node.output[1]) * node.replicas,
        eps=_epsilon(node),
        affine=_is_affine(node),
    )


def _group_norm_layer(node: TrainedNode) -> nn.Module:
    from torch import nn

    return nn.GroupNorm(
        node.attributes["num_groups"] * node.replicas,
        int(node.output[1]) * node.replicas,
        eps=_epsilon(node),
        affine=_is_affine(node),
    )


def _layer_norm_layer(node: TrainedNode) -> nn.Module:
    from torch import nn

    check_alone(node)
    return nn.LayerNorm(
        _last_sizes(node),
        eps=_epsilon(node),
        elementwise_affine=_is_affine(node),
        bias=bool(node.attributes.get("bias", 1)),
    )


def _rms_norm_layer(node: TrainedNode) -> nn.Module:
    from torch import nn

    check_alone(node)
    return nn.RMSNorm(
        _last_sizes(node),
        eps=_epsilon(node),
        elementwise_affine=_is_affine(node),
    )


def _epsilon(node: TrainedNode) -> float:
    return node.attributes.get("epsilon", BATCH_NORM_EPSILON)


def _is_affine(node: TrainedNode) -> bool:
    return bool(node.attributes.get("affine", 1))


def _last_sizes(node: TrainedNode) -> list[int]:
    axis = node.attributes.get("axis", -1)
    return [int(size) for size in node.shapes[0][axis:]]


# --- the operators

OPERATORS = (
    Operator(
        name="BatchNorm",
        own_attributes=NORM_ATTRIBUTES,
        in_net_domain=True,
        infer_own_shape=same_shape,
        weights=_batch_norm_weights,
        write=_write_batch_norm,
        layer=batch_norm_layer,
    ),
    Operator(
        name="BatchNormalization",
        read=_read_batch_norm,
        vectors=(1, 2),
        settings=(3, 4),
        role="normalization",
    ),
    Operator(
        name="LayerNormalization",
        owned_attributes={"affine": 1, "bias": 1},
        simplify=_simplify_layer_norm,
        weights=_layer_norm_weights,
        layer=_layer_norm_layer,
        vectors=(1, 2),
        role="normalization",
    ),
    Operator(
        name="RMSNormalization",
        owned_attributes={"affine": 1},
        weights=_rms_norm_weights,
        layer=_rms_norm_layer,
        vectors=(1,),
        role="normalization",
    ),
    Operator(
        name="InstanceNormalization",
        owned_attributes={"affine": 1},
        weights=_channel_norm_weights,
        layer=_instance_norm_layer,
        vectors=(1, 2),
        role="normalization",
    ),
    Operator(
        name="GroupNormalization",
        owned_attributes={"affine": 1},
        infer_shape=same_shape,  # ONNX does not infer it
        weights=_channel_norm_weights,
        layer=_group_norm_layer,
        vectors=(1, 2),
        role="normalization",
    ),
    Operator(name="LpNormalization", role="normalization"),
    Operator(name="MeanVarianceNormalization", role="normalization"),
    *named("LRN"),
)
