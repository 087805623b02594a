"""Blocks: what programs are made of, the main part and every function. Values are numbered, not named."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from search_spaces.graph.ir import Value

PARAMETRIC = frozenset({"channels", "features", "kernel"})
"""Attributes in which the calls of one function may differ."""


class Ref(NamedTuple):
    """An attribute value that a function takes as its parameter `name`."""

    name: str


ItemAttrs = tuple[tuple[str, Value | Ref], ...]


class Item(NamedTuple):
    """One line of a block: an operator, or a call of a function by its name."""

    op: str
    inputs: tuple[int, ...]
    attrs: ItemAttrs
    outputs: int = 1


new_item: Callable[[tuple[str, tuple[int, ...], ItemAttrs, int]], Item] = partial(tuple.__new__, Item)
"""An item of its fields, in two thirds of the time of `Item`: blocks have dozens."""


class Block(NamedTuple):
    """Values 0..inputs-1 are the block's inputs; every item's outputs are numbered on from there."""

    inputs: int
    items: tuple[Item, ...]
    outputs: tuple[int, ...]
    params: tuple[str, ...] = ()
