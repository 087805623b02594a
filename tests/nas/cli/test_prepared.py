"""Claims about searches that one command prepares, and of which workers take shares."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nas import cli
from nas.search.study.load import read_search
from nas.search.study.workers import Share

SEARCH = ("search", "--space", "tiny-resnet", "--objectives", "params:max,flops", "--sampler", "random",
          "--out", "found")  # fmt: skip
BY_COST = ("--fidelities", "1,2", "--budget", "6", "--sampler", "random")


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int | str | None:
    monkeypatch.setattr("sys.argv", ["nas", *arguments, "--quiet"])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    return stop.value.code or 0


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def evaluated(storage: str = "found/studies/random-0.journal") -> int:
    return len(read_search(storage).evaluated.architectures)


@pytest.mark.parametrize("option", [("--prepare",), ("--hours", "0")])
def test_workers_take_shares_of_a_prepared_search(
    option: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, *SEARCH, "--evaluations", "6", *option) == 0
    joined = capsys.readouterr().out.strip()
    assert joined == "prepared: nas worker --storage found/studies/random-0.journal --study search"
    worker = joined.split()[2:]
    assert run(monkeypatch, *worker, "--hours", "0") == 0
    assert evaluated() == 0
    assert run(monkeypatch, *worker, "--evaluations", "2") == 0
    assert (
        capsys.readouterr().out.splitlines()[-1]
        == "search: this worker's share is done, the search goes on"
    )
    assert evaluated() == 2
    assert run(monkeypatch, *worker, "--evaluations", "10") == 0
    assert capsys.readouterr().out.splitlines()[-1] == "search: finished"
    assert evaluated() == 6
    assert run(monkeypatch, *SEARCH, "--evaluations", "6", "--json") == 0
    assert json.loads(capsys.readouterr().out)["front"]


def test_a_prepared_search_that_workers_have_begun_is_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, *SEARCH, "--evaluations", "6", "--prepare", "--json") == 0
    (made,) = json.loads(capsys.readouterr().out)["prepared"]
    assert run(monkeypatch, "worker", "--storage", made["storage"], "--evaluations", "1") == 0
    assert run(monkeypatch, *SEARCH, "--evaluations", "6", "--prepare") == 0
    assert "Pareto front" in capsys.readouterr().out
    assert evaluated() == 1


def test_preparing_starts_no_processes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, *SEARCH, "--prepare", "--jobs", "3") == 2
    assert (
        capsys.readouterr().err == "nas: --prepare evaluates nothing: give --jobs 3 to nas worker\n"
    )


@pytest.mark.slow
def test_a_search_with_fidelities_is_prepared_and_shared(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    search = (
        "search",
        "--space",
        "tiny-resnet",
        "--objectives",
        "digits_accuracy,params",
        *BY_COST,
        "--out",
        "found",
    )
    assert run(monkeypatch, *search, "--prepare") == 0
    assert capsys.readouterr().out.startswith(
        "prepared: nas worker --storage found/studies/random-0.journal"
    )
    worker = ("worker", "--storage", "found/studies/random-0.journal", "--evaluations", "1")
    for segments in (1, 2):
        assert run(monkeypatch, *worker) == 0
        assert len(read_search("found/studies/random-0.journal").study.trials) == segments


@pytest.mark.slow
def test_processes_of_a_worker_divide_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(monkeypatch, *SEARCH, "--evaluations", "20", "--prepare") == 0
    worker = ("worker", "--storage", "found/studies/random-0.journal", "--jobs", "2")
    assert run(monkeypatch, *worker, "--evaluations", "5") == 0
    assert evaluated() == 5


def test_a_share_is_divided_without_a_rest() -> None:
    share = Share.of(evaluations=7)
    parts = [share.take(share.evaluations // left) for left in (3, 2)]
    assert [*(part.evaluations for part in parts), share.evaluations] == [2, 2, 3]
    assert Share.of().plain == {}
    assert Share(**Share.of(3, 0).plain).is_used_up
