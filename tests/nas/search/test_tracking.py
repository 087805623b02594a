"""Claims about trackers: each service, offline, holds every trial with its values, and none can end
a search.
"""

from __future__ import annotations

import json
import logging
import math
import re
import struct
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nas
from nas import Problem, search
from nas.comparison.runs import SearchOptions, run_studies
from nas.comparison.studies import Studies
from nas.search.objectives import parse_objectives
from nas.search.study.trials import TrialReader
from nas.search.tracking import BACKENDS, TrackedTrial, Tracker
from search_spaces import Architecture, InputError, get_space

GOALS = "digits_accuracy,cpu_latency_ms"
LIMIT = "params <= 4000000"  # that every network keeps


def tracked(tracker: str, folder: Path, evaluations: int = 4) -> Studies:
    """A search of a table, named mine-random-0."""
    options = SearchOptions(track=(tracker,))
    return run_studies(
        "digits201", GOALS, ["random"], evaluations, (0,), folder / "mine", [LIMIT], options=options
    )


def measured(studies: Studies) -> dict[int, list[float]]:
    """The objectives' values by trial."""
    return {trial.number: list(trial.values) for trial in studies.first.study.trials}


def wandb_records(data: bytes) -> Iterator[bytes]:
    """The records of an offline run: a LevelDB log (blocks of 32 KiB) after a header of seven
    bytes.
    """
    at, parts = 7, b""
    while at + 7 <= len(data):
        if (rest := 32768 - at % 32768) < 7:  # no record begins there
            at += rest
            continue
        size, kind = struct.unpack_from("<HB", data, at + 4)
        parts += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # whole, or the last part
            yield parts
            parts = b""


@pytest.mark.slow
def test_mlflow_has_a_run_for_every_trial_and_goes_on_with_the_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow = pytest.importorskip("mlflow", reason="mlflow-skinny is not installed")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    uri = (tmp_path / "runs").as_uri()
    tracked(f"mlflow:{uri}", tmp_path)
    studies = tracked(f"mlflow:{uri}", tmp_path, evaluations=6)
    client = mlflow.MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("mine-random-0")
    runs = {
        int(run.info.run_name.split()[1]): run
        for run in client.search_runs([experiment.experiment_id])
    }
    assert {n: [runs[n].data.metrics[m] for m in GOALS.split(",")] for n in runs} == measured(
        studies
    )
    for trial in studies.first.study.trials:
        run = runs[trial.number]
        assert run.info.status == "FINISHED"
        assert run.data.params == {
            re.sub("[<>]", "_", name): value for name, value in trial.params.items()
        }
        assert run.data.metrics["params"] > 0  # what only a constraint asks for
        space = studies.first.space
        assert space.parse(run.data.tags["network"]) == space.architecture(trial.params)


def test_tensorboard_has_the_curve_of_every_metric(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    studies = tracked(f"tensorboard:{tmp_path / 'events'}", tmp_path)
    events = EventAccumulator(str(tmp_path / "events" / "mine-random-0"))
    events.Reload()
    for i, metric in enumerate(GOALS.split(",")):
        curve = {event.step: event.value for event in events.Scalars(metric)}
        assert curve == pytest.approx({n: values[i] for n, values in measured(studies).items()})
    assert len(list((tmp_path / "events" / "mine-random-0").glob("trial-*"))) == 4


def test_stretches_of_a_search_by_cost_are_tracked_with_their_epochs() -> None:
    class Notes:
        def __init__(self) -> None:
            self.written: dict[int, TrackedTrial] = {}

        def write(self, trial: TrackedTrial) -> None:
            self.written[trial.number] = trial

        def close(self) -> None: ...

    def evaluate(
        model: Any, architecture: Architecture, report: Any, epochs: int = 1
    ) -> dict[str, float]:
        for epoch in range(1, 7):
            if not report(epoch, {"score": float(epoch)}):
                break
        return {"score": float(epoch)}

    notes, space = Notes(), get_space("tiny-resnet")
    tracker = Tracker(notes, "notes", TrialReader(space, parse_objectives("score:max"), ()))
    evaluator = nas.FunctionEvaluator(space, evaluate, ["score"])
    result = search(
        Problem(space, evaluator, "score:max"),
        sampler="asha",
        fidelities=(2, 6),
        budget=40,
        callbacks=[tracker],
    )
    assert len(notes.written) == len(result.study.trials)
    assert {trial.values["epochs"] for trial in notes.written.values()} == {2, 6}
    assert all(trial.values["score"] == trial.values["epochs"] for trial in notes.written.values())


@pytest.mark.slow
def test_wandb_has_a_step_for_every_trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="wandb is not installed")
    from wandb.proto import wandb_internal_pb2

    record_class: Any = wandb_internal_pb2  # its messages are made at run time

    for name, value in {
        "WANDB_MODE": "offline",
        "WANDB_DIR": str(tmp_path),
        "WANDB_SILENT": "true",
    }.items():
        monkeypatch.setenv(name, value)
    studies = tracked("wandb:project", tmp_path)
    (written,) = tmp_path.rglob("run-*.wandb")
    records: list[Any] = []
    deadline = time.monotonic() + 60
    while not any(
        record.HasField("exit") for record in records
    ):  # its own process may write a little longer
        assert time.monotonic() < deadline
        time.sleep(0.1)
        records = [
            record_class.Record.FromString(data) for data in wandb_records(written.read_bytes())
        ]
    (run_name,) = {
        (record.run.project, record.run.display_name)
        for record in records
        if record.HasField("run")
    }
    assert run_name == ("project", "mine-random-0")
    found = {}
    for record in filter(lambda record: record.HasField("history"), records):
        row = {
            i.key or "/".join(i.nested_key): json.loads(i.value_json) for i in record.history.item
        }
        found[row["_step"]] = [row[m] for m in GOALS.split(",")]
    assert found == measured(studies)


@pytest.mark.parametrize(
    ("tracker", "message"),
    [
        ("mlfow:x", "unknown tracker 'mlfow'.*mlflow"),
        ("wandb", "write wandb:PROJECT"),
        ("mlflow:", "write mlflow:URI"),
    ],
)
def test_another_tracker_is_refused_before_anything_is_evaluated(
    tracker: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=message):
        tracked(tracker, tmp_path)
    assert not (tmp_path / "mine").exists()


def test_a_missing_package_is_named_with_its_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(InputError, match=r"wandb:mine: .*pip install 'rlm-nas\[tracking\]'"):
        tracked("wandb:mine", tmp_path)


def test_a_service_that_is_away_does_not_end_the_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Away:
        def __init__(self, target: str, search: str) -> None: ...

        def write(self, trial: TrackedTrial) -> None:
            raise ConnectionError("no route to host")

        def close(self) -> None:
            raise ConnectionError("no route to host")

    monkeypatch.setitem(BACKENDS, "mlflow", (Away, "URI"))
    with caplog.at_level(logging.WARNING):
        studies = tracked("mlflow:http://away", tmp_path)
    assert len(measured(studies)) == 4
    first, close, last = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert re.fullmatch(
        "mlflow:http://away: trial 0 was not tracked: .*ConnectionError: no route to host", first
    )
    assert re.fullmatch(
        "mlflow:http://away: could not be closed: .*ConnectionError: no route to host", close
    )
    assert last == "mlflow:http://away: 4 trials were not tracked"


def test_callbacks_get_failed_trials_too() -> None:
    class Fails:
        metrics = ("quality",)

        def __call__(self, architectures: Sequence[Architecture]) -> np.ndarray:
            return np.array([[math.nan if len(states) == 1 else 1.0] for _ in architectures])

    states: list[str] = []
    nas.search(
        Problem(get_space("nasbench201"), Fails(), "quality:max"),
        sampler="random",
        evaluations=3,
        callbacks=[lambda study, trial: states.append(trial.state.name)],
    )
    assert states == ["COMPLETE", "FAIL", "COMPLETE"]
