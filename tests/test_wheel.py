"""The built wheel works alone: without this repository, and without `experiments`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.slow


def run(*command: str | Path, folder: Path) -> str:
    """Standard output of a command that runs in an empty folder, without this process's Python
    path.
    """
    environment = {
        name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "NAS_DATA")
    }
    environment["NAS_CACHE"] = str(folder / "cache")
    done = subprocess.run(
        list(map(str, command)), cwd=folder, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, f"{command}: {done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy of the repository so that the build leaves no files here."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    source.mkdir()
    files = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=ROOT, capture_output=True
    )
    if files.returncode:
        pytest.skip("this is no git checkout, whose files the wheel is made from")
    for name in filter(None, files.stdout.decode().split("\0")):
        if (ROOT / name).is_file() and not name.startswith("tests/"):
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    build = (
        "-m",
        "pip",
        "wheel",
        "--no-deps",
        "--no-build-isolation",
        "--no-index",
        "--wheel-dir",
        folder,
        source,
    )
    run(sys.executable, *build, folder=folder)
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`bin` of a new environment with the wheel. Its dependencies are those of this environment."""
    folder = tmp_path_factory.mktemp("environment")
    run(sys.executable, "-m", "venv", folder / "env", folder=folder)
    executables = folder / "env" / "bin"
    run(
        executables / "python",
        "-m",
        "pip",
        "install",
        "--no-deps",
        "--no-index",
        wheel,
        folder=folder,
    )
    paths = run(
        executables / "python",
        "-c",
        "import sysconfig; print(sysconfig.get_path('purelib'))",
        folder=folder,
    )
    # A path file is read from the environment's own folder only: this project's editable install
    # stays invisible.
    Path(paths.strip(), "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return executables


def test_the_wheel_holds_packages_with_their_data_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.partition("/")[0] for name in names if ".dist-info/" not in name} == {
        "nas",
        "predictors",
        "search_spaces",
    }
    assert "nas/benchmarks/data/digits201.csv.gz" in names
    assert "nas/report/assets/echarts.min.js" in names
    assert any(name.endswith("model.safetensors") for name in names)


def test_commands_of_the_wheel_work(environment: Path, tmp_path: Path) -> None:
    where = run(environment / "python", "-c", "import nas; print(nas.__file__)", folder=tmp_path)
    assert Path(where.strip()).is_relative_to(environment.parent), (
        "it is not this repository that is tested"
    )
    spaces = json.loads(run(environment / "nas", "spaces", "--json", folder=tmp_path))
    assert "nasbench201" in {row["space"] for row in spaces}
    search = (
        "search",
        "--benchmark",
        "digits201",
        "--objectives",
        "digits_accuracy,params",
        "--sampler",
        "ridge",
    )
    found = run(
        environment / "nas",
        *search,
        "--evaluations",
        "12",
        "--out",
        "out",
        "--json",
        folder=tmp_path,
    )
    assert json.loads(found)["front"]
    assert (tmp_path / "out" / "report.html").is_file()


def test_experiments_are_not_needed(environment: Path, tmp_path: Path) -> None:
    code = (
        "import importlib.util, sys; sys.exit(importlib.util.find_spec('experiments') is not None)"
    )
    run(environment / "python", "-c", code, folder=tmp_path)
