"""Programs: functions for what is repeated in the graph, the same whatever the names and the order
of nodes.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search_spaces import InputError, get_space, list_spaces
from search_spaces.ir.builder import Network, Tensor
from search_spaces.ir.costs import graph_flops, graph_params
from search_spaces.ir.graph import Attrs, Graph, Node, Shape
from search_spaces.ir.text import compact, expand, read, write
from search_spaces.ir.text.functions import Scope, compact_regions, flat_program, scoped
from search_spaces.ir.text.program import Block, Interpreter, Item, Program, operator_outcome, sites
from search_spaces.ir.text.regions import placed_lines

seeds = st.integers(0, 2**32 - 1)


def _text(graph: Graph) -> str:
    return write(compact(graph))


def _shuffled(graph: Graph, seed: int) -> Graph:
    """Another topological order, and the inputs of sums in another order."""
    rng, known, order = np.random.default_rng(seed), set(graph.inputs), []
    waiting = list(rng.permutation(len(graph.nodes)))
    while waiting:
        ready = [i for i in waiting if known.issuperset(graph.nodes[i].inputs)]
        for i in ready:
            node = graph.nodes[i]
            known.update(node.outputs)
            swaps = node.op in ("Add", "Sum", "Mul")
            order.append(
                node._replace(inputs=tuple(rng.permutation(node.inputs).tolist()))
                if swaps
                else node
            )
        waiting = [i for i in waiting if i not in set(ready)]
    number = {
        v: i for i, v in enumerate([*graph.inputs, *(v for node in order for v in node.outputs)])
    }
    nodes = [
        n._replace(
            inputs=tuple(number[v] for v in n.inputs), outputs=tuple(number[v] for v in n.outputs)
        )
        for n in order
    ]
    shapes = sorted(range(len(graph.shapes)), key=number.__getitem__)
    outputs = tuple(number[v] for v in graph.outputs)
    return Graph(graph.inputs, tuple(nodes), outputs, tuple(graph.shapes[v] for v in shapes))


def _computation(graph: Graph) -> object:
    """The operators with their sizes, the costs, and the canonical form of the whole graph as one
    block.
    """
    root = scoped(graph, placed_lines(graph), [()] * len(graph.nodes))
    shapes = graph.shapes
    operators = Counter(
        (n.op, n.attrs, tuple(shapes[v] for v in n.inputs), tuple(shapes[v] for v in n.outputs))
        for n in graph.nodes
    )
    return operators, graph_params(graph), graph_flops(graph), root.op, root.numbers


def _is_canonical(graph: Graph, orders: int = 4) -> bool:
    text = _text(graph)
    same = all(_text(_shuffled(graph, seed)) == text for seed in range(orders))
    return (
        same
        and _text(expand(read(text))) == text
        and _computation(expand(read(text))) == _computation(graph)
    )


# --- networks


def _residual(net: Network, x: Tensor, width: int) -> Tensor:
    y = net.conv_bn_relu(x, width, kernel=1)
    y = net.conv_bn_relu(y, kernel=3)
    return net.relu(net.add(x, net.conv_bn(y, int(x.shape[1]), kernel=1)))


def _attention(net: Network, x: Tensor, width: int) -> Tensor:
    """A Transformer layer."""
    normed = net.batch_norm(x)
    query, key, value = (net.conv(normed, kernel=1, bias=True) for _ in range(3))
    mixed = net.mul(net.op("Softmax", net.mul(query, net.sigmoid(key))), value)
    x = net.add(x, net.conv(mixed, kernel=1, bias=True))
    hidden = net.hard_swish(net.conv(net.batch_norm(x), width, kernel=1))
    return net.add(x, net.conv(hidden, int(x.shape[1]), kernel=1))


def _separable(net: Network, x: Tensor, width: int) -> Tensor:
    y = net.relu(net.conv(net.relu(net.conv(x, width, kernel=1)), kernel=3, groups=width))
    return net.conv(y, int(x.shape[1]), kernel=1)


BLOCKS = {"residual": _residual, "attention": _attention, "separable": _separable}


def _chain(kind: str, widths: list[int]) -> Graph:
    net = Network((3, 8, 8), 10)
    x = net.conv(net.input, 8)
    for width in widths:
        x = BLOCKS[kind](net, x, width)
    return net.graph(net.classifier(x))


def _like_branches(count: int, depth: int) -> Graph:
    net = Network((4, 8, 8), 10)
    ends = []
    for _ in range(count):
        x = net.input
        for _ in range(depth):
            x = net.relu(net.conv(x))
        ends.append(x)
    return net.graph(net.classifier(net.add(*ends)))


def _layers_of_sums(layers: int, width: int) -> Graph:
    """Every sum reads every sum of the layer before."""
    net = Network((4, 8, 8), 10)
    values = [net.relu(net.input) for _ in range(width)]
    for _ in range(layers):
        values = [net.add(*values) for _ in range(width)]
    return net.graph(net.classifier(net.add(*values)))


@st.composite
def networks(draw: st.DrawFn) -> Graph:
    """Random motifs at random places, some twins, and some unused values."""
    net = Network((2, 8, 8), 3)
    values = [net.conv(net.input, 4)]
    motifs = draw(
        st.lists(
            st.lists(st.sampled_from(["relu", "conv", "pool", "add", "twin"]), max_size=5),
            max_size=3,
        )
    )

    def grow(kind: str) -> None:
        x = values[-1]
        other = values[draw(st.integers(max(0, len(values) - 4), len(values) - 1))]
        if kind == "twin":
            values.append(net.add(net.relu(net.conv(x)), net.relu(net.conv(x))))
            return
        values.append(
            {
                "relu": lambda: net.relu(x),
                "conv": lambda: (
                    net.conv(x, draw(st.sampled_from([4, 4, 4, 6])), kernel=1)
                    if x.shape[1] == 6
                    else net.conv(x, 4, kernel=draw(st.sampled_from([1, 3])))
                ),
                "pool": lambda: net.max_pool(x, 3),
                "add": lambda: net.add(x, other) if x.shape == other.shape else net.relu(other),
            }[kind]()
        )

    for _ in range(draw(st.integers(1, 12))):
        motif = draw(st.sampled_from([["conv", "relu"], *motifs]))
        for kind in motif:
            grow(kind)
        if draw(st.booleans()):
            values.append(net.relu(values[draw(st.integers(0, len(values) - 1))]))
    return net.graph(net.classifier(values[-1]))


# --- whatever the names and the order


@settings(max_examples=150, deadline=None)
@given(networks(), seeds)
def test_order_of_nodes_does_not_change_the_text(graph: Graph, seed: int) -> None:
    assert _text(_shuffled(graph, seed)) == _text(graph)


@settings(max_examples=80, deadline=None)
@given(networks())
def test_a_program_computes_what_its_graph_does(graph: Graph) -> None:
    assert _computation(expand(compact(graph))) == _computation(graph)


@settings(max_examples=80, deadline=None)
@given(networks())
def test_the_text_of_a_text_is_the_text(graph: Graph) -> None:
    assert _text(expand(read(_text(graph)))) == _text(graph)


@pytest.mark.slow
@pytest.mark.parametrize("name", list_spaces())
@settings(max_examples=4, deadline=None)
@given(seed=seeds)
def test_no_reordering_changes_the_text_of_a_network(name: str, seed: int) -> None:
    space = get_space(name)
    assert _is_canonical(space.graph(space.sample(np.random.default_rng(seed))), orders=1)


def test_branches_that_nobody_reads_and_that_differ_in_kernel_size_stand_in_one_order() -> None:
    """The last such branch of a cell and the first of the next one read the same value."""
    space = get_space("nasbench201")
    for first, second in (("nor_conv_3x3", "nor_conv_1x1"), ("nor_conv_1x1", "nor_conv_3x3")):
        arch = space.parse(f"|none~0|+|{first}~0|{second}~1|+|none~0|none~1|none~2|")
        assert _is_canonical(space.graph(arch))


# --- repeats


@pytest.mark.parametrize("kind", BLOCKS)
def test_equal_blocks_become_one_function(kind: str) -> None:
    graph = _chain(kind, [4] * 12)
    program = compact(graph)
    assert len(program.functions) == 1
    assert len(program.main.items) < 24
    assert _is_canonical(graph)


def test_widths_of_repeated_blocks_are_parameters() -> None:
    program = compact(_chain("separable", [4, 6, 12, 4, 6, 12, 16]))
    (function,) = program.functions.values()
    assert "c" in function.params


def test_kernel_sizes_of_repeated_blocks_are_parameters() -> None:
    net = Network((4, 8, 8), 10)
    x = net.input
    for kernel in (3, 5, 1, 7, 3, 1):
        x = net.max_pool(net.relu(net.conv_bn(net.sigmoid(x), kernel=kernel)), 3)
    program = compact(net.graph(net.classifier(x)))
    (function,) = program.functions.values()
    assert function.params == ("k",)
    assert _calls(program) == 6


def test_blocks_whose_widths_are_ordered_otherwise_share_a_function() -> None:
    net = Network((3, 8, 8), 10)
    x = net.input
    for first, second in ((4, 8), (16, 6), (5, 12), (9, 2)):
        x = net.conv(net.relu(net.conv(x, first)), second, kernel=1)
    assert len(compact(net.graph(net.classifier(x))).functions) == 1


def test_what_is_repeated_between_different_things_becomes_a_function() -> None:
    net = Network((3, 8, 8), 10)
    x = net.conv(net.input, 8)
    for i in range(6):
        for _ in range(i % 3):
            x = net.max_pool(x, 3)
        x = _separable(net, x, 16)
    graph = net.graph(net.classifier(x))
    assert _text(graph).count("depthwise") == 1
    assert _is_canonical(graph)


def test_value_that_all_blocks_read_is_an_input_of_each() -> None:
    net = Network((8, 8, 8), 10)
    mask = net.sigmoid(net.input)
    x = net.input
    for _ in range(10):
        x = net.add(x, net.conv(net.mul(mask, net.relu(net.conv(x))), kernel=1))
    program = compact(net.graph(net.classifier(x)))
    (function,) = program.functions.values()
    assert function.inputs == 2
    assert _calls(program) == 10


def test_short_repeats_are_written_out() -> None:
    net = Network((4, 8, 8), 10)
    x = net.input
    for _ in range(2):
        x = net.max_pool(net.sigmoid(net.relu(net.conv(x))))
    assert not compact(net.graph(net.classifier(x))).functions


def _calls(program: Program) -> int:
    blocks = (program.main, *program.functions.values())
    return sum(item.op in program.functions for block in blocks for item in block.items)


# --- symmetries


def _repeated(motif: str) -> Graph:
    """Six blocks with two inputs or outputs that are similar inside but differ in their context."""
    net = Network((4, 8, 8), 10)
    x, side = net.conv(net.input, 4), net.relu(net.input)

    def block(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        first, second = (net.relu(net.conv(net.relu(net.conv(v)), kernel=1)) for v in (a, b))
        if motif == "two inputs":
            return net.add(first, second), b
        return first, second

    for _ in range(6):
        x, side = block(x, side if motif != "two outputs" else x)
        side = net.max_pool(side, 3)
    return net.graph(net.classifier(net.add(x, net.sigmoid(side))))


@pytest.mark.parametrize("motif", ["two inputs", "two outputs", "both"])
def test_blocks_that_look_alike_from_both_sides_are_distinguished(motif: str) -> None:
    assert _is_canonical(_repeated(motif), orders=8)


def test_block_whose_inputs_may_be_swapped_is_a_function() -> None:
    program = compact(_repeated("two inputs"))
    assert any(function.inputs == 2 for function in program.functions.values())


def test_like_branches_do_not_depend_on_the_order() -> None:
    for count in (2, 3, 8):
        assert _is_canonical(_like_branches(count, 3))


def test_ties_that_are_not_symmetries_are_distinguished() -> None:
    """Two rings of three and one of six: every node has the same neighbourhood, and the networks
    differ.
    """

    def rings(*lengths: int) -> Graph:
        net = Network((4, 8, 8), 10)
        ends = []
        for length in lengths:
            values = [net.relu(net.input) for _ in range(length)]
            ends += [net.add(a, b) for a, b in zip(values, [*values[1:], values[0]], strict=True)]
        return net.graph(net.classifier(net.add(*ends)))

    assert _is_canonical(rings(3, 3))
    assert _is_canonical(rings(6))
    assert _text(rings(3, 3)) != _text(rings(6))


def test_repeated_nodes_with_several_outputs_become_a_function() -> None:
    nodes, shapes, x = [], [("N", 4)], 0
    for _ in range(8):
        first, second, end = len(shapes), len(shapes) + 1, len(shapes) + 3
        nodes += [
            Node("Split", (x,), (first, second), (("axis", 1),)),
            Node("Relu", (second,), (end - 1,)),
            Node("Concat", (end - 1, first), (end,), (("axis", 1),)),
        ]
        shapes += [("N", 2), ("N", 2), ("N", 2), ("N", 4)]
        x = end
    graph = Graph((0,), tuple(nodes), (x,), tuple(shapes))
    program = compact(graph)
    assert _calls(program) >= 4
    assert any(
        item.outputs == 2 for function in program.functions.values() for item in function.items
    )
    assert all(compact(_shuffled(graph, seed)) == program for seed in range(4))


# --- limits


def test_scopes_that_no_call_could_run_in_are_left_out() -> None:
    graph = _chain("residual", [4] * 8)
    lines = placed_lines(graph)
    alternating = [(("a", "b")[i % 2],) for i in range(len(lines))]
    crossed = scoped(graph, lines, alternating)
    flat = scoped(graph, lines, [()] * len(lines))
    assert not any(isinstance(child, Scope) for _, child in crossed.children)
    assert crossed.canonical.body == flat.canonical.body


def test_line_with_more_results_than_its_operator_has_is_refused() -> None:
    main = Block(1, (Item("Relu", (0,), (), 2),), (1,))
    with pytest.raises(InputError, match="Relu has 1 outputs, not 2"):
        expand(Program(main, {}, (("N", 4),), (("N", 4),)))


def test_calls_without_end_are_refused() -> None:
    """Each of 30 functions calls the next one twice, and the last does nothing."""
    call = Item("F1", (0,), (), 1)
    functions = {
        f"F{i}": Block(1, (call._replace(op=f"F{i + 1}"),) * 2, (2,)) for i in range(1, 30)
    }
    program = Program(
        Block(1, (call,), (1,)), {**functions, "F30": Block(1, (), (0,))}, (("N", 4),), (("N", 4),)
    )
    with pytest.raises(InputError, match="functions are called more than 100000 times"):
        expand(program)


def test_costs_of_calls_without_end_are_refused() -> None:
    """Each of 30 functions calls the next one twice, and the last adds a channel: no two calls are
    equal.
    """
    functions = {
        f"F{i}": Block(1, (Item(f"F{i + 1}", (0,), ()), Item(f"F{i + 1}", (1,), ())), (2,))
        for i in range(1, 30)
    }
    pads = (("pads", (0, 0, 0, 1)),)
    functions["F30"] = Block(1, (Item("Pad", (0,), pads),), (1,))
    program = Program(Block(1, (Item("F1", (0,), ()),), (1,)), functions, (("N", 4),), (("N", 4),))
    with pytest.raises(InputError, match="functions are called more than 100000 times"):
        sites(program)


class _Operators(Interpreter[Shape, int]):
    """Counts the operators of a network, and those that are looked at."""

    looked_at = 0

    def operator(
        self, op: str, inputs: tuple[Shape, ...], attrs: Attrs
    ) -> tuple[tuple[Shape, ...], int]:
        self.looked_at += 1
        return operator_outcome(op, inputs, attrs)[0], 1

    def block(self, name: str, block: Block, values: list[Shape], results: list[int]) -> int:
        return sum(results)


def test_an_interpreter_runs_equal_calls_once() -> None:
    graph = _chain("residual", [4] * 12)
    program = compact(graph)
    interpreter = _Operators(program)
    outputs, operators = interpreter.run(program.input_shapes)
    assert outputs == program.output_shapes
    assert operators == len(graph.nodes)
    assert interpreter.looked_at < len(graph.nodes) / 2


@settings(max_examples=40, deadline=None)
@given(networks())
def test_other_forms_of_the_text_are_the_same_network(graph: Graph) -> None:
    for program in (compact_regions(graph), flat_program(graph)):
        assert _computation(expand(program)) == _computation(graph)
    assert not flat_program(graph).functions


def _nested(depth: int) -> Graph:
    """Residual blocks, each inside of the next."""
    net = Network((4, 8, 8), 10)

    def block(x: Tensor, depth: int) -> Tensor:
        return net.add(x, net.conv(block(net.relu(x), depth - 1))) if depth else net.sigmoid(x)

    return net.graph(net.classifier(block(net.input, depth)))


def test_very_deep_blocks_are_cut() -> None:
    assert _is_canonical(_nested(200), orders=2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("graph", "seconds"),
    [
        pytest.param(lambda: _chain("residual", [4] * 60), 1, id="480 nodes"),
        pytest.param(lambda: _chain("attention", [4] * 350), 10, id="4,900 nodes"),
        pytest.param(
            lambda: _chain("separable", [4 + i % 7 for i in range(1000)]),
            10,
            id="5,000 nodes of 7 widths",
        ),
        pytest.param(lambda: _like_branches(64, 3), 10, id="64 like branches"),
        pytest.param(lambda: _layers_of_sums(10, 12), 10, id="all read all"),
    ],
)
def test_large_networks_take_seconds(graph: Callable[[], Graph], seconds: float) -> None:
    made = graph()
    started = time.process_time()
    compact(made)
    assert time.process_time() - started < seconds
