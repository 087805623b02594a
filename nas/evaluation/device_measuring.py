"""Measuring a few networks on a device: those of which the RLM is the least certain."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from nas.evaluation.device_command import DeviceCommand, DeviceError, time_on_device
from nas.evaluation.devices import MIN_MEASURED, PredictedDevice
from search_spaces.common.errors import InputError

if TYPE_CHECKING:
    from search_spaces import Architecture, SearchSpace

POOL = 300  # random networks of the space, among which are the measured ones
BEGIN = 4  # networks of all sizes, before the RLM says which comes next
MAX_FAILURES = 10  # in a row, after which the device is given up

Progress = Callable[[str, int, int], None]


def draw_pool(space: SearchSpace, seed: int) -> dict[str, Architecture]:
    """Up to `POOL` random networks by text, in the order of their FLOPs."""
    rng = np.random.default_rng(seed)
    drawn = dict.fromkeys(space.sample(rng) for _ in range(POOL))
    found = {space.to_text(architecture): architecture for architecture in drawn}
    return dict(sorted(found.items(), key=lambda item: space.flops(item[1])))


def measure(
    device: PredictedDevice, space: SearchSpace, command: DeviceCommand, count: int, seed: int = 0, batch: int = 1,
    progress: Progress | None = None,
) -> None:  # fmt: skip
    """Time networks of a space until the device has `count` of them; what is kept already is not timed again.

    The first ones are of all sizes; each further one is that of which the RLM is the least certain, given all others.
    A network that cannot be timed is kept with its reason. Raises InputError after ten of these in a row.
    """
    pool = draw_pool(space, seed)
    failures = 0
    while (left := [text for text in pool if text not in device.tried]) and len(device.texts) < count:
        text = _next(device, left)
        if progress:
            progress(space.format(pool[text]), len(device.texts), count)
        try:
            latency = time_on_device(space.to_onnx(pool[text]), command, batch)
        except DeviceError as error:
            device.add(text, space.format(pool[text]), None, str(error))
            failures += 1
            if failures == MAX_FAILURES:
                raise InputError(f"{failures} networks in a row could not be timed; the last: {error}") from None
            continue
        device.add(text, space.format(pool[text]), latency)
        failures = 0
    if progress:
        progress("", len(device.texts), count)


def _next(device: PredictedDevice, candidates: Sequence[str]) -> str:
    """The candidate to measure next; candidates are in the order of their FLOPs."""
    known = len(device.texts)
    if known < max(BEGIN, MIN_MEASURED):
        return candidates[round((len(candidates) - 1) * known / (BEGIN - 1))]
    return candidates[int(np.log(device.sample(candidates)).std(axis=1).argmax())]


class Quality(NamedTuple):
    """How good a device's predictions are.

    spearman: of measured latencies and those predicted from the other networks; NaN for fewer than four networks.
    error: median of their relative errors. covered: share of the measured ones within the predicted 10 % and 90 %
    quantiles. uncertainty: half of what is between these quantiles, relative, as a median over other networks. spread:
    the same of the measurements themselves.
    """

    spearman: float
    error: float
    covered: float
    uncertainty: float
    spread: float


def quality(device: PredictedDevice, others: Sequence[str]) -> Quality:
    """How good the predictions are on the measured networks, and how certain on others, given as texts."""
    from scipy.stats import spearmanr

    value, low, high = device.latencies.T
    predicted = device.leave_one_out()
    rank = float(spearmanr(predicted[:, 0], value).statistic) if len(value) > MIN_MEASURED else float("nan")
    return Quality(
        rank,
        float(np.median(np.abs(predicted[:, 0] / value - 1))),
        float(np.mean((predicted[:, 1] <= value) & (value <= predicted[:, 2]))),
        _half_range(device.predict(others)),
        _half_range(np.stack([value, low, high], 1)),
    )


def _half_range(values: np.ndarray) -> float:
    """Median of half the relative range of medians, lows and highs (n, 3)."""
    return float(np.median((values[:, 2] - values[:, 1]) / 2 / values[:, 0])) if len(values) else float("nan")
