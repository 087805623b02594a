"""`record`: the graph of a PyTorch module, from one call on tensors without data.

Nothing is computed, and no exporter is involved: every torch function that the module calls is
    recorded as ONNX
operators. They are those of an imported ONNX model, so that both have the same text.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from functools import partial
from math import inf, prod
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from search_spaces.common.errors import InputError, describe
from search_spaces.ir.fusion import fuse
from search_spaces.ir.graph import BATCH, Dim, Graph, Node, Shape, typed
from search_spaces.ir.owned_weights import initializers
from search_spaces.ir.pytorch import (  # noqa: F401  each names the functions that it reads
    arithmetic,
    attention,
    casts,
    elementwise,
    layers,
    moves,
    orders,
    parts,
    pooling,
    recurrent,
    reductions,
    scatters,
    shapes,
)
from search_spaces.ir.pytorch.building import Example, arguments, is_lazy, run
from search_spaces.ir.pytorch.derived_weights import DerivedWeights
from search_spaces.ir.pytorch.dtypes import element
from search_spaces.ir.pytorch.recorder import BATCH_SIZE, Recorder
from search_spaces.ir.pytorch.transformed_modules import check_untransformed
from search_spaces.ir.pytorch.transformers_forms import as_while_tracing

# Even and divisible, unlike the prime `BATCH_SIZE`: what depends on such properties shows
OTHER_BATCH_SIZE = 9240
NewRecorder = Callable[..., Recorder]
MAX_RATIO = 1024  # largest part or multiple of the batch size that is recognized as one


def record(module: nn.Module, example: Example, *, any_batch: bool = False) -> Graph:
    """The graph of `module(example)`; the module is left in evaluation mode.

    The batch size of the graph is symbolic, unless the module works for the example's batch size
    only.

    Args:
        module: the module.
        example: a tensor, a tuple of positional arguments, or a dictionary of keyword arguments.
            The first dimension of tensors is the batch; their values do not matter.
        any_batch: refuse a module that works for the example's batch size only.

    Raises:
        InputError: if a function is not supported, or the computation depends on the data, or on
            the batch size with `any_batch`. Errors of the module's own code pass through.
    """
    return fuse(recorded(module, example, any_batch)[0])


def record_with_numbers(
    module: nn.Module, example: Example
) -> tuple[Graph, dict[int, list[np.ndarray]]]:
    """The graph of `module(example)` before fusion, and the module's weights.

    Fusion changes the text, but not the ONNX model that is written.

    Returns:
        The graph, and the weights and long constants of its nodes by output value: the argument of
        `search_spaces.ir.onnx.to_model`.

    Raises:
        InputError: as `record`, and if a node's weights are unknown.
    """
    graph, recorder = recorded(module, example, any_batch=False)
    found: dict[int, list[np.ndarray]] = {}
    for node in graph.nodes:
        value = node.outputs[0]
        expected = initializers(node.op, node.attrs, tuple([graph.shapes[v] for v in node.inputs]))
        wanted = [weight.shape for weight in expected]
        if node.op == "Buffer":
            wanted = [dict(node.attrs)["shape"]]  # type: ignore[list-item]
        if wanted and value not in recorder.numbers:
            raise InputError(f"the weights of an operator {node.op} are unknown")
        made = zip(recorder.numbers.get(value, ()), wanted, strict=True)
        found |= {value: [_array(numbers(), shape) for numbers, shape in made]} if wanted else {}
    return graph, found


def _array(numbers: Tensor, shape: tuple[int, ...]) -> np.ndarray:
    if numbers.numel() != prod(shape):
        raise InputError(f"weights of shape {list(shape)} are computed as {list(numbers.shape)}")
    numbers = numbers.detach().cpu()
    return (numbers.float() if numbers.dtype == torch.bfloat16 else numbers).reshape(shape).numpy()


def layer_of(error: BaseException, module: nn.Module) -> str:
    """Suffix for a message: the innermost layer of the module in which an error was raised; "" if
    there is none.
    """
    names = {id(layer): name for name, layer in module.named_modules() if name}
    found = [frame.f_locals.get("self") for frame, _ in traceback.walk_tb(error.__traceback__)]
    layer = next((layer for layer in reversed(found) if id(layer) in names), None)
    return "" if layer is None else f" (in layer {names[id(layer)]!r}, {type(layer).__name__})"


def example_tensors(example: Example) -> list[Tensor]:
    """The tensors of an example input, in the order of the graph's inputs."""
    return [x for x in tree_leaves(arguments(example)) if isinstance(x, Tensor)]


def recorded(
    module: nn.Module, example: Example, any_batch: bool, new_recorder: NewRecorder = Recorder
) -> tuple[Graph, Recorder]:
    """The graph before fusion, and its recorder.

    Args:
        module: the module.
        example: see `record`.
        any_batch: see `record`.
        new_recorder: makes the recorder of each attempt, with the arguments of `Recorder`.
    """
    module.eval()
    check_untransformed(module)
    if is_lazy(module):
        with torch.no_grad(), torch.compiler.set_stance("force_eager"):
            run(module, example)
    # The module's code may not work for other batch sizes. If it does not work for the example's
    # either, that error is the one to report.
    create = partial(new_recorder, weights=DerivedWeights())
    try:
        return _recorded_for_any_batch(module, example, create)
    except Exception as error:
        literal = _recorded_in_batches(module, example, None, create)
        if any_batch:
            size = example_tensors(example)[0].shape[:1]
            reason = f"{describe(error)}{layer_of(error, module)}"
            raise InputError(
                f"the network works for a batch of {size[0] if size else 1} only: {reason}"
            ) from error
        return literal


def _recorded_for_any_batch(
    module: nn.Module, example: Example, new_recorder: NewRecorder
) -> tuple[Graph, Recorder]:
    """The graph with a symbolic batch size; any error if the module works for its example's batch
    size only.
    """
    graph, recorder = _recorded_in_batches(module, example, BATCH_SIZE, new_recorder)
    if any(_follows_from_batch(value) for node in graph.nodes for _, value in node.attrs):
        raise InputError("a number follows from the batch size")
    if recorder.sizes_read:
        other, again = _recorded_in_batches(module, example, OTHER_BATCH_SIZE, new_recorder)
        if graph != other or not _same_buffers(graph, recorder, again):
            raise InputError("the computation depends on the batch size")
    return graph, recorder


def _same_buffers(graph: Graph, recorder: Recorder, other: Recorder) -> bool:
    """True if the long constants of two recordings of one graph have equal numbers."""
    values = [node.outputs[0] for node in graph.nodes if node.op == "Buffer"]
    pairs = [
        (recorder.numbers[v][0](), other.numbers[v][0]()) for v in values if v in recorder.numbers
    ]
    return all(a.is_meta or a is b or torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in pairs)


def _follows_from_batch(value: object) -> bool:
    """True for a number that was computed from the recorded batch size: a multiple, a part, or a
    root of one.
    """
    if not isinstance(value, int | float) or not 0 < abs(value) < inf:
        return False
    powers = (abs(value) ** power for power in (1.0, -1.0, 2.0, -2.0))
    ratios = (ratio for power in powers for ratio in (power / BATCH_SIZE, BATCH_SIZE / power))
    return any(
        0.5 < ratio < MAX_RATIO and abs(ratio - round(ratio)) < 2e-7 * ratio for ratio in ratios
    )


def _recorded_in_batches(
    module: nn.Module, example: Example, batch: int | None, new_recorder: NewRecorder
) -> tuple[Graph, Recorder]:
    shared: frozenset[int] = frozenset()
    while True:
        recorder = new_recorder(shared, batch, module.buffers())
        leaves, structure = tree_flatten(arguments(example))
        given = [x for x in leaves if isinstance(x, Tensor)]
        if not given:
            raise InputError("the example input holds no tensor")
        size = given[0].shape[0] if batch and given[0].dim() else None
        inputs = iter([recorder.add_input(_input_shape(x, size)) for x in given])
        args, kwargs = tree_unflatten(
            [next(inputs) if isinstance(x, Tensor) else x for x in leaves], structure
        )
        plain = torch.compiler.set_stance(
            "force_eager"
        )  # a compiled module is called as it was before
        with torch.no_grad(), plain, as_while_tracing(module, recorder.is_value), recorder:
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
    outputs = [
        v if v >= count else recorder.emit("Identity", (v,), ()) for v in dict.fromkeys(outputs)
    ]
    nodes = live(recorder.nodes, outputs)
    recorder.count_owners({v for node in nodes for v in node.outputs})
    return Graph(recorder.inputs, nodes, tuple(outputs), tuple(recorder.shapes))


def live(nodes: list[Node], outputs: list[int]) -> tuple[Node, ...]:
    """The nodes on which the outputs depend, and all `Param` nodes."""
    needed, kept = set(outputs), []
    for node in reversed(nodes):
        if node.outputs[0] in needed or node.op == "Param":
            needed.update(node.inputs)
            kept.append(node)
    return tuple(kept[::-1])
