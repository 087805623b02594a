"""What a torch function is made from: a node with its shapes; and helpers that all operators share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from search_spaces.common.errors import InputError
from search_spaces.graph import standard
from search_spaces.graph.ir import Attrs, Shape
from search_spaces.graph.operators import is_own

Function = Callable[..., Tensor]


class Spec(NamedTuple):
    """A node as a layer is made from it: operator and attributes (as dictionary and as given), shapes, replicas."""

    op: str
    attrs: dict[str, Any]
    given: Attrs
    shapes: tuple[Shape, ...]
    output: Shape
    replicas: int


def needs_batch_size(op: str, attrs: Attrs, inputs: int) -> bool:
    """Whether the operator reads the batch size from the network's input, which is then a further operand."""
    return op == "Expand" and is_own(op, inputs) and 0 in dict(attrs)["shape"]  # type: ignore[operator]


def torch_pads(pads: tuple[int, ...]) -> tuple[int, ...]:
    """ONNX's padding (all beginnings, all ends) in torch's order: last dimension first, its two sides together."""
    rank = len(pads) // 2
    return tuple(pad for axis in reversed(range(rank)) for pad in (pads[axis], pads[axis + rank]))


def known_size(size: int | str, op: str) -> int:
    if isinstance(size, str):
        raise InputError(f"{op} on a size of {size!r} cannot be trained: fix the model's input size")
    return size


def with_constants(spec: Spec, function: Function) -> Function:
    """The function of all operands of an ONNX operator, as one of those that are no constants."""
    operands = standard.call(spec.op, spec.given, spec.shapes).operands
    if all(isinstance(operand, int) for operand in operands):
        return function
    constants = [torch.from_numpy(o) if isinstance(o, np.ndarray) else o for o in operands]
    return lambda *inputs: function(
        *[inputs[o] if isinstance(o, int) else o if o is None else o.to(inputs[0].device) for o in constants]
    )


def needs_constants(make: Callable[[Spec], Function]) -> Callable[[Spec], Function]:
    """For operators whose operands but the first are read as attributes."""

    def checked(spec: Spec) -> Function:
        if len(spec.shapes) != 1:
            raise InputError(f"{spec.op} with operands that are no constants cannot be trained")
        if spec.attrs.get("output", 0):
            raise InputError(f"output {spec.attrs['output']} of {spec.op} cannot be trained; only the first can")
        return make(spec)

    return checked


def plain(function: Function) -> Callable[[Spec], Function]:
    return lambda spec: function
