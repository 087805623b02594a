"""The label-free corpus that the RLM is pretrained on: generated architectures with metrics that need no training.

Cells of `nasbench201` in many skeletons, and residual networks. Counts are exact for each network; zero-cost
proxies are computed on the cell in its smallest skeleton. No trained accuracy and no device latency is in it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from nas.benchmarks.journal import Journal
from nas.benchmarks.populations import get_population
from search_spaces import Architecture, SearchSpace, get_space
from search_spaces.cost import graph_activations, graph_depth, graph_flops, graph_params
from search_spaces.program import compact
from search_spaces.text import write

Progress = Callable[[str, int, int], None]
PROXY_SEEDS = (0, 1)
EXACT = {
    "params": graph_params,
    "flops": graph_flops,
    "activations": graph_activations,
    "depth": graph_depth,
    "nodes": lambda graph: len(graph.nodes),
}


def random_skeleton(rng: np.random.Generator) -> SearchSpace:
    """`nasbench201` in its official skeleton, the digits one, or a random one."""
    kind = rng.integers(3)
    if kind == 0:
        return get_space("nasbench201")
    if kind == 1:
        return get_population("digits201").open_space()
    channels, size = int(rng.choice([4, 8, 12, 16, 24, 32])), int(rng.choice([8, 16, 24, 32]))
    return get_space(
        "nasbench201",
        channels=channels,
        cells=int(rng.integers(1, 6)),
        input_shape=(int(rng.choice([1, 3])), size, size),
        num_classes=int(rng.choice([10, 20, 100])),
        prune=bool(rng.integers(2)),
    )


def build_corpus(
    folder: Path, size: int, *, seed: int = 0, progress: Progress | None = None
) -> tuple[list[str], dict[str, np.ndarray]]:
    """`size` texts with exact counts and proxies (NaN where unknown); proxies are kept in `folder`."""
    rng = np.random.default_rng(seed)
    small, residual = get_population("digits201").open_space(), get_space("tiny-resnet")
    texts: list[str] = []
    rows: list[dict[str, float]] = []
    scores = _Proxies(folder / "proxies.jsonl", small)
    for i in range(size):
        space = residual if rng.random() < 0.1 else random_skeleton(rng)
        arch = space.sample(rng)
        graph = space.graph(arch)
        exact = {name: float(count(graph)) for name, count in EXACT.items()}
        texts.append(write(compact(graph)))
        rows.append(exact if space is residual else {**exact, **scores.of(arch)})
        if progress:
            progress("corpus", i + 1, size)
    names = [*EXACT, *sorted({name for row in rows for name in row if name not in EXACT})]
    return texts, {name: np.array([row.get(name, np.nan) for row in rows]) for name in names}


class _Proxies:
    """Proxies of cells, computed once per distinct network and kept in a journal."""

    def __init__(self, path: Path, space: SearchSpace) -> None:
        self.journal, self.space = Journal(path), space

    def of(self, arch: Architecture) -> dict[str, float]:
        from nas.proxies import CHEAP, compute_proxies

        graph = self.space.graph(arch)
        text = write(compact(graph))
        if text not in self.journal.known:
            values = [compute_proxies(graph, seed, CHEAP) for seed in PROXY_SEEDS]
            mean = {name: float(np.mean([v[name] for v in values])) for name in CHEAP}
            self.journal.append(text, {name: value for name, value in mean.items() if np.isfinite(value)})
        return self.journal.known[text]
