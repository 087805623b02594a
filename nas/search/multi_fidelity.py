"""Start, continue or stop trainings by expected hypervolume improvement per predicted cost.

A predictor samples the rest of each network's learning curve, given its known beginning. A plan
trains a network to the next fidelity and continues from there if its score exceeds a threshold, so
a training that will probably be stopped costs little. A network is worth the highest ratio of
expected improvement to expected cost among its plans.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol

import numpy as np

from nas.search.acquisition import Region, free_region, sample_improvements
from nas.search.by_cost.runs import Fidelities, Job, Run, Runs
from nas.search.candidates import Texts, best_first, evolve, random_unseen
from nas.search.halving import Halving, Hyperband, best_order
from nas.search.initial_design import initial_design
from nas.search.pareto import hypervolume, infer_reference_point, non_dominated
from nas.search.samplers import is_guided
from nas.search.study.networks import repeat_exactly
from predictors import create, list_predictors
from predictors.metrics import Metric, at_fidelity
from search_spaces.common.errors import unknown

if TYPE_CHECKING:
    from nas.search.study.trials import TrialReader
    from predictors import Predictor
    from search_spaces import Architecture, SearchSpace

N_STARTUP = 20  # networks that start before the first fit; half as many with a single fidelity
N_FULL = 4  # of these, networks that are trained fully before the first fit
FRESH = 100  # new candidates per fit
CANDIDATES = 64  # the best candidates, whose curves are sampled
EPOCH_COST = "epoch_cost"  # metric of the predictor: cost of an epoch, if networks differ in it
SAMPLES = 32  # curves per network
THRESHOLDS = 8  # plans per network
DECISIONS, NETWORKS_PER_DECISION = 4, 20  # jobs per fit: four, and one more per 20 networks


def best_ratio(
    gains: np.ndarray, order: np.ndarray, sure: np.ndarray, further: np.ndarray
) -> np.ndarray:
    """Highest expected gain per cost among plans that continue a training above a threshold.

    Args:
        gains: (n, s) hypervolume that each sample adds at the last fidelity.
        order: (n, s) sample numbers, the best at the next fidelity first.
        sure: (n,) cost of the segment to the next fidelity.
        further: (n,) cost of the rest of the training.

    Returns:
        (n,) ratio.
    """
    samples = gains.shape[1]
    shares = np.arange(1, THRESHOLDS + 1) / THRESHOLDS  # of samples that exceed the threshold
    counts = np.maximum(1, (shares * samples).astype(int))
    total = np.take_along_axis(gains, order, 1).cumsum(1)[:, counts - 1] / samples
    return (total / (sure[:, None] + counts / samples * further[:, None])).max(1)


class ImprovementPerCost:
    """Policy that decides by predicted learning curves.

    Args:
        space: search space of new networks.
        predictor: makes an unfitted predictor for each fit.
        reader: reader of the study's metrics.
        trained: metrics that need training. The others are known of every network whose training
            has started.
        fidelities: epochs at which trainings pause.
        seed: seed of all random choices.
    """

    def __init__(
        self,
        space: SearchSpace,
        predictor: Callable[[], Predictor],
        reader: TrialReader,
        trained: Sequence[str],
        fidelities: Fidelities,
        seed: int,
    ) -> None:
        self.space, self.predictor, self.reader = space, predictor, reader
        self.trained, self.fidelities, self.seed = tuple(trained), fidelities, seed
        kinds = {
            m: Metric.parse(key).kind for m, key in zip(reader.metrics, reader.keys, strict=True)
        }
        self.accuracies = [
            metric for metric in self.trained if kinds.get(metric) == "accuracy"
        ] or list(self.trained)
        self.n_startup = N_STARTUP if len(fidelities.levels) > 1 else N_STARTUP // 2
        self._startup: list[Architecture] | None = None
        self._plan: deque[Job] = deque()
        self._candidates: list[Architecture] = []
        self._texts = Texts(space)

    def decide(self, runs: Runs, epochs_left: float) -> Job | None:
        """Choose the next job.

        Args:
            runs: trainings so far.
            epochs_left: epochs that the job and the rest of its training may take.

        Returns:
            The job; None if none fits, or if a running segment has to end first.
        """
        if len(runs.trained) < self.n_startup and (job := self._begin(runs, epochs_left)):
            return job
        for level in self.fidelities.levels[-2::-1]:
            ahead = sum(max(run.reached, run.running or 0) > level for run in runs.runs.values())
            if ahead < N_FULL and (job := self._continue_best(runs, level, epochs_left)):
                return job
        while True:
            while self._plan:
                job = self._plan.popleft()
                if _is_open(job, runs) and (
                    job.until is None or self._fits(job.begun, epochs_left)
                ):
                    return job
            if not runs.finished:
                return None  # a running segment has to end first
            self._plan = deque(self._planned(runs, epochs_left))
            if not self._plan:
                return None

    def _fits(self, begun: int, epochs_left: float) -> bool:
        """True if the epochs suffice for the rest of a training: only full trainings count for the
        front.
        """
        return self.fidelities.rest(begun) <= epochs_left

    # --- before the first fit

    def _begin(self, runs: Runs, epochs_left: float) -> Job | None:
        if not self._fits(0, epochs_left):
            return None
        rng = np.random.default_rng([self.seed, len(runs)])
        if self._startup is None:
            own = np.random.default_rng(self.seed)
            self._startup = initial_design(
                self.space, self.n_startup, own, self._texts, self.predictor()
            )
        architecture = next((a for a in self._startup if a not in runs.runs), None)
        architecture = architecture or random_unseen(self.space, runs.runs.keys(), rng)
        return None if architecture is None else Job(architecture, 0, self.fidelities.levels[0])

    def _continue_best(self, runs: Runs, level: int, epochs_left: float) -> Job | None:
        """Continue the network, of those paused at a fidelity, that adds most to the front at this
        fidelity.
        """
        able = [run for run in runs.paused if run.reached == level]
        if not able or not self._fits(level, epochs_left):
            return None
        ahead = [
            r for r in runs.runs.values() if level in r.values and (r.running or r.reached > level)
        ]
        losses = runs.losses([*able, *ahead], level)
        finite = losses[np.isfinite(losses).all(1)]
        if not len(finite):
            return Job(able[0].architecture, level, self.fidelities.after(level))
        low, high = finite.min(0), finite.max(0)
        scaled = (losses - low) / np.where(high > low, high - low, 1.0)
        point, taken = np.full(losses.shape[1], 1.1), scaled[len(able) :]
        volumes = [hypervolume(np.vstack([taken, row]), point) for row in scaled[: len(able)]]
        best = able[int(np.argmax(volumes))]
        return Job(best.architecture, level, self.fidelities.after(level))

    # --- by predictions

    def _planned(self, runs: Runs, epochs_left: float) -> list[Job]:
        """Jobs of a fit: first the networks to stop, then those to train, best first."""
        rng = np.random.default_rng([self.seed, len(runs), runs.epochs])
        known = [run for run in runs.runs.values() if run.values]
        columns = self._columns(known)
        predictor = self.predictor()
        fitted = predictor.fit(
            self._inputs(predictor, [run.architecture for run in known]), columns
        )
        paused = [run for run in runs.paused if self._fits(run.reached, epochs_left)]
        new = self._new(fitted, runs, rng) if self._fits(0, epochs_left) else []
        options = [*paused, *map(Run, new)]
        if not options:
            return []
        samples, following, epoch_costs = self._sampled(
            fitted, options, columns, int(rng.integers(2**31))
        )
        losses, weights, regions = self._framed(runs, samples[: len(paused)], samples)
        jobs = [
            Job(
                run.architecture,
                run.reached,
                self.fidelities.after(run.reached),
                self._expected(drawn),
            )
            for run, drawn in zip(options, samples, strict=True)
        ]
        order = following.argsort(1, kind="stable")
        sure = epoch_costs * [self.fidelities.epochs(job.begun, job.until or 0) for job in jobs]
        further = epoch_costs * [self.fidelities.rest(job.until or 0) for job in jobs]
        count = min(len(jobs), DECISIONS + len(runs) // NETWORKS_PER_DECISION)
        chosen, hopeless = _chosen(losses, weights, regions, order, sure, further, count)
        stops = [
            Job(jobs[i].architecture, jobs[i].begun, None)
            for i in range(len(paused))
            if hopeless[i]
        ]
        return [*stops, *(jobs[i] for i in chosen)]

    def _framed(
        self, runs: Runs, paused: np.ndarray, samples: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, list[Region]]:
        """Losses (n, s, m) of all samples, their weights (n, s), and the region of each sample that
        is not dominated.

        Losses are scaled by the front that all started networks are expected to have after full
        training.
        """
        reader, true = self.reader, runs.losses(runs.finished, self.fidelities.last)
        front = true[non_dominated(true)]
        expected = (
            reader.losses(np.median(paused, axis=1))
            if len(paused)
            else np.empty((0, true.shape[1]))
        )
        begun = np.vstack([true[np.isfinite(true).all(1)], expected])
        ideal, reference = infer_reference_point(begun[non_dominated(begun)], begun)
        unit = reference - ideal
        weights = (reader.violation(samples) <= 0).astype(float)
        region = free_region((front - ideal) / unit, np.ones(len(unit)))
        return (reader.losses(samples) - ideal) / unit, weights, [region] * samples.shape[1]

    def _new(self, fitted: Predictor, runs: Runs, rng: np.random.Generator) -> list[Architecture]:
        """The best new networks by estimates at the first fidelity, where the predictor has most
        examples.
        """
        level = self.fidelities.levels[0]
        names = [self._key(metric, level) for metric in self.reader.metrics]

        def rank(architectures: Sequence[Architecture]) -> np.ndarray:
            values = fitted.estimate(self._inputs(fitted, architectures), names)
            losses = np.where(
                self.reader.violation(values)[:, None] <= 0, self.reader.losses(values), np.inf
            )
            return best_order(losses).argsort().astype(float)

        stayed = [a for a in self._candidates if a not in runs.runs]
        begun = [run.architecture for run in runs.runs.values() if run.values]
        seen, accept = {*runs.runs, *stayed}, self._texts.can_be_written
        found = self._untrained(
            evolve(self.space, begun, seen, FRESH, rank, rng, accept) + stayed, runs
        )
        found = [found[i] for i in best_first(rank(found), rng)] if found else []
        self._candidates = found[:FRESH]
        self._texts.forget_all_but((*runs.runs, *self._candidates))
        return found[:CANDIDATES]

    def _untrained(self, found: list[Architecture], runs: Runs) -> list[Architecture]:
        """Drop duplicates of started networks if all trainings of duplicates have had equal
        accuracies.
        """
        started = list(filter(self._texts.can_be_written, runs.runs))
        texts = self._texts(started)
        reached = [
            ((text, level), [values[metric] for metric in self.accuracies])
            for text, run in zip(
                texts, [runs.runs[architecture] for architecture in started], strict=True
            )
            for level, values in run.values.items()
            if level
        ]
        if not repeat_exactly(reached):
            return found
        begun = set(texts)
        return [
            one for one, text in zip(found, self._texts(found), strict=True) if text not in begun
        ]

    def _sampled(
        self, fitted: Predictor, runs: Sequence[Run], columns: dict[str, np.ndarray], seed: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Joint samples of learning curves, given the known values.

        Returns:
            Values (n, SAMPLES, metrics) at the last fidelity, the leading loss (n, SAMPLES) at the
            next fidelity, and the cost (n,) of an epoch.
        """
        given = {name: np.array([self._value(run, name) for run in runs]) for name in columns}
        inputs = self._inputs(fitted, [run.architecture for run in runs])
        known = {name: column for name, column in given.items() if not np.isnan(column).all()}
        drawn = fitted.predict(
            inputs, list(columns), given=known, samples=SAMPLES, seed=seed
        ).samples
        at = {name: drawn[:, :, i] for i, name in enumerate(columns)}
        final = np.stack(
            [at[self._key(metric, self.fidelities.last)] for metric in self.reader.metrics], 2
        )
        leading = next(o for o in self.reader.objectives if o.name in self.trained)
        following = np.empty(final.shape[:2])
        for row, run in enumerate(runs):
            level = self.fidelities.after(run.reached)
            assert level is not None
            key = self._key(leading.name, level)
            key = key if key in at else self._key(leading.name, self.fidelities.last)
            following[row] = leading.sign * at[key][row]
        costs = np.median(at[EPOCH_COST], axis=1) if EPOCH_COST in at else np.ones(len(runs))
        return final, following, np.maximum(costs, 1e-12)

    def _expected(self, samples: np.ndarray) -> dict[str, list[float]]:
        """Mean and standard deviation of each metric over samples (SAMPLES, metrics) of one
        network.
        """
        return {
            metric: [float(column.mean()), float(column.std() if np.ptp(column) else 0)]
            for metric, column in zip(self.reader.metrics, samples.T, strict=True)
        }

    def _columns(self, runs: Sequence[Run]) -> dict[str, np.ndarray]:
        """Targets of the predictor: values (n,) by metric and fidelity, NaN where unknown."""
        names = [
            self._key(m, level) for m in self.reader.metrics for level in self.fidelities.levels
        ]
        columns = {
            name: np.array([self._value(run, name) for run in runs])
            for name in dict.fromkeys(names)
        }
        if np.nanmax(costs := np.array([run.epoch_cost for run in runs])) > np.nanmin(costs):
            columns[EPOCH_COST] = costs
        return {name: column for name, column in columns.items() if not np.isnan(column).all()}

    def _key(self, metric: str, level: int) -> str:
        """Name of a metric at a fidelity for the predictor: its own at the last one, or if it needs
        no training.
        """
        key = self.reader.keys[self.reader.metrics.index(metric)]
        if metric not in self.trained or level == self.fidelities.last:
            return key
        name, colon, kind = key.partition(":")
        return at_fidelity(name, level) + colon + kind

    def _value(self, run: Run, key: str) -> float:
        if key == EPOCH_COST:
            return run.epoch_cost
        for metric in self.reader.metrics:
            for level, values in run.values.items():
                if self._key(metric, level) == key and metric in values:
                    return values[metric]
        return np.nan

    def _inputs(
        self, predictor: Predictor, architectures: Sequence[Architecture]
    ) -> Sequence[str | Architecture]:
        return list(architectures) if predictor.reads_choices else self._texts(architectures)


def _is_open(job: Job, runs: Runs) -> bool:
    """True if the network is still where it was when the job was planned."""
    run = runs.runs.get(job.architecture)
    return (
        job.begun == 0
        if run is None
        else run.reached == job.begun and run.running is None and not run.ended
    )


def _chosen(
    losses: np.ndarray,
    weights: np.ndarray,
    regions: list[Region],
    order: np.ndarray,
    sure: np.ndarray,
    further: np.ndarray,
    count: int,
) -> tuple[list[int], np.ndarray]:
    """Choose networks greedily by their ratios; each chosen one counts as fully trained for the
    next choice.

    Args:
        losses: (n, s, m) losses of samples at the last fidelity.
        weights: (n, s) 0 for samples that break a constraint, else 1.
        regions: of each sample, the region that is not dominated.
        order, sure, further: see `best_ratio`.
        count: networks to choose.

    Returns:
        Rows of the chosen networks, best first, and a mask (n,) of networks of which no sample
        improves the front.
    """
    chosen: list[int] = []
    hopeless = np.zeros(len(losses), bool)
    for _ in range(count):
        gains = sample_improvements(losses, weights, regions)
        if not chosen:
            hopeless = gains.max(1) <= 0
        ratios = best_ratio(gains, order, sure, further)
        ratios[chosen] = -1.0
        best = int(ratios.argmax())
        chosen.append(best)
        regions = [
            free.cut(losses[best, s]) if weights[best, s] > 0 else free
            for s, free in enumerate(regions)
        ]
    return chosen, hopeless


BASELINES = ("asha", "hyperband", "random")  # random: full trainings of random networks


class Policy(Protocol):
    """Chooses which training to start, to continue or to stop."""

    def decide(self, runs: Runs, epochs_left: float) -> Job | None:
        """Choose the next job.

        Args:
            runs: trainings so far.
            epochs_left: epochs that the job may take.

        Returns:
            The job; None if none fits, or if a running segment has to end first.
        """


def check_policy(name: str) -> None:
    """Raise InputError unless a search with fidelities has a policy of this name."""
    if name not in BASELINES and not is_guided(name):
        raise unknown("sampler of a search by cost", name, sorted([*BASELINES, *list_predictors()]))


def make_policy(
    name: str,
    space: SearchSpace,
    reader: TrialReader,
    trained: Sequence[str],
    fidelities: Fidelities,
    seed: int,
    predictor: Callable[[], Predictor] | None = None,
) -> Policy:
    """Make a policy.

    Args:
        name: name of a predictor, `FILE.py:CLASS` of one, or name of a baseline.
        space: search space of new networks.
        reader: reader of the study's metrics.
        trained: metrics that need training.
        fidelities: epochs at which trainings may pause.
        seed: seed of all random choices.
        predictor: makes the predictor of each fit; by default a new one of the name.

    Raises:
        InputError: for an unknown name.
    """
    check_policy(name)
    if name == "hyperband":
        return Hyperband(space, fidelities, seed)
    if name in BASELINES:
        return Halving(
            space, fidelities, seed, first=0 if name == "asha" else len(fidelities.levels) - 1
        )
    return ImprovementPerCost(
        space, predictor or partial(create, name), reader, trained, fidelities, seed
    )
