"""The front doors in Python. Commands of the same names do the same on the command line.

nas.search(problem)          evaluate networks; the result has the Pareto front
nas.load_search(folder)      the result of a search so far, of any process
nas.compare(benchmark, …)    how well predictors rank the networks of a table
nas.report(folder)           one page about the searches of a folder
nas.retrain(folder, …)       train a network of the front for longer
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from nas.comparison.compare import Compared, Comparison
from nas.comparison.compare import compare as run_comparison
from nas.comparison.folders import check_free
from nas.comparison.runs import open_studies
from nas.comparison.studies import Studies
from nas.evaluation.int8 import float_metric
from nas.problem import Benchmark, Problem, load_benchmark
from nas.ranking import rank_networks as rank
from nas.report.folders import save_studies
from nas.search.confirming import check_confirm, confirm_front
from nas.search.prior import PriorObservations, read_prior_observations
from nas.search.progress import SearchProgress
from nas.search.retraining import Quantization, Retraining
from nas.search.retraining import retrain as train_again
from nas.search.search import run_search
from nas.search.settings import SearchSettings
from nas.search.study.files import network_name
from nas.search.study.load import list_searches, read_search
from nas.search.study.result import SearchResult
from nas.search.study.schema import SOURCE_KEY, sampler_label
from nas.search.trainings import EPOCHS
from search_spaces.common.errors import InputError
from search_spaces.common.progress import Progress

if TYPE_CHECKING:
    import optuna
    from optuna.samplers import BaseSampler
    from optuna.storages import BaseStorage

    from predictors import Predictor

__all__ = ["compare", "load_search", "rank", "report", "retrain", "search"]
DEFAULT_EVALUATIONS = 60
Choice = TypeVar("Choice")
Callback = Callable[["optuna.Study", "optuna.trial.FrozenTrial"], None]


def search(
    problem: Problem,
    *,
    sampler: str | BaseSampler = "rlm",
    evaluations: int | None = None,
    seed: int = 0,
    fidelities: Sequence[int] | None = None,
    budget: float | None = None,
    cost: str = EPOCHS,
    storage: str | Path | BaseStorage | None = None,
    out: str | Path | None = None,
    name: str = "search",
    jobs: int = 1,
    known: str | Path | PriorObservations | None = None,
    seconds: float = math.inf,
    patience: float = math.inf,
    weights: str | Path | None = None,
    sampler_options: Mapping[str, Any] | None = None,
    predictor: Callable[[], Predictor] | None = None,
    progress: Callable[[SearchProgress], None] | None = None,
    callbacks: Sequence[Callback] = (),
    depends: Sequence[str | Path] = (),
    confirm: int = 0,
    measure: int | None = None,
) -> SearchResult:
    """Search for the Pareto front of a problem.

    Example:

        >>> import nas
        >>> problem = nas.load_benchmark("digits201").problem({"digits_accuracy": "max", "cpu_latency_ms": "min"})
        >>> result = nas.search(problem, sampler="random", evaluations=20)
        >>> len(result.networks) <= 20, list(result.front)[:3]
        (True, ['architecture', 'digits_accuracy', 'cpu_latency_ms'])

    A network that the sampler proposes again does not count. An evaluation fails if it raises an
    exception or returns a value that is not finite; ten failures in a row end the search. With a
    storage or a folder, an interrupted search resumes, even after SIGKILL, and several processes
    may share it. The same seed gives the same result.

    Args:
        problem: networks, evaluation, objectives and constraints.
        sampler: name of a predictor (rlm, gnn, gp, gp-choices, forest, ridge, `FILE.py:CLASS`), of
            another sampler (nsga2, nsga3, tpe, optuna-gp, random), or any Optuna sampler; with
            fidelities of a predictor, asha, hyperband, random, or `FILE.py:CLASS` of a policy
            (`nas.search.multi_fidelity.Policy`).
        evaluations: number of distinct networks to evaluate, `DEFAULT_EVALUATIONS` by default; prior
            observations do not count. Processes that ask at the same moment for the last one may
            each evaluate one.
        seed: seed of all random choices, except for those of a given Optuna sampler.
        fidelities: rising epochs at which trainings may pause; the last is the full training. Needs
            `budget`.
        budget: total cost of a search with fidelities, in the unit of `cost`, instead of
            `evaluations`. No training starts or goes on that would exceed it at the mean cost of an
            epoch so far, but each further process may add one.
        cost: "epochs", "seconds" (of training, as measured), or a metric that is the cost of an
            epoch.
        storage: None (in memory), a path (journal file), a database URL or an Optuna storage.
        out: folder for the result, with the study's journal (unless a storage is given), the
            front's networks and CSV files. The same search resumes there.
        name: the study's name in the storage.
        jobs: processes that share the search. More than one needs a storage or `out`, a sampler
            given by name, and an evaluation that another process can open (`FILE.py:FUNCTION`).
            GPUs are assigned to them in turn.
        known: prior observations, or their CSV file. They come first and do not count. What needs no
            training may be missing: it is measured, so that accuracies serve on a new device, too.
        seconds: time limit, after which no evaluation starts; not with fidelities. With 0, the search
            is only stored, for workers.
        patience: the search ends after so many evaluations in a row that do not improve the front;
            not with fidelities.
        weights: folder for the trained weights of the front; in `out` by default.
        sampler_options: further options of a sampler given by name (`nas.PredictorSampler`).
        predictor: makes the predictor of each fit of a search with fidelities; by default a new one of
            the sampler's name.
        progress: called with the progress at the start and after each evaluation.
        callbacks: called with the study and each finished trial, as in Optuna's `Study.optimize`.
        depends: files and folders that the evaluation or `build` reads, such as a configuration.
            The search resumes only with the same contents.
        confirm: at the end, the front's networks are trained so many times again with fresh seeds
            (`METRIC_again` in `front`). Latencies of this machine are measured again in any case.
        measure: of a predictor that guides the search: networks per training whose latency and other
            cheap metrics are measured before one of them is chosen; 0 for none. By default 1 to 5,
            as many as the seconds of trainings and measurements so far pay for; of a table without
            cheap columns (`Benchmark.problem`) none.

    Raises:
        InputError: an argument is invalid, or the storage holds another search.
        StorageError: the storage cannot be read or written.
        EvaluatorError: the evaluation broke its contract.
    """
    evaluator = problem.evaluator
    check_confirm(evaluator, confirm)
    label = sampler_label(sampler if isinstance(sampler, str) else type(sampler).__name__)
    folder = None if out is None else Path(out)
    if folder is not None and storage is None:
        storage = folder / "studies" / f"{label}-{seed}.journal"
    if folder is not None and evaluator.keeps_weights:
        if weights is None:
            weights = folder / "studies" / "weights" / f"{label}-{seed}"
        if evaluator.checkpoints is None:
            evaluator = copy(evaluator)  # the problem may serve another search, in another folder
            evaluator.checkpoints = folder / "studies" / "training"
    if fidelities is None:
        _refuse(budget=budget, predictor=predictor, cost=None if cost == EPOCHS else cost)
    else:
        if budget is None or not isinstance(sampler, str):
            raise InputError(
                "fidelities need a budget, as in fidelities=[2, 6], budget=300, and a sampler by "
                "name"
            )
        limits = {"seconds": seconds, "patience": patience}
        unlimited = {name: None if value == math.inf else value for name, value in limits.items()}
        _refuse(
            "with fidelities",
            evaluations=evaluations,
            sampler_options=sampler_options,
            **unlimited,
        )
    settings = SearchSettings(
        sampler=sampler,
        sampler_options=sampler_options,
        predictor=predictor,
        seed=seed,
        measure=measure,
        prior=_prior(known, problem),
        evaluations=DEFAULT_EVALUATIONS if evaluations is None else evaluations,
        fidelities=fidelities,
        budget=budget or 0.0,
        cost=cost,
        seconds=seconds,
        patience=patience,
        storage=storage,
        name=name,
        weights=weights,
        jobs=jobs,
        depends=depends,
    )
    result = run_search(
        problem.space,
        problem.objectives,
        evaluator,
        settings,
        constraints=problem.constraints,
        progress=progress,
        callbacks=callbacks,
    )
    result = confirm_front(result, evaluator, confirm)
    if folder is not None:
        result.save(folder)
    return result


def _refuse(where: str = "without fidelities", **arguments: Any) -> None:
    """Raise InputError for an argument that has a value although it does not apply."""
    for name, value in arguments.items():
        if value is not None:
            raise InputError(f"{name}={value!r} does not apply to a search {where}: leave it out")


def _prior(
    known: str | Path | PriorObservations | None, problem: Problem
) -> PriorObservations | None:
    if known is None or isinstance(known, Mapping):
        return known
    evaluator = problem.evaluator
    return read_prior_observations(
        Path(known), problem.space, evaluator.metrics, evaluator.measured
    )


def load_search(
    source: str | Path | BaseStorage, name: str | None = None, *, trust: bool = False
) -> SearchResult:
    """The result of a stored search, finished or not.

    Example:

        >>> import nas, tempfile
        >>> problem = nas.load_benchmark("digits201").problem("digits_accuracy,params")
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     searched = nas.search(problem, sampler="random", evaluations=5, out=folder)
        ...     len(nas.load_search(folder).networks) == len(searched.networks)
        True

    Args:
        source: a result folder, a journal or SQLite file, a database URL, or an Optuna storage.
        name: the search's name in the storage; of a folder, as in `rlm-0`. It may be left out if
            there is one only.
        trust: run the Python file that the study names as its space, so that networks can be built.

    Raises:
        InputError: there is no such search, or several, and no name is given.
    """
    if isinstance(source, str | Path) and Path(source).is_dir():
        journals = {
            path.stem: path for path in sorted((Path(source) / "studies").glob("*.journal"))
        }
        return read_search(_only(journals, name, str(source)), trust=trust)
    searches = {stored: stored for stored in list_searches(source)}
    return read_search(source, _only(searches, name, str(source)), trust=trust)


def _only(choices: Mapping[str, Choice], name: str | None, source: str) -> Choice:
    """The choice with a name, or the only one."""
    if name is not None and name in choices:
        return choices[name]
    if name is None and len(choices) == 1:
        return next(iter(choices.values()))
    problem = (
        "has no searches"
        if not choices
        else f"has the searches {', '.join(choices)}: give the name of one"
    )
    raise InputError(f"{source} {problem}")


def compare(
    benchmark: str | Benchmark,
    metric: str,
    *,
    predictors: Sequence[str] = ("rlm", "gnn", "gp", "gp-choices", "forest", "ridge"),
    sizes: Sequence[int] = (16, 50, 100),
    seeds: int | None = None,
    first_seed: int = 0,
    test_metric: str | None = None,
    given: Sequence[str] = (),
    journal: str | Path | None = None,
    jobs: int = 1,
    progress: Progress | None = None,
) -> Compared:
    """Compare how well predictors rank the networks of a table that they have not learned.

    Example: Kendall's τ, from -1 to 1, of the ranking that 16 labels give; higher is better.

        >>> import nas
        >>> compared = nas.compare(
        ...     "digits-resnet", "digits_accuracy", predictors=["ridge"], sizes=[16], seeds=2
        ... )
        >>> [(row["predictor"], row["size"], -1 < row["tau"] < 1) for row in compared.rows()]
        [('ridge', 16, True)]

    Args:
        benchmark: a table, or its name or CSV file.
        metric: the metric that the predictors learn, such as `"digits_accuracy"`.
        predictors: names of predictors.
        sizes: numbers of labelled networks.
        seeds: number of random splits; by default that of `nas compare`.
        first_seed: seed of the first split.
        test_metric: metric of the true ranking; the learned one by default.
        given: exact metrics that are known of all networks, such as `"params"`.
        journal: file that keeps finished scores, from which an interrupted comparison resumes.
        jobs: number of processes; it does not change the scores.
        progress: called with the current step, the number of scores done and the total.

    Returns:
        Scores of each predictor, size and seed; `rows()` has means and standard deviations.

    Raises:
        InputError: an argument is invalid, or the journal belongs to another comparison.
    """
    table = load_benchmark(benchmark) if isinstance(benchmark, str) else benchmark
    repeats = {} if seeds is None else {"seeds": seeds}
    settings = Comparison(
        table.name,
        metric,
        test_metric or metric,
        tuple(predictors),
        tuple(sizes),
        given=tuple(given),
        first_seed=first_seed,
        **repeats,
    )
    return run_comparison(
        settings, table, None if journal is None else Path(journal), progress, jobs
    )


def report(
    source: str | Path,
    *,
    out: str | Path | None = None,
    benchmark: str | None = None,
    study: str | None = None,
    space: str | None = None,
    space_options: Mapping[str, Any] | None = None,
    trust: bool = False,
) -> Studies:
    """Write a page about searches, `report.html`.

    The front's networks, CSV files and figures are written beside it.

    Example:

        >>> import nas, tempfile
        >>> from pathlib import Path
        >>> problem = nas.load_benchmark("digits201").problem("digits_accuracy,params")
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     result = nas.search(problem, sampler="random", evaluations=5, out=folder)
        ...     searches = nas.report(folder)
        ...     (Path(folder) / "report.html").is_file()
        True

    Args:
        source: a result folder of searches, or a storage.
        out: folder for the report; the result folder by default.
        benchmark: the searched table, if the folder does not record it.
        study: name of one study of the storage.
        space: name or `FILE.py:NAME` of the searches' space, if they do not record it or it has
            moved.
        space_options: options of this space.
        trust: run the Python files that the studies name, so that networks can be built.

    Returns:
        The searches together: `front` and `networks` as DataFrames, `table()` and `summary()`.

    Raises:
        InputError: the source has no searches, or `out` is missing or holds other searches.
    """
    if out is None and not Path(source).is_dir():
        raise InputError(f"{source} is not a folder: give out=, a folder to write to")
    folder = Path(source if out is None else out)
    studies = open_studies(source, benchmark, study, space, trust, space_options)
    if folder != Path(source):
        check_free(folder, [result.study for result in studies.searches])
    save_studies(folder, studies)
    return studies


def retrain(
    source: str | Path,
    point: int,
    *,
    epochs: int | None = None,
    training: Mapping[str, Any] | None = None,
    dataset: str | None = None,
    evaluator: str | None = None,
    device: str = "cpu",
    study: str | None = None,
    space: str | None = None,
    out: str | Path | None = None,
    trust: bool = False,
    progress: Progress | None = None,
    int8: bool = False,
    int8_epochs: int | None = None,
    calibration: str | None = None,
) -> dict[str, Any]:
    """Train a network of the front again, with the search's data, split and seed.

    The training usually has more epochs. The network is perhaps quantized to 8-bit integers.

    Example: a search trains for one epoch, and the first network of its front then for two.

        >>> import nas, tempfile
        >>> from nas.evaluation.tasks import TrainingTask
        >>> once = TrainingTask(epochs=1)
        >>> measurement = nas.Measurement(("digits_accuracy",), nas.load_dataset("digits"), training=once)
        >>> space = nas.load_benchmark("digits201").space
        >>> problem = nas.Problem(space, measurement, {"digits_accuracy": "max"})
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     result = nas.search(problem, sampler="random", evaluations=1, out=folder)
        ...     retrained = nas.retrain(folder, 0, epochs=2)
        >>> sorted(retrained["values"])  # in %
        ['digits_accuracy', 'digits_test_accuracy']

    Args:
        source: the result folder of a search.
        point: number of the network on the front, as in `front/NN.onnx`.
        epochs: epochs of training; those of the search by default.
        training: further settings that replace those of the search.
        dataset: path of the data set, if it has moved or if the search trained nothing.
        evaluator: `FILE.py:FUNCTION` of the search's evaluation on this machine; the file is run.
        device: PyTorch device to train on.
        study: name of one study of a storage.
        space: name or `FILE.py:NAME` of the search's space, if it has moved.
        out: folder for the network's files; `retrained/NN` in the result folder by default.
        trust: run the Python files that the search names.
        progress: called with "epochs", the epochs done and the epochs in total.
        int8: also write `NN.int8.onnx`, the quantized network, and measure this file. A search by
            scores after quantization does so in any case.
        int8_epochs: epochs of quantization-aware fine-tuning where static quantization loses more
            than 1 % of the score; 2 by default, 0 for none.
        calibration: inputs that set the ranges of activations: a data set, or `FILE.py:NAME` of an
            array or a function that returns one; inputs of the training by default.

    Returns:
        `folder` and `name` of the files, the network as `searched`, and its `architecture`,
        `training` settings and `values` by metric after the training; with `int8` also `int8`: its
        `method`, and `values` of the int8 file and of the float file in ONNX Runtime.

    Raises:
        InputError: there is no such network, or the search trained nothing and no data set is
            given.
    """
    studies = open_studies(source, None, study, space, trust)
    if studies.not_built:
        raise InputError(studies.not_built)
    front = studies.front_networks
    if not 0 <= point < len(front):
        raise InputError(
            f"network {point}: the front of {source} has networks 0 to {len(front) - 1}"
        )
    _check_order(Path(source), studies)
    if out is None and not Path(source).is_dir():
        raise InputError(f"{source} is not a folder: give out=, a folder to write to")
    network = front[point]
    name = network_name(point, len(front))
    search_result = studies.searches[network.representative.search]
    origin = search_result.study.user_attrs.get(SOURCE_KEY, {})
    if trust and evaluator is None:
        evaluator = origin.get("evaluator", {}).get("function")
    settings = dict(training or {}) | ({} if epochs is None else {"epochs": epochs})
    changes = Retraining(
        settings, device, dataset, evaluator,
        _quantization(search_result, int8, int8_epochs, calibration), tuple(studies.objectives),
    )  # fmt: skip
    folder = Path(source) / "retrained" / name if out is None else Path(out)
    summary = train_again(
        search_result.space, network.architecture, origin, changes, folder / name, progress
    )
    searched = network.summary(studies.objectives)
    return {"folder": str(folder), "name": name, "searched": searched, **summary}


def _quantization(
    result: SearchResult, int8: bool, epochs: int | None, calibration: str | None
) -> Quantization | None:
    """How a network is quantized; None if neither the user nor the search's metrics want it."""
    chosen = {"epochs": epochs, "calibration": calibration}
    settings: dict[str, Any] = {name: value for name, value in chosen.items() if value is not None}
    if int8 or any(float_metric(metric.name) for metric in result.objectives):
        return Quantization(**settings)
    if settings:
        option = "calibration" if epochs is None else "int8_epochs"
        raise InputError(f"{option} applies to a quantized network: add int8 (--int8)")
    return None


def _check_order(folder: Path, studies: Studies) -> None:
    """Raise InputError if `front.csv` is older than the search, so that network numbers differ."""
    if not (folder / "front.csv").is_file():
        return
    with (folder / "front.csv").open(newline="") as file:
        written = [row["architecture"] for row in csv.DictReader(file)]
    if written != [row["architecture"] for row in studies.front_rows]:
        raise InputError(
            f"{folder / 'front.csv'} is older than the search: run nas report {folder} and choose "
            "again"
        )
