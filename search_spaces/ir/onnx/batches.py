"""Generalize a network that was exported for one batch size to any batch size."""

from __future__ import annotations

from search_spaces.common.errors import InputError
from search_spaces.ir.graph import BATCH, Dim, Graph, Node, Shape, element_type, typed
from search_spaces.ir.operators import output_shape
from search_spaces.ir.owned_weights import RECURRENT


def for_any_batch(graph: Graph) -> Graph:
    """The graph with the symbol N instead of its first input's batch size.

    Returns the graph itself if a node works for the fixed batch size only.
    """
    batch = next((graph.shapes[v][0] for v in graph.inputs[:1] if graph.shapes[v]), BATCH)
    if isinstance(batch, str) or any(BATCH in graph.shapes[v] for v in graph.inputs):
        return graph
    shapes: dict[int, Shape] = {v: _open(graph.shapes[v], batch) for v in graph.inputs}
    try:
        for node in graph.nodes:
            if _steps_are_batch(node, shapes):
                return graph
            shape = output_shape(node.op, node.attrs, tuple([shapes[v] for v in node.inputs]))
            if not _is_generalized(shape, graph.shapes[node.outputs[0]], batch):
                return graph
            shapes[node.outputs[0]] = shape
    except InputError:
        return graph
    if not all(BATCH in shapes[v] for v in graph.outputs):
        return graph
    return Graph(
        graph.inputs,
        graph.nodes,
        graph.outputs,
        tuple(shapes.get(v, s) for v, s in enumerate(graph.shapes)),
    )


def _steps_are_batch(node: Node, shapes: dict[int, Shape]) -> bool:
    """True for a recurrent layer that would take the batch size for its number of steps."""
    if node.op not in RECURRENT:
        return False
    steps = shapes[node.inputs[0]][1 if dict(node.attrs).get("layout") else 0]
    return BATCH in str(steps).split("_")


def _open(shape: Shape, batch: int) -> Shape:
    return typed((BATCH, *shape[1:]), element_type(shape)) if shape[:1] == (batch,) else shape


def _is_generalized(shape: Shape, fixed: Shape, batch: int) -> bool:
    """True if a shape with N equals the fixed shape at the batch size."""
    return len(shape) == len(fixed) and all(
        _at(dim, batch) == size for dim, size in zip(shape, fixed, strict=True)
    )


def _at(dim: Dim, batch: int) -> Dim:
    name, _, factor = str(dim).partition("_")
    return int(factor or 1) * batch if name == BATCH else dim
