"""Kernel regression as the first layer over examples and queries.

Every head is kernel ridge regression of the examples' scores with a learned kernel and a learned
penalty. Examples read leave-one-out predictions in closed form, so that examples and queries read
the same kind of number. A last output stacks the heads (Wolpert, 1992): their mean, weighted by
leave-one-out errors, is corrected by ridge regression on the leave-one-out predictions. The layers
above learn which heads to trust. Sizes in comments: B tasks, n examples, q queries, C coordinates,
h heads.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

MIN_SQUARE = 1e-3  # added to mean squared errors, so that their logarithm is finite
MAX_PREDICTION = 8.0  # largest absolute prediction, in scores


class Factored(NamedTuple):
    """The kernels of the examples, which all metrics of the same examples share."""

    scaled: Tensor  # (B, h, n, C) scaled coordinates
    inverse: Tensor  # (B, h, n, n) of each kernel matrix with its penalty
    density: Tensor  # (B, h, n) sum of the nearness to the other examples
    closest: Tensor  # (B, h, n) nearness to the nearest other example


class Solved(NamedTuple):
    """The fitted regressions, as queries read them."""

    scaled: Tensor  # (B, h, n, C) scaled coordinates of the examples
    dual: Tensor  # (B, h, n) dual weights
    errors: Tensor  # (B, h) logarithms of mean squared leave-one-out errors
    weights: Tensor  # (B, h) of the heads' predictions in the stacked one


class KernelRegression(nn.Module):
    """Maps examples and queries to `outputs` features each.

    Args:
        scales: (h, C) initial scales of the coordinates, per kernel, for kernels of length 1.
    """

    def __init__(self, scales: Tensor) -> None:
        super().__init__()
        heads = len(scales)
        lengths = torch.logspace(math.log10(0.5), math.log10(5.0), heads)
        noise = torch.tensor([0.03, 0.15]).log().repeat(heads)[:heads]
        self.log_scales = nn.Parameter(
            scales.log() - lengths.log()[:, None] + 0.1 * torch.randn(scales.shape)
        )
        self.log_linear = nn.Parameter(torch.full((heads,), -1.0) + 2 * lengths.log())
        self.log_penalty = nn.Parameter(noise)
        self.log_sharpness = nn.Parameter(torch.zeros(1))
        self.stacking = nn.Parameter(
            torch.tensor([-1.2, -1.0])
        )  # log of the penalty for 100 examples, slope by log n
        self.outputs = 3 * heads + 2

    def factor(self, coordinates: Tensor) -> Factored:
        """The kernels of examples with coordinates (B, n, C)."""
        scaled = coordinates[:, None] * self.log_scales.exp()[:, None]
        products = scaled @ scaled.mT
        half = products.diagonal(dim1=-2, dim2=-1) / 2
        nearness = (
            (products - half[..., None]).sub_(half[..., None, :]).exp_()
        )  # exactly 1 on the diagonal
        kernel = products.mul_(self._linear).add_(
            nearness
        )  # in place: new matrices (h, n, n) take time
        kernel.diagonal(dim1=-2, dim2=-1).add_(self.log_penalty.exp()[:, None])
        inverse = torch.cholesky_inverse(torch.linalg.cholesky(kernel))
        others = nearness - torch.eye(coordinates.shape[1], device=coordinates.device)
        return Factored(scaled, inverse, others.sum(-1), others.amax(-1))

    def evidence(self, coordinates: Tensor, scores: Tensor) -> Tensor:
        """Log marginal likelihood of scores (B, n) at coordinates (B, n, C), per example, mean over
        tasks and heads.

        A constant is left out. Each head is a Gaussian process whose variance is the most likely
        one.
        """
        inverse, n = self.factor(coordinates).inverse, scores.shape[1]
        misfit = torch.einsum("bi,bhij,bj->bh", scores, inverse, scores)
        return (inverse.logdet() / n - (misfit / n + MIN_SQUARE).log()).mean() / 2

    def solve(self, factored: Factored, scores: Tensor) -> tuple[Tensor, Solved]:
        """Fit the heads to the scores (B, n) of examples.

        Returns:
            Features (B, n, outputs) of the examples, and the fitted regressions.
        """
        scaled, inverse, density, closest = factored
        dual = (inverse @ scores[:, None, :, None])[..., 0]  # (B, h, n)
        missed = dual / inverse.diagonal(dim1=-2, dim2=-1)
        errors = (missed.square().mean(-1) + MIN_SQUARE).log()
        found = (scores[:, None] - missed).clamp(-MAX_PREDICTION, MAX_PREDICTION)
        mean, weights = self._stacked(found, errors, scores)
        solved = Solved(scaled, dual, errors, weights)
        return self._features(found, density, closest, solved, mean), solved

    def forward(self, coordinates: Tensor, solved: Solved) -> Tensor:
        """Features (B, q, outputs) of queries with coordinates (B, q, C)."""
        scaled = coordinates[:, None] * self.log_scales.exp()[:, None]
        nearness, dual = _nearness(scaled, solved.scaled), solved.dual[..., None]
        found = nearness @ dual + self._linear * (
            scaled @ (solved.scaled.mT @ dual)
        )  # avoids a (q, n) matrix
        found = found[..., 0].clamp(-MAX_PREDICTION, MAX_PREDICTION)
        mean = (solved.weights[:, None] @ found)[:, 0]
        return self._features(found, nearness.sum(-1), nearness.amax(-1), solved, mean)

    @property
    def _linear(self) -> Tensor:
        """Weights (h, 1, 1) of the kernels' linear parts."""
        return self.log_linear.exp()[:, None, None]

    def _trust(self, errors: Tensor, n: int) -> Tensor:
        """Weights (B, h) of the heads by their errors (B, h) on n examples."""
        return torch.softmax(-self.log_sharpness.exp() * 0.5 * n**0.5 * errors, -1)

    def _stacked(self, found: Tensor, errors: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
        """Stacked leave-one-out predictions (B, n) of the heads' `found` (B, h, n), and weights (B,
        h) of the heads.
        """
        n = scores.shape[1]
        trust = self._trust(errors, n)
        missed = scores - (trust[:, None] @ found)[:, 0]
        penalty = torch.exp(self.stacking[0] + self.stacking[1] * math.log(n / 100)) * n
        factor = torch.linalg.cholesky(
            found @ found.mT + penalty * torch.eye(found.shape[1], device=scores.device)
        )
        projected = torch.cholesky_solve(found, factor)  # (B, h, n)
        correction = (projected @ missed[..., None])[..., 0]
        leverage = (found * projected).sum(1)
        rest = missed - (correction[:, None] @ found)[:, 0]
        return scores - rest / (1 - leverage).clamp(min=0.05), trust + correction

    def _features(
        self, found: Tensor, density: Tensor, closest: Tensor, solved: Solved, mean: Tensor
    ) -> Tensor:
        """Features (B, m, outputs) of m points: `found`, `density`, `closest` (B, h, m) and stacked
        `mean` (B, m).
        """
        trust = self._trust(solved.errors, solved.dual.shape[-1])
        spread = (trust[..., None] * (found - mean[:, None]).square()).sum(1)
        error = (trust * solved.errors).sum(-1)[:, None].expand_as(mean)
        per_head = torch.cat([found, torch.log(density + 1e-4) / 4, closest], 1).mT  # (B, m, 3h)
        return torch.cat([per_head, torch.stack([mean, error + spread.clamp(max=4)], -1)], -1)


def _nearness(a: Tensor, b: Tensor) -> Tensor:
    """Squared exponential kernel (…, m, n) of points a (…, m, C) and b (…, n, C)."""
    half_a, half_b = (x.square().sum(-1, keepdim=True) / 2 for x in (a, b))
    return (a @ b.mT).sub_(half_a).sub_(half_b.mT).exp_()
