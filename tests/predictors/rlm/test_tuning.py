"""Claims about tuning on a table, of the whole model or of its kernels: it improves predictions and
is reproducible.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy.stats import kendalltau

from nas import load_benchmark
from predictors import load
from predictors.rlm import model as model_module
from predictors.rlm.predictor import RLM
from search_spaces import get_space

RNG = np.random.default_rng(0)
DIGITS = RNG.integers(0, 10, (120, 4))
TEXTS = ["code " + " ".join(map(str, row)) for row in DIGITS.tolist()]
TARGET = (DIGITS * [3, 0, 0, 1]).sum(1).astype(float)
LEARNED, OTHERS = slice(0, 80), slice(80, None)


def _tau(model: RLM) -> float:
    predicted = model.predict(TEXTS[OTHERS], ["metric"], samples=16)["metric"]
    tau = kendalltau(predicted, TARGET[OTHERS]).statistic
    return 0.0 if np.isnan(tau) else float(tau)


def _fitted(base: str, steps: int, seed: int = 0) -> RLM:
    return RLM(seed=seed, base=base, steps=steps).fit(TEXTS[LEARNED], {"metric": TARGET[LEARNED]})


@pytest.mark.slow
def test_tuning_improves_the_ranking_of_plain_texts(small_base: str) -> None:
    untuned, tuned = _fitted(small_base, 0), _fitted(small_base, 80)
    assert _tau(tuned) > _tau(untuned) + 0.2
    assert _tau(tuned) > 0.3


@pytest.mark.slow
def test_the_seed_makes_tuning_reproducible(small_base: str) -> None:
    one, same, other = (
        _fitted(small_base, 5, seed).predict(TEXTS[OTHERS], ["metric"], samples=8).samples
        for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(one, same)
    assert not np.array_equal(one, other)


def test_tuning_does_not_change_the_base_and_is_saved_with_the_checkpoint(
    small_base: str, tmp_path: Path
) -> None:
    before = _fitted(small_base, 0).predict(TEXTS[OTHERS], ["metric"], samples=8).samples
    tuned = _fitted(small_base, 5)
    after = _fitted(small_base, 0).predict(TEXTS[OTHERS], ["metric"], samples=8).samples
    np.testing.assert_array_equal(before, after)
    tuned.save(tmp_path)
    kept, found = (
        m.predict(TEXTS[OTHERS], ["metric"], samples=8).samples for m in (load(tmp_path), tuned)
    )
    np.testing.assert_array_equal(kept, found)


def test_progress_is_reported_and_tables_may_be_tiny_or_have_gaps(small_base: str) -> None:
    seen: list[tuple[int, int]] = []
    model = RLM(
        base=small_base, steps=3, progress=lambda loss, step, steps: seen.append((step, steps))
    )
    gaps = np.where(np.arange(12) % 3, TARGET[:12], np.nan)
    model.fit(TEXTS[:12], {"metric": TARGET[:12], "gaps": gaps})
    assert seen == [(step, 6) for step in range(1, 7)]
    for count in (1, 2, 5):
        found = model.fit(TEXTS[:count], {"metric": TARGET[:count]}).predict(
            TEXTS[:3], ["metric"], samples=2
        )
        assert np.isfinite(found.samples).all()


@pytest.mark.slow
def test_fitted_kernels_rank_networks_better_from_many_examples() -> None:
    table = load_benchmark("digits-pnas")  # of a space that the base has not seen
    texts = table.load_texts()
    intensity = np.log2(table.values("flops") / table.values("params"))
    taus = []
    for kernel_steps in (0, 10):
        model = RLM(base="rlm-generated", kernel_steps=kernel_steps).fit(
            texts[:300], {"intensity": intensity[:300]}
        )
        predicted = model.predict(texts[300:], ["intensity"], samples=8)["intensity"]
        taus.append(kendalltau(predicted, intensity[300:]).statistic)
    assert taus[1] - 0.01 > taus[0] > 0.9


def test_fitting_kernels_changes_neither_the_base_nor_what_a_second_fit_finds(
    small_base: str, tmp_path: Path
) -> None:
    values = {
        "metric": TARGET[LEARNED],
        "gaps": np.where(np.arange(80) % 3, TARGET[LEARNED], np.nan),
    }
    before = _fitted(small_base, 0).predict(TEXTS[OTHERS], ["metric"], samples=8).samples
    seen: list[tuple[int, int]] = []
    model = RLM(
        base=small_base,
        kernel_steps=4,
        progress=lambda loss, step, steps: seen.append((step, steps)),
    )
    one, again = (
        model.fit(TEXTS[LEARNED], values).predict(TEXTS[OTHERS], ["metric"], samples=8).samples
        for _ in "12"
    )
    assert seen == [(step, 4) for step in range(1, 5)] * 2
    np.testing.assert_array_equal(one, again)
    np.testing.assert_array_equal(
        before, _fitted(small_base, 0).predict(TEXTS[OTHERS], ["metric"], samples=8).samples
    )
    assert not np.array_equal(before, one)
    model.save(tmp_path)
    np.testing.assert_array_equal(
        one, load(tmp_path).predict(TEXTS[OTHERS], ["metric"], samples=8).samples
    )


@pytest.mark.slow
def test_kernels_stay_where_they_can_be_inverted_for_metrics_without_noise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(model_module, "KERNEL_RATE", 3.0)  # thirty times as far in each step
    space, rng = get_space("nasbench201"), np.random.default_rng(0)
    architectures = [space.sample(rng) for _ in range(120)]
    texts, sizes = (
        [space.to_text(a) for a in architectures],
        np.log([space.params(a) for a in architectures]),
    )
    values = {"val_loss": sizes, "latency_ms": np.exp(sizes / 3)}
    model = RLM(kernel_steps=30).fit(
        texts[:100], {name: column[:100] for name, column in values.items()}
    )
    predicted = model.predict(texts[100:], list(values), samples=8)
    assert (
        min(kendalltau(predicted[name], column[100:]).statistic for name, column in values.items())
        > 0.9
    )
