"""The bank of spaces for pretraining: one file per space, with its networks as lines and their
label-free targets.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from joblib import Parallel, delayed

from experiments.pretraining.generated_spaces import random_space
from experiments.pretraining.structural_targets import structural_targets
from predictors.rlm.tokens import Tokens, neighbour_sketch, tokenize_graph
from search_spaces import Architecture, SearchSpace, get_space
from search_spaces.common.files import replacing
from search_spaces.common.progress import Progress
from search_spaces.ir.graph import Graph

PROXIES = ("epe_nas", "grad_norm", "jacov", "l2_norm", "nwot", "snip", "synflow", "zen")
MEASURED = ("cpu_latency_ms", "digits_accuracy", "digits_accuracy_seed0", "digits_accuracy_seed1")
MAX_LINES = 1500
MIN_NETWORKS = 40
NETWORKS, MANY_NETWORKS = 260, 1200  # of a generated space; of every tenth one, for long contexts
PROXY_NETWORKS = 110  # of a generated space with proxies, which take 0.1 s per network
PROXY_FLOPS, PROXY_NODES, PROXY_PIXELS = 6e6, 160, 40  # upper bounds of spaces with proxies
PROXY_SEEDS = 1000  # first seed of generated spaces with proxies
CELL_NETWORKS, CELL_FILES = 600, 13  # NAS-Bench-201 has 7,360 different networks
CELLS = "nasbench201"
CHANNELS, CELLS_PER_STAGE, IMAGE = 8, 2, (3, 16, 16)  # the small skeleton, in which cells are tried
CELL_SKELETON = {
    "prune": True,
    "channels": CHANNELS,
    "cells": CELLS_PER_STAGE,
    "input_shape": IMAGE,
}
PUBLISHED: dict[str, dict[str, int]] = {
    "fbnet": {}, "ofa-mbv3": {}, "ofa-proxyless": {}, "ofa-resnet50": {}, "nasbench101": {},
    "darts": {"width": 32, "cells": 8}, "two-path": {}, "hiaml": {}, "inception": {},
}  # fmt: skip
PUBLISHED_NETWORKS = 300


class BankedSpace(NamedTuple):
    """n networks as lines, structural targets (n, T), and others (n, R).

    The others are proxies or measurements, NaN if missing.
    """

    name: str  # of its file
    lines: list[Tokens]
    targets: np.ndarray
    others: np.ndarray


def generated_files(generated: int, with_proxies: int) -> list[str]:
    """File names of generated spaces. They contain no published space."""
    proxies = [f"proxies-{seed}" for seed in range(PROXY_SEEDS, PROXY_SEEDS + with_proxies)]
    return [f"generated-{seed}" for seed in range(1, generated + 1)] + proxies


def published_files(quick: bool = False) -> tuple[list[str], list[str]]:
    """File names of published spaces, shipped populations, and NAS-Bench-201's cells with proxies.

    The files contain no numbers of a published benchmark.
    `digits201` is left out, since most experiments test on it.
    """
    from nas.benchmarks.populations import POPULATIONS

    if quick:
        return ["published-two-path"], []
    published = [f"published-{name}" for name in PUBLISHED]
    shipped = [name for name, own in POPULATIONS.items() if own.pretrains_rlm_base]
    cells = [f"cells-{number}" for number in range(CELL_FILES)]
    return [*published, *shipped], cells


def build_bank(folder: Path, names: Sequence[str], progress: Progress | None = None) -> list[Path]:
    """Write the missing files in parallel. Returns the paths of all.

    A space with too few networks has none.
    """
    missing = []
    for name in names:
        if not _path(folder, name).exists() and not _mark(folder, name).exists():
            missing.append(name)
    work = Parallel(n_jobs=-1, return_as="generator")(
        delayed(_build)(folder, name) for name in missing
    )
    for done, _ in enumerate(work, start=1):
        if progress:
            progress("bank of spaces", done, len(missing))
    return [path for name in names if (path := _path(folder, name)).exists()]


def load_space(path: Path) -> BankedSpace:
    """Read the file of one space."""
    with np.load(path) as data:
        arrays = {name: data[name] for name in data.files}
    lines_of = _slices(arrays["line_counts"])
    words_of = _slices(arrays["word_counts"])
    edges_of = _slices(arrays["edge_counts"])
    networks = []
    for i, own in enumerate(lines_of):
        lengths = arrays["lengths"][own].astype(np.int64)
        words = arrays["words"][words_of[i]].astype(np.int64)
        edges = arrays["edges"][:, edges_of[i]].astype(np.int64)
        tokens = Tokens(
            words=words,
            starts=np.cumsum(lengths) - lengths,
            numbers=arrays["numbers"][own],
            edges=edges,
            position=arrays["position"][own],
            totals=arrays["totals"][i],
            counts=arrays["counts"][i],
            neighbours=neighbour_sketch(words, lengths, edges),
            shared=np.arange(len(lengths)),
        )
        networks.append(tokens)
    targets = arrays["targets"].astype(float)
    others = arrays["others"].astype(float)
    return BankedSpace(path.stem, networks, targets, others)


def _slices(counts: np.ndarray) -> list[slice]:
    """The places of each network's entries, which lie one behind the other."""
    ends = np.cumsum(counts)
    starts = ends - counts
    return [slice(start, end) for start, end in zip(starts, ends, strict=True)]


# --- making files


def _path(folder: Path, name: str) -> Path:
    return folder / f"{name}.npz"


def _mark(folder: Path, name: str) -> Path:
    """Path of the empty file that marks a space with too few networks."""
    return folder / f"{name}.none"


def _build(folder: Path, name: str) -> None:
    import torch

    torch.set_num_threads(1)
    kind, _, rest = name.partition("-")
    if kind == "generated":
        seed = int(rest)
        networks = _generated(int(rest))
    elif kind == "proxies":
        seed = int(rest)
        networks = _generated_with_proxies(int(rest))
    elif kind == "cells":
        seed = int(rest) + 77
        networks = _cells(int(rest))
    elif kind == "published":
        seed = list(PUBLISHED).index(rest) + 50
        networks = _published(rest)
    else:
        seed = 9000
        networks = _population(name)
    if len(networks) < MIN_NETWORKS:
        with replacing(_mark(folder, name)) as file:
            file.write_bytes(b"")
        return
    lines = [of_network for of_network, _ in networks]
    others = np.array([of_network for _, of_network in networks])
    _write(_path(folder, name), lines, others, seed)


Networks = list[tuple[Tokens, list[float]]]  # lines, and proxies or measurements, NaN if missing


def _different(graphs: Iterable[Graph], most: int) -> Iterator[tuple[int, Tokens, Graph]]:
    """The first `most` different networks that are not too long.

    Yields the number of the graph, its lines, and the graph.
    """
    seen: set[bytes] = set()
    for number, graph in enumerate(graphs):
        lines = tokenize_graph(graph)
        key = _content(lines)
        if len(lines.starts) <= MAX_LINES and key not in seen:
            seen.add(key)
            yield number, lines, graph
        if len(seen) == most:
            return


def _content(lines: Tokens) -> bytes:
    """Key of a network: equal exactly for equal networks."""
    return b"|".join(part.tobytes() for part in (lines.words, lines.numbers, lines.edges))


def _sampled(space: SearchSpace, count: int, seed: int) -> Iterable[Graph]:
    rng = np.random.default_rng(seed)
    return (space.graph(space.sample(rng)) for _ in range(count))


def _generated(seed: int) -> Networks:
    count = NETWORKS if seed % 10 else MANY_NETWORKS
    graphs = _sampled(random_space(seed), count, seed)
    return [(lines, []) for _, lines, _ in _different(graphs, count)]


def _generated_with_proxies(seed: int) -> Networks:
    """Networks of a generated space with proxies; none if they are too large for proxies."""
    return [
        (lines, _proxies(graph)) for _, lines, graph in _different(_small(seed), PROXY_NETWORKS)
    ]


def _small(seed: int) -> Iterable[Graph]:
    """Random networks of a generated space of images; none if they are too large for proxies."""
    space = random_space(seed)
    if len(space.input_shape) != 3 or space.input_shape[1] > PROXY_PIXELS:
        return []
    probes = [space.sample(np.random.default_rng([seed, i])) for i in range(8)]
    flops = np.mean([space.flops(probe) for probe in probes])
    if (
        flops > PROXY_FLOPS
        or np.mean([len(space.graph(probe).nodes) for probe in probes]) > PROXY_NODES
    ):
        return []
    return _sampled(space, 2 * PROXY_NETWORKS, seed)


def proxy_graphs(seed: int, most: int = PROXY_NETWORKS) -> list[Graph]:
    """The first networks of the file of a generated space with proxies, in its order.

    There are none if it has no file.
    """
    graphs = [graph for _, _, graph in _different(_small(seed), most)]
    return graphs if len(graphs) >= MIN_NETWORKS else []


def cell_architectures(first: int, last: int) -> list[Architecture]:
    """NAS-Bench-201's cells in the order of their files, from number `first` to before `last`."""
    cells = _all_cells()
    return [cells[i][1] for i in np.random.default_rng(77).permutation(len(cells))[first:last]]


def cell_graphs(first: int, last: int) -> list[Graph]:
    """These cells in the small skeleton of the proxies."""
    small = get_space(CELLS, **CELL_SKELETON)
    return [
        small.graph(small.architecture(cell.as_dict())) for cell in cell_architectures(first, last)
    ]


def _published(name: str) -> Networks:
    space = get_space(name, **PUBLISHED[name])
    sampled = _sampled(space, PUBLISHED_NETWORKS, list(PUBLISHED).index(name) + 50)
    return [(lines, []) for _, lines, _ in _different(sampled, PUBLISHED_NETWORKS)]


def _cells(number: int) -> Networks:
    """A part of NAS-Bench-201's networks as published.

    Their proxies are those of the cells in a small skeleton.
    """
    small = get_space(CELLS, **CELL_SKELETON)
    cells = _all_cells()
    rows = np.random.default_rng(77).permutation(len(cells))[
        number * CELL_NETWORKS : (number + 1) * CELL_NETWORKS
    ]
    architectures = [small.architecture(cells[i][1].as_dict()) for i in rows]
    return [
        (cells[i][0], _proxies(small.graph(a))) for i, a in zip(rows, architectures, strict=True)
    ]


@lru_cache(maxsize=1)
def _all_cells() -> list[tuple[Tokens, Architecture]]:
    """All different networks of NAS-Bench-201, each with its first architecture."""
    space = get_space(CELLS)
    networks: dict[bytes, tuple[Tokens, Architecture]] = {}
    for architecture in space.enumerate():
        lines = tokenize_graph(space.graph(architecture))
        networks.setdefault(_content(lines), (lines, architecture))
    return list(networks.values())


def _population(name: str) -> Networks:
    """Networks of a population that this project trained and timed."""
    from nas.benchmarks.loading import load_benchmark

    table = load_benchmark(name)
    values = np.stack([table.values(metric) for metric in (*PROXIES, *MEASURED)], 1)
    graphs = (table.space.graph(architecture) for architecture in table.architectures)
    return [
        (lines, values[number].tolist()) for number, lines, _ in _different(graphs, len(values))
    ]


def _proxies(graph: Graph) -> list[float]:
    from nas.evaluation.proxies import compute_proxies

    scores = compute_proxies(graph, 0, PROXIES)
    return [scores.get(name, np.nan) for name in PROXIES]


def _write(path: Path, texts: Sequence[Tokens], others: np.ndarray, seed: int) -> None:
    lengths = [np.diff(np.append(text.starts, len(text.words))) for text in texts]
    arrays = {
        "line_counts": np.array([len(text.starts) for text in texts]),
        "word_counts": np.array([len(text.words) for text in texts]),
        "edge_counts": np.array([text.edges.shape[1] for text in texts]),
        "words": np.concatenate([text.words for text in texts]).astype(np.int16),
        "lengths": np.concatenate(lengths).astype(np.int16),
        "numbers": np.concatenate([text.numbers for text in texts]),
        "edges": np.concatenate([text.edges for text in texts], 1).astype(np.int32),
        "position": np.concatenate([text.position for text in texts]),
        "totals": np.stack([text.totals for text in texts]),
        "counts": np.stack([text.counts for text in texts]),
        "targets": structural_targets(texts, seed).astype(np.float32),
        "others": others.reshape(len(texts), -1),
    }
    with replacing(path) as file, file.open("wb") as stream:
        np.savez(stream, **arrays)  # type: ignore[arg-type]
