"""How a problem is searched: `SearchSettings`, which a search, its planner and its workers share."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nas.search.trainings import EPOCHS

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler
    from optuna.storages import BaseStorage

    from nas.search.prior import PriorObservations
    from predictors import Predictor


@dataclass(frozen=True, kw_only=True)
class SearchSettings:
    """How a problem is searched: the arguments of `nas.search`, which describes them.

    Some are set by the commands alone, or come here as what they stand for:

    Attributes:
        evaluations, budget: with fidelities, only the budget counts; without, only the evaluations.
        prior: the prior observations themselves, in the order of the evaluator's metrics; NaN for
            what is to be measured.
        seconds: 0 to store the search only, for workers, which have no time limit.
        weights: folder for the trained weights of the front, which no other search uses; None to
            discard them.
        joins: True if another process has started this search, perhaps on another machine.
    """

    # What decides which network is next
    sampler: str | BaseSampler
    sampler_options: Mapping[str, Any] | None = None
    predictor: Callable[[], Predictor] | None = None
    seed: int = 0
    measure: int | None = None
    prior: PriorObservations | None = None

    # When the search ends
    evaluations: int = 0
    fidelities: Sequence[int] | None = None
    budget: float = 0.0
    cost: str = EPOCHS
    seconds: float = math.inf
    patience: float = math.inf

    # Where it is stored, and who works on it
    storage: str | Path | BaseStorage | None = None
    name: str = "search"
    weights: str | Path | None = None
    jobs: int = 1
    joins: bool = False
    depends: Sequence[str | Path] = ()

    @property
    def prepares(self) -> bool:
        """True if the search is only stored, for workers."""
        return self.seconds == 0 and not self.joins
