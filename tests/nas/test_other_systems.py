"""Claims about systems other than Linux: nothing that is imported needs a module of Unix, and one
line warns.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

UNIX_MODULES = (
    "fcntl",
    "grp",
    "pty",
    "pwd",
    "resource",
    "syslog",
    "termios",
    "tty",
)  # none of these is on Windows
IMPORT_ALL = """
import importlib, pkgutil, sys

for name in sys.argv[1:]:
    sys.modules[name] = None  # an import raises ImportError
for package in ("search_spaces", "predictors", "nas"):
    for module in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
            print(module.name)
"""
IDENTITIES = """
import os
from nas.search.study import workers

here = os.getpid()
assert workers._started(here) == workers._started(here) != workers._started(os.getppid())
workers._PROC = "/none"
assert workers._started(here) == workers._started(here) != workers._started(os.getppid())
child = os.fork()
if not child:
    os._exit(0)
os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)  # a zombie
assert workers._started(child) is None
os.waitpid(child, 0)
assert workers._started(child) is None, "no such process"
"""
ELSEWHERE = "import sys; sys.platform = 'win32'; import nas"


def python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, env=os.environ
    )


@pytest.mark.slow
def test_every_module_can_be_imported_without_modules_of_unix() -> None:
    done = python(IMPORT_ALL, *UNIX_MODULES)
    assert done.returncode == 0, done.stderr
    assert {"nas.search.study.storage", "nas.evaluation.device_command", "nas.cli"} <= {
        *done.stdout.split()
    }


@pytest.mark.slow
def test_a_process_is_identified_by_its_start_also_without_proc() -> None:
    done = python(IDENTITIES)
    assert done.returncode == 0, done.stderr


def test_other_systems_are_told_in_one_line_what_is_supported() -> None:
    done = python(ELSEWHERE)
    assert done.returncode == 0
    assert "UserWarning: rlm-nas is made for Linux and macOS" in done.stderr
    assert not python("import nas").stderr
