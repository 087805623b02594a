"""Draws with known questions build no network, and equal the draws with building."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from search_spaces import Infeasible, SearchSpace, get_space
from search_spaces.choosers import Questions
from search_spaces.space import Architecture


class Counted(SearchSpace):
    """Up to three layers; counts how often it is built."""

    name = "counted"
    builds = 0

    def build(self, trial: Any, net: Any) -> Any:
        self.builds += 1
        x = net.input
        for i in range(trial.suggest_int("depth", 1, 3)):
            x = net.conv_bn_relu(x, trial.suggest_categorical(f"width{i}", [8, 16]))
        return net.classifier(x)


def _walk(space: SearchSpace, steps: int) -> list[Architecture]:
    rng = np.random.default_rng(0)
    found = [space.sample(rng), space.sample(rng)]
    for _ in range(steps):
        found += [
            space.sample(rng),
            space.mutate(found[-1], rng),
            space.crossover(found[-1], found[-2], rng),
        ]
    return found


def test_a_space_is_built_at_most_once_for_each_of_its_networks() -> None:
    space = Counted()
    found = _walk(space, 200)
    assert space.builds == len(set(found)) == 14


def test_draws_are_those_of_building(monkeypatch: pytest.MonkeyPatch) -> None:
    known = _walk(get_space("tiny-resnet"), 30)
    monkeypatch.setattr(Questions, "ask", lambda self, chooser: False)
    assert known == _walk(get_space("tiny-resnet"), 30)


def test_refused_choices_are_refused_again() -> None:
    class Odd(Counted):
        name = "odd"

        def build(self, trial: Any, net: Any) -> Any:
            if trial.suggest_int("depth", 1, 3) == 2:
                raise Infeasible("two is even")
            return super().build(trial, net)

    assert {arch.as_dict()["depth"] for arch in _walk(Odd(), 60)} == {1, 3}


def test_equal_answers_of_two_types_are_two_answers() -> None:
    class Typed(Counted):
        name = "typed"

        def build(self, trial: Any, net: Any) -> Any:
            if trial.suggest_categorical("switch", [1, "1", None]) is None:
                trial.suggest_int("more", 1, 2)
            return net.classifier(net.input)

    rng, space = np.random.default_rng(0), Typed()
    found = {space.sample(rng).choices for _ in range(60)}
    assert {dict(choices).get("switch") for choices in found if len(choices) == 1} == {1, "1"}
    assert {dict(choices)["switch"] for choices in found if len(choices) == 2} == {None}
