"""Helper processes of a search on this machine. They join it through its storage."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from nas.search.sources import SCRIPT
from search_spaces.common import plug_ins
from search_spaces.common.errors import InputError

if TYPE_CHECKING:
    from nas.search.evaluators import Evaluator
    from nas.search.share import Share

log = logging.getLogger(__name__)
VISIBLE = "CUDA_VISIBLE_DEVICES"
INTERRUPTED = 130  # exit status of an interrupted process
EXIT_SECONDS = 30.0  # a helper that has not ended by itself after this time is killed


def check_jobs(jobs: int, storage: object, sampler: object, source: Mapping[str, Any]) -> None:
    """Check that `jobs` processes can share a search.

    Args:
        jobs: number of processes.
        storage: storage of the study, see `nas.search.storage.open_storage`.
        sampler: name of a sampler; an object cannot be shared.
        source: see `nas.search.sources.source_of`.

    Raises:
        InputError: if they cannot.
    """
    if jobs < 1:
        raise InputError(f"jobs must be at least 1, not {jobs}")
    if jobs > 1 and not (
        isinstance(storage, str | Path) and isinstance(sampler, str) and source.keys() - {SCRIPT}
    ):
        raise InputError(
            f"{jobs} jobs need a storage, a sampler given by name, and an evaluator that another "
            "process can open: a "
            "table, a measurement, or FILE.py:FUNCTION"
        )


@contextmanager
def helpers(
    count: int,
    evaluator: Evaluator,
    storage: object,
    name: str,
    share: Share | None = None,
    depends: Iterable[str] = (),
) -> Iterator[None]:
    """A context in which `count` further processes work on a stored study.

    On exit it waits until they reach the search's own limits. They end at once if an exception
    leaves the context or if this process dies. GPUs are assigned in turn; this process has the
    first one. Each gets an equal part of the share that this process has. `depends` are paths on
    this machine of files that the search depends on.
    """
    device = getattr(evaluator, "device", "cpu")
    join = {"storage": str(storage), "name": name, "device": device, "depends": [*depends]}
    if checkpoints := getattr(evaluator, "checkpoints", None):
        join["checkpoints"] = str(checkpoints)
    if function := getattr(evaluator, "reference", ""):
        join["evaluator"] = function
    space = getattr(evaluator, "space", None)
    if space is not None and plug_ins.is_file(space.reference):
        join["space"] = space.reference
    gpus = visible_gpus() if count and device == "cuda" else []
    parts = (
        [share.take(share.evaluations // (count + 1 - i)) for i in range(count)]
        if share
        else [None] * count
    )
    started = [
        _Helper(join | {"share": part.plain if part else {}}, gpus[i % len(gpus)] if gpus else None)
        for i, part in enumerate(parts, 1)
    ]
    try:
        yield
        for helper in started:
            helper.process.wait()
    finally:
        for helper in started:
            helper.end()


def visible_gpus() -> list[str]:
    """The GPUs that this process may use, as `CUDA_VISIBLE_DEVICES` names them."""
    if named := os.environ.get(VISIBLE):
        return [name.strip() for name in named.split(",")]
    import torch

    return [str(i) for i in range(torch.cuda.device_count())]


class _Helper:
    """A helper process. It ends when its standard input is closed. If it fails, its last line of
    output is logged.
    """

    def __init__(self, join: dict[str, Any], gpu: str | None) -> None:
        self.output: IO[str] = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115
        self.process = subprocess.Popen(
            [sys.executable, "-m", "nas.search.helper"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=self.output,
            env=os.environ | ({VISIBLE: gpu} if gpu is not None else {}),
            text=True,
            # Ctrl-C at the terminal reaches it only once, through its standard input
            start_new_session=True,
        )
        assert self.process.stdin is not None
        self.process.stdin.write(
            json.dumps(join) + "\n"
        )  # not an argument: a storage's URL may hold a password
        self.process.stdin.flush()

    def end(self) -> None:
        """Close the standard input and wait; kill the process if it takes too long."""
        with suppress(OSError):
            self.process.stdin.close()  # type: ignore[union-attr]  # it is a pipe
        try:
            status = self.process.wait(EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            status = self.process.wait()
        with self.output:
            self.output.seek(0)
            last: Sequence[str] = self.output.read().strip().splitlines()[-1:]
        if status not in (0, INTERRUPTED):
            log.warning(
                "a helper process of the search ended with status %d: %s", status, " ".join(last)
            )
