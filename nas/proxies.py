"""Zero-cost proxies: scores of an untrained network that correlate with its trained accuracy.

All are computed on one batch of Gaussian noise with random labels, so they need no data set. Higher is better.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from nas.module import GraphModule
from search_spaces.graph import Graph

PROXIES = ("grad_norm", "jacov", "nwot", "snip", "synflow")
BATCH = 32


def compute_proxies(graph: Graph, seed: int = 0) -> dict[str, float]:
    """All proxies of one architecture with weights and batch drawn from `seed`; NaN where one is undefined.

    grad_norm and snip (arXiv 1810.02340): gradients of the loss; jacov and nwot (arXiv 2006.04647): how differently the
    network treats the inputs of a batch; synflow (arXiv 2006.05467): flow through absolute weights. Values that span
    decades are given as natural logarithms.
    """
    torch.manual_seed(seed)
    net = GraphModule(graph).train()
    shape = [d for d in graph.shapes[0][1:] if isinstance(d, int)]
    x = torch.randn(BATCH, *shape, requires_grad=True)
    codes = _record_activations(net)
    logits = net(x)
    labels = torch.randint(logits.shape[1], (BATCH,))
    weights = [p for p in net.parameters() if p.dim() > 1]
    jacobian = torch.autograd.grad(logits.sum(), x, retain_graph=True, allow_unused=True)[0]
    grads = torch.autograd.grad(functional.cross_entropy(logits, labels), weights, allow_unused=True)
    pairs = [(w.detach(), g) for w, g in zip(weights, grads, strict=True) if g is not None]
    return {
        "grad_norm": _log(sum(float(g.norm()) for _, g in pairs)),
        "jacov": math.nan if jacobian is None else _jacov(jacobian.flatten(1)),
        "nwot": _nwot(codes),
        "snip": _log(sum(float((w * g).abs().sum()) for w, g in pairs)),
        "synflow": _synflow(net, x),
    }


def _log(value: float) -> float:
    return math.log(value) if 0 < value < math.inf else math.nan


def _record_activations(net: GraphModule) -> list[Tensor]:
    """Collects, during the next forward pass, which rectified units are on: (batch, units) per ReLU."""
    codes: list[Tensor] = []
    for layer in net.layers:
        if getattr(layer, "function", None) is functional.relu:
            layer.register_forward_hook(lambda _m, _i, y: codes.append((y.detach() > 0).flatten(1).float()))
    return codes


def _nwot(codes: list[Tensor]) -> float:
    """Log determinant of the kernel of shared activation patterns."""
    kernel = sum((c @ c.T + (1 - c) @ (1 - c).T for c in codes), torch.zeros(BATCH, BATCH))
    sign, value = torch.linalg.slogdet(kernel.double())
    return float(value) if float(sign) > 0 and math.isfinite(float(value)) else math.nan


def _jacov(jacobian: Tensor) -> float:
    """How uncorrelated the inputs' Jacobians are; near 0 is best."""
    correlation = torch.corrcoef(jacobian.double())
    if not torch.isfinite(correlation).all():
        return math.nan
    eigenvalues = torch.linalg.eigvalsh(correlation) + 1e-5
    if float(eigenvalues.min()) <= 0:
        return math.nan
    score = float((eigenvalues.log() + 1 / eigenvalues).sum())
    return -_log(score)


def _synflow(net: GraphModule, x: Tensor) -> float:
    """Sum of weight times gradient with absolute weights and an all-one input, batch normalization left out."""
    norms = [m for m in net.modules() if isinstance(m, nn.BatchNorm2d)]
    for norm in norms:
        norm.forward = lambda y: y  # type: ignore[method-assign, assignment]
    net.double()
    with torch.no_grad():
        for p in net.parameters():
            p.abs_()
    weights = [p for p in net.parameters() if p.dim() > 1]
    grads = torch.autograd.grad(net(torch.ones_like(x[:1]).double()).sum(), weights, allow_unused=True)
    return _log(sum(float((w.detach() * g).sum()) for w, g in zip(weights, grads, strict=True) if g is not None))
