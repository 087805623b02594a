"""Search spaces: architectures as choices, ONNX models, and short ONNX text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from search_spaces.common.errors import Infeasible, InputError
from search_spaces.ir.builder import Network, Tensor
from search_spaces.ir.costs import graph_flops, graph_params
from search_spaces.ir.onnx import cost_error, from_model, load_model, to_model
from search_spaces.ir.precision import set_precision
from search_spaces.ir.text import compact, expand, fingerprint, read, write
from search_spaces.published import (
    fbnet,
    hiaml,
    inception,
    nasbench101,
    nasbench201,
    nds,
    ofa,
    tiny_resnet,
    two_path,
)
from search_spaces.registry import get_space, list_spaces, register_space
from search_spaces.sources import read_source
from search_spaces.space import Architecture, SearchSpace
from search_spaces.subnetworks import Subnetworks
from search_spaces.torch_space import TorchSpace

if TYPE_CHECKING:
    from onnx import ModelProto

__all__ = [
    "Architecture",
    "Infeasible",
    "InputError",
    "Network",
    "SearchSpace",
    "Subnetworks",
    "Tensor",
    "TorchSpace",
    "fbnet",
    "fingerprint",
    "flops",
    "from_text",
    "get_space",
    "hiaml",
    "inception",
    "list_spaces",
    "load_model",
    "nasbench101",
    "nasbench201",
    "nds",
    "ofa",
    "params",
    "read_source",
    "register_space",
    "set_precision",
    "tiny_resnet",
    "to_text",
    "two_path",
]


def to_text(model: ModelProto) -> str:
    """The compact text of an ONNX model.

    It has no weights, canonical names and order, and repeated blocks as functions.

    Raises:
        InputError: if the text cannot express the model.
    """
    return write(compact(from_model(model)))


def from_text(text: str, seed: int = 0) -> ModelProto:
    """A runnable ONNX model of a text's architecture, with random weights drawn from `seed`.

    Raises:
        InputError: if it is not the text of an architecture.
    """
    return to_model(expand(read(text)), seed)


def params(model: ModelProto) -> int:
    """Number of trained weights of an ONNX model."""
    return graph_params(from_model(model))


def flops(model: ModelProto) -> int:
    """Multiply-accumulates of an ONNX model for one input.

    See `graph_flops` for the operators that count.

    Raises:
        InputError: if a size is open, or it is not known what an operator costs; the message names
            the node.
    """
    graph = from_model(model)
    try:
        return graph_flops(graph)
    except InputError as error:
        raise cost_error(model, error) from error
