"""Exact costs of a graph: parameters, multiply-accumulates, activations, depth."""

from __future__ import annotations

from math import prod

from search_spaces.common.errors import InputError
from search_spaces.ir.graph import Graph
from search_spaces.ir.operator_costs import multiply_accumulates
from search_spaces.ir.owned_weights import RECURRENT, weights

SEVERAL_OUTPUTS = frozenset(
    {*RECURRENT, "Attention", "LinearAttention", "CausalConvWithState"}
)  # that are counted


def graph_params(graph: Graph) -> int:
    """Number of trained weights, without the running statistics of batch normalization."""
    return sum(
        prod(weight.shape)
        for node in graph.nodes
        for weight in weights(node.op, node.attrs, tuple([graph.shapes[v] for v in node.inputs]))
        if weight.trained
    )


def graph_flops(graph: Graph) -> int:
    """Multiply-accumulates of all operators that multiply more than element by element, see
    `multiply_accumulates`.

    The count is for one input, or for the batch size that the graph fixes.

    Raises:
        InputError: if a size is not a number, or it is not known what an operator costs.
    """
    total, seen = 0, set()
    for node in graph.nodes:
        if (
            node.op in SEVERAL_OUTPUTS and len(node.inputs) > 1
        ):  # one node per used output, but one computation
            computation = (node.op, node.inputs, tuple([a for a in node.attrs if a[0] != "output"]))
            if computation in seen:
                continue
            seen.add(computation)
        shapes = tuple([graph.shapes[v] for v in node.inputs])
        try:
            total += multiply_accumulates(node.op, node.attrs, shapes)
        except InputError as error:
            raise InputError(
                f"{node.op} of {', '.join(str(list(shape)) for shape in shapes)}: {error}"
            ) from error
    return total


def graph_activations(graph: Graph) -> int:
    """Number of elements of all operators' outputs for one input."""
    return sum(
        prod(int(d) for d in graph.shapes[v][1:]) for node in graph.nodes for v in node.outputs
    )


def graph_peak_activations(graph: Graph) -> int:
    """Largest number of elements in memory at one time for one input, without weights, if nodes run
    in order.
    """
    last = {v: i for i, node in enumerate(graph.nodes) for v in node.inputs}
    last |= dict.fromkeys(graph.outputs, len(graph.nodes))
    size = [prod(int(d) for d in shape[1:]) for shape in graph.shapes]
    held = peak = sum(size[v] for v in graph.inputs)
    for i, node in enumerate(graph.nodes):
        held += sum(size[v] for v in node.outputs)
        peak = max(peak, held)
        held -= sum(size[v] for v in {*node.inputs, *node.outputs} if last.get(v, i) == i)
    return peak


def graph_depth(graph: Graph) -> int:
    """Number of operators on the longest path to an output."""
    depth = [0] * len(graph.shapes)
    for node in graph.nodes:
        at = 1 + max((depth[v] for v in node.inputs), default=0)
        for v in node.outputs:
            depth[v] = at
    return max(depth[v] for v in graph.outputs)
