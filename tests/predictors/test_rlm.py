"""Claims about the regression language model: numbers, grammar, decoding, conditioning, checkpoints."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import kendalltau

import predictors
from predictors.rlm.decoding import Sampler, digit_tree, sample_numbers
from predictors.rlm.model import ModelConfig, NumberDecoder, TextEncoder, TokenEmbedding
from predictors.rlm.numbers import MINUS, NUMBER_TOKENS, PLUS, ZERO, NumberFormat, Scale
from predictors.rlm.predictor import RLM
from predictors.rlm.reader import Reader
from predictors.rlm.tokenizer import token_parts, tokenize, train_tokenizer
from search_spaces import InputError, get_space

SPACE = get_space("nasbench201", channels=4, cells=1, input_shape=(1, 8, 8))
TINY = {"width": 32, "heads": 2, "encoder_layers": 1, "decoder_layers": 1}
NOTHING = torch.empty(1, 0, dtype=torch.long)  # no forced tokens


@cache
def _table(count: int = 60) -> tuple[list[str], dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    archs = [SPACE.sample(rng) for _ in range(count)]
    params = np.array([float(SPACE.params(a)) for a in archs])
    return [SPACE.to_text(a) for a in archs], {
        "params": params,
        "x_accuracy": 90 - 1e5 / params,
        "d_latency_ms": params / 1e3,
    }


@cache
def _fitted() -> RLM:
    texts, metrics = _table()
    model = predictors.create("rlm", base=None, sizes=TINY, steps=200, schedule={"batch": 32, "learning_rate": 5e-3})
    return model.fit(texts, metrics)  # type: ignore[return-value]


# --- numbers


@pytest.mark.parametrize(
    ("value", "tokens"),
    [
        (3.142, [PLUS, PLUS, 0, 3, 1, 4]),
        (-0.0271828, [MINUS, MINUS, 2, 2, 7, 2]),
        (9.996, [PLUS, PLUS, 1, 1, 0, 0]),
        (0.0, [PLUS, PLUS, 0, 0, 0, 0]),
        (1e30, [PLUS, PLUS, 9, 9, 9, 9]),
    ],
)
def test_numbers_are_written_rounded(value: float, tokens: list[int]) -> None:
    expected = tokens[:2] + [ZERO + t for t in tokens[2:]]
    assert NumberFormat(3).encode(np.array([value]))[0].tolist() == expected


@given(st.floats(-9e9, 9e9, allow_nan=False), st.integers(2, 6))
def test_a_number_survives_to_its_digits(value: float, digits: int) -> None:
    number = NumberFormat(digits)
    back = float(number.decode(number.encode(np.array([value])))[0])
    assert abs(back - value) <= max(0.5 * 10.0 ** (1 - digits) * abs(value), 10.0 ** (-8 - digits)) * (1 + 1e-9)


@given(st.floats(-9e9, 9e9), st.floats(-9e9, 9e9))
def test_written_numbers_keep_their_order(a: float, b: float) -> None:
    number = NumberFormat(4)
    low, high = number.decode(number.encode(np.array([min(a, b), max(a, b)])))
    assert low <= high


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=80), st.lists(st.floats(-0.4, 1.4), min_size=2, max_size=5))
def test_scale_is_increasing_and_invertible_in_and_around_its_range(values: list[float], places: list[float]) -> None:
    scale = Scale.of(np.array(values))
    span = scale.knots[-1] - scale.knots[0]
    asked = scale.knots[0] + span * np.sort(np.array(places))
    on_scale = scale.to_scale(asked)
    assert (np.diff(on_scale) >= 0).all()
    back = scale.from_scale(on_scale)
    inside = (on_scale > -0.9) & (on_scale < 10.9)
    np.testing.assert_allclose(back[inside], asked[inside], rtol=1e-6, atol=1e-6 * (span + np.abs(asked).max()))


def test_values_far_outside_of_the_training_range_are_cut_off() -> None:
    scale = Scale.of(np.arange(100.0))
    assert scale.from_scale(np.array([1e9]))[0] == pytest.approx(99 * 1.25, abs=1)


def test_scale_gives_most_of_its_digits_to_where_the_values_are() -> None:
    values = np.concatenate([np.linspace(90, 91, 990), np.linspace(10, 90, 10)])
    low, high = Scale.of(values).to_scale(np.array([90.0, 91.0]))
    assert high - low > 6


# --- tokenizer


def test_tokenizer_is_lossless_and_short() -> None:
    texts, _ = _table()
    tokenizer = train_tokenizer(texts)
    ids = tokenize(tokenizer, texts, limit=150)
    assert all(tokenizer.decode(i, skip_special_tokens=False) == t for i, t in zip(ids, texts, strict=True))
    assert tokenizer.decode(tokenizer.encode("anything – even ünseen").ids) == "anything – even ünseen"


def test_text_beyond_the_limit_is_refused_not_cut() -> None:
    texts, _ = _table()
    with pytest.raises(InputError, match="this model reads 20"):
        tokenize(train_tokenizer(texts), texts[:1], limit=20)


def test_tokens_share_the_parts_that_they_are_made_of() -> None:
    tokenizer = train_tokenizer(_table()[0])
    texts = [tokenizer.decode([i]) for i in range(tokenizer.get_vocab_size())]
    parts = dict(zip(texts, token_parts(tokenizer), strict=True))
    one, two = parts[" net.ConvBn <channels = 4, kernel = [3,3]>"], parts[" net.ConvBn <kernel = [3,3]>"]
    assert len(one) == 3
    assert len(two) == len(set(one) & set(two)) == 2


def test_an_unseen_combination_of_known_parts_is_embedded_like_its_relatives() -> None:
    config = ModelConfig(vocabulary=4, parts=3, token_parts=2, width=8)
    embedding = TokenEmbedding(config, [[], [1, 2], [1, 3], [2, 3]])
    with torch.inference_mode():
        embedding.token.weight.zero_()
        none, *pairs = embedding(torch.arange(4))
    assert not none.any()
    first, second, third = (embedding.part.weight[i] for i in (1, 2, 3))
    for found, expected in zip(pairs, (first + second, first + third, second + third), strict=True):
        torch.testing.assert_close(found, expected.detach())


# --- decoding


def _random_models(seed: int, scale: float) -> tuple[TextEncoder, NumberDecoder]:
    torch.manual_seed(seed)
    config = ModelConfig(vocabulary=50, **TINY)
    encoder, decoder = TextEncoder(config).eval(), NumberDecoder(config).eval()
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.mul_(scale)
    return encoder, decoder


def _sampler(number: NumberFormat, texts: int, metrics: int, samples: int, seed: int) -> Sampler:
    randomness = np.random.default_rng(seed).random((texts, metrics, 1 + samples))
    return Sampler(torch.from_numpy(number.allowed), torch.from_numpy(randomness))


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 1000), st.sampled_from([0.0, 1.0, 30.0, 1e6, float("inf"), float("nan")]))
def test_no_weights_can_produce_an_invalid_number(seed: int, scale: float) -> None:
    encoder, decoder = _random_models(seed, scale)
    number = NumberFormat(3)
    memory = encoder(torch.randint(1, 50, (3, 7)), torch.tensor([7, 5, 1]))
    sampler = _sampler(number, 3, 2, 8, seed)
    tokens = sample_numbers(decoder, memory, NOTHING.expand(len(memory), 0), [0, 3], sampler).numpy()
    assert tokens.shape == (3, 8, 2, number.length)
    assert number.allowed[np.arange(number.length), tokens].all()
    assert np.isfinite(number.decode(tokens)).all()


@pytest.mark.parametrize("forced", [0, 7])
def test_decoding_with_caches_gives_the_logits_of_teacher_forcing(forced: int) -> None:
    encoder, decoder = _random_models(0, 1.0)
    memory = encoder(torch.randint(1, 50, (2, 9)), torch.tensor([9, 4]))
    length = NumberFormat(3).length
    sequence = torch.randint(ZERO, NUMBER_TOKENS, (2, 3, 2 * (length + 1)))  # (texts, samples, tokens)
    sequence[:, :, 0], sequence[:, :, length + 1] = NUMBER_TOKENS, NUMBER_TOKENS + 5
    sequence[:, :, :forced] = sequence[:, :1, :forced]
    with torch.inference_mode():
        caches = decoder.caches(memory, sequence[:, 0, :forced], sequence.shape[2] - forced)
        decoder.step(sequence[:, :1, forced], forced, caches)
        for cache in caches:
            cache.select(torch.zeros(2, 3, dtype=torch.long))
        sequence[:, :, forced] = sequence[:, :1, forced]
        for position in range(forced + 1, sequence.shape[2]):
            logits = decoder.step(sequence[:, :, position], position, caches)
            for sample in range(3):
                expected = decoder(memory, sequence[:, sample, : position + 1])[:, -1]
                torch.testing.assert_close(logits[:, sample], expected, rtol=1e-4, atol=1e-4)


def test_samples_follow_the_model_jointly_over_metrics() -> None:
    """Frequencies of the second metric's first digit are the mean of what each sample's own prefix predicts."""
    encoder, decoder = _random_models(1, 1.0)
    number, samples = NumberFormat(3), 4000
    memory = encoder(torch.randint(1, 50, (1, 9)), torch.tensor([9]))
    sampler = _sampler(number, 1, 2, samples, 0)
    with torch.inference_mode():
        tokens = sample_numbers(decoder, memory, NOTHING.expand(len(memory), 0), [2, 5], sampler)[0]
        first = torch.cat([torch.full((samples, 1), NUMBER_TOKENS + 2), tokens[:, 0]], 1)
        prefix = torch.cat([first, torch.full((samples, 1), NUMBER_TOKENS + 5), tokens[:, 1, :3]], 1)
        expected = decoder(memory.expand(samples, -1, -1), prefix)[:, -1, ZERO:].softmax(-1).mean(0)
    drawn = torch.bincount(tokens[:, 1, 3] - ZERO, minlength=10) / samples
    assert (expected - drawn).abs().max() < 0.025


def test_the_digit_tree_has_the_probabilities_that_samples_follow() -> None:
    encoder, decoder = _random_models(1, 0.3)
    number, samples = NumberFormat(2), 4000
    memory = encoder(torch.randint(1, 50, (2, 9)), torch.tensor([9, 4]))
    allowed = torch.from_numpy(number.allowed)
    leaves, probability = digit_tree(decoder, memory, NOTHING.expand(len(memory), 0), 2, allowed, most=4000)
    assert leaves.shape == (2, 4000, number.length)
    assert number.allowed[np.arange(number.length), leaves.numpy()].all()
    torch.testing.assert_close(probability.sum(1), torch.ones(2, dtype=torch.double))
    drawn = sample_numbers(decoder, memory, NOTHING.expand(len(memory), 0), [2], _sampler(number, 2, 1, samples, 0))[
        :, :, 0
    ]
    for place in range(number.length):
        expected = [(probability * (leaves[:, :, place] == token)).sum(1) for token in range(NUMBER_TOKENS)]
        found = [(drawn[:, :, place] == token).double().mean(1) for token in range(NUMBER_TOKENS)]
        torch.testing.assert_close(torch.stack(found), torch.stack(expected), atol=0.03, rtol=0)


def test_sampling_covers_the_distribution_evenly() -> None:
    sampler = _sampler(NumberFormat(3), 1, 2, 100, 0)
    logits = torch.log(torch.tensor([0.25, 0.75] + [1e-9] * 10)).expand(1, 100, NUMBER_TOKENS)
    tokens, _ = sampler.pick(logits, 0, sampler.quantiles(1))
    assert int((tokens == PLUS).sum()) in (24, 25, 26)


def test_padding_does_not_change_what_is_read() -> None:
    encoder, _ = _random_models(0, 1.0)
    tokens = torch.randint(1, 50, (1, 6))
    alone = encoder(tokens, torch.tensor([6]))
    padded = encoder(torch.nn.functional.pad(tokens, (0, 5)), torch.tensor([6]))
    torch.testing.assert_close(alone, padded)


# --- the predictor


def test_it_learns_metrics_and_gives_them_in_their_units() -> None:
    texts, metrics = _table()
    result = _fitted().predict(texts, list(metrics), samples=32)
    for name, values in metrics.items():
        assert kendalltau(result[name], values).statistic > 0.5, name
        assert values.min() * 0.5 < np.median(result[name]) < values.max() * 1.5


def test_a_given_metric_moves_the_prediction_of_those_that_depend_on_it() -> None:
    texts, _ = _table()
    model = _fitted()
    low, high = (
        model.predict(texts[:20], ["d_latency_ms"], given={"x_accuracy": np.full(20, v)}) for v in (60.0, 89.0)
    )
    assert not np.array_equal(low.samples, high.samples)


def test_rows_with_and_without_a_given_value_are_those_predicted_apart() -> None:
    texts, metrics = _table()
    given_values = metrics["params"][:6].copy()
    given_values[[1, 4]] = np.nan
    mixed = _fitted().predict(texts[:6], ["x_accuracy"], given={"params": given_values}, samples=8)
    without = _fitted().predict([texts[1], texts[4]], ["x_accuracy"], samples=8)
    np.testing.assert_array_equal(mixed.samples[[1, 4]], without.samples)


def test_fine_tuning_with_a_frozen_encoder_leaves_the_base_as_it_was(tmp_path) -> None:  # type: ignore[no-untyped-def]
    texts, _ = _table()
    _fitted().save(tmp_path / "base")
    tuned = predictors.create("rlm", base=str(tmp_path / "base"), steps=5)
    tuned.fit(texts[:20], {"new_accuracy": np.linspace(0, 1, 20)})
    assert set(tuned.metrics) == {*_fitted().metrics, "new_accuracy"}
    again = predictors.load(tmp_path / "base").predict(texts, ["params"], samples=4)
    np.testing.assert_array_equal(again.samples, _fitted().predict(texts, ["params"], samples=4).samples)


def test_only_what_is_to_be_learned_is_learned(tmp_path) -> None:  # type: ignore[no-untyped-def]
    texts, metrics = _table()
    _fitted().save(tmp_path)
    new = {"new_latency_ms": metrics["params"] / 7, "d_latency_ms": metrics["d_latency_ms"] * 1000}
    model = predictors.create("rlm", base=str(tmp_path), steps=30, learn=["new_latency_ms"]).fit(texts, new)
    known = model.predict(texts, ["d_latency_ms"], samples=1)["d_latency_ms"]
    assert np.median(known) < 10 * np.median(metrics["d_latency_ms"])
    with pytest.raises(InputError, match="new_latency"):
        predictors.create("rlm", base=str(tmp_path), learn=["nwe_latency_ms"]).fit(texts, new)


def test_two_thirds_of_the_samples_of_a_fine_tuned_model_are_the_estimators(tmp_path) -> None:  # type: ignore[no-untyped-def]
    texts, metrics = _table()
    _fitted().save(tmp_path)
    target = -np.log(metrics["params"])  # against all that the base knows
    model = predictors.create("rlm", base=str(tmp_path), steps=1).fit(texts[:40], {"new_accuracy": target[:40]})
    drawn = model.predict(texts[40:], ["new_accuracy"], samples=17).samples[:, :, 0]
    decoded, estimated = np.median(drawn[:, :6], 1), np.median(drawn[:, 6:], 1)
    assert kendalltau(estimated, target[40:]).statistic > 0.5 > kendalltau(decoded, target[40:]).statistic
    both = model.predict(
        texts[40:], ["params", "new_accuracy"], samples=4
    )  # nothing is estimated of the base's metrics
    assert np.isfinite(both.samples).all()


def test_a_quick_fit_is_its_estimator_alone_and_stays_so_when_it_is_saved(tmp_path) -> None:  # type: ignore[no-untyped-def]
    texts, metrics = _table()
    base, saved = str(tmp_path / "base"), tmp_path / "quick"
    _fitted().save(base)
    values = {"other_ms": metrics["d_latency_ms"], "skip chosen": np.arange(60.0) % 3}
    quick = predictors.create("rlm", base=base, quick=True).fit(texts, values)
    assert isinstance(quick, RLM)
    assert "skip chosen" not in quick.metrics
    assert quick.losses == []
    given = {"skip chosen": np.ones(60)}
    samples = quick.predict(texts, ["other_ms"], given, samples=6).samples
    np.testing.assert_allclose(
        np.median(samples[:, :, 0], 1), quick.estimate(texts, ["other_ms"], given)[:, 0], rtol=0.1
    )
    quick.save(saved)
    np.testing.assert_array_equal(
        predictors.load(saved).predict(texts, ["other_ms"], given, samples=6).samples, samples
    )
    # Of three values no process learns: then the decoder does.
    few = predictors.create("rlm", base=base, quick=True).fit(texts[:3], {"other_ms": np.arange(3.0)})
    assert isinstance(few, RLM)
    assert few.losses


def test_with_a_memory_of_its_own_a_fit_does_not_depend_on_what_the_process_has_read(tmp_path) -> None:  # type: ignore[no-untyped-def]
    texts, metrics = _table()
    values, distinct = {"new_ms": metrics["params"]}, list(dict.fromkeys(texts))
    _fitted().save(tmp_path)
    of_process = predictors.create("rlm", base=str(tmp_path), quick=True).fit(texts[:4], {"new_ms": np.arange(4.0)})
    for text in texts:
        of_process.reader.recall([text])  # its last bits differ from what it is in a batch
    memory: dict[str, torch.Tensor] = {}
    first, second = (
        predictors.create("rlm", base=str(tmp_path), quick=True, memory=memory).fit(texts, values) for _ in range(2)
    )
    assert set(memory) == set(texts)
    fresh = Reader(first.reader.tokenizer, first.reader.encoder).recall(distinct)
    assert torch.equal(first.reader.recall(distinct), fresh)
    np.testing.assert_array_equal(first.estimate(texts, ["new_ms"]), second.estimate(texts, ["new_ms"]))


def test_of_latencies_alone_processes_are_told_what_was_chosen_and_the_decoder_is_not(tmp_path) -> None:  # type: ignore[no-untyped-def]
    texts, metrics = _table()
    _fitted().save(tmp_path)
    asked = ["other_accuracy", "other_ms"]
    values = {asked[0]: metrics["x_accuracy"], asked[1]: metrics["d_latency_ms"], "skip chosen": np.arange(60.0)}
    model, quick = (
        predictors.create("rlm", base=str(tmp_path), steps=5, quick=quick).fit(texts, values) for quick in (False, True)
    )
    few, many = ({"skip chosen": np.full(60, n)} for n in (0.0, 40.0))
    told, otherwise, alone = (
        model.predict(texts, asked, few, samples=6).samples,
        model.predict(texts, asked, many, samples=6).samples,
        quick.predict(texts, asked, few, samples=6).samples,
    )
    np.testing.assert_array_equal(told[:, :, 0], otherwise[:, :, 0])
    assert (told[:, :, 1] != otherwise[:, :, 1]).all()
    np.testing.assert_array_equal(told[:, :, 1], alone[:, :, 1])
    assert (model.predict(texts, asked, samples=6).samples[:, :2, 1] != alone[:, :2, 1]).all()


def test_few_values_of_a_known_metric_do_not_undo_what_the_base_knows(tmp_path) -> None:  # type: ignore[no-untyped-def]
    texts, metrics = _table()
    _fitted().save(tmp_path / "base")
    few, others = slice(0, 5), slice(5, None)
    accuracy = metrics["x_accuracy"]

    def tau(model: predictors.Predictor) -> float:
        return float(kendalltau(model.predict(texts[others], ["x_accuracy"])["x_accuracy"], accuracy[others]).statistic)

    model = predictors.create("rlm", base=str(tmp_path / "base")).fit(texts[few], {"x_accuracy": accuracy[few]})
    assert tau(model) > 0.8 * tau(_fitted()) > 0.4
    model.save(tmp_path / "model")
    assert tau(predictors.load(tmp_path / "model")) == tau(model)


def test_what_a_base_learned_from_its_own_base_goes_with_the_model(tmp_path) -> None:  # type: ignore[no-untyped-def]
    texts, metrics = _table()
    latency = {"new_latency_ms": metrics["params"] / 7}
    _fitted().save(tmp_path / "base")
    taught = predictors.create("rlm", base=str(tmp_path / "base"), steps=3)
    taught.fit(texts[:30], {name: values[:30] for name, values in latency.items()}).save(tmp_path / "taught")
    model = predictors.create("rlm", base=str(tmp_path / "taught"), steps=3)
    model.fit(texts[30:40], {name: 1e6 - values[30:40] for name, values in latency.items()})
    found = model.predict(texts[40:], list(latency), samples=8)
    model.save(tmp_path / "model")
    again = predictors.load(tmp_path / "model").predict(texts[40:], list(latency), samples=8)
    np.testing.assert_allclose(again.samples, found.samples, rtol=1e-5)
    # Ten values are enough to see that these fall where those which the base has learned rise.
    assert kendalltau(found["new_latency_ms"], -metrics["params"][40:]).statistic > 0.5


def test_of_a_large_table_the_estimator_knows_a_part_and_is_not_fitted_again_after_loading(  # type: ignore[no-untyped-def]
    tmp_path, monkeypatch
) -> None:
    texts, metrics = _table()
    new = {"new_latency_ms": metrics["params"] / 7}
    _fitted().save(tmp_path / "base")
    monkeypatch.setattr("predictors.rlm.predictor.MOST", 25)
    model = predictors.create("rlm", base=str(tmp_path / "base"), steps=3).fit(texts, new)
    assert isinstance(model, RLM)
    assert model.estimator is not None
    assert len(model.estimator.seen.states) == 25
    found = model.predict(texts, list(new), samples=6)
    assert kendalltau(found["new_latency_ms"], metrics["params"]).statistic > 0.5
    model.save(tmp_path / "model")
    monkeypatch.setattr("predictors.estimate._likeliest", None)
    again = predictors.load(tmp_path / "model").predict(texts, list(new), samples=6)
    np.testing.assert_allclose(again.samples, found.samples, rtol=1e-5)


def test_the_expectation_is_near_the_mean_of_many_samples() -> None:
    texts, metrics = _table()
    known = {"params": metrics["params"].copy()}
    known["params"][::2] = np.nan
    expected = _fitted().expect(texts, ["params", "x_accuracy"], given=known)
    drawn = _fitted().predict(texts, ["params", "x_accuracy"], given=known, samples=512).mean
    given = ~np.isnan(known["params"])
    np.testing.assert_array_equal(expected[given, 0], metrics["params"][given])
    # Samples of an accuracy also depend on the parameters that were sampled before it, where none are given.
    for column, rows in ((0, ~given), (1, given)):
        apart = np.abs(expected[rows, column] - drawn[rows, column]).mean()
        assert apart < 0.1 * drawn[:, column].std()


def test_a_new_metric_with_few_values_begins_as_the_known_one_that_ranks_them_best(tmp_path) -> None:  # type: ignore[no-untyped-def]
    texts, metrics = _table()
    _fitted().save(tmp_path)
    few, others = slice(0, 12), slice(12, None)
    model = predictors.create("rlm", base=str(tmp_path), steps=1)
    model.fit(texts[few], {"new_latency_ms": 3.0 + metrics["params"][few]})
    predicted = model.predict(texts[others], ["new_latency_ms"])["new_latency_ms"]
    assert kendalltau(predicted, metrics["params"][others]).statistic > 0.5


def test_a_known_metric_is_learned_on_the_scale_of_its_new_values(tmp_path) -> None:  # type: ignore[no-untyped-def]
    """Those of the base may reach much farther, so that the new ones would all share their first digits."""
    texts, metrics = _table()
    _fitted().save(tmp_path)
    narrow = 50 + 1e-3 * metrics["d_latency_ms"]
    model = predictors.create("rlm", base=str(tmp_path), steps=1)
    model.fit(texts, {"d_latency_ms": narrow, "params": metrics["params"]})
    assert model.scales["params"] == _fitted().scales["params"]
    assert np.ptp(model.scales["d_latency_ms"].to_scale(narrow)) > 7


def test_reader_reads_each_text_once() -> None:
    texts, _ = _table()
    tokenizer = train_tokenizer(texts)
    encoder = TextEncoder(ModelConfig(vocabulary=tokenizer.get_vocab_size(), **TINY))
    reader, seen = Reader(tokenizer, encoder), []
    encoder.register_forward_hook(lambda _m, inputs, _o: seen.append(len(inputs[0])))
    reader.recall([texts[0], texts[1], texts[0]])
    reader.recall([texts[1], texts[2]])
    assert sum(seen) == 3


def test_given_metric_that_was_never_learned_is_refused() -> None:
    with pytest.raises(InputError, match="unknown given metric 'depth'"):
        _fitted().predict(_table()[0][:1], ["params"], given={"depth": [3.0]})


def test_missing_base_checkpoint_is_named(tmp_path) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InputError, match="not a checkpoint"):
        predictors.create("rlm", base=str(tmp_path / "none")).fit(*_table())


# --- training --------------------------------------------------------------------------------------------------------


def _training(path: Path | None = None, steps: int = 12, seed: int = 0, progress=None) -> RLM:  # type: ignore[no-untyped-def]
    model = RLM(seed=seed, base=None, steps=steps, sizes=TINY, schedule={"batch": 8}, progress=progress, kept=path)
    return model.fit(*_table())


class Killed(Exception):
    pass


def test_a_training_that_is_killed_goes_on_to_the_same_losses_and_weights(tmp_path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr("predictors.rlm.training.SAVE_EVERY", 3)
    whole, kept = _training(), tmp_path / "training.safetensors"

    def kill(at: int):  # type: ignore[no-untyped-def]
        def progress(step: int, steps: int, loss: float) -> None:
            if step == at:
                raise Killed

        return progress

    for at in (2, 5, 11):
        with pytest.raises(Killed):
            _training(kept, progress=kill(at))
    resumed = _training(kept)
    assert resumed.losses == whole.losses
    for (name, a), (_, b) in zip(*(sorted(m._state()[1].items()) for m in (whole, resumed)), strict=True):
        assert np.array_equal(a, b), name


def test_an_encoder_alone_learns_to_tell_all_metrics_and_leaves_the_decoder_as_it_is(tmp_path) -> None:  # type: ignore[no-untyped-def]
    texts, metrics = _table()
    start = _training()
    start.save(tmp_path)
    model = RLM(base=str(tmp_path), encoder="alone", rehearse=True, steps=200, schedule={"batch": 16})
    model.fit(texts, metrics)
    assert np.mean(model.losses[-30:]) < 0.6 * np.mean(model.losses[:30])
    before, after = start._state()[1], model._state()[1]
    changed = {name.split(".")[0] for name in before if not np.array_equal(before[name], after[name])}
    assert changed == {"encoder"}


def test_a_taught_encoder_tells_what_its_teacher_makes_of_a_text() -> None:
    texts, metrics = _table()
    embedded = predictors.load("gnn-label-free").embed(texts)  # type: ignore[attr-defined]

    def unexplained(teacher: str | None) -> float:
        """Share of the embeddings' variance that 4 principal components of the encoder's states do not tell."""
        schedule = {"batch": 16, "learning_rate": 5e-3}
        model = RLM(base=None, encoder="alone", teacher=teacher, sizes=TINY, steps=200, schedule=schedule)
        model.fit(texts, metrics)
        assert model.reader is not None
        states = model.reader.recall(texts).mean(1).numpy()
        told = np.linalg.svd(states - states.mean(0), full_matrices=False)[0][:, :4]
        wanted = embedded - embedded.mean(0)
        return float(((wanted - told @ (told.T @ wanted)) ** 2).sum() / (wanted**2).sum())

    assert unexplained("gnn-label-free") < 0.7 * unexplained(None)


def test_a_searchs_accuracies_go_by_what_a_taught_encoder_tells_of_its_teacher(tmp_path: Path) -> None:
    texts, metrics = _table()
    taught = RLM(base=None, encoder="alone", teacher="gnn-label-free", sizes=TINY, steps=20).fit(texts, metrics)
    assert taught.likeness is not None
    assert taught.likeness.shape == (TINY["width"], predictors.load("gnn-label-free").embed(texts).shape[1])  # type: ignore[attr-defined]
    taught.save(tmp_path / "taught")
    found = {}
    for by_value in (True, False):
        model = RLM(base=str(tmp_path / "taught"), quick=True, by_value=by_value)
        model.fit(texts, {"accuracy": np.random.default_rng(0).random(len(texts))})
        assert model.estimator is not None
        assert (model.estimator.likeness is not None) == by_value
        model.save(tmp_path / "fitted")
        found[by_value] = model.estimate(texts, ["accuracy"])
        again = predictors.load(tmp_path / "fitted").estimate(texts, ["accuracy"])
        np.testing.assert_allclose(again, found[by_value], rtol=1e-4)


def test_an_encoder_that_learns_further_tells_of_no_teacher(tmp_path: Path) -> None:
    texts, metrics = _table()
    RLM(base=None, encoder="alone", teacher="gnn-label-free", sizes=TINY, steps=2).fit(texts, metrics).save(tmp_path)
    assert RLM(base=str(tmp_path), encoder="tuned", steps=2).fit(texts, metrics).likeness is None


def test_only_a_gnn_teaches_and_only_an_encoder_alone() -> None:
    texts, metrics = _table()
    with pytest.raises(InputError, match="trained alone"):
        RLM(teacher="gnn-label-free")
    with pytest.raises(InputError, match="not a gnn"):
        RLM(base=None, encoder="alone", teacher="rlm-label-free", sizes=TINY, steps=2).fit(texts, metrics)


def test_what_was_kept_of_another_training_is_refused(tmp_path) -> None:  # type: ignore[no-untyped-def]
    kept = tmp_path / "training.safetensors"
    _training(kept, steps=3)
    with pytest.raises(InputError, match="other data or settings"):
        _training(kept, steps=4)
    kept.write_bytes(b"not a training")
    with pytest.raises(InputError, match="remove it to begin anew"):
        _training(kept, steps=3)
