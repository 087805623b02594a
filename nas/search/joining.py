"""Join a stored search that another process started, perhaps on another machine."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nas.benchmarks import load_benchmark
from nas.evaluation.measurement import measurement_of
from nas.search.evaluators import PredictionEvaluator, TableEvaluator
from nas.search.measured_evaluator import MeasuredEvaluator
from nas.search.multi_fidelity import check_policy
from nas.search.objectives import metric_names, parse_constraints
from nas.search.own_evaluator import FunctionEvaluator
from nas.search.progress import SearchProgress
from nas.search.samplers import check_sampler
from nas.search.search import run_search
from nas.search.settings import SearchSettings
from nas.search.study.load import RecordedSpace, is_untrusted, load_search_study, read_study
from nas.search.study.provenance import Source, moved
from nas.search.study.result import SearchResult
from nas.search.study.schema import SearchAttributes
from nas.search.trainings import EPOCHS, SECONDS
from search_spaces.common.errors import InputError

if TYPE_CHECKING:
    from optuna.storages import BaseStorage

    from nas.search.evaluators import Evaluator
    from nas.search.study.workers import Share
    from search_spaces import SearchSpace


def join(
    storage: str | Path | BaseStorage,
    name: str = "search",
    path_override: str | None = None,
    device: str = "cpu",
    progress: Callable[[SearchProgress], None] | None = None,
    trust: bool = False,
    evaluator: str | None = None,
    weights: Path | None = None,
    checkpoints: Path | None = None,
    jobs: int = 1,
    space: str | None = None,
    share: Share | None = None,
    depends: Sequence[str | Path] = (),
) -> SearchResult:
    """Work on a search that another process started, until the search reaches its own limits.

    Args:
        storage: see `nas.search.study.storage.open_storage`.
        name: the study's name.
        path_override, device: see `open_evaluator`.
        progress: called at the start and after each evaluation.
        trust: run the Python files that the search names as its space, its sampler and its
            evaluator.
        evaluator: the evaluator's path on this machine, `FILE.py:function`. The file is run.
        weights: folder for the trained weights of the front, by default the one that the search was
            started with.
        checkpoints: folder for paused trainings, by default the one that the search was started
            with.
        jobs: number of processes.
        space: the space's path on this machine, `FILE.py:NAME`. The file is run.
        share: what this process may evaluate; it is used up.
        depends: paths on this machine of files that the search depends on, by their names; by
            default those of the process that started it.

    Raises:
        InputError: the storage has no such search, its code is not trusted, or its evaluator or
            sampler exists only in the script that started it.
    """
    study = load_search_study(storage, name)
    stored = SearchAttributes.of(study)
    settings, source = stored.settings, stored.source

    # 1. Code that the search names is run only if it is trusted: space, sampler, calibration inputs.
    if space is not None and source.get("space"):
        source["space"] = space
    elif is_untrusted(source.get("space"), trust):
        raise InputError(
            f"study {name!r}: its table's space {source['space']} is Python code: give --trust to "
            "run it"
        )
    result = read_study(study, space, trust)
    if isinstance(result.space, RecordedSpace):
        raise InputError(f"study {name!r}: {result.space.reason}")
    if is_untrusted(settings["sampler"], trust):
        raise InputError(
            f"study {name!r}: its sampler {settings['sampler']} is Python code: give --trust to "
            "run it"
        )
    calibration = _measurement_settings(source).get("calibration", {}).get("source")
    if is_untrusted(calibration, trust):
        raise InputError(
            f"study {name!r}: its calibration inputs {calibration} are Python code: give --trust to "
            "run it"
        )
    check = check_policy if stored.has_fidelities else check_sampler
    try:
        check(settings["sampler"])
    except InputError as error:
        raise InputError(
            f"study {name!r} uses a sampler that has no name: join it from a script"
        ) from error

    # 2. The evaluator, of the metrics of objectives, constraints and cost.
    constraints = parse_constraints(settings["constraints"])
    metrics = metric_names(result.objectives, constraints)
    if stored.has_fidelities and settings["cost"] not in (EPOCHS, SECONDS, *metrics):
        metrics = (*metrics, settings["cost"])
    if trust and evaluator is None:
        evaluator = source.get("evaluator", {}).get("function")
    if checkpoints is None and stored.checkpoints:
        checkpoints = Path(stored.checkpoints)
    opened = open_evaluator(
        source, result.space, metrics, path_override, device, evaluator, checkpoints
    )

    # 3. The search itself, with the limits that it was started with.
    if weights is None and stored.weights_folder:
        weights = Path(stored.weights_folder)
    until = stored.limits.get("until", math.inf)
    patience = stored.limits.get("patience", math.inf)
    shared = SearchSettings(
        sampler=settings["sampler"],
        evaluations=stored.evaluations,
        fidelities=settings.get("fidelities"),
        budget=stored.budget or 0.0,
        cost=settings.get("cost", EPOCHS),
        seed=settings["seed"],
        sampler_options=settings["sampler_options"],
        storage=storage,
        name=name,
        seconds=until - time.time(),
        patience=patience,
        weights=weights,
        jobs=jobs,
        joins=True,
        measure=settings.get("measure"),
        depends=moved(stored.identity.get("depends", {}), depends),
    )
    return run_search(
        result.space,
        settings["objectives"],
        opened,
        shared,
        constraints=settings["constraints"],
        progress=progress,
        share=share,
    )


def _measurement_settings(source: Source) -> Mapping[str, Any]:
    """`Measurement.settings` of a source; {} if nothing is measured."""
    settings = source.get("evaluator", source).get("measurement", {})
    return settings if isinstance(settings, Mapping) else {}


def open_evaluator(
    source: Source,
    space: SearchSpace,
    metrics: Sequence[str],
    path_override: str | None = None,
    device: str = "cpu",
    function: str | None = None,
    checkpoints: Path | None = None,
) -> Evaluator:
    """Recreate the evaluator of a source.

    Args:
        source: see `nas.search.evaluators.Evaluator.source`.
        space: the search space.
        metrics: metrics of a table or predictor; a measurement and a function have their own.
        path_override: path of the table, checkpoint or data set on this machine, if it differs.
        device: PyTorch device to train on.
        function: the user's evaluator, `FILE.py:function`, which is run; required if the source is
            one.
        checkpoints: folder for training checkpoints.

    Raises:
        InputError: the data set or function is another one, or the evaluator exists only in the
            script that started the search.
    """
    if "benchmark" in source:
        path = path_override or source["benchmark"]
        return TableEvaluator(
            load_benchmark(path, source.get("space"), source.get("space_options")),
            metrics,
            source.get("cheap"),
        )
    if "predictor" in source:
        return PredictionEvaluator.load(path_override or source["predictor"], space, metrics)
    if "evaluator" in source:
        return FunctionEvaluator.of_settings(
            space, source["evaluator"], function, checkpoints=checkpoints
        )
    if "measurement" not in source:
        raise InputError(
            "only the script that started this search knows its evaluator: run that script again"
        )
    measurement = measurement_of(source["measurement"], space.input_shape, path_override, device)
    return MeasuredEvaluator(space, measurement, checkpoints)
