"""Attributes of convolutions: complete, with defaults filled in, and in their shortest form."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

from search_spaces.common.errors import InputError
from search_spaces.ir.graph import Attrs, Shape, Value

CONVOLUTIONS = ("Conv", "ConvBn", "ConvBnRelu6")


def pair(value: int | tuple[int, ...]) -> tuple[int, int]:
    """Height and width of a kernel, stride or dilation; one number stands for both."""
    return (value, value) if isinstance(value, int) else (value[0], value[1])


def each(value: int | tuple[int, ...], rank: int) -> tuple[int, ...]:
    """A size per spatial dimension; one number stands for all `rank` dimensions."""
    return (value,) * rank if isinstance(value, int) else tuple(value)


def same_pads(kernel: tuple[int, ...], dilations: tuple[int, ...] | None = None) -> tuple[int, ...]:
    """Padding that keeps the size at stride 1 (odd kernels), in ONNX's order: top, left, bottom,
    right.
    """
    sides = tuple(
        [d * (k - 1) // 2 for k, d in zip(kernel, dilations or (1,) * len(kernel), strict=True)]
    )
    return (*sides, *sides)


class Convolution(NamedTuple):
    """Attributes of a convolution with defaults filled in."""

    in_channels: int
    channels: int
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    pads: tuple[int, ...]
    dilations: tuple[int, ...]
    group: int
    bias: bool

    @property
    def weight_shape(self) -> tuple[int, ...]:
        """(channels, in_channels / group, *kernel)"""
        return (self.channels, self.in_channels // self.group, *self.kernel)

    @property
    def attrs(self) -> Attrs:
        """The attributes in their shortest form, sorted by name and without defaults."""
        ones = (1,) * len(self.kernel)
        depthwise = self.group == self.in_channels > 1
        given: dict[str, tuple[Value, Value]] = {
            "bias": (int(self.bias), 0),
            "channels": (self.channels, self.in_channels),
            "depthwise": (int(depthwise), 0),
            "dilations": (self.dilations, ones),
            "group": (1 if depthwise else self.group, 1),
            "pads": (self.pads, same_pads(self.kernel, self.dilations)),
            "strides": (self.strides, ones),
        }
        kept = {name: value for name, (value, default) in given.items() if value != default}
        return tuple(sorted({**kept, "kernel": self.kernel}.items()))


@lru_cache(maxsize=65536)
def convolution(attrs: Attrs, shape: Shape) -> Convolution:
    """Parse the attributes of a convolution.

    Args:
        attrs: attributes of a node of `CONVOLUTIONS`.
        shape: (N, channels, …) of its input.

    Raises:
        InputError: if attributes and shape do not match.
    """
    given: dict[str, Any] = dict(attrs)
    if len(shape) < 3 or isinstance(shape[1], str):
        raise InputError(f"Conv needs an input of shape (N, channels, height, width), not {shape}")
    if "kernel" not in given:
        raise InputError("Conv needs the attribute kernel = [height, width]")
    rank = len(shape) - 2
    kernel, dilations = each(given["kernel"], rank), each(given.get("dilations", 1), rank)
    conv = Convolution(
        in_channels=shape[1],
        channels=int(given.get("channels", shape[1])),
        kernel=kernel,
        strides=each(given.get("strides", 1), rank),
        pads=given["pads"] if "pads" in given else same_pads(kernel, dilations),
        dilations=dilations,
        group=shape[1] if given.get("depthwise") else int(given.get("group", 1)),
        bias=bool(given.get("bias", 0)),
    )
    if {len(conv.kernel), len(conv.strides), len(conv.dilations), len(conv.pads) / 2} != {rank}:
        raise InputError(
            f"Conv does not take attributes {dict(attrs)} on an input of shape {shape}"
        )
    if min(conv.channels, conv.group, *kernel, *conv.strides, *dilations) < 1:
        raise InputError(f"Conv sizes must be positive: {dict(attrs)}")
    if conv.in_channels % conv.group or conv.channels % conv.group:
        raise InputError(
            f"group = {conv.group} must divide {conv.in_channels} input and {conv.channels} output "
            "channels"
        )
    return conv
