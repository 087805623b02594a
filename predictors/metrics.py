"""Metrics: kind, unit and direction of a measured value."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import Literal

from search_spaces.common.errors import InputError

Kind = Literal["accuracy", "measured", "exact"]
Direction = Literal["maximize", "minimize"]
EXACT = ("params", "flops")
DIRECTIONS: dict[str, Direction] = {
    "max": "maximize",
    "maximize": "maximize",
    "min": "minimize",
    "minimize": "minimize",
}
"""Words for directions, in lower case."""
DECODING_ORDER: dict[Kind, int] = {"exact": 0, "accuracy": 1, "measured": 2}


def _words(pattern: str) -> re.Pattern[str]:
    """Matches a name that contains one of these words, between separators."""
    return re.compile(rf"(^|[\W_])({pattern})([\W_]|\d|$)", re.IGNORECASE)


_HIGHER = _words(
    r"acc|top[_ -]?\d+|m?ap(\d+)?|m?iou|auc|auroc|f1|bleu|rouge|psnr|ssim|dice|recall|precision|r2|ndcg|mrr|mcc|kappa"
    r"|score|quality|exact_match|spearman|auprc|pck|(r|hr|pass|hits?)(?=@)|reward|fidelity|(hit|success|win)_rate"
)
_LOSS = _words(
    "loss|std|inaccuracy|err|error|nll|perplexity|ppl|rmse|mse|mae|wer|cer|fid|drop|degradation|regret"
)
COST = _words("latency|time|energy|power|memory|size")
_ENERGY = _words("energy|joules?")
_RATE = _words(
    "throughput|fps|qps|speedup|(.+_per_|.+/|images?_|imgs?_|samples?_|tokens?_)s(ec(ond)?)?"
)
_FIDELITY = re.compile(r"(.+?)(?:@(\d+)|_(\d+)_?epochs?)")
_UNIT = re.compile(r"_(ns|us|ms|s|nj|uj|mj|j|mw|w|b|kb|kib|mb|mib|gb|gib)$", re.IGNORECASE)


@dataclass(frozen=True)
class Metric:
    """A metric of a network.

    A name such as `accuracy@12` or `accuracy_12epochs` is the metric `accuracy` at fidelity 12, for
    example after 12 epochs.

    Attributes:
        name: name of the column, with its unit at the end: `pixel3_latency_ms`.
        kind: "accuracy" (quality after training), "measured" (cost on a device) or "exact" (follows
            from the network).
        direction: "maximize" or "minimize".
        unit: the unit in the name, "%" for accuracies, "" if the name has none.
    """

    name: str
    kind: Kind
    direction: Direction
    unit: str

    @classmethod
    def parse(cls, text: str) -> Metric:
        """Parse a metric's name with optional suffixes for direction and kind.

        Examples: `"pixel3_latency_ms"`, `"top1:max"`, `"top1:maximize"`, `"energy:measured:min"`.
            Without suffixes the
        name decides: accuracies, precisions, scores and throughputs are maximized; everything else,
            including losses,
        errors and drops (`top1_error`), is minimized.

        Raises:
            InputError: if the name is empty, or a suffix is neither a direction nor a kind, or
                there are two of one.
        """
        name, *suffixes = (part.strip() for part in text.split(":"))
        if not name:
            raise InputError(f"empty metric in {text!r}: give a metric name")
        metric = cls._guess(name)
        directions = [suffix for suffix in suffixes if suffix.lower() in DIRECTIONS]
        kinds = [suffix for suffix in suffixes if suffix in DECODING_ORDER]
        for suffix in suffixes:
            if suffix not in (*directions, *kinds):
                raise InputError(
                    f"bad suffix {suffix!r} in {text!r}: use {name}:max or {name}:min, and one of "
                    "the kinds "
                    f"{', '.join(DECODING_ORDER)} if the name does not imply it"
                )
        if len(directions) > 1 or len(kinds) > 1:
            raise InputError(f"{text!r} has more than one direction or kind: give one of each")
        if directions:
            metric = replace(metric, direction=DIRECTIONS[directions[0].lower()])
        if kinds:
            metric = replace(metric, kind=kinds[0])
        return metric

    @classmethod
    def _guess(cls, name: str) -> Metric:
        unit = match[1] if (match := _UNIT.search(split_fidelity(name)[0])) else ""
        if name in EXACT:
            return cls(name, "exact", "minimize", "")
        if _LOSS.search(name):
            return cls(name, "accuracy", "minimize", unit)
        if _RATE.search(name) and not _ENERGY.search(name):
            return cls(name, "measured", "maximize", "")
        if not unit and (
            "accuracy" in name.lower() or (not COST.search(name) and _HIGHER.search(name))
        ):
            in_percent = any(word in name.lower() for word in ("accuracy", "fidelity"))
            return cls(name, "accuracy", "maximize", "%" if in_percent else "")
        return cls(name, "measured", "minimize", unit)

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
        """Name for predictors, with the kind if the name does not imply it: the decoding order
        depends on the kind.
        """
        return self.name if self.kind == self._guess(self.name).kind else f"{self.name}:{self.kind}"

    def __str__(self) -> str:
        """The text that `parse` reads back."""
        return f"{self.key}:{self.direction[:3]}"


def split_fidelity(name: str) -> tuple[str, float]:
    """Metric and fidelity of a name: `("accuracy", 12.0)` of `"accuracy_12epochs"`; infinite if the
    name has none.
    """
    match = _FIDELITY.fullmatch(name)
    return (match[1], float(match[2] or match[3])) if match else (name, math.inf)


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
