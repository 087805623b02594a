"""What networks with inherited weights need: recalibrated statistics, a teacher, and agreement with
it as the metric.

A sub-network of a trained model (`search_spaces.Subnetworks`) starts from the model's weights. Its
running statistics are those of the whole model and do not fit it; without recalibration its
accuracy is that of guessing. Where the model is the teacher, a network also learns from the model's
outputs, and inputs without labels are enough: the metric `fidelity` is the agreement with the
model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from nas.evaluation.datasets import Dataset, Part
from nas.evaluation.metrics import FIDELITY
from search_spaces.common.errors import InputError

if TYPE_CHECKING:
    from nas.evaluation.trainable import Trainable

TEST_FIDELITY = f"test_{FIDELITY}"
CALIBRATION_SAMPLES = 2048  # training samples that running statistics are computed from
TEACHER_BATCH = 256  # samples
TEMPERATURE = 2.0  # softens the classes of teacher and network
TEACHER_SHARE = 0.5  # of the loss


def recalibrate(
    net: nn.Module, batches: Iterable[Tensor], run: Callable[[Tensor], Any] | None = None
) -> None:
    """Compute the running statistics of batch normalizations anew, as means over batches.

    Args:
        net: the network; its modes and everything else stay.
        batches: inputs of the network.
        run: called with a batch, if the network is not called with it itself.
    """
    norms = [
        layer
        for layer in net.modules()
        if isinstance(layer, nn.modules.batchnorm._BatchNorm) and layer.running_mean is not None
    ]
    if not norms:
        return
    modes = {layer: layer.training for layer in net.modules()}
    momenta = {layer: layer.momentum for layer in norms}
    call = run or net
    try:
        net.eval()
        for norm in norms:
            norm.train()
            norm.reset_running_stats()
            norm.momentum = None  # the mean over all batches
        with torch.no_grad():
            for x in batches:
                call(x)
    finally:
        for layer, mode in modes.items():
            layer.training = mode
        for norm, momentum in momenta.items():
            norm.momentum = momentum


# --- the teacher


@contextmanager
def _in_evaluation(module: nn.Module) -> Iterator[None]:
    modes = {layer: layer.training for layer in module.modules()}
    module.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for layer, mode in modes.items():
            layer.training = mode


class Teacher:
    """The model's outputs for batches.

    Args:
        network: the network that learns, which has a teacher.
        device: torch device of the batches.
    """

    def __init__(self, network: Trainable, device: torch.device) -> None:
        assert network.teacher is not None
        self.network = network
        self.model = network.teacher.to(device)

    def __call__(self, x: Tensor) -> Tensor:
        """Outputs (n, outputs)."""
        with _in_evaluation(self.model):
            return self.network.outputs(self.model, x).flatten(1)


def distillation(outputs: Tensor, taught: Tensor, kind: str) -> Tensor:
    """Distance of outputs (n, outputs) from the teacher's.

    Args:
        outputs: of the network.
        taught: of the teacher.
        kind: "classes": divergence of softened probabilities; "vectors": 1 - cosine.
    """
    if kind == "vectors":
        return 1 - functional.cosine_similarity(outputs, taught, dim=1).mean()
    soft = functional.log_softmax(taught / TEMPERATURE, 1)
    divergence = functional.kl_div(
        functional.log_softmax(outputs / TEMPERATURE, 1),
        soft,
        reduction="batchmean",
        log_target=True,
    )
    return divergence * TEMPERATURE**2


# --- fidelity


@dataclass(frozen=True, eq=False)
class Imitation(Dataset):
    """A data set whose targets are a model's own outputs: its top classes, or its vectors."""

    @property
    def metric(self) -> str:
        return FIDELITY

    @property
    def test_metric(self) -> str:
        return TEST_FIDELITY


class Cosine:
    """Loss and score of vectors: 1 - cosine, and the mean cosine in %."""

    sign = -1.0

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Mean loss of outputs (n, replicas, outputs)."""
        return 1 - functional.cosine_similarity(outputs, targets, dim=2).mean()

    def terms(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Cosine (n, replicas) of each sample; NaN where an output is not finite."""
        cosines = functional.cosine_similarity(outputs.double(), targets[:, None].double(), dim=2)
        return torch.where(outputs.isfinite().all(2), cosines, torch.nan)

    def score(self, mean: float) -> float:
        """The score in %."""
        return 100 * mean


_IMITATIONS: dict[tuple[str, int, str], Imitation] = {}  # by data set, model and kind; the last one


def imitated(data: Dataset, network: Trainable) -> Dataset:
    """The data set with a model's own outputs as targets.

    Args:
        data: inputs, whose targets are not used.
        network: a network whose teacher is the model.

    Raises:
        InputError: the network has no teacher.
    """
    if network.teacher is None:
        raise InputError(
            f"{FIDELITY} is agreement with a trained model: give --model, and not --teacher none"
        )
    key = (data.fingerprint, id(network.teacher), network.imitates)
    if key not in _IMITATIONS:
        _IMITATIONS.clear()
        teacher = Teacher(network, torch.device("cpu"))

        def part(samples: Part) -> Part:
            rows = range(0, len(samples), TEACHER_BATCH)
            made = [
                teacher(torch.from_numpy(samples.inputs[i : i + TEACHER_BATCH])).numpy()
                for i in rows
            ]
            outputs = np.concatenate(made) if made else np.zeros((0, 1), np.float32)
            vectors = network.imitates == "vectors"
            return Part(
                samples.inputs,
                outputs.astype(np.float32) if vectors else outputs.argmax(1).astype(np.int64),
            )

        train = part(data.train)
        test = part(data.test)
        validation = None if data.validation is None else part(data.validation)
        shape = network.graph.shapes[network.graph.outputs[0]]
        _IMITATIONS[key] = Imitation(
            data.name, train, test, int(shape[-1]), validation, data.input_scale, None, data.source
        )
    return _IMITATIONS[key]
