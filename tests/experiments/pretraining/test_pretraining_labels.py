"""Bases with more and more labels: each is made once and used by its rows."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from experiments.pretraining import pretraining_labels
from experiments.pretraining.corpus import PROXIES, Corpus
from experiments.pretraining.pretraining_labels import LABELS, POPULATIONS, PROXIED
from nas.benchmarks import load_benchmark
from search_spaces import InputError


@pytest.mark.slow
@pytest.mark.skipif("NAS_DATA" not in os.environ, reason="NAS_DATA names no folder with the table")
def test_bases_learn_their_labels_and_are_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:  # type: ignore[no-untyped-def]
    texts = load_benchmark("nasbench201").load_texts()[:40]
    labels = [label for names in LABELS.values() for label in names]
    columns = {label: np.random.default_rng(0).random(40) for label in labels}
    monkeypatch.setattr(pretraining_labels, "build_corpus", lambda *a, **k: Corpus(texts, columns))
    monkeypatch.setattr(pretraining_labels, "published_texts", lambda cells: frozenset(texts))
    monkeypatch.setattr(
        pretraining_labels, "trained", lambda c: Corpus(c.texts, {"digits_accuracy": columns["params"]})
    )
    monkeypatch.setattr(pretraining_labels, "TEST", 50)
    monkeypatch.setattr(pretraining_labels, "N", (20,))
    monkeypatch.setattr(pretraining_labels, "SIZES", {"width": 32, "heads": 2, "encoder_layers": 1})
    names = f"parameters and FLOPs,{POPULATIONS}"

    def run() -> list[dict]:
        pretraining_labels.main(4, tmp_path, None, names, seeds=1, jobs=1, as_json=True)
        return json.loads(capsys.readouterr().out)

    rows = run()
    assert [row["labels"] for row in rows] == names.split(",")
    made = {row["labels"]: json.loads((Path(row["base"]) / "config.json").read_text()) for row in rows}
    assert set(made["parameters and FLOPs"]["scales"]) == {"params", "flops"}
    assert {*PROXIES, "digits_accuracy"} <= set(made[POPULATIONS]["scales"])
    assert len(list(tmp_path.glob(f"{PROXIED.replace(' ', '-')}-4-*"))) == 2, "encoder and decoder"
    assert run() == rows


def test_an_unknown_set_of_labels_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="parameters and FLOPs"):
        pretraining_labels.main(4, tmp_path, None, "parameters and FLOP", 1, 1, False)
