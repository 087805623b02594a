"""Search in an incomplete table: each proposal of a sampler is replaced by the nearest row that is
left.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from nas.search.replay import OutsideTrial, ReplaySampler
from nas.search.study.schema import CHOICES_KEY, PREDICTED_KEY
from nas.search.study.storage import set_system_attr, stored_trial, stored_trials, trial_id
from search_spaces.common.errors import InputError
from search_spaces.parameter_names import plain_names

if TYPE_CHECKING:
    from optuna import Study
    from optuna.distributions import BaseDistribution
    from optuna.samplers import BaseSampler
    from optuna.trial import FrozenTrial, TrialState

    from search_spaces import Architecture, SearchSpace


class RowSpace:
    """A search space restricted to the rows of a table.

    `sample`, `mutate` and `crossover` return rows. All other attributes are those of the search
    space.
    """

    def __init__(self, space: SearchSpace, rows: Sequence[Architecture]) -> None:
        self.space = space
        self.rows = list(rows)
        self.size = len(rows)
        self._number = {row: number for number, row in enumerate(self.rows)}

        # The rows as a matrix of integers: a column per name, a code per name and value.
        self._column: dict[str, int] = {}
        self._codes: dict[tuple[str, Any], int] = {}
        for row in self.rows:
            for name, value in row.choices:
                self._column.setdefault(name, len(self._column))
                self._codes.setdefault((name, value), len(self._codes))
        coded = [self._coded(row.as_dict()) for row in self.rows]
        self._table = np.stack(coded)  # (rows, names)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.space, name)

    def sample(self, rng: np.random.Generator) -> Architecture:
        return self.rows[int(rng.integers(self.size))]

    def mutate(self, arch: Architecture, rng: np.random.Generator) -> Architecture:
        """The row nearest to a mutation of `arch`, other than `arch` itself if possible."""
        return self.nearest(self.space.mutate(arch, rng).as_dict(), {arch}, rng) or arch

    def crossover(self, a: Architecture, b: Architecture, rng: np.random.Generator) -> Architecture:
        return self.nearest(self.space.crossover(a, b, rng).as_dict(), set(), rng) or a

    def enumerate(self) -> Iterator[Architecture]:
        return iter(self.rows)

    def nearest(
        self, choices: Mapping[str, Any], taken: Set[Architecture], rng: np.random.Generator
    ) -> Architecture | None:
        """The row outside `taken` that shares most choices, a random one of several.

        None if no row is left.
        """
        # 1. The number of choices that each row shares; -1 for those that are taken.
        is_equal = self._table == self._coded(choices)  # (rows, names)
        shared = is_equal.sum(axis=1)  # (rows,)
        taken_rows = [self._number[row] for row in taken if row in self._number]
        shared[taken_rows] = -1

        # 2. One of the best.
        most = shared.max()
        best = np.flatnonzero(shared == most)
        drawn = int(best[rng.integers(len(best))])
        return self.rows[drawn] if most >= 0 else None

    def _coded(self, choices: Mapping[str, Any]) -> np.ndarray:
        """Integer codes (names,) of choices.

        A name without a choice has -1, a value that no row has -2.
        """
        coded = np.full(len(self._column), -1)
        for name, value in choices.items():
            if name in self._column:
                coded[self._column[name]] = self._codes.get((name, value), -2)
        return coded


def among_rows(space: SearchSpace, rows: Sequence[Architecture] | None) -> SearchSpace:
    """The space restricted to these rows; the space itself if they are None."""
    return space if rows is None else cast("SearchSpace", RowSpace(space, rows))


def sampler_of_rows(sampler: BaseSampler, space: SearchSpace, seed: int) -> BaseSampler:
    """Wrap the sampler in a `RowSampler` if the space is a `RowSpace`.

    A sampler that was made for this space is returned as it is.
    """
    if isinstance(space, RowSpace) and getattr(sampler, "space", None) is not space:
        return RowSampler(sampler, space, seed)
    return sampler


class RowSampler(ReplaySampler):
    """Replaces the proposals of another sampler by the nearest rows that are left.

    The other sampler sees the rows as its own choices and learns from their values.
    """

    def __init__(self, sampler: BaseSampler, space: RowSpace, seed: int) -> None:
        super().__init__(seed)
        self.sampler, self.space = sampler, space
        self._row_of = {frozenset(row.choices): row for row in space.rows}

    def choose(self, study: Study, trial: FrozenTrial) -> Architecture:
        rng = np.random.default_rng([self.seed, trial.number])
        proposed = self._proposed(study, trial)
        row = self.space.nearest(proposed, self._taken(study), rng) or self.space.sample(rng)
        if row.as_dict() != proposed:  # what the other sampler predicted belongs to another network
            set_system_attr(study, trial, PREDICTED_KEY, {})
        return row

    def after_trial(
        self, study: Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None
    ) -> None:
        self.sampler.after_trial(study, trial, state, values)

    def reseed_rng(self) -> None:
        super().reseed_rng()
        self.sampler.reseed_rng()

    def _proposed(self, study: Study, trial: FrozenTrial) -> dict[str, Any]:
        """Choices of the other sampler, up to the first combination that the space rejects."""
        self.sampler.before_trial(study, trial)
        trial = stored_trial(study, trial_id(trial))  # with what the other sampler has written
        searched = self.sampler.infer_relative_search_space(study, trial)
        relative = self.sampler.sample_relative(study, trial, searched)
        proposal = _Proposal(study, trial, self.sampler, relative)
        # An infeasible combination is no error: the choices so far have a nearest row, too.
        with suppress(InputError):
            self.space.choose(proposal)
        return plain_names(proposal.params)

    def _taken(self, study: Study) -> set[Architecture]:
        """Rows that have been or are being evaluated."""
        taken = set()
        for trial in stored_trials(study):
            choices = trial.params or trial.system_attrs.get(CHOICES_KEY, {})
            row = self._row_of.get(frozenset(plain_names(choices).items()))
            if row is not None:
                taken.add(row)
        return taken


class _Proposal(OutsideTrial):
    """A trial whose choices another sampler makes."""

    def __init__(
        self, study: Study, trial: FrozenTrial, sampler: BaseSampler, relative: Mapping[str, Any]
    ) -> None:
        super().__init__(study)
        self.relative = relative
        self._sample = partial(sampler.sample_independent, study, trial)

    def value(self, parameter: str, distribution: BaseDistribution) -> Any:
        if parameter in self.relative:
            return self.relative[parameter]
        return self._sample(parameter, distribution)
