"""Claims about Gaussian processes on texts and on choices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import kendalltau

from predictors import create, load
from predictors.baselines import TextGP
from search_spaces import InputError, get_space

SPACE = get_space("nasbench201", channels=4, cells=1)
ARCHITECTURES = [SPACE.sample(np.random.default_rng(seed)) for seed in range(100)]
TEXTS = [SPACE.to_text(a) for a in ARCHITECTURES]
COSTS = np.log([float(SPACE.flops(a)) for a in ARCHITECTURES])
INPUTS: dict[str, list[Any]] = {"gp": TEXTS, "gp-choices": ARCHITECTURES}


@pytest.mark.parametrize("kind", INPUTS)
def test_it_learns_a_cost_from_forty_networks(kind: str) -> None:
    inputs = INPUTS[kind]
    model = create(kind).fit(inputs[:40], {"cost": COSTS[:40]})
    assert kendalltau(model.predict(inputs[40:], ["cost"])["cost"], COSTS[40:]).statistic > 0.6


def test_a_given_metric_adds_information_to_the_text() -> None:
    first = np.random.default_rng(0).normal(size=100)
    second = 3 - first**3
    model = create("gp").fit(TEXTS[:60], {"first": first[:60], "second": second[:60]})
    known = model.predict(TEXTS[60:], ["second"], given={"first": first[60:]})
    assert kendalltau(known["second"], second[60:]).statistic > 0.8
    assert known.std.mean() < model.predict(TEXTS[60:], ["second"]).std.mean()


def test_metrics_without_common_networks_are_predicted_separately() -> None:
    even = np.arange(100) % 2 == 0
    values = {"first": np.where(even, COSTS, np.nan), "second": np.where(even, np.nan, COSTS)}
    model = create("gp").fit(TEXTS, values)
    told = model.predict(TEXTS, ["second"], given={"first": COSTS}).samples
    np.testing.assert_array_equal(told, model.predict(TEXTS, ["second"]).samples)


def test_of_a_large_table_every_metric_keeps_its_values(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(TextGP, "max_points", 20)
    rare = np.where(np.arange(100) < 5, COSTS, np.nan)
    model = create("gp").fit(TEXTS, {"cost": COSTS, "rare": rare})
    found = model.predict(TEXTS, ["cost", "rare"], samples=4).samples
    assert np.isfinite(found).all()
    assert kendalltau(np.median(found[5:, :, 0], 1), COSTS[5:]).statistic > 0.4
    model.save(tmp_path)
    np.testing.assert_array_equal(
        load(tmp_path).predict(TEXTS, ["cost", "rare"], samples=4).samples, found
    )


def test_a_text_has_no_choices() -> None:
    with pytest.raises(InputError, match="reads architectures with their choices"):
        create("gp-choices").fit(TEXTS, {"cost": COSTS})
