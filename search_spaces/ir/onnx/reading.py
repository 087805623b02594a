"""ONNX model to graph: weights become shapes, constants become attributes, shape arithmetic is
folded.
"""

from __future__ import annotations

import re

import onnx
from onnx import helper

from search_spaces.common.errors import InputError
from search_spaces.ir.fusion import fuse
from search_spaces.ir.graph import Graph
from search_spaces.ir.onnx.batches import for_any_batch
from search_spaces.ir.onnx.control_flow import CONTROL_FLOW, read_if, read_loop, read_scan
from search_spaces.ir.onnx.folding import read_tensor
from search_spaces.ir.onnx.importing import READERS, read_dropout
from search_spaces.ir.onnx.known_values import FOLDERS
from search_spaces.ir.onnx.loading import prepared
from search_spaces.ir.onnx.open_sizes import remedy
from search_spaces.ir.onnx.reader import Reader, Rules
from search_spaces.ir.onnx.shape_operators import read_split
from search_spaces.ir.onnx.weight_uses import Weights, find_weights, transposed_copies
from search_spaces.ir.operator_costs import multiply_accumulates

_SIZES = re.compile(
    r"open|fixed|\?|a number|depends? on the data|open sizes|does not fit|do not fit|broadcast"
)
_EXPORT = re.compile(r": export [^:;]*(fixed|with one|fixed ones)[^:;]*$")
_CONTROL_FLOW = {"If": read_if, "Loop": read_loop, "Scan": read_scan}
RULES = Rules(
    known=FOLDERS | _CONTROL_FLOW,
    one_output=READERS,
    outputs={"Split": read_split, "Dropout": read_dropout},
)


def from_model(model: onnx.ModelProto) -> Graph:
    """The weightless graph of an ONNX model, independent of names.

    The first dimension of the first input becomes the batch size N, even if the file fixes it,
    provided that the network works for every batch size.

    Raises:
        InputError: if the model is not valid, or the text cannot express it.
    """
    try:
        graph = fuse(for_any_batch(_reader(model).read()))
        return for_any_batch(graph)  # fusion removes nodes that need the batch size
    except InputError as error:
        fix = remedy(model, str(error)) if _SIZES.search(str(error)) else ""
        if fix:
            raise InputError(f"{_without_remedy(str(error))}; {fix}") from error
        raise
    except RecursionError as error:
        raise InputError("the model is nested too deeply") from error
    except (
        Exception
    ) as error:  # damaged fields, such as names that are not UTF-8, may cause any error
        raise InputError(
            f"damaged ONNX model: {type(error).__name__}: {' '.join(str(error).split())[:200]}"
        ) from error


def cost_error(model: onnx.ModelProto, error: InputError) -> InputError:
    """The error of `graph_flops` with the name of the ONNX node, and what to do about its open
    sizes.
    """
    reader = _reader(model)
    reader.read()
    for node in reader.nodes:
        try:
            multiply_accumulates(
                node.op, node.attrs, tuple([reader.shapes[v] for v in node.inputs])
            )
        except InputError as cause:
            source = reader.names[node.outputs[0]]
            named = (
                f"node {source.name!r}"
                if source.name
                else f"the node that computes {source.output[0]!r}"
            )
            fix = remedy(model)
            message = _without_remedy(str(cause)) if fix else str(cause)
            return InputError(f"{source.op_type} ({named}): {message}{f'; {fix}' if fix else ''}")
    return error


def _reader(model: onnx.ModelProto) -> Reader:
    light, initializers = prepared(model)
    copies = transposed_copies(initializers)
    tensors = {t.name: read_tensor(t, learned=True) for t in initializers if t.name not in copies}
    inputs = [info for info in light.graph.input if info.name not in copies]
    del light.graph.input[:]
    light.graph.input.extend(inputs)
    nodes = [helper.make_node("Transpose", [source], [copy]) for copy, source in copies.items()]
    nodes += light.graph.node
    if any(node.op_type in CONTROL_FLOW for node in nodes):
        # Whether steps share weights shows only when control flow is written out.
        first = Reader(light, Weights(nodes, tensors), RULES)
        first.read()
        nodes, tensors = first.flat, first.initializers
    return Reader(light, find_weights(nodes, tensors, model.producer_name), RULES)


def _without_remedy(message: str) -> str:
    """A message without the remedy for whoever can export the model again."""
    return _EXPORT.sub("", message)
