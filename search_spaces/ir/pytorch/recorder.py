"""`Recorder`: intercepts calls of torch functions, and adds their operators to a graph.

There are three kinds of tensors: *values* of the graph, which have no data; *weights*, which are
    parameters and tensors
computed from parameters alone; and *constants*, which are computed.
"""

from __future__ import annotations

import types as python_types
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from search_spaces.common.errors import InputError
from search_spaces.ir import standard
from search_spaces.ir.graph import BATCH, UNKNOWN, Attrs, Dim, Node, Shape, Value, element_type
from search_spaces.ir.onnx.loading import MAX_NODES
from search_spaces.ir.operators import canonical_attrs, output_shape
from search_spaces.ir.owned_weights import initializers
from search_spaces.ir.pytorch import constants
from search_spaces.ir.pytorch.calls import (
    DATA_DEPENDENT,
    function_name,
    is_in_place,
    mapped,
    memory,
    one_of_each,
    tensors_in,
    without_dispatch,
    without_numbers,
)
from search_spaces.ir.pytorch.derived_weights import DerivedWeights
from search_spaces.ir.pytorch.dtypes import DTYPES, element

BATCH_SIZE = 9973  # a large prime: sizes that are its multiples contain the batch size
MAX_WRITTEN_NUMBERS = 64  # longest constant operand that becomes an attribute

Handler = Callable[..., Any]
Numbers = Callable[[], Tensor]
"""Returns the numbers of a weight or constant, which are computed only when they are written."""
HANDLERS: dict[str, Handler] = {}
"""By name of a torch function, the handler that adds its operators; it is called with recorder and arguments."""

# Functions whose results do not depend on the numbers of a tensor.
_DATA_FREE = frozenset(
    {"dim", "size", "numel", "nelement", "stride", "is_contiguous", "element_size", "is_floating_point", "is_complex",
     "get_device", "storage_offset", "__len__", "ndimension", "__repr__", "__format__", "type", "is_same_size",
     "result_type", "can_cast", "is_signed", "requires_grad_", "is_tensor", "__hash__", "is_inference", "is_conj",
     "is_neg", "untyped_storage", "data_ptr"}
)  # fmt: skip
_SIZES = frozenset({"shape", "size", "numel", "nelement", "__len__"})
_RANDOM = {"rand": "RandomUniformLike", "rand_like": "RandomUniformLike", "randn": "RandomNormalLike",
           "randn_like": "RandomNormalLike"}  # fmt: skip
"""Functions that draw other numbers in every call, and their operators."""
_VIEWS = frozenset({"T", "mT", "data", "real"})  # attributes that are views of a tensor


def handles(*names: str) -> Callable[[Handler], Handler]:
    """Register the handler of torch functions; in-place variants (`add_`, `__iadd__`) use it,
    too.
    """

    def register(handler: Handler) -> Handler:
        HANDLERS.update(dict.fromkeys(names, handler))
        return handler

    return register


class _Recorded(NamedTuple):
    """A tensor that is a value of the graph.

    Attributes:
        tensor: tensor without data, kept so that its identity stays unique.
        number: number of the value.
        changes: number of in-place changes, shared by all views of the same memory.
        seen: number of in-place changes when this view was made.
    """

    tensor: Tensor
    number: int
    changes: list[int]
    seen: int


class Recorder(TorchFunctionMode):
    """Records the torch functions that are called while it is active.

    Args:
        shared: identities of parameters that several layers read; they become values of the graph.
        batch: size that stands for the batch size N; None if all sizes are literal.
        buffers: the module's constants, which may have no numbers.
        weights: what earlier recordings of the module computed from its parameters, which it may
            have kept.
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
        self._without_numbers = {id(x): x for x in buffers}  # constants
        self.inputs: tuple[int, ...] = ()
        self.nodes: list[Node] = []
        self.shapes: list[Shape] = []
        self._recorded: dict[int, _Recorded] = {}
        self.weights = DerivedWeights() if weights is None else weights
        self._materialized: dict[int, Tensor] = {}
        self._constants: dict[int, tuple[Tensor, int]] = {}
        self._viewed: dict[int, Tensor] = {}  # constants that share memory with others
        self.numbers: dict[
            int, list[Numbers]
        ] = {}  # of weights and constants that nodes own, by output value
        self.parts: dict[
            int, tuple[Tensor, list[Any]]
        ] = {}  # by view: the tensor and the index that made it
        self._pending: list[Numbers] = []
        self._uses: Counter[int] = Counter()
        self._opened: list[python_types.FunctionType] = []
        self._owners: list[tuple[list[int], list[int]]] = []
        self.sizes_read = False  # whether the module's code asked for the sizes of a value

    @property
    def used_twice(self) -> frozenset[int]:
        """Identities of the parameters that several layers read."""
        return frozenset(p for p, times in self._uses.items() if times > 1)

    # --- the graph

    def add_input(self, shape: Shape) -> Tensor:
        """Add an input to the graph; return its tensor."""
        self.inputs = (*self.inputs, len(self.shapes))
        self.shapes.append(shape)
        return self.tensor(self.inputs[-1])

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
        self.shapes.append(output_shape(op, kept, shapes))
        number = len(self.shapes) - 1
        self.nodes.append(Node(op, inputs, (number,), kept))
        count = len(initializers(op, kept, shapes)) if op != "Buffer" else 1
        if count and len(self._pending) >= count:
            # The last ones: those before them belong to a node that is added later.
            self.numbers[number] = self._pending[-count:]
            del self._pending[-count:]
        return number

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
        self._recorded[id(made)] = _Recorded(made, number, [0], 0)
        return made

    def _size(self, dim: Dim) -> int:
        if isinstance(dim, int):
            return dim
        assert self.batch is not None
        return prod(self.batch if part == BATCH else int(part) for part in dim.split("_"))

    def view_of(self, x: Tensor, y: Tensor) -> Tensor:
        """Mark `y` as a view of `x`, so that in-place changes of one concern the other; return
        `y`.
        """
        if x is not y and id(x) in self._recorded and id(y) in self._recorded:
            source = self._recorded[id(x)]
            self._recorded[id(y)] = self._recorded[id(y)]._replace(
                changes=source.changes, seen=source.changes[0]
            )
        return y

    def alias(self, x: Tensor) -> Tensor:
        """Another tensor for the same value."""
        return self.view_of(x, self.tensor(self.value(x)))

    def allow_change(self, x: Tensor, part: Tensor) -> None:
        """Let `x` be read after a view of it was changed in place, because that part of `x` is
        replaced next.
        """
        whole, changed = self._recorded[id(x)], self._recorded[id(part)]
        if changed.changes is whole.changes and changed.seen == whole.changes[0] == whole.seen + 1:
            self._recorded[id(x)] = whole._replace(seen=changed.seen)

    def is_batch(self, size: int) -> bool:
        """True if a size is a multiple of the batch size."""
        return self.batch is not None and size > 0 and size % self.batch == 0

    def multiple(self, size: int) -> int:
        """How many times the batch size a size is; 1 if it is no multiple."""
        return size // self.batch if self.batch is not None and self.is_batch(size) else 1

    # --- operands

    def value(self, x: Tensor | float) -> int:
        """The number of a tensor's value; weights and constants are added to the graph.

        Raises:
            InputError: if the tensor is outdated, because another view of it was changed in place,
                or if it is neither a value of the graph nor made from weights and constants.
        """
        if not isinstance(x, Tensor):
            x = torch.tensor(x)
        found = self._recorded.get(id(x))
        if found is not None:
            if found.seen != found.changes[0]:
                raise InputError(
                    "a tensor is read after it was changed in place through another view of it"
                )
            return found.number
        if self.weights.is_weight(x):
            return self.value(self._materialize(x))
        if x.is_meta and id(x) not in self._without_numbers:
            raise InputError(
                "a tensor comes from a call that is not seen, such as one of torch.vmap or "
                "torch.jit"
            )
        if id(x) not in self._constants:
            self._constants[id(x)] = (x, constants.add(self, x))
        return self._constants[id(x)][1]

    def is_value(self, x: Any) -> bool:
        """True if `x` is a value of the graph."""
        return id(x) in self._recorded

    def is_constant(self, x: Any) -> bool:
        """True if `x` is a tensor that depends neither on inputs nor on weights."""
        return isinstance(x, Tensor) and not self.is_value(x) and not self.weights.is_weight(x)

    def setting(self, x: Tensor | float) -> Value | None:
        """A constant operand as the value of an attribute; None if it is not constant, too long, or
        a matrix.
        """
        if not isinstance(x, Tensor):
            return standard.number(x)
        if not self.is_constant(x) or x.is_meta or x.numel() > MAX_WRITTEN_NUMBERS or not x.numel():
            return None
        if x.numel() > 1 and x.dim() > 1:
            return None
        return standard.numbers(
            x.detach().reshape(()).numpy() if x.numel() == 1 else x.detach().numpy()
        )

    def owned_shape(self, x: Tensor) -> tuple[int, ...] | None:
        """The shape of a weight that a layer can own; None for shared weights, values and
        constants.

        A computed weight can be owned if it has as many elements as one of its parameters.
        """
        if not self.weights.is_weight(x):
            return None
        sources = self.weights.sources(x)
        fits = x.numel() in [p.numel() for p in sources.values()]
        return tuple(x.shape) if fits and not self.shared & sources.keys() else None

    def take(self, x: Tensor, transposed: bool = False) -> tuple[int, ...]:
        """Let the layer that is added next own a weight; return the weight's shape.

        Args:
            x: a weight with an `owned_shape`.
            transposed: True if ONNX stores the weight transposed.
        """
        rest = dict(self.weights.sources(x))
        self._uses.update(rest.keys())
        rest.pop(next(i for i, p in rest.items() if p.numel() == x.numel()))
        for p in rest.values():  # for example, a learned scale of the weight
            self.param(tuple(p.shape), lambda p=p: self.weights.computed(p))  # type: ignore[misc]
        self.keep(lambda: self.weights.computed(x).T if transposed else self.weights.computed(x))
        return tuple(x.shape)

    def keep(self, *numbers: Numbers) -> None:
        """Add numbers of the weights or the constant of the node that is added next, in ONNX's
        order.
        """
        self._pending += numbers

    def add_owner(self, outputs: list[Tensor], weights: Sequence[Tensor]) -> None:
        """Note that the operators of a layer's outputs all own the same weights."""
        self._owners.append(([self.value(x) for x in outputs], [id(w) for w in weights]))

    def count_owners(self, live: set[int]) -> None:
        """Count the used outputs of such layers as readers of their weights, given the values that
        are used.
        """
        for outputs, weights in self._owners:
            for _ in live.intersection(outputs):
                self._uses.update(weights)

    def param(self, shape: tuple[int, ...], numbers: Numbers, kind: str = "float") -> int:
        """Add a learned tensor to the graph; return the number of its value. Scalars become vectors
        of one element.
        """
        attrs: Attrs = (("shape", shape or (1,)),)
        self.keep(numbers)
        return self.emit("Param", (), attrs if kind == "float" else (("element", kind), *attrs))

    def as_value(self, x: Tensor) -> Tensor:
        """The tensor of the graph for any tensor; weights and constants are added to the graph."""
        return x if self.is_value(x) else self.tensor(self.value(x))

    def _materialize(self, x: Tensor) -> Tensor:
        """The tensor of the graph for a weight, which is added to the graph once."""
        if id(x) not in self._materialized:
            sources = self.weights.sources(x)
            alone = len(sources) == 1 and not self.shared & sources.keys()
            derived = self.weights.derived.get(id(x))
            if derived is None or (alone and x.numel() == next(iter(sources.values())).numel()):
                self._uses.update(sources.keys())
                number = self.param(
                    tuple(x.shape), lambda: self.weights.computed(x), element(x.dtype)
                )
                self._materialized[id(x)] = self.tensor(number, tuple(x.shape))
            else:
                func, args, kwargs = derived.call
                made = self._handled(
                    func, mapped(self._as_value, args), mapped(self._as_value, kwargs)
                )
                self._materialized[id(x)] = made if derived.part is None else made[derived.part]
        return self._materialized[id(x)]

    def _as_value(self, x: Tensor) -> Tensor:
        """The tensor of the graph for a computed weight; a parameter stays, since a layer may own
        it.
        """
        return self._materialize(x) if id(x) in self.weights.derived else x

    # --- calls

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        name = function_name(func)
        self.sizes_read |= name in _SIZES
        if name in _DATA_FREE:
            return func(*args, **kwargs)
        if func.__name__ == "__get__" and name not in _VIEWS:
            return torch.device("cpu") if name == "device" else func(*args, **kwargs)
        tensors = list(tensors_in((args, kwargs)))
        if any(id(x) in self._recorded for x in tensors):
            return self._handled(func, args, kwargs)
        if any(self.weights.is_weight(x) for x in tensors):
            return self.weights.derive(func, args, kwargs)
        if name in _RANDOM:
            return self._random(name, func, args, kwargs)
        if name in HANDLERS and constants.joins_batch(self.batch, name, func, args, kwargs):
            return self._handled(func, (self.as_value(args[0]), *args[1:]), kwargs)
        if (
            is_in_place(name)
            and args
            and isinstance(args[0], Tensor)
            and one_of_each(args[0]).shape != args[0].shape
        ):
            self._separate(args[0])
        made = constants.compute(self.batch, name, func, args, kwargs)
        known = [id(x) in self._without_numbers for x in tensors if x.is_meta]
        if known and all(known):
            self._without_numbers |= {id(x): x for x in tensors_in(made)}
        if isinstance(made, Tensor) and memory(made) in [
            memory(x) for x in tensors if x is not made
        ]:
            self._viewed |= {id(x): x for x in (made, *tensors)}
        return made

    def call(self, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a torch function as a module would; handlers use it for functions that consist of
        others.
        """
        return self.__torch_function__(func, (), args, kwargs)

    def _handled(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        name = function_name(func)
        handler, in_place = HANDLERS.get(name), False
        if handler is not None and "inplace" in kwargs:
            kwargs = dict(kwargs)
            in_place = kwargs.pop("inplace")
        if handler is None and name.endswith("_") and not name.startswith("__"):
            handler, in_place = HANDLERS.get(name[:-1]), True
        elif handler is None and name.startswith("__i") and name.endswith("__"):
            handler, in_place = HANDLERS.get(f"__{name[3:]}"), True
        if name in DATA_DEPENDENT:
            raise InputError(
                f"{name.strip('_')} depends on the data, but the architecture must not"
            )
        if (
            handler is None
            and isinstance(func, python_types.FunctionType)
            and func not in self._opened
        ):
            return self._inside(func, args, kwargs)
        if handler is None or kwargs.get("out") is not None:
            raise InputError(
                f"torch's function {name!r} is not supported: see docs/how-to/own_model.md"
            )
        try:
            made = handler(self, *args, **kwargs)
        except TypeError as error:
            if error.__traceback__ is None or error.__traceback__.tb_next is not None:
                raise
            raise InputError(
                f"torch's function {name!r} is not supported with these arguments ({error})"
            ) from error
        return self.assign(args[0], made) if in_place and made is not args[0] else made

    def _separate(self, x: Tensor) -> None:
        """Give every element of an expanded constant its own memory, so that it can be changed in
        place.
        """
        if id(x) in self._viewed:
            raise InputError("a constant of which there are views is changed in place")
        x.data = x.contiguous()

    def _random(
        self, name: str, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Tensor:
        """Record numbers that are drawn in every call; a generator's seed is not part of the
        network.
        """
        drawn = without_numbers(
            func, *args, **{k: v for k, v in kwargs.items() if k not in ("device", "generator")}
        )
        zeros = self.call(torch.zeros, tuple(drawn.shape), dtype=drawn.dtype)
        return self.add_node(_RANDOM[name], self.as_value(zeros))

    def _inside(
        self, func: python_types.FunctionType, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Record the functions that a Python function of torch calls."""
        self._opened.append(func)
        try:
            with self:
                return without_dispatch(func)(*args, **kwargs)
        finally:
            self._opened.pop()

    def assign(self, target: Tensor, made: Tensor) -> Tensor:
        """Record that `made` replaces the content of `target` in place; return `target`.

        Raises:
            InputError: if `target` is a weight or has another shape, or views of it would not see
                the change.
        """
        if self.weights.is_weight(target) or id(target) in self._viewed:
            raise InputError(
                "a weight or view of a constant is changed in place by a value that depends on the "
                "input"
            )
        if target.shape != made.shape:
            raise InputError(
                f"a tensor of shape {list(target.shape)} is changed in place to {list(made.shape)}"
            )
        if not self.is_value(target):  # a constant, such as zeros into which values are written
            self._recorded[id(target)] = _Recorded(target, self.value(made), [0], 0)
            return target
        old = self._recorded[id(target)]
        old.changes[0] += 1
        number = self.value(made)
        self._recorded[id(target)] = old._replace(number=number, seen=old.changes[0])
        return target
