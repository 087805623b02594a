"""Claims about features of texts and about forest and ridge."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import kendalltau, spearmanr

from predictors import create, load
from predictors.base import STREAM_CHUNK
from predictors.baselines import Ridge
from predictors.features import PATH_NODES, feature_matrix, features
from predictors.graph_features import graph_features
from search_spaces import InputError, TorchSpace, get_space
from search_spaces.ir.costs import graph_params
from search_spaces.ir.text import expand, read

SPACE = get_space("nasbench201", channels=4, cells=2)


def some_texts(n: int, seed: int = 0) -> list[str]:
    rng = np.random.default_rng(seed)
    return [SPACE.to_text(SPACE.sample(rng)) for _ in range(n)]


def test_operator_counts_are_those_of_the_expanded_network() -> None:
    for text in some_texts(5):
        flat = expand(read(text))
        found = features(text)
        assert found["log2 params"] == pytest.approx(np.log2(1 + graph_params(flat)))
        convolutions = sum(
            n
            for name, n in found.items()
            if name.startswith("ConvBn kernel=(3,3)") and ">" not in name
        )
        assert convolutions == sum(
            node.op == "ConvBn" and dict(node.attrs)["kernel"] == (3, 3) for node in flat.nodes
        )


def test_paths_distinguish_cells_with_equal_operators() -> None:
    serial = "|nor_conv_3x3~0|+|none~0|nor_conv_1x1~1|+|none~0|none~1|skip_connect~2|"
    parallel = "|none~0|+|none~0|none~1|+|nor_conv_3x3~0|none~1|none~2|"
    swapped = "|nor_conv_1x1~0|+|none~0|nor_conv_3x3~1|+|none~0|none~1|skip_connect~2|"
    rows = [features(SPACE.to_text(SPACE.parse(cell))) for cell in (serial, swapped, parallel)]
    assert {k: v for k, v in rows[0].items() if ">" not in k} == {
        k: v for k, v in rows[1].items() if ">" not in k
    }
    assert rows[0] != rows[1]
    assert max(name.count(" > ") for row in rows for name in row) == PATH_NODES - 1


def residual_text(blocks: int) -> str:
    """The text of a network: a 1×1 convolution, then 3×3 convolutions that can be passed by."""
    import torch
    from torch import nn

    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convolution = nn.Conv2d(3, 3, 3, padding=1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.convolution(x)

    def build(trial: Any) -> nn.Module:
        return nn.Sequential(nn.Conv2d(3, 3, 1), *[Residual() for _ in range(blocks)])

    build.example_input = torch.zeros(1, 3, 4, 4)  # type: ignore[attr-defined]
    space = TorchSpace(build)
    return space.to_text(space.sample(np.random.default_rng(0)))


def test_paths_count_the_operators_that_they_pass() -> None:
    two, three = (graph_features(residual_text(blocks)) for blocks in (2, 3))
    assert two["count all"] == 5
    assert (two["longest all"], two["shortest all"]) == (5, 3)  # with and without convolutions
    assert (three["longest all"], three["shortest all"]) == (7, 4)
    convolutions = [name for name, value in three.items() if name[:5] == "count" and value == 3]
    paths = {(three[f"longest {n[6:]}"], three[f"shortest {n[6:]}"]) for n in convolutions}
    assert (3, 0) in paths, "a path can pass by every convolution"
    assert (3, 3) in paths, "but by no addition"


def test_graph_features_are_of_networks_only() -> None:
    with pytest.raises(InputError):
        graph_features("two words")


def test_a_forest_of_an_earlier_version_is_refused(tmp_path: Path) -> None:
    forest = create("forest", trees=5).fit(some_texts(8), {"metric": np.arange(8.0)})
    forest.save(tmp_path)
    load(tmp_path)
    forest._names[0] = "x > ConvBn kernel=(3,3)"  # type: ignore[attr-defined]
    forest.save(tmp_path)
    with pytest.raises(InputError, match="earlier version"):
        load(tmp_path)


def test_features_not_seen_in_training_are_left_out() -> None:
    texts = some_texts(2)
    names = sorted(features(texts[0]))
    assert feature_matrix(texts, names).shape == (2, len(names))


def test_leave_one_out_errors_are_those_of_leaving_one_out() -> None:
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(30, 5))
    values = inputs @ rng.normal(size=5) + 0.1 * rng.normal(size=30)
    errors = Ridge()._fit_regression(inputs, values).errors
    refitted = [
        values[i]
        - Ridge()
        ._fit_regression(np.delete(inputs, i, 0), np.delete(values, i))
        .predict(inputs[[i]])[0][0]
        for i in range(30)
    ]
    assert spearmanr(errors, refitted)[0] > 0.95
    deviation = Ridge()._fit_regression(inputs, values).predict(inputs)[1]
    assert np.std(errors * deviation) == pytest.approx(np.std(refitted), rel=0.2)


@pytest.mark.parametrize("kind", ["ridge", "forest"])
def test_deviations_are_as_large_as_errors_on_other_networks(kind: str) -> None:
    texts = some_texts(200)
    costs = np.array([features(text)["log2 flops"] for text in texts]) + np.random.default_rng(
        0
    ).normal(size=200)
    found = create(kind).fit(texts[:100], {"cost": costs[:100]}).predict(texts[100:], ["cost"])
    error = np.sqrt(np.mean((found["cost"] - costs[100:]) ** 2))
    assert 0.7 * error < found.std.mean() < 1.4 * error


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ridge", "forest"])
def test_a_given_metric_moves_a_correlated_one_and_narrows_it(kind: str) -> None:
    texts = some_texts(120)
    rng = np.random.default_rng(0)
    first = rng.normal(size=120)  # nothing in the text tells it
    second = 10 + first + 0.3 * rng.normal(size=120)
    predictor = create(kind).fit(texts[:80], {"first": first[:80], "second": second[:80]})
    alone = predictor.predict(texts[80:], ["second"])
    told = predictor.predict(texts[80:], ["second"], given={"first": first[80:]})
    assert (
        kendalltau(told["second"], second[80:])[0]
        > 0.6
        > kendalltau(alone["second"], second[80:])[0]
    )
    assert told.std.mean() < 0.6 * alone.std.mean()


@pytest.mark.parametrize("kind", ["ridge", "forest"])
def test_samples_of_correlated_metrics_are_correlated(kind: str) -> None:
    texts = some_texts(100)
    first = np.random.default_rng(0).normal(size=100)
    predictor = create(kind).fit(texts, {"first": first, "second": -first})
    samples = predictor.predict(texts[:1], ["first", "second"], samples=256).samples[0]
    assert np.corrcoef(samples.T)[0, 1] < -0.9


@pytest.mark.parametrize("kind", ["ridge", "forest"])
def test_two_labels_give_no_absurd_uncertainty(kind: str) -> None:
    texts = some_texts(8)
    predicted = create(kind).fit(texts[:2], {"top1": [71.6, 68.0]}).predict(texts[2:], ["top1"])
    assert (predicted.std > 0).all()
    assert predicted.std.max() < 10
    assert np.abs(predicted.samples - 70).max() < 30


def test_a_model_and_its_text_get_the_same_samples() -> None:
    architecture = SPACE.sample(np.random.default_rng(1))
    model = Ridge().fit(some_texts(20), {"cost": np.arange(20.0)})
    alone, text = (
        model.predict([a], ["cost"]).samples
        for a in (SPACE.to_onnx(architecture), SPACE.to_text(architecture))
    )
    np.testing.assert_array_equal(alone, text)


@pytest.mark.parametrize("kind", ["ridge", "forest"])
def test_a_damaged_checkpoint_is_refused(kind: str, tmp_path: Path) -> None:
    create(kind).fit(some_texts(8), {"metric": np.arange(8.0)}).save(tmp_path)
    config = (tmp_path / "config.json").read_text()
    (tmp_path / "config.json").write_text(config.replace('"metric"', '"metric", "another"'))
    with pytest.raises(InputError, match="damaged checkpoint"):
        load(tmp_path)


def test_an_untrained_predictor_is_not_saved(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not trained"):
        Ridge().save(tmp_path)


@pytest.mark.slow
def test_several_processes_predict_a_stream_as_one_does() -> None:
    texts = 60 * some_texts(30)
    costs = [features(text)["log2 flops"] for text in texts[:30]]
    model = create("ridge").fit(texts[:30], {"cost": costs})
    alone, together = (
        list(model.predict_stream(iter(texts), ["cost"], samples=4, jobs=jobs)) for jobs in (1, 2)
    )
    assert [len(chunk.mean) for chunk in together] == [*[STREAM_CHUNK] * 7, 1800 - 7 * STREAM_CHUNK]
    for one, other in zip(alone, together, strict=True):
        np.testing.assert_array_equal(one.samples, other.samples)
    estimates = np.concatenate(list(model.estimate_stream(iter(texts), ["cost"], jobs=2)))
    np.testing.assert_array_equal(estimates, model.estimate(texts, ["cost"]))


@pytest.mark.parametrize("kind", ["forest", "ridge"])
@pytest.mark.parametrize(
    "scale", [2.0**-30, 2.0**-100, 2.0**50]
)  # exact, so that no ties are broken otherwise
def test_predictions_do_not_depend_on_the_unit(kind: str, scale: float) -> None:
    space, rng = get_space("tiny-resnet"), np.random.default_rng(0)
    architectures = [space.sample(rng) for _ in range(24)]
    texts = [space.to_text(architecture) for architecture in architectures]
    values = np.array([space.flops(architecture) for architecture in architectures]) / 1e6
    plain, scaled = (
        create(kind).fit(texts[:16], {"x_ms": values[:16] * unit}) for unit in (1.0, scale)
    )
    expected, found = (model.predict(texts[16:], ["x_ms"]).mean for model in (plain, scaled))
    assert np.ptp(expected) > 0
    np.testing.assert_allclose(found / scale, expected, rtol=1e-6)
