"""Claims about the shipped checkpoints: small, described, usable offline by their names."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import spearmanr

import predictors
from predictors.checkpoint import CHECKPOINTS
from search_spaces import get_space

SHIPPED = sorted(folder.name for folder in CHECKPOINTS.iterdir())
MOST_BYTES = 12_000_000


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_checkpoint_is_small_described_and_found_by_its_name(name: str) -> None:
    folder = CHECKPOINTS / name
    assert sum(path.stat().st_size for path in folder.iterdir()) <= MOST_BYTES
    card = (folder / "README.md").read_text()
    assert all(part in card for part in (f"# {name}", "**Trained on**", "**Licence**"))
    space = get_space("nasbench201")
    texts = [space.to_text(space.sample(np.random.default_rng(seed))) for seed in range(2)]
    model = predictors.load(name)
    assert np.isfinite(model.predict(texts, list(model.metrics)[-1:], samples=4).samples).all()


@pytest.mark.skipif("NAS_DATA" not in os.environ, reason="NAS_DATA, the folder of real tables, is not set")
@pytest.mark.parametrize("name", ["rlm-nasbench201", "gnn-nasbench201"])
def test_a_checkpoint_of_the_whole_table_ranks_networks_that_it_has_not_seen(name: str) -> None:
    from experiments.pretraining.whole_table import held_out
    from nas.benchmarks import load_benchmark

    table = load_benchmark("nasbench201")
    texts = table.load_texts()
    rows = held_out(texts, seed=0)[1][::8]
    model = predictors.load(name)
    metrics = ["cifar10_test_accuracy", "1080ti_1_latency_ms"]
    predicted = model.predict([texts[i] for i in rows], metrics, samples=8)
    for metric in metrics:
        assert spearmanr(predicted[metric], table.values(metric)[rows]).statistic > 0.9
    assert Path(CHECKPOINTS / name / "tests.json").exists()
