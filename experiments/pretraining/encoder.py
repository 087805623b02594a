"""Pretraining of the encoder: kernel regression on a few states of a space must predict the targets
of the others.

This is meta-learning with a closed-form head (R2-D2, arXiv 1805.08136). The encoder learns states
in which functions of a network's structure are smooth, in any space.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from experiments.pretraining.bank import BankedSpace
from experiments.pretraining.structural_targets import DEVICES, QUALITIES
from predictors.rlm.encoder import TextEncoder, collate
from predictors.rlm.kernel_regression import COMMON_WEIGHT
from predictors.rlm.tokens import COMMON, PROXIES, TextFeatures
from search_spaces.common.progress import Progress

LEARNING_RATE = 1e-3
SUPPORTS, QUERIES = (16, 32, 48, 64), 32
# Targets of a head per step; those that share a noise level, and so a solve
TARGETS, TARGETS_PER_NOISE = 16, 8
MAX_NETWORKS = 600
PROXY_WEIGHT = 1.0
SAVE_EVERY = 200
# 16-bit products take half the time on processors with AVX-512, and seven times the time on those
# with AVX2 only.
HALF_PRECISION = torch.backends.cpu.get_cpu_capability() == "AVX512"


class KernelRegression(nn.Module):
    """Gaussian process regression with parameters that are trained together with the encoder.

    The kernel is isotropic, except for the weights of the states' quality and counts relative to
    their structure.
    """

    def __init__(self, quality: float, counts: float) -> None:
        """quality, counts: initial logarithms of these weights."""
        super().__init__()
        self.logs = nn.Parameter(torch.tensor([0.2, 0.0, -1.0, -2.0]))
        self.weights = nn.Parameter(torch.tensor([quality, counts]))

    def forward(self, states: Tensor, n: int, targets: Tensor, noise: Tensor) -> Tensor:
        """Predict the targets (q, T) of the last q states.

        Args:
            states: (n + q, S).
            n: number of states with known targets, which come first.
            targets: (n, T) known targets.
            noise: (T / TARGETS_PER_NOISE,) variances that are added to the kernel's diagonal.
        """
        joint = _joint(states, n, self.weights.exp())
        support, query = joint[:n], joint[n:]
        center = support.mean(0)
        scale = (support - center).square().sum(1).mean().sqrt() + 1e-6
        s = (support - center) / scale
        q = (query - center) / scale
        across = self._kernel(q, s)
        own = self._kernel(s, s)
        eye = torch.eye(len(s), device=s.device)
        solved = []
        for level, group in zip(noise, targets.split(TARGETS_PER_NOISE, 1), strict=True):
            penalty = self.logs[3].exp() + level
            solved.append(torch.linalg.solve(own + penalty * eye, group))
        return across @ torch.cat(solved, 1)

    def _kernel(self, a: Tensor, b: Tensor) -> Tensor:
        length, curved, linear, _ = self.logs.exp()
        square_a = a.square().sum(1)[:, None]
        square_b = b.square().sum(1)
        squared = (square_a + square_b - 2 * a @ b.T).clamp(min=0)
        nearness = torch.exp(-squared / (2 * length**2))
        return curved * nearness + linear * (a @ b.T)


def regression_heads() -> nn.ModuleList:
    """Two heads: for structural targets, and for targets like accuracies.

    The latter are proxies, measurements and random qualities.
    """
    return nn.ModuleList(
        [KernelRegression(quality=-1.0, counts=0.0), KernelRegression(quality=0.5, counts=-1.0)]
    )


def pretrain_encoder(
    encoder: TextEncoder,
    pools: Sequence[Sequence[BankedSpace]],
    steps: int,
    seed: int,
    checkpoint: Path,
    progress: Progress | None = None,
    rate: float = LEARNING_RATE,
) -> None:
    """Train the encoder in place.

    An interrupted training resumes from `checkpoint`, written every `SAVE_EVERY` steps. Each step
    uses one space of one pool. Pools are equally likely. Half of the steps use a space with proxies
    or measurements, if the pool has one.
    """
    heads = regression_heads()
    parameters = [*encoder.parameters(), *heads.parameters()]
    optimizer = torch.optim.AdamW(parameters, LEARNING_RATE, betas=(0.9, 0.98), weight_decay=0.01)
    first = resume(checkpoint, {"encoder": encoder, "heads": heads}, optimizer)
    for step in range(first, steps):
        rng = np.random.default_rng([seed, step])
        pool = pools[int(rng.integers(len(pools)))]
        with_others = [space for space in pool if space.others.shape[1]]
        pool = with_others if with_others and rng.random() < 0.5 else pool
        loss = _loss(encoder, heads, pool[int(rng.integers(len(pool)))], rng)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        set_rate(optimizer, rate, step, steps)
        optimizer.step()
        if (step + 1) % SAVE_EVERY == 0 or step + 1 == steps:
            keep(checkpoint, {"encoder": encoder, "heads": heads}, optimizer, step + 1)
        if progress:
            progress(f"loss {loss.item():.3f}", step + 1, steps)


def set_rate(optimizer: torch.optim.Optimizer, peak: float, step: int, steps: int) -> None:
    """Let the learning rate rise to its peak in 100 steps, and fall to a hundredth by a cosine."""
    rise = (step + 1) / 100
    fall = 0.5 * (1 + math.cos(math.pi * step / steps)) + 0.01
    for group in optimizer.param_groups:
        group["lr"] = peak * min(rise, fall)


def _loss(
    encoder: TextEncoder, heads: nn.ModuleList, space: BankedSpace, rng: np.random.Generator
) -> Tensor:
    """Error of the heads' predictions.

    They predict structural targets, and targets that resemble accuracies.
    """
    # 1. Some networks of the space, of which the heads learn from the first n.
    lines = space.lines[:MAX_NETWORKS]
    n = min(int(rng.choice(SUPPORTS)), len(lines) // 2)
    rows = rng.choice(len(lines), min(n + QUERIES, len(lines)), replace=False)
    with torch.autocast("cpu", torch.bfloat16, enabled=HALF_PRECISION):
        states = encoder(collate([lines[i] for i in rows])).float()

    # 2. Their targets, a pool for each head.
    structural = _usable(space.targets[rows])
    others = _usable(space.others[rows])
    if not others.shape[1]:  # random qualities resemble accuracies, too
        others = _usable(space.targets[rows][:, DEVICES : DEVICES + QUALITIES])
    pools = (structural, others)

    # 3. The losses.
    loss = torch.zeros(())
    for head, pool in zip(heads, pools, strict=True):
        loss = loss + _regression_loss(head, states, n, pool, rng)
    if space.others.shape[1] >= PROXIES:
        predicted = states[:, -COMMON:][:, :PROXIES]
        loss = loss + PROXY_WEIGHT * _proxy_loss(predicted, space.others[rows])
    return loss


def _regression_loss(
    head: nn.Module, states: Tensor, n: int, pool: np.ndarray, rng: np.random.Generator
) -> Tensor:
    """Error of predicted random functions of a pool (n + q, T) in its last q rows.

    They are predicted from noisy values in the first n. One half of the loss is the logarithm of
    the error, so that easy targets count as well.
    """
    # 1. Random functions (n + q, TARGETS), and noisy values of them.
    noise = np.exp(rng.uniform(-4, 0, TARGETS // TARGETS_PER_NOISE))
    clean = _targets(pool, TARGETS, rng)
    deviation = np.sqrt(np.repeat(noise, TARGETS_PER_NOISE))
    noisy = clean + deviation * rng.standard_normal(clean.shape)

    # 2. Errors (q, TARGETS) of the last rows, from the values of the first ones.
    targets = torch.from_numpy(noisy[:n]).float()
    level = torch.from_numpy(noise).float()
    expected = torch.from_numpy(clean[n:]).float()
    predicted = head(states, n, targets, level)
    error = (predicted - expected).square()

    # 3. Both halves of the loss.
    of_logarithms = (error.mean(0) + 1e-3).log().mean()
    of_errors = error.clamp(max=9).mean()
    return 0.25 * of_logarithms + 0.25 * of_errors


def _proxy_loss(predicted: Tensor, others: np.ndarray) -> Tensor:
    """Mean of 1 - correlation between predicted proxies (n, P) and ranks of true ones.

    The true proxies are the first P columns of others (n, R).
    """
    proxies = others[:, : predicted.shape[1]]  # (n, P)
    ranks = proxies.argsort(0).argsort(0).astype(np.float32)
    is_known = np.isfinite(proxies).all(0)
    differs = np.ptp(proxies, 0) > 0
    usable = is_known & differs  # (P,)
    if not usable.any():
        return predicted.sum() * 0
    a = predicted[:, usable]
    b = torch.from_numpy(ranks[:, usable])
    a = a - a.mean(0)
    b = b - b.mean(0)
    correlation = functional.cosine_similarity(a, b, dim=0)
    return (1 - correlation).mean()


def _joint(states: Tensor, n: int, weights: Tensor) -> Tensor:
    """Scale structure, quality, counts and common part as the in-context decoder does.

    The scales are those of their first n rows.
    """
    # No neighbours: they are not learned
    *parts, _, common = states.split(TextFeatures.sizes(states.shape[1]), 1)
    structure, quality, counts = (_unit(part, n) for part in parts)
    common = (common - common[:n].mean(0)) / common[:n].std(0).clamp(min=1e-3)
    weighted = [
        structure,
        weights[0] * quality,
        weights[1] * counts,
        COMMON_WEIGHT * common.clamp(-5, 5),
    ]
    return torch.cat(weighted, 1)


def _unit(values: Tensor, n: int) -> Tensor:
    centred = (values - values[:n].mean(0))[:n]
    length = centred.square().sum(1).mean().sqrt()
    return values / length.clamp(min=1e-6)


def _targets(pool: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """Random functions (n, count), each of one to three columns of a pool (n, T)."""
    functions = []
    for _ in range(count):
        # 1. A random direction in one to three columns.
        columns = rng.choice(pool.shape[1], rng.choice([1, 1, 2, 3]))
        some = pool[:, columns]
        f = some @ rng.standard_normal(some.shape[1])
        # 2. Half of them bent.
        kind = rng.random()
        if kind < 0.3:
            f = np.tanh(f * rng.uniform(0.5, 1.5))
        elif kind < 0.5:
            f = f + 0.7 * np.prod(np.tanh(some), 1) * rng.choice([-1, 1])
        elif kind < 0.65:
            f = np.exp(0.5 * f.clip(-4, 4))
        # 3. Standardized.
        centred = f - f.mean()
        functions.append(centred / (f.std() + 1e-6))
    return np.stack(functions, 1).clip(-4, 4)


def _usable(targets: np.ndarray) -> np.ndarray:
    """The finite columns with variance, standardized."""
    targets = targets[:, np.isfinite(targets).all(0)]
    targets = targets[:, targets.std(0) > 1e-6]
    return ((targets - targets.mean(0)) / (targets.std(0) + 1e-9)).clip(-5, 5)


# --- between two steps


def keep(
    path: Path, modules: dict[str, nn.Module], optimizer: torch.optim.Optimizer, step: int
) -> None:
    """Write weights, the optimizer's state and the step to one safetensors file."""
    from safetensors.torch import save_file

    from search_spaces.common.files import replacing

    tensors = {}
    for name, module in modules.items():
        for key, tensor in module.state_dict().items():
            tensors[f"{name}.{key}"] = tensor.contiguous()
    for number, state in optimizer.state_dict()["state"].items():
        for key, tensor in state.items():
            tensors[f"optimizer.{number}.{key}"] = tensor.contiguous()
    with replacing(path) as file:
        save_file(tensors, file, {"step": str(step)})


def resume(path: Path, modules: dict[str, nn.Module], optimizer: torch.optim.Optimizer) -> int:
    """Load the file of `keep` if it exists. Returns the next step, 0 without a file."""
    from safetensors import safe_open

    if not path.exists():
        return 0
    with safe_open(path, "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        step = int(file.metadata()["step"])
    for name, module in modules.items():
        own = {}
        for key, tensor in tensors.items():
            module_name, _, key_of_module = key.partition(".")
            if module_name == name:
                own[key_of_module] = tensor
        module.load_state_dict(own)
    state: dict[int, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        if key.startswith("optimizer."):
            _, number, name = key.split(".", 2)
            state.setdefault(int(number), {})[name] = tensor
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
    return step
