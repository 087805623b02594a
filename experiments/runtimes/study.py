"""A new runtime from few measurements: the RLM and its rivals on a table of measured networks.

Some random networks are measured in the new runtime; all networks have been measured in the others.
Judged are the predictions for all further networks, in per cent and in ranks.

    rlm              reads the networks' texts, and learns ratios to the known runtimes
                     (`nas.evaluation.new_device`); the measured networks are its only examples
    rlm-costs        the same with counted costs, of which an additive model is one more runtime
    rlm-costs-alone  the same without other runtimes: what `nas device add` predicts
    rlm-alone        reads texts and exact costs as covariates; knows no other runtime
    rlm-texts        reads texts only
    additive         sum of latencies in the known runtimes and of counted costs, with weights that
                     are not negative; a part of rlm-costs
    additive-alone   the same without other runtimes; a part of rlm-costs-alone
    regression       ridge regression on logarithms of latencies in the known runtimes
    gp               Gaussian process of BoTorch on the same and on logarithms of the costs
    forest           random forest on the same inputs as gp
    log-linear       linear regression on the logarithm of the FLOPs
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from experiments.runtimes.measuring import Table, read_table
from experiments.tables import Scores, at_rows, spearman
from nas.evaluation.new_device import (
    AdditiveModel,
    NewDeviceModel,
    counted_costs,
    relative_samples,
    with_constant,
)

METHODS = (
    "rlm",
    "rlm-costs",
    "rlm-costs-alone",
    "rlm-alone",
    "rlm-texts",
    "additive",
    "additive-alone",
    "regression",
    "gp",
    "forest",
    "log-linear",
)
COUNTS = (5, 10, 20, 40)  # measurements in the new runtime
TARGETS = (0.05, 0.1)  # median errors, for the number of measurements that reach them
SAMPLES = 32
TREES = 300
PENALTIES = np.logspace(-3, 3, 13)


class Split(NamedTuple):
    """One new runtime, n networks.

    Attributes:
        texts: of the networks.
        costs: (n, 2) logarithms of parameters and FLOPs.
        counts: (n, 4) parameters, FLOPs, elements of all operators' outputs, operators.
        known: (n, d) logarithms of latencies in the other runtimes.
        target: (n,) those in the new one.
        measured: rows of the networks that were measured in the new runtime.
        others: rows of all others.
        seed: of the methods.
    """

    texts: list[str]
    costs: np.ndarray
    counts: np.ndarray
    known: np.ndarray
    target: np.ndarray
    measured: np.ndarray
    others: np.ndarray
    seed: int

    @property
    def measured_texts(self) -> list[str]:
        """Texts of the measured networks."""
        return [self.texts[i] for i in self.measured]

    @property
    def measured_ms(self) -> np.ndarray:
        """Their latencies in the new runtime."""
        return np.exp(self.target[self.measured])

    @property
    def other_texts(self) -> list[str]:
        """Texts of the other networks."""
        return [self.texts[i] for i in self.others]


def score(
    method: str, runtime: str, measured: int, folder: str, runtimes: str, seed: int
) -> Scores:
    """Spearman's correlation, median error, and share of errors below 10 %.

    They are those on all networks that were not measured.
    """
    split = _split(method, runtime, measured, folder, runtimes, seed)
    predicted = _PREDICT[method](split)
    true = split.target[split.others]
    errors = np.abs(np.exp(predicted - true) - 1)
    return {
        "rho": spearman(predicted, true),
        "error": 100 * float(np.median(errors)),
        "within10": float((errors <= 0.1).mean()),
        "networks": float(len(true)),
    }


@cache
def _table(folder: str, runtimes: str) -> tuple[Table, np.ndarray]:
    """A table, and the counted costs (n, 4) of its networks."""
    table = read_table(Path(folder), runtimes.split(","))
    texts = [network.space.to_text(network.architecture) for network in table.networks]
    return table, counted_costs(texts)


def _split(
    method: str, runtime: str, measured: int, folder: str, runtimes: str, seed: int
) -> Split:
    names = runtimes.split(",")
    table, counts = _table(folder, runtimes)
    logs = np.log(table.latency)
    new = names.index(runtime)
    order = np.random.default_rng(seed).permutation(len(table.networks))
    reads_texts = method.startswith("rlm")
    texts = [one.space.to_text(one.architecture) for one in table.networks] if reads_texts else []
    return Split(
        texts=texts,
        costs=np.log(counts[:, :2]),
        counts=counts,
        known=np.delete(logs, new, axis=1),
        target=logs[:, new],
        measured=order[:measured],
        others=order[measured:],
        seed=seed,
    )


# --- methods: logarithms of the latencies of `others`


def _rlm(split: Split) -> np.ndarray:
    import predictors

    known = np.exp(split.known)
    drawn = relative_samples(
        predictors.create("rlm", seed=split.seed),
        split.measured_texts,
        split.measured_ms,
        known[split.measured],
        split.other_texts,
        known[split.others],
        SAMPLES,
        split.seed,
    )  # (others, SAMPLES)
    return np.log(np.median(drawn, axis=1))


def _rlm_costs(split: Split) -> np.ndarray:
    return _new_device(split, np.exp(split.known))


def _rlm_costs_alone(split: Split) -> np.ndarray:
    return _new_device(split, None)


def _new_device(split: Split, known: np.ndarray | None) -> np.ndarray:
    """With counted costs and latencies (n, d) in known runtimes, if there are any."""
    import predictors

    model = NewDeviceModel(
        predictors.create("rlm", seed=split.seed),
        split.measured_texts,
        split.measured_ms,
        split.counts[split.measured],
        None if known is None else known[split.measured],
    )
    drawn = model.sample(
        split.other_texts,
        split.counts[split.others],
        None if known is None else known[split.others],
        SAMPLES,
        split.seed,
    )  # (others, SAMPLES)
    return np.log(np.median(drawn, axis=1))


def _additive(split: Split) -> np.ndarray:
    return _sum(split, with_constant(split.counts, np.exp(split.known)))


def _additive_alone(split: Split) -> np.ndarray:
    return _sum(split, with_constant(split.counts))


def _sum(split: Split, parts: np.ndarray) -> np.ndarray:
    model = AdditiveModel(parts[split.measured], split.measured_ms)
    return np.log(model.predict(parts[split.others]))


def _rlm_texts(split: Split) -> np.ndarray:
    import predictors

    metric = "new_latency_ms"
    model = predictors.create("rlm", seed=split.seed)
    model.fit(split.measured_texts, {metric: split.measured_ms})
    predicted = model.predict(split.other_texts, [metric], samples=SAMPLES, seed=split.seed)
    return np.log(predicted.median[:, 0])


def _rlm_alone(split: Split) -> np.ndarray:
    import predictors

    costs = dict(zip(("params", "flops"), np.exp(split.costs).T, strict=True))
    metric = "new_latency_ms"
    columns = {**at_rows(costs, split.measured), metric: split.measured_ms}
    model = predictors.create("rlm", seed=split.seed).fit(split.measured_texts, columns)
    predicted = model.predict(
        split.other_texts,
        [metric],
        given=at_rows(costs, split.others),
        samples=SAMPLES,
        seed=split.seed,
    )
    return np.log(predicted.median[:, 0])


def _regression(split: Split) -> np.ndarray:
    from sklearn.linear_model import RidgeCV

    inputs = _scaled(split.known, split.measured)
    targets = split.target[split.measured]
    fitted = RidgeCV(PENALTIES).fit(inputs[split.measured], targets)
    return fitted.predict(inputs[split.others])


def _gp(split: Split) -> np.ndarray:
    import torch
    from botorch.fit import fit_gpytorch_mll
    from botorch.models import SingleTaskGP
    from gpytorch.mlls import ExactMarginalLogLikelihood

    torch.manual_seed(split.seed)
    plain = np.hstack([split.known, split.costs])
    low = plain.min(axis=0)
    high = plain.max(axis=0)
    inputs = torch.from_numpy((plain - low) / np.maximum(high - low, 1e-9))  # in the unit cube
    targets = torch.from_numpy(split.target[split.measured])[:, None]
    model = SingleTaskGP(inputs[split.measured], targets)
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    with torch.no_grad():
        return model.posterior(inputs[split.others]).mean[:, 0].numpy()


def _forest(split: Split) -> np.ndarray:
    from sklearn.ensemble import RandomForestRegressor

    inputs = np.hstack([split.known, split.costs])
    forest = RandomForestRegressor(TREES, random_state=split.seed)
    fitted = forest.fit(inputs[split.measured], split.target[split.measured])
    return fitted.predict(inputs[split.others])


def _log_linear(split: Split) -> np.ndarray:
    flops = split.costs[:, 1]
    slope, offset = np.polyfit(flops[split.measured], split.target[split.measured], 1)
    return slope * flops[split.others] + offset


def _scaled(inputs: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Inputs (n, k) with mean 0 and variance 1 over some rows."""
    spread = np.maximum(inputs[rows].std(axis=0), 1e-9)
    return (inputs - inputs[rows].mean(axis=0)) / spread


_PREDICT = {
    "rlm": _rlm,
    "rlm-costs": _rlm_costs,
    "rlm-costs-alone": _rlm_costs_alone,
    "rlm-alone": _rlm_alone,
    "rlm-texts": _rlm_texts,
    "additive": _additive,
    "additive-alone": _additive_alone,
    "regression": _regression,
    "gp": _gp,
    "forest": _forest,
    "log-linear": _log_linear,
}
