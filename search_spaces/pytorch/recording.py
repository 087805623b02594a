"""`record`: the graph of a PyTorch module, from one call of it on tensors without data.

Nothing is computed and no exporter is involved: every function of torch that the module calls becomes the operators
that ONNX has for it, in the words that an imported ONNX model has, so that both give one text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from search_spaces.common.errors import InputError
from search_spaces.graph.fusion import fuse
from search_spaces.graph.ir import BATCH, Dim, Graph, Node, Shape, typed
from search_spaces.pytorch import attention, layers, math, moves  # noqa: F401  each names the functions that it reads
from search_spaces.pytorch.recorder import BATCH_SIZE, Recorder, element

Example = Tensor | Sequence[Any] | Mapping[str, Any]


def record(module: nn.Module, example: Example) -> Graph:
    """The graph of `module(example)`; the module is left in evaluation mode.

    example: a tensor, a tuple of positional arguments, or a dictionary of keyword arguments. The first dimension of
    the tensors is the batch, of any size; values don't matter. Where the network does not work for every batch size,
    the graph has the example's.

    Raises InputError for an operator that is not supported and for what depends on the data. Errors of the module's
    own code pass through.
    """
    module.eval()
    try:
        return _recorded(module, example, BATCH_SIZE)
    except InputError:
        raise
    except Exception as error:
        try:
            return _recorded(module, example, None)
        except Exception:
            raise error from None


def _recorded(module: nn.Module, example: Example, batch: int | None) -> Graph:
    shared: frozenset[int] = frozenset()
    while True:
        recorder = Recorder(shared, batch)
        args, kwargs = _arguments(example)
        given = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        if not given:
            raise InputError("the example input holds no tensor")
        size = given[0].shape[0] if batch and given[0].dim() else None
        meta = {id(x): recorder.add_input(_input_shape(x, size), x) for x in given}

        def replaced(x: Any) -> Any:
            if isinstance(x, Tensor):
                return meta[id(x)]
            if isinstance(x, list | tuple):
                return type(x)(map(replaced, x))
            return {k: replaced(v) for k, v in x.items()} if isinstance(x, Mapping) else x

        with torch.no_grad(), recorder:
            result = module(*replaced(args), **replaced(kwargs))
        if recorder.used_twice <= shared:
            return _graph(recorder, result)
        shared |= recorder.used_twice


def _arguments(example: Example) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(example, Mapping):
        return (), dict(example)
    return (example,) if isinstance(example, Tensor) else tuple(example), {}


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
    return fuse(Graph(recorder.inputs, nodes, tuple(outputs), tuple(recorder.shapes)))


def _live(nodes: list[Node], outputs: list[int]) -> tuple[Node, ...]:
    """The nodes that the outputs need, and weights that nothing reads."""
    needed, live = set(outputs), []
    for node in reversed(nodes):
        if node.outputs[0] in needed or node.op == "Param":
            needed.update(node.inputs)
            live.append(node)
    return tuple(live[::-1])
