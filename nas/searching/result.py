"""The result of a search: what was evaluated, the Pareto front, and its files."""

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

SETTINGS_KEY = "nas:settings"  # study user attribute: what the search was started with
PREDICTED_KEY = "nas:predicted"  # trial system attribute: mean and standard deviation of each metric, where predicted
SHOWN_VIOLATIONS = 5  # networks that are shown where none keeps the constraints
MAX_ATTEMPTS = 10  # to replace a folder while others do


class Evaluated(NamedTuple):
    """n distinct architectures in the order of their trials, and objective values (n, m), NaN where one failed."""

    architectures: list[Architecture]
    values: np.ndarray


@dataclass(frozen=True, eq=False)
class SearchResult:
    """What a search found.

    violation: (n,) the largest violation of a constraint, in its metric's unit; at most 0 where all are kept, NaN where
    unknown. bounded: (n,) values of each metric that only constraints bound.
    """

    study: optuna.Study
    space: SearchSpace
    objectives: tuple[Metric, ...]
    evaluated: Evaluated
    violation: np.ndarray
    bounded: dict[str, np.ndarray]

    @classmethod
    def of_study(cls, study: optuna.Study, reader: TrialReader) -> SearchResult:
        """Collect the finished trials of a study."""
        found: dict[Architecture, FrozenTrial] = {}
        for trial in filter(is_evaluated, study.get_trials(deepcopy=False)):
            architecture = reader.architecture(trial.params)
            if architecture is not None:
                found.setdefault(architecture, trial)
        values = np.array([reader.values(trial) for trial in found.values()]).reshape(-1, len(reader.metrics))
        # Constraints of somebody's own study are known by their violations alone.
        stored = [max(trial.constraints.values(), default=0.0) for trial in found.values()]
        m = len(reader.objectives)
        bounded = dict(zip(reader.metrics[m:], values[:, m:].T, strict=True))
        violation = np.maximum(reader.violation(values), np.array(stored, dtype=float))
        evaluated = Evaluated(list(found), values[:, :m])
        return cls(study, reader.space, reader.objectives, evaluated, violation, bounded)

    @property
    def feasible(self) -> np.ndarray:
        """Mask (n,) of the evaluations that broke no constraint."""
        return self.violation <= 0

    @property
    def feasible_values(self) -> np.ndarray:
        """Objective values (n, m), NaN where an evaluation failed or broke a constraint."""
        return np.where(self.feasible[:, None], self.evaluated.values, np.nan)

    @property
    def least_violating(self) -> list[dict[str, Any]]:
        """The evaluations that break a constraint least: architecture, objectives, bounded metrics, violation."""
        order = np.argsort(self.violation, kind="stable")  # NaN comes last
        rows = [i for i in order if np.isfinite(self.evaluated.values[i]).all()][:SHOWN_VIOLATIONS]
        bounded = [{name: float(values[i]) for name, values in self.bounded.items()} for i in rows]
        return [
            self._row(i) | values | {"violation": float(self.violation[i])}
            for i, values in zip(rows, bounded, strict=True)
        ]

    @property
    def failures(self) -> list[dict[str, str]]:
        """Trials that failed, in their order: what was chosen, and why it failed; each architecture once."""
        found: dict[str, str] = {}
        for trial in self.study.get_trials(deepcopy=False, states=(TrialState.FAIL,)):
            if FAILED_KEY in trial.user_attrs:
                found.setdefault(str(trial.params), str(trial.user_attrs[FAILED_KEY]))
        return [{"choices": choices, "reason": reason} for choices, reason in found.items()]

    @property
    def _front(self) -> list[int]:
        """Indices of the feasible non-dominated evaluations, best in the first objective first."""
        losses = to_losses(self.feasible_values, self.objectives)
        front = np.flatnonzero(non_dominated(losses))
        return front[np.lexsort(losses[front].T[::-1])].tolist()

    @property
    def front(self) -> list[dict[str, Any]]:
        """The Pareto front as a table: one row per architecture, in the space's notation, with its objective values."""
        return [self._row(i) for i in self._front]

    def _row(self, i: int) -> dict[str, Any]:
        """An evaluated architecture, in the space's notation, and its objective values."""
        values = dict(zip([o.name for o in self.objectives], self.evaluated.values[i].tolist(), strict=True))
        return {"architecture": self.space.format(self.evaluated.architectures[i])} | values

    @property
    def expected(self) -> dict[Architecture, dict[str, tuple[float, float]]]:
        """What a guided sampler expected of networks before they were measured: mean and standard deviation."""
        found: dict[Architecture, dict[str, tuple[float, float]]] = {}
        for trial in self.study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,)):
            predicted = trial.system_attrs.get(PREDICTED_KEY, {})
            if len(predicted) >= len(self.objectives):
                # Objectives come first. `Study.set_metric_names` may have renamed them.
                names = [o.name for o in self.objectives] + list(predicted)[len(self.objectives) :]
                renamed = dict(zip(names, predicted.values(), strict=True))
                found.setdefault(self.space.architecture(trial.params), renamed)
        return found

    @property
    def predicted(self) -> dict[str, np.ndarray]:
        """Of each objective (k, 3): expected mean, its standard deviation, and measured value; of k guided choices.

        A value that was known before, such as a count of parameters, was not expected and is left out.
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
        """Values that no objective asked for, such as test scores: for the end, and for the front's networks only."""
        return self._attribute(FURTHER_KEY)

    @property
    def trial_numbers(self) -> dict[Architecture, int]:
        """Number of the trial that counts for each evaluated architecture, as in the study and in its log."""
        found: dict[Architecture, int] = {}
        for trial in filter(is_evaluated, self.study.get_trials(deepcopy=False)):
            with suppress(InputError):  # incomplete choices
                found.setdefault(self.space.architecture(trial.params), trial.number)
        return found

    @property
    def spreads(self) -> dict[Architecture, dict[str, tuple[float, float, str]]]:
        """Of repeated measurements by metric: low and high value, and what these are."""
        return self._attribute(SPREAD_KEY)

    def missing_weights(self, folder: Path) -> dict[int, str]:
        """Places on the front of networks that were trained, but whose weights are neither in a result folder nor where
        they were written; and where that was.
        """
        recorded, front = self._attribute(WEIGHTS_KEY), [self.evaluated.architectures[i] for i in self._front]
        paths = {place: recorded[arch] for place, arch in enumerate(front) if arch in recorded}
        return {place: path for place, path in paths.items() if find_weights(path, folder) is None}

    def _attribute(self, key: str) -> dict[Architecture, Any]:
        """A user attribute of the trial that counts for each architecture, where it has it."""
        found: dict[Architecture, Any] = {}
        for trial in self.study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,)):
            if key in trial.user_attrs:
                found.setdefault(self.space.architecture(trial.params), trial.user_attrs[key])
        return found

    def hypervolume(self, reference: Reference | Sequence[float]) -> float:
        """Ratio to the true front's hypervolume, or the volume up to a point (m,) in the metrics' own units."""
        values = self.evaluated.values[self.feasible]
        if isinstance(reference, Reference):
            return reference.ratio(values)
        return hypervolume(to_losses(values, self.objectives), to_losses(np.asarray(reference), self.objectives))

    def save(self, folder: str | Path, others: Mapping[str, tuple[SearchResult, Architecture]] | None = None) -> None:
        """Write `front.csv`, `summary.json` and the front's networks (`nas.searching.networks`).

        Everything is written aside first, so that the folder never holds half a result. Raises InputError where the
        disk refuses.

        others: networks of other searches that are written beside those of the front, by the names of their files.
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
        with open(folder / "front.csv", "w", newline="") as file:
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
        """Write the files of an evaluated network, with the weights that are kept of it."""
        recorded = self._attribute(WEIGHTS_KEY).get(architecture)
        values = self._row(self.evaluated.architectures.index(architecture)) | self.further.get(architecture, {})
        weights = None if recorded is None else find_weights(recorded, results)
        write_network(stem, self.space, architecture, values, weights)


def _replace_folder(path: Path, written: Path) -> None:
    """Put the folder of the same name in `written` at `path`, also while another search puts its own there."""
    for attempt in range(MAX_ATTEMPTS):
        with suppress(FileNotFoundError):
            os.replace(path, written / f"replaced-{attempt}")
        try:
            os.replace(written / path.name, path)
            return
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST) or attempt == MAX_ATTEMPTS - 1:
                raise
