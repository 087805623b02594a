"""Claims about storages that hold nonsense: a search and a report end with one line, never with a
traceback.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nas import Problem, search
from nas.comparison.runs import open_studies
from nas.search.joining import join
from search_spaces import Architecture, get_space
from search_spaces.common.errors import InputError, NasError, StorageError

SPACE = get_space("tiny-resnet")


class Costs:
    metrics = ("params", "flops")

    def __call__(self, architectures: Sequence[Architecture]) -> np.ndarray:
        return np.array([[SPACE.params(a), SPACE.flops(a)] for a in architectures], float)


def searched(storage: Path | str, evaluations: int = 3) -> None:
    search(
        Problem(SPACE, Costs(), "params,flops:max"),
        sampler="random",
        evaluations=evaluations,
        storage=storage,
    )


@pytest.mark.parametrize(
    "change",
    [
        lambda logs: logs[-1].update(op_code=99),
        lambda logs: logs[-1].update(op_code="x"),
        lambda logs: [log.pop("op_code") for log in logs[1:]],
        lambda logs: [log.pop("study_id", None) for log in logs],
        lambda logs: [log.pop("trial_id", None) for log in logs],
        lambda logs: [log.update(values=["good", "better"]) for log in logs if log.get("values")],
        lambda logs: [log.update(distribution="{}") for log in logs if "distribution" in log],
        lambda logs: [
            log.update(user_attr={"nas:settings": 5}) for log in logs if "nas:settings" in str(log)
        ],
        lambda logs: [
            log.update(user_attr={"nas:identity": 5}) for log in logs if "nas:identity" in str(log)
        ],
        lambda logs: logs.append([1, 2]),
    ],
)
def test_a_journal_with_meaningless_lines_is_refused(
    tmp_path: Path, change: Callable[[list[dict[str, Any]]], object]
) -> None:
    path = tmp_path / "j.log"
    searched(path)
    logs = [json.loads(line) for line in path.read_text().splitlines()]
    change(logs)
    path.write_text("".join(f"{json.dumps(log)}\n" for log in logs))
    with pytest.raises(NasError, match="damaged"):
        searched(path, 4)
    with suppress(NasError):  # values may still be read
        open_studies(path)


def test_a_database_with_settings_that_are_not_json_is_refused(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/j.db"
    searched(url)
    with sqlite3.connect(tmp_path / "j.db") as database:
        database.execute(
            """update study_user_attributes set value_json = '{"a": 1' where key = 'nas:settings'"""
        )
    for read in (searched, open_studies, join):
        with pytest.raises(StorageError, match=r"j\.db is damaged: a stored attribute is not JSON"):
            read(url)


def test_a_database_of_an_older_optuna_is_named_with_the_remedy(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/old.db"
    searched(url)
    with sqlite3.connect(tmp_path / "old.db") as database:
        database.execute("update version_info set schema_version = 3, library_version = '1.0.0'")
        database.execute("update alembic_version set version_num = 'v1.0.0'")
    with pytest.raises(InputError, match=r"cannot open the database .*optuna 1\.0\.0\)"):
        searched(url)
