"""Claims about a checkpoint on another machine: a network is known by its text, whatever its
states' last digits are.

A checkpoint that a test makes is read by the processor that made it, so that equal states would
prove nothing. These tests read the shipped checkpoints, or disturb the states.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from nas.evaluation.new_device import relative_samples
from nas.networks import network_text
from nas.ranking import covariates, rank
from predictors import create, load
from predictors.metrics import Metric
from predictors.rlm.model import Model
from predictors.rlm.predictor import RLM
from search_spaces import get_space

SPACE = get_space("tiny-resnet")
TEXTS = list(
    dict.fromkeys(SPACE.to_text(SPACE.sample(np.random.default_rng(seed))) for seed in range(60))
)[:40]
SIZE = np.array([float(len(text)) for text in TEXTS])
EXAMPLES = 24
# Relative; as another order of summation, it changes the last digits of some of each state's
# numbers
NOISE = 1e-5
OTHER_ARITHMETIC = {
    "ONEDNN_MAX_CPU_ISA": "SSE41",
    "ATEN_CPU_CAPABILITY": "default",
    "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
    "MKL_CBWR": "COMPATIBLE",
    "OPENBLAS_CORETYPE": "Nehalem",
    "OMP_NUM_THREADS": "2",
}


def disturb(patch: pytest.MonkeyPatch) -> None:
    """Let every encoding differ in its last digits, as between two processors."""
    states, rng = Model.states, np.random.default_rng(0)

    def disturbed(self: Model, texts: list[str]) -> np.ndarray:
        found = states(self, texts)
        return found * (1 + NOISE * rng.standard_normal(found.shape)).astype(np.float32)

    patch.setattr(Model, "states", disturbed)


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RLM:
    """A checkpoint with two devices, loaded where states differ."""
    create("rlm").fit(
        TEXTS[:EXAMPLES], {"a_ms": SIZE[:EXAMPLES], "b_ms": 2 * SIZE[:EXAMPLES]}
    ).save(tmp_path / "made")
    loaded = load(tmp_path / "made")
    assert isinstance(loaded, RLM)
    disturb(monkeypatch)
    assert loaded._fitted is not None
    assert (loaded.states(TEXTS[:EXAMPLES]) != loaded._fitted.states).any(1).all(), (
        "each state differs"
    )
    return loaded


def test_its_examples_are_recognised(elsewhere: RLM) -> None:
    known = elsewhere.examples_of(TEXTS)
    np.testing.assert_array_equal(known["a_ms"][:EXAMPLES], SIZE[:EXAMPLES])
    assert np.isnan(known["a_ms"][EXAMPLES:]).all()


def test_further_measurements_of_its_examples_are_merged_with_them(elsewhere: RLM) -> None:
    elsewhere.extend(TEXTS[20:30], {"c_ms": SIZE[20:30], "a_ms": [7.0, *[np.nan] * 9]})
    assert elsewhere._fitted is not None
    assert len(elsewhere._fitted.states) == 30
    known = elsewhere.examples_of(TEXTS[20:30])
    np.testing.assert_array_equal(known["c_ms"], SIZE[20:30])
    np.testing.assert_array_equal(known["b_ms"][:4], 2 * SIZE[20:24])
    assert known["a_ms"][0] == 7


def test_it_still_recognises_them_when_it_is_saved_and_loaded_again(
    elsewhere: RLM, tmp_path: Path
) -> None:
    elsewhere.extend(TEXTS[:EXAMPLES], {"c_ms": SIZE[:EXAMPLES]})
    elsewhere.save(tmp_path / "again")
    np.testing.assert_array_equal(
        load(tmp_path / "again").examples_of(TEXTS[:EXAMPLES])["c_ms"], SIZE[:EXAMPLES]
    )


def test_measured_networks_are_ranked_by_their_measurements(elsewhere: RLM) -> None:
    found = rank(elsewhere, TEXTS, [Metric.parse("a_ms")], samples=4)
    assert found.measured[:, 0].tolist() == [True] * EXAMPLES + [False] * (len(TEXTS) - EXAMPLES)
    np.testing.assert_array_equal(
        found.samples[:EXAMPLES, :, 0], SIZE[:EXAMPLES, None].repeat(4, 1)
    )


def test_known_devices_predict_a_new_one(elsewhere: RLM) -> None:
    asked = TEXTS[10:EXAMPLES]
    known = covariates(elsewhere, TEXTS[:EXAMPLES], ["a_ms", "b_ms"], samples=8)
    assert all((np.ptp(drawn, 1) == 0).all() for drawn in known.values()), (
        "known networks have no uncertainty"
    )
    medians = np.stack([np.median(drawn, 1) for drawn in known.values()], 1)
    new = 3 * SIZE[:EXAMPLES]
    drawn = relative_samples(elsewhere, TEXTS[:10], new[:10], medians[:10], asked, medians[10:], 8)
    np.testing.assert_allclose(np.median(drawn, 1), new[10:], rtol=0.02)


SCRIPT = """
import json, sys
import numpy as np, pytest, predictors
from tests.nas.test_another_machine import disturb
checkpoint, *paths = sys.argv[1:]
with pytest.MonkeyPatch.context() as patch:
    disturb(patch)
    texts = [open(path).read() for path in paths]
    model = predictors.load(checkpoint)
    known = np.stack(list(model.examples_of(texts).values()), 1)
    before = len(model._fitted.states)
    model.extend(texts, {"own_ms": np.arange(1.0, 1 + len(texts))})
    print(json.dumps([int((~np.isnan(known)).any(1).sum()), len(model._fitted.states) - before]))
"""


def _elsewhere(*command: str) -> str:
    """What Python prints for a command, with other arithmetic."""
    root = Path(__file__).parents[2]
    environment = {**os.environ, **OTHER_ARITHMETIC, "PYTHONPATH": str(root)}
    done = subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, env=environment, cwd=root
    )
    assert not done.returncode, done.stderr
    return done.stdout


def _texts(checkpoint: str) -> list[str]:
    """Different texts of networks; all are examples of `rlm-zoo`, about one of seven of
    `rlm-nasbench201`.
    """
    if checkpoint == "rlm-zoo":
        return [
            network_text(f"timm:{name}")
            for name in ("resnet18", "resnet50", "vit_tiny_patch16_224")
        ]
    space, rng = get_space("nasbench201"), np.random.default_rng(0)
    return list(dict.fromkeys(space.to_text(space.sample(rng)) for _ in range(60)))


@pytest.mark.slow
@pytest.mark.parametrize(("checkpoint", "least"), [("rlm-zoo", 3), ("rlm-nasbench201", 4)])
def test_a_shipped_checkpoint_recognises_its_examples_with_other_arithmetic(
    checkpoint: str, least: int, tmp_path: Path
) -> None:
    paths = [tmp_path / f"{i}.txt" for i in range(60)]
    texts = _texts(checkpoint)
    for path, text in zip(paths, texts, strict=False):
        path.write_text(text)
    known, added = json.loads(_elsewhere("-c", SCRIPT, checkpoint, *map(str, paths[: len(texts)])))
    assert known >= least
    assert added == len(texts) - known, "an example that is measured again is no further example"


@pytest.mark.slow
def test_a_device_like_a_known_one_is_predicted_from_it_with_other_arithmetic(
    tmp_path: Path,
) -> None:
    """`nas rank` with the shipped zoo: a new device is twice as slow as a known one, which is a
    covariate.
    """
    names = [
        "resnet18", "resnet34", "resnet50", "resnet101", "mobilenetv3_large_100", "regnetx_002", "regnety_004",
        "vit_tiny_patch16_224", "densenet121", "convnext_tiny",
    ]  # fmt: skip
    asked = ["resnet26", "vit_small_patch16_224", "regnety_032"]
    texts = [network_text(f"timm:{name}") for name in (*names, *asked)]
    latency = load("rlm-zoo").examples_of(texts)["rtx4090_ms"]
    assert np.isfinite(latency).all()
    table = tmp_path / "own.csv"
    rows = [f"timm:{name},{2 * value}" for name, value in zip(names, latency, strict=False)]
    table.write_text("\n".join(["network,twice_ms", *rows]))
    sources = [f"timm:{name}" for name in asked]
    options = (
        "--measured",
        str(table),
        "--objectives",
        "twice_ms,rtx4090_ms",
        "--samples",
        "16",
        "--quiet",
        "--json",
    )
    printed = _elsewhere("-m", "nas.cli", "rank", *sources, "--checkpoint", "rlm-zoo", *options)
    found = {row["network"]: row for row in json.loads(printed)["networks"]}
    for source, value in zip(sources, latency[len(names) :], strict=True):
        assert found[source]["rtx4090_ms"]["measured"]
        assert found[source]["twice_ms"]["median"] == pytest.approx(2 * value, rel=0.05)
