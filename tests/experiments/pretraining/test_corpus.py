"""Claims about the pretraining corpus: it covers all spaces, its metrics are exact or label-free,
it is built once.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from experiments.pretraining import corpus
from experiments.pretraining.corpus import (
    EXACT,
    PROXIES,
    Corpus,
    build_corpus,
    cell_proxies,
    random_space,
)
from nas.benchmarks import load_benchmark
from nas.benchmarks.populations import POPULATIONS
from search_spaces import get_space, list_spaces
from search_spaces.ir.costs import graph_flops, graph_params
from search_spaces.ir.text import expand, read


@pytest.fixture(scope="module", autouse=True)
def _quick() -> Iterator[None]:
    """Proxies of tiny networks, and one population."""
    with pytest.MonkeyPatch.context() as patch:
        skeleton = {"channels": 4, "cells": 1, "input_shape": (1, 8, 8), "prune": True}
        patch.setattr(corpus, "PROXY_SKELETON", skeleton)
        patch.setattr(corpus, "POPULATIONS", {"digits-fbnet": POPULATIONS["digits-fbnet"]})
        yield


@pytest.fixture(scope="module")
def folder(_quick: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("corpus")


@pytest.fixture(scope="module")
def made(folder: Path) -> Corpus:
    return build_corpus(folder, 24, cells=30, seed=3)


def test_every_space_is_drawn_in_many_skeletons() -> None:
    rng = np.random.default_rng(0)
    drawn = [random_space(rng) for _ in range(600)]
    assert {space.name for space in drawn} == set(list_spaces())
    assert 0.4 < np.mean([space.name == "nasbench201" for space in drawn]) < 0.6
    assert len({repr(sorted(space.options.items())) for space in drawn}) > 100


@pytest.mark.slow
def test_metrics_are_those_of_the_texts_and_need_no_training(made: Corpus) -> None:
    texts, metrics = made
    assert set(metrics) == {*EXACT, *PROXIES, "cpu_latency_ms"}
    assert len(set(texts)) == len(texts) > 500
    for i in range(0, 60, 4):
        graph = expand(read(texts[i]))
        assert metrics["params"][i] == graph_params(graph)
        assert metrics["flops"][i] == graph_flops(graph)
    known = ~np.isnan(metrics["synflow"])
    assert 0 < known.sum() < len(texts)


@pytest.mark.slow
def test_networks_of_populations_have_their_proxies_and_latency(made: Corpus) -> None:
    texts, metrics = made
    table = load_benchmark("digits-fbnet")
    rows = [texts.index(text) for text in table.load_texts()]
    for name in ("nwot", "cpu_latency_ms"):
        assert np.array_equal(metrics[name][rows], table.values(name), equal_nan=True)


def test_the_corpus_contains_no_measurement_of_digits201() -> None:
    assert not POPULATIONS["digits201"].proxies


@pytest.mark.slow
def test_at_most_the_requested_number_of_cells_get_proxies(tmp_path: Path) -> None:
    rng, space = np.random.default_rng(0), get_space("nasbench201")
    archs = [space.sample(rng) for _ in range(20)]
    assert not any(cell_proxies(archs, tmp_path, 0).values())
    snips = {scores["snip"] for scores in cell_proxies(archs, tmp_path, 3).values() if scores}
    assert 1 <= len(snips) <= 3


@pytest.mark.slow
def test_a_stored_corpus_is_not_built_again(
    folder: Path, made: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corpus, "Parallel", None)
    again = build_corpus(folder, 24, cells=30, seed=3)
    assert again.texts == made.texts
    for name, values in made.metrics.items():
        assert np.array_equal(values, again.metrics[name], equal_nan=True), name
