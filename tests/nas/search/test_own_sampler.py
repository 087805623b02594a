"""Claims about searches that a predictor in a user's file guides."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from nas import Problem, search
from nas.comparison.runs import open_studies
from nas.evaluation.measurement import Measurement
from nas.report.outlook import Prospects
from nas.report.page_data import page_data
from nas.search.joining import join
from nas.search.measured_evaluator import MeasuredEvaluator
from nas.search.own_evaluator import FunctionEvaluator
from nas.search.study.schema import SETTINGS_KEY, sampler_label
from search_spaces import InputError, get_space
from tests.nas.cli.test_search import run

SPACE = get_space("tiny-resnet")
OBJECTIVES = "params,flops"
NOTES = """
from pathlib import Path

from predictors.baselines import Ridge

Path(__file__).with_name("runs").open("a").write("run\\n")


class Noted(Ridge):
    def fit(self, architectures, metrics):
        Path(__file__).with_name("fits").open("a").write(f"{len(architectures)}\\n")
        return super().fit(architectures, metrics)
"""
TRAINING = """
def evaluate(model, architecture, report):
    for epoch in range(1, 5):
        if not report(epoch, {"accuracy": 50.0 + epoch}):
            break
    return {"accuracy": 54.0}
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A predictor in the present folder. Its file notes when it is run, and the number of examples
    of every fit.
    """
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(NOTES)
    return tmp_path


def evaluator() -> MeasuredEvaluator:
    return MeasuredEvaluator(SPACE, Measurement(metrics=("params", "flops")))


def training() -> FunctionEvaluator:
    Path("own.py").write_text(TRAINING)
    return FunctionEvaluator(SPACE, "own.py:evaluate", ["accuracy"], Measurement(("params",)))


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def test_the_predictor_in_the_file_chooses_the_networks(mine: Path) -> None:
    found = search(Problem(SPACE, evaluator(), OBJECTIVES), sampler="mine.py:Noted", evaluations=16)
    assert len(found.evaluated.architectures) == 16
    assert lines(mine / "fits") == ["10", "15"], "after ten networks, and then every five"
    assert found.study.user_attrs[SETTINGS_KEY]["sampler"] == f"{mine}/mine.py:Noted"


def test_it_also_decides_which_trainings_go_on(mine: Path) -> None:
    found = search(
        Problem(SPACE, training(), "accuracy,params"),
        sampler="mine.py:Noted",
        fidelities=[1, 4],
        budget=150,
    )
    assert lines(mine / "fits"), "no fit"
    assert found.evaluated.architectures


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("rlm", "rlm"),
        ("rlm+gp", "rlm+gp"),
        ("folder/mine.py:Noted", "mine.Noted"),
        ("/a b/mine.py", "mine"),
    ],
)
def test_a_sampler_is_named_without_its_folder(name: str, label: str) -> None:
    assert sampler_label(name) == label


def test_the_command_names_the_class_in_its_results(
    mine: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = (
        "search",
        "--space",
        "tiny-resnet",
        "--objectives",
        OBJECTIVES,
        "--sampler",
        "mine.py:Noted,random",
    )
    assert run(monkeypatch, *command, "--evaluations", "12", "--out", "out") == 0
    assert sorted(path.stem for path in Path("out/studies").glob("*.journal")) == [
        "mine.Noted-0",
        "random-0",
    ]
    assert list(json.loads(Path("out/summary.json").read_text())["samplers"]) == [
        "mine.Noted",
        "random",
    ]
    assert [*open_studies("out").results] == ["mine.Noted", "random"]
    capsys.readouterr()
    assert run(monkeypatch, *command[:-1], "mine.py:Noted,./mine.py:Noted", "--out", "twice") == 2
    assert "'mine.Noted' is given twice" in capsys.readouterr().err
    assert run(monkeypatch, *command[:-1], "mine.py:Notd", "--out", "twice") == 2
    assert "did you mean 'Noted'" in capsys.readouterr().err


def test_a_search_resumes_after_its_file_has_moved(mine: Path) -> None:
    search(
        Problem(SPACE, evaluator(), OBJECTIVES),
        sampler="mine.py:Noted",
        evaluations=12,
        storage="s.journal",
    )
    (mine / "elsewhere").mkdir()
    shutil.move(mine / "mine.py", mine / "elsewhere" / "mine.py")
    resumed = search(
        Problem(SPACE, evaluator(), OBJECTIVES),
        sampler="elsewhere/mine.py:Noted",
        evaluations=14,
        storage="s.journal",
    )
    assert len(resumed.evaluated.architectures) == 14
    with pytest.raises(InputError, match="another search, started with sampler"):
        search(
            Problem(SPACE, evaluator(), OBJECTIVES),
            sampler="random",
            evaluations=16,
            storage="s.journal",
        )


@pytest.mark.parametrize("by_cost", [False, True])
def test_reports_and_workers_do_not_run_the_file_without_trust(mine: Path, by_cost: bool) -> None:
    if by_cost:
        search(
            Problem(SPACE, training(), "accuracy,params"),
            sampler="mine.py:Noted",
            fidelities=[1, 4],
            budget=60,
            storage="s.journal",
        )
    else:
        search(
            Problem(SPACE, evaluator(), OBJECTIVES),
            sampler="mine.py:Noted",
            evaluations=12,
            storage="s.journal",
        )
    (mine / "runs").unlink()
    (mine / "mine.py").write_text(
        NOTES + "\n# another content is another module, which is run again\n"
    )
    studies = open_studies("s.journal")
    assert page_data(studies, mine / "front", Prospects.of(studies))
    with pytest.raises(InputError, match=r"mine.py:Noted is Python code: give --trust"):
        join("s.journal", evaluator="own.py:evaluate" if by_cost else None)
    assert not (mine / "runs").exists()
    join("s.journal", trust=True)
    assert lines(mine / "runs") == ["run"]


@pytest.mark.slow
def test_helper_processes_run_the_file(mine: Path) -> None:
    found = search(
        Problem(SPACE, evaluator(), OBJECTIVES),
        sampler="mine.py:Noted",
        evaluations=24,
        storage="s.journal",
        jobs=2,
    )
    assert len(found.evaluated.architectures) >= 24
    assert len(lines(mine / "runs")) == 2
