"""Architectures as parameters of trials, one `suggest_*` after another.

A guided sampler chooses a whole architecture before the trial's first `suggest_*` and answers all
of them from it (`ReplaySampler`). An architecture that no sampler chose during a trial, such as a
prior observation, is asked for its parameters outside any trial (`ReplayedTrial`).
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.samplers import BaseSampler, RandomSampler

from nas.search.study.schema import CHOICES_KEY
from nas.search.study.storage import set_system_attr
from search_spaces.parameter_names import plain_name

if TYPE_CHECKING:
    from optuna import Study
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial

    from search_spaces import Architecture, SearchSpace


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
        """Reseed names outside the space.

        The architecture's randomness follows from the seed and the trial number.
        """
        self._random.reseed_rng()


class StudySnapshot:
    """The trials of a study at one time.

    Architectures that are added together are named from one reading.
    """

    def __init__(self, study: Study) -> None:
        self._trials = study.get_trials(deepcopy=False)

    def get_trials(self, deepcopy: bool = False) -> list[FrozenTrial]:
        """The trials, which are not copies: do not change them."""
        return self._trials


class OutsideTrial(ABC):
    """A trial's `suggest_*` methods, which record parameters and leave the study unchanged.

    Attributes:
        study: decides the parameters' names (`search_spaces.parameter_names`).
        params: the values so far, by parameter.
        distributions: by parameter.
    """

    def __init__(self, study: Study | StudySnapshot) -> None:
        self.study = study
        self.params: dict[str, Any] = {}
        self.distributions: dict[str, BaseDistribution] = {}

    @abstractmethod
    def value(self, parameter: str, distribution: BaseDistribution) -> Any:
        """The value of a new parameter."""

    def suggest_categorical(self, name: str, choices: Sequence[Any]) -> Any:
        return self._answer(name, CategoricalDistribution(choices))

    def suggest_int(
        self, name: str, low: int, high: int, *, step: int = 1, log: bool = False
    ) -> int:
        return self._answer(name, IntDistribution(low, high, log, step))

    def suggest_float(
        self, name: str, low: float, high: float, *, step: float | None = None, log: bool = False
    ) -> float:
        return self._answer(name, FloatDistribution(low, high, log, step))

    def _answer(self, name: str, distribution: BaseDistribution) -> Any:
        if name not in self.params:
            self.params[name] = self.value(name, distribution)
            self.distributions[name] = distribution
        return self.params[name]


class ReplayedTrial(OutsideTrial):
    """The parameters of an architecture, for a trial that is added to a study.

    `optuna.trial.create_trial` makes the trial.
    """

    def __init__(
        self, study: Study | StudySnapshot, space: SearchSpace, architecture: Architecture
    ) -> None:
        super().__init__(study)
        self._choices = architecture.as_dict()
        space.choose(self)

    def value(self, parameter: str, distribution: BaseDistribution) -> Any:
        return self._choices[plain_name(parameter)]
