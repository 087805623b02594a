"""`Recorder`: takes every call of a function of torch, and adds the operators that it is to a graph.

Three kinds of tensors meet: *values* of the graph, which are tensors without data; *weights*, which are parameters and
what is computed from these alone; and *constants*, which are computed for real.
"""

from __future__ import annotations

import types as python_types
from collections import Counter
from collections.abc import Callable, Sequence
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from search_spaces.common.errors import InputError
from search_spaces.graph import standard
from search_spaces.graph.ir import BATCH, UNKNOWN, Attrs, Dim, Node, Shape, Value, element_type
from search_spaces.graph.operators import canonical_attrs, output_shape
from search_spaces.graph.owned_weights import initializers
from search_spaces.onnx.loading import MAX_NODES
from search_spaces.pytorch import constants
from search_spaces.pytorch.calls import call_without_data, function_name, mapped, tensors_in
from search_spaces.pytorch.dtypes import DTYPES, element

BATCH_SIZE = 9973  # a prime that no other size is a multiple of: sizes that are, contain the batch size
MAX_WRITTEN_NUMBERS = 64  # numbers of a constant operand that are written as an attribute

Handler = Callable[..., Any]
Numbers = Callable[[], Tensor]
"""Gives the numbers of a weight or constant; they are not computed unless somebody writes them."""
HANDLERS: dict[str, Handler] = {}
"""What adds a function's operators, by the function's name; it is called with the recorder and the arguments."""

# What these say of a tensor does not depend on its numbers.
_QUESTIONS = frozenset(
    {"dim", "size", "numel", "nelement", "stride", "is_contiguous", "element_size", "is_floating_point", "is_complex",
     "get_device", "storage_offset", "__len__", "ndimension", "__repr__", "__format__", "type", "is_same_size",
     "result_type", "can_cast", "is_signed", "requires_grad_", "is_tensor", "__hash__", "is_inference", "is_conj",
     "is_neg", "untyped_storage", "data_ptr"}
)  # fmt: skip
_ANSWERS = frozenset(
    {"__bool__", "item", "tolist", "numpy", "__int__", "__float__", "__index__", "__contains__", "equal", "allclose",
     "nonzero", "__array__", "is_nonzero", "unique", "masked_select", "bincount"}
)  # fmt: skip
_VIEWS = frozenset({"T", "mT", "data", "real"})  # attributes that are tensors with the same numbers


def handles(*names: str) -> Callable[[Handler], Handler]:
    """Decorator of the handler of these functions of torch, in-place and operator variants included."""

    def register(handler: Handler) -> Handler:
        HANDLERS.update(dict.fromkeys(names, handler))
        return handler

    return register


class _Recorded(NamedTuple):
    """A tensor that is a value of the graph. `changes` is shared by all views of the same numbers, and counts the
    changes in place; `seen` is how many there were when this view was made."""

    tensor: Tensor
    number: int
    changes: list[int]
    seen: int


class _Derived(NamedTuple):
    """A tensor that was computed from weights alone: output `part` of a call."""

    tensor: Tensor
    call: tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]
    part: int | None
    sources: dict[int, nn.Parameter]


class Recorder(TorchFunctionMode):
    """Records what is called while it is active.

    shared: identities of the parameters that more than one layer reads; they become values of the graph.
    batch: the size that stands for the batch size N; None: sizes are what they are.
    """

    def __init__(self, shared: frozenset[int] = frozenset(), batch: int | None = BATCH_SIZE) -> None:
        super().__init__()
        self.shared, self.batch = shared, batch
        self.inputs: tuple[int, ...] = ()
        self.nodes: list[Node] = []
        self.shapes: list[Shape] = []
        self._recorded: dict[int, _Recorded] = {}
        self._derived: dict[int, _Derived] = {}
        self._materialized: dict[int, Tensor] = {}
        self._constants: dict[int, tuple[Tensor, int]] = {}
        self.numbers: dict[int, list[Numbers]] = {}  # of the weights and constants that nodes own, by their value
        self._pending: list[Numbers] = []
        self._uses: Counter[int] = Counter()
        self._opened: list[python_types.FunctionType] = []
        self._owners: list[tuple[list[int], list[int]]] = []

    @property
    def used_twice(self) -> frozenset[int]:
        """Identities of the parameters that more than one layer reads."""
        return frozenset(p for p, times in self._uses.items() if times > 1)

    # --- the graph

    def add_input(self, shape: Shape) -> Tensor:
        """A tensor that stands for a further input of the graph."""
        self.inputs = (*self.inputs, len(self.shapes))
        self.shapes.append(shape)
        return self.tensor(self.inputs[-1])

    def emit(self, op: str, inputs: tuple[int, ...], attrs: Attrs) -> int:
        """Add a node; the number of its value."""
        if len(self.nodes) >= MAX_NODES:
            raise InputError(f"the network calls more than {MAX_NODES:,} operators")
        shapes = tuple([self.shapes[v] for v in inputs])
        kept = canonical_attrs(op, tuple(sorted(attrs)), shapes)
        self.shapes.append(output_shape(op, kept, shapes))
        number = len(self.shapes) - 1
        self.nodes.append(Node(op, inputs, (number,), kept))
        count = len(initializers(op, kept, shapes)) if op != "Buffer" else 1
        if count and len(self._pending) >= count:
            # The last ones: an operand that is computed from weights is added in between, and has its own first.
            self.numbers[number] = self._pending[-count:]
            del self._pending[-count:]
        return number

    def add(self, op: str, *operands: Tensor | float | None, **attrs: Value) -> Tensor:
        """Add an operator of ONNX: small constant operands become attributes. Returns its result."""
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
        return self.own(op, *arranged, **attrs)

    def own(self, op: str, *inputs: int | Tensor, **attrs: Value) -> Tensor:
        """Add an operator whose attributes are all given. Returns its result."""
        numbers = tuple([self.value(x) if isinstance(x, Tensor) else x for x in inputs])
        return self.tensor(self.emit(op, numbers, tuple(attrs.items())))

    def tensor(self, number: int, sizes: tuple[int, ...] | None = None) -> Tensor:
        """A tensor without data that stands for a value of the graph; sizes: where they are not the value's."""
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
        """`y`, which has the numbers of `x`: where one is changed in place, the other is, too."""
        if x is not y and id(x) in self._recorded and id(y) in self._recorded:
            source = self._recorded[id(x)]
            self._recorded[id(y)] = self._recorded[id(y)]._replace(changes=source.changes, seen=source.changes[0])
        return y

    def alias(self, x: Tensor) -> Tensor:
        """Another tensor for the same value."""
        return self.view_of(x, self.tensor(self.value(x)))

    def is_batch(self, size: int) -> bool:
        """Whether a size is a multiple of the batch size."""
        return self.batch is not None and size > 0 and size % self.batch == 0

    # --- operands

    def value(self, x: Tensor | float) -> int:
        """The number of a tensor's value in the graph; weights and constants are added to the graph."""
        if not isinstance(x, Tensor):
            x = torch.tensor(x)
        found = self._recorded.get(id(x))
        if found is not None:
            if found.seen != found.changes[0]:
                raise InputError("a tensor is read after its numbers were changed in place through another view of it")
            return found.number
        if self.is_weight(x):
            return self.value(self._materialize(x))
        if id(x) not in self._constants:
            self._constants[id(x)] = (x, constants.add(self, x))
        return self._constants[id(x)][1]

    def is_value(self, x: Any) -> bool:
        return id(x) in self._recorded

    def is_weight(self, x: Any) -> bool:
        return isinstance(x, nn.Parameter) or id(x) in self._derived

    def is_constant(self, x: Any) -> bool:
        return isinstance(x, Tensor) and not self.is_value(x) and not self.is_weight(x)

    def setting(self, x: Tensor | float) -> Value | None:
        """A constant operand as an attribute's value; None where it is none, or too long."""
        if not isinstance(x, Tensor):
            return standard.number(x)
        if not self.is_constant(x) or x.is_meta or x.numel() > MAX_WRITTEN_NUMBERS or not x.numel():
            return None
        if x.numel() > 1 and x.dim() > 1:
            return None
        return standard.numbers(x.detach().reshape(()).numpy() if x.numel() == 1 else x.detach().numpy())

    def owned_shape(self, x: Tensor) -> tuple[int, ...] | None:
        """The shape of a weight that one layer alone reads; None for a value or constant, and for a shared weight."""
        if not self.is_weight(x):
            return None
        sources = self._sources(x)
        fits = x.numel() in [p.numel() for p in sources.values()]
        return tuple(x.shape) if fits and not self.shared & sources.keys() else None

    def take(self, x: Tensor, transposed: bool = False) -> tuple[int, ...]:
        """Make a weight the own of the layer that is added next. Returns its shape.

        transposed: the layer has it the other way round.
        """
        rest = dict(self._sources(x))
        self._uses.update(rest.keys())
        rest.pop(next(i for i, p in rest.items() if p.numel() == x.numel()))
        for p in rest.values():  # what a layer's weight is scaled by, for example
            self.param(tuple(p.shape), lambda p=p: self.computed(p))  # type: ignore[misc]
        self.keep(lambda: self.computed(x).T if transposed else self.computed(x))
        return tuple(x.shape)

    def keep(self, *numbers: Numbers) -> None:
        """Numbers of further weights, or of the constant, of the layer that is added next, in the order of ONNX's."""
        self._pending += numbers

    def computed(self, x: Tensor) -> Tensor:
        """The numbers of a weight or constant, where the module has any."""
        if id(x) not in self._derived:
            return x.detach()
        func, args, kwargs = self._derived[id(x)].call
        own = Tensor.clone if function_name(func).endswith("_") else _same  # what is changed in place must stay
        made = func(*mapped(lambda y: own(self.computed(y)), args), **mapped(self.computed, kwargs))
        part = self._derived[id(x)].part
        return made if part is None else made[part]

    def add_owner(self, outputs: list[Tensor], weights: Sequence[Tensor]) -> None:
        """Operators for the outputs of one layer, each of which owns these weights."""
        self._owners.append(([self.value(x) for x in outputs], [id(w) for w in weights]))

    def count_owners(self, live: set[int]) -> None:
        """Note which weights are shared by several outputs of a layer, given the values that are used."""
        for outputs, weights in self._owners:
            for _ in live.intersection(outputs):
                self._uses.update(weights)

    def param(self, shape: tuple[int, ...], numbers: Numbers, kind: str = "float") -> int:
        """A learned tensor as a value of the graph; single numbers are lists of one."""
        attrs: Attrs = (("shape", shape or (1,)),)
        self.keep(numbers)
        return self.emit("Param", (), attrs if kind == "float" else (("element", kind), *attrs))

    def as_value(self, x: Tensor) -> Tensor:
        """Any tensor as a tensor of the graph."""
        return x if self.is_value(x) else self.tensor(self.value(x))

    def _sources(self, x: Tensor) -> dict[int, nn.Parameter]:
        return self._derived[id(x)].sources if id(x) in self._derived else {id(x): x}  # type: ignore[dict-item]

    def _materialize(self, x: Tensor) -> Tensor:
        """A weight as a value of the graph."""
        if id(x) not in self._materialized:
            sources = self._sources(x)
            alone = len(sources) == 1 and not self.shared & sources.keys()
            derived = self._derived.get(id(x))
            if derived is None or (alone and x.numel() == next(iter(sources.values())).numel()):
                self._uses.update(sources.keys())
                number = self.param(tuple(x.shape), lambda: self.computed(x), element(x.dtype))
                self._materialized[id(x)] = self.tensor(number, tuple(x.shape))
            else:
                func, args, kwargs = derived.call
                made = self._handled(func, mapped(self._as_value, args), mapped(self._as_value, kwargs))
                self._materialized[id(x)] = made if derived.part is None else made[derived.part]
        return self._materialized[id(x)]

    def _as_value(self, x: Tensor) -> Tensor:
        """Weights that were computed as values; parameters as they are, since they may be a layer's own."""
        return self._materialize(x) if id(x) in self._derived else x

    # --- calls

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = function_name(func)
        if name in _QUESTIONS:
            return func(*args, **kwargs)
        if func.__name__ == "__get__" and name not in _VIEWS:
            return torch.device("cpu") if name == "device" else func(*args, **kwargs)
        tensors = list(tensors_in((args, kwargs)))
        if any(id(x) in self._recorded for x in tensors):
            return self._handled(func, args, kwargs)
        if any(self.is_weight(x) for x in tensors):
            return self._derive(func, args, kwargs)
        return constants.compute(self.is_batch, name, func, args, kwargs)

    def call(self, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a function of torch as a module would: what handlers do for functions that consist of others."""
        return self.__torch_function__(func, (), args, kwargs)

    def _handled(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        name = function_name(func)
        handler, in_place = HANDLERS.get(name), False
        if handler is not None and "inplace" in kwargs:
            kwargs = dict(kwargs)
            in_place = kwargs.pop("inplace")
        if handler is None and name.endswith("_") and not name.startswith("__"):
            handler, in_place = HANDLERS.get(name[:-1]), True
        elif handler is None and name.startswith("__i") and name.endswith("__"):
            handler, in_place = HANDLERS.get(f"__{name[3:]}"), True
        if name in _ANSWERS:
            raise InputError(f"{name.strip('_')} depends on the data: what is computed must not")
        if handler is None and isinstance(func, python_types.FunctionType) and func not in self._opened:
            return self._inside(func, args, kwargs)
        if handler is None or kwargs.get("out") is not None:
            raise InputError(f"torch's function {name!r} is not supported: see docs/how-to/own_model.md")
        try:
            made = handler(self, *args, **kwargs)
        except TypeError as error:
            if error.__traceback__ is None or error.__traceback__.tb_next is not None:
                raise
            raise InputError(f"torch's function {name!r} is not supported with these arguments ({error})") from None
        return self.assign(args[0], made) if in_place and made is not args[0] else made

    def _inside(self, func: python_types.FunctionType, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Record what a function consists of."""
        self._opened.append(func)
        try:
            with self:
                return _opened(func)(*args, **kwargs)
        finally:
            self._opened.pop()

    def assign(self, target: Tensor, made: Tensor) -> Tensor:
        """Change a tensor in place."""
        if not self.is_value(target):
            raise InputError("a constant or weight is changed in place by what depends on the input")
        if target.shape != made.shape:
            raise InputError(f"a tensor of shape {list(target.shape)} is changed in place to {list(made.shape)}")
        old = self._recorded[id(target)]
        old.changes[0] += 1
        number = self.value(made)
        self._recorded[id(target)] = old._replace(number=number, seen=old.changes[0])
        return target

    def _derive(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Compute with weights: shapes alone."""
        if function_name(func) in _ANSWERS:
            raise InputError(f"{function_name(func).strip('_')} depends on weights: what is computed must not")
        sources: dict[int, nn.Parameter] = {}
        for x in tensors_in((args, kwargs)):
            if self.is_weight(x):
                sources |= self._sources(x)
        made = call_without_data(func, args, kwargs)
        if made is args[0]:  # changed in place: the call is of what it was before
            before = torch.empty_like(made, device="meta")
            self._derived[id(before)] = self._derived[id(made)]._replace(tensor=before)
            args = (before, *args[1:])
        if isinstance(made, Tensor):
            self._derived[id(made)] = _Derived(made, (func, args, kwargs), None, sources)
        elif isinstance(made, tuple | list):
            for i, x in enumerate(made):
                self._derived[id(x)] = _Derived(x, (func, args, kwargs), i, sources)
        return made


def _opened(func: python_types.FunctionType) -> Callable[..., Any]:
    """A function of torch that consists of others, which are seen one by one instead of it."""
    never = dict.fromkeys(("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic"), _no)
    made = python_types.FunctionType(
        func.__code__, {**func.__globals__, **never}, func.__name__, func.__defaults__, func.__closure__
    )
    made.__kwdefaults__ = func.__kwdefaults__
    return made


def _no(*_: Any) -> bool:
    return False


def _same(x: Tensor) -> Tensor:
    return x
