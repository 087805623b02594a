"""Claims about zero-cost proxies: closed forms, invariances, and agreement with published
values.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import kendalltau

from nas.evaluation import proxies
from nas.evaluation.proxies import PROXIES, compute_proxies
from search_spaces import InputError, get_space, list_spaces
from search_spaces.ir.builder import Network, Tensor
from search_spaces.ir.graph import Graph
from tests.stress.proxies import TABLE, read_reference

SMALL: dict[str, dict[str, Any]] = {
    **{name: {"width": 4, "cells": 3} for name in ("nasnet", "amoeba", "pnas", "enas", "darts")},
    **{name: {"resolution": 32} for name in ("ofa-mbv3", "ofa-proxyless", "ofa-resnet50")},
    "nasbench101": {"channels": 8, "modules": 1},
    "nasbench201": {"channels": 8, "cells": 1, "input_shape": (3, 16, 16)},
    "fbnet": {"width": 0.25},
}
AGREEING = ("grad_norm", "jacov", "nwot", "snip", "synflow")
SPACE = get_space("nasbench201", channels=4, cells=1, input_shape=(1, 8, 8))
CELL = SPACE.parse(
    "|nor_conv_3x3~0|+|skip_connect~0|nor_conv_1x1~1|+|avg_pool_3x3~0|none~1|nor_conv_3x3~2|"
)


def graph_of(build: Callable[[Network], Tensor], shape: tuple[int, ...] = (2, 8, 8)) -> Graph:
    net = Network(shape, 4)
    return net.graph(build(net))


@pytest.mark.slow
@pytest.mark.parametrize("name", list_spaces())
def test_all_are_finite_in_every_space(name: str) -> None:
    space = get_space(name, **SMALL.get(name, {}))
    graph = space.graph(space.sample(np.random.default_rng(0)))
    assert {k: v for k, v in compute_proxies(graph, batch=4).items() if not math.isfinite(v)} == {}


def test_values_follow_from_the_seed_alone() -> None:
    graph = SPACE.graph(CELL)
    first = compute_proxies(graph, 0)
    torch.manual_seed(7)
    state = torch.get_rng_state()
    assert compute_proxies(graph, 0) == first
    assert torch.equal(torch.get_rng_state(), state)
    other = compute_proxies(graph, 1)
    assert all(other[name] != first[name] for name in PROXIES)


@pytest.mark.parametrize("name", PROXIES)
def test_a_proxy_does_not_depend_on_the_others_requested(name: str) -> None:
    graph = SPACE.graph(CELL)
    assert compute_proxies(graph, names=[name]) == {
        name: pytest.approx(compute_proxies(graph)[name], abs=1e-6)
    }


def test_a_network_without_signal_has_no_proxies() -> None:
    graph = graph_of(lambda net: net.classifier(net.relu(net.zero(net.conv_bn(net.input, 4)))))
    assert all(math.isnan(value) for value in compute_proxies(graph).values())


def test_without_rectified_units_only_nwot_is_undefined() -> None:
    values = compute_proxies(graph_of(lambda net: net.classifier(net.conv_bn(net.input, 4))))
    assert [name for name, value in values.items() if math.isnan(value)] == ["nwot"]


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=10, deadline=None)
def test_more_channels_increase_synflow_and_l2_norm(seed: int) -> None:
    arch = SPACE.sample(np.random.default_rng(seed))
    wide = get_space("nasbench201", **{**SPACE.options, "channels": 8})
    narrow, doubled = (
        compute_proxies(s.graph(arch), seed, ["synflow", "l2_norm"]) for s in (SPACE, wide)
    )
    assert all(math.isnan(narrow[name]) or doubled[name] > narrow[name] for name in narrow)


def test_a_unit_counts_once_per_operator_that_reads_it() -> None:
    def shared(net: Network) -> Tensor:
        x = net.relu(net.conv_bn(net.input, 4))
        return net.classifier(net.add(net.conv_bn(x), net.conv_bn(x)))

    def repeated(net: Network) -> Tensor:
        x = net.conv_bn(net.input, 4)
        return net.classifier(net.add(net.conv_bn(net.relu(x)), net.conv_bn(net.relu(x))))

    first, second = (
        compute_proxies(graph_of(build), names=["nwot"]) for build in (shared, repeated)
    )
    assert first == pytest.approx(second, rel=1e-9)


def test_what_the_output_does_not_depend_on_changes_nothing() -> None:
    def build(net: Network, idle: bool) -> Tensor:
        x = net.relu(net.conv_bn(net.input, 4))
        if idle:
            net.conv_bn(x, 16)
        return net.classifier(net.conv_bn(x))

    plain, idle = (compute_proxies(graph_of(lambda net, i=i: build(net, i))) for i in (False, True))  # type: ignore[misc]
    assert plain == idle


def test_saliencies_of_a_linear_classifier_in_closed_form() -> None:
    graph = graph_of(lambda net: net.classifier(net.input))
    images = proxies._images(12, (2, 8, 8), 0)
    layer = next(m for m in proxies._network(graph, 0).modules() if isinstance(m, torch.nn.Conv2d))
    weight, bias = layer.weight.detach().flatten(1).double(), layer.bias.detach().double()  # type: ignore[union-attr]
    features = images.double().mean((2, 3))
    logits = features @ weight.T + bias
    slope = (logits.softmax(1) - torch.eye(4)[torch.arange(12) % 4]) / 12
    gradient = slope.T @ features
    expected = {
        "grad_norm": gradient.norm().log(),
        "snip": (weight * gradient).abs().sum().log(),
        "plain": (weight * gradient).sum(),
        "fisher": (2 * (logits * slope).square().mean(0).sum() / 2).log(),
        "l2_norm": weight.norm(),
        "synflow": weight.abs().sum().log(),
    }
    assert compute_proxies(graph, 0, list(expected), 12) == pytest.approx(
        {name: float(value) for name, value in expected.items()}, rel=1e-4
    )


def test_grasp_of_a_quadratic_loss_is_its_squared_gradient() -> None:
    matrix = torch.tensor([[2.0, 1.0], [1.0, 3.0]])
    w = torch.tensor([1.0, -2.0], requires_grad=True)
    gradient = torch.autograd.grad(w @ matrix @ w / 2, w, create_graph=True)[0]
    assert proxies._grasp([(w, gradient)]) == pytest.approx(-math.log1p(25))


@given(st.integers(0, 2**32 - 1), st.integers(2, 20))
def test_jacov_is_best_for_uncorrelated_jacobians(seed: int, batch: int) -> None:
    best = proxies._jacov(torch.eye(batch, dtype=torch.double))
    assert best == pytest.approx(-math.log(batch), abs=1e-4)
    jacobian = torch.from_numpy(np.random.default_rng(seed).standard_normal((batch, 50)))
    correlation = torch.corrcoef(jacobian)
    assert proxies._jacov(correlation) < best
    assert proxies._jacov(torch.corrcoef(3 * jacobian)) == pytest.approx(
        proxies._jacov(correlation)
    )


def test_images_are_correlated_over_distances_and_standardized() -> None:
    images = proxies._images(32, (3, 32, 32), 0)
    assert images.mean((0, 2, 3)).abs().max() < 1e-5
    assert images.std((0, 2, 3)).numpy() == pytest.approx(np.ones(3), abs=1e-3)
    near, far = ((images[..., d:] * images[..., :-d]).mean() for d in (1, 16))
    assert 0.1 < far < 0.6 < near


def test_bad_requests_are_named() -> None:
    graph = SPACE.graph(CELL)
    with pytest.raises(InputError, match="did you mean 'synflow'"):
        compute_proxies(graph, names=["sinflow"])
    with pytest.raises(InputError, match="batch = 1 is too small"):
        compute_proxies(graph, batch=1)
    with pytest.raises(InputError, match="fix the model's input size"):
        compute_proxies(Graph((0,), (), (0,), (("N", 3, "H", "W"),)))


@pytest.mark.slow
def test_ranks_agree_with_published_values(nas_data: Path) -> None:
    archs, reference = read_reference(nas_data / TABLE)
    space = get_space("nasbench201")
    chosen = np.random.default_rng(0).permutation(len(archs))[:12]
    values = [
        compute_proxies(space.graph(space.parse(archs[i])), 0, AGREEING, batch=16) for i in chosen
    ]
    for name in AGREEING:
        own, theirs = np.array([v[name] for v in values]), reference[name][chosen]
        defined = np.isfinite(own) & np.isfinite(theirs)
        assert kendalltau(own[defined], theirs[defined]).statistic >= 0.6, name
