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
