"""Metrics: what a number means, and which way is better."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import Literal

from search_spaces.common.errors import InputError

Kind = Literal["accuracy", "measured", "exact"]
Direction = Literal["maximize", "minimize"]
EXACT = ("params", "flops")
DECODING_ORDER: dict[Kind, int] = {"exact": 0, "accuracy": 1, "measured": 2}
_HIGHER = re.compile(
    r"accuracy|(^|_)(acc|top_?\d+|m?ap(\d+)?|m?iou|auc|auroc|f1|bleu|rouge|psnr|ssim|dice|recall|precision|r2|ndcg|mrr|mcc"
    r"|kappa|score|reward)(_|@|\d|$)",
    re.IGNORECASE,
)
_LOSS = re.compile(r"(^|_)(loss|err|error|nll|perplexity|ppl|rmse|mse|mae|wer|cer|fid)(_|@|$)", re.IGNORECASE)
_RATE = re.compile(r"(^|_)(throughput|fps|qps|speedup)(_|@|$)", re.IGNORECASE)
_FIDELITY = re.compile(r"(.+?)(?:@(\d+)|_(\d+)_?epochs?)")
_UNIT = re.compile(r"_(ns|us|ms|s|nj|uj|mj|j|mw|w|b|kb|kib|mb|mib|gb|gib)$", re.IGNORECASE)


@dataclass(frozen=True)
class Metric:
    """A metric of a network.

    Attributes:
        name: the column's name, with its unit at the end: `pixel3_latency_ms`.
        kind: "accuracy" (the quality after training), "measured" (what a device needs) or "exact" (follows from the
            network itself).
        direction: "maximize" or "minimize".
        unit: as the name ends, "%" for accuracies, "" if the name has none.

    A name such as `accuracy@12` or `accuracy_12epochs` is the metric `accuracy` at fidelity 12: after 12 epochs, say.
    """

    name: str
    kind: Kind
    direction: Direction
    unit: str

    @classmethod
    def parse(cls, text: str) -> Metric:
        """`"pixel3_latency_ms"`, or with the direction, the kind or both: `"top1:max"`, `"energy:measured:min"`.

        Without them the name decides: accuracies, precisions, scores and throughputs are maximized, everything else is
        minimized, losses and errors of accuracies among them (`top1_error`).

        Raises:
            InputError: for an empty name, or a suffix that is neither a direction nor a kind.
        """
        name, *suffixes = text.strip().split(":")
        if not name:
            raise InputError(f"empty metric in {text!r}: give a metric name")
        metric = cls._guess(name)
        for suffix in suffixes:
            if suffix in ("max", "min"):
                metric = replace(metric, direction="maximize" if suffix == "max" else "minimize")
            elif suffix in DECODING_ORDER:
                metric = replace(metric, kind=suffix)
            else:
                raise InputError(
                    f"bad suffix {suffix!r} in {text!r}: use {name}:max or {name}:min, and a kind of "
                    f"{', '.join(DECODING_ORDER)} if the name does not tell it"
                )
        return metric

    @classmethod
    def _guess(cls, name: str) -> Metric:
        unit = match[1] if (match := _UNIT.search(split_fidelity(name)[0])) else ""
        if name in EXACT:
            return cls(name, "exact", "minimize", "")
        if _LOSS.search(name):
            return cls(name, "accuracy", "minimize", unit)
        if "accuracy" in name.lower() or (not unit and _HIGHER.search(name)):
            return cls(name, "accuracy", "maximize", "%" if "accuracy" in name.lower() else "")
        return cls(name, "measured", "maximize" if _RATE.search(name) else "minimize", unit)

    @property
    def sign(self) -> float:
        """Factor that turns the metric into a loss (lower is better)."""
        return -1.0 if self.direction == "maximize" else 1.0

    @property
    def fidelity(self) -> float:
        """How much of the whole training, say, the value stands for; infinite for the metric itself."""
        return split_fidelity(self.name)[1]

    @property
    def key(self) -> str:
        """Name for a predictor: with the kind where the name does not tell it, since the kind decides the order."""
        return self.name if self.kind == self._guess(self.name).kind else f"{self.name}:{self.kind}"

    def __str__(self) -> str:
        """What `parse` reads; with the kind where the name does not tell it."""
        return f"{self.key}:{self.direction[:3]}"


def split_fidelity(name: str) -> tuple[str, float]:
    """`"accuracy@12"` and `"accuracy_12epochs"` are `("accuracy", 12)`; a name without fidelity has an infinite one."""
    match = _FIDELITY.fullmatch(name)
    return (match[1], float(match[2] or match[3])) if match else (name, math.inf)


def at_fidelity(name: str, fidelity: int) -> str:
    """The name of a metric at a fidelity: `accuracy@12`."""
    return f"{name}@{fidelity}"


def decoding_order(key: str) -> tuple[int, float]:
    """Exact metrics come first, then accuracies, then measurements, each conditioned on all before.

    Of metrics of one kind those of lower fidelity come first: a learning curve is decoded from its beginning.
    """
    metric = Metric.parse(key)
    return DECODING_ORDER[metric.kind], metric.fidelity
