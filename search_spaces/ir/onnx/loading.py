"""ONNX files: loaded, checked and normalized for `search_spaces.ir.onnx.reading`.

A file may leave sizes of its inputs open: the batch size, which stays open, and others, which
`FILE.onnx@320` fixes.
"""

from __future__ import annotations

import copy
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from math import prod
from pathlib import Path

import numpy as np
import onnx
import onnx.inliner
import onnx.version_converter
from onnx import TensorProto, helper

from search_spaces.common.errors import InputError
from search_spaces.ir import standard
from search_spaces.ir.constants import MAX_ELEMENTS
from search_spaces.ir.graph import BATCH, MAX_DEPTH, MAX_NODES, Dim

MAX_READ_VALUES = 100_000  # inputs of all nodes together
_OLDEST_OPSET = 13
_FIRST_OPSET_WITH_COORDINATES = 11  # in which Resize has attributes for coordinates
_WITH_SIZES = re.compile(r"(.+\.onnx)@(\d+(?:x\d+)*)")
_UNNAMED = re.compile(r"(.*) (\d+)")  # name that `dimensions` gives to an open size without one
_ABOUT_SIZES = re.compile(
    r"open|fixed|\?|a number|depends? on the data|open sizes|does not fit|do not fit|broadcast"
)
_EXPORT_REMEDY = re.compile(r": export [^:;]*(fixed|with one|fixed ones)[^:;]*$")
_TOOL = "python -m onnxruntime.tools.make_dynamic_shape_fixed"
_IMAGE_RANK = 4
_SHOWN_SIZES = 4  # open sizes named in a message


# --- files


def load_model(path: str) -> onnx.ModelProto:
    """Load an `.onnx` file.

    `FILE.onnx@320` fixes its open sizes other than the batch size to 320, `FILE.onnx@3x320x240`
    those of its first input.

    External weights are not read, except small tensors, which may be sizes that the graph depends
    on. External files must be in the model's folder.

    Raises:
        InputError: if it is not an ONNX model; the message names the file.
    """
    path, sizes = (path, ()) if Path(path).is_file() else _split_sizes(path)
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
    except Exception as error:  # protobuf's errors have no base class; damaged fields cause any
        raise InputError(f"{path}: not an ONNX model ({_line(error)})") from error
    try:
        return _with_sizes(model, sizes) if sizes else model
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def _line(error: Exception, length: int = 200) -> str:
    return " ".join(str(error).split())[:length]


def _tensors(model: onnx.ModelProto) -> Iterator[TensorProto]:
    """The stored tensors: initializers, and attributes of the model's and its functions' nodes."""
    yield from model.graph.initializer
    nodes = list(model.graph.node)
    for function in model.functions:
        nodes += function.node
    for node in nodes:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.TENSOR:
                yield attribute.t


def _load_external(tensor: TensorProto, folder: Path, path: str) -> None:
    """Read a small tensor from its file."""
    # 1. The file, which must be in the model's folder.
    entries = {entry.key: entry.value for entry in tensor.external_data}
    location = entries.get("location", "")
    file = Path(os.path.realpath(folder / location))
    names_own_folder = location and not Path(location).is_absolute()
    stays_inside = ".." not in Path(location).parts and file.is_relative_to(folder)
    if not names_own_folder or not stays_inside:
        raise InputError(
            f"{path}: tensor {tensor.name!r} is in {location!r}, which is not in the model's folder"
        )

    # 2. Its numbers.
    count = prod(tensor.dims)
    if not 0 <= count <= MAX_ELEMENTS or not file.is_file():
        return
    size = count * standard.numpy_type(standard.element_name(tensor.data_type)).itemsize
    with file.open("rb") as stream:
        stream.seek(int(entries.get("offset", 0)))
        data = stream.read(size)
    if len(data) < size:
        raise InputError(f"{path}: {location!r} ends before tensor {tensor.name!r} does")
    tensor.raw_data = data
    tensor.data_location = TensorProto.DEFAULT
    del tensor.external_data[:]


# --- nodes, also those of control flow


def _subgraphs(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    """The branches and bodies of a control flow node."""
    graphs = []
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            graphs.append(attribute.g)
        graphs += attribute.graphs
    return graphs


def all_nodes(
    nodes: Iterable[onnx.NodeProto],
) -> Iterator[tuple[onnx.NodeProto, list[onnx.GraphProto]]]:
    """Yield nodes and, behind each, those of its subgraphs; with the subgraphs of every node."""
    open_graphs = [iter(nodes)]
    while open_graphs:
        node = next(open_graphs[-1], None)
        if node is None:
            open_graphs.pop()
            continue
        graphs = _subgraphs(node)
        yield node, graphs
        open_graphs += [iter(graph.node) for graph in reversed(graphs)]


def _check_size(model: onnx.ModelProto) -> None:
    """Raise InputError for models that are too large, or nested too deeply.

    Functions and control flow count as often as they are called, without writing them out.
    """
    bodies = {(function.domain, function.name): function.node for function in model.functions}
    sizes: dict[tuple[str, str], tuple[int, int]] = {}  # of functions

    def size(nodes: Iterable[onnx.NodeProto], depth: int) -> tuple[int, int]:
        """Number of nodes, and of their inputs."""
        if depth > MAX_DEPTH:
            raise InputError(f"functions and control flow are nested more than {MAX_DEPTH} deep")
        count = read = 0
        for node in nodes:
            function = (node.domain, node.op_type)
            if function in bodies and function not in sizes:
                sizes[function] = size(bodies[function], depth + 1)
            sizes_of_parts = [sizes.get(function, (1, len(node.input)))]
            for graph in _subgraphs(node):
                sizes_of_parts.append(size(graph.node, depth + 1))
            for nodes_of_part, read_by_part in sizes_of_parts:
                count += nodes_of_part
                read += read_by_part
        return count, read

    count, read = size(model.graph.node, 0)
    if count > MAX_NODES:
        raise InputError(f"the model has {count:,} nodes; the limit is {MAX_NODES:,}")
    if read > MAX_READ_VALUES:
        raise InputError(
            f"the model's nodes have {read:,} inputs; the limit is {MAX_READ_VALUES:,}"
        )


# --- normalization


def prepared(model: onnx.ModelProto) -> tuple[onnx.ModelProto, list[TensorProto]]:
    """Normalize a model: no functions, opset 13 or later, initializers as inputs.

    Returns:
        The model without weights, and its initializers.

    Raises:
        InputError: if the model is not valid, too large, or has operators of other domains.
    """
    _check_size(model)
    source = model.graph
    if source.sparse_initializer:
        raise InputError(
            "sparse initializers are not supported: store the weights as dense tensors"
        )

    # 1. A copy whose initializers are inputs: checks and conversions then need no numbers.
    light = onnx.ModelProto(ir_version=max(model.ir_version, 4), functions=model.functions)
    light.opset_import.extend(model.opset_import)
    light.graph.name = source.name or "net"
    light.graph.node.extend(source.node)
    light.graph.output.extend(_with_shape(info) for info in source.output)
    weights = [tensor for tensor in source.initializer if tensor.name]
    names = {tensor.name for tensor in weights}
    light.graph.input.extend(info for info in source.input if info.name not in names)
    for tensor in weights:
        kind = light.graph.input.add(name=tensor.name).type.tensor_type
        kind.elem_type = tensor.data_type
        kind.shape.SetInParent()  # a scalar has a shape, too
        for size in tensor.dims:
            kind.shape.dim.add(dim_value=size)

    # 2. Functions are written out.
    if light.functions:
        light = onnx.inliner.inline_local_functions(light)

    # 3. What remains is standard ONNX.
    _check_domains(light.graph.node)
    for info in source.input:
        dimensions(info)
    try:
        onnx.checker.check_model(light)
    except Exception as error:  # the checker's own, and those of damaged fields
        raise InputError(f"not a valid ONNX model: {_line(error, 300)}") from error
    return _converted(light), weights


def _with_shape(info: onnx.ValueInfoProto) -> onnx.ValueInfoProto:
    """The output with some type and shape, which the checker asks for, but nobody reads."""
    if info.type.WhichOneof("value") in (None, "tensor_type"):
        info = copy.deepcopy(info)
        tensor = info.type.tensor_type
        tensor.elem_type = tensor.elem_type or TensorProto.FLOAT
        tensor.shape.SetInParent()
    return info


def _check_domains(nodes: Iterable[onnx.NodeProto]) -> None:
    for node, _ in all_nodes(nodes):
        if node.domain not in ("", "ai.onnx"):
            raise InputError(
                f"operator {node.domain}.{node.op_type} (node {node.name!r}) is not a standard "
                "ONNX operator: export the model without custom operators and runtime-specific "
                "optimizations"
            )


def _converted(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model in opset 13 or later."""
    versions = [o.version for o in model.opset_import if o.domain in ("", "ai.onnx")]
    version = max(versions, default=standard.OPSET)
    if version >= _OLDEST_OPSET:
        return model
    _check_axes(model.graph.node)
    try:
        converted = onnx.version_converter.convert_version(model, _OLDEST_OPSET)
    except Exception as error:  # the native library has no class for it
        raise InputError(
            f"the model uses opset {version} and cannot be converted: export it with opset "
            f"{_OLDEST_OPSET} or later ({_line(error)})"
        ) from error
    if version < _FIRST_OPSET_WITH_COORDINATES:
        _set_coordinates(converted.graph.node)
    return converted


def _check_axes(nodes: Iterable[onnx.NodeProto]) -> None:
    """Raise InputError for Hardmax over all axes from one on.

    The converter takes them for one axis.
    """
    for node, _ in all_nodes(nodes):
        is_last_axis = any(a.name == "axis" and a.i == -1 for a in node.attribute)
        if node.op_type == "Hardmax" and not is_last_axis:
            raise InputError(
                f"Hardmax (node {node.name!r}): its axis had another meaning in old opsets: "
                f"export the model with opset {_OLDEST_OPSET} or later"
            )


def _set_coordinates(nodes: Iterable[onnx.NodeProto]) -> None:
    """Give Resize the coordinates that were fixed before they were attributes.

    The converter adds an operand `roi`, which nothing reads.
    """
    for node, _ in all_nodes(nodes):
        if node.op_type != "Resize":
            continue
        node.input[1] = ""
        fixed = {"coordinate_transformation_mode": "asymmetric"}
        if not any(a.name == "mode" and a.s != b"nearest" for a in node.attribute):
            fixed["nearest_mode"] = "floor"
        node.attribute.extend(helper.make_attribute(name, value) for name, value in fixed.items())


# --- tied embeddings


def transposed_copies(tensors: Sequence[onnx.TensorProto]) -> dict[str, str]:
    """Matrices that are another one transposed, with its name.

    Exporters fold the transpose of tied embeddings. Tensors in other files, and those of one number
    only, are not compared.
    """
    matrices = []
    for tensor in tensors:
        is_matrix = len(tensor.dims) == 2 and min(tensor.dims) > 1
        if is_matrix and tensor.raw_data:
            matrices.append(tensor)
    by_shape: dict[tuple[int, ...], list[onnx.TensorProto]] = defaultdict(list)
    for tensor in matrices:
        by_shape[(tensor.data_type, *tensor.dims)].append(tensor)
    copies: dict[str, str] = {}
    for tensor in matrices:
        rows, columns = tensor.dims
        for other in by_shape.get((tensor.data_type, columns, rows), []):
            is_original = other.name != tensor.name and other.name not in copies
            if is_original and _is_transposed(tensor, other):
                copies[tensor.name] = other.name
                break
    return copies


def _is_transposed(tensor: onnx.TensorProto, other: onnx.TensorProto) -> bool:
    """True if both have the same numbers, one transposed, and not only one number."""
    # 1. Bytes of an element.
    size = len(tensor.raw_data) // prod(tensor.dims)
    if size * prod(tensor.dims) != len(tensor.raw_data):
        return False
    if len(tensor.raw_data) != len(other.raw_data):
        return False

    # 2. Their corners are compared first: most pairs differ there.
    if tensor.raw_data[:size] != other.raw_data[:size]:
        return False
    if tensor.raw_data[-size:] != other.raw_data[-size:]:
        return False

    # 3. All elements.
    first = _raw_elements(tensor, size)
    second = _raw_elements(other, size)
    is_uniform = bool((first == first[0, 0]).all())
    return bool((first == second.T).all()) and not is_uniform


def _raw_elements(tensor: onnx.TensorProto, size: int) -> np.ndarray:
    """The elements of a matrix as they are stored, in `size` bytes each."""
    return np.frombuffer(tensor.raw_data, f"V{size}").reshape(tuple(tensor.dims))


# --- open sizes of inputs


def dimensions(info: onnx.ValueInfoProto) -> list[Dim]:
    """The dimensions of an input: numbers, or names of open sizes.

    -1 and "?" are open, as in ONNX Runtime.

    Raises:
        InputError: if the input has no shape, or a size that no value can have.
    """
    tensor = info.type.tensor_type
    if info.type.WhichOneof("value") not in (None, "tensor_type"):
        raise InputError(
            f"input {info.name!r} is not a tensor with a shape, but a sequence or an optional value"
        )
    if not tensor.HasField("shape"):
        raise InputError(
            f"input {info.name!r} is not a tensor with a shape: give it one with "
            f"{_TOOL} --input_name {info.name} --input_shape 1,3,224,224"
        )
    dims: list[Dim] = []
    for i, dim in enumerate(tensor.shape.dim):
        if not dim.HasField("dim_value") or dim.dim_value == -1:
            is_named = dim.dim_param not in ("", "?")
            dims.append(dim.dim_param if is_named else f"{info.name} {i}")
        elif dim.dim_value < 1:
            raise InputError(
                f"input {info.name!r} has a dimension of size {dim.dim_value}: it must be "
                "positive, or -1 if open"
            )
        else:
            dims.append(dim.dim_value)
    return dims


def batch_size(inputs: Iterable[Sequence[Dim]]) -> Dim | None:
    """The dimension that is the batch size: N, one named so, or the first open one in front.

    None if there is none.
    """
    names = []
    in_front = []
    for dims in inputs:
        names += [dim for dim in dims if isinstance(dim, str)]
        if dims and isinstance(dims[0], str):
            in_front.append(dims[0])
    if BATCH in names:
        return BATCH
    named_batch = [name for name in names if "batch" in name.lower()]
    candidates = [*named_batch, *in_front]
    return candidates[0] if candidates else None


def _open_names(shapes: Sequence[Sequence[Dim]]) -> list[str]:
    """Names of the open sizes other than the batch size, in order."""
    batch = batch_size(shapes)
    names: dict[str, None] = {}  # a set in order
    for dims in shapes:
        for dim in dims:
            if isinstance(dim, str) and dim != batch:
                names[dim] = None
    return list(names)


def _inputs(model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    stored = {tensor.name for tensor in model.graph.initializer}
    return [info for info in model.graph.input if info.name not in stored]


def _split_sizes(source: str) -> tuple[str, tuple[int, ...]]:
    """FILE.onnx@SIZES as the file and its sizes; other names have none.

    Raises:
        InputError: if a size is 0.
    """
    matched = _WITH_SIZES.fullmatch(source)
    if matched is None:
        return source, ()
    sizes = tuple(map(int, matched[2].split("x")))
    if 0 in sizes:
        raise InputError(f"{source}: sizes must be at least 1")
    return matched[1], sizes


def _with_sizes(model: onnx.ModelProto, sizes: Sequence[int]) -> onnx.ModelProto:
    """Fix open sizes of a model in place, except the batch size.

    Args:
        model: the model.
        sizes: one number for all open sizes, one for each in order, or the shape of the first input
            without the batch.

    Raises:
        InputError: if there is no open size, or the numbers do not fit.
    """
    inputs = _inputs(model)
    shapes = [dimensions(info) for info in inputs]
    names = _open_names(shapes)
    batch = batch_size(shapes)
    first = shapes[0][1:] if shapes else []
    written = "x".join(map(str, sizes))
    if not names:
        raise InputError(f"@{written}: all sizes but the batch's are fixed already: leave it out")

    # 1. The number of every open size.
    fixed: dict[str, int] = {}
    if len(sizes) == 1:
        fixed = dict.fromkeys(names, sizes[0])
    elif len(sizes) == len(first):
        for dim, size in zip(first, sizes, strict=True):
            if isinstance(dim, str):
                fixed[dim] = size
            elif dim != size:
                raise InputError(
                    f"@{written} does not fit the input, which has the sizes {_listed(first)}"
                )
    elif len(sizes) == len(names):
        fixed = dict(zip(names, sizes, strict=True))
    else:
        raise InputError(
            f"@{written} does not fit: the input has the sizes {_listed(first)}, open are "
            f"{_named(names)}"
        )

    # 2. The model has them.
    for info, dims in zip(inputs, shapes, strict=True):
        for dim, name in zip(info.type.tensor_type.shape.dim, dims, strict=True):
            if isinstance(name, str) and name in fixed and name != batch:
                dim.dim_value = fixed[name]
    return model


def remedy(model: onnx.ModelProto, message: str = "") -> str:
    """What somebody who has only the file can do about open sizes; "" if there are none.

    Args:
        model: the model.
        message: the error; the batch size is a remedy only if it says that a size "is open".
    """
    inputs = _inputs(model)
    try:
        shapes = [dimensions(info) for info in inputs]
    except InputError:
        return ""
    names = _open_names(shapes)
    batch = batch_size(shapes)
    if not names and isinstance(batch, str) and "is open" in message:
        return (
            f"fix the size {batch!r} by {_TOOL} --dim_param {batch} --dim_value 128 FILE.onnx "
            "FIXED.onnx"
        )
    if not names:
        return ""

    # 1. An example: sizes of the first input that has an open one.
    number = next(i for i, dims in enumerate(shapes) if names[0] in dims)
    info, dims = inputs[number], shapes[number]
    example = 320 if len(dims) >= _IMAGE_RANK else 128

    # 2. ONNX Runtime's tool fixes a size by its name, or the shape of an input without names.
    options = f"--dim_param {names[0]} --dim_value {example}"
    has_unnamed_size = any(name == f"{info.name} {i}" for i, name in enumerate(dims))
    if has_unnamed_size:
        shape = []
        for i, dim in enumerate(dims):
            open_size = 1 if i == 0 else example
            shape.append(str(dim if isinstance(dim, int) else open_size))
        options = f"--input_name {info.name} --input_shape {','.join(shape)}"
    sizes, them = ("sizes", "them") if len(names) > 1 else ("size", "it")
    return (
        f"the file leaves the {sizes} {_named(names)} open: fix {them} with FILE.onnx@{example}, "
        f"or by {_TOOL} {options} FILE.onnx FIXED.onnx"
    )


def concerns_sizes(message: str) -> bool:
    """True for messages about sizes, which somebody with the file alone can fix."""
    return _ABOUT_SIZES.search(message) is not None


def without_export_remedy(message: str) -> str:
    """A message without the remedy for whoever can export the model again."""
    return _EXPORT_REMEDY.sub("", message)


def _named(names: Sequence[str]) -> str:
    shown = []
    for name in names[:_SHOWN_SIZES]:
        is_unnamed = _UNNAMED.fullmatch(name)
        shown.append(_UNNAMED.sub(r"dimension \2 of '\1'", name) if is_unnamed else repr(name))
    hidden = len(names) - len(shown)
    return ", ".join(shown) + (f" and {hidden} more" if hidden else "")


def _listed(dims: Sequence[Dim]) -> str:
    return "x".join(map(str, dims)) or "(none)"
