"""A forest on proxies alone: it learns from the columns of a table and from nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from experiments import proxy_forest
from experiments.pretraining.corpus import PROXIES


def test_a_forest_finds_what_a_proxy_tells(tmp_path: Path, monkeypatch, capsys) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(proxy_forest, "TREES", 20)
    rng, names = np.random.default_rng(0), ("cifar10_params", "cifar10_flops", *PROXIES)
    proxies = rng.random((800, len(names)))

    class Table:
        def values(self, metric: str) -> np.ndarray:
            return proxies[:, names.index("synflow" if metric not in names else metric)]

        def __len__(self) -> int:
            return len(proxies)

    monkeypatch.setattr(proxy_forest, "load_benchmark", lambda _: Table())
    proxy_forest.main(Path("table.csv"), tmp_path, seeds=1, first_seed=0, as_json=True)
    rows = json.loads(capsys.readouterr().out)
    assert [row["trained on"] for row in rows] == [78, 156, 469, 781]
    assert rows[0]["tau"]["mean"] > 0.5
    assert rows[2]["tau"]["mean"] > 0.9
