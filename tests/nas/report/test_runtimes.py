"""The report's comparison of runtimes."""

from __future__ import annotations

from typing import Any

import pytest

from nas.report.collecting import Network
from nas.report.page_data import compare_runtimes
from search_spaces import Architecture


def network(**latencies: float) -> Network:
    values: dict[str, Any] = {f"{name}_latency_ms": value for name, value in latencies.items()}
    return Network(Architecture("s", ()), "", values={"params": 1.0, **values})


def test_runtimes_are_sorted_by_the_time_of_the_same_networks() -> None:
    measured = [network(cpu=4, mnn=2), network(cpu=8, mnn=2.5), network(cpu=1, mnn=3)]
    incomplete = network(cpu=100)
    fast, slow = compare_runtimes([*measured, incomplete])
    assert (fast["runtime"], slow["runtime"]) == ("MNN", "ONNX Runtime")
    assert (fast["median"], slow["median"]) == pytest.approx((2.5, 4))
    assert slow["ratio"] == pytest.approx((32 / 15) ** (1 / 3))
    assert (fast["fastest"], slow["fastest"], fast["networks"]) == (2, 1, 3)
    assert slow["tau"] == pytest.approx(-1 / 3)


def test_one_runtime_or_another_device_is_no_comparison() -> None:
    assert compare_runtimes([network(cpu=4, pi=2)]) == []
    assert compare_runtimes([network(cpu=4), network(mnn=2)]) == []
    (first, _) = compare_runtimes([network(cpu=4, mnn=2)])
    assert first["tau"] is None
