"""Exact costs of the architectures in a table."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nas.benchmarks.table import Benchmark
from search_spaces.graph.costs import graph_flops, graph_params

COSTS = {"params": graph_params, "flops": graph_flops}


def exact_costs(benchmark: Benchmark, names: Sequence[str]) -> dict[str, np.ndarray]:
    """Columns (n,) that need no measurement: from the table if it has them, else computed from the networks.

    Args:
        benchmark: a table of n architectures.
        names: columns of the table, `"params"` or `"flops"`.

    Returns:
        One column (n,) per name.
    """
    known = {name: benchmark.values(name) for name in names if name in benchmark.metrics}
    missing = [name for name in names if name not in known]
    if missing:
        graphs = [benchmark.space.graph(arch) for arch in benchmark.architectures]
        known |= {name: np.array([float(COSTS[name](graph)) for graph in graphs]) for name in missing}
    return known
