"""Checkpoints by name: those that are shipped, and folders of `save`."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from predictors.base import Predictor
from predictors.files import FILES, read
from predictors.registry import is_predictor, predictor_class
from search_spaces.common.errors import InputError, unknown

CHECKPOINTS = Path(__file__).parent / "checkpoints"


def checkpoint(name: str | Path) -> Path:
    """Folder of a shipped checkpoint by name, or the folder itself."""
    shipped = CHECKPOINTS / name
    return shipped if shipped.is_dir() else Path(name)


def checksum(name: str | Path) -> str:
    """SHA-256 of a checkpoint's files."""
    digest = hashlib.sha256()
    for file in FILES:
        digest.update((checkpoint(name) / file).read_bytes())
    return digest.hexdigest()


def load(name: str | Path, of: type[Predictor] | None = None) -> Predictor:
    """A predictor by its shipped name, or from a folder of `save`.

    Args:
        name: a shipped name or a folder.
        of: the class of a predictor of your own that no installed package announces. A checkpoint's own words run no
            file.

    Raises:
        InputError: if there is no such checkpoint, or it is of another format, or damaged.
    """
    folder = checkpoint(name)
    if not folder.exists():
        raise unknown("checkpoint", str(name), (path.name for path in CHECKPOINTS.iterdir()))
    config, tensors = read(folder)
    kind = of or _announced(folder, config.get("kind"))
    if kind.kind != config.get("kind"):
        raise InputError(f"{folder}: a checkpoint of {config.get('kind')!r}, not of {kind.kind!r}")
    try:
        return kind._restore(config, tensors)
    except (LookupError, TypeError, AttributeError, RuntimeError, ValueError, ArithmeticError, MemoryError) as error:
        reason = " ".join(str(error).split())[:300]
        if not isinstance(error, InputError):
            reason = f"damaged checkpoint ({type(error).__name__}: {reason})"
        raise InputError(f"{folder}: {reason}") from None


def _announced(folder: Path, kind: Any) -> type[Predictor]:
    """The class that a checkpoint says it is of, by a name that this or an installed package knows."""
    if not isinstance(kind, str) or not is_predictor(kind):
        raise InputError(
            f"{folder}: a checkpoint of {kind!r}, which no installed package has: name its class, as "
            "`nas predict --predictor FILE.py:CLASS` or predictors.load(folder, CLASS)"
        )
    return predictor_class(kind)
