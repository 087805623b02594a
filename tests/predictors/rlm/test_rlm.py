"""Claims about the RLM as a predictor: what examples in its context do."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import kendalltau

from nas import load_benchmark
from predictors import create, load
from predictors.rlm.examples import MAX_EXAMPLES, assign, groups
from predictors.rlm.predictor import RLM
from search_spaces import InputError, get_space

SPACE = get_space("nasbench201", channels=4, cells=2)


def _data(n: int, seed: int = 0) -> tuple[list[str], np.ndarray]:
    rng = np.random.default_rng(seed)
    architectures = [SPACE.sample(rng) for _ in range(n)]
    return [SPACE.to_text(a) for a in architectures], np.log([1.0 + SPACE.flops(a) for a in architectures])


def test_more_examples_rank_real_networks_better() -> None:
    table = load_benchmark("digits-nasnet")
    texts, accuracy = table.load_texts(), table.values("digits_accuracy")
    taus = {}
    for size in (8, 100):
        found = []
        for seed in range(3):
            order = np.random.default_rng(seed).permutation(len(texts))
            train, test = order[:size], order[200:]
            model = create("rlm", base="rlm-generated").fit([texts[i] for i in train], {"accuracy": accuracy[train]})
            predicted = model.predict([texts[i] for i in test], ["accuracy"], samples=16)["accuracy"]
            found.append(kendalltau(predicted, accuracy[test]).statistic)
        taus[size] = np.mean(found)
    assert taus[100] > taus[8]
    assert taus[100] > 0.45


def test_the_order_of_examples_and_other_queries_do_not_matter() -> None:
    texts, values = _data(40)
    order = np.random.default_rng(1).permutation(30)
    one = create("rlm").fit(texts[:30], {"x_ms": values[:30]}).predict(texts[30:], ["x_ms"], samples=8).samples
    shuffled = create("rlm").fit([texts[i] for i in order], {"x_ms": values[order]})
    np.testing.assert_allclose(shuffled.predict(texts[30:], ["x_ms"], samples=8).samples, one, atol=0.05)
    alone = np.concatenate([shuffled.predict([t], ["x_ms"], samples=8).samples for t in texts[30:]])
    np.testing.assert_allclose(shuffled.predict(texts[30:], ["x_ms"], samples=8).samples, alone, atol=0.05)


def test_what_is_given_tells_what_the_text_does_not() -> None:
    texts, _ = _data(120)
    first = np.random.default_rng(2).normal(size=120)  # nothing in the text tells it
    model = create("rlm").fit(texts[:80], {"a_ms": first[:80], "b_ms": 3 * first[:80] + 1})
    given = model.predict(texts[80:], ["b_ms"], given={"a_ms": first[80:]}, samples=16)
    assert kendalltau(given["b_ms"], first[80:]).statistic > 0.8
    assert abs(kendalltau(model.predict(texts[80:], ["b_ms"])["b_ms"], first[80:]).statistic) < 0.4


def test_joint_samples_keep_what_metrics_share() -> None:
    texts, _ = _data(120)
    first = np.random.default_rng(3).normal(size=120)
    model = create("rlm").fit(texts[:100], {"a_ms": first[:100], "b_ms": first[:100]})
    samples = model.predict(texts[100:], ["a_ms", "b_ms"], samples=64).samples
    correlations = [np.corrcoef(one.T)[0, 1] for one in samples]
    assert np.mean(correlations) > 0.3


def test_more_metrics_than_fit_in_one_sequence_are_all_predicted() -> None:
    texts, values = _data(30)
    names = [f"device{i}_ms" for i in range(10)]
    model = create("rlm").fit(texts, {name: values + i for i, name in enumerate(names)})
    predicted = model.predict(texts[:5], names, samples=4)
    assert (predicted.mean.argsort(1) == np.arange(10)).all()


def test_of_many_examples_a_query_sees_a_bounded_number_that_depends_on_itself_alone() -> None:
    states = np.random.default_rng(0).normal(size=(5000, 6))
    found = groups(states)
    assert all(len(group.rows) <= MAX_EXAMPLES for group in found)
    assert set(np.concatenate([group.rows for group in found])) <= set(range(5000))
    together = assign(states[:50], found)
    assert [assign(states[i : i + 1], found)[0] for i in range(50)] == together.tolist()


def test_a_fit_takes_no_step_and_a_refit_forgets() -> None:
    texts, values = _data(20)
    model = create("rlm")
    assert isinstance(model, RLM)
    before = model.model.state_dict()["decoder.head.weight"].clone()
    model.fit(texts, {"x_ms": values}).fit(texts[:10], {"y_ms": values[:10]})
    assert model.metrics == ("y_ms",)
    assert (model.model.state_dict()["decoder.head.weight"] == before).all()


def test_tuning_learns_texts_that_are_no_networks() -> None:
    rng = np.random.default_rng(0)
    numbers = rng.integers(0, 100, (160, 2))
    texts = [f"loop {a} times over {b} rows" for a, b in numbers]
    seconds = numbers[:, 0].astype(float)
    taus = []
    for steps in (0, 30):
        model = create("rlm", steps=steps).fit(texts[:120], {"seconds": seconds[:120]})
        taus.append(kendalltau(model.predict(texts[120:], ["seconds"])["seconds"], seconds[120:]).statistic)
    assert taus[1] > 0.6
    assert taus[1] >= taus[0] - 0.05
    again = create("rlm", steps=2).fit(texts[:40], {"seconds": seconds[:40]}).predict(texts[:3], ["seconds"]).samples
    other = create("rlm", steps=2).fit(texts[:40], {"seconds": seconds[:40]}).predict(texts[:3], ["seconds"]).samples
    np.testing.assert_array_equal(again, other)


@pytest.mark.parametrize("values", [[1e-310, 2e-310], [1e200, 2e200], ["fast", "slow"]])
def test_values_that_cannot_be_learned_are_refused(values: list[float]) -> None:
    texts, _ = _data(2)
    with pytest.raises(InputError, match="x_ms"):
        create("rlm").fit(texts, {"x_ms": values})


def _saved(folder: Path) -> Path:
    texts, values = _data(6)
    create("rlm").fit(texts, {"x_ms": values}).save(folder)
    return folder


def test_a_checkpoint_of_an_older_format_says_that_it_is_to_be_trained_again(tmp_path: Path) -> None:
    config = json.loads((_saved(tmp_path) / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "version": 2}))
    with pytest.raises(InputError, match=r"format version 2.*train it again"):
        load(tmp_path)


def test_sizes_are_checked_before_memory_is_taken(tmp_path: Path) -> None:
    config = json.loads((_saved(tmp_path) / "config.json").read_text())
    for width in (20_000, 256):
        config["model"]["encoder"]["width"] = width
        (tmp_path / "config.json").write_text(json.dumps(config))
        with pytest.raises(InputError, match=r"sizes must be|other shapes"):
            load(tmp_path)


def test_weights_that_are_no_numbers_are_refused(tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    tensors = load_file(_saved(tmp_path) / "model.safetensors")
    tensors["model.decoder.head.bias"][:] = np.nan
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(InputError, match="no numbers"):
        load(tmp_path)
