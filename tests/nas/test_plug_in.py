"""The tutorial `docs/plug_in.md` is true: its files, its Python, its commands and its entry point are run."""

from __future__ import annotations

import re
import runpy
import shlex
import sys
import tomllib
from pathlib import Path

import pytest

from nas import cli
from search_spaces import InputError, base, get_space, list_spaces
from search_spaces.testing import check_space

TUTORIAL = Path(__file__).parents[2] / "docs" / "plug_in.md"
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", TUTORIAL.read_text(), re.MULTILINE | re.DOTALL)
FILES = {text.split()[1]: text for kind, text in BLOCKS if kind == "python" and text.startswith("# ")}
(ENTRY_POINTS,) = (tomllib.loads(text)["project"]["entry-points"] for kind, text in BLOCKS if kind == "toml")


def run_command(monkeypatch: pytest.MonkeyPatch, line: str) -> None:
    """Run `nas …` in this process, a long search cut short."""
    short = re.sub(r"--evaluations \d+", "--evaluations 5", line)
    monkeypatch.setattr(sys, "argv", shlex.split(short))
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert not stop.value.code, line


def test_every_block_of_the_tutorial_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        Path(name).write_text(text)
    commands = 0
    for kind, text in BLOCKS:
        if kind == "python" and text not in FILES.values():
            Path("block.py").write_text(text)
            runpy.run_path("block.py")
        for line in text.splitlines() if kind == "sh" else ():
            run_command(monkeypatch, line)
            commands += 1
    assert commands == 8
    assert {p.name for p in Path("results/my-resnet").iterdir()} >= {"front", "front.csv", "summary.json", "pareto.png"}
    assert "digits_accuracy" in capsys.readouterr().out


def test_space_with_a_notation_conforms(tmp_path: Path) -> None:
    (tmp_path / "my_plain.py").write_text(FILES["my_plain.py"])
    space = get_space(f"{tmp_path / 'my_plain.py'}:Plain", kernel=5, input_shape=(1, 8, 8))
    check_space(space, count=5)
    assert space.format(space.parse("8-16-32")) == "8-16-32"
    with pytest.raises(InputError, match="not three widths"):
        space.parse("8-x")


def test_installed_package_is_found_by_its_entry_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ((group, points),) = ENTRY_POINTS.items()
    ((name, _),) = points.items()
    (tmp_path / "my_package").mkdir()
    (tmp_path / "my_package" / "__init__.py").touch()
    (tmp_path / "my_package" / "spaces.py").write_text(FILES["my_space.py"])
    metadata = tmp_path / "my_package-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: my-package\nVersion: 1.0\n")
    lines = "\n".join(f"{key} = {value}" for key, value in points.items())
    (metadata / "entry_points.txt").write_text(f"[{group}]\n{lines}\n")
    monkeypatch.setattr(base, "_SPACES", dict(base._SPACES))
    assert name not in list_spaces()
    monkeypatch.syspath_prepend(tmp_path)
    assert name in list_spaces()
    space = get_space(name)
    assert (space.name, type(space).__module__) == (name, "my_package.spaces")
    check_space(space, count=3)
