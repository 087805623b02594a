"""Different networks side by side: one module that runs many graphs, for their training on a GPU.

Nodes of different networks that compute the same operator on equal shapes run as one, as replicas
of `nas.evaluation.module.layer`: 110 networks of a generated space have 9 groups of nodes each, on
average, instead of 57 nodes.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from nas.evaluation.module import layer, live_nodes, needs_batch_size
from search_spaces.common.errors import InputError
from search_spaces.ir.graph import Graph, Node

# Elements of an input from which a convolution on a GPU is a batched matrix product
LARGE = 2_000_000

_At = tuple[int, int]  # number of a network, and one of its values
_Kind = tuple[object, ...]  # nodes of equal kind can run as one


class _Group(NamedTuple):
    """Nodes that run as one. A network may have several of them."""

    layer: nn.Module
    operands: list[tuple[_At, ...]]  # of each operand, the nodes' values
    results: tuple[_At, ...]


class SideBySide(nn.Module):
    """Networks with fresh weights.

    Maps images (B, channels, H, W) to outputs (networks, B, classes).

    Normalization uses the statistics of the batch, also in evaluation.

    Args:
        graphs: networks with one input and one output each, of equal shapes.

    Raises:
        InputError: an operator cannot be trained.
    """

    owners: Tensor
    sizes: Tensor

    def __init__(self, graphs: Sequence[Graph]) -> None:
        super().__init__()
        self.graphs = graphs
        self.groups = [group for members in _schedule(graphs) for group in _groups(graphs, members)]
        self.layers = nn.ModuleList(group.layer for group in self.groups)

        # Each weight is one part per network, one behind the other: its network, and its size.
        owners = []
        sizes = []
        for group in self.groups:
            for weight in group.layer.parameters():
                for network, _ in group.results:
                    owners.append(network)
                    sizes.append(weight.numel() // len(group.results))
        self.register_buffer("owners", torch.tensor(owners, dtype=torch.long))
        self.register_buffer("sizes", torch.tensor(sizes, dtype=torch.long))

    def forward(self, images: Tensor) -> Tensor:
        values: dict[_At, Tensor] = {}
        for i, graph in enumerate(self.graphs):
            for v in graph.inputs:
                values[i, v] = images
        # Results of whole groups: what the next group often reads as they are, without a copy.
        together: dict[tuple[_At, ...], Tensor] = {}
        for group in self.groups:
            inputs = []
            for operand in group.operands:
                whole = together.get(operand)
                if whole is None:
                    whole = _joined([values[at] for at in operand])
                inputs.append(whole)
            result = group.layer(*inputs)
            together[group.results] = result
            count = len(group.results)
            parts = result.chunk(count, 1) if count > 1 else [result]
            values.update(zip(group.results, parts, strict=True))
        outputs = [values[i, graph.outputs[0]] for i, graph in enumerate(self.graphs)]
        return torch.stack(outputs)

    def clip_gradients(self, max_norm: float) -> None:
        """Scale the gradient of each network that has a larger norm down to it."""
        weights = list(self.parameters())
        gradients = []
        for weight in weights:
            gradient = torch.zeros_like(weight) if weight.grad is None else weight.grad
            gradients.append(gradient.flatten())
        flat = torch.cat(gradients)

        # 1. The norm of each network's gradient.                                        (networks,)
        squares = torch.segment_reduce(flat.square(), "sum", lengths=self.sizes)
        totals = squares.new_zeros(len(self.graphs)).index_add_(0, self.owners, squares)
        scales = (max_norm / (totals.sqrt() + 1e-6)).clamp(max=1)

        # 2. Each network's parts of all weights, scaled.
        flat = flat * scales[self.owners].repeat_interleave(self.sizes)
        parts = flat.split([weight.numel() for weight in weights])
        for weight, part in zip(weights, parts, strict=True):
            weight.grad = part.view_as(weight)


def _joined(parts: list[Tensor]) -> Tensor:
    return torch.cat(parts, 1) if len(parts) > 1 else parts[0]


def _schedule(graphs: Sequence[Graph]) -> list[list[tuple[int, Node]]]:
    """The networks' nodes in an order in which they can run.

    A list holds nodes of equal kind, each with the number of its network. Of the kinds that can run,
    the one with the least mean depth of its remaining nodes is next (Neubig et al. 2017, "On-the-fly
    Operation Batching in Dynamic Computation Graphs").
    """
    kinds: dict[_At, _Kind] = {}
    depths: dict[_At, int] = {}
    waiting: dict[_At, int] = {}  # number of inputs that have not run
    readers: dict[_At, list[tuple[int, Node]]] = defaultdict(list)
    ready: dict[_Kind, list[tuple[int, Node]]] = defaultdict(list)
    total = Counter[_Kind]()  # depths of remaining nodes
    left = Counter[_Kind]()  # their numbers
    # 1. The kind and the depth of each node, and what it waits for.
    for i, graph in enumerate(graphs):
        for node in live_nodes(graph):
            at = (i, node.outputs[0])
            sources = set(node.inputs) - set(graph.inputs)
            kind: _Kind = (node.op, node.attrs, *(graph.shapes[v] for v in node.inputs))
            kinds[at] = kind
            depths[at] = 1 + max((depths[i, v] for v in sources), default=0)
            waiting[at] = len(sources)
            total[kind] += depths[at]
            left[kind] += 1
            for v in sources:
                readers[i, v].append((i, node))
            if not sources:
                ready[kind].append((i, node))

    # 2. One kind after the other: all nodes of it that can run.
    members_of_groups = []
    while ready:
        kind = min(ready, key=lambda each: total[each] / left[each])
        members = sorted(ready.pop(kind), key=lambda member: (member[0], member[1].outputs))
        members_of_groups.append(members)
        for i, node in members:
            total[kind] -= depths[i, node.outputs[0]]
            left[kind] -= 1
            for reader in readers[i, node.outputs[0]]:
                at = i, reader[1].outputs[0]
                waiting[at] -= 1
                if not waiting[at]:
                    ready[kinds[at]].append(reader)
    return members_of_groups


def _groups(graphs: Sequence[Graph], members: list[tuple[int, Node]]) -> list[_Group]:
    """One group of nodes of equal kind, or one per node if they cannot run as one."""
    first, node = members[0]
    try:
        module = _layer(node, graphs[first], len(members))
    except InputError:
        if len(members) == 1:
            raise
        return [group for member in members for group in _groups(graphs, [member])]
    operands = []
    for k in range(len(node.inputs)):
        operands.append(tuple([(i, member.inputs[k]) for i, member in members]))
    if needs_batch_size(node.op, node.attrs, len(node.inputs)):
        operands.append(tuple([(i, graphs[i].inputs[0]) for i, _ in members]))
    results = tuple([(i, member.outputs[0]) for i, member in members])
    return [_Group(module, operands, results)]


def _layer(node: Node, graph: Graph, replicas: int) -> nn.Module:
    """The layer of a node: large convolutions run as matrix products, and it keeps no statistics."""
    holder = nn.Sequential(layer(node, graph, replicas))
    for parent in list(holder.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.Conv2d) and child.groups == replicas > 1:
                setattr(parent, name, _Convolution(child))
            elif isinstance(child, _BatchNorm):
                child.track_running_stats = False
                child.running_mean = child.running_var = child.num_batches_tracked = None
    return holder[0]


class _Convolution(nn.Module):
    """A convolution of replicas.

    Large ones on a GPU run as batched matrix products, which are faster than groups.
    """

    def __init__(self, conv: nn.Conv2d) -> None:
        super().__init__()
        self.conv = conv

    def forward(self, x: Tensor) -> Tensor:
        conv = self.conv
        if not x.is_cuda or x.numel() < LARGE:
            return conv(x)
        y: Tensor = MatrixConvolution.apply(
            x, conv.weight, conv.groups, conv.stride, conv.padding, conv.dilation
        )
        return y if conv.bias is None else y + conv.bias[:, None, None]


class MatrixConvolution(torch.autograd.Function):
    """Convolution of x (B, C, H, W) with weights (O, C / groups, k, l), as matrix products.

    On a GPU, factors have 16 bits. `forward` takes x, weights, groups, strides, padding (equal on
    both sides) and dilations.
    """

    @staticmethod
    def forward(ctx, x, weight, groups, strides, padding, dilations):  # type: ignore[no-untyped-def]
        kind = torch.bfloat16 if x.is_cuda else x.dtype
        columns, size = _columns(x.to(kind), groups, weight.shape[2:], strides, padding, dilations)
        kernels = weight.view(groups, -1, weight[0].numel()).to(kind)
        ctx.save_for_backward(columns, kernels)
        ctx.settings = x.shape, weight.shape, groups, strides, padding, dilations, size
        y = (kernels @ columns).view(len(weight), len(x), *size).transpose(0, 1)
        return y.to(x.dtype, memory_format=torch.contiguous_format)

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        columns, kernels = ctx.saved_tensors
        shape, weight_shape, groups, strides, padding, dilations, size = ctx.settings
        outputs = gradient.transpose(0, 1).to(columns.dtype).reshape(groups, -1, columns.shape[2])
        of_weight = (outputs @ columns.mT).float().view(weight_shape)
        if not ctx.needs_input_grad[0]:
            return None, of_weight, *[None] * 4
        parts = (kernels.mT @ outputs).view(shape[1], *weight_shape[2:], shape[0], *size)
        of_x = _summed(parts, shape, strides, padding, dilations).to(gradient.dtype)
        return of_x, of_weight, *[None] * 4


_Pair = Sequence[int]


def _columns(
    x: Tensor, groups: int, kernel: _Pair, strides: _Pair, padding: _Pair, dilations: _Pair
) -> tuple[Tensor, list[int]]:
    """What each output reads of x (B, C, H, W), and the output's size P, Q.

    The shape of what they read is (groups, C / groups · k · l, B · P · Q).
    """
    above, beside = padding
    x = functional.pad(x, (beside, beside, above, above))
    batch, channels, *lengths = x.shape

    # 1. The output's size.
    size = []
    for i, length in enumerate(lengths):
        reach = dilations[i] * (kernel[i] - 1)
        size.append((length - reach - 1) // strides[i] + 1)

    # 2. A view in which each element of the kernel and each output has an axis of its own.
    batch_step, channel_step, *steps = x.stride()
    inside = [step * dilation for step, dilation in zip(steps, dilations, strict=True)]
    between = [step * stride for step, stride in zip(steps, strides, strict=True)]
    shape = (channels, *kernel, batch, *size)
    columns = x.as_strided(shape, (channel_step, *inside, batch_step, *between))
    return columns.reshape(groups, -1, batch * size[0] * size[1]), size


def _summed(
    parts: Tensor, shape: torch.Size, strides: _Pair, padding: _Pair, dilations: _Pair
) -> Tensor:
    """The transpose of `_columns`: parts (C, k, l, B, P, Q), added where they were read.

    The result has the shape (B, C, H, W).
    """
    batch, channels, height, width = shape
    above, beside = padding
    size = (height + 2 * above, width + 2 * beside)
    out = torch.zeros(channels, batch, *size, device=parts.device)
    _, kernel_rows, kernel_columns, _, *windows = parts.shape
    for i in range(kernel_rows):
        for j in range(kernel_columns):
            rows = _read_by(i * dilations[0], strides[0], windows[0])
            columns = _read_by(j * dilations[1], strides[1], windows[1])
            out[:, :, rows, columns] += parts[:, i, j]
    inside = out[:, :, above : above + height, beside : beside + width]
    return inside.transpose(0, 1)


def _read_by(first: int, stride: int, windows: int) -> slice:
    """The places that one element of the kernel reads, of all windows."""
    return slice(first, first + stride * (windows - 1) + 1, stride)
