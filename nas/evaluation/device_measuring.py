"""Active learning of a device's latency: measures the networks of which the RLM is least
certain.
"""

from __future__ import annotations

import math
from collections import defaultdict
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
    failures = 0
    while (left := [text for text in pool if text not in device.tried]) and len(
        device.texts
    ) < count:
        text = _next(device, left) if failures < MAX_DOUBTS else _likeliest(device, pool, left)
        if progress:
            progress(space.format(pool[text]), len(device.texts), count)
        try:
            latency = time_on_device(space.to_onnx(pool[text]), command, batch, calibration)
            if not latency.low > 0:
                raise DeviceError(f"{device.metric} is {latency.low:g}, and not positive")
        except InputError as error:  # as of a device, a converter, or the quantization
            device.add(text, space.format(pool[text]), None, str(error))
            failures += 1
            if failures == MAX_FAILURES:
                raise InputError(
                    f"{failures} consecutive networks could not be timed; the last: {error}"
                ) from error
            continue
        device.add(text, space.format(pool[text]), latency[:3])
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
    odds: defaultdict[tuple[str, Choice], list[int]] = defaultdict(lambda: [1, 1])
    for text, row in device.tried.items():
        if text in pool:
            for choice in dict(pool[text].choices).items():
                odds[choice][row["ms"] is None] += 1

    def log_odds(text: str) -> float:
        counts = [odds[choice] for choice in dict(pool[text].choices).items()]
        return sum(math.log(successes / failures) for successes, failures in counts)

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
    """Assess predictions by leave-one-out on the measured networks, and their uncertainty on other
    networks.

    Args:
        device: the device with its measurements.
        others: texts of unmeasured networks.
    """
    from scipy.stats import spearmanr

    value, low, high = device.latencies.T
    predicted = device.leave_one_out()
    rank = (
        float(spearmanr(predicted[:, 0], value).statistic)
        if len(value) > MIN_MEASURED
        else float("nan")
    )
    return Quality(
        rank,
        float(np.median(np.abs(predicted[:, 0] / value - 1))),
        float(np.mean((predicted[:, 1] <= value) & (value <= predicted[:, 2]))),
        _half_range(device.predict(others)),
        _half_range(np.stack([value, low, high], 1)),
    )


def _half_range(values: np.ndarray) -> float:
    """Median of (high − low) / 2 / median over rows of medians, lows and highs (n, 3)."""
    return (
        float(np.median((values[:, 2] - values[:, 1]) / 2 / values[:, 0]))
        if len(values)
        else float("nan")
    )
