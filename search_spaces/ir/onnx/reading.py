"""ONNX models to graphs.

A model is normalized (`loading`), its weights are told from its other stored tensors (`weight_uses`),
and its nodes are read in order: what is known without running the model is computed (`folding`), the
rest is added to the graph by the rules of the operators (`search_spaces.ir.ops`). The graph is then
fused and, if possible, generalized to any batch size.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import onnx
from onnx import helper

from search_spaces.common.errors import InputError
from search_spaces.ir import standard
from search_spaces.ir.constants import (
    LETTERS,
    MAX_WRITTEN_NUMBERS,
    Known,
    add_buffer,
    add_constant,
    add_filled,
    add_param,
    can_fill,
    is_weight,
    read_tensor,
    uniform_number,
)
from search_spaces.ir.fusion import fuse
from search_spaces.ir.graph import BATCH, Attrs, Dim, Graph, Node, Shape, element_type, typed
from search_spaces.ir.onnx.folding import Folder
from search_spaces.ir.onnx.loading import (
    all_nodes,
    batch_size,
    concerns_sizes,
    dimensions,
    prepared,
    remedy,
    transposed_copies,
    without_export_remedy,
)
from search_spaces.ir.onnx.weight_uses import Weights, find_weights
from search_spaces.ir.ops import (
    canonical_attrs,
    get_operator,
    multiply_accumulates,
    output_shape,
    weights,
)
from search_spaces.ir.ops.operator import node_attrs
from search_spaces.ir.ops.recurrent import RECURRENT

# Names that `Outline` gives to the tensors of `Param` nodes
_PARAM = re.compile(r"(.*/)?Param(_\d+)?\.value")


def from_model(model: onnx.ModelProto) -> Graph:
    """The weightless graph of an ONNX model, independent of names.

    The first dimension of the first input becomes the batch size N, even if the file fixes it,
    provided that the network works for every batch size.

    Raises:
        InputError: if the model is not valid, or the text cannot express it.
    """
    try:
        graph = fuse(_for_any_batch(_reader(model).read()))
        return _for_any_batch(graph)  # fusion removes nodes that need the batch size
    except InputError as error:
        message = str(error)
        fix = remedy(model, message) if concerns_sizes(message) else ""
        if fix:
            raise InputError(f"{without_export_remedy(message)}; {fix}") from error
        raise
    except RecursionError as error:
        raise InputError("the model is nested too deeply") from error
    except Exception as error:  # damaged fields, such as names that are not UTF-8
        raise InputError(
            f"damaged ONNX model: {type(error).__name__}: {' '.join(str(error).split())[:200]}"
        ) from error


def cost_error(model: onnx.ModelProto, error: InputError) -> InputError:
    """The error of `graph_flops` with the name of the ONNX node, and a remedy for open sizes."""
    reader = _reader(model)
    reader.read()
    for node in reader.nodes:
        shapes = tuple([reader.shapes[v] for v in node.inputs])
        try:
            multiply_accumulates(node.op, node.attrs, shapes)
        except InputError as cause:
            source = reader.sources[node.outputs[0]]
            named = f"node {source.name!r}"
            if not source.name:
                named = f"the node that computes {source.output[0]!r}"
            fix = remedy(model)
            message = f"{without_export_remedy(str(cause))}; {fix}" if fix else str(cause)
            return InputError(f"{source.op_type} ({named}): {message}")
    return error


def _reader(model: onnx.ModelProto) -> Reader:
    light, initializers = prepared(model)

    # 1. Transposed copies of tied embeddings are computed, so that they count once.
    copies = transposed_copies(initializers)
    tensors = {}
    for tensor in initializers:
        if tensor.name not in copies:
            tensors[tensor.name] = read_tensor(tensor, learned=True)
    inputs = [info for info in light.graph.input if info.name not in copies]
    del light.graph.input[:]
    light.graph.input.extend(inputs)
    nodes = [helper.make_node("Transpose", [source], [copy]) for copy, source in copies.items()]
    nodes += light.graph.node

    # 2. Whether steps of a loop share weights shows only when control flow is written out.
    if any(not get_operator(node.op_type).is_in_graphs for node in nodes):
        first = Reader(light, Weights(nodes, tensors))
        first.read()
        nodes, tensors = first.flat, first.initializers

    # 3. Weights are told from other tensors.
    return Reader(light, find_weights(nodes, tensors, model.producer_name))


def _params(weights: Weights) -> set[str]:
    """Names of the tensors of `Param` nodes in a model that `Outline` wrote."""
    identities = [node.input[0] for node in weights.nodes if node.op_type == "Identity"]
    return {name for name in identities if name in weights.tensors and _PARAM.fullmatch(name)}


class Reader:
    """Reads ONNX nodes in order. A name refers to a value of the graph or to a known value.

    A known value is added to the graph only when a node needs it as an input. The rules of
    operators see a reader as `search_spaces.ir.ops.operator.Importer`.

    Args:
        model: a normalized model (`prepared`).
        weights: its stored tensors, and its nodes without `Constant` nodes that hold weights.
    """

    def __init__(self, model: onnx.ModelProto, weights: Weights) -> None:
        self.proto = model.graph
        self.file_nodes = weights.nodes
        versions = [o.version for o in model.opset_import if o.domain in ("", "ai.onnx")]
        self.folder = Folder(max(versions))

        # 1. Names of the file: values of the graph, or known values.
        self.initializers = weights.tensors
        self.params = _params(weights)
        self.known = dict(weights.tensors)
        for name in weights.shared | self.params:  # operators of the graph compute them
            del self.known[name]
        self.values: dict[str, int] = {}
        self.makers: dict[str, onnx.NodeProto] = {}

        # 2. Names that somebody reads.
        self.used = {info.name for info in self.proto.output}
        for node, graphs in all_nodes(self.file_nodes):
            self.used.update(node.input)
            for graph in graphs:
                self.used.update([info.name for info in graph.output])

        # 3. The graph.
        self.nodes: list[Node] = []
        self.shapes: list[Shape] = []
        self.sources: dict[int, onnx.NodeProto] = {}  # of the graph's values
        self.flat: list[onnx.NodeProto] = []  # read so far, with control flow written out

        # 4. Symbols of the open sizes.
        self.batch: Dim | None = None
        self.letters: dict[str, str] = {}

    def read(self) -> Graph:
        """The graph of the model; InputError if it cannot be represented."""
        # 1. Inputs, with a letter for every open size.
        inputs = [info for info in self.proto.input if info.name not in self.initializers]
        dims = [dimensions(info) for info in inputs]
        self.batch = batch_size(dims)
        for info, shape in zip(inputs, dims, strict=True):
            self.values[info.name] = len(self.shapes)
            element = standard.element_name(info.type.tensor_type.elem_type)
            self.shapes.append(typed([self._letter(size) for size in shape], element))

        # 2. Nodes.
        self.read_nodes(self.file_nodes)

        # 3. Outputs: equal ones are one, an input becomes one by Identity.
        values = [self.value(info.name) for info in self.proto.output]
        outputs = []
        for value in dict.fromkeys(values):
            is_input = value < len(inputs)
            outputs.append(self.emit("Identity", (value,), ()) if is_input else value)
        return Graph(
            inputs=tuple(range(len(inputs))),
            nodes=self._live(outputs),
            outputs=tuple(outputs),
            shapes=tuple(self.shapes),
        )

    def _live(self, outputs: list[int]) -> tuple[Node, ...]:
        """The nodes on which outputs depend, and those without any reader in the file.

        Nodes that the file needed for their shapes only are dropped.
        """
        needed = set(outputs)
        for name, value in self.values.items():
            if name not in self.used:
                needed.add(value)
        live = []
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

    # --- names

    def value(self, name: str) -> int:
        """The number of a named value in the graph; a known value is added.

        Raises:
            InputError: if no earlier node produces it.
        """
        if name in self.values:
            return self.values[name]
        known = self.stored(name)
        if known is None:
            raise InputError(f"no earlier node produces the value {name!r}")
        if 0 in known.shape:
            shape = ",".join(map(str, known.shape))
            fix = "simplify the file with python -m onnxsim FILE.onnx SIMPLE.onnx"
            raise InputError(f"the constant {name!r} of shape [{shape}] is empty: {fix}")
        maker = self.makers.get(name)
        # 1. The weights are the initializers, not what is computed from them.
        if maker is not None and not known.is_whole:
            self._compute(maker)
            return self.values[name]
        # 2. A constant that can be written, or else the node that computes it.
        add = add_param if name in self.params else add_constant
        value = add(self.emit, known)
        if value is None and maker is not None and maker.op_type != "Constant":
            self._compute(maker)
            return self.values[name]
        # 3. A long constant of the file.
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

    def infer(self, op: str, inputs: tuple[int, ...], attrs: Attrs) -> Shape:
        """The shape of the value that `emit` would add."""
        return output_shape(op, attrs, tuple([self.shapes[v] for v in inputs]))

    def emit(self, op: str, inputs: tuple[int, ...], attrs: Attrs) -> int:
        """Add a node to the graph; return the number of its output value."""
        shapes = tuple([self.shapes[v] for v in inputs])
        value = len(self.shapes)
        self.shapes.append(output_shape(op, attrs, shapes))
        kept = canonical_attrs(op, tuple(sorted(attrs)), shapes)
        self.nodes.append(Node(op, inputs, (value,), kept))
        return value

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
                    self.sources.setdefault(added.outputs[0], node)
            except InputError as error:
                raise InputError(f"{node.op_type} (node {node.name!r}): {error}") from error

    def _fold(self, node: onnx.NodeProto) -> bool:
        """Store the node's outputs as known values.

        Returns:
            False if they are not known without running the model.
        """
        self.makers.update(dict.fromkeys(node.output, node))
        rule = get_operator(node.op_type).fold
        if rule is not None:
            outputs = rule(self, node)
        elif all(name in self.known for name in node.input if name):
            outputs = self.compute(node, [self.known.get(name) for name in node.input])
        else:
            return False
        if outputs is None:
            return False
        for name, known in zip(node.output, outputs, strict=False):
            if name:
                self.known[name] = known
        return True

    def compute(self, node: onnx.NodeProto, operands: list[Known | None]) -> list[Known] | None:
        """The outputs of a node with known operands; None if they are too large."""
        return self.folder.fold(node, operands)

    def _compute(self, node: onnx.NodeProto) -> None:
        """Add the node to the graph, once per used output."""
        rules = get_operator(node.op_type)
        used = [i for i, name in enumerate(node.output) if name in self.used] or [0]
        # 1. The operator's own rules.
        if rules.read_outputs is not None:
            rules.read_outputs(self, node, used)
            return
        if rules.read is not None and used == [0]:
            value = rules.read(self, node)
            if value is not None:
                self.values[node.output[0]] = value
                return
        # 2. What no graph has.
        kinds = {attribute.type for attribute in node.attribute}
        if kinds & {onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS}:
            raise InputError(
                f"control flow that depends on the data is not supported{self._condition(node)}"
            )
        if not standard.makes_tensors(node.op_type):
            raise InputError(
                "sequences and optional values are not supported: export the model with tensors "
                "only"
            )
        # 3. The general rule.
        for position in used:
            self.add_output(node, position, alone=len(used) == 1)

    def _condition(self, node: onnx.NodeProto) -> str:
        """The inputs on which the condition of a node depends, and a remedy with the file alone."""
        names = [node.input[0]] if node.op_type == "If" else []
        seen = set()
        while names:
            name = names.pop()
            if name in seen:
                continue
            seen.add(name)
            maker = self.makers.get(name)
            if maker is not None and maker.op_type not in ("Shape", "Size"):
                names += maker.input
        inputs = [info.name for info in self.proto.input if info.name not in self.initializers]
        depends = ", ".join([repr(name) for name in inputs if name in seen])
        if not depends:
            return ": export the model by tracing"
        return (
            f": it depends on input {depends}; store its value as an initializer, or export the "
            "model by tracing"
        )

    # --- the general rule: constant operands become attributes

    def add_output(self, node: onnx.NodeProto, position: int, alone: bool = True) -> None:
        """Add an ONNX operator of which one output is used; `alone`: no other output is."""
        attrs = node_attrs(node)
        if position:
            attrs["output"] = position
        op = node.op_type
        names = [self._operand_name(node, i) for i in range(len(node.input))]
        while names and not names[-1]:
            names.pop()
        value = self._add_owner(op, names, attrs) if alone else None
        if value is None:
            value = self._add_standard(op, names, attrs)
        self.values[node.output[position]] = value

    def _operand_name(self, node: onnx.NodeProto, position: int) -> str:
        """The name of an operand; "" if it is omitted, or zeros are equivalent to omitting it."""
        name = node.input[position]
        if position not in get_operator(node.op_type).zero_by_default:
            return name
        known = self.known.get(name)
        if known is None or known.values is None:
            return name
        return name if any(array.any() for array in known.values) else ""

    def _add_owner(self, op: str, names: list[str], attrs: dict[str, Any]) -> int | None:
        """Add an operator that owns its weights.

        None unless all further operands are weights of expected shapes.
        """
        owned_attributes = get_operator(op).owned_attributes
        if not owned_attributes:
            return None
        x, *operands = [name for name in names if name]
        if any(name not in self.known for name in operands) or self.is_weight(x):
            return None
        tensors = [self.known[name] for name in operands]

        # 1. Which weights the operator has. A shift of zeros is none.
        is_affine = any(tensor.learned for tensor in tensors)
        if op == "LayerNormalization" and is_affine and len(tensors) == 2:
            scale, shift = tensors
            if _is_zero(shift):
                tensors = [scale]
        attrs = dict(attrs)
        if "affine" in owned_attributes:
            if not is_affine and _is_scale_or_shift(tensors):
                return None
            attrs["affine"] = int(is_affine)
        if "bias" in owned_attributes:
            with_bias = 3 if op in RECURRENT else 2
            attrs["bias"] = int(len(tensors) == with_bias)

        # 2. Whether they have the shapes of the operator's weights.
        value = self.value(x)
        canonical = tuple(sorted(attrs.items()))
        expected = weights(op, canonical, (self.shapes[value],))
        expected_shapes = [weight.shape for weight in expected]
        if expected_shapes != [tuple(tensor.shape) for tensor in tensors]:
            return None
        return self.emit(op, (value,), tuple(attrs.items()))

    def _add_standard(self, op: str, names: list[str], attrs: dict[str, Any]) -> int:
        """Add an ONNX operator with inputs, and constants as attributes."""
        formal = standard.single_operands(op)
        type_variables = standard.type_names(op)

        # 1. Operands that are inputs, and their element types by type variable.
        constants = []
        for i, name in enumerate(names[: len(formal)]):
            if self._is_setting(op, i, name):
                constants.append(i)
        inputs = {}
        types = {}
        for i, name in enumerate(names):
            if name and i not in constants:
                value = self._input(op, i, name)
                inputs[i] = value
                variadic = min(i, len(type_variables) - 1)  # the last operand stands for the rest
                types[type_variables[variadic]] = element_type(self.shapes[value])

        # 2. Constants whose element type the text cannot tell are inputs, too.
        broadcasts = get_operator(op).broadcasts
        for i in constants:
            known = self.known[names[i]]
            array = known.static
            if array is None or array.shape == (0,):
                continue  # an empty list is equivalent to an omitted operand
            element = element_type(known.shape)
            is_told = standard.operand_type(op, i, types) == element
            if not is_told and standard.is_result(op, i):
                inputs[i] = self.value(names[i])
                types[type_variables[i]] = element
                continue
            keeps_rank = any(len(self.shapes[v]) >= array.ndim for v in inputs.values())
            if broadcasts and keeps_rank and array.size == 1:
                array = array.reshape(())
            attrs[formal[i]] = standard.numbers(array)
        arranged = standard.arrange(op, inputs, attrs, len(names))
        return self.emit(op, arranged, tuple(attrs.items()))

    def _is_setting(self, op: str, position: int, name: str) -> bool:
        """True if an operand is a constant that becomes an attribute."""
        rules = get_operator(op)
        known = self.known.get(name) if name else None
        if known is None or known.static is None or rules.owned_attributes:
            return False
        size = known.static.size
        if size > MAX_WRITTEN_NUMBERS:
            return False
        if len(known.shape) > 1 and not (rules.broadcasts and size == 1):
            return False
        if _is_quantization(op, position) and size > 1:
            return False
        return not known.placed and (not is_weight(known) or not standard.is_result(op, position))

    def _input(self, op: str, position: int, name: str) -> int:
        """The value of an operand.

        Scales and zero points of quantization are shown by their shapes.
        """
        known = self.known.get(name)
        if known is None or name in self.values or not _is_quantization(op, position):
            return self.value(name)
        element = element_type(known.shape)
        fill = uniform_number(known)
        if fill is not None and can_fill(fill, element):
            value = add_filled(self.emit, fill, tuple(map(int, known.shape)), element)
        else:
            value = add_buffer(self.emit, known.shape, known.static)
        self.values[name] = value
        return value


def _is_quantization(op: str, position: int) -> bool:
    """True for the position of a scale or zero point."""
    return position in get_operator(op).settings and ("Linear" in op or "Integer" in op)


def _is_zero(known: Known) -> bool:
    """True for a constant of zeros."""
    return not known.learned and known.static is not None and not known.static.any()


def _is_scale_or_shift(tensors: list[Known]) -> bool:
    """True unless a normalization's constant scale and shift are one and zero."""
    for known, neutral in zip(tensors, (1, 0), strict=False):
        if known.static is None or bool((known.static != neutral).any()):
            return True
    return False


# --- any batch size


def _for_any_batch(graph: Graph) -> Graph:
    """The graph with the symbol N instead of its first input's batch size.

    Returns the graph itself if a node works for the fixed batch size only.
    """
    input_shapes = [graph.shapes[value] for value in graph.inputs]
    if not input_shapes or not input_shapes[0]:
        return graph
    batch = input_shapes[0][0]
    if isinstance(batch, str) or any(BATCH in shape for shape in input_shapes):
        return graph

    # Shapes of all values with N in the inputs; each must be the old one if N is the batch size.
    shapes = {value: _with_open_batch(graph.shapes[value], batch) for value in graph.inputs}
    try:
        for node in graph.nodes:
            output = node.outputs[0]
            if _steps_are_batch(node, shapes):
                return graph
            read = tuple([shapes[value] for value in node.inputs])
            shape = output_shape(node.op, node.attrs, read)
            if not _is_generalized(shape, graph.shapes[output], batch):
                return graph
            shapes[output] = shape
    except InputError:
        return graph
    if not all(BATCH in shapes[value] for value in graph.outputs):
        return graph
    opened = tuple([shapes.get(value, shape) for value, shape in enumerate(graph.shapes)])
    return replace(graph, shapes=opened)


def _steps_are_batch(node: Node, shapes: dict[int, Shape]) -> bool:
    """True for a recurrent layer that would take the batch size for its number of steps."""
    if node.op not in RECURRENT:
        return False
    is_batch_first = bool(dict(node.attrs).get("layout"))
    steps = shapes[node.inputs[0]][1 if is_batch_first else 0]
    return BATCH in str(steps).split("_")


def _with_open_batch(shape: Shape, batch: int) -> Shape:
    if shape[:1] != (batch,):
        return shape
    return typed((BATCH, *shape[1:]), element_type(shape))


def _is_generalized(shape: Shape, fixed: Shape, batch: int) -> bool:
    """True if a shape with N equals the fixed shape at the batch size."""
    if len(shape) != len(fixed):
        return False
    return all(_at_batch(dim, batch) == size for dim, size in zip(shape, fixed, strict=True))


def _at_batch(dim: Dim, batch: int) -> Dim:
    name, _, factor = str(dim).partition("_")
    return int(factor or 1) * batch if name == BATCH else dim
