"""Building a population: every network once, interruptible, and the same networks each time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from nas.benchmarks.building import build
from nas.benchmarks.csv_file import parse_csv, read_bytes
from nas.benchmarks.populations import POPULATIONS, Population, get_population
from nas.evaluation.journal import Journal
from search_spaces.common.errors import InputError

TINY = Population("tiny", "tiny-resnet", {}, count=3, seeds=(0, 1), latency_passes=2)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Replace measurements by free ones, and list the stages that were measured."""
    from nas.benchmarks import building

    done: list[str] = []

    def stand_in(stage: str, value: object) -> Callable[[object, object], object]:
        def measure(space: object, arch: object) -> object:
            done.append(stage)
            return value

        return measure

    monkeypatch.setattr(
        building,
        "_accuracy",
        lambda seeds: stand_in(
            "accuracy", {"seeds": [50.0 + len(done), 60.0], "curve": [20.0, 55.0], "epoch_s": 0.125}
        ),
    )
    monkeypatch.setattr(building, "_proxies", lambda seeds: stand_in("proxies", {"snip": 1.5}))
    monkeypatch.setattr(building, "_latency", stand_in("latency", 0.25))
    return done


def test_a_table_has_every_network_with_every_measurement(
    tmp_path: Path, counted: list[str]
) -> None:
    path = build(TINY, tmp_path)
    table = parse_csv(read_bytes(path), path)
    assert counted == ["accuracy"] * 3 + ["proxies"] * 3 + ["latency"] * 6
    assert len(table.archs) == len(set(table.archs)) == 3
    assert {"digits_accuracy_seed1", "cpu_latency_ms", "params", "flops", "snip"} < set(
        table.columns
    )


def test_a_table_has_the_learning_curves_and_the_seconds_of_an_epoch(
    tmp_path: Path, counted: list[str]
) -> None:
    table = parse_csv(read_bytes(build(TINY, tmp_path)), tmp_path)
    assert table.columns["digits_accuracy@1"].tolist() == [20.0] * 3
    assert "digits_accuracy@2" not in table.columns  # the last epoch's is the accuracy itself
    assert table.columns["epoch_s"].tolist() == [0.125] * 3


def test_a_build_without_stored_curves_resumes(tmp_path: Path, counted: list[str]) -> None:
    names = [TINY.open_space().format(arch) for arch in TINY.architectures()]
    Journal(tmp_path / "accuracy.jsonl").append(names[0], [70.0, 72.0])
    table = parse_csv(read_bytes(build(TINY, tmp_path)), tmp_path)
    assert table.columns["digits_accuracy"][0] == 71.0
    assert np.isnan(table.columns["digits_accuracy@1"]).tolist() == [True, False, False]


def test_a_build_resumes_where_it_stopped(tmp_path: Path, counted: list[str]) -> None:
    with pytest.raises(InputError, match="proxies has 0 of 3 networks; run the build again"):
        build(TINY, tmp_path, stages=("accuracy",))
    journal = tmp_path / "accuracy.jsonl"
    journal.write_text(journal.read_text()[:-5])  # killed while it wrote the third
    build(TINY, tmp_path)
    assert counted.count("accuracy") == 4


def test_stages_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="did you mean 'latency'"):
        build(TINY, tmp_path, stages=("latencies",))


def test_a_journal_cut_off_by_a_kill_loses_its_last_line_only(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    Journal(path).append("a", 1)
    path.write_text(path.read_text() + '["b", 2')
    journal = Journal(path)
    journal.append("c", 3)
    assert Journal(path).known == {"a": 1, "c": 3}


@pytest.mark.parametrize("line", ["5", "[1, 2]", '{"a": 1, "b": 2}', '["a", 1, 2]'])
def test_a_strange_line_of_a_journal_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "j.jsonl"
    path.write_text(f'["a", 1]\n{line}\n')
    with pytest.raises(
        InputError, match=r"j\.jsonl, line 2: .* is not \[name, value\]: remove the line"
    ):
        Journal(path)


@pytest.mark.parametrize("name", POPULATIONS)
def test_a_population_is_the_same_distinct_networks_each_time(name: str) -> None:
    population = get_population(name)
    if population.count is not None:
        population = replace(population, count=5)
        archs = population.architectures()
        assert archs == population.architectures()
        space = population.open_space()
        assert len({space.to_text(arch) for arch in archs}) == 5
