"""Load checkpoints: shipped ones by name, others by folder."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

from predictors.base import Predictor
from predictors.files import FILES, read
from predictors.registry import is_predictor, predictor_class
from search_spaces.common.errors import InputError, unknown

Trained = TypeVar("Trained", bound=Predictor)
CHECKPOINTS = Path(__file__).parent / "checkpoints"


def checkpoint(name: str | Path) -> Path:
    """Folder of a shipped checkpoint; any other name is returned as a path."""
    shipped = CHECKPOINTS / name
    return shipped if shipped.is_dir() else Path(name)


def checksum(name: str | Path) -> str:
    """SHA-256, in hexadecimal, of a checkpoint's files."""
    digest = hashlib.sha256()
    for file in FILES:
        digest.update((checkpoint(name) / file).read_bytes())
    return digest.hexdigest()


def load(name: str | Path, of: type[Predictor] | None = None) -> Predictor:
    """Load a trained predictor.

    Args:
        name: name of a shipped checkpoint, or a folder that `Predictor.save` wrote.
        of: class of the predictor; needed for a class that neither this nor an installed package
            registers. A checkpoint never names a file to import.

    Raises:
        InputError: if the checkpoint is missing, damaged, or of another format or predictor.
    """
    folder = checkpoint(name)
    if not folder.exists():
        raise unknown("checkpoint", str(name), (path.name for path in CHECKPOINTS.iterdir()))
    config, tensors = read(folder)
    stored = config.get("kind")
    if of is None and not (isinstance(stored, str) and is_predictor(stored)):
        raise InputError(
            f"{folder}: a checkpoint of predictor {stored!r}, which no installed package provides: "
            "name its class with "
            "`nas predict --predictor FILE.py:CLASS` or predictors.load(folder, CLASS)"
        )
    kind = of or predictor_class(str(stored))
    if kind.kind != stored:
        raise InputError(f"{folder}: a checkpoint of predictor {stored!r}, not of {kind.kind!r}")
    try:
        return kind._restore(config, tensors)
    except (
        LookupError,
        TypeError,
        AttributeError,
        RuntimeError,
        ValueError,
        ArithmeticError,
        MemoryError,
    ) as error:
        reason = " ".join(str(error).split())[:300]
        if not isinstance(error, InputError):
            reason = f"damaged checkpoint ({type(error).__name__}: {reason})"
        raise InputError(f"{folder}: {reason}") from error


def load_trained(name: str | Path, of: type[Predictor] | None = None) -> Predictor:
    """Load a predictor that can predict. InputError as by `load`, or if it has only weights, as
    `rlm-base`.
    """
    loaded = load(name, of)
    if not loaded.metrics:
        raise InputError(
            f"{name}: this checkpoint has no examples to predict from: give rlm-zoo (real "
            "networks), rlm-nasbench201 "
            "or a folder that `nas train` wrote, or your own measurements to `nas rank --measured`"
        )
    return loaded


@lru_cache(maxsize=8)
def load_base(name: str, of: type[Trained]) -> Trained:
    """Load a pretrained predictor once per process; `InputError` as by `load`, or if it is not of
    this class.
    """
    folder = str(checkpoint(name))
    loaded = load(folder)
    if not isinstance(loaded, of):
        article = "an" if of.kind == "rlm" else "a"
        raise InputError(f"{folder}: holds a {loaded.kind} predictor, not {article} {of.kind}")
    return loaded
