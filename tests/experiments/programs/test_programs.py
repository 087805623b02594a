"""Claims about generated programs: they are varied, they run, and they are measured."""

from __future__ import annotations

import csv
import gzip
import importlib
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from experiments.programs import table
from experiments.programs.measuring import build_launcher, measure
from experiments.programs.readers import as_bytes
from experiments.programs.squared_error import head_predictions
from experiments.programs.study import METRICS, score
from experiments.programs.writing import KERNELS, LANGUAGES, Program, programs
from nas.benchmarks.text_tables import read_text_table
from predictors.rlm.tokens import tokenize
from search_spaces import InputError

needs_compilers = pytest.mark.skipif(
    not (shutil.which("gcc") and shutil.which("g++")), reason="gcc and g++ are not installed"
)
SUM = {
    "python": "print(sum(range(1000)))\n",
    "c": '#include <stdio.h>\nint main(void) {\n    printf("%d\\n", 999 * 1000 / 2);\n    return 0;\n}\n',
}


def test_a_seed_gives_the_same_different_programs_in_all_languages() -> None:
    found = list(programs(90, 1))
    assert found == list(programs(90, 1))
    assert found != list(programs(90, 2))
    assert len({program.text for program in found}) == 90
    assert [program.language for program in found[:3]] == list(LANGUAGES)
    assert len({family for program in found for family in program.families.split("+")}) > 25


def test_python_programs_compile() -> None:
    for program in programs(60, 3):
        if program.language == "python":
            compile(program.text, program.families, "exec")


def test_every_function_uses_all_of_its_options(tmp_path: Path) -> None:
    for kernels in KERNELS.values():
        for kernel in kernels:
            assert "$f" in kernel.source or "${f}" in kernel.source
            assert kernel.low < kernel.high
            assert all(f"${name}" in kernel.source for name in kernel.options), kernel.family


@pytest.mark.slow
@needs_compilers
def test_time_and_memory_are_those_of_the_program_alone(tmp_path: Path) -> None:
    launcher = build_launcher(tmp_path)
    ballast = np.ones(50_000_000)  # 400 MB of this process, which a program does not have
    small = measure(Program("c", "sum", SUM["c"]), launcher, tmp_path, 2)
    assert small.peak_memory_kib < 10_000
    assert small.run_time_ms < 50
    wide = "values = bytearray(64 << 20)\nprint(sum(i * i for i in range(1_000_000)))\n"
    large = measure(Program("python", "sum", wide), launcher, tmp_path, 2)
    assert 64 << 10 < large.peak_memory_kib < 100_000
    assert large.run_time_ms > 5 * small.run_time_ms
    assert ballast[-1] == 1


@needs_compilers
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("raise SystemExit(3)\n", "a program of sum in python failed"),
        ("import os\nprint(os.getpid())\n", "prints a different output in each run"),
    ],
)
def test_programs_that_fail_are_refused(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        measure(Program("python", "sum", text), build_launcher(tmp_path), tmp_path, 2)
    with pytest.raises(InputError, match=r"program\.c does not compile"):
        measure(
            Program("c", "sum", "int main(void) { return x; }\n"),
            build_launcher(tmp_path),
            tmp_path,
            2,
        )


def test_without_a_compiler_the_remedy_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match=r"gcc is not installed.*apt install g\+\+"):
        build_launcher(tmp_path)


@pytest.mark.slow
@needs_compilers
def test_the_table_has_a_row_for_each_program(tmp_path: Path) -> None:
    table.main(out=tmp_path / "programs.csv.gz", count=6, repeats=2, seed=5)
    with gzip.open(tmp_path / "programs.csv.gz", "rt", newline="") as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == table.COLUMNS
    assert [row["input"] for row in rows] == [program.text for program in programs(6, 5)]
    assert all(float(row[metric]) > 0 for row in rows for metric in METRICS)


def test_the_shipped_table_is_what_the_generator_writes() -> None:
    shipped = read_text_table(table.SHIPPED, "input", METRICS)
    assert shipped.texts == [program.text for program in programs(len(shipped.texts), 0)]
    assert len(shipped.texts) >= 300
    assert all((values > 0).all() for values in shipped.metrics.values())
    assert table.SHIPPED.stat().st_size < 1 << 20


def test_each_byte_is_a_line() -> None:
    text = "größe = 1\n"
    assert len(tokenize(as_bytes(text)).starts) == len(text.encode())
    assert as_bytes("ab") != as_bytes("ba")


@pytest.mark.slow
def test_a_head_with_squared_error_learns_a_line() -> None:
    rng = np.random.default_rng(0)
    states = rng.normal(size=(200, 4)).astype(np.float32)
    wanted = states[:, :1] - 2 * states[:, 1:2]
    found = head_predictions(states[:150], wanted[:150], states[150:], 200, 0)
    assert np.corrcoef(found[:, 0], wanted[150:, 0])[0, 1] > 0.95


def test_halves_of_the_measurements_agree_and_costs_tell_little(tmp_path: Path) -> None:
    measured = score(str(table.SHIPPED), str(tmp_path), 1, 0, "measured", 0)
    glance = score(str(table.SHIPPED), str(tmp_path), 1, 0, "costs of the text", 0)
    assert measured["measured: run_time_ms, all"] > 0.99
    assert glance["costs of the text: run_time_ms, all"] < 0.9


@pytest.mark.slow
def test_every_reader_predicts_by_digits_and_by_squared_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = importlib.import_module("experiments.programs.study")
    study.main(out=tmp_path, quick=True, as_json=True)
    rows = json.loads(capsys.readouterr().out)
    assert [row["rival"] for row in rows] == list(study.RIVALS)
    text = (tmp_path / "table.md").read_text()
    assert all(
        f"| {reader}, {answer} |" in text
        for reader in study.READERS
        for answer in ("digits", "squared error")
    )
