"""Active learning of a device's latency: measures what the RLM is least certain of."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from nas.evaluation.device_command import DeviceCommand, DeviceError, time_on_device
from nas.evaluation.devices import MIN_MEASURED, PredictedDevice
from search_spaces.common.errors import InputError
from search_spaces.common.progress import Progress

if TYPE_CHECKING:
    from nas.evaluation.int8 import Samples
    from search_spaces import Architecture, SearchSpace
    from search_spaces.domains import Choice

POOL_SIZE = 300  # random architectures from which networks are selected
INITIAL_NETWORKS = 4  # spread over the range of FLOPs, before the RLM selects
MAX_DOUBTS = 2  # consecutive failures, after which a network is taken that will likely succeed
MAX_FAILURES = 10  # consecutive failures, after which measuring stops


def draw_pool(space: SearchSpace, seed: int) -> dict[str, Architecture]:
    """Up to `POOL_SIZE` random architectures by text, sorted by FLOPs."""
    rng = np.random.default_rng(seed)
    drawn = [space.sample(rng) for _ in range(POOL_SIZE)]
    by_text = {}
    for architecture in dict.fromkeys(drawn):
        by_text[space.to_text(architecture)] = architecture
    ordered = sorted(by_text.items(), key=lambda item: space.flops(item[1]))
    return dict(ordered)


def measure(
    device: PredictedDevice,
    space: SearchSpace,
    command: DeviceCommand,
    count: int,
    seed: int = 0,
    batch: int = 1,
    calibration: Samples | None = None,
    progress: Progress | None = None,
) -> None:
    """Time networks of a space until the device has measurements of `count` networks.

    The first networks are spread over the range of FLOPs. Each further one is the network whose
    latency the RLM predicts with the largest relative uncertainty. After two failures in a row,
    the network is taken that likeliest succeeds, until one does. Networks that failed or were
    measured before are not timed again.

    Args:
        device: keeps the measurements and the reasons of failures.
        space: networks are drawn from it.
        command: times a network.
        count: number of measured networks, with those that the device has already.
        seed: draws the candidates.
        batch: batch size of the timed networks.
        calibration: see `measure_on_device`.
        progress: called with the architecture to be timed, the number of measured networks and
            `count`.

    Raises:
        InputError: ten consecutive networks could not be timed.
    """
    pool = draw_pool(space, seed)
    failures = 0  # in a row
    while len(device.texts) < count:
        # 1. Select a network.
        candidates = [text for text in pool if text not in device.tried]
        if not candidates:
            break
        in_doubt = failures >= MAX_DOUBTS
        text = _likeliest(device, pool, candidates) if in_doubt else _next(device, candidates)
        architecture = pool[text]
        notation = space.format(architecture)
        if progress:
            progress(notation, len(device.texts), count)

        # 2. Time it. A failure, as of the device, a converter or the quantization, is a result too.
        try:
            latency = time_on_device(space.to_onnx(architecture), command, batch, calibration)
            if not latency.low > 0:
                raise DeviceError(f"{device.metric} is {latency.low:g}, and not positive")
        except InputError as error:
            device.add(text, notation, None, str(error))
            failures += 1
            if failures == MAX_FAILURES:
                raise InputError(
                    f"{failures} consecutive networks could not be timed; the last: {error}"
                ) from error
        else:
            device.add(text, notation, latency[:3])
            failures = 0
    if progress:
        progress("", len(device.texts), count)


def _next(device: PredictedDevice, candidates: Sequence[str]) -> str:
    """The candidate to measure next. Candidates are sorted by FLOPs."""
    # 1. The first ones are spread evenly over the FLOPs.
    measured = len(device.texts)
    if measured < max(INITIAL_NETWORKS, MIN_MEASURED):
        last = len(candidates) - 1
        return candidates[round(last * measured / (INITIAL_NETWORKS - 1))]
    # 2. Then the one whose predicted latency is most uncertain, relative to its size.
    log_latencies = np.log(device.sample(candidates))  # (candidates, s)
    uncertainty = log_latencies.std(axis=1)
    return candidates[int(uncertainty.argmax())]


def _likeliest(
    device: PredictedDevice, pool: Mapping[str, Architecture], candidates: Sequence[str]
) -> str:
    """The candidate that likeliest can be measured, by its choices.

    Naive Bayes, with a prior of one success and one failure for each choice.
    """
    # 1. How often each choice has succeeded and failed.
    successes: Counter[tuple[str, Choice]] = Counter()
    failures: Counter[tuple[str, Choice]] = Counter()
    for text, row in device.tried.items():
        if text in pool:
            counter = failures if row["ms"] is None else successes
            counter.update(pool[text].choices)

    # 2. The odds of a network are the product of those of its choices.
    def log_odds(text: str) -> float:
        return sum(
            math.log((1 + successes[choice]) / (1 + failures[choice]))
            for choice in pool[text].choices
        )

    return max(candidates, key=log_odds)


class Quality(NamedTuple):
    """Accuracy and calibration of a device's predictions.

    Attributes:
        spearman: rank correlation of measured and leave-one-out latencies; NaN for fewer than four
            networks.
        error: median relative error of the leave-one-out latencies.
        covered: share of measured latencies between the 10 % and 90 % quantiles of their
            leave-one-out predictions.
        uncertainty: half the relative range between the predicted quantiles, median over unmeasured
            networks.
        spread: half the relative range between the quantiles of repeated measurements, median over
            measured networks.
    """

    spearman: float
    error: float
    covered: float
    uncertainty: float
    spread: float


def quality(device: PredictedDevice, others: Sequence[str]) -> Quality:
    """Assess predictions, by leave-one-out on the measured networks.

    Args:
        device: the device with its measurements.
        others: texts of unmeasured networks, whose uncertainty is assessed.
    """
    from scipy.stats import spearmanr

    measured = device.latencies[:, 0]  # (k,)
    predicted, low, high = device.leave_one_out().T  # (k,) each
    has_ranks = len(measured) > MIN_MEASURED
    return Quality(
        spearman=float(spearmanr(predicted, measured).statistic) if has_ranks else math.nan,
        error=float(np.median(np.abs(predicted / measured - 1))),
        covered=float(np.mean((low <= measured) & (measured <= high))),
        uncertainty=_half_range(device.predict(others)),
        spread=_half_range(device.latencies),
    )


def _half_range(values: np.ndarray) -> float:
    """Median of (high − low) / 2 / median over rows of medians, lows and highs (n, 3)."""
    if not len(values):
        return math.nan
    median, low, high = values.T
    return float(np.median((high - low) / 2 / median))
