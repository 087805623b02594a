"""A search can be read from a TOML file, and every result has the file that repeats it."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from nas.cli.application import app

OBJECTIVES = ["--objectives", "digits_accuracy,cpu_latency_ms"]


def search(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["search", "--quiet", *arguments])
    assert result.exit_code == 0, result.output or result.exception
    return result.output


def test_a_file_gives_the_options_and_the_command_line_replaces_them(tmp_path: Path) -> None:
    config = tmp_path / "my.toml"
    config.write_text(
        'benchmark = "digits201"\nobjectives = "digits_accuracy,cpu_latency_ms"\nsampler = "random"\nevaluations = 5\n'
        'constraint = ["params <= 1e9", "flops <= 1e12"]\n'
    )
    search("--config", str(config), "--seed", "3", "--out", str(tmp_path / "first"))
    repeats = tmp_path / "first" / "search.toml"
    assert tomllib.loads(repeats.read_text()) == {
        "benchmark": "digits201",
        "objectives": "digits_accuracy,cpu_latency_ms",
        "sampler": "random",
        "evaluations": 5,
        "constraint": ["params <= 1e9", "flops <= 1e12"],
        "seed": 3,
        "out": str(tmp_path / "first"),
        "quiet": True,
    }
    search("--config", str(repeats), "--out", str(tmp_path / "second"))
    first, second = ((tmp_path / name / "networks.csv").read_text() for name in ("first", "second"))
    assert first == second


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("evaluation = 5", "unknown option in"),
        ("evaluations = [5, 6]", "give one value"),
        ("evaluations = 2020-01-01", "give text, a number or true and false"),
        ('new = "yes"', "give true or false"),
        ("seed = true", "give a value"),
        ("evaluations: 5", "not a TOML file"),
    ],
)
def test_what_is_not_understood_is_refused_in_one_line(
    tmp_path: Path, content: str, message: str
) -> None:
    (tmp_path / "my.toml").write_text(content)
    result = CliRunner().invoke(app, ["search", "--config", str(tmp_path / "my.toml"), *OBJECTIVES])
    assert result.exit_code
    assert message in str(result.exception)
    assert str(tmp_path / "my.toml") in str(result.exception)


def test_an_option_of_the_file_that_does_not_apply_is_refused_as_on_the_command_line(
    tmp_path: Path,
) -> None:
    (tmp_path / "my.toml").write_text(
        'benchmark = "digits201"\nobjectives = "digits_accuracy"\ncost = "seconds"\n'
    )
    result = CliRunner().invoke(app, ["search", "--config", str(tmp_path / "my.toml")])
    assert "--cost is the unit of --budget" in str(result.exception)


def test_a_file_that_is_missing_is_named(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["search", "--config", str(tmp_path / "no.toml"), *OBJECTIVES])
    assert "no.toml: No such file" in str(result.exception)


def test_no_password_is_written(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/s.db?name=postgresql://me:secret@host"
    search("--benchmark", "digits201", *OBJECTIVES, "--sampler", "random", "--evaluations", "2", "--storage", url,
           "--out", str(tmp_path / "out"))  # fmt: skip
    written = (tmp_path / "out" / "search.toml").read_text()
    assert "secret" not in written
    assert "me:***@host" in written
