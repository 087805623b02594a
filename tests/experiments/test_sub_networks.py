"""The data set and the comparison of sub-networks."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from experiments.sub_networks import comparison, images
from nas.evaluation.datasets import load_dataset


def test_images_follow_from_the_seed_and_every_class_occurs(tmp_path: Path) -> None:
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        images.write_images(tmp_path / f"{name}.npz", train=320, seed=seed)
    a, b, c = (np.load(tmp_path / f"{name}.npz") for name in "abc")
    assert np.array_equal(a["x_train"], b["x_train"])
    assert not np.array_equal(a["x_train"], c["x_train"])
    data = load_dataset(tmp_path / "a.npz")
    assert (tuple(data.shape), data.outputs) == ((3, 32, 32), images.CLASSES)
    assert data.validation is not None
    assert [len(part) for part in (data.train, data.validation, data.test)] == [320, 80, 80]


@pytest.mark.slow
def test_the_quick_comparison_runs_to_its_end_and_resumes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    comparison.main(tmp_path, quick=True)
    printed = capsys.readouterr().out
    assert "τ(0 epochs, 1 epochs)" in printed
    assert "within 0.5 points of the model" in printed
    rows = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert all(0 <= score <= 100 for row in rows for score in row.get("curve", ()))
    comparison.main(tmp_path, quick=True)
    assert (tmp_path / "results.jsonl").read_text().count("\n") == len(rows)
