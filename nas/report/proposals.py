"""Proposals: the networks that a search would evaluate next."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nas.report.collecting import Network, build
from nas.search.evaluators import TableEvaluator
from nas.search.multi_fidelity import BASELINES
from nas.search.policy_planner import is_by_cost, next_jobs
from nas.search.rows import among_rows
from nas.search.sampler import PredictorSampler
from nas.search.samplers import create_sampler
from nas.search.study.schema import SETTINGS_KEY
from nas.search.trainings import NEW
from predictors.registry import is_predictor

if TYPE_CHECKING:
    from nas.comparison.studies import Studies
    from search_spaces import SearchSpace

NEXT_TRAININGS = 5  # of a search by cost


def propose(studies: Studies) -> list[Network]:
    """Networks that the first search would evaluate next, best first.

    Returns:
        The next batch of a sampler with a predictor, or the next trainings of a search by cost.
        Empty for other samplers, for predictors in a file, which a report does not run, and if
        networks cannot be built.
    """
    search = studies.first
    sampler = search.study.user_attrs.get(SETTINGS_KEY, {}).get("sampler", "")
    by_cost = is_by_cost(search)
    guided = is_predictor(sampler)
    if studies.not_built or not (guided or (by_cost and sampler in BASELINES)):
        return []
    networks = _trainings(studies) if by_cost else _evaluations(studies)
    build(networks, search.space)
    return networks


def _evaluations(studies: Studies) -> list[Network]:
    search = studies.first
    settings = search.study.user_attrs[SETTINGS_KEY]
    sampler = create_sampler(
        settings["sampler"], _searched_space(studies), search.objectives, settings["seed"],
        constraints=settings["constraints"], **settings["sampler_options"],
    )  # fmt: skip
    assert isinstance(sampler, PredictorSampler)
    return [
        Network(architecture, search.space.format(architecture), predicted=predicted)
        for architecture, predicted in sampler.propose(search.study).items()
    ]


def _searched_space(studies: Studies) -> SearchSpace:
    """The space, limited to the rows of the searched table if that does not cover it."""
    search = studies.first
    if studies.benchmark is None:
        return search.space
    metrics = [*(objective.name for objective in search.objectives), *search.bounded]
    return among_rows(search.space, TableEvaluator(studies.benchmark, metrics).rows)


def _trainings(studies: Studies) -> list[Network]:
    space = studies.first.space
    return [
        Network(
            job.architecture,
            space.format(job.architecture),
            predicted=job.predicted,
            plan=f"to epoch {job.until}, "
            + ("new" if job.begun == NEW else f"paused at {job.begun}"),
        )
        for job in next_jobs(studies.first, _searched_space(studies), NEXT_TRAININGS)
    ]
