"""Claims about open sizes of ONNX files: which is the batch size, how they are fixed, what messages
say about them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper

from predictors.features import exact_costs
from search_spaces import InputError, flops, from_text, load_model, read_source, to_text
from search_spaces.sources import naming_costs

Dims = list[int | str | None]


def model(
    nodes: list[onnx.NodeProto], inputs: dict[str, Dims], outputs: tuple[str, ...] = ("y",)
) -> onnx.ModelProto:
    """A model whose outputs have no shape."""
    ins = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, dims)
        for name, dims in inputs.items()
    ]
    outs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
    graph = helper.make_graph(nodes, "net", ins, outs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def upsampling(height: int | str = "height", width: int | str = "width") -> onnx.ModelProto:
    """A convolution of stride 2, scaled back to the size of the input: the size must be a
    number.
    """
    weight = helper.make_tensor("w", TensorProto.FLOAT, [3, 3, 2, 2], [0.1] * 36)
    made = model([], {"x": ["N", 3, height, width]})
    made.graph.initializer.append(weight)
    scales = helper.make_tensor("", TensorProto.FLOAT, [4], [1, 1, 2, 2])
    made.graph.node.extend(
        [
            helper.make_node("Conv", ["x", "w"], ["h"], name="down", strides=[2, 2]),
            helper.make_node("Constant", [], ["s"], value=scales),
            helper.make_node("Resize", ["h", "", "s"], ["y"], name="up"),
        ]
    )
    return made


def pairs(name: str = "", dims: Dims | None = None) -> onnx.ModelProto:
    """Products of all pairs of tokens."""
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["x", "t"], ["y"], name=name),
    ]
    return model(nodes, {"x": dims or ["N", "T", 8]})


def relu(dims: Dims) -> onnx.ModelProto:
    return model([helper.make_node("Relu", ["x"], ["y"])], {"x": dims})


def saved(made: onnx.ModelProto, folder: Path) -> str:
    path = str(folder / "net.onnx")
    onnx.save(made, path)
    return path


@pytest.mark.parametrize(
    ("dims", "expected"),
    [
        ([-1, 3], "float[N,3]"),
        ([None, 3], "float[N,3]"),
        (["batch_size", "seq", 3], "float[N,L,3]"),
        (["length", "batch", 3], "float[L,N,3]"),
        ([1, 3, "h", "w"], "float[N,3,L,M]"),
        ([1, 3, "?", "?"], "float[N,3,L,M]"),
        ([-1, -1, 3], "float[N,L,3]"),
    ],
)
def test_open_sizes_are_letters(dims: Dims, expected: str) -> None:
    text = to_text(relu(dims))
    assert f"({expected} x)" in text
    assert to_text(from_text(text)) == text


def test_a_size_below_minus_one_is_refused() -> None:
    with pytest.raises(
        InputError, match="input 'x' has a dimension of size -2: it must be positive, or -1 if open"
    ):
        to_text(relu([-2, 3]))


@pytest.mark.parametrize("sizes", ["32", "3x32x32", "32x32"])
def test_sizes_behind_the_file_fix_open_ones(tmp_path: Path, sizes: str) -> None:
    path = saved(upsampling(), tmp_path)
    text = read_source(f"{path}@{sizes}")
    assert "(float[N,3,32,32] x)" in text
    assert text == to_text(upsampling(32, 32)) == to_text(load_model(f"{path}@{sizes}"))


def test_sizes_of_tokens(tmp_path: Path) -> None:
    assert flops(load_model(f"{saved(pairs(), tmp_path)}@5")) == 5 * 5 * 8


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ("4x32x32", "@4x32x32 does not fit the input, which has the sizes 3xheightxwidth"),
        (
            "1x2x3x4",
            "@1x2x3x4 does not fit: the input has the sizes 3xheightxwidth, open are 'height', "
            "'width'",
        ),
        ("0", "sizes must be at least 1"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(tmp_path: Path, sizes: str, message: str) -> None:
    with pytest.raises(InputError, match=f"net.onnx.*{message}"):
        read_source(f"{saved(upsampling(), tmp_path)}@{sizes}")


def test_sizes_for_a_file_without_open_ones_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match="all sizes but the batch's are fixed already: leave it out"
    ):
        read_source(f"{saved(relu(['N', 3]), tmp_path)}@32")


@pytest.mark.parametrize(
    ("height", "width", "options"),
    [
        ("height", "width", "--dim_param height --dim_value 320"),
        (-1, -1, "--input_name x --input_shape 1,3,320,320"),
    ],
)
def test_message_says_how_to_fix_open_sizes(
    tmp_path: Path, height: int | str, width: int | str, options: str
) -> None:
    with pytest.raises(InputError) as caught:
        read_source(saved(upsampling(height, width), tmp_path))
    message = str(caught.value)
    assert "net.onnx: Resize (node 'up')" in message
    assert "FILE.onnx@320" in message
    assert (
        f"python -m onnxruntime.tools.make_dynamic_shape_fixed {options} FILE.onnx FIXED.onnx"
        in message
    )
    assert "export" not in message
    assert len(message.splitlines()) == 1


@pytest.mark.parametrize(
    ("name", "shown"), [("pairs", "node 'pairs'"), ("", "the node that computes 'y'")]
)
def test_costs_that_need_numbers_name_file_and_node(tmp_path: Path, name: str, shown: str) -> None:
    path = saved(pairs(name), tmp_path)
    with pytest.raises(
        InputError, match=rf"MatMul \({shown}\): costs need numbers.* 'T' open: .*FILE.onnx@128"
    ):
        flops(load_model(path))
    text = read_source(path)
    with (
        pytest.raises(InputError, match=rf"net.onnx: MatMul \({shown}\)"),
        naming_costs([path], [text]),
    ):
        exact_costs([text], ["flops"])


def test_an_input_without_shape_is_refused_with_a_tool() -> None:
    made = relu(["N", 3])
    made.graph.input[0].type.tensor_type.ClearField("shape")
    with pytest.raises(
        InputError, match=r"input 'x' is not a tensor with a shape: .*make_dynamic_shape_fixed"
    ):
        to_text(made)


def test_outputs_need_no_type() -> None:
    made = relu(["N", 3])
    made.graph.output[0].ClearField("type")
    assert "=> (float[N,3] y)" in to_text(made)


def empty(op: str, **attributes: Any) -> onnx.ModelProto:
    nodes = [
        helper.make_node(
            "Constant", [], ["e"], value=helper.make_tensor("e", TensorProto.FLOAT, [0, 4], [])
        ),
        helper.make_node(op, ["e", "x"], ["j"], name="join", **attributes),
        helper.make_node("Relu", ["j"], ["y"]),
    ]
    return model(nodes, {"x": ["N", 4]})


def test_an_empty_constant_adds_nothing_to_a_concatenation() -> None:
    assert to_text(empty("Concat", axis=0)) == to_text(relu(["N", 4]))


def test_an_empty_constant_is_refused_by_name() -> None:
    with pytest.raises(
        InputError, match=r"'join'\): the constant 'e' of shape \[0,4\] is empty: .*onnxsim"
    ):
        to_text(empty("MatMul"))
