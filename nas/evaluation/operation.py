"""The specification of a node from which a torch function is made, and helpers that all operators
share.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from search_spaces.common.errors import InputError
from search_spaces.ir import standard
from search_spaces.ir.graph import Attrs, Shape
from search_spaces.ir.ops import is_own

Function = Callable[..., Tensor]


class Spec(NamedTuple):
    """A node as layers see it.

    Attributes:
        op: name of the operator.
        attrs: attributes by name.
        given: the same attributes as the graph stores them.
        shapes: shapes of the inputs.
        output: shape of the first output.
        replicas: number of networks side by side.
    """

    op: str
    attrs: dict[str, Any]
    given: Attrs
    shapes: tuple[Shape, ...]
    output: Shape
    replicas: int


def needs_batch_size(op: str, attrs: Attrs, inputs: int) -> bool:
    """True if the operator reads the batch size from the network's input, which then becomes its
    last operand.
    """
    return op == "Expand" and is_own(op, inputs) and 0 in dict(attrs)["shape"]  # type: ignore[operator]


def torch_pads(pads: tuple[int, ...]) -> tuple[int, ...]:
    """Convert ONNX padding (all starts, then all ends) to torch's order (start and end per axis,
    last axis first).
    """
    rank = len(pads) // 2
    return tuple(pad for axis in reversed(range(rank)) for pad in (pads[axis], pads[axis + rank]))


def known_size(size: int | str, op: str) -> int:
    """The size, which must be a number: InputError for a symbolic one."""
    if isinstance(size, str):
        raise InputError(
            f"{op} on the symbolic size {size!r} cannot be trained: fix the model's input size"
        )
    return size


def with_constants(spec: Spec, function: Function) -> Function:
    """Bind the constant operands of an ONNX operator, so that the function takes the other operands
    only.
    """
    operands = standard.call(spec.op, spec.given, spec.shapes).operands
    if all(isinstance(operand, int) for operand in operands):
        return function
    constants = [torch.from_numpy(o) if isinstance(o, np.ndarray) else o for o in operands]
    return lambda *inputs: function(
        *[
            inputs[o] if isinstance(o, int) else o if o is None else o.to(inputs[0].device)
            for o in constants
        ]
    )


def needs_constants(make: Callable[[Spec], Function]) -> Callable[[Spec], Function]:
    """Guard a maker of functions that reads all operands except the first from constant
    attributes.
    """

    def checked(spec: Spec) -> Function:
        if len(spec.shapes) != 1:
            raise InputError(
                f"{spec.op} cannot be trained unless all operands except the first are constants"
            )
        if spec.attrs.get("output", 0):
            raise InputError(
                f"output {spec.attrs['output']} of {spec.op} cannot be trained; only the first can"
            )
        return make(spec)

    return checked


def plain(function: Function) -> Callable[[Spec], Function]:
    """A maker that returns the same function for every node."""
    return lambda spec: function
