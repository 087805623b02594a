"""Parameter names: under which name an Optuna study stores a choice.

In `build`, the options of a choice may depend on earlier choices: `w` is one of 4, 8 in one branch
and one of 16, 32 in the other. Optuna ties each parameter to one distribution. Therefore a study
stores the domain that comes first under the plain name, `w`, and every other one under a name with
its options, `w in [16, 32]`. Samplers see one parameter per domain, so that they learn from values
of the same domain only. Architectures have plain names.

Which domain comes first depends on the study. Readers need not know, since the options are cut off
from any name.
"""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from search_spaces.common.errors import InputError
from search_spaces.domains import Choice, Domain, Interval, Steps

# Characters of the options in a name; databases store 512 of the whole name
MAX_OPTIONS_LENGTH = 120
_HASH_LENGTH = 12
_WITH_OPTIONS = re.compile(r"(.+?) in \[.*\]", re.DOTALL)


def plain_name(parameter: str) -> str:
    """The name of a choice by the name of the parameter that stores it."""
    match = _WITH_OPTIONS.fullmatch(parameter) if parameter.endswith("]") else None
    return match[1] if match else parameter


def plain_names(parameters: Mapping[str, Choice]) -> dict[str, Choice]:
    """Choices by their plain names, from the parameters of a trial."""
    return {plain_name(parameter): value for parameter, value in parameters.items()}


def check_name(name: str) -> None:
    """Raise InputError for a choice whose name looks like one with options."""
    if plain_name(name) != name:
        raise InputError(
            f"a choice cannot be named {name!r}: leave out ' in […]', which tells options apart"
        )


def name_with_options(name: str, options: Domain) -> str:
    """The name with the options of this choice.

    Examples: `w in [16, 32]`, `depth in [2..8 step 2]`, `lr in [0.001..0.1 log]`.
    """
    if isinstance(options, range):
        return _with_range(name, options.start, options[-1], options.step, log=False)
    if isinstance(options, Steps):
        return _with_range(name, options.low, options[-1], options.step, log=False)
    if not isinstance(options, Interval):
        return _with_choices(name, options)
    if options.whole:
        return _with_range(name, int(options.low), int(options.high), 1, options.log)
    return _with_range(name, options.low, options.high, None, options.log)


def _name_with_distribution(name: str, distribution: Any) -> str:
    """As `name_with_options`, from an Optuna distribution."""
    if hasattr(distribution, "choices"):
        return _with_choices(name, distribution.choices)
    low, high = distribution.low, distribution.high
    return _with_range(name, low, high, distribution.step, distribution.log)


def _with_range(
    name: str,
    low: float,
    high: float,
    step: float | None,
    log: bool,
) -> str:
    # An integer has step 1 if it has no other, a float none: a range of integers and one of floats
    # have other texts.
    shows_step = step not in (None, 1) or isinstance(step, float)
    spacing = f" step {step!r}" if shows_step else ""
    scale = " log" if log else ""
    return f"{name} in [{low!r}..{high!r}{spacing}{scale}]"


def _with_choices(name: str, choices: Sequence[Choice]) -> str:
    shown = ", ".join(map(repr, choices))
    if len(shown) > MAX_OPTIONS_LENGTH:
        digest = hashlib.sha256(shown.encode()).hexdigest()[:_HASH_LENGTH]
        shown = f"{shown[: MAX_OPTIONS_LENGTH - _HASH_LENGTH - 5]}... #{digest}"
    return f"{name} in [{shown}]"


class ParameterNames:
    """The names under which one trial stores its choices.

    Args:
        trial: an Optuna trial of any kind, or another object with its `suggest_*` methods. Its
            attribute `study`, if it has one, tells which domains come first.
    """

    def __init__(self, trial: Any) -> None:
        self._trial = trial
        self._study = getattr(trial, "study", None)
        self._own = frozenset(
            getattr(trial, "params", ())
        )  # an interrupted trial has made some choices
        self._first = None if self._study is None else _first_domains(self._study)

    def parameter(self, name: str, options: Domain) -> str:
        """The parameter that stores the choice of one of `options`."""
        long_name = name_with_options(name, options)
        if self._first is None:
            parameter = long_name if long_name in self._own else name
        elif long_name in self._own or self._first.of(name, long_name) != long_name:
            parameter = long_name
        else:
            parameter = name
        if parameter != name:
            self._move_enqueued(name, parameter)
        return parameter

    def other_parameter(self, name: str, options: Domain) -> str | None:
        """The other name for a choice that Optuna refused to store under its plain name, or None.

        In a study, another process may have stored the name with other options since the study was
        read. A trial without a study, such as a `FixedTrial`, knows one of the names only.
        """
        long_name = name_with_options(name, options)
        if self._study is not None:
            self._first = _first_domains(self._study, again=True)
            if self._first.of(name, long_name) == long_name:
                return None
        self._move_enqueued(name, long_name)
        return long_name

    def _move_enqueued(self, name: str, parameter: str) -> None:
        """Use a value enqueued for the plain name (`Study.enqueue_trial`) for the parameter."""
        fixed = getattr(self._trial, "_fixed_params", {})  # Optuna has no public attribute for it
        if name in fixed and parameter not in fixed:
            self._trial._fixed_params = {**fixed, parameter: fixed[name]}


class _FirstDomains:
    """For each plain name, the domain that a study stores under it.

    A domain is written as the name with its options.
    """

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._read = 0  # the first trials of the study, all of them finished, have been read

    def update(self, trials: Sequence[Any]) -> None:
        """Read the trials (all of the study) that may have new parameters."""
        for trial in trials[self._read :]:
            for parameter, distribution in trial.distributions.items():
                if plain_name(parameter) == parameter:
                    self._names.setdefault(
                        parameter, _name_with_distribution(parameter, distribution)
                    )
        while self._read < len(trials) and trials[self._read].state.is_finished():
            self._read += 1

    def of(self, name: str, long_name: str) -> str:
        """The stored domain of a name.

        If the name has none yet, that of `long_name` is claimed for it.
        """
        return self._names.setdefault(name, long_name)


_of_study: WeakKeyDictionary[Any, _FirstDomains] = WeakKeyDictionary()
_lock = threading.Lock()


def _first_domains(study: Any, again: bool = False) -> _FirstDomains:
    """The first domains of a study by now.

    Args:
        again: forget what was read or claimed before.
    """
    trials = study.get_trials(deepcopy=False)
    with _lock:
        if again or study not in _of_study:
            _of_study[study] = _FirstDomains()
        _of_study[study].update(trials)
        return _of_study[study]
