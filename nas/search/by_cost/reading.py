"""Read the trainings of a search by cost, and its next jobs, from its study."""

from __future__ import annotations

import math
from itertools import islice
from typing import TYPE_CHECKING

from nas.search.by_cost.loop import EPOCHS
from nas.search.by_cost.runs import Fidelities, Job, Run, Runs
from nas.search.multi_fidelity import make_policy
from nas.search.objectives import parse_constraints
from nas.search.study.schema import (
    BEGUN_KEY,
    COST_KEY,
    UNTIL_KEY,
    SearchAttributes,
    TrialAttributes,
)
from nas.search.study.trials import TrialReader

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nas.search.study.result import SearchResult
    from search_spaces import SearchSpace


def is_by_cost(result: SearchResult) -> bool:
    """True for the result of a search with fidelities."""
    return SearchAttributes.of(result.study).has_fidelities


def read_runs(result: SearchResult) -> Runs:
    """The trainings of a search by cost."""
    stopped = SearchAttributes.of(result.study).stopped
    return Runs(
        _reader(result), _fidelities(result), result.study.get_trials(deepcopy=False), stopped
    )


def next_jobs(result: SearchResult, space: SearchSpace, count: int) -> list[Job]:
    """The jobs that the search would start next if it had budget left.

    Args:
        result: result of a search with fidelities.
        space: space of new networks, or the rows of a table.
        count: most jobs.

    Returns:
        Up to `count` jobs, in their order.
    """
    return list(islice(_jobs(result, space), count))


def _jobs(result: SearchResult, space: SearchSpace) -> Iterator[Job]:
    settings, runs = result.settings, read_runs(result)
    policy = make_policy(
        settings["sampler"],
        space,
        _reader(result),
        _trained(result),
        _fidelities(result),
        settings["seed"],
    )
    while (job := policy.decide(runs, math.inf)) is not None:
        run = runs.runs.setdefault(job.architecture, Run(job.architecture))
        run.running, run.ended = job.until, job.until is None
        if job.until is not None:
            yield job


def _reader(result: SearchResult) -> TrialReader:
    return TrialReader(
        result.space, result.objectives, parse_constraints(result.settings["constraints"])
    )


def _fidelities(result: SearchResult) -> Fidelities:
    return Fidelities.of(result.settings["fidelities"], _continues(result))


def _continues(result: SearchResult) -> bool:
    """True if trainings resume where they paused: a continued segment then costs only its own
    epochs.

    Also True where the cost is not in epochs.
    """
    attrs = [trial.user_attrs for trial in result.study.get_trials(deepcopy=False)]
    continued = (known for known in attrs if known.get(BEGUN_KEY) and COST_KEY in known)
    one = next(continued, None) if result.settings["cost"] == EPOCHS else None
    return one is None or bool(one[COST_KEY] == one[UNTIL_KEY] - one[BEGUN_KEY])


def _trained(result: SearchResult) -> list[str]:
    """Metrics that need training: those that trials have reported, or that the user's function
    returns.
    """
    own = SearchAttributes.of(result.study).source.get("evaluator", {}).get("metrics")
    curves = (TrialAttributes.of(trial).curve for trial in result.study.get_trials(deepcopy=False))
    reported = (values for curve in curves for values in curve.values())
    return list(own or next(reported, {}))
