"""How a decoder writes numbers and what it minimizes: `python -m experiments.number_coding` (half an hour).

Every variant is a decoder, or a head, that begins with random weights and learns CIFAR-10 validation accuracies of
NAS-Bench-201 from the states of the same frozen encoder, which has seen no accuracy. Figures are of 2,000 other
networks: Kendall's τ with test accuracy, and of how many the validation accuracy lies within the central half and nine
tenths of the samples. The seeds are those on which settings are chosen.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
import torch
import typer
from torch import Tensor
from torch.nn import functional

from experiments.runner import AsJson, Jobs, Quick, Seeds, run_command
from experiments.tables import Scores, chosen, compute, show, summarize
from predictors.rlm.decoding import Sampler, digit_tree, sample_numbers
from predictors.rlm.model import NumberDecoder, Readout
from predictors.rlm.numbers import MINUS, PLUS, ZERO, NumberFormat, Scale
from predictors.rlm.predictor import RLM
from predictors.rlm.training import MIDDLE, SPREAD, Column, Schedule, Training, make_sequences, train
from search_spaces.common.errors import InputError

LEARNED, RANKED = "cifar10_validation_accuracy", "cifar10_test_accuracy"
SIZES, QUICK_SIZES, FIRST_SEED = (78, 469), (60,), 100
TEST, QUICK_TEST, SAMPLES, LARGEST_EXPONENT = 2000, 100, 64, 9


@dataclass(frozen=True)
class Positional(NumberFormat):
    """As `NumberFormat` in base 2 to 10: exponents of the base, `digits` digits of the mantissa."""

    base: int = 10

    @property
    def allowed(self) -> np.ndarray:
        mask = super().allowed
        mask[3:, ZERO + self.base :] = False
        return mask

    def encode(self, values: np.ndarray) -> np.ndarray:
        size = np.abs(values)
        exponent = np.floor(np.log(np.where(size > 0, size, 1.0)) / np.log(self.base) + 1e-12)
        exponent = exponent.clip(-LARGEST_EXPONENT, LARGEST_EXPONENT)
        mantissa = np.rint(size * float(self.base) ** (self.digits - 1 - exponent))
        over = mantissa >= self.base**self.digits
        exponent, mantissa = exponent + over, np.where(over, mantissa // self.base, mantissa)
        signs = [np.where(values < 0, MINUS, PLUS), np.where(exponent < 0, MINUS, PLUS), ZERO + np.abs(exponent)]
        digits = [ZERO + mantissa // self.base ** (self.digits - 1 - i) % self.base for i in range(self.digits)]
        return np.stack([*signs, *digits], 1).astype(np.int64)

    def decode(self, tokens: np.ndarray) -> np.ndarray:
        mantissa = ((tokens[..., 3:] - ZERO) * float(self.base) ** -np.arange(self.digits)).sum(-1)
        exponent = (tokens[..., 2] - ZERO) * np.where(tokens[..., 1] == MINUS, -1, 1)
        return np.where(tokens[..., 0] == MINUS, -1.0, 1.0) * mantissa * float(self.base) ** exponent


class Variant(NamedTuple):
    """number: how values are written. jitter: deviation of the noise on targets, which makes neighbouring numbers about
    as likely as the true one (the scale goes from 1 to 9). ranking: weight of a logistic loss on pairs in a batch.
    """

    number: Positional | None = Positional(3)
    jitter: float = 0.6
    ranking: float = 0.0


VARIANTS = {
    "three decimal digits": Variant(),
    **{f"{n} decimal digits": Variant(Positional(n)) for n in (1, 2, 4, 6)},
    "10 bits": Variant(Positional(10, base=2)),
    "5 digits of base 4": Variant(Positional(5, base=4)),
    **{f"noise on targets of {jitter}": Variant(jitter=jitter) for jitter in (0.0, 0.2, 1.2)},
    **{f"pairwise ranking of weight {w}": Variant(ranking=w) for w in (0.3, 1.0)},
    "head with squared error": Variant(number=None, jitter=0.0),
}


class RankedTraining(Training):
    """Digits, and the order of the expected first digits of all pairs in a batch."""

    weight = 0.0

    def _loss(self, batch: np.ndarray) -> Tensor:
        memory = self.read(batch)
        inputs, wanted = make_sequences(self.columns, batch, self.number, self.schedule, self.rng)
        logits = self.modules["decoder"](memory, inputs)
        allowed = torch.cat([self.allowed, torch.ones_like(self.allowed[:1])])
        digits = functional.cross_entropy(
            logits.masked_fill(~allowed, -1e9).flatten(0, 1), wanted.flatten(), ignore_index=-100
        )
        first = logits[:, 3, ZERO:].softmax(-1) @ torch.arange(10.0)
        true = torch.from_numpy(self.columns[0].values[batch])
        above = true[:, None] > true
        return digits + self.weight * functional.softplus(first - first[:, None])[above].mean()


@lru_cache(maxsize=1)
def _encoder(base: str) -> RLM:
    import predictors

    model = predictors.load(base)
    if not isinstance(model, RLM):
        raise InputError(f"{base}: holds a {model.kind} predictor, not an rlm")
    return model


def score(name: str, size: int, most: int, base: str, seed: int) -> Scores:
    """τ of the median of samples, of their mean and of the expectation; a head has one estimate and no samples."""
    from nas.benchmarks import load_benchmark

    table, variant = load_benchmark("nasbench201"), VARIANTS[name]
    texts, learned, ranked = table.load_texts(), table.values(LEARNED), table.values(RANKED)
    order = np.random.default_rng(seed).permutation(len(table))
    train_rows, test = order[:size], order[size : size + most]
    reader, decoder = _encoder(base)._parts()
    scale = Scale.of(learned[train_rows])
    column = Column(0, scale.to_scale(learned[train_rows]), 0)
    torch.manual_seed(seed)
    number = variant.number or Positional()
    head = Readout(decoder.config) if variant.number is None else None
    fresh = NumberDecoder(replace(decoder.config, number_length=number.length))
    states = reader.recall([texts[i] for i in train_rows])
    schedule = Schedule(int(np.clip(2 * size, 100, 800)), batch=32, learning_rate=1e-3, jitter=variant.jitter)
    kind = RankedTraining if variant.ranking else Training
    modules = {"readout": head} if head else {"decoder": fresh}
    training = kind(lambda rows: states[rows], modules, [column], number, schedule, np.random.default_rng(seed))
    if isinstance(training, RankedTraining):
        training.weight = variant.ranking
    train(training)
    asked = reader.recall([texts[i] for i in test])
    if head:
        with torch.inference_mode():
            return {"τ": _tau(scale.from_scale(head(asked)[:, 0].numpy() * SPREAD + MIDDLE), ranked[test])}
    return _decoded(fresh.eval(), asked, number, scale, learned[test], ranked[test], seed)


def _decoded(
    decoder: NumberDecoder,
    states: Tensor,
    number: NumberFormat,
    scale: Scale,
    learned: np.ndarray,
    ranked: np.ndarray,
    seed: int,
) -> Scores:
    allowed, nothing = torch.from_numpy(number.allowed), torch.empty(len(states), 0, dtype=torch.long)
    randomness = torch.from_numpy(np.random.default_rng(seed).random((len(states), 1, 1 + SAMPLES)))
    tokens = sample_numbers(decoder, states, nothing, [0], Sampler(allowed, randomness)).numpy()
    drawn = scale.from_scale(number.decode(tokens[:, :, 0]))
    leaves, probability = digit_tree(decoder, states, nothing, 0, allowed)
    expected = (scale.from_scale(number.decode(leaves.numpy())) * probability.numpy()).sum(1)
    low, lower, upper, high = np.quantile(drawn, [0.05, 0.25, 0.75, 0.95], axis=1)
    return {
        "τ": _tau(np.median(drawn, 1), ranked),
        "τ of means": _tau(drawn.mean(1), ranked),
        "τ of expectations": _tau(expected, ranked),
        "within 50 %": float(((lower <= learned) & (learned <= upper)).mean()),
        "within 90 %": float(((low <= learned) & (learned <= high)).mean()),
    }


def _tau(predicted: np.ndarray, true: np.ndarray) -> float:
    from scipy.stats import kendalltau

    return float(kendalltau(predicted, true).statistic)


def main(
    base: Annotated[str, typer.Option(help="The RLM whose encoder reads.")] = "rlm-label-free",
    out: Annotated[Path, typer.Option(help="Folder in which finished rows are kept.")] = Path("results/number-coding"),
    only: Annotated[str, typer.Option(help="Variants, separated by commas.")] = ",".join(VARIANTS),
    seeds: Seeds = 5,
    jobs: Jobs = 1,
    quick: Quick = False,
    as_json: AsJson = False,
) -> None:
    """Train and rank; a table of means over the seeds."""
    sizes, most, seeds = (QUICK_SIZES, QUICK_TEST, 1) if quick else (SIZES, TEST, seeds)
    names, tuning = chosen(only, list(VARIANTS)), range(FIRST_SEED, FIRST_SEED + seeds)
    tasks = [(name, size, most, base, seed) for size in sizes for name in names for seed in tuning]
    rows = compute(tasks, score, out, jobs)
    about = ("variant", "trained on", "tested on", "base")
    show("Ways to write and learn numbers", about, summarize(tasks, rows), as_json)


if __name__ == "__main__":
    run_command(main)
