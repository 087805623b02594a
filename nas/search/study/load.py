"""Stored searches: list them, and read any Optuna study as the result of a search, with or without
its space. The storage is not changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import optuna
from optuna.study import StudyDirection
from optuna.trial import TrialState

from nas.search.objectives import parse_constraints, parse_objectives
from nas.search.study.result import SearchResult
from nas.search.study.schema import SETTINGS_KEY, SPACE_KEY, SearchAttributes, TrialAttributes
from nas.search.study.storage import address, open_storage
from nas.search.study.trials import TrialReader
from predictors.metrics import Metric
from search_spaces import Architecture, SearchSpace, get_space
from search_spaces.common import plug_ins
from search_spaces.common.errors import InputError
from search_spaces.parameter_names import plain_names

if TYPE_CHECKING:
    import optuna
    from optuna.storages import BaseStorage

    from search_spaces.domains import Choice


class RecordedSpace(SearchSpace):
    """Stands for a space whose code is missing or not trusted.

    Its architectures are choices that cannot be built.

    Attributes:
        reason: why not, and the remedy, in one line.
    """

    def __init__(self, name: str, reason: str) -> None:
        super().__init__()
        self.name = name
        self.reason = reason

    def architecture(self, choices: Mapping[str, Choice], others: bool = False) -> Architecture:
        return Architecture(self.name, tuple(plain_names(choices).items()))


def load_studies(storage: str | Path | BaseStorage, name: str | None = None) -> list[optuna.Study]:
    """All studies of a storage, oldest first, or the one of this name.

    Raises InputError if it does not exist.
    """
    opened = open_storage(storage, existing=True)
    names = [study.study_name for study in opened.get_all_studies()]
    if name is not None and name not in names:
        raise InputError(
            f"{storage} has no study {name!r}; it has {', '.join(map(repr, names)) or 'none'}"
        )
    chosen = names if name is None else [name]
    return [optuna.load_study(study_name=study_name, storage=opened) for study_name in chosen]


def is_untrusted(reference: str | None, trust: bool) -> bool:
    """True if a stored search names code in a file (`FILE.py:NAME`) that is not trusted."""
    return not trust and plug_ins.is_file(reference or "")


def read_study(
    study: optuna.Study,
    space: str | None = None,
    trust: bool = False,
    options: Mapping[str, Any] | None = None,
) -> SearchResult:
    """Read the result of a study so far.

    Args:
        study: a study of `nas.search`, or of `study.optimize` with any sampler.
        space: the study's space, if the study does not name it or if its file has moved. A file is
            run.
        trust: run the Python file that the study names as its space.
        options: options of `space`. They replace those that the study names.

    Returns:
        The result. Its space is a `RecordedSpace` if the study names none, or if its code is
        missing or not trusted.

    Raises:
        InputError: the settings in the study are damaged, or `space` cannot be loaded.
    """
    attributes = study.user_attrs
    settings = attributes.get(SETTINGS_KEY) or attributes.get(SPACE_KEY, {})
    try:
        objectives = _objectives(study, settings)
        constraints = parse_constraints(settings.get("constraints"))
        opened_space = _space(settings, space, trust, options or {})
    except (AttributeError, KeyError, TypeError) as error:
        raise InputError(
            f"study {study.study_name!r} is damaged: a setting is missing or malformed ({error})"
        ) from error
    is_search = SETTINGS_KEY in attributes
    reader = TrialReader(opened_space, objectives, constraints, others=not is_search)
    result = SearchResult.of_study(study, reader)

    # The space must know the choices of all trials of a search, or of some of a user's own study,
    # whose objective function may have further parameters. Otherwise the choices stand for networks.
    if is_search:
        done = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.PRUNED))
        if all(reader.architecture(trial.params) is not None for trial in done):
            return result
        reason = (
            f"the space {opened_space.name} has changed: it lacks choices of the search; give "
            "--space, the space as it was"
        )
    else:
        if result.evaluated.architectures:
            return result
        reason = f"its trials do not choose what the space {opened_space.name} asks for"
    recorded = RecordedSpace(opened_space.name, reason)
    return SearchResult.of_study(study, TrialReader(recorded, objectives, constraints))


def _objectives(study: optuna.Study, settings: Mapping[str, Any]) -> tuple[Metric, ...]:
    """The study's objectives.

    Their names are those of the search, of `study.set_metric_names` or of the study's sampler; else
    they are numbered.
    """
    if SETTINGS_KEY in study.user_attrs:
        return parse_objectives(settings["objectives"])
    names = study.metric_names or [
        Metric.parse(text).name for text in settings.get("objectives", ())
    ]
    distinct = {name for name in names if name.strip()}
    if len(distinct) != len(study.directions):
        names = [f"objective {number}" for number in range(1, len(study.directions) + 1)]
    pairs = zip(names, study.directions, strict=True)
    return tuple(_metric(name, direction) for name, direction in pairs)


def _metric(name: str, direction: StudyDirection) -> Metric:
    """A metric with any name, which may contain colons."""
    guess = Metric.parse(name.partition(":")[0].strip() or "?")
    is_maximized = direction == StudyDirection.MAXIMIZE
    return replace(guess, name=name, direction="maximize" if is_maximized else "minimize")


def _space(
    settings: Mapping[str, Any],
    name_override: str | None,
    trust: bool,
    options_override: Mapping[str, Any],
) -> SearchSpace:
    name = settings.get("space")
    options = settings.get("space_options", {})
    if name_override is not None:
        return get_space(name_override, **{**options, **options_override})
    if not name:
        return RecordedSpace("", "the study names no search space: give --space, if it has one")
    if is_untrusted(name, trust):
        return RecordedSpace(
            name, f"the space {name} is Python code, which was not run: give --trust to run it"
        )
    try:
        return get_space(name, **options)
    except InputError as error:
        return RecordedSpace(name, f"{error}; give --space, a name or FILE.py:NAME")


def list_searches(storage: str | Path | BaseStorage) -> list[str]:
    """Names of the searches in a storage, oldest first."""
    studies = open_storage(storage, existing=True).get_all_studies()
    return [study.study_name for study in studies if SearchAttributes(study.user_attrs).is_search]


def is_unfinished(storage: str | Path | BaseStorage, name: str) -> bool:
    """True if a search has evaluations or budget left."""
    study = load_search_study(storage, name)
    stored = SearchAttributes.of(study)
    trials = [TrialAttributes.of(trial) for trial in study.get_trials(deepcopy=False)]
    if stored.budget is not None:
        return sum(trial.cost for trial in trials) < stored.budget
    evaluated = len(read_study(study).evaluated.architectures)
    return evaluated - sum(trial.is_prior for trial in trials) < stored.evaluations


def read_search(
    storage: str | Path | BaseStorage, name: str = "search", trust: bool = False
) -> SearchResult:
    """The result of a search so far.

    Args:
        storage: see `nas.search.study.storage.open_storage`.
        name: the study's name.
        trust: see `nas.search.study.load.read_study`.

    Raises:
        InputError: if the storage has no such search.
    """
    return read_study(load_search_study(storage, name), trust=trust)


def load_search_study(storage: str | Path | BaseStorage, name: str) -> optuna.Study:
    """The study of a search. Raises InputError if the storage has no such search."""
    [study] = load_studies(storage, name)
    if not SearchAttributes.of(study).is_search:
        raise InputError(f"study {name!r} in {address(storage)} was not made by a search")
    return study
