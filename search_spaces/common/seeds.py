"""Seeds of random generators."""

from __future__ import annotations

import operator
from typing import Any

from search_spaces.common.errors import InputError

# numpy's older generators, which Optuna and scikit-learn use, take no larger ones
MAX_SEED = 2**32 - 1


def check_seed(seed: Any) -> int:
    """The seed as an integer.

    Raises:
        InputError: if it is not a whole number from 0 to `MAX_SEED`.
    """
    try:
        number = operator.index(seed)
    except TypeError:
        number = -1
    if not 0 <= number <= MAX_SEED:
        raise InputError(
            f"a seed must be a whole number from 0 to {MAX_SEED}, not {str(seed)[:60]}"
        )
    return number
