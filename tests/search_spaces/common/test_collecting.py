"""Pausing garbage collection."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from search_spaces.common.collecting import collection_paused

MANY = 20_000  # objects, many more than the collector lets pass


@pytest.fixture
def collections() -> Iterator[list[str]]:
    """The collections that ran, as they run."""
    found: list[str] = []

    def note(phase: str, _: dict[str, int]) -> None:
        found.append(phase)

    gc.collect()
    gc.callbacks.append(note)
    yield found
    gc.callbacks.remove(note)


def test_nothing_is_collected_in_the_block_or_right_after_it(collections: list[str]) -> None:
    with collection_paused():
        kept = [[number] for number in range(MANY)]
    after = [[number] for number in range(10)]
    assert collections == []
    assert len(kept) + len(after) == MANY + 10


def test_collection_goes_on_after_the_block(collections: list[str]) -> None:
    with collection_paused():
        pass
    kept = [[number] for number in range(MANY)]
    assert collections
    assert len(kept) == MANY


class Link:
    """An object that refers to itself."""

    def __init__(self) -> None:
        self.itself = self


def test_a_cycle_that_was_made_in_the_block_is_found_later() -> None:
    with collection_paused():
        left = weakref.ref(Link())
    gc.collect()
    assert left() is None


def test_frozen_objects_stay_frozen() -> None:
    link = Link()
    assert any(found is link for found in gc.get_objects())
    gc.freeze()
    try:
        with collection_paused():
            pass
        assert gc.get_freeze_count() > 0
        assert not any(found is link for found in gc.get_objects())  # which leaves out frozen ones
    finally:
        gc.unfreeze()


def test_a_collector_that_was_off_stays_off() -> None:
    gc.disable()
    try:
        with collection_paused():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
