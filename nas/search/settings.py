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
    """How a problem is searched.

    Attributes:
        sampler: a name of `nas.search.samplers.list_samplers()`, `FILE.py:CLASS`, or any Optuna
            sampler; with fidelities, name of a predictor, which predicts learning curves to choose
            what improves the front most per cost, a baseline (asha, hyperband or random), or
            `FILE.py:CLASS` of a policy.
        evaluations: number of evaluations in the study, without prior observations. Processes that
            ask at the same moment for the last one may each evaluate one.
        fidelities: rising epochs at which a training may pause; the last is the full training. None
            to train every network to the end.
        budget: of a search with fidelities, in the unit of the cost, instead of `evaluations`. No
            segment starts that would exceed it at the mean cost per epoch so far, but each further
            process may add one.
        cost: "epochs", "seconds" (of training, as measured), or a metric of the evaluator that
            gives the cost of an epoch.
        predictor: makes the predictor of each fit of a search with fidelities; by default a new one
            of the sampler's name.
        seed: of a sampler given by name, and of the loop's own random choices.
        sampler_options: further options of `nas.search.samplers.create_sampler` for a sampler given
            by name.
        storage: None (in memory), a path (journal file), a database URL or an Optuna storage.
        name: the study's name in the storage.
        prior: prior observations, in the order of the evaluator's metrics. They come first and do
            not count. NaN for what needs no training is measured.
        seconds: time limit since this call, after which no evaluation starts; not with fidelities.
            With 0, the search is only stored, for workers, which have no time limit.
        patience: the search ends after so many evaluations in a row that do not improve the front;
            not with fidelities.
        weights: folder for the trained weights of the front, not shared with other searches.
        jobs: processes that share the search. More than one needs a storage, a sampler given by
            name, and an evaluator that another process can open (`Evaluator.source`). GPUs are
            assigned to them in turn.
        joins: this process joins a search that another one started, perhaps on another machine.
        depends: files and folders that the evaluator or `build` reads, such as a configuration. The
            search resumes only with the same contents.
        measure: of a predictor that guides the search: networks per training whose cheap metrics
            are measured before one of them is chosen. By default as many as the seconds of
            trainings and measurements so far pay for. Nothing is measured ahead if values come from
            predictions, or from a table whose evaluator names no cheap columns.
    """

    sampler: str | BaseSampler
    evaluations: int = 0
    fidelities: Sequence[int] | None = None
    budget: float = 0.0
    cost: str = EPOCHS
    predictor: Callable[[], Predictor] | None = None
    seed: int = 0
    sampler_options: Mapping[str, Any] | None = None
    storage: str | Path | BaseStorage | None = None
    name: str = "search"
    prior: PriorObservations | None = None
    seconds: float = math.inf
    patience: float = math.inf
    weights: str | Path | None = None
    jobs: int = 1
    joins: bool = False
    depends: Sequence[str | Path] = ()
    measure: int | None = None

    @property
    def prepares(self) -> bool:
        """True if the search is only stored, for workers."""
        return self.seconds == 0 and not self.joins
