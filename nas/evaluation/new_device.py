"""Predicts latencies of a new device from a few measurements, from counted costs, and from
latencies on known devices.

    RatioModel        the RLM learns ratios to known devices from texts
    AdditiveModel     a sum of costs and of latencies on known devices, with prices of each
    NewDeviceModel    both: the additive model is one more known device
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from scipy.optimize import nnls

from predictors import Predictor
from search_spaces.ir.costs import graph_activations, graph_flops, graph_params
from search_spaces.ir.text import expand, read

RATIO = "ratio_ms"  # metric: log ratio of the new device's latency to a known device's
MAX_DEVICES = 24  # known devices, those whose ratio to the new one varies least
MIN_VARIANCE = 1e-6  # of log ratios; measurements repeat to about a thousandth
# Penalty of the weights of an additive model, in relative errors: it decides between equal fits only
PENALTY = 0.1
MIN_SHARE = 1e-3  # of the fastest measured network: an additive model predicts no less
# The additive model's own prediction has the weight of this many measurements, half at most. With
# more measurements the RLM knows better: the choice is measured, see docs/results.md.
ADDITIVE_WORTH = 5
_CACHED_TEXTS = 16384


# --- ratios to known devices


class _Base(NamedTuple):
    """A known device to which the ratio is learned.

    Attributes:
        column: of the device among those that are used.
        weight: of its predictions; all sum to 1.
        center: median log ratio of the new device to this one.
        predictor: of the log ratio less `center`.
    """

    column: int
    weight: float
    center: float
    predictor: Predictor


class RatioModel:
    """Latencies on a new device, as ratios to known devices.

    The RLM learns the ratio to a known device, from the text and from the ratios between known
    devices. Ratios vary much less than latencies: two GPUs may differ by less than a tenth, over
    networks that differ a thousandfold. Each known device is the base once. Samples are geometric
    means over the bases, weighted by the inverse variances of the measured ratios.

    Args:
        model: predicts the ratios. Its own examples are not changed.
        texts: n networks that were measured on the new device.
        values: (n,) positive latencies on the new device.
        known: (n, d) positive latencies on d ≥ 1 known devices.
        population: (p, d) positive latencies of further networks on the known devices, such as
            those to be predicted. With the measured networks they set the scale of the covariates.
    """

    def __init__(
        self,
        model: Predictor,
        texts: Sequence[str],
        values: np.ndarray,
        known: np.ndarray,
        population: np.ndarray | None = None,
    ) -> None:
        # 1. The devices whose ratios to the new one vary least, weighted by the inverse variance.
        logs = np.log(known)
        target = np.log(values)
        variance = np.maximum((target[:, None] - logs).var(0), MIN_VARIANCE)
        self._kept = np.sort(np.argsort(variance, kind="stable")[:MAX_DEVICES])
        logs = logs[:, self._kept]
        inverse = 1 / variance[self._kept]
        weights = inverse / inverse.sum()

        # 2. Networks that set the scale of the covariates.                        (n + p, devices)
        self._scaling = logs
        if population is not None:
            self._scaling = np.concatenate([logs, np.log(population)[:, self._kept]])

        # 3. The ratio to each base.
        self._bases = []
        for base, weight in enumerate(weights):
            ratio = target - logs[:, base]
            # The metric is a signed number: the model takes positive ones for latencies.
            center = float(np.median(ratio))
            covariates = self._covariates(logs, base)
            fitted = copy.copy(model).fit(texts, {RATIO: ratio - center, **covariates})
            self._bases.append(_Base(base, float(weight), center, fitted))

    def sample(
        self, texts: Sequence[str], known: np.ndarray, samples: int = 64, seed: int = 0
    ) -> np.ndarray:
        """Sample the latencies of q networks.

        Args:
            texts: of the q networks.
            known: (q, d) latencies on the known devices, or sorted samples (q, d, samples) if these
                are predicted. Their uncertainty then adds to that of the new device.
            samples: number of samples per network.
            seed: of the samples.

        Returns:
            (q, samples) latencies in the unit of the measured ones, sorted for each network.
        """
        # 1. Logarithms on the known devices (q, devices, samples or 1), and their medians
        #    (q, devices).
        sampled = np.log(known if known.ndim == 3 else known[:, :, None])[:, self._kept]
        logs = np.median(sampled, 2)

        # 2. The mean over the bases.                                                  (q, samples)
        drawn = np.zeros((len(texts), samples))
        for base in self._bases:
            covariates = self._covariates(logs, base.column)
            predicted = base.predictor.predict(
                texts, [RATIO], given=covariates, samples=samples, seed=seed
            )
            ratios = np.sort(predicted.samples[:, :, 0], 1)
            drawn += base.weight * (sampled[:, base.column] + base.center + ratios)
        return np.exp(drawn)

    def _covariates(self, logs: np.ndarray, base: int) -> dict[str, np.ndarray]:
        """Values of the base and ratios to it for networks (m, devices), by metric.

        All have median 0 and variance 1 over the networks that set the scale.
        """

        def relative(rows: np.ndarray) -> np.ndarray:
            is_base = np.arange(rows.shape[1]) == base
            return np.where(is_base, rows, rows - rows[:, [base]])

        scaling = relative(self._scaling)
        spread = scaling.std(0)
        centred = relative(logs) - np.median(scaling, 0)
        scaled = centred / np.where(spread > 0, spread, 1.0)
        return {f"known{j}_ms": column for j, column in enumerate(scaled.T)}


def relative_samples(
    model: Predictor,
    texts: Sequence[str],
    values: np.ndarray,
    known: np.ndarray,
    query_texts: Sequence[str],
    query_known: np.ndarray,
    samples: int = 64,
    seed: int = 0,
) -> np.ndarray:
    """Sample the latencies of q networks on a new device by a `RatioModel`.

    The model's covariates are scaled by these networks, too.

    Args:
        model, texts, values, known: see `RatioModel`.
        query_texts, query_known, samples, seed: see `RatioModel.sample`.

    Returns:
        (q, samples) latencies in the unit of `values`, sorted for each network.
    """
    population = np.median(query_known, 2) if query_known.ndim == 3 else query_known
    ratios = RatioModel(model, texts, values, known, population)
    return ratios.sample(query_texts, query_known, samples, seed)


# --- with costs that are counted


@lru_cache(maxsize=_CACHED_TEXTS)
def _counted(text: str) -> tuple[float, ...]:
    graph = expand(read(text))
    counts = (graph_params(graph), graph_flops(graph), graph_activations(graph), len(graph.nodes))
    return tuple(map(float, counts))


def counted_costs(texts: Sequence[str]) -> np.ndarray:
    """Parameters, multiply-accumulates, elements of all outputs and operators (n, 4) of n networks.

    Raises:
        InputError: a text is not that of a network, or it is not known what an operator costs.
    """
    return np.array([_counted(text) for text in texts]).reshape(len(texts), -1)


class AdditiveModel:
    """Latencies as a weighted sum of non-negative parts, with weights that are not negative.

    The weights minimize the squares of the relative errors.

    Args:
        parts: (n, k) parts of the n networks that were measured.
        values: (n,) their positive latencies.
    """

    def __init__(self, parts: np.ndarray, values: np.ndarray) -> None:
        # 1. A typical part is worth a typical latency, so that the penalty treats all parts alike.
        typical = parts.mean(axis=0)  # (k,)
        scale = np.where(typical > 0, typical, 1.0) / np.median(values)

        # 2. Least squares of the relative errors, and of the penalty.        (n + k, k), (n + k,)
        relative = parts / scale / values[:, None]
        inputs = np.vstack([relative, PENALTY * np.eye(len(scale))])
        targets = np.concatenate([np.ones(len(values)), np.zeros(len(scale))])
        weights, _ = nnls(inputs, targets)

        # 3. The median of the ratios is 1, which few outliers change.
        center = np.median(values / np.maximum(parts / scale @ weights, _smallest(values)))
        self._weights = center * weights / scale
        self._least = _smallest(values)

    def predict(self, parts: np.ndarray) -> np.ndarray:
        """Latencies (q,) of q networks with these parts (q, k), in the unit of the measured ones."""
        return np.maximum(parts @ self._weights, self._least)


def _smallest(values: np.ndarray) -> float:
    return MIN_SHARE * float(values.min())


class NewDeviceModel:
    """Latencies on a new device, by counted costs and by ratios to known devices, if there are any.

    A device's time is nearly a sum: so much per operator, per FLOP, per byte. An `AdditiveModel` of
    costs and of latencies on the known devices is one more known device, to which the RLM learns
    the ratio. So a device may be predicted without any known one.

    Args:
        model, texts, values: see `RatioModel`.
        costs: (n, k) counts of the n networks, such as `counted_costs`.
        known: (n, d) positive latencies on the known devices; None if there are none.

    Attributes:
        additive: the additive model of all n networks.
        ratios: the ratios to the known devices, and last to the additive model.
    """

    VERSION = 1  # raise it whenever predictions change: a search may depend on them

    def __init__(
        self,
        model: Predictor,
        texts: Sequence[str],
        values: np.ndarray,
        costs: np.ndarray,
        known: np.ndarray | None = None,
    ) -> None:
        # 1. The additive model. It has seen the examples: theirs are predictions of models without
        #    them, so that the ratios are as uncertain as those of other networks.
        parts = with_constant(costs, known)  # (n, d + k + 1)
        self.additive = AdditiveModel(parts, values)
        left_out = np.empty(len(values))
        for i in range(len(values)):
            others = np.arange(len(values)) != i
            left_out[i] = AdditiveModel(parts[others], values[others]).predict(parts[[i]])[0]

        # 2. The ratio to all devices, this one among them.
        devices = left_out[:, None] if known is None else np.column_stack([known, left_out])
        self.ratios = RatioModel(model, texts, values, devices)
        self._additive_weight = min(0.5, ADDITIVE_WORTH / len(values))

    def sample(
        self,
        texts: Sequence[str],
        costs: np.ndarray,
        known: np.ndarray | None = None,
        samples: int = 64,
        seed: int = 0,
    ) -> np.ndarray:
        """Sample the latencies of q networks.

        Args:
            texts: of the q networks.
            costs: (q, k) their counts.
            known: (q, d) their latencies on the known devices.
            samples: number of samples per network.
            seed: of the samples.

        Returns:
            (q, samples) latencies in the unit of the measured ones, sorted for each network.
        """
        # 1. Samples by the ratios to all devices.                                     (q, samples)
        added = self.additive.predict(with_constant(costs, known))  # (q,)
        devices = added[:, None] if known is None else np.column_stack([known, added])
        drawn = self.ratios.sample(texts, devices, samples, seed)

        # 2. The median moves towards the additive model's, and the spread stays.
        shift = (added / np.median(drawn, axis=1)) ** self._additive_weight
        return drawn * shift[:, None]


def with_constant(costs: np.ndarray, known: np.ndarray | None = None) -> np.ndarray:
    """Parts of a sum for n networks: latencies (n, d) on known devices, costs (n, k), and a one."""
    constant = np.ones((len(costs), 1))
    return np.hstack([costs, constant] if known is None else [known, costs, constant])
