"""Operators of ONNX that are written in another way here: constants that fold, and operators that own weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from search_spaces.common.errors import InputError
from search_spaces.graph import standard
from search_spaces.graph.ir import Attrs, Shape, Value, element_type
from search_spaces.graph.operators import BATCH_NORM_EPSILON, Convolution, output_shape
from search_spaces.graph.standard import attribute_value
from search_spaces.onnx.folding import Known, assumed, between, constant, is_learnable, is_weight, read_tensor, sizes

if TYPE_CHECKING:
    from search_spaces.onnx.reading import Reader


def _attrs(node: onnx.NodeProto) -> dict[str, Any]:
    return {a.name: attribute_value(node.op_type, a) for a in node.attribute}


# --- values that are known -------------------------------------------------------------------------------------------


def _constant(reader: Reader, node: onnx.NodeProto) -> list[Known] | None:
    for attr in node.attribute:
        if attr.name == "value":
            return [read_tensor(attr.t, learned=False)]
        if attr.name in ("value_int", "value_ints", "value_float", "value_floats"):
            element = "int64" if "int" in attr.name else "float"
            array = np.array(onnx.helper.get_attribute_value(attr), standard.numpy_type(element))
            return [constant(array, element)]
    raise InputError("only tensors and numbers are supported as constants")


def _shape(reader: Reader, node: onnx.NodeProto) -> list[Known] | None:
    given, name = _attrs(node), node.input[0]
    dims = assumed(reader.shape(name)[given.get("start", 0) : given.get("end")])
    if dims is None:
        return None
    first, second = (np.array([pair[i] for pair in dims], np.int64) for i in (0, 1))
    return [between(first, second, "int64")]


def _size(reader: Reader, node: onnx.NodeProto) -> list[Known] | None:
    dims = assumed(reader.shape(node.input[0]))
    if dims is None:
        return None
    first, second = (np.array(np.prod([pair[i] for pair in dims], dtype=np.int64)) for i in (0, 1))
    return [between(first, second, "int64")]


def _identity(reader: Reader, node: onnx.NodeProto) -> list[Known] | None:
    """An initializer that is passed on as it is, is a weight even if it is a single number."""
    known = reader.known.get(node.input[0])
    if known is not None and node.input[0] in reader.initializers and is_learnable(known):
        return [Known(known.shape, learned=True)]
    return None if known is None else [known]


def _cast_like(reader: Reader, node: onnx.NodeProto) -> list[Known] | None:
    """Of the second operand the type alone matters."""
    known, like = reader.known.get(node.input[0]), element_type(reader.shape(node.input[1]))
    cast = onnx.helper.make_node("Cast", node.input[:1], node.output, to=standard.enum(like))
    return None if known is None else reader.folder.fold(cast, [known])


def _branch(reader: Reader, node: onnx.NodeProto) -> list[Known] | None:
    """An `If` whose condition is known: what the branch computes, in place."""
    known = reader.known.get(node.input[0])
    condition = known.static if known else None
    if condition is None:
        return None
    wanted = "then_branch" if condition.all() else "else_branch"
    branch = next(a.g for a in node.attribute if a.name == wanted)
    reader.known.update((t.name, read_tensor(t, learned=True)) for t in branch.initializer)
    reader.used.update(info.name for info in branch.output)
    reader.read_nodes(branch.node)
    for name, info in zip(node.output, branch.output, strict=True):
        if info.name in reader.known:
            reader.known[name] = reader.known[info.name]
            if info.name in reader.makers:
                reader.makers[name] = reader.makers[info.name]
        else:
            reader.values[name] = reader.value(info.name)
    return []


FOLDERS: dict[str, Callable[[Reader, onnx.NodeProto], list[Known] | None]] = {
    "Constant": _constant,
    "Shape": _shape,
    "Size": _size,
    "Identity": _identity,
    "CastLike": _cast_like,
    "If": _branch,
}


# --- operators that own weights --------------------------------------------------------------------------------------


def _weight(reader: Reader, node: onnx.NodeProto, position: int) -> Shape | None:
    """The shape of an operand that is a tensor of known numbers; None where it is computed or left out."""
    known = reader.known.get(node.input[position]) if len(node.input) > position else None
    return tuple(known.shape) if known is not None and len(known.shape) else None


def _has(node: onnx.NodeProto, position: int) -> bool:
    return len(node.input) > position and node.input[position] != ""


def _has_bias(reader: Reader, node: onnx.NodeProto, position: int) -> bool:
    """Zeros that the model computes, as unoptimized exports do, are no learned bias."""
    known = reader.known.get(node.input[position]) if _has(node, position) else None
    zeros = known is not None and not known.learned and known.static is not None and not known.static.any()
    return _has(node, position) and not zeros


def _conv(reader: Reader, node: onnx.NodeProto) -> int | None:
    weight, attrs = _weight(reader, node, 1), _attrs(node)
    if weight is None or (_has(node, 2) and _weight(reader, node, 2) is None):
        return None
    x = reader.value(node.input[0])
    shape, (channels, inputs, *kernel) = reader.shapes[x], map(int, weight)
    ones, group = (1,) * len(kernel), attrs.get("group", 1)
    if len(shape) != len(weight) or inputs * group != shape[1]:
        raise InputError(f"weights {list(weight)} do not fit an input of shape {list(shape)}")
    conv = Convolution(
        in_channels=inputs * group,
        channels=channels,
        kernel=tuple(kernel),
        strides=attrs.get("strides", ones),
        pads=_explicit_pads(attrs, tuple(kernel), shape),
        dilations=attrs.get("dilations", ones),
        group=group,
        bias=_has_bias(reader, node, 2),
    )
    return reader.emit("Conv", (x,), conv.attrs)


def _explicit_pads(attrs: dict[str, Any], kernel: tuple[int, ...], shape: Shape) -> tuple[int, ...]:
    """The padding, also where ONNX's deprecated `auto_pad` says how to compute it."""
    auto, rank = attrs.get("auto_pad", "NOTSET"), len(kernel)
    if auto == "NOTSET":
        return attrs.get("pads", (0,) * 2 * rank)
    if auto == "VALID":
        return (0,) * 2 * rank
    strides, dilations = (attrs.get(name, (1,) * rank) for name in ("strides", "dilations"))
    begin, end = [], []
    for size, k, stride, dilation in zip(shape[2:], kernel, strides, dilations, strict=True):
        if isinstance(size, str):
            raise InputError(f"auto_pad = {auto} needs a fixed image size: export the model with one")
        total = max(0, (-(-size // stride) - 1) * stride + dilation * (k - 1) + 1 - size)
        begin.append(total // 2 if auto == "SAME_UPPER" else total - total // 2)
        end.append(total - begin[-1])
    return (*begin, *end)


def _pool(reader: Reader, node: onnx.NodeProto) -> int | None:
    attrs = _attrs(node)
    x = reader.value(node.input[0])
    attrs["pads"] = _explicit_pads(attrs, attrs["kernel_shape"], reader.shapes[x])
    attrs.pop("auto_pad", None)
    if not any(attrs["pads"]):
        attrs.pop("count_include_pad", None)
    return reader.emit(node.op_type, (x,), tuple(attrs.items()))


def _conv_transpose(reader: Reader, node: onnx.NodeProto) -> int | None:
    weight, attrs = _weight(reader, node, 1), _attrs(node)
    if weight is None or (_has(node, 2) and _weight(reader, node, 2) is None) or "output_shape" in attrs:
        return None
    given = {**attrs, "channels": int(weight[1]) * attrs.get("group", 1), "kernel_shape": tuple(map(int, weight[2:]))}
    x = reader.value(node.input[0])
    if weight[0] != reader.shapes[x][1]:
        raise InputError(f"weights {list(weight)} do not fit an input of shape {list(reader.shapes[x])}")
    return reader.emit("ConvTranspose", (x,), (*given.items(), ("bias", int(_has(node, 2)))))


def _gemm(reader: Reader, node: onnx.NodeProto) -> int | None:
    attrs, weight, bias = _attrs(node), _weight(reader, node, 1), _weight(reader, node, 2)
    if weight is None or len(weight) != 2 or {attrs.get("alpha", 1.0), attrs.get("beta", 1.0)} != {1.0}:
        return None
    features, inputs = weight if attrs.get("transB", 0) else weight[::-1]
    if attrs.get("transA", 0) or (_has(node, 2) and bias not in ((features,), (1, features))):
        return None
    return _linear(reader, node.input[0], int(inputs), int(features), bias=_has(node, 2))


def _matmul(reader: Reader, node: onnx.NodeProto) -> int | None:
    weight = _weight(reader, node, 1)
    if weight is None or len(weight) != 2 or node.input[0] in reader.known:
        return None
    return _linear(reader, node.input[0], int(weight[0]), int(weight[1]), bias=False)


def _linear(reader: Reader, name: str, inputs: int, features: int, bias: bool) -> int | None:
    x = reader.value(name)
    if len(reader.shapes[x]) < 2:
        return None
    if reader.shapes[x][-1] != inputs:
        raise InputError(f"weights [{inputs},{features}] do not fit an input of shape {list(reader.shapes[x])}")
    return reader.emit("Linear", (x,), (("bias", int(bias)), ("features", features)))


def _batch_norm(reader: Reader, node: onnx.NodeProto) -> int | None:
    attrs = _attrs(node)
    if attrs.get("training_mode", 0):
        raise InputError("batch normalization in training mode: export the model in evaluation mode")
    x, operands = reader.value(node.input[0]), [reader.known.get(name) for name in node.input[1:5]]
    shape = reader.shapes[x]
    if any(known is None or tuple(known.shape) != tuple(shape[1:2]) for known in operands):
        raise InputError(f"scale, shift, mean and variance must be weights that fit an input of shape {list(shape)}")
    scale, shift = (known.static if known and not known.learned else None for known in operands[:2])
    given: dict[str, Value] = {"epsilon": attrs.get("epsilon", BATCH_NORM_EPSILON)}
    if scale is not None and shift is not None and (scale == 1).all() and (shift == 0).all():
        given["affine"] = 0
    return reader.emit("BatchNorm", (x,), tuple(given.items()))


def _gather(reader: Reader, node: onnx.NodeProto) -> int | None:
    table = reader.known.get(node.input[0])
    if table is None or not is_weight(table) or len(table.shape) != 2 or _attrs(node).get("axis", 0) != 0:
        return None
    if element_type(table.shape) != "float":
        return None
    rows, features = map(int, table.shape)
    return reader.emit("Embedding", (reader.value(node.input[1]),), (("features", features), ("rows", rows)))


# --- operators that are others ---------------------------------------------------------------------------------------


def _same(reader: Reader, node: onnx.NodeProto) -> int | None:
    return reader.value(node.input[0])


def _mul(reader: Reader, node: onnx.NodeProto) -> int | None:
    for name, factor in (node.input, reversed(node.input)):
        known = reader.known.get(factor)
        if known is not None and not len(known.shape) and known.static is not None and known.static == 0:
            return reader.emit("Zero", (reader.value(name),), ())
    return None


def _extremum(reader: Reader, node: onnx.NodeProto) -> int | None:
    """The larger or smaller of a value and a number is the value clipped."""
    numbers = [reader.known[name] for name in node.input if name in reader.known]
    others = [name for name in node.input if name not in reader.known]
    if len(numbers) != 1 or len(others) != 1 or numbers[0].static is None or numbers[0].static.size != 1:
        return None
    x = reader.value(others[0])
    if len(reader.shapes[x]) < len(numbers[0].shape):
        return None
    bound = standard.number(numbers[0].static.item())
    return reader.emit("Clip", (x,), (("min" if node.op_type == "Max" else "max", bound),))


def _prelu(reader: Reader, node: onnx.NodeProto) -> int | None:
    """The slope is learned even where it is a single number; its first dimensions of 1 say nothing."""
    slope = reader.known.get(node.input[1])
    if slope is None or not slope.learned:
        return None
    shape = tuple(slope.shape)
    while len(shape) > 1 and shape[0] == 1:
        shape = shape[1:]
    param = reader.emit("Param", (), (("shape", tuple(map(int, shape)) or (1,)),))
    return reader.emit("PRelu", (reader.value(node.input[0]), param), ())


def _cast(reader: Reader, node: onnx.NodeProto) -> int | None:
    x = reader.value(node.input[0])
    same = standard.enum(element_type(reader.shapes[x])) == _attrs(node)["to"]
    return x if same else None


def _clip(reader: Reader, node: onnx.NodeProto) -> int | None:
    return None if any(node.input[1:]) or len(node.attribute) else reader.value(node.input[0])


def _ranges(reader: Reader, node: onnx.NodeProto, shape: Shape) -> list[tuple[int, int, int, int]] | None:
    """Axis, start, end and step of each axis that a Slice cuts; None where they depend on the data."""
    known = [reader.known[name] if name else None for name in node.input[1:]]
    values = [k.values if k else None for k in known]
    count = len(values[0][0]) if values and values[0] else 0
    plain = [list(range(count)), [1] * count]
    starts, ends, axes, steps = (
        [v.tolist() for v in pair] if pair is not None else [plain[i - 2]] * 2
        for i, pair in enumerate([*values, None, None][:4])
    )
    found = []
    for i, axis in enumerate(axes[0]):
        size = shape[axis]
        one, two = ((starts[n][i], ends[n][i], steps[n][i]) for n in (0, 1))
        if (pair := assumed((size,))) is None:
            if one != two:
                return None
            found.append((axis % len(shape), *one))
            continue
        first, second = (slice(*cut).indices(n) for cut, n in zip((one, two), pair[0], strict=True))
        if first == (0, pair[0][0], 1) and second == (0, pair[0][1], 1):
            continue
        if one != two and not (first == second and isinstance(size, int)):
            if (first[0], first[1:], second[1:]) != (second[0], (pair[0][0], 1), (pair[0][1], 1)):
                return None
            one = (first[0], _TO_THE_END, 1)
        found.append((axis % len(shape), *one))
    return sorted(found)


_TO_THE_END = (1 << 63) - 1


def _slice(reader: Reader, node: onnx.NodeProto) -> int | None:
    if not all(name in reader.known for name in node.input[1:] if name):
        return None
    x = reader.value(node.input[0])
    ranges = _ranges(reader, node, reader.shapes[x])
    if not ranges:
        return x if ranges == [] else None
    axes, starts, ends, steps = zip(*ranges, strict=True)
    return reader.emit("Slice", (x,), (("axes", axes), ("ends", ends), ("starts", starts), ("steps", steps)))


def _reshape(reader: Reader, node: onnx.NodeProto) -> int | None:
    known = reader.known.get(node.input[1])
    if known is None or known.values is None:
        return None
    if _attrs(node).get("allowzero", 0) and any((v == 0).any() for v in known.values):
        raise InputError("allowzero = 1 with a size of 0 is not supported: the value would be empty")
    x = reader.value(node.input[0])
    shape = reader.shapes[x]
    target = _target(known.values, shape)
    if target is None:
        return None
    result = output_shape("Reshape", (("shape", target),), (shape,))
    if result == shape:
        return x
    if len(result) == 2 and len(shape) > 2 and result[0] == shape[0]:
        return reader.emit("Flatten", (x,), ())
    return reader.emit("Reshape", (x,), (("shape", target),))


def _target(values: tuple[np.ndarray, np.ndarray], shape: Shape) -> tuple[int, ...] | None:
    """A Reshape's sizes with 0 for those that stay and -1 for one that is open; None where several others are."""
    pairs = list(zip(*(v.tolist() for v in values), strict=True))
    sizes = assumed(shape)
    if sizes is None:
        return tuple(a for a, _ in pairs) if all(a == b for a, b in pairs) else None
    full = [
        _without_gaps(list(column), [size[i] for size in sizes]) for i, column in enumerate(zip(*pairs, strict=True))
    ]
    found = []
    for i, (a, b) in enumerate(zip(*full, strict=True)):
        stays = i < len(shape) and (a, b) == sizes[i]
        found.append(0 if stays else a if a == b else -1)
    return tuple(found) if found.count(-1) <= 1 else None


def _without_gaps(target: list[int], shape: list[int]) -> list[int]:
    """The sizes with 0 and -1 replaced by what they mean for an input of this shape."""
    target = [shape[i] if size == 0 and i < len(shape) else size for i, size in enumerate(target)]
    if -1 in target:
        rest = abs(int(np.prod(target, dtype=object)))
        target[target.index(-1)] = int(np.prod(shape, dtype=object)) // rest if rest else 0
    return target


def _expand(reader: Reader, node: onnx.NodeProto) -> int | None:
    known, source = reader.known.get(node.input[1]), reader.known.get(node.input[0])
    target = sizes(known) if known else None
    if target is None:
        return None
    if source is not None and source.static is not None and not source.shape:
        return _full(reader, target, source.static, element_type(source.shape))
    x = reader.value(node.input[0])
    given: Attrs = (("shape", target),)
    return (
        x
        if output_shape("Expand", given, (reader.shapes[x],)) == reader.shapes[x]
        else reader.emit("Expand", (x,), given)
    )


def _constant_of_shape(reader: Reader, node: onnx.NodeProto) -> int | None:
    known = reader.known.get(node.input[0])
    target = sizes(known) if known else None
    if target is None:
        raise InputError("the shape depends on the data, or on an open size other than the batch's")
    fill = next((read_tensor(a.t, learned=False) for a in node.attribute), constant(np.zeros(1, np.float32), "float"))
    return _full(reader, target, fill.static, element_type(fill.shape))


def _full(reader: Reader, target: tuple[int, ...], fill: np.ndarray | None, element: str) -> int:
    if fill is None:
        raise InputError("the constant to fill with is not known")
    value = reader.emit("Expand", (), (("input", standard.number(fill.item())), ("shape", target)))
    return value if element == "float" else reader.emit("Cast", (value,), (("to", standard.enum(element)),))


def _reduce_mean(reader: Reader, node: onnx.NodeProto) -> int | None:
    """The mean over all spatial dimensions is global average pooling."""
    attrs = _attrs(node)
    operand = reader.known.get(node.input[1]) if _has(node, 1) else None
    axes = operand.static.tolist() if operand is not None and operand.static is not None else attrs.get("axes", ())
    x = reader.value(node.input[0])
    rank = len(reader.shapes[x])
    if rank < 3 or sorted(axis % rank for axis in axes) != list(range(2, rank)) or not attrs.get("keepdims", 1):
        return None
    return reader.emit("GlobalAveragePool", (x,), ())


def _resize(reader: Reader, node: onnx.NodeProto) -> int | None:
    """A Resize of those axes alone whose size changes."""
    attrs, x = _attrs(node), reader.value(node.input[0])
    shape = reader.shapes[x]
    axes = attrs.pop("axes", tuple(range(len(shape))))
    by = next((i for i in (3, 2) if _has(node, i) and len(reader.shape(node.input[i])) == 1), 0)
    known = reader.known.get(node.input[by]) if by else None
    if known is None or known.values is None or (_has(node, 1) and reader.shape(node.input[1]) != (0,)):
        return None
    pairs = zip(*(v.tolist() for v in known.values), strict=True)
    changed = {
        axis % len(shape): a
        for axis, (a, b) in zip(axes, pairs, strict=True)
        if [(a, b)] != ([(1, 1)] if by == 2 else assumed((shape[axis],)))
    }
    if not changed:
        return x
    kept, values = zip(*sorted(changed.items()), strict=True)
    name = "scales" if by == 2 else "sizes"
    return reader.emit("Resize", (x,), (*attrs.items(), ("axes", kept), (name, tuple(map(standard.number, values)))))


def read_split(reader: Reader, node: onnx.NodeProto, used: list[int]) -> None:
    """A Slice for each part that is used."""
    attrs, x = _attrs(node), reader.value(node.input[0])
    shape = reader.shapes[x]
    axis = attrs.get("axis", 0) % len(shape)
    size, operand = shape[axis], reader.known.get(node.input[1]) if _has(node, 1) else None
    if isinstance(size, str) or (_has(node, 1) and (operand is None or operand.static is None)):
        raise InputError("parts of an open or computed size are not supported: export the model with fixed sizes")
    equal = -(-size // len(node.output))
    parts = operand.static.tolist() if operand is not None and operand.static is not None else attrs.get("split")
    ends = np.cumsum(parts or [equal] * len(node.output)).tolist()
    for i in used:
        start, end = ends[i - 1] if i else 0, min(ends[i], size)
        given: Attrs = (("axes", (axis,)), ("ends", (end,)), ("starts", (start,)))
        reader.values[node.output[i]] = x if end - start == size else reader.emit("Slice", (x,), given)


READERS: dict[str, Callable[[Reader, onnx.NodeProto], int | None]] = {
    "AveragePool": _pool,
    "BatchNormalization": _batch_norm,
    "Cast": _cast,
    "Clip": _clip,
    "ConstantOfShape": _constant_of_shape,
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "Dropout": _same,
    "Expand": _expand,
    "Gather": _gather,
    "Gemm": _gemm,
    "Identity": _same,
    "MatMul": _matmul,
    "Max": _extremum,
    "MaxPool": _pool,
    "Min": _extremum,
    "Mul": _mul,
    "PRelu": _prelu,
    "ReduceMean": _reduce_mean,
    "Reshape": _reshape,
    "Resize": _resize,
    "Slice": _slice,
}
