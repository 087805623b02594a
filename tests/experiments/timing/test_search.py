"""Claims about timing guided searches: the pool has the requested size, and the time includes
fits.
"""

from __future__ import annotations

import time
from typing import Any

import pytest

from experiments.timing import search as search_speed
from nas import load_benchmark
from nas.search.sampler import PredictorSampler


@pytest.mark.slow
def test_a_guided_search_is_timed_with_its_fits_and_a_full_pool(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pools: list[int] = []
    propose = PredictorSampler._propose

    def watched(self: PredictorSampler, *args: Any, **options: Any) -> Any:
        proposed = propose(self, *args, **options)
        pools.append(len(self._candidates))
        started = time.process_time()
        while time.process_time() - started < 0.25:  # a slow fit
            pass
        return proposed

    monkeypatch.setattr(PredictorSampler, "_propose", watched)
    monkeypatch.setattr(search_speed, "OBJECTIVES", "digits_accuracy,cpu_latency_ms")
    seconds = search_speed.guided("ridge", load_benchmark("digits201"), 60, (6, 16))
    assert pools[:3] == [60, 60, 60]
    assert seconds["s per evaluation"] > 0.05  # two slow fits in ten evaluations
    assert seconds["s per proposal"] > 0.25
