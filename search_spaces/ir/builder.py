"""`Network`: builds the weightless graph of one architecture, operator by operator."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from functools import lru_cache, partial
from typing import Any, Literal, NamedTuple, NoReturn

from search_spaces.common.errors import InputError, unknown
from search_spaces.ir.fusion import fuse
from search_spaces.ir.graph import BATCH, Attrs, Graph, Node, Shape, Value, node
from search_spaces.ir.ops import output_shape
from search_spaces.ir.ops.convolution import Convolution, pair, same_pads
from search_spaces.ir.precision import LAYERS, check_precision, with_precision
from search_spaces.ir.standard import shortest


class Tensor(NamedTuple):
    """A value of the network under construction.

    Attributes:
        number: number of the value in the graph.
        shape: (N, channels, height, width) for images.
    """

    number: int
    shape: Shape


# Creates a tensor from a tuple of its fields, in two thirds of the time
_tensor: Callable[[tuple[int, Shape]], Tensor] = partial(tuple.__new__, Tensor)


class _BuiltBlock(NamedTuple):
    """The nodes of a repeated block, to be copied.

    Attributes:
        inputs: inputs of the block.
        first: number of the first value that the block added.
        nodes: nodes that it added.
        shapes: shapes of the values that it added.
        output: output of the block.
        depth: number of scopes around its nodes.
    """

    inputs: tuple[Tensor, ...]
    first: int
    nodes: list[Node]
    shapes: list[Shape]
    output: Tensor
    depth: int


@lru_cache(maxsize=4096)
def _conv_attrs(
    in_channels: int,
    channels: int,
    kernel: tuple[int, int],
    strides: tuple[int, int],
    dilations: tuple[int, int],
    group: int,
    bias: bool,
    pads: tuple[int, int, int, int] | None,
) -> Attrs:
    conv = Convolution(
        in_channels=in_channels,
        channels=channels,
        kernel=kernel,
        strides=strides,
        pads=pads or same_pads(kernel, dilations),
        dilations=dilations,
        group=group,
        bias=bias,
    )
    return conv.attrs


_NO_AFFINE: Attrs = (("affine", 0),)
_SIXTH = shortest(1 / 6)


class _Block:
    """The context of `Network.block`."""

    def __init__(self, net: Network, name: str) -> None:
        self.net, self.name = net, name

    def __enter__(self) -> None:
        self.outer = self.net._scope
        key = (self.outer, self.name)
        self.net._blocks[key] += 1
        self.net._scope = (*self.outer, f"{self.name}{self.net._blocks[key]}")

    def __exit__(self, *error: object) -> None:
        self.net._scope = self.outer


class _Precision:
    """The context of `Network.precision`."""

    def __init__(self, net: Network, precision: str) -> None:
        self.net = net
        self.precision = check_precision(precision)

    def __enter__(self) -> None:
        self.outer = self.net._precision
        self.net._precision = self.precision

    def __exit__(self, *error: object) -> None:
        self.net._precision = self.outer


class Network:
    """Builder of one architecture, the argument `net` of `SearchSpace.build`.

        x = net.conv_bn_relu(net.input, 16, kernel=3)
        with net.block("block"):
            x = net.add(x, net.conv_bn(net.relu(x), kernel=3))
        return net.classifier(x)

    Every method takes and returns `Tensor`s; `channels` defaults to those of the input. Repeated
    parts become functions of the text. `block`s only name nodes in ONNX files; the text does not
    depend on them.

    Args:
        input_shape: shape of one input without the batch.
        num_classes: outputs of `classifier`.
    """

    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        self.num_classes = num_classes
        self.input = Tensor(0, (BATCH, *input_shape))
        self._nodes: list[Node] = []
        self._shapes: list[Shape] = [self.input.shape]
        self._scope: tuple[str, ...] = ()
        self._blocks: Counter[tuple[tuple[str, ...], str]] = Counter()
        self._built: dict[Hashable, _BuiltBlock] = {}
        self._precision = ""  # of the layers that are added next; "" says nothing

    def __getattr__(self, name: str) -> NoReturn:
        methods = [method for method in dir(type(self)) if not method.startswith("_")]
        raise AttributeError(str(unknown("method of the builder", name, methods)))

    def block(self, name: str) -> _Block:
        """Prefix the names of the nodes added inside in ONNX files: `cell1/…`, `cell2/…`."""
        return _Block(self, name)

    def precision(self, precision: str) -> _Precision:
        """Let the convolutions and linear layers added inside compute in fp32 or int8: the layers
        of int8 are those that quantization concerns.

            with net.precision(trial.suggest_categorical("precision", ["fp32", "int8"])):
                x = net.conv_bn_relu(x)

        Raises:
            InputError: if there is no such precision.
        """
        return _Precision(self, precision)

    def repeated(
        self,
        name: str,
        build: Callable[..., Tensor],
        inputs: tuple[Tensor, ...],
        *settings: Hashable,
    ) -> Tensor:
        """Build a block that a network has many times.

        The result is that of `build(net, *inputs, *settings)`, but it is faster. `build` runs once
        for equal settings and input shapes; later its nodes are copied.

        Args:
            name: name of the block, see `block`.
            build: function that must depend on its arguments alone.
            inputs: tensors that the block reads.
            settings: further arguments of `build`.

        Raises:
            InputError: if `build` reads a tensor that is not among `inputs`: a copy would read
                another one.
        """
        # Equal blocks have equal settings and input shapes, and the same inputs twice.
        shapes = tuple([x.shape for x in inputs])
        repeated_inputs = tuple([inputs.index(x) for x in inputs])
        key = (build, shapes, repeated_inputs, settings, self._precision)
        with self.block(name):
            if key in self._built:
                return self._copy(self._built[key], inputs)
            first_node = len(self._nodes)
            first_value = len(self._shapes)
            output = build(self, *inputs, *settings)
            nodes = self._nodes[first_node:]
            # It must read nothing from before but its inputs.
            own = {x.number for x in inputs}
            reads = [output.number]
            for added in nodes:
                reads += added.inputs
            if any(value < first_value and value not in own for value in reads):
                raise InputError(
                    f"block {name!r} reads a tensor that is not one of its inputs: add it to "
                    "`inputs`"
                )
            self._built[key] = _BuiltBlock(
                inputs=inputs,
                first=first_value,
                nodes=nodes,
                shapes=self._shapes[first_value:],
                output=output,
                depth=len(self._scope),
            )
            return output

    def _copy(self, block: _BuiltBlock, inputs: tuple[Tensor, ...]) -> Tensor:
        """Add the block's nodes again, with other inputs."""
        # 1. Numbers of values: the inputs are replaced, all others are moved.
        shift = len(self._shapes) - block.first
        number = {}
        for old, new in zip(block.inputs, inputs, strict=True):
            number[old.number] = new.number

        # 2. The nodes.
        scope = self._scope
        for op, reads, outputs, attrs, inner_scope in block.nodes:
            if len(reads) == 1:  # most nodes; a list would take longer
                value = reads[0]
                copied: tuple[int, ...] = (number.get(value, value + shift),)
            else:
                copied = tuple([number.get(value, value + shift) for value in reads])
            made = (outputs[0] + shift,)
            full_scope = scope + inner_scope[block.depth :]
            self._nodes.append(node((op, copied, made, attrs, full_scope)))
        self._shapes += block.shapes

        # 3. The output, which may be an input of the block.
        output = block.output.number
        copied_output = output + shift if output >= block.first else number[output]
        return Tensor(copied_output, block.output.shape)

    def op(self, op: str, *inputs: Tensor, attrs: Attrs | Mapping[str, Any] = ()) -> Tensor:
        """Add any supported operator.

        Args:
            op: name of the operator, see `search_spaces.ir.ops`.
            inputs: operands that are not constants.
            attrs: attributes and constant operands: a dictionary, or pairs sorted by name.

        Raises:
            InputError: if the operator is not supported, or attributes and shapes do not match.
        """
        if not isinstance(attrs, tuple):
            values = {n: tuple(v) if isinstance(v, list) else v for n, v in attrs.items()}
            attrs = tuple(sorted(values.items()))
        if self._precision and op in LAYERS:
            attrs = with_precision(attrs, self._precision)
        number = len(self._shapes)
        if len(inputs) == 1:  # most nodes; a list would take longer
            reads: tuple[int, ...] = (inputs[0].number,)
            shape = output_shape(op, attrs, (inputs[0].shape,))
        else:
            reads = tuple([x.number for x in inputs])
            shape = output_shape(op, attrs, tuple([x.shape for x in inputs]))
        self._nodes.append(node((op, reads, (number,), attrs, self._scope)))
        self._shapes.append(shape)
        return _tensor((number, shape))

    def conv(
        self,
        x: Tensor,
        channels: int | None = None,
        kernel: int | tuple[int, int] = 3,
        *,
        stride: int = 1,
        dilation: int = 1,
        groups: int = 1,
        bias: bool = False,
        pads: tuple[int, int, int, int] | None = None,
    ) -> Tensor:
        """Convolution.

        `pads` are top, left, bottom, right; by default they keep the size at stride 1 (odd
        kernels).
        """
        attrs = self._conv(x, channels, kernel, stride, dilation, groups, bias, pads)
        return self.op("Conv", x, attrs=attrs)

    def _conv(
        self,
        x: Tensor,
        channels: int | None,
        kernel: int | tuple[int, int],
        stride: int,
        dilation: int,
        groups: int,
        bias: bool = False,
        pads: tuple[int, int, int, int] | None = None,
    ) -> Attrs:
        width = int(x.shape[1])
        return _conv_attrs(
            width,
            channels or width,
            pair(kernel),
            pair(stride),
            pair(dilation),
            groups,
            bias,
            pads,
        )

    def conv_bn(
        self,
        x: Tensor,
        channels: int | None = None,
        kernel: int | tuple[int, int] = 3,
        *,
        stride: int = 1,
        dilation: int = 1,
        groups: int = 1,
        affine: bool = True,
    ) -> Tensor:
        """Convolution without bias, then batch normalization; see `batch_norm` for `affine`."""
        attrs = self._conv(x, channels, kernel, stride, dilation, groups)
        if not affine:
            attrs = tuple(sorted((*attrs, *_NO_AFFINE)))
        return self.op("ConvBn", x, attrs=attrs)

    def conv_bn_relu(
        self,
        x: Tensor,
        channels: int | None = None,
        kernel: int | tuple[int, int] = 3,
        *,
        stride: int = 1,
        dilation: int = 1,
        groups: int = 1,
    ) -> Tensor:
        """Convolution without bias, batch normalization, then ReLU."""
        convolved = self.conv_bn(
            x,
            channels,
            kernel,
            stride=stride,
            dilation=dilation,
            groups=groups,
        )
        return self.relu(convolved)

    def batch_norm(self, x: Tensor, *, affine: bool = True) -> Tensor:
        """Batch normalization, with trained scale and shift if `affine`."""
        return self.op("BatchNorm", x, attrs=() if affine else _NO_AFFINE)

    def relu(self, x: Tensor) -> Tensor:
        """max(x, 0)"""
        return self.op("Relu", x)

    def relu6(self, x: Tensor) -> Tensor:
        """min(max(x, 0), 6)"""
        return self.op("Clip", x, attrs=(("max", 6), ("min", 0)))

    def sigmoid(self, x: Tensor) -> Tensor:
        """1 / (1 + exp(-x))"""
        return self.op("Sigmoid", x)

    def hard_sigmoid(self, x: Tensor) -> Tensor:
        """min(max(x / 6 + 1/2, 0), 1)"""
        return self.op("HardSigmoid", x, attrs=(("alpha", _SIXTH),))

    def hard_swish(self, x: Tensor) -> Tensor:
        """x · hard_sigmoid(x)"""
        return self.op("HardSwish", x)

    def zero(self, x: Tensor) -> Tensor:
        """Zeros of the shape of `x`."""
        return self.op("Zero", x)

    def max_pool(
        self,
        x: Tensor,
        kernel: int = 3,
        *,
        stride: int = 1,
        ceil: bool = False,
    ) -> Tensor:
        """Maximum over kernel × kernel windows.

        Odd kernels are padded to keep the size at stride 1. `ceil` adds a last, partial window.
        """
        return self.op("MaxPool", x, attrs=_pool_attrs(kernel, stride, ceil))

    def avg_pool(
        self,
        x: Tensor,
        kernel: int = 3,
        *,
        stride: int = 1,
        ceil: bool = False,
    ) -> Tensor:
        """Mean over kernel × kernel windows, padded as in `max_pool`; padding does not count."""
        return self.op("AveragePool", x, attrs=_pool_attrs(kernel, stride, ceil))

    def global_avg_pool(self, x: Tensor) -> Tensor:
        """Mean over all positions: (N, channels, 1, 1)."""
        return self.op("GlobalAveragePool", x)

    def add(self, *xs: Tensor) -> Tensor:
        """Sum of one or more tensors; a single tensor is returned itself."""
        if not xs:
            raise InputError("add needs at least one tensor")
        if len(xs) == 1:
            return xs[0]
        return self.op("Add" if len(xs) == 2 else "Sum", *xs)

    def mul(self, a: Tensor, b: Tensor) -> Tensor:
        """Product; sizes of 1 broadcast."""
        return self.op("Mul", a, b)

    def squeeze_excite(
        self,
        x: Tensor,
        hidden: int,
        *,
        gate: Literal["hard_sigmoid", "sigmoid"] = "hard_sigmoid",
    ) -> Tensor:
        """Squeeze-and-excitation (arXiv 1709.01507).

        A two-layer network weights the channels by their means.

        Args:
            x: (N, channels, height, width).
            hidden: width of the hidden layer.
            gate: activation of the weights.
        """
        channels = int(x.shape[1])
        means = self.global_avg_pool(x)
        hidden_layer = self.conv(means, hidden, kernel=1, bias=True)
        weights = self.conv(self.relu(hidden_layer), channels, kernel=1, bias=True)
        activation = self.hard_sigmoid if gate == "hard_sigmoid" else self.sigmoid
        return self.mul(x, activation(weights))

    def slice(
        self,
        x: Tensor,
        axis: int,
        start: int,
        end: int,
    ) -> Tensor:
        """Elements start to end - 1 along an axis (1: channels, 2: rows, 3: columns)."""
        if (start, end) == (0, x.shape[axis]):
            return x
        attrs: Attrs = (("axes", (axis,)), ("ends", (end,)), ("starts", (start,)))
        return self.op("Slice", x, attrs=attrs)

    def channel_shuffle(self, x: Tensor, groups: int) -> Tensor:
        """Interleave `groups` groups of channels (ShuffleNet, arXiv 1707.01083)."""
        return self.op("ChannelShuffle", x, attrs=(("groups", groups),))

    def concat(self, *xs: Tensor) -> Tensor:
        """Concatenation along the channels."""
        return self.op("Concat", *xs, attrs=(("axis", 1),))

    def linear(self, x: Tensor, features: int, *, bias: bool = True) -> Tensor:
        """Linear layer on the last dimension."""
        attrs: Attrs = (("features", features),)
        if not bias:
            attrs = (("bias", 0), *attrs)
        return self.op("Linear", x, attrs=attrs)

    def classifier(self, x: Tensor) -> Tensor:
        """Global average pooling and a linear layer to the classes: the logits (N, num_classes)."""
        return self.linear(self.op("Flatten", self.global_avg_pool(x)), self.num_classes)

    def graph(self, output: Tensor) -> Graph:
        """The finished graph with `output` as its output, after fusion."""
        if output.number == 0:
            output = self.op("Identity", output)
        return fuse(Graph((0,), tuple(self._nodes), (output.number,), tuple(self._shapes)))


@lru_cache(maxsize=256)
def _pool_attrs(kernel: int, stride: int, ceil: bool) -> Attrs:
    attrs: dict[str, Value] = {"kernel_shape": (kernel, kernel)}
    if ceil:
        attrs["ceil_mode"] = 1
    if kernel % 2 and kernel > 1:
        attrs["pads"] = same_pads((kernel, kernel))
    if stride != 1:
        attrs["strides"] = (stride, stride)
    return tuple(sorted(attrs.items()))
