"""Calls of a storage wait during an outage of its database and are repeated: no trial is lost or
duplicated.

Interrupts wait for the end of a call (`nas.search.study.interrupts`). If Ctrl-C interrupted a
database driver, its open cursor would keep the lock of an SQLite file. Then neither this process
could give back its trial nor could any other one write.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from functools import lru_cache, wraps
from json import JSONDecodeError
from typing import Any, TypeVar

from optuna.exceptions import StorageInternalError, UpdateFinishedTrialError
from optuna.storages import BaseStorage

from nas.search.study.interrupts import interrupts_wait
from search_spaces.common.errors import InputError, StorageError

TIMEOUT = "NAS_STORAGE_TIMEOUT"  # environment variable, which helper processes of a search inherit
DEFAULT_TIMEOUT_SECONDS = 600.0
FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 0.5, 30.0
# After an outage: live workers send heartbeats first, before any worker counts as gone
SETTLING_SECONDS = 60.0
_PERMANENT_ERRORS = (
    "disk is full",
    "no space left",
    "readonly",
    "read-only",
    "permission denied",
    "no such table",
    "malformed",
)
_CACHE_CALLS = (  # private methods that Optuna's cache calls on a database storage
    "_create_new_trial", "_get_best_trial_id", "_get_trials", "_set_trial_param",
)  # fmt: skip

log = logging.getLogger(__name__)
Storage = TypeVar("Storage", bound=BaseStorage)


def timeout_seconds() -> float:
    """Seconds for which calls wait for a storage that does not answer.

    Raises InputError if the environment variable `NAS_STORAGE_TIMEOUT` is not a number.
    """
    text = os.environ.get(TIMEOUT, "")
    try:
        return float(text) if text else DEFAULT_TIMEOUT_SECONDS
    except ValueError as error:
        raise InputError(f"{TIMEOUT}={text}: write a number of seconds") from error


def set_timeout(seconds: float) -> None:
    """Set the timeout of this process and of the processes that it starts."""
    os.environ[TIMEOUT] = f"{seconds:g}"


@lru_cache
def patient(kind: type[Storage]) -> type[Storage]:
    """Subclass a storage so that its methods retry while the database does not answer.

    The pauses between calls grow. Methods raise StorageError if the database does not answer for
    `timeout_seconds()`, and at once if waiting does not help, as with a full disk. The attribute
    `place` names the storage in messages.
    """
    public = [
        name
        for name, value in vars(BaseStorage).items()
        if callable(value) and not name.startswith("_")
    ]
    names = [name for name in (*public, *_CACHE_CALLS) if hasattr(kind, name)]
    methods: dict[str, Any] = {name: _retrying(getattr(kind, name)) for name in names}
    answers: dict[str, Any] = {"record_heartbeat": None, "_get_stale_trial_ids": []}
    for name, answer in answers.items():
        if hasattr(kind, name):
            methods[name] = _tried_once(getattr(kind, name), answer)
    return type(
        kind.__name__, (kind,), {"place": "the storage", "came_back": -SETTLING_SECONDS, **methods}
    )


def _retrying(method: Callable[..., Any]) -> Callable[..., Any]:
    """The method, called again while the database does not answer."""

    @wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        began = time.monotonic()
        pause = FIRST_PAUSE_SECONDS
        limit = timeout_seconds()
        while True:
            try:
                with interrupts_wait():
                    result = method(self, *args, **kwargs)
            except UpdateFinishedTrialError:
                if pause == FIRST_PAUSE_SECONDS:
                    raise
                result = True  # the first call reached the database, only its answer was lost
            except JSONDecodeError as error:
                raise StorageError(
                    f"{self.place} is damaged: a stored attribute is not JSON ({error})"
                ) from error
            except Exception as error:
                reason = _reason(error)
                if reason is None:
                    raise
                if any(sign in reason.lower() for sign in _PERMANENT_ERRORS):
                    raise StorageError(
                        f"cannot use {self.place}: {reason}; stored trials are kept"
                    ) from error
                remaining = began + limit - time.monotonic()
                if remaining <= 0:
                    raise StorageError(
                        f"{self.place} has not answered for {limit:g} s ({reason}): nothing is "
                        "lost; run the same command again when it is back"
                    ) from error
                if pause == FIRST_PAUSE_SECONDS:
                    log.warning(
                        "%s does not answer (%s): retrying for up to %g s",
                        self.place,
                        reason,
                        limit,
                    )
                time.sleep(min(pause, remaining))
                pause = min(2 * pause, MAX_PAUSE_SECONDS)
                continue
            if pause > FIRST_PAUSE_SECONDS:
                self.came_back = time.monotonic()
                log.warning("%s answers again, after %.0f s", self.place, self.came_back - began)
            return result

    return call


def _tried_once(method: Callable[..., Any], answer: Any) -> Callable[..., Any]:
    """The method without retries, for calls that recur anyway.

    It returns `answer` while the database is away.
    """

    @wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if answer is not None and time.monotonic() < self.came_back + SETTLING_SECONDS:
            return answer
        try:
            with interrupts_wait():
                return method(self, *args, **kwargs)
        except Exception as error:
            if _reason(error) is None:
                raise
            return answer

    return call


def _reason(error: BaseException) -> str | None:
    """Why a database or proxy did not answer, in one line; None for any other error."""
    from sqlalchemy.exc import SQLAlchemyError

    cause = (
        error.__cause__ if isinstance(error, StorageInternalError) and error.__cause__ else error
    )
    if isinstance(cause, SQLAlchemyError):
        return str(getattr(cause, "orig", None) or cause).splitlines()[0]
    if type(cause).__module__.startswith("grpc") and hasattr(cause, "details"):
        return " ".join(str(cause.details() or cause).split())[:200]
    return None
