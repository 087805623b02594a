"""`record`: the graph of a PyTorch module, from one call of it on tensors without data.

Nothing is computed and no exporter is involved: every function of torch that the module calls becomes the operators
that ONNX has for it, in the words that an imported ONNX model has, so that both give one text.
"""

from __future__ import annotations

import traceback
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from search_spaces.common.errors import InputError
from search_spaces.graph.fusion import fuse
from search_spaces.graph.ir import BATCH, Dim, Graph, Node, Shape, typed
from search_spaces.graph.owned_weights import initializers
from search_spaces.pytorch import attention, layers, math, moves, recurrent  # noqa: F401  each names the functions that it reads
from search_spaces.pytorch.building import Example, arguments, is_lazy, run
from search_spaces.pytorch.dtypes import element
from search_spaces.pytorch.recorder import BATCH_SIZE, Recorder


def record(module: nn.Module, example: Example) -> Graph:
    """The graph of `module(example)`; the module is left in evaluation mode.

    example: a tensor, a tuple of positional arguments, or a dictionary of keyword arguments. The first dimension of
    the tensors is the batch, of any size; values don't matter. Where the network does not work for every batch size,
    the graph has the example's.

    Raises InputError for an operator that is not supported and for what depends on the data. Errors of the module's
    own code pass through.
    """
    return fuse(_recorded(module, example)[0])


def record_with_numbers(module: nn.Module, example: Example) -> tuple[Graph, dict[int, list[np.ndarray]]]:
    """A graph of `module(example)`, and the numbers of the weights and long constants that its nodes own.

    The graph is what `record` gives, before neighbouring nodes are fused; it is written as the same ONNX model. The
    numbers are those of `search_spaces.onnx.to_model`, by the value that the node makes.
    """
    graph, recorder = _recorded(module, example)
    found: dict[int, list[np.ndarray]] = {}
    for node in graph.nodes:
        value = node.outputs[0]
        expected = initializers(node.op, node.attrs, tuple([graph.shapes[v] for v in node.inputs]))
        shapes = [weight.shape for weight in expected]
        if node.op == "Buffer":
            shapes = [dict(node.attrs)["shape"]]  # type: ignore[list-item]
        if shapes and value not in recorder.numbers:
            raise InputError(f"the weights of an operator {node.op} cannot be told")
        made = zip(recorder.numbers.get(value, ()), shapes, strict=True)
        found |= {value: [_array(numbers(), shape) for numbers, shape in made]} if shapes else {}
    return graph, found


def _array(numbers: Tensor, shape: tuple[int, ...]) -> np.ndarray:
    if numbers.numel() != prod(shape):
        raise InputError(f"weights of shape {list(shape)} are computed as {list(numbers.shape)}")
    numbers = numbers.detach().cpu()
    return (numbers.float() if numbers.dtype == torch.bfloat16 else numbers).reshape(shape).numpy()


def layer_of(error: BaseException, module: nn.Module) -> str:
    """The innermost of a module's layers in which an error was raised, to end its message; empty for none."""
    names = {id(layer): name for name, layer in module.named_modules() if name}
    found = [frame.f_locals.get("self") for frame, _ in traceback.walk_tb(error.__traceback__)]
    layer = next((layer for layer in reversed(found) if id(layer) in names), None)
    return "" if layer is None else f" (in layer {names[id(layer)]!r}, {type(layer).__name__})"


def example_tensors(example: Example) -> list[Tensor]:
    """The tensors of an example input, in the order of the graph's inputs."""
    return [x for x in tree_leaves(arguments(example)) if isinstance(x, Tensor)]


def _recorded(module: nn.Module, example: Example) -> tuple[Graph, Recorder]:
    """The graph before it is fused, and the recorder that made it."""
    module.eval()
    if is_lazy(module):
        with torch.no_grad():
            run(module, example)
    try:
        return _recorded_in_batches(module, example, BATCH_SIZE)
    except Exception:  # whatever its own code does with the batch size
        return _recorded_in_batches(module, example, None)


def _recorded_in_batches(module: nn.Module, example: Example, batch: int | None) -> tuple[Graph, Recorder]:
    shared: frozenset[int] = frozenset()
    while True:
        recorder = Recorder(shared, batch)
        leaves, structure = tree_flatten(arguments(example))
        given = [x for x in leaves if isinstance(x, Tensor)]
        if not given:
            raise InputError("the example input holds no tensor")
        size = given[0].shape[0] if batch and given[0].dim() else None
        inputs = iter([recorder.add_input(_input_shape(x, size)) for x in given])
        args, kwargs = tree_unflatten([next(inputs) if isinstance(x, Tensor) else x for x in leaves], structure)
        with torch.no_grad(), recorder:
            result = module(*args, **kwargs)
        graph = _graph(recorder, result)
        if recorder.used_twice <= shared:
            return graph, recorder
        shared |= recorder.used_twice


def _input_shape(x: Tensor, batch: int | None) -> Shape:
    dims: list[Dim] = list(x.shape)
    if dims and dims[0] == batch:
        dims[0] = BATCH
    return typed(dims, element(x.dtype))


def _graph(recorder: Recorder, result: Any) -> Graph:
    tensors = [x for x in tree_leaves(result) if isinstance(x, Tensor)]
    if not tensors:
        raise InputError(f"forward returned {type(result).__name__}, which holds no tensor")
    outputs = [recorder.value(x) for x in tensors]
    count = len(recorder.inputs)
    outputs = [v if v >= count else recorder.emit("Identity", (v,), ()) for v in dict.fromkeys(outputs)]
    nodes = _live(recorder.nodes, outputs)
    recorder.count_owners({v for node in nodes for v in node.outputs})
    return Graph(recorder.inputs, nodes, tuple(outputs), tuple(recorder.shapes))


def _live(nodes: list[Node], outputs: list[int]) -> tuple[Node, ...]:
    """The nodes that the outputs need, and weights that nothing reads."""
    needed, live = set(outputs), []
    for node in reversed(nodes):
        if node.outputs[0] in needed or node.op == "Param":
            needed.update(node.inputs)
            live.append(node)
    return tuple(live[::-1])
