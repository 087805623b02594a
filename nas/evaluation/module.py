"""A graph as a PyTorch module, for training."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import repeat
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from nas.evaluation.layers import layer
from nas.evaluation.operation import needs_batch_size
from search_spaces.common.errors import InputError
from search_spaces.ir.graph import Graph, Node
from search_spaces.ir.ops import initializers
from search_spaces.ir.ops.operator import Weight

if TYPE_CHECKING:
    import onnx


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
        self.operands = [
            (*node.inputs, *graph.inputs[: needs_batch_size(node.op, node.attrs, len(node.inputs))])
            for node in self.nodes
        ]

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.values(*inputs)[self.graph.outputs[0]]

    def values(self, *inputs: Tensor) -> dict[int, Tensor]:
        """All values of the graph, by number."""
        values = dict(zip(self.graph.inputs, inputs, strict=True))
        for node, operands, run in zip(self.nodes, self.operands, self.layers, strict=True):
            values[node.outputs[0]] = run(*[values[v] for v in operands])
        return values

    def load_weights(self, model: onnx.ModelProto) -> None:
        """Copy the weights of an ONNX model into every replica.

        Args:
            model: what `search_spaces.ir.onnx.to_model` wrote from the same graph.

        Raises:
            InputError: the model was written from another graph.
        """
        import onnx

        tensors = iter(model.graph.initializer)
        for node, weight, own in self._weights():
            # Skip initializers that are not weights, such as a zero to multiply by.
            tensor = next((t for t in tensors if t.name.endswith(f".{weight.name}")), None)
            if tensor is None or tuple(tensor.dims) != weight.shape:
                raise InputError(
                    f"the ONNX model was not written from this graph: {weight.name} of {node.op} "
                    "missing"
                )
            if own is not None:
                _assign(own, torch.tensor(onnx.numpy_helper.to_array(tensor)), self.replicas)

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
        """Node, description and tensor of each weight, in the order of the ONNX model; None for
        unused nodes.
        """
        layers = dict(zip([node.outputs for node in self.nodes], self.layers, strict=True))
        for node in self.graph.nodes:
            own = _tensors(layers[node.outputs]) if node.outputs in layers else repeat(None)
            for weight in initializers(
                node.op, node.attrs, tuple(self.graph.shapes[v] for v in node.inputs)
            ):
                yield node, weight, next(own)


def live_nodes(graph: Graph) -> list[Node]:
    """The nodes that the graph's outputs depend on, in their order."""
    needed, nodes_backwards = set(graph.outputs), []
    for node in reversed(graph.nodes):
        if needed & set(node.outputs):
            needed |= set(node.inputs)
            nodes_backwards.append(node)
    return nodes_backwards[::-1]


def _tensors(module: nn.Module) -> Iterator[Tensor]:
    return (
        t for name, t in module.state_dict().items() if not name.endswith("num_batches_tracked")
    )


def _assign(target: Tensor, value: Tensor, replicas: int) -> None:
    target.copy_(value.repeat(replicas, *[1] * (value.dim() - 1)).view_as(target))


def _of_replica(tensor: Tensor, shape: Sequence[int], replicas: int, replica: int) -> Tensor:
    """A copy of one replica's part of a tensor, in that shape. Scalars such as counters are shared
    by all replicas.
    """
    parts = tensor.detach().cpu()
    return (parts.reshape(replicas, *shape)[replica] if parts.dim() else parts).clone()


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
    def __torch_function__(
        self,
        func: Callable,
        types: Sequence[type],
        args: tuple = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        given = kwargs or {}
        if func is torch.Tensor.normal_ or getattr(func, "__module__", "") == "torch.nn.init":
            return given["tensor"] if "tensor" in given else args[0]
        return func(*args, **given)
