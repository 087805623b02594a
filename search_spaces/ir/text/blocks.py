"""Blocks: the main part and the functions of a program. Values are numbered, not named."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from search_spaces.ir.graph import Value

PARAMETRIC = frozenset({"channels", "features", "kernel"})
"""Attributes that may be parameters of a function."""


class Ref(NamedTuple):
    """An attribute value that is the parameter `name` of a function."""

    name: str


ItemAttrs = tuple[tuple[str, Value | Ref], ...]


class Item(NamedTuple):
    """One line of a block: an operator, or the call of a function by its name.

    Attributes:
        inputs: numbers of the values that it reads.
        outputs: number of values that it produces.
    """

    op: str
    inputs: tuple[int, ...]
    attrs: ItemAttrs
    outputs: int = 1


new_item: Callable[[tuple[str, tuple[int, ...], ItemAttrs, int]], Item] = partial(
    tuple.__new__, Item
)
"""`Item` from a tuple of its fields; a third faster, since blocks have dozens of items."""


class Block(NamedTuple):
    """A sequence of items. Values 0 to `inputs - 1` are the inputs; the outputs of the items follow
    in order.

    Attributes:
        inputs: number of inputs.
        outputs: numbers of the values that the block returns.
        params: names of the parameters of a function.
    """

    inputs: int
    items: tuple[Item, ...]
    outputs: tuple[int, ...]
    params: tuple[str, ...] = ()
