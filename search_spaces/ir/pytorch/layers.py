"""torch functions with weights: convolutions, linear layers, embeddings and normalizations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from search_spaces.common.errors import InputError
from search_spaces.ir import standard
from search_spaces.ir.convolutions import Convolution
from search_spaces.ir.graph import Value
from search_spaces.ir.pytorch.recorder import Recorder, handles
from search_spaces.ir.pytorch.reductions import reduced
from search_spaces.ir.pytorch.shapes import Sizes, per_dimension


def _owned(r: Recorder, *weights: Tensor | None) -> list[tuple[int, ...] | None] | None:
    """Take weights for the next layer; return their shapes (None for an omitted one), or None if it
    cannot own all.
    """
    if any(w is not None and r.owned_shape(w) is None for w in weights):
        return None
    return [None if w is None else r.take(w) for w in weights]


def _plus(r: Recorder, x: Tensor, bias: Tensor | None, rank: int) -> Tensor:
    """Add a bias per channel that the layer does not own."""
    if bias is None:
        return x
    return r.call(torch.add, x, r.call(torch.reshape, bias, (-1, *[1] * rank)) if rank else bias)


# --- convolutions and linear layers
# ----------------------------------------------------------------------------------


@handles("conv1d", "conv2d", "conv3d", "convolution")
def _conv(
    r: Recorder, input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Sizes = 1,
    padding: Sizes | str = 0, dilation: Sizes = 1, groups: int = 1,
) -> Tensor:  # fmt: skip
    rank = weight.dim() - 2
    if input.dim() != rank + 2:
        raise InputError(
            f"a convolution with weights {list(weight.shape)} has an input of shape "
            f"{list(input.shape)}"
        )
    if r.is_batch(groups):
        raise InputError("a convolution has one group per sample")
    channels, inputs, *kernel = weight.shape
    if inputs * groups != input.shape[1]:
        raise InputError(
            f"weights {list(weight.shape)} in {groups} groups do not fit an input "
            f"{list(input.shape)}"
        )
    strides, dilations = per_dimension(stride, rank), per_dimension(dilation, rank)
    pads = _pads(padding, kernel, dilations, rank)
    if r.owned_shape(weight) is None:
        given: dict[str, Value] = {
            "group": groups,
            "strides": strides,
            "pads": pads,
            "dilations": dilations,
        }
        return _plus(r, r.add_node("Conv", input, r.as_value(weight), **given), bias, rank)
    own = _owned(r, weight, bias)
    if own is None:
        r.take(weight)
    conv = Convolution(
        inputs * groups,
        channels,
        tuple(kernel),
        strides,
        pads,
        dilations,
        groups,
        bias is not None and own is not None,
    )
    y = r.add_node("Conv", input, **dict(conv.attrs))
    return y if own is not None else _plus(r, y, bias, rank)


def _pads(
    padding: Sizes | str, kernel: Sequence[int], dilations: tuple[int, ...], rank: int
) -> tuple[int, ...]:
    if padding == "same":
        totals = [d * (k - 1) for k, d in zip(kernel, dilations, strict=True)]
        begin = [total // 2 for total in totals]
        return (*begin, *[total - b for total, b in zip(totals, begin, strict=True)])
    sides = (0,) * rank if isinstance(padding, str) else per_dimension(padding, rank, 0)
    return (*sides, *sides)


@handles("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
def _conv_transpose(
    r: Recorder, input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Sizes = 1, padding: Sizes = 0,
    output_padding: Sizes = 0, groups: int = 1, dilation: Sizes = 1,
) -> Tensor:  # fmt: skip
    rank = weight.dim() - 2
    if (own := _owned(r, weight, bias)) is None:
        raise InputError(
            "a transposed convolution whose weights are computed or shared is not supported"
        )
    sides = per_dimension(padding, rank, 0)
    return r.add_node(
        "ConvTranspose", input, bias=int(own[1] is not None), channels=int(weight.shape[1]) * groups, group=groups,
        kernel_shape=tuple(weight.shape[2:]), strides=per_dimension(stride, rank), pads=(*sides, *sides),
        output_padding=per_dimension(output_padding, rank, 0), dilations=per_dimension(dilation, rank),
    )  # fmt: skip


@handles("linear")
def _linear(r: Recorder, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    if weight.dim() != 2 or weight.shape[1] != input.shape[-1]:
        raise InputError(
            f"a linear layer with weights {list(weight.shape)} has an input of shape "
            f"{list(input.shape)}"
        )
    features = weight.shape[0]
    if r.owned_shape(weight) is None or input.dim() < 2:
        turned = r.add_node("Transpose", r.as_value(weight), perm=(1, 0))
        return _plus(r, r.add_node("MatMul", input, turned), bias, 0)
    own = _owned(r, weight, bias)
    if own is None:
        r.take(weight)
    y = r.add_node(
        "Linear", input, features=features, bias=int(own is not None and bias is not None)
    )
    return y if own is not None else _plus(r, y, bias, 0)


def _linear_without_bias(r: Recorder, x: Tensor, weight: Tensor) -> Tensor | None:
    """The product with a matrix of weights (inputs, features) as a linear layer; None if it cannot
    own the matrix.
    """
    if r.owned_shape(weight) is None or weight.shape[0] != x.shape[-1]:
        return None
    r.take(weight, transposed=True)
    return r.add_node("Linear", x, features=int(weight.shape[1]), bias=0)


@handles("matmul", "bmm", "mm", "__matmul__")
def _matmul(r: Recorder, input: Tensor, other: Tensor) -> Tensor:
    if r.weights.is_weight(other) and other.dim() == 2 and input.dim() > 1:
        found = _linear_without_bias(r, input, other)
        if found is not None:
            return found
    return r.add(
        "MatMul", *(r.tensor(r.value(x)) if r.is_constant(x) else x for x in (input, other))
    )


@handles("__rmatmul__")
def _rmatmul(r: Recorder, input: Tensor, other: Tensor) -> Tensor:
    return _matmul(r, other, input)


@handles("baddbmm")
def _baddbmm(
    r: Recorder, input: Tensor, batch1: Tensor, batch2: Tensor, *, beta: float = 1, alpha: float = 1
) -> Tensor:
    product = r.call(torch.mul, _matmul(r, batch1, batch2), alpha)
    return r.call(torch.add, r.call(torch.mul, input, beta), product)


@handles("addmm")
def _addmm(
    r: Recorder, input: Tensor, mat1: Tensor, mat2: Tensor, *, beta: float = 1, alpha: float = 1
) -> Tensor:
    return _baddbmm(r, input, mat1, mat2, beta=beta, alpha=alpha)


@handles("einsum")
def _einsum(r: Recorder, equation: str, *operands: Any) -> Tensor:
    tensors = (
        operands[0] if len(operands) == 1 and isinstance(operands[0], list | tuple) else operands
    )
    return r.add_node("Einsum", *tensors, equation=equation.replace(" ", ""))


@handles("embedding")
def _embedding(
    r: Recorder, input: Tensor, weight: Tensor, padding_idx: int | None = None, max_norm: float | None = None, *_: Any,
    **__: Any,
) -> Tensor:  # fmt: skip
    if max_norm is not None:
        raise InputError(
            "an embedding with max_norm is not supported: its weights change when they are read"
        )
    if r.owned_shape(weight) is None or weight.dtype != torch.float32:  # Embedding is of floats
        return r.add_node("Gather", r.as_value(weight), r.as_value(input))
    r.take(weight)
    return r.add_node(
        "Embedding", r.as_value(input), features=int(weight.shape[1]), rows=int(weight.shape[0])
    )


@handles("embedding_bag")
def _embedding_bag(
    r: Recorder, input: Tensor, weight: Tensor, offsets: Tensor | None = None, *_: Any, mode: str = "mean",
    max_norm: float | None = None, per_sample_weights: Tensor | None = None, padding_idx: int | None = None, **__: Any,
) -> Tensor:  # fmt: skip
    if offsets is not None or padding_idx is not None:
        raise InputError(
            "an embedding bag with offsets or padding_idx depends on the data: give one bag per row"
        )
    words = _embedding(r, input, weight, max_norm=max_norm)
    if per_sample_weights is not None:
        words = r.call(torch.mul, words, r.call(torch.unsqueeze, per_sample_weights, -1))
    return reduced(
        r, {"mean": "ReduceMean", "sum": "ReduceSum", "max": "ReduceMax"}[mode], words, 1, False
    )


@handles("bilinear")
def _bilinear(
    r: Recorder, input1: Tensor, input2: Tensor, weight: Tensor, bias: Tensor | None = None
) -> Tensor:
    found = r.call(torch.einsum, "...i,oij,...j->...o", input1, r.as_value(weight), input2)
    return found if bias is None else r.call(torch.add, found, bias)


@handles("prelu")
def _prelu(r: Recorder, input: Tensor, weight: Tensor) -> Tensor:
    ones = [1] * (input.dim() - 2)
    return r.add_node(
        "PRelu", input, r.call(torch.reshape, weight, [-1, *ones]) if weight.numel() > 1 else weight
    )


# --- normalizations
# --------------------------------------------------------------------------------------------------


def _epsilon(eps: float) -> float:
    return standard.shortest(eps)


def _scaled(
    r: Recorder, x: Tensor, weight: Tensor | None, bias: Tensor | None, rank: int
) -> Tensor:
    """Apply scale and shift per channel that the normalization does not own."""
    y = (
        x
        if weight is None
        else r.call(torch.mul, x, r.call(torch.reshape, weight, (-1, *[1] * rank)))
    )
    return _plus(r, y, bias, rank)


@handles("batch_norm")
def _batch_norm(
    r: Recorder, input: Tensor, running_mean: Tensor | None, running_var: Tensor | None, weight: Tensor | None = None,
    bias: Tensor | None = None, training: bool = False, momentum: float = 0.1, eps: float = 1e-5, *_: Any,
) -> Tensor:  # fmt: skip
    if training or running_mean is None:
        raise InputError(
            "batch normalization by batch statistics is not supported: it makes samples depend on "
            "others"
        )
    if input.shape[1] != running_mean.shape[0]:
        raise InputError(
            f"batch normalization of {running_mean.shape[0]} channels has an input "
            f"{list(input.shape)}"
        )
    owned = (weight is None) == (bias is None) and _owned(r, weight, bias) is not None
    statistics = running_mean, running_var
    r.keep(*(lambda x=x: r.weights.computed(x) for x in statistics))
    y = r.add_node(
        "BatchNorm", input, affine=int(owned and weight is not None), epsilon=_epsilon(eps)
    )
    return y if owned else _scaled(r, y, weight, bias, input.dim() - 2)


@handles("layer_norm")
def _layer_norm(
    r: Recorder, input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None,
    bias: Tensor | None = None, eps: float = 1e-5, *_: Any,
) -> Tensor:  # fmt: skip
    axis = input.dim() - len(normalized_shape)
    own = _owned(r, weight, bias) if weight is not None or bias is None else None
    if own is None:
        y = r.add_node("LayerNormalization", input, affine=0, axis=axis, epsilon=_epsilon(eps))
        return (
            _scaled(r, y, weight, bias, 0)
            if len(normalized_shape) == 1
            else _affine(r, y, weight, bias)
        )
    affine, shift = int(weight is not None), int(bias is not None or weight is None)
    return r.add_node(
        "LayerNormalization", input, affine=affine, axis=axis, bias=shift, epsilon=_epsilon(eps)
    )


def _affine(r: Recorder, y: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    y = y if weight is None else r.call(torch.mul, y, weight)
    return y if bias is None else r.call(torch.add, y, bias)


@handles("group_norm")
def _group_norm(
    r: Recorder, input: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None,
    eps: float = 1e-5, *_: Any,
) -> Tensor:  # fmt: skip
    affine = weight is not None and bias is not None and _owned(r, weight, bias) is not None
    y = r.add_node(
        "GroupNormalization",
        input,
        affine=int(affine),
        epsilon=_epsilon(eps),
        num_groups=num_groups,
    )
    return y if affine else _scaled(r, y, weight, bias, input.dim() - 2)


@handles("instance_norm")
def _instance_norm(
    r: Recorder, input: Tensor, running_mean: Tensor | None = None, running_var: Tensor | None = None,
    weight: Tensor | None = None, bias: Tensor | None = None, use_input_stats: bool = True, momentum: float = 0.1,
    eps: float = 1e-5, *_: Any,
) -> Tensor:  # fmt: skip
    if not use_input_stats:
        raise InputError("instance normalization by running statistics is not supported")
    affine = weight is not None and bias is not None and _owned(r, weight, bias) is not None
    y = r.add_node("InstanceNormalization", input, affine=int(affine), epsilon=_epsilon(eps))
    return y if affine else _scaled(r, y, weight, bias, input.dim() - 2)


@handles("rms_norm")
def _rms_norm(
    r: Recorder,
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Tensor:
    axes = tuple(range(input.dim() - len(normalized_shape), input.dim()))
    square = reduced(r, "ReduceMean", r.add("Pow", input, 2), axes, True)
    root = r.add("Sqrt", r.add("Add", square, torch.finfo(input.dtype).eps if eps is None else eps))
    return _affine(r, r.add("Mul", input, r.add("Reciprocal", root)), weight, None)
