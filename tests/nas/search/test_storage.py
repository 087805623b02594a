"""The private parts of Optuna that searches rely on exist, do what is expected, and are used in one
file only.
"""

from __future__ import annotations

import ast
import tomllib
from importlib.metadata import version
from pathlib import Path

import optuna
import pytest
from optuna.trial import TrialState
from packaging.requirements import Requirement

from nas.search.study.storage import (
    fail_trial,
    has_heartbeat,
    heartbeat,
    set_system_attr,
    stored_trial,
    stored_trials,
    trial_id,
    trial_id_of_number,
)

ROOT = Path(__file__).parents[3]
ADAPTER = ROOT / "nas/search/study/storage.py"
PRIVATE = {"_storage", "_study_id", "_trial_id"}
STORAGE_METHODS = (
    "get_trial",
    "get_all_trials",
    "get_trial_id_from_study_id_trial_number",
    "set_trial_system_attr",
    "set_trial_state_values",
    "set_trial_intermediate_value",
)


@pytest.fixture
def study() -> optuna.Study:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study()
    study.optimize(lambda trial: trial.suggest_float("x", 0, 1), n_trials=2)
    return study


def test_private_attributes_exist(study: optuna.Study) -> None:
    lacks = (
        f"optuna {version('optuna')} has no %s: adapt nas/search/study/storage.py, then "
        "raise "
        "the version cap"
    )
    for owner, name in ((study, "_storage"), (study, "_study_id"), (study.trials[0], "_trial_id")):
        assert hasattr(owner, name), lacks % f"{type(owner).__name__}.{name}"
    for name in STORAGE_METHODS:
        assert hasattr(study._storage, name), lacks % f"BaseStorage.{name}"


def test_trials_are_addressed_by_id(study: optuna.Study) -> None:
    assert [trial.number for trial in stored_trials(study)] == [0, 1]
    found = stored_trial(study, trial_id_of_number(study, 1))
    assert found.number == 1
    assert trial_id(found) == trial_id(study.trials[1])
    with pytest.raises(KeyError):
        trial_id_of_number(study, 2)


def test_a_trial_fails_once(study: optuna.Study) -> None:
    study.ask()
    running = stored_trial(study, trial_id_of_number(study, 2))
    set_system_attr(study, running, "key", [1])
    assert fail_trial(study, running)
    assert not fail_trial(study, running), "it is finished"
    failed = stored_trial(study, trial_id_of_number(study, 2))
    assert failed.state == TrialState.FAIL
    assert failed.system_attrs["key"] == [1]


def test_memory_has_no_heartbeat(study: optuna.Study) -> None:
    assert not has_heartbeat(study)
    with heartbeat(study, study.ask()):
        pass


def test_only_the_adapter_uses_private_attributes() -> None:
    users = []
    for path in [
        path for package in ("nas", "experiments") for path in (ROOT / package).rglob("*.py")
    ]:
        for node in ast.walk(ast.parse(path.read_text())):
            if path == ADAPTER or not isinstance(node, ast.Attribute | ast.ImportFrom):
                continue
            private = isinstance(node, ast.Attribute) and node.attr in PRIVATE
            module = node.module or "" if isinstance(node, ast.ImportFrom) else ""
            if private or (module.startswith("optuna.") and "._" in module):
                users.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert not users, (
        f"private attributes of Optuna outside of nas/search/study/storage.py: {users}"
    )


def test_the_version_is_capped() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    optuna_requirement = next(
        r for r in map(Requirement, project["dependencies"]) if r.name == "optuna"
    )
    assert any(specifier.operator == "<" for specifier in optuna_requirement.specifier)
    assert version("optuna") in optuna_requirement.specifier
