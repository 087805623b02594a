"""What is measured of a network on this machine, and how: trained accuracy, latency, peak memory, exact costs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from nas.evaluation import memory
from nas.evaluation.datasets import Dataset
from nas.evaluation.latency import LatencyTask, time_model
from nas.evaluation.metrics import check_metrics
from nas.evaluation.training import TrainingTask, train
from search_spaces.graph.costs import graph_flops, graph_params

if TYPE_CHECKING:
    import onnx

    from search_spaces.graph.ir import Graph

Progress = Callable[[str, int, int], None]


class Measured(NamedTuple):
    """A value in its metric's unit, between `low` and `high`, whose meaning `spread` gives."""

    value: float
    low: float
    high: float
    spread: str = ""


@dataclass(frozen=True, eq=False)
class Measurement:
    """Which metrics are measured, and how. `known` names all that can be; nothing but `metrics` costs time.

    data: what networks are trained on, where accuracy (`DATASET_accuracy`, %) is asked for.
    seeds: of the trainings, whose mean accuracy counts. latency: gives `cpu_latency_ms` (of the provider's name).
    Memory (`peak_memory_mb`) is measured on the CPU, at latency's batch and threads.
    """

    metrics: tuple[str, ...]
    data: Dataset | None = None
    seeds: tuple[int, ...] = (0,)
    training: TrainingTask = field(default_factory=TrainingTask)
    latency: LatencyTask = field(default_factory=LatencyTask)
    device: str = "cpu"

    def __post_init__(self) -> None:
        check_metrics(self.metrics, known_metrics(self.latency, self.data.metric if self.data else None))

    @property
    def settings(self) -> dict[str, Any]:
        """All that the values depend on, as plain values."""
        return {
            "metrics": list(self.metrics),
            "data": self.data and {"name": self.data.name, "sha256": self.data.fingerprint},
            "seeds": list(self.seeds),
            "training": asdict(self.training),
            "latency": asdict(self.latency),
        }

    def __call__(
        self,
        graph: Graph,
        model: onnx.ModelProto,
        checkpoint: Path | None = None,
        progress: Progress | None = None,
    ) -> dict[str, Measured]:
        """The metrics of a network; accuracy is NaN where a training diverged.

        checkpoint: file in which the training's state is kept, to go on after an interruption.
        progress: called with what is done, how far, and of how much.
        """
        found = {}
        for metric in self.metrics:
            if progress:
                progress(metric, 0, 1)
            if self.data is not None and metric == self.data.metric:
                found[metric] = self._accuracy(graph, self.data, checkpoint, progress)
            elif metric == self.latency.metric:
                times = time_model(model, self.latency)
                found[metric] = Measured(*times, f"median, 10 % and 90 % quantile of {self.latency.runs} runs")
            elif metric == memory.METRIC:
                found[metric] = _exact(
                    memory.measure_memory(model, batch=self.latency.batch, threads=self.latency.threads)
                )
            else:
                found[metric] = _exact(graph_params(graph) if metric == "params" else graph_flops(graph))
        return found

    def _accuracy(self, graph: Graph, data: Dataset, checkpoint: Path | None, progress: Progress | None) -> Measured:
        accuracies = train(
            graph, data, self.seeds, self.training, device=self.device, checkpoint=checkpoint,
            progress=progress and (lambda done, total: progress("training, epochs", done, total)),
        )  # fmt: skip
        mean = float(np.mean(accuracies))
        if len(accuracies) == 1:
            return Measured(mean, mean, mean, "one training")
        std = float(np.std(accuracies, ddof=1))
        return Measured(mean, mean - std, mean + std, f"mean ± standard deviation over {len(accuracies)} seeds")


def _exact(value: float) -> Measured:
    return Measured(value, value, value)


def known_metrics(latency: LatencyTask, accuracy: str | None = None) -> tuple[str, ...]:
    """Names of the metrics that can be measured; `accuracy` is that of the data set, if there is one."""
    return (*([accuracy] if accuracy else []), latency.metric, memory.METRIC, "params", "flops")
