"""Proxies of cells as columns of a table: complete, those of equal networks equal, and the lowest where undefined."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from experiments.pretraining import corpus
from experiments.pretraining.cell_proxies import main
from experiments.pretraining.corpus import PROXIES
from nas.benchmarks import load_benchmark
from search_spaces import InputError

EQUAL = ["|nor_conv_1x1~0|+|none~0|nor_conv_3x3~1|+|skip_connect~0|none~1|none~2|",
         "|nor_conv_1x1~0|+|none~0|none~1|+|skip_connect~0|none~1|none~2|"]  # fmt: skip
OTHER = "|nor_conv_3x3~0|+|none~0|nor_conv_3x3~1|+|skip_connect~0|none~1|avg_pool_3x3~2|"
DEAD = "|none~0|+|none~0|none~1|+|none~0|none~1|none~2|"


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus, "PROXY_SKELETON", {"channels": 4, "cells": 1, "input_shape": (1, 8, 8), "prune": True})


@pytest.mark.slow
def test_every_row_has_the_proxies_of_its_network_and_keeps_its_metrics(tmp_path: Path) -> None:
    source = tmp_path / "mine.csv"
    rows = [f"{arch},{accuracy}" for arch, accuracy in zip([*EQUAL, OTHER, DEAD], (1.5, 2.5, "", 4.5), strict=True)]
    source.write_text("\n".join(["arch,my_accuracy", *rows]))
    main(str(source), tmp_path / "out")
    table = load_benchmark(tmp_path / "out" / "mine-proxies.csv")
    assert set(table.metrics) == {"my_accuracy", *PROXIES}
    assert np.array_equal(table.values("my_accuracy"), [1.5, 2.5, np.nan, 4.5], equal_nan=True)
    for proxy in PROXIES:
        first, second, other, dead = table.values(proxy)
        assert first == second != other, proxy
        assert dead == min(first, other), f"{proxy} is undefined where nothing connects input and output: the lowest"


def test_a_table_of_another_space_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="digits-fbnet is a table of fbnet"):
        main("digits-fbnet", tmp_path)
