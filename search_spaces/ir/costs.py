"""Exact costs of a graph: parameters, multiply-accumulates, activations, depth."""

from __future__ import annotations

from math import prod

from search_spaces.common.errors import InputError
from search_spaces.ir import standard
from search_spaces.ir.graph import Graph, Shape, count
from search_spaces.ir.ops import multiply_accumulates, weights


def graph_params(graph: Graph) -> int:
    """Number of trained weights, without the running statistics of batch normalization."""
    total = 0
    for node in graph.nodes:
        shapes = tuple([graph.shapes[v] for v in node.inputs])
        for weight in weights(node.op, node.attrs, shapes):
            if weight.trained:
                total += prod(weight.shape)
    return total


def graph_flops(graph: Graph) -> int:
    """Multiply-accumulates of all operators that multiply more than element by element.

    See `multiply_accumulates` for these operators. The count is for one input, or for the batch
    size that the graph fixes.

    Raises:
        InputError: if a size is not a number, or it is not known what an operator costs.
    """
    total = 0
    counted = set()
    for node in graph.nodes:
        # An operator with several outputs has a node for each that is used, but computes once.
        if len(node.inputs) > 1 and _has_several_outputs(node.op):
            attrs = tuple([attr for attr in node.attrs if attr[0] != "output"])
            computation = (node.op, node.inputs, attrs)
            if computation in counted:
                continue
            counted.add(computation)
        shapes = tuple([graph.shapes[v] for v in node.inputs])
        try:
            total += multiply_accumulates(node.op, node.attrs, shapes)
        except InputError as error:
            shown = ", ".join(str(list(shape)) for shape in shapes)
            raise InputError(f"{node.op} of {shown}: {error}") from error
    return total


def _has_several_outputs(op: str) -> bool:
    schema = standard.schema(op)
    return schema is not None and len(schema.outputs) > 1


def graph_activations(graph: Graph) -> int:
    """Number of elements of all operators' outputs for one input."""
    outputs = [value for node in graph.nodes for value in node.outputs]
    return sum(_elements(graph.shapes[value]) for value in outputs)


def graph_peak_activations(graph: Graph) -> int:
    """Largest number of elements in memory at one time for one input, without weights.

    Nodes run in order, and a value is held until it is read for the last time.
    """
    # 1. The node that reads each value for the last time.
    last_read: dict[int, int] = {}
    for i, node in enumerate(graph.nodes):
        last_read.update(dict.fromkeys(node.inputs, i))
    last_read.update(dict.fromkeys(graph.outputs, len(graph.nodes)))
    # 2. What is held while each node runs.
    size = [_elements(shape) for shape in graph.shapes]
    held = peak = sum(size[value] for value in graph.inputs)
    for i, node in enumerate(graph.nodes):
        held += sum(size[value] for value in node.outputs)
        peak = max(peak, held)
        for value in {*node.inputs, *node.outputs}:
            if last_read.get(value, i) == i:  # nobody reads it later
                held -= size[value]
    return peak


def _elements(shape: Shape) -> int:
    """Number of elements for one input."""
    return count(shape[1:])  # an attention may have the batch behind another dimension


def graph_depth(graph: Graph) -> int:
    """Number of operators on the longest path to an output."""
    depth = [0] * len(graph.shapes)
    for node in graph.nodes:
        node_depth = 1 + max((depth[value] for value in node.inputs), default=0)
        for value in node.outputs:
            depth[value] = node_depth
    return max(depth[value] for value in graph.outputs)
