"""Pretraining of the encoder's network `accuracies`: from what a network computes to the accuracies
of short trainings.

Its two outputs are for few and for many steps; spaces with one kind of training have the same
target for both. Only their order within a space counts, and the encoder's other parts stay as they
are. One training is noisy: the results of NAS-Bench-201's cells are smoothed by Gaussian processes
on the states, so that the network can learn fine differences.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from scipy.stats import norm, rankdata
from torch import Tensor
from torch.nn import functional

from experiments.pretraining.bank import CELL_NETWORKS, MEASURED, PROXIES, BankedSpace
from experiments.pretraining.encoder import set_rate
from experiments.pretraining.short_trainings import Row, read
from predictors.rlm.encoder import TextEncoder, collate
from predictors.rlm.kernel_regression import AXES, Projection
from predictors.rlm.tokens import ACCURACIES, Tokens
from search_spaces.common.progress import Progress

LEARNING_RATE, WEIGHT_DECAY = 1e-3, 0.05
NETWORKS, SPACES = 512, 2  # of a space, and spaces per step
# Of a space with trainings: networks, and standard deviation of accuracies
MIN_NETWORKS, MIN_SPREAD = 40, 0.01
MANY_STEPS = 200
# Cells that give the coordinates, and that give the kernel's parameters
AXIS_ROWS, FIT_ROWS = 1500, 1200
FEW_WEIGHT = 3.0  # of the smoothed results of few steps among the coordinates for many steps
DIGITS = len(PROXIES) + MEASURED.index("digits_accuracy")  # column of the populations


class Trainings(NamedTuple):
    """Inputs (n, I) of the network and normal scores (n, ACCURACIES) of the same networks.

    Scores are NaN if unknown.
    """

    inputs: Tensor
    scores: Tensor


def pretrain_accuracies(
    encoder: TextEncoder,
    pools: Sequence[Sequence[BankedSpace]],
    steps: int,
    seed: int,
    progress: Progress,
) -> None:
    """Train the network in place, on equally likely pools of spaces.

    Pools without trainings are left out.
    """
    tasks = [trainings for pool in pools if (trainings := _trainings(encoder, pool))]
    weights = encoder.accuracies.parameters()
    optimizer = torch.optim.AdamW(weights, LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    for step in range(steps if tasks else 0):
        rng = np.random.default_rng([seed, step])
        drawn = []
        for pool in rng.integers(len(tasks), size=SPACES):
            of_pool = tasks[pool]
            drawn.append(of_pool[rng.integers(len(of_pool))])
        loss = torch.stack([_loss(encoder, task, rng) for task in drawn]).mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        set_rate(optimizer, LEARNING_RATE, step, steps)
        optimizer.step()
        progress(f"loss {loss.item():.3f}", step + 1, steps)


def targets(space: BankedSpace, rows: Sequence[Row]) -> np.ndarray:
    """Normal scores (n, ACCURACIES) of a space's networks in short trainings, NaN if unknown."""
    of_space = np.full((len(space.lines), ACCURACIES), np.nan)
    # 1. Spaces with accuracies of digits have one result of each network.
    if space.others.shape[1] > DIGITS:
        of_space[:] = _scores(space.others[:, DIGITS])[:, None]
        return of_space

    # 2. The rows of others. A part of the cells has the networks from `first` on.
    kind, _, number = space.name.partition("-")
    is_cells = kind == "cells"
    name = kind if is_cells else space.name
    first = int(number) * CELL_NETWORKS if is_cells else 0
    own = []
    for row in rows:
        network = row.network - first
        if row.space == name and 0 <= network < len(of_space):
            own.append(row._replace(network=network))

    # 3. Cells have trainings of few and of many steps, others fill both columns.
    for column in range(ACCURACIES):
        some = [r for r in own if not is_cells or (r.steps >= MANY_STEPS) == bool(column)]
        accuracies = np.array([r.accuracy for r in some])
        if len(some) < MIN_NETWORKS or not accuracies.std() > MIN_SPREAD:
            continue
        gains = np.array([-r.loss for r in some])
        scores = (_scores(accuracies) + _scores(gains)) / 2
        of_space[[r.network for r in some], column] = scores
    return of_space


def _trainings(encoder: TextEncoder, pool: Sequence[BankedSpace]) -> list[Trainings]:
    """The trainings of a pool's spaces; all cells are one space."""
    rows = read()
    trainings = []
    cells = [space for space in pool if space.name.startswith("cells-")]
    for space in pool:
        scores = targets(space, rows)
        known = np.isfinite(scores).any(1)
        if not space.name.startswith("cells-") and known.any():
            lines = [space.lines[i] for i in np.flatnonzero(known)]
            trainings.append(_read(encoder, lines, scores[known]))
    if cells:
        scores = np.concatenate([targets(space, rows) for space in cells])
        lines = [of_network for space in cells for of_network in space.lines]
        trainings.append(_read(encoder, lines, scores, smooth=True))
    return trainings


def _read(
    encoder: TextEncoder, lines: Sequence[Tokens], scores: np.ndarray, smooth: bool = False
) -> Trainings:
    inputs: list[Tensor] = []
    handle = encoder.accuracies.register_forward_pre_hook(
        lambda _, read: inputs.append(read[0].clone())
    )
    with torch.no_grad():
        parts = [encoder(collate(lines[i : i + 64])) for i in range(0, len(lines), 64)]
    handle.remove()
    if smooth:
        states = torch.cat(parts).double().numpy()
        scores = smoothed(states, scores)
    return Trainings(torch.cat(inputs), torch.from_numpy(scores).float())


def smoothed(states: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """Results (n, ACCURACIES) of all networks, of which some are known.

    They are predicted by Gaussian processes on states (n, S). The one for many steps also reads
    what is predicted for few steps, of which more are known.
    """
    # 1. Principal axes of the states.
    none = np.zeros((len(states), 0))
    projection = Projection.fit(states[:AXIS_ROWS], none[:AXIS_ROWS])
    coordinates = projection(states, none)[:, : sum(AXES)]

    # 2. Few steps, then many steps.
    few = _by_process(coordinates, scores[:, 0])
    with_few = np.column_stack([coordinates, FEW_WEIGHT * few])
    many = _by_process(with_few, scores[:, 1])
    return np.column_stack([few, many])


def _by_process(x: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Predictions (n,) for points x (n, d) from the finite ones of values (n,)."""
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

    known = np.flatnonzero(np.isfinite(values))
    kernel = ConstantKernel() * RBF(8.0) + WhiteKernel(0.3)
    some = known[:FIT_ROWS]
    kernel = GaussianProcessRegressor(kernel, normalize_y=True).fit(x[some], values[some]).kernel_
    process = GaussianProcessRegressor(kernel, optimizer=None, normalize_y=True).fit(
        x[known], values[known]
    )
    return process.predict(x)


def _loss(encoder: TextEncoder, task: Trainings, rng: np.random.Generator) -> Tensor:
    """Mean of 1 - correlation between outputs and scores of some networks."""
    rows = rng.permutation(len(task.inputs))[:NETWORKS]
    predicted = encoder.accuracies(task.inputs[rows])
    true = task.scores[rows]
    losses = []
    for a, b in zip(predicted.T, true.T, strict=True):
        known = b.isfinite()
        if known.sum() <= 2:
            continue
        a, b = a[known], b[known]
        correlation = functional.cosine_similarity(a - a.mean(), b - b.mean(), dim=0)
        losses.append(1 - correlation)
    return torch.stack(losses).mean()


def _scores(values: np.ndarray) -> np.ndarray:
    return norm.ppf((rankdata(values) - 0.5) / len(values))
