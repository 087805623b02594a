"""Claims about control flow: branches that are known are taken, loops are written out and share
their weights.
"""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

from search_spaces import InputError, flops, from_text, params, to_text

STEPS = 6


def parsed(body: str, signature: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 21]> net {signature} {{ {body} }}'
    )


def run(model: onnx.ModelProto, x: np.ndarray) -> list[np.ndarray]:
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return session.run(None, {session.get_inputs()[0].name: x})


def check(model: onnx.ModelProto) -> str:
    """The text, which is a fixed point."""
    text = to_text(model)
    again = from_text(text)
    assert to_text(again) == text
    assert (params(again), flops(again)) == (params(model), flops(model))
    return text


def recurrence(storage: str, steps: int | str = STEPS) -> onnx.ModelProto:
    """h = tanh(x W + h U + b) as a Scan, with weights outside of the body, inside as initializers,
    or constants.
    """
    step = "float[2,8] h, float[2,4] e"
    body = f"""y, s = Scan <num_scan_inputs = 1, body = step ({step}) => (float[2,8] k, float[2,8] o) {{
        p = MatMul (e, W) q = MatMul (h, U) r = Add (p, q) t = Add (r, b) k = Tanh (t) o = Identity (k) }}> (h0, x)"""
    signature = f"(float[{steps},2,4] x) => (float[2,8] y, float[{steps},2,8] s)"
    weights = "float[4,8] W, float[8,8] U, float[8] b, int64[2] n = {2, 8}"
    rng = np.random.default_rng(0)
    shapes = {"W": (4, 8), "U": (8, 8), "b": (8,)}
    tensors = [
        numpy_helper.from_array(rng.standard_normal(s).astype("f"), n) for n, s in shapes.items()
    ]
    model = parsed(f"h0 = ConstantOfShape (n) {body}", f"{signature} <{weights}>")
    graph = model.graph
    scan = next(node for node in graph.node if node.op_type == "Scan")
    inner = next(a.g for a in scan.attribute if a.name == "body")
    kept = [tensor for tensor in graph.initializer if tensor.name not in shapes]
    del graph.initializer[:]
    graph.initializer.extend(kept)
    for info in [info for info in graph.input if info.name in shapes]:
        graph.input.remove(info)
    if storage == "outside":
        graph.initializer.extend(tensors)
    elif storage == "inside":
        inner.initializer.extend(tensors)
    else:
        nodes = [onnx.helper.make_node("Constant", [], [t.name], value=t) for t in tensors]
        nodes += list(inner.node)
        del inner.node[:]
        inner.node.extend(nodes)
    return model


@pytest.mark.parametrize("storage", ["outside", "inside", "constant"])
def test_a_recurrence_counts_its_weights_once_and_its_products_per_step(storage: str) -> None:
    model = recurrence(storage)
    assert params(model) == 4 * 8 + 8 * 8 + 8
    assert flops(model) == STEPS * 2 * (4 * 8 + 8 * 8)


def gated(steps: int) -> onnx.ModelProto:
    """A gated recurrence as a Scan: the four gates are slices of one product."""
    cuts = " ".join(
        f"s{i} = Constant <value_ints = [{8 * i}]> () e{i} = Constant <value_ints = [{8 * i + 8}]> "
        "() "
        f"g{i} = Slice (t, s{i}, e{i}, axis)"
        for i in range(4)
    )
    gates = (
        "f = Sigmoid (g0) i = Sigmoid (g1) o = Sigmoid (g2) u = Tanh (g3) a = Mul (f, c) b = "
        "Mul (i, u)"
    )
    body = f"""y, z = Scan <num_scan_inputs = 1,
        body = step (float[2,8] h, float[2,8] c, float[2,4] e) => (float[2,8] k, float[2,8] m) {{
            axis = Constant <value_ints = [1]> () p = MatMul (e, W) q = MatMul (h, U) t = Add (p, q)
            {cuts} {gates} m = Add (a, b) r = Tanh (m) k = Mul (o, r) }}> (h0, h0, x)"""
    model = parsed("h0 = ConstantOfShape (n) "
                   f"{body}", f"(float[{steps},2,4] x) => (float[2,8] y, float[2,8] z)"
                   " <float[4,32] W, float[8,32] U, int64[2] n = {2, 8}>")  # fmt: skip
    kept = [info for info in model.graph.input if info.name == "x"]
    del model.graph.input[:]
    model.graph.input.extend(kept)
    model.graph.initializer.extend(
        numpy_helper.from_array(np.random.default_rng(0).standard_normal(shape).astype("f"), name)
        for name, shape in (("W", (4, 32)), ("U", (8, 32)))
    )
    return model


def test_the_body_of_a_recurrence_is_a_function_that_is_called_per_step() -> None:
    """More steps are more calls, not more copies of the body."""
    texts = [check(gated(steps)) for steps in (8, 16)]
    bodies = [text.count("Sigmoid") for text in texts]
    assert bodies[0] == bodies[1] <= 6
    assert flops(gated(16)) == 2 * flops(gated(8)) == 2 * 8 * 2 * 32 * 12


def test_a_recurrence_over_an_open_number_of_steps_is_refused_with_a_remedy() -> None:
    with pytest.raises(
        InputError, match=r"Scan .*number of steps is open; fix the size 'T' by .*--dim_param T"
    ):
        to_text(recurrence("outside", "T"))


@pytest.mark.parametrize("direction", [0, 1])
def test_a_scan_computes_what_the_file_computes(direction: int) -> None:
    step = "s = Add (a, e) o = Mul (s, s) z = Identity (s)"
    scan = f"""y, r = Scan <num_scan_inputs = 1,
        scan_input_directions = [{direction}], scan_output_directions = [{direction}],
        scan_input_axes = [1], scan_output_axes = [1],
        body = step (float[3] a, float[3] e) => (float[3] z, float[3] o) {{ {step} }}> (h, x)"""
    model = parsed(f"h = Constant <value = float[3] {{1.0, 2.0, 3.0}}> () {scan}",
                   f"(float[3,{STEPS}] x) => (float[3] y, float[3,{STEPS}] r)")  # fmt: skip
    x = np.random.default_rng(0).standard_normal((3, STEPS)).astype("f")
    for ours, theirs in zip(run(from_text(check(model)), x), run(model, x), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)


LOOP = """c = Constant <value = int64 {%d}> () t = Constant <value = bool {1}> ()
y, r = Loop (c, t, x) <body = step (int64 i, bool g, float[N,4] a) => (bool k, float[N,4] b, float[N,4] o) {
    f = Cast <to = 1> (i) b = Add (a, f) o = Relu (b) n = Constant <value = int64 {%d}> () k = Less (i, n) }>"""


@pytest.mark.parametrize(("most", "last"), [(4, 100), (100, 3), (1, 0)])
def test_a_loop_ends_when_its_count_or_its_condition_does(most: int, last: int) -> None:
    body = (LOOP % (most, last)).replace("Loop (c, t, x) ", "Loop ").rstrip() + " (c, t, x)"
    model = parsed(body, "(float[N,4] x) => (float[N,4] y, float[S,N,4] r)")
    x = np.random.default_rng(0).standard_normal((2, 4)).astype("f")
    for ours, theirs in zip(run(from_text(check(model)), x), run(model, x), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)


def test_a_loop_whose_end_depends_on_the_data_is_refused() -> None:
    body = """t = Constant <value = bool {1}> ()
    y = Loop <body = step (int64 i, bool g, float[4] a) => (bool k, float[4] b) {
        b = Add (a, a) s = ReduceSum <keepdims = 0> (b) n = Constant <value = float {9.0}> () k = Less (s, n) }>
    (, t, x)"""
    with pytest.raises(InputError, match=r"Loop .*the number of steps depends on the data"):
        to_text(parsed(body, "(float[4] x) => (float[4] y)"))


def test_a_loop_that_never_ends_is_refused() -> None:
    body = """y = Loop <body = step (int64 i, bool g, float[4] a) => (bool k, float[4] b) {
        b = Add (a, a) k = Identity (g) }> (, , x)"""
    with pytest.raises(InputError, match="written out, loops have more than 10,000 nodes"):
        to_text(parsed(body, "(float[4] x) => (float[4] y)"))
