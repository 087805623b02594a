"""Precision as a part of a network: which of its layers compute on 8-bit integers.

Layers with weights may have the attribute `precision`. In ONNX files it is an entry of the node's
`metadata_props`; quantization (`nas.evaluation.int8`) then concerns exactly the layers of int8. A
network without the attribute says nothing: its text has no trace of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from search_spaces.common.errors import InputError, unknown

if TYPE_CHECKING:
    import onnx

    from search_spaces.ir.graph import Attrs

PRECISION = "precision"
PRECISIONS = ("fp32", "int8")
LAYERS = frozenset({"Conv", "ConvBn", "ConvBnRelu6", "Linear"})  # that may have the attribute
PRODUCTS = frozenset({"Conv", "Gemm", "MatMul"})  # their operators in ONNX files
_ON_MODULES = "precision_of_layers"
Module = TypeVar("Module")


def check_precision(precision: object) -> str:
    """The precision; InputError if it is none."""
    if precision == "fp16":
        raise InputError("precision fp16 is for GPUs: on this runtime choose fp32 or int8")
    if precision not in PRECISIONS:
        raise unknown("precision", str(precision), PRECISIONS)
    return str(precision)


def with_precision(attrs: Attrs, precision: str) -> Attrs:
    """The attributes of a layer with this precision."""
    others = [(name, value) for name, value in attrs if name != PRECISION]
    return tuple(sorted([*others, (PRECISION, precision)]))


def precision_of(attrs: Attrs) -> Attrs:
    """The attribute `precision` alone, checked; () without one."""
    for name, value in attrs:
        if name == PRECISION:
            return ((PRECISION, check_precision(value)),)
    return ()


# --- on PyTorch modules


def set_precision(module: Module, precision: str) -> Module:
    """Say in which precision the convolutions and linear layers of a module are to compute.

    Example: a `build(trial)` that chooses the precision of a layer.

        >>> import nas, torch
        >>> def build(trial):
        ...     layer = torch.nn.Linear(8, 8)
        ...     precision = trial.suggest_categorical("precision", ["fp32", "int8"])
        ...     return torch.nn.Sequential(nas.set_precision(layer, precision))
        >>> space = nas.TorchSpace(build, torch.zeros(1, 8))
        >>> 'precision = "int8"' in space.to_text(space.architecture({"precision": "int8"}))
        True

    Args:
        module: the module; the precision of a module inside it, if it has one, overrides this one.
        precision: "fp32" or "int8".

    Returns:
        The module, which computes as before: its ONNX file says which layers are quantized.

    Raises:
        InputError: there is no such precision.
    """
    setattr(module, _ON_MODULES, check_precision(precision))
    return module


def precisions_of_parameters(module: Any) -> dict[int, str]:
    """Precisions that `set_precision` has set, by the identity of the parameters."""
    precisions: dict[int, str] = {}
    for inner in module.modules():  # outer modules come first
        precision = getattr(inner, _ON_MODULES, None)
        if precision is not None:
            precisions.update(dict.fromkeys(map(id, inner.parameters()), precision))
    return precisions


# --- in ONNX files


def mark(nodes: Iterable[onnx.NodeProto], attrs: Attrs) -> None:
    """Note a layer's precision on the ONNX nodes that it was written as."""
    for _, precision in precision_of(attrs):
        for node in nodes:
            if node.op_type in PRODUCTS:
                node.metadata_props.add(key=PRECISION, value=str(precision))


def marked(node: onnx.NodeProto) -> Attrs:
    """The attribute `precision` that an ONNX node notes; () without one."""
    return precision_of(tuple((entry.key, entry.value) for entry in node.metadata_props))


def quantized_nodes(model: onnx.ModelProto) -> list[str] | None:
    """Names of the nodes that a model notes as int8; None if it notes no precision at all."""
    precisions = {}  # by name of the node
    for node in model.graph.node:
        note = dict(marked(node))
        if note:
            precisions[node.name] = note[PRECISION]
    if not precisions:
        return None
    return [name for name, precision in precisions.items() if precision == "int8"]
