"""A graph as a PyTorch module, for training: a layer per node, as the operators' families make them
(`search_spaces.ir.ops`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import repeat
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from search_spaces.common.errors import InputError
from search_spaces.ir.graph import BATCH, Attrs, Graph, Node
from search_spaces.ir.ops import OPERATORS, get_operator, initializers, is_own, owns_weights
from search_spaces.ir.ops.convolution import CONVOLUTIONS, convolution
from search_spaces.ir.ops.operator import Function, TrainedNode, Weight
from search_spaces.ir.ops.training import not_side_by_side

if TYPE_CHECKING:
    import onnx

MIN_STRIDED_CHANNELS = 8  # see `memory_format_of`


class GraphModule(nn.Module):
    """Runs a `Graph` with fresh trainable weights.

    Nodes that no output depends on are left out. With `replicas` > 1, that many independent
    networks run side by side as groups of channels, which is much faster than one after the other:
    an input (n, channels, …) becomes (n, replicas · channels, …) and the output (n, replicas ·
    outputs), with the channels of each replica adjacent.

    Args:
        graph: of a search space, or read from an ONNX model by `search_spaces.ir.onnx.from_model`.
        replicas: number of networks side by side.

    Raises:
        InputError: an operator cannot be trained, or cannot be trained side by side.
    """

    def __init__(self, graph: Graph, replicas: int = 1) -> None:
        super().__init__()
        self.graph, self.replicas = graph, replicas
        self.nodes = live_nodes(graph)
        self.layers = nn.ModuleList(layer(node, graph, replicas) for node in self.nodes)
        # Values that each node reads: some need the network's input besides, for its batch size.
        self.operands: list[tuple[int, ...]] = []
        for node in self.nodes:
            operands = tuple(node.inputs)
            if needs_batch_size(node.op, node.attrs, len(node.inputs)):
                operands += (graph.inputs[0],)
            self.operands.append(operands)

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.values(*inputs)[self.graph.outputs[0]]

    def values(self, *inputs: Tensor) -> dict[int, Tensor]:
        """All values of the graph, by number."""
        values = dict(zip(self.graph.inputs, inputs, strict=True))
        for node, operands, run in zip(self.nodes, self.operands, self.layers, strict=True):
            arguments = [values[number] for number in operands]
            values[node.outputs[0]] = run(*arguments)
        return values

    def load_weights(self, model: onnx.ModelProto) -> None:
        """Copy the weights of an ONNX model into every replica.

        Args:
            model: what `search_spaces.ir.onnx.to_model` wrote from the same graph.

        Raises:
            InputError: the model was written from another graph.
        """
        import onnx

        stored = iter(model.graph.initializer)
        for node, weight, parameter in self._weights():
            # Skip initializers that are not weights, such as a zero to multiply by.
            suffix = f".{weight.name}"
            tensor = next((entry for entry in stored if entry.name.endswith(suffix)), None)
            if tensor is None or tuple(tensor.dims) != weight.shape:
                raise InputError(
                    f"the ONNX model was not written from this graph: {weight.name} of {node.op} "
                    "missing"
                )
            if parameter is not None:
                values = torch.tensor(onnx.numpy_helper.to_array(tensor))
                _assign(parameter, values, self.replicas)

    def numbers(self) -> dict[int, list[np.ndarray]]:
        """Weights of the first replica by output value of their node, as `to_model` takes them."""
        arrays: dict[int, list[np.ndarray]] = {}
        for node, weight, tensor in self._weights():
            if tensor is not None:
                array = _of_replica(tensor, weight.shape, self.replicas, 0).numpy()
                arrays.setdefault(node.outputs[0], []).append(array)
        return arrays

    def state_of(self, replica: int) -> dict[str, Tensor]:
        """A CPU copy of one replica's tensors, as the `state_dict` of a module with one replica."""
        with without_data():
            alone = GraphModule(self.graph).state_dict()
        return {
            name: _of_replica(tensor, alone[name].shape, self.replicas, replica)
            for name, tensor in self.state_dict().items()
        }

    def _weights(self) -> Iterator[tuple[Node, Weight, Tensor | None]]:
        """Node, description and tensor of each weight, in the order of the ONNX model.

        The tensor is None for unused nodes.
        """
        layers = dict(zip([node.outputs for node in self.nodes], self.layers, strict=True))
        for node in self.graph.nodes:
            is_used = node.outputs in layers
            tensors = _tensors(layers[node.outputs]) if is_used else repeat(None)
            shapes = tuple(self.graph.shapes[value] for value in node.inputs)
            for weight in initializers(node.op, node.attrs, shapes):
                yield node, weight, next(tensors)


# --- the layer of a node


def layer(node: Node, graph: Graph, replicas: int = 1) -> nn.Module:
    """The layer that computes a node, for any number of networks side by side.

    Args:
        node: a node of `graph`.
        graph: gives the shapes of the node's inputs and output.
        replicas: number of networks.

    Raises:
        InputError: the operator cannot be trained, or cannot be trained side by side.
    """
    inputs = len(node.inputs)
    operator = get_operator(node.op)
    trained = TrainedNode(
        op=node.op,
        attrs=node.attrs,
        shapes=tuple([graph.shapes[value] for value in node.inputs]),
        output=graph.shapes[node.outputs[0]],
        replicas=replicas,
    )
    has_weights = is_own(node.op, inputs) or owns_weights(node.op, inputs)
    if operator.layer is not None and has_weights:
        return operator.layer(trained)
    if operator.function is None:
        raise InputError(f"operator {node.op} on {inputs} inputs cannot be trained")
    operation = Operation(operator.function(trained))
    is_of_channels = operator.side_by_side == "channels"
    is_of_operands = operator.side_by_side == "operands" and _has_equal_channels(trained)
    if replicas == 1 or is_of_channels or is_of_operands:
        return operation
    for shape in (*trained.shapes, trained.output):
        if len(shape) < 2 or shape[0] != BATCH:
            raise not_side_by_side(trained)
    return _PerReplica(operation, replicas)


def trainable_operators() -> frozenset[str]:
    """Names of the operators that `layer` supports."""
    names = []
    for name, operator in OPERATORS.items():
        if operator.layer is not None or operator.function is not None:
            names.append(name)
    return frozenset(names)


def needs_batch_size(op: str, attrs: Attrs, inputs: int) -> bool:
    """True if the operator reads the batch size from the network's input.

    The input then becomes its last operand.
    """
    return op == "Expand" and is_own(op, inputs) and 0 in dict(attrs)["shape"]  # type: ignore[operator]


def _has_equal_channels(node: TrainedNode) -> bool:
    """True if all operands have the same samples and channels: then no channel meets another one."""
    first = node.shapes[0]
    if len(first) < 2 or len({shape[:2] for shape in node.shapes}) > 1:
        return False
    # An attribute of several numbers is an operand, too.
    return not any(isinstance(value, tuple) for _, value in node.attrs)


class Operation(nn.Module):
    """An operator without weights."""

    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.function(*inputs)


class _PerReplica(nn.Module):
    """Runs an operator on all replicas by moving them into the batch.

    Samples must be independent.
    """

    def __init__(self, inner: nn.Module, replicas: int) -> None:
        super().__init__()
        self.inner = inner
        self.replicas = replicas

    def forward(self, *inputs: Tensor) -> Tensor:
        batches = []
        for x in inputs:  # (n, replicas · channels, …)
            parts = x.unflatten(1, (self.replicas, -1))
            batches.append(parts.flatten(0, 1))  # (n · replicas, channels, …)
        result = self.inner(*batches)
        parts = result.unflatten(0, (-1, self.replicas))
        return parts.flatten(1, 2)


def live_nodes(graph: Graph) -> list[Node]:
    """The nodes that the graph's outputs depend on, in their order."""
    needed = set(graph.outputs)
    nodes_backwards = []
    for node in reversed(graph.nodes):
        if needed & set(node.outputs):
            needed |= set(node.inputs)
            nodes_backwards.append(node)
    return nodes_backwards[::-1]


def _tensors(module: nn.Module) -> Iterator[Tensor]:
    """The tensors of a layer that an ONNX model stores, which knows no counters of batches."""
    for name, tensor in module.state_dict().items():
        if not name.endswith("num_batches_tracked"):
            yield tensor


def _assign(target: Tensor, value: Tensor, replicas: int) -> None:
    """Copy a value into every replica of a tensor, which are adjacent along its first axis."""
    once = [1] * (value.dim() - 1)  # along the other axes
    target.copy_(value.repeat(replicas, *once).view_as(target))


def _of_replica(tensor: Tensor, shape: Sequence[int], replicas: int, replica: int) -> Tensor:
    """A copy of one replica's part of a tensor, in that shape.

    Scalars such as counters are shared by all replicas.
    """
    whole = tensor.detach().cpu()
    if not whole.dim():
        return whole.clone()
    return whole.reshape(replicas, *shape)[replica].clone()


# --- modules without data, to read names and shapes of their tensors


@contextmanager
def without_data() -> Iterator[None]:
    """Create modules on the meta device, and skip the initialization of their weights.

    To draw normal numbers on the meta device, torch would import its compiler, which takes longer
    than all the rest.
    """
    with torch.device("meta"), _NoInitialWeights():
        yield


class _NoInitialWeights(TorchFunctionMode):
    """A mode in which functions that initialize a tensor leave it as it is."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        options = kwargs or {}
        if func is torch.Tensor.normal_ or getattr(func, "__module__", "") == "torch.nn.init":
            return options["tensor"] if "tensor" in options else args[0]
        return func(*args, **options)


def torch_device(name: str) -> torch.device:
    """The device of this name; InputError if it is not available."""
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"device {name!r} is not available here ({reason}); use cpu") from error
    return device


def memory_format_of(graph: Graph) -> torch.memory_format:
    """The order of the numbers of images in which a network is trained.

    Channels last is faster on CPUs. But there, the backward pass of a strided 1×1 convolution of few
    channels writes beyond its memory, and ends the process (torch 2.13).
    """
    for node in graph.nodes:
        if node.op not in CONVOLUTIONS:
            continue
        attrs: dict[str, Any] = dict(node.attrs)
        shape = graph.shapes[node.inputs[0]]
        is_computed = len(node.inputs) > 1  # its weight, from the network's input
        own = None if is_computed else convolution(node.attrs, shape).weight_shape
        weight: Any = own or graph.shapes[node.inputs[1]]  # (channels, those of a group, *kernel)
        _, of_group, *kernel = weight
        is_strided = set(kernel) == {1} and set(attrs.get("strides", (1,))) != {1}
        if is_strided and of_group == shape[1] and of_group < MIN_STRIDED_CHANNELS:
            return torch.contiguous_format
    return torch.channels_last
