"""Claims about the plain decoding that ours is compared with, and about the texts of the growth."""

from __future__ import annotations

import numpy as np

from experiments.timing import decoding


def test_plain_decoding_gives_valid_numbers_for_every_sample_and_metric(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(decoding, "METRICS", ("x_accuracy", "y_latency_ms"))
    model, texts = decoding._model(100, 0, decoding.SMALL)
    plain = decoding._plain(model, texts[:2], padded=256)
    assert plain.shape == (2, decoding.SAMPLES, 2)
    assert np.isfinite(plain).all()


def test_variants_are_different_texts() -> None:
    assert len(set(decoding._variants(50))) == 50
