"""Claims about choices: ranges of numbers, and common mistakes with them."""

from __future__ import annotations

from typing import Any

import numpy as np
import optuna
import pytest

from search_spaces import InputError, SearchSpace
from search_spaces.ir.builder import Network, Tensor

optuna.logging.set_verbosity(optuna.logging.ERROR)


class Numbers(SearchSpace):
    """One choice of each kind; the network depends on all of them."""

    name, input_shape, num_classes = "numbers", (1, 4, 4), 2

    def build(self, trial: Any, net: Network) -> Tensor:
        slope = trial.suggest_float("slope", 0.01, 0.5)
        small = trial.suggest_float("small", 1e-6, 1e-2, log=True)
        step = trial.suggest_float("step", 0.1, 0.5, step=0.1)
        width = trial.suggest_int("width", 1, 64, log=True)
        x = net.conv(net.input, width)
        for alpha in (slope, small, step):
            x = net.op("LeakyRelu", x, attrs={"alpha": alpha})
        return net.classifier(net.conv(x, trial.suggest_int("last", 4, 12, step=4)))


SPACE = Numbers()


def drawn(name: str, count: int = 400) -> np.ndarray:
    rng = np.random.default_rng(0)
    return np.array([SPACE.sample(rng).as_dict()[name] for _ in range(count)])


def test_ranges_are_drawn_evenly_or_in_their_logarithm() -> None:
    assert 0.2 < np.median(drawn("slope")) < 0.3
    assert 10**-4.5 < np.median(drawn("small")) < 10**-3.5
    assert 4 <= np.median(drawn("width")) <= 16
    assert set(drawn("step")) == {0.1, 0.2, 0.3, 0.4, 0.5}
    assert set(drawn("last")) == {4, 8, 12}


def test_mutation_changes_one_choice_and_stays_in_the_range() -> None:
    rng = np.random.default_rng(0)
    parent, changed = SPACE.sample(rng), set()
    for _ in range(60):
        child = SPACE.mutate(parent, rng)
        differing = [name for name, value in child.choices if parent.as_dict()[name] != value]
        assert len(differing) == 1
        assert SPACE.architecture(child.as_dict()) == child
        changed.update(differing)
    assert changed == {"slope", "small", "step", "width", "last"}


def test_crossover_takes_each_choice_from_a_parent() -> None:
    rng = np.random.default_rng(0)
    a, b = SPACE.sample(rng), SPACE.sample(rng)
    children = [SPACE.crossover(a, b, rng) for _ in range(10)]
    for child in children:
        assert all(value in (a.as_dict()[name], b.as_dict()[name]) for name, value in child.choices)
    assert {*children} - {a, b}


def test_an_architecture_is_written_and_read_exactly() -> None:
    arch = SPACE.sample(np.random.default_rng(1))
    assert SPACE.parse(SPACE.format(arch)) == arch
    near = {**arch.as_dict(), "step": 0.1 + 0.2}
    assert SPACE.architecture(near).as_dict()["step"] == 0.3


def test_optuna_trials_choose_what_the_space_accepts() -> None:
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=0))
    for _ in range(12):
        trial = study.ask()
        arch = SPACE.choose(trial)
        assert SPACE.architecture(trial.params) == arch
        study.tell(trial, 0.0)
    study.enqueue_trial(arch.as_dict())
    assert SPACE.choose(study.ask()) == arch


class Steps(SearchSpace):
    name, input_shape, num_classes = "steps", (1, 4, 4), 2

    def build(self, trial: Any, net: Network) -> Tensor:
        slope = trial.suggest_float("slope", 0.1, 0.3, step=0.1)
        width = trial.suggest_int("width", 1, 3, log=True)
        return net.classifier(
            net.op("LeakyRelu", net.conv(net.input, width), attrs={"alpha": slope})
        )


def test_spaces_of_steps_are_enumerated_and_continuous_ones_say_why_not() -> None:
    assert len({arch.choices for arch in Steps().enumerate()}) == 9
    with pytest.raises(
        InputError, match="'slope' is continuous, so architectures cannot be listed"
    ):
        list(SPACE.enumerate())


class Asking(SearchSpace):
    """A space that asks what it is given to ask."""

    name, input_shape, num_classes = "asking", (1, 4, 4), 2

    def __init__(self, question: Any) -> None:
        super().__init__()
        self.question = question

    def build(self, trial: Any, net: Network) -> Tensor:
        self.question(trial)
        return net.classifier(net.input)


def asked_twice(trial: Any) -> None:
    trial.suggest_categorical("w", [8, 16])
    trial.suggest_categorical("w", [32, 64])


@pytest.mark.parametrize(
    ("question", "message"),
    [
        (
            asked_twice,
            "'w' is suggested twice, from 8, 16 and from 32, 64: give each choice its own name",
        ),
        (lambda t: t.suggest_categorical("w", []), "'w' has no options"),
        (
            lambda t: t.suggest_int("w", 5, 1),
            "'w' from 5 to 1: bounds must be finite, and the first not above",
        ),
        (
            lambda t: t.suggest_float("w", 0.0, 1.0, log=True),
            "'w' has log=True from 0.0: the range must begin above 0",
        ),
        (
            lambda t: t.suggest_float("w", 0.1, 1.0, step=0.1, log=True),
            "'w' has both a step and log=True",
        ),
        (lambda t: t.suggest_int("w", 1, 9, step=0), "'w' has step = 0: it must be positive"),
    ],
)
def test_mistakes_in_questions_are_refused_with_file_and_line(question: Any, message: str) -> None:
    space = Asking(question)
    for use in (
        lambda: space.sample(np.random.default_rng(0)),
        lambda: space.choose(optuna.create_study().ask()),
    ):
        with pytest.raises(InputError, match=rf"test_choosers\.py, line \d+: {message}"):
            use()


def test_choices_that_are_no_options_are_refused() -> None:
    choices = SPACE.sample(np.random.default_rng(0)).as_dict()
    for name, value, message in (
        ("slope", 0.7, "slope = 0.7 is not one of 0.01 to 0.5"),
        ("step", 0.15, r"step = 0.15 is not one of 0.1, 0.2, 0.3, 0.4, 0.5"),
        ("width", 2.5, "width = 2.5 is not one of 1 to 64"),
        ("last", 5, "unknown option for last: '5'"),
    ):
        with pytest.raises(InputError, match=message):
            SPACE.architecture({**choices, name: value})
