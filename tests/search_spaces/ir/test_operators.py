"""Claims about operators beyond NAS-Bench-201's: each survives the way from builder to model to
text and back.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from search_spaces import (
    InputError,
    Network,
    SearchSpace,
    Tensor,
    flops,
    from_text,
    params,
    to_text,
)
from search_spaces.ir import ops
from search_spaces.ir.costs import graph_flops, graph_params, graph_peak_activations
from search_spaces.ir.graph import Attrs, Shape, count
from search_spaces.ir.onnx import from_model, to_model
from search_spaces.ir.ops import OPERATORS
from search_spaces.ir.ops.operator import ExportedNode, Exporter, Operator, Weight, same_shape
from search_spaces.ir.text import compact, expand
from search_spaces.ir.text import read as read_text
from search_spaces.ir.text import write as write_text
from search_spaces.testing import check_space


class EveryOperator(SearchSpace):
    name = "every-operator"
    input_shape = (3, 9, 9)

    def build(self, trial: Any, net: Network) -> Tensor:
        width = trial.suggest_categorical("width", [4, 8])
        x = net.relu6(net.conv_bn(net.input, width, stride=2))
        x = net.relu6(net.conv_bn(x, groups=width, affine=False))
        x = net.channel_shuffle(net.conv_bn(x, kernel=1, groups=2), 2)
        x = net.squeeze_excite(net.hard_swish(x), width // 2)
        x = net.squeeze_excite(net.batch_norm(x, affine=False), width // 2, gate="sigmoid")
        x = net.add(
            net.avg_pool(x, 2, stride=2, ceil=True), net.max_pool(x, 2, stride=2, ceil=True)
        )
        left, right = net.slice(x, 1, 0, width // 2), net.slice(x, 1, width // 2, width)
        shifted = net.slice(net.slice(x, 2, 1, 3), 3, 1, 3)
        x = net.concat(net.slice(net.slice(net.mul(left, right), 2, 0, 2), 3, 0, 2), shifted)
        return net.classifier(net.mul(x, net.conv(net.global_avg_pool(x), kernel=(1, 1))))


def test_every_operator_conforms() -> None:
    check_space(EveryOperator(), count=2)


def test_every_operator_is_in_one_family_alone() -> None:
    names = Counter(operator.name for family in ops._FAMILIES for operator in family.OPERATORS)
    assert names.keys() == OPERATORS.keys()
    assert set(names.values()) == {1}


def test_an_operator_is_added_in_one_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Builder, costs, text and ONNX follow from its facts."""

    def weights(attrs: Attrs, shapes: tuple[Shape, ...]) -> tuple[Weight, ...]:
        return (Weight("scale", (int(shapes[0][1]), 1, 1), "ones"),)

    def write(exporter: Exporter, node: ExportedNode) -> None:
        exporter.add("Mul", node.name, [*node.inputs, *node.weights], node.output)

    operator = Operator(
        name="ChannelScale",
        own_attributes={},
        infer_own_shape=same_shape,
        weights=weights,
        count=lambda node: count(node.output),
        write=write,
    )
    monkeypatch.setitem(OPERATORS, "ChannelScale", operator)
    net = Network((3, 4, 4), num_classes=2)
    graph = net.graph(net.op("ChannelScale", net.input))
    assert (graph_params(graph), graph_flops(graph)) == (3, 48)
    text = write_text(compact(graph))
    assert "net.ChannelScale (x)" in text
    assert expand(read_text(text)).nodes == graph.nodes
    session = onnxruntime.InferenceSession(to_model(graph).SerializeToString())
    x = np.random.default_rng(0).normal(size=(2, 3, 4, 4)).astype(np.float32)
    np.testing.assert_allclose(session.run(None, {"input": x})[0], x, rtol=1e-6)


def test_a_value_is_held_until_it_is_read_for_the_last_time() -> None:
    """While a residual block computes its sum, it holds the sum and both terms. The logits are
    small.
    """
    net = Network((2, 4, 4), 3)
    x = net.add(net.input, net.relu(net.relu(net.input)))
    assert graph_peak_activations(net.graph(net.classifier(x))) == 3 * 2 * 4 * 4


def test_depthwise_convolution_has_one_text_for_every_width() -> None:
    space = EveryOperator()
    texts = [space.to_text(space.architecture({"width": width})) for width in (4, 8)]
    assert all(
        "depthwise = 1" in text and "group = 4" not in text and "group = 8" not in text
        for text in texts
    )


def test_an_explicit_group_is_read_as_depthwise() -> None:
    space = EveryOperator()
    text = space.to_text(space.architecture({"width": 4}))
    assert to_text(from_text(text.replace("depthwise = 1", "group = 4"))) == text


def test_normalization_without_scale_and_shift_has_no_trained_weights() -> None:
    def count(affine: bool) -> int:
        net = Network((3, 4, 4), 2)
        return params(
            to_model(
                net.graph(
                    net.classifier(
                        net.batch_norm(net.conv_bn(net.input, affine=affine), affine=affine)
                    )
                )
            )
        )

    assert count(affine=True) - count(affine=False) == 4 * 3


def test_fused_operators_do_not_depend_on_the_order_of_nodes() -> None:
    model = EveryOperator().to_onnx(EveryOperator().architecture({"width": 4}))
    rng = np.random.default_rng(0)
    shuffled = onnx.ModelProto()
    shuffled.CopyFrom(model)
    del shuffled.graph.node[:]
    shuffled.graph.node.extend(_random_topological_order(model, rng))
    assert to_text(shuffled) == to_text(model)


def _random_topological_order(
    model: onnx.ModelProto, rng: np.random.Generator
) -> list[onnx.NodeProto]:
    known = {"", model.graph.input[0].name, *(t.name for t in model.graph.initializer)}
    waiting, order = list(model.graph.node), []
    while waiting:
        ready = [node for node in waiting if known.issuperset(node.input)]
        order.append(ready[int(rng.integers(len(ready)))])
        waiting.remove(order[-1])
        known.update(order[-1].output)
    return order


def test_convolution_followed_by_a_read_of_its_raw_output_stays_apart() -> None:
    net = Network((3, 4, 4), 2)
    raw = net.conv(net.input)
    graph = net.graph(net.classifier(net.add(net.batch_norm(raw), raw)))
    assert [node.op for node in from_model(to_model(graph)).nodes][:2] == ["Conv", "BatchNorm"]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("groups = 2", "groups = 3", "3 groups must divide"),
        ("depthwise = 1", "deepwise = 1", "has no attribute 'deepwise'"),
    ],
)
def test_wrong_attributes_are_named(old: str, new: str, message: str) -> None:
    text = EveryOperator().to_text(EveryOperator().architecture({"width": 4}))
    assert old in text
    with pytest.raises(InputError, match=message):
        from_text(text.replace(old, new))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "b = AveragePool <ceil_mode = nan, kernel_shape = [2,2]> (x)",
            "AveragePool: ceil_mode = nan is not of type int",
        ),
        (
            "b = net.Pad <pads = [0,-4,0,0,0,0,0,0]> (x)",
            r"Pad turns .* into float\[N,-1,8,8\]: sizes must not be neg",
        ),
        (
            "b = net.Pad <pads = [0,-9223372036854775808,0,0,0,0,0,0]> (x)",
            "sizes must not be negative",
        ),
    ],
)
def test_impossible_operators_are_named(line: str, message: str) -> None:
    """Found by the fuzzer."""
    text = f"""<ir_version: 10, opset_import: ["" : 21, "net" : 1]>
net (float[N,3,8,8] x) => (float[N,2] y) {{
  {line}
  c = net.Conv <channels = 4, kernel = [1,1]> (b)
  d = GlobalAveragePool (c)
  e = Flatten (d)
  y = net.Linear <features = 2> (e)
}}
"""
    with pytest.raises(InputError, match=message):
        from_text(text)


def test_pooling_with_ceil_starts_no_window_in_the_padding() -> None:
    import onnxruntime

    for size in range(3, 9):
        net = Network((1, size, size), 2)
        graph = net.graph(net.max_pool(net.input, 3, stride=2, ceil=True))
        session = onnxruntime.InferenceSession(to_model(graph).SerializeToString())
        result = session.run(None, {"input": np.ones((1, 1, size, size), np.float32)})[0]
        assert result.shape[1:] == graph.shapes[-1][1:]


# --- operators as one line of text: the input's shape, the line, params, multiply-accumulates

LINES = [
    ("float[N,4,8]", "net.LayerNormalization (x)", 16, 0),
    ("float[N,4,8]", "net.LayerNormalization <axis = 1, bias = 0> (x)", 32, 0),
    ("float[N,4,8]", "net.LayerNormalization <affine = 0, epsilon = 1e-06> (x)", 0, 0),
    ("float[N,4,8]", "net.RMSNormalization (x)", 8, 0),
    ("float[N,4,6,6]", "net.GroupNormalization <num_groups = 2> (x)", 8, 0),
    ("float[N,4,6,6]", "net.InstanceNormalization (x)", 8, 0),
    (
        "float[N,4,6,6]",
        "net.ConvTranspose <bias = 1, channels = 6, kernel_shape = [2,2], strides = [2,2]> (x)",
        102,
        3456,
    ),
    (
        "float[N,4,6,6]",
        "net.ConvTranspose <group = 2, kernel_shape = [3,3], output_padding = [1,1], strides = "
        "[2,2]> (x)",
        72,
        2592,
    ),
    ("float[N,4,9]", "net.Conv <channels = 6, kernel = [3], strides = [2]> (x)", 72, 360),
    ("float[N,2,4,4,4]", "net.ConvBn <channels = 3, kernel = [1,3,3]> (x)", 60, 3456),
    ("float[5,N,8]", "net.LSTM <hidden_size = 6> (x)", 384, 1680),
    ("float[5,N,8]", "net.GRU <bias = 0, direction = \"bidirectional\", hidden_size = 6, output = "
                     "1> (x)", 504, 2520),
    ("float[5,N,8]", "net.RNN <hidden_size = 6> (x)", 96, 420),
    ("float[N,5,8]", "net.Linear <bias = 0, features = 3> (x)", 24, 120),
    ("int64[N,5]", "net.Embedding <features = 4, rows = 10> (x)", 40, 0),
    ("float16[N,8]", "net.Linear <features = 3> (x)", 27, 24),
    ("double[N,8]", "net.Linear <features = 3> (x)", 27, 24),
    ("int64[N,8]", "net.Add <B = 3> (x)", 0, 0),
    ("float[N,8]", "net.Where <X = 1, condition = 0> (x)", 0, 0),
    ("float[N,8]", "net.Pow <X = 2> (x)", 0, 0),
    ("float[N,8]", "net.Pad <constant_value = -inf, pads = [0,1,0,1]> (x)", 0, 0),
    ("float[N,8]", "net.TopK <K = [3], output = 1> (x)", 0, 0),
    ("float[N,8]", "net.Slice <axes = [1], ends = [-9], starts = [7], steps = [-2]> (x)", 0, 0),
    ("float[N,1,8]", "net.Expand <shape = [0,3,1]> (x)", 0, 0),
    ("float[N,2,3,4]", "net.Reshape <shape = [0,6,4]> (x)", 0, 0),
    ("float[L,N,8]", "net.Reshape <shape = [-1,8]> (x)", 0, 0),
    (
        "float[N,3,8]",
        'net.Resize <axes = [2], coordinate_transformation_mode = "asymmetric", scales = [1.5]> (x)',
        0,
        0,
    ),
    ("float[N,3,8]", 'Einsum <equation = "bij,bkj->bik"> (x, x)', 0, 72),
    ("float[N,3,8]", 'Einsum <equation = "bij,bkj,bkl->bil"> (x, x, x)', 0, 72 + 72),
    ("float[N,3,8]", 'Einsum <equation = "...ij,...kj,...kl->...il"> (x, x, x)', 0, 72 + 72),
    ("float[N,3,8]", 'Einsum <equation = "bij->bji"> (x)', 0, 0),
    ("float[N,8]", "LeakyRelu <alpha = 0.2> (x)", 0, 0),
]  # fmt: skip


@pytest.mark.parametrize(("shape", "call", "trained", "products"), LINES)
def test_line_of_text_runs_and_counts(shape: str, call: str, trained: int, products: int) -> None:
    import onnxruntime

    header = '<ir_version: 10, opset_import: ["" : 24, "net" : 1]>'
    text = to_text(from_text(f"{header} net ({shape} x) => (float y) {{ y = {call} }}"))
    assert f"  y = {call}\n" in text
    onnx.checker.check_model(onnx.parser.parse_model(text))
    model = from_text(text)
    onnx.checker.check_model(model)
    assert (to_text(model), params(model)) == (text, trained)
    if "L" not in shape:
        assert flops(model) == products
    kind = getattr(
        np, shape.partition("[")[0].replace("float", "float32").replace("3216", "16"), np.float32
    )
    dims = [{"N": 2, "L": 3}.get(d) or int(d) for d in shape.partition("[")[2][:-1].split(",")]
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    result = session.run(None, {"input": np.ones(dims).astype(kind)})[0]
    inferred = from_model(model).shapes[-1]
    assert [d for d in inferred if isinstance(d, int)] == [
        n for n, d in zip(result.shape, inferred, strict=True) if isinstance(d, int)
    ]
