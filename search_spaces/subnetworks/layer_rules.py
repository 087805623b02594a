"""What operators with weights state about their axes: which channels a layer reads, and which it
makes. `RULES` has the rules of all operators.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from search_spaces.ir.graph import Node
from search_spaces.ir.ops.convolution import convolution
from search_spaces.ir.ops.recurrent import RECURRENT
from search_spaces.subnetworks.axes import Atom, Axis, fix, fixed, fresh, number_of, product
from search_spaces.subnetworks.coupling import UNFOLLOWED, Axes, Rule, Walk, unknown
from search_spaces.subnetworks.shape_rules import IMAGE, NUMBERS, SHAPE_RULES

# --- weights and constants that are values


def _param(walk: Walk, node: Node) -> Axes:
    """In the graph of weights a parameter; in the network a weight that is a value of its own."""
    output = node.outputs[0]
    shape = walk.shape(node)
    reading = walk.reading
    if walk.weights or output in reading.recorder.recurrent_params:
        return tuple([fresh(dim) for dim in shape])
    value = reading.params.get(output)
    if value is None:
        return walk.new_axes(node, UNFOLLOWED)
    walk.origins[output] = value
    axes = walk.coupling.weights[value]
    return axes if len(axes) == len(shape) else walk.new_axes(node, "")


def _buffer(walk: Walk, node: Node) -> Axes:
    """Long constants; the module's own buffers can be sliced."""
    reading = walk.reading
    own = reading.sources if walk.weights else reading.buffers
    is_own = node.outputs[0] in own
    return walk.new_axes(node, "" if is_own else NUMBERS)


def _constant(walk: Walk, node: Node) -> Axes:
    """Written numbers stay, unless they are a buffer of which only weights are computed."""
    is_source = walk.weights and node.outputs[0] in walk.reading.sources
    return walk.new_axes(node, "" if is_source else NUMBERS)


# --- convolutions


def _conv(walk: Walk, node: Node) -> Axes:
    """Weights (channels, inputs of a group, kernel): channels and inputs are products of groups."""
    x, *values = walk.inputs(node)

    # 1. The weights: owned, or values of the graph.
    weight: Axes | None
    biases: Sequence[Axes | None]
    if values:
        weight, *biases = values
        count = _number(node, "group", 1)
    else:
        own = walk.owned(node)
        weight, *biases = own or [None]
        if weight is None:
            return unknown(walk, node)
        input_shape = walk.graph.shapes[node.inputs[0]]
        count = convolution(node.attrs, input_shape).group
    made, inputs_of_group, *kernel = weight
    for axis in kernel:
        fix(axis, "a kernel")

    # 2. What it reads and makes.
    read = inputs_of_group
    if count == 1:
        walk.unify(x[1], inputs_of_group, node)
        read = x[1]
    else:
        groups = Atom(count)
        walk.unify(x[1], product([groups, inputs_of_group]), node)
        channels_of_group = Atom(made.size // count)
        walk.unify(made, product([groups, channels_of_group]), node)
        walk.coupling.groups[node.outputs[0]] = groups
    _add_bias(walk, node, made, biases)

    # 3. The roles of the weights.
    if values:
        walk.note_value(node.inputs[1], [made], [read])
    else:
        walk.note(node, 0, [made], [read])
        _note_biases(walk, node, made, biases)
    return (x[0], made, *_image(walk, node))


def _conv_transpose(walk: Walk, node: Node) -> Axes:
    """Weights (inputs, channels of a group, kernel)."""
    own = walk.owned(node)
    weight, *biases = own or [None]
    if len(node.inputs) > 1 or weight is None:
        return unknown(walk, node)
    (x,) = walk.inputs(node)
    read, made, *kernel = weight
    for axis in kernel:
        fix(axis, "a kernel")
    walk.unify(x[1], read, node)
    count = _number(node, "group", 1)
    if count > 1:
        groups = Atom(count)
        inputs_of_group = Atom(read.size // count)
        walk.unify(read, product([groups, inputs_of_group]), node)
        made = product([groups, made])
        walk.coupling.groups[node.outputs[0]] = groups
    _add_bias(walk, node, made, biases)
    walk.note(node, 0, [made], [x[1]])
    _note_biases(walk, node, made, biases)
    return (x[0], made, *_image(walk, node))


def _number(node: Node, name: str, default: int) -> int:
    """An attribute that is a whole number."""
    number: Any = dict(node.attrs).get(name, default)
    return number


def _image(walk: Walk, node: Node) -> list[Axis]:
    """The axes of a result behind samples and channels, which stay whole."""
    sizes = walk.shape(node)[2:]
    return [fixed(number_of(dim), IMAGE) for dim in sizes]


def _note_biases(
    walk: Walk,
    node: Node,
    made: Axis,
    biases: Sequence[Axes | None],
) -> None:
    """Biases, which an operator owns behind its weight, make what the weight makes."""
    for i in range(len(biases)):
        walk.note(node, 1 + i, [made])


def _add_bias(
    walk: Walk,
    node: Node,
    made: Axis,
    biases: Sequence[Axes | None],
) -> None:
    """A bias has a number for each channel."""
    for bias in biases:
        if bias is None:
            fix(made, UNFOLLOWED)
        else:
            walk.unify(made, bias[0], node)


# --- linear layers and embeddings


def _linear(walk: Walk, node: Node) -> Axes:
    """Weights (features, inputs)."""
    own = walk.owned(node)
    weight, *biases = own or [None]
    if weight is None:
        return unknown(walk, node)
    (x,) = walk.inputs(node)
    *others, last = x
    made, read = weight
    walk.unify(last, read, node)
    walk.note(node, 0, [made], [last])
    _add_bias(walk, node, made, biases)
    _note_biases(walk, node, made, biases)
    return (*others, made)


def _embedding(walk: Walk, node: Node) -> Axes:
    own = walk.owned(node)
    if not own or own[0] is None:
        return unknown(walk, node)
    rows, features = own[0]
    fix(rows, "rows of an embedding")
    walk.note(node, 0, [features])
    return (*walk.axes[node.inputs[0]], features)


# --- normalizations


def _per_channel(walk: Walk, node: Node) -> Axes:
    """Batch and instance normalization: scale, shift, mean and variance of each channel."""
    if len(node.inputs) > 1:
        return unknown(walk, node)
    (x,) = walk.inputs(node)
    for i, weight in enumerate(walk.owned(node)):
        if weight is None:
            fix(x[1], UNFOLLOWED)
            continue
        walk.unify(x[1], weight[0], node)
        if i == 0 or node.op != "BatchNorm":
            walk.note(node, i, [x[1]])
    return x


def _group_norm(walk: Walk, node: Node) -> Axes:
    """Channels are a product of groups; statistics are of the channels of a group."""
    if len(node.inputs) > 1:
        return unknown(walk, node)
    (x,) = walk.inputs(node)
    channels = x[1]
    count: Any = dict(node.attrs)["num_groups"]
    reason = "the one group of a normalization" if count == 1 else ""
    groups = Atom(count, reason)
    channels_of_group = Atom(channels.size // count)
    walk.unify(channels, product([groups, channels_of_group]), node)
    walk.coupling.groups[node.outputs[0]] = groups
    walk.coupling.normalized.append(channels_of_group)
    for i, weight in enumerate(walk.owned(node)):
        if weight is not None:
            walk.unify(channels, weight[0], node)
            walk.note(node, i, [channels])
    return x


def _layer_norm(walk: Walk, node: Node) -> Axes:
    """Statistics are of the last axes, and so are the weights."""
    if len(node.inputs) > 1:
        return unknown(walk, node)
    (x,) = walk.inputs(node)
    first = _number(node, "axis", -1)
    last = x[first:]
    walk.coupling.normalized += last
    for i, weight in enumerate(walk.owned(node)):
        if weight is None:
            for axis in last:
                fix(axis, UNFOLLOWED)
            continue
        for axis, own in zip(last, weight, strict=True):
            walk.unify(axis, own, node)
        walk.note(node, i, last)
    return x


# --- recurrent layers


def _recurrent(walk: Walk, node: Node) -> Axes:
    """Weights in torch's order: of the input, of the state, and their biases; for each direction.

    Rows are products of gates and hidden units. Where several operators read the weights, such as
    those of a layer's outputs and of its last state, they are also values of the graph.
    """
    own = walk.owned(node)
    if not own or any(weight is None for weight in own):
        return unknown(walk, node)
    x, *values = walk.inputs(node)
    *_, features = x
    output = node.outputs[0]
    gates = RECURRENT[node.op]
    hidden_size: Any = dict(node.attrs)["hidden_size"]
    hidden = Atom(hidden_size)

    # 1. The module's weights. Matrices of the input and of the state take turns.
    noted = {role.value for role in walk.coupling.roles}
    matrices = 0
    for i, weight in enumerate(own):
        assert weight is not None
        rows, *columns = weight
        walk.unify(rows, product([Atom(gates, "gates"), hidden]), node)
        if columns:
            reads_state = matrices % 2 == 1
            walk.unify(columns[0], hidden if reads_state else features, node)
            matrices += 1
        if walk.reading.owned[output][i] not in noted:
            walk.note(node, i, [rows], columns)

    # 2. The same as values: (directions, gates · hidden, inputs), (directions, gates · hidden,
    #    hidden) and, of both biases, (directions, 2 · gates · hidden).
    for i, (directions, rows, *columns) in enumerate(values):
        fix(directions, "directions")
        times = gates if columns else 2 * gates
        walk.unify(rows, product([Atom(times, "gates"), hidden]), node)
        if columns:
            reads_state = i == 1
            walk.unify(columns[0], hidden if reads_state else features, node)

    # 3. All layers of a module have one number of hidden units.
    call_of = walk.reading.recorder.recurrent_calls
    walk.coupling.groups[output] = hidden
    for value, other in walk.coupling.groups.items():
        if call_of.get(value) == call_of[output]:
            walk.unify(hidden, other, node)

    # 4. All states: (time, directions, N, hidden); the last ones: (directions, N, hidden).
    made = [fresh(dim, "an axis of the input") for dim in walk.shape(node)[:-1]]
    time, samples = x[:2]
    if len(made) == 3:
        made[0] = time
        made[2] = samples
    else:
        made[1] = samples
    return (*made, hidden)


RULES: dict[str, Rule] = {
    **SHAPE_RULES,
    "Param": _param,
    "Buffer": _buffer,
    "Constant": _constant,
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "Linear": _linear,
    "Embedding": _embedding,
    "BatchNorm": _per_channel,
    "InstanceNormalization": _per_channel,
    "GroupNormalization": _group_norm,
    "LayerNormalization": _layer_norm,
    "RMSNormalization": _layer_norm,
    "RNN": _recurrent,
    "GRU": _recurrent,
    "LSTM": _recurrent,
}
