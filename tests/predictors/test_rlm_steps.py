"""Claims about how long the RLM trains an encoder: until texts that are kept aside are ordered no better."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from predictors.rlm.predictor import RLM
from predictors.rlm.steps import PATIENCE, keep_aside, validated_steps

SIZES = {"width": 16, "heads": 2, "encoder_layers": 1, "decoder_layers": 1}
TEXTS = [f"{'ab' * (i % 7)} {i}" for i in range(40)]


class Fake:
    """A training in which a step adds one to a weight, and the disorder after every tenth step is known."""

    def __init__(self, known: list[float]) -> None:
        self.modules, self.losses = torch.nn.Linear(1, 1, bias=False), list[float]()
        self.schedule = SimpleNamespace(steps=10 * len(known))
        self.known = known

    def step(self) -> None:
        self.losses.append(0.0)
        with torch.no_grad():
            self.modules.weight += 1

    def disorder(self) -> float:
        return self.known[len(self.losses) // 10 - 1]


class Told(torch.nn.Module):
    """A readout that tells each row a value (n,) of its own."""

    def __init__(self, values: torch.Tensor) -> None:
        super().__init__()
        self.values = values

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.values[rows, None]


def _chosen(fake: Any) -> int:
    return validated_steps(fake, fake, 10)


@pytest.mark.parametrize(
    ("disorder", "chosen"), [([3, 2, 1], 30), ([1, 2, 3], 10), ([3, 1, 2, 2, 2, 2, 0], 20), ([3, 1, 2, 2, 0, 1], 50)]
)
def test_it_trains_as_long_as_the_order_improves_or_soon_improves_again(disorder: list[float], chosen: int) -> None:
    assert _chosen(Fake(disorder)) == chosen


def test_a_trial_stops_soon_after_the_best_order_and_leaves_the_weights_as_they_were() -> None:
    fake = Fake([2, 1, *[3] * 20])
    before = fake.modules.weight.item()
    _chosen(fake)
    assert fake.modules.weight.item() == before
    assert len(fake.losses) == 10 * (2 + PATIENCE)


def test_the_order_is_of_the_values_that_are_known_and_the_same_each_time() -> None:
    values = np.where(np.arange(40) % 3, np.arange(40.0), np.nan)
    model = RLM(base=None, sizes=SIZES, steps=1).fit(TEXTS, {"x": values})
    training = model._training(TEXTS, model._columns({"x": values}), True, 5)
    assert 0 <= training.disorder() <= 2
    assert training.disorder() == training.disorder()
    training.modules["readout"] = Told(torch.arange(40.0))
    training.read = lambda rows: torch.from_numpy(rows)  # type: ignore[method-assign]
    assert training.disorder() == pytest.approx(0)


def test_a_fit_trains_for_a_multiple_of_half_the_usual_number_of_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("predictors.rlm.predictor.LONGEST", 2)
    model = RLM(base=None, sizes=SIZES, schedule={"batch": 8}).fit(TEXTS, {"x": range(40)})
    assert len(model.losses) in (50, 100, 150, 200)


def test_few_texts_are_all_learned_for_the_usual_number_of_steps() -> None:
    model = RLM(base=None, sizes=SIZES, schedule={"batch": 8}).fit(TEXTS[:20], {"x": range(20)})
    assert len(model.losses) == 100


def test_equal_texts_are_kept_aside_together() -> None:
    aside = keep_aside([*TEXTS, *TEXTS], seed=0)
    assert aside is not None
    assert (aside[:40] == aside[40:]).all()
    assert aside.sum() == 16
