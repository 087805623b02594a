"""`profile`: what the networks of a space cost, before anything is searched or trained."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from nas.evaluation.extremes import largest, smallest
from nas.evaluation.latency import LatencyTask
from nas.evaluation.measurement import Measurement, known_metrics
from nas.evaluation.trainable import Trainable
from nas.search.objectives import Constraint, ConstraintsLike, parse_constraints
from search_spaces.common.errors import InputError, unknown

if TYPE_CHECKING:
    import pandas as pd

    from search_spaces import Architecture, SearchSpace

COUNTED = ("params", "flops")  # from the graph; everything else is measured or predicted
MAX_FAILURES = 10  # consecutive networks that cannot be measured, after which a profile ends
DESIGNS = 4  # networks that the space itself proposes are measured, too
# Of latencies, the ends and the median of many networks are reported: each may be less certain than
# in a search, which compares networks with each other.
BRIEFLY: dict[str, Any] = {"warmup": 3, "runs": 12, "windows": 2}

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Limit:
    """How a space stands to a constraint.

    Attributes:
        constraint: the constraint.
        share: of the random networks, that satisfy it.
        networks: number of random networks that the share is of.
        nearest: the lowest value met, or for a lower bound the highest.
        reached: True if any network that was looked at satisfies the constraint.
    """

    constraint: Constraint
    share: float
    networks: int
    nearest: float
    reached: bool


@dataclass(frozen=True)
class Profile:
    """Costs of the networks of a space.

    Attributes:
        space: its name.
        random: values (n,) of random networks by metric; NaN where one could not be measured.
        ends: values (k,) of the smallest and largest networks and of those that the space
            proposes, by metric.
        limits: one per constraint.
    """

    space: str
    random: dict[str, np.ndarray]
    ends: dict[str, np.ndarray]
    limits: list[Limit] = field(default_factory=list)

    @property
    def table(self) -> pd.DataFrame:
        """Statistics by metric.

        They are the minimum and maximum of all networks that were looked at, the median of the
        random ones, and the number of the random ones with a finite value.
        """
        import pandas as pd

        rows = {}
        for metric, values in self.random.items():
            everything = np.concatenate([values, self.ends[metric]])
            rows[metric] = {
                "min": float(np.nanmin(everything)),
                "median": float(np.nanmedian(values)) if np.isfinite(values).any() else math.nan,
                "max": float(np.nanmax(everything)),
                "networks": int(np.isfinite(values).sum()),
            }
        return pd.DataFrame.from_dict(rows, orient="index")

    def to_dict(self) -> dict[str, Any]:
        """The profile as JSON values."""
        return {
            "space": self.space,
            "metrics": {str(name): row for name, row in self.table.to_dict("index").items()},
            "constraints": [
                {**asdict(limit), "constraint": str(limit.constraint)} for limit in self.limits
            ],
        }

    @property
    def reachable(self) -> bool:
        """True if each limit is kept by some network."""
        return all(limit.reached for limit in self.limits)


def profile(
    space: SearchSpace,
    constraints: ConstraintsLike = None,
    metrics: Sequence[str] = (),
    *,
    samples: int = 200,
    measured: int = 20,
    measurement: Measurement | None = None,
    seed: int = 0,
) -> Profile:
    """Say what the networks of a space cost, and whether limits can be kept, before a search.

    Parameters and FLOPs are counted for `samples` random networks. Latencies and memory are
    measured, or predicted for your own devices, for the first `measured` of them. The smallest and
    the largest network are looked for by FLOPs, so that a limit that only they keep is noticed.

    Args:
        space: the search space, such as `nas.Subnetworks(net, example)`.
        constraints: see `nas.parse_constraints`, on metrics that need no training.
        metrics: further metrics, such as `"cpu_latency_ms"`; params and flops are always there.
        samples: random networks.
        measured: random networks whose latencies are measured.
        measurement: how they are measured, its metrics apart, which are those of `metrics` and
            `constraints`; None for latencies from two windows per network, which are less certain
            than those of a search.
        seed: draws the networks.

    Raises:
        InputError: a metric is unknown or needs a training, a number is below 1, no network of
            the space can be built, or ten in a row cannot be measured.

    Example:
        >>> import nas
        >>> from search_spaces import get_space
        >>> costs = nas.profile(get_space("tiny-resnet"), "params <= 20000", samples=30)
        >>> costs.reachable
        True
    """
    if min(samples, measured) < 1:
        raise InputError("samples and measured must be at least 1")
    limits = parse_constraints(constraints)
    names = [*COUNTED, *metrics, *(limit.metric for limit in limits)]
    timed = [name for name in dict.fromkeys(names) if name not in COUNTED]
    measuring = _measuring(measurement, timed)

    # 1. Networks: random ones, and those at the ends of the space.
    rng = np.random.default_rng(seed)
    drawn = list(dict.fromkeys(space.sample(rng) for _ in range(samples)))
    ends = [smallest(space, drawn, rng), largest(space, drawn, rng)]
    ends = list(dict.fromkeys([*ends, *space.initial_designs(DESIGNS)]))

    # 2. Values by metric: counted for all, measured for some.
    some = drawn[:measured]
    random, at_ends = ({**_counted(space, archs)} for archs in (drawn, ends))
    if timed:
        values = _measured(space, [*some, *ends], measuring)
        for name, column in values.items():
            random[name], at_ends[name] = np.split(column, [len(some)])

    # 3. Limits.
    kept = [_limit(limit, random[limit.metric], at_ends[limit.metric]) for limit in limits]
    return Profile(space.name, random, at_ends, kept)


def _measuring(measurement: Measurement | None, timed: list[str]) -> Measurement:
    """The measurement of these metrics; InputError if one needs a training or is unknown."""
    base = measurement or Measurement((), latency=LatencyTask(**BRIEFLY))
    known = known_metrics(base.latency, None, base.external_devices)
    for name in timed:
        if name not in known:
            error = unknown("metric without a training", name, known)
            raise InputError(f"{error}: a profile trains nothing")
    return replace(base, metrics=tuple(timed), data=None)


def _counted(space: SearchSpace, archs: Sequence[Architecture]) -> dict[str, np.ndarray]:
    counts = [(space.params(arch), space.flops(arch)) for arch in archs]
    return dict(zip(COUNTED, np.array(counts, float).reshape(-1, 2).T, strict=True))


def _measured(
    space: SearchSpace, archs: Sequence[Architecture], measuring: Measurement
) -> dict[str, np.ndarray]:
    """Measured values (n,) of n networks by metric; NaN where one could not be measured.

    Raises:
        InputError: all networks, or `MAX_FAILURES` in a row, could not be measured.
    """
    rows = []
    failures = 0
    for arch in archs:
        network = Trainable.of(space, arch)
        try:
            values = measuring(network, lambda arch=arch: space.to_onnx(arch)).values  # type: ignore[misc]
        except InputError as error:  # as of a device or a converter
            failures += 1
            if failures == min(MAX_FAILURES, len(archs)):
                raise InputError(
                    f"{failures} networks in a row could not be measured; the last: {error}"
                ) from error
            _log.warning("%s: %s", space.format(arch), error)
            rows.append([math.nan] * len(measuring.metrics))
            continue
        failures = 0
        rows.append([values[name].value for name in measuring.metrics])
    return dict(zip(measuring.metrics, np.array(rows, float).T, strict=True))


def _limit(constraint: Constraint, random: np.ndarray, ends: np.ndarray) -> Limit:
    everything = np.concatenate([random, ends])
    violations = constraint.violation(everything)
    nearest = math.nan
    if not np.isnan(violations).all():  # networks that could not be measured
        nearest = float(everything[np.nanargmin(violations)])
    share = float((constraint.violation(random) <= 0).mean())
    return Limit(constraint, share, len(random), nearest, bool((violations <= 0).any()))
