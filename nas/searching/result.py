"""The result of a search: evaluated architectures, the Pareto front, and its files."""

from __future__ import annotations

import csv
import errno
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from optuna.trial import TrialState

from nas.searching.networks import network_name, write_network
from nas.searching.objectives import to_losses
from nas.searching.pareto import Reference, hypervolume, non_dominated
from nas.searching.prior import PRIOR_KEY
from nas.searching.record import FURTHER_KEY, SPREAD_KEY, WEIGHTS_KEY
from nas.searching.trials import FAILED_KEY, is_evaluated
from nas.searching.weights import find_weights
from predictors.metrics import Metric
from search_spaces.common.errors import InputError

if TYPE_CHECKING:
    import optuna
    from optuna.trial import FrozenTrial

    from nas.searching.trials import TrialReader
    from search_spaces import Architecture, SearchSpace

SETTINGS_KEY = "nas:settings"  # study user attribute: the settings that the search was started with
PREDICTED_KEY = "nas:predicted"  # trial system attribute: by predicted metric, mean and standard deviation
SHOWN_VIOLATIONS = 5  # networks that are shown if none satisfies the constraints
MAX_ATTEMPTS = 10  # to replace a folder that other processes replace, too


class Evaluated(NamedTuple):
    """n distinct architectures in the order of their trials, and objective values (n, m); NaN marks a failure."""

    architectures: list[Architecture]
    values: np.ndarray


@dataclass(frozen=True, eq=False)
class SearchResult:
    """The result of a search.

    Attributes:
        study: the Optuna study.
        space: the search space.
        objectives: m objectives.
        evaluated: n architectures and their values.
        violation: (n,) largest violation of a constraint, relative to its bound; at most 0 if all are satisfied, NaN if
            unknown.
        bounded: (n,) values of each metric that has a constraint and is no objective.
        prior: (n,) True for prior observations, which are no evaluations.
    """

    study: optuna.Study
    space: SearchSpace
    objectives: tuple[Metric, ...]
    evaluated: Evaluated
    violation: np.ndarray
    bounded: dict[str, np.ndarray]
    prior: np.ndarray

    @classmethod
    def of_study(cls, study: optuna.Study, reader: TrialReader) -> SearchResult:
        """Collect the finished trials of a study."""
        found: dict[Architecture, FrozenTrial] = {}
        for trial in filter(is_evaluated, study.get_trials(deepcopy=False)):
            architecture = reader.architecture(trial.params)
            if architecture is not None:
                found.setdefault(architecture, trial)
        values = np.array([reader.values(trial) for trial in found.values()]).reshape(-1, len(reader.metrics))
        # A study of the user's own stores the violations of its constraints, not the constraints.
        known = set(map(str, reader.constraints))
        stored = [
            max((v for name, v in t.constraints.items() if name not in known), default=0.0) for t in found.values()
        ]
        m = len(reader.objectives)
        bounded = dict(zip(reader.metrics[m:], values[:, m:].T, strict=True))
        violation = np.maximum(reader.violation(values), np.array(stored, dtype=float))
        evaluated = Evaluated(list(found), values[:, :m])
        prior = np.array([PRIOR_KEY in trial.user_attrs for trial in found.values()], bool)
        return cls(study, reader.space, reader.objectives, evaluated, violation, bounded, prior)

    @property
    def feasible(self) -> np.ndarray:
        """Mask (n,) of the evaluations that satisfy all constraints."""
        return self.violation <= 0

    @property
    def feasible_values(self) -> np.ndarray:
        """Objective values (n, m); NaN in rows that failed or violate a constraint."""
        return np.where(self.feasible[:, None], self.evaluated.values, np.nan)

    @property
    def least_violating(self) -> list[dict[str, Any]]:
        """The evaluations with the smallest violations: architecture, objectives, bounded metrics, violation."""
        order = np.argsort(self.violation, kind="stable")  # NaN comes last
        rows = [i for i in order if np.isfinite(self.evaluated.values[i]).all()][:SHOWN_VIOLATIONS]
        bounded = [{name: float(values[i]) for name, values in self.bounded.items()} for i in rows]
        return [
            self._row(i) | values | {"violation": float(self.violation[i])}
            for i, values in zip(rows, bounded, strict=True)
        ]

    @property
    def failures(self) -> list[dict[str, str]]:
        """Failed trials in their order, each architecture once: its choices and the reason."""
        found: dict[str, str] = {}
        for trial in self.study.get_trials(deepcopy=False, states=(TrialState.FAIL,)):
            if FAILED_KEY in trial.user_attrs:
                found.setdefault(str(trial.params), str(trial.user_attrs[FAILED_KEY]))
        return [{"choices": choices, "reason": reason} for choices, reason in found.items()]

    @property
    def _front(self) -> list[int]:
        """Indices of the feasible non-dominated evaluations, sorted by the first objective, best first."""
        losses = to_losses(self.feasible_values, self.objectives)
        front = np.flatnonzero(non_dominated(losses))
        return front[np.lexsort(losses[front].T[::-1])].tolist()

    @property
    def front(self) -> list[dict[str, Any]]:
        """The Pareto front as rows: an architecture in the space's notation and its objective values."""
        return [self._row(i) for i in self._front]

    def _row(self, i: int) -> dict[str, Any]:
        """An evaluated architecture, in the space's notation, and its objective values."""
        values = dict(zip([o.name for o in self.objectives], self.evaluated.values[i].tolist(), strict=True))
        return {"architecture": self.space.format(self.evaluated.architectures[i])} | values

    @property
    def expected(self) -> dict[Architecture, dict[str, tuple[float, float]]]:
        """Mean and standard deviation by metric that the sampler predicted before a network was measured."""
        found: dict[Architecture, dict[str, tuple[float, float]]] = {}
        for trial in self.study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,)):
            predicted = trial.system_attrs.get(PREDICTED_KEY, {})
            if len(predicted) >= len(self.objectives):
                # Objectives come first. `Study.set_metric_names` may have renamed them.
                names = [o.name for o in self.objectives] + list(predicted)[len(self.objectives) :]
                renamed = dict(zip(names, predicted.values(), strict=True))
                found.setdefault(self.space.architecture(trial.params, others=True), renamed)
        return found

    @property
    def predicted(self) -> dict[str, np.ndarray]:
        """For each objective (k, 3): predicted mean, standard deviation and measured value of k guided choices.

        Values that were counted instead of predicted, such as parameters, are left out.
        """
        expected = self.expected
        rows = [i for i, architecture in enumerate(self.evaluated.architectures) if architecture in expected]
        if not rows:
            return {}
        guided = [expected[self.evaluated.architectures[i]] for i in rows]
        measured = self.evaluated.values[rows]
        columns = {
            o.name: np.column_stack([[e[o.name] for e in guided], measured[:, column]])
            for column, o in enumerate(self.objectives)
        }
        return {name: kept for name, column in columns.items() if len(kept := column[column[:, 1] > 0])}

    @property
    def further(self) -> dict[Architecture, dict[str, float]]:
        """Values of metrics that are no objectives, such as test scores. Report them for the final front only."""
        return self._attribute(FURTHER_KEY)

    @property
    def trial_numbers(self) -> dict[Architecture, int]:
        """Number of the first finished trial of each architecture, as in the study and in its log."""
        found: dict[Architecture, int] = {}
        for trial in filter(is_evaluated, self.study.get_trials(deepcopy=False)):
            with suppress(InputError):  # incomplete choices
                found.setdefault(self.space.architecture(trial.params, others=True), trial.number)
        return found

    @property
    def spreads(self) -> dict[Architecture, dict[str, tuple[float, float, str]]]:
        """Spread of repeated measurements by metric: low value, high value, and what these are."""
        return self._attribute(SPREAD_KEY)

    def missing_weights(self, folder: Path) -> dict[int, str]:
        """Trained networks on the front whose weights are lost.

        Args:
            folder: the result folder, to which weights may have been moved.

        Returns:
            By place on the front, the path to which the weights were written.
        """
        recorded, front = self._attribute(WEIGHTS_KEY), [self.evaluated.architectures[i] for i in self._front]
        paths = {place: recorded[arch] for place, arch in enumerate(front) if arch in recorded}
        return {place: path for place, path in paths.items() if find_weights(path, folder) is None}

    def _attribute(self, key: str) -> dict[Architecture, Any]:
        """A user attribute of the first complete trial of each architecture that has it."""
        found: dict[Architecture, Any] = {}
        for trial in self.study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,)):
            if key in trial.user_attrs:
                found.setdefault(self.space.architecture(trial.params, others=True), trial.user_attrs[key])
        return found

    def hypervolume(self, reference: Reference | Sequence[float]) -> float:
        """Hypervolume of the feasible evaluations.

        Args:
            reference: a `Reference`, which makes it the ratio to the true front's hypervolume, or a reference point
                (m,) in the metrics' own units.

        Raises:
            InputError: if the reference point has another number of values.
        """
        values = self.evaluated.values[self.feasible]
        if isinstance(reference, Reference):
            return reference.ratio(values)
        point = np.asarray(reference, dtype=float)
        if point.shape != (len(self.objectives),):
            raise InputError(f"the reference point has shape {point.shape}; give {len(self.objectives)} values")
        return hypervolume(to_losses(values, self.objectives), to_losses(point, self.objectives))

    def save(self, folder: str | Path, others: Mapping[str, tuple[SearchResult, Architecture]] | None = None) -> None:
        """Write `front.csv`, `summary.json` and the front's networks (`nas.searching.networks`).

        Everything is written to a temporary folder first, so that the folder never holds half a result.

        Args:
            folder: the result folder.
            others: networks of other searches to write beside those of the front, by file name.

        Raises:
            InputError: the files cannot be written.
        """
        folder = Path(folder)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=folder, prefix=".partial-") as temporary:
                self._write(Path(temporary), folder)
                for name, (result, architecture) in (others or {}).items():
                    result._write_network(Path(temporary, "front", name), architecture, folder)
                _replace_folder(folder / "front", Path(temporary))
                for name in ("front.csv", "summary.json"):
                    os.replace(Path(temporary, name), folder / name)
        except OSError as error:
            raise InputError(f"cannot write the result to {folder}: {error.strerror}") from error

    def _write(self, folder: Path, results: Path) -> None:
        (folder / "front").mkdir()
        front = self._front
        for row, i in enumerate(front):
            name = network_name(row, len(front))
            self._write_network(folder / "front" / name, self.evaluated.architectures[i], results)
        columns = ["architecture", *(objective.name for objective in self.objectives)]
        with open(folder / "front.csv", "w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, columns)
            writer.writeheader()
            writer.writerows(self.front)
        summary = {
            **self.study.user_attrs.get(SETTINGS_KEY, {}),
            "evaluations": len(self.evaluated.architectures),
            "front": self.front,
            "failures": self.failures,
        }
        (folder / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")

    def _write_network(self, stem: Path, architecture: Architecture, results: Path) -> None:
        """Write the files of an evaluated network, with its stored weights if there are any."""
        recorded = self._attribute(WEIGHTS_KEY).get(architecture)
        values = self._row(self.evaluated.architectures.index(architecture)) | self.further.get(architecture, {})
        weights = None if recorded is None else find_weights(recorded, results)
        write_network(stem, self.space, architecture, values, weights)


def _replace_folder(path: Path, written: Path) -> None:
    """Move the folder `written / path.name` to `path`, even while other processes do the same."""
    for attempt in range(MAX_ATTEMPTS):
        with suppress(FileNotFoundError):
            os.replace(path, written / f"replaced-{attempt}")
        try:
            os.replace(written / path.name, path)
            return
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST) or attempt == MAX_ATTEMPTS - 1:
                raise
