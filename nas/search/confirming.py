"""Measure the networks of a front again, since a front is made of lucky values.

The best of many noisy values is better than it will be the next time. At the end of a search,

1. latencies of this machine are measured again, all networks in one interleaved pass, which also
   compares them better than values of different hours do;
2. with `confirm=N`, every network is trained N more times with fresh seeds.

Both values of each network are kept: the search's, by which the front was chosen, and the later
one, which is what to expect.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from nas.evaluation.measurement import Measured
from nas.search.measured_evaluator import NetworkEvaluator
from nas.search.study.schema import CONFIRMED_KEY
from search_spaces.common.errors import InputError
from search_spaces.common.progress import Progress

if TYPE_CHECKING:
    from nas.search.evaluators import Evaluator
    from nas.search.study.networks import DistinctNetwork
    from nas.search.study.result import SearchResult


def confirm_front(
    result: SearchResult,
    evaluator: Evaluator,
    trainings: int = 0,
    progress: Progress | None = None,
) -> SearchResult:
    """Measure the front again, and train its networks again.

    What is stored already is not repeated, so that an interrupted call resumes.

    Args:
        result: a finished search.
        evaluator: the search's evaluator.
        trainings: number of fresh trainings per network; 0 measures latencies only.
        progress: called with the current step, the amount done and the total.

    Returns:
        The result with `DistinctNetwork.confirmed`.
    """
    check_confirm(evaluator, trainings)
    if not isinstance(evaluator, NetworkEvaluator):
        return result
    front = [network for network in result.distinct if network.on_front]
    _time_again(result, front, evaluator, progress)
    for number, network in enumerate(front if trainings else ()):
        if progress:
            progress("training the front again", number, len(front))
        _train_again(result, network, evaluator, trainings)
    return replace(result)  # a copy reads the study again: it has no cached values


def check_confirm(evaluator: Evaluator, trainings: int) -> None:
    """Raise InputError if networks cannot be trained again: nothing of the search trains them."""
    if trainings and not (isinstance(evaluator, NetworkEvaluator) and evaluator.trained):
        raise InputError(
            f"confirm = {trainings}: this search trains no networks, so that there is nothing to "
            "train again: leave it out"
        )


def _time_again(
    result: SearchResult,
    front: Sequence[DistinctNetwork],
    evaluator: NetworkEvaluator,
    progress: Progress | None,
) -> None:
    """Measure latencies in one pass, unless all networks have them from an earlier one."""
    measurement = evaluator.measurement
    timed = {*measurement.timed_here}
    if all(timed <= network.confirmed.keys() for network in front):
        return
    models = [partial(evaluator.space.to_onnx, network.architecture) for network in front]
    together = measurement.time_together(models, progress)
    for network, values in zip(front, together, strict=True):
        _store(result, network, values)


def _train_again(
    result: SearchResult,
    network: DistinctNetwork,
    evaluator: NetworkEvaluator,
    trainings: int,
) -> None:
    """Train a network with fresh seeds, unless it has been trained again as often before."""
    meaning = "one fresh training"
    if trainings > 1:
        meaning = f"mean ± standard deviation of {trainings} fresh trainings"
    if any(text == meaning for *_, text in network.confirmed.values()):
        return
    first = 1 + max(evaluator.seeds)
    seeds = range(first, first + trainings)
    scores = [evaluator.train_again(network.architecture, seed) for seed in seeds]
    values = {}
    for metric in scores[0]:
        values[metric] = _summary([score[metric] for score in scores], meaning)
    _store(result, network, values)


def _summary(values: Sequence[float], meaning: str) -> Measured:
    """Mean of fresh trainings; NaN if one diverged."""
    mean = float(np.mean(values))
    std = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
    return Measured(mean, mean - std, mean + std, meaning)


def _store(result: SearchResult, network: DistinctNetwork, values: Mapping[str, Measured]) -> None:
    """Add values to those that are stored for a network.

    A finished trial accepts none, so the study keeps them.
    """
    key = f"{CONFIRMED_KEY}{network.representative.trial}"
    stored = dict(result.study.user_attrs.get(key, {}))
    for metric, value in values.items():
        stored[metric] = list(value)
    result.study.set_user_attr(key, stored)
