"""From states to features, and kernel regression on them: the first layer of the in-context model.

`Projection` maps the states of a context to features that mean the same in every search space:
principal axes of the examples' states (PCA), covariates, and the common numbers as they are.

Every head of `KernelRegression` is kernel ridge regression of the examples' targets with a learned
kernel and a learned penalty. Examples read leave-one-out predictions in closed form, so that
examples and queries read the same kind of number. A last output stacks the heads (Wolpert, 1992):
their mean, weighted by leave-one-out errors, is corrected by ridge regression on the leave-one-out
predictions. The layers above learn which heads to trust.

Targets are z values, see `predictors.transforms`. Sizes in comments: B tasks, n examples, q queries,
m of either, S numbers of a state, F features, h heads, k axes, c covariates.
"""

from __future__ import annotations

import math
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from predictors.rlm.tokens import COMMON, TextFeatures

AXES = (96, 32, 64, 64)  # principal axes of structure, quality, counts, neighbours
WHITENED = 8  # axes of each of these parts that are whitened, too
COVARIATES = 8  # principal axes of the covariates
FEATURES = sum(AXES) + len(AXES) * WHITENED + COVARIATES + COMMON + 3

MAX_FEATURE = 5.0  # largest absolute feature, except the number of examples
AXIS_SCALE = 4.0  # multiplies features along principal axes, whose mean squares sum to 1 before
COMMON_WEIGHT = 0.2  # of the common numbers among the principal axes of structure
MIN_SPREAD = 1e-4  # least standard deviation of a common number that counts as different
MIN_VARIANCE = 1e-6  # of a principal axis, relative to the first one

MIN_SQUARE = 1e-3  # added to mean squared errors, so that their logarithm is finite
MIN_REST = 0.05  # least 1 - leverage in leave-one-out predictions
MAX_PREDICTION = 8.0  # largest absolute prediction, in z
_DISTANCE_ROWS = 256  # rows of a distance matrix that are computed at once


class FeatureColumns(NamedTuple):
    """Where each kind of feature is among the F features; shorter ones are padded with zeros."""

    axes: tuple[slice, ...]  # per part of the states
    whitened: tuple[slice, ...]  # per part of the states
    covariates: slice
    common: slice
    residual: int  # distance from the span of the axes of structure, quality and counts
    conditioned: int  # 1 if there are covariates
    examples: int  # log2 of the number of examples, scaled


def _columns() -> FeatureColumns:
    parts = len(AXES)
    sizes = [*AXES]
    sizes += [WHITENED] * parts
    sizes += [COVARIATES, COMMON]
    ends = list(accumulate(sizes))
    slices = [slice(end - size, end) for end, size in zip(ends, sizes, strict=True)]
    single = ends[-1]  # single numbers follow the slices
    return FeatureColumns(
        axes=tuple(slices[:parts]),
        whitened=tuple(slices[parts : 2 * parts]),
        covariates=slices[-2],
        common=slices[-1],
        residual=single,
        conditioned=single + 1,
        examples=single + 2,
    )


COLUMNS = _columns()


# --- from states to features


class PrincipalAxes(NamedTuple):
    """Principal axes of a part of the states, possibly joined to further columns."""

    center: np.ndarray  # (S,) mean
    scale: float  # root mean squared distance from the center
    directions: np.ndarray  # (S + c, k) of the scaled part, with c columns beside it
    spread: np.ndarray  # (k,) standard deviations along the directions

    @classmethod
    def fit(
        cls,
        part: np.ndarray,
        count: int,
        *beside: np.ndarray,
    ) -> PrincipalAxes:
        """Fit at most `count` axes to a part (n, S) and the columns `beside` it (n, c).

        The part is scaled to a mean square of 1.
        """
        center = part.mean(0)
        centered = part - center
        square = (centered**2).sum(1)  # (n,)
        scale = float(np.sqrt(square.mean())) or 1.0
        joined = np.concatenate([centered / scale, *beside], 1)  # (n, S + c)
        directions, spread = _principal_axes(joined, count)
        return cls(center, scale, directions, spread)

    def project(
        self,
        part: np.ndarray,
        *beside: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Projections (m, k) of a part (m, S) on the axes, and squared distances (m,).

        The distances are those from the span of the axes.
        """
        scaled = (part - self.center) / self.scale
        joined = np.concatenate([scaled, *beside], 1)  # (m, S + c)
        projected = joined @ self.directions  # (m, k)
        # Directions are orthonormal: what the projection lacks in length lies outside of the span.
        square = (joined**2).sum(1)  # (m,)
        inside = (projected**2).sum(1)
        return projected, np.maximum(square - inside, 0)


class Projection(NamedTuple):
    """The map from states and covariates to features, fitted to the examples of a context."""

    axes: tuple[PrincipalAxes, ...]  # of structure with the common numbers, quality, counts, …
    common_center: np.ndarray  # (COMMON,)
    common_scale: np.ndarray  # (COMMON,)
    covariate_directions: np.ndarray  # (c, k)
    size: float  # log2 of the number of examples, scaled

    @classmethod
    def fit(cls, states: np.ndarray, covariates: np.ndarray) -> Projection:
        """Fit to n examples with states (n, S) and covariates (n, c) in z, NaN where unknown."""
        structure, *others, common = TextFeatures.split(states)

        # 1. The common numbers are standardized; equal ones tell nothing.
        center = common.mean(0)
        scale = common.std(0)
        scale = np.where(scale > MIN_SPREAD, scale, np.inf)

        # 2. Axes of each part of the states; the common numbers join the structure.
        weighted = _weighted(common, center, scale)
        axes = [PrincipalAxes.fit(structure, AXES[0], weighted)]
        for part, count in zip(others, AXES[1:], strict=True):
            axes.append(PrincipalAxes.fit(part, count))

        # 3. Axes of the covariates, which need no center: they are z.
        directions, _ = _principal_axes(_filled(covariates), COVARIATES)
        size = np.log2(len(states) / 64) / 4
        return cls(
            axes=tuple(axes),
            common_center=center,
            common_scale=scale,
            covariate_directions=directions,
            size=size,
        )

    def __call__(self, states: np.ndarray, covariates: np.ndarray) -> np.ndarray:
        """Features (m, F), float32, of examples or queries; see `fit` for the arguments."""
        structure, *others, common = TextFeatures.split(states)
        features = np.zeros((len(states), FEATURES), np.float32)  # (m, F)

        # 1. Project each part of the states on its principal axes.       (m, k) and (m,) per part
        weighted = _weighted(common, self.common_center, self.common_scale)
        first, *further = self.axes
        projections = [first.project(structure, weighted)]
        for axes, part in zip(further, others, strict=True):
            projections.append(axes.project(part))

        # 2. Along the axes, features keep their variances, and nearness is that of the states.
        #    The first axes are also whitened: then each of them counts alike.
        for i, axes in enumerate(self.axes):
            projected, _ = projections[i]
            _fill(features, COLUMNS.axes[i], projected * AXIS_SCALE)
            leading = projected[:, :WHITENED]  # (m, WHITENED)
            whitened = leading / axes.spread[:WHITENED]
            _fill(features, COLUMNS.whitened[i], whitened)

        # 3. Covariates on their axes.                                                       (m, k)
        filled = np.nan_to_num(covariates)
        across = filled @ self.covariate_directions
        _fill(features, COLUMNS.covariates, across / _root_of_columns(covariates))

        # 4. Common numbers need no axes: they mean the same in every context.          (m, COMMON)
        standard = (common - self.common_center) / self.common_scale
        features[:, COLUMNS.common] = standard

        # 5. How much of a text the axes miss. Neighbours do not count: each text has new ones.
        missed = sum(residual for _, residual in projections[:-1])
        features[:, COLUMNS.residual] = np.sqrt(missed)
        has_covariates = covariates.shape[1] > 0
        features[:, COLUMNS.conditioned] = float(has_covariates)

        # 6. The number of examples is not clipped: it is the same for all.
        features = features.clip(-MAX_FEATURE, MAX_FEATURE)
        features[:, COLUMNS.examples] = self.size
        return features


def _fill(
    features: np.ndarray,
    columns: slice,
    values: np.ndarray,
) -> None:
    """Write values (m, k) into the first k of some columns."""
    first = columns.start
    end = first + values.shape[1]
    features[:, first:end] = values


def _filled(covariates: np.ndarray) -> np.ndarray:
    """Covariates (m, c), scaled to a total variance of about 1.

    Unknown ones are 0, the mean of z.
    """
    return np.nan_to_num(covariates) / _root_of_columns(covariates)


def _root_of_columns(covariates: np.ndarray) -> float:
    return max(1.0, covariates.shape[1]) ** 0.5


def _weighted(
    common: np.ndarray,
    center: np.ndarray,
    scale: np.ndarray,
) -> np.ndarray:
    """Common numbers (m, COMMON) as they join the structure."""
    standard = (common - center) / scale
    return COMMON_WEIGHT * standard.clip(-MAX_FEATURE, MAX_FEATURE)


def _principal_axes(centered: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """At most `count` directions (S, k) of largest variance of rows (n, S).

    The second result is the standard deviations (k,) along them.
    """
    n, size = centered.shape
    if not size:
        return np.zeros((0, 0)), np.zeros(0)

    # 1. The smaller of both products has the same eigenvalues: (n, n) or (S, S).
    few_rows = n < size
    product = centered @ centered.T if few_rows else centered.T @ centered
    variances, vectors = np.linalg.eigh(product / n)

    # 2. They rise: take the last ones, and of these none without variance.                    (k,)
    variances = variances[::-1][:count]
    vectors = vectors[:, ::-1][:, :count]
    largest = max(variances[0], 1e-12)
    kept = variances > MIN_VARIANCE * largest
    variances = variances[kept]
    vectors = vectors[:, kept]

    # 3. From eigenvectors of rows to directions.                                            (S, k)
    if few_rows:
        lengths = np.sqrt(n * variances)
        vectors = centered.T @ vectors / lengths

    # 4. The sign of an eigenvector is arbitrary: let its largest entry be positive.
    largest_entry = np.abs(vectors).argmax(0)  # (k,)
    columns = np.arange(vectors.shape[1])
    signs = np.sign(vectors[largest_entry, columns])
    return vectors * signs, np.sqrt(variances)


# --- distances between texts


def squared_distances(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Squared Euclidean distances (m, n) between rows a (m, S) and b (n, S)."""
    a = a.astype(float)
    b = b.astype(float)
    square_a = (a**2).sum(1)[:, None]  # (m, 1)
    square_b = (b**2).sum(1)  # (n,)
    products = 2 * a @ b.T  # (m, n)
    # Rounding can make the distance of equal rows negative.
    return (square_a + square_b - products).clip(min=0)


def nearest_distances(
    rows: np.ndarray,
    examples: np.ndarray,
    own: np.ndarray | None = None,
) -> np.ndarray:
    """Distance (m,) of rows (m, S) to the nearest of the examples (n, S).

    Args:
        rows: (m, S).
        examples: (n, S).
        own: (m,) number of the example that is the row itself and does not count.

    Returns:
        (m,) distances, infinite if no example counts.
    """
    nearest = np.empty(len(rows))
    for start in range(0, len(rows), _DISTANCE_ROWS):
        part = slice(start, start + _DISTANCE_ROWS)
        distances = squared_distances(rows[part], examples)  # (_DISTANCE_ROWS, n)
        if own is not None:
            row_numbers = np.arange(len(distances))
            distances[row_numbers, own[part]] = np.inf
        nearest[part] = distances.min(1)
    return np.sqrt(nearest)


# --- kernel regression


class ExampleKernels(NamedTuple):
    """The kernels of the examples, which all metrics of the same examples share."""

    scaled: Tensor  # (B, h, n, F) scaled features
    inverse: Tensor  # (B, h, n, n) of each kernel matrix with its penalty
    density: Tensor  # (B, h, n) sum of the nearness to the other examples
    closest: Tensor  # (B, h, n) nearness to the nearest other example


class FittedHeads(NamedTuple):
    """The fitted regressions, as queries read them."""

    scaled: Tensor  # (B, h, n, F) scaled features of the examples
    dual: Tensor  # (B, h, n) dual weights
    errors: Tensor  # (B, h) logarithms of mean squared leave-one-out errors
    weights: Tensor  # (B, h) of the heads' predictions in the stacked one


class KernelRegression(nn.Module):
    """Maps examples and queries to `outputs` numbers each.

    Args:
        scales: (h, F) initial scales of the features, per kernel, for kernels of length 1.
    """

    def __init__(self, scales: Tensor) -> None:
        super().__init__()
        heads = len(scales)
        # 1. From short to long kernels.
        shortest = math.log10(0.5)
        longest = math.log10(5.0)
        lengths = torch.logspace(shortest, longest, heads)  # (h,)
        log_lengths = lengths.log()

        # 2. Two heads never start as the same kernel.                                       (h, F)
        spread = 0.1 * torch.randn(scales.shape)
        log_scales = scales.log() - log_lengths[:, None] + spread
        self.log_scales = nn.Parameter(log_scales)

        # 3. The linear part has weight exp(-1) for any length: 2 log(length) undoes the scales.
        log_linear = torch.full((heads,), -1.0)
        self.log_linear = nn.Parameter(log_linear + 2 * log_lengths)
        penalties = torch.tensor([0.03, 0.15])  # of heads in turn
        penalties = penalties.repeat(heads)[:heads]
        self.log_penalty = nn.Parameter(penalties.log())

        # 4. How the heads are stacked: the log of the penalty for 100 examples, its slope by log n.
        self.log_sharpness = nn.Parameter(torch.zeros(1))
        self.stacking = nn.Parameter(torch.tensor([-1.2, -1.0]))
        self.outputs = 3 * heads + 2

    def kernels(self, features: Tensor) -> ExampleKernels:
        """The kernels of examples with features (B, n, F).

        A kernel is a squared exponential plus a linear one. Matrices are computed in place: new
        ones of size (h, n, n) take time.
        """
        # 1. Inner products and squared lengths in each head's own scale.
        scaled = self._scaled(features)  # (B, h, n, F)
        products = scaled @ scaled.mT  # (B, h, n, n)
        half = _diagonal(products) / 2  # (B, h, n)

        # 2. exp(-|a - b|² / 2) = exp(ab - a²/2 - b²/2), exactly 1 on the diagonal.    (B, h, n, n)
        exponent = products - half[..., None]
        exponent.sub_(half[..., None, :])
        nearness = exponent.exp_()

        # 3. The kernel matrix with its penalty, and its inverse.                      (B, h, n, n)
        kernel = products.mul_(self._linear).add_(nearness)
        penalty = self.log_penalty.exp()[:, None]  # (h, 1)
        _diagonal(kernel).add_(penalty)
        inverse = _inverse(kernel)

        # 4. How many other examples are near, and how near the nearest is.               (B, h, n)
        itself = torch.eye(features.shape[1], device=features.device)
        others = nearness - itself
        return ExampleKernels(
            scaled=scaled,
            inverse=inverse,
            density=others.sum(-1),
            closest=others.amax(-1),
        )

    def evidence(self, features: Tensor, targets: Tensor) -> Tensor:
        """Log marginal likelihood of targets (B, n) at features (B, n, F), per example.

        Mean over tasks and heads; a constant is left out. Each head is a Gaussian process whose
        variance is the most likely one.
        """
        n = targets.shape[1]
        inverse = self.kernels(features).inverse  # (B, h, n, n)
        misfit = torch.einsum("bi,bhij,bj->bh", targets, inverse, targets)
        variance = misfit / n + MIN_SQUARE  # (B, h)
        per_example = inverse.logdet() / n - variance.log()  # (B, h)
        return per_example.mean() / 2

    def fit(self, kernels: ExampleKernels, targets: Tensor) -> tuple[Tensor, FittedHeads]:
        """Fit the heads to the targets (B, n) of examples.

        Returns:
            What the examples read (B, n, outputs), and the fitted regressions.
        """
        # 1. Dual weights of kernel ridge regression.                                     (B, h, n)
        column = targets[:, None, :, None]  # (B, 1, n, 1)
        dual = (kernels.inverse @ column)[..., 0]

        # 2. Leave-one-out residuals are dual weights over the inverse's diagonal.        (B, h, n)
        missed = dual / _diagonal(kernels.inverse)
        mean_square = missed.square().mean(-1)
        errors = (mean_square + MIN_SQUARE).log()  # (B, h)
        predicted = targets[:, None] - missed
        predicted = predicted.clamp(-MAX_PREDICTION, MAX_PREDICTION)

        # 3. Stack the heads.                                                     (B, n) and (B, h)
        stacked, weights = self._stack(predicted, errors, targets)
        fitted = FittedHeads(kernels.scaled, dual, errors, weights)
        outputs = self._outputs(
            predicted=predicted,
            density=kernels.density,
            closest=kernels.closest,
            fitted=fitted,
            stacked=stacked,
        )
        return outputs, fitted

    def forward(self, features: Tensor, fitted: FittedHeads) -> Tensor:
        """What queries with features (B, q, F) read: (B, q, outputs)."""
        # 1. The kernel between queries and examples.
        scaled = self._scaled(features)  # (B, h, q, F)
        nearness = _nearness(scaled, fitted.scaled)  # (B, h, q, n)

        # 2. Predictions. The linear kernel is a sum over features first: this avoids a second
        #    matrix (q, n).
        dual = fitted.dual[..., None]  # (B, h, n, 1)
        direction = fitted.scaled.mT @ dual  # (B, h, F, 1)
        linear = scaled @ direction  # (B, h, q, 1)
        predicted = nearness @ dual + self._linear * linear
        predicted = predicted[..., 0]  # (B, h, q)
        predicted = predicted.clamp(-MAX_PREDICTION, MAX_PREDICTION)

        # 3. The stacked one, and what is around each query.
        stacked = (fitted.weights[:, None] @ predicted)[:, 0]  # (B, q)
        density = nearness.sum(-1)  # (B, h, q)
        closest = nearness.amax(-1)  # (B, h, q)
        return self._outputs(
            predicted=predicted,
            density=density,
            closest=closest,
            fitted=fitted,
            stacked=stacked,
        )

    def _scaled(self, features: Tensor) -> Tensor:
        """Features (B, m, F) in the scale of each head: (B, h, m, F)."""
        scales = self.log_scales.exp()[:, None]  # (h, 1, F)
        return features[:, None] * scales

    @property
    def _linear(self) -> Tensor:
        """Weights (h, 1, 1) of the kernels' linear parts."""
        return self.log_linear.exp()[:, None, None]

    def _trust(self, errors: Tensor, n: int) -> Tensor:
        """Weights (B, h) of the heads by their errors (B, h) on n examples."""
        sharpness = self.log_sharpness.exp()
        logits = -sharpness * 0.5 * n**0.5 * errors
        return torch.softmax(logits, -1)

    def _stack(
        self,
        predicted: Tensor,
        errors: Tensor,
        targets: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Stack the heads' leave-one-out predictions (B, h, n).

        Returns:
            Stacked leave-one-out predictions (B, n), and weights (B, h) of the heads for queries.
        """
        # 1. The mean of the heads, weighted by their errors, and what it misses.            (B, n)
        _, heads, n = predicted.shape
        trust = self._trust(errors, n)  # (B, h)
        mean = (trust[:, None] @ predicted)[:, 0]
        missed = targets - mean

        # 2. Ridge regression of the rest on the heads' predictions.                      (B, h, h)
        log_penalty, slope = self.stacking
        log_penalty = log_penalty + slope * math.log(n / 100)
        eye = torch.eye(heads, device=targets.device)
        penalty = torch.exp(log_penalty) * n * eye
        gram = predicted @ predicted.mT + penalty
        factor = torch.linalg.cholesky(gram)
        projected = torch.cholesky_solve(predicted, factor)  # (B, h, n)
        correction = (projected @ missed[..., None])[..., 0]  # (B, h)

        # 3. Its leave-one-out predictions in closed form.                                   (B, n)
        leverage = (predicted * projected).sum(1)
        corrected = (correction[:, None] @ predicted)[:, 0]
        rest = missed - corrected
        left_out = rest / (1 - leverage).clamp(min=MIN_REST)
        return targets - left_out, trust + correction

    def _outputs(
        self,
        predicted: Tensor,
        density: Tensor,
        closest: Tensor,
        fitted: FittedHeads,
        stacked: Tensor,
    ) -> Tensor:
        """What m points read (B, m, outputs): per head the prediction, density and nearness, all
        (B, h, m); then the stacked prediction (B, m) and how much it may err.
        """
        # 1. Each head.                                                                 (B, m, 3 h)
        log_density = torch.log(density + 1e-4) / 4
        per_head = torch.cat([predicted, log_density, closest], 1).mT

        # 2. All together may err as they did on the examples, and as far as they disagree.  (B, m)
        examples = fitted.dual.shape[-1]
        trust = self._trust(fitted.errors, examples)  # (B, h)
        apart = (predicted - stacked[:, None]).square()  # (B, h, m)
        spread = (trust[..., None] * apart).sum(1)
        error = (trust * fitted.errors).sum(-1)  # (B,)
        error = error[:, None].expand_as(stacked) + spread.clamp(max=4)
        together = torch.stack([stacked, error], -1)  # (B, m, 2)
        return torch.cat([per_head, together], -1)


def _nearness(a: Tensor, b: Tensor) -> Tensor:
    """Squared exponential kernel (…, m, n) of points a (…, m, F) and b (…, n, F)."""
    half_a = a.square().sum(-1, keepdim=True) / 2  # (…, m, 1)
    half_b = b.square().sum(-1, keepdim=True) / 2  # (…, n, 1)
    exponent = a @ b.mT  # (…, m, n)
    exponent.sub_(half_a)
    exponent.sub_(half_b.mT)
    return exponent.exp_()


def _diagonal(matrices: Tensor) -> Tensor:
    """The diagonals (…, n) of matrices (…, n, n), a view."""
    return matrices.diagonal(dim1=-2, dim2=-1)


def _inverse(matrices: Tensor) -> Tensor:
    """Inverses of positive definite matrices (…, n, n)."""
    factors = torch.linalg.cholesky(matrices)
    return torch.cholesky_inverse(factors)
