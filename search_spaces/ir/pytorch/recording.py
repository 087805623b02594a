"""`record`: the graph of a PyTorch module, from one call on tensors without data.

Nothing is computed, and no exporter is involved: every torch function that the module calls is
recorded as ONNX operators. They are those of an imported ONNX model, so that both have the same text.

1. The module is called with a batch of `BATCH_SIZE` samples, a large prime: sizes that are its
   multiples are multiples of the batch, which becomes the symbol N.
2. If its code has read sizes, it is called again with another batch size. Graphs that differ show that
   the computation depends on the batch.
3. A parameter that several layers read cannot be owned by one: it is noted, and the module is called
   again with it as a value of the graph.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from functools import partial
from math import inf, prod
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import (
    tree_flatten,
    tree_flatten_with_path,
    tree_leaves,
    tree_unflatten,
)

from search_spaces.common.errors import InputError, describe
from search_spaces.ir.fusion import fuse
from search_spaces.ir.graph import BATCH, Dim, Graph, Node, Shape, typed
from search_spaces.ir.ops import initializers
from search_spaces.ir.precision import precisions_of_parameters
from search_spaces.ir.pytorch import (  # noqa: F401  each names the functions that it reads
    activations,
    convolution,
    indexing,
    joining,
    linear,
    normalization,
    pointwise,
    pooling,
    recurrent,
    reductions,
    views,
    vision,
)
from search_spaces.ir.pytorch.calls import element
from search_spaces.ir.pytorch.modules import (
    Example,
    arguments,
    as_while_tracing,
    check_untransformed,
    evaluating,
    is_lazy,
    run,
    unchanged,
)
from search_spaces.ir.pytorch.recorder import BATCH_SIZE, Recorder
from search_spaces.ir.pytorch.weights import DerivedWeights

# Even and divisible, unlike the prime `BATCH_SIZE`: what depends on such properties shows
OTHER_BATCH_SIZE = 9240
MAX_RATIO = 1024  # largest part or multiple of the batch size that is recognized as one
NewRecorder = Callable[..., Recorder]


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
    module: nn.Module,
    example: Example,
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
    arrays: dict[int, list[np.ndarray]] = {}
    for node in graph.nodes:
        value = node.outputs[0]
        if node.op == "Buffer":
            shapes: list[Any] = [dict(node.attrs)["shape"]]
        else:
            inputs = tuple([graph.shapes[v] for v in node.inputs])
            shapes = [weight.shape for weight in initializers(node.op, node.attrs, inputs)]
        if not shapes:
            continue
        if value not in recorder.numbers:
            raise InputError(f"the weights of an operator {node.op} are unknown")
        weights = zip(recorder.numbers[value], shapes, strict=True)
        arrays[value] = [_array(numbers(), shape) for numbers, shape in weights]
    return graph, arrays


def _array(numbers: Tensor, shape: tuple[int, ...]) -> np.ndarray:
    if numbers.numel() != prod(shape):
        raise InputError(f"weights of shape {list(shape)} are computed as {list(numbers.shape)}")
    numbers = numbers.detach().cpu()
    if numbers.dtype == torch.bfloat16:
        numbers = numbers.float()
    return numbers.reshape(shape).numpy()


def example_tensors(example: Example) -> list[Tensor]:
    """The tensors of an example input, in the order of the graph's inputs."""
    return [x for x in tree_leaves(arguments(example)) if isinstance(x, Tensor)]


def layer_of(error: BaseException, module: nn.Module) -> str:
    """Suffix for a message: the module's innermost layer in which an error was raised, or ""."""
    names = {id(layer): name for name, layer in module.named_modules() if name}
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    for frame in reversed(frames):
        layer = frame.f_locals.get("self")
        if id(layer) in names:
            return f" (in layer {names[id(layer)]!r}, {type(layer).__name__})"
    return ""


# --- for any batch size


def recorded(
    module: nn.Module,
    example: Example,
    any_batch: bool,
    new_recorder: NewRecorder = Recorder,
) -> tuple[Graph, Recorder]:
    """The graph before fusion, and its recorder.

    Args:
        module: the module.
        example: see `record`.
        any_batch: see `record`.
        new_recorder: makes the recorder of each attempt, with the arguments of `Recorder`.
    """
    evaluating(module)
    check_untransformed(module)
    if is_lazy(module):
        with torch.no_grad(), torch.compiler.set_stance("force_eager"):
            run(module, example)
    create = partial(new_recorder, weights=DerivedWeights())
    try:
        return _recorded_for_any_batch(module, example, create)
    except Exception as error:
        # The module's code may not work for other batch sizes. If it does not work for the
        # example's either, that error is the one to report.
        literal = _called(module, example, None, create)
        if any_batch:
            size = example_tensors(example)[0].shape[:1]
            reason = f"{describe(error)}{layer_of(error, module)}"
            raise InputError(
                f"the network works for a batch of {size[0] if size else 1} only: {reason}"
            ) from error
        return literal


def _recorded_for_any_batch(
    module: nn.Module,
    example: Example,
    new_recorder: NewRecorder,
) -> tuple[Graph, Recorder]:
    """The graph with a symbolic batch size.

    Raises any error if the module works for its example's batch size only.
    """
    graph, recorder = _called(module, example, BATCH_SIZE, new_recorder)
    settings = [value for node in graph.nodes for _, value in node.attrs]
    if any(_follows_from_batch(value) for value in settings):
        raise InputError("a number follows from the batch size")
    if recorder.sizes_read:
        other, again = _called(module, example, OTHER_BATCH_SIZE, new_recorder)
        if graph != other or not _same_buffers(graph, recorder, again):
            raise InputError("the computation depends on the batch size")
    return graph, recorder


def _follows_from_batch(value: object) -> bool:
    """True for a number that was computed from the recorded batch size.

    This is a multiple, a part, or a root of one.
    """
    if not isinstance(value, int | float) or not 0 < abs(value) < inf:
        return False
    for power in (1.0, -1.0, 2.0, -2.0):
        number = abs(value) ** power
        for ratio in (number / BATCH_SIZE, BATCH_SIZE / number):
            is_possible = 0.5 < ratio < MAX_RATIO
            if is_possible and abs(ratio - round(ratio)) < 2e-7 * ratio:
                return True
    return False


def _same_buffers(graph: Graph, recorder: Recorder, other: Recorder) -> bool:
    """True if the long constants of two recordings of one graph have equal numbers."""
    for node in graph.nodes:
        value = node.outputs[0]
        if node.op != "Buffer" or value not in recorder.numbers:
            continue
        a = recorder.numbers[value][0]()
        b = other.numbers[value][0]()
        if a.is_meta or a is b:
            continue
        if not torch.equal(a.nan_to_num(), b.nan_to_num()):
            return False
    return True


# --- one call


def _called(
    module: nn.Module,
    example: Example,
    batch: int | None,
    new_recorder: NewRecorder,
) -> tuple[Graph, Recorder]:
    """The graph of a call with this batch size; None for that of the example."""
    shared: frozenset[int] = frozenset()
    while True:
        recorder = new_recorder(shared, batch, module.buffers())
        recorder.precisions = precisions_of_parameters(module)
        result = _result(module, example, batch, recorder)
        graph = _graph(recorder, result)
        if recorder.used_twice <= shared:
            return graph, recorder
        shared |= recorder.used_twice


def _result(
    module: nn.Module,
    example: Example,
    batch: int | None,
    recorder: Recorder,
) -> Any:
    """What the module returns for values of the shapes of the example."""
    # 1. Every tensor of the example becomes an input of the graph.
    leaves, structure = tree_flatten(arguments(example))
    tensors = [x for x in leaves if isinstance(x, Tensor)]
    if not tensors:
        raise InputError("the example input holds no tensor")
    samples = tensors[0].shape[0] if batch and tensors[0].dim() else None
    inputs = iter([recorder.add_input(_input_shape(x, samples)) for x in tensors])
    values = [next(inputs) if isinstance(x, Tensor) else x for x in leaves]
    args, kwargs = tree_unflatten(values, structure)
    # 2. The call; a compiled module is called as it was before.
    plain = torch.compiler.set_stance("force_eager")
    tracing = as_while_tracing(module, recorder.is_value)
    before = unchanged(module, recorder.before_change)
    with before, torch.no_grad(), plain, tracing, recorder:
        return module(*args, **kwargs)


def _input_shape(x: Tensor, samples: int | None) -> Shape:
    """The shape, whose first dimension is the batch if it has as many samples."""
    dims: list[Dim] = list(x.shape)
    if dims and dims[0] == samples:
        dims[0] = BATCH
    return typed(dims, element(x.dtype))


def _graph(recorder: Recorder, result: Any) -> Graph:
    """The graph of the tensors that a module returned."""
    leaves, _ = tree_flatten_with_path(result)
    names: dict[int, str] = {}  # by value: equal outputs are one
    for path, x in leaves:
        if isinstance(x, Tensor):
            names.setdefault(recorder.value(recorder.weights.current(x)), ".".join(map(_key, path)))
    if not names:
        raise InputError(f"forward returned {type(result).__name__}, which holds no tensor")
    outputs = []
    for value in names:
        is_input = value < len(recorder.inputs)
        outputs.append(recorder.emit("Identity", (value,), ()) if is_input else value)
    nodes = live(recorder.nodes, outputs)
    recorder.count_owners({v for node in nodes for v in node.outputs})
    shapes = tuple(recorder.shapes)
    is_named = isinstance(result, Mapping)
    return Graph(
        recorder.inputs, nodes, tuple(outputs), shapes, tuple(names.values()) if is_named else ()
    )


def _key(entry: Any) -> str:
    """A step into nested outputs: the key of a dictionary, or the place in a tuple."""
    return str(getattr(entry, "key", getattr(entry, "idx", getattr(entry, "name", entry))))


def live(nodes: list[Node], outputs: list[int]) -> tuple[Node, ...]:
    """The nodes on which the outputs depend, and all `Param` nodes."""
    needed, kept = set(outputs), []
    for node in reversed(nodes):
        if node.outputs[0] in needed or node.op == "Param":
            needed.update(node.inputs)
            kept.append(node)
    return tuple(kept[::-1])
