"""Atomic writes, and checksums."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from search_spaces.common.errors import InputError


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary file that replaces `path` if the block succeeds.

    If the block fails, the file is removed. Missing folders are created.

    Raises:
        InputError: if a folder or file cannot be created or written.
    """
    temporary: Path | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
        os.close(handle)
        temporary = Path(name)
        yield temporary
        temporary.chmod(0o666 & ~_umask())  # temporary files are private, results are not
        os.replace(temporary, path)
    except OSError as error:
        reason = error.strerror or error
        raise InputError(
            f"{path}: cannot be written ({reason}): choose another folder (for the cache: "
            "NAS_CACHE)"
        ) from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def weights_digest(path: str | Path, expected: str = "") -> str:
    """SHA-256 of a file of weights.

    Raises:
        InputError: it is missing, cannot be read, or is another one than expected.
    """
    try:
        with Path(path).open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise InputError(
            f"{path}: no such file of weights, or it cannot be read ({error.strerror})"
        ) from error
    if expected and digest != expected:
        raise InputError(f"{path}: these are not the weights that the search was started with")
    return digest


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
