"""What operators without weights state about their axes: elementwise and broadcast functions,
reductions, arrangements, parts, products.
"""

from __future__ import annotations

from typing import Any

from search_spaces.ir.graph import Node
from search_spaces.subnetworks.axes import (
    Atom,
    Axis,
    concat,
    cut,
    fix,
    fixed,
    fresh,
    is_fixed,
    number_of,
    product,
)
from search_spaces.subnetworks.coupling import Axes, Rule, Walk, unknown

SIZE_1 = "size 1"
NUMBERS = "constant numbers"
IMAGE = "an axis of the image"


# --- all elements alike


def _elementwise(walk: Walk, node: Node) -> Axes:
    if len(node.inputs) != 1:
        return unknown(walk, node)
    (axes,) = walk.inputs(node)
    if walk.weights and node.outputs[0] in walk.reading.standardized:
        walk.coupling.normalized += axes[1:]
    return axes


def _broadcasting(walk: Walk, node: Node) -> Axes:
    """Equal axes are one; an axis of size 1 is repeated.

    Numbers that are written for each position fix it.
    """
    shape = walk.shape(node)
    written = any(isinstance(value, tuple) and len(value) > 1 for _, value in node.attrs)
    made: list[Axis] = []
    for place, dim in enumerate(shape):
        # 1. The axes at this place, counted from the last one.
        from_end = place - len(shape)
        operands = [axes[from_end] for axes in walk.inputs(node) if len(axes) >= -from_end]
        wide = [axis for axis in operands if axis.size != 1]
        # 2. Those that are not repeated are equal.
        for axis in wide[1:]:
            walk.unify(wide[0], axis, node)
        why_fixed = "" if dim == 1 else NUMBERS
        axis = wide[0] if wide else fresh(dim, why_fixed)
        # 3. Written numbers may be of any axis.
        is_last = place == len(shape) - 1
        if written and (is_last or axis.size > 1):
            fix(axis, NUMBERS)
        made.append(axis)
    return tuple(made)


# --- reductions


def _pooling(walk: Walk, node: Node) -> Axes:
    if any(name == "output" for name, _ in node.attrs):  # places of the maxima
        return unknown(walk, node)
    (x,) = walk.inputs(node)
    for axis in x[2:]:
        if node.op.startswith("Global"):  # it may be a mean over channels, which stand last
            walk.coupling.normalized.append(axis)
        else:
            fix(axis, f"an operator {node.op} reads windows of it")
    image = [fixed(number_of(dim), IMAGE) for dim in walk.shape(node)[2:]]
    return (*x[:2], *image)


def _reducing(walk: Walk, node: Node) -> Axes:
    if len(node.inputs) > 1:
        return unknown(walk, node)
    (x,) = walk.inputs(node)
    rank = len(x)
    # 1. The reduced axes, all of them by default.
    attrs = dict(node.attrs)
    chosen: Any = attrs.get("axes", attrs.get("axis", tuple(range(rank))))
    if isinstance(chosen, int):
        chosen = (chosen,)
    places = {axis % rank for axis in chosen}
    for place in places:
        walk.coupling.normalized.append(x[place])
        if node.op in ("ArgMax", "ArgMin"):
            fix(x[place], f"an operator {node.op} reads its positions")
    # 2. They become axes of size 1, or disappear.
    keeps_rank = attrs.get("keepdims", 1)
    axes = []
    for i, axis in enumerate(x):
        if i not in places:
            axes.append(axis)
        elif keeps_rank:
            axes.append(fixed(1, SIZE_1))
    return tuple(axes)


def _along(walk: Walk, node: Node) -> Axes:
    """A softmax or a running sum along an axis."""
    (x,) = walk.inputs(node)
    at: Any = dict(node.attrs).get("axis", -1)
    fix(x[at], f"a {node.op} along it")
    return x


# --- arrangements


def _transpose(walk: Walk, node: Node) -> Axes:
    (x,) = walk.inputs(node)
    source, output = node.inputs[0], node.outputs[0]
    if source in walk.origins:  # a weight that a layer reads next
        walk.origins[output] = walk.origins[source]
    reverse = range(len(x))[::-1]
    perm: Any = dict(node.attrs).get("perm", reverse)
    return tuple([x[axis] for axis in perm])


def _reshape(walk: Walk, node: Node) -> Axes:
    """Blocks of axes before and after with the same number of elements are equal products."""
    before = list(walk.axes[node.inputs[0]])
    dims = walk.shape(node)
    made: list[Axis] = []
    i = j = 0  # the next axis before, and after
    while i < len(before) or j < len(dims):
        # 1. Axes of size 1 have no partner.
        if j < len(dims) and dims[j] == 1:
            made.append(fixed(1, SIZE_1))
            j += 1
            continue
        if i < len(before) and before[i].size == 1:
            i += 1
            continue
        # 2. The smallest block with as many elements before as after.
        first, last = i + 1, j + 1
        left = before[i].size
        right = number_of(dims[j])
        while left != right:
            if left < right:
                left *= before[first].size
                first += 1
            else:
                right *= number_of(dims[last])
                last += 1
        # 3. Its products are equal.
        if first - i == last - j == 1:
            made.append(before[i])
        else:
            whole = product(before[i:first])
            reason = "an axis of the input" if is_fixed(whole) else ""
            block = [fresh(dim, reason) for dim in dims[j:last]]
            walk.unify(product(block), whole, node)
            made += block
        i, j = first, last
    return tuple(made)


def _squeeze(walk: Walk, node: Node) -> Axes:
    x = walk.axes[node.inputs[0]]
    rank = len(x)
    ones = [i for i, axis in enumerate(x) if axis.size == 1]
    chosen: Any = dict(node.attrs).get("axes", ones)
    removed = {axis % rank for axis in chosen}
    return tuple([axis for i, axis in enumerate(x) if i not in removed])


def _unsqueeze(walk: Walk, node: Node) -> Axes:
    made = list(walk.axes[node.inputs[0]])
    rank = len(walk.shape(node))
    chosen: Any = dict(node.attrs)["axes"]
    for axis in sorted(axis % rank for axis in chosen):
        made.insert(axis, fixed(1, SIZE_1))
    return tuple(made)


def _shuffle(walk: Walk, node: Node) -> Axes:
    """(groups, channels of a group) becomes (channels of a group, groups)."""
    (x,) = walk.inputs(node)
    groups: Any = dict(node.attrs)["groups"]
    slow = fixed(groups, "groups of a channel shuffle")
    fast = Atom(x[1].size // groups)
    walk.unify(x[1], product([slow, fast]), node)
    return (x[0], product([fast, slow]), *x[2:])


def _depth_to_space(walk: Walk, node: Node) -> Axes:
    attrs: dict[str, Any] = dict(node.attrs)
    if attrs.get("mode") != "CRD":
        return unknown(walk, node)
    (x,) = walk.inputs(node)
    pixels = attrs["blocksize"] ** 2
    channels = Atom(x[1].size // pixels)
    walk.unify(x[1], product([channels, fixed(pixels, "pixels of a block")]), node)
    image = [fixed(number_of(dim), IMAGE) for dim in walk.shape(node)[2:]]
    return (x[0], channels, *image)


def _resize(walk: Walk, node: Node) -> Axes:
    attrs: dict[str, Any] = dict(node.attrs)
    if len(node.inputs) > 1 or "axes" not in attrs:
        return unknown(walk, node)
    (x,) = walk.inputs(node)
    made = list(x)
    for place in attrs["axes"]:
        made[place] = fixed(number_of(walk.shape(node)[place]), IMAGE)
    return tuple(made)


# --- joins and repetitions


def _concat(walk: Walk, node: Node) -> Axes:
    parts = walk.inputs(node)
    first, *others = parts
    axis: Any = dict(node.attrs)["axis"]
    at = axis % len(first)
    for place in range(len(first)):
        for other in others:
            if place != at:
                walk.unify(first[place], other[place], node)
    joined = concat([part[at] for part in parts])
    return (*first[:at], joined, *first[at + 1 :])


def _expand(walk: Walk, node: Node) -> Axes:
    shape = walk.shape(node)
    x = walk.axes[node.inputs[0]] if node.inputs else ()
    made = []
    for place, dim in enumerate(shape):
        at = place - (len(shape) - len(x))
        stays = at >= 0 and x[at].size == number_of(dim)
        # Repeated numbers are equal: their positions can be removed as those that they meet.
        made.append(x[at] if stays else fresh(dim))
    return tuple(made)


def _tile(walk: Walk, node: Node) -> Axes:
    repeats: Any = dict(node.attrs).get("repeats")
    if repeats is None:
        return unknown(walk, node)
    made = []
    for times, axis in zip(repeats, walk.axes[node.inputs[0]], strict=True):
        made.append(product([fixed(times, "repetitions"), axis]))
    return tuple(made)


def _pad(walk: Walk, node: Node) -> Axes:
    pads: Any = dict(node.attrs).get("pads")
    if pads is None or len(node.inputs) > 1:
        return unknown(walk, node)
    (x,) = walk.inputs(node)
    made = list(x)
    for place, dim in enumerate(walk.shape(node)):
        if pads[place] or pads[place + len(x)]:
            fix(x[place], "padding along it")
            made[place] = fixed(number_of(dim), "padding along it")
    return tuple(made)


# --- parts


def _slice(walk: Walk, node: Node) -> Axes:
    """A slice cuts an axis into what stands before it, the slice, and what stands behind."""
    attrs: dict[str, Any] = dict(node.attrs)
    made = list(walk.axes[node.inputs[0]])
    shape = walk.shape(node)
    steps = attrs.get("steps", (1,) * len(attrs["axes"]))
    cuts: dict[int, tuple[Axis | None, Axis]] = {}
    slices = zip(attrs["axes"], attrs["starts"], attrs["ends"], steps, strict=True)
    for axis, start, end, step in slices:
        whole = made[axis]
        size = _part_size(walk, node, axis)
        if size:
            number = fixed(whole.size // size, "a number of parts")
            walk.unify(whole, product([number, Atom(size)]), node)
        parts = None if step != 1 else _middle(whole, start, min(end, whole.size))
        if parts is None:
            reason = "a slice inside of a group" if step == 1 else "a slice with a step"
            fix(whole, reason)
            made[axis] = fixed(number_of(shape[axis]), reason)
        else:
            cuts[axis] = parts
            made[axis] = parts[1]
    walk.coupling.cuts[node.outputs[0]] = cuts
    return tuple(made)


def _part_size(walk: Walk, node: Node, axis: int) -> int | None:
    """The size of each part if the slices of a value divide an axis into equal parts.

    They come from `chunk` or `split`, which make parts of one size whatever the axis' size is, so
    that parts cannot be shortened apart from each other.
    """
    # 1. The parts that the slices take of this axis. A slice may end beyond the axis.
    value = node.inputs[0]
    whole = walk.axes[value][axis].size
    parts: set[tuple[int, int]] = set()
    for attrs in walk.slices[value]:
        places: Any = zip(attrs["axes"], attrs["starts"], attrs["ends"], strict=True)
        for sliced_axis, start, end in places:
            if sliced_axis == axis:
                parts.add((start, min(end, whole)))

    # 2. They are of one size, start at its multiples, and cover the axis.
    first_start, first_end = next(iter(parts))
    size = first_end - first_start
    if size <= 1 or len(parts) * size != whole:
        return None
    for start, end in parts:
        if end - start != size or start % size != 0:
            return None
    return size


def _middle(axis: Axis, start: int, end: int) -> tuple[Axis | None, Axis] | None:
    """What stands before positions start to end - 1 (None: nothing), and these positions."""
    before: Axis | None = None
    rest = axis
    if start:
        halves = cut(axis, start)
        if halves is None:
            return None
        before, rest = halves
    if end == axis.size:
        return before, rest
    halves = cut(rest, end - start)
    return None if halves is None else (before, halves[0])


def _gather(walk: Walk, node: Node) -> Axes:
    x, *others = walk.inputs(node)
    axis: Any = dict(node.attrs).get("axis", 0)
    at = axis % len(x)
    fix(x[at], "an index into it")
    walk.note_value(node.inputs[0], [*x[:at], *x[at + 1 :]])
    if others:
        index = others[0]
    else:
        shape = walk.shape(node)
        rank = len(shape) - len(x) + 1
        index = tuple([fresh(dim, "an index") for dim in shape[at : at + rank]])
    return (*x[:at], *index, *x[at + 1 :])


# --- products


def _matmul(walk: Walk, node: Node) -> Axes:
    """A product of matrices, or of many: rows of the left one, columns of the right one."""
    left, right = walk.inputs(node)
    if len(left) < 2 or len(right) < 2:
        return unknown(walk, node)
    *left_batch, rows, left_inner = left
    *right_batch, right_inner, columns = right

    # 1. Rows of the one meet columns of the other.
    walk.unify(left_inner, right_inner, node)
    if _is_of_values(walk, node):
        walk.coupling.contracted.append(left_inner)
    left_value, right_value = node.inputs
    walk.note_value(left_value, [rows], [left_inner])
    walk.note_value(right_value, [columns], [right_inner])

    # 2. The axes before them are equal or repeated. They are aligned at the right.
    count = max(len(left_batch), len(right_batch))
    batch: list[Axis] = []
    for place in range(-count, 0):
        wide = []
        for axes in (left_batch, right_batch):
            if len(axes) >= -place and axes[place].size != 1:
                wide.append(axes[place])
        if len(wide) == 2:
            walk.unify(wide[0], wide[1], node)
        batch.append(wide[0] if wide else fixed(1, SIZE_1))
    return (*batch, rows, columns)


def _is_of_values(walk: Walk, node: Node) -> bool:
    """True for a product of which all factors depend on the input."""
    return not walk.weights and walk.dynamic.issuperset(node.inputs)


def _einsum(walk: Walk, node: Node) -> Axes:
    equation = str(dict(node.attrs)["equation"]).replace(" ", "")
    inputs, _, output = equation.partition("->")
    terms = inputs.split(",")
    has_diagonal = any(len(set(term)) < len(term) for term in terms)
    if "..." in equation or not output or has_diagonal:
        return unknown(walk, node)
    by_letter: dict[str, Axis] = {}
    for term, axes in zip(terms, walk.inputs(node), strict=True):
        for letter, axis in zip(term, axes, strict=True):
            if letter in by_letter:
                walk.unify(by_letter[letter], axis, node)
            by_letter.setdefault(letter, axis)
    if _is_of_values(walk, node):
        summed = [axis for letter, axis in by_letter.items() if letter not in output]
        walk.coupling.contracted += summed
    return tuple([by_letter[letter] for letter in output])


def _range(walk: Walk, node: Node) -> Axes:
    return walk.new_axes(node, NUMBERS)


_ELEMENTWISE = (
    "Abs",
    "Acos",
    "Asin",
    "Atan",
    "Cast",
    "Ceil",
    "Celu",
    "Clip",
    "Cos",
    "Cosh",
    "Elu",
    "Erf",
    "Exp",
    "Floor",
    "Gelu",
    "HardSigmoid",
    "HardSwish",
    "Identity",
    "IsInf",
    "IsNaN",
    "LeakyRelu",
    "Log",
    "Mish",
    "Neg",
    "Not",
    "Reciprocal",
    "Relu",
    "Round",
    "Selu",
    "Shrink",
    "Sigmoid",
    "Sign",
    "Sin",
    "Sinh",
    "Softplus",
    "Softsign",
    "Sqrt",
    "Swish",
    "Tan",
    "Tanh",
    "ThresholdedRelu",
    "Zero",
)
_BROADCASTING = (
    "Add",
    "And",
    "Div",
    "Equal",
    "Greater",
    "GreaterOrEqual",
    "Less",
    "LessOrEqual",
    "Max",
    "Mean",
    "Min",
    "Mod",
    "Mul",
    "Or",
    "PRelu",
    "Pow",
    "Sub",
    "Sum",
    "Where",
    "Xor",
)
_POOLING = (
    "MaxPool",
    "AveragePool",
    "GlobalAveragePool",
    "GlobalMaxPool",
    "LpPool",
    "GlobalLpPool",
)
_REDUCING = (
    "ArgMax",
    "ArgMin",
    "ReduceL1",
    "ReduceL2",
    "ReduceLogSumExp",
    "ReduceMax",
    "ReduceMean",
    "ReduceMin",
    "ReduceProd",
    "ReduceSum",
    "ReduceSumSquare",
)

SHAPE_RULES: dict[str, Rule] = {
    **dict.fromkeys(_ELEMENTWISE, _elementwise),
    **dict.fromkeys(_BROADCASTING, _broadcasting),
    **dict.fromkeys(_POOLING, _pooling),
    **dict.fromkeys(_REDUCING, _reducing),
    **dict.fromkeys(["Softmax", "LogSoftmax", "Hardmax", "CumSum"], _along),
    **dict.fromkeys(["Reshape", "Flatten"], _reshape),
    "Transpose": _transpose,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "ChannelShuffle": _shuffle,
    "DepthToSpace": _depth_to_space,
    "Resize": _resize,
    "Concat": _concat,
    "Expand": _expand,
    "Tile": _tile,
    "Pad": _pad,
    "Slice": _slice,
    "Gather": _gather,
    "MatMul": _matmul,
    "Einsum": _einsum,
    "Range": _range,
}
