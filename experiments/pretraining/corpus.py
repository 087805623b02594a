"""The pretraining corpus of `gnn-label-free`: architectures of all spaces with metrics that need no
training.

The corpus contains all networks of `nasbench201` as published, many of its cells in other
skeletons, and architectures of all other spaces. Cells of `nasbench201` have zero-cost proxies,
computed in one small skeleton. Networks of the shipped populations have their own proxies and
latencies, measured by this project. Counts are exact. The corpus contains no trained accuracy, no
latency of a benchmark's device, and no measurement of digits201.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from joblib import Parallel, delayed

from experiments.tables import at_rows
from nas.benchmarks.loading import load_benchmark
from nas.benchmarks.populations import POPULATIONS, get_population
from nas.benchmarks.text_cache import text_version
from nas.evaluation.journal import Journal
from search_spaces import Architecture, SearchSpace, get_space
from search_spaces.common.files import replacing
from search_spaces.common.progress import Progress
from search_spaces.ir.costs import (
    graph_activations,
    graph_depth,
    graph_flops,
    graph_params,
    graph_peak_activations,
)
from search_spaces.ir.text import compact, write

Options = dict[str, Any]
CELLS = "nasbench201"
CELLS_SHARE = 0.5
PROXY_SKELETON: Options = {"prune": True, "channels": 8, "cells": 2, "input_shape": (3, 16, 16)}
PROXIES = ("epe_nas", "grad_norm", "jacov", "l2_norm", "nwot", "snip", "synflow", "zen")
CHUNK = 100
EXACT = {
    "params": graph_params,
    "flops": graph_flops,
    "activations": graph_activations,
    "peak_activations": graph_peak_activations,
    "depth": graph_depth,
    "nodes": lambda graph: len(graph.nodes),
}


class Corpus(NamedTuple):
    """n texts and their metrics, each (n,), NaN where unknown."""

    texts: list[str]
    metrics: dict[str, np.ndarray]


# --- skeletons


def _one(rng: np.random.Generator, options: Sequence[Any]) -> Any:
    return options[int(rng.integers(len(options)))]


def _images(rng: np.random.Generator) -> Options:
    size = _one(rng, (8, 16, 24, 32))
    return {"input_shape": (_one(rng, (1, 3)), size, size), "num_classes": _one(rng, (10, 20, 100))}


def _nasbench201(rng: np.random.Generator) -> Options:
    return {
        "channels": _one(rng, (4, 8, 12, 16, 24, 32)),
        "cells": _one(rng, range(1, 6)),
        "prune": _one(rng, (0, 1)),
    }


def _nds(rng: np.random.Generator) -> Options:
    return {"width": _one(rng, (4, 8, 16, 24, 32)), "cells": _one(rng, (3, 4, 5, 6, 8))}


def _family(rng: np.random.Generator) -> Options:
    return {"channels": _one(rng, (8, 16, 32))}


SKELETONS: dict[str, Callable[[np.random.Generator], Options]] = {
    CELLS: _nasbench201,
    **dict.fromkeys(("nasnet", "amoeba", "pnas", "enas", "darts"), _nds),
    "nasbench101": lambda rng: {
        "channels": _one(rng, (8, 16, 32, 64, 128)),
        "modules": _one(rng, (1, 2, 3)),
    },
    "fbnet": lambda rng: {"width": _one(rng, (0.25, 0.5, 1.0))},
    **dict.fromkeys(("two-path", "hiaml", "inception"), _family),
    "tiny-resnet": lambda rng: {},
}
"""Random options of each space, besides input shape and classes."""
FIXED = ("ofa-mbv3", "ofa-proxyless", "ofa-resnet50")
"""Spaces that choose their resolution themselves."""


@lru_cache
def _population_space(name: str) -> SearchSpace:
    populations = [p for p in POPULATIONS.values() if p.space == name]
    return populations[0].open_space() if populations else get_space(name)


def random_space(rng: np.random.Generator) -> SearchSpace:
    """A random space in one of three skeletons.

    These are its published one, that of the population trained on digits, and a random one.
    """
    others = [name for name in (*SKELETONS, *FIXED) if name != CELLS]
    name = CELLS if rng.random() < CELLS_SHARE else _one(rng, others)
    kind = rng.integers(3)
    if kind == 0 or name in FIXED:
        return get_space(name)
    if kind == 1:
        return _population_space(name)
    return get_space(name, **SKELETONS[name](rng), **_images(rng))


# --- corpus


def build_corpus(
    folder: Path,
    size: int,
    *,
    cells: int | None = None,
    each: int | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Corpus:
    """Build the corpus of different networks and store it in `folder`, or read it if it is there.

    Args:
        folder: folder for the corpus and the proxies.
        size: random architectures of all spaces, besides those of `nasbench201` and of the
            populations.
        cells: networks of `nasbench201`, and different cells that get proxies (0.1 s each); None
            for all.
        each: networks of each population; None for all.
        seed: of the random architectures.
        progress: called with a label, the number done and the total.
    """
    path = folder / f"corpus-{size}-{seed}.json.gz"
    about = {
        "size": size,
        "cells": cells,
        "each": each,
        "seed": seed,
        "texts": text_version(get_space(CELLS)),
    }
    if (kept := _read(path, about)) is not None:
        return kept

    # 1. The networks: published ones, and random ones of random spaces.
    rng = np.random.default_rng(seed)
    published = get_space(CELLS)
    drawn: list[tuple[SearchSpace, Architecture]] = []
    for arch in islice(published.enumerate(), cells):
        drawn.append((published, arch))
    for _ in range(size):
        space = random_space(rng)
        drawn.append((space, space.sample(rng)))

    # 2. Their proxies, and further networks that were measured.
    of_cells = [arch for space, arch in drawn if space.name == CELLS]
    cell_scores = cell_proxies(of_cells, folder, cells, progress)
    measured = [cell_scores[arch] if space.name == CELLS else {} for space, arch in drawn]
    for space, arch, known in _measured(each):
        drawn.append((space, arch))
        measured.append(known)

    # 3. All numbers of each text.
    rows: dict[str, dict[str, float]] = {}
    counted = _parallel(CHUNK)(delayed(_counted)(space, arch) for space, arch in drawn)
    for done, ((text, exact), known) in enumerate(zip(counted, measured, strict=True), start=1):
        rows[text] = {**rows.get(text, {}), **exact, **known}
        if progress:
            progress("corpus", done, len(drawn))

    # 4. A column per number, NaN where a text has none.
    further = sorted(set().union(*rows.values()).difference(EXACT))
    metrics = {}
    for name in [*EXACT, *further]:
        metrics[name] = np.array([row.get(name, np.nan) for row in rows.values()])
    corpus = Corpus(list(rows), metrics)
    _write(path, about, corpus)
    return corpus


def emphasized(corpus: Corpus, cells: int | None = None) -> Corpus:
    """The corpus with the published networks of `nasbench201` twice.

    This way they are a half of it, not a third.

    cells: the corpus's own.
    """
    published = published_texts(cells)
    repeated = [i for i, text in enumerate(corpus.texts) if text in published]
    rows = np.array([*range(len(corpus.texts)), *repeated])
    return Corpus([corpus.texts[i] for i in rows], at_rows(corpus.metrics, rows))


@lru_cache
def published_texts(cells: int | None = None) -> frozenset[str]:
    """The different texts of `nasbench201` as published.

    cells: how many architectures are read; None for all, which have 7,360 texts.
    """
    space = get_space(CELLS)
    architectures = islice(space.enumerate(), cells)
    return frozenset(_parallel(CHUNK)(delayed(space.to_text)(arch) for arch in architectures))


def _parallel(batch: int) -> Parallel:
    return Parallel(n_jobs=-1, batch_size=batch, return_as="generator")


def _counted(space: SearchSpace, arch: Architecture) -> tuple[str, dict[str, float]]:
    graph = space.graph(arch)
    return write(compact(graph)), {name: float(count(graph)) for name, count in EXACT.items()}


def _read(path: Path, about: Options) -> Corpus | None:
    """Read the corpus; None if the file is missing, damaged or made with other settings."""
    try:
        kept = json.loads(gzip.decompress(path.read_bytes()))
    except (OSError, EOFError, ValueError):
        return None
    if kept["about"] != about:
        return None
    metrics = {name: np.array(values, float) for name, values in kept["metrics"].items()}
    return Corpus(kept["texts"], metrics)


def _write(path: Path, about: Options, corpus: Corpus) -> None:
    metrics = {}
    for name, values in corpus.metrics.items():
        metrics[name] = [None if np.isnan(value) else value for value in values.tolist()]
    data = json.dumps({"about": about, "texts": corpus.texts, "metrics": metrics})
    with replacing(path) as file:
        file.write_bytes(gzip.compress(data.encode(), compresslevel=6, mtime=0))


# --- proxies


def cell_proxies(
    archs: Sequence[Architecture],
    folder: Path,
    most: int | None = None,
    progress: Progress | None = None,
) -> dict[Architecture, dict[str, float]]:
    """Compute `PROXIES` of nasbench201's cells in `PROXY_SKELETON`, once per distinct network.

    Args:
        archs: the cells.
        folder: stores proxies that are finished.
        most: limit on the number of networks with proxies; the others get none.
        progress: called with a label, the number done and the total.

    Returns:
        By architecture, the proxies that are defined.
    """
    skeleton = zlib.crc32(repr((PROXY_SKELETON, PROXIES)).encode())
    journal = Journal(folder / f"proxies-{skeleton:08x}.jsonl")
    short = get_population("digits201").open_space()
    names = {arch: short.to_text(arch) for arch in dict.fromkeys(archs)}
    first = {text: arch for arch, text in reversed(names.items())}
    missing = [text for text in dict.fromkeys(names.values()) if text not in journal.known]
    if most is not None:
        missing = missing[: max(0, most - len(journal.known))]
    results = _parallel(8)(delayed(_proxies)(PROXY_SKELETON, first[text]) for text in missing)
    for done, (text, values) in enumerate(zip(missing, results, strict=True), start=1):
        journal.append(text, values)
        if progress:
            progress("proxies of cells", done, len(missing))
    return {arch: journal.known.get(text, {}) for arch, text in names.items()}


def _proxies(skeleton: Options, arch: Architecture) -> dict[str, float]:
    import torch

    from nas.evaluation.proxies import compute_proxies

    torch.set_num_threads(1)
    return _defined(compute_proxies(get_space(CELLS, **skeleton).graph(arch), 0, PROXIES))


def _defined(scores: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in scores.items() if np.isfinite(value)}


def _measured(each: int | None) -> Iterator[tuple[SearchSpace, Architecture, dict[str, float]]]:
    """The first `each` networks of each population with proxies, with proxies and latency.

    each: None for all networks.
    """
    for population in POPULATIONS.values():
        if population.proxies:
            table = load_benchmark(population.name)
            space = population.open_space()
            names = (*PROXIES, "cpu_latency_ms")
            values = np.stack([table.values(name) for name in names], 1)
            for arch, row in islice(zip(table.architectures, values.tolist(), strict=True), each):
                yield space, arch, _defined(dict(zip(names, row, strict=True)))
