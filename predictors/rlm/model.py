"""The network as a whole, the loss that it is trained with, and its training on one table.

Texts to states (encoder), states of examples and queries to hidden states (reader), hidden states to
digits (decoder). Pretraining and `tune` minimize `task_loss`; `fit_kernels` fits the kernels of the
reader alone, by their marginal likelihood.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from predictors.rlm.decoder import NUMBER_HEADS, START, NumberDecoder, grammar, write_numbers
from predictors.rlm.encoder import EncoderConfig, TextEncoder, collate
from predictors.rlm.in_context import ContextConfig, ContextReader
from predictors.rlm.kernel_regression import KernelRegression, Projection
from predictors.rlm.tokens import Tokens, tokenize
from predictors.transforms import TargetTransform
from search_spaces.common.errors import InputError
from search_spaces.common.progress import Progress

MAX_SIZE = 2048  # largest width or number of layers in a checkpoint's configuration
BATCH_TEXTS = 16  # encoded at once at most
BATCH_TOKENS = 4096  # about, of the texts that are encoded at once
LEARNING_RATE = 3e-4
WEIGHT_DECAY = 0.01
TASKS = 4  # per step
MAX_ROWS = 256  # examples plus queries of a task
READOUT_TEXTS = 48  # per step of the linear readout
CENTER_TEXTS = 512  # whose mean state is the readout's center
KERNEL_RATE = 0.1  # learning rate of the kernels, whose parameters are logarithms
KERNEL_SPREAD = 2.0  # prior standard deviation of these parameters
# Weight of each token of a number in the loss: hundredths are mostly noise
TOKEN_WEIGHTS = torch.tensor([1.0, 1.0, 1.0, 0.5])
_ALLOWED = torch.from_numpy(grammar())

Loss = Callable[[], Tensor]


@dataclass(frozen=True)
class ModelConfig:
    """Sizes of the model's parts."""

    encoder: EncoderConfig = field(default_factory=EncoderConfig)
    context: ContextConfig = field(default_factory=ContextConfig)

    @classmethod
    def restore(cls, config: dict[str, Any]) -> ModelConfig:
        """Rebuild the configuration from its `asdict`.

        Raises:
            InputError: if a size is not an integer from 1 to `MAX_SIZE`, or heads do not divide a
                width.
        """
        sizes = [size for part in config.values() for size in part.values()]
        for size in sizes:
            if type(size) is not int or not 1 <= size <= MAX_SIZE:
                raise InputError(f"sizes must be whole numbers from 1 to {MAX_SIZE}, not {sizes}")
        encoder = EncoderConfig(**config["encoder"])
        context = ContextConfig(**config["context"])
        if context.width % context.heads or context.number_width % NUMBER_HEADS:
            raise InputError(
                f"widths must be multiples of the number of heads in {config['context']}"
            )
        return cls(encoder, context)


class Model(nn.Module):
    """The network: encoder, reader and decoder."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = TextEncoder(config.encoder)
        self.reader = ContextReader(config.context)
        self.decoder = NumberDecoder(config.context)

    @torch.inference_mode()
    def states(self, texts: Sequence[str]) -> np.ndarray:
        """States (n, S), float32, of n texts.

        Texts are encoded in batches, but exactly as one by one: if the last bits of a state
        depended on the other texts, results would depend on the order of requests.
        """
        size = self.config.encoder.outputs
        states = np.empty((len(texts), size), np.float32)
        batch: list[Tokens] = []
        for end, text in enumerate(texts, start=1):
            batch.append(tokenize(text))
            tokens = sum(len(tokens.starts) for tokens in batch)
            is_full = len(batch) == BATCH_TEXTS or tokens >= BATCH_TOKENS
            if is_full or end == len(texts):
                start = end - len(batch)
                states[start:end] = self.encoder(collate(batch), exact=True)
                batch = []
        return states


# --- the loss


@dataclass(frozen=True)
class Task:
    """One regression task: n examples with targets, and q queries; F features each, targets in z."""

    examples: np.ndarray  # (n, F)
    example_targets: np.ndarray  # (n,)
    queries: np.ndarray  # (q, F)
    query_targets: np.ndarray  # (q,)


def task_loss(
    reader: ContextReader,
    decoder: NumberDecoder,
    tasks: Sequence[Task],
) -> Tensor:
    """Mean cross-entropy, in nats, of the queries' numbers under the number grammar.

    All B tasks must have equal n and q.
    """
    device = next(decoder.parameters()).device

    def batched(arrays: Sequence[np.ndarray]) -> Tensor:
        return torch.from_numpy(np.stack(arrays)).float().to(device)

    # 1. Hidden states of the queries, given the examples.                                (B q, D)
    examples = batched([task.examples for task in tasks])  # (B, n, F)
    targets = batched([task.example_targets for task in tasks])  # (B, n)
    queries = batched([task.queries for task in tasks])  # (B, q, F)
    memory = reader.examples(examples, targets)
    hidden = reader(queries, memory).flatten(0, 1)

    # 2. The numbers that they should write, L tokens each; each token is written after the last.
    expected = np.concatenate([task.query_targets for task in tasks])  # (B q,)
    tokens = torch.from_numpy(write_numbers(expected))  # (B q, L)
    start = torch.full_like(tokens[:, :1], START)
    before = torch.cat([start, tokens[:, :-1]], 1)

    # 3. Cross-entropy of each token among those that the grammar allows.                  (B q, L)
    conditions = decoder.conditions(hidden)
    logits = decoder(conditions, before.to(device))  # (B q, L, NUMBER_TOKENS)
    is_forbidden = ~_ALLOWED.to(device)
    logits = logits.masked_fill(is_forbidden, -1e9)
    losses = functional.cross_entropy(logits.mT, tokens.to(device), reduction="none")
    weighted = losses * TOKEN_WEIGHTS.to(device)
    return weighted.sum(1).mean()


# --- training on one table


def tune(
    model: Model,
    texts: Sequence[str],
    values: Mapping[str, np.ndarray],
    steps: int,
    seed: int,
    states: np.ndarray | None,
    progress: Progress | None = None,
) -> None:
    """Train a model in place: first the encoder with a linear readout, then reader and decoder.

    Args:
        model: the network.
        texts: n texts.
        values: (n,) per metric, NaN where missing.
        steps: optimizer steps of each of the two stages.
        seed: seed of the batches.
        states: (n, S) states of another encoder; None to train and use the model's own.
        progress: called with the loss, the number of the step, and 2 * steps.
    """
    rng = np.random.default_rng(seed)
    torch.manual_seed(seed)
    columns = []
    for column in values.values():
        observed = column[~np.isnan(column)]
        transform = TargetTransform.fit(observed, by_rank=True)
        columns.append(transform.to_z(column))
    targets = np.stack(columns, 1)  # (n, metrics), in z

    # 1. The encoder learns states from which a linear function reads all metrics.
    if states is None:
        parameters, readout_loss = _readout(model, texts, targets, rng)
        _descend(
            parameters,
            readout_loss,
            steps=range(steps),
            total=2 * steps,
            rate=LEARNING_RATE,
            progress=progress,
        )
        states = model.states(texts)
    if len(texts) < 4:
        return

    # 2. Reader and decoder learn from random splits of the rows into examples and queries.
    def loss() -> Tensor:
        tasks = _draw_tasks(states, targets, rng)
        return task_loss(model.reader, model.decoder, tasks)

    model.train()
    parameters = [*model.reader.parameters(), *model.decoder.parameters()]
    _descend(
        parameters,
        loss,
        steps=range(steps, 2 * steps),
        total=2 * steps,
        rate=LEARNING_RATE,
        progress=progress,
    )
    model.eval()


def fit_kernels(
    kernels: KernelRegression,
    examples: Sequence[tuple[Tensor, Tensor]],
    steps: int,
    progress: Progress | None = None,
) -> None:
    """Fit kernels in place to examples: empirical Bayes, with the given kernels as the prior's mean.

    Args:
        kernels: the kernels.
        examples: features (1, n, F) and targets (1, n) of each metric.
        steps: optimizer steps.
        progress: called with the loss, the number of the step, and the number of steps.
    """
    parameters = [kernels.log_scales, kernels.log_linear, kernels.log_penalty]
    before = [parameter.detach().clone() for parameter in parameters]
    heads = len(kernels.log_penalty)
    largest = max([targets.shape[1] for _, targets in examples])
    # The evidence is per example and head; so is the Gaussian prior of the parameters.
    prior_weight = 2 * KERNEL_SPREAD**2 * heads * largest

    def loss() -> Tensor:
        distances = []
        for parameter, start in zip(parameters, before, strict=True):
            # Farther away, float32 may not invert the kernels.
            parameter.data.clamp_(start - KERNEL_SPREAD, start + KERNEL_SPREAD)
            distances.append((parameter - start).square().sum())
        evidence = [kernels.evidence(features, targets) for features, targets in examples]
        from_prior = torch.stack(distances).sum() / prior_weight
        return from_prior - torch.stack(evidence).mean()

    _descend(
        parameters,
        loss,
        steps=range(steps),
        total=steps,
        rate=KERNEL_RATE,
        progress=progress,
    )


def _draw_tasks(
    states: np.ndarray,
    targets: np.ndarray,
    rng: np.random.Generator,
) -> list[Task]:
    """`TASKS` random splits of random rows, each for a random metric."""
    # 1. How many examples: at least a quarter of the rows are queries.
    count = min(len(states), MAX_ROWS)  # examples plus queries of each task
    n = 2
    if count > 4:
        queries = max(1, count // 4)
        largest = max(3, count - queries)
        n = int(rng.integers(2, largest))
    tasks = []
    for _ in range(TASKS):
        # 2. Random rows that have a random metric, repeated if they are too few.
        metric = rng.integers(targets.shape[1])
        column = targets[:, metric]
        has_metric = np.flatnonzero(~np.isnan(column))
        rows = rng.permutation(has_metric)[:count]
        rows = np.resize(rows, count)

        # 3. Features as in a prediction: the examples alone decide about the projection.
        no_covariates = np.zeros((count, 0))
        projection = Projection.fit(states[rows[:n]], no_covariates[:n])
        features = projection(states[rows], no_covariates)  # (count, F)
        targets_of_rows = column[rows]  # (count,)
        task = Task(
            examples=features[:n],
            example_targets=targets_of_rows[:n],
            queries=features[n:],
            query_targets=targets_of_rows[n:],
        )
        tasks.append(task)
    return tasks


def _readout(
    model: Model,
    texts: Sequence[str],
    targets: np.ndarray,
    rng: np.random.Generator,
) -> tuple[list[nn.Parameter], Loss]:
    """Parameters of the encoder and of a linear readout, and the readout's squared error.

    The readout predicts all metrics from the states.
    """
    metrics = targets.shape[1]
    head = nn.Linear(model.config.encoder.outputs, metrics)
    nn.init.zeros_(head.weight)
    states_before = model.states(list(texts)[:CENTER_TEXTS])
    center = torch.from_numpy(states_before.mean(0))  # (S,)
    expected = torch.from_numpy(targets).float()  # (n, metrics)

    def loss() -> Tensor:
        rows = rng.permutation(len(texts))[:READOUT_TEXTS]
        batch = collate([tokenize(texts[i]) for i in rows])
        states = model.encoder(batch) - center  # (rows, S)
        errors = head(states) - expected[rows]  # (rows, metrics), NaN where unknown
        observed = errors[~errors.isnan()]
        return observed.square().mean()

    return [*model.encoder.parameters(), *head.parameters()], loss


def _descend(
    parameters: list[nn.Parameter],
    loss: Loss,
    steps: range,
    total: int,
    rate: float,
    progress: Progress | None,
) -> None:
    """Minimize a random loss by AdamW with a linearly falling learning rate.

    steps: those to take out of `total`.
    """
    optimizer = torch.optim.AdamW(parameters, rate, weight_decay=WEIGHT_DECAY)
    for done, step in enumerate(steps):
        remaining = 1 - done / len(steps)
        optimizer.param_groups[0]["lr"] = rate * remaining
        value = loss()
        optimizer.zero_grad()
        value.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        if progress:
            progress(f"loss {value.item():.4g}", step + 1, total)
