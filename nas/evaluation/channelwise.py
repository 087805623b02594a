"""Elementwise and channelwise operators as torch functions. They see replicas as further
channels.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from nas.evaluation.operation import Function, Spec, known_size, needs_constants, plain, torch_pads
from search_spaces.common.errors import InputError


def _with(function: Function, **names: tuple[str, Any]) -> Callable[[Spec], Function]:
    """Bind arguments of a function to node attributes: `argument=(attribute, default)`."""
    return lambda spec: partial(
        function, **{arg: spec.attrs.get(name, d) for arg, (name, d) in names.items()}
    )


def _hard_sigmoid(x: Tensor, alpha: float, beta: float) -> Tensor:
    return torch.clamp(alpha * x + beta, 0, 1)


def _clip(spec: Spec) -> Function:
    return partial(torch.clamp, min=spec.attrs.get("min"), max=spec.attrs.get("max"))


def _over_space(function: Function) -> Callable[[Spec], Function]:
    return lambda spec: partial(function, dim=tuple(range(2, len(spec.shapes[0]))), keepdim=True)


_MAX_POOLS = {1: functional.max_pool1d, 2: functional.max_pool2d, 3: functional.max_pool3d}
_AVERAGE_POOLS: dict[int, Function] = {
    1: functional.avg_pool1d,
    2: functional.avg_pool2d,
    3: functional.avg_pool3d,
}


def _pool(spec: Spec) -> Function:
    """Pool with torch's padding, or pad explicitly where the sides differ or a window ends beyond
    the padding.
    """
    given, rank = spec.attrs, len(spec.shapes[0]) - 2
    kernel, ones = given["kernel_shape"], (1,) * rank
    strides, dilations, pads = (
        given.get("strides", ones),
        given.get("dilations", ones),
        given.get("pads", (0,) * 2 * rank),
    )
    counted = bool(given.get("count_include_pad", 0))
    if (
        given.get("auto_pad", "NOTSET") != "NOTSET"
        or given.get("storage_order")
        or rank not in _MAX_POOLS
    ):
        raise InputError(
            f"{spec.op} can be trained only on up to three dimensions, with explicit pads"
        )
    even = pads[:rank] == pads[rank:] and all(
        2 * pad <= size for pad, size in zip(pads, kernel, strict=False)
    )
    even = even and dilations == ones and not given.get("ceil_mode", 0)
    if spec.op == "MaxPool":
        pool = partial(_MAX_POOLS[rank], kernel_size=kernel, stride=strides, dilation=dilations)
        if even:
            return partial(pool, padding=pads[:rank])
        around = _around(spec, kernel, strides, dilations, pads)
        return lambda x: pool(functional.pad(x, around, value=-torch.inf))
    mean = partial(_AVERAGE_POOLS[rank], kernel_size=kernel, stride=strides)
    if even:
        return partial(mean, padding=pads[:rank], count_include_pad=counted)
    if dilations != ones:
        raise InputError("AveragePool with dilations cannot be trained; use dilations of 1")
    around = _around(spec, kernel, strides, dilations, pads)
    # The average covers the input and, with count_include_pad, its padding, but nothing beyond.
    padding = torch_pads(pads if counted else (0,) * 2 * rank)
    beyond = tuple(total - padded for total, padded in zip(around, padding, strict=True))
    pixels = torch.ones(1, 1, *[known_size(d, spec.op) for d in spec.shapes[0][2:]])
    share = mean(functional.pad(functional.pad(pixels, padding, value=1.0), beyond))
    return lambda x: mean(functional.pad(x, around)) / share.to(x)


def _around(
    spec: Spec,
    kernel: tuple[int, ...],
    strides: tuple[int, ...],
    dilations: tuple[int, ...],
    pads: tuple[int, ...],
) -> tuple[int, ...]:
    """Padding, in torch's order, that yields the known output shape; negative where windows skip
    the last elements.
    """
    ends = []
    for axis, size in enumerate(spec.shapes[0][2:]):
        reach = (
            (known_size(spec.output[2 + axis], spec.op) - 1) * strides[axis]
            + dilations[axis] * (kernel[axis] - 1)
            + 1
        )
        ends.append(reach - known_size(size, spec.op) - pads[axis])
    return torch_pads((*pads[: len(ends)], *ends))


CHANNELWISE: dict[str, Callable[[Spec], Function]] = {
    op: needs_constants(make)
    for op, make in {
        "Abs": plain(torch.abs),
        "AveragePool": _pool,
        "Celu": _with(functional.celu, alpha=("alpha", 1.0)),
        "Clip": _clip,
        "Cos": plain(torch.cos),
        "Elu": _with(functional.elu, alpha=("alpha", 1.0)),
        "Erf": plain(torch.erf),
        "Exp": plain(torch.exp),
        "Gelu": _with(functional.gelu, approximate=("approximate", "none")),
        "GlobalAveragePool": _over_space(torch.mean),
        "GlobalMaxPool": _over_space(torch.amax),
        "HardSigmoid": _with(_hard_sigmoid, alpha=("alpha", 0.2), beta=("beta", 0.5)),
        "HardSwish": plain(functional.hardswish),
        "Identity": plain(lambda x: x),
        "LeakyRelu": _with(functional.leaky_relu, negative_slope=("alpha", 0.01)),
        "Log": plain(torch.log),
        "MaxPool": _pool,
        "Mish": plain(functional.mish),
        "Neg": plain(torch.neg),
        "Reciprocal": plain(torch.reciprocal),
        "Relu": plain(functional.relu),
        "Selu": _with(functional.selu),
        "Sigmoid": plain(torch.sigmoid),
        "Sin": plain(torch.sin),
        "Softplus": plain(functional.softplus),
        "Softsign": plain(functional.softsign),
        "Sqrt": plain(torch.sqrt),
        "Tanh": plain(torch.tanh),
        "Zero": plain(torch.zeros_like),
    }.items()
}
