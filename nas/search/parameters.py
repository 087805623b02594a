"""Parameters of an Optuna study for architectures that are not chosen by its sampler during a
trial.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from search_spaces.parameter_names import plain_name

if TYPE_CHECKING:
    from optuna import Study
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial

    from search_spaces import Architecture, SearchSpace


class StudySnapshot:
    """The trials of a study at one time: architectures that are added together are named from one
    reading.
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
    """The parameters of an architecture, for a trial that is added to a study
    (`optuna.trial.create_trial`).
    """

    def __init__(
        self, study: Study | StudySnapshot, space: SearchSpace, architecture: Architecture
    ) -> None:
        super().__init__(study)
        self._choices = architecture.as_dict()
        space.choose(self)

    def value(self, parameter: str, distribution: BaseDistribution) -> Any:
        return self._choices[plain_name(parameter)]
