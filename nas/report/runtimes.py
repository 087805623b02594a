"""One network in several runtimes: which one is the fastest, and whether they agree on the order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.stats import kendalltau

from nas.evaluation.runtimes import RUNTIMES

if TYPE_CHECKING:
    from nas.report.collecting import Network

SUFFIX = "_latency_ms"
_TITLES = {
    "cpu": "ONNX Runtime",
    "cpu_int8": "ONNX Runtime, int8",
    "cuda": "ONNX Runtime, CUDA",
    **{name: runtime.title for name, runtime in RUNTIMES.items()},
}


def compare_runtimes(networks: Sequence[Network]) -> list[dict[str, Any]]:
    """A row for each runtime in which the networks were measured, the fastest first.

    There are none for less than two runtimes. Only the n networks count that all of these runtimes
    have measured. A row has

        runtime   its name
        median    median latency in ms
        ratio     geometric mean of the latency, relative to the first row's
        fastest   on how many of the networks it is the fastest
        networks  n
        tau       Kendall's τ of its order of networks with the first row's; None for one network
    """
    latencies = [
        {
            name.removesuffix(SUFFIX): value
            for name, value in network.values.items()
            if name.endswith(SUFFIX) and name.removesuffix(SUFFIX) in _TITLES
        }
        for network in networks
    ]
    names = list(dict.fromkeys(name for row in latencies for name in row))
    complete = [[row[name] for name in names] for row in latencies if len(row) == len(names)]
    if len(names) < 2 or not complete:
        return []

    logs = np.log(complete)  # (n, runtimes)
    order = np.argsort(logs.mean(axis=0), kind="stable")
    first = logs[:, order[0]]
    fastest = np.bincount(logs.argmin(axis=1), minlength=len(names))
    rows = []
    for index in order.tolist():
        own = logs[:, index]
        tau = float(kendalltau(own, first).statistic) if len(own) > 1 else None
        rows.append(
            {
                "runtime": _TITLES[names[index]],
                "median": float(np.exp(np.median(own))),
                "ratio": float(np.exp((own - first).mean())),
                "fastest": int(fastest[index]),
                "networks": len(own),
                "tau": tau,
            }
        )
    return rows
