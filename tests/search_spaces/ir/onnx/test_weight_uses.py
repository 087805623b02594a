"""Claims about what is a weight of an ONNX file: where operators read it decides, not how the file
stores it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from search_spaces import flops, from_text, params, to_text

FLOAT, UINT8, INT8, INT64 = (
    TensorProto.FLOAT,
    TensorProto.UINT8,
    TensorProto.INT8,
    TensorProto.INT64,
)
RNG = np.random.default_rng(0)


def numbers(*shape: int, kind: str = "f") -> np.ndarray:
    """Different numbers, so that none is taken for an untrained scale or shift."""
    return (RNG.standard_normal(shape) * (1 if kind == "f" else 20)).astype(kind)


class File:
    """An ONNX file in the making; `stored` adds a tensor as an initializer, a `Constant` node, or
    behind operators.
    """

    def __init__(self, storage: str, producer: str = "") -> None:
        self.storage, self.producer = storage, producer
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []

    def stored(self, array: np.ndarray, name: str) -> str:
        if self.storage == "initializer":
            self.initializers.append(numpy_helper.from_array(array, name))
            return name
        plain = name if self.storage == "constant" else f"{name}_plain"
        if self.storage == "transposed":
            array = np.ascontiguousarray(array.T)
        if self.storage == "float16":
            array = array.astype(np.float16)
        if self.storage in ("quantized", "fake-quantized") and array.ndim > 1:
            return self._quantized(array, name, plain)
        self.nodes.append(
            helper.make_node("Constant", [], [plain], value=numpy_helper.from_array(array, plain))
        )
        if self.storage == "identity":
            self.nodes.append(helper.make_node("Identity", [plain], [name]))
        elif self.storage == "transposed":
            self.nodes.append(helper.make_node("Transpose", [plain], [name]))
        elif self.storage == "float16":
            self.nodes.append(helper.make_node("Cast", [plain], [name], to=FLOAT))
        elif self.storage != "constant":
            return plain
        return name

    def _quantized(self, array: np.ndarray, name: str, plain: str) -> str:
        scale = np.full(array.shape[0], 0.02, np.float32) * (
            1 + np.arange(array.shape[0], dtype=np.float32)
        )
        zero = np.zeros(array.shape[0], np.int8)
        for part, value in (("scale", scale), ("zero", zero)):
            self.initializers.append(numpy_helper.from_array(value, f"{name}_{part}"))
        around = [f"{name}_scale", f"{name}_zero"]
        if self.storage == "quantized":
            self.initializers.append(numpy_helper.from_array((array * 9).astype(np.int8), plain))
        else:
            self.initializers.append(numpy_helper.from_array(array, f"{name}_float"))
            self.nodes.append(
                helper.make_node("QuantizeLinear", [f"{name}_float", *around], [plain], axis=0)
            )
        self.nodes.append(helper.make_node("DequantizeLinear", [plain, *around], [name], axis=0))
        return name

    def node(self, op: str, inputs: list[str], outputs: list[str], **attributes: Any) -> None:
        self.nodes.append(helper.make_node(op, inputs, outputs, **attributes))

    def model(
        self, inputs: dict[str, Any], outputs: list[str], element: int = FLOAT, result: int = FLOAT
    ) -> onnx.ModelProto:
        ins = [
            helper.make_tensor_value_info(name, element, shape) for name, shape in inputs.items()
        ]
        outs = [helper.make_tensor_value_info(name, result, None) for name in outputs]
        graph = helper.make_graph(self.nodes, "net", ins, outs, self.initializers)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)
        model.producer_name = self.producer
        return model


def check(model: onnx.ModelProto, weights: int, products: int) -> None:
    """Exact costs, of the file and of the model that its text gives."""
    assert (params(model), flops(model)) == (weights, products)
    text = to_text(model)
    again = from_text(text)
    assert to_text(again) == text
    assert (params(again), flops(again)) == (weights, products)


# --- layers, with their weights and multiply-accumulates


def conv(file: File) -> tuple[onnx.ModelProto, int, int]:
    file.node(
        "Conv", ["x", file.stored(numbers(8, 3, 3, 3), "w"), file.stored(numbers(8), "b")], ["y"]
    )
    return file.model({"x": ["N", 3, 10, 10]}, ["y"]), 216 + 8, 216 * 64


def depthwise(file: File) -> tuple[onnx.ModelProto, int, int]:
    file.node("Conv", ["x", file.stored(numbers(6, 1, 3, 3), "w")], ["y"], group=6)
    return file.model({"x": ["N", 6, 10, 10]}, ["y"]), 54, 54 * 64


def transposed_conv(file: File) -> tuple[onnx.ModelProto, int, int]:
    file.node("ConvTranspose", ["x", file.stored(numbers(4, 5, 2, 2), "w")], ["y"], strides=[2, 2])
    return file.model({"x": ["N", 4, 6, 6]}, ["y"]), 80, 80 * 36


def gemm(file: File) -> tuple[onnx.ModelProto, int, int]:
    file.node(
        "Gemm",
        ["x", file.stored(numbers(10, 16), "w"), file.stored(numbers(10), "b")],
        ["y"],
        transB=1,
    )
    return file.model({"x": ["N", 16]}, ["y"]), 170, 160


def matmul_with_bias(file: File) -> tuple[onnx.ModelProto, int, int]:
    file.node("MatMul", ["x", file.stored(numbers(16, 10), "w")], ["h"])
    file.node("Add", ["h", file.stored(numbers(10), "b")], ["y"])
    return file.model({"x": ["N", 7, 16]}, ["y"]), 170, 160 * 7


def one_number_out(file: File) -> tuple[onnx.ModelProto, int, int]:
    file.node("MatMul", ["x", file.stored(numbers(16, 1), "w")], ["h"])
    file.node("Add", ["h", file.stored(numbers(1), "b")], ["y"])
    return file.model({"x": ["N", 16]}, ["y"]), 17, 16


def conv_with_added_bias(file: File) -> tuple[onnx.ModelProto, int, int]:
    file.node("Conv", ["x", file.stored(numbers(8, 3, 1, 1), "w")], ["h"])
    file.node("Add", ["h", file.stored(numbers(1, 8, 1, 1), "b")], ["y"])
    return file.model({"x": ["N", 3, 5, 5]}, ["y"]), 32, 24 * 25


def embedding(file: File) -> tuple[onnx.ModelProto, int, int]:
    file.node("Gather", [file.stored(numbers(50, 16), "w"), "x"], ["y"])
    return file.model({"x": ["N", 6]}, ["y"], INT64), 800, 0


def batch_norm(file: File) -> tuple[onnx.ModelProto, int, int]:
    operands = [file.stored(numbers(8), name) for name in ("scale", "shift", "mean")]
    file.node(
        "BatchNormalization", ["x", *operands, file.stored(np.abs(numbers(8)) + 1, "var")], ["y"]
    )
    return file.model({"x": ["N", 8, 5, 5]}, ["y"]), 16, 0


def layer_norm(file: File) -> tuple[onnx.ModelProto, int, int]:
    file.node(
        "LayerNormalization",
        ["x", file.stored(numbers(8), "s"), file.stored(numbers(8), "b")],
        ["y"],
    )
    return file.model({"x": ["N", 5, 8]}, ["y"]), 16, 0


def instance_norm(file: File) -> tuple[onnx.ModelProto, int, int]:
    file.node(
        "InstanceNormalization",
        ["x", file.stored(numbers(8), "s"), file.stored(numbers(8), "b")],
        ["y"],
    )
    return file.model({"x": ["N", 8, 5, 5]}, ["y"]), 16, 0


def written_out_layer_norm(file: File) -> tuple[onnx.ModelProto, int, int]:
    """Layer normalization as Paddle and old exporters write it."""
    axes, two, epsilon = (np.array([-1]), np.float32(2), np.float32(1e-5))
    for name, array in (("axes", axes), ("two", two), ("epsilon", epsilon)):
        file.initializers.append(numpy_helper.from_array(np.asarray(array), name))
    file.node("ReduceMean", ["x", "axes"], ["mean"])
    file.node("Sub", ["x", "mean"], ["d"])
    file.node("Pow", ["d", "two"], ["d2"])
    file.node("ReduceMean", ["d2", "axes"], ["v"])
    file.node("Add", ["v", "epsilon"], ["ve"])
    file.node("Sqrt", ["ve"], ["r"])
    file.node("Div", ["d", "r"], ["n"])
    file.node("Mul", ["n", file.stored(numbers(8), "s")], ["m"])
    file.node("Add", ["m", file.stored(numbers(8), "b")], ["y"])
    return file.model({"x": ["N", 5, 8]}, ["y"]), 16, 0


def prelu(file: File) -> tuple[onnx.ModelProto, int, int]:
    file.node("PRelu", ["x", file.stored(numbers(8, 1, 1), "s")], ["y"])
    return file.model({"x": ["N", 8, 5, 5]}, ["y"]), 8, 0


def deformable(file: File) -> tuple[onnx.ModelProto, int, int]:
    file.node(
        "DeformConv",
        ["x", file.stored(numbers(8, 3, 3, 3), "w"), "o", file.stored(numbers(8), "b")],
        ["y"],
    )
    return file.model({"x": ["N", 3, 6, 6], "o": ["N", 18, 4, 4]}, ["y"]), 224, 216 * 16


def einsum(file: File) -> tuple[onnx.ModelProto, int, int]:
    file.node("Einsum", ["x", file.stored(numbers(16, 4, 5), "w")], ["y"], equation="nld,dhk->nlhk")
    return file.model({"x": ["N", 7, 16]}, ["y"]), 320, 320 * 7


GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


def recurrent(op: str, outputs: int, directions: int = 1) -> Layer:
    def build(file: File) -> tuple[onnx.ModelProto, int, int]:
        gates, names = GATES[op], ["y", "h", "c"][:outputs]
        w, r = numbers(directions, gates * 8, 4), numbers(directions, gates * 8, 8)
        b = numbers(directions, 2 * gates * 8)
        operands = [file.stored(array, name) for array, name in ((w, "w"), (r, "r"), (b, "b"))]
        direction = "bidirectional" if directions == 2 else "forward"
        file.node(op, ["x", *operands], names, hidden_size=8, direction=direction)
        return (
            file.model({"x": [5, "N", 4]}, names),
            directions * gates * 8 * 14,
            directions * 5 * gates * 8 * 12,
        )

    build.__name__ = f"{op}-{outputs}-{directions}"
    return build


Layer = Callable[[File], tuple[onnx.ModelProto, int, int]]
LAYERS: list[Layer] = [
    conv,
    depthwise,
    transposed_conv,
    gemm,
    matmul_with_bias,
    one_number_out,
    conv_with_added_bias,
    embedding,
    # Fmt: skip
    batch_norm,
    layer_norm,
    instance_norm,
    written_out_layer_norm,
    prelu,
    deformable,
    einsum,
]
LAYERS += [
    recurrent(op, n)
    for op, most in (("RNN", 2), ("GRU", 2), ("LSTM", 3))
    for n in range(1, most + 1)
]
LAYERS += [recurrent("LSTM", 3, 2), recurrent("GRU", 2, 2)]


@pytest.mark.parametrize("storage", ["initializer", "constant", "identity", "float16"])
@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: layer.__name__)
def test_weights_count_wherever_they_are_stored(layer: Layer, storage: str) -> None:
    check(*layer(File(storage)))


@pytest.mark.parametrize("storage", ["transposed", "quantized", "fake-quantized"])
@pytest.mark.parametrize(
    "layer", [gemm, matmul_with_bias, conv, embedding], ids=lambda layer: layer.__name__
)
def test_weights_count_behind_operators_that_rearrange_them(layer: Layer, storage: str) -> None:
    model, weights, products = layer(File(storage))
    assert (params(model), flops(model)) == (weights, products)
    assert params(from_text(to_text(model))) == weights


def test_weights_of_zeros_and_ones_in_constants_count() -> None:
    file = File("constant")
    file.node("Conv", ["x", file.stored(np.ones((8, 3, 1, 1), "f"), "w")], ["h"])
    operands = [
        file.stored(np.full(8, fill, "f"), name)
        for fill, name in ((1, "s"), (0, "b"), (0, "m"), (1, "v"))
    ]
    file.node("BatchNormalization", ["h", *operands], ["y"])
    check(file.model({"x": ["N", 3, 4, 4]}, ["y"]), 24 + 16, 24 * 16)


def test_normalization_without_scale_and_shift_has_none() -> None:
    """Exporters write ones and zeros for it, beside layers that keep their weights as
    initializers.
    """
    file, constants = File("initializer"), File("constant")
    file.node("Conv", ["x", file.stored(numbers(8, 3, 1, 1), "w")], ["h"])
    operands = [
        constants.stored(np.full(8, fill, "f"), name) for fill, name in ((1, "s"), (0, "b"))
    ]
    file.nodes = [*constants.nodes, *file.nodes]
    file.node("InstanceNormalization", ["h", *operands], ["y"])
    check(file.model({"x": ["N", 3, 4, 4]}, ["y"]), 24, 24 * 16)


def test_numbers_of_the_users_code_are_no_weights() -> None:
    """Channel means and deviations in `Constant` nodes, beside a layer with its weights in
    initializers.
    """
    file, constants = File("initializer"), File("constant")
    mean, deviation = (constants.stored(numbers(3, 1, 1), name) for name in ("mean", "deviation"))
    file.nodes = constants.nodes
    file.node("Sub", ["x", mean], ["centred"])
    file.node("Div", ["centred", deviation], ["scaled"])
    file.node("Conv", ["scaled", file.stored(numbers(8, 3, 1, 1), "w")], ["y"])
    check(file.model({"x": ["N", 3, 4, 4]}, ["y"]), 24, 24 * 16)


# --- weights that are shared

STORAGES = ["initializer", "constant"]


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("shape", [(1, 1, 1, 9), (1, 1, 9, 1), (1, 1, 3, 3)])
def test_kernel_that_two_convolutions_read_counts_once(
    shape: tuple[int, ...], storage: str
) -> None:
    file = File(storage)
    pads = [shape[2] // 2, shape[3] // 2] * 2
    file.node("Conv", ["x", w := file.stored(numbers(*shape), "w")], ["a"], pads=pads)
    file.node("Conv", ["a", w], ["y"], pads=pads)
    check(file.model({"x": ["N", 1, 8, 8]}, ["y"]), 9, 2 * 9 * 64)


@pytest.mark.parametrize("producer", ["", "pytorch"])
@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("trained", [True, False])
def test_detection_head_on_three_levels_counts_once(
    storage: str, trained: bool, producer: str
) -> None:
    """Convolution, normalization and a prediction, applied to three sizes; untrained biases are
    zeros.
    """
    file = File(storage, producer)
    w, out = file.stored(numbers(8, 8, 3, 3), "w"), file.stored(numbers(4, 8, 1, 1), "out")
    fills = {"b": (8, 0), "s": (8, 1), "t": (8, 0.5), "m": (8, 0.25), "v": (8, 1), "c": (4, 0)}
    vectors = {
        n: file.stored(numbers(k) if trained else np.full(k, fill, "f"), n)
        for n, (k, fill) in fills.items()
    }
    for size in (8, 4, 2):
        file.node("Conv", [f"x{size}", w, vectors["b"]], [f"h{size}"], pads=[1, 1, 1, 1])
        file.node("BatchNormalization", [f"h{size}", *[vectors[n] for n in "stmv"]], [f"n{size}"])
        file.node("Conv", [f"n{size}", out, vectors["c"]], [f"y{size}"])
    model = file.model({f"x{size}": ["N", 8, size, size] for size in (8, 4, 2)}, ["y8", "y4", "y2"])
    check(model, 8 * 8 * 9 + 8 + 8 + 8 + 8 * 4 + 4, (8 * 8 * 9 + 32) * (64 + 16 + 4))


@pytest.mark.parametrize("storage", STORAGES)
def test_tied_embedding_counts_once(storage: str) -> None:
    file = File(storage)
    table = file.stored(numbers(50, 16), "table")
    file.node("Gather", [table, "x"], ["e"])
    file.node("Transpose", [table], ["turned"])
    file.node("MatMul", ["e", "turned"], ["y"])
    check(file.model({"x": ["N", 6]}, ["y"], INT64), 800, 800 * 6)


def test_tied_embedding_whose_transpose_is_stored_beside_it_counts_once() -> None:
    """Exporters compute the transpose of the table, and store both."""
    file, table = File("initializer"), numbers(50, 16)
    file.node("Gather", [file.stored(table, "table"), "x"], ["e"])
    file.node("MatMul", ["e", file.stored(np.ascontiguousarray(table.T), "onnx::MatMul_7")], ["y"])
    model = file.model({"x": ["N", 6]}, ["y"], INT64)
    check(model, 800, 800 * 6)
    assert "net (int64[N,6] x) => " in to_text(model)


def test_matrices_of_ones_are_not_taken_for_one() -> None:
    file = File("initializer")
    file.node("MatMul", ["x", file.stored(np.ones((16, 10), "f"), "w")], ["h"])
    file.node("MatMul", ["h", file.stored(np.ones((10, 16), "f"), "v")], ["y"])
    check(file.model({"x": ["N", 16]}, ["y"]), 320, 320)


def test_initial_states_of_zeros_that_layers_share_are_no_weights() -> None:
    file = File("initializer")
    zeros = file.stored(np.zeros((1, 2, 4), "f"), "zeros")
    for i, (x, y) in enumerate([("x", "a"), ("s", "y")]):
        w, r = (file.stored(numbers(1, 16, 4), f"{name}{i}") for name in "wr")
        file.node("LSTM", [x, w, r, "", "", zeros, zeros], [y], hidden_size=4)
        if i == 0:
            file.node("Squeeze", ["a", file.stored(np.array([1]), "axis")], ["s"])
    check(file.model({"x": [5, 2, 4]}, ["y"]), 2 * 128, 2 * 5 * 2 * 128)


def test_written_out_group_norm_on_two_levels_has_one_scale_and_shift() -> None:
    file = File("initializer")
    for name, array in {
        "ones": np.ones(2, "f"),
        "zeros": np.zeros(2, "f"),
        "split": np.array([0, 2, -1]),
    }.items():
        file.stored(array, name)
    scale, shift, w = (
        file.stored(numbers(*d), n)
        for n, d in {"s": (4, 1, 1), "b": (4, 1, 1), "w": (4, 4, 1, 1)}.items()
    )
    for size in (4, 2):
        file.node("Conv", [f"x{size}", w], [f"c{size}"])
        file.node("Reshape", [f"c{size}", "split"], [f"r{size}"])
        file.node("InstanceNormalization", [f"r{size}", "ones", "zeros"], [f"i{size}"])
        file.node(
            "Reshape",
            [f"i{size}", file.stored(np.array([0, 4, size, size]), f"join{size}")],
            [f"j{size}"],
        )
        file.node("Mul", [f"j{size}", scale], [f"m{size}"])
        file.node("Add", [f"m{size}", shift], [f"y{size}"])
    check(
        file.model({f"x{size}": ["N", 4, size, size] for size in (4, 2)}, ["y4", "y2"]),
        24,
        16 * (16 + 4),
    )


@pytest.mark.parametrize("op", ["Transpose", "Identity", "Cast"])
def test_weight_that_is_rearranged_once_and_read_twice_counts_once(op: str) -> None:
    file = File("initializer")
    file.node(
        op, [file.stored(numbers(4, 4), "w")], ["t"], **({"to": FLOAT} if op == "Cast" else {})
    )
    file.node("MatMul", ["x", "t"], ["h"])
    file.node("MatMul", ["h", "t"], ["y"])
    check(file.model({"x": ["N", 4]}, ["y"]), 16, 32)


@pytest.mark.parametrize("op", ["RNN", "GRU", "LSTM"])
def test_recurrent_layer_that_is_called_twice_counts_once(op: str) -> None:
    file, gates = File("constant"), GATES[op]
    shapes = ((1, gates * 4, 4), (1, gates * 4, 4), (1, 8 * gates))
    operands = [
        file.stored(numbers(*shape), name) for shape, name in zip(shapes, "wrb", strict=True)
    ]
    file.node(op, ["x", *operands], ["a"], hidden_size=4)
    file.node("Squeeze", ["a", file.stored(np.array([1]), "axis")], ["s"])
    file.node(op, ["s", *operands], ["y", "h"], hidden_size=4)
    check(file.model({"x": [5, "N", 4]}, ["y", "h"]), gates * 40, 2 * 5 * gates * 4 * 8)


def test_zero_biases_that_torch_stored_once_belong_to_their_layers() -> None:
    file = File("initializer", producer="pytorch")
    zeros = file.stored(np.zeros(4, "f"), "0.bias")
    file.node("Gemm", ["x", file.stored(numbers(4, 4), "0.weight"), zeros], ["h"])
    file.node("Relu", ["h"], ["r"])
    file.node("Gemm", ["r", file.stored(numbers(4, 4), "2.weight"), zeros], ["y"])
    check(file.model({"x": ["N", 4]}, ["y"]), 40, 32)


def test_weight_computed_from_two_tensors_has_the_numbers_of_both() -> None:
    """A matrix and its low-rank change, which the file adds at run time."""
    file = File("initializer")
    file.node(
        "MatMul", [file.stored(numbers(16, 2), "a"), file.stored(numbers(2, 10), "b")], ["change"]
    )
    file.node("Add", [file.stored(numbers(16, 10), "w"), "change"], ["sum"])
    file.node("MatMul", ["x", "sum"], ["y"])
    model = file.model({"x": ["N", 16]}, ["y"])
    assert params(model) == params(from_text(to_text(model))) == 160 + 32 + 20


# --- integers


def test_integer_product() -> None:
    file = File("initializer")
    file.node("MatMulInteger", ["x", file.stored(numbers(16, 10, kind="b"), "w")], ["y"])
    check(file.model({"x": ["N", 16]}, ["y"], UINT8, TensorProto.INT32), 160, 160)


def test_integer_convolution() -> None:
    file = File("constant")
    file.node("ConvInteger", ["x", file.stored(numbers(8, 3, 3, 3, kind="b"), "w")], ["y"])
    check(file.model({"x": ["N", 3, 10, 10]}, ["y"], UINT8, TensorProto.INT32), 216, 216 * 64)


@pytest.mark.parametrize("per_channel", [False, True])
def test_quantized_convolution(per_channel: bool) -> None:
    """Scales and zero points are no weights, the bias of integers is one."""
    file = File("initializer")
    scale = 0.1 + np.abs(numbers(8)) if per_channel else np.float32(0.1)
    scalars = {
        "xs": np.float32(0.1),
        "xz": np.uint8(3),
        "ws": scale.astype("f"),
        "ys": np.float32(0.2),
    }
    scalars |= {"wz": np.zeros_like(scale, np.int8), "yz": np.uint8(7)}
    named = {name: file.stored(np.asarray(array), name) for name, array in scalars.items()}
    w, b = file.stored(numbers(8, 3, 3, 3, kind="b"), "w"), file.stored(numbers(8, kind="i"), "b")
    operands = [
        "x",
        named["xs"],
        named["xz"],
        w,
        named["ws"],
        named["wz"],
        named["ys"],
        named["yz"],
        b,
    ]
    file.node("QLinearConv", operands, ["y"])
    check(file.model({"x": ["N", 3, 10, 10]}, ["y"], UINT8, UINT8), 224, 216 * 64)


def test_quantized_product() -> None:
    file = File("initializer")
    small = {
        "as": np.float32(0.1),
        "az": np.uint8(3),
        "bs": np.float32(0.1),
        "bz": np.int8(0),
        "ys": np.float32(0.2),
    }
    named = {
        n: file.stored(np.asarray(array), n) for n, array in (small | {"yz": np.uint8(7)}).items()
    }
    w = file.stored(numbers(16, 10, kind="b"), "w")
    operands = [
        "x",
        named["as"],
        named["az"],
        w,
        named["bs"],
        named["bz"],
        named["ys"],
        named["yz"],
    ]
    file.node("QLinearMatMul", operands, ["y"])
    check(file.model({"x": ["N", 16]}, ["y"], UINT8, UINT8), 160, 160)


def test_dynamically_quantized_layer_has_no_learned_scales() -> None:
    file = File("initializer")
    file.node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"])
    file.node("MatMulInteger", ["q", file.stored(numbers(16, 10, kind="b"), "w"), "z"], ["i"])
    file.node("Cast", ["i"], ["f"], to=FLOAT)
    file.node("Mul", ["s", file.stored(np.abs(numbers(10)), "w_scale")], ["scale"])
    file.node("Mul", ["f", "scale"], ["h"])
    file.node("Add", ["h", file.stored(numbers(10), "b")], ["y"])
    check(file.model({"x": ["N", 16]}, ["y"]), 170, 160)


@pytest.mark.parametrize(
    "op", ["QGemm", "QAttention", "GroupQueryAttention", "MatMulNBits", "FusedConv"]
)
def test_operators_of_a_runtime_are_refused_by_name(op: str) -> None:
    file = File("initializer")
    file.nodes.append(helper.make_node(op, ["x"], ["y"], domain="com.microsoft"))
    model = file.model({"x": ["N", 16]}, ["y"])
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    with pytest.raises(ValueError, match=f"com.microsoft.{op}"):
        params(model)
