"""`ReplaySampler`: base class of samplers that choose a whole architecture before the trial's first
`suggest_*`.
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from typing import TYPE_CHECKING, Any

from optuna.samplers import BaseSampler, RandomSampler

from nas.search.optuna_adapter import set_system_attr
from nas.search.schema import CHOICES_KEY
from search_spaces.parameter_names import plain_name

if TYPE_CHECKING:
    from optuna import Study
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial

    from search_spaces import Architecture


class ReplaySampler(BaseSampler):
    """Stores the architecture of `choose` in the trial and answers its `suggest_*` calls from it.

    `choose` is not called for enqueued and resumed trials, which already have their choices.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._random = RandomSampler(seed)
        self._lock = threading.Lock()  # a choice is stored before another thread makes the next one

    def __getstate__(self) -> dict[str, Any]:
        """Omit the lock: each process has its own."""
        return {name: value for name, value in vars(self).items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _lock=threading.Lock())

    @abstractmethod
    def choose(self, study: Study, trial: FrozenTrial) -> Architecture:
        """The architecture of a new trial. One thread at a time calls it."""

    def infer_relative_search_space(
        self, study: Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        return {}

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        return {}

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        if not trial.params and not {"fixed_params", CHOICES_KEY} & trial.system_attrs.keys():
            with self._lock:
                set_system_attr(study, trial, CHOICES_KEY, self.choose(study, trial).as_dict())

    def sample_independent(
        self,
        study: Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """Replay the chosen architecture. A name outside the space gets a random value."""
        choices = trial.system_attrs.get(CHOICES_KEY, {})
        if (name := plain_name(param_name)) in choices:
            return choices[name]
        return self._random.sample_independent(study, trial, param_name, param_distribution)

    def reseed_rng(self) -> None:
        """Reseed names outside the space. The architecture's randomness follows from the seed and
        the trial number.
        """
        self._random.reseed_rng()
