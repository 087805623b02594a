"""Claims about kernel regression as a layer: it is regression, and examples read what queries would
read.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import Ridge

from predictors.rlm.kernel_regression import KernelRegression

HEADS, COORDINATES = 4, 6


def _layer(seed: int = 0) -> KernelRegression:
    torch.manual_seed(seed)
    return KernelRegression(torch.full((HEADS, COORDINATES), 0.5)).eval()


def _task(n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Coordinates (1, n, C) and scores (1, n) of a smooth function."""
    x = torch.from_numpy(np.random.default_rng(seed).standard_normal((1, n, COORDINATES))).float()
    return x, torch.sin(x[..., 0]) + 0.3 * x[..., 1]


@torch.inference_mode()
def _features(
    layer: KernelRegression, x: torch.Tensor, y: torch.Tensor, queries: torch.Tensor
) -> torch.Tensor:
    return layer(queries, layer.fit(layer.kernels(x), y)[1])


@settings(max_examples=20, deadline=None)
@given(st.integers(3, 30), st.integers(0, 100))
@torch.inference_mode()
def test_an_example_reads_what_a_query_reads_without_it(n: int, seed: int) -> None:
    layer, (x, y) = _layer(), _task(n, seed)
    own, _ = layer.fit(layer.kernels(x), y)
    without = _features(layer, x[:, 1:], y[:, 1:], x[:, :1])
    per_head = (
        3 * HEADS
    )  # what comes after depends on the errors of all examples, also of the one that is left out
    torch.testing.assert_close(own[:, :1, :per_head], without[..., :per_head], atol=2e-4, rtol=1e-3)


def test_each_head_is_kernel_ridge_regression() -> None:
    layer, (x, y), (queries, _) = _layer(), _task(40, 1), _task(10, 2)
    found = _features(layer, x, y, queries)[0].numpy()
    scaled = [
        (part[0].numpy() * layer.log_scales[2].detach().exp().numpy()) for part in (x, queries)
    ]
    a, b = scaled
    linear = float(layer.log_linear[2].detach().exp())

    def kernel(p: np.ndarray, q: np.ndarray) -> np.ndarray:
        squares = ((p[:, None] - q[None]) ** 2).sum(-1)
        return np.asarray(np.exp(-squares / 2) + linear * p @ q.T)

    ridge = KernelRidge(alpha=float(layer.log_penalty[2].detach().exp()), kernel="precomputed")
    expected = ridge.fit(kernel(a, a), y[0].numpy()).predict(kernel(b, a))
    np.testing.assert_allclose(found[:, 2], expected, atol=1e-3)


@torch.inference_mode()
def test_the_stacked_prediction_is_ridge_regression_from_the_weighted_mean() -> None:
    layer, (x, y), (queries, _) = _layer(), _task(60, 7), _task(10, 8)
    own, solved = layer.fit(layer.kernels(x), y)
    found, heads = own[0].numpy().astype(float), own[0, :, :HEADS].numpy().astype(float)
    trust = torch.softmax(-0.5 * 60**0.5 * solved.errors[0], -1).numpy()
    rest = y[0].numpy() - heads @ trust
    alpha = 60 * np.exp(-1.2) * (60 / 100) ** -1.0

    def stacked(rows: np.ndarray) -> np.ndarray:
        return trust + Ridge(alpha, fit_intercept=False).fit(heads[rows], rest[rows]).coef_

    np.testing.assert_allclose(solved.weights[0].numpy(), stacked(np.arange(60)), atol=1e-3)
    for left_out in (0, 17):
        expected = heads[left_out] @ stacked(np.delete(np.arange(60), left_out))
        assert found[left_out, -2] == pytest.approx(expected, abs=1e-3)
    asked = layer(queries, solved)[0].numpy()
    np.testing.assert_allclose(
        asked[:, -2], asked[:, :HEADS] @ solved.weights[0].numpy(), atol=1e-4
    )


def test_the_stacked_prediction_follows_the_heads_that_predict_the_examples_best() -> None:
    layer, (x, y), (queries, truth) = _layer(), _task(80, 3), _task(200, 4)
    found = _features(layer, x, y, queries)[0].numpy()
    errors = ((found[:, :HEADS] - truth[0].numpy()[:, None]) ** 2).mean(0)
    mean = ((found[:, -2] - truth[0].numpy()) ** 2).mean()
    assert mean < np.sort(errors)[1] * 1.05


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 100))
def test_the_order_of_examples_does_not_matter(seed: int) -> None:
    layer, (x, y), (queries, _) = _layer(), _task(25, seed), _task(5, seed + 1)
    order = torch.from_numpy(np.random.default_rng(seed).permutation(25))
    shuffled = _features(layer, x[:, order], y[:, order], queries)
    torch.testing.assert_close(_features(layer, x, y, queries), shuffled, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("scale", [0.0, 100.0])
def test_equal_or_far_examples_give_finite_features(scale: float) -> None:
    layer, (x, y), (queries, _) = _layer(), _task(20, 5), _task(5, 6)
    assert torch.isfinite(_features(layer, x * scale, y, queries * scale)).all()


def test_the_evidence_is_that_of_gaussian_processes_with_their_best_variances() -> None:
    layer, (x, y) = _layer(), _task(30, 3)
    found = layer.evidence(x, y).item()
    scores, expected = y[0].double(), []
    for inverse in layer.kernels(x).inverse[0].double():
        kernel = ((inverse + inverse.T) / 2).inverse()
        variance = scores @ torch.linalg.solve(kernel, scores) / 30
        process = torch.distributions.MultivariateNormal(
            torch.zeros(30).double(), variance * (kernel + kernel.T) / 2
        )
        expected.append(process.log_prob(scores).item() / 30 + (1 + np.log(2 * np.pi)) / 2)
    assert found == pytest.approx(np.mean(expected), abs=0.01)
