"""What is cached or left out while a text is written does not change the text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from search_spaces import get_space
from search_spaces.ir.graph import Graph
from search_spaces.ir.text import (
    canonical,
    compact,
    functions,
    program,
    regions,
    repeats,
    syntax,
    write,
)
from search_spaces.ir.text.regions import _Regions
from search_spaces.ir.text.repeats import Contraction, Pair
from search_spaces.space import Architecture

SPACES = ("nasbench201", "pnas", "nasbench101", "ofa-resnet50")


def _caches() -> Iterator[Any]:
    for module in (canonical, functions, program, regions, repeats, syntax):
        yield from [value for value in vars(module).values() if hasattr(value, "cache_clear")]


def _sampled(name: str, count: int = 4) -> list[Architecture]:
    rng = np.random.default_rng(11)
    return [get_space(name).sample(rng) for _ in range(count)]


class _Eager(Contraction):
    """Computes the key of every pair at once, also of pairs that are alone with their symbols."""

    def _notice(self, pair: Pair) -> None:
        self._register(pair)


class _Unshared(_Regions):
    """Looks up every piece by all that it depends on."""

    def _piece(self, start: int, end: int) -> Any:
        self.pieces.clear()
        return super()._piece(start, end)


@pytest.mark.parametrize("name", SPACES)
def test_a_text_does_not_depend_on_those_written_before(name: str) -> None:
    space, architectures = get_space(name), _sampled(name)
    warm = [space.to_text(arch) for arch in architectures]
    cold = []
    for arch in reversed(architectures):
        for cache in _caches():
            cache.cache_clear()
        cold.append(space.to_text(arch))
    assert cold[::-1] == warm


def test_caches_of_texts_are_bounded() -> None:
    sizes = [cache.cache_parameters()["maxsize"] for cache in _caches()]
    assert len(sizes) > 5
    assert None not in sizes


@pytest.mark.parametrize("name", SPACES)
def test_keys_of_pairs_that_are_alone_are_not_needed(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    space, architectures = get_space(name), _sampled(name)
    lazy = [space.to_text(arch) for arch in architectures]
    monkeypatch.setattr(repeats, "Contraction", _Eager)
    assert [space.to_text(arch) for arch in architectures] == lazy


@pytest.mark.parametrize("name", SPACES)
def test_pieces_of_equal_lines_are_equal(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    graphs: list[Graph] = [get_space(name).graph(arch) for arch in _sampled(name)]
    shared = [write(compact(graph)) for graph in graphs]
    monkeypatch.setattr(regions, "_Regions", _Unshared)
    assert [write(compact(graph)) for graph in graphs] == shared
