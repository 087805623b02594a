"""Claims about the torch form of a graph: it computes what ONNX Runtime computes, alone and side by
side.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from nas.evaluation.module import GraphModule, trainable_operators
from search_spaces import get_space, list_spaces
from search_spaces.common.errors import InputError
from search_spaces.ir.builder import Network, Tensor
from search_spaces.ir.graph import Graph, Value
from search_spaces.ir.onnx import from_model, to_model
from search_spaces.ir.ops import OPERATORS

SHAPE = (4, 9, 7)
Build = Callable[[Network], Tensor]


_LOW = {"scale": 0.8, "var": 0.8, "shift": -0.2, "mean": -0.2, "bias": -0.2}


def random_model(graph: Graph, seed: int = 0) -> onnx.ModelProto:
    """The graph's ONNX model with random normalizations and biases, so that a mix-up changes the
    result.
    """
    model, rng = to_model(graph, seed), np.random.default_rng(seed)
    for tensor in model.graph.initializer:
        low = _LOW.get(tensor.name.rpartition(".")[2])
        if low is not None:
            values = rng.uniform(low, low + 0.4, list(tensor.dims)).astype(np.float32)
            tensor.CopyFrom(onnx.numpy_helper.from_array(values, tensor.name))
    return model


def difference(graph: Graph, samples: int = 2) -> float:
    """Largest difference between ONNX Runtime and the module in eval mode, relative to the largest
    output above 1.
    """
    model = random_model(graph)
    shape = [d if isinstance(d, int) else samples for d in graph.shapes[0]]
    x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    expected = session.run(None, {session.get_inputs()[0].name: x})[0]
    net = GraphModule(graph).eval()
    net.load_weights(model)
    with torch.no_grad():
        found = net(torch.from_numpy(x)).numpy()
    assert found.shape == expected.shape
    return float(np.abs(found - expected).max() / max(1.0, np.abs(expected).max()))


def graph_of(build: Build, shape: tuple[int, ...] = SHAPE) -> Graph:
    net = Network(shape, 3)
    return net.graph(build(net))


@pytest.mark.slow
@pytest.mark.parametrize("name", list_spaces())
def test_random_architectures_compute_what_onnx_runtime_computes(name: str) -> None:
    space = get_space(name)
    assert difference(space.graph(space.sample(np.random.default_rng(len(name))))) < 1e-4


def attention(net: Network) -> Tensor:
    """Every position attends to all others, by their channels."""
    x = net.op("Reshape", net.input, attrs=(("shape", (0, 4, 63)),))
    scores = net.op("MatMul", net.op("Transpose", x, attrs=(("perm", (0, 2, 1)),)), x)
    attended = net.op("Softmax", net.op("Div", scores, attrs=(("B", 8),)))
    return net.op("MatMul", x, attended)


def op(name: str, *sources: Build, **attrs: Value) -> Build:
    """An operator on what these build, by default on the network's input."""
    given = tuple(sorted(attrs.items()))
    return lambda net: net.op(
        name, *[source(net) for source in sources or [lambda net: net.input]], attrs=given
    )


def conv(channels: int) -> Build:
    return lambda net: net.conv(net.input, channels)


NETWORKS: dict[str, Build] = {
    "depthwise, dilated, strided, uneven pads": lambda net: net.conv(
        net.conv(net.input, 8, kernel=(3, 1), stride=2, dilation=2, bias=True), 8, groups=8, pads=(0, 1, 2, 1)
    ),
    "norm without scale and shift": lambda net: net.batch_norm(net.conv_bn(net.input, 6, affine=False), affine=False),
    "squeeze and excitation": lambda net: net.squeeze_excite(net.hard_swish(net.input), 2),
    "gates": lambda net: net.mul(net.sigmoid(net.input), net.relu6(net.input)),
    "slice of channels": lambda net: net.concat(net.slice(net.input, 1, 1, 3), net.input),
    "slice of rows": lambda net: net.slice(net.input, 2, 2, 9),
    "columns reversed": op("Slice", axes=(3,), starts=(6,), ends=(-8,), steps=(-2,)),
    "channel shuffle": lambda net: net.channel_shuffle(net.input, 2),
    "zero": lambda net: net.add(net.zero(net.input), net.input, net.input),
    "classifier": lambda net: net.classifier(net.input),
    "clip on one side": op("Clip", min=0.1),
    "hard sigmoid": op("HardSigmoid", alpha=0.3, beta=0.4),
    "curves": op("Gelu", op("Erf", op("LeakyRelu", op("Softplus", op("Tanh"))))),
    "softmax": op("Softmax", axis=1),
    "reshape and transpose": op("Transpose", op("Reshape", shape=(0, 2, 2, 9, 7)), perm=(0, 2, 1, 4, 3)),
    "constant added": op("Add", B=0.5),
    "constant less a value": op("Sub", A=1, positions=(1,)),
    "square": op("Pow", Y=2),
    "difference, quotient, "
    "extremes": op("Div", op("Max", op("Sub", conv(4), op("Neg")), conv(4)), op("Sigmoid")),
    "one channel times all": op("Mul", conv(1), conv(4)),
    "choice by sign": op("Where", op("Greater", B=0), op("Exp"), op("Relu")),
    "group and instance normalization": op(
        "InstanceNormalization", op("GroupNormalization", conv(8), num_groups=2), affine=0
    ),
    "transposed convolution": op(
        "ConvTranspose", bias=1, channels=6, group=2, kernel_shape=(3, 2), output_padding=(1, 0), pads=(1, 0, 1, 0),
        strides=(2, 3),
    ),
    "mean over space": op("ReduceMean", axes=(2, 3), keepdims=0),
    "root of squares, largest": op("Sub", op("ReduceL2", axes=(1,)), op("ReduceMax", axes=(1,))),
    "padding": op("Pad", pads=(0, 1, 2, 0, 0, 0, 1, 3), constant_value=2),
    "reflection": op("Pad", pads=(0, 0, 2, 0, 0, 0, 1, 3), mode="reflect"),
    "depth to space and back": op("SpaceToDepth", op("DepthToSpace", conv(8), blocksize=2), blocksize=2),
    "gathered channels": op("Gather", axis=1, indices=(2, 0)),
    "one row": op("Gather", axis=2, indices=-1),
    "lower triangle": op("Trilu", upper=0),
    "windows to an image": lambda net: net.op(
        "Col2Im",
        net.op("Reshape", net.input, attrs=(("shape", (0, 4, 63)),)),
        attrs=(("block_shape", (2, 2)), ("image_shape", (6, 8)), ("pads", (1, 1, 1, 1))),
    ),
    "tiles": op("Tile", repeats=(1, 2, 1, 1)),
    "squeezed": op("Squeeze", op("Unsqueeze", axes=(2,)), axes=(2,)),
    "attention": attention,
    "constant of the batch": op("Add", op("Identity"), lambda net: net.op(
        "Expand", attrs=(("input", 0.5), ("shape", (0, 1, 9, 7))))),
}  # fmt: skip


@pytest.mark.parametrize("case", NETWORKS)
def test_operators_compute_what_onnx_runtime_computes(case: str) -> None:
    assert difference(graph_of(NETWORKS[case])) < 1e-5


@pytest.mark.parametrize("case", NETWORKS)
def test_networks_side_by_side_compute_what_each_computes_alone(case: str) -> None:
    graph = graph_of(NETWORKS[case])
    both = GraphModule(graph, replicas=2).eval()
    both.load_weights(random_model(graph))
    alone = GraphModule(graph).eval()
    alone.load_weights(random_model(graph))
    xs = torch.randn(2, 3, *SHAPE)
    with torch.no_grad():
        together = both(torch.cat(tuple(xs), 1)).unflatten(1, (2, -1)).transpose(0, 1)
        for x, y in zip(xs, together, strict=True):
            torch.testing.assert_close(alone(x), y, atol=1e-5, rtol=1e-5)


@settings(max_examples=40, deadline=None)
@given(
    op=st.sampled_from(["MaxPool", "AveragePool"]),
    kernel=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    strides=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    pads=st.tuples(*[st.integers(0, 3)] * 4),
    ceil=st.booleans(),
    count=st.booleans(),
)
def test_pooling_computes_what_onnx_runtime_computes(
    op: str,
    kernel: tuple[int, int],
    strides: tuple[int, int],
    pads: tuple[int, ...],
    ceil: bool,
    count: bool,
) -> None:
    assume(all(pad < kernel[i % 2] for i, pad in enumerate(pads)))
    attrs: dict[str, object] = {
        "kernel_shape": kernel,
        "strides": strides,
        "pads": pads,
        "ceil_mode": int(ceil),
    }
    if op == "AveragePool":
        attrs["count_include_pad"] = int(count)
    graph = graph_of(lambda net: net.op(op, net.input, attrs=tuple(sorted(attrs.items()))))  # type: ignore[arg-type]
    assert difference(graph) < 1e-5


def test_every_operator_of_the_text_can_be_trained_but_recurrent_ones_and_unknown_numbers() -> None:
    with_rules = {
        name
        for name, rules in OPERATORS.items()
        if rules.infer_own_shape or rules.infer_shape or rules.weights
    }
    assert with_rules - trainable_operators() == {"RNN", "GRU", "LSTM", "Buffer"}


def token(net: Network) -> Tensor:
    """A learned token before the positions, positions added, a linear layer, normalizations."""
    x = net.op(
        "Transpose",
        net.op("Reshape", net.input, attrs=(("shape", (0, 4, 63)),)),
        attrs=(("perm", (0, 2, 1)),),
    )
    first = net.op(
        "Expand", net.op("Param", attrs=(("shape", (1, 1, 4)),)), attrs=(("shape", (0, 1, 4)),)
    )
    x = net.op("Concat", first, x, attrs=(("axis", 1),))
    x = net.op("Add", x, net.op("Param", attrs=(("shape", (64, 4)),)))
    x = net.op("LayerNormalization", net.linear(x, 6), attrs=(("epsilon", 1e-3),))
    return net.op(
        "RMSNormalization", net.op("LayerNormalization", x, attrs=(("affine", 0), ("bias", 0)))
    )


ALONE: dict[str, Build] = {
    "learned token": token,
    "linear layer on the last dimension": lambda net: net.linear(net.input, 5, bias=False),
    "resize to the nearest": op(
        "Resize",
        coordinate_transformation_mode="asymmetric",
        nearest_mode="floor",
        scales=(1.0, 1.0, 2.0, 2.0),
    ),
    "resize linearly": op("Resize", mode="linear", scales=(1.0, 1.0, 2.0, 3.0)),
}


@pytest.mark.parametrize("case", ALONE)
def test_networks_that_only_train_one_by_one_compute_what_onnx_runtime_computes(case: str) -> None:
    graph = graph_of(ALONE[case])
    assert difference(graph) < 1e-5
    with pytest.raises(InputError, match="one by one"):
        GraphModule(graph, replicas=2)


def test_unused_nodes_are_left_out() -> None:
    net = Network(SHAPE, 3)
    net.conv(net.input, 64)
    graph = net.graph(net.classifier(net.conv(net.input, 5)))
    module = GraphModule(graph)
    assert [node.op for node in module.nodes] == ["Conv", "GlobalAveragePool", "Flatten", "Linear"]
    assert difference(graph) < 1e-5


def test_weights_of_another_graph_are_refused() -> None:
    graph, other = (
        graph_of(partial(lambda c, net: net.classifier(net.conv(net.input, c)), c)) for c in (4, 5)
    )
    with pytest.raises(InputError, match="not written from this graph"):
        GraphModule(graph).load_weights(to_model(other))


def test_operator_that_cannot_be_trained_is_named() -> None:
    graph = graph_of(lambda net: net.relu(net.input))
    strange = Graph(
        graph.inputs, (graph.nodes[0]._replace(op="NonZero"),), graph.outputs, graph.shapes
    )
    with pytest.raises(InputError, match="operator NonZero on 1 inputs cannot be trained"):
        GraphModule(strange)


def test_a_learned_constant_cannot_be_trained_side_by_side() -> None:
    graph = graph_of(lambda net: net.add(net.input, net.op("Param", attrs=(("shape", (4, 1, 1)),))))
    GraphModule(graph)
    with pytest.raises(InputError, match="one by one"):
        GraphModule(graph, replicas=2)


def test_model_read_from_a_file_trains() -> None:
    space = get_space("nasbench201", channels=4, cells=1, input_shape=(1, 8, 8))
    graph = from_model(space.to_onnx(space.sample(np.random.default_rng(0))))
    loss = GraphModule(graph)(torch.randn(4, 1, 8, 8)).square().sum()
    loss.backward()
