"""Pareto fronts and their quality indicators, hypervolume and IGD+, on losses (every objective is
minimized).

Rows with a NaN or infinite value are failed evaluations. They are never on a front and do not
affect indicators.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from nas.search.objectives import to_losses
from predictors.metrics import Metric
from search_spaces.common.errors import InputError

REFERENCE_POINT = 1.1  # in every objective, in units in which the true front spans 0 to 1

MAX_EXACT_OBJECTIVES = 5  # hypervolumes with more objectives are estimated
HYPERVOLUME_RAYS = 20_000  # of an estimate; its error falls with their square root

MAX_NADIR_DEVIATIONS = 3.0  # standard deviations between the median loss and the nadir
# Standard deviation of a normal distribution, relative to its median absolute deviation.
STD_PER_MEDIAN_DEVIATION = 1.4826


# --- fronts


def non_dominated(losses: np.ndarray) -> np.ndarray:
    """Mask (n,) of the rows of losses (n, m) that no other row dominates.

    Equal rows are all kept.
    """
    import moocore

    losses = np.asarray(losses, dtype=float)
    mask = np.isfinite(losses).all(axis=1)
    if mask.any():
        mask[mask] = moocore.is_nondominated(losses[mask], keep_weakly=True)
    return mask


def constrained_ranks(losses: np.ndarray, violations: np.ndarray) -> np.ndarray:
    """Ranks (n,) by non-dominated sorting, 0 for the best front.

    Rows that violate a constraint rank last, those with the smallest violation first.

    Args:
        losses: (n, m) losses.
        violations: (n,) largest relative violations; at most 0 for rows that satisfy all
            constraints.
    """
    import moocore

    ranks = moocore.pareto_rank(losses).astype(float)
    is_broken = violations > 0
    ranks[is_broken] = ranks.max() + 1 + violations[is_broken]
    return ranks


def joined(front: np.ndarray, point: np.ndarray) -> np.ndarray | None:
    """Add a finite point (m,) to a front's losses (k, m) and drop the points that it dominates.

    Returns:
        The new front, or None if the front weakly dominates the point.
    """
    if (front <= point).all(axis=1).any():
        return None
    is_dominated = (point <= front).all(axis=1)
    return np.vstack([front[~is_dominated], point])


# --- hypervolume


def hypervolume(losses: np.ndarray, reference: Sequence[float] | np.ndarray) -> float:
    """Volume that losses (n, m) dominate, up to the reference point (m,).

    Higher is better; 0 for no points. It is exact for up to `MAX_EXACT_OBJECTIVES` objectives, as
    the time of exact algorithms grows exponentially: 60 points take ten seconds with ten
    objectives, and days with more. With more objectives it is an estimate by `HYPERVOLUME_RAYS`
    fixed rays from the reference point (Deng and Zhang 2019), within about 1 % of the exact value
    for 6 to 10 objectives. As all calls use the same rays, a better front never has a lower
    estimate.
    """
    import moocore

    losses = np.asarray(losses, dtype=float)
    reference = np.asarray(reference, dtype=float)
    counts = np.isfinite(losses).all(axis=1) & (losses < reference).all(axis=1)
    inside = losses[counts]
    if not len(inside):
        return 0.0
    if len(reference) <= MAX_EXACT_OBJECTIVES:
        return float(moocore.hypervolume(inside, ref=reference))
    estimate = moocore.hv_approx(
        inside, ref=reference, nsamples=HYPERVOLUME_RAYS, seed=0, method="DZ2019-MC"
    )
    return float(estimate)


def infer_reference_point(
    front: np.ndarray, typical: np.ndarray, min_nadir: np.ndarray | float = -np.inf
) -> tuple[np.ndarray, np.ndarray]:
    """Ideal and reference point for the hypervolume of a front, where no user names one.

    The reference point lies as far beyond the nadir as the front is wide. With a nearer one,
    networks that are more accurate but slower than the front would add nothing. A network that
    computes nothing is the fastest of all and also on the front. Therefore the nadir is at most
    `MAX_NADIR_DEVIATIONS` robust standard deviations above the median of typical losses.

    If the front has only small networks, a larger one would add nothing, however accurate it is.
    Therefore the least nadir of a search has the largest costs of its initial design.

    Args:
        front: (k, m) losses.
        typical: (n, m) losses of typical networks.
        min_nadir: (m,) lower bounds of the nadir, which yield to the upper ones.

    Returns:
        Ideal (m,) and reference point (m,).
    """
    ideal = front.min(axis=0)

    # 1. The highest nadir, by median and robust standard deviation of typical losses.
    median = np.median(typical, axis=0)
    median_deviation = np.median(np.abs(typical - median), axis=0)
    max_nadir = median + MAX_NADIR_DEVIATIONS * STD_PER_MEDIAN_DEVIATION * median_deviation

    # 2. The front's nadir, within both bounds.
    nadir = np.maximum(front.max(axis=0), min_nadir)
    nadir = np.clip(nadir, ideal, np.maximum(max_nadir, ideal))

    # 3. As far again beyond it; a front of one value has no width but the value itself.
    width = np.maximum(np.abs(nadir), 1.0)
    width = np.where(nadir > ideal, nadir - ideal, width)
    return ideal, nadir + width


# --- searches against a known front


@dataclass(frozen=True, eq=False)
class Reference:
    """The true Pareto front of a table, against which searches on it are measured.

    Example: the front is 1 of the reference's hypervolume, and a part of it less.

        >>> import nas, numpy as np
        >>> objectives = nas.parse_objectives("top1_accuracy,params")
        >>> values = np.array([[90.0, 100], [80, 50], [70, 80]])  # (networks, objectives)
        >>> reference = nas.Reference.of_table(values, objectives)
        >>> reference.true_front.tolist()  # losses: accuracies have a minus
        [[-90.0, 100.0], [-80.0, 50.0]]
        >>> reference.ratio(values), reference.ratio(values[:1]) < 1
        (1.0, True)

    Attributes:
        objectives: m objectives. Values given to the methods are (n, m), in the metrics' own units.
        true_front: (k, m) losses, sorted by the first objective.
        limit: (m,) worst loss that counts (the accuracy floor); infinite without a floor.
    """

    objectives: tuple[Metric, ...]
    true_front: np.ndarray
    limit: np.ndarray

    @classmethod
    def of_table(
        cls, values: np.ndarray, objectives: Sequence[Metric], floor: float | None = None
    ) -> Reference:
        """Compute the reference from a table.

        Args:
            values: (n, m) values of all architectures.
            objectives: m objectives.
            floor: architectures with a lower accuracy, in its own unit, are ignored.

        Raises:
            InputError: no architecture is left.
        """
        limit = np.full(len(objectives), np.inf)
        if floor is not None:
            is_accuracy = ["accuracy" in objective.name for objective in objectives]
            limit[is_accuracy] = -floor
        losses = to_losses(values, objectives)
        counted = losses[(losses <= limit).all(axis=1)]
        front = np.unique(counted[non_dominated(counted)], axis=0)
        if not len(front):
            above = "" if floor is None else f" above the accuracy floor of {floor}"
            raise InputError(f"no architecture of the table has finite values{above}")
        return cls(tuple(objectives), front, limit)

    @cached_property
    def ideal(self) -> np.ndarray:
        """(m,) best loss in each objective on the true front."""
        return self.true_front.min(axis=0)

    @cached_property
    def nadir(self) -> np.ndarray:
        """(m,) worst loss in each objective on the true front."""
        return self.true_front.max(axis=0)

    def scale(self, losses: np.ndarray) -> np.ndarray:
        """Scale losses (n, m) so that the true front's ideal is 0 and its nadir 1.

        Rows beyond the floor become NaN.
        """
        span = self.nadir - self.ideal
        scaled = (losses - self.ideal) / np.where(span > 0, span, 1.0)
        is_counted = (losses <= self.limit).all(axis=1, keepdims=True)  # (n, 1)
        return np.where(is_counted, scaled, np.nan)

    def ratio(self, values: np.ndarray) -> float:
        """Hypervolume of values (n, m) divided by that of the true front.

        Higher is better, 1 at most.
        """
        scaled = self.scale(to_losses(values, self.objectives))
        return self._hypervolume(scaled) / self._true_hypervolume

    def igd_plus(self, values: np.ndarray) -> float:
        """IGD+: mean distance from the true front to values (n, m); lower is better.

        The unit is the front's span. IGD+ is infinite if no row of the values is finite and within
        the floor.
        """
        import moocore

        scaled = self.scale(to_losses(values, self.objectives))
        scaled = scaled[np.isfinite(scaled).all(axis=1)]
        if not len(scaled):
            return float("inf")
        true_front = self.scale(self.true_front)
        return float(moocore.igd_plus(scaled, ref=true_front))

    def curve(self, values: np.ndarray) -> np.ndarray:
        """Hypervolume ratio (n,) after each of n evaluations with values (n, m), in their order."""
        scaled = self.scale(to_losses(values, self.objectives))
        front = np.empty((0, scaled.shape[1]))
        ratios = np.zeros(len(scaled))
        current = 0.0
        for i, point in enumerate(scaled):
            # Most points leave the front as it is. NaN fails the first comparison; infinite values
            # are on no front.
            inside = (point < REFERENCE_POINT) & np.isfinite(point)
            if inside.all() and (better := joined(front, point)) is not None:
                front = better
                current = self._hypervolume(front) / self._true_hypervolume
            ratios[i] = current
        return ratios

    @cached_property
    def _true_hypervolume(self) -> float:
        return self._hypervolume(self.scale(self.true_front))

    def _hypervolume(self, scaled: np.ndarray) -> float:
        return hypervolume(scaled, np.full(scaled.shape[1], REFERENCE_POINT))
