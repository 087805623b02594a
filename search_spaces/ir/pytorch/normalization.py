"""Normalization functions: of batches by fixed statistics, of layers, groups, instances.

A normalization owns its scale and shift, if it has both; otherwise they are a product and a sum behind
it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from search_spaces.common.errors import InputError
from search_spaces.ir import standard
from search_spaces.ir.pytorch.linear import owned, plus_bias
from search_spaces.ir.pytorch.recorder import Recorder, handles
from search_spaces.ir.pytorch.reductions import reduced


def _per_channel(
    r: Recorder,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    spatial: int,
) -> Tensor:
    """Apply scale and shift per channel that the normalization does not own.

    spatial: the number of axes behind the channels.
    """
    if weight is not None:
        scale = r.call(torch.reshape, weight, (-1, *[1] * spatial))
        x = r.call(torch.mul, x, scale)
    return plus_bias(r, x, bias, spatial)


def _per_element(
    r: Recorder,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
) -> Tensor:
    """Apply scale and shift of the shape of the last axes."""
    if weight is not None:
        x = r.call(torch.mul, x, weight)
    return x if bias is None else r.call(torch.add, x, bias)


@handles("batch_norm")
def _batch_norm(
    r: Recorder,
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
    *_: Any,
) -> Tensor:
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
    has_both_or_none = (weight is None) == (bias is None)
    owns_affine = has_both_or_none and owned(r, weight, bias) is not None
    statistics = running_mean, running_var
    r.keep(*(lambda x=x: r.weights.computed(x) for x in statistics))
    affine = int(owns_affine and weight is not None)
    y = r.add_node("BatchNorm", input, affine=affine, epsilon=standard.shortest(eps))
    return y if owns_affine else _per_channel(r, y, weight, bias, input.dim() - 2)


@handles("layer_norm")
def _layer_norm(
    r: Recorder,
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *_: Any,
) -> Tensor:
    attrs = {"axis": input.dim() - len(normalized_shape), "epsilon": standard.shortest(eps)}
    has_scale_or_nothing = weight is not None or bias is None
    if has_scale_or_nothing and owned(r, weight, bias) is not None:
        has_shift = int(bias is not None or weight is None)
        has_scale = int(weight is not None)
        return r.add_node("LayerNormalization", input, affine=has_scale, bias=has_shift, **attrs)
    y = r.add_node("LayerNormalization", input, affine=0, **attrs)
    if len(normalized_shape) == 1:
        return _per_channel(r, y, weight, bias, 0)
    return _per_element(r, y, weight, bias)


@handles("group_norm")
def _group_norm(
    r: Recorder,
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *_: Any,
) -> Tensor:
    attrs = {"epsilon": standard.shortest(eps), "num_groups": num_groups}
    return _with_affine(r, "GroupNormalization", input, weight, bias, attrs)


@handles("instance_norm")
def _instance_norm(
    r: Recorder,
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
    *_: Any,
) -> Tensor:
    if not use_input_stats:
        raise InputError("instance normalization by running statistics is not supported")
    attrs = {"epsilon": standard.shortest(eps)}
    return _with_affine(r, "InstanceNormalization", input, weight, bias, attrs)


def _with_affine(
    r: Recorder,
    op: str,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    attrs: dict[str, Any],
) -> Tensor:
    """A normalization that owns scale and shift if it has both."""
    has_both = weight is not None and bias is not None
    if has_both and owned(r, weight, bias) is not None:
        return r.add_node(op, x, affine=1, **attrs)
    y = r.add_node(op, x, affine=0, **attrs)
    return _per_channel(r, y, weight, bias, x.dim() - 2)


@handles("rms_norm")
def _rms_norm(
    r: Recorder,
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Tensor:
    """input / √(mean square + eps): exporters have no operator for it, either."""
    if eps is None:
        eps = torch.finfo(input.dtype).eps
    axes = tuple(range(input.dim() - len(normalized_shape), input.dim()))
    mean_square = reduced(r, "ReduceMean", r.add("Pow", input, 2), axes, True)
    root = r.add("Sqrt", r.add("Add", mean_square, eps))
    y = r.add("Mul", input, r.add("Reciprocal", root))
    return _per_element(r, y, weight, None)
