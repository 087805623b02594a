"""Policies of a multi-fidelity search: which training to start, to continue or to stop.

A training pauses at each fidelity. `ImprovementPerCost` decides by expected hypervolume improvement
per predicted cost, after an initial design of short trainings:

1. A predictor learns the values that all networks reached, one metric per fidelity, and those that
   are extrapolated from them.
2. It samples the rest of each network's learning curve, given its known beginning.
3. A plan trains a network to the next fidelity and continues from there if its value exceeds a
   threshold, so that a training that will probably be stopped costs little. A network is worth the
   highest ratio of expected improvement to expected cost among its plans. Once an evaluation has
   failed, the improvement is weighted by the probability of success (`nas.search.candidates.Feasibility`).

The baselines are in `nas.search.halving`.

Sizes in comments: n networks, s samples, M metrics (objectives and metrics with a constraint), m
objectives.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

import numpy as np

from nas.search.acquisition import choose_by_ratio, free_region
from nas.search.candidates import (
    Feasibility,
    Texts,
    best_first,
    evolve,
    random_unseen,
    without_repetitions,
)
from nas.search.halving import Halving, Hyperband, best_order
from nas.search.initial_design import initial_design
from nas.search.pareto import hypervolume, infer_reference_point, non_dominated
from nas.search.samplers import is_guided
from nas.search.surrogate import learned_of_measured
from nas.search.trainings import NEW, Fidelities, Job, Run, Runs, extrapolated
from predictors import create, list_predictors
from predictors.metrics import at_fidelity
from search_spaces.common import plug_ins
from search_spaces.common.errors import unknown

if TYPE_CHECKING:
    from nas.search.shortlist import Shortlist
    from nas.search.study.trials import TrialReader
    from predictors import Predictor
    from search_spaces import Architecture

BASELINES = ("asha", "hyperband", "random")  # random: full trainings of random networks

N_STARTUP = 20  # networks that start before the first fit; half as many with a single fidelity
N_FULL = 4  # of these, networks that are trained fully before the first fit
FRESH = 100  # new candidates per fit
CANDIDATES = 64  # the best candidates, whose curves are sampled
SAMPLES = 32  # curves per network
DECISIONS = 4  # jobs per fit, and one more per `NETWORKS_PER_DECISION` networks
NETWORKS_PER_DECISION = 20
EPOCH_COST = "epoch_cost"  # metric of the predictor: cost of an epoch, if networks differ in it
MIN_EPOCH_COST = 1e-12  # of a prediction
STARTUP_REFERENCE = 1.1  # in losses that span 0 to 1 among the networks at a fidelity


@runtime_checkable
class Policy(Protocol):
    """Chooses which training to start, to continue or to stop.

    A policy of one's own is a class in a file, which a search names as `FILE.py:CLASS` and makes
    with its space, the reader of its metrics, its fidelities and its seed.
    """

    def decide(self, runs: Runs, epochs_left: float) -> Job | None:
        """Choose the next job.

        Args:
            runs: trainings so far.
            epochs_left: epochs that the job and the rest of its training may take.

        Returns:
            The job; None if none fits, or if a running segment has to end first.
        """


def check_policy(name: str) -> None:
    """Raise InputError unless a search with fidelities has a policy of this name."""
    if name not in BASELINES and not _own_policy(name) and not is_guided(name):
        names = sorted([*BASELINES, *list_predictors()])
        raise unknown("sampler of a multi-fidelity search", name, names)


def _own_policy(name: str) -> Callable[..., Policy] | None:
    """The policy that `FILE.py:CLASS` names; None for a predictor in a file, and for plain names."""
    path, colon, _ = name.partition(":")
    if not colon or not plug_ins.is_file(path):
        return None
    of_file = plug_ins.value_in_file(name, "sampler", "a predictor or a policy")
    is_policy = isinstance(of_file, type) and issubclass(of_file, Policy)
    return of_file if is_policy else None


def make_policy(
    name: str,
    reader: TrialReader,
    trained: Sequence[str],
    fidelities: Fidelities,
    seed: int,
    predictor: Callable[[], Predictor] | None = None,
) -> Policy:
    """Make a policy.

    Args:
        name: name of a predictor or of a baseline, or `FILE.py:CLASS` of a predictor or a policy.
        reader: reads the study; new networks are of its space.
        trained: metrics that need training.
        fidelities: epochs at which trainings may pause.
        seed: seed of all random choices.
        predictor: makes the predictor of each fit; by default a new one of the name.

    Raises:
        InputError: for an unknown name.
    """
    check_policy(name)
    if name == "hyperband":
        return Hyperband(reader.space, fidelities, seed)
    if name == "asha":
        return Halving(reader.space, fidelities, seed)
    if name == "random":
        return Halving(reader.space, fidelities, seed, first=len(fidelities.levels) - 1)
    if own := _own_policy(name):
        return own(reader.space, reader, fidelities, seed)
    create_predictor = predictor or partial(create, name)
    return ImprovementPerCost(create_predictor, reader, trained, fidelities, seed)


class ImprovementPerCost:
    """Policy that decides by predicted learning curves.

    Args:
        predictor: makes an unfitted predictor for each fit.
        reader: reads the study; new networks are of its space.
        trained: metrics that need training. The others are known of every network whose training
            has started.
        fidelities: epochs at which trainings pause.
        seed: seed of all random choices.
    """

    def __init__(
        self,
        predictor: Callable[[], Predictor],
        reader: TrialReader,
        trained: Sequence[str],
        fidelities: Fidelities,
        seed: int,
    ) -> None:
        self.space = reader.space
        self.predictor = predictor
        self.reader = reader
        self.trained = tuple(trained)
        self.fidelities = fidelities
        self.seed = seed
        # By these, trainings of duplicates are compared.
        kind_of = dict(zip(reader.metrics, reader.kinds, strict=True))
        accuracies = [metric for metric in self.trained if kind_of.get(metric) == "accuracy"]
        self.accuracies = accuracies or list(self.trained)
        self.n_startup = N_STARTUP if len(fidelities.levels) > 1 else N_STARTUP // 2
        self._initial_design: list[Architecture] | None = None
        self._jobs: deque[Job] = deque()  # the rest of the last plan
        self._candidates: list[Architecture] = []  # stored, best first
        self._texts = Texts(self.space)
        self._feasibility = Feasibility(self._texts)
        # Measures cheap metrics before a choice; the planner of a search sets it.
        self.shortlist: Shortlist | None = None

    def decide(self, runs: Runs, epochs_left: float) -> Job | None:
        """Choose the next job. See `Policy.decide`."""
        # 1. Before the first fit: start the initial design, then continue the best networks of each
        #    fidelity, the highest first, until `N_FULL` are ahead of it.
        if len(runs.trained) < self.n_startup and (job := self._start(runs, epochs_left)):
            return job
        for level in self.fidelities.levels[-2::-1]:
            furthest = [run.furthest for run in runs.runs.values()]
            ahead = sum(epochs > level for epochs in furthest)
            if ahead < N_FULL and (job := self._continue_best(runs, level, epochs_left)):
                return job

        # 2. Then the jobs of a plan that are still open, and a new plan whenever it is empty.
        while True:
            while self._jobs:
                job = self._jobs.popleft()
                is_affordable = job.until is None or self._fits(job.begun, epochs_left)
                if _is_open(job, runs) and is_affordable:
                    return job
            if not runs.finished:
                return None  # a running segment has to end first
            self._jobs = deque(self._plan(runs, epochs_left))
            if not self._jobs:
                return None

    def _fits(self, begun: int, epochs_left: float) -> bool:
        """True if the epochs suffice for the rest of a training.

        Only full trainings count for the front.
        """
        return self.fidelities.rest(begun) <= epochs_left

    # --- before the first fit

    def _start(self, runs: Runs, epochs_left: float) -> Job | None:
        """Start the next network of the initial design, or a random one after these."""
        if not self._fits(NEW, epochs_left):
            return None
        if self._initial_design is None:
            rng = np.random.default_rng(self.seed)
            self._initial_design = initial_design(
                self.space, self.n_startup, rng, self._texts, self.predictor()
            )
        unstarted = (network for network in self._initial_design if network not in runs.runs)
        architecture = next(unstarted, None)
        if architecture is None:
            rng = np.random.default_rng([self.seed, len(runs)])
            architecture = random_unseen(self.space, runs.runs.keys(), rng)
        if architecture is None:
            return None
        return Job(architecture, NEW, self.fidelities.levels[0])

    def _continue_best(self, runs: Runs, level: int, epochs_left: float) -> Job | None:
        """Continue the paused network that adds most to the front at this fidelity.

        None if no network is paused there, or if the epochs do not suffice for the rest of its
        training.
        """
        paused = [run for run in runs.paused if run.reached == level]
        if not paused or not self._fits(level, epochs_left):
            return None
        # 1. Losses here, also of the networks that have gone on or are going on.
        ahead = []
        for run in runs.runs.values():
            goes_on = run.running is not None or run.reached > level
            if goes_on and level in run.values:
                ahead.append(run)
        losses = runs.losses([*paused, *ahead], level)  # (paused + ahead, m)
        finite = losses[np.isfinite(losses).all(axis=1)]

        # 2. Hypervolume of the networks ahead together with each paused one.
        best = paused[0]
        if len(finite):
            low = finite.min(axis=0)
            high = finite.max(axis=0)
            scaled = (losses - low) / np.where(high > low, high - low, 1.0)
            of_paused, of_ahead = scaled[: len(paused)], scaled[len(paused) :]
            reference = np.full(losses.shape[1], STARTUP_REFERENCE)
            volumes = []
            for row in of_paused:
                volumes.append(hypervolume(np.vstack([of_ahead, row]), reference))
            best = paused[int(np.argmax(volumes))]
        return Job(best.architecture, level, self.fidelities.after(level))

    # --- by predictions

    def _plan(self, runs: Runs, epochs_left: float) -> list[Job]:
        """Jobs until the next fit: first the networks to stop, then those to train, best first."""
        rng = np.random.default_rng([self.seed, len(runs), runs.epochs])

        # 1. Fit the predictor to all values so far.
        started = self._examples(runs)
        targets = self._targets(started)
        predictor = self.predictor()
        inputs = self._texts.inputs(predictor, [run.architecture for run in started])
        fitted = predictor.fit(inputs, targets)
        self._fit_feasibility(runs)

        # 2. What could be trained next: paused networks first, then new ones.
        paused = [run for run in runs.paused if self._fits(run.reached, epochs_left)]
        new = []
        if self._fits(NEW, epochs_left):
            for network in self._new(fitted, runs, rng):
                measured = runs.runs.get(network)  # perhaps, before it was chosen
                new.append(measured or Run(network))
        options = [*paused, *new]
        if not options:
            return []

        # 3. The jobs; with a shortlist, new networks only from those that measurements leave.
        seed = int(rng.integers(2**31))
        columns = list(targets)
        count = DECISIONS + len(runs) // NETWORKS_PER_DECISION
        size = count if self.shortlist is None else self.shortlist.size(count, fitted)
        jobs, is_hopeless = self._choose(fitted, options, len(paused), columns, runs, size, seed)
        if size > count:
            left = self._measure_shortlist(jobs, runs)
            options = [*paused, *left]
            if not options:
                return []
            jobs, is_hopeless = self._choose(
                fitted, options, len(paused), columns, runs, count, seed
            )

        # 4. A paused network of which no sample improves the front is stopped for good.
        stops = []
        for run, is_stopped in zip(paused, is_hopeless, strict=False):  # new networks follow
            if is_stopped:
                stops.append(Job(run.architecture, run.reached, None))
        return [*stops, *jobs]

    def _choose(
        self,
        fitted: Predictor,
        options: Sequence[Run],
        paused: int,
        columns: list[str],
        runs: Runs,
        count: int,
        seed: int,
    ) -> tuple[list[Job], np.ndarray]:
        """Choose by expected improvement per cost.

        Args:
            fitted: the predictor.
            options: n trainings, which may not have started.
            paused: number of paused ones, which come first.
            columns: the predictor's metrics.
            runs: all trainings.
            count: jobs to choose at most.
            seed: of the samples.

        Returns:
            The jobs, best first, and a mask (n,) of options of which no sample improves the front.
        """
        # 1. Sample the rest of their learning curves.
        curves = self._sample_curves(fitted, options, columns, seed)

        # 2. The hypervolume that each sample adds if the network is trained fully. Losses are
        #    scaled by the front that all started networks are expected to have by then.
        finished = runs.losses(runs.finished, self.fidelities.last)  # (finished, m)
        front = finished[non_dominated(finished)]
        expected = np.empty((0, finished.shape[1]))
        if paused:
            medians = np.median(curves.final[:paused], axis=1)  # (paused, M)
            expected = self.reader.losses(medians)
        typical = np.vstack([finished[np.isfinite(finished).all(axis=1)], expected])
        ideal, reference = infer_reference_point(typical[non_dominated(typical)], typical)
        unit = reference - ideal
        losses = (self.reader.losses(curves.final) - ideal) / unit  # (n, s, m)
        weights = (self.reader.violation(curves.final) <= 0).astype(float)  # (n, s)
        weights *= self._feasibility([run.architecture for run in options])[:, None]
        region = free_region((front - ideal) / unit, np.ones(len(unit)))

        # 3. The cost of the next segment, which is certain, and of the rest.
        jobs = []
        for run, samples in zip(options, curves.final, strict=True):
            until = self.fidelities.after(run.reached)
            jobs.append(Job(run.architecture, run.reached, until, self.reader.summary(samples)))
        segments = [self.fidelities.epochs(job.begun, job.until or 0) for job in jobs]
        rests = [self.fidelities.rest(job.until or 0) for job in jobs]

        # 4. Choose by improvement per cost.
        chosen, is_hopeless = choose_by_ratio(
            losses,
            weights,
            region,
            order=curves.following.argsort(axis=1, kind="stable"),
            segment_costs=curves.epoch_costs * segments,
            rest_costs=curves.epoch_costs * rests,
            count=min(len(jobs), count),
        )
        return [jobs[i] for i in chosen], is_hopeless

    def _measure_shortlist(self, jobs: Sequence[Job], runs: Runs) -> list[Run]:
        """Measure the cheap metrics of the new networks among the jobs, of duplicates once.

        Returns:
            New networks that are measured and may be trained.
        """
        assert self.shortlist is not None
        # 1. New networks: those that are measured already, and one of each other text.
        new = [job for job in jobs if job.begun == NEW]
        measured = [runs.runs[job.architecture] for job in new if job.architecture in runs.runs]
        seen = set(self._texts([run.architecture for run in measured]))
        texts = self._texts([job.architecture for job in new])
        unmeasured: dict[str, Job] = {}
        for job, text in zip(new, texts, strict=True):
            if text not in seen:
                unmeasured.setdefault(text, job)

        # 2. Measure the others.
        predicted = {job.architecture: job.predicted for job in unmeasured.values()}
        values = self.shortlist.add(predicted, predicted)  # by architecture and metric
        added = [Run(architecture, {NEW: metrics}) for architecture, metrics in values.items()]
        return [*measured, *added]

    def _fit_feasibility(self, runs: Runs) -> None:
        """Learn from the networks that failed.

        Those that were only measured count as successes as long as no training has failed.
        """
        failed = [run for run in runs.runs.values() if run.failed]
        has_failed_training = any(not run.ruled_out for run in failed)
        succeeded = []
        for run in runs.runs.values():
            if run.failed or not run.values:
                continue
            is_only_measured = run.reached == NEW
            if not (is_only_measured and has_failed_training):
                succeeded.append(run.architecture)
        self._feasibility.fit(succeeded, [run.architecture for run in failed])

    def _examples(self, runs: Runs) -> list[Run]:
        """Networks with values that the predictor learns from.

        Of those that were only measured, these are the latest while there are few examples.
        """
        examples = []
        only_measured = []
        for run in runs.runs.values():
            if run.is_measured_only:
                only_measured.append(run)
            elif run.values:
                examples.append(run)
        return [*examples, *learned_of_measured(only_measured, len(examples))]

    def _new(self, fitted: Predictor, runs: Runs, rng: np.random.Generator) -> list[Architecture]:
        """The best new networks by estimates at the first fidelity.

        The predictor has most examples there.
        """
        level = self.fidelities.levels[0]
        names = [self._key(metric, level) for metric in self.reader.metrics]

        def rank(architectures: Sequence[Architecture]) -> np.ndarray:
            inputs = self._texts.inputs(fitted, architectures)
            values = fitted.estimate(inputs, names)  # (n, M)
            # Constraints on metrics that need training are those on a full training.
            still_open = self.trained if level < self.fidelities.last else ()
            violation = self.reader.violation(values, without=still_open)
            obstacles = violation + self._feasibility.doubts(architectures)  # (n,)
            is_feasible = obstacles[:, None] <= 0
            losses = np.where(is_feasible, self.reader.losses(values), np.inf)
            return best_order(losses).argsort().astype(float)

        started = {network for network, run in runs.runs.items() if not run.is_measured_only}
        stored = [network for network in self._candidates if network not in started]
        evolved = evolve(
            self.space,
            start=[run.architecture for run in self._examples(runs) if not run.is_measured_only],
            seen={*runs.runs, *stored},
            size=FRESH,
            rank=rank,
            rng=rng,
            accept=self._texts.can_be_written,
        )
        candidates = self._without_repetitions(evolved + stored, runs)
        if candidates:
            candidates = [candidates[i] for i in best_first(rank(candidates), rng)]
        self._candidates = candidates[:FRESH]
        self._texts.forget_all_but((*runs.runs, *self._candidates))
        return candidates[:CANDIDATES]

    def _without_repetitions(
        self, candidates: list[Architecture], runs: Runs
    ) -> list[Architecture]:
        """Drop duplicates of started networks.

        They are kept if trainings of duplicates have had different accuracies.
        """
        started = []
        for network, run in runs.runs.items():
            if not run.is_measured_only and self._texts.can_be_written(network):
                started.append(network)
        results = []
        for architecture, text in zip(started, self._texts(started), strict=True):
            for level, values in runs.runs[architecture].values.items():
                if level != NEW:
                    accuracies = [values[metric] for metric in self.accuracies]
                    results.append(((text, level), accuracies))
        return without_repetitions(candidates, self._texts, started, results)

    def _sample_curves(
        self, fitted: Predictor, runs: Sequence[Run], columns: list[str], seed: int
    ) -> _Curves:
        """Joint samples of the rest of learning curves, given the known values.

        Args:
            fitted: the predictor.
            runs: n trainings, which may not have started.
            columns: the predictor's metrics.
            seed: of the samples.
        """
        # 1. What is known of at least one network conditions the samples.
        conditions = {}
        for name in columns:
            values = np.array([self._value(run, name) for run in runs])  # (n,)
            if not np.isnan(values).all():
                conditions[name] = values
        inputs = self._texts.inputs(fitted, [run.architecture for run in runs])
        prediction = fitted.predict(inputs, columns, given=conditions, samples=SAMPLES, seed=seed)
        drawn = prediction.samples  # (n, s, columns)
        by_name = {name: drawn[:, :, i] for i, name in enumerate(columns)}  # (n, s) each

        # 2. Values after full training.
        last = [self._key(metric, self.fidelities.last) for metric in self.reader.metrics]
        final = np.stack([by_name[name] for name in last], axis=2)  # (n, s, M)

        # 3. The first trained objective at the next fidelity, by which a training goes on or not.
        objectives = self.reader.objectives
        leading = next(objective for objective in objectives if objective.name in self.trained)
        following = np.empty(final.shape[:2])
        for row, run in enumerate(runs):
            level = self.fidelities.after(run.reached)
            assert level is not None
            name = self._key(leading.name, level)
            if name not in by_name:  # no network has reached this fidelity
                name = self._key(leading.name, self.fidelities.last)
            following[row] = leading.sign * by_name[name][row]

        # 4. Cost of an epoch.
        epoch_costs = np.ones(len(runs))
        if EPOCH_COST in by_name:
            epoch_costs = np.median(by_name[EPOCH_COST], axis=1)
        return _Curves(final, following, np.maximum(epoch_costs, MIN_EPOCH_COST))

    # --- the predictor's metrics

    def _targets(self, runs: Sequence[Run]) -> dict[str, np.ndarray]:
        """Values (n,) by metric and fidelity, NaN where unknown, and the cost of an epoch.

        Mostly the best networks are continued. From their values alone, a predictor would take all
        networks for good ones at the next fidelity: those of the others are extrapolated.
        """
        targets = {}
        for metric in self.reader.metrics:
            before: np.ndarray | None = None
            for level in self.fidelities.levels:
                name = self._key(metric, level)
                values = np.array([self._value(run, name) for run in runs])  # (n,)
                if before is not None and metric in self.trained:
                    values = extrapolated(before, values)
                targets[name] = before = values
        epoch_costs = np.array([run.epoch_cost for run in runs])
        if np.nanmax(epoch_costs) > np.nanmin(epoch_costs):
            targets[EPOCH_COST] = epoch_costs
        return {name: values for name, values in targets.items() if not np.isnan(values).all()}

    def _key(self, metric: str, level: int) -> str:
        """Name of a metric at a fidelity, for the predictor.

        It is the metric's own at the last fidelity, or if the metric needs no training.
        """
        key = self.reader.keys[self.reader.metrics.index(metric)]
        if metric not in self.trained or level == self.fidelities.last:
            return key
        name, colon, kind = key.partition(":")
        return at_fidelity(name, level) + colon + kind

    def _value(self, run: Run, key: str) -> float:
        """A network's value of one of the predictor's metrics; NaN if it is unknown."""
        if key == EPOCH_COST:
            return run.epoch_cost
        for metric in self.reader.metrics:
            for level, values in run.values.items():
                if metric in values and self._key(metric, level) == key:
                    return values[metric]
        return np.nan


class _Curves(NamedTuple):
    """Joint samples of the rest of n learning curves.

    Attributes:
        final: (n, s, M) values after full training.
        following: (n, s) loss of the first trained objective at the next fidelity.
        epoch_costs: (n,) cost of an epoch.
    """

    final: np.ndarray
    following: np.ndarray
    epoch_costs: np.ndarray


def _is_open(job: Job, runs: Runs) -> bool:
    """True if the network is still where it was when the job was planned."""
    run = runs.runs.get(job.architecture)
    if run is None:
        return job.begun == NEW
    return run.reached == job.begun and run.running is None and not run.ended
