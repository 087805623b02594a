"""`PredictorSampler`: an Optuna sampler guided by a predictor and expected hypervolume
improvement.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from optuna.trial import TrialState

from nas.search.acquisition import ACQUISITIONS
from nas.search.candidates import (
    GENERATIONS,
    Feasibility,
    best_first,
    evolve,
    random_unseen,
    without_repetitions,
)
from nas.search.initial_design import initial_design
from nas.search.objectives import (
    Constraint,
    ConstraintsLike,
    ObjectivesLike,
    parse_constraints,
    parse_objectives,
)
from nas.search.pareto import constrained_ranks, infer_reference_point, non_dominated
from nas.search.replay import ReplaySampler
from nas.search.study.schema import (
    CHOICES_KEY,
    PREDICTED_KEY,
    SETTINGS_KEY,
    SPACE_KEY,
    TrialAttributes,
)
from nas.search.study.storage import set_system_attr, stored_trials
from nas.search.study.trials import TrialReader
from nas.search.surrogate import Surrogate, learned_of_measured
from search_spaces.common.errors import InputError, unknown

if TYPE_CHECKING:
    from optuna import Study
    from optuna.trial import FrozenTrial

    from nas.search.shortlist import Shortlist
    from predictors import Predictor
    from predictors.metrics import Metric
    from search_spaces import Architecture, SearchSpace

# From so many stored candidates on, a fit adds `fresh` / LATER_PART new ones: most of what evolution
# could find is stored.
MANY_STORED = 3000
LATER_PART = 3


class _Effort(NamedTuple):
    """How many candidates a fit looks at.

    Attributes:
        generations: of evolution.
        best, others: stored candidates that are estimated again, of the best and of the rest.
        sampled: candidates for which samples are drawn.
    """

    generations: int
    best: int
    others: int
    sampled: int


# An estimate costs more with each example. With many, a fit looks at fewer candidates, so that a
# proposal stays within a second; but it samples some per network of the batch.
EFFORT = _Effort(GENERATIONS, best=400, others=200, sampled=200)
MANY_EVALUATED = 200
LATER_EFFORT = _Effort(generations=2, best=300, others=100, sampled=100)
SAMPLED_PER_CHOICE = 4
EVALUATIONS_PER_REFIT_TRIAL = 20  # after n evaluations, the sampler refits every n / 20 trials


class _History(NamedTuple):
    """What a study knows.

    Attributes:
        taken: all architectures that are not to be chosen.
        evaluated: values (M,) of those whose values are finite.
        measured: known values (M,), NaN where unknown, of architectures that may be chosen.
        partial: as `measured`, of all architectures that were measured and not trained.
        failed: architectures without values because their evaluation failed: True if its training
            did, False if it could not be measured.
    """

    taken: set[Architecture]
    evaluated: dict[Architecture, np.ndarray]
    measured: dict[Architecture, np.ndarray]
    partial: dict[Architecture, np.ndarray]
    failed: dict[Architecture, bool]

    @property
    def succeeded(self) -> list[Architecture]:
        """Architectures that did not fail.

        Those that were only measured count as long as no training has failed: nobody knows how
        theirs would have ended.
        """
        has_failed_training = any(self.failed.values())
        measured = () if has_failed_training else self.partial
        tried = dict.fromkeys([*self.evaluated, *measured])  # an ordered set
        return [architecture for architecture in tried if architecture not in self.failed]

    @property
    def examples(self) -> dict[Architecture, np.ndarray]:
        """Values (M,) that a predictor learns from, NaN where unknown.

        They are those of all evaluations, and of the latest of the others while there are few.
        """
        latest = learned_of_measured(list(self.partial.items()), len(self.evaluated))
        return {**dict(latest), **self.evaluated}


class PredictorSampler(ReplaySampler):
    """Chooses architectures for `space.choose(trial)` in any Optuna study.

    The study may be distributed or resumed. The first `n_startup` architectures are promising ones
    of all sizes (`nas.search.initial_design`). Then the sampler refits a predictor to all
    evaluations every `refit_every` trials, and less often later. Evolution on the predictor's
    estimates adds `fresh` candidates. The candidates with the highest expected hypervolume
    improvement are evaluated next; once an evaluation has failed, weighted by the probability of
    success (`nas.search.candidates.Feasibility`). The `pool` best candidates are kept, so that each is built
    and read once. No architecture is chosen twice in a study. An architecture with the text of an
    evaluated one is another training of the same network. It may be chosen as long as such
    trainings have reached different accuracies.

    Example:

        >>> import optuna, predictors
        >>> from nas.search.sampler import PredictorSampler
        >>> from search_spaces import get_space
        >>> space = get_space("tiny-resnet")
        >>> def objective(trial):
        ...     architecture = space.choose(trial)
        ...     return space.params(architecture), space.flops(architecture)
        >>> sampler = PredictorSampler(space, lambda: predictors.create("ridge"), ["params", "flops"], n_startup=5)
        >>> study = optuna.create_study(directions=["minimize", "minimize"], sampler=sampler)
        >>> study.optimize(objective, n_trials=8)
        >>> len({str(trial.params) for trial in study.trials})
        8

    Args:
        space: search space whose `choose` the objective function calls.
        predictor: creates an unfitted or pretrained predictor for each refit.
        objectives: the study's objectives in order, as metric names
            (`nas.search.objectives.parse_objectives`).
        n_startup: evaluations before the first fit.
        refit_every: trials between two fits; a twentieth of the evaluations, once that is more.
        pool: largest number of candidates that are kept.
        fresh: new candidates per fit; a third as many once 3,000 are stored.
        seed: seed of all random choices. Equal seeds give equal choices in studies that are not
            interrupted, with a new sampler for each.
        given: metrics of `"params"` and `"flops"` that condition the predictions. They are counted,
            not evaluated.
        acquisition: "ehvi" (expected hypervolume improvement) or "thompson"
            (`nas.search.acquisition`).
        constraints: see `nas.search.objectives.parse_constraints`. The objective function stores
            each violation as `trial.constraints[str(constraint)]`.

    Raises:
        InputError: invalid settings, or, at a trial, a study with other directions.
    """

    def __init__(
        self,
        space: SearchSpace,
        predictor: Callable[[], Predictor],
        objectives: ObjectivesLike,
        *,
        n_startup: int = 10,
        refit_every: int = 5,
        pool: int = 10_000,
        fresh: int = 300,
        seed: int = 0,
        given: Sequence[str] = (),
        acquisition: str = "ehvi",
        constraints: ConstraintsLike = None,
    ) -> None:
        if min(n_startup, refit_every, pool, fresh) < 1:
            raise InputError("n_startup, refit_every, pool and fresh must be at least 1")
        for metric in given:
            if metric not in ("params", "flops"):
                raise InputError(
                    f"metric {metric!r} cannot be given: only params and flops can be known in "
                    "advance"
                )
        if acquisition not in ACQUISITIONS:
            raise unknown("acquisition", acquisition, list(ACQUISITIONS))
        super().__init__(seed)
        self.space = space
        self.acquisition = acquisition
        self.n_startup = n_startup
        self.refit_every = refit_every
        self.pool = pool
        self.fresh = fresh
        # Measures cheap metrics before a choice; a search sets it (`nas.search.planners`).
        self.shortlist: Shortlist | None = None
        self._reader = TrialReader(
            space, parse_objectives(objectives), parse_constraints(constraints), others=True
        )
        self._surrogate = Surrogate(space, predictor, self._reader.keys, given)
        self._feasibility = Feasibility(self._surrogate.texts)
        self._queue: deque[Architecture] = deque()  # the rest of the batch
        self._candidates: list[Architecture] = []  # stored, best first
        # Mean and standard deviation per metric, of the batch.
        self._predicted: dict[Architecture, dict[str, list[float]]] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Omit what measures networks: it belongs to a search of this process."""
        return super().__getstate__() | {"shortlist": None}

    def propose(self, study: Study) -> dict[Architecture, dict[str, list[float]]]:
        """The next choices for a study, best first.

        Each has a predicted mean and standard deviation per metric. The study gets no trial.
        """
        with self._lock:
            history = self._read(study)
            if not history.evaluated:
                return {}
            rng = np.random.default_rng([self.seed, len(history.taken)])
            batch = self._propose(history, rng)
            return {architecture: self._predicted[architecture] for architecture in batch}

    # --- choosing one architecture

    def choose(self, study: Study, trial: FrozenTrial) -> Architecture:
        self._describe(study)
        architecture = self._choose(study, trial)
        if predicted := self._predicted.get(architecture):
            set_system_attr(study, trial, PREDICTED_KEY, predicted)
        return architecture

    def _describe(self, study: Study) -> None:
        """Store space, objectives and constraints in a user's own study, for reports."""
        if SPACE_KEY in study.user_attrs or SETTINGS_KEY in study.user_attrs:
            return
        description = {
            "space": self.space.reference,
            "space_options": self.space.options,
            "objectives": [str(objective) for objective in self._reader.objectives],
            "constraints": [str(constraint) for constraint in self._reader.constraints],
        }
        study.set_user_attr(SPACE_KEY, description)

    def _choose(self, study: Study, trial: FrozenTrial) -> Architecture:
        """The next architecture of the initial design or of the batch.

        If the batch is empty, a new one is proposed.
        """
        rng = np.random.default_rng([self.seed, trial.number])
        history = self._read(study)
        taken = history.taken
        if self.space.size is not None and len(taken) >= self.space.size:
            return self.space.sample(rng)

        if len(taken) < self.n_startup:
            # Start at the trial's own number, so that parallel workers make different choices.
            start = trial.number % len(self._initial_design)
            rotated = self._initial_design[start:] + self._initial_design[:start]
            self._queue = deque(rotated)
        elif history.evaluated and taken.issuperset(self._queue):
            self._queue = deque(self._propose(history, rng, measures=True))

        while self._queue:
            architecture = self._queue.popleft()
            if architecture not in taken:
                return architecture
        return random_unseen(self.space, taken, rng) or self.space.sample(rng)

    @cached_property
    def _initial_design(self) -> list[Architecture]:
        rng = np.random.default_rng(self.seed)
        surrogate = self._surrogate
        return initial_design(
            self.space, self.n_startup, rng, surrogate.texts, surrogate.predictor()
        )

    # --- choosing a batch

    def _propose(
        self, history: _History, rng: np.random.Generator, measures: bool = False
    ) -> list[Architecture]:
        """Choose the next batch, best first.

        Sizes in comments: e evaluated architectures, c candidates, s samples, M metrics (objectives
        and metrics with a constraint), m objectives.

        Args:
            history: what the study knows.
            rng: of this batch.
            measures: True to measure a shortlist first, if the search has one.
        """
        reader, surrogate = self._reader, self._surrogate
        taken = history.taken
        evaluated = history.evaluated
        measured = history.measured

        # 1. The front so far, and the reference point of the hypervolume. Later evaluations lie
        #    where the search has looked and would move it towards these: the first ones count.
        values = np.array(list(evaluated.values()))  # (e, M)
        losses = reader.losses(values)  # (e, m)
        feasible = losses[reader.violation(values) <= 0]
        front = feasible[non_dominated(feasible)]
        first = losses[: self.n_startup]
        min_nadir = np.where(reader.is_cost, first.max(axis=0), -np.inf)
        ideal, reference = infer_reference_point(front if len(front) else losses, first, min_nadir)

        # 2. Fit the predictor to all evaluations, and to networks that were only measured; and the
        #    probability of success to those that failed, too.
        surrogate.fit(history.examples, int(rng.integers(2**31)), measured)
        self._feasibility.fit(history.succeeded, history.failed)

        # 3. The stored candidates, and what another process or an interrupted one has measured. The
        #    best of them and a random part of the others are estimated again; the rest keep their
        #    order.
        kept = dict.fromkeys([*self._candidates, *measured])  # an ordered set
        stored = [architecture for architecture in kept if architecture not in taken]
        effort = LATER_EFFORT if len(evaluated) >= MANY_EVALUATED else EFFORT
        estimated_again = stored[: effort.best]
        in_old_order = []
        others = stored[effort.best :]
        picked = set(rng.permutation(len(others))[: effort.others].tolist())
        for i, other in enumerate(others):
            if i in picked:
                estimated_again.append(other)
            else:
                in_old_order.append(other)

        # 4. Evolution on estimates adds new ones. Those that would only repeat a training are left
        #    out.
        part = LATER_PART if len(stored) >= MANY_STORED else 1
        new = evolve(
            self.space,
            start=evaluated,
            seen={*taken, *stored},
            size=max(1, self.fresh // part),
            rank=self._rank,
            rng=rng,
            accept=surrogate.texts.can_be_written,
            generations=effort.generations,
        )
        candidates = self._without_repetitions(new + estimated_again, evaluated)

        # 5. Sort by rank, which also decides between equal expected improvements below, store the
        #    best for later fits, and go on with the first ones.
        if candidates:
            order = best_first(self._rank(candidates), rng)
            candidates = [candidates[i] for i in order]
        self._candidates = (candidates + in_old_order)[: self.pool]
        surrogate.forget_all_but([*taken, *measured, *self._candidates])
        batch_size = max(self.refit_every, len(evaluated) // EVALUATIONS_PER_REFIT_TRIAL)
        sampled = max(effort.sampled, SAMPLED_PER_CHOICE * batch_size)
        candidates = candidates[: min(sampled, EFFORT.sampled)]
        if not candidates:
            return []

        # 6. Expected hypervolume improvement, with ideal 0 and reference point 1, of joint samples.
        #    A sample that violates a constraint has no weight; the others have the probability that
        #    the network can be evaluated.
        unit = reference - ideal  # (m,)
        scaled_front = (front - ideal) / unit  # (k, m)

        def choose(candidates: Sequence[Architecture], count: int) -> list[Architecture]:
            samples = surrogate.samples(candidates)  # (c, s, M)
            weights = (reader.violation(samples) <= 0).astype(float)  # (c, s)
            weights *= self._feasibility(candidates)[:, None]
            scaled = (reader.losses(samples) - ideal) / unit  # (c, s, m)
            choose_batch = ACQUISITIONS[self.acquisition]
            chosen = choose_batch(scaled, weights, scaled_front, np.ones(len(unit)), count)
            self._predicted = {candidates[i]: reader.summary(samples[i]) for i in chosen}
            return [candidates[i] for i in chosen]

        # 7. The batch; with a shortlist, from those of its networks that measurements leave.
        size = batch_size
        if self.shortlist is not None and measures:
            size = self.shortlist.size(batch_size, surrogate.fitted)
        if size == batch_size:
            return choose(candidates, batch_size)
        shortlisted = choose(candidates, size)
        left = self._measure_shortlist(shortlisted, measured)
        if not left:  # all of them fell out: without a measurement, from the other candidates
            left = [candidate for candidate in candidates if candidate not in shortlisted]
        return choose(left, batch_size)

    def _measure_shortlist(
        self,
        shortlisted: Sequence[Architecture],
        measured: Mapping[Architecture, np.ndarray],
    ) -> list[Architecture]:
        """Measure the cheap metrics of a shortlist, of duplicates once.

        Args:
            shortlisted: the architectures.
            measured: known values of those that were measured earlier.

        Returns:
            The architectures that may be trained.
        """
        assert self.shortlist is not None
        texts = self._surrogate.texts

        # 1. One architecture of each text that has not been measured.
        text_of = dict(zip(shortlisted, texts(shortlisted), strict=True))
        already = set(texts(measured))
        new = {text: candidate for candidate, text in text_of.items() if text not in already}

        # 2. Measure them. Their values condition the predictions from now on.
        rows: dict[Architecture, np.ndarray] = {}
        for architecture, values in self.shortlist.add(new.values(), self._predicted).items():
            row = [values.get(metric, np.nan) for metric in self._reader.metrics]
            rows[architecture] = np.array(row)  # (M,)
        self._surrogate.condition(rows)

        # 3. What is left: all of these texts, and those that were measured before.
        allowed = already | set(texts(rows))
        return [candidate for candidate, text in text_of.items() if text in allowed]

    def _rank(self, architectures: Sequence[Architecture]) -> np.ndarray:
        """Predicted rank (n,) of n architectures by their point estimates, lower is better.

        Those that more likely fail than not rank as if they violated a constraint.
        """
        estimates = self._surrogate.estimates(architectures)  # (n, M)
        violations = self._reader.violation(estimates) + self._feasibility.doubts(architectures)
        return constrained_ranks(self._reader.losses(estimates), violations)

    def _without_repetitions(
        self, candidates: list[Architecture], evaluated: dict[Architecture, np.ndarray]
    ) -> list[Architecture]:
        """Drop duplicates of evaluated architectures if all duplicates reached equal accuracies.

        Another training of such a network adds no information. Measurements are noisy, so they are
        compared only if no metric is an accuracy.
        """
        kinds = self._reader.kinds
        columns = [j for j, kind in enumerate(kinds) if kind == "accuracy"]
        columns = columns or list(range(len(kinds)))
        texts = self._surrogate.texts
        accuracies = [values[columns] for values in evaluated.values()]
        results = zip(texts(evaluated), accuracies, strict=True)
        return without_repetitions(candidates, texts, evaluated, results)

    # --- reading a study

    def _read(self, study: Study) -> _History:
        """What the study knows: networks with a trial, and values."""
        history = _History(set(), {}, {}, {}, {})
        is_search = SETTINGS_KEY in study.user_attrs
        complete: list[FrozenTrial] = []
        for trial in stored_trials(study):
            architecture = self._architecture(trial)
            if architecture is None:
                continue
            attributes = TrialAttributes.of(trial)
            if attributes.is_measured_only or attributes.ruled_out is not None:
                history.partial[architecture] = self._reader.values(trial)
            if _has_failed(trial, is_search):
                history.failed[architecture] = attributes.ruled_out is None
            if attributes.is_measured_only:
                history.measured[architecture] = history.partial[architecture]
                continue
            history.taken.add(architecture)
            if trial.state == TrialState.COMPLETE and architecture not in history.evaluated:
                complete.append(trial)
                values = self._reader.values(trial)
                if np.isfinite(values).all():
                    history.evaluated[architecture] = values
        for architecture in history.taken & history.measured.keys():
            del history.measured[architecture]
        if complete:
            _check_directions(study, self._reader.objectives)
        if len(complete) >= self.n_startup and not history.evaluated:
            _check_constraints(complete, self._reader.constraints)
        return history

    def _architecture(self, trial: FrozenTrial) -> Architecture | None:
        """The architecture of a trial, of a running one the planned one; None if it has none."""
        if trial.state.is_finished():
            return self._reader.architecture(trial.params)
        attrs = trial.system_attrs
        planned = attrs.get(CHOICES_KEY) or attrs.get("fixed_params") or {}
        return self._reader.architecture(planned)


def _has_failed(trial: FrozenTrial, is_search: bool) -> bool:
    """True if the evaluation of a trial failed.

    Searches store the reason: their other failed trials were interrupted.
    """
    if is_search:
        return TrialAttributes.of(trial).failed is not None
    return trial.state == TrialState.FAIL


def _check_directions(study: Study, objectives: Sequence[Metric]) -> None:
    """Raise InputError if study and sampler have different objectives or directions."""
    directions = [direction.name.lower() for direction in study.directions]
    if len(directions) != len(objectives):
        names = ", ".join(objective.name for objective in objectives)
        raise InputError(
            f"the study has {len(directions)} objectives, its sampler {len(objectives)}: {names}"
        )
    for objective, direction in zip(objectives, directions, strict=True):
        if objective.direction != direction:
            raise InputError(
                f"{objective.name}: the study says {direction}, its sampler "
                f"{objective.direction}: give the sampler "
                f"{f'{objective.name}:{direction[:3]}'!r}, or the study the direction "
                f"{objective.direction!r}"
            )


def _check_constraints(complete: Sequence[FrozenTrial], constraints: Sequence[Constraint]) -> None:
    """Raise InputError for a constraint that no trial stores.

    The sampler would always choose at random.
    """
    for constraint in map(str, constraints):
        if not any(constraint in trial.constraints for trial in complete):
            raise InputError(
                f"no trial stores violations of {constraint!r}: call "
                "trial.set_constraint(str(constraint), constraint.violation(value)) in the "
                "objective function"
            )
