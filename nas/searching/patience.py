"""Storages that wait where a database goes away for some time: nothing is lost or doubled."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Any, TypeVar

from optuna.exceptions import StorageInternalError, UpdateFinishedTrialError
from optuna.storages import BaseStorage

from search_spaces.common.errors import InputError

TIMEOUT = "NAS_STORAGE_TIMEOUT"  # environment variable, which further processes of a search inherit
DEFAULT_TIMEOUT_SECONDS = 600.0
FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 0.5, 30.0
SETTLING_SECONDS = 60.0  # after it is back, in which workers that still live send heartbeats: nobody counts as gone
_FOR_GOOD = (
    "disk is full",
    "no space left",
    "readonly",
    "read-only",
    "permission denied",
    "no such table",
    "malformed",
)
_USED = (  # methods of databases that Optuna's cache in front of them calls
    "_create_new_trial", "_get_best_trial_id", "_get_trials", "_set_trial_param",
)  # fmt: skip

log = logging.getLogger(__name__)
Storage = TypeVar("Storage", bound=BaseStorage)


class StorageError(InputError):
    """A storage that cannot be read or written: no trial is to blame."""


def timeout_seconds() -> float:
    """How long a storage that does not answer is waited for."""
    text = os.environ.get(TIMEOUT, "")
    try:
        return float(text) if text else DEFAULT_TIMEOUT_SECONDS
    except ValueError:
        raise InputError(f"{TIMEOUT}={text}: write a number of seconds") from None


def set_timeout(seconds: float) -> None:
    """Wait so long, in this process and in those that it starts."""
    os.environ[TIMEOUT] = f"{seconds:g}"


@lru_cache
def patient(kind: type[Storage]) -> type[Storage]:
    """A class of storages that try again, with growing pauses, while the database does not answer.

    Instances have `place`, what to call the storage in messages. Methods raise StorageError where the database has not
    come back after `timeout_seconds()`, and at once where waiting does not help, as on a full disk.
    """
    public = [name for name, value in vars(BaseStorage).items() if callable(value) and not name.startswith("_")]
    names = [name for name in (*public, *_USED) if hasattr(kind, name)]
    methods: dict[str, Any] = {name: _patiently(getattr(kind, name)) for name in names}
    answers: dict[str, Any] = {"record_heartbeat": None, "_get_stale_trial_ids": []}
    for name, answer in answers.items():
        if hasattr(kind, name):
            methods[name] = _once(getattr(kind, name), answer)
    return type(kind.__name__, (kind,), {"place": "the storage", "came_back": -SETTLING_SECONDS, **methods})


def _patiently(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        began, pause, limit = time.monotonic(), FIRST_PAUSE_SECONDS, timeout_seconds()
        while True:
            try:
                result = method(self, *args, **kwargs)
            except UpdateFinishedTrialError:
                if pause == FIRST_PAUSE_SECONDS:
                    raise
                result = True  # the first try reached the database, but its answer did not reach us
            except Exception as error:
                reason = _reason(error)
                if reason is None:
                    raise
                if any(sign in reason.lower() for sign in _FOR_GOOD):
                    raise StorageError(f"cannot use {self.place}: {reason}; what it already holds is kept") from error
                left = began + limit - time.monotonic()
                if left <= 0:
                    raise StorageError(
                        f"{self.place} has not answered for {limit:g} s ({reason}): nothing is lost; run the same "
                        "command again when it is back"
                    ) from error
                if pause == FIRST_PAUSE_SECONDS:
                    log.warning("%s does not answer (%s): trying again for up to %g s", self.place, reason, limit)
                time.sleep(min(pause, left))
                pause = min(2 * pause, MAX_PAUSE_SECONDS)
                continue
            if pause > FIRST_PAUSE_SECONDS:
                self.came_back = time.monotonic()
                log.warning("%s answers again, after %.0f s", self.place, self.came_back - began)
            return result

    return call


def _once(method: Callable[..., Any], answer: Any) -> Callable[..., Any]:
    """A method whose answer can wait: it is called again later. `answer` stands for it while it is not known."""

    @wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if answer is not None and time.monotonic() < self.came_back + SETTLING_SECONDS:
            return answer
        try:
            return method(self, *args, **kwargs)
        except Exception as error:
            if _reason(error) is None:
                raise
            return answer

    return call


def _reason(error: BaseException) -> str | None:
    """Why a database or a proxy did not answer, on one line; None for any other error."""
    from sqlalchemy.exc import SQLAlchemyError

    cause = error.__cause__ if isinstance(error, StorageInternalError) and error.__cause__ else error
    if isinstance(cause, SQLAlchemyError):
        return str(getattr(cause, "orig", None) or cause).splitlines()[0]
    if type(cause).__module__.startswith("grpc") and hasattr(cause, "details"):
        return " ".join(str(cause.details() or cause).split())[:200]
    return None
