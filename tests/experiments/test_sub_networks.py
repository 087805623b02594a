"""The data set and the comparison of sub-networks."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from experiments import images
from experiments.sub_networks.__main__ import main
from experiments.sub_networks.comparison import Score, bisected, fastest
from experiments.sub_networks.models import FAMILIES
from nas.evaluation.datasets import load_dataset
from search_spaces import InputError


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


def test_the_fastest_network_is_that_of_those_that_are_accurate_enough() -> None:
    scores = [Score(0, 90, 1.0), Score(0, 89, 0.6), Score(0, 80, 0.2)]
    assert [fastest(scores, needed) for needed in (89.5, 88, 70)] == [1.0, 0.6, 0.2]
    assert np.isnan(fastest(scores, 91))


@pytest.mark.parametrize("place", range(16))
def test_the_fastest_one_of_a_front_is_found_by_few_trainings(place: int) -> None:
    """Accuracies rise along the front, and the network at `place` is the first good one."""
    trained: list[int] = []

    def score(i: int) -> Score:
        trained.append(i)
        return Score(90.0 + (i >= place) + (i >= place - 3), 0, 1.0 + i)

    scores = bisected(16, score, needed=[92.0], count=4)
    assert len(scores) == len(set(trained)) <= 4
    assert min(s.latency for s in scores if s.validation >= 92) - 1 - place <= 1
    both = bisected(16, score, needed=[92.0, 91.0], count=8)
    assert min(s.latency for s in both if s.validation >= 91) == 1 + max(0, place - 3)


@pytest.mark.slow
@pytest.mark.parametrize("family", [*FAMILIES])
def test_the_quick_comparison_runs_to_its_end_and_resumes(
    family: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(tmp_path, families=family, quick=True)
    printed = capsys.readouterr().out
    assert f"{family} 0: τ with 1 epochs: 0 epochs" in printed
    assert f"{family} 0: latency / model's within 0.5 points: uniform magnitude" in printed
    assert f"{family} 0: hypervolume by epochs from fresh weights" in printed
    rows = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert all(row["latency"] > 0 for row in rows)
    assert all(0 <= row["test"] <= 100 for row in rows if "epochs" in row)
    main(tmp_path, families=family, quick=True)
    assert (tmp_path / "results.jsonl").read_text().count("\n") == len(rows)


def test_an_unknown_family_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="family 'resnt'"):
        main(tmp_path, families="resnt")
