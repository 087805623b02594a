"""How operators are computed by torch, also for several networks at once: what families share.

A family's makers get a `TrainedNode`, and return a torch function, or a layer with weights. They
import torch when they are called: nothing here or in a family loads it. Layers that torch does not
have are in `search_spaces.ir.ops.layers`.

Networks side by side are *replicas*: a value (n, channels, …) becomes (n, replicas · channels, …),
with the channels of each replica adjacent. Layers with weights become grouped ones;
`Operator.side_by_side` says what is done with functions.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import numpy as np

from search_spaces.common.errors import InputError
from search_spaces.ir import standard
from search_spaces.ir.ops.operator import Function, MakeFunction, TrainedNode

if TYPE_CHECKING:
    from torch import Tensor

# --- makers of functions


def torch_function(name: str) -> Function:
    """A function of torch by its full name, such as `torch.nn.functional.relu`."""
    module, _, function = name.rpartition(".")
    return getattr(importlib.import_module(module), function)


def plain(name: str) -> MakeFunction:
    """A maker of one and the same function of torch for every node."""
    return lambda node: torch_function(name)


def of_first(make: MakeFunction) -> MakeFunction:
    """A maker of functions of the first operand; it reads all others from constant attributes."""

    def checked(node: TrainedNode) -> Function:
        output = node.attributes.get("output", 0)
        if len(node.shapes) != 1:
            raise InputError(
                f"{node.op} cannot be trained unless all operands except the first are constants"
            )
        if output:
            raise InputError(f"output {output} of {node.op} cannot be trained; only the first can")
        return make(node)

    return checked


def of_all(make: MakeFunction) -> MakeFunction:
    """A maker of functions of all operands.

    Constant operands are bound, so that the function takes the others only.
    """

    def with_constants(node: TrainedNode) -> Function:
        import torch

        function = make(node)
        # An operand is the number of an input, a constant, or None if it is left out.
        operands = standard.call(node.op, node.attrs, node.shapes).operands
        if all(isinstance(operand, int) for operand in operands):
            return function
        sources: list[Any] = []
        for operand in operands:
            is_constant = isinstance(operand, np.ndarray)
            sources.append(torch.from_numpy(operand) if is_constant else operand)

        def bound(*inputs: Tensor) -> Tensor:
            arguments: list[Tensor | None] = []
            for source in sources:
                if isinstance(source, int):
                    arguments.append(inputs[source])
                elif source is None:
                    arguments.append(None)
                else:
                    arguments.append(source.to(inputs[0].device))
            return function(*arguments)

        return bound

    return with_constants


# --- helpers of makers


def torch_pads(pads: tuple[int, ...]) -> tuple[int, ...]:
    """Convert ONNX padding to torch's order.

    ONNX has all starts, then all ends; torch has start and end per axis, the last axis first.
    """
    rank = len(pads) // 2
    sides: list[int] = []
    for axis in reversed(range(rank)):
        sides += [pads[axis], pads[axis + rank]]
    return tuple(sides)


def trained_size(size: int | str, op: str) -> int:
    """The size, which must be a number: InputError for a symbolic one."""
    if isinstance(size, str):
        raise InputError(
            f"{op} on the symbolic size {size!r} cannot be trained: fix the model's input size"
        )
    return size


def of_rank(node: TrainedNode, names: dict[int, str]) -> Any:
    """The class of `torch.nn` for the rank of a node's input; `names` by rank."""
    from torch import nn

    shape = node.shapes[0]
    if len(shape) not in names:
        raise InputError(f"{node.op} on an input of shape {shape} cannot be trained")
    return getattr(nn, names[len(shape)])


def check_alone(node: TrainedNode) -> None:
    """Refuse to compute several networks side by side."""
    if node.replicas > 1:
        raise not_side_by_side(node)


def not_side_by_side(node: TrainedNode) -> InputError:
    """The error for an operator that cannot compute several networks at once."""
    return InputError(
        f"networks with {node.op} on shapes {node.shapes} cannot train side by side: train one by "
        "one"
    )
