"""Runs and reopens searches with several samplers and seeds: on a benchmark, by measurements, or by
predictions.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import optuna
from optuna.trial import TrialState

from nas.benchmarks import Benchmark, load_benchmark
from nas.comparison.folders import claim, searched_table
from nas.comparison.studies import Studies
from nas.evaluation.journal import LOG_NAME, log_to
from nas.search.confirming import check_confirm, confirm_front
from nas.search.duration import Announce, DurationForecast, workload
from nas.search.evaluators import Evaluator, PredictionEvaluator, TableEvaluator
from nas.search.measured_evaluator import MeasuredEvaluator
from nas.search.multi_fidelity import check_policy
from nas.search.objectives import Constraint, parse_constraints, parse_objectives
from nas.search.pareto import Reference
from nas.search.prior import read_prior_observations
from nas.search.progress import labelled
from nas.search.samplers import check_sampler, is_guided
from nas.search.search import run_search
from nas.search.settings import SearchSettings
from nas.search.study.load import is_untrusted, load_studies, read_study
from nas.search.study.provenance import provenance_of
from nas.search.study.result import SearchResult
from nas.search.study.schema import (
    REPEAT_KEY,
    RULED_OUT_KEY,
    SearchAttributes,
    sampler_label,
)
from nas.search.study.trials import TrialReader, log_missing
from nas.search.tracking import check_trackers, tracking
from nas.search.trainings import EPOCHS, SECONDS
from predictors.metrics import Metric
from search_spaces import SearchSpace
from search_spaces.common.errors import InputError
from search_spaces.common.progress import Progress
from search_spaces.common.seeds import check_seed

if TYPE_CHECKING:
    from nas.search.own_evaluator import FunctionEvaluator
    from nas.search.prior import PriorObservations

log = logging.getLogger(__name__)


class Budget(NamedTuple):
    """Fidelities and budget of a search by cost, see `nas.search`."""

    fidelities: tuple[int, ...]
    budget: float
    cost: str = EPOCHS

    @property
    def metrics(self) -> list[str]:
        """The metric that measures cost; empty if cost is counted in epochs or seconds."""
        return [] if self.cost in (EPOCHS, SECONDS) else [self.cost]


class SearchOptions(NamedTuple):
    """Options that apply to each search.

    Args:
        prior: CSV file of prior observations.
        seconds: time limit, see `nas.search`; with 0, searches are only prepared for workers, also
            by cost.
        patience: stop without improvement, see `nas.search`.
        storage: URL of one storage for all searches; None for a journal per search in the result
            folder.
        study: prefix of the study names in a storage.
        jobs: processes per search.
        track: experiment trackers (`nas.search.tracking`), in which a run is named
            FOLDER-SAMPLER-SEED.
        arguments: of the command, for the folder's record (`nas.comparison.folders`).
        budget: for searches by cost; None to train every evaluated network to the end.
        depends: files and folders whose contents the search depends on, see `nas.search`.
        confirm: fresh trainings of each network of the front at the end.
        measure: measured networks per training, see `nas.search`; of guided searches only.
        cheap: metrics of a table that count as measured (`nas.search.evaluators.TableEvaluator`).
        announce: called with estimates of how long all searches will take
            (`nas.search.duration`), which are also in the log.
    """

    prior: Path | None = None
    seconds: float = math.inf
    patience: float = math.inf
    storage: str | None = None
    study: str = "search"
    jobs: int = 1
    track: tuple[str, ...] = ()
    arguments: Mapping[str, Any] = {}
    budget: Budget | None = None
    depends: tuple[Path, ...] = ()
    confirm: int = 0
    measure: int | None = None
    cheap: tuple[str, ...] | None = None
    announce: Announce | None = None

    @property
    def prepares(self) -> bool:
        """True if searches are only stored, for workers."""
        return self.seconds <= 0

    def kept(self, folder: Path, label: str) -> tuple[str | Path, str]:
        """Storage and study name of the search `SAMPLER-SEED`."""
        if self.storage is None:
            return folder / "studies" / f"{label}.journal", "search"
        return self.storage, f"{self.study}-{label}"


DEFAULT_OPTIONS = SearchOptions()


class Prepared(Exception):
    """Searches were stored for workers, and nothing has been evaluated yet.

    Attributes:
        searches: storage and study name of each.
    """

    def __init__(self, searches: Sequence[tuple[str | Path, str]]) -> None:
        super().__init__(f"{len(searches)} searches are prepared")
        self.searches = searches


def run_studies(
    benchmark: Benchmark | str,
    objectives: str,
    samplers: Sequence[str],
    evaluations: int,
    seeds: Iterable[int],
    folder: Path,
    constraints: Sequence[str] = (),
    progress: Progress | None = None,
    sampler_options: Mapping[str, Any] | None = None,
    options: SearchOptions = DEFAULT_OPTIONS,
) -> Studies:
    """Run or resume searches that look values up in a benchmark.

    Each search stores its study in `folder/studies/SAMPLER-SEED.journal`, unless the options name a
    storage.

    Args:
        benchmark: the table, or its name.
        objectives: metrics separated by commas, see `nas.search.objectives.parse_objectives`.
        samplers: names of samplers and predictors; of a predictor in a file, `FILE.py:CLASS`.
        evaluations: number of evaluations of each search.
        seeds: one search per sampler and seed.
        folder: result folder.
        constraints: such as `"cpu_latency_ms <= 8"`.
        progress: see `nas.search`.
        sampler_options: of samplers with a predictor (`nas.search.sampler.PredictorSampler`), such
            as `refit_every`.
        options: of each search.

    Raises:
        InputError: an argument is invalid, or the folder holds other searches.
    """
    table = load_benchmark(benchmark) if isinstance(benchmark, str) else benchmark
    reader = _reader(table.space, objectives, constraints)
    paid = options.budget.metrics if options.budget else []
    metrics = list(dict.fromkeys([*reader.metrics, *paid]))
    evaluator = TableEvaluator(table, metrics, options.cheap)
    reference = _truth(table, reader.objectives, reader.constraints)
    if table.header.by_text and table.header.is_whole:
        # Networks are looked up by text; the first time, all texts take half a minute
        table.load_texts(progress)
    searches = _Searches(reader, evaluator, evaluations, folder, options, sampler_options)
    results = _run_all(searches, samplers, seeds, progress)
    return Studies(reader.objectives, reference, results, table)


def run_measured_studies(
    evaluator: MeasuredEvaluator | FunctionEvaluator,
    objectives: str,
    samplers: Sequence[str],
    evaluations: int,
    seeds: Iterable[int],
    folder: Path,
    constraints: Sequence[str] = (),
    progress: Progress | None = None,
    point: Sequence[float] | None = None,
    options: SearchOptions = DEFAULT_OPTIONS,
) -> Studies:
    """Run or resume searches that measure every evaluated network.

    The true front is unknown, so hypervolume ratios and IGD+ refer to the best front of all these
    searches together. Trained weights of each front are stored in
    `folder/studies/weights/SAMPLER-SEED`. All other arguments are as in `run_studies`.

    Args:
        evaluator: measures the metrics of objectives and constraints.
        point: reference point of the hypervolume, one value per objective in its own unit; by
            default the worst measured value of each objective.

    Raises:
        InputError: an argument is invalid, the folder's searches were begun with other settings, or
            no network has finite values.
    """
    reader = _reader(evaluator.space, objectives, constraints)
    if point is not None and len(point) != len(reader.objectives):
        raise InputError(
            f"the reference point has {len(point)} values for {len(reader.objectives)} objectives"
        )
    searches = _Searches(reader, evaluator, evaluations, folder, options)
    return _against_best(_run_all(searches, samplers, seeds, progress), point)


def run_predicted_studies(
    space: SearchSpace,
    checkpoint: str,
    objectives: str,
    samplers: Sequence[str],
    evaluations: int,
    seeds: Iterable[int],
    folder: Path,
    constraints: Sequence[str] = (),
    progress: Progress | None = None,
    options: SearchOptions = DEFAULT_OPTIONS,
) -> Studies:
    """Run or resume searches that take a predictor's values and measure nothing.

    Args:
        space: the search space.
        checkpoint: folder of a fitted predictor, or the name of a shipped one.

    All other arguments are as in `run_studies`.
    """
    reader = _reader(space, objectives, constraints)
    evaluator = PredictionEvaluator.load(checkpoint, space, reader.metrics)
    searches = _Searches(reader, evaluator, evaluations, folder, options)
    return _against_best(_run_all(searches, samplers, seeds, progress))


def _reader(space: SearchSpace, objectives: str, constraints: Sequence[str]) -> TrialReader:
    return TrialReader(space, parse_objectives(objectives), parse_constraints(constraints))


def open_studies(
    source: str | Path,
    benchmark: str | None = None,
    name: str | None = None,
    space: str | None = None,
    trust: bool = False,
    options: Mapping[str, Any] | None = None,
) -> Studies:
    """Open searches, finished or not, or other Optuna studies, for plots and reports.

    Args:
        source: a result folder or a storage.
        benchmark: the searched table, if the folder does not record it. Without a table, fronts are
            compared with the best front found.
        name: one of the storage's studies.
        space: see `nas.search.study.load.read_study`.
        trust: see `nas.search.study.load.read_study`.
        options: see `nas.search.study.load.read_study`.

    Raises:
        InputError: there are no studies, nothing has been evaluated, or the studies have different
            objectives.
    """
    # 1. The studies, and the table that a folder says they searched.
    folder = Path(source)
    table_settings: dict[str, Any] = {}
    if folder.is_dir():
        journals = sorted((folder / "studies").glob("*.journal"))
        if not journals:
            raise InputError(
                f"{folder} has no searches: give a result folder of `nas search`, or a storage"
            )
        studies = [study for journal in journals for study in load_studies(journal)]
        table_settings = searched_table(folder)
        if space is not None and table_settings.get("space"):
            table_settings["space"] = space
        elif is_untrusted(table_settings.get("space"), trust):
            table_settings = {}
    else:
        studies = load_studies(source, name)

    # 2. Their results, of each sampler in the order in which the searches began.
    read = [read_study(study, space, trust, options) for study in studies]
    evaluated = [result for result in read if result.evaluated.architectures]
    if not evaluated:
        raise InputError(f"{source}: nothing has been evaluated yet")
    first = evaluated[0]
    results: dict[str, list[SearchResult]] = {}
    for result in sorted(evaluated, key=_started):
        if result.objectives != first.objectives:
            pair = f"{first.study.study_name!r} and {result.study.study_name!r}"
            raise InputError(
                f"{source}: the studies {pair} have different objectives: give --study"
            )
        settings = SearchAttributes.of(result.study).settings
        label = sampler_label(settings.get("sampler", result.study.study_name))
        results.setdefault(label, []).append(result)

    # 3. They are compared with the table's true front, or with the best that they found together.
    if benchmark is None and not table_settings:
        return _against_best(results)
    if benchmark is not None:
        table_settings["benchmark"] = benchmark
    table = load_benchmark(**table_settings)
    constraints = parse_constraints(SearchAttributes.of(first.study).settings.get("constraints"))
    reference = _truth(table, first.objectives, constraints)
    return Studies(first.objectives, reference, results, table)


def _why_nothing(results: Sequence[SearchResult]) -> str:
    """One line that says why no network was evaluated to the end."""
    trials = [trial for result in results for trial in result.study.get_trials(deepcopy=False)]
    ruled_out = [network for result in results for network in result.ruled_out]
    if ruled_out and all({RULED_OUT_KEY, REPEAT_KEY} & trial.user_attrs.keys() for trial in trials):
        return (
            f"none of {len(ruled_out)} networks was trained: each breaks a constraint, the last "
            f"one {ruled_out[-1].reason}"
        )
    return "no network was evaluated to the end: give the search more time or a larger budget"


def _started(result: SearchResult) -> float:
    """Start time of a search in seconds since the epoch; 0 without trials."""
    times = [
        trial.datetime_start
        for trial in result.study.get_trials(deepcopy=False)
        if trial.datetime_start
    ]
    return min((time.timestamp() for time in times), default=0.0)


def _truth(
    table: Benchmark, objectives: Sequence[Metric], constraints: Sequence[Constraint]
) -> Reference:
    """The true front of the rows that satisfy the constraints, or of all rows if none does."""
    values = np.stack([table.values(objective.name) for objective in objectives], axis=1)  # (n, m)
    satisfies = np.full(len(values), True)
    for constraint in constraints:
        satisfies &= constraint.violation(table.values(constraint.metric)) <= 0
    return Reference.of_table(_finite(values, satisfies), objectives)


def _finite(values: np.ndarray, preferred: np.ndarray) -> np.ndarray:
    """The finite rows of values (n, m) among the preferred ones, a mask (n,).

    All finite rows if none of these is preferred.
    """
    is_finite = np.isfinite(values).all(axis=1)
    is_both = is_finite & preferred
    return values[is_both if is_both.any() else is_finite]


def _against_best(
    results: dict[str, list[SearchResult]], point: Sequence[float] | None = None
) -> Studies:
    """Compare searches with the best front that they found together, without a known true front."""
    # 1. The values of all networks, by default of those that satisfy the constraints.
    every = [result for group in results.values() for result in group]
    feasible = np.concatenate([result.feasible for result in every])  # (n,)
    values = np.concatenate([result.evaluated.values for result in every])  # (n, m)
    values = _finite(values, feasible)
    if not len(values):
        raise InputError(_why_no_values(every))

    # 2. Their best front, and their worst value of each objective.
    objectives = every[0].objectives
    signs = np.array([objective.sign for objective in objectives])
    worst = (values * signs).max(axis=0) * signs
    reference_point = worst if point is None else np.array(point, dtype=float)
    reference = Reference.of_table(values, objectives)
    return Studies(objectives, reference, results, point=reference_point)


def _why_no_values(results: Sequence[SearchResult]) -> str:
    """One line that says why no evaluated network has finite values."""
    first = results[0]
    failures = [failure for result in results for failure in result.failures]
    last = failures[-1]["reason"] if failures else "nothing can be reported"
    if not failures or not SearchAttributes.of(first.study).is_search:
        return f"no trial of study {first.study.study_name!r} has finite values: {last}"
    states = (TrialState.PRUNED,)
    if any(result.study.get_trials(deepcopy=False, states=states) for result in results):
        failed = sum(failure["trials"] for failure in failures)
        return f"{_why_nothing(results)}; {failed} failed, the last: {last}"
    return f"no network of {first.space.name} has values: {last}"


# --- searches one after the other


class _Task(NamedTuple):
    """One search: a sampler, its name in results, and a seed."""

    sampler: str
    name: str
    seed: int

    @property
    def label(self) -> str:
        return f"{self.name}-{self.seed}"


@dataclass(frozen=True)
class _Searches:
    """What all searches of a command have in common.

    Attributes:
        reader: has the space, objectives and constraints.
        evaluator: gives their values.
        evaluations: number of evaluations of each search.
        folder: result folder.
        options: of each search.
        sampler_options: of samplers with a predictor.
    """

    reader: TrialReader
    evaluator: Evaluator
    evaluations: int
    folder: Path
    options: SearchOptions
    sampler_options: Mapping[str, Any] | None = None

    def settings(self, task: _Task, prior: PriorObservations | None) -> SearchSettings:
        """The settings of one search."""
        options = self.options
        storage, study = options.kept(self.folder, task.label)
        weights = None
        if self.evaluator.keeps_weights:
            weights = self.folder / "studies" / "weights" / task.label
        guided = is_guided(task.sampler)
        return SearchSettings(
            sampler=task.sampler,
            seed=task.seed,
            sampler_options=self.sampler_options if guided else None,
            evaluations=self.evaluations,
            **(options.budget._asdict() if options.budget else {}),
            seconds=0 if options.prepares else options.seconds,
            patience=options.patience,
            storage=storage,
            name=study,
            jobs=options.jobs,
            prior=prior,
            weights=weights,
            depends=options.depends,
            measure=options.measure if guided else None,
        )

    def forecasts(self, tasks: Sequence[_Task]) -> list[DurationForecast]:
        """Forecasts that announce how long the searches will take, after a first estimate.

        There are none if the searches are only prepared, or if their budget says it.
        """
        options = self.options
        budget = options.budget
        work = workload(
            self.evaluator,
            len(tasks),
            self.evaluations,
            budget.budget if budget else None,
            budget.cost if budget else EPOCHS,
            jobs=options.jobs,
            limit=options.seconds,
            confirm=options.confirm,
        )
        if work is None or options.prepares:
            return []
        forecast = DurationForecast(self.evaluator, work, options.announce)
        studies = [options.kept(self.folder, task.label) for task in tasks]
        forecast.begin(studies, self.reader.space)
        return [forecast]


def _run_all(
    searches: _Searches, samplers: Sequence[str], seeds: Iterable[int], progress: Progress | None
) -> dict[str, list[SearchResult]]:
    """Run every sampler with every seed, and log trials in `nas.log` of the result folder.

    Returns:
        Results by the sampler's name, in the order of the seeds.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    reader, evaluator = searches.reader, searches.evaluator
    options, folder = searches.options, searches.folder

    # 1. Whatever can be wrong is refused before a folder is made.
    names = _labels(samplers, options.budget is not None, len(reader.objectives))
    tasks = []
    for seed in seeds:
        for sampler, name in zip(samplers, names, strict=True):
            tasks.append(_Task(sampler, name, check_seed(seed)))
    check_trackers(options.track)
    check_confirm(evaluator, options.confirm)
    prior = None
    if options.prior:
        prior = read_prior_observations(
            options.prior, reader.space, evaluator.metrics, evaluator.measured
        )

    # 2. The folder, unless it holds other searches.
    origin = provenance_of(reader, evaluator, options.depends)
    claim(folder, [task.label for task in tasks], origin, options.arguments)

    # 3. One search after the other.
    results: dict[str, list[SearchResult]] = {name: [] for name in names}
    with log_to(folder / LOG_NAME):
        log.info("%s", origin["identity"]["command"])
        forecasts = searches.forecasts(tasks)
        for number, task in enumerate(tasks):
            shown = labelled(progress, f"{task.name}, seed {task.seed}", number, len(tasks))
            run_name = f"{folder.resolve().name}-{task.label}"  # of the trackers
            with tracking(options.track, run_name, reader) as trackers:
                result = run_search(
                    reader.space,
                    reader.objectives,
                    evaluator,
                    searches.settings(task, prior),
                    constraints=reader.constraints,
                    progress=shown,
                    callbacks=[*trackers, *(forecast.note for forecast in forecasts)],
                )
            log_missing(folder / LOG_NAME, task.label, result.study, reader)
            if not options.prepares:
                result = confirm_front(result, evaluator, options.confirm, progress)
            results[task.name].append(result)

    # 4. Searches that were only prepared have no result yet.
    every = [result for group in results.values() for result in group]
    if not any(result.evaluated.architectures for result in every):
        if options.prepares:
            raise Prepared([options.kept(folder, task.label) for task in tasks])
        raise InputError(_why_nothing(every))
    return results


def _labels(samplers: Sequence[str], by_cost: bool, objectives: int) -> list[str]:
    """The samplers' names in results.

    Raises InputError for an unusable sampler and for a repeated name.
    """
    for sampler in samplers:
        if by_cost:
            check_policy(sampler)
        else:
            check_sampler(sampler, objectives)
    names = [sampler_label(sampler) for sampler in samplers]
    if repeated := next((name for name in names if names.count(name) > 1), None):
        raise InputError(
            f"sampler {repeated!r} is given twice: name each once, and give files different names"
        )
    return names
