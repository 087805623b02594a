"""The history of a search: what all of its processes have evaluated so far, read step by step from
the study.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
from optuna.trial import TrialState

from nas.search.progress import GrowingFront
from nas.search.study.schema import (
    FAILED_KEY,
    MEASURED_KEY,
    PRIOR_KEY,
    REPEAT_KEY,
    RULED_OUT_KEY,
    VALUES_KEY,
    TrialAttributes,
)
from nas.search.study.storage import stored_trial, trial_id, trial_id_of_number
from nas.search.study.trials import PRUNED_REASON, is_evaluated

if TYPE_CHECKING:
    import optuna
    from optuna.trial import FrozenTrial

    from nas.search.study.trials import TrialReader
    from search_spaces import Architecture

_MANY_UNFINISHED = 20  # with more unfinished trials, all trials are read at once


class History:
    """Evaluations of all processes, as of the last `update`.

    Attributes:
        values: values (metrics,) of each evaluated architecture, NaN if it failed. Its first trial
            counts.
        prior: number of prior observations among them.
        ruled_out: architectures that broke a constraint, or could not be measured, before their
            training.
        measured: attributes of the entries of networks that were measured and may be trained.
        ruled_out_in_a_row: networks that were ruled out since the last training.
        failures: reasons of the latest evaluations, as far back as all failed.
        stale: evaluations since the last improvement of the front, without prior observations.
        front: the front of the evaluations that satisfy all constraints.
        running: trials that are evaluated now.
    """

    def __init__(self, study: optuna.Study, reader: TrialReader) -> None:
        self.study, self.reader = study, reader
        self.values: dict[Architecture, np.ndarray] = {}
        self.prior = 0
        self.ruled_out: set[Architecture] = set()
        self.measured: dict[Architecture, Mapping[str, Any]] = {}
        self.ruled_out_in_a_row = 0
        self.failures: list[str] = []
        self.stale = 0
        self.front = GrowingFront(len(reader.objectives))
        self.running: list[FrozenTrial] = []
        self._read = 0  # trials with lower numbers have been read
        self._unfinished: list[int] = []  # trial ids

    @property
    def evaluations(self) -> int:
        """Number of evaluations, without prior observations."""
        return len(self.values) - self.prior

    @property
    def networks(self) -> int:
        """Number of architectures that were evaluated or ruled out."""
        return len(self.values) + len(self.ruled_out)

    @property
    def trials(self) -> int:
        """Number of trials that have been read."""
        return self._read

    def update(self) -> list[FrozenTrial]:
        """Read the trials that any process has begun or finished since the last call.

        Returns:
            The finished ones.
        """
        trials = list(self._changed())
        self._unfinished = [trial_id(trial) for trial in trials if not trial.state.is_finished()]
        self.running = [trial for trial in trials if trial.state == TrialState.RUNNING]
        finished = [trial for trial in trials if trial.state.is_finished()]
        for trial in finished:
            self._add(trial)
        return finished

    def front_losses(self, trial: FrozenTrial) -> np.ndarray | None:
        """Losses (m,) of an evaluation; None if it failed or violates a constraint."""
        values = self.reader.values(trial)
        losses = self.reader.losses(values)
        is_feasible = np.isfinite(losses).all() and self.reader.violation(values) <= 0
        return losses if is_feasible else None

    def _add(self, trial: FrozenTrial) -> None:
        """Add a finished trial."""
        attrs = trial.user_attrs
        architecture = self.reader.architecture(trial.params)
        if architecture is None or architecture in self.values or REPEAT_KEY in attrs:
            return

        # 1. Networks without a training: ruled out, or measured before a choice.
        if RULED_OUT_KEY in attrs:
            self.ruled_out.add(architecture)
            self.ruled_out_in_a_row += 1
            # A trial that could not be measured has failed. A network of a shortlist only falls out.
            if FAILED_KEY in attrs and MEASURED_KEY not in attrs:
                self.failures.append(attrs[FAILED_KEY])
            return
        if MEASURED_KEY in attrs:
            if TrialAttributes(attrs).is_measured_only:
                self.measured.setdefault(architecture, attrs)
            return

        # 2. Trainings: those that have failed in a row end a search.
        is_paused = trial.state == TrialState.PRUNED and VALUES_KEY in attrs
        if not is_paused and not is_evaluated(trial):
            return  # its process ended, and another trial repeats it

        failed = attrs.get(FAILED_KEY)
        if not failed:
            self.failures.clear()
            self.ruled_out_in_a_row = 0
        elif not failed.startswith(PRUNED_REASON):  # that was the user's decision
            self.failures.append(failed)
        if is_paused:
            return

        # 3. An evaluation, which may improve the front.
        self.values[architecture] = self.reader.values(trial)
        losses = self.front_losses(trial)
        improves = losses is not None and self.front.add(losses)
        is_prior = PRIOR_KEY in attrs
        self.prior += is_prior
        self.stale = 0 if improves else self.stale + (not is_prior)

    def _changed(self) -> Iterator[FrozenTrial]:
        """Trials that were unfinished at the last call, and new ones.

        A few unfinished trials are read one by one, because reading a whole study takes longer the
        more trials it has.
        """
        if not self._read or len(self._unfinished) > _MANY_UNFINISHED:
            trials = self.study.get_trials(deepcopy=False)
            unfinished = set(self._unfinished)
            for trial in trials:
                if trial.number >= self._read or trial_id(trial) in unfinished:
                    yield trial
            self._read = len(trials)
            return
        for id_ in self._unfinished:
            yield stored_trial(self.study, id_)
        with suppress(KeyError):
            while True:
                id_ = trial_id_of_number(self.study, self._read)
                self._read += 1
                yield stored_trial(self.study, id_)
