"""The operators of the compiler: one file per family, and the functions that apply their rules.

`OPERATORS` has every operator of ONNX and of the text's `net` domain by name. An operator is added
in the file of its family, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from search_spaces.common.errors import InputError
from search_spaces.ir import standard
from search_spaces.ir.graph import Attrs, Shape, Typed, Value, element_type, typed
from search_spaces.ir.ops import (
    attention,
    control_flow,
    convolution,
    elementwise,
    indexing,
    linear,
    normalization,
    pooling,
    recurrent,
    reduction,
    resampling,
    reshaping,
    signal,
    sources,
)
from search_spaces.ir.ops.operator import CountedNode, Operator, Weight

_FAMILIES = (
    attention,
    control_flow,
    convolution,
    elementwise,
    indexing,
    linear,
    normalization,
    pooling,
    recurrent,
    reduction,
    resampling,
    reshaping,
    signal,
    sources,
)
OPERATORS: dict[str, Operator] = {
    operator.name: operator for family in _FAMILIES for operator in family.OPERATORS
}
NET_OPERATORS = frozenset({name for name, operator in OPERATORS.items() if operator.in_net_domain})
COMMUTATIVE = frozenset({name for name, operator in OPERATORS.items() if operator.commutative})
_UNKNOWN = Operator(name="")


def get_operator(op: str) -> Operator:
    """The operator of this name; one without facts if there is none."""
    return OPERATORS.get(op, _UNKNOWN)


def is_own(op: str, inputs: int) -> bool:
    """True for an operator of the `net` domain.

    ONNX's operator of the same name has more inputs.
    """
    facts = get_operator(op)
    if facts.own_attributes is None:
        return False
    return facts.is_source or inputs in facts.own_inputs


def owns_weights(op: str, inputs: int) -> bool:
    """True for an operator of ONNX that owns its weights here, which it does with one input."""
    return inputs == 1 and bool(get_operator(op).owned_attributes)


# --- shapes


@lru_cache(maxsize=65536)
def output_shape(op: str, attrs: Attrs, shapes: tuple[Shape, ...]) -> Shape:
    """Shape of an operator's output.

    Args:
        op: name of the operator.
        attrs: attributes.
        shapes: shapes of the inputs.

    Raises:
        InputError: if the operator is not supported, or attributes and shapes do not match.
    """
    try:
        return _output_shape(op, attrs, shapes)
    except InputError:
        raise
    except (KeyError, IndexError, TypeError, ValueError, OverflowError) as error:
        raise _misfit(op, attrs, shapes) from error


def _output_shape(op: str, attrs: Attrs, shapes: tuple[Shape, ...]) -> Shape:
    facts = get_operator(op)
    # 1. The net domain's operators have rules.
    if is_own(op, len(shapes)):
        assert facts.infer_own_shape is not None
        return facts.infer_own_shape(attrs, shapes)
    # 2. ONNX's operators that own their weights have them as further operands in ONNX.
    if owns_weights(op, len(shapes)) and facts.infer_shape is None:
        element = element_type(shapes[0])
        operands = [typed(w.shape, element) for w in weights(op, attrs, shapes)]
        return standard.infer(op, onnx_attrs(op, attrs), (*shapes, *operands))
    # 3. Frequent ones have rules for floats, which are faster than ONNX. The rules are for the
    #    first output: the second one of MaxPool has integers.
    is_first = not any(name == "output" for name, _ in attrs)
    has_element = facts.keeps_element or not any(isinstance(shape, Typed) for shape in shapes)
    if facts.infer_shape is not None and has_element and is_first:
        return facts.infer_shape(attrs, shapes)
    # 4. ONNX infers all others.
    return standard.infer(op, attrs, shapes)


def _misfit(op: str, attrs: Attrs, shapes: tuple[Shape, ...]) -> InputError:
    """Error for attributes that an operator cannot have on inputs of these shapes."""
    return InputError(
        f"operator {op} does not take attributes {dict(attrs)} on shapes "
        f"{', '.join(map(str, shapes))}"
    )


# --- attributes


@lru_cache(maxsize=65536)
def canonical_attrs(op: str, attrs: Attrs, shapes: tuple[Shape, ...]) -> Attrs:
    """The operator's attributes in their shortest form: equal computations have equal attributes.

    Raises:
        InputError: if the operator does not have an attribute.
    """
    facts = get_operator(op)
    if is_own(op, len(shapes)):
        own = facts.own_attributes or {}
        for name, _ in attrs:
            if name not in own:
                raise InputError(
                    f"{op} has no attribute {name!r}; it has {', '.join(own) or 'none'}"
                )
        return tuple(sorted(_simplified(facts, own, attrs, shapes)))
    if owns_weights(op, len(shapes)):
        owned = tuple([attr for attr in attrs if attr[0] in facts.owned_attributes])
        others = standard.canonical(op, onnx_attrs(op, attrs), shapes)
        simplified = _simplified(facts, facts.owned_attributes, owned, shapes)
        return tuple(sorted((*simplified, *others)))
    return standard.canonical(op, attrs, shapes)


def _simplified(
    facts: Operator,
    defaults: Mapping[str, Value | None],
    attrs: Attrs,
    shapes: tuple[Shape, ...],
) -> Attrs:
    kept = tuple([(name, value) for name, value in attrs if defaults[name] != value])
    return kept if facts.simplify is None else facts.simplify(kept, shapes[0])


def onnx_attrs(op: str, attrs: Attrs) -> Attrs:
    """The attributes, without those that only an owner of weights has."""
    owned = get_operator(op).owned_attributes
    return tuple([(name, value) for name, value in attrs if name not in owned])


# --- weights


@lru_cache(maxsize=65536)
def weights(op: str, attrs: Attrs, shapes: tuple[Shape, ...]) -> tuple[Weight, ...]:
    """The tensors that a node owns, in the order of the ONNX operator's inputs.

    Args:
        op: name of the operator.
        attrs: attributes.
        shapes: shapes of the inputs.

    Raises:
        InputError: if attributes and shapes do not match.
    """
    facts = get_operator(op)
    if facts.weights is None or not (facts.is_source or len(shapes) == 1):
        return ()
    try:
        return facts.weights(attrs, shapes)
    except (KeyError, IndexError, TypeError) as error:
        raise _misfit(op, attrs, shapes) from error


def initializers(op: str, attrs: Attrs, shapes: tuple[Shape, ...]) -> tuple[Weight, ...]:
    """The tensors of `weights` that an ONNX file stores.

    They exclude scale and shift with `affine = 0`.
    """
    owned = weights(op, attrs, shapes)
    return tuple([w for w in owned if w.trained or w.name not in ("scale", "shift")])


# --- costs


@lru_cache(maxsize=65536)
def multiply_accumulates(op: str, attrs: Attrs, shapes: tuple[Shape, ...]) -> int:
    """Multiply-accumulates of one node for a batch of one.

    Convolutions, linear and recurrent layers, attention, matrix products, Fourier transforms and
    determinants count. What works element by element, moves, pools, interpolates, normalizes or
    compares is 0. No operator is 0 because nobody thought of it: a name that no family has is
    refused.

    Raises:
        InputError: if a size that counts is not a number, or it is not known what the operator
            costs.
    """
    facts = get_operator(op)
    if facts is _UNKNOWN or not facts.is_in_graphs:
        raise InputError(
            f"it is not known how many multiply-accumulates operator {op} takes: leave out the "
            "metric flops"
        )
    if facts.count is None:
        return 0
    first_output = tuple([attr for attr in attrs if attr[0] != "output"])
    return facts.count(CountedNode(op, attrs, shapes, output_shape(op, first_output, shapes)))
