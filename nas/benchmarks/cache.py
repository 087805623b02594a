"""The user's cache folder, and writes that are either complete or absent."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from search_spaces.errors import InputError


def cache_folder() -> Path:
    """`$NAS_CACHE` if set, else the platform's cache folder of `rlm-nas` (not necessarily existing yet)."""
    override = os.environ.get("NAS_CACHE")
    if override:
        return Path(override)
    from platformdirs import user_cache_dir

    return Path(user_cache_dir("rlm-nas"))


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary file beside `path` that takes its place when the block ends well and vanishes when it does not.

    A folder that cannot be made or written, or a full disk, is an InputError.
    """
    temporary: Path | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
        os.close(handle)
        temporary = Path(name)
        yield temporary
        os.replace(temporary, path)
    except OSError as error:
        reason = error.strerror or error
        raise InputError(f"{path}: cannot be written ({reason}): set NAS_CACHE to a folder with room") from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def sha256(data: bytes) -> str:
    """Hexadecimal SHA-256 of `data`."""
    return hashlib.sha256(data).hexdigest()
