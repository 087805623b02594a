"""Reads any Optuna study as the result of a search, with its space or without; nothing is created or changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import optuna
from optuna.study import StudyDirection

from nas.searching.objectives import parse_constraints, parse_objectives
from nas.searching.result import SETTINGS_KEY, SearchResult
from nas.searching.sampler import SPACE_KEY
from nas.searching.storage import open_storage
from nas.searching.trials import TrialReader
from predictors.metrics import Metric
from search_spaces import Architecture, SearchSpace, get_space
from search_spaces.common import plug_ins
from search_spaces.common.errors import InputError

if TYPE_CHECKING:
    from optuna.storages import BaseStorage

    from search_spaces.choosers import Choice


class RecordedSpace(SearchSpace):
    """A study's space whose code is missing or is not to be run: an architecture is its choices, and is not built.

    reason: why not, and what helps; one line.
    """

    def __init__(self, name: str, reason: str) -> None:
        super().__init__()
        self.name = name
        self.reason = reason

    def architecture(self, choices: Mapping[str, Choice]) -> Architecture:
        return Architecture(self.name, tuple(choices.items()))


def load_studies(storage: str | Path | BaseStorage, name: str | None = None) -> list[optuna.Study]:
    """The storage's studies in the order in which they were begun, or the one of that name; InputError for no such."""
    opened = open_storage(storage, existing=True)
    names = [study.study_name for study in opened.get_all_studies()]
    if name is not None and name not in names:
        raise InputError(f"{storage} has no study {name!r}; it has {', '.join(map(repr, names)) or 'none'}")
    return [optuna.load_study(study_name=found, storage=opened) for found in names if name in (None, found)]


def is_untrusted(reference: str | None, trust: bool) -> bool:
    """True for code in a file (`FILE.py:CLASS`) that a stored search names, where it is not trusted."""
    return not trust and plug_ins.is_file(reference or "")


def read_study(
    study: optuna.Study, space: str | None = None, trust: bool = False, options: Mapping[str, Any] | None = None
) -> SearchResult:
    """What a search, or an objective function of somebody's own, has found so far.

    Args:
        study: of `nas.search`, or of `study.optimize` with any sampler.
        space: the study's space, where it does not say, or another path of it. A file is run.
        trust: run the Python file that the study names as its space.
        options: of `space`, where the study does not say.

    The result's space is a `RecordedSpace` where there is none, or where its code is missing or not trusted.
    """
    settings = study.user_attrs.get(SETTINGS_KEY) or study.user_attrs.get(SPACE_KEY, {})
    try:
        objectives = _objectives(study, settings)
        constraints = parse_constraints(settings.get("constraints"))
        found = _space(settings, space, trust, options or {})
    except (AttributeError, KeyError, TypeError) as error:
        raise InputError(f"study {study.study_name!r} is damaged: its settings lack or garble {error}") from error
    result = SearchResult.of_study(study, TrialReader(found, objectives, constraints))
    if SETTINGS_KEY in study.user_attrs or result.evaluated.architectures:
        return result
    # The trials of somebody's own objective function may choose other things than the space does.
    recorded = RecordedSpace(found.name, f"its trials do not choose what the space {found.name} asks for")
    return SearchResult.of_study(study, TrialReader(recorded, objectives, constraints))


def _objectives(study: optuna.Study, settings: Mapping[str, Any]) -> tuple[Metric, ...]:
    """Named by the search, by `study.set_metric_names`, by the study's sampler, or by number."""
    if SETTINGS_KEY in study.user_attrs:
        return parse_objectives(settings["objectives"])
    names = study.metric_names or [Metric.parse(text).name for text in settings.get("objectives", ())]
    if len({name for name in names if name.strip()}) != len(study.directions):
        names = [f"objective {number}" for number in range(1, len(study.directions) + 1)]
    return tuple(_metric(name, direction) for name, direction in zip(names, study.directions, strict=True))


def _metric(name: str, direction: StudyDirection) -> Metric:
    """A metric of any name, which may hold colons."""
    guess = Metric.parse(name.partition(":")[0].strip() or "?")
    return replace(guess, name=name, direction="maximize" if direction == StudyDirection.MAXIMIZE else "minimize")


def _space(
    settings: Mapping[str, Any], given: str | None, trust: bool, given_options: Mapping[str, Any]
) -> SearchSpace:
    name, options = settings.get("space"), settings.get("space_options", {})
    if given is not None:
        return get_space(given, **{**options, **given_options})
    if not name:
        return RecordedSpace("", "the study names no search space: give --space, if it has one")
    if is_untrusted(name, trust):
        return RecordedSpace(name, f"the space {name} is Python code, which was not run: give --trust to run it")
    try:
        return get_space(name, **options)
    except InputError as error:
        return RecordedSpace(name, f"{error}; give --space, a name or FILE.py:CLASS")
