"""Claims about the forest beside the decoder: what it reads, when it takes part, and that checkpoints keep it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from predictors import load
from predictors.rlm import forest, predictor
from predictors.rlm.forest import TOTALS, Features, totals
from predictors.rlm.predictor import RLM
from search_spaces import InputError, get_space

SPACE = get_space("tiny-resnet")
DRAWN = {SPACE.to_text(a): a for a in (SPACE.sample(np.random.default_rng(seed)) for seed in range(150))}
TEXTS = list(DRAWN)[:60]
MACS = np.array([float(SPACE.flops(DRAWN[text])) for text in TEXTS])


@pytest.fixture(autouse=True)
def few_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let forests take part from 20 examples on."""
    monkeypatch.setattr(predictor, "MIN_EXAMPLES", 20)
    monkeypatch.setattr(forest, "TREES", 20)


def _fitted(base: str, **columns: np.ndarray) -> RLM:
    return RLM(base=base, forest=True).fit(TEXTS[:40], columns or {"a_ms": MACS[:40]})


def test_totals_count_grouped_operators_and_products_of_activations() -> None:
    space = get_space("fbnet")
    drawn = [space.sample(np.random.default_rng(seed)) for seed in range(3)]
    for text in (text for text in map(space.to_text, drawn) if "group =" in text):
        found = dict(zip(TOTALS, totals(text), strict=True))
        assert 10 < found["grouped macs"] < np.log2(1 + MACS.max()) + 9
        assert 10 < found["grouped elements"] < found["elements"]
        break
    else:
        raise AssertionError("no network has a grouped convolution")
    plain = dict(zip(TOTALS, totals(TEXTS[0]), strict=True))
    assert plain["grouped macs"] == plain["macs without weights"] == 0


def test_predictions_are_the_mean_of_decoder_and_forest(small_base: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A decoder with random weights knows nothing; the forest beside it does."""
    found = []
    for weight in (0.0, 0.5, 1.0):
        monkeypatch.setattr(predictor, "WEIGHT", weight)
        model = _fitted(small_base)
        found.append(model._scales["a_ms"].normalize(model.predict(TEXTS[40:], ["a_ms"])["a_ms"]))
    np.testing.assert_allclose(found[1], (found[0] + found[2]) / 2, atol=0.02)
    assert np.corrcoef(found[2], np.log(MACS[40:]))[0, 1] > 0.8


def test_where_decoder_and_forest_differ_intervals_are_wider(small_base: str) -> None:
    alone = RLM(base=small_base).fit(TEXTS[:40], {"a_ms": MACS[:40]}).predict(TEXTS[40:], ["a_ms"])
    both = _fitted(small_base).predict(TEXTS[40:], ["a_ms"])
    spread = [np.log(p.samples[:, :, 0]).std(1) for p in (alone, both)]
    assert (spread[1] > 0.999 * spread[0]).all()
    moved = np.abs(np.log(both["a_ms"] / alone["a_ms"]))
    assert np.corrcoef(moved, spread[1] - spread[0])[0, 1] > 0.5


def test_it_leaves_alone_metrics_with_few_examples_and_predictions_from_other_metrics(small_base: str) -> None:
    few = np.where(np.arange(40) < 19, MACS[:40], np.nan)
    columns = {"a_ms": MACS[:40], "b_ms": few, "params": MACS[:40]}
    both, alone = _fitted(small_base, **columns), RLM(base=small_base).fit(TEXTS[:40], columns)

    def same(metric: str, **given: np.ndarray) -> bool:
        one, other = (model.predict(TEXTS[40:], [metric], given).samples for model in (both, alone))
        return np.allclose(one, other)

    assert same("b_ms")
    assert same("a_ms", b_ms=MACS[40:])
    assert not same("a_ms", params=MACS[40:]), "exact costs are known of every network"


def test_a_checkpoint_keeps_it_and_it_learns_further_examples(small_base: str, tmp_path: Path) -> None:
    model = _fitted(small_base)
    model.save(tmp_path)
    kept = load(tmp_path)
    asked = TEXTS[50:]
    np.testing.assert_allclose(
        kept.predict(asked, ["a_ms"], samples=8).samples, model.predict(asked, ["a_ms"], samples=8).samples, rtol=1e-6
    )
    before = kept.predict(asked, ["a_ms"])["a_ms"]
    kept.extend(TEXTS[38:50], {"a_ms": 100 * MACS[38:50]})
    assert isinstance(kept, RLM)
    assert kept._features is not None
    assert len(kept._features.matrix) == 50
    assert np.median(kept.predict(asked, ["a_ms"])["a_ms"] / before) > 1.2


def test_features_of_other_examples_are_refused(small_base: str, tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    _fitted(small_base).save(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    save_file({**tensors, "features": tensors["features"][:30].copy()}, tmp_path / "model.safetensors")
    with pytest.raises(InputError, match="its features are not those of its examples"):
        load(tmp_path)


def test_kinds_of_operators_that_few_networks_have_are_left_out() -> None:
    other = get_space("ofa-mbv3")
    rare = other.to_text(other.sample(np.random.default_rng(0)))
    names = Features.fit([*TEXTS, *TEXTS, rare]).kinds
    assert not any("group=" in name for name in names)
    assert any("Conv" in name for name in names)
