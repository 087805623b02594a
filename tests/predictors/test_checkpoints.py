"""Claims about checkpoints: the same predictions, no code, one line for what is damaged; shipped
ones are small.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from scipy.stats import spearmanr

import predictors
from predictors.checkpoint import CHECKPOINTS, FORMAT_VERSION
from predictors.rlm import examples
from predictors.rlm.encoder import EncoderConfig
from predictors.rlm.in_context import ContextConfig
from predictors.rlm.model import Model, ModelConfig
from predictors.rlm.predictor import RLM
from search_spaces import InputError, get_space

SHIPPED = sorted(folder.name for folder in CHECKPOINTS.iterdir())
MOST_BYTES = 12_000_000
SPACE = get_space("tiny-resnet")
TEXTS = [SPACE.to_text(SPACE.sample(np.random.default_rng(seed))) for seed in range(24)]
VALUES = {"top1": np.arange(24.0), "a_latency_ms": np.where(np.arange(24) % 2, np.nan, 1.0)}
SMALL = ModelConfig(
    EncoderConfig(16, 1, 2, 24, 2),
    ContextConfig(
        width=16, heads=2, layers=1, distance=4, kernels=2, number_width=8, number_layers=1
    ),
)


@pytest.fixture(params=["rlm", "gp"])
def saved(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Folder of a fitted predictor."""
    torch.manual_seed(0)
    model = RLM.of(Model(SMALL)) if request.param == "rlm" else predictors.create(request.param)
    model.fit(TEXTS, VALUES).save(tmp_path / "saved")
    return tmp_path / "saved"


def _change(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    config = json.loads((folder / "config.json").read_text())
    change(config)
    (folder / "config.json").write_text(json.dumps(config))


def _change_tensors(folder: Path, change: Callable[[dict[str, np.ndarray]], object]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(
        {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()},
        folder / "model.safetensors",
    )


def _refused(folder: Path, reason: str | None = None) -> None:
    with pytest.raises(InputError, match=reason) as raised:
        predictors.load(folder)
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 600


def test_a_saved_predictor_predicts_as_before_also_when_it_is_saved_again(
    saved: Path, tmp_path: Path
) -> None:
    model = predictors.load(saved)
    before = model.predict(TEXTS, ["top1"], given={"a_latency_ms": np.ones(24)}, samples=4).samples
    model.save(tmp_path / "again")
    after = predictors.load(tmp_path / "again").predict(
        TEXTS, ["top1"], given={"a_latency_ms": np.ones(24)}, samples=4
    )
    np.testing.assert_array_equal(after.samples, before)
    refitted = model.fit(TEXTS[:5], {"other": np.arange(5.0)})
    assert refitted.metrics == ("other",)


@pytest.mark.parametrize(
    "version", [1, FORMAT_VERSION - 1, FORMAT_VERSION + 1, str(FORMAT_VERSION), None]
)
def test_another_format_is_refused_with_the_remedy(saved: Path, version: object) -> None:
    _change(saved, lambda config: config.update(version=version))
    _refused(
        saved, f"format version {version}, this release reads {FORMAT_VERSION}; train it again"
    )


@pytest.mark.parametrize(
    "change",
    [
        lambda c: c.update(seed="one"),
        lambda c: c.update(seed=-1),
        lambda c: c.update(seed=1e400),
        lambda c: c.pop("metrics"),
        lambda c: c.update(metrics=["top1"]),
        lambda c: c.update(metrics=["top1", "top1"]),
        lambda c: c.update(metrics=[1, 2]),
        lambda c: c.update(metrics=5),
        lambda c: c.update(kind="pickle"),
        lambda c: c.update(kind=["rlm"]),
        lambda c: c.update(format="other"),
        lambda c: c.update(model={}, inputs=[]),
        lambda c: c.update(model=7, inputs=7),
    ],
)
def test_a_damaged_configuration_is_refused(
    saved: Path, change: Callable[[dict[str, Any]], object]
) -> None:
    _change(saved, change)
    _refused(saved)


@pytest.mark.parametrize(
    "change",
    [
        lambda t: t.pop("values"),
        lambda t: t.update(values=t["values"][:, :5]),
        lambda t: t.update(values=np.full_like(t["values"], np.inf)),
        lambda t: t.update(values=np.full_like(t["values"], np.nan)),
        lambda t: t.update({k: t[k][:, :3] for k in ("states", "inputs") if k in t}),
        lambda t: t.update({k: t[k] * np.nan for k in ("states", "inputs") if k in t}),
        lambda t: t.update({k: t[k].ravel() for k in ("states", "inputs") if k in t}),
        lambda t: [t.pop(k) for k in ("states", "inputs") if k in t],
    ],
)
def test_damaged_examples_are_refused(
    saved: Path, change: Callable[[dict[str, np.ndarray]], object]
) -> None:
    _change_tensors(saved, change)
    _refused(saved, "damaged checkpoint")


@pytest.mark.parametrize("saved", ["rlm"], indirect=True)
@pytest.mark.parametrize(
    "change",
    [
        lambda c: c.pop("texts"),
        lambda c: c.update(texts=""),
        lambda c: c.update(texts=c["texts"] + " 0123456789abcdef"),
        lambda c: c.update(texts=c["texts"].split()),
        lambda c: c.pop("text_version"),
    ],
)
def test_examples_without_a_fingerprint_each_are_refused(
    saved: Path, change: Callable[[dict[str, Any]], object]
) -> None:
    _change(saved, change)
    _refused(saved, "damaged checkpoint")


@pytest.mark.parametrize("saved", ["rlm"], indirect=True)
def test_a_checkpoint_whose_texts_have_another_version_warns_that_they_may_not_be_recognised(
    saved: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _change(saved, lambda config: config.update(text_version=0))
    predictors.load(saved)
    assert "knows its 24 examples by texts of version 0" in caplog.text


@pytest.mark.parametrize("saved", ["rlm"], indirect=True)
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_weights_that_are_not_finite_are_refused(saved: Path, value: float) -> None:
    _change_tensors(saved, lambda t: t["model.encoder.out.weight"].__setitem__((0, 0), value))
    _refused(saved, "values that are not finite")


@pytest.mark.parametrize("saved", ["rlm"], indirect=True)
@pytest.mark.parametrize(
    ("part", "name", "size"),
    [
        ("encoder", "width", 20_000), ("encoder", "width", 2048), ("context", "layers", 10**9), ("context", "width", 0),
        ("context", "heads", 3), ("encoder", "layers", 1.5), ("encoder", "state", True), ("encoder", "depth", 1),
    ],
)  # fmt: skip
def test_sizes_that_do_not_fit_are_refused_before_memory_is_taken(
    saved: Path, part: str, name: str, size: object
) -> None:
    _change(saved, lambda config: config["model"][part].update({name: size}))
    start = time.monotonic()
    _refused(saved)
    assert time.monotonic() - start < 2


@pytest.mark.parametrize(
    "content", [b"", b"{", b"\xff\xfe", b"[" * 100_000, b"[]", b"null", b'{"a": 1}']
)
def test_files_that_are_no_checkpoint_are_refused(saved: Path, content: bytes) -> None:
    (saved / "config.json").write_bytes(content)
    _refused(saved)


@pytest.mark.parametrize("content", [b"", b"\x80\x04]q\x00.", b"\xff" * 64])
def test_a_pickle_or_a_torn_file_is_refused(saved: Path, content: bytes) -> None:
    (saved / "model.safetensors").write_bytes(content)
    _refused(saved, "damaged checkpoint")
    (saved / "model.safetensors").unlink()
    _refused(saved, r"model\.safetensors is missing")


def test_a_checkpoint_names_no_file_to_run(saved: Path, tmp_path: Path) -> None:
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    _change(saved, lambda config: config.update(kind=f"{tmp_path / 'evil.py'}:Evil"))
    _refused(saved, "no installed package provides")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_checkpoint_is_small_described_and_found_by_its_name(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        examples, "MAX_EXAMPLES", 200
    )  # of the 15,625 of a whole table: to read 2,000 takes seconds
    folder = CHECKPOINTS / name
    assert sum(path.stat().st_size for path in folder.iterdir()) <= MOST_BYTES
    card = (folder / "README.md").read_text()
    assert all(part in card for part in (f"# {name}", "**Trained on**", "**Licence**"))
    model = predictors.load(name)
    if not model.metrics:
        model.fit(TEXTS[:8], {"metric": np.arange(8.0)})
    assert np.isfinite(model.predict(TEXTS[:2], list(model.metrics)[-1:], samples=4).samples).all()


@pytest.mark.parametrize("name", [name for name in SHIPPED if name.startswith("rlm-")])
def test_a_shipped_rlm_is_the_rlm_alone(name: str) -> None:
    """A name means one model: beside the network's weights, a checkpoint holds labelled examples
    and nothing else.
    """
    parts = {
        tensor.partition(".")[0] for tensor in load_file(CHECKPOINTS / name / "model.safetensors")
    }
    assert "model" in parts <= {"model", "states", "common", "values"}


@pytest.mark.skipif(
    "NAS_DATA" not in os.environ, reason="NAS_DATA, the folder of real tables, is not set"
)
def test_a_checkpoint_of_the_whole_table_ranks_its_networks() -> None:
    from nas.benchmarks import load_benchmark

    table = load_benchmark("nasbench201")
    rows = np.random.default_rng(0).permutation(len(table))[:200]
    texts = [table.space.to_text(table.architectures[i]) for i in rows]
    metrics = ["cifar10_test_accuracy", "1080ti_1_latency_ms"]
    predicted = predictors.load("gnn-nasbench201").predict(texts, metrics, samples=8)
    for metric in metrics:
        assert spearmanr(predicted[metric], table.values(metric)[rows]).statistic > 0.9
