"""The trainings of a study: how far each network was trained, its values there, and the cost.

Each segment of a training, from one fidelity to the next, is a trial. A segment that ends before
the last fidelity is a pruned trial, and its network is paused. One that ends at the last fidelity
is a complete trial. Only complete trials count for the front.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from optuna.trial import TrialState

from nas.search.study.schema import (
    BEGUN_KEY,
    COST_KEY,
    FAILED_KEY,
    MEASURED_KEY,
    PRIOR_KEY,
    RULED_OUT_KEY,
    UNTIL_KEY,
    VALUES_KEY,
    TrialAttributes,
)
from predictors.metrics import is_valid
from search_spaces.common.errors import InputError

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

    from nas.search.study.trials import TrialReader
    from search_spaces import Architecture


EPOCHS, SECONDS = "epochs", "seconds"  # units of cost; any other is a metric, the cost of an epoch
NEW = -1  # instead of a fidelity: the training has not begun


class Fidelities(NamedTuple):
    """Epochs at which trainings may pause.

    Attributes:
        levels: rising epochs; the last is the full training. Epoch 0 is a network with inherited
            weights before any training.
        continues: True if a training resumes where it paused. Otherwise, as in tables of separate
            trainings, each fidelity costs all epochs from the first on.
    """

    levels: tuple[int, ...]
    continues: bool

    @classmethod
    def of(cls, levels: Sequence[int], continues: bool) -> Fidelities:
        """Check and make fidelities.

        Raises:
            InputError: unless the levels rise from 0 or more to 1 or more.
        """
        is_rising = all(low < high for low, high in pairwise(levels))
        if not levels or levels[0] < 0 or levels[-1] < 1 or not is_rising:
            raise InputError(
                f"fidelities {','.join(map(str, levels))}: give rising whole numbers, such as "
                "12,200"
            )
        return cls(tuple(levels), continues)

    @property
    def last(self) -> int:
        """Epochs of a full training."""
        return self.levels[-1]

    def after(self, reached: int) -> int | None:
        """The next fidelity after `reached`; None after the last one."""
        return next((level for level in self.levels if level > reached), None)

    def epochs(self, begun: int, until: int) -> int:
        """Epochs of one segment."""
        return until - max(begun, 0) if self.continues else until

    def begun(self, stored: int) -> int:
        """The fidelity at which a stored segment starts.

        Earlier versions stored 0 for a new network.
        """
        return stored if stored >= self.levels[0] else NEW

    def rest(self, begun: int) -> int:
        """Epochs of all segments from `begun` to the last fidelity.

        The training pauses at each fidelity between.
        """
        path = [begun, *(level for level in self.levels if level > begun)]
        return sum(self.epochs(start, end) for start, end in pairwise(path))


class Segment(NamedTuple):
    """A part of a training, from one fidelity to the next.

    Attributes:
        begun: the fidelity at which it starts; `NEW` for a network that has not been trained.
        until: the fidelity at which the training pauses, or ends.
        is_last: True if it ends there.
    """

    begun: int
    until: int
    is_last: bool

    @property
    def is_first(self) -> bool:
        """True if the network has not been trained."""
        return self.begun == NEW


class Job(NamedTuple):
    """A decision about one network.

    Attributes:
        architecture: the network.
        begun: the fidelity at which the segment starts, `NEW` for a new network.
        until: the fidelity at which the segment ends; None to stop the training for good.
        predicted: mean and standard deviation of each metric at the last fidelity, if a predictor
            decided. The standard deviation of a known value is 0.
    """

    architecture: Architecture
    begun: int
    until: int | None
    predicted: Mapping[str, Sequence[float]] = {}


@dataclass
class Run:
    """The training of one network.

    Attributes:
        architecture: the network.
        values: values by fidelity and metric. `NEW` holds the metrics that need no training,
            of a network that was measured before it was chosen, or that broke a constraint by them.
        running: the fidelity at which the running segment ends; None if none runs.
        ended: True if the training failed or was stopped.
        failed: True if it could not be measured, or if its training failed.
        ruled_out: True if the network broke a constraint before its training, or could not be
            measured.
        is_prior: True if its values at the last fidelity are a prior observation.
        epoch_cost: cost of an epoch in the last segment, NaN if none is finished.
    """

    architecture: Architecture
    values: dict[int, dict[str, float]] = field(default_factory=dict)
    running: int | None = None
    ended: bool = False
    failed: bool = False
    ruled_out: bool = False
    is_prior: bool = False
    epoch_cost: float = np.nan

    @property
    def reached(self) -> int:
        """The highest fidelity with values; `NEW` for none."""
        return max(self.values, default=NEW)

    @property
    def furthest(self) -> int:
        """The highest fidelity that is reached or on the way."""
        return self.reached if self.running is None else max(self.reached, self.running)

    @property
    def is_measured_only(self) -> bool:
        """True if the network was measured and may be trained, which has not begun."""
        return self.values.keys() == {NEW} and self.running is None and not self.ended


class Runs:
    """All trainings of a study.

    Args:
        reader: reader of the study's metrics.
        fidelities: epochs at which trainings may pause.
        costly: metrics that need training.
        trials: trials of the study, in their order.
        stopped: notations of networks that were stopped.

    Attributes:
        runs: training of each network.
        jobs: number of the first trial of each segment, by network and the fidelity at which it
            ends.
        spent: cost of all finished segments, in the unit of the budget.
        epochs: epochs of all finished segments.
        pending: epochs of all running segments.
    """

    def __init__(
        self,
        reader: TrialReader,
        fidelities: Fidelities,
        costly: Sequence[str],
        trials: Iterable[FrozenTrial],
        stopped: Iterable[str],
    ) -> None:
        self.reader, self.fidelities, self.costly = reader, fidelities, tuple(costly)
        self.runs: dict[Architecture, Run] = {}
        self.spent, self.pending = 0.0, 0
        self.epochs = 0
        self.jobs: dict[tuple[Architecture, int], int] = {}
        for trial in trials:
            self._add(trial)
        for notation in stopped:
            if (run := self.runs.get(reader.space.parse(notation))) is not None:
                run.ended = True

    def _add(self, trial: FrozenTrial) -> None:
        """Add a trial of any state."""
        attrs = trial.user_attrs
        architecture = self.reader.architecture(trial.params)
        if architecture is None:
            return

        # 1. Prior observations, and networks that were measured before a choice.
        if PRIOR_KEY in attrs and trial.state == TrialState.COMPLETE:
            values = dict(zip(self.reader.metrics, self.reader.values(trial).tolist(), strict=True))
            last = {self.fidelities.last: values}
            self.runs.setdefault(architecture, Run(architecture, last, is_prior=True))
        if MEASURED_KEY in attrs:
            run = self.runs.setdefault(architecture, Run(architecture))
            if VALUES_KEY in attrs:
                run.values[NEW] = attrs[VALUES_KEY]
            run.ruled_out = not TrialAttributes(attrs).is_measured_only
            run.ended = run.ended or run.ruled_out
            run.failed = FAILED_KEY in attrs

        # 2. A segment of a training: running, finished, or with a network that was ruled out first.
        if UNTIL_KEY not in attrs:
            return
        failed = FAILED_KEY in attrs
        if trial.state == TrialState.FAIL and not failed:
            return  # its process ended, and another trial repeats the segment
        begun = self.fidelities.begun(attrs[BEGUN_KEY])
        until = attrs[UNTIL_KEY]
        run = self.runs.setdefault(architecture, Run(architecture))
        self.jobs.setdefault((architecture, until), trial.number)
        if not trial.state.is_finished():
            run.running = until
            self.pending += self.fidelities.epochs(begun, until)
            return
        self.spent += attrs.get(COST_KEY, 0.0)
        if RULED_OUT_KEY in attrs:
            run.values[NEW] = attrs[VALUES_KEY]
            run.ended = True
            run.ruled_out = True
            run.failed = failed
            return

        # 3. What the segment reached. Earlier versions stored values that are not valid.
        epochs = self.fidelities.epochs(begun, until)
        self.epochs += epochs
        if failed or not all(is_valid(value) for value in attrs[VALUES_KEY].values()):
            run.ended = run.failed = True
        else:
            run.values[until] = attrs[VALUES_KEY]
            run.epoch_cost = attrs[COST_KEY] / epochs if epochs else run.epoch_cost

    def __len__(self) -> int:
        return sum(not run.is_measured_only for run in self.runs.values())

    @property
    def trained(self) -> list[Run]:
        """Networks that the search trains.

        Left out are prior observations and networks that were only measured or that a constraint
        ruled out before their training.
        """
        return [
            run
            for run in self.runs.values()
            if not run.ruled_out and not run.is_prior and not run.is_measured_only
        ]

    @property
    def finished(self) -> list[Run]:
        """Networks trained to the last fidelity."""
        return [run for run in self.runs.values() if self.fidelities.last in run.values]

    @property
    def paused(self) -> list[Run]:
        """Networks whose training may continue."""
        last = self.fidelities.last
        return [
            run
            for run in self.runs.values()
            if NEW < run.reached < last and run.running is None and not run.ended
        ]

    def losses(self, runs: Sequence[Run], level: int) -> np.ndarray:
        """Losses of networks at a fidelity.

        A constraint on a metric that needs training is one on the fully trained network: before the
        last fidelity, it is open whether a network keeps it.

        Args:
            runs: networks with values at the fidelity.
            level: the fidelity.

        Returns:
            (n, m) losses, minimized; infinite for networks that break a constraint.
        """
        metrics = self.reader.metrics
        rows = [[run.values[level][metric] for metric in metrics] for run in runs]
        values = np.array(rows).reshape(-1, len(metrics))  # (n, M)
        losses = self.reader.losses(values)
        still_open = self.costly if level < self.fidelities.last else ()
        violation = self.reader.violation(values, without=still_open)
        return np.where(violation[:, None] <= 0, losses, np.inf)


# --- learning curves

# Networks with both values: fewer make no line, and once more have gone on, their values say enough
# to a predictor. Values on a line would tell it that nothing is left open.
MIN_PAIRS, MAX_PAIRS = 3, 10
SLOPE_DEVIATION = 0.5  # of the slope before any value is known, around 1


def extrapolated(before: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Fill in the unknown values at a fidelity by a line through the known ones.

    The slope is the mean of its posterior: before any value is known, it is distributed around 1,
    where all networks improve by as much. A few networks of nearly equal values tell little of it.

    Args:
        before: (n,) values at the fidelity before, NaN where unknown.
        values: (n,) values at this fidelity, NaN where unknown.

    Returns:
        (n,) values at this fidelity; NaN where both are unknown. Nothing is filled in unless
        `MIN_PAIRS` to `MAX_PAIRS` networks have both values.

    Example: three networks went on, from 90, 80 and 60 % to 95, 90 and 80 %.

        >>> import numpy as np
        >>> before, values = np.array([90.0, 80, 60, 40]), np.array([95.0, 90, 80, np.nan])
        >>> extrapolated(before, values)[3].round(3)
        np.float64(70.0)
    """
    is_pair = np.isfinite(before) & np.isfinite(values)  # (n,)
    pairs = int(is_pair.sum())
    if not MIN_PAIRS <= pairs <= MAX_PAIRS:
        return values

    # 1. The line of least squares, and the variance of values around it.
    x, y = before[is_pair], values[is_pair]
    dx, dy = x - x.mean(), y - y.mean()
    variation = dx @ dx
    slope = dx @ dy / variation if variation > 0 else 1.0
    noise = ((dy - slope * dx) ** 2).sum() / (pairs - 2)

    # 2. The mean slope after these pairs. Values do not fall as those before rise.
    weight = noise / SLOPE_DEVIATION**2  # of the slope of 1
    if variation + weight > 0:
        slope = (dx @ dy + weight) / (variation + weight)
    line = y.mean() + max(0.0, slope) * (before - x.mean())
    return np.where(np.isnan(values), line, values)
