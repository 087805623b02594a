"""Claims about the quantiles of samples: similar networks err alike, networks like an example
hardly err alike.
"""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from predictors.rlm.decoder import couple_samples
from predictors.rlm.encoder import EncoderConfig
from predictors.rlm.tokens import learned_features

SIZE = EncoderConfig().outputs
SAMPLES = 64


def _states(*distances: float) -> np.ndarray:
    """States (n, SIZE) along one line, at these distances from the first."""
    states = np.zeros((len(distances), SIZE), np.float32)
    states[:, 0] = distances
    return states


def _texts(count: int) -> list[str]:
    return [f"text {i}" for i in range(count)]


def _quantiles(
    known: np.ndarray, states: np.ndarray, metrics: int = 1, seed: int = 0
) -> np.ndarray:
    return couple_samples(known, (SAMPLES, metrics), (0, seed))(states, _texts(len(states)))


def _relation(known: np.ndarray, states: np.ndarray) -> float:
    """Mean correlation of the first two queries' quantiles over 20 seeds."""
    found = [_quantiles(known, states, seed=seed)[:, :, 0] for seed in range(20)]
    return float(np.mean([np.corrcoef(first, second)[0, 1] for first, second, *_ in found]))


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 20), st.integers(1, 5), st.integers(1, 3), st.integers(0, 1000))
def test_each_metric_covers_its_distribution_evenly(
    known: int, queries: int, metrics: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    found = _quantiles(
        rng.standard_normal((known, SIZE)), rng.standard_normal((queries, SIZE)), metrics, seed
    )
    evenly = (np.arange(SAMPLES) + 0.5) / SAMPLES
    assert (np.sort(found, 1) == evenly[:, None]).all()


def test_similar_networks_err_alike_and_different_ones_do_not() -> None:
    known = _states(0.0, 1.0, 2.0, 3.0)
    assert _relation(known, _states(6.0, 6.1)) > 0.7
    assert abs(_relation(known, _states(6.0, -30.0))) < 0.1


def test_networks_like_an_example_hardly_err_alike() -> None:
    known = _states(0.0, 1.0, 2.0, 3.0)
    assert _relation(known, _states(1.0, 1.1)) < 0.5 < _relation(known, _states(6.0, 6.1))


def test_metrics_err_independently() -> None:
    """The relation of metrics comes from their conditions."""
    known, query = _states(0.0, 1.0), _states(4.0)
    found = [np.corrcoef(*_quantiles(known, query, 2, seed)[0].T)[0, 1] for seed in range(20)]
    assert abs(np.mean(found)) < 0.1


def test_quantiles_do_not_depend_on_the_batch() -> None:
    rng = np.random.default_rng(0)
    known, states = rng.standard_normal((5, SIZE)), rng.standard_normal((3, SIZE))
    whole = _quantiles(known, states, 2)
    alone = couple_samples(known, (SAMPLES, 2), (0, 0))(states[1:2], ["text 1"])
    assert (whole[1:2] == alone).all()


def test_one_sample_is_the_median() -> None:
    assert (couple_samples(_states(0.0, 1.0), (1, 3), (0,))(_states(2.0), ["text"]) == 0.5).all()


def test_only_the_learned_parts_of_states_tell_how_similar_networks_are() -> None:
    known, states = _states(0.0, 1.0, 2.0), _states(5.0)
    other = states.copy()
    other[:, learned_features(states).shape[1] :] = 7.0
    assert (_quantiles(known, states) == _quantiles(known, other)).all()
