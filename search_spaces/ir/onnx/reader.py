"""`Reader`: turns the nodes of an ONNX model into values of a graph, or into known values."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import onnx

from search_spaces.common.errors import InputError
from search_spaces.ir import standard
from search_spaces.ir.graph import BATCH, Attrs, Dim, Graph, Node, Shape, element_type, typed
from search_spaces.ir.onnx.constants import (
    MAX_WRITTEN_NUMBERS,
    add_buffer,
    add_constant,
    add_filled,
    add_param,
    can_fill,
)
from search_spaces.ir.onnx.folding import LETTERS, Folder, Known, is_weight
from search_spaces.ir.onnx.open_sizes import batch_size, dimensions
from search_spaces.ir.onnx.weight_uses import Weights, is_quantization, uniform_number
from search_spaces.ir.operators import canonical_attrs, output_shape
from search_spaces.ir.owned_weights import OWNERS, RECURRENT, weights
from search_spaces.ir.standard import attribute_value

_PARAM = re.compile(
    r"(.*/)?Param(_\d+)?\.value"
)  # names that `Outline` gives to the tensors of `Param` nodes
_BROADCASTING = frozenset(
    {"Add", "Mul", "Sub", "Div", "Pow", "Equal", "Greater", "Less", "Where", "And", "Or"}
)


class Rules(NamedTuple):
    """Rules for reading ONNX operators, by name of the operator.

    Attributes:
        known: returns the outputs if they are known without running the model, otherwise None.
        one_output: returns the number of the value of the only used output; None to use the general
            rule.
        outputs: adds all used outputs, given their positions.
    """

    known: Mapping[str, Callable[[Reader, onnx.NodeProto], list[Known] | None]]
    one_output: Mapping[str, Callable[[Reader, onnx.NodeProto], int | None]]
    outputs: Mapping[str, Callable[[Reader, onnx.NodeProto, list[int]], None]]


def node_attrs(node: onnx.NodeProto) -> dict[str, Any]:
    """The attributes of a node as plain Python values."""
    return {a.name: attribute_value(node.op_type, a) for a in node.attribute}


def node_attributes(node: onnx.NodeProto) -> dict[str, onnx.AttributeProto]:
    """The attributes of a node, by name."""
    return {a.name: a for a in node.attribute}


def _reads(nodes: Iterable[onnx.NodeProto]) -> Iterator[str]:
    """Names that nodes, and the nodes of their subgraphs, read."""
    for node in nodes:
        yield from node.input
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from _reads(attribute.g.node)
                yield from (info.name for info in attribute.g.output)


def _params(nodes: Iterable[onnx.NodeProto], tensors: dict[str, Known]) -> set[str]:
    """Names of the tensors of `Param` nodes in a model that `Outline` wrote."""
    return {
        n.input[0] for n in nodes if n.op_type == "Identity" and _PARAM.fullmatch(n.input[0])
    } & tensors.keys()


class Reader:
    """Reads ONNX nodes in order. A name refers to a value of the graph or to a known value.

    A known value is added to the graph only when a node needs it as an input.

    Args:
        model: a normalized model (`prepared`).
        weights: its stored tensors, and its nodes without `Constant` nodes that hold weights.
        rules: rules of operators.
    """

    def __init__(self, model: onnx.ModelProto, weights: Weights, rules: Rules) -> None:
        self.rules = rules
        self.proto, self.source_nodes, self.initializers = (
            model.graph,
            weights.nodes,
            weights.tensors,
        )
        self.params = _params(weights.nodes, weights.tensors)
        computed = weights.shared | self.params
        self.known = {
            name: known for name, known in weights.tensors.items() if name not in computed
        }
        self.values: dict[str, int] = {}
        self.makers: dict[str, onnx.NodeProto] = {}
        self.flat: list[onnx.NodeProto] = []  # read so far, with control flow written out
        self.names: dict[int, onnx.NodeProto] = {}  # by value of the graph
        self.shapes: list[Shape] = []
        self.nodes: list[Node] = []
        self.used = {info.name for info in self.proto.output}.union(_reads(self.source_nodes))
        self.batch: Dim | None = None
        self.letters: dict[str, str] = {}
        self.folder = Folder(
            max(o.version for o in model.opset_import if o.domain in ("", "ai.onnx"))
        )

    def read(self) -> Graph:
        """The graph of the model; InputError if it cannot be represented."""
        inputs = [info for info in self.proto.input if info.name not in self.initializers]
        dims = [dimensions(info) for info in inputs]
        self.batch = batch_size(dims)
        for info, shape in zip(inputs, dims, strict=True):
            self.values[info.name] = len(self.shapes)
            element = standard.element_name(info.type.tensor_type.elem_type)
            self.shapes.append(typed([self._letter(d) for d in shape], element))
        self.read_nodes(self.source_nodes)
        outputs = list(
            dict.fromkeys(self.value(info.name) for info in self.proto.output)
        )  # equal ones are one
        outputs = [v if v >= len(inputs) else self.emit("Identity", (v,), ()) for v in outputs]
        return Graph(
            tuple(range(len(inputs))), self._live(outputs), tuple(outputs), tuple(self.shapes)
        )

    def _live(self, outputs: list[int]) -> tuple[Node, ...]:
        """The nodes on which outputs depend, and those without any reader in the file.

        Nodes that the file needed for their shapes only are dropped.
        """
        unused = {value for name, value in self.values.items() if name not in self.used}
        needed, live = {*outputs, *unused}, []
        for node in reversed(self.nodes):
            if needed & set(node.outputs):
                needed.update(node.inputs)
                live.append(node)
        return tuple(live[::-1])

    def _letter(self, size: Dim) -> Dim:
        """The symbol of an open size: N for the batch size, another letter for any other."""
        if isinstance(size, int):
            return size
        if size == self.batch:
            return BATCH
        if size not in self.letters:
            if len(self.letters) + 1 == len(LETTERS):
                raise InputError(f"the model has more than {len(LETTERS)} open sizes")
            self.letters[size] = LETTERS[len(self.letters) + 1]
        return self.letters[size]

    # --- values

    def value(self, name: str) -> int:
        """The number of a named value in the graph; a known value is added.

        Raises:
            InputError: if no earlier node produces it.
        """
        if name in self.values:
            return self.values[name]
        known = self.known.get(name) or self.initializers.get(name)
        if known is None:
            raise InputError(f"no earlier node produces the value {name!r}")
        if 0 in known.shape:
            shape = ",".join(map(str, known.shape))
            remedy = "simplify the file with python -m onnxsim FILE.onnx SIMPLE.onnx"
            raise InputError(f"the constant {name!r} of shape [{shape}] is empty: {remedy}")
        maker = self.makers.get(name)
        if (
            maker is not None and not known.is_whole
        ):  # the weights are the initializers, not what is computed from them
            self._compute(maker)
            return self.values[name]
        value = (add_param if name in self.params else add_constant)(self.emit, known)
        if value is None and maker is not None and maker.op_type != "Constant":
            self._compute(maker)
            return self.values[name]
        if value is None:
            value = add_buffer(self.emit, known.shape, known.static)
        self.values[name] = value
        return value

    def stored(self, name: str) -> Known | None:
        """A known value, or a stored tensor that several operators share."""
        return self.known.get(name) or self.initializers.get(name)

    def shape(self, name: str) -> Shape:
        """The shape of a named value."""
        return self.known[name].shape if name in self.known else self.shapes[self.value(name)]

    def is_weight(self, name: str) -> bool:
        """True for the name of a learned tensor that no operator of the graph produces."""
        return name in self.known and is_weight(self.known[name])

    def emit(self, op: str, inputs: tuple[int, ...], attrs: Attrs) -> int:
        """Add a node to the graph; return the number of its output value."""
        shapes = tuple([self.shapes[v] for v in inputs])
        self.shapes.append(output_shape(op, attrs, shapes))
        kept = canonical_attrs(op, tuple(sorted(attrs)), shapes)
        self.nodes.append(Node(op, inputs, (len(self.shapes) - 1,), kept))
        return len(self.shapes) - 1

    # --- nodes

    def read_nodes(self, nodes: Iterable[onnx.NodeProto]) -> None:
        """Read nodes in order; errors name the node."""
        for node in nodes:
            start = len(self.nodes)
            try:
                if not self._fold(node):
                    self._compute(node)
                if not any(a.type == onnx.AttributeProto.GRAPH for a in node.attribute):
                    self.flat.append(node)
                for added in self.nodes[start:]:
                    self.names.setdefault(added.outputs[0], node)
            except InputError as error:
                raise InputError(f"{node.op_type} (node {node.name!r}): {error}") from error

    def _fold(self, node: onnx.NodeProto) -> bool:
        """Store the node's outputs as known values; False if they are not known without running the
        model.
        """
        self.makers.update(dict.fromkeys(node.output, node))
        if node.op_type in self.rules.known:
            found = self.rules.known[node.op_type](self, node)
        elif all(name in self.known for name in node.input if name):
            found = self.folder.fold(
                node, [self.known[name] if name else None for name in node.input]
            )
        else:
            return False
        if found is None:
            return False
        self.known.update(
            (name, known) for name, known in zip(node.output, found, strict=False) if name
        )
        return True

    def _compute(self, node: onnx.NodeProto) -> None:
        """Add the node to the graph, once per used output."""
        used = [i for i, name in enumerate(node.output) if name in self.used] or [0]
        if node.op_type in self.rules.outputs:
            self.rules.outputs[node.op_type](self, node, used)
            return
        reader = self.rules.one_output.get(node.op_type)
        if reader is not None and used == [0] and (value := reader(self, node)) is not None:
            self.values[node.output[0]] = value
            return
        if any(
            a.type in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS)
            for a in node.attribute
        ):
            raise InputError(
                f"control flow that depends on the data is not supported{self._condition(node)}"
            )
        if not standard.makes_tensors(node.op_type):
            raise InputError(
                "sequences and optional values are not supported: export the model with tensors "
                "only"
            )
        for i in used:
            self.add_output(node, i, alone=len(used) == 1)

    def _condition(self, node: onnx.NodeProto) -> str:
        """The graph's inputs on which the condition of a node depends, and what somebody with the
        file can do.
        """
        names, seen = [node.input[0]] if node.op_type == "If" else [], set()
        while names:
            name = names.pop()
            if name not in seen:
                seen.add(name)
                maker = self.makers.get(name)
                names += (
                    maker.input
                    if maker is not None and maker.op_type not in ("Shape", "Size")
                    else ()
                )
        depends = [
            info.name
            for info in self.proto.input
            if info.name in seen and info.name not in self.initializers
        ]
        if not depends:
            return ": export the model by tracing"
        shown = ", ".join(map(repr, depends))
        return (
            f": it depends on input {shown}; store its value as an initializer, or export the "
            "model by tracing"
        )

    def add_output(self, node: onnx.NodeProto, position: int, alone: bool = True) -> None:
        """Add an ONNX operator of which one output is used; `alone`: no other output is."""
        attrs = node_attrs(node) | ({"output": position} if position else {})
        self.values[node.output[position]] = self._standard(node, attrs, alone)

    def _standard(self, node: onnx.NodeProto, attrs: dict[str, Any], alone: bool) -> int:
        """Add an ONNX operator; its constant operands become attributes, and it owns its weights if
        possible.
        """
        op = node.op_type
        names = [
            "" if self._is_initial_zero(node, i) else name for i, name in enumerate(node.input)
        ]
        while names and not names[-1]:
            names.pop()
        if alone and op in OWNERS and (value := self._owner(op, names, attrs)) is not None:
            return value
        formal, kinds = standard.single_operands(op), standard.type_names(op)
        constants = [
            i for i, name in enumerate(names[: len(formal)]) if self._is_setting(op, i, name)
        ]
        dynamic = [i for i, name in enumerate(names) if name and i not in constants]
        inputs = {i: self._operand(op, i, names[i]) for i in dynamic}
        types = {
            kinds[min(i, len(kinds) - 1)]: element_type(self.shapes[v]) for i, v in inputs.items()
        }
        for i in constants:
            known, array = self.known[names[i]], self.known[names[i]].static
            if array is None or array.shape == (0,):
                continue  # an empty list is equivalent to an omitted operand
            if standard.operand_type(op, i, types) == element_type(
                known.shape
            ) or not standard.is_result(op, i):
                broadcast = op in _BROADCASTING and any(
                    len(self.shapes[v]) >= array.ndim for v in inputs.values()
                )
                attrs[formal[i]] = standard.numbers(
                    array.reshape(()) if broadcast and array.size == 1 else array
                )
            else:
                inputs[i] = self.value(names[i])
                types[kinds[i]] = element_type(known.shape)
        arranged = standard.arrange(op, inputs, attrs, len(names))
        return self.emit(op, arranged, tuple(attrs.items()))

    def _operand(self, op: str, position: int, name: str) -> int:
        """The value of an operand. Scales and zero points of quantization are shown by their
        shapes.
        """
        known = self.known.get(name)
        if known is None or name in self.values or not is_quantization(op, position):
            return self.value(name)
        element = element_type(known.shape)
        fill = uniform_number(known)
        if fill is not None and can_fill(fill, element):
            self.values[name] = add_filled(self.emit, fill, tuple(map(int, known.shape)), element)
        else:
            self.values[name] = add_buffer(self.emit, known.shape, known.static)
        return self.values[name]

    def _is_setting(self, op: str, position: int, name: str) -> bool:
        """True if an operand is a constant that becomes an attribute."""
        known = self.known.get(name) if name else None
        if (
            known is None
            or known.static is None
            or known.static.size > MAX_WRITTEN_NUMBERS
            or op in OWNERS
        ):
            return False
        if len(known.shape) > 1 and not (op in _BROADCASTING and known.static.size == 1):
            return False
        if is_quantization(op, position) and known.static.size > 1:
            return False
        return not known.placed and (not is_weight(known) or not standard.is_result(op, position))

    def _owner(self, op: str, names: list[str], attrs: dict[str, Any]) -> int | None:
        """Add an operator that owns its weights; None unless all further operands are weights of
        expected shapes.
        """
        x, *operands = [name for name in names if name]
        known = [self.known[name] for name in operands if name in self.known]
        affine = any(k.learned for k in known)
        if op == "LayerNormalization" and affine and len(known) == 2 and _is_zero(known[1]):
            known = known[:1]
        if (
            any(name not in self.known for name in operands)
            or self.is_weight(x)
            or ("affine" in OWNERS[op] and not affine and _changes(known))
        ):
            return None
        own = {"affine": int(affine), "bias": int(len(known) == (3 if op in RECURRENT else 2))}
        given = {**attrs, **{name: own[name] for name in OWNERS[op] if name in own}}
        value = self.value(x)
        expected = weights(op, tuple(sorted(given.items())), (self.shapes[value],))
        if [w.shape for w in expected] != [tuple(k.shape) for k in known]:
            return None
        return self.emit(op, (value,), tuple(given.items()))

    def _is_initial_zero(self, node: onnx.NodeProto, position: int) -> bool:
        """True if an operand is a recurrent layer's initial state of zeros, the default."""
        known = self.known.get(node.input[position])
        if (
            node.op_type not in RECURRENT
            or position not in (5, 6)
            or known is None
            or known.values is None
        ):
            return False
        return not any(array.any() for array in known.values)


def _is_zero(known: Known) -> bool:
    """True for a constant of zeros."""
    return not known.learned and known.static is not None and not known.static.any()


def _changes(affine: list[Known]) -> bool:
    """True unless a normalization's constant scale and shift are one and zero."""
    return any(
        known.static is None or bool((known.static != 1 - i).any())
        for i, known in enumerate(affine)
    )
