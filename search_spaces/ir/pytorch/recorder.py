"""`Recorder`: intercepts calls of torch functions, and adds their operators to a graph.

While a module runs, three kinds of tensors meet:

- *values* of the graph depend on the input. They have shapes, but no data.
- *weights* are parameters, and what is computed from parameters alone.
- *constants* depend on neither; they are computed as usual.

A call is recorded in three steps:

1. `__torch_function__` looks at its tensors. Without a value among them, it computes: a constant, or a
   weight, whose computation is remembered (`weights`).
2. With one, the handler of the function runs; `HANDLERS` has them by name. Functions of torch that are
   written in Python need none: the functions that they call are recorded.
3. The handler calls `add` or `add_node`, which append ONNX operators (`emit`), and returns a new value.
   A layer's handler takes the weights that its operator owns (`take`); other weights and constants
   become values when they are read (`value`).
"""

from __future__ import annotations

import types as python_types
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from search_spaces.common.errors import InputError
from search_spaces.ir import standard
from search_spaces.ir.graph import (
    BATCH,
    MAX_NODES,
    UNKNOWN,
    Attrs,
    Dim,
    Node,
    Shape,
    Value,
    element_type,
)
from search_spaces.ir.ops import canonical_attrs, initializers, output_shape
from search_spaces.ir.precision import PRECISION
from search_spaces.ir.pytorch import constants
from search_spaces.ir.pytorch.calls import (
    DATA_DEPENDENT,
    DATA_FREE,
    DTYPES,
    RANDOM,
    SIZES,
    VIEWS,
    element,
    function_name,
    is_in_place,
    mapped,
    memory,
    tensors_in,
    without_dispatch,
    without_numbers,
)
from search_spaces.ir.pytorch.tensors import ValueTensors
from search_spaces.ir.pytorch.weights import DerivedWeights, add_derived

BATCH_SIZE = 9973  # a large prime: sizes that are its multiples contain the batch size
MAX_WRITTEN_NUMBERS = 64  # longest constant operand that becomes an attribute

Handler = Callable[..., Any]
Numbers = Callable[[], Tensor]
"""Returns the numbers of a weight or constant, which are computed only when they are written."""
HANDLERS: dict[str, Handler] = {}
"""By name of a torch function, the handler that adds its operators to a recorder."""


def handles(*names: str) -> Callable[[Handler], Handler]:
    """Register the handler of torch functions.

    In-place variants (`add_`, `__iadd__`) use it, too.
    """

    def register(handler: Handler) -> Handler:
        HANDLERS.update(dict.fromkeys(names, handler))
        return handler

    return register


class Recorder(TorchFunctionMode):
    """Records the torch functions that are called while it is active.

    Args:
        shared: identities of parameters that several layers read; they become values of the graph.
        batch: size that stands for the batch size N; None if all sizes are literal.
        buffers: the module's constants, which may have no numbers.
        weights: what earlier recordings of the module computed from its parameters, which it may
            have kept.

    Attributes:
        nodes: the operators in the order of their calls.
        shapes: shapes of all values, by number.
        inputs: numbers of the input values.
        numbers: numbers of the weights and constants that nodes own, by output value.
        values: the tensors that are values of the graph.
        weights_as_values: the graph's tensor for each weight that became a value, by the weight's
            identity.
        constants_as_values: each constant that became a value, and the number of the value, by the
            constant's identity.
        constant_numbers: of the constants that became values.
        parts: by view that indexing made: the tensor, and the index.
        sizes_read: whether the module's code asked for the sizes of a value.
        precisions: of layers, by the identity of their parameters.
    """

    def __init__(
        self,
        shared: frozenset[int] = frozenset(),
        batch: int | None = BATCH_SIZE,
        buffers: Iterable[Tensor] = (),
        weights: DerivedWeights | None = None,
    ) -> None:
        super().__init__()
        self.shared, self.batch = shared, batch
        self.weights = DerivedWeights() if weights is None else weights
        # The graph.
        self.inputs: tuple[int, ...] = ()
        self.nodes: list[Node] = []
        self.shapes: list[Shape] = []
        self.numbers: dict[int, list[Numbers]] = {}
        self._pending: list[Numbers] = []  # of the node that is added next
        # Tensors, the latter by identity.
        self.values = ValueTensors()
        self.weights_as_values: dict[int, Tensor] = {}
        self.constants_as_values: dict[int, tuple[Tensor, int]] = {}
        self.constant_numbers = constants.ConstantNumbers()
        self._without_numbers = {id(x): x for x in buffers}  # constants
        self.parts: dict[int, tuple[Tensor, list[Any]]] = {}
        # Who reads which parameter.
        self._uses: Counter[int] = Counter()
        self._owners: list[tuple[list[int], list[int]]] = []
        # The call that is recorded.
        self._opened: list[python_types.FunctionType] = []
        self.sizes_read = False
        self.precisions: dict[int, str] = {}

    # --- calls

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Any = None,
    ) -> Any:
        kwargs = kwargs or {}
        name = function_name(func)

        # 1. Shapes and types are known without data.
        self.sizes_read |= name in SIZES
        if name in DATA_FREE:
            return func(*args, **kwargs)
        if func.__name__ == "__get__" and name not in VIEWS:
            return torch.device("cpu") if name == "device" else func(*args, **kwargs)

        # 2. Values make values, weights make weights.
        tensors = [self.weights.current(x) for x in tensors_in((args, kwargs))]
        if any(x in self.values for x in tensors):
            return self.handled(func, *mapped(self.weights.current, (args, kwargs)))
        if any(self.weights.is_weight(x) for x in tensors):
            return self.weights.derive(func, args, kwargs)

        # 3. Constants become values where their numbers differ in every call, or where the batch
        #    is joined with another dimension, which a constant for one sample cannot show.
        if name in RANDOM:
            return self._random(name, func, args, kwargs)
        if name in HANDLERS and constants.joins_batch(self.batch, name, func, args, kwargs):
            first, *others = args
            return self.handled(func, (self.as_value(first), *others), kwargs)

        # 4. Other constants are computed.
        return self._constant(name, func, args, kwargs, tensors)

    def call(self, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a torch function as a module would.

        Handlers use it for functions that consist of others.
        """
        return self.__torch_function__(func, (), args, kwargs)

    def handled(
        self,
        func: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Record a call with a value among its arguments."""
        name = function_name(func)

        # 1. The handler, which also serves the variants that change their first argument.
        handler = HANDLERS.get(name)
        in_place = False
        if handler is not None and "inplace" in kwargs:
            kwargs = dict(kwargs)
            in_place = kwargs.pop("inplace")
        if handler is None and name.endswith("_") and not name.startswith("__"):
            handler = HANDLERS.get(name[:-1])
            in_place = True
        elif handler is None and name.startswith("__i") and name.endswith("__"):
            handler = HANDLERS.get(f"__{name[3:]}")
            in_place = True

        # 2. Without a handler: the functions that it calls are recorded, if there are any.
        if name in DATA_DEPENDENT:
            raise InputError(
                f"{name.strip('_')} depends on the data, but the architecture must not"
            )
        is_python = isinstance(func, python_types.FunctionType)
        if handler is None and is_python and func not in self._opened:
            return self._inside(func, args, kwargs)  # type: ignore[arg-type]
        if handler is None or kwargs.get("out") is not None:
            raise InputError(
                f"torch's function {name!r} is not supported: see docs/how-to/own_model.md"
            )

        # 3. Its operators.
        try:
            made = handler(self, *args, **kwargs)
        except TypeError as error:
            trace = error.__traceback__
            is_of_this_call = trace is not None and trace.tb_next is None
            if not is_of_this_call:
                raise
            raise InputError(
                f"torch's function {name!r} is not supported with these arguments ({error})"
            ) from error
        return self.assign(args[0], made) if in_place and made is not args[0] else made

    def _inside(
        self,
        func: python_types.FunctionType,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Record the functions that a Python function of torch calls."""
        self._opened.append(func)
        try:
            with self:
                return without_dispatch(func)(*args, **kwargs)
        finally:
            self._opened.pop()

    def _random(
        self,
        name: str,
        func: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Tensor:
        """Record numbers that are drawn in every call.

        A generator's seed is not part of the network.
        """
        options = dict(kwargs)
        options.pop("device", None)
        options.pop("generator", None)
        drawn = without_numbers(func, *args, **options)
        zeros = self.call(torch.zeros, tuple(drawn.shape), dtype=drawn.dtype)
        return self.add_node(RANDOM[name], self.as_value(zeros))

    def _constant(
        self,
        name: str,
        func: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        tensors: Sequence[Tensor],
    ) -> Any:
        """Compute a function of constants, and note which of them share memory."""
        changed = kwargs.get("out")
        if changed is None and args and (is_in_place(name) or kwargs.get("inplace")):
            changed = args[0]
        if isinstance(changed, Tensor):
            self.before_change(changed)
        made = constants.compute(self.batch, name, func, args, kwargs)
        # What is made of a buffer without numbers has none, either.
        have_none = [id(x) in self._without_numbers for x in tensors if x.is_meta]
        if have_none and all(have_none):
            self._without_numbers |= {id(x): x for x in tensors_in(made)}
        is_one = isinstance(made, Tensor)
        for i, x in enumerate([made] if is_one else tensors_in(made)):
            others = [y for y in tensors if y is not x and memory(y) == memory(x)]
            if others and is_one:
                self.constant_numbers.viewed |= {id(y): y for y in (x, *tensors)}
            if others and all(x is not y for y in tensors) and memory(x):
                self.weights.note_view(x, others[0], (func, args, kwargs), None if is_one else i)
        return made

    def before_change(self, x: Tensor) -> None:
        """Let the graph keep the numbers of a constant that is about to be changed in place."""
        self.constant_numbers.before_change(x)
        for i, (known, _) in list(self.constants_as_values.items()):
            is_changed = known is x if x.is_meta else memory(known) == memory(x)
            if is_changed:  # whoever reads it next reads other numbers
                del self.constants_as_values[i]

    # --- the graph

    def add_input(self, shape: Shape) -> Tensor:
        """Add an input to the graph; return its tensor."""
        number = len(self.shapes)
        self.inputs = (*self.inputs, number)
        self.shapes.append(shape)
        return self.tensor(number)

    def add(self, op: str, *operands: Tensor | float | None, **attrs: Value) -> Tensor:
        """Add an ONNX operator, whose small constant operands become attributes; return its result.

        Args:
            op: name of the operator.
            operands: operands in ONNX's order, None for omitted ones.
            attrs: attributes.
        """
        formal = standard.single_operands(op)
        inputs: dict[int, int] = {}
        for i, operand in enumerate(operands):
            if operand is None:
                continue
            setting = self.setting(operand) if i < len(formal) else None
            if setting is None:
                inputs[i] = self.value(operand)
            else:
                attrs[formal[i]] = setting
        arranged = standard.arrange(op, inputs, attrs, len(operands))
        return self.add_node(op, *arranged, **attrs)

    def add_node(self, op: str, *inputs: int | Tensor, **attrs: Value) -> Tensor:
        """Add an operator whose inputs are all values; return its result."""
        numbers = tuple([self.value(x) if isinstance(x, Tensor) else x for x in inputs])
        return self.tensor(self.emit(op, numbers, tuple(attrs.items())))

    def emit(self, op: str, inputs: tuple[int, ...], attrs: Attrs) -> int:
        """Add a node; return the number of its output value.

        Args:
            op: name of the operator.
            inputs: numbers of its input values.
            attrs: attributes in any order and form.

        Raises:
            InputError: if operator, attributes and shapes do not match, or the graph has
                `MAX_NODES` nodes.
        """
        if len(self.nodes) >= MAX_NODES:
            raise InputError(
                f"the network calls more than {MAX_NODES:,} operators: if it loops over time, give "
                "a shorter example"
            )
        shapes = tuple([self.shapes[v] for v in inputs])
        kept = canonical_attrs(op, tuple(sorted(attrs)), shapes)
        number = len(self.shapes)
        self.shapes.append(output_shape(op, kept, shapes))
        self.nodes.append(Node(op, inputs, (number,), kept))
        count = 1 if op == "Buffer" else len(initializers(op, kept, shapes))
        if count and len(self._pending) >= count:
            # The last ones: those before them belong to a node that is added later.
            self.numbers[number] = self._pending[-count:]
            del self._pending[-count:]
        return number

    def tensor(self, number: int, sizes: tuple[int, ...] | None = None) -> Tensor:
        """A new tensor for a value of the graph.

        Args:
            number: number of the value.
            sizes: shape of the tensor, if it differs from that of the value.

        Raises:
            InputError: if the shape depends on the data, or torch lacks the element type.
        """
        shape = self.shapes[number]
        kind = element_type(shape)
        if UNKNOWN in shape or kind not in DTYPES:
            raise InputError(f"a value of type {kind}{list(shape)} depends on the data")
        if sizes is None:
            sizes = tuple([self._size(d) for d in shape])
        made = torch.empty(sizes, dtype=DTYPES[kind], device="meta")
        self.values.add(made, number)
        return made

    def _size(self, dim: Dim) -> int:
        """The size that stands for a dimension: N_3 is three times the batch size."""
        if isinstance(dim, int):
            return dim
        assert self.batch is not None
        return prod(self.batch if part == BATCH else int(part) for part in dim.split("_"))

    def is_batch(self, size: int) -> bool:
        """True if a size is a multiple of the batch size."""
        return self.batch is not None and size > 0 and size % self.batch == 0

    def multiple(self, size: int) -> int:
        """How many times the batch size a size is; 1 if it is no multiple."""
        return size // self.batch if self.batch is not None and self.is_batch(size) else 1

    # --- operands

    def is_value(self, x: Any) -> bool:
        """True if `x` is a value of the graph."""
        return x in self.values

    def is_constant(self, x: Any) -> bool:
        """True if `x` is a tensor that depends neither on inputs nor on weights."""
        return isinstance(x, Tensor) and not self.is_value(x) and not self.weights.is_weight(x)

    def value(self, x: Tensor | float) -> int:
        """The number of a tensor's value; weights and constants are added to the graph.

        Raises:
            InputError: if the tensor is outdated, because another view of it was changed in place,
                or if it is neither a value of the graph nor made from weights and constants.
        """
        if not isinstance(x, Tensor):
            x = torch.tensor(x)
        recorded = self.values.get(x)
        if recorded is not None:
            if recorded.is_outdated:
                raise InputError(
                    "a tensor is read after it was changed in place through another view of it"
                )
            return recorded.number
        if self.weights.is_weight(x):
            return self.value(self._weight_as_value(x))
        if x.is_meta and id(x) not in self._without_numbers:
            raise InputError(
                "a tensor comes from a call that is not seen, such as one of torch.vmap or "
                "torch.jit"
            )
        if id(x) not in self.constants_as_values:
            self.constants_as_values[id(x)] = (x, constants.add(self, x))
        return self.constants_as_values[id(x)][1]

    def as_value(self, x: Tensor) -> Tensor:
        """The tensor of the graph for any tensor; weights and constants are added to the graph."""
        return x if self.is_value(x) else self.tensor(self.value(x))

    def setting(self, x: Tensor | float) -> Value | None:
        """A constant operand as the value of an attribute.

        None if it is not constant, too long, or a matrix.
        """
        if not isinstance(x, Tensor):
            return standard.number(x)
        if not self.is_constant(x) or x.is_meta:
            return None
        count = x.numel()
        if count == 1:
            return standard.numbers(x.detach().reshape(()).numpy())
        if not 0 < count <= MAX_WRITTEN_NUMBERS or x.dim() > 1:
            return None
        return standard.numbers(x.detach().numpy())

    # --- weights

    @property
    def used_twice(self) -> frozenset[int]:
        """Identities of the parameters that several layers read."""
        return frozenset(p for p, times in self._uses.items() if times > 1)

    def owned_shape(self, x: Tensor) -> tuple[int, ...] | None:
        """The shape of a weight that a layer can own.

        None for shared weights, values and constants. A computed weight can be owned if it has as
        many elements as one of its parameters.
        """
        if not self.weights.is_weight(x):
            return None
        sources = self.weights.sources(x)
        if self.shared & sources.keys():
            return None
        sizes = [p.numel() for p in sources.values()]
        return tuple(x.shape) if x.numel() in sizes else None

    def take(self, x: Tensor, transposed: bool = False) -> tuple[int, ...]:
        """Let the layer that is added next own a weight; return the weight's shape.

        Args:
            x: a weight with an `owned_shape`.
            transposed: True if ONNX stores the weight transposed.
        """
        sources = self.weights.sources(x)
        self._uses.update(sources.keys())
        # The layer owns the weight instead of one parameter of as many elements. Others, such as a
        # learned scale of the weight, are a `Param` each.
        owned = next(i for i, p in sources.items() if p.numel() == x.numel())
        for i, p in sources.items():
            if i != owned:
                self.param(tuple(p.shape), lambda p=p: self.weights.computed(p))  # type: ignore[misc]

        def numbers() -> Tensor:
            computed = self.weights.computed(x)
            return computed.T if transposed else computed

        self.keep(numbers)
        return tuple(x.shape)

    def precision(self, weight: Tensor) -> dict[str, Value]:
        """The precision of the layer that owns a weight, as an attribute; {} if it has none."""
        for source in self.weights.sources(weight) if self.precisions else ():
            if source in self.precisions:
                return {PRECISION: self.precisions[source]}
        return {}

    def keep(self, *numbers: Numbers) -> None:
        """Add numbers of the weights or the constant of the next node, in ONNX's order."""
        self._pending += numbers

    def param(self, shape: tuple[int, ...], numbers: Numbers, kind: str = "float") -> int:
        """Add a learned tensor to the graph; return the number of its value.

        Scalars become vectors of one element.
        """
        attrs: Attrs = (("shape", shape or (1,)),)
        if kind != "float":
            attrs = (("element", kind), *attrs)
        self.keep(numbers)
        return self.emit("Param", (), attrs)

    def add_owner(self, outputs: list[Tensor], weights: Sequence[Tensor]) -> None:
        """Note that the operators of a layer's outputs all own the same weights."""
        self._owners.append(([self.value(x) for x in outputs], [id(w) for w in weights]))

    def count_owners(self, live: set[int]) -> None:
        """Count the used outputs of the layers of `add_owner` as readers of their weights.

        live: the values that are used.
        """
        for outputs, weights in self._owners:
            for _ in live.intersection(outputs):
                self._uses.update(weights)

    def _weight_as_value(self, x: Tensor) -> Tensor:
        """The tensor of the graph for a weight, which is added to the graph once."""
        if id(x) not in self.weights_as_values:
            self.weights_as_values[id(x)] = self._new_value(x)
        return self.weights_as_values[id(x)]

    def _new_value(self, x: Tensor) -> Tensor:
        """Add a weight to the graph: as a `Param`, or with the operators that compute it."""
        # 1. A parameter, or all numbers of one parameter that nothing else reads, rearranged.
        sources = self.weights.sources(x)
        derived = self.weights.derived.get(id(x))
        is_rearranged = False
        if len(sources) == 1 and not self.shared & sources.keys():
            (parameter,) = sources.values()
            is_rearranged = x.numel() == parameter.numel()
        if derived is None or is_rearranged:
            self._uses.update(sources.keys())
            number = self.param(tuple(x.shape), lambda: self.weights.computed(x), element(x.dtype))
            return self.tensor(number, tuple(x.shape))

        # 2. The operators that compute the weight.
        return add_derived(self, derived, self._derived_value)

    def _derived_value(self, x: Tensor) -> Tensor:
        """The tensor of the graph for a computed weight.

        A parameter stays, since a layer may own it.
        """
        return self._weight_as_value(x) if id(x) in self.weights.derived else x

    # --- views, and changes in place

    def view_of(self, x: Tensor, y: Tensor) -> Tensor:
        """Mark `y` as a view of `x` and return it: in-place changes of one concern the other."""
        self.values.mark_view(x, y)
        return y

    def alias(self, x: Tensor) -> Tensor:
        """Another tensor for the same value."""
        return self.view_of(x, self.tensor(self.value(x)))

    def assign(self, target: Tensor, made: Tensor) -> Tensor:
        """Record that `made` replaces the content of `target` in place; return `target`.

        Raises:
            InputError: if `target` is a weight or has another shape, or views of it would not see
                the change.
        """
        if self.weights.is_weight(target) or id(target) in self.constant_numbers.viewed:
            raise InputError(
                "a weight or view of a constant is changed in place by a value that depends on the "
                "input"
            )
        if target.shape != made.shape:
            raise InputError(
                f"a tensor of shape {list(target.shape)} is changed in place to {list(made.shape)}"
            )
        self.values.change(target, self.value(made))
        return target
