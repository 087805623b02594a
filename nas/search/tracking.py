"""Trackers log the trials of a search to MLflow, Weights & Biases or TensorBoard.

A tracker is a callback of `nas.search`. It uses the package's own client, which is imported when
the tracker opens.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from nas.search.study.schema import (
    FAILED_KEY,
    FURTHER_KEY,
    PREDICTED_KEY,
    REPEAT_KEY,
    UNTIL_KEY,
    VALUES_KEY,
)
from nas.search.study.trials import TrialReader, began
from search_spaces.common.errors import InputError, describe, unknown
from search_spaces.parameter_names import plain_names

if TYPE_CHECKING:
    import optuna
    from optuna.trial import FrozenTrial

log = logging.getLogger(__name__)
# Characters that MLflow forbids in names of metrics and parameters
_NOT_IN_MLFLOW = re.compile(r"[^\w\-. :/]")


class TrackedTrial(NamedTuple):
    """A finished trial as it is tracked.

    Attributes:
        number: the trial's number in the study.
        choices: the trial's parameters.
        values: finite values by metric in its own unit: measured ones, and predicted ones as
            `METRIC_predicted`.
        network: the architecture in the space's notation; empty if the choices are incomplete.
        failure: the reason if the trial failed, else empty.
        began, ended: milliseconds since 1970.
    """

    number: int
    choices: dict[str, Any]
    values: dict[str, float]
    network: str
    failure: str
    began: int
    ended: int

    @classmethod
    def of(cls, trial: FrozenTrial, reader: TrialReader) -> TrackedTrial:
        architecture = reader.architecture(trial.params)
        predicted = {
            f"{m}_predicted": mean
            for m, (mean, _) in trial.system_attrs.get(PREDICTED_KEY, {}).items()
        }
        measured = dict(zip(reader.metrics, reader.values(trial).tolist(), strict=True))
        segment = trial.user_attrs.get(VALUES_KEY, {})
        values = {**predicted, **trial.user_attrs.get(FURTHER_KEY, {}), **measured, **segment}
        if UNTIL_KEY in trial.user_attrs:
            values["epochs"] = trial.user_attrs[UNTIL_KEY]
        return cls(
            trial.number,
            plain_names(trial.params),
            {metric: value for metric, value in values.items() if math.isfinite(value)},
            reader.space.format(architecture) if architecture else "",
            trial.user_attrs.get(FAILED_KEY, ""),
            round(1000 * began(trial)),
            round(1000 * trial.datetime_complete.timestamp()) if trial.datetime_complete else 0,
        )


class Backend(Protocol):
    """Writes trials to a tracking service."""

    def write(self, trial: TrackedTrial) -> None: ...

    def close(self) -> None: ...


class MLflow:
    """One experiment per search and one run per trial. The target is a tracking URI of MLflow."""

    def __init__(self, target: str, search: str) -> None:
        from mlflow import MlflowClient

        self.client = MlflowClient(tracking_uri=target)
        experiment = self.client.get_experiment_by_name(search)
        self.experiment = (
            experiment.experiment_id if experiment else self.client.create_experiment(search)
        )

    def write(self, trial: TrackedTrial) -> None:
        from mlflow.entities import Metric, Param

        tags = {"network": trial.network, "failure": trial.failure}
        run = self.client.create_run(
            self.experiment,
            trial.began,
            {k: v for k, v in tags.items() if v},
            f"trial {trial.number}",
        )
        values = {_NOT_IN_MLFLOW.sub("_", name): value for name, value in trial.values.items()}
        metrics = [Metric(name, value, trial.ended, trial.number) for name, value in values.items()]
        params = [
            Param(_NOT_IN_MLFLOW.sub("_", name), str(value))
            for name, value in trial.choices.items()
        ]
        self.client.log_batch(run.info.run_id, metrics, params)
        self.client.set_terminated(
            run.info.run_id, "FAILED" if trial.failure else "FINISHED", trial.ended
        )

    def close(self) -> None:
        """Do nothing: `write` terminates each run."""


class WandB:
    """One run per search and one step per trial. The target is a project of Weights & Biases."""

    def __init__(self, target: str, search: str) -> None:
        import wandb

        self.run = wandb.init(project=target, name=search, group=search, reinit="create_new")

    def write(self, trial: TrackedTrial) -> None:
        text = {"network": trial.network, "failure": trial.failure}
        self.run.log(
            {**trial.choices, **trial.values, **{k: v for k, v in text.items() if v}},
            step=trial.number,
        )

    def close(self) -> None:
        self.run.finish()


class TensorBoard:
    """One curve per metric over the trials, and each trial's choices as hyperparameters.

    The target is a log folder.
    """

    def __init__(self, target: str, search: str) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.writer = SummaryWriter(str(Path(target) / search))

    def write(self, trial: TrackedTrial) -> None:
        for metric, value in trial.values.items():
            self.writer.add_scalar(metric, value, trial.number)
        if trial.failure:
            self.writer.add_text("failure", trial.failure, trial.number)
        if trial.values:
            choices = {
                k: v if isinstance(v, bool | int | float | str) else str(v)
                for k, v in trial.choices.items()
            }
            self.writer.add_hparams(
                choices, trial.values, run_name=f"trial-{trial.number}", global_step=trial.number
            )
        self.writer.flush()

    def close(self) -> None:
        self.writer.close()


BACKENDS: dict[str, tuple[Callable[[str, str], Backend], str]] = {
    "mlflow": (MLflow, "URI"),
    "wandb": (WandB, "PROJECT"),
    "tensorboard": (TensorBoard, "FOLDER"),
}
"""Backend classes by name, with what each takes as its target."""


class Tracker:
    """A callback of `nas.search` that tracks each finished trial.

    A backend's errors never end the search.
    """

    def __init__(self, backend: Backend, name: str, reader: TrialReader) -> None:
        self.backend, self.name, self.reader = backend, name, reader
        self.missed = 0

    def __call__(self, study: optuna.Study, trial: FrozenTrial) -> None:
        if trial.user_attrs.get(REPEAT_KEY) or not trial.state.is_finished():
            return
        try:
            self.backend.write(TrackedTrial.of(trial, self.reader))
        except Exception as error:
            # Clients raise errors of many kinds, for instance when a server is down
            self.missed += 1
            if self.missed == 1:
                log.warning(
                    "%s: trial %d was not tracked: %s", self.name, trial.number, describe(error)
                )

    def close(self) -> None:
        """Close the backend, and warn if trials were not tracked."""
        try:
            self.backend.close()
        except Exception as error:
            log.warning("%s: could not be closed: %s", self.name, describe(error))
        if self.missed > 1:
            log.warning("%s: %d trials were not tracked", self.name, self.missed)


def check_trackers(trackers: Sequence[str]) -> None:
    """Raise InputError for a tracker of no known kind or without a target.

    Kinds are `mlflow:URI`, `wandb:PROJECT` and `tensorboard:FOLDER`.
    """
    for tracker in trackers:
        kind, _, target = tracker.partition(":")
        if kind not in BACKENDS:
            raise unknown("tracker", kind, sorted(BACKENDS))
        if not target:
            raise InputError(f"tracker {tracker!r}: write {kind}:{BACKENDS[kind][1]}")


@contextmanager
def tracking(trackers: Sequence[str], search: str, reader: TrialReader) -> Iterator[list[Tracker]]:
    """A context with open trackers (`KIND:TARGET`) for a search.

    Raises InputError if one cannot be opened.
    """
    check_trackers(trackers)
    opened_trackers: list[Tracker] = []
    try:
        for tracker in trackers:
            kind, _, target = tracker.partition(":")
            try:
                opened_trackers.append(Tracker(BACKENDS[kind][0](target, search), tracker, reader))
            except ImportError as error:
                raise InputError(f"{tracker}: {error}: pip install 'rlm-nas[tracking]'") from error
            except Exception as error:
                raise InputError(f"{tracker} cannot be opened: {describe(error)}") from error
        yield opened_trackers
    finally:
        for opened in opened_trackers:
            opened.close()
