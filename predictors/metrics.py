"""Metrics: kind, direction, unit and price of a measured value, and which values count.

What a metric is may be declared: `Metric("wear", kind="measured", direction="minimize")`, or
`wear:measured:min` as text. What is not declared is guessed from the name, in `guess` and nowhere
else; `repr(metric)` shows the result.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal, NamedTuple, cast

import numpy as np

from search_spaces.common.errors import InputError

Kind = Literal["accuracy", "measured", "exact"]
Direction = Literal["maximize", "minimize"]
Price = Literal["counted", "measured", "trained"]
EXACT = ("params", "flops")
DIRECTIONS: dict[str, Direction] = {
    "max": "maximize",
    "maximize": "maximize",
    "min": "minimize",
    "minimize": "minimize",
}
"""Words for directions, in lower case."""
DECODING_ORDER: dict[Kind, int] = {"exact": 0, "accuracy": 1, "measured": 2}
PRICES: dict[Kind, Price] = {"exact": "counted", "accuracy": "trained", "measured": "measured"}
"""What a metric of each kind costs, unless it is declared."""


@dataclass(frozen=True, init=False)
class Metric:
    """A metric of a network.

    A name such as `accuracy@12` or `accuracy_12epochs` is the metric `accuracy` at fidelity 12, for
    example after 12 epochs. What is not declared is guessed from the name.

    Attributes:
        name: name of the column, with its unit at the end: `pixel3_latency_ms`.
        kind: "accuracy" (quality after training), "measured" (cost on a device) or "exact" (follows
            from the network). It decides the order of decoding and the target transform.
        direction: "maximize" or "minimize".
        unit: the unit in the name, "%" for accuracies, "" if the name has none.
        price: what a value costs: "counted" (follows from the network), "measured" (without
            training) or "trained".

    Raises:
        InputError: if a kind, direction or price is none of these.

    >>> from predictors.metrics import Metric
    >>> Metric("pixel3_latency_ms")
    Metric(name='pixel3_latency_ms', kind='measured', direction='minimize', unit='ms', price='measured')
    >>> Metric("wear", kind="accuracy", direction="min").price
    'trained'
    """

    name: str
    kind: Kind
    direction: Direction
    unit: str
    price: Price

    def __init__(
        self,
        name: str,
        kind: Kind | None = None,
        direction: str | None = None,
        unit: str | None = None,
        price: Price | None = None,
    ) -> None:
        guessed = guess(name)
        kind = guessed.kind if kind is None else kind
        direction = guessed.direction if direction is None else direction
        _check(name, "kind", kind, DECODING_ORDER)
        _check(name, "direction", direction.lower(), DIRECTIONS)
        price = PRICES[kind] if price is None else price
        _check(name, "price", price, PRICES.values())
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "kind", kind)
        object.__setattr__(self, "direction", DIRECTIONS[direction.lower()])
        object.__setattr__(self, "unit", guessed.unit if unit is None else unit)
        object.__setattr__(self, "price", price)

    @classmethod
    def parse(cls, text: str) -> Metric:
        """Parse a metric's name with optional suffixes for direction, kind and price.

        Examples: `"pixel3_latency_ms"`, `"top1:max"`, `"top1:maximize"`, `"energy:measured:min"`,
        `"proxy:accuracy:measured"`. The word "measured" is the kind, or the price beside another
        kind. Without suffixes the name decides, see `guess`.

        Raises:
            InputError: if the name is empty, or a suffix is no direction, kind or price, or there
                are two of one.
        """
        name, *suffixes = (part.strip() for part in text.split(":"))
        if not name:
            raise InputError(f"empty metric in {text!r}: give a metric name")
        directions = [suffix for suffix in suffixes if suffix.lower() in DIRECTIONS]
        kinds = [suffix for suffix in suffixes if suffix in DECODING_ORDER]
        prices = [suffix for suffix in suffixes if suffix in ("counted", "trained")]
        if len(kinds) == 2 and kinds.count("measured") == 1 and not prices:
            kinds.remove("measured")
            prices.append("measured")
        for suffix in suffixes:
            if suffix not in (*directions, *kinds, *prices):
                raise InputError(
                    f"bad suffix {suffix!r} in {text!r}: use {name}:max or {name}:min, and one of "
                    f"the kinds {', '.join(DECODING_ORDER)} if the name does not imply it"
                )
        if max(len(directions), len(kinds), len(prices)) > 1:
            raise InputError(
                f"{text!r} has more than one direction, kind or price: give one of each"
            )
        return cls(
            name,
            kind=kinds[0] if kinds else None,
            direction=directions[0] if directions else None,
            price=cast(Price, prices[0]) if prices else None,
        )

    @property
    def sign(self) -> float:
        """Factor that turns the metric into a loss (lower is better)."""
        return -1.0 if self.direction == "maximize" else 1.0

    @property
    def fidelity(self) -> float:
        """Fidelity of the value, for example in epochs; infinite if the name states none."""
        return split_fidelity(self.name)[1]

    @property
    def key(self) -> str:
        """Name for predictors, with the kind if the name does not imply it.

        The decoding order depends on the kind.
        """
        if self.kind == guess(self.name).kind:
            return self.name
        return f"{self.name}:{self.kind}"

    def __str__(self) -> str:
        """The text that `parse` reads back."""
        direction = self.direction[:3]
        if self.price == PRICES[self.kind]:
            return f"{self.key}:{direction}"
        return f"{self.name}:{self.kind}:{self.price}:{direction}"


def _check(
    name: str,
    what: str,
    value: str,
    allowed: Collection[str],
) -> None:
    if value not in allowed:
        words = ", ".join(allowed)
        raise InputError(f"{name}: {what} {value!r} is none of {words}")


# --- what a name says


class Guess(NamedTuple):
    """What the name of a metric says."""

    kind: Kind
    direction: Direction
    unit: str


def guess(name: str) -> Guess:
    """Kind, direction and unit of a metric by its name.

    `params` and `flops` are exact. Names of accuracies, precisions, scores and throughputs are
    maximized. Everything else, including losses, errors and drops (`top1_error`), is minimized.
    """
    unit_match = _UNIT.search(split_fidelity(name)[0])
    unit = unit_match[1] if unit_match else ""
    if name in EXACT:
        return Guess("exact", "minimize", "")
    if _LOSS.search(name):
        return Guess("accuracy", "minimize", unit)
    if _RATE.search(name) and not _ENERGY.search(name):
        return Guess("measured", "maximize", "")
    names_accuracy = "accuracy" in name.lower()
    names_quality = not COST.search(name) and _HIGHER.search(name)
    if not unit and (names_accuracy or names_quality):
        in_percent = names_accuracy or "fidelity" in name.lower()
        return Guess("accuracy", "maximize", "%" if in_percent else "")
    return Guess("measured", "minimize", unit)


def _words(pattern: str) -> re.Pattern[str]:
    """Matches a name that contains one of these words, between separators."""
    return re.compile(rf"(^|[\W_])({pattern})([\W_]|\d|$)", re.IGNORECASE)


_HIGHER = _words(
    r"acc|top[_ -]?\d+|m?ap(\d+)?|m?iou|auc|auroc|f1|bleu|rouge|psnr|ssim|dice|recall|precision|r2"
    r"|ndcg|mrr|mcc|kappa|score|quality|exact_match|spearman|auprc|pck|(r|hr|pass|hits?)(?=@)"
    r"|reward|fidelity|(hit|success|win)_rate"
)
_LOSS = _words(
    "loss|std|inaccuracy|err|error|nll|perplexity|ppl|rmse|mse|mae|wer|cer|fid|drop|degradation"
    "|regret"
)
COST = _words("latency|time|energy|power|memory|size")
_ENERGY = _words("energy|joules?")
_RATE = _words(
    "throughput|fps|qps|speedup|(.+_per_|.+/|images?_|imgs?_|samples?_|tokens?_)s(ec(ond)?)?"
)
_FIDELITY = re.compile(r"(.+?)(?:@(\d+)|_(\d+)_?epochs?)")
_UNIT = re.compile(r"_(ns|us|ms|s|nj|uj|mj|j|mw|w|b|kb|kib|mb|mib|gb|gib)$", re.IGNORECASE)


def split_fidelity(name: str) -> tuple[str, float]:
    """Metric and fidelity of a name: `("accuracy", 12.0)` of `"accuracy_12epochs"`.

    The fidelity is infinite if the name has none.
    """
    match = _FIDELITY.fullmatch(name)
    if match is None:
        return name, math.inf
    return match[1], float(match[2] or match[3])


def at_fidelity(name: str, fidelity: int) -> str:
    """Name of a metric at a fidelity, such as `accuracy@12`."""
    return f"{name}@{fidelity}"


def decoding_order(key: str) -> tuple[int, float]:
    """Sort key of the order in which metrics are decoded, each conditioned on those before it.

    Exact metrics come first, then accuracies, then measurements. Within one kind, lower fidelities
    come first, so a learning curve is decoded from its beginning.
    """
    metric = Metric.parse(key)
    return DECODING_ORDER[metric.kind], metric.fidelity


def conditioning_costs(metric: str, observed: Collection[str]) -> list[str]:
    """The exact metrics among the observed ones from which a metric is predicted.

    These are all for device metrics, and none for accuracies.
    """
    if Metric.parse(metric).kind != "measured":
        return []
    return [name for name in EXACT if name in observed]


# --- which values count

MAX_VALUE = 1e18
"""Largest absolute value. Sums of hundreds of squares of such values are finite, also in float32.

Real metrics are far smaller. A training that diverges reaches more: a perplexity of e^400 is 5e173.
"""
MIN_RANGE = 1e-150  # smallest range of values: the square of smaller ones underflows to 0


def is_valid(values: np.ndarray | float) -> np.ndarray:
    """Mask (...) of the values (...) that are numbers of at most `MAX_VALUE` in size.

    It is False for NaN and infinity.
    """
    with np.errstate(invalid="ignore"):
        return np.abs(np.asarray(values, dtype=float)) <= MAX_VALUE


def only_valid(values: np.ndarray) -> np.ndarray:
    """The values (...), with NaN, the sign of a failure, for those that are not valid."""
    return np.where(is_valid(values), values, np.nan)


def why_invalid(metric: str, value: float) -> str:
    """Why a value of a metric does not count; "" if it does."""
    if is_valid(value):
        return ""
    if np.isfinite(value):
        return f"{metric} is {value:.3g}, and values count up to {MAX_VALUE:.0e}"
    return f"{metric} is {value}"
