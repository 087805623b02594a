"""The networks that a guided search would evaluate next."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nas.reporting.collecting import Network, build
from nas.searching.result import SETTINGS_KEY
from nas.searching.sampler import PredictorSampler
from nas.searching.samplers import create_sampler
from predictors.registry import is_predictor

if TYPE_CHECKING:
    from nas.comparison.studies import Studies


def propose(studies: Studies) -> list[Network]:
    """The next batch of the first search, best first; empty without a predictor or a space that can be built."""
    search = studies.first
    settings = search.study.user_attrs.get(SETTINGS_KEY, {})
    if studies.not_built or not is_predictor(settings.get("sampler", "")):
        return []
    sampler = create_sampler(
        settings["sampler"], search.space, search.objectives, settings["seed"],
        constraints=settings["constraints"], **settings["sampler_options"],
    )  # fmt: skip
    assert isinstance(sampler, PredictorSampler)
    networks = [
        Network(architecture, search.space.format(architecture), predicted=predicted)
        for architecture, predicted in sampler.propose(search.study).items()
    ]
    build(networks, search.space)
    return networks
