"""Cells of the NASNet family: operations, and nodes that each add the results of two operations.

Operations as in DARTS (arXiv 1806.09055) and NDS (arXiv 1905.13214): activation first, no biases.
"""

from __future__ import annotations

from itertools import chain, groupby, permutations, product

from search_spaces.ir.builder import Network, Tensor
from search_spaces.ir.graph import Attrs
from search_spaces.published.genotypes import Edge

# Drops the first row and column and appends zeros; the same attributes fit all sizes, so equal
# blocks stay equal.
_SHIFT: Attrs = (("pads", (0, 0, -1, -1, 0, 0, 1, 1)),)


def cell(
    net: Network,
    inputs: tuple[Tensor, Tensor],
    edges: tuple[Edge, ...],
    concat: tuple[int, ...],
    stride: int,
    affine: bool,
) -> Tensor:
    """Build a cell; operations that add nothing are omitted, and equal poolings are computed once.

    Args:
        net: builder of the network.
        inputs: the two inputs, nodes 0 and 1.
        edges: two edges per node, from node 2 on.
        concat: nodes that are concatenated to the output.
        stride: stride of the operations on the inputs.
        affine: whether batch normalization has scale and shift.
    """
    nodes = _Nodes(net, inputs, stride, affine)
    for first, second in zip(edges[::2], edges[1::2], strict=True):
        nodes.add(first, second)
    outputs = [nodes.value(i) for i in nodes.canonical(concat)]
    return net.concat(*outputs) if len(outputs) > 1 else outputs[0]


class _Nodes:
    """The nodes of a cell under construction.

    `values[i]` is None if node i is zero. `keys[i]` identifies the computation of node i,
    independent of the numbers of nodes and the order of edges.
    """

    def __init__(
        self,
        net: Network,
        inputs: tuple[Tensor, Tensor],
        stride: int,
        affine: bool,
    ) -> None:
        self.net, self.stride, self.affine = net, stride, affine
        self.values: list[Tensor | None] = [*inputs]
        self.keys = ["0", "1"]
        self.edges: list[list[Edge]] = [[], []]
        self.pools: dict[tuple[str, int], Tensor] = {}
        self.zero: Tensor | None = None

    def add(self, *edges: Edge) -> None:
        """Add the node that sums the results of these edges."""
        terms = []
        own_edges = []
        for edge in edges:
            value = self._term(*edge)
            if value is not None:
                terms.append(value)
                own_edges.append(edge)
        self.values.append(self.net.add(*terms) if terms else None)
        self.edges.append(own_edges)
        keys = [self._key(*edge) for edge in own_edges]
        self.keys.append("+".join(sorted(keys)))

    def canonical(self, nodes: tuple[int, ...]) -> tuple[int, ...]:
        """These nodes sorted by computation.

        Nodes with equal computation are sorted by the smallest wiring of the whole cell.
        """
        # 1. Inner nodes by computation; those of equal computation may stand in any order.
        key = self.keys.__getitem__
        inner = sorted(range(2, len(self.keys)), key=key)
        alike = [list(group) for _, group in groupby(inner, key)]
        orders = []
        for groups in product(*map(permutations, alike)):
            orders.append(tuple(chain(*groups)))

        # 2. The order in which the wiring of the whole cell is smallest.
        def wiring(order: tuple[int, ...]) -> list[tuple[bool, list[Edge]]]:
            number = {0: -2, 1: -1}
            for i, node in enumerate(order):
                number[node] = i
            wires = []
            for node in order:
                edges = [(operation, number[source]) for operation, source in self.edges[node]]
                wires.append((node in nodes, sorted(edges)))
            return wires

        smallest = min(orders, key=wiring)
        return tuple([node for node in smallest if node in nodes])

    def value(self, node: int) -> Tensor:
        """The node's value; zeros have the shape of an operation's result on the second input."""
        value = self.values[node]
        if value is not None:
            return value
        if self.zero is None:
            x = self.values[1]
            assert x is not None
            if self.stride > 1:
                x = self.net.max_pool(x, 1, stride=self.stride)
            self.zero = self.net.zero(x)
        return self.zero

    def _is_identity(self, operation: str, source: int) -> bool:
        return operation == "skip_connect" and (self.stride == 1 or source > 1)

    def _key(self, operation: str, source: int) -> str:
        key = self.keys[source]
        return key if self._is_identity(operation, source) else f"{operation}({key})"

    def _term(self, operation: str, source: int) -> Tensor | None:
        """The value that an edge adds to its node; None for zero."""
        pools = operation.startswith(("max_pool", "avg_pool"))
        keeps_zero = pools or operation == "skip_connect"
        if operation == "none" or (self.values[source] is None and keeps_zero):
            return None
        x = self.value(source)
        if self._is_identity(operation, source):
            return x
        stride = self.stride if source < 2 else 1
        if not pools:
            return apply(self.net, operation, x, stride, self.affine)
        if (operation, source) not in self.pools:
            self.pools[operation, source] = apply(self.net, operation, x, stride, self.affine)
        return self.pools[operation, source]


def apply(
    net: Network,
    operation: str,
    x: Tensor,
    stride: int,
    affine: bool,
) -> Tensor:
    """Apply an operation by its name, such as `sep_conv_3x3`; it keeps the number of channels."""
    if operation == "skip_connect":
        return factorized_reduce(net, x, int(x.shape[1]), affine)
    kind, size = operation.rsplit("_", 1)
    kernel = int(size.partition("x")[2])
    if kind == "max_pool":
        return net.max_pool(x, kernel, stride=stride)
    if kind == "avg_pool":
        return net.avg_pool(x, kernel, stride=stride)
    if kind == "dil_conv":
        return _separable(net, x, kernel, stride, 2, affine)
    if kind in ("sep_conv", "dil_sep_conv"):
        dilation = 2 if kind == "dil_sep_conv" else 1
        x = _separable(net, x, kernel, stride, dilation, affine)
        return _separable(net, x, kernel, 1, dilation, affine)
    if kind == "conv":
        return net.conv_bn(net.relu(x), kernel=kernel, stride=stride, affine=affine)
    return _factorized(net, x, kernel, stride, affine)


def _separable(
    net: Network,
    x: Tensor,
    kernel: int,
    stride: int,
    dilation: int,
    affine: bool,
) -> Tensor:
    """A depthwise convolution, then a 1 × 1 convolution."""
    with net.block("separable"):
        x = net.conv(
            net.relu(x),
            kernel=kernel,
            stride=stride,
            dilation=dilation,
            groups=int(x.shape[1]),
        )
        return net.conv_bn(x, kernel=1, affine=affine)


def _factorized(
    net: Network,
    x: Tensor,
    kernel: int,
    stride: int,
    affine: bool,
) -> Tensor:
    """A 1 × kernel convolution, then a kernel × 1 convolution: `conv_7x1_1x7`."""
    with net.block("factorized"):
        x = net.op("Conv", net.relu(x), attrs=_line((1, kernel), (1, stride)))
        attrs = _line((kernel, 1), (stride, 1))
        if not affine:
            attrs = (("affine", 0), *attrs)
        return net.op("ConvBn", x, attrs=attrs)


def _line(kernel: tuple[int, int], strides: tuple[int, int]) -> Attrs:
    """Attributes of a convolution along a row or a column; strides of 1 are left out."""
    attrs: Attrs = (("kernel", kernel),)
    return attrs if strides == (1, 1) else (*attrs, ("strides", strides))


def factorized_reduce(
    net: Network,
    x: Tensor,
    channels: int,
    affine: bool = True,
) -> Tensor:
    """Halve the size: half of the channels read even rows and columns, the others odd ones.

    At odd sizes, the odd rows and columns are padded with zeros, as in NDS.
    """
    with net.block("reduce"):
        x = net.relu(x)
        even = net.conv(x, channels // 2, kernel=1, stride=2)
        shifted = net.op("Pad", x, attrs=_SHIFT)
        odd = net.conv(shifted, channels - channels // 2, kernel=1, stride=2)
        return net.batch_norm(net.concat(even, odd), affine=affine)
