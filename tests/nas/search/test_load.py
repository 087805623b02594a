"""Claims about reading studies: any Optuna study, nothing is created, and no code runs that is not
trusted.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import optuna
import pytest
from typer.testing import CliRunner

import predictors
from nas import Problem, search
from nas.cli import app
from nas.comparison.runs import open_studies
from nas.search.joining import join
from nas.search.sampler import PredictorSampler
from nas.search.study.load import RecordedSpace, load_studies
from nas.search.study.schema import SETTINGS_KEY, SOURCE_KEY
from nas.search.study.storage import open_storage
from search_spaces import Architecture, get_space
from search_spaces.common import plug_ins
from search_spaces.common.errors import InputError

SPACE = get_space("tiny-resnet")
MINE = """
from pathlib import Path
from search_spaces import SearchSpace

Path(__file__).with_suffix(".ran").touch()

class Mine(SearchSpace):
    input_shape = (1, 4, 4)

    def build(self, trial, net):
        return net.classifier(net.conv_bn_relu(net.input, trial.suggest_int("width", 1, 8)))
"""

optuna.logging.set_verbosity(optuna.logging.WARNING)


def costs(trial: optuna.Trial | optuna.trial.FrozenTrial) -> tuple[float, float]:
    architecture = SPACE.choose(trial)
    return SPACE.params(architecture) / 1e3, SPACE.flops(architecture) / 1e6


class Widths:
    """An evaluator of the space in `MINE`."""

    metrics = ("params", "score")

    def __call__(self, architectures: Sequence[Architecture]) -> np.ndarray:
        widths = [a.as_dict()["width"] for a in architectures]
        return np.array([[width, width**2] for width in widths], dtype=float)


@pytest.fixture
def untrusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The journal of a search in a space of another user. Running the space's file leaves a mark
    beside it.
    """
    file = tmp_path / "mine.py"
    file.write_text(MINE)
    space = get_space(f"{file}:Mine")
    search(
        Problem(space, Widths(), "params,score:max"),
        sampler="random",
        evaluations=4,
        storage=tmp_path / "search.journal",
    )
    file.with_suffix(".ran").unlink()
    monkeypatch.setattr(
        plug_ins, "_MODULES", {}
    )  # as in another process, which has not run the file yet
    return tmp_path / "search.journal"


def test_a_study_guided_by_our_sampler_names_its_space_and_metrics(tmp_path: Path) -> None:
    sampler = PredictorSampler(
        SPACE, lambda: predictors.create("ridge"), ["params_k", "flops_m"], n_startup=4
    )
    storage = open_storage(tmp_path / "study.journal")
    study = optuna.create_study(
        directions=["minimize", "minimize"], sampler=sampler, storage=storage
    )
    study.optimize(costs, n_trials=6)
    studies = open_studies(tmp_path / "study.journal")
    assert [o.name for o in studies.objectives] == ["params_k", "flops_m"]
    assert studies.not_built is None
    assert (
        studies.first.space.params(studies.first.evaluated.architectures[0])
        == costs(study.trials[0])[0] * 1e3
    )
    study.set_metric_names(["kilo weights", "mega operations"])
    assert [o.name for o in open_studies(tmp_path / "study.journal").objectives] == [
        "kilo weights",
        "mega operations",
    ]


def test_a_study_by_plain_samplers_is_read_with_the_space_that_is_given(tmp_path: Path) -> None:
    storage = f"sqlite:///{tmp_path}/study.db"
    study = optuna.create_study(
        directions=["maximize", "minimize"], storage=storage, study_name="mine"
    )
    study.optimize(costs, n_trials=3)
    unnamed = open_studies(tmp_path / "study.db")
    assert [f"{o.name}:{o.direction}" for o in unnamed.objectives] == [
        "objective 1:maximize",
        "objective 2:minimize",
    ]
    assert "give --space" in str(unnamed.not_built)
    built = open_studies(storage, space="tiny-resnet")
    assert built.not_built is None
    assert set(built.first.evaluated.architectures) <= {
        SPACE.architecture(t.params) for t in study.trials
    }
    assert "nasbench201" in str(open_studies(storage, space="nasbench201").not_built)
    small = open_studies(storage, space="tiny-resnet", options={"input_shape": (1, 8, 8)}).first
    assert small.space.input_shape == (1, 8, 8)
    assert CliRunner().invoke(app, ["report", storage, "--option", "input_shape=1,8,8"]).exit_code


def test_constraints_of_a_plain_study_keep_networks_off_the_front(tmp_path: Path) -> None:
    def objective(trial: optuna.Trial) -> float:
        x = trial.suggest_float("x", 0, 1)
        trial.set_constraint("not too small", 0.5 - x)
        return x

    study = optuna.create_study(storage=open_storage(tmp_path / "study.journal"))
    study.optimize(objective, n_trials=12)
    (best,) = open_studies(tmp_path / "study.journal").first.front_rows
    values = [trial.value for trial in study.trials if trial.value is not None]
    assert best["objective 1"] == min(value for value in values if value >= 0.5)


@pytest.mark.parametrize(
    "source", ["nothere.journal", "nothere.db", "folder", "sqlite:///{}/nothere.db"]
)
@pytest.mark.parametrize("command", ["report", "plot"])
def test_a_missing_storage_is_not_created(tmp_path: Path, source: str, command: str) -> None:
    named = source.format(tmp_path) if "://" in source else str(tmp_path / source)
    result = CliRunner().invoke(app, [command, named, "--out", str(tmp_path / "out")])
    assert isinstance(result.exception, InputError)
    said = "there is no" if "://" in source else "no such file or folder"
    assert said in str(result.exception)
    assert Path(named).name in str(result.exception)
    assert list(tmp_path.iterdir()) == []


def test_a_database_without_studies_is_left_as_it_is(tmp_path: Path) -> None:
    import sqlite3

    path = tmp_path / "notes.db"
    sqlite3.connect(path).execute("create table notes (text)").connection.commit()
    before = path.read_bytes()
    with pytest.raises(InputError, match=r"notes\.db"):
        open_studies(path)
    assert path.read_bytes() == before


def test_results_that_may_only_be_read_are_read(untrusted: Path) -> None:
    untrusted.chmod(0o400)
    before = untrusted.read_bytes()
    assert open_studies(untrusted).first.front_rows
    assert untrusted.read_bytes() == before


def test_opening_results_does_not_run_the_code_that_they_name(
    untrusted: Path, tmp_path: Path
) -> None:
    ran = tmp_path / "mine.ran"
    result = CliRunner().invoke(app, ["plot", str(untrusted), "--out", str(tmp_path / "out")])
    assert result.exit_code == 0, result.output
    recorded = open_studies(untrusted)
    assert isinstance(recorded.first.space, RecordedSpace)
    assert "--trust" in str(recorded.not_built)
    with pytest.raises(InputError, match="--trust"):
        join(untrusted)
    assert not ran.exists()
    trusted = open_studies(untrusted, trust=True)
    assert ran.exists()
    assert trusted.not_built is None
    assert trusted.first.evaluated.values.tolist() == recorded.first.evaluated.values.tolist()
    moved = (tmp_path / "mine.py").rename(tmp_path / "moved.py")
    assert "no such Python file" in str(open_studies(untrusted, trust=True).not_built)
    assert open_studies(untrusted, space=f"{moved}:Mine").not_built is None


def test_the_space_of_a_table_is_not_run_either(untrusted: Path, tmp_path: Path) -> None:
    ran, table = (
        tmp_path / "mine.ran",
        {"benchmark": str(tmp_path / "mine.csv"), "space": f"{tmp_path}/mine.py:Mine"},
    )
    (tmp_path / "mine.csv").write_text(
        "arch,params,score\n" + "".join(f"{{'width': {n}}},{n},{n**2}\n" for n in range(1, 9))
    )
    (tmp_path / "out" / "studies").mkdir(parents=True)
    shutil.copy(untrusted, tmp_path / "out" / "studies")
    record = {"arguments": {}, "searches": [], "begun_with": {"source": table}}
    (tmp_path / "out" / "search.json").write_text(json.dumps(record))
    assert open_studies(tmp_path / "out").benchmark is None
    (study,) = load_studies(untrusted)
    study.set_user_attr(SOURCE_KEY, table)
    study.set_user_attr(
        SETTINGS_KEY, study.user_attrs[SETTINGS_KEY] | {"space": "tiny-resnet", "space_options": {}}
    )
    with pytest.raises(InputError, match="--trust"):
        join(untrusted)
    assert not ran.exists()
    assert open_studies(tmp_path / "out", trust=True).benchmark is not None
    assert ran.exists()


def test_a_search_is_reported_without_drawings_if_its_space_has_lost_choices(
    untrusted: Path, tmp_path: Path
) -> None:
    """Its networks would otherwise be missing from the front."""
    (tmp_path / "mine.py").write_text(MINE.replace('"width", 1, 8', '"width", 9, 12'))
    result = CliRunner().invoke(
        app, ["report", str(untrusted), "--out", str(tmp_path / "out"), "--trust"]
    )
    assert result.exit_code == 0, result.output
    assert (
        "has changed: it lacks choices of the search; give --space, the space as it was"
        in result.output
    )
    assert len((tmp_path / "out" / "front.csv").read_text().splitlines()) == 1 + 4
