"""Run generated programs and measure processor time and peak memory of the whole process."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import NamedTuple

from experiments.programs.writing import Program
from search_spaces.common.errors import InputError

TIME_LIMIT_S = 60
COMPILERS = {"c": ("gcc", "-std=c17"), "c++": ("g++", "-std=c++17")}
SUFFIXES = {"python": ".py", "c": ".c", "c++": ".cpp"}
# A new process is a copy of its parent, and the parent's memory counts as its peak. Hence a small
# launcher starts it.
LAUNCHER = """\
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int count, char **command) {
    pid_t child = count > 1 ? fork() : -1;
    if (child == 0) {
        execv(command[1], command + 1);
        _exit(127);
    }
    int status = 0;
    struct rusage used;
    if (child < 0 || wait4(child, &status, 0, &used) != child) return 126;
    double seconds = used.ru_utime.tv_sec + used.ru_stime.tv_sec;
    double microseconds = used.ru_utime.tv_usec + used.ru_stime.tv_usec;
    fprintf(stderr, "%.3f %ld\\n", 1e3 * seconds + 1e-3 * microseconds, used.ru_maxrss);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 125;
}
"""


class Run(NamedTuple):
    """One run: its output, processor time in ms and peak memory in KiB."""

    printed: str
    time_ms: float
    memory_kib: float


class Measured(NamedTuple):
    """Medians of all runs and of two halves (every other run).

    The halves show how well measurements agree.
    """

    run_time_ms: float
    run_time_ms_first: float
    run_time_ms_second: float
    peak_memory_kib: float
    peak_memory_kib_first: float
    peak_memory_kib_second: float


def build_launcher(folder: Path) -> Path:
    """Compile the launcher and return its path. Raises InputError without a compiler."""
    for compiler, _ in COMPILERS.values():
        if shutil.which(compiler) is None:
            raise InputError(
                f"{compiler} is not installed: programs in C and C++ cannot be compiled (apt "
                "install g++)"
            )
    return _compiled("c", LAUNCHER, folder / "launcher")


def measure(program: Program, launcher: Path, folder: Path, repeats: int) -> Measured:
    """Write, compile and run a program.

    Args:
        program: the program.
        launcher: see `build_launcher`.
        folder: for its files.
        repeats: number of runs, at least two.

    Raises:
        InputError: the program fails, or its runs print different outputs.
    """
    command = _command(program, folder)
    runs = [_run(command, launcher, program) for _ in range(repeats)]
    if len({run.printed for run in runs}) > 1:
        raise InputError(
            f"a program of {program.families} in {program.language} prints a different output in "
            "each run"
        )
    times = [run.time_ms for run in runs]
    kib = [run.memory_kib for run in runs]
    return Measured(*map(median, (times, times[::2], times[1::2], kib, kib[::2], kib[1::2])))


def _command(program: Program, folder: Path) -> list[str]:
    if program.language != "python":
        return [str(_compiled(program.language, program.text, folder / "program"))]
    path = folder / "program.py"
    path.write_text(program.text)
    return [sys.executable, "-I", "-S", str(path)]


def _compiled(language: str, text: str, out: Path) -> Path:
    source = out.with_suffix(SUFFIXES[language])
    source.write_text(text)
    command = [*COMPILERS[language], "-O2", "-Wall", "-o", str(out), str(source), "-lm"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIME_LIMIT_S)
    if done.returncode or done.stderr:
        raise InputError(f"{source.name} does not compile: {done.stderr.strip().splitlines()[0]}")
    return out


def _run(command: list[str], launcher: Path, program: Program) -> Run:
    try:
        done = subprocess.run(
            [launcher, *command], capture_output=True, text=True, timeout=TIME_LIMIT_S
        )
    except subprocess.TimeoutExpired as error:
        raise InputError(
            f"a program of {program.families} in {program.language} ran over {TIME_LIMIT_S} s"
        ) from error
    lines = done.stderr.strip().splitlines()
    if done.returncode or len(lines) != 1:
        raise InputError(
            f"a program of {program.families} in {program.language} failed: "
            f"{lines[0] if lines else ''}"
        )
    milliseconds, kib = lines[0].split()
    return Run(done.stdout, float(milliseconds), float(kib))
