"""Claims about the line that the RLM's decoder writes what is left of."""

from __future__ import annotations

import numpy as np
import pytest

from predictors.rlm.trend import Trend
from predictors.scores import Scores


def scales_and_scores(*columns: np.ndarray) -> tuple[list[Scores], np.ndarray]:
    scales = [Scores.fit(column, by_rank=True) for column in columns]
    return scales, np.stack([s.normalize(c) for s, c in zip(scales, columns, strict=True)], 1)


@pytest.mark.parametrize("count", [10, 60])
def test_a_device_that_is_a_power_of_another_is_met_far_outside_of_the_examples(count: int) -> None:
    rng = np.random.default_rng(0)
    known = np.exp(rng.normal(size=count))
    scales, scores = scales_and_scores(3 * known**1.5, known)
    fitted = Trend.fit(scales[1:], scores[:, 1:], scales[0], scores[:, 0])
    assert fitted is not None
    trend, left = fitted
    query = np.array([0.01, 1.0, 100.0])
    found = trend.restore(np.zeros(3), scales[1].normalize(query)[:, None])
    assert scales[0].restore(found) == pytest.approx(3 * query**1.5, rel=0.1)
    assert left.shape == (count,)


def test_what_is_left_is_what_the_decoder_sees_and_comes_back() -> None:
    rng = np.random.default_rng(1)
    known, noise = rng.normal(size=(2, 80))
    scales, scores = scales_and_scores(known + 0.3 * noise, known)
    fitted = Trend.fit(scales[1:], scores[:, 1:], scales[0], scores[:, 0])
    assert fitted is not None
    trend, left = fitted
    assert np.corrcoef(left, noise)[0, 1] > 0.9
    back = trend.restore(left, scores[:, 1:])
    assert np.abs(back - scores[:, 0]).mean() < 0.1  # but for what leaving one out changes


def test_without_a_line_there_is_no_trend() -> None:
    rng = np.random.default_rng(2)
    scales, scores = scales_and_scores(rng.normal(size=30), rng.normal(size=30))
    assert Trend.fit(scales[1:], scores[:, 1:], scales[0], scores[:, 0]) is None
    assert Trend.fit([], scores[:, :0], scales[0], scores[:, 0]) is None
    unknown = np.full((30, 1), np.nan)
    assert Trend.fit(scales[1:], unknown, scales[0], scores[:, 0]) is None
