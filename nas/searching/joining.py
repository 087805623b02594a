"""Stored searches: list them, read them, and join one that another process started."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from nas.searching.by_cost.loop import BUDGET_KEY, CHECKPOINTS_KEY, EPOCHS, SECONDS, run_search_by_cost
from nas.searching.by_cost.policies import check_policy
from nas.searching.by_cost.runs import COST_KEY
from nas.searching.dependencies import moved
from nas.searching.identity import IDENTITY_KEY
from nas.searching.loop import EVALUATIONS_KEY, LIMITS_KEY, SOURCE_KEY, run_search
from nas.searching.objectives import parse_constraints
from nas.searching.prior import PRIOR_KEY
from nas.searching.progress import SearchProgress
from nas.searching.reading import RecordedSpace, is_untrusted, load_studies, read_study
from nas.searching.result import SETTINGS_KEY, SearchResult
from nas.searching.samplers import check_sampler
from nas.searching.sources import open_evaluator
from nas.searching.storage import address, open_storage
from nas.searching.trials import TrialReader
from nas.searching.weights import WEIGHTS_FOLDER_KEY
from search_spaces.common.errors import InputError

if TYPE_CHECKING:
    import optuna
    from optuna.storages import BaseStorage

    from nas.searching.share import Share


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
        storage: see `nas.searching.storage.open_storage`.
        name: the study's name.
        path_override, device: see `nas.searching.sources.open_evaluator`.
        progress: called at the start and after each evaluation.
        trust: run the Python files that the search names as its space, its sampler and its evaluator.
        evaluator: the evaluator's path on this machine, `FILE.py:function`. The file is run.
        weights: folder for the trained weights of the front, by default the one that the search was started with.
        checkpoints: folder for paused trainings, by default the one that the search was started with.
        jobs: number of processes.
        space: the space's path on this machine, `FILE.py:NAME`. The file is run.
        share: what this process may evaluate; it is used up.
        depends: paths on this machine of files that the search depends on, by their names; by default those of the
            process that started it.

    Raises:
        InputError: the storage has no such search, its code is not trusted, or its evaluator or sampler exists only in
            the script that started it.
    """
    study = _load(storage, name)
    source = dict(study.user_attrs.get(SOURCE_KEY, {}))
    if space is not None and source.get("space"):
        source["space"] = space
    elif is_untrusted(source.get("space"), trust):
        raise InputError(f"study {name!r}: its table's space {source['space']} is Python code: give --trust to run it")
    settings, found = study.user_attrs[SETTINGS_KEY], read_study(study, space, trust)
    if isinstance(found.space, RecordedSpace):
        raise InputError(f"study {name!r}: {found.space.reason}")
    if is_untrusted(settings["sampler"], trust):
        raise InputError(f"study {name!r}: its sampler {settings['sampler']} is Python code: give --trust to run it")
    by_cost = "fidelities" in settings
    try:
        (check_policy if by_cost else check_sampler)(settings["sampler"])
    except InputError as error:
        raise InputError(f"study {name!r} uses a sampler that has no name: join it from a script") from error
    metrics = TrialReader(found.space, found.objectives, parse_constraints(settings["constraints"])).metrics
    if by_cost and settings["cost"] not in (EPOCHS, SECONDS, *metrics):
        metrics = (*metrics, settings["cost"])
    if trust and evaluator is None:
        evaluator = source.get("evaluator", {}).get("function")
    if by_cost and checkpoints is None and (stored := study.user_attrs.get(CHECKPOINTS_KEY)):
        checkpoints = Path(stored)
    opened = open_evaluator(source, found.space, metrics, path_override, device, evaluator, checkpoints)
    kept = study.user_attrs.get(WEIGHTS_FOLDER_KEY)
    needed = moved(study.user_attrs.get(IDENTITY_KEY, {}).get("depends", {}), depends)
    if by_cost:
        return run_search_by_cost(
            found.space, settings["objectives"], opened, settings["sampler"], settings["fidelities"],
            study.user_attrs[BUDGET_KEY], settings["cost"], settings["seed"], storage, settings["constraints"],
            progress, name, joins=True, weights=weights or (Path(kept) if kept else None), jobs=jobs, share=share,
            depends=needed,
        )  # fmt: skip
    limits = study.user_attrs.get(LIMITS_KEY, {})
    until, patience = limits.get("until"), limits.get("patience")
    return run_search(
        found.space, settings["objectives"], opened, settings["sampler"], study.user_attrs[EVALUATIONS_KEY],
        settings["seed"], storage, settings["constraints"], progress, name, settings["sampler_options"],
        seconds=math.inf if until is None else until - time.time(),
        patience=math.inf if patience is None else patience,
        joins=True, weights=weights or (Path(kept) if kept else None), jobs=jobs, share=share,
        depends=needed,
    )  # fmt: skip


def list_searches(storage: str | Path | BaseStorage) -> list[str]:
    """Names of the searches in a storage, oldest first."""
    studies = open_storage(storage, existing=True).get_all_studies()
    return [study.study_name for study in studies if SETTINGS_KEY in study.user_attrs]


def is_unfinished(storage: str | Path | BaseStorage, name: str) -> bool:
    """True if a search has evaluations or budget left."""
    study = _load(storage, name)
    if BUDGET_KEY in study.user_attrs:
        spent = sum(trial.user_attrs.get(COST_KEY, 0.0) for trial in study.get_trials(deepcopy=False))
        return bool(spent < study.user_attrs[BUDGET_KEY])
    found = read_study(study).evaluated.architectures
    prior = sum(PRIOR_KEY in trial.user_attrs for trial in study.get_trials(deepcopy=False))
    return len(found) - prior < study.user_attrs.get(EVALUATIONS_KEY, 0)


def read_search(storage: str | Path | BaseStorage, name: str = "search", trust: bool = False) -> SearchResult:
    """The result of a search so far.

    Args:
        storage: see `nas.searching.storage.open_storage`.
        name: the study's name.
        trust: see `nas.searching.reading.read_study`.

    Raises:
        InputError: if the storage has no such search.
    """
    return read_study(_load(storage, name), trust=trust)


def _load(storage: str | Path | BaseStorage, name: str) -> optuna.Study:
    [study] = load_studies(storage, name)
    if SETTINGS_KEY not in study.user_attrs:
        raise InputError(f"study {name!r} in {address(storage)} was not made by a search")
    return study
