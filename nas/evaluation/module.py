"""An architecture's graph as a PyTorch module, for training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from nas.evaluation.layers import layer
from nas.evaluation.operation import needs_batch_size
from nas.evaluation.shapes import without_data
from search_spaces.common.errors import InputError
from search_spaces.graph.ir import Graph, Node
from search_spaces.graph.owned_weights import Weight, initializers

if TYPE_CHECKING:
    import onnx


class GraphModule(nn.Module):
    """Runs a `Graph` (as `search_spaces.onnx.from_model` reads it from any ONNX model) with fresh trainable weights.

    Nodes whose result nobody uses are left out: they cost time and change nothing. Input (n, channels, height, width)
    float, output (n, classes). With `replicas` > 1, that many independent networks run side by side as groups of
    channels, which costs far less than one after the other: input (n, replicas · channels, height, width), output
    (n, replicas · classes), each replica's channels in one piece.

    Raises InputError for an operator that cannot be trained, or not side by side.
    """

    def __init__(self, graph: Graph, replicas: int = 1) -> None:
        super().__init__()
        self.graph, self.replicas = graph, replicas
        live = _live(graph)
        self.nodes = [node for node in graph.nodes if live & set(node.outputs)]
        self.layers = nn.ModuleList(layer(node, graph, replicas) for node in self.nodes)
        self.operands = [
            (*node.inputs, *graph.inputs[: needs_batch_size(node.op, node.attrs, len(node.inputs))])
            for node in self.nodes
        ]

    def forward(self, *inputs: Tensor) -> Tensor:
        values = dict(zip(self.graph.inputs, inputs, strict=True))
        for node, operands, run in zip(self.nodes, self.operands, self.layers, strict=True):
            values[node.outputs[0]] = run(*[values[v] for v in operands])
        return values[self.graph.outputs[0]]

    def load_weights(self, model: onnx.ModelProto) -> None:
        """Take over the weights of the ONNX model that `search_spaces.onnx.to_model` wrote from the same graph.

        Every replica gets them. Raises InputError for the model of another graph.
        """
        import onnx

        tensors = iter(model.graph.initializer)
        for node, weight, own in self._weights():
            # Initializers that are no weights, such as a zero to multiply by, stand between the weights.
            found = next((t for t in tensors if t.name.endswith(f".{weight.name}")), None)
            if found is None or tuple(found.dims) != weight.shape:
                raise InputError(f"the ONNX model was not written from this graph: no {weight.name} of {node.op}")
            if own is not None:
                _assign(own, torch.tensor(onnx.numpy_helper.to_array(found)), self.replicas)

    def numbers(self) -> dict[int, list[np.ndarray]]:
        """The weights of the first replica as `search_spaces.onnx.to_model` takes them; without unused nodes."""
        found: dict[int, list[np.ndarray]] = {}
        for node, weight, tensor in self._weights():
            if tensor is not None:
                array = _of_replica(tensor, weight.shape, self.replicas, 0).numpy()
                found.setdefault(node.outputs[0], []).append(array)
        return found

    def state_of(self, replica: int) -> dict[str, Tensor]:
        """A copy on the CPU of one replica's tensors, by the names that they have in a module of one replica."""
        with without_data():
            alone = GraphModule(self.graph).state_dict()
        return {
            name: _of_replica(tensor, alone[name].shape, self.replicas, replica)
            for name, tensor in self.state_dict().items()
        }

    def _weights(self) -> Iterator[tuple[Node, Weight, Tensor | None]]:
        """Node, description and tensor of each weight of the ONNX model, in its order; no tensor for dead nodes."""
        layers = dict(zip([node.outputs for node in self.nodes], self.layers, strict=True))
        for node in self.graph.nodes:
            own = _tensors(layers[node.outputs]) if node.outputs in layers else repeat(None)
            for weight in initializers(node.op, node.attrs, tuple(self.graph.shapes[v] for v in node.inputs)):
                yield node, weight, next(own)


def _live(graph: Graph) -> set[int]:
    """Values that the graph's outputs depend on."""
    needed = set(graph.outputs)
    for node in reversed(graph.nodes):
        if needed & set(node.outputs):
            needed |= set(node.inputs)
    return needed


def _tensors(module: nn.Module) -> Iterator[Tensor]:
    return (t for name, t in module.state_dict().items() if not name.endswith("num_batches_tracked"))


def _assign(target: Tensor, value: Tensor, replicas: int) -> None:
    target.copy_(value.repeat(replicas, *[1] * (value.dim() - 1)).view_as(target))


def _of_replica(tensor: Tensor, shape: Sequence[int], replicas: int, replica: int) -> Tensor:
    """A copy of one replica's part, of that shape; counters are the same for all."""
    parts = tensor.detach().cpu()
    return (parts.reshape(replicas, *shape)[replica] if parts.dim() else parts).clone()
