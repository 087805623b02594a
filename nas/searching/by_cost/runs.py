"""What a study knows of trainings: how far each network was trained, what it scored there, and what that cost.

A study has a trial for every stretch of a training. A stretch that ends before the last fidelity is a pruned trial: the
network is paused. The one that ends there is a complete trial, and only these count for the front.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from optuna.trial import TrialState

from nas.searching.trials import FAILED_KEY
from search_spaces.common.errors import InputError

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

    from nas.searching.trials import TrialReader
    from search_spaces import Architecture

UNTIL_KEY = "nas:until"  # trial user attribute: the fidelity up to which the trial trains
BEGUN_KEY = "nas:begun"  # trial user attribute: the fidelity from which it goes on, 0 for a new network
VALUES_KEY = "nas:values"  # trial user attribute: values by metric at the end of the stretch
COST_KEY = "nas:cost"  # trial user attribute: what the stretch cost
RULED_OUT_KEY = "nas:ruled_out"  # trial user attribute: the constraint that was broken before any training
STOPPED_KEY = "nas:stopped:"  # study user attribute, with the network's notation: its training does not go on


class Fidelities(NamedTuple):
    """Rising fidelities, the whole training the last. continues: a training goes on from the fidelity before.

    Where it does not, as in tables of separate trainings, every fidelity is paid for from the beginning.
    """

    levels: tuple[int, ...]
    continues: bool

    @classmethod
    def of(cls, levels: Sequence[int], continues: bool) -> Fidelities:
        """Checked: InputError unless they are whole numbers that rise from 1 on."""
        if not levels or levels[0] < 1 or any(a >= b for a, b in pairwise(levels)):
            raise InputError(f"fidelities {','.join(map(str, levels))}: give rising whole numbers, as 12,200")
        return cls(tuple(levels), continues)

    @property
    def last(self) -> int:
        return self.levels[-1]

    def after(self, reached: int) -> int | None:
        """The next fidelity; None after the last one."""
        return next((level for level in self.levels if level > reached), None)

    def epochs(self, begun: int, until: int) -> int:
        """What one stretch trains."""
        return until - begun if self.continues else until

    def rest(self, begun: int) -> int:
        """What all stretches train from a fidelity to the last one, with a pause at each between."""
        path = [begun, *(level for level in self.levels if level > begun)]
        return sum(self.epochs(a, b) for a, b in pairwise(path))


class Job(NamedTuple):
    """A decision: train a network further, from `begun` until `until`; stop it, where `until` is None.

    predicted: mean and standard deviation of each metric in the end, where a predictor decided; a standard deviation of
    0 where the value is known.
    """

    architecture: Architecture
    begun: int
    until: int | None
    predicted: Mapping[str, Sequence[float]] = {}


@dataclass
class Run:
    """A network whose training was begun: values by fidelity and metric, and where it is being trained to.

    At fidelity 0 are values that need no training, of a network that was ruled out by them.
    """

    architecture: Architecture
    values: dict[int, dict[str, float]] = field(default_factory=dict)
    running: int | None = None
    ended: bool = False  # it failed, or was stopped
    epoch_cost: float = np.nan  # of the last stretch

    @property
    def reached(self) -> int:
        """The highest fidelity that has been reached, 0 for none."""
        return max(self.values, default=0)

    @property
    def ruled_out(self) -> bool:
        """True if it broke a constraint before its training."""
        return 0 in self.values


class Runs:
    """All trainings of a study.

    spent: what finished stretches cost, in the unit of the cost. pending: epochs of those that are running.
    """

    def __init__(
        self, reader: TrialReader, fidelities: Fidelities, trials: Iterable[FrozenTrial], stopped: Iterable[str]
    ) -> None:
        self.reader, self.fidelities = reader, fidelities
        self.runs: dict[Architecture, Run] = {}
        self.spent, self.pending = 0.0, 0
        self.epochs = 0  # of finished stretches
        self.jobs: dict[tuple[Architecture, int], int] = {}  # number of the first trial of each stretch
        for trial in trials:
            self._add(trial)
        for notation in stopped:
            if (run := self.runs.get(reader.space.parse(notation))) is not None:
                run.ended = True

    def _add(self, trial: FrozenTrial) -> None:
        attrs, architecture = trial.user_attrs, self.reader.architecture(trial.params)
        if UNTIL_KEY not in attrs or architecture is None:
            return
        failed = FAILED_KEY in attrs
        if trial.state == TrialState.FAIL and not failed:
            return  # given up by a process that is gone: another trial has taken it up
        begun, until = attrs[BEGUN_KEY], attrs[UNTIL_KEY]
        run = self.runs.setdefault(architecture, Run(architecture))
        self.jobs.setdefault((architecture, until), trial.number)
        if not trial.state.is_finished():
            run.running = until
            self.pending += self.fidelities.epochs(begun, until)
            return
        self.spent += attrs.get(COST_KEY, 0.0)
        if RULED_OUT_KEY in attrs:
            run.values[0], run.ended = attrs[VALUES_KEY], True
            return
        epochs = self.fidelities.epochs(begun, until)
        self.epochs += epochs
        if failed:
            run.ended = True
        else:
            run.values[until] = attrs[VALUES_KEY]
            run.epoch_cost = attrs[COST_KEY] / epochs

    def __len__(self) -> int:
        return len(self.runs)

    @property
    def trained(self) -> list[Run]:
        """Networks that were not ruled out."""
        return [run for run in self.runs.values() if not run.ruled_out]

    @property
    def finished(self) -> list[Run]:
        """Networks that were trained to the end."""
        return [run for run in self.runs.values() if self.fidelities.last in run.values]

    @property
    def paused(self) -> list[Run]:
        """Networks whose training may go on."""
        last = self.fidelities.last
        return [r for r in self.runs.values() if 0 < r.reached < last and r.running is None and not r.ended]

    def losses(self, runs: Sequence[Run], level: int) -> np.ndarray:
        """Losses (n, m) of networks at a fidelity; infinite where a constraint is broken."""
        metrics = self.reader.metrics
        values = np.array([[run.values[level][metric] for metric in metrics] for run in runs]).reshape(-1, len(metrics))
        losses = self.reader.losses(values)
        return np.where(self.reader.violation(values)[:, None] <= 0, losses, np.inf)
