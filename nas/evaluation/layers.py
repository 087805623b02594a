"""One node of a `Graph` as a PyTorch layer.

With `replicas` > 1, that many independent networks run side by side as groups of channels. A value
(n, channels, …) becomes (n, replicas · channels, …), with the channels of each replica adjacent.
Operators with weights become grouped operators. Other operators act on all channels, or see the
replicas as further samples of the batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from nas.evaluation.channelwise import CHANNELWISE
from nas.evaluation.operation import Function, Spec, torch_pads
from nas.evaluation.samplewise import SAMPLEWISE, keeps_channels
from search_spaces.common.errors import InputError
from search_spaces.ir.graph import BATCH, Graph, Node
from search_spaces.ir.ops import is_own, owns_weights
from search_spaces.ir.ops.convolution import convolution


def layer(node: Node, graph: Graph, replicas: int = 1) -> nn.Module:
    """The layer that computes a node.

    Args:
        node: a node of `graph`.
        graph: gives the shapes of the node's inputs and output.
        replicas: number of networks side by side.

    Raises:
        InputError: the operator cannot be trained, or cannot be trained side by side.
    """
    spec = Spec(
        node.op,
        dict(node.attrs),
        node.attrs,
        tuple(graph.shapes[v] for v in node.inputs),
        graph.shapes[node.outputs[0]],
        replicas,
    )
    inputs = len(spec.shapes)
    if node.op in _WEIGHTED and (is_own(node.op, inputs) or owns_weights(node.op, inputs)):
        return _WEIGHTED[node.op](spec)
    if node.op in CHANNELWISE:
        return Operation(CHANNELWISE[node.op](spec))
    if node.op not in SAMPLEWISE:
        raise InputError(f"operator {node.op} on {len(spec.shapes)} inputs cannot be trained")
    operation = Operation(SAMPLEWISE[node.op](spec))
    if replicas == 1 or keeps_channels(spec):
        return operation
    if any(len(shape) < 2 or shape[0] != BATCH for shape in (*spec.shapes, spec.output)):
        raise _not_side_by_side(spec)
    return _PerReplica(operation, replicas)


def trainable_operators() -> frozenset[str]:
    """Names of the operators that `layer` supports."""
    return frozenset({*_WEIGHTED, *CHANNELWISE, *SAMPLEWISE})


def _not_side_by_side(spec: Spec) -> InputError:
    return InputError(
        f"networks with {spec.op} on shapes {spec.shapes} cannot train side by side: train one by "
        "one"
    )


class Operation(nn.Module):
    """An operator without weights."""

    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.function(*inputs)


class _PerReplica(nn.Module):
    """Runs an operator on all replicas by moving them into the batch; samples must be
    independent.
    """

    def __init__(self, inner: nn.Module, replicas: int) -> None:
        super().__init__()
        self.inner, self.replicas = inner, replicas

    def forward(self, *inputs: Tensor) -> Tensor:
        result = self.inner(*[x.unflatten(1, (self.replicas, -1)).flatten(0, 1) for x in inputs])
        return result.unflatten(0, (-1, self.replicas)).flatten(1, 2)


# --- operators with weights: `state_dict` lists their tensors in the order of
# `search_spaces.ir.ops.initializers` ------------

_CONVOLUTIONS: dict[int, type[Any]] = {3: nn.Conv1d, 4: nn.Conv2d, 5: nn.Conv3d}
_TRANSPOSED: dict[int, type[Any]] = {
    3: nn.ConvTranspose1d,
    4: nn.ConvTranspose2d,
    5: nn.ConvTranspose3d,
}
_BATCH_NORMS: dict[int, type[Any]] = {
    2: nn.BatchNorm1d,
    3: nn.BatchNorm1d,
    4: nn.BatchNorm2d,
    5: nn.BatchNorm3d,
}
_INSTANCE_NORMS: dict[int, type[Any]] = {
    3: nn.InstanceNorm1d,
    4: nn.InstanceNorm2d,
    5: nn.InstanceNorm3d,
}


def _of_rank(kinds: dict[int, type[Any]], spec: Spec) -> type[Any]:
    if len(spec.shapes[0]) not in kinds:
        raise InputError(f"{spec.op} on an input of shape {spec.shapes[0]} cannot be trained")
    return kinds[len(spec.shapes[0])]


def _conv(spec: Spec) -> nn.Module:
    c = convolution(spec.given, spec.shapes[0])
    rank = len(c.kernel)
    symmetric = c.pads[:rank] == c.pads[rank:]
    conv = _of_rank(_CONVOLUTIONS, spec)(
        c.in_channels * spec.replicas, c.channels * spec.replicas, c.kernel, c.strides,
        c.pads[:rank] if symmetric else 0, c.dilations, c.group * spec.replicas, bias=c.bias,
    )  # fmt: skip
    nn.init.kaiming_normal_(conv.weight, nonlinearity="relu")
    return conv if symmetric else nn.Sequential(_ZeroPad(torch_pads(c.pads)), conv)


class _ZeroPad(nn.ConstantPad2d):
    """Zero padding of any number of spatial dimensions; sizes in torch's order."""

    def __init__(self, padding: tuple[int, ...]) -> None:
        super().__init__(0, 0)
        self.padding = padding  # type: ignore[assignment]


def _conv_bn(spec: Spec) -> nn.Module:
    return nn.Sequential(_conv(spec), _batch_norm(spec))


def _conv_bn_relu6(spec: Spec) -> nn.Module:
    return nn.Sequential(_conv(spec), _batch_norm(spec), nn.ReLU6())


def _batch_norm(spec: Spec) -> nn.Module:
    return _of_rank(_BATCH_NORMS, spec)(
        int(spec.output[1]) * spec.replicas,
        eps=spec.attrs.get("epsilon", 1e-5),
        affine=bool(spec.attrs.get("affine", 1)),
    )


def _linear(spec: Spec) -> nn.Module:
    inputs, features = int(spec.shapes[0][-1]), spec.attrs["features"]
    bias = bool(spec.attrs.get("bias", 1))
    if len(spec.shapes[0]) == 2:
        return _GroupedLinear(inputs, features, bias, spec.replicas)
    _check_alone(spec)
    return nn.Linear(inputs, features, bias)


class _GroupedLinear(nn.Module):
    """A linear layer per replica, as a grouped 1×1 convolution: (n, replicas · inputs) → (n,
    replicas · features).
    """

    def __init__(self, inputs: int, features: int, bias: bool, replicas: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs * replicas, features * replicas, 1, groups=replicas, bias=bias)
        nn.init.kaiming_uniform_(self.conv.weight, a=5**0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x[:, :, None, None]).flatten(1)


def _check_alone(spec: Spec) -> None:
    if spec.replicas > 1:
        raise _not_side_by_side(spec)


def _embedding(spec: Spec) -> nn.Module:
    _check_alone(spec)
    return nn.Embedding(spec.attrs["rows"], spec.attrs["features"])


class _Param(nn.Module):
    """A learned tensor."""

    def __init__(self, spec: Spec) -> None:
        super().__init__()
        _check_alone(spec)
        if spec.attrs.get("element", "float") != "float":
            raise InputError(
                f"a learned constant of {spec.attrs['element']} cannot be trained; only float can"
            )
        self.value = nn.Parameter(torch.randn(spec.attrs["shape"]) * 0.02)

    def forward(self) -> Tensor:
        return self.value


def _transposed_conv(spec: Spec) -> nn.Module:
    given = spec.attrs
    inputs, kernel = int(spec.shapes[0][1]), given["kernel_shape"]
    rank, ones = len(kernel), (1,) * len(kernel)
    pads = given.get("pads", (0,) * 2 * rank)
    if pads[:rank] != pads[rank:] or given.keys() & {"auto_pad", "output_shape"}:
        raise InputError(
            "ConvTranspose can be trained only with explicit pads that are equal on both sides"
        )
    return _of_rank(_TRANSPOSED, spec)(
        inputs * spec.replicas, given.get("channels", inputs) * spec.replicas, kernel, given.get("strides", ones),
        pads[:rank], given.get("output_padding", 0), given.get("group", 1) * spec.replicas, bool(given.get("bias", 0)),
        given.get("dilations", ones),
    )  # fmt: skip


def _layer_norm(spec: Spec) -> nn.Module:
    _check_alone(spec)
    shape, affine = _last_dims(spec), bool(spec.attrs.get("affine", 1))
    return nn.LayerNorm(
        shape,
        spec.attrs.get("epsilon", 1e-5),
        elementwise_affine=affine,
        bias=bool(spec.attrs.get("bias", 1)),
    )


def _rms_norm(spec: Spec) -> nn.Module:
    _check_alone(spec)
    return nn.RMSNorm(
        _last_dims(spec), spec.attrs.get("epsilon", 1e-5), bool(spec.attrs.get("affine", 1))
    )


def _last_dims(spec: Spec) -> list[int]:
    return [int(d) for d in spec.shapes[0][spec.attrs.get("axis", -1) :]]


def _instance_norm(spec: Spec) -> nn.Module:
    return _of_rank(_INSTANCE_NORMS, spec)(
        int(spec.output[1]) * spec.replicas,
        eps=spec.attrs.get("epsilon", 1e-5),
        affine=bool(spec.attrs.get("affine", 1)),
    )


def _group_norm(spec: Spec) -> nn.Module:
    return nn.GroupNorm(
        spec.attrs["num_groups"] * spec.replicas, int(spec.output[1]) * spec.replicas,
        spec.attrs.get("epsilon", 1e-5), bool(spec.attrs.get("affine", 1)),
    )  # fmt: skip


_WEIGHTED: dict[str, Callable[[Spec], nn.Module]] = {
    "BatchNorm": _batch_norm,
    "Conv": _conv,
    "ConvBn": _conv_bn,
    "ConvBnRelu6": _conv_bn_relu6,
    "ConvTranspose": _transposed_conv,
    "Embedding": _embedding,
    "GroupNormalization": _group_norm,
    "InstanceNormalization": _instance_norm,
    "LayerNormalization": _layer_norm,
    "Linear": _linear,
    "Param": _Param,
    "RMSNormalization": _rms_norm,
}
