"""What to expect: of a front's networks when they are trained again, and of further evaluations.

A front is chosen from noisy values, so that its values are too good on average. How much follows
from a predictor that has learned all other networks: it does not know which of them were lucky. The
true value of a network lies between what it measured and what the predictor expects of it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from nas.report.plots import metric_label
from nas.search.study.schema import SearchAttributes
from predictors.metrics import Metric
from predictors.registry import is_predictor
from search_spaces.common.errors import InputError

if TYPE_CHECKING:
    from nas.comparison.studies import Studies
    from nas.search.study.networks import DistinctNetwork

FOLDS = 3  # parts of the front that are left out in turn
MIN_OTHERS = 10  # evaluated networks that a predictor learns from, at least
SAMPLES = 32  # of each prediction
MORE = 20  # further evaluations whose worth is estimated
MIN_EVALUATIONS = 10  # for that estimate
WORTH = 0.01  # share of the hypervolume; if further evaluations bring less, a search may stop


Expected = dict[str, tuple[float, float]]  # mean and standard deviation by metric


@dataclass(frozen=True)
class Prospects:
    """What to expect of searches.

    Attributes:
        expected: what a predictor expects of each network of the front.
        optimism: how much too good the front is.
        outlook: what further evaluations are expected to bring; None if that cannot be said.
    """

    expected: list[Expected]
    optimism: list[Optimism]
    outlook: Outlook | None

    @classmethod
    def of(cls, studies: Studies) -> Prospects:
        """The prospects of searches; it takes some fits of the searches' predictor."""
        expected = expected_of_front(studies)
        return cls(expected, optimism(studies, expected), outlook(studies))

    @property
    def sentences(self) -> list[str]:
        """What to tell the reader."""
        about = [entry.sentence for entry in self.optimism]
        return about + ([self.outlook.sentence] if self.outlook else [])

    @property
    def summary(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "optimism": [entry._asdict() for entry in self.optimism],
            "outlook": self.outlook and self.outlook._asdict(),
        }


# --- the front, trained again


def expected_of_front(studies: Studies) -> list[Expected]:
    """What the search's predictor expects of each network of the front, having learned the others.

    Returns:
        For each network of the front its trained metrics; {} for all without a predictor of this
        project, with fewer than `MIN_OTHERS` others, or if networks cannot be built.
    """
    front = studies.front_networks
    nothing: list[Expected] = [{} for _ in front]
    sampler = str(SearchAttributes.of(studies.first.study).settings.get("sampler", ""))
    trained = [o for o in studies.objectives if o.kind == "accuracy"]
    others = len(studies.distinct) - len(front)
    if not (trained and front) or others < MIN_OTHERS or studies.not_built:
        return nothing
    if not is_predictor(sampler) or ".py:" in sampler:  # a report runs no files
        return nothing
    try:
        return _left_out(studies, front, trained, sampler)
    except InputError:  # the space's code has changed since
        return nothing


def _left_out(
    studies: Studies, front: list[DistinctNetwork], trained: list[Metric], sampler: str
) -> list[Expected]:
    """Predict each part of the front from all networks that are not of this part."""
    import predictors

    networks = studies.distinct
    space = studies.first.space
    names = [metric.name for metric in trained]
    reads_choices = predictors.create(sampler).reads_choices
    inputs: list[Any] = [network.architecture for network in networks]
    if not reads_choices:
        inputs = [space.to_text(architecture) for architecture in inputs]
    values = {name: np.array([network.values[name] for network in networks]) for name in names}

    expected: list[Expected] = [{} for _ in front]
    for fold in range(min(FOLDS, len(front))):
        # 1. The front comes first in `networks`; its networks fold, fold + 3, … are left out.
        left_out = list(range(fold, len(front), FOLDS))
        kept = [row for row in range(len(networks)) if row not in left_out]

        # 2. Fit to the others and predict: means and standard deviations (left out, metrics).
        targets = {name: values[name][kept] for name in names}
        predictor = predictors.create(sampler, seed=0).fit([inputs[row] for row in kept], targets)
        predicted = predictor.predict([inputs[row] for row in left_out], names, samples=SAMPLES)

        # 3. By network and metric.
        for row, mean, std in zip(left_out, predicted.mean, predicted.std, strict=True):
            pairs = zip(mean.tolist(), std.tolist(), strict=True)
            expected[row] = dict(zip(names, pairs, strict=True))
    return expected


class Optimism(NamedTuple):
    """How much too good a metric of the front is, on average over its networks.

    Attributes:
        metric: the metric.
        measured: mean of the values that the search measured.
        later: mean of fresh trainings, or else of what a predictor expects.
        is_confirmed: True if `later` is measured.
        networks: number of networks.
        sign: -1 if more is better, 1 if less is.
    """

    metric: str
    measured: float
    later: float
    is_confirmed: bool
    networks: int
    sign: float

    @property
    def sentence(self) -> str:
        """What to expect, in words."""
        label = metric_label(self.metric).partition(" (")[0]
        unit = _unit(self.metric)
        front = f"the front's {self.networks} networks"
        if self.networks == 1:
            front = "the front's network"
        values = f"{self.later:.4g}{unit} instead of {self.measured:.4g}{unit}"
        if self.is_confirmed:
            return (
                f"{label}, trained again with fresh seeds: {front} reached {values} on average. "
                "The later values are what to expect."
            )
        if self.sign * (self.measured - self.later) >= 0:  # not better than expected
            return (
                f"{label}: {front} measured no better than the predictor expects of them from "
                f"all others ({values} on average)."
            )
        return (
            f"{label}: from all other networks, the predictor expects {values} of {front} on "
            "average. The best of many measurements are lucky ones, so expect values between the "
            "two."
        )


def optimism(studies: Studies, expected: list[Expected]) -> list[Optimism]:
    """One entry for each trained objective whose front was trained again or predicted."""
    entries = []
    for objective in studies.objectives:
        # 1. Pairs of the search's value and a fresh training's, or else what the predictor expects.
        name = objective.name
        trained_again = []
        predicted = []
        for network, expected_values in zip(studies.front_networks, expected, strict=True):
            if name in network.confirmed:
                trained_again.append((network.values[name], network.confirmed[name][0]))
            if name in expected_values:
                predicted.append((network.values[name], expected_values[name][0]))
        is_confirmed = objective.kind == "accuracy" and bool(trained_again)
        pairs = np.array(trained_again if is_confirmed else predicted)  # (k, 2)

        # 2. Their means.
        if len(pairs):
            measured, later = pairs.mean(axis=0).tolist()
            entries.append(
                Optimism(name, measured, later, is_confirmed, len(pairs), objective.sign)
            )
    return entries


# --- further evaluations


class Outlook(NamedTuple):
    """What further evaluations are expected to bring.

    Attributes:
        gain: expected gain of `MORE` evaluations, as a share of the hypervolume so far.
        stale: number of evaluations since the front last improved.
    """

    gain: float
    stale: int

    @property
    def may_stop(self) -> bool:
        """True if further evaluations are hardly worth their time."""
        return self.gain < WORTH

    @property
    def sentence(self) -> str:
        """The outlook in words, with a hint to stop."""
        text = f"{MORE} more evaluations are expected to bring {self.gain:.1%} more hypervolume"
        text = text.replace("%", " %")
        if self.stale:
            last = "the last one" if self.stale == 1 else f"the last {self.stale}"
            text += f"; {last} did not improve the front"
        return f"{text}. The search may stop here." if self.may_stop else f"{text}."


def outlook(studies: Studies) -> Outlook | None:
    """The outlook of the first search; None with few evaluations, or a single objective."""
    if len(studies.objectives) == 1:
        return None
    result = studies.first
    curve = studies.reference.curve(result.feasible_values)[~result.prior]
    return outlook_of(curve)


def outlook_of(curve: np.ndarray) -> Outlook | None:
    """The outlook of a search with this hypervolume (n,) after each of n evaluations.

    Hypervolume grows about linearly in the logarithm of the number of evaluations. So the gain of
    the next ones is that of the second half, per factor of evaluations.
    """
    n = len(curve)
    if n < MIN_EVALUATIONS or not curve[-1] > 0:
        return None
    half = n // 2
    slope = (curve[-1] - curve[half - 1]) / math.log(n / half)
    gain = slope * math.log((n + MORE) / n) / curve[-1]
    stale = n - 1 - int(np.argmax(curve >= curve[-1]))
    return Outlook(float(gain), stale)


def _unit(metric: str) -> str:
    """The unit after a value, with a space; "" without one."""
    _, _, unit = metric_label(metric).partition(" (")
    return f" {unit.removesuffix(')')}" if unit else ""
