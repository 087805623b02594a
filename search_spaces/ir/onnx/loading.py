"""Load, check and normalize ONNX models for `search_spaces.ir.onnx.reading`."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterable, Iterator
from math import prod
from pathlib import Path

import onnx
import onnx.inliner
import onnx.version_converter
from onnx import TensorProto, helper

from search_spaces.common.errors import InputError
from search_spaces.ir import standard
from search_spaces.ir.onnx.folding import MAX_ELEMENTS
from search_spaces.ir.onnx.open_sizes import dimensions, split_sizes, with_sizes

MAX_NODES = 10_000
MAX_READ_VALUES = 100_000  # inputs of all nodes together
_OLDEST_OPSET = 13
_FIRST_WITH_COORDINATES = 11  # opset in which Resize has attributes for coordinates


def load_model(path: str) -> onnx.ModelProto:
    """Load an `.onnx` file.

    `FILE.onnx@320` fixes its open sizes other than the batch size to 320, `FILE.onnx@3x320x240`
    those of its first input.

    External weights are not read, except small tensors, which may be sizes that the graph depends
    on. External files must be in the model's folder.

    Raises:
        InputError: if it is not an ONNX model; the message names the file.
    """
    path, sizes = (path, ()) if Path(path).is_file() else split_sizes(path)
    folder = Path(path).resolve().parent
    try:
        model = onnx.load(path, format="protobuf", load_external_data=False)
        for tensor in _tensors(model):
            if tensor.data_location == TensorProto.EXTERNAL:
                _load_external(tensor, folder, path)
    except InputError:
        raise
    except FileNotFoundError as error:
        raise InputError(f"{path}: no such file") from error
    except (
        Exception
    ) as error:  # protobuf's errors have no public base class; damaged fields may cause any error
        raise InputError(f"{path}: not an ONNX model ({_line(error)})") from error
    try:
        return with_sizes(model, sizes) if sizes else model
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]


def _tensors(model: onnx.ModelProto) -> Iterator[TensorProto]:
    yield from model.graph.initializer
    for node in (
        *model.graph.node,
        *(node for function in model.functions for node in function.node),
    ):
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.TENSOR:
                yield attribute.t


def _load_external(tensor: TensorProto, folder: Path, path: str) -> None:
    given = {entry.key: entry.value for entry in tensor.external_data}
    location = given.get("location", "")
    file = Path(os.path.realpath(folder / location))
    if (
        not location
        or Path(location).is_absolute()
        or ".." in Path(location).parts
        or not file.is_relative_to(folder)
    ):
        raise InputError(
            f"{path}: tensor {tensor.name!r} is in {location!r}, which is not in the model's folder"
        )
    count = prod(tensor.dims)
    if not 0 <= count <= MAX_ELEMENTS or not file.is_file():
        return
    size = count * standard.numpy_type(standard.element_name(tensor.data_type)).itemsize
    with file.open("rb") as stream:
        stream.seek(int(given.get("offset", 0)))
        data = stream.read(size)
    if len(data) < size:
        raise InputError(f"{path}: {location!r} ends before tensor {tensor.name!r} does")
    tensor.raw_data = data
    tensor.data_location = TensorProto.DEFAULT
    del tensor.external_data[:]


# --- normalization
# ---------------------------------------------------------------------------------------------------


def prepared(model: onnx.ModelProto) -> tuple[onnx.ModelProto, list[TensorProto]]:
    """Normalize a model: no functions, opset 13 or later, initializers as inputs.

    Returns:
        The model without weights, and its initializers.

    Raises:
        InputError: if the model is not valid, too large, or has operators of other domains.
    """
    _check_size(model)
    light = onnx.ModelProto(ir_version=max(model.ir_version, 4), functions=model.functions)
    light.opset_import.extend(model.opset_import)
    graph, source = light.graph, model.graph
    graph.name = source.name or "net"
    graph.node.extend(source.node)
    graph.output.extend(_with_shape(info) for info in source.output)
    weights = [tensor for tensor in source.initializer if tensor.name]
    names = {tensor.name for tensor in weights}
    graph.input.extend(info for info in source.input if info.name not in names)
    for tensor in weights:
        kind = graph.input.add(name=tensor.name).type.tensor_type
        kind.elem_type = tensor.data_type
        kind.shape.dim.extend(
            onnx.TensorShapeProto.Dimension(dim_value=size) for size in tensor.dims
        )
    if source.sparse_initializer:
        raise InputError(
            "sparse initializers are not supported: store the weights as dense tensors"
        )
    if light.functions:
        light = onnx.inliner.inline_local_functions(light)
    _check_domains(light.graph.node)
    for info in source.input:
        dimensions(info)
    try:
        onnx.checker.check_model(light)
    except Exception as error:  # the checker's own, and those of damaged fields
        raise InputError(f"not a valid ONNX model: {_line(error)[:300]}") from error
    return _converted(light), weights


def _with_shape(info: onnx.ValueInfoProto) -> onnx.ValueInfoProto:
    """The output with some type and shape, which the checker asks for, but nobody reads."""
    if info.type.WhichOneof("value") in (None, "tensor_type"):
        info = copy.deepcopy(info)
        tensor = info.type.tensor_type
        tensor.elem_type = tensor.elem_type or TensorProto.FLOAT
        tensor.shape.SetInParent()
    return info


def _check_size(model: onnx.ModelProto) -> None:
    """Raise InputError for models that are too large once functions and control flow are
    inlined.
    """
    bodies = {(f.domain, f.name): list(f.node) for f in model.functions}
    sizes: dict[tuple[str, str], tuple[int, int]] = {}

    def size(nodes: Iterable[onnx.NodeProto], depth: int) -> tuple[int, int]:
        """Number of nodes, and of their inputs."""
        if depth > 32:
            raise InputError("functions and control flow are nested more than 32 deep")
        count = read = 0
        for node in nodes:
            key = (node.domain, node.op_type)
            if key in bodies and key not in sizes:
                sizes[key] = size(bodies[key], depth + 1)
            inside = [
                sizes.get(key, (1, len(node.input))),
                *(size(g.node, depth + 1) for g in subgraphs(node)),
            ]
            count, read = count + sum(c for c, _ in inside), read + sum(r for _, r in inside)
        return count, read

    count, read = size(model.graph.node, 0)
    if count > MAX_NODES:
        raise InputError(f"the model has {count:,} nodes; the limit is {MAX_NODES:,}")
    if read > MAX_READ_VALUES:
        raise InputError(
            f"the model's nodes have {read:,} inputs; the limit is {MAX_READ_VALUES:,}"
        )


def subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """The branches and bodies of a control flow node."""
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            yield attribute.g
        yield from attribute.graphs


def _check_domains(nodes: Iterable[onnx.NodeProto]) -> None:
    for node in nodes:
        if node.domain not in ("", "ai.onnx"):
            raise InputError(
                f"operator {node.domain}.{node.op_type} (node {node.name!r}) is not a standard "
                "ONNX operator: "
                "export the model without custom operators and runtime-specific optimizations"
            )
        for graph in subgraphs(node):
            _check_domains(graph.node)


def _converted(model: onnx.ModelProto) -> onnx.ModelProto:
    version = max(
        (o.version for o in model.opset_import if o.domain in ("", "ai.onnx")),
        default=standard.OPSET,
    )
    if version >= _OLDEST_OPSET:
        return model
    _check_axes(model.graph.node)
    try:
        converted = onnx.version_converter.convert_version(model, _OLDEST_OPSET)
    except Exception as error:  # the native library has no class for it
        raise InputError(
            f"the model uses opset {version} and cannot be converted: export it with opset "
            f"{_OLDEST_OPSET} or later "
            f"({_line(error)})"
        ) from error
    if version < _FIRST_WITH_COORDINATES:
        _set_coordinates(converted.graph.node)
    return converted


def _check_axes(nodes: Iterable[onnx.NodeProto]) -> None:
    """Raise InputError for Hardmax over all axes from one on, which the converter takes for one
    axis.
    """
    for node in nodes:
        if node.op_type == "Hardmax" and not any(
            a.name == "axis" and a.i == -1 for a in node.attribute
        ):
            remedy = f"export the model with opset {_OLDEST_OPSET} or later"
            raise InputError(
                f"Hardmax (node {node.name!r}): its axis had another meaning in old opsets: "
                f"{remedy}"
            )
        for graph in subgraphs(node):
            _check_axes(graph.node)


def _set_coordinates(nodes: Iterable[onnx.NodeProto]) -> None:
    """Give Resize the coordinates that were fixed before they were attributes, without the
    converter's unread `roi`.
    """
    for node in nodes:
        if node.op_type == "Resize":
            node.input[1] = ""
            nearest = not any(a.name == "mode" and a.s != b"nearest" for a in node.attribute)
            fixed = {
                "coordinate_transformation_mode": "asymmetric",
                **({"nearest_mode": "floor"} if nearest else {}),
            }
            node.attribute.extend(
                helper.make_attribute(name, value) for name, value in fixed.items()
            )
        for graph in subgraphs(node):
            _set_coordinates(graph.node)
