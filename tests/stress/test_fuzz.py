"""Damaged input is read or refused, and the fuzzer itself detects crashes, hangs and excessive
memory.
"""

from __future__ import annotations

import importlib
from collections import Counter
from pathlib import Path
from types import ModuleType

import onnx
import pytest

from tests.stress.fuzz import (
    OVER_MEMORY,
    OVER_TIME,
    Case,
    Corpus,
    Limits,
    build_corpus,
    fuzz,
    outcomes,
    run,
)

SMALL = Corpus(["a = 1\n"], [onnx.ModelProto(ir_version=8).SerializeToString()])
READERS = """
import os
from search_spaces import InputError

def crash(case, folder):
    os.abort()

def hang(case, folder):
    while True:
        pass

def swallow(case, folder):
    return os.urandom(1 << 20) * 70

def stumble(case, folder):
    return {}[case.kind]

def refuse(case, folder):
    raise InputError("no")

def read(case, folder):
    (folder / "file").write_bytes(case.data)
"""


@pytest.fixture
def readers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module that the fuzzer's worker processes can import."""
    (tmp_path / "readers_of_test_fuzz.py").write_text(READERS)
    monkeypatch.syspath_prepend(str(tmp_path))
    return importlib.import_module("readers_of_test_fuzz")


@pytest.mark.slow
def test_damaged_texts_and_models_are_read_or_refused(tmp_path: Path) -> None:
    report = fuzz(200, seed=11, out=tmp_path)
    assert not report.examples
    assert sum(report.counts.values()) == 200
    assert {status for _, status in report.counts} == {"read", "refused"}


def test_a_case_is_reproducible() -> None:
    corpus = build_corpus(seed=0, each=1)
    cases = [corpus.case(5, index) for index in range(40)]
    assert cases == [corpus.case(5, index) for index in range(40)]
    assert len({case.kind for case in cases}) == 4
    assert (
        sum(
            case.data in {*corpus.models, *(text.encode() for text in corpus.texts)}
            for case in cases
        )
        < 10
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("reader", "failure"),
    [
        ("crash", "the process ends: SIGABRT"),
        ("hang", OVER_TIME),
        ("swallow", OVER_MEMORY),
        ("stumble", "KeyError in readers_of_test_fuzz.py:stumble"),
    ],
)
def test_failures_are_reported_and_the_next_case_still_runs(
    readers: ModuleType, reader: str, failure: str
) -> None:
    limits = Limits(
        seconds=0 if reader == "hang" else 5, memory=50 << 20
    )  # a busy core takes a second to fill memory
    found = list(outcomes(SMALL, 0, 2, reader=getattr(readers, reader), limits=limits))
    assert [(index, outcome.status, outcome.failure) for index, outcome in found] == [
        (0, "failed", failure),
        (1, "failed", failure),
    ]


def test_results_and_refusals_are_not_failures(readers: ModuleType, tmp_path: Path) -> None:
    case = Case("kind", ".txt", b"data")
    assert run(case, tmp_path, readers.read).status == "read"
    assert run(case, tmp_path, readers.refuse).status == "refused"


@pytest.mark.slow
def test_two_processes_find_what_one_finds() -> None:
    whole = build_corpus(0, each=1)
    few = Corpus(whole.texts[-2:], whole.models[-2:])
    found = [Counter(outcomes(few, 3, 40, jobs)) for jobs in (1, 2)]
    assert found[0] == found[1]
