"""Fixtures of all tests. Two test processes share the machine's cores: each keeps to one thread."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

os.environ.setdefault("OMP_NUM_THREADS", "1")

from search_spaces import SearchSpace
from search_spaces.ir.builder import Network, Tensor
from tests.groups import GROUPS, group_of, left_out

settings.register_profile("brief", max_examples=40)  # where a test says no other number
settings.load_profile("brief")


class Switches(SearchSpace):
    """Eight networks."""

    name = "switches"
    input_shape = (1, 4, 4)
    num_classes = 2
    size = 8

    def build(self, trial: Any, net: Network) -> Tensor:
        x = net.input
        for i in range(3):
            x = net.conv_bn_relu(x, trial.suggest_categorical(f"width{i}", [1, 2]))
        return net.classifier(x)


@pytest.fixture
def switches() -> SearchSpace:
    """A space of eight networks, small enough to be searched completely."""
    return Switches()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder for one test, without published tables."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("NAS_CACHE", str(folder))
    monkeypatch.delenv("NAS_DATA", raising=False)
    return folder


@pytest.fixture(scope="module")
def brief_guidance() -> Iterator[None]:
    """Guided searches evolve 40 candidates per fit and graph networks train for 4 steps, for claims
    on other things.
    """
    from nas.search.sampler import PredictorSampler
    from predictors.gnn import predictor

    with pytest.MonkeyPatch.context() as patch:
        defaults = PredictorSampler.__init__.__kwdefaults__
        assert defaults is not None
        patch.setitem(defaults, "fresh", 40)
        patch.setattr(predictor, "_default_steps", lambda n: 4)
        yield


@pytest.fixture
def brief_clocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A latency takes its least number of windows, without pauses, for claims on other things: on a
    machine whose other cores run tests, it would take four times as many.
    """
    from nas.evaluation import latency

    monkeypatch.setattr(latency, "MAX_ROUNDS", 1)
    monkeypatch.setattr(latency, "PAUSE_S", 0.0)


@pytest.fixture(scope="session")
def nas_data() -> Path:
    """The folder of published tables. Tests that need it are skipped without NAS_DATA."""
    folder = Path(os.environ.get("NAS_DATA", ""))
    if not (folder / "nasbench201.csv.gz").is_file():
        pytest.skip("NAS_DATA does not name a folder with nasbench201.csv.gz")
    return folder


def _id(nodeid: str) -> str:
    """Id of a test relative to `tests/`."""
    return nodeid.removeprefix("tests/")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests as `data` that need tables, and as `exhaustive` those that `make test` leaves
    out.
    """
    exhaustive = left_out(_id(item.nodeid) for item in items)
    for item in items:
        reasons = [str(mark.kwargs.get("reason", "")) for mark in item.iter_markers("skipif")]
        if "nas_data" in getattr(item, "fixturenames", ()) or any(
            "NAS_DATA" in reason for reason in reasons
        ):
            item.add_marker(pytest.mark.data)
        if _id(item.nodeid) in exhaustive:
            item.add_marker(pytest.mark.exhaustive)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print the seconds of each group of exhaustive tests, and of all other tests."""
    seconds: dict[str, float] = dict.fromkeys([*GROUPS, "all other tests"], 0.0)
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                listed = group_of(_id(report.nodeid))
                seconds[listed[0] if listed else "all other tests"] += report.duration
    if sum(seconds.values()) > 60:
        terminalreporter.section("seconds by group of tests")
        for group, total in seconds.items():
            terminalreporter.write_line(f"{total:8.0f}  {group}")
