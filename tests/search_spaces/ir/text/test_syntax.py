"""Claims about ONNX text: exact, canonical, lossless, safe to read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search_spaces import InputError, from_text, get_space, to_text
from search_spaces.ir.builder import Network, Tensor
from search_spaces.ir.graph import Graph, Node
from search_spaces.ir.onnx import from_model, load_model, to_model
from search_spaces.ir.text import compact, expand, read, write

SPACE = get_space("nasbench201", channels=4, cells=2)
CELL = "|nor_conv_3x3~0|+|none~0|avg_pool_3x3~1|+|skip_connect~0|nor_conv_1x1~1|none~2|"

EXPECTED = """\
<ir_version: 10, opset_import: ["" : 21, "net" : 1]>
net (float[N,1,8,8] x) => (float[N,10] y) {
  a = net.ConvBn <channels = 4, kernel = [3,3]> (x)
  b = net.F1 (a)
  c = net.F1 (b)
  d = GlobalAveragePool (c)
  e = Flatten (d)
  y = net.Linear <features = 10> (e)
}
<domain: "net", opset_import: ["" : 21, "net" : 1]>
F1 (x) => (y) {
  a = Relu (x)
  b = net.ConvBn <kernel = [3,3]> (a)
  y = Add (x, b)
}
"""


def _residual(blocks: int, width: int = 4) -> Graph:
    net = Network((1, 8, 8), 10)
    x = net.conv_bn(net.input, width)
    for _ in range(blocks):
        with net.block("block"):
            x = net.add(net.conv_bn(net.relu(x)), x)
    return net.graph(net.classifier(x))


def test_text_of_a_small_network_is_as_documented() -> None:
    assert write(compact(_residual(2))) == EXPECTED


def test_block_that_occurs_once_is_written_in_place() -> None:
    assert "F1" not in write(compact(_residual(1)))


def test_blocks_that_differ_in_channels_share_a_function_with_a_parameter() -> None:
    net = Network((1, 8, 8), 10)
    x = net.input
    for width in (4, 8, 8):
        with net.block("block"):
            x = net.relu(net.conv_bn(net.relu(x), width))
            x = net.conv(x, width + 1)
    text = write(compact(net.graph(net.classifier(x))))
    assert text.count("F1") == 4
    assert "net.F1 <c = 4, d = 5> (x)" in text
    assert "channels: int = @c" in text


def _shuffled(graph: Graph, rng: np.random.Generator) -> Graph:
    """The same graph with another topological order of nodes, and the inputs of sums swapped."""
    waiting, nodes = list(graph.nodes), []
    known = set(graph.inputs)
    while waiting:
        ready = [n for n in waiting if known.issuperset(n.inputs)]
        node = ready[int(rng.integers(len(ready)))]
        waiting.remove(node)
        known.update(node.outputs)
        if node.op in ("Add", "Sum"):
            node = node._replace(inputs=tuple(rng.permutation(node.inputs).tolist()))
        nodes.append(node)
    number = {v: i for i, v in enumerate([*graph.inputs, *(n.outputs[0] for n in nodes)])}
    renumbered = tuple(
        Node(n.op, tuple(number[v] for v in n.inputs), (number[n.outputs[0]],), n.attrs, n.scope)
        for n in nodes
    )
    shapes = sorted(range(len(graph.shapes)), key=lambda v: number[v])
    return Graph(
        tuple(number[v] for v in graph.inputs), renumbered, tuple(number[v] for v in graph.outputs),
        tuple(graph.shapes[v] for v in shapes),
    )  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_order_of_nodes_and_of_summands_does_not_change_the_text(seed: int) -> None:
    rng = np.random.default_rng(seed)
    graph = SPACE.graph(SPACE.sample(rng))
    assert write(compact(_shuffled(graph, rng))) == write(compact(graph))


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_names_of_values_do_not_change_the_text(seed: int) -> None:
    rng = np.random.default_rng(seed)
    model = SPACE.to_onnx(SPACE.sample(rng))
    kept = {info.name for info in (*model.graph.input, *model.graph.output)} | {
        t.name for t in model.graph.initializer
    }
    names = {
        name: f"v{rng.integers(2**60)}"
        for node in model.graph.node
        for name in node.output
        if name not in kept
    }
    text = to_text(model)
    for node in model.graph.node:
        node.input[:] = [names.get(n, n) for n in node.input]
        node.output[:] = [names.get(n, n) for n in node.output]
    assert to_text(model) == text


@st.composite
def random_graphs(draw: st.DrawFn) -> Graph:
    """Networks of random operators on random earlier values, some in repeated scopes."""
    net = Network((2, 8, 8), 3)
    values: list[Tensor] = [net.conv(net.input, draw(st.sampled_from([2, 4])))]

    def grow() -> None:
        x = values[draw(st.integers(0, len(values) - 1))]
        kind = draw(
            st.sampled_from(
                ["relu", "conv", "conv_bn", "pool", "add", "concat", "zero", "depthwise"]
            )
        )
        same = [v for v in values if v.shape == x.shape]
        other = same[draw(st.integers(0, len(same) - 1))]
        values.append(
            {
                "relu": lambda: net.relu(x),
                "conv": lambda: net.conv(x, 4, kernel=1, bias=True),
                "conv_bn": lambda: net.conv_bn(x, kernel=3, dilation=2),
                "pool": lambda: net.max_pool(x, 3),
                "add": lambda: net.add(x, other, x),
                "concat": lambda: net.concat(x, other),
                "zero": lambda: net.zero(x),
                "depthwise": lambda: net.conv(x, groups=int(x.shape[1])),
            }[kind]()
        )

    for _ in range(draw(st.integers(1, 3))):
        with net.block("b"):
            for _ in range(draw(st.integers(1, 4))):
                grow()
        grow()
    return net.graph(net.classifier(values[-1]))


@settings(max_examples=80, deadline=None)
@given(random_graphs())
def test_text_and_model_round_trip(graph: Graph) -> None:
    text = write(compact(graph))
    model = to_model(graph)
    onnx.checker.check_model(model, full_check=True)
    assert to_text(model) == text
    assert write(compact(expand(read(text)))) == text
    assert to_text(from_text(text)) == text


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_a_changed_attribute_changes_the_text(seed: int) -> None:
    rng = np.random.default_rng(seed)
    graph = SPACE.graph(SPACE.sample(rng))
    at = int(rng.choice([i for i, n in enumerate(graph.nodes) if n.op in ("Conv", "ConvBn")]))
    node = graph.nodes[at]
    kernel = dict(node.attrs)["kernel"]
    changed = tuple((n, (v[0] + 2, v[1] + 2) if n == "kernel" else v) for n, v in node.attrs)  # type: ignore[index, operator]
    nodes = (*graph.nodes[:at], node._replace(attrs=changed), *graph.nodes[at + 1 :])
    other = Graph(graph.inputs, nodes, graph.outputs, graph.shapes)
    assert kernel != dict(changed)["kernel"]
    assert write(compact(other)) != write(compact(graph))


def test_weights_of_another_seed_do_not_change_the_text() -> None:
    arch = SPACE.parse(CELL)
    assert to_text(SPACE.to_onnx(arch, seed=1)) == to_text(SPACE.to_onnx(arch, seed=2))


def test_batch_normalization_apart_from_its_convolution_is_kept() -> None:
    net = Network((1, 8, 8), 2)
    x = net.conv(net.input, 4)
    both = net.add(net.batch_norm(x), x)
    text = to_text(to_model(net.graph(net.classifier(both))))
    assert "net.BatchNorm" in text
    assert "ConvBn" not in text


def test_learned_constant_is_a_param_with_its_shape() -> None:
    net = Network((3, 4, 4), 2)
    x = net.op("Mul", net.input, net.op("Param", attrs=(("shape", (3, 1, 1)),)))
    graph = net.graph(net.classifier(x))
    text = to_text(to_model(graph))
    assert "net.Param <shape = [3,1,1]> ()" in text
    assert text == write(compact(graph)) == to_text(from_text(text))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not ONNX text"),
        ("hello", "not ONNX text"),
        (EXPECTED[:200], "not ONNX text"),
        (EXPECTED + "and more", "not ONNX text"),
        (
            EXPECTED.replace("kernel = [3,3]> (a)", "channels: int = @c, kernel = [3,3]> (a)"),
            "takes c, which is no",
        ),
        (EXPECTED.replace("net.F1 (a)", "net.F9 (a)"), "operator F9 is not supported"),
        (EXPECTED.replace("Relu (x)", "Relu (q)"), "reads 'q', which no earlier line produces"),
        (EXPECTED.replace("kernel = [3,3]> (x)", "kernel = [3]> (x)"), "does not take attributes"),
        (EXPECTED.replace("channels = 4", "channels = 0"), "sizes must be positive"),
        (
            EXPECTED.replace("kernel = [3,3]> (x)", "kernel = [3.0,3.0]> (x)"),
            "takes whole numbers only",
        ),
        (EXPECTED.replace("channels = 4", "channels = 4, group = 3"), "group = 3 must divide"),
        (EXPECTED.replace("a = Relu (x)", "a = net.F1 (x)"), "must not call itself"),
        (EXPECTED.replace("net.F1 (b)", "net.F1 (b, a)"), "takes 1 inputs, not 2"),
        (
            EXPECTED.replace("channels = 4", "channels = 1000000"),
            "weights, more than the limit of 100,000,000",
        ),
    ],
)
def test_wrong_text_is_refused_with_a_reason(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message.replace("[", r"\[")):
        from_text(text)


def test_layout_does_not_change_the_program() -> None:
    assert (
        read(EXPECTED.replace("\n", "  "))
        == read(EXPECTED.replace("\n<", "\n\n  <"))
        == read(EXPECTED)
    )


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_damaged_text_is_read_or_refused_but_never_crashes(data: st.DataObject) -> None:
    text = list(EXPECTED)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text) - 1))
        text[at : at + data.draw(st.integers(0, 8))] = data.draw(
            st.text("abF1=<>[](){},.@ \n39", max_size=6)
        )
    try:
        program = read("".join(text))
        expand(program)
    except InputError:
        return


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_damaged_model_file_is_read_or_refused_but_never_crashes(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    content = bytearray(to_model(_residual(1, width=1)).SerializeToString())
    if data.draw(st.booleans()):
        content = content[: data.draw(st.integers(0, len(content)))]
    for _ in range(data.draw(st.integers(0, 4))):
        if content:
            content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.mktemp("models") / "model.onnx"
    path.write_bytes(content)
    try:
        to_text(load_model(str(path)))
    except InputError:
        return


def test_a_node_name_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(to_model(_residual(1)).SerializeToString().replace(b"Relu", b"R\xfflu"))
    with pytest.raises(InputError):
        to_text(load_model(str(path)))


def test_graph_of_a_model_has_the_shapes_that_onnx_infers() -> None:
    model = SPACE.to_onnx(SPACE.parse(CELL))
    inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True)
    known = {info.name: info for info in (*inferred.graph.value_info, *inferred.graph.output)}
    graph = from_model(model)
    shapes = [
        tuple(d.dim_param or d.dim_value for d in i.type.tensor_type.shape.dim)
        for i in known.values()
    ]
    assert set(graph.shapes[1:]) <= set(shapes)


def test_a_repeated_attribute_is_refused() -> None:
    with pytest.raises(InputError, match="ConvBn has an attribute twice"):
        read(EXPECTED.replace("channels = 4, kernel = [3,3]", 'kernel = "3", kernel = [3,3]'))
