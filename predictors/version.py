"""Version of the predictors behind a result, so that stored results are not mixed with those of
other versions.
"""

from __future__ import annotations

import hashlib
import inspect
from pathlib import Path

from predictors.registry import predictor_class

# Increase it whenever the predictions of a predictor or shipped checkpoint change
RESULT_VERSION = 19
_HERE = Path(__file__).parent


def version(name: str | None = None) -> str:
    """Version of a predictor's results: `RESULT_VERSION`, followed by a digest of the file for a
    plug-in.

    Args:
        name: name of a predictor; None for the version of this package.
    """
    file = None if name is None else Path(inspect.getfile(predictor_class(name)))
    if file is None or file.is_relative_to(_HERE):
        return str(RESULT_VERSION)
    return f"{RESULT_VERSION}-{hashlib.sha256(file.read_bytes()).hexdigest()[:8]}"
