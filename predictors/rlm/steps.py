"""How long to train: as long as texts that are kept aside are ordered better (early stopping, Prechelt 1998).

Order, and not the loss of digits: that grows again, from too much certainty, long before order suffers.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from predictors.rlm.training import Column, Training

PATIENCE = 3  # looks that find no better order
ASIDE = 0.2  # of the different texts
LEAST = 40  # different texts of which some can be spared


def keep_aside(texts: Sequence[str], seed: int) -> np.ndarray | None:
    """Which of n texts are kept aside (n,), equal ones together; None where there are too few."""
    distinct = list(dict.fromkeys(texts))
    if len(distinct) < LEAST:
        return None
    order = np.random.default_rng(seed).permutation(len(distinct))
    chosen = {distinct[i] for i in order[: round(ASIDE * len(distinct))]}
    return np.array([text in chosen for text in texts])


def only(columns: Sequence[Column], rows: np.ndarray) -> list[Column]:
    """The columns with the values of some rows (n,), NaN elsewhere."""
    return [replace(column, values=np.where(rows, column.values, np.nan)) for column in columns]


def validated_steps(training: Training, judge: Training, every: int) -> int:
    """Steps, a multiple of `every`, after which the judge finds least disorder.

    training: for as many steps as are allowed; its modules are afterwards as they were. judge: the same modules, and
    the rows that are kept aside.
    """
    before = copy.deepcopy(training.modules.state_dict())
    found: list[float] = []
    best = 0
    while len(training.losses) < training.schedule.steps and len(found) <= best + PATIENCE:
        for _ in range(every):
            training.step()
        found.append(judge.disorder())
        best = int(np.argmin(found))
    training.modules.load_state_dict(before)
    return every * (best + 1)
