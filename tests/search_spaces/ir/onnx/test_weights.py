"""Initial weights: models in memory and files, numbers by seed."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import onnx
import pytest

from search_spaces import get_space
from search_spaces.common.errors import InputError
from search_spaces.ir.builder import Network
from search_spaces.ir.graph import Graph, Typed
from search_spaces.ir.onnx import to_model, write_model


def linear(features: int, inputs: int, element: str = "float") -> Graph:
    """One dense layer with biases."""
    net = Network((inputs,), features)
    graph = net.graph(net.linear(net.input, features))
    shapes = [Typed(shape, element) if element != "float" else shape for shape in graph.shapes]
    return Graph(graph.inputs, graph.nodes, graph.outputs, tuple(shapes))


def file_of(graph: Graph, seed: int = 0) -> bytes:
    file = io.BytesIO()
    write_model(graph, file, seed)
    return file.getvalue()


@pytest.mark.parametrize("element", ["float", "double", "float16", "bfloat16"])
@pytest.mark.parametrize("inputs", [1, 127, 128, 16_384])
def test_a_file_has_the_content_of_the_model(inputs: int, element: str) -> None:
    graph = linear(3, inputs, element)
    assert onnx.load_model_from_string(file_of(graph, 5)) == to_model(graph, 5)


def test_a_file_of_more_weights_than_random_numbers_has_the_content_of_the_model() -> None:
    graph = linear(2_100, 2_100)
    assert onnx.load_model_from_string(file_of(graph)) == to_model(graph)


def test_weights_follow_from_the_seed() -> None:
    graph = linear(3, 5)
    assert file_of(graph, 1) == file_of(graph, 1) != file_of(graph, 2)


def test_weights_are_as_widely_spread_as_he_initialization_asks() -> None:
    matrix, bias = (
        onnx.numpy_helper.to_array(t) for t in to_model(linear(100, 800)).graph.initializer
    )
    assert matrix.std() == pytest.approx(np.sqrt(2 / 800), rel=0.02)
    assert abs(matrix.mean()) < 1e-3
    assert not bias.any()


def test_a_model_too_large_to_write_is_refused() -> None:
    with pytest.raises(InputError, match="100,010,000 weights"):
        to_model(linear(10_000, 10_000))


def test_a_saved_architecture_is_that_of_the_model(tmp_path: Path) -> None:
    space = get_space("nasbench201")
    arch = space.sample(np.random.default_rng(0))
    space.save_onnx(arch, tmp_path / "folder" / "net.onnx", seed=3)
    assert onnx.load(tmp_path / "folder" / "net.onnx") == space.to_onnx(arch, 3)


def test_a_model_can_follow_other_content_in_a_file(tmp_path: Path) -> None:
    graph = linear(3, 128)
    with (tmp_path / "file").open("wb") as file:
        file.write(b"before")
        write_model(graph, file)
        file.write(b"after")
    assert (tmp_path / "file").read_bytes() == b"before" + file_of(graph) + b"after"


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    space = get_space("tiny-resnet")
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="file"):
        space.save_onnx(next(space.enumerate()), tmp_path / "file" / "net.onnx")
