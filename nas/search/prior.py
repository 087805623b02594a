"""Prior observations: measurements from before a search, which it uses and does not repeat."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from optuna.trial import TrialState, create_trial

from nas.benchmarks.csv_file import ORIGIN_COLUMNS, parse_csv, read_bytes
from nas.evaluation.trainable import Trainable
from nas.search.replay import ReplayedTrial, StudySnapshot
from nas.search.study.networks import NetworkId
from nas.search.study.schema import FAILED_KEY, NETWORK_KEY, PRIOR_KEY
from nas.search.study.storage import add_trials, first_generation
from nas.search.study.trial_logger import EvaluationLogger
from nas.search.study.trials import TrialReader, is_evaluated
from predictors.features import COUNTS
from search_spaces.common.errors import InputError, StorageError, describe

if TYPE_CHECKING:
    import optuna
    from optuna.trial import FrozenTrial

    from nas.search.evaluators import Evaluator
    from search_spaces import Architecture, SearchSpace

log = logging.getLogger(__name__)
PriorObservations = Mapping["Architecture", Sequence[float]]
"""Values by architecture, in the order of the evaluator's metrics."""


def add_prior_observations(
    study: optuna.Study,
    reader: TrialReader,
    prior: PriorObservations,
    metrics: Sequence[str],
    evaluator: Evaluator | None = None,
) -> None:
    """Store prior observations as finished trials.

    Architectures that the study has already evaluated are left out.

    Args:
        metrics: the metrics of the observations' values, in their order.
        evaluator: measures what is missing and needs no training, network by network.
    """
    before = StudySnapshot(study)
    trials = [trial for trial in before.get_trials() if is_evaluated(trial)]
    evaluated = {reader.architecture(trial.params) for trial in trials}
    columns = [metrics.index(metric) for metric in reader.metrics]
    generation = first_generation(study.sampler)

    # 1. New observations, apart those of which a measurement can complete the values.
    measurable = () if evaluator is None else evaluator.measured
    is_measurable = np.array([metric in measurable for metric in reader.metrics])  # (metrics,)
    whole: dict[Architecture, np.ndarray] = {}
    partial: dict[Architecture, np.ndarray] = {}
    for architecture, row in prior.items():
        if architecture not in evaluated:
            values = np.asarray(row, dtype=float)[columns]  # (metrics,)
            is_partial = bool(np.isnan(values[is_measurable]).any())
            (partial if is_partial else whole)[architecture] = values

    # 2. The whole ones are stored together.
    finished = [
        _finished(before, reader, architecture, values, generation)
        for architecture, values in whole.items()
    ]
    add_trials(study, finished)

    # 3. The others are measured one by one, so that an interruption loses one of them.
    if evaluator is None or not partial:
        return
    log.info("%d prior observations lack what can be measured: it is measured now", len(partial))
    for architecture, values in partial.items():
        try:
            cheap = evaluator.measure(architecture, EvaluationLogger())
        except StorageError:
            raise
        except Exception as error:
            notation = reader.space.format(architecture)
            log.warning("%s is no prior observation: %s", notation, describe(error))
            continue
        missing = [cheap.get(metric, np.nan) for metric in reader.metrics]
        completed = np.where(np.isnan(values), missing, values)
        add_trials(study, [_finished(before, reader, architecture, completed, generation)])


def _finished(
    study: StudySnapshot,
    reader: TrialReader,
    architecture: Architecture,
    values: np.ndarray,
    system_attrs: dict[str, Any],
) -> FrozenTrial:
    """A finished trial with these values (metrics,); a failed one if a value is not valid."""
    chosen = ReplayedTrial(study, reader.space, architecture)
    if failure := reader.reason(values):
        return create_trial(
            state=TrialState.FAIL,
            params=chosen.params,
            distributions=chosen.distributions,
            user_attrs={PRIOR_KEY: True, FAILED_KEY: failure},
            system_attrs=system_attrs,
        )
    by_metric = dict(zip(reader.metrics, values.tolist(), strict=True))
    return create_trial(
        state=TrialState.COMPLETE,
        values=values[: len(reader.objectives)].tolist(),
        constraints=reader.violations_of(by_metric) or None,
        params=chosen.params,
        distributions=chosen.distributions,
        user_attrs={PRIOR_KEY: True, **_identity(reader.space, architecture)},
        system_attrs=system_attrs,
    )


def _identity(space: SearchSpace, architecture: Architecture) -> dict[str, Any]:
    """The trial attribute that identifies the network; {} if it cannot be built."""
    try:
        return {NETWORK_KEY: NetworkId.of(Trainable.of(space, architecture)).stored}
    except InputError:
        return {}


def read_prior_observations(
    path: Path, space: SearchSpace, metrics: Sequence[str], measured: Sequence[str] = ()
) -> dict[Architecture, list[float]]:
    """Read prior observations from a CSV file.

    Incomplete rows are skipped, except for what can be measured.

    Args:
        path: a file with a column `architecture` or `arch`, in the space's notation, and a column
            for each metric, such as `front.csv` and `networks.csv` of another search, and the table
            that its report saves. Parameters and FLOPs are counted in the networks. Other columns
            are ignored with a warning that names them.
        space: the search space.
        metrics: the m metrics of the evaluator.
        measured: those that may be missing, since they can be measured without a training.

    Returns:
        The m values of each architecture; NaN for a measured metric that is missing.

    Raises:
        InputError: the file is unreadable or malformed. The message names the line or column.
    """
    # 1. The columns: one for each metric that is neither counted nor measured later.
    table = parse_csv(read_bytes(path), path, only={*metrics} - COUNTS.keys())
    optional = _optional(metrics, measured)
    available = {*table.columns, *COUNTS, *optional}
    if missing := [metric for metric in metrics if metric not in available]:
        raise InputError(
            f"{path}: no column {missing[0]!r}; its columns: "
            f"{', '.join([*table.columns, *table.skipped])}"
        )
    if unknown := [name for name in table.skipped if name not in (*ORIGIN_COLUMNS, *COUNTS)]:
        log.warning(
            "%s: not used, as they are no metrics of this search: %s", path, ", ".join(unknown)
        )
    unknown_column = np.full(len(table.archs), np.nan)
    columns = {metric: table.columns.get(metric, unknown_column) for metric in metrics}
    is_needed = np.array([metric not in optional for metric in metrics])  # (m,)

    # 2. The rows.
    counted = [metric for metric in metrics if metric in COUNTS]
    observations: dict[Architecture, list[float]] = {}
    for i, (notation, line) in enumerate(zip(table.archs, table.lines, strict=True)):
        try:
            architecture = space.parse(notation)
            values = {metric: columns[metric][i] for metric in metrics}
            values |= {metric: COUNTS[metric](space.graph(architecture)) for metric in counted}
        except InputError as error:
            raise InputError(f"{path}, line {line}: {error}") from error
        row = [float(values[metric]) for metric in metrics]
        if not np.isfinite(np.array(row)[is_needed]).all():
            continue
        if not np.array_equal(observations.setdefault(architecture, row), row, equal_nan=True):
            raise InputError(
                f"{path}, line {line}: {notation} has other values above: keep one row, or their "
                "means"
            )
    return observations


def _optional(metrics: Sequence[str], measured: Sequence[str]) -> Sequence[str]:
    """The metrics that a row may lack: what can be measured, if the others cost a training."""
    return measured if set(metrics) - set(measured) else ()
