"""Quantization-aware fine-tuning: a module that computes as its int8 file will, and still learns.

    x ─▶ fake quantization ─▶ Conv, Linear ─▶ …
                                 ▲
              weight ─▶ fake quantization, a scale per channel

A fake quantization rounds to the 256 values that 8 bits hold, and passes gradients through where it
does not clip (arXiv 1712.05877). Ranges of activations are moving averages. These and the rounding
are torch's own (`torch.ao.quantization.FusedMovingAvgObsFakeQuantize`). The layers are wrapped in
place by parametrizations and hooks, not replaced: any module works, its classes and its forward
stay, and so does a user's own training of it.

Torch's `prepare_qat` replaces layers by classes of its own and wants stubs in the module's code;
the newer flow of torchao (`pt2e`) returns an exported graph without `train` and `eval`, which no
training code of a user survives.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.ao.quantization import (
    FusedMovingAvgObsFakeQuantize,
    MovingAverageMinMaxObserver,
    MovingAveragePerChannelMinMaxObserver,
)
from torch.nn.utils import parametrize

LAYERS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear)
INPUT_RANGE = "input_range_of_int8"
_WEIGHT = re.compile(r"parametrizations\.(\w+)\.original$")


def with_fake_quantization(module: nn.Module) -> nn.Module:
    """Make convolutions and linear layers of a module compute on 8-bit inputs and weights.

    The module is changed in place.

    Args:
        module: the module with the weights to start from.

    Returns:
        The module. The names of its tensors differ from before: see `plain_state`.
    """
    for layer in list(module.modules()):
        if not isinstance(layer, LAYERS) or parametrize.is_parametrized(layer):
            continue
        # Weights: symmetric, from -127 to 127, a scale for each output channel.
        weights = FusedMovingAvgObsFakeQuantize(
            observer=MovingAveragePerChannelMinMaxObserver,
            quant_min=-127,
            quant_max=127,
            dtype=torch.qint8,
            qscheme=torch.per_channel_symmetric,
            ch_axis=0,
            averaging_constant=1.0,  # the range of the weight as it is now
        )
        # Activations: from 0 to 255 with a zero point, one scale.
        inputs = FusedMovingAvgObsFakeQuantize(
            observer=MovingAverageMinMaxObserver,
            quant_min=0,
            quant_max=255,
            dtype=torch.quint8,
            qscheme=torch.per_tensor_affine,
        )
        parametrize.register_parametrization(layer, "weight", weights, unsafe=True)
        layer.add_module(INPUT_RANGE, inputs)
        layer.register_forward_pre_hook(_quantize_input)
    module.register_forward_pre_hook(_freeze_ranges)
    return module


def _quantize_input(layer: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
    x, *rest = args
    return (getattr(layer, INPUT_RANGE)(x), *rest)


def _freeze_ranges(module: nn.Module, args: tuple[Any, ...]) -> None:
    """Observe ranges of activations in training mode only, as running statistics are.

    The first ones are always observed.
    """
    for layer in module.modules():
        ranges = getattr(layer, INPUT_RANGE, None)
        if ranges is not None:
            is_new = not ranges.activation_post_process.min_val.isfinite().all()
            ranges.observer_enabled.fill_(int(module.training or bool(is_new)))


def plain_state(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of the module without fake quantization, from those of the module with it."""
    plain = {}
    for name, tensor in state.items():
        if f"{INPUT_RANGE}." in name or re.search(r"parametrizations\.\w+\.0\.", name):
            continue
        plain[_WEIGHT.sub(r"\1", name)] = tensor
    return plain
