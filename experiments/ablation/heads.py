"""Forms of the output. Each reads the same hidden states and is trained on the same tasks.

`Gaussian` and `Quantiles` are small networks, and `SeparateDigits` writes each digit without knowing
those before. Reader and encoder are frozen. They were pretrained together with the RLM's own decoder,
`Digits`, for many more steps, which favours it.

Sizes in comments: q queries, D width, s quantiles, L tokens of a number.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from scipy.special import ndtri
from torch import Tensor, nn
from torch.nn import functional

from nas.cli.progress import progress_bar
from predictors.rlm.decoder import (
    MAX_NUMBER,
    NUMBER_LENGTH,
    NUMBER_TOKENS,
    PLACE_VALUES,
    NumberDecoder,
    grammar,
    sample_numbers,
    write_numbers,
)
from predictors.rlm.model import TOKEN_WEIGHTS

if TYPE_CHECKING:
    from predictors.rlm.in_context import ContextConfig
    from predictors.rlm.model import Model

LEVELS = (np.arange(32) + 0.5) / 32  # of the quantiles that every head gives
KNOTS = (np.arange(16) + 0.5) / 16  # levels that `Quantiles` learns
HIDDEN = 128  # width of the small networks
MIN_SPREAD = 1e-2  # in z, the resolution of digits
BATCH, LEARNING_RATE = 512, 1e-3
SPACES, DRAWS, STEPS = 30, 150, 1000
ALLOWED = torch.from_numpy(grammar())


class Head(nn.Module, ABC):
    """Maps hidden states (q, D) to a distribution of z."""

    @abstractmethod
    def loss(self, hidden: Tensor, z: Tensor) -> Tensor:
        """Mean loss of targets z (q,)."""

    @abstractmethod
    def quantiles(self, hidden: Tensor) -> np.ndarray:
        """Quantiles (q, s) at `LEVELS`."""


def _network(width: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, outputs))


class Gaussian(Head):
    """Mean and standard deviation, by maximum likelihood."""

    def __init__(self, config: ContextConfig) -> None:
        super().__init__()
        self.network = _network(config.width, 2)

    def _moments(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        mean, raw = self.network(hidden).unbind(-1)
        return mean, functional.softplus(raw) + MIN_SPREAD

    def loss(self, hidden: Tensor, z: Tensor) -> Tensor:
        mean, spread = self._moments(hidden)
        return (spread.log() + ((z - mean) / spread).square() / 2).mean()

    def quantiles(self, hidden: Tensor) -> np.ndarray:
        mean, spread = (moment.numpy()[:, None] for moment in self._moments(hidden))
        return gaussian_quantiles(mean, spread)


def gaussian_quantiles(mean: np.ndarray, spread: np.ndarray) -> np.ndarray:
    """Quantiles (q, s) at `LEVELS` of Gaussians with means and standard deviations (q, 1)."""
    return mean + spread * ndtri(LEVELS)


class Quantiles(Head):
    """Quantiles at `KNOTS`, by the pinball loss. They rise by construction."""

    def __init__(self, config: ContextConfig) -> None:
        super().__init__()
        self.network = _network(config.width, len(KNOTS))

    def _knots(self, hidden: Tensor) -> Tensor:
        lowest, steps = self.network(hidden).split([1, len(KNOTS) - 1], -1)
        return torch.cat([lowest, lowest + functional.softplus(steps).cumsum(-1)], -1)

    def loss(self, hidden: Tensor, z: Tensor) -> Tensor:
        missed = z[:, None] - self._knots(hidden)
        levels = torch.from_numpy(KNOTS).float()
        return torch.maximum(levels * missed, (levels - 1) * missed).mean()

    def quantiles(self, hidden: Tensor) -> np.ndarray:
        knots = self._knots(hidden).numpy().astype(float)  # (q, knots)
        # 1. Between the knots, on the scale of a Gaussian.                                    (q, s)
        normal = ndtri(KNOTS)
        levels = ndtri(LEVELS)
        rows = [np.interp(levels, normal, row) for row in knots]

        # 2. Beyond the outer ones, the quantiles go on as a Gaussian would.
        first_slope = (knots[:, 1] - knots[:, 0]) / (normal[1] - normal[0])  # (q,)
        last_slope = (knots[:, -1] - knots[:, -2]) / (normal[-1] - normal[-2])
        below = np.minimum(levels - normal[0], 0)  # (s,)
        above = np.maximum(levels - normal[-1], 0)
        return np.array(rows) + first_slope[:, None] * below + last_slope[:, None] * above


class Digits:
    """The RLM's decoder, as it is: each digit is conditioned on those before."""

    def __init__(self, decoder: NumberDecoder) -> None:
        self.decoder = decoder

    def quantiles(self, hidden: Tensor) -> np.ndarray:
        """Quantiles (q, s) at `LEVELS` for hidden states (q, D)."""
        count = len(hidden)
        rows = np.repeat(np.arange(count), len(LEVELS))
        drawn = sample_numbers(
            self.decoder, self.decoder.conditions(hidden), rows, np.tile(LEVELS, count)
        )
        return drawn.reshape(count, -1)


class SeparateDigits(Head):
    """Digits that do not know each other: one distribution per place."""

    def __init__(self, config: ContextConfig) -> None:
        super().__init__()
        self.network = _network(config.width, NUMBER_LENGTH * NUMBER_TOKENS)

    def _logits(self, hidden: Tensor) -> Tensor:
        return self.network(hidden).unflatten(-1, (NUMBER_LENGTH, NUMBER_TOKENS))

    def loss(self, hidden: Tensor, z: Tensor) -> Tensor:
        tokens = torch.from_numpy(write_numbers(z.numpy()))  # (q, L)
        # Weighted as in pretraining, under the number grammar.
        logits = self._logits(hidden).masked_fill(~ALLOWED, -1e9)
        losses = functional.cross_entropy(logits.mT, tokens, reduction="none")
        return (losses * TOKEN_WEIGHTS).sum(1).mean()

    def quantiles(self, hidden: Tensor) -> np.ndarray:
        # 1. Probabilities of all sizes, 0.00 to 9.99, and of both signs.              (q, 1000)
        masked = self._logits(hidden).double().masked_fill(~ALLOWED, -torch.inf)
        signs, *places = masked.softmax(-1).unbind(1)
        units, tenths, hundredths = (place[:, 2:] for place in places)  # (q, 10) each
        sizes = torch.einsum("qa,qb,qc->qabc", units, tenths, hundredths).flatten(1)
        plus = signs[:, :1] * sizes
        minus = signs[:, 1:2] * sizes

        # 2. The numbers in rising order, and where their shares reach the levels.      (q, 2000)
        shares = torch.cat([minus.flip(1), plus], 1).cumsum(1)
        size = np.arange(1000) * PLACE_VALUES[-1]
        numbers = np.concatenate([-size[::-1], size])
        levels = torch.from_numpy(LEVELS).expand(len(hidden), -1).contiguous()
        reached = torch.searchsorted(shares, levels).clamp(max=len(numbers) - 1)
        return numbers[reached.numpy()]


HEADS: dict[str, type[Head]] = {
    "Gaussian": Gaussian,
    "quantiles": Quantiles,
    "digits, each alone": SeparateDigits,
}


def trained_heads(
    model: Model,
    folder: Path,
    base: str,
    spaces: int = SPACES,
    draws: int = DRAWS,
    steps: int = STEPS,
) -> dict[str, Head]:
    """The heads, trained on random tasks in generated spaces; files in `folder` are reused.

    Args:
        model: its encoder and reader are frozen.
        folder: for the bank of spaces, the hidden states and the weights.
        base: name of the model.
        spaces: generated spaces, see `experiments.pretraining.bank`.
        draws: batches of tasks, whose hidden states are computed once.
        steps: optimizer steps of each head.
    """
    heads: dict[str, Head] = {}
    drawn: tuple[Tensor, Tensor] | None = None
    for name, kind in HEADS.items():
        torch.manual_seed(0)
        head = kind(model.config.context)
        path = folder / f"{name.replace(', ', '-').replace(' ', '-')}-{base}.safetensors"
        if path.exists():
            head.load_state_dict(load_file(path))
        else:
            drawn = drawn or _hidden_states(model, folder, base, spaces, draws)
            _train(name, head, *drawn, steps)
            save_file(head.state_dict(), path)
        heads[name] = head.eval()
    return heads


def _hidden_states(
    model: Model, folder: Path, base: str, spaces: int, draws: int
) -> tuple[Tensor, Tensor]:
    """Hidden states (m, D) and targets (m,) of the queries of random tasks.

    They are read from a file if it exists.
    """
    path = folder / f"hidden-{base}-{spaces}-{draws}.safetensors"
    if not path.exists():
        hidden, targets = _draw_hidden_states(model, folder, spaces, draws)
        save_file({"hidden": hidden, "targets": targets}, path)
    stored = load_file(path)
    return stored["hidden"], stored["targets"]


@torch.inference_mode()
def _draw_hidden_states(
    model: Model, folder: Path, spaces: int, draws: int
) -> tuple[Tensor, Tensor]:
    from experiments.pretraining.bank import build_bank, generated_files, load_space
    from experiments.pretraining.pretrain import _tasks, read_states
    from experiments.pretraining.random_tasks import PRIOR

    with progress_bar("hidden states") as bar:
        paths = build_bank(folder / "bank", generated_files(spaces, 0), bar)
        banked = []
        for number, path in enumerate(paths, start=1):
            banked.append(read_states(model, load_space(path)))
            bar("states", number, len(paths))
        hidden, targets = [], []
        for step in range(draws):
            for task in _tasks(banked, np.random.default_rng([1, step]), PRIOR):
                examples, queries = (
                    torch.from_numpy(part)[None].float() for part in (task.examples, task.queries)
                )
                example_targets = torch.from_numpy(task.example_targets)[None].float()
                memory = model.reader.examples(examples, example_targets)
                hidden.append(model.reader(queries, memory)[0])
                targets.append(torch.from_numpy(task.query_targets).float())
            bar("tasks", step + 1, draws)
    return torch.cat(hidden), torch.cat(targets).clamp(-MAX_NUMBER, MAX_NUMBER)


def _train(name: str, head: Head, hidden: Tensor, z: Tensor, steps: int) -> None:
    """Train a head in place, with a linearly falling learning rate."""
    optimizer = torch.optim.AdamW(head.parameters(), LEARNING_RATE, weight_decay=0.01)
    generator = torch.Generator().manual_seed(0)
    with progress_bar(name) as bar:
        for step in range(steps):
            rows = torch.randint(len(z), (BATCH,), generator=generator)
            loss = head.loss(hidden[rows], z[rows])
            optimizer.param_groups[0]["lr"] = LEARNING_RATE * (1 - step / steps)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(head.parameters(), 1.0)
            optimizer.step()
            bar(f"{name}, loss {loss.item():.3f}", step + 1, steps)
