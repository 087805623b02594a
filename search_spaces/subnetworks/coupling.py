"""Which positions of which tensors belong together: coupled channels, and how they are found.

1. Every dimension of every tensor is an expression over atoms (`axes`). A parameter starts with a new
   atom for each of its dimensions.
2. The operators are visited in order. Each has a rule (`shape_rules`, `layer_rules`), which states the
   equalities of its axes and returns those of its result: a linear layer says that what it reads has
   the columns of its weight, an addition that both operands have the same channels.
3. First the graph of weights, which computes what the operators own from the module's parameters; then
   the graph of the network.
4. Inputs and outputs of the network stay as they are. So do the axes that an operator without a rule
   reads, and those between which no common refinement exists.

Afterwards every atom that is not fixed may be shortened, everywhere at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from search_spaces.ir.graph import Graph, Node, Shape
from search_spaces.subnetworks.axes import Axis, fix, fresh, number_of, unify
from search_spaces.subnetworks.reading import Reading

Axes = tuple[Axis, ...]
UNFOLLOWED = "its weight is computed in a way that cannot be followed, as by spectral_norm"


class Role(NamedTuple):
    """What a weight does.

    Attributes:
        value: the weight in the graph of weights.
        makes: its axes along which it makes channels.
        reads: its axes along which it reads channels.
        owner: output value of the operator that owns it; None for a weight that is a value of its
            own.
    """

    value: int
    makes: tuple[Axis, ...]
    reads: tuple[Axis, ...] = ()
    owner: int | None = None


@dataclass
class Coupling:
    """The axes of a network.

    Attributes:
        axes: of every value of the graph, by its number.
        weights: of every value of the graph of weights, by its number.
        groups: number of groups of convolutions and group normalizations, by the operator's output
            value.
        cuts: for every Slice, by output value, and axis: what stands before the slice, and the
            slice.
        normalized: atoms over which an operator computes a statistic: removing even zeros changes
            its result.
        contracted: atoms that two values of the graph are multiplied along, such as queries and
            keys.
        roles: what each weight does.
    """

    axes: dict[int, Axes] = field(default_factory=dict)
    weights: dict[int, Axes] = field(default_factory=dict)
    groups: dict[int, Axis] = field(default_factory=dict)
    cuts: dict[int, dict[int, tuple[Axis | None, Axis]]] = field(default_factory=dict)
    normalized: list[Axis] = field(default_factory=list)
    contracted: list[Axis] = field(default_factory=list)
    roles: list[Role] = field(default_factory=list)


def couple(reading: Reading, rules: Mapping[str, Rule]) -> Coupling:
    """The axes of all values of a network that was read.

    Args:
        reading: the network.
        rules: by operator, what it states.
    """
    coupling = Coupling()
    Walk(reading.weight_graph, coupling, coupling.weights, reading, weights=True).run(rules)
    _fix_unfollowed(reading, coupling)
    Walk(reading.graph, coupling, coupling.axes, reading, weights=False).run(rules)
    return coupling


def _fix_unfollowed(reading: Reading, coupling: Coupling) -> None:
    """Let the parameters stay whole from which a weight is computed that cannot be followed."""
    value_of = {id(tensor): value for value, tensor in reading.sources.items()}
    for number, weights in reading.recorder.owned.items():
        for (weight, _), value in zip(weights, reading.owned[number], strict=False):
            sources = () if value is not None else reading.recorder.weights.sources(weight)
            for source in sources:
                for axis in coupling.weights.get(value_of.get(source, -1), ()):
                    fix(axis, UNFOLLOWED)


class Walk:
    """Applies the rules to the nodes of a graph in order; rules read and write its attributes.

    Attributes:
        graph: the graph.
        coupling: the result.
        axes: of the graph's values, by number.
        reading: the network.
        weights: True for the graph of weights.
        dynamic: values that depend on the input.
        origins: weights that are values of the network's graph, such as those that several layers
            read: by value, also after a transposition, their value in the graph of weights.
        slices: attributes of the Slices of each value.
    """

    def __init__(
        self,
        graph: Graph,
        coupling: Coupling,
        axes: dict[int, Axes],
        reading: Reading,
        weights: bool,
    ) -> None:
        self.graph = graph
        self.coupling = coupling
        self.axes = axes
        self.reading = reading
        self.weights = weights
        self.dynamic = set(graph.inputs)
        self.origins: dict[int, int] = {}
        self.slices: dict[int, list[dict[str, Any]]] = {}
        for node in graph.nodes:
            if node.op == "Slice":
                self.slices.setdefault(node.inputs[0], []).append(dict(node.attrs))

    def run(self, rules: Mapping[str, Rule]) -> None:
        """Set the axes of all values."""
        for value in self.graph.inputs:
            shape = self.graph.shapes[value]
            self.axes[value] = tuple([fresh(dim, "an axis of the input") for dim in shape])
        for node in self.graph.nodes:
            (value,) = node.outputs
            if not self.dynamic.isdisjoint(node.inputs):
                self.dynamic.add(value)
            made = rules.get(node.op, unknown)(self, node)
            constant = None if self.weights else self.reading.constants.get(value)
            self.axes[value] = made if constant is None else self.coupling.weights[constant[0]]
            shape = tuple([number_of(dim) for dim in self.graph.shapes[value]])
            sizes = tuple([axis.size for axis in self.axes[value]])
            assert sizes == shape, f"{node.op}: axes {sizes}, but shape {shape}"
        for value in self.graph.outputs:
            for axis in self.axes[value]:
                fix(axis, "an output of the network")
        # A weight that no layer was seen to read, such as a scale, makes all that it is of.
        with_role = {role.value for role in self.coupling.roles}
        for value in dict.fromkeys(self.origins.values()):
            if value not in with_role:
                self.coupling.roles.append(Role(value, self.coupling.weights[value]))

    def inputs(self, node: Node) -> list[Axes]:
        """The axes of a node's inputs."""
        return [self.axes[value] for value in node.inputs]

    def shape(self, node: Node) -> Shape:
        """The shape of a node's result."""
        return self.graph.shapes[node.outputs[0]]

    def new_axes(self, node: Node, reason: str) -> Axes:
        """New axes for a node's result; they stay whole if there is a reason."""
        return tuple([fresh(dim, reason) for dim in self.shape(node)])

    def unify(self, a: Axis, b: Axis, node: Node) -> None:
        """Make two axes equal, since an operator says so."""
        unify(a, b, f"{node.op} arranges it in another way")

    def owned(self, node: Node) -> list[Axes | None]:
        """Axes of the weights that a node owns.

        None for a weight that is not followed to parameters.
        """
        values = self.reading.owned.get(node.outputs[0]) or ()
        return [None if value is None else self.coupling.weights[value] for value in values]

    def note(
        self,
        node: Node,
        index: int,
        makes: Sequence[Axis],
        reads: Sequence[Axis] = (),
    ) -> None:
        """Note the role of a weight that a node owns."""
        value = self.reading.owned[node.outputs[0]][index]
        if value is not None:
            role = Role(value, tuple(makes), tuple(reads), node.outputs[0])
            self.coupling.roles.append(role)

    def note_value(
        self,
        value: int,
        makes: Sequence[Axis],
        reads: Sequence[Axis] = (),
    ) -> None:
        """Note the role of a value of the graph that is a weight, once for all layers alike."""
        weight = self.origins.get(value)
        if weight is None:
            return
        noted = {(role.value, bool(role.reads)) for role in self.coupling.roles}
        if (weight, bool(reads)) not in noted:
            self.coupling.roles.append(Role(weight, tuple(makes), tuple(reads)))


Rule = Callable[[Walk, Node], Axes]
"""Unifies the axes that an operator says are equal; returns those of its result."""


def unknown(walk: Walk, node: Node) -> Axes:
    """The rule of an operator of which nothing is known: what it reads and makes stays whole."""
    owned = walk.owned(node)
    reason = UNFOLLOWED if None in owned else f"an operator {node.op} reads it"
    for axes in (*walk.inputs(node), *owned):
        for axis in axes or ():
            fix(axis, reason)
    return walk.new_axes(node, f"an operator {node.op} makes it")
