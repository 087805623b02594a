"""Read a module once: its graph, the tensors of the module behind every operator, and the calls of
its layers.

1. `LinkedRecorder` records a call of the module as for a text, and notes which tensors each operator
   owns, and where the calls of layers begin and end.
2. What an operator owns may be computed, such as a normalized weight. A second graph, of weights,
   computes all of it from the module's parameters and buffers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from search_spaces.common.errors import InputError
from search_spaces.ir.graph import Graph
from search_spaces.ir.ops import initializers
from search_spaces.ir.pytorch import recording
from search_spaces.ir.pytorch.calls import function_name, mapped, tensors_in
from search_spaces.ir.pytorch.modules import Example
from search_spaces.ir.pytorch.recorder import Recorder
from search_spaces.ir.pytorch.weights import Derived


@dataclass(frozen=True)
class Passed:
    """Stands for a tensor argument that a layer returns as it is.

    Attributes:
        place: its place among the tensors of the arguments.
    """

    place: int


@dataclass
class Call:
    """One call of a layer.

    Attributes:
        name: name of the layer in the module.
        start: number of nodes before the call.
        end: number of nodes after the call.
        source: value of its first tensor argument; None if that is no value of the graph.
        results: values of the tensors that it returned; None for tensors that are no values of the
            graph.
        passed: for each of these, True if it is one of the arguments.
        returned: what it returned, such as a tuple, with `...` for its first tensor, and `Passed`
            for further ones that are arguments; None for what is neither that nor a number or
            string.
    """

    name: str
    start: int
    end: int = 0
    source: int | None = None
    results: tuple[int | None, ...] = ()
    passed: tuple[bool, ...] = ()
    returned: Any = ...


class LinkedRecorder(Recorder):
    """A recorder that notes which tensors of the module its operators own.

    Attributes:
        owned: tensors of each operator by its output value, in the order of
            `search_spaces.ir.ops.weights`, each with True if the operator has it transposed.
        params: tensor of each `Param` by its output value.
        statistics: mean and variance of each batch normalization by its output value.
        recurrent: weights of each recurrent operator by its output value, in torch's order.
        recurrent_calls: a number that the operators of one call of a recurrent module share, by
            their output value.
        recurrent_params: output values of the `Param`s that are a recurrent layer's weights in ONNX's
            form, because several of its operators read them.
        calls: calls of layers, in the order of their ends.
        computed_constants: constants that were computed from the module's buffers, by identity.
    """

    def __init__(self, *args: Any, module: nn.Module, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._module = module
        self._watching = ExitStack()
        self._watching_calls = 0
        self.owned: dict[int, list[tuple[Tensor, bool]]] = {}
        self.params: dict[int, Tensor] = {}
        self.statistics: dict[int, tuple[Tensor | None, Tensor | None]] = {}
        self.recurrent: dict[int, list[Tensor]] = {}
        self.recurrent_calls: dict[int, int] = {}
        self.recurrent_params: set[int] = set()
        self.calls: list[Call] = []
        self.computed_constants: dict[int, Derived] = {}
        self._buffers = {id(x) for x in module.buffers()}
        self._taken: list[tuple[Tensor, bool]] = []

    def __enter__(self) -> Self:
        if not self._watching_calls:  # it is entered again inside of some functions
            self._watching.enter_context(_noting_calls(self._module, self))
        self._watching_calls += 1
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._watching_calls -= 1
        if not self._watching_calls:
            self._watching.close()

    def take(self, x: Tensor, transposed: bool = False) -> tuple[int, ...]:
        before = len(self.nodes)
        shape = super().take(x, transposed)
        # A computed weight has further sources, such as the learned scale of a normalized weight;
        # each is a `Param`.
        sources = dict(self.weights.sources(x))
        replaced = next(i for i, source in sources.items() if source.numel() == x.numel())
        del sources[replaced]
        for node, source in zip(self.nodes[before:], sources.values(), strict=True):
            self.params[node.outputs[0]] = source
        self._taken.append((x, transposed))
        return shape

    def emit(self, op: str, inputs: tuple[int, ...], attrs: Any) -> int:
        number = super().emit(op, inputs, attrs)
        if op == "Param":
            return number
        shapes = tuple([self.shapes[v] for v in inputs])
        count = len(initializers(op, self.nodes[-1].attrs, shapes))
        if op == "BatchNorm":
            count -= 2  # its running statistics are not taken
        if 0 < count <= len(self._taken):
            # The last ones: those before them belong to a node that is added later.
            self.owned[number] = self._taken[-count:]
            del self._taken[-count:]
        return number

    def _weight_as_value(self, x: Tensor) -> Tensor:
        is_new = id(x) not in self.weights_as_values
        before = len(self.nodes)
        made = super()._weight_as_value(x)
        new_nodes = self.nodes[before:]
        if is_new and [node.op for node in new_nodes] == ["Param"]:
            (param,) = new_nodes
            self.params[param.outputs[0]] = x
        return made

    def handled(
        self,
        func: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        name = function_name(func)
        if name in ("lstm", "gru", "rnn_tanh", "rnn_relu"):
            return self._recurrent_call(func, args, kwargs)
        before = len(self.nodes)
        made = super().handled(func, args, kwargs)
        if name == "batch_norm":
            names = ("input", "running_mean", "running_var")
            arguments = dict(zip(names, args, strict=False)) | kwargs
            statistics = (arguments.get("running_mean"), arguments.get("running_var"))
            for node in self.nodes[before:]:
                if node.op == "BatchNorm":
                    self.statistics[node.outputs[0]] = statistics
        return made

    def _recurrent_call(
        self,
        func: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Record a call of a recurrent module, and note which of its operators has which weights."""
        before = len(self.nodes)
        made = super().handled(func, args, kwargs)
        nodes = [node for node in self.nodes[before:] if node.op in ("LSTM", "GRU", "RNN")]
        params = args[2]
        num_layers = args[4]
        params_per_layer = len(params) // num_layers
        nodes_per_layer = len(nodes) // num_layers
        for i, node in enumerate(nodes):
            output = node.outputs[0]
            layer = i // nodes_per_layer
            start = layer * params_per_layer
            self.recurrent[output] = list(params[start : start + params_per_layer])
            self.recurrent_calls[output] = before
            self.recurrent_params.update(node.inputs[1:])
        return made

    def _constant(
        self,
        name: str,
        func: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        tensors: Sequence[Tensor],
    ) -> Any:
        """Compute a function of constants, and note what is computed from buffers."""
        made = super()._constant(name, func, args, kwargs, tensors)
        own = self._buffers | self.computed_constants.keys()
        if own.isdisjoint([id(x) for x in tensors]):
            return made
        is_one = isinstance(made, Tensor)
        for i, x in enumerate([made] if is_one else tensors_in(made)):
            if x.is_floating_point() and all(x is not y for y in tensors):
                part = None if is_one else i
                self.computed_constants[id(x)] = Derived(x, (func, args, kwargs), part, {})
        return made

    def number_of(self, x: Any) -> int | None:
        """The value of a tensor; None if it is none of the graph."""
        recorded = self.values.get(x)
        return None if recorded is None else recorded.number


@dataclass
class Reading:
    """What one call of a module shows.

    Attributes:
        graph: the graph before fusion.
        recorder: the recorder of that call.
        owned: values of `weight_graph` that each operator owns, by its output value; None for a
            weight that cannot be followed to parameters.
        params: value of `weight_graph` of each `Param`, by its output value; None as above.
        weight_graph: computes the weights of all operators from the module's parameters.
        sources: the parameter or buffer of each `Param` and `Buffer` of `weight_graph`, by its
            value.
        numbers: compute the numbers of the weights in `owned` and `params`, by their value of
            `weight_graph`.
        standardized: values of `weight_graph` that stand for a parameter of the same shape,
            normalized over all axes but the first.
        buffers: the module's buffer of each `Buffer` of the graph, by its value.
        constants: constants that are computed from the module's buffers, or are short buffers, by
            their value: value of `weight_graph`, and numbers.
    """

    graph: Graph
    recorder: LinkedRecorder
    owned: dict[int, list[int | None]]
    params: dict[int, int | None]
    weight_graph: Graph
    sources: dict[int, Tensor]
    numbers: dict[int, Callable[[], Tensor]]
    standardized: frozenset[int] = frozenset()
    buffers: dict[int, Tensor] = field(default_factory=dict)
    constants: dict[int, tuple[int, Tensor]] = field(default_factory=dict)

    def origins(self, value: int) -> list[int]:
        """The sources that a value of the graph of weights is computed from."""
        maker = {node.outputs[0]: node for node in self.weight_graph.nodes}
        waiting = [value]
        seen = {value}
        while waiting:
            node = maker[waiting.pop()]
            for read in node.inputs:
                if read not in seen:
                    seen.add(read)
                    waiting.append(read)
        return sorted(seen & self.sources.keys())


def read_module(module: nn.Module, example: Example) -> Reading:
    """Record one call of a module.

    Raises:
        InputError: as `search_spaces.ir.pytorch.record`.
    """
    new_recorder = partial(LinkedRecorder, module=module)
    graph, recorder = recording.recorded(module, example, True, new_recorder)
    assert isinstance(recorder, LinkedRecorder)
    return _linked(graph, recorder, module)


@contextmanager
def _noting_calls(module: nn.Module, recorder: LinkedRecorder) -> Iterator[None]:
    """Note the calls of all layers within the block."""
    open_calls: list[Call] = []
    handles = []

    def before(name: str) -> Callable[..., None]:
        def hook(layer: nn.Module, args: Any, kwargs: Any) -> None:
            tensors = _tensors_in((args, kwargs))
            source = recorder.number_of(tensors[0]) if tensors else None
            open_calls.append(Call(name, len(recorder.nodes), source=source))

        return hook

    def after(
        layer: nn.Module,
        args: Any,
        kwargs: Any,
        output: Any,
    ) -> None:
        call = open_calls.pop()
        call.end = len(recorder.nodes)
        arguments = _tensors_in((args, kwargs))
        results = _tensors_in(output)
        call.results = tuple([recorder.number_of(x) for x in results])
        call.passed = tuple([any(x is y for y in arguments) for x in results])
        call.returned = _without_tensors(output, arguments)
        recorder.calls.append(call)

    for name, layer in module.named_modules():
        handles.append(layer.register_forward_pre_hook(before(name), with_kwargs=True))
        handles.append(layer.register_forward_hook(after, with_kwargs=True))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _tensors_in(values: Any) -> list[Tensor]:
    """The tensors in nested arguments or results."""
    return [x for x in tree_leaves(values) if isinstance(x, Tensor)]


def _without_tensors(output: Any, arguments: list[Tensor]) -> Any:
    """What a layer returned for tensors, as in `Call.returned`."""
    first = next(iter(_tensors_in(output)), None)

    def replaced(leaf: Any) -> Any:
        if leaf is first:
            return ...
        for place, x in enumerate(arguments):
            if leaf is x:
                return Passed(place)
        return leaf if isinstance(leaf, str | int | float) else None

    return tree_map(replaced, output)


def _linked(graph: Graph, recorder: LinkedRecorder, module: nn.Module) -> Reading:
    """Add the graph that computes the weights of all operators from the module's parameters."""
    buffers_of_module = {id(x): x for x in module.buffers()}
    links = _WeightGraph(recorder, module)

    # 1. Running statistics are no constants of the graph: they are sliced like parameters.
    statistics: dict[int, list[Tensor]] = {}
    for number, pair in recorder.statistics.items():
        statistics[number] = []
        for x in pair:
            if x is not None and id(x) in buffers_of_module:
                statistics[number].append(x)
                links.add_param(x)

    # 2. The weights that operators own, and those that are values.
    owned: dict[int, list[int | None]] = {}
    for number, weights in recorder.owned.items():
        owned[number] = [links.oriented(x, transposed) for x, transposed in weights]
    for number, tensors in statistics.items():
        owned.setdefault(number, [])
        owned[number] += [links.value(x) for x in tensors]
    for number, matrices in recorder.recurrent.items():
        owned[number] = [links.value(x) for x in matrices]
    params = {number: links.value(x) for number, x in recorder.params.items()}

    # 3. Constants of the graph that are computed from buffers.
    constants: dict[int, tuple[int, Tensor]] = {}

    def follow(x: Tensor, number: int) -> None:
        value = links.constant(x)
        if value is not None:
            constants[number] = value, x

    for i, (x, number) in recorder.constants_as_values.items():
        if i in recorder.computed_constants and not any(map(recorder.is_batch, x.shape)):
            follow(x, number)

    # 4. Buffers that are constants themselves. Long ones are values without numbers.
    op_of = {node.outputs[0]: node.op for node in graph.nodes}
    buffers: dict[int, Tensor] = {}
    for i, (x, number) in recorder.constants_as_values.items():
        if i not in buffers_of_module:
            continue
        if links.has_buffer(x) or op_of.get(number) not in ("Buffer", "Expand"):
            follow(x, number)
        else:
            buffers[number] = x
    return Reading(
        graph=graph,
        recorder=recorder,
        owned=owned,
        params=params,
        weight_graph=links.graph(),
        sources=links.sources(buffers_of_module),
        numbers=links.numbers,
        standardized=frozenset(links.standardized.values()),
        buffers=buffers,
        constants=constants,
    )


class _WeightGraph:
    """Collects the graph of weights: a recording of what the module computes from its parameters.

    Args:
        recorder: the recorder of the network.
        module: the module, of which all parameters are values here.

    Attributes:
        numbers: compute the numbers of weights, by value.
        standardized: by identity of a weight that has no operators, the value that stands for it.
    """

    def __init__(self, recorder: LinkedRecorder, module: nn.Module) -> None:
        self.recorder = recorder
        self.parameters = {id(p): p for p in module.parameters()}
        self.tensors = Recorder(
            frozenset(self.parameters),
            recorder.batch,
            module.buffers(),
            recorder.weights,
        )
        self.numbers: dict[int, Callable[[], Tensor]] = {}
        self.standardized: dict[int, int] = {}
        self._buffers = {id(x) for x in module.buffers()}
        self._constants: dict[int, Tensor] = {}  # values that stand for constants, by identity

    def add_param(self, x: Tensor) -> None:
        """Let a buffer be a parameter of the graph."""
        number = self.tensors.emit("Param", (), (("shape", tuple(x.shape)),))
        self.tensors.constants_as_values[id(x)] = x, number

    def value(self, x: Tensor | None) -> int | None:
        """The value of a weight; None if it cannot be followed to parameters."""
        if x is None:
            return None
        number = self.standardized.get(id(x))
        if number is None:
            try:
                number = self.tensors.value(x)
            except InputError:  # a function of weights that has no operator
                parameter = _standardized(x, self.recorder)
                if parameter is None:
                    return None
                source = self.tensors.value(parameter)
                number = self.tensors.emit("Identity", (source,), ())
                self.standardized[id(x)] = number
        self.numbers[number] = lambda: self.recorder.weights.computed(x)
        return number

    def constant(self, x: Tensor) -> int | None:
        """The value of a constant that buffers make; None if it cannot be followed to these."""
        if x.is_meta or not x.is_floating_point():
            return None
        try:
            return self.tensors.value(self._constant(x))
        except InputError:  # a function that has no operator
            return None

    def _constant(self, x: Tensor) -> Tensor:
        """A value that stands for a constant; the constant itself if no buffer makes it."""
        derived = self.recorder.computed_constants.get(id(x))
        if id(x) in self._constants:
            return self._constants[id(x)]
        if id(x) in self._buffers and x.dim() > 0:
            if not self.has_buffer(x):
                self.add_param(x)
            _, number = self.tensors.constants_as_values[id(x)]
            self._constants[id(x)] = self.tensors.tensor(number, tuple(x.shape))
        elif derived is not None:
            func, args, kwargs = derived.call
            made: Any = self.tensors.call(
                func, *mapped(self._constant, args), **mapped(self._constant, kwargs)
            )
            self._constants[id(x)] = made if derived.part is None else made[derived.part]
        else:
            return x
        return self._constants[id(x)]

    def has_buffer(self, x: Tensor) -> bool:
        """True if a buffer is a parameter of the graph."""
        return id(x) in self.tensors.constants_as_values

    def oriented(self, x: Tensor, transposed: bool) -> int | None:
        """The value of a weight as its operator has it."""
        number = self.value(x)
        if not transposed or number is None:
            return number
        turned = self.tensors.emit("Transpose", (number,), (("perm", (1, 0)),))
        self.numbers[turned] = lambda: self.recorder.weights.computed(x).T
        return turned

    def graph(self) -> Graph:
        return Graph((), tuple(self.tensors.nodes), (), tuple(self.tensors.shapes))

    def sources(self, buffers: dict[int, Tensor]) -> dict[int, Tensor]:
        """The parameter or buffer behind each value that is not computed."""
        sources: dict[int, Tensor] = {}
        for i, made in self.tensors.weights_as_values.items():
            if i in self.parameters:
                value = self.tensors.values.get(made)
                assert value is not None
                sources[value.number] = self.parameters[i]
        for i, (_, number) in self.tensors.constants_as_values.items():
            if i in buffers:
                sources[number] = buffers[i]
        return sources


def _standardized(x: Tensor, recorder: LinkedRecorder) -> nn.Parameter | None:
    """The parameter that a weight is a normalized version of, row by row; None if it is none.

    That is tried: noise on the last row of the parameter must change the last row of the weight
    alone.
    """
    # 1. The only parameter of the weight's shape.
    sources = recorder.weights.sources(x).values()
    alike = [source for source in sources if source.shape == x.shape]
    if len(alike) != 1 or alike[0].is_meta or x.dim() < 2:
        return None
    (parameter,) = alike

    # 2. The weight before and after the change, which is undone.
    original = parameter.detach().clone()
    last = original[-1]
    with torch.no_grad():
        before = recorder.weights.computed(x).clone()
        generator = torch.Generator().manual_seed(0)
        noise = torch.randn(last.shape, generator=generator)
        parameter[-1] += noise.to(original)
        after = recorder.weights.computed(x).clone()
        parameter.copy_(original)

    # 3. The rows that changed.
    changed = (before != after).flatten(1).any(1)  # (rows,)
    *others, last_changed = changed.tolist()
    return parameter if last_changed and not any(others) else None
