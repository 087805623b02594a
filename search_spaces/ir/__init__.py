"""The weightless graph: nodes, builder, and the shapes, weights and costs of operators."""

from search_spaces.ir.builder import Network, Tensor
from search_spaces.ir.costs import graph_flops, graph_params
from search_spaces.ir.graph import Graph, Node
from search_spaces.ir.operator_costs import multiply_accumulates
from search_spaces.ir.operators import NET_OPERATORS, OPERATORS, output_shape
from search_spaces.ir.owned_weights import weights

__all__ = [
    "NET_OPERATORS",
    "OPERATORS",
    "Graph",
    "Network",
    "Node",
    "Tensor",
    "graph_flops",
    "graph_params",
    "multiply_accumulates",
    "output_shape",
    "weights",
]
