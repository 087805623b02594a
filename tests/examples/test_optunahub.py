"""The OptunaHub package `samplers/rlm` loads as OptunaHub loads it, and its files are complete."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

import optuna
import pytest

REGISTRY = Path(__file__).parents[2] / "examples" / "optunahub"
PACKAGE = REGISTRY / "samplers" / "rlm"


def test_the_package_has_the_files_of_the_registrys_template() -> None:
    names = {path.name for path in PACKAGE.iterdir() if path.is_file()}
    assert names >= {"README.md", "LICENSE", "__init__.py", "example.py", "requirements.txt"}


def test_the_readme_begins_with_all_columns_that_the_registry_asks_for() -> None:
    _, header, text = (PACKAGE / "README.md").read_text().split("---\n", 2)
    columns = dict(re.findall(r"^(\w+): (.+)$", header, re.MULTILINE))
    assert columns.keys() == {
        "author", "title", "description", "tags", "optuna_versions", "license",
    }  # fmt: skip
    assert "sampler" in columns["tags"].strip("[]").split(", ")
    assert optuna.__version__ in columns["optuna_versions"]
    headings = re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert headings == ["Abstract", "APIs", "Installation", "Example", "Others"]


@pytest.mark.slow
def test_its_sampler_never_repeats_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    optunahub = pytest.importorskip("optunahub")
    module = optunahub.load_local_module("samplers/rlm", registry_root=str(REGISTRY))
    sampler = module.RLMSampler("tiny-resnet", {"params": "min", "flops": "min"}, n_startup=6)

    def objective(trial: optuna.Trial) -> tuple[float, float]:
        architecture = sampler.space.choose(trial)
        return sampler.space.params(architecture), sampler.space.flops(architecture)

    study = optuna.create_study(directions=["minimize", "minimize"], sampler=sampler)
    study.optimize(objective, n_trials=9)
    assert len({str(trial.params) for trial in study.trials}) == 9
    guided = study.trials[6:]
    assert all("predicted" in str(trial.system_attrs) for trial in guided), "the RLM proposed them"


@pytest.mark.slow
def test_the_example_and_the_code_of_the_readme_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("optunahub")
    monkeypatch.setattr(sys, "argv", ["example.py", "9"])
    runpy.run_path(str(PACKAGE / "example.py"), run_name="__main__")
    assert "% with" in capsys.readouterr().out
    monkeypatch.chdir(REGISTRY.parents[1])
    (code,) = re.findall(
        r"^```python\n(.*?)^```$", (PACKAGE / "README.md").read_text(), re.MULTILINE | re.DOTALL
    )
    script = tmp_path / "readme.py"
    script.write_text(code)
    study = runpy.run_path(str(script))["study"]
    assert len(study.trials) == 12
