"""`PredictorSampler`: an Optuna sampler guided by a predictor and expected hypervolume
improvement.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from optuna.trial import TrialState

from nas.search.acquisition import ACQUISITIONS
from nas.search.candidates import best_first, evolve, random_unseen
from nas.search.initial_design import initial_design
from nas.search.objectives import (
    Constraint,
    ConstraintsLike,
    ObjectivesLike,
    parse_constraints,
    parse_objectives,
)
from nas.search.pareto import infer_reference_point, non_dominated
from nas.search.replay import ReplaySampler
from nas.search.study.networks import repeat_exactly
from nas.search.study.schema import CHOICES_KEY, PREDICTED_KEY, SETTINGS_KEY, SPACE_KEY
from nas.search.study.storage import set_system_attr, stored_trials
from nas.search.study.trials import TrialReader
from nas.search.surrogate import Surrogate
from predictors.metrics import Metric
from search_spaces.common.errors import InputError, unknown

if TYPE_CHECKING:
    from optuna import Study
    from optuna.trial import FrozenTrial

    from predictors import Predictor
    from search_spaces import Architecture, SearchSpace

MANY_STORED, LATER_PART = 3000, 3  # with that many stored candidates, a fit adds a third of `fresh`
MAX_SAMPLED_CANDIDATES = 200  # of the best candidates, for which samples are drawn
BEST_CANDIDATES, OTHER_CANDIDATES = (
    400,
    200,
)  # stored candidates that a fit estimates again, at most
EVALUATIONS_PER_REFIT_TRIAL = 20  # after n evaluations, the sampler refits every n / 20 trials


class PredictorSampler(ReplaySampler):
    """Chooses architectures for `space.choose(trial)` in any Optuna study, including distributed
    and resumed ones.

    The first `n_startup` architectures are promising ones of all sizes (`nas.search.initial_design`). Then
    the sampler refits a predictor on all evaluations every `refit_every` trials, and less often
    later. Evolution on the predictor's estimates adds `fresh` candidates. The candidates with the
    highest expected hypervolume improvement are evaluated next. The `pool` best candidates are
    kept, so that each is built and read once. No architecture is chosen twice in a study. An
    architecture with the text of an evaluated one is another training of the same network. It may
    be chosen as long as such trainings have reached different accuracies.

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
        self.space = space
        self.acquisition = acquisition
        self.n_startup = n_startup
        self.refit_every = refit_every
        self.pool = pool
        self.fresh = fresh
        super().__init__(seed)
        self._reader = TrialReader(
            space, parse_objectives(objectives), parse_constraints(constraints), others=True
        )
        self._surrogate = Surrogate(space, predictor, self._reader.keys, given)
        self._queue: deque[Architecture] = deque()
        self._candidates: list[Architecture] = []
        self._predicted: dict[
            Architecture, dict[str, list[float]]
        ] = {}  # of the candidates that the last fit proposed

    def propose(self, study: Study) -> dict[Architecture, dict[str, list[float]]]:
        """The next choices for a study, best first, with predicted mean and standard deviation per
        metric.

        The study gets no trial.
        """
        with self._lock:
            taken, evaluated = self._read(study)
            batch = (
                self._propose(taken, evaluated, np.random.default_rng([self.seed, len(taken)]))
                if evaluated
                else []
            )
            return {architecture: self._predicted[architecture] for architecture in batch}

    def choose(self, study: Study, trial: FrozenTrial) -> Architecture:
        self._describe(study)
        architecture = self._choose(study, trial)
        if predicted := self._predicted.get(architecture):
            set_system_attr(study, trial, PREDICTED_KEY, predicted)
        return architecture

    def _describe(self, study: Study) -> None:
        if not {SPACE_KEY, SETTINGS_KEY} & study.user_attrs.keys():
            goals = {"objectives": self._reader.objectives, "constraints": self._reader.constraints}
            space = {"space": self.space.reference, "space_options": self.space.options}
            study.set_user_attr(
                SPACE_KEY, space | {name: list(map(str, goal)) for name, goal in goals.items()}
            )

    # --- choosing

    def _choose(self, study: Study, trial: FrozenTrial) -> Architecture:
        rng = np.random.default_rng([self.seed, trial.number])
        taken, evaluated = self._read(study)
        if self.space.size is not None and len(taken) >= self.space.size:
            return self.space.sample(rng)
        if len(taken) < self.n_startup:
            # Start at the trial's own number, so that parallel workers make different choices.
            at = trial.number % len(self._startup)
            self._queue = deque(self._startup[at:] + self._startup[:at])
        elif evaluated and taken.issuperset(self._queue):
            self._queue = deque(self._propose(taken, evaluated, rng))
        while self._queue:
            architecture = self._queue.popleft()
            if architecture not in taken:
                return architecture
        return random_unseen(self.space, taken, rng) or self.space.sample(rng)

    @cached_property
    def _startup(self) -> list[Architecture]:
        rng = np.random.default_rng(self.seed)
        return initial_design(
            self.space, self.n_startup, rng, self._surrogate.texts, self._surrogate.predictor()
        )

    def _propose(
        self,
        taken: set[Architecture],
        evaluated: dict[Architecture, np.ndarray],
        rng: np.random.Generator,
    ) -> list[Architecture]:
        """Choose the next batch, best first."""
        reader = self._reader
        values = np.array(list(evaluated.values()))
        losses = reader.losses(values)
        feasible = reader.violation(values) <= 0
        front = losses[feasible][non_dominated(losses[feasible])]
        # Later evaluations lie where the search has looked. They would move the reference point
        # towards these.
        first = losses[: self.n_startup]
        least = np.where(reader.is_cost, first.max(0), -np.inf)
        ideal, reference = infer_reference_point(front if len(front) else losses, first, least)
        self._surrogate.fit(evaluated, int(rng.integers(2**31)))

        best = self._screened(taken, evaluated, rng)
        if not best:
            return []
        samples = self._surrogate.samples(best)
        weights = (reader.violation(samples) <= 0).astype(float)
        unit = reference - ideal
        losses, front = (reader.losses(samples) - ideal) / unit, (front - ideal) / unit
        size = max(self.refit_every, len(evaluated) // EVALUATIONS_PER_REFIT_TRIAL)
        chosen = ACQUISITIONS[self.acquisition](losses, weights, front, np.ones(len(unit)), size)
        self._predicted = {best[i]: self._summary(samples[i]) for i in chosen}
        return [best[i] for i in chosen]

    def _screened(
        self,
        taken: set[Architecture],
        evaluated: dict[Architecture, np.ndarray],
        rng: np.random.Generator,
    ) -> list[Architecture]:
        """Add new candidates, and select the best ones by the ranks of their point estimates.

        The result is sorted by rank, which decides between candidates with equal expected
        improvement. The best stored candidates and a random part of the others are estimated again;
        the rest keep their order.
        """

        def rank(architectures: Sequence[Architecture]) -> np.ndarray:
            estimates = self._surrogate.estimates(architectures)
            return _constrained_ranks(
                self._reader.losses(estimates), self._reader.violation(estimates)
            )

        stayed = [architecture for architecture in self._candidates if architecture not in taken]
        again, rest = _parted(stayed, rng)
        size, accept = self._new_candidates(len(stayed)), self._surrogate.texts.can_be_written
        candidates = (
            evolve(self.space, evaluated, {*taken, *stayed}, size, rank, rng, accept) + again
        )
        closed = self._texts_not_to_repeat(evaluated)
        if closed:
            texts = self._surrogate.texts(candidates)
            candidates = [
                one for one, text in zip(candidates, texts, strict=True) if text not in closed
            ]
        if candidates:
            candidates = [candidates[i] for i in best_first(rank(candidates), rng)]
        self._candidates = (candidates + rest)[: self.pool]
        self._surrogate.forget_all_but([*taken, *self._candidates])
        return candidates[:MAX_SAMPLED_CANDIDATES]

    def _new_candidates(self, stored: int) -> int:
        """How many candidates a fit adds to the stored ones."""
        return self.fresh if stored < MANY_STORED else max(1, self.fresh // LATER_PART)

    def _texts_not_to_repeat(self, evaluated: dict[Architecture, np.ndarray]) -> set[str]:
        """Texts of the evaluated architectures if all duplicates reached equal accuracies, else
        none.

        Another training of such a network adds no information. Measurements are noisy, so they are
        compared only if no metric is an accuracy.
        """
        kinds = [Metric.parse(key).kind for key in self._reader.keys]
        columns = [j for j, kind in enumerate(kinds) if kind == "accuracy"] or list(
            range(len(kinds))
        )
        texts = self._surrogate.texts(evaluated)
        rows = [row[columns] for row in evaluated.values()]
        return set(texts) if repeat_exactly(zip(texts, rows, strict=True)) else set()

    def _summary(self, samples: np.ndarray) -> dict[str, list[float]]:
        """Mean and standard deviation per metric of the samples (s, metrics) of one
        architecture.
        """
        columns = zip(
            self._reader.metrics, samples.mean(0).tolist(), samples.std(0).tolist(), strict=True
        )
        return {name: [mean, std] for name, mean, std in columns}

    # --- reading a study

    def _read(self, study: Study) -> tuple[set[Architecture], dict[Architecture, np.ndarray]]:
        """All architectures with a trial, and the metric values of those whose values are
        finite.
        """
        taken: set[Architecture] = set()
        evaluated: dict[Architecture, np.ndarray] = {}
        finished: list[FrozenTrial] = []
        for trial in stored_trials(study):
            attrs = trial.system_attrs
            planned = attrs.get(CHOICES_KEY) or attrs.get("fixed_params") or {}
            architecture = self._reader.architecture(
                trial.params if trial.state.is_finished() else planned
            )
            if architecture is None:
                continue
            taken.add(architecture)
            if trial.state == TrialState.COMPLETE and architecture not in evaluated:
                finished.append(trial)
                values = self._reader.values(trial)
                if np.isfinite(values).all():
                    evaluated[architecture] = values
        if finished:
            _check_directions(study, self._reader.objectives)
        if len(finished) >= self.n_startup and not evaluated:
            _check_constraints(finished, self._reader.constraints)
        return taken, evaluated


def _parted(
    stayed: list[Architecture], rng: np.random.Generator
) -> tuple[list[Architecture], list[Architecture]]:
    """Split stored candidates: the first and a random part of the others are estimated again, the
    rest is not.
    """
    others = stayed[BEST_CANDIDATES:]
    picked = set(rng.permutation(len(others))[:OTHER_CANDIDATES].tolist())
    again = stayed[:BEST_CANDIDATES] + [one for i, one in enumerate(others) if i in picked]
    return again, [one for i, one in enumerate(others) if i not in picked]


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
                f"{objective.name}: the study says {direction}, its sampler {objective.direction}: "
                "give the sampler "
                f"{f'{objective.name}:{direction[:3]}'!r}, or the study the direction "
                f"{objective.direction!r}"
            )


def _check_constraints(finished: Sequence[FrozenTrial], constraints: Sequence[Constraint]) -> None:
    """Raise InputError for a constraint that no trial stores: the sampler would always choose at
    random.
    """
    for constraint in map(str, constraints):
        if not any(constraint in trial.constraints for trial in finished):
            raise InputError(
                f"no trial stores violations of {constraint!r}: call "
                "trial.set_constraint(str(constraint), "
                "constraint.violation(value)) in the objective function"
            )


def _constrained_ranks(losses: np.ndarray, violations: np.ndarray) -> np.ndarray:
    """Pareto rank (n,) of losses (n, m), 0 for the best front. Rows that violate a constraint rank
    last.
    """
    import moocore

    ranks = moocore.pareto_rank(losses).astype(float)
    broken = violations > 0
    ranks[broken] = ranks.max() + 1 + violations[broken]
    return ranks
