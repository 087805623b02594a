"""Rows of the ablation lack what their names say, and heads learn what they are shown."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import ndtri
from torch import nn

from experiments.ablation.heads import HEADS, KNOTS, LEVELS, Quantiles, SeparateDigits
from experiments.ablation.readers import shuffled, without
from predictors.rlm.in_context import ContextConfig
from predictors.rlm.kernel_regression import COLUMNS, Projection
from predictors.rlm.tokens import COMMON, COUNTS, NEIGHBOURS, QUALITY, tokenize
from search_spaces import get_space

WIDTH = 16
CONFIG = ContextConfig(width=WIDTH, heads=2, layers=1, number_width=32, number_layers=1)


def test_a_shuffled_text_has_the_same_operators_in_other_places() -> None:
    space = get_space("nasbench201")
    cell = (
        "|nor_conv_3x3~0|+|skip_connect~0|nor_conv_1x1~1|+|skip_connect~0|nor_conv_1x1~1|"
        "avg_pool_3x3~2|"
    )
    text = space.to_text(space.parse(cell))
    tokens = tokenize(text)
    other = shuffled(tokens, text)
    assert (other.edges == tokens.edges).all()
    assert (other.totals == tokens.totals).all()
    assert (np.sort(other.words) == np.sort(tokens.words)).all()
    assert (np.sort(other.numbers, 0) == np.sort(tokens.numbers, 0)).all()
    assert not np.allclose(other.neighbours, tokens.neighbours)
    assert (shuffled(tokens, text).words == other.words).all(), (
        "the order depends on the text alone"
    )


def test_nothing_reads_a_part_that_is_missing() -> None:
    rng = np.random.default_rng(0)
    states = rng.normal(size=(12, 32 + QUALITY + COUNTS + NEIGHBOURS + COMMON)).astype(np.float32)
    none = np.zeros((12, 0))

    def features(parts: list[str]) -> np.ndarray:
        left = without(states, parts)
        return Projection.fit(left, none)(left, none)

    everything = features([])
    _, quality, counts, neighbours = COLUMNS.axes
    assert np.abs(everything[:, counts]).max() > 0
    assert not features(["sketches"])[:, [*range(counts.start, neighbours.stop)]].any()
    assert features(["sketches"])[:, quality].any()
    common = features(["costs"])[:, COLUMNS.common]
    assert (common != 0).any(0).tolist() == [True] * (COMMON - 5) + [False] * 5
    common = features(["proxies"])[:, COLUMNS.common]
    assert (common != 0).any(0).tolist() == [False] * (COMMON - 5) + [True] * 5


@pytest.mark.parametrize("name", HEADS)
def test_a_head_learns_the_distribution_of_its_targets(name: str) -> None:
    torch.manual_seed(0)
    head = HEADS[name](CONFIG)
    optimizer = torch.optim.AdamW(head.parameters(), 3e-3)
    for _ in range(250):
        hidden = torch.randn(256, WIDTH)
        z = 1.5 * hidden[:, 0] + 0.3 * torch.randn(256)
        loss = head.loss(hidden, z)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    hidden = torch.randn(400, WIDTH)
    targets = (1.5 * hidden[:, 0] + 0.3 * torch.randn(400)).numpy()
    with torch.inference_mode():
        quantiles = head.eval().quantiles(hidden)
    assert quantiles.shape == (400, len(LEVELS))
    assert (np.diff(quantiles, axis=1) >= 0).all()
    assert np.corrcoef(quantiles.mean(1), targets)[0, 1] > 0.9
    inside = (quantiles[:, 1] <= targets) & (targets <= quantiles[:, -2])
    assert 0.8 < inside.mean() <= 1


def test_quantiles_of_separate_digits_are_those_of_the_product_of_their_distributions() -> None:
    torch.manual_seed(1)
    head = SeparateDigits(CONFIG)
    last = head.network[-1]
    assert isinstance(last, nn.Linear)
    with torch.no_grad():
        last.bias.mul_(0).view(4, 12)[[0, 1, 2, 3], [0, 3, 2, 7]] = 20.0  # + 1 . 0 5
        last.weight.mul_(0)
        assert head.quantiles(torch.randn(3, WIDTH)) == pytest.approx(np.full((3, 32), 1.05))
        last.bias.view(4, 12)[0, 1] = 20.0  # minus is as likely as plus
        quantiles = head.quantiles(torch.randn(1, WIDTH))[0]
    assert quantiles.tolist() == pytest.approx([-1.05] * 16 + [1.05] * 16)


def test_outer_quantiles_go_on_as_a_gaussians() -> None:
    head = Quantiles(CONFIG)
    head._knots = lambda hidden: torch.from_numpy(2 + 3 * ndtri(KNOTS))[None]  # type: ignore[method-assign]
    assert head.quantiles(torch.zeros(1, WIDTH))[0] == pytest.approx(2 + 3 * ndtri(LEVELS))


@pytest.mark.slow
def test_the_ablation_has_a_row_per_part_and_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ablation = importlib.import_module("experiments.ablation.__main__")
    options = {"out": tmp_path, "only": "rlm,without sketches,operators shuffled", "quick": True}
    ablation.main(**options, as_json=True)
    printed = capsys.readouterr().out
    rows = {(row["row"], row["learned"]): row for row in json.loads(printed)}
    names = {row for row, _ in rows}
    assert names >= {"kernel", "rlm", *HEADS, "without sketches", "operators shuffled"}
    order = {name: rows[name, "latency, 16"]["tau"]["mean"] for name in names}
    assert order["rlm"] > order["operators shuffled"] + 0.05, "a latency depends on the places"
    monkeypatch.setattr(ablation, "score", None)  # nothing is computed again
    monkeypatch.setattr(ablation, "compute", lambda tasks, score, out: kept(tasks, out))

    def kept(tasks: list[Any], out: Path) -> list[Any]:
        (journal,) = out.glob("rows-*.jsonl")
        known = dict(json.loads(line) for line in journal.read_text().splitlines())
        return [known[json.dumps(task)] for task in tasks]

    ablation.main(**options, as_json=True)
    assert capsys.readouterr().out == printed


@pytest.mark.slow
def test_a_plain_transformer_of_the_same_size_is_timed(capsys: pytest.CaptureFixture[str]) -> None:
    importlib.import_module("experiments.ablation.transformer").main(quick=True, as_json=True)
    ours, plain = json.loads(capsys.readouterr().out)["encoders"]
    assert plain["weights"] == pytest.approx(ours["weights"], rel=0.05)
    assert plain["s per step"] > 0 < ours["s per step"]
