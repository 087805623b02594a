"""Claims about the RLM as a predictor: examples in context, given metrics, tables of any size, for
any weights.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import kendalltau

from predictors.rlm import examples
from predictors.rlm.examples import MAX_EXAMPLES, group_examples
from predictors.rlm.predictor import RLM
from predictors.rlm.tokens import COMMON, COUNTS, NEIGHBOURS, QUALITY
from search_spaces import InputError, get_space

SPACE = get_space("nasbench201", channels=4, cells=1)
TEXTS = list(
    dict.fromkeys(SPACE.to_text(SPACE.sample(np.random.default_rng(seed))) for seed in range(60))
)
RNG = np.random.default_rng(0)
VALUES = {"top1": RNG.normal(size=40), "a_latency_ms": RNG.random(40), "energy_mj": RNG.random(40)}


def _fitted(base: str, **options: int) -> RLM:
    return RLM(base=base, **options).fit(TEXTS[:40], VALUES)  # type: ignore[arg-type]


@settings(max_examples=5, deadline=None)
@given(order=st.permutations(range(40)))
def test_the_order_of_examples_does_not_matter(small_base: str, order: list[int]) -> None:
    shuffled = RLM(base=small_base).fit(
        [TEXTS[i] for i in order], {n: v[order] for n, v in VALUES.items()}
    )
    one, other = (m.predict(TEXTS[40:], ["top1"]).samples for m in (_fitted(small_base), shuffled))
    assert (
        np.mean(np.abs(one - other) > 0.05) < 0.01
    )  # sums differ in their last digits, and so may a digit


def test_a_prediction_does_not_depend_on_the_other_queries(small_base: str) -> None:
    model = _fitted(small_base)
    together = model.predict(TEXTS[40:], list(VALUES), samples=8).samples
    alone = np.concatenate(
        [model.predict([text], list(VALUES), samples=8).samples for text in TEXTS[40:]]
    )
    assert np.mean(np.abs(together - alone) > 0.05) < 0.01


def test_metrics_come_in_the_order_asked_and_decoding_keeps_its_own(small_base: str) -> None:
    model = _fitted(small_base)
    one = model.predict(TEXTS[40:], ["energy_mj", "top1"], samples=8)
    other = model.predict(TEXTS[40:], ["top1", "energy_mj", "top1"], samples=8)
    np.testing.assert_array_equal(one.samples, other.samples[:, :, [1, 0]])
    np.testing.assert_array_equal(other.samples[:, :, 0], other.samples[:, :, 2])


def test_rows_with_and_without_a_given_value_are_predicted_as_if_separate(small_base: str) -> None:
    known = np.where(np.arange(len(TEXTS) - 40) % 2, np.nan, 0.5)
    model = _fitted(small_base)
    mixed = model.predict(TEXTS[40:], ["top1"], given={"a_latency_ms": known}, samples=8).samples
    with_value = model.predict(
        TEXTS[40::2], ["top1"], given={"a_latency_ms": known[::2]}, samples=8
    ).samples
    without = model.predict(TEXTS[41::2], ["top1"], samples=8).samples
    assert np.mean(np.abs(mixed[::2] - with_value) > 0.05) < 0.02
    assert np.mean(np.abs(mixed[1::2] - without) > 0.05) < 0.02


def test_an_extreme_given_value_gives_finite_predictions(small_base: str) -> None:
    known = np.array([-1e18, 1e-310, 0.0, 1e18])
    found = _fitted(small_base).predict(TEXTS[:4], ["top1"], given={"a_latency_ms": known})
    assert np.isfinite(found.samples).all()


def test_one_model_of_all_metrics_is_for_each_the_model_of_it_alone(small_base: str) -> None:
    values = {
        name: np.where(np.arange(40) % 3 == i, np.nan, column)
        for i, (name, column) in enumerate(VALUES.items())
    }
    together = RLM(base=small_base).fit(TEXTS[:40], values)
    for name, column in values.items():
        rows = np.flatnonzero(~np.isnan(column))
        alone = RLM(base=small_base).fit([TEXTS[i] for i in rows], {name: column[rows]})
        one, other = (m.predict(TEXTS[40:], [name], samples=8).samples for m in (together, alone))
        np.testing.assert_array_equal(one, other)


def test_further_metrics_do_not_change_earlier_ones(small_base: str) -> None:
    names = [f"metric{i}" for i in range(19)]
    model = RLM(base=small_base).fit(TEXTS[:40], {name: RNG.random(40) for name in names})
    found = model.predict(TEXTS[40:], names, samples=4)
    assert found.samples.shape == (len(TEXTS) - 40, 4, 19)
    assert np.isfinite(found.samples).all()
    first = model.predict(TEXTS[40:], names[:8], samples=4)
    np.testing.assert_array_equal(found.samples[:, :, :8], first.samples)


def _many(count: int) -> list[str]:
    """Different texts that are fast to read: numbers."""
    return [f"width {i % 97} depth {i // 97}" for i in range(count)]


@pytest.fixture
def large(small_base: str, monkeypatch: pytest.MonkeyPatch) -> RLM:
    """A model with 410 examples, of which a query sees 200; 30 of them have a latency, two an
    energy.
    """
    monkeypatch.setattr(examples, "MAX_EXAMPLES", 200)
    count = 410
    some = np.full(count, np.nan)
    some[RNG.permutation(count)[:30]] = RNG.random(30)
    two = np.full(count, np.nan)
    two[[17, 400]] = 3.0, 4.0
    return RLM(base=small_base).fit(
        _many(count), {"top1": RNG.random(count), "a_latency_ms": some, "b_mj": two}
    )


def test_a_query_sees_a_bounded_number_of_examples_chosen_by_its_state(large: RLM) -> None:
    queries = _many(300)[::40]
    assert large._fitted is not None
    found = large._fitted.groups_with(["top1"])
    assert [len(group.rows) for group in found] == [200] * len(found)
    assert len({group.rows.tobytes() for group in found}) == len(found) > 1
    together = large.predict(queries, ["top1"], samples=4).samples
    alone = np.concatenate([large.predict([text], ["top1"], samples=4).samples for text in queries])
    assert np.mean(np.abs(together - alone) > 0.05) < 0.05


def test_every_example_is_seen_by_some_query() -> None:
    states = RNG.normal(size=(5000, 4 + COUNTS + NEIGHBOURS + COMMON)).astype(np.float32)
    found = group_examples(states)
    assert all(len(np.unique(group.rows)) == len(group.rows) == MAX_EXAMPLES for group in found)
    assert len(np.unique(np.concatenate([group.rows for group in found]))) > 4000


def test_a_metric_with_few_values_in_a_large_table_is_predicted_from_these(large: RLM) -> None:
    for names in (["a_latency_ms"], ["b_mj"], ["top1", "a_latency_ms", "b_mj"]):
        found = large.predict(_many(20), names, samples=4)
        assert np.isfinite(found.samples).all()
    assert large._fitted is not None
    assert large._fitted.groups_with(["b_mj"])[0].rows.tolist() == [17, 400]
    given = large.predict(_many(20), ["b_mj"], given={"a_latency_ms": np.full(20, 0.5)}, samples=4)
    assert np.isfinite(given.samples).all()


def test_a_context_is_read_once_and_forgotten_with_its_examples(
    small_base: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    context = examples.MetricContext

    def noting(*args: Any) -> examples.MetricContext:
        read.append(1)
        return context(*args)

    monkeypatch.setattr(examples, "MetricContext", noting)
    model = _fitted(small_base)
    before = [model.estimate(TEXTS[40:], list(VALUES)) for _ in range(2)]
    assert len(read) == len(VALUES)
    assert (before[0] == before[1]).all()
    turned = {name: -column for name, column in VALUES.items()}
    fresh = RLM(base=small_base).fit(TEXTS[:40], turned).estimate(TEXTS[40:], list(VALUES))
    assert (model.fit(TEXTS[:40], turned).estimate(TEXTS[40:], list(VALUES)) == fresh).all()


def test_predictions_do_not_depend_on_the_batch_size(
    small_base: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = _fitted(small_base).predict(TEXTS, list(VALUES), samples=8).samples
    monkeypatch.setattr("predictors.rlm.examples.MAX_NUMBERS", 50)
    parts = _fitted(small_base).predict(TEXTS, list(VALUES), samples=8).samples
    assert np.mean(np.abs(whole - parts) > 0.05) < 0.01


@pytest.mark.parametrize("values", [[1e-310, 2e-310, 1.0, 2.0], [0.0, 1e18, -1e18, 3.0], [5.0] * 4])
def test_tiny_and_huge_values_give_finite_predictions(small_base: str, values: list[float]) -> None:
    found = RLM(base=small_base).fit(TEXTS[:4], {"metric": values}).predict(TEXTS[:20], ["metric"])
    assert all(np.isfinite(part).all() for part in (found.samples, found.mean, found.std))


def test_states_need_no_examples_and_read_each_text_once(small_base: str) -> None:
    model = RLM(base=small_base)
    states = model.states([TEXTS[0], TEXTS[1], TEXTS[0]])
    assert states.shape == (3, 24 + QUALITY + COUNTS + NEIGHBOURS + COMMON)
    assert states.dtype == np.float32
    np.testing.assert_array_equal(states[0], states[2])
    assert model.metrics == ()


def test_examples_are_known_and_other_networks_are_farther(small_base: str) -> None:
    model = _fitted(small_base)
    own, others = model.novelty(TEXTS[:40]), model.novelty(TEXTS[40:])
    np.testing.assert_allclose(own, 0, atol=1e-3)
    assert (others > 0).all()
    assert (
        RLM(base=small_base).fit(TEXTS[:1], {"top1": [1.0]}).novelty(TEXTS[1:2]) == 0
    )  # one has no distances


def test_only_examples_with_the_metric_make_a_network_known(small_base: str) -> None:
    some = np.where(np.arange(40) < 10, 1.0 + np.arange(40), np.nan)
    model = RLM(base=small_base).fit(TEXTS[:40], {"top1": np.arange(40.0), "a_ms": some})
    np.testing.assert_allclose(model.novelty(TEXTS[:40], ["top1"]), 0, atol=1e-3)
    np.testing.assert_allclose(model.novelty(TEXTS[:10], ["a_ms"]), 0, atol=1e-3)
    assert (model.novelty(TEXTS[10:40], ["a_ms"]) > 0.01).all()
    both = model.novelty(TEXTS, ["top1", "a_ms"])
    np.testing.assert_allclose(
        both, np.maximum(model.novelty(TEXTS, ["top1"]), model.novelty(TEXTS, ["a_ms"]))
    )
    with pytest.raises(InputError, match="unknown metric 'b_ms'"):
        model.novelty(TEXTS, ["b_ms"])


def test_all_examples_count_as_known_however_many(
    small_base: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(examples, "MAX_EXAMPLES", 10)  # more are stored than a query attends to
    monkeypatch.setattr(examples, "NOVELTY_ROWS", 20)
    np.testing.assert_allclose(_fitted(small_base).novelty(TEXTS[:40]), 0, atol=1e-3)


def test_nothing_is_novel_without_examples(small_base: str) -> None:
    with pytest.raises(InputError, match="not trained"):
        RLM(base=small_base).novelty(TEXTS)


def test_a_base_gives_its_weights_and_not_its_examples(small_base: str, tmp_path: Path) -> None:
    _fitted(small_base).save(tmp_path)
    with pytest.raises(InputError, match="not trained"):
        RLM(base=str(tmp_path)).predict(TEXTS, ["top1"])
    again = RLM(base=str(tmp_path)).fit(TEXTS[:40], VALUES)
    np.testing.assert_array_equal(
        again.predict(TEXTS, ["top1"], samples=4).samples,
        _fitted(small_base).predict(TEXTS, ["top1"], samples=4).samples,
    )


def test_bad_options_and_bases_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="steps must be 0 or more"):
        RLM(steps=-1)
    with pytest.raises(InputError, match="unknown checkpoint"):
        RLM(base=str(tmp_path / "none")).fit(TEXTS[:1], {"metric": [1.0]})
    with pytest.raises(InputError, match="holds a gnn predictor, not an rlm"):
        RLM(base="gnn-label-free").fit(TEXTS[:1], {"metric": [1.0]})


def test_an_estimate_of_several_metrics_is_that_of_each_alone(small_base: str) -> None:
    model = _fitted(small_base)
    together = model.estimate(TEXTS[40:], list(VALUES))
    alone = np.concatenate([model.estimate(TEXTS[40:], [name]) for name in VALUES], 1)
    np.testing.assert_array_equal(together, alone)


@pytest.mark.slow
def test_a_metric_of_any_name_is_learned_beside_others() -> None:
    """It depends on the network's size; accuracy and latency, which are learned with it, depend on
    something else.
    """
    space = get_space("tiny-resnet")
    architectures = list(
        dict.fromkeys(space.sample(np.random.default_rng(seed)) for seed in range(160))
    )[:120]
    texts = [space.to_text(a) for a in architectures]
    size = np.log([space.params(a) for a in architectures])
    other = np.log([space.flops(a) / space.params(a) for a in architectures])
    for name in ("goodness", "val_loss", "top1"):
        model = RLM().fit(
            texts[:60], {"test_accuracy": other[:60], "cpu_ms": other[:60] + 1, name: size[:60]}
        )
        found = model.predict(texts[60:], ["test_accuracy", "cpu_ms", name], samples=16)[name]
        assert kendalltau(found, size[60:]).statistic > 0.6
