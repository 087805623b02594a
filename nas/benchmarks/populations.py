"""The populations of the package: networks of several spaces that were trained on digits and
timed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from search_spaces import Architecture, SearchSpace, get_space
from search_spaces.common.errors import unknown


@dataclass(frozen=True)
class Population:
    """Distinct networks of a space, and how they are measured.

    Args:
        name: of the benchmark.
        space: name of the space.
        space_options: options of the space.
        count: number of random networks; None for all networks of the space.
        proxies: True to compute zero-cost proxies.
        seeds: one training and one initialization for proxies per seed.
        latency_passes: passes over all networks, of which the lowest latency of each network
            counts.
        task: settings of `nas.evaluation.training.DigitsTask`.
    """

    name: str
    space: str
    space_options: dict[str, Any]
    count: int | None = 500
    proxies: bool = True
    seeds: tuple[int, ...] = (0, 1)
    latency_passes: int = 6
    task: Mapping[str, Any] = field(default_factory=dict)

    @property
    def pretrains_rlm_base(self) -> bool:
        """True if `rlm-base` was pretrained with the accuracies of these networks.

        The pretraining takes their proxies, too.
        """
        return self.proxies

    def open_space(self) -> SearchSpace:
        """The search space of the networks."""
        return get_space(self.space, **self.space_options)

    def architectures(self) -> list[Architecture]:
        """One architecture per distinct text.

        It is the first in the order of enumeration, or of sampling from seed 0.
        """
        space = self.open_space()
        rng = np.random.default_rng(0)
        networks: dict[str, Architecture] = {}
        if self.count is None:
            for arch in space.enumerate():
                networks.setdefault(space.to_text(arch), arch)
            return list(networks.values())
        while len(networks) < self.count:
            arch = space.sample(rng)
            networks.setdefault(space.to_text(arch), arch)
        return list(networks.values())


_TINY = {"input_shape": (1, 8, 8), "num_classes": 10}
_CELLS = {**_TINY, "width": (4, 6, 8), "cells": (3, 4, 5)}

POPULATIONS = {
    population.name: population
    for population in (
        Population(
            "digits201",
            "nasbench201",
            {**_TINY, "channels": 8, "cells": 1, "prune": True},
            None,
            False,
        ),
        *(
            Population(f"digits-{space}", space, _CELLS)
            for space in ("nasnet", "amoeba", "pnas", "enas", "darts")
        ),
        Population("digits-nasbench101", "nasbench101", {**_TINY, "channels": 8, "modules": 1}),
        # 22 layers that end at 1×1 resolution hardly learn in the 48 steps of the other
        # populations.
        Population(
            "digits-fbnet", "fbnet", {**_TINY, "width": 0.25}, task={"epochs": 8, "batch": 32}
        ),
        # Trainings are long enough for searches that stop them early.
        Population("digits-resnet", "tiny-resnet", _TINY, 200, False, task={"epochs": 16}),
    )
}


def get_population(name: str) -> Population:
    """The population with this name; InputError if there is none."""
    if name not in POPULATIONS:
        raise unknown("benchmark that can be built", name, POPULATIONS)
    return POPULATIONS[name]
