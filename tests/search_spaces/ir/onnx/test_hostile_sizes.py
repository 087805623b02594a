"""Claims about models that try to exhaust time or memory: they are read in seconds or refused with
the reason.
"""

from __future__ import annotations

import re
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from search_spaces import load_model, to_text
from search_spaces.common.errors import InputError

OPSETS = [helper.make_opsetid("", 21), helper.make_opsetid("f", 1)]
MAX_SECONDS = 10.0  # of the processor, on a machine that does other work; the aim is 5
MAX_GB = 1.0


def value(name: str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, ("N", 4))


def model(
    nodes: list[onnx.NodeProto], outputs: list[str], functions: tuple[onnx.FunctionProto, ...] = ()
) -> onnx.ModelProto:
    graph = helper.make_graph(nodes, "g", [value("x")], [value(name) for name in outputs])
    return helper.make_model(graph, functions=list(functions), opset_imports=OPSETS, ir_version=10)


def chain(count: int, name: str) -> list[onnx.NodeProto]:
    names = ["x", *(f"{name}{i}" for i in range(count))]
    return [helper.make_node("Relu", [a], [b]) for a, b in pairwise(names)]


def branch(nodes: list[onnx.NodeProto]) -> onnx.GraphProto:
    last = nodes[-1].output[0]
    return helper.make_graph(
        nodes, last, [], [helper.make_tensor_value_info(last, TensorProto.FLOAT, None)]
    )


def condition(known: bool) -> list[onnx.NodeProto]:
    if known:
        return [
            helper.make_node(
                "Constant", [], ["c"], value=helper.make_tensor("c", TensorProto.BOOL, [], [True])
            )
        ]
    total = helper.make_node("ReduceSum", ["x"], ["s"], keepdims=0)
    return [total, helper.make_node("Cast", ["s"], ["c"], to=TensorProto.BOOL)]


def if_of(count: int, known: bool) -> onnx.ModelProto:
    branches = {f"{name}_branch": branch(chain(count, name)) for name in ("then", "else")}
    return model([*condition(known), helper.make_node("If", ["c"], ["y"], **branches)], ["y"])


def doubling(levels: int, in_branches: bool) -> onnx.ModelProto:
    """Functions that each call the one before twice, in both branches of an `If` or one after
    another.
    """
    functions = []
    for i in range(levels):
        calls = [
            helper.make_node(f"F{i - 1}", [a], [b], domain="f") for a, b in (("a", "u"), ("u", "b"))
        ]
        if in_branches and i:
            inner = [
                [helper.make_node(f"F{i - 1}", ["a"], [f"u{n}"], domain="f"),
                 helper.make_node(f"F{i - 1}", [f"u{n}"], [f"v{n}"], domain="f")] for n in "te"
            ]  # fmt: skip
            both = {"then_branch": branch(inner[0]), "else_branch": branch(inner[1])}
            calls = [*condition(known=True), helper.make_node("If", ["c"], ["b"], **both)]
        body = calls if i else [helper.make_node("Relu", ["a"], ["b"])]
        functions.append(helper.make_function("f", f"F{i}", ["a"], ["b"], body, OPSETS))
    return model(
        [helper.make_node(f"F{levels - 1}", ["x"], ["y"], domain="f")], ["y"], tuple(functions)
    )


def nested_ifs(depth: int) -> onnx.ModelProto:
    def of(depth: int, name: str) -> onnx.GraphProto:
        if not depth:
            return branch([helper.make_node("Relu", ["x"], [name])])
        both = {f"{side}_branch": of(depth - 1, name + side[0]) for side in ("then", "else")}
        return branch([helper.make_node("If", ["c"], [name], **both)])

    return model([*condition(known=False), *of(depth, "y").node], ["y"])


def loop(count: int) -> onnx.ModelProto:
    bools = [helper.make_tensor_value_info(name, TensorProto.BOOL, []) for name in ("go", "on")]
    number = helper.make_tensor_value_info("i", TensorProto.INT64, [])
    a, last = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, None)
        for name in ("a", f"l{count - 1}")
    )
    nodes = [helper.make_node("Identity", ["go"], ["on"]), *chain(count, "l")]
    body = helper.make_graph(nodes, "body", [number, bools[0], a], [bools[1], last])
    return model(
        [*condition(known=True), helper.make_node("Loop", ["", "c", "x"], ["y"], body=body)], ["y"]
    )


def parallel(
    count: int, join: str = "Sum", operators: tuple[str, ...] = ("Relu",)
) -> onnx.ModelProto:
    nodes = [
        helper.make_node(operators[(i * i + i // 7) % len(operators)], ["x"], [f"r{i}"])
        for i in range(count)
    ]
    return model([*nodes, helper.make_node(join, [f"r{i}" for i in range(count)], ["y"])], ["y"])


def added(count: int) -> onnx.ModelProto:
    """The sum of parallel nodes, one after another."""
    nodes = [helper.make_node("Relu", ["x"], [f"r{i}"]) for i in range(count)]
    names = ["r0", *(f"s{i}" for i in range(1, count))]
    nodes += [helper.make_node("Add", [names[i - 1], f"r{i}"], [names[i]]) for i in range(1, count)]
    return model(nodes, [names[-1]])


def dense(count: int) -> onnx.ModelProto:
    """Every node reads all earlier ones."""
    names = ["x", *(f"d{i}" for i in range(count))]
    return model(
        [helper.make_node("Sum", names[: i + 1], [names[i + 1]]) for i in range(count)], [names[-1]]
    )


def outputs(count: int) -> onnx.ModelProto:
    return model(
        [helper.make_node("Relu", ["x"], [f"o{i}"]) for i in range(count)],
        [f"o{i}" for i in range(count)],
    )


def unused(count: int) -> onnx.ModelProto:
    return model([*chain(count, "o"), helper.make_node("Sigmoid", ["x"], ["y"])], ["y"])


REFUSED: dict[str, tuple[Callable[[], onnx.ModelProto], str]] = {
    "functions that double in branches": (
        lambda: doubling(12, in_branches=True),
        "nodes; the limit is 10,000",
    ),
    "deep functions in branches": (lambda: doubling(30, in_branches=True), "more than 32 deep"),
    "functions that double": (
        lambda: doubling(30, in_branches=False),
        "536,870,912 nodes; the limit is 10,000",
    ),
    "60,000 nodes in branches": (
        lambda: if_of(30_000, known=False),
        "60,003 nodes; the limit is 10,000",
    ),
    "branches in branches": (lambda: nested_ifs(13), "nodes; the limit is 10,000"),
    "60,000 nodes in a loop": (lambda: loop(60_000), "nodes; the limit is 10,000"),
    "1,000 densely connected nodes": (lambda: dense(1000), "500,500 inputs; the limit is 100,000"),
    "a large If that depends on data": (
        lambda: if_of(4900, known=False),
        "control flow that depends on the data",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", REFUSED)
def test_unbounded_models_are_refused_at_once_with_the_reason(name: str) -> None:
    make, reason = REFUSED[name]
    made = make()
    started = time.process_time()
    with pytest.raises(InputError, match=reason):
        to_text(made)
    assert time.process_time() - started < 2.5


LARGE: dict[str, Callable[[], onnx.ModelProto]] = {
    "parallel": lambda: parallel(9999),
    "parallel, concatenated": lambda: parallel(9999, "Max"),
    "parallel, of several operators": lambda: parallel(
        9999, operators=("Relu", "Tanh", "Neg", "Exp", "Abs")
    ),
    "parallel, added one by one": lambda: added(5000),
    "dense": lambda: dense(440),
    "outputs": lambda: outputs(9999),
    "unused": lambda: unused(9998),
    "a large If": lambda: if_of(4900, known=True),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", LARGE)
def test_large_models_take_seconds_and_little_memory(name: str, tmp_path: Path) -> None:
    onnx.save(LARGE[name](), tmp_path / "model.onnx")
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    command = [sys.executable, __file__, str(tmp_path / "model.onnx")]
    gigabytes = float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert gigabytes < MAX_GB
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before < MAX_SECONDS


if __name__ == "__main__":
    to_text(load_model(sys.argv[1]))
    status = Path(
        "/proc/self/status"
    ).read_text()  # `getrusage` would count the process that started this one, too
    print(int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0]) / 1e6)
