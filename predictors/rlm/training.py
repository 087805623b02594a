"""Fitting the decoder, and the encoder where asked, to tables of metrics with gaps."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from scipy.stats import rankdata
from torch import Tensor, nn
from torch.nn import functional

from predictors.rlm.model import MAX_METRICS
from predictors.rlm.numbers import HIGH, LOW, NUMBER_TOKENS, NumberFormat
from search_spaces.common.errors import InputError
from search_spaces.common.files import replacing

if TYPE_CHECKING:
    from accelerate import Accelerator

Progress = Callable[[int, int, float], None]
IGNORE = -100
SAVE_EVERY = 250
SORTED_BATCHES = 16
STRUCTURE_WEIGHT = 0.25  # of a readout's structure against its metrics; a teacher's embeddings weigh as much as these
MIDDLE, SPREAD = (LOW + HIGH) / 2, (HIGH - LOW) / 12**0.5  # of a metric on its scale, where it is evenly spread


@dataclass(frozen=True)
class Schedule:
    """Length and sizes of a training run. `jitter` blurs targets, in units of the metrics' scale from 1 to 9."""

    steps: int
    batch: int = 64
    learning_rate: float = 1e-3
    weight_decay: float = 0.02
    jitter: float = 0.2
    most_metrics: int = 4


@dataclass(frozen=True)
class Column:
    """One metric of the training table: its token slot, its values on the scale (n,), NaN where missing.

    order: place in the decoding order. target: whether it is to be learned (else it only serves as a known value).
    """

    slot: int
    values: np.ndarray
    order: int
    target: bool = True


def make_sequences(
    columns: Sequence[Column], rows: np.ndarray, number: NumberFormat, schedule: Schedule, rng: np.random.Generator
) -> tuple[Tensor, Tensor]:
    """Decoder inputs (B, L) and the tokens to predict (B, L), `IGNORE` where none: random metrics for every row.

    Every row gets at least one target and up to `most_metrics` in all, in decoding order, so that the model learns to
    predict any of them with any others known before.
    """
    length = number.length + 1
    order = np.array([c.order for c in columns])
    slots = np.array([c.slot for c in columns])
    known = np.stack([~np.isnan(c.values[rows]) for c in columns], 1)  # (B, metrics)
    target = np.array([c.target for c in columns])
    draw = np.where(known, rng.random(known.shape), 2.0)
    first = np.where(known & target, draw, 3.0).argmin(1)
    draw[np.arange(len(rows)), first] = -1.0
    count = np.minimum(known.sum(1), rng.integers(1, schedule.most_metrics + 1, len(rows)))
    chosen = draw.argsort(1).argsort(1) < count[:, None]
    width = int(count.max())
    inputs = np.zeros((len(rows), width * length), np.int64)
    wanted = np.full((len(rows), width * length), IGNORE, np.int64)
    place = np.where(chosen, order, order.max() + 1).argsort(1, kind="stable")
    for k in range(width):
        column = place[:, k]
        here = np.flatnonzero(k < count)
        values = np.array([columns[column[i]].values[rows[i]] for i in here])
        values = values + schedule.jitter * rng.standard_normal(len(here)) * target[column[here]]
        tokens = number.encode(values)
        start = k * length
        inputs[here, start] = NUMBER_TOKENS + slots[column[here]]
        inputs[here, start + 1 : start + length] = tokens
        learn = here[target[column[here]]]
        wanted[learn, start : start + length - 1] = tokens[target[column[here]]]
    return torch.from_numpy(inputs), torch.from_numpy(wanted)


def digit_loss(decoder: nn.Module, memory: Tensor, inputs: Tensor, wanted: Tensor, allowed: Tensor) -> Tensor:
    """Mean cross-entropy per number token under the number grammar, in nats."""
    logits = decoder(memory, inputs)
    place = torch.arange(inputs.shape[1]) % (len(allowed) + 1)
    grammar = torch.cat([allowed, torch.ones_like(allowed[:1])])[place]
    logits = logits.masked_fill(~grammar, -1e9)
    return functional.cross_entropy(logits.flatten(0, 1), wanted.flatten(), ignore_index=IGNORE)


def readout_loss(predicted: Tensor, columns: Sequence[Column], rows: np.ndarray) -> Tensor:
    """Mean squared error of a `Readout` (B, 64 + …) in all columns that are targets, over the values that are known."""
    learned = [column for column in columns if column.target]
    values = np.stack([column.values[rows] for column in learned], 1)
    wanted = torch.from_numpy((values - MIDDLE) / SPREAD).float().to(predicted.device)
    error = predicted[:, [column.slot for column in learned]] - wanted
    return error[~torch.isnan(wanted)].square().mean()


def structure_loss(predicted: Tensor, structure: np.ndarray) -> Tensor:
    """Squared error of a `Readout`'s last outputs, by the mean square of what is to be told, (B, components)."""
    wanted = torch.from_numpy(structure).float().to(predicted.device)
    return (predicted[:, MAX_METRICS:] - wanted).square().mean() / structure.var()


def likeness_loss(predicted: Tensor, taught: np.ndarray) -> Tensor:
    """Mean squared error (B, E) of what a teacher makes of the texts (distillation, arXiv 1503.02531)."""
    return (predicted - torch.from_numpy(taught).to(predicted.device)).square().mean()


def train(training: Training, progress: Progress | None = None, checkpoint: Path | None = None) -> list[float]:
    """Run a training to its end; the loss of every step.

    checkpoint: a file in which it is kept every `SAVE_EVERY` steps; one that was interrupted goes on from there, to the
    very same losses and weights.
    """
    schedule = training.schedule
    if checkpoint and checkpoint.exists():
        training.restore(checkpoint)
    while len(training.losses) < schedule.steps:
        training.step()
        done = len(training.losses)
        if checkpoint and training.is_main and (done % SAVE_EVERY == 0 or done == schedule.steps):
            training.save(checkpoint)
        if progress:
            progress(done, schedule.steps, training.losses[-1])
    training.modules.cpu()
    return training.losses


class Training:
    """AdamW with warm-up and cosine decay on random rows of the table; may be kept in a file between two steps.

    read: gives the memory (B, M, D) of a batch of rows. modules: what is trained: a "decoder" learns digits, a
    "readout" all metrics at once, and a "likeness" what is taught. lengths (n,): tokens of the rows' texts, where
    batches of similar ones are quicker. structure (n, components): what the readout learns beside metrics.
    taught (n, E): a teacher's embeddings, of mean 0 and variance 1. accelerator: where this runs, perhaps as one of
    several processes: each learns from its share of every batch, and gradients are averaged; None: on the processor.
    """

    def __init__(
        self,
        read: Callable[[np.ndarray], Tensor],
        modules: Mapping[str, nn.Module],
        columns: Sequence[Column],
        number: NumberFormat,
        schedule: Schedule,
        rng: np.random.Generator,
        lengths: np.ndarray | None = None,
        structure: np.ndarray | None = None,
        taught: np.ndarray | None = None,
        accelerator: Accelerator | None = None,
    ) -> None:
        self.lengths, self.structure, self.taught, self.accelerator = lengths, structure, taught, accelerator
        self.device = accelerator.device if accelerator else torch.device("cpu")
        self.read, self.columns, self.number, self.schedule, self.rng = read, columns, number, schedule, rng
        self.modules = nn.ModuleDict(modules).to(self.device)
        self.rows = np.flatnonzero(np.stack([~np.isnan(c.values) for c in columns if c.target]).any(0))
        self.optimizer = torch.optim.AdamW(
            self.modules.parameters(), schedule.learning_rate, betas=(0.9, 0.98), weight_decay=schedule.weight_decay
        )
        self.allowed = torch.from_numpy(number.allowed).to(self.device)
        self.queue = np.empty(0, np.int64)
        self.losses: list[float] = []

    @property
    def is_main(self) -> bool:
        """Whether this process is the one that writes files."""
        return self.accelerator is None or self.accelerator.is_main_process

    def step(self) -> None:
        schedule = self.schedule
        while len(self.queue) < schedule.batch:
            self.queue = np.concatenate([self.queue, self._shuffled()])
        batch, self.queue = self.queue[: schedule.batch], self.queue[schedule.batch :]
        loss = self._loss(batch)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        if self.accelerator:
            loss = self._average(loss)
        torch.nn.utils.clip_grad_norm_(self.modules.parameters(), 1.0)
        for group in self.optimizer.param_groups:
            group["lr"] = schedule.learning_rate * _warmed_cosine(len(self.losses), schedule.steps)
        self.optimizer.step()
        self.losses.append(loss.item())

    def _average(self, loss: Tensor) -> Tensor:
        """Gradients become their mean over all processes, as does the loss."""
        assert self.accelerator is not None
        for parameter in self.modules.parameters():
            if parameter.grad is not None:
                parameter.grad = self.accelerator.reduce(parameter.grad, "mean")
        return self.accelerator.reduce(loss.detach(), "mean")

    def _loss(self, whole: np.ndarray) -> Tensor:
        """The loss of a batch, or of this process's share of it."""
        share = slice(self.accelerator.process_index, None, self.accelerator.num_processes) if self.accelerator else ...
        batch = whole[share]
        memory = self.read(batch).to(self.device)
        loss = memory.new_zeros(())
        if "decoder" in self.modules:
            # Of the whole batch, so that random numbers stay the same in all processes.
            sequences = make_sequences(self.columns, whole, self.number, self.schedule, self.rng)
            inputs, wanted = (tokens[share].to(self.device) for tokens in sequences)
            loss = loss + digit_loss(self.modules["decoder"], memory, inputs, wanted, self.allowed)
        if "readout" in self.modules:
            predicted = self.modules["readout"](memory)
            loss = loss + readout_loss(predicted, self.columns, batch)
            if self.structure is not None:
                loss = loss + STRUCTURE_WEIGHT * structure_loss(predicted, self.structure[batch])
        if self.taught is not None:
            loss = loss + likeness_loss(self.modules["likeness"](memory.mean(1)), self.taught[batch])
        return loss

    @torch.no_grad()
    def disorder(self) -> float:
        """1 - Spearman's correlation of what the readout tells of all rows, the mean over the metrics; 0 is best."""
        self.modules.eval()
        parts = np.split(self.rows, range(self.schedule.batch, len(self.rows), self.schedule.batch))
        told = torch.cat([self.modules["readout"](self.read(rows).to(self.device)) for rows in parts]).cpu().numpy()
        self.modules.train()
        found = []
        for column in self.columns:
            known = ~np.isnan(column.values[self.rows])
            if column.target and known.sum() > 1:
                pair = [rankdata(values[known]) for values in (told[:, column.slot], column.values[self.rows])]
                found.append(np.corrcoef(pair)[0, 1] if np.ptp(pair, 1).all() else 0.0)
        return 1 - float(np.mean(found))

    def _shuffled(self) -> np.ndarray:
        """All rows in random order; texts of similar lengths in one batch, so that little of it is padding."""
        order = self.rng.permutation(self.rows)
        if self.lengths is None:
            return order
        many = SORTED_BATCHES * self.schedule.batch
        batches = []
        for start in range(0, len(order), many):
            some = order[start : start + many]
            some = some[self.lengths[some].argsort(kind="stable")]
            batches += np.split(some, range(self.schedule.batch, len(some), self.schedule.batch))
        full = [batch for batch in batches if len(batch) == self.schedule.batch]
        short = [batch for batch in batches if len(batch) < self.schedule.batch]
        return np.concatenate([*(full[i] for i in self.rng.permutation(len(full))), *short])

    # --- between two steps

    @property
    def fingerprint(self) -> str:
        """What the result depends on beside the progress: no file of another training is taken for this one's."""
        digest = hashlib.sha256(repr((self.schedule, self.number, sorted(self.modules))).encode())
        for column in self.columns:
            digest.update(repr((column.slot, column.order, column.target)).encode())
            digest.update(np.ascontiguousarray(column.values).tobytes())
        for lesson in (self.structure, self.taught):
            if lesson is not None:
                digest.update(lesson.tobytes())
        return digest.hexdigest()

    def save(self, path: Path) -> None:
        tensors = {f"model.{name}": tensor for name, tensor in self.modules.state_dict().items()}
        for i, state in self.optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer.{i}.{name}": tensor for name, tensor in state.items()}
        tensors["random"] = torch.get_rng_state()
        tensors["queue"] = torch.from_numpy(self.queue)
        tensors["losses"] = torch.tensor(self.losses, dtype=torch.float64)
        about = {"fingerprint": self.fingerprint, "rng": json.dumps(self.rng.bit_generator.state)}
        with replacing(path) as file:
            save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, file, about)

    def restore(self, path: Path) -> None:
        """Go on where the training stood that was kept in the file; InputError for another training's."""
        try:
            with safe_open(path, "pt") as file:
                about = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (OSError, SafetensorError) as error:
            raise InputError(f"{path}: not a kept training ({error}): remove it to begin anew") from None
        if about.get("fingerprint") != self.fingerprint:
            raise InputError(f"{path}: kept from a training with other data or settings: give another file")
        self.modules.load_state_dict(_beginning_with("model.", tensors))
        state: dict[int, dict[str, Tensor]] = {}
        for key, tensor in _beginning_with("optimizer.", tensors).items():
            i, name = key.split(".", 1)
            state.setdefault(int(i), {})[name] = tensor
        self.optimizer.load_state_dict({**self.optimizer.state_dict(), "state": state})
        torch.set_rng_state(tensors["random"])
        self.rng.bit_generator.state = json.loads(about["rng"])
        self.queue, self.losses = tensors["queue"].numpy(), tensors["losses"].tolist()


def _beginning_with(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _warmed_cosine(step: int, steps: int) -> float:
    """Factor of the learning rate: up over the first twentieth, then down to almost nothing."""
    warmup = max(1, steps // 20)
    return min((step + 1) / warmup, 0.5 * (1 + math.cos(math.pi * min(1.0, step / steps))) + 1e-3)
