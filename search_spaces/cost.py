"""Costs that are exact and need no training: trained weights and multiply-accumulates."""

from __future__ import annotations

from math import prod

from search_spaces.graph import Graph
from search_spaces.operators import multiply_accumulates, weights


def graph_params(graph: Graph) -> int:
    """Number of trained weights; batch normalization's running statistics don't count."""
    return sum(
        prod(weight.shape)
        for node in graph.nodes
        for weight in weights(node.op, node.attrs, tuple([graph.shapes[v] for v in node.inputs]))
        if weight.trained
    )


def graph_flops(graph: Graph) -> int:
    """Multiply-accumulates of convolutions and linear layers for one input; the other operators count 0."""
    return sum(
        multiply_accumulates(node.op, node.attrs, tuple([graph.shapes[v] for v in node.inputs])) for node in graph.nodes
    )


def graph_activations(graph: Graph) -> int:
    """Numbers that all operators together write for one input: what moves through memory."""
    return sum(prod(int(d) for d in graph.shapes[v][1:]) for node in graph.nodes for v in node.outputs)


def graph_depth(graph: Graph) -> int:
    """Operators on the longest path from an input to an output."""
    depth = [0] * len(graph.shapes)
    for node in graph.nodes:
        at = 1 + max((depth[v] for v in node.inputs), default=0)
        for v in node.outputs:
            depth[v] = at
    return max(depth[v] for v in graph.outputs)
