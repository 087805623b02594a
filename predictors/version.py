"""Which predictors made a result: kept results of another version must not stand beside new ones."""

from __future__ import annotations

import hashlib
import inspect
from pathlib import Path

from predictors.registry import predictor_class

RESULT_VERSION = 7  # raise it whenever a predictor of this package, or a shipped checkpoint, predicts other numbers
_HERE = Path(__file__).parent


def version(name: str | None = None) -> str:
    """What results depend on beside data and seeds: `RESULT_VERSION`.

    Args:
        name: a predictor. The version of one that is a plug-in also has a digest of its own file.
    """
    file = None if name is None else Path(inspect.getfile(predictor_class(name)))
    if file is None or file.is_relative_to(_HERE):
        return str(RESULT_VERSION)
    return f"{RESULT_VERSION}-{_digest(file)}"


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()[:8]
