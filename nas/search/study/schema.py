"""Everything that a search stores in its Optuna study: each key once, what it means, and who reads
it.

A search is an ordinary Optuna study. Its trials have parameters, values and constraints as Optuna
defines them, and Optuna's own tools can read them. What this project needs besides is stored in
user attributes, which appear in Optuna's dashboards, and in two system attributes, which do not:

    study   settings, source, identity   what the values depend on; another run must agree (`provenance.py`)
            evaluations, limits, budget  when the search ends, for workers
            folders                      where weights and paused trainings are
            workers, stopped trainings   one key each, so that processes do not overwrite each other
    trial   failed, repeat, prior        why a trial is not a new evaluation
            epochs, further, spread      what was measured besides the objectives
            segment                      of a training that may pause: from where to where, values, cost
            worker, restarts             who evaluates it, and how often that ended a process

`SearchAttributes` and `TrialAttributes` are typed views for readers. Values are plain JSON values.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from search_spaces.common import plug_ins

if TYPE_CHECKING:
    import optuna
    from optuna.trial import FrozenTrial


# Key of a source that only the script that started the search can open
SCRIPT = "script"

# --- user attributes of the study
# Space, objectives, constraints, sampler, seed: the settings of the search
SETTINGS_KEY = "nas:settings"
SOURCE_KEY = "nas:source"  # where values come from, see `Evaluator.source`
IDENTITY_KEY = "nas:identity"  # fingerprints of networks, machine, versions, command
EVALUATIONS_KEY = "nas:evaluations"  # number of evaluations, without prior observations
LIMITS_KEY = "nas:limits"  # the finite ones of `until` (POSIX time) and `patience` (evaluations)
BUDGET_KEY = "nas:budget"  # of a search with fidelities, in the unit of its cost
CHECKPOINTS_KEY = "nas:checkpoints"  # folder for paused trainings
WEIGHTS_FOLDER_KEY = "nas:weights_folder"  # folder for the trained weights of the front
# Prefix, followed by a network's notation: its training is stopped for good
STOPPED_KEY = "nas:stopped:"
WORKER_KEY = "nas:worker:"  # prefix, followed by a worker's name: "running" or "finished"
# Prefix, followed by a trial's number: what was measured again at the end, see
# `nas.search.confirming`; by metric: value, low value, high value, and what these are
CONFIRMED_KEY = "nas:confirmed:"
# Of a study that the user made with a `PredictorSampler`: space and objectives
SPACE_KEY = "nas:space"

# --- user attributes of a trial
FAILED_KEY = "nas:failed"  # why the trial has no valid values
REPEAT_KEY = "nas:repeat"  # True if its architecture was evaluated by an earlier trial
PRIOR_KEY = "nas:prior"  # True if its values are a prior observation
NETWORK_KEY = "nas:network"  # the network's identity, see `NetworkId.stored`
EPOCH_KEY = "nas:epoch:"  # prefix, followed by a number: values by metric after that epoch
FURTHER_KEY = "nas:further"  # values of metrics that are no objectives, such as test scores
SPREAD_KEY = "nas:spread"  # by repeated metric: low value, high value, and what these are
WEIGHTS_KEY = "nas:weights"  # path to which the trained weights were written
# Fidelity at which its training segment starts; -1 for a new network, in studies of earlier versions 0
BEGUN_KEY = "nas:begun"
UNTIL_KEY = "nas:until"  # fidelity at which its training segment ends
VALUES_KEY = "nas:values"  # values by metric at the end of the segment
COST_KEY = "nas:cost"  # cost of the segment, in the unit of the budget
RULED_OUT_KEY = "nas:ruled_out"  # why it was not trained: the constraint that it broke
# Of a network that was measured before the choice of a training: seconds of the measurement
MEASURED_KEY = "nas:measured"
MEASURE_SECONDS_KEY = "nas:measure_seconds"  # of a trial: seconds before its training
OWNER_KEY = "nas:worker"  # the worker that evaluates it, and the trial's number
RESUMED_KEY = "nas:resumed"  # POSIX time at which an interrupted evaluation began again
RESTARTS_KEY = "nas:taken_up"  # restarts in a row without a new epoch between them
EPOCHS_BEFORE_KEY = "nas:epochs_before"  # epochs that were reported before the last restart

# --- system attributes of a trial
CHOICES_KEY = "nas:choices"  # the architecture that the sampler chose for the trial
PREDICTED_KEY = "nas:predicted"  # by metric: mean and standard deviation that were predicted


@dataclass(frozen=True)
class SearchAttributes:
    """The attributes of a study that a search made. `is_search` is False for other studies."""

    attributes: Mapping[str, Any]

    @classmethod
    def of(cls, study: optuna.Study) -> SearchAttributes:
        """Read them once from the storage."""
        return cls(study.user_attrs)

    @property
    def is_search(self) -> bool:
        """True if a search made the study."""
        return SETTINGS_KEY in self.attributes

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that the search was started with; {} for a study that the user made."""
        return dict(self.attributes.get(SETTINGS_KEY) or {})

    @property
    def has_fidelities(self) -> bool:
        """True if trainings may pause.

        A budget then ends the search, not a number of evaluations.
        """
        return "fidelities" in self.settings

    @property
    def source(self) -> dict[str, Any]:
        """Where the values come from."""
        return dict(self.attributes.get(SOURCE_KEY) or {})

    @property
    def identity(self) -> dict[str, Any]:
        """Fingerprints of networks, machine, package versions and command."""
        return dict(self.attributes.get(IDENTITY_KEY) or {})

    @property
    def evaluations(self) -> int:
        """The number of evaluations after which the search ends."""
        return int(self.attributes.get(EVALUATIONS_KEY, 0))

    @property
    def limits(self) -> dict[str, float]:
        """Further limits: `until` (POSIX time) and `patience` (evaluations) if they are finite."""
        return dict(self.attributes.get(LIMITS_KEY) or {})

    @property
    def budget(self) -> float | None:
        """The budget of a search with fidelities; None for any other."""
        budget = self.attributes.get(BUDGET_KEY)
        return None if budget is None else float(budget)

    @property
    def checkpoints(self) -> str | None:
        """Folder for paused trainings."""
        return self.attributes.get(CHECKPOINTS_KEY)

    @property
    def weights_folder(self) -> str | None:
        """Folder for the trained weights of the front."""
        return self.attributes.get(WEIGHTS_FOLDER_KEY)

    @property
    def stopped(self) -> list[str]:
        """Notations of the networks whose training is stopped for good."""
        keys = [key for key in self.attributes if key.startswith(STOPPED_KEY)]
        return [key.removeprefix(STOPPED_KEY) for key in keys]


@dataclass(frozen=True)
class TrialAttributes:
    """The attributes of a trial of a search."""

    attributes: Mapping[str, Any]

    @classmethod
    def of(cls, trial: FrozenTrial) -> TrialAttributes:
        """Those of a stored trial."""
        return cls(trial.user_attrs)

    @property
    def failed(self) -> str | None:
        """Why the trial has no valid values; None if it did not fail, or was only interrupted."""
        return self.attributes.get(FAILED_KEY)

    @property
    def is_prior(self) -> bool:
        """True if its values are a prior observation."""
        return bool(self.attributes.get(PRIOR_KEY))

    @property
    def curve(self) -> dict[int, dict[str, float]]:
        """Values by metric after each epoch."""
        keys = (key for key in self.attributes if key.startswith(EPOCH_KEY))
        return {int(key.removeprefix(EPOCH_KEY)): self.attributes[key] for key in keys}

    @property
    def segment(self) -> tuple[int, int] | None:
        """Fidelities at which the trial's training segment starts and ends.

        None in a search without fidelities.
        """
        if UNTIL_KEY not in self.attributes:
            return None
        return self.attributes[BEGUN_KEY], self.attributes[UNTIL_KEY]

    @property
    def cost(self) -> float:
        """Cost of the segment, in the unit of the budget."""
        return float(self.attributes.get(COST_KEY, 0.0))

    @property
    def values(self) -> dict[str, float]:
        """Values by metric at the end of the segment, or before a training that was not begun."""
        return dict(self.attributes.get(VALUES_KEY) or {})

    @property
    def is_measured_only(self) -> bool:
        """True for a network that was measured before a choice, and that no constraint ruled out."""
        keys = self.attributes.keys()
        return MEASURED_KEY in keys and RULED_OUT_KEY not in keys

    @property
    def ruled_out(self) -> str | None:
        """The constraint that the network broke before its training."""
        return self.attributes.get(RULED_OUT_KEY)


# --- names of samplers, as they are shown and stored


def sampler_label(name: str) -> str:
    """A sampler's name in tables, studies and folders.

    That of `folder/mine.py:Nearest` is `mine.Nearest`.
    """
    if not plug_ins.is_file(name):
        return name
    path, _, class_name = name.partition(":")
    module = Path(path).stem
    return f"{module}.{class_name}" if class_name else module


def without_passwords(text: str) -> str:
    """The text with the passwords of its URLs replaced by `***`."""
    return re.sub(r"(://[^/@:\s]+):[^/@\s]+@", r"\1:***@", text)
