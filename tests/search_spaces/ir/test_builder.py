"""`Network.repeated`: blocks that are built once and copied give the graph that building them again
gives.
"""

from __future__ import annotations

import pytest

from search_spaces.common.errors import InputError
from search_spaces.ir.builder import Network, Tensor
from search_spaces.ir.graph import Graph

CELLS = 4


class Cell:
    """A cell on the outputs of the last two cells. Counts how often it is built."""

    def __init__(self) -> None:
        self.built = 0

    def __call__(self, net: Network, before: Tensor, last: Tensor, channels: int) -> Tensor:
        self.built += 1
        with net.block("inner"):
            x = net.conv_bn_relu(before, channels, kernel=1)
        return net.add(x, net.conv_bn(last, channels))


def _network(cell: Cell, copied: bool, widths: list[int]) -> Graph:
    net = Network((3, 8, 8), 10)
    before = last = net.conv_bn(net.input, widths[0])
    for width in widths:
        if copied:
            output = net.repeated("cell", cell, (before, last), width)
        else:
            with net.block("cell"):
                output = cell(net, before, last, width)
        before, last = last, output
    return net.graph(net.classifier(last))


@pytest.mark.parametrize("layer", ["conv", "conv_bn", "conv_bn_relu"])
def test_settings_of_layers_have_names(layer: str) -> None:
    """A stride that is taken for another setting would be another network."""
    net = Network((3, 8, 8), num_classes=2)
    add = getattr(net, layer)
    assert add(net.input, 4, 3, stride=2).shape == ("N", 4, 4, 4)
    with pytest.raises(TypeError, match="positional"):
        add(net.input, 4, 3, 2)


def test_copies_are_what_building_again_gives_names_included() -> None:
    widths = [8] * CELLS + [16] * CELLS
    assert _network(Cell(), True, widths) == _network(Cell(), False, widths)


def test_a_block_is_built_once_for_all_equal_settings_and_shapes() -> None:
    cell = Cell()
    _network(cell, True, [8] * CELLS)
    assert cell.built == 2, "the first cell has one input twice, the others have two"
    _network(cell, True, [8] * CELLS)
    assert cell.built == 4, "another network copies nothing of the first"


def test_a_block_that_adds_nothing_returns_the_copy_s_own_input() -> None:
    net = Network((3, 8, 8), 10)
    first, second = net.relu(net.input), net.relu6(net.input)
    outputs = [net.repeated("cell", lambda net, x: x, (x,)) for x in (first, second)]
    assert outputs == [first, second]


def test_a_copy_inside_a_copy_is_named_after_both() -> None:
    def inner(net: Network, x: Tensor) -> Tensor:
        return net.relu(x)

    def outer(net: Network, x: Tensor) -> Tensor:
        return net.repeated("inner", inner, (net.repeated("inner", inner, (x,)),))

    net = Network((3, 8, 8), 10)
    x = net.repeated("outer", outer, (net.repeated("outer", outer, (net.input,)),))
    assert [node.scope for node in net.graph(x).nodes] == [
        ("outer1", "inner1"), ("outer1", "inner2"), ("outer2", "inner1"), ("outer2", "inner2"),
    ]  # fmt: skip


def test_a_repeated_block_reads_its_inputs_alone() -> None:
    net = Network((3, 8, 8), 10)
    other, x = net.conv(net.input, 4), net.conv(net.input, 4)
    for build in (lambda net, x: net.add(x, other), lambda net, x: other):
        with pytest.raises(InputError, match="'cell' reads a tensor that is not one of its inputs"):
            net.repeated("cell", build, (x,))
