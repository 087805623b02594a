"""`Operator`: everything that the compiler knows about one operator.

Each file of this package is the home of one family: its `OPERATORS` say how an operator's output
shape, weights and costs follow from its attributes and input shapes, how it is read from ONNX, how
it is written to ONNX, and how torch computes it. What a family leaves out is ONNX's schema: most
operators are only a name.

A rule gets what it needs as an argument, so families know neither graphs nor files: `Importer` and
`Exporter` say what a reader and a writer of ONNX files offer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

import numpy as np
import onnx

from search_spaces.common.errors import InputError
from search_spaces.ir import standard
from search_spaces.ir.constants import Known
from search_spaces.ir.graph import Attrs, Shape, Value

if TYPE_CHECKING:
    from torch import Tensor, nn

# --- what rules work with


class Weight(NamedTuple):
    """A tensor that an operator owns.

    Attributes:
        name: role of the tensor.
        shape: its shape.
        init: initialization: "kaiming", "ones" or "zeros".
        trained: False for running statistics, and for scale and shift with `affine = 0`, which stay
            one and zero.
        fan_in: inputs per output, for the scale of initial values; 0 for the product of all but the
            first dimension.
    """

    name: str
    shape: tuple[int, ...]
    init: str
    trained: bool = True
    fan_in: int = 0


class CountedNode(NamedTuple):
    """A node whose multiply-accumulates are counted.

    Attributes:
        op: name of the operator.
        attrs: attributes.
        shapes: shapes of the inputs.
        output: shape of the first output, even if another one is used.
    """

    op: str
    attrs: Attrs
    shapes: tuple[Shape, ...]
    output: Shape

    @property
    def attributes(self) -> dict[str, Any]:
        """The attributes by name."""
        return dict(self.attrs)

    @property
    def operands(self) -> dict[str, Shape]:
        """The shapes of the operands that are inputs, by ONNX's names."""
        names = standard.operand_names(self.op)
        called = standard.call(self.op, self.attrs, self.shapes)
        shapes = {}
        for name, operand in zip(names, called.operands, strict=False):
            if isinstance(operand, int):
                shapes[name] = self.shapes[operand]
        return shapes


class Importer(Protocol):
    """The reader of an ONNX model, as operators see it: `search_spaces.ir.onnx.reading.Reader`.

    A name of the file refers to a value of the graph, or to a known value. A known value becomes
    a value of the graph when an operator reads it as one.

    Attributes:
        known: known values by name.
        values: numbers of the graph's values by name.
        shapes: shapes of the graph's values.
        makers: the nodes that compute names.
        initializers: the stored tensors by name.
        used: names that somebody reads.
        flat: nodes read so far, with control flow written out.
    """

    known: dict[str, Known]
    values: dict[str, int]
    shapes: list[Shape]
    makers: dict[str, onnx.NodeProto]
    initializers: dict[str, Known]
    used: set[str]
    flat: list[onnx.NodeProto]

    def value(self, name: str) -> int:
        """The number of a named value in the graph; a known value is added."""

    def stored(self, name: str) -> Known | None:
        """A known value, or a stored tensor that several operators share."""

    def shape(self, name: str) -> Shape:
        """The shape of a named value."""

    def is_weight(self, name: str) -> bool:
        """True for the name of a learned tensor that no operator of the graph produces."""

    def emit(self, op: str, inputs: tuple[int, ...], attrs: Attrs) -> int:
        """Add a node to the graph; return the number of its output value."""

    def infer(self, op: str, inputs: tuple[int, ...], attrs: Attrs) -> Shape:
        """The shape of the value that `emit` would add."""

    def add_output(self, node: onnx.NodeProto, position: int, alone: bool = True) -> None:
        """Add an ONNX operator of which one output is used; `alone`: no other output is."""

    def compute(self, node: onnx.NodeProto, operands: list[Known | None]) -> list[Known] | None:
        """The outputs of a node with known operands; None if they are too large."""

    def read_nodes(self, nodes: Iterable[onnx.NodeProto]) -> None:
        """Read nodes in order."""


class ExportedNode(NamedTuple):
    """A node that is written to an ONNX model.

    Attributes:
        op: name of the operator.
        name: name of the node in the file.
        attrs: attributes.
        shapes: shapes of the inputs.
        inputs: names of the inputs.
        weights: names of the weights.
        output: name of the output.
        numbers: a long constant; None if its numbers are not known.
    """

    op: str
    name: str
    attrs: Attrs
    shapes: tuple[Shape, ...]
    inputs: list[str]
    weights: list[str]
    output: str
    numbers: np.ndarray | None = None


class Exporter(Protocol):
    """The writer of an ONNX model, as operators see it: `search_spaces.ir.onnx.writing.Outline`."""

    def add(
        self,
        op: str,
        name: str,
        inputs: list[str],
        output: str,
        attrs: Attrs = (),
    ) -> None:
        """Add a node with one output."""

    def add_constant(self, name: str, array: np.ndarray, output: str) -> None:
        """Add a `Constant` node."""

    def constant(self, array: np.ndarray) -> str:
        """Name of a constant with this value; equal constants are one."""

    def sizes(self, name: str, sizes: tuple[int, ...]) -> str:
        """Name of a value that holds these sizes; 0 stands for the batch size."""


class TrainedNode(NamedTuple):
    """A node that torch computes.

    Attributes:
        op: name of the operator.
        attrs: attributes.
        shapes: shapes of the inputs.
        output: shape of the first output.
        replicas: number of networks side by side, see `search_spaces.ir.ops.training`.
    """

    op: str
    attrs: Attrs
    shapes: tuple[Shape, ...]
    output: Shape
    replicas: int = 1

    @property
    def attributes(self) -> dict[str, Any]:
        """The attributes by name."""
        return dict(self.attrs)


# --- the operator

InferShape = Callable[[Attrs, tuple[Shape, ...]], Shape]
Read = Callable[[Importer, onnx.NodeProto], int | None]
ReadOutputs = Callable[[Importer, onnx.NodeProto, list[int]], None]
Fold = Callable[[Importer, onnx.NodeProto], list[Known] | None]
FoldedSize = Callable[[list[np.ndarray]], int]
Function = Callable[..., "Tensor"]
MakeFunction = Callable[[TrainedNode], Function]
MakeLayer = Callable[[TrainedNode], "nn.Module"]


@dataclass(frozen=True, kw_only=True)
class Operator:
    """One operator. What is left out follows from ONNX's schema of the same name.

    An operator may have a form of its own in the text's `net` domain (`own_attributes`), with
    weights or settings as attributes that are operands in ONNX: `Conv <channels = 8> (x)`. ONNX's
    form of the same name has more inputs: `Conv (x, kernel)`.

    Others are ONNX's operator with ONNX's attributes, and own their weights if they have one input
    (`owned_attributes`): `LSTM <hidden_size = 8> (x)`.

    Attributes:
        name: name of the operator.
        own_attributes: attributes of the form of its own, and their defaults (None: no default).
            `own_attributes` is None if there is no such form.
        own_inputs: numbers of inputs of that form; empty for sources, which have no input.
        owned_attributes: attributes that an operator with weights has beyond ONNX's.
        in_net_domain: True if the text writes all its forms as `net.NAME`.
        commutative: True if the order of its inputs does not matter.
        is_in_graphs: False for operators that are read, but that no graph has.

        infer_own_shape: output shape of the form of its own.
        infer_shape: output shape of ONNX's form, for float inputs. ONNX infers all others.
        keeps_element: True if `infer_shape` holds for inputs of every element type.
        simplify: attributes of the form of its own, or owned ones, in their shortest form.
        weights: the tensors that it owns, in the order of the ONNX operator's inputs.
        count: its multiply-accumulates for a batch of one; None if it multiplies no more than
            element by element.

        fold: the outputs, if they are known without running the model; otherwise None.
        read: adds the only used output to the graph and returns its number; None to use the general
            rule.
        read_outputs: adds all used outputs, given their positions.
        write: writes the form of its own to ONNX.

        layer: the torch layer that holds the weights that it owns, for any number of networks.
        function: the torch function of an operator without weights, for one network.
        side_by_side: how the function computes several networks at once: as further "channels", if
            it computes each for itself; the same, but only for "operands" of equal channels; or as
            further "samples" of the batch.

        folded_size: upper bound of the number of elements of its result, if it is computed when
            all operands are known; None if it never is.
        shape_from_numbers: True if the shape of its result depends on an operand's numbers, so
            that no shape follows from learned operands.
        broadcasts: True if a constant operand of one number may be written without dimensions.

        kernels: positions of operands that are weights wherever they are stored: kernels, tables.
            The first one of a layer is its kernel.
        vectors: positions of operands that are weights unless they are scalars: biases, scales.
        settings: positions of operands that are numbers of the architecture or of its quantization,
            even if they are long.
        zero_by_default: positions of operands for which zeros are equivalent to omitting them.
        rearranges: True if only the first operand is data, and the others say how it is rearranged.
        role: "linear" if a vector added behind it is its bias, "normalization" if vectors that
            multiply and shift its output are its weights.
    """

    name: str

    own_attributes: Mapping[str, Value | None] | None = None
    own_inputs: tuple[int, ...] = (1,)
    owned_attributes: Mapping[str, Value | None] = field(default_factory=dict)
    in_net_domain: bool = False
    commutative: bool = False
    is_in_graphs: bool = True

    infer_own_shape: InferShape | None = None
    infer_shape: InferShape | None = None
    keeps_element: bool = False
    simplify: Callable[[Attrs, Shape], Attrs] | None = None
    weights: Callable[[Attrs, tuple[Shape, ...]], tuple[Weight, ...]] | None = None
    count: Callable[[CountedNode], int] | None = None

    fold: Fold | None = None
    read: Read | None = None
    read_outputs: ReadOutputs | None = None
    write: Callable[[Exporter, ExportedNode], None] | None = None

    layer: MakeLayer | None = None
    function: MakeFunction | None = None
    side_by_side: Literal["channels", "operands", "samples"] = "samples"

    folded_size: FoldedSize | None = None
    shape_from_numbers: bool = False
    broadcasts: bool = False

    kernels: tuple[int, ...] = ()
    vectors: tuple[int, ...] = ()
    settings: tuple[int, ...] = ()
    zero_by_default: tuple[int, ...] = ()
    rearranges: bool = False
    role: Literal["", "linear", "normalization"] = ""

    @property
    def is_source(self) -> bool:
        """True for an operator without inputs that only a `net` domain has."""
        return self.own_attributes is not None and not self.own_inputs


def named(*names: str) -> tuple[Operator, ...]:
    """Operators about which ONNX's schema says everything, and that cost no products."""
    return tuple([Operator(name=name) for name in names])


# --- helpers of several families


def positive(attrs: Attrs, name: str) -> int:
    """The attribute as an integer; InputError unless it is positive."""
    value: Any = dict(attrs)[name]
    if int(value) < 1:
        raise InputError(f"{name} must be positive, not {value}")
    return int(value)


def each(value: int | tuple[int, ...], rank: int) -> tuple[int, ...]:
    """A size per spatial dimension; one number stands for all `rank` dimensions."""
    return (value,) * rank if isinstance(value, int) else tuple(value)


def same_shape(attrs: Attrs, shapes: tuple[Shape, ...]) -> Shape:
    """The shape of the first input."""
    return shapes[0]


def total_size(arrays: list[np.ndarray]) -> int:
    """Elements of all operands: the bound on what moving or reducing them gives."""
    return sum(array.size for array in arrays)


def node_attrs(node: onnx.NodeProto) -> dict[str, Any]:
    """The attributes of an ONNX node as plain Python values."""
    return {a.name: standard.attribute_value(node.op_type, a) for a in node.attribute}


def node_attributes(node: onnx.NodeProto) -> dict[str, onnx.AttributeProto]:
    """The attributes of an ONNX node by name, also those that the text cannot hold."""
    return {a.name: a for a in node.attribute}


def has_operand(node: onnx.NodeProto, position: int) -> bool:
    """True unless the operand is omitted."""
    return len(node.input) > position and node.input[position] != ""


def known_operand(reader: Importer, node: onnx.NodeProto, position: int) -> Known | None:
    """The known value of an operand; None if it is omitted or not known."""
    return reader.known.get(node.input[position]) if has_operand(node, position) else None


def weight_shape(reader: Importer, node: onnx.NodeProto, position: int) -> Shape | None:
    """The shape of an operand that is a known tensor.

    None if it is omitted, a scalar, our constant, or computed from initializers of another number
    of elements.
    """
    known = known_operand(reader, node, position)
    if known is None or len(known.shape) == 0 or not known.is_whole:
        return None
    if not known.learned and is_own_constant(reader.makers.get(node.input[position])):
        return None
    return tuple(known.shape)


def is_own_constant(maker: onnx.NodeProto | None) -> bool:
    """True for constants as `Outline` writes them.

    It stores weights as initializers, so its constants are none.
    """
    if maker is None:
        return False
    output = maker.output[0]
    is_shared = maker.name.removeprefix("constant").isdecimal() and output == maker.name
    return is_shared or output == f"{maker.name}_out"
