"""What networks with inherited weights need: recalibrated statistics, a teacher, and agreement with
it as the metric.

A sub-network of a trained model (`search_spaces.Subnetworks`) starts from the model's weights. Its
running statistics are those of the whole model and do not fit it; without recalibration its
accuracy is that of guessing. The user's data may differ from what the model was trained on, such as
photographs of few things, and statistics of such data alone would change even the whole model: so
a network inherits from the model as it is when it is expressed by the statistics of the data, which
leaves its outputs as they are. Where the model is the teacher, a network also learns from the
model's outputs, and inputs without labels are enough: the metric `fidelity` is the agreement with
the model.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from nas.evaluation.datasets import Dataset, Part
from nas.evaluation.metrics import FIDELITY
from nas.evaluation.tasks import weight_size
from search_spaces.common.errors import InputError

if TYPE_CHECKING:
    from nas.evaluation.trainable import Trainable
    from search_spaces.ir.graph import Shape

TEST_FIDELITY = f"test_{FIDELITY}"
CALIBRATION_SAMPLES = 2048  # training samples that running statistics are computed from
CALIBRATION_BATCH = 128  # of them at a time, at least: a mean over small batches is a worse one
TEACHER_BATCH = 256  # samples, of small inputs and outputs
MAX_VALUES = 2**24  # numbers in the inputs or outputs of a batch without gradients
TEMPERATURE = 2.0  # softens the classes of teacher and network
TEACHER_SHARE = 0.5  # of the loss
PROBED_CHANGE = 0.01  # relative to the size of weights
MAX_CHANGE = 0.5  # of outputs, as a `distance`, by a step in a random direction


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


# By model: the fingerprint of the data, and the moments of each normalization
_MOMENTS: WeakKeyDictionary[nn.Module, tuple[str, list[_Moments]]] = WeakKeyDictionary()


@contextmanager
def adapted_to_data(
    model: nn.Module, data: Dataset, batches: Iterable[Tensor], run: Callable[[Tensor], Any]
) -> Iterator[None]:
    """A context in which a trained model has the running statistics of other data, and its outputs.

    A batch normalization in evaluation mode multiplies each channel by a number and adds one. For
    any statistics, there are a weight and a bias with the same result. With those of the data, the
    model is what it was; and networks that inherit from it meanwhile fit the data after
    `recalibrate`, and when they train with the statistics of batches. Afterwards, the model is as
    before, to the bit.

    Args:
        model: normalizations without weights, or with shared ones, stay as they are.
        data: where the batches are from; its statistics are computed once per model.
        batches: inputs.
        run: called with a batch, calls the model.
    """
    # 1. Mean and variance of what each normalization receives in the model as it is.
    norms = _own_norms(model)
    fingerprint = data.fingerprint if norms else ""
    if model not in _MOMENTS or _MOMENTS[model][0] != fingerprint:
        _MOMENTS[model] = fingerprint, _received(model, norms, batches, run)
    _, moments = _MOMENTS[model]

    # 2. The same function with these statistics.
    tensors = [
        tensor
        for norm in norms
        for tensor in (norm.weight, norm.bias, norm.running_mean, norm.running_var)
        if tensor is not None
    ]
    originals = [tensor.detach().clone() for tensor in tensors]
    try:
        with torch.no_grad():
            for norm, received in zip(norms, moments, strict=True):
                if received.count:  # otherwise the model does not use it
                    _express_with(norm, received.mean, received.variance)
        yield
    finally:
        with torch.no_grad():
            for tensor, original in zip(tensors, originals, strict=True):
                tensor.copy_(original)


def _own_norms(model: nn.Module) -> list[nn.modules.batchnorm._BatchNorm]:
    """Normalizations with running statistics, and with weights that no other one has."""
    norms = [
        layer
        for layer in model.modules()
        if isinstance(layer, nn.modules.batchnorm._BatchNorm)
        and layer.running_mean is not None
        and layer.affine
    ]
    users = Counter(id(layer.weight) for layer in norms)
    return [layer for layer in norms if users[id(layer.weight)] == 1]


def _received(
    model: nn.Module,
    norms: list[nn.modules.batchnorm._BatchNorm],
    batches: Iterable[Tensor],
    run: Callable[[Tensor], Any],
) -> list[_Moments]:
    """Moments of what each normalization receives."""
    if not norms:
        return []
    moments: dict[nn.Module, _Moments] = {norm: _Moments() for norm in norms}
    hooks = [
        norm.register_forward_pre_hook(lambda norm, inputs: moments[norm].add(inputs[0]))
        for norm in norms
    ]
    try:
        with in_evaluation(model):
            for x in batches:
                run(x)
    finally:
        for hook in hooks:
            hook.remove()
    return [moments[norm] for norm in norms]


class _Moments:
    """Mean and variance (channels,) of all samples and places."""

    def __init__(self) -> None:
        self.count = 0
        self.sum = torch.zeros(1, dtype=torch.double)
        self.squares = torch.zeros(1, dtype=torch.double)

    def add(self, x: Tensor) -> None:
        """Add a batch (n, channels, …)."""
        others = [axis for axis in range(x.ndim) if axis != 1]
        values = x.detach().double()
        self.count += values.numel() // values.shape[1]
        self.sum = self.sum.to(x.device) + values.sum(others)
        self.squares = self.squares.to(x.device) + values.square().sum(others)

    @property
    def mean(self) -> Tensor:
        return self.sum / self.count

    @property
    def variance(self) -> Tensor:
        return (self.squares / self.count - self.mean**2).clamp(min=0)


def _express_with(norm: nn.modules.batchnorm._BatchNorm, mean: Tensor, variance: Tensor) -> None:
    """Give a normalization other statistics, and the weight and bias that make up for them."""
    assert norm.running_mean is not None
    assert norm.running_var is not None
    scale = norm.weight.double() / (norm.running_var.double() + norm.eps).sqrt()
    norm.bias.copy_(norm.bias + scale * (mean - norm.running_mean))
    norm.weight.copy_(scale * (variance + norm.eps).sqrt())
    norm.running_mean.copy_(mean)
    norm.running_var.copy_(variance)


# --- the teacher


def per_position(outputs: Tensor) -> Tensor:
    """A module's outputs as rows (n · positions, outputs), in the order of the samples.

    Outputs (n, outputs) have one position per sample. Language models and encoders have one per
    token, (n, tokens, outputs); networks that segment images one per pixel, (n, outputs, height,
    width).
    """
    if outputs.ndim == 2:
        return outputs
    by_sample = outputs if outputs.ndim == 3 else outputs.flatten(2).transpose(1, 2)
    return by_sample.flatten(0, 1)


def targets_per_position(targets: Tensor) -> Tensor:
    """Classes (n · positions,), or vectors (n · positions, outputs), of a batch's targets."""
    if targets.is_floating_point():
        return targets.reshape(-1, targets.shape[-1])
    return targets.flatten()


def outputs_per_position(shape: Shape) -> int:
    """Number of outputs of each position, of a module's output shape (n, …)."""
    return int(shape[-1] if len(shape) == 3 else shape[1])


def batch_size(largest: int, *shapes: Shape) -> int:
    """How many samples fit into `MAX_VALUES` by the shapes (n, …) of their inputs and outputs."""
    sizes = [math.prod(size for size in shape[1:] if isinstance(size, int)) for shape in shapes]
    return max(1, min(largest, MAX_VALUES // max(1, *sizes)))


@contextmanager
def in_evaluation(module: nn.Module) -> Iterator[None]:
    """A context in which a module is in evaluation mode, and nothing has gradients."""
    modes = {layer: layer.training for layer in module.modules()}
    module.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for layer, mode in modes.items():
            layer.training = mode


class Teacher:
    """A model's outputs for batches.

    Args:
        network: a part of the model.
        model: the model.
        device: torch device of the batches.
    """

    def __init__(self, network: Trainable, model: nn.Module, device: torch.device) -> None:
        self.network = network
        self.model = model.to(device)

    def __call__(self, x: Tensor) -> Tensor:
        """Outputs (n · positions, outputs)."""
        with in_evaluation(self.model):
            return per_position(self.network.outputs(self.model, x))


def distillation(outputs: Tensor, taught: Tensor, kind: str) -> Tensor:
    """Distance of outputs (n · positions, outputs) from the teacher's.

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


def distance(outputs: Tensor, taught: Tensor, kind: str) -> float:
    """How far outputs (n · positions, outputs) are from the teacher's, 0 to 1.

    It is their `distillation`, relative to that of the best constant outputs.

    Args:
        outputs, taught, kind: as there.
    """
    if kind == "vectors":
        mean = taught.mean(0, keepdim=True)
    else:
        probabilities = functional.softmax(taught / TEMPERATURE, 1).mean(0, keepdim=True)
        mean = TEMPERATURE * probabilities.log()
    of_constant = float(distillation(mean.expand_as(taught), taught, kind))
    relative = float(distillation(outputs, taught, kind)) / max(of_constant, 1e-12)
    return min(max(relative, 0.0), 1.0) if math.isfinite(relative) else 1.0


def distance_from_model(network: Trainable, module: nn.Module, x: Tensor) -> float | None:
    """`distance` of a network's outputs from those of its model.

    Args:
        network: the network.
        module: its module.
        x: a batch of inputs, on the module's device.

    Returns:
        None if the network inherits from no single model.
    """
    model = network.model or network.teacher
    if model is None:
        return None
    taught = Teacher(network, model, x.device)(x)
    with in_evaluation(module):
        outputs = per_position(network.outputs(module, x))
    return distance(outputs, taught, network.imitates)


def tolerated_change(network: Trainable, module: nn.Module, x: Tensor) -> float:
    """Random change of all weights, relative to their size, that changes outputs by `MAX_CHANGE`.

    A step of Adam changes all weights at once, and changes of many layers add up: a network of 50
    convolutions stands a tenth of what one of 14 does. For small changes, the distance of outputs
    goes with their square.

    Args:
        network: the network.
        module: its module, unchanged afterwards.
        x: a batch of inputs, on the module's device.
    """
    weights = list(module.parameters())
    before = [weight.detach().clone() for weight in weights]
    generator = torch.Generator().manual_seed(0)
    with in_evaluation(module):
        outputs = per_position(network.outputs(module, x)).clone()
        for weight in weights:
            noise = torch.randn(weight.shape, generator=generator).to(weight)
            weight.add_(noise, alpha=PROBED_CHANGE * weight_size(weight))
        changed = per_position(network.outputs(module, x))
        for weight, value in zip(weights, before, strict=True):
            weight.copy_(value)
    far = distance(changed, outputs, network.imitates)
    return PROBED_CHANGE * math.sqrt(MAX_CHANGE / max(far, 1e-12))


# --- fidelity


@dataclass(frozen=True, eq=False)
class Imitation(Dataset):
    """A data set whose targets are a model's own outputs: its top classes, or its vectors.

    Of models with several positions, such as tokens, targets are classes (n, positions), or vectors
    (n, positions, outputs).
    """

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
        """Mean loss of outputs (n · positions, 1, outputs); targets are (n, 1, …, outputs)."""
        vectors = targets_per_position(targets)[:, None]
        return 1 - functional.cosine_similarity(outputs, vectors, dim=2).mean()

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
        teacher = Teacher(network, network.teacher, torch.device("cpu"))
        graph = network.graph
        taken, made = graph.shapes[graph.inputs[0]], graph.shapes[graph.outputs[0]]
        if len(made) < 2:
            raise InputError(
                f"{FIDELITY} compares classes or vectors: the model's output has shape {made}"
            )
        batch = batch_size(TEACHER_BATCH, taken, made)
        vectors = network.imitates == "vectors"

        def part(samples: Part) -> Part:
            """The samples with classes (n, …) or vectors (n, …, outputs) as targets."""
            targets = []
            for start in range(0, len(samples), batch):
                x = torch.from_numpy(samples.inputs[start : start + batch])
                outputs = teacher(x).unflatten(0, (len(x), -1))  # (n, positions, outputs)
                targets.append(outputs.float() if vectors else outputs.argmax(2))
            if not targets:
                return Part(samples.inputs, np.zeros(0, np.float32 if vectors else np.int64))
            together = torch.cat(targets)
            return Part(
                samples.inputs, (together if together.shape[1] > 1 else together[:, 0]).numpy()
            )

        train = part(data.train)
        test = part(data.test)
        validation = None if data.validation is None else part(data.validation)
        _IMITATIONS[key] = Imitation(
            data.name,
            train,
            test,
            outputs_per_position(made),
            validation,
            data.input_scale,
            None,
            data.source,
        )
    return _IMITATIONS[key]
