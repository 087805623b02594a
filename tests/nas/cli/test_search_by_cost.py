"""Claims about `nas search --fidelities`: its errors and messages."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from nas import cli
from nas.search import search as search_loop
from nas.search.study.load import load_studies
from nas.search.study.schema import BUDGET_KEY, COST_KEY

GOAL = ("--objectives", "digits_accuracy,params", "--sampler", "asha")
SPACE = ("--space", "tiny-resnet", "--option", "input_shape=1,8,8", *GOAL)
BY_COST = (*SPACE, "--fidelities", "1,3", "--budget", "6")


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str, command: str = "search") -> int:
    """Exit status of `nas COMMAND …` in this process."""
    monkeypatch.setattr(sys, "argv", ["nas", command, *arguments])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    return int(stop.value.code or 0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            (*BY_COST, "--hours", "1"),
            "--hours does not apply with --fidelities: limit seconds by --budget and --cost",
        ),
        (
            (*BY_COST, "--patience", "5"),
            "--patience does not apply with --fidelities: --budget limits the search",
        ),
        (
            (*BY_COST, "--evaluations", "9"),
            "--evaluations does not apply with --fidelities: --budget limits the search",
        ),
        ((*SPACE, "--cost", "seconds"), "--cost is the unit of --budget"),
        ((*SPACE, "--fidelities", "1,3"), "give --fidelities and --budget together"),
        ((*SPACE, "--fidelities", "1,x", "--budget", "6"), "--fidelities 1,x: write whole numbers"),
    ],
)
def test_options_of_the_other_kind_of_search_are_refused_in_one_line(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    arguments: tuple[str, ...],
    message: str,
) -> None:
    out = tmp_path / "found"
    assert run(monkeypatch, *arguments, "--out", str(out)) == 2
    shown = capsys.readouterr().err.strip()
    assert message in shown
    assert "\n" not in shown
    assert not out.exists(), "nothing was begun"


def test_constraints_that_no_network_satisfies_are_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(search_loop, "MAX_RULED_OUT", 4)
    assert run(monkeypatch, *BY_COST, "--constraint", "params <= 5", "--out", str(tmp_path)) == 2
    assert (
        "none of 4 networks was trained: each breaks a constraint, the last one params <= 5: it is"
        in (capsys.readouterr().err)
    )


TRAINING = """
def evaluate(model, architecture, report, checkpoint=None):
    assert checkpoint.parent.name == FOLDER
    epoch = int(checkpoint.read_text()) if checkpoint.exists() else 0
    while epoch < 3:
        epoch += 1
        checkpoint.write_text(str(epoch))
        if not report(epoch, {"digits_accuracy": epoch}):
            break
    return {"digits_accuracy": epoch}
"""


@pytest.mark.parametrize(
    ("options", "folder"), [((), "training"), (("--checkpoints", "mine"), "mine")]
)
def test_a_worker_shares_the_paused_trainings_of_a_search(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, options: tuple[str, ...], folder: str
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "mine.py"
    file.write_text(TRAINING.replace("FOLDER", "__import__('os').environ['FOLDER']"))
    monkeypatch.setenv("FOLDER", "training")
    arguments = (
        "--evaluator",
        "mine.py:evaluate",
        "--storage",
        "s.journal",
        "--out",
        "out",
        "--quiet",
    )
    assert run(monkeypatch, *BY_COST, *arguments) == 0
    (study,) = load_studies("s.journal")
    study.set_user_attr(BUDGET_KEY, 12.0)
    monkeypatch.setenv("FOLDER", folder)
    assert (
        run(monkeypatch, "--storage", "s.journal", "--trust", "--quiet", *options, command="worker")
        == 0
    )
    costs = [trial.user_attrs[COST_KEY] for trial in study.get_trials()]
    assert sum(costs) > 6


def test_paused_trainings_without_a_complete_one_ask_for_a_larger_budget(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """One failed training is not the reason."""
    file = tmp_path / "mine.py"
    code = (
        "    if architecture.as_dict()['width'] == 32:\n        raise RuntimeError('out of "
        "memory')\n"
    )
    file.write_text(TRAINING.replace("    assert checkpoint.parent.name == FOLDER\n", code))
    out = ("--evaluator", f"{file}:evaluate", "--out", str(tmp_path / "out"), "--quiet")
    assert run(monkeypatch, *BY_COST[:-1], "2", *out) == 2
    message = "no network was evaluated to the end: give the search more time or a larger budget; "
    assert (
        f"{message}2 failed, the last: {file}, line 4: RuntimeError: out of memory"
        in capsys.readouterr().err
    )
