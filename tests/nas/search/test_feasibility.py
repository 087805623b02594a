"""Claims about networks that cannot be evaluated: guided searches learn to avoid them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import optuna
import pytest
from optuna.trial import FrozenTrial

from nas import Evaluator, Problem, search
from nas.search.candidates import Feasibility, Texts
from nas.search.evaluators import Values
from nas.search.own_evaluator import FunctionEvaluator
from nas.search.sampler import PredictorSampler
from nas.search.study.trial_logger import EvaluationLogger
from nas.search.trainings import Segment
from predictors import create
from search_spaces import Architecture, SearchSpace
from search_spaces.common.errors import MeasurementError
from search_spaces.ir.builder import Network, Tensor

ACTIVATIONS = ("relu", "sigmoid", "hard_sigmoid", "hard_swish")
STARTUP = 10


class Activations(SearchSpace):
    """1,728 networks for digits: width and activation of three layers."""

    name = "activations"
    input_shape = (1, 8, 8)
    num_classes = 10
    size = 1728

    def build(self, trial: Any, net: Network) -> Tensor:
        x = net.input
        for i in range(3):
            x = net.conv(x, trial.suggest_categorical(f"width{i}", [1, 2, 3]))
            x = getattr(net, trial.suggest_categorical(f"activation{i}", ACTIVATIONS))(x)
        return net.classifier(x)


SPACE = Activations()


def _fails(architecture: Architecture) -> bool:
    """58 % of all networks: those with a HardSwish."""
    return "hard_swish" in architecture.as_dict().values()


class Runtime(Evaluator):
    """Latency in a runtime that lacks HardSwish, which would make the best networks.

    Args:
        stage: at which networks with the kernel fail: "measure", "train" or "never".
    """

    metrics = ("usefulness_accuracy", "board_ms")
    space = SPACE

    def __init__(self, stage: str) -> None:
        self.stage = stage

    @property
    def trained(self) -> tuple[str, ...]:
        return ("usefulness_accuracy",)

    def measure(self, architecture: Architecture, log: EvaluationLogger) -> dict[str, float]:
        if self.stage == "measure" and _fails(architecture):
            raise MeasurementError("the runtime has no HardSwish")
        return {"board_ms": SPACE.flops(architecture) / 1e6}

    def train(
        self,
        architecture: Architecture,
        observed: Values,
        log: EvaluationLogger,
        segment: Segment | None = None,
    ) -> dict[str, float]:
        if self.stage == "train" and _fails(architecture):
            raise RuntimeError("the training diverged")
        score = float(np.log(SPACE.params(architecture))) + _fails(architecture)
        return {**observed, "usefulness_accuracy": score}


def _failing_share(trials: Sequence[FrozenTrial]) -> float:
    return float(np.mean(["hard_swish" in trial.params.values() for trial in trials]))


def _searched(stage: str) -> list[FrozenTrial]:
    problem = Problem(SPACE, Runtime(stage), "usefulness_accuracy,board_ms")
    found = search(problem, sampler="gp-choices", evaluations=15)
    return found.study.trials[STARTUP:]


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["measure", "train"])
def test_a_choice_that_always_fails_is_proposed_far_less_often_than_at_random(
    stage: str,
) -> None:
    """58 % of random networks have it."""
    assert _failing_share(_searched(stage)) <= 0.3


@pytest.mark.slow
def test_the_same_choice_is_proposed_where_it_does_not_fail() -> None:
    assert _failing_share(_searched("never")) >= 0.4


@pytest.mark.slow
def test_a_search_with_fidelities_avoids_the_choice() -> None:
    def train(model: Any, architecture: Architecture, report: Any) -> dict[str, float]:
        if _fails(architecture):
            raise RuntimeError("the training diverged")
        score = float(np.log(SPACE.params(architecture)))
        for epoch in range(1, 4):
            if not report(epoch, {"usefulness_accuracy": score - 1 / epoch}):
                break
        return {"usefulness_accuracy": score - 1 / epoch}

    evaluator = FunctionEvaluator(SPACE, train, ["usefulness_accuracy"])
    found = search(
        Problem(SPACE, evaluator, "usefulness_accuracy"),
        sampler="ridge",
        fidelities=(1, 3),
        budget=50,
    )
    begun = [t for t in found.study.trials if t.user_attrs["nas:begun"] < 0]
    assert len(begun) > 25
    assert _failing_share(begun[20:]) <= 0.3


@pytest.mark.slow
def test_a_users_own_study_avoids_it() -> None:
    """Its trials fail without a reason that a search would have stored."""
    sampler = PredictorSampler(SPACE, lambda: create("ridge"), ["params", "flops"], seed=1)
    study = optuna.create_study(directions=["minimize", "minimize"], sampler=sampler)

    def objective(trial: optuna.Trial) -> tuple[float, float]:
        architecture = SPACE.choose(trial)
        if _fails(architecture):
            raise ValueError("no such operator")
        return SPACE.params(architecture), SPACE.flops(architecture)

    study.optimize(objective, n_trials=30, catch=(ValueError,))
    assert _failing_share(study.trials[STARTUP:]) <= 0.3


# --- the probability


def test_nothing_is_weighted_as_long_as_nothing_fails() -> None:
    """So that a search without failures stays the same, bit by bit."""
    rng = np.random.default_rng(0)
    networks = [SPACE.sample(rng) for _ in range(20)]
    feasibility = Feasibility(Texts(SPACE))
    feasibility.fit(networks, [])
    assert (feasibility(networks) == 1).all()
    assert (feasibility.doubts(networks) == 0).all()


def test_an_operator_is_recognized_in_places_where_it_has_not_failed() -> None:
    """It failed in the first layer alone. The text names it in the third as well."""
    rng = np.random.default_rng(0)
    networks = [SPACE.sample(rng) for _ in range(1000)]
    placed: dict[tuple[int, ...], list[Architecture]] = {}  # by the layers that have it
    for network in networks:
        choices = network.as_dict()
        layers = tuple(i for i in range(3) if choices[f"activation{i}"] == "hard_swish")
        placed.setdefault(layers, []).append(network)
    feasibility = Feasibility(Texts(SPACE))
    feasibility.fit(placed[()][:20], placed[0,][:20])
    assert feasibility(placed[2,]).max() < 0.5 < feasibility(placed[()]).min()


def test_doubts_rise_from_an_even_chance_to_certain_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chances = np.array([1.0, 0.5, 0.25, 0.0])
    monkeypatch.setattr(Feasibility, "__call__", lambda *_: chances)
    assert Feasibility(Texts(SPACE)).doubts([]).tolist() == [0, 0, 0.5, 1]
