"""What a data set asks of a network: a loss and a score, of classification or of regression, and the
shapes that fit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from nas.evaluation.inheritance import Cosine, Imitation
from search_spaces.common.errors import InputError
from search_spaces.ir.graph import element_type

if TYPE_CHECKING:
    from nas.evaluation.datasets import Dataset
    from search_spaces.ir.graph import Graph, Shape


class Goal(Protocol):
    """Loss and score of outputs (n, replicas, outputs).

    The score is the metric `Dataset.metric`.
    """

    sign: float  # 1 if lower scores are better, -1 if higher ones are

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Mean loss. Targets are (n, replicas) or (n, replicas, outputs)."""

    def terms(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Score (n, replicas) of each sample before averaging, in double precision.

        It is NaN where an output is not finite. Targets are (n,) or (n, outputs), the same for all
        replicas.
        """

    def score(self, mean: float) -> float:
        """The score of one replica from the mean of its terms."""


class Classification:
    """Cross-entropy, and accuracy in %."""

    sign = -1.0

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return functional.cross_entropy(outputs.flatten(0, 1), targets.flatten())

    def terms(self, outputs: Tensor, targets: Tensor) -> Tensor:
        right = (outputs.argmax(2) == targets[:, None]).double()
        return torch.where(outputs.isfinite().all(2), right, torch.nan)

    def score(self, mean: float) -> float:
        return 100 * mean


@dataclass(frozen=True)
class Regression:
    """Mean squared error of normalized targets.

    The score is the root mean square error in the targets' own unit.

    Args:
        std: (outputs,) standard deviations that the targets were divided by.
    """

    std: Tensor
    sign = 1.0

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return functional.mse_loss(outputs, targets)

    def terms(self, outputs: Tensor, targets: Tensor) -> Tensor:
        squares = ((outputs - targets[:, None]).double() * self.std).square().mean(2)
        return torch.where(outputs.isfinite().all(2), squares, torch.nan)

    def score(self, mean: float) -> float:
        return mean**0.5


def goal_of(data: Dataset) -> Goal:
    """The training objective of a data set."""
    if isinstance(data, Imitation):
        return Cosine() if data.is_regression else Classification()
    if data.target_scale is not None:
        return Regression(torch.from_numpy(data.target_scale.std).double())
    return Regression(torch.ones(data.outputs).double()) if data.is_regression else Classification()


# --- whether network and data fit


def check_fit(graph: Graph, data: Dataset) -> None:
    """Raise InputError unless the network's input and output shapes match the data set."""
    if not data.labelled:
        raise InputError(_unlabelled(data))
    if len(graph.inputs) != 1:
        raise InputError(f"the network has {len(graph.inputs)} inputs; {data.name} has one")

    # 1. Inputs: of the same type and sizes, where these are fixed.
    takes = graph.shapes[graph.inputs[0]]
    fits = len(takes) == len(data.shape) + 1 and element_type(takes) == element_type(data.shape)
    if fits:
        sizes = zip(takes[1:], data.shape, strict=True)
        fits = all(isinstance(size, str) or size == has for size, has in sizes)
    if not fits:
        raise InputError(
            f"the network takes inputs of shape {_shown(takes, tuple(takes[1:]))}; {data.name} "
            f"has inputs of shape {_shown(data.shape, tuple(data.shape))}"
        )

    # 2. Outputs: one for each class or target.
    output = graph.shapes[graph.outputs[0]][1:]
    if not isinstance(data, Imitation) and output != (data.outputs,):
        kind = "regression targets" if data.is_regression else "classes"
        raise InputError(
            f"the network's output has shape {output}; {data.name} has {data.outputs} {kind}"
        )
    _check_token_ids(graph, data)


def _unlabelled(data: Dataset) -> str:
    return (
        f"{data.name} has inputs, but no targets: add y, or search by the fidelity to a trained "
        "model (--model)"
    )


def _shown(shape: Shape, sizes: tuple[int | str, ...]) -> str:
    return str(sizes) if element_type(shape) == "float" else f"{sizes} {element_type(shape)}"


def _check_token_ids(graph: Graph, data: Dataset) -> None:
    """Raise InputError for token ids beyond the rows of the embedding that reads them."""
    readers = [n for n in graph.nodes if n.op == "Embedding" and n.inputs[0] == graph.inputs[0]]
    rows = min((int(dict(node.attrs)["rows"]) for node in readers), default=None)  # type: ignore[arg-type]
    largest = max(
        part.inputs.max(initial=0) for part in (data.train, data.test, data.validation) if part
    )
    if rows is not None and largest >= rows:
        raise InputError(
            f"{data.name} has the token id {largest}; the network's embedding has {rows} rows"
        )
