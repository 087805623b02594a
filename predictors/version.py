"""Which code made a result: kept results of other code must not stand beside new ones."""

from __future__ import annotations

import hashlib
import inspect
from functools import cache
from pathlib import Path

from predictors.base import predictor_class

_HERE = Path(__file__).parent


def version(name: str | None = None) -> str:
    """What results depend on beside data and seeds: this package's code and checkpoints, in eight digits.

    name: of a predictor; that of somebody else depends on its own file, too.
    """
    file = None if name is None else Path(inspect.getfile(predictor_class(name)))
    if file is None or file.is_relative_to(_HERE):
        return _package()
    return hashlib.sha256(_package().encode() + file.read_bytes()).hexdigest()[:8]


@cache
def _package() -> str:
    digest = hashlib.sha256()
    for path in sorted(p for pattern in ("*.py", "checkpoints/*/*") for p in _HERE.rglob(pattern)):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:8]
