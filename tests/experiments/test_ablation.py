"""The ablation: one row for each predictor, base and kind of input; scores of what was not learned."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import predictors
from experiments import ablation
from search_spaces import InputError


def test_every_predictor_begins_from_nothing_and_from_its_base_with_and_without_cheap_metrics() -> None:
    tasks = ablation.tasks_of(["gnn"], "table.csv", (78,), range(10, 11))
    assert [task[:3] for task in tasks] == [
        ("gnn", "nothing", "text"),
        ("gnn", "nothing", "text and cheap metrics"),
        ("gnn", "gnn-label-free", "text"),
        ("gnn", "gnn-label-free", "text and cheap metrics"),
    ]


@pytest.mark.parametrize("sees", ablation.GIVEN)
def test_networks_that_were_learned_are_not_ranked(sees: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, list[str]] = {}

    class Watched:
        def fit(self, texts: list[str], metrics: dict[str, np.ndarray]) -> Watched:
            seen["learned"] = texts
            assert tuple(metrics) == ("accuracy", *ablation.GIVEN[sees])
            return self

        def predict(self, texts: list[str], metrics: list[str], given: dict[str, np.ndarray], **_: int) -> object:
            seen["ranked"] = texts
            assert tuple(given) == ablation.GIVEN[sees]
            return {"accuracy": np.arange(len(texts))}

    monkeypatch.setattr(predictors, "create", lambda *_, **__: Watched())
    row = ablation.score("gnn", "nothing", sees, ablation.QUICK_TABLE, 16, 0)
    assert abs(row["tau"]) < 0.2, "an arbitrary order"
    assert (len(seen["learned"]), len(seen["ranked"])) == (16, 484)


def test_a_table_is_needed(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cell_proxies"):
        ablation.main(out=tmp_path)
