"""How long searches will take: said before they start, and again after the first evaluation.

The number of evaluations, or the budget in epochs, is known. The seconds of one of them come from

1. evaluations that are stored already, if searches are resumed;
2. otherwise, for the built-in training, from a few training steps of `PROBED` random networks
   (`Evaluator.probe`), without what a runtime or a device takes to measure;
3. otherwise, as for a user's own function, from the first evaluation.

Tables and predictions take no time worth a word.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nas.search.evaluators import COSTS
from nas.search.measured_evaluator import NetworkEvaluator
from nas.search.study.load import load_studies
from nas.search.study.schema import PRIOR_KEY, REPEAT_KEY, UNTIL_KEY, TrialAttributes
from nas.search.study.trials import began, has_result
from nas.search.trainings import EPOCHS, SECONDS
from search_spaces.common.errors import NasError

if TYPE_CHECKING:
    import optuna
    from optuna.storages import BaseStorage
    from optuna.trial import FrozenTrial

    from nas.search.evaluators import Evaluator
    from search_spaces import SearchSpace

log = logging.getLogger(__name__)

PROBED = 3  # random networks whose training steps are timed

StudyAddress = tuple["str | Path | BaseStorage", str]
"""Storage and name of a study."""


@dataclass(frozen=True)
class Workload:
    """What searches of one command have to do, together.

    Attributes:
        units: evaluations of all searches, or epochs of training.
        is_by_cost: True if the units are epochs, those of a budget.
        trainings: trainings per evaluation; 0 if nothing is trained by this package.
        epochs: of each of these trainings.
        jobs: processes that share the work.
        limit: seconds after which nothing starts, of all searches together.
        confirm: fresh trainings of each network of the front afterwards.
    """

    units: float
    is_by_cost: bool = False
    trainings: int = 0
    epochs: int = 0
    jobs: int = 1
    limit: float = math.inf
    confirm: int = 0

    def counted(self, left: float) -> str:
        """The units that are left, in words."""
        count = f"{left:,.0f}"
        if left != self.units:
            count += f" of {self.units:,.0f}"
        if self.is_by_cost:
            return f"{count} epochs of training"
        if not self.trainings:
            return f"{count} evaluations"
        epochs = "1 epoch" if self.epochs == 1 else f"{self.epochs} epochs"
        if self.trainings == 1:
            return f"{count} trainings of {epochs}"
        return f"{count} evaluations of {self.trainings} trainings of {epochs}"


@dataclass(frozen=True)
class Duration:
    """An estimate of how long searches will take from now on.

    Attributes:
        work: what they have to do.
        left: units that are not done yet.
        each: seconds of one unit; None before anything tells it.
        basis: where `each` comes from, in words; "" without it.
    """

    work: Workload
    left: float
    each: float | None = None
    basis: str = ""

    @property
    def seconds(self) -> float | None:
        """Seconds until the end; None if unknown."""
        if self.each is None:
            return None
        return min(self.left * self.each / self.work.jobs, self.work.limit)

    @property
    def sentence(self) -> str:
        """The estimate in plain words."""
        # 1. What is to be done.
        work = self.work
        counted = work.counted(self.left)
        if work.jobs > 1:
            counted += f" in {work.jobs} processes"

        # 2. Without an estimate, the limit is all that is known.
        seconds, each = self.seconds, self.each
        if seconds is None or each is None:
            limit = "" if math.isinf(work.limit) else f", for at most {in_words(work.limit)}"
            return f"{counted}{limit}; how long they take is known after the first"

        # 3. With one: `about TIME left, the time limit: UNITS, TIME each (BASIS), then more`.
        text = f"about {in_words(seconds)}"
        if self.left < work.units:
            text += " left"
        if seconds == work.limit:
            text += ", the time limit"
        text += f": {counted}, {in_words(each)} each ({self.basis})"
        if work.confirm:
            trainings = "training" if work.confirm == 1 else "trainings"
            text += f", then {work.confirm} fresh {trainings} of each network of the front"
        return text

    @property
    def summary(self) -> dict[str, Any]:
        """As JSON values."""
        unit = "epochs" if self.work.is_by_cost else "evaluations"
        return {
            unit: self.left,
            "seconds_each": self.each,
            "seconds": self.seconds,
            "basis": self.basis,
            "text": self.sentence,
        }


Announce = Callable[[Duration], None]


class DurationForecast:
    """Announces how long searches will take, before they start and after the first evaluation.

    Searches that take no time worth a word are not announced.

    Args:
        evaluator: of the searches.
        work: what they have to do.
        announce: called with each estimate, which is logged in any case.
    """

    def __init__(
        self, evaluator: Evaluator, work: Workload, announce: Announce | None = None
    ) -> None:
        self.evaluator = evaluator
        self.work = work
        self.announce = announce
        builds_networks = isinstance(evaluator, NetworkEvaluator)
        counts_only = set(evaluator.metrics) <= set(COSTS)
        # Until the seconds of whole evaluations are known:
        self._is_needed = builds_networks and not counts_only
        self._done = 0.0  # units

    def begin(self, studies: Iterable[StudyAddress], space: SearchSpace, seed: int = 0) -> None:
        """Announce an estimate before the searches start.

        Args:
            studies: where the searches are stored; those that do not exist yet are skipped.
            space: the networks to draw from.
            seed: of this draw.
        """
        if not self._is_needed:
            return

        # 1. What is stored already.
        trials = [trial for address in studies for trial in _stored(*address)]
        units = sum(self._units(trial) for trial in trials)
        self._done = min(units, self.work.units)
        if self._done == self.work.units:
            self._is_needed = False
            return

        # 2. Whole evaluations are the best source: no further estimate is needed.
        if self._done:
            self._is_needed = False
            each = sum(map(_seconds, trials)) / units
            basis = "as so far" if self.work.is_by_cost else f"as the {len(trials)} stored ones"
            self._announce(each, basis)
            return

        # 3. Without any, parts of evaluations.
        probed = self._probe(space, seed)
        basis = "from a few training steps"
        if left_out := self.evaluator.unprobed:
            basis += f", without {', '.join(left_out)}"
        self._announce(probed, "" if probed is None else basis)

    def note(self, study: optuna.Study, trial: FrozenTrial) -> None:
        """Announce an estimate after the first evaluation; a callback of a search."""
        units = self._units(trial) if _counts(trial) else 0.0
        if not self._is_needed or not units:
            return
        self._is_needed = False  # one whole evaluation is enough
        self._done += units
        if self._done < self.work.units:
            self._announce(_seconds(trial) / units, "as the first")

    def _announce(self, each: float | None, basis: str) -> None:
        """Log and announce an estimate from the seconds of one unit."""
        duration = Duration(self.work, self.work.units - self._done, each, basis)
        log.info("%s", duration.sentence)
        if self.announce is not None:
            self.announce(duration)

    def _units(self, trial: FrozenTrial) -> float:
        """Evaluations or epochs that a trial counts for."""
        if not self.work.is_by_cost:
            return float(UNTIL_KEY not in trial.user_attrs)
        return TrialAttributes.of(trial).cost

    def _probe(self, space: SearchSpace, seed: int) -> float | None:
        """Seconds of one unit from a few training steps of random networks; None if unknown."""
        try:
            networks = [space.sample(np.random.default_rng([seed, i])) for i in range(PROBED)]
            seconds = self.evaluator.probe(networks)
        except Exception as error:
            # The search will report it, since its evaluations then fail, too.
            log.debug("no training steps could be timed: %s", error)
            return None
        if seconds is None or not self.work.is_by_cost:
            return seconds
        return seconds / max(self.work.epochs, 1)


def workload(
    evaluator: Evaluator,
    searches: int,
    evaluations: int,
    budget: float | None = None,
    cost: str = EPOCHS,
    *,
    jobs: int = 1,
    limit: float = math.inf,
    confirm: int = 0,
) -> Workload | None:
    """The work of equal searches.

    Args:
        evaluator: of the searches.
        searches: their number.
        evaluations: of each of them.
        budget: of each search by cost, in the unit `cost`; None for any other search.
        cost: epochs, seconds or a metric.
        jobs: see `Workload`.
        limit: seconds of each search after which nothing starts.
        confirm: see `Workload`.

    Returns:
        The work; None if a budget is not in epochs: one in seconds says itself how long it takes.
    """
    if budget is not None and cost != EPOCHS:
        if cost != SECONDS:
            log.debug("a budget of %s does not tell seconds", cost)
        return None

    # 1. A space may have fewer networks than are to be evaluated.
    size = evaluator.space.size if evaluator.space else None
    if size is not None:
        evaluations = min(evaluations, size)

    # 2. Only of the built-in training is it known how many there are, and how long.
    trainings, epochs = 0, 0
    if isinstance(evaluator, NetworkEvaluator) and evaluator.measurement.data and evaluator.trained:
        trainings = len(evaluator.seeds)
        epochs = evaluator.measurement.training.epochs

    return Workload(
        units=searches * (evaluations if budget is None else budget),
        is_by_cost=budget is not None,
        trainings=trainings,
        epochs=epochs,
        jobs=jobs,
        limit=searches * limit,
        confirm=confirm,
    )


def _stored(storage: str | Path | BaseStorage, name: str) -> Sequence[FrozenTrial]:
    """The trials of a study that count; none if it does not exist or cannot be read."""
    if isinstance(storage, Path) and not storage.exists():
        return ()
    try:
        (study,) = load_studies(storage, name)
    except NasError as error:  # the search will say it, if it cannot create the study either
        log.debug("no stored evaluations: %s", error)
        return ()
    return [trial for trial in study.get_trials(deepcopy=False) if _counts(trial)]


def _counts(trial: FrozenTrial) -> bool:
    """True if a trial is an evaluation or a segment of a training, and took its time."""
    is_new = not {REPEAT_KEY, PRIOR_KEY} & trial.user_attrs.keys()
    is_trained = trial.values is not None or UNTIL_KEY in trial.user_attrs
    return is_new and is_trained and has_result(trial) and trial.datetime_complete is not None


def _seconds(trial: FrozenTrial) -> float:
    """Seconds that a finished trial took, without an interruption before it."""
    assert trial.datetime_complete is not None
    return trial.datetime_complete.timestamp() - began(trial)


def in_words(seconds: float) -> str:
    """A duration as a person says it: 0.4 s, 11 s, 12 min, 3.5 h, 2.1 days."""
    if seconds < 9.5:
        return f"{seconds:.1g} s"
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 100 * 60:
        return f"{seconds / 60:.0f} min"
    if seconds < 48 * 3600:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 86400:.1f} days"
