"""Retraining a network of a finished search for deployment: the search's training, usually with
more epochs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nas.evaluation.export import preprocessing
from nas.evaluation.inheritance import imitated
from nas.evaluation.measurement import Measurement, measurement_of
from nas.evaluation.metrics import FIDELITY
from nas.evaluation.tasks import training_task
from nas.evaluation.trainable import Trainable
from nas.evaluation.training import train
from nas.search.own_evaluator import FunctionEvaluator
from nas.search.study.files import Weights, write_network
from nas.search.study.provenance import Source
from search_spaces.common.errors import InputError
from search_spaces.common.files import replacing
from search_spaces.ir.text import fingerprint

if TYPE_CHECKING:
    from search_spaces import Architecture, SearchSpace

SUMMARY = "summary.json"
CHECKPOINT = "training.pt"

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Retraining:
    """Settings of a retraining.

    Attributes:
        settings: training settings that replace those of the search.
        device: PyTorch device to train on.
        data: path of the data set, if it has moved or if the search trained nothing.
        function: the user's evaluator, `FILE.py:function`, which is run; required if the search
            used one.
    """

    settings: Mapping[str, Any]
    device: str = "cpu"
    data: str | None = None
    function: str | None = None


def retrain(
    space: SearchSpace,
    architecture: Architecture,
    source: Source,
    how: Retraining,
    stem: Path,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Train an architecture from scratch, and write its files (`nas.search.study.files`) and
    `summary.json`.

    Data set, split, seeds and all settings except `how.settings` are those of the search. An
    interrupted built-in training resumes. A finished one is not repeated.

    Args:
        space: the search space.
        architecture: the architecture to train.
        source: the source of the search's values (`nas.search.sources.source_of`).
        how: changes to the search's training.
        stem: folder and name of the files.
        progress: called with "epochs", the epochs done and the epochs in total.

    Returns:
        The summary: architecture, network, training settings, and scores by metric.

    Raises:
        InputError: the folder holds another training, the search trained nothing and no data set is
            given, or the training diverges.
    """
    network = Trainable.of(space, architecture)
    run = _Own(space, source, how) if "evaluator" in source else _BuiltIn(space, source, how)
    about = {
        "architecture": space.format(architecture),
        "network": fingerprint(network.text),
        "training": run.settings,
    }
    summary = stem.parent / SUMMARY
    if summary.exists():
        stored = _read(summary)
        if {key: stored.get(key) for key in about} != json.loads(json.dumps(about)):
            raise InputError(
                f"{stem.parent}: contains a network trained with other settings: give another --out"
            )
        return stored
    values, weights = run(network, architecture, stem.parent / CHECKPOINT, progress)
    stem.parent.mkdir(parents=True, exist_ok=True)
    write_network(stem, space, architecture, values, weights)
    with replacing(summary) as file:
        file.write_text(json.dumps({**about, "values": values}, indent=1) + "\n")
    for checkpoint in stem.parent.glob(f"{Path(CHECKPOINT).stem}*.pt"):
        checkpoint.unlink()
    return {**about, "values": values}


class _BuiltIn:
    """The built-in training."""

    def __init__(self, space: SearchSpace, source: Source, how: Retraining) -> None:
        measured = source.get("measurement")
        if how.data is None and (measured is None or measured["data"] is None):
            raise InputError("the search trained no network: give --dataset and training settings")
        if measured is None or measured["data"] is None:
            from nas.evaluation.datasets import load_dataset

            measured = Measurement((), load_dataset(str(how.data), space.input_shape)).settings
        measurement = measurement_of(measured, space.input_shape, how.data, how.device)
        task = training_task({**asdict(measurement.training), **how.settings})
        self.measurement = replace(measurement, training=task)
        self.settings = {name: self.measurement.settings[name] for name in ("seeds", "training")}
        self.settings["data"] = self.measurement.settings["data"]["sha256"]

    def __call__(
        self,
        network: Trainable,
        architecture: Architecture,
        checkpoint: Path,
        progress: Progress | None,
    ) -> tuple[dict[str, float], Weights]:
        data, m = self.measurement.data, self.measurement
        assert data is not None
        if FIDELITY in m.metrics or not data.labelled:
            data = imitated(data, network)
        trained = train(
            network, data, m.seeds, m.training, device=m.device, checkpoint=checkpoint,
            progress=progress and (lambda done, total: progress("epochs", done, total)),
        )  # fmt: skip
        if trained.state is None:
            raise InputError("the training diverged: try a lower learning_rate")
        scores = {
            data.metric: trained.validation[trained.best],
            data.test_metric: trained.test[trained.best],
        }
        return scores, (trained.state, preprocessing(data))


class _Own:
    """Training by the user's own function."""

    def __init__(self, space: SearchSpace, source: Source, how: Retraining) -> None:
        if how.data is not None:
            raise InputError(
                "the search trained with your own function, which loads its own data: omit "
                "--dataset"
            )
        device = {} if how.device == "cpu" else {"device": how.device}
        options = {**how.settings, **device}
        self.evaluator = FunctionEvaluator.of_settings(
            space, source["evaluator"], how.function, options
        )
        self.settings = {name: self.evaluator.settings[name] for name in ("sha256", "options")}

    def __call__(
        self,
        network: Trainable,
        architecture: Architecture,
        checkpoint: Path,
        progress: Progress | None,
    ) -> tuple[dict[str, float], Weights]:
        epochs = int(self.evaluator.options.get("epochs", 0))

        def report(epoch: int, metrics: Mapping[str, float]) -> bool:
            if progress:
                progress("epochs", epoch, max(epoch, epochs))
            return True

        values, state = self.evaluator.train_network(network, architecture, report)
        return values, (state, {})


def _read(path: Path) -> dict[str, Any]:
    try:
        summary = json.loads(path.read_text())
        return summary if isinstance(summary, dict) else {}
    except (OSError, ValueError):
        return {}
