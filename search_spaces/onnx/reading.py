"""ONNX model to graph: weights become shapes, constants become attributes, shape arithmetic is folded."""

from __future__ import annotations

import onnx

from search_spaces.common.errors import InputError
from search_spaces.graph.fusion import fuse
from search_spaces.graph.ir import Graph
from search_spaces.onnx.batches import for_any_batch
from search_spaces.onnx.folding import read_tensor
from search_spaces.onnx.importing import READERS, read_dropout
from search_spaces.onnx.known_values import FOLDERS
from search_spaces.onnx.loading import prepared
from search_spaces.onnx.reader import Reader, Rules
from search_spaces.onnx.shape_operators import read_split
from search_spaces.onnx.weight_uses import find_weights

RULES = Rules(known=FOLDERS, one_output=READERS, outputs={"Split": read_split, "Dropout": read_dropout})


def from_model(model: onnx.ModelProto) -> Graph:
    """The weightless graph of an ONNX model, independent of names.

    The first dimension of the first input becomes the batch size N, even if the file fixes it, provided that the
    network works for every batch size.

    Raises:
        InputError: if the model is not valid, or the text cannot express it.
    """
    try:
        light, initializers = prepared(model)
        tensors = {tensor.name: read_tensor(tensor, learned=True) for tensor in initializers}
        weights = find_weights(light.graph.node, tensors, model.producer_name)
        graph = fuse(for_any_batch(Reader(light, weights, RULES).read()))
        return for_any_batch(graph)  # fusion removes nodes that need the batch size
    except InputError:
        raise
    except RecursionError as error:
        raise InputError("the model is nested too deeply") from error
    except Exception as error:  # damaged fields, such as names that are not UTF-8, may cause any error
        raise InputError(f"damaged ONNX model: {type(error).__name__}: {' '.join(str(error).split())[:200]}") from error
