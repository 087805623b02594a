"""Claims about the corpus of the RLM's pretraining: all spaces, exact and label-free metrics, made once."""

from __future__ import annotations

import numpy as np
import pytest

from nas import corpus
from nas.benchmarks import load_benchmark
from nas.benchmarks.populations import POPULATIONS
from nas.corpus import EXACT, PROXIES, build_corpus, random_space
from search_spaces import list_spaces, read
from search_spaces.cost import graph_flops, graph_params
from search_spaces.program import expand


@pytest.fixture(autouse=True)
def _quick_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    skeleton = {"channels": 4, "cells": 1, "input_shape": (1, 8, 8), "prune": True}
    monkeypatch.setattr(corpus, "PROXY_SKELETON", skeleton)
    monkeypatch.setattr(corpus, "POPULATIONS", {"digits-fbnet": POPULATIONS["digits-fbnet"]})


def test_every_space_is_drawn_in_many_skeletons() -> None:
    rng = np.random.default_rng(0)
    drawn = [random_space(rng) for _ in range(600)]
    assert {space.name for space in drawn} == set(list_spaces())
    assert 0.5 < np.mean([space.name == "nasbench201" for space in drawn]) < 0.7
    assert len({repr(sorted(space.options.items())) for space in drawn}) > 100


def test_metrics_are_those_of_the_texts_and_need_no_training(tmp_path) -> None:  # type: ignore[no-untyped-def]
    texts, metrics = build_corpus(tmp_path, 24, seed=3)
    assert set(metrics) == {*EXACT, *PROXIES}
    for i in range(0, 24, 4):
        graph = expand(read(texts[i]))
        assert metrics["params"][i] == graph_params(graph)
        assert metrics["flops"][i] == graph_flops(graph)
    known = ~np.isnan(metrics["synflow"][:24])
    assert 0 < known.sum() < 24


def test_networks_of_populations_come_with_their_proxies(tmp_path) -> None:  # type: ignore[no-untyped-def]
    texts, metrics = build_corpus(tmp_path, 10)
    table = load_benchmark("digits-fbnet")
    assert texts[10:] == [table.space.to_text(arch) for arch in table.architectures]
    assert np.array_equal(metrics["nwot"][10:], table.values("nwot"), equal_nan=True)
    assert not {"digits_accuracy", "cpu_latency_ms"} & set(metrics)


def test_proxies_of_so_many_cells_are_computed(tmp_path) -> None:  # type: ignore[no-untyped-def]
    assert np.isnan(build_corpus(tmp_path, 20, cells=0).metrics["synflow"][:20]).all()
    synflow = build_corpus(tmp_path, 20, cells=3).metrics["synflow"][:20]
    assert len(np.unique(synflow[~np.isnan(synflow)])) == 3


def test_it_is_made_once(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    first = build_corpus(tmp_path, 10)
    monkeypatch.setattr(corpus, "Parallel", None)
    again = build_corpus(tmp_path, 10)
    assert again.texts == first.texts
    for name, values in first.metrics.items():
        assert np.array_equal(values, again.metrics[name], equal_nan=True), name
