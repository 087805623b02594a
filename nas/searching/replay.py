"""`ReplaySampler`: base class of samplers that choose a whole architecture before the trial's first `suggest_*`."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any

from optuna.samplers import BaseSampler, RandomSampler

from nas.searching.optuna_adapter import set_system_attr

if TYPE_CHECKING:
    from optuna import Study
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial

    from search_spaces import Architecture

CHOICES_KEY = "nas:choices"  # trial system attribute: the architecture that was chosen for the trial


class ReplaySampler(BaseSampler):
    """Stores the architecture of `choose` in the trial and answers its `suggest_*` calls from it.

    `choose` is not called for enqueued and resumed trials, which already have their choices.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._random = RandomSampler(seed)

    @abstractmethod
    def choose(self, study: Study, trial: FrozenTrial) -> Architecture:
        """The architecture of a new trial."""

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return {}

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        return {}

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        if not trial.params and not {"fixed_params", CHOICES_KEY} & trial.system_attrs.keys():
            set_system_attr(study, trial, CHOICES_KEY, self.choose(study, trial).as_dict())

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """Replay the chosen architecture. A name outside the space gets a random value."""
        choices = trial.system_attrs.get(CHOICES_KEY, {})
        if param_name in choices:
            return choices[param_name]
        return self._random.sample_independent(study, trial, param_name, param_distribution)

    def reseed_rng(self) -> None:
        """Reseed names outside the space. The architecture's randomness follows from the seed and the trial number."""
        self._random.reseed_rng()
