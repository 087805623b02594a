"""The result of a search: evaluated architectures, the Pareto front, and its files."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from optuna.trial import TrialState

from nas.evaluation.trainable import Trainable
from nas.search.objectives import to_losses
from nas.search.pareto import Reference, hypervolume, infer_reference_point, non_dominated
from nas.search.study.files import missing_weights, save_front, trained_module
from nas.search.study.networks import (
    KNOWN,
    DistinctNetwork,
    Evaluation,
    NetworkId,
    UntrainedNetwork,
    distinct_networks,
    least_violating,
    networks_csv,
    networks_table,
)
from nas.search.study.schema import (
    CONFIRMED_KEY,
    FAILED_KEY,
    FURTHER_KEY,
    NETWORK_KEY,
    PREDICTED_KEY,
    PRIOR_KEY,
    REPEAT_KEY,
    SPREAD_KEY,
    WEIGHTS_KEY,
    SearchAttributes,
    TrialAttributes,
    sampler_label,
)
from nas.search.study.trials import is_evaluated
from predictors.metrics import Metric, why_invalid
from search_spaces.common.errors import InputError
from search_spaces.parameter_names import plain_names

if TYPE_CHECKING:
    import optuna
    import pandas as pd
    from optuna.trial import FrozenTrial
    from torch import nn

    from nas.search.study.trials import TrialReader
    from search_spaces import Architecture, SearchSpace


class Evaluated(NamedTuple):
    """n distinct architectures in the order of their trials, and their objective values.

    `values` has the shape (n, m) for m objectives; NaN marks a failure.
    """

    architectures: list[Architecture]
    values: np.ndarray


@dataclass(frozen=True, eq=False)
class SearchResult:
    """The result of a search.

    `evaluated` and all arrays (n, …) have a row per architecture. `networks` and `front` have an
    entry per network: architectures of equal texts are one, whose values are means
    (`nas.search.study.networks`). The hypervolume counts every architecture with its own values, as
    benchmarks do.

    Example:

        >>> import nas
        >>> objectives = {"digits_accuracy": "max", "cpu_latency_ms": "min"}
        >>> problem = nas.load_benchmark("digits201").problem(objectives)
        >>> result = nas.search(problem, sampler="random", evaluations=12)
        >>> result.evaluated.values.shape  # (architectures, objectives), in % and ms
        (12, 2)
        >>> 1 <= len(result.front) <= len(result.networks) <= 12
        True
        >>> 0 < result.hypervolume() < 1
        True

    Attributes:
        study: the Optuna study.
        space: the search space.
        objectives: m objectives.
        evaluated: n architectures and their values.
        violations: (n, c) violation of each constraint, relative to its bound; at most 0 if it is
            satisfied, NaN if unknown.
        bounded: (n,) values of each metric that has a constraint and is no objective.
        prior: (n,) True for prior observations, which are no evaluations.
        trials: n lists of the finished trials of each architecture, in their order. The first one's
            values count.
    """

    study: optuna.Study
    space: SearchSpace
    objectives: tuple[Metric, ...]
    evaluated: Evaluated
    violations: np.ndarray
    bounded: dict[str, np.ndarray]
    prior: np.ndarray
    trials: list[list[FrozenTrial]]

    @classmethod
    def of_study(cls, study: optuna.Study, reader: TrialReader) -> SearchResult:
        """Collect the finished trials of a study."""
        trials: dict[Architecture, list[FrozenTrial]] = {}
        for trial in filter(is_evaluated, study.get_trials(deepcopy=False)):
            architecture = reader.architecture(trial.params)
            if architecture is not None:
                trials.setdefault(architecture, []).append(trial)
        # 1. The values of each architecture's first trial; M metrics (objectives and metrics with a
        #    constraint).
        first = [repeated[0] for repeated in trials.values()]
        rows = [reader.values(trial) for trial in first]
        values = np.array(rows).reshape(-1, len(reader.metrics))  # (n, M)
        m = len(reader.objectives)

        # 2. Violations of the reader's constraints, and the largest of any others: a study of the
        #    user's own stores the violations of its constraints, not the constraints.
        declared = {str(constraint) for constraint in reader.constraints}
        others = np.zeros(len(first))
        for row, trial in enumerate(first):
            undeclared = [v for name, v in trial.constraints.items() if name not in declared]
            others[row] = max(undeclared, default=0.0)
        violations = np.column_stack([reader.violations(values), others])  # (n, c)
        return cls(
            study,
            reader.space,
            reader.objectives,
            evaluated=Evaluated(list(trials), values[:, :m]),
            violations=violations,
            bounded=dict(zip(reader.metrics[m:], values[:, m:].T, strict=True)),
            prior=np.array([PRIOR_KEY in trial.user_attrs for trial in first], bool),
            trials=[*trials.values()],
        )

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that the search was started with; {} for a study that the user made."""
        return SearchAttributes.of(self.study).settings

    @property
    def violation(self) -> np.ndarray:
        """(n,) largest violation of a constraint, relative to its bound.

        It is 0 if all constraints are satisfied and NaN if that is unknown.
        """
        return self.violations.max(axis=1, initial=0.0)

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
        """Rows of the networks with the smallest violations.

        A row has the architecture, the objectives, the bounded metrics and the violation.
        """
        return least_violating(self.distinct, self.objectives)

    @property
    def failures(self) -> list[dict[str, Any]]:
        """Failed trials in their order: choices, reason, and number of trials with these choices.

        Trials that another program or an earlier version stored with values that are not valid
        failed, too.

        Trials that fail before `build` has made all choices have the choices so far. A proposal of
        a network whose evaluation failed before is no further failure.
        """
        failures: dict[str, dict[str, Any]] = {}
        finished = (TrialState.FAIL, TrialState.COMPLETE, TrialState.PRUNED)
        for trial in self.study.get_trials(deepcopy=False, states=finished):
            reason = self._failure(trial)
            if reason and REPEAT_KEY not in trial.user_attrs:
                choices = str(plain_names(trial.params))
                first = {"choices": choices, "reason": reason, "trials": 0}
                failures.setdefault(choices, first)["trials"] += 1
        return list(failures.values())

    def _failure(self, trial: FrozenTrial) -> str:
        """Why a trial failed: the stored reason, or which values are not valid; "" if it did not."""
        if reason := trial.user_attrs.get(FAILED_KEY):
            return str(reason)
        names = [objective.name for objective in self.objectives]
        reasons = map(why_invalid, names, trial.values or ())
        return ", ".join(reason for reason in reasons if reason)

    @property
    def front(self) -> pd.DataFrame:
        """The Pareto front, one row per network, sorted by the first objective from the best on.

        Columns: `architecture` in the space's notation, objectives, other metrics, and where the
            network comes from.
        """
        return networks_table(
            [network for network in self.distinct if network.on_front], self.objectives
        )

    @property
    def networks(self) -> pd.DataFrame:
        """All evaluated networks with finite objectives, one row each; columns as in `front`.

        The front comes first, networks that were measured and not trained last.
        """
        return networks_table(self.distinct, self.objectives, self.untrained)

    def model(self, place: int, folder: str | Path = ".") -> nn.Module:
        """A network of the front as a `torch.nn.Module` in evaluation mode.

        It has its trained weights if there are some.

        Args:
            place: row of `front`, from 0.
            folder: result folder, if it was moved since the weights were written.

        Raises:
            InputError: there is no such network, or its weights are lost.
        """
        front = [network for network in self.distinct if network.on_front]
        if not 0 <= place < len(front):
            raise InputError(f"network {place}: the front has networks 0 to {len(front) - 1}")
        return trained_module(front[place], Path(folder))

    @property
    def ruled_out(self) -> list[UntrainedNetwork]:
        """The networks that broke a constraint by their measured metrics, in trial order.

        They were not trained.
        """
        return [network for network in self.untrained if network.reason]

    @property
    def measured_only(self) -> list[UntrainedNetwork]:
        """The networks that were measured before a choice and not chosen, in trial order.

        See `nas.search.shortlist`.
        """
        return [network for network in self.untrained if not network.reason]

    @cached_property
    def untrained(self) -> list[UntrainedNetwork]:
        """The networks that were measured and not trained, in the order of their trials."""
        settings = self.settings
        begun = {*self.trial_numbers}  # evaluated architectures
        networks: dict[Architecture, UntrainedNetwork] = {}
        for trial in self.study.get_trials(deepcopy=False, states=(TrialState.PRUNED,)):
            attributes = TrialAttributes.of(trial)
            try:
                architecture = self.space.architecture(trial.params)
            except InputError:  # choices of another space
                continue
            if attributes.segment is not None and attributes.ruled_out is None:
                begun.add(architecture)  # its training is paused
            if attributes.ruled_out is None and not attributes.is_measured_only:
                continue
            if attributes.failed:  # it could not be measured
                continue
            network = UntrainedNetwork(
                self.space.format(architecture),
                attributes.values,
                attributes.ruled_out or "",
                sampler_label(settings.get("sampler", "")),
                settings.get("seed", ""),
                trial.number,
            )
            networks.setdefault(architecture, network)
        return [
            network
            for architecture, network in networks.items()
            if network.reason or architecture not in begun
        ]

    @cached_property
    def distinct(self) -> list[DistinctNetwork]:
        """The distinct networks with finite objectives, the front first (`nas.search.study.networks`)."""
        return distinct_networks(self.evaluations(), self.objectives)

    def evaluations(self, search: int = 0) -> Iterator[Evaluation]:
        """The evaluations with finite objectives.

        `search` is the search's number among those that are merged.
        """
        names = [objective.name for objective in self.objectives]
        sampler = self.settings.get("sampler")
        for row in np.flatnonzero(self._is_finite).tolist():
            architecture = self.evaluated.architectures[row]
            is_prior = self.prior[row]
            values = dict(zip(names, self.evaluated.values[row].tolist(), strict=True))
            yield Evaluation(
                search,
                row,
                self.space,
                architecture,
                self._network_ids[row],
                self.trial_numbers[architecture],
                sampler=KNOWN if is_prior else sampler_label(sampler or self.study.study_name),
                seed="" if is_prior else self.settings.get("seed", ""),
                values=values | {name: float(column[row]) for name, column in self.bounded.items()},
                further=self.further.get(architecture, {}),
                spreads=self.spreads.get(architecture, {}),
                violations=self.violations[row].tolist(),
                predicted=self.expected.get(architecture, {}),
                weights=self._recorded_weights.get(architecture),
                confirmed=self._confirmed.get(self.trial_numbers[architecture], {}),
            )

    @cached_property
    def _confirmed(self) -> dict[int, dict[str, tuple[float, float, float, str]]]:
        """What was measured again at the end of the search, by number of the trial."""
        confirmed = {}
        for key, values in self.study.user_attrs.items():
            if key.startswith(CONFIRMED_KEY):
                trial = int(key.removeprefix(CONFIRMED_KEY))
                confirmed[trial] = {metric: tuple(value) for metric, value in values.items()}
        return confirmed

    @property
    def _is_finite(self) -> np.ndarray:
        """Mask (n,) of the evaluations with finite objectives."""
        return np.isfinite(self.evaluated.values).all(axis=1)

    @property
    def front_rows(self) -> list[dict[str, Any]]:
        """The Pareto front as rows, sorted by the first objective.

        A row has the network in the space's notation, and objectives. A network that was evaluated
        several times, also as a duplicate, is one row with the means.
        """
        return [network.row(self.objectives) for network in self.distinct if network.on_front]

    @cached_property
    def _network_ids(self) -> list[NetworkId]:
        """(n,) identities of the evaluated networks.

        Older searches stored none: theirs are made from their networks.
        """
        stored = self._attribute(NETWORK_KEY)
        architectures = self.evaluated.architectures
        ids = []
        for architecture, is_finite in zip(architectures, self._is_finite.tolist(), strict=True):
            if architecture in stored:
                ids.append(NetworkId.of_stored(stored[architecture]))
            else:
                ids.append(self._identify(architecture, may_build=is_finite))
        return ids

    def _identify(self, architecture: Architecture, may_build: bool) -> NetworkId:
        """The network's identity, or its choices if the network failed or cannot be built now."""
        if may_build:
            with suppress(InputError):  # the space's code is missing, not trusted, or has changed
                return NetworkId.of(Trainable.of(self.space, architecture))
        return NetworkId(repr(architecture.choices), {})

    @cached_property
    def expected(self) -> dict[Architecture, dict[str, tuple[float, float]]]:
        """Mean and standard deviation, by metric, that the sampler predicted.

        Predictions are made before a network is measured.
        """
        objectives = [objective.name for objective in self.objectives]
        expected: dict[Architecture, dict[str, tuple[float, float]]] = {}
        for architecture, trial in self._complete:
            predicted = trial.system_attrs.get(PREDICTED_KEY, {})
            if len(predicted) >= len(objectives):
                # Objectives come first. `Study.set_metric_names` may have renamed them.
                names = objectives + list(predicted)[len(objectives) :]
                expected.setdefault(architecture, dict(zip(names, predicted.values(), strict=True)))
        return expected

    @property
    def predicted(self) -> dict[str, np.ndarray]:
        """Predictions and measurements (k, 3) of k guided choices, for each objective.

        The columns are predicted mean, standard deviation and measured value. Values that were
        counted instead of predicted, such as parameters, are left out: their standard deviation is
        0.
        """
        predictions: dict[str, np.ndarray] = {}
        for column, objective in enumerate(self.objectives):
            rows = []
            for architecture, values in zip(*self.evaluated, strict=True):
                if architecture in self.expected:
                    mean, deviation = self.expected[architecture][objective.name]
                    rows.append([mean, deviation, values[column]])
            table = np.array(rows, dtype=float).reshape(-1, 3)
            is_predicted = table[:, 1] > 0
            if is_predicted.any():
                predictions[objective.name] = table[is_predicted]
        return predictions

    @cached_property
    def further(self) -> dict[Architecture, dict[str, float]]:
        """Values of metrics that are no objectives, such as test scores.

        Report them for the final front only.
        """
        return self._attribute(FURTHER_KEY)

    @cached_property
    def trial_numbers(self) -> dict[Architecture, int]:
        """Number of each architecture's first finished trial, as in the study and its log."""
        first = (trials[0].number for trials in self.trials)
        return dict(zip(self.evaluated.architectures, first, strict=True))

    @cached_property
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
        return missing_weights([network for network in self.distinct if network.on_front], folder)

    @cached_property
    def _recorded_weights(self) -> dict[Architecture, str]:
        """The paths to which trained weights were written.

        Weights of dominated networks have been removed.
        """
        return self._attribute(WEIGHTS_KEY)

    def _attribute(self, key: str) -> dict[Architecture, Any]:
        """A user attribute of the first complete trial of each architecture that has it."""
        values: dict[Architecture, Any] = {}
        for architecture, trial in self._complete:
            if key in trial.user_attrs:
                values.setdefault(architecture, trial.user_attrs[key])
        return values

    @property
    def _complete(self) -> Iterator[tuple[Architecture, FrozenTrial]]:
        """The complete trials with their architectures."""
        for architecture, trials in zip(self.evaluated.architectures, self.trials, strict=True):
            for trial in trials:
                if trial.state == TrialState.COMPLETE:
                    yield architecture, trial

    def hypervolume(self, reference: Reference | Sequence[float] | None = None) -> float:
        """Hypervolume of the feasible evaluations.

        Args:
            reference: a `Reference`, which makes it the ratio to the true front's hypervolume, or a
                reference point (m,) in the metrics' own units. Searches are compared by one and the
                same. None infers the point from this search alone, and scales each objective by
                its distance to the best value: 1 if one network were best in all objectives.

        Raises:
            InputError: if the reference point has another number of values.
        """
        values = self.evaluated.values[self.feasible]
        if reference is None:
            if not len(values):
                return 0.0
            losses = to_losses(values, self.objectives)
            ideal, nadir = infer_reference_point(losses[non_dominated(losses)], losses)
            widths = np.where(nadir > ideal, nadir - ideal, 1.0)
            return hypervolume((losses - ideal) / widths, np.ones(len(ideal)))
        if isinstance(reference, Reference):
            return reference.ratio(values)
        point = np.asarray(reference, dtype=float)
        if point.shape != (len(self.objectives),):
            raise InputError(
                f"the reference point has shape {point.shape}; give {len(self.objectives)} values"
            )
        return hypervolume(to_losses(values, self.objectives), to_losses(point, self.objectives))

    def save(self, folder: str | Path) -> None:
        """Write `front.csv`, `networks.csv`, `summary.json` and the front's networks.

        `nas.search.study.files` writes the networks. Everything is written to a temporary folder
        first, so that the folder never holds half a result.

        Raises:
            InputError: the files cannot be written.
        """
        front = [network for network in self.distinct if network.on_front]
        summary = {
            **self.settings,
            "evaluations": len(self.evaluated.architectures),
            "front": self.front_rows,
            "failures": self.failures,
        }
        texts = {
            "front.csv": networks_csv(front, self.objectives),
            "networks.csv": networks_csv(self.distinct, self.objectives, self.untrained),
            "summary.json": json.dumps(summary, indent=2) + "\n",
        }
        save_front(Path(folder), front, texts)
