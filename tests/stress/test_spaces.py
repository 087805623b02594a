"""Claims about the check of all spaces: it counts failures and names the first one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from search_spaces import InputError
from tests.stress import spaces
from tests.stress.spaces import Checked, checked, main, summary

BROKEN = """
from search_spaces import SearchSpace

class Broken(SearchSpace):
    input_shape = (1, 8, 8)

    def build(self, trial, net):
        return net.classifier(net.conv_bn_relu(net.input, trial.suggest_int("width", 2, 4)))

    def params(self, arch):
        return super().params(arch) + (arch.as_dict()["width"] == 3)
"""


@pytest.fixture
def broken(tmp_path: Path) -> str:
    file = tmp_path / "broken.py"
    file.write_text(BROKEN)
    return f"{file}:Broken"


def test_architectures_of_a_published_space_pass(capsys: pytest.CaptureFixture[str]) -> None:
    main(count=3, space=["tiny-resnet", "nasbench201"], seed=1, as_json=True)
    rows = json.loads(capsys.readouterr().out)
    assert [(row["space"], row["failed"]) for row in rows] == [
        ("tiny-resnet", 0),
        ("nasbench201", 0),
    ]
    assert all(0 < row["lines"] <= row["95 %"] <= row["max"] <= row["chars"] for row in rows)
    assert rows[1]["published tokens"] == 3400


def test_first_architecture_that_breaks_a_promise_is_named(broken: str) -> None:
    with pytest.raises(
        SystemExit,
        match=r"architecture \d+ of seed 0, {'width': 3}: .*params or FLOPs of the model",
    ):
        main(count=10, space=[broken], seed=0)


def test_every_failure_is_counted(broken: str) -> None:
    results = list(checked(broken, 12, seed=0))
    wrong = [result for result in results if result.failure]
    assert 0 < len(wrong) < 12
    assert all("'width': 3" in result.failure for result in wrong)
    row, first = summary(broken, results)
    assert row["failed"] == len(wrong)
    assert first == wrong[0].failure


@pytest.mark.slow
def test_processes_do_not_change_the_result() -> None:
    def key(results: list[Checked]) -> list[tuple[str, str]]:
        return [(result.text, result.failure) for result in results]

    one, two = (list(checked("tiny-resnet", 4, seed=3, jobs=jobs)) for jobs in (1, 2))
    assert key(one) == key(two)


def test_finished_spaces_are_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    main(count=3, space=["tiny-resnet"], seed=1, out=tmp_path, as_json=True)
    first = capsys.readouterr().out
    monkeypatch.setattr(spaces, "checked", None)  # nothing is checked again
    main(count=3, space=["tiny-resnet"], seed=1, out=tmp_path, as_json=True)
    assert capsys.readouterr().out == first
    with pytest.raises(InputError, match=r"tiny-resnet\.json: made with other settings or code"):
        main(count=4, space=["tiny-resnet"], seed=1, out=tmp_path)


def test_unknown_space_is_refused_before_the_work() -> None:
    with pytest.raises(InputError, match="did you mean 'tiny-resnet'"):
        main(count=10, space=["tiny-resnett"])
