"""Claims about what a search depends on besides code: values of closures, attributes, and files
that code reads.
"""

from __future__ import annotations

import functools
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import nas
from nas.cli import app
from nas.search.joining import join
from nas.search.own_evaluator import FunctionEvaluator
from nas.search.search import run_search
from nas.search.settings import SearchSettings
from nas.search.study import provenance
from nas.search.study.bound_values import bound_values
from nas.search.study.provenance import content_hashes
from search_spaces import SearchSpace, TorchSpace, get_space
from search_spaces.common.errors import InputError

SCALE = 1.0


class Schedule(Enum):
    COSINE = 1
    STEP = 2


@dataclass
class Settings:
    lr: float
    milestones: tuple[int, ...] = (30, 60)


class Trainer:
    def __init__(self, lr: float) -> None:
        self.lr = lr
        self.calls = 0

    def evaluate(self, model: Any, architecture: Any, report: Any) -> dict[str, float]:
        self.calls += 1
        return {"top1": self.lr}

    def __call__(self, model: Any, architecture: Any, report: Any) -> dict[str, float]:
        return {"top1": self.lr}


def closure(value: Any) -> Callable[..., Any]:
    def evaluate(model: Any, architecture: Any, report: Any) -> dict[str, float]:
        return {"top1": float(len(str(value)))}

    return evaluate


def with_default(lr: float) -> Callable[..., Any]:
    def evaluate(model: Any, architecture: Any, report: Any, lr: float = lr) -> dict[str, float]:
        return {"top1": lr}

    return evaluate


def decorated(lr: float) -> Callable[..., Any]:
    inner = closure(lr)

    @functools.wraps(inner)
    def wrapper(*arguments: Any) -> Any:
        return inner(*arguments)

    return wrapper


def train(model: Any, architecture: Any, report: Any, lr: float) -> dict[str, float]:
    return {"top1": lr}


PAIRS: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "closure": (lambda: closure(0.1), lambda: closure(0.2)),
    "default": (lambda: with_default(0.1), lambda: with_default(0.2)),
    "decorated": (lambda: decorated(0.1), lambda: decorated(0.2)),
    "partial": (lambda: functools.partial(train, lr=0.1), lambda: functools.partial(train, lr=0.2)),
    "method": (lambda: Trainer(0.1).evaluate, lambda: Trainer(0.2).evaluate),
    "object": (lambda: Trainer(0.1), lambda: Trainer(0.2)),
    "lambda": (lambda: lambda m, a, r: {"top1": 1.0}, lambda: lambda m, a, r: {"top1": 2.0}),
    "dictionary": (
        lambda: closure({"lr": 0.1, "on": [1]}),
        lambda: closure({"lr": 0.1, "on": [2]}),
    ),
    "dataclass": (lambda: closure(Settings(0.1)), lambda: closure(Settings(0.1, (30, 90)))),
    "enumeration": (lambda: closure(Schedule.STEP), lambda: closure(Schedule.COSINE)),
    "array": (lambda: closure(np.arange(3.0)), lambda: closure(np.arange(3.0)[::-1])),
    "tensor": (lambda: closure(torch.ones(3)), lambda: closure(torch.zeros(3))),
    "function": (lambda: closure(closure(1)), lambda: closure(closure(2))),
    "set": (lambda: closure({"a", "b"}), lambda: closure({"a", "c"})),
}


@pytest.fixture
def space() -> SearchSpace:
    return get_space("tiny-resnet", input_shape=(1, 8, 8))


def run(space: SearchSpace, function: Any, folder: Path, evaluations: int = 1, **more: Any) -> Any:
    evaluator = FunctionEvaluator(space, function, ["top1"])
    return run_search(
        space,
        "top1",
        evaluator,
        SearchSettings(
            sampler="random", evaluations=evaluations, storage=folder / "s.journal", **more
        ),
    )


@pytest.mark.parametrize("kind", PAIRS)
def test_values_of_differently_bound_functions_are_not_mixed(
    space: SearchSpace, tmp_path: Path, kind: str
) -> None:
    first, second = PAIRS[kind]
    run(space, first(), tmp_path)
    assert len(run(space, first(), tmp_path, 2).evaluated.architectures) == 2, (
        "the same values at another place"
    )
    with pytest.raises(InputError, match=r"holds another search, started with script\.values\."):
        run(space, second(), tmp_path, 3)


def test_the_message_names_the_value(space: SearchSpace, tmp_path: Path) -> None:
    run(space, functools.partial(train, lr=0.1), tmp_path)
    with pytest.raises(InputError, match=r"script\.values\.lr '0\.1', not '0\.2'"):
        run(space, functools.partial(train, lr=0.2), tmp_path)


def test_texts_are_not_stored_since_they_may_be_secret(space: SearchSpace) -> None:
    known = bound_values(closure({"key": "hunter2"})).known
    assert "hunter2" not in str(known)
    assert known != bound_values(closure({"key": "hunter3"})).known


def test_constants_of_a_script_are_values_of_its_functions(
    space: SearchSpace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def scaled() -> float:
        return SCALE

    def evaluate(model: Any, architecture: Any, report: Any) -> dict[str, float]:
        return {"top1": scaled()}

    run(space, evaluate, tmp_path)
    monkeypatch.setitem(globals(), "SCALE", 2.0)
    with pytest.raises(InputError, match="another search"):
        run(space, evaluate, tmp_path)


def test_what_an_evaluator_changes_itself_does_not_stop_its_search(
    space: SearchSpace, tmp_path: Path
) -> None:
    trainer, seen = Trainer(0.1), []

    def evaluate(model: Any, architecture: Any, report: Any) -> dict[str, float]:
        seen.append(architecture)
        return {"top1": 1.0}

    for number in (1, 2, 3):
        run(space, trainer.evaluate, tmp_path, number)
        run(space, evaluate, tmp_path / "other", number)
    assert trainer.calls == len(seen) == 3
    run(space, Trainer(0.1).evaluate, tmp_path, 4)
    trainer.lr = 0.2
    with pytest.raises(InputError, match=r"script\.values\.self\.lr"):
        run(space, trainer.evaluate, tmp_path, 5)


def test_what_cannot_be_compared_is_said_once(
    space: SearchSpace,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(provenance, "_said", set())
    caplog.set_level(logging.WARNING)
    value = {"lock": threading.Lock(), "folder": PurePosixPath("/data"), "lr": 0.1}
    for evaluations in (1, 2):
        run(space, closure(value), tmp_path, evaluations)
    [said] = [record.getMessage() for record in caplog.records]
    assert "values of the evaluator will not be noticed" in said
    assert "value['lock'] (lock), value['folder'] (PurePosixPath); --depends" in said
    with pytest.raises(InputError, match=r"script\.values\.value"):
        run(space, closure({**value, "lr": 0.2}), tmp_path)


def digests() -> str:
    """Digests of values whose parts have another order in every process, or an address."""
    values: list[Any] = [set("abcdefgh"), {"x": Settings(0.1)}, np.arange(3.0), torch.ones(2)]
    values += [Schedule.STEP, train, Trainer]
    return str([bound_values(closure(value)).known for value in values])


@pytest.mark.parametrize("seed", ["1", "2"])
def test_digests_are_equal_in_every_process(seed: str) -> None:
    code = f"from {__name__} import digests; print(digests())"
    other = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONHASHSEED": seed},
    )
    assert other.stdout == f"{digests()}\n"


def test_values_of_build_are_compared_where_texts_are_equal(tmp_path: Path) -> None:
    def space(gain: float) -> SearchSpace:
        def build(trial: Any) -> torch.nn.Module:
            layer = torch.nn.Linear(4, trial.suggest_int("width", 1, 4))
            torch.nn.init.xavier_uniform_(layer.weight, gain)  # no part of the text
            return layer

        return TorchSpace(build, torch.zeros(1, 4))

    run(space(1.0), closure(1), tmp_path)
    run(space(1.0), closure(1), tmp_path, 2)
    with pytest.raises(InputError, match=r"started with gain '1' of the space, not '2'"):
        run(space(2.0), closure(1), tmp_path, 3)


def test_a_partial_function_builds_a_space_and_its_arguments_are_compared(tmp_path: Path) -> None:
    def build(trial: Any, gain: float) -> torch.nn.Module:
        layer = torch.nn.Linear(4, trial.suggest_int("width", 1, 4))
        torch.nn.init.xavier_uniform_(layer.weight, gain)
        return layer

    example = torch.zeros(1, 4)
    space = TorchSpace(functools.partial(build, gain=1.0), example)
    assert space.name == "build"
    run(space, closure(1), tmp_path)
    with pytest.raises(InputError, match=r"started with gain '1' of the space, not '2'"):
        run(TorchSpace(functools.partial(build, gain=2.0), example), closure(1), tmp_path)


# --- files

READS = """
import json
from pathlib import Path
def evaluate(model, architecture, report):
    return {"top1": json.loads((Path(__file__).parent / "config.json").read_text())["lr"]}
def bound():
    lr = json.loads((Path(__file__).parent / "config.json").read_text())["lr"]
    def evaluate(model, architecture, report):
        return {"top1": lr}
    return evaluate
made = bound()
"""


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(READS)
    (tmp_path / "config.json").write_text('{"lr": 1}')
    return tmp_path


def test_a_closure_of_a_file_that_reads_another_file_is_compared(
    space: SearchSpace, files: Path
) -> None:
    run(space, f"{files}/mine.py:made", files)
    (files / "config.json").write_text('{"lr": 2}')
    from search_spaces.common import plug_ins

    plug_ins._MODULES.clear()  # as in a new process
    with pytest.raises(InputError, match=r"evaluator\.values\.lr '1', not '2'"):
        run(space, f"{files}/mine.py:made", files)


@pytest.mark.parametrize("named", ["config.json", "."])
def test_a_search_resumes_only_with_the_same_contents(
    space: SearchSpace, files: Path, named: str
) -> None:
    for name in ("data", "data/inner"):
        (files / name).mkdir()
    path = files / named if named != "." else files / "data"
    (files / "data" / "inner" / "config.json").write_text('{"lr": 1}')
    function, storage = f"{files}/mine.py:evaluate", files / "out"
    run(space, function, storage, depends=[path])
    run(space, function, storage, 2, depends=[path])
    with pytest.raises(InputError, match=r"started with --depends .*"):
        run(space, function, storage, 3)
    (files / "config.json").write_text('{"lr": 2}')
    (files / "data" / "inner" / "config.json").write_text('{"lr": 2}')
    with pytest.raises(InputError, match=rf"started with another content of {path}"):
        run(space, function, storage, 3, depends=[path])
    path.rename(files / "gone")
    with pytest.raises(InputError, match="cannot be read"):
        run(space, function, storage, 3, depends=[path])


def test_a_file_may_move_and_a_new_one_may_not_join(space: SearchSpace, files: Path) -> None:
    run(space, closure(1), files, depends=[files / "config.json"])
    (files / "elsewhere").mkdir()
    (files / "config.json").rename(files / "elsewhere" / "renamed.json")
    run(space, closure(1), files, 2, depends=[files / "elsewhere" / "renamed.json"])
    with pytest.raises(InputError, match=r"started with no --depends .*mine\.py"):
        run(
            space,
            closure(1),
            files,
            3,
            depends=[files / "elsewhere" / "renamed.json", files / "mine.py"],
        )


def test_names_and_contents_of_all_files_of_a_folder_count(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    (folder / "a").mkdir(parents=True)
    (folder / "a" / "x").write_text("1")
    hashes = [content_hashes([folder])[str(folder)]]
    (folder / "a" / "x").rename(folder / "x")
    hashes.append(content_hashes([folder])[str(folder)])
    (folder / "y").write_text("")
    hashes.append(content_hashes([folder])[str(folder)])
    assert len({*hashes}) == 3
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__" / "x.pyc").write_text("")
    assert content_hashes([folder])[str(folder)] == hashes[-1]


def test_workers_compare_the_contents_as_well(space: SearchSpace, files: Path) -> None:
    config, storage = files / "config.json", files / "s.journal"
    run(space, f"{files}/mine.py:evaluate", files, 2, seconds=0, depends=[config])
    (files / "copy").mkdir()
    (files / "copy" / "config.json").write_text('{"lr": 1}')
    config.write_text('{"lr": 2}')
    with pytest.raises(InputError, match=rf"another content of {config}"):
        join(storage, trust=True)
    with pytest.raises(InputError, match=r"started with --depends config\.json, not other\.json"):
        join(storage, trust=True, depends=[files / "other.json"])
    done = join(storage, trust=True, depends=[files / "copy" / "config.json"])
    assert len(done.evaluated.architectures) == 2


def test_helper_processes_find_files_of_equal_names_and_moved_ones(
    space: SearchSpace, files: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("a", "b"):
        (files / name).mkdir()
        (files / name / "config.json").write_text(name)
    function, slow = f"{files}/mine.py:evaluate", "    __import__('time').sleep(0.5)\n    return {"
    (files / "mine.py").write_text(READS.replace("    return {", slow, 1))
    both = [files / "a" / "config.json", files / "b" / "config.json"]
    run(space, function, files, 4, seconds=0, depends=both)
    assert len(join(files / "s.journal", trust=True, jobs=2).evaluated.architectures) == 4
    run(space, function, files / "other", 4, seconds=0, depends=both[:1])
    (files / "a").rename(files / "moved")
    storage, here = files / "other" / "s.journal", [files / "moved" / "config.json"]
    done = join(storage, trust=True, jobs=2, depends=here)
    assert len(done.evaluated.architectures) == 4
    assert not [record for record in caplog.records if "helper process" in record.getMessage()], (
        "helpers worked, too"
    )


def test_the_front_door_takes_files(files: Path, space: SearchSpace) -> None:
    problem = nas.Problem(space, closure(1), {"top1": "max"})
    for evaluations in (1, 2):
        nas.search(
            problem,
            sampler="random",
            evaluations=evaluations,
            out=files,
            depends=[files / "config.json"],
        )
    (files / "config.json").write_text("")
    with pytest.raises(InputError, match="another content"):
        nas.search(
            problem, sampler="random", evaluations=3, out=files, depends=[files / "config.json"]
        )


def test_the_command_line_takes_files_and_folders(files: Path) -> None:
    command = [
        "search",
        "--space",
        "tiny-resnet",
        "--objectives",
        "top1",
        "--sampler",
        "random",
        "--quiet",
        "--out",
    ]
    command += [
        str(files / "out"),
        "--evaluator",
        f"{files}/mine.py:evaluate",
        "--depends",
        str(files / "config.json"),
    ]
    assert CliRunner().invoke(app, [*command, "--evaluations", "1"]).exit_code == 0
    (files / "config.json").write_text('{"lr": 2}')
    result = CliRunner().invoke(app, [*command, "--evaluations", "2"])
    assert isinstance(result.exception, InputError)
    assert f"another content of {files / 'config.json'}" in str(result.exception)
