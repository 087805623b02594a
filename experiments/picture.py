"""The picture of the README: a front that grows, and the digits of an accuracy while they are decoded.

Run `python -m experiments.picture`. It writes docs/front_and_digits.png.

Both halves are one search of `digits201`. On the left are its evaluations and the front after 10, 20
and 60 of them. On the right are the probabilities of the tokens with which the RLM writes the
accuracy of a network that it has not seen, in standard units: each place is decoded given the likeliest
tokens before it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import matplotlib.pyplot as plt
import numpy as np
import torch
import typer
from matplotlib.axes import Axes

import nas
import predictors
from experiments.runner import Quick, run_command
from nas.search.pareto import non_dominated
from predictors.rlm.decoder import MINUS, NUMBER_LENGTH, NUMBER_TOKENS, ZERO, NumberDecoder

OBJECTIVES = {"digits_accuracy": "max", "cpu_latency_ms": "min"}
STAGES = (10, 20, 60)  # evaluations
MIN_ACCURACY = 50  # %, of the networks that are shown
LABELS = 50  # networks from which the RLM learns for the right half
OTHERS = 20  # of these, the least accurate one is decoded: its digits are rather certain


def draw_front(ax: Axes, evaluations: int, seed: int = 0) -> None:
    """Evaluated networks of a search, and its front at each stage."""
    problem = nas.load_benchmark("digits201").problem(OBJECTIVES)
    result = nas.search(problem, sampler="rlm", evaluations=evaluations, seed=seed)
    trials = [trial for trial in result.study.trials if trial.values]
    accuracy, latency = np.array([trial.values for trial in trials]).T  # (n,), (n,)
    ax.scatter(1e3 * latency, accuracy, s=10, color="0.75", label="evaluated")
    lines = zip(STAGES, ("#c6dbef", "#6baed6", "#08306b"), (6, 3.5, 1.2), strict=True)
    for stage, color, width in lines:
        losses = np.stack([latency[:stage], -accuracy[:stage]], axis=1)
        front = losses[non_dominated(losses)]
        front = front[np.argsort(front[:, 0])]
        label = f"front after {stage}"
        ax.step(1e3 * front[:, 0], -front[:, 1], where="post", color=color, lw=width, label=label)
    ax.set_ylim(bottom=MIN_ACCURACY)
    ax.set(xlabel="latency (µs, one core)", ylabel="accuracy (%)")
    ax.set_title("a search: 60 of 6,040 networks are trained", fontsize=10)
    ax.legend(fontsize=8, loc="lower right")


def digit_probabilities(seed: int = 0) -> np.ndarray:
    """Probabilities (NUMBER_LENGTH, NUMBER_TOKENS) of the tokens of one network's accuracy."""
    benchmark = nas.load_benchmark("digits201")
    texts = benchmark.load_texts()
    rows = np.random.default_rng(seed).permutation(len(texts))[: LABELS + OTHERS]
    accuracies = benchmark.values("digits_accuracy")[rows]
    other = rows[LABELS + accuracies[LABELS:].argmin()]
    model: Any = predictors.create("rlm", seed=seed)
    model.fit([texts[row] for row in rows[:LABELS]], {"digits_accuracy": accuracies[:LABELS]})

    # The conditions of the number that is decoded for the last network.
    conditions: list[torch.Tensor] = []

    def keep(self: NumberDecoder, hidden: torch.Tensor) -> torch.Tensor:
        condition = original(self, hidden)
        conditions.append(condition)
        return condition

    original = NumberDecoder.conditions
    NumberDecoder.conditions = keep  # type: ignore[method-assign]
    try:
        model.predict([texts[other]], ["digits_accuracy"], samples=8)
    finally:
        NumberDecoder.conditions = original  # type: ignore[method-assign]

    # Greedy decoding: each place given the likeliest tokens before it.
    decoder = model.model.decoder
    condition = conditions[-1].reshape(-1, conditions[-1].shape[-1])[:1]  # (1, d)
    tokens = torch.full((1, 1), NUMBER_TOKENS)
    probabilities = []
    for place in range(NUMBER_LENGTH):
        with torch.no_grad():
            logits = decoder(condition, tokens)[0, -1].clone()
        logits[ZERO if place == 0 else 0 : NUMBER_TOKENS if place == 0 else ZERO] = -torch.inf
        probability = logits.softmax(-1)
        probabilities.append(probability.numpy())
        tokens = torch.cat([tokens, probability.argmax().reshape(1, 1)], 1)
    return np.stack(probabilities)


def draw_digits(ax: Axes, probabilities: np.ndarray) -> None:
    """A column per place with the probability of each token; the likeliest ones are framed."""
    names = ["+", "−", *map(str, range(10))]
    ax.imshow(probabilities.T, cmap="Blues", aspect="auto", vmin=0, vmax=1)
    likeliest = probabilities.argmax(1)
    for place, token in enumerate(likeliest):
        share = probabilities[place, token]
        color = "white" if share > 0.5 else "black"
        ax.text(place, token, f"{names[token]}  {share:.0%}", ha="center", va="center", color=color)
    ax.set_xticks(range(NUMBER_LENGTH), ["sign", "units", "tenths", "hundredths"])
    ax.set_yticks(range(NUMBER_TOKENS), names)
    digits = "".join(names[token] for token in likeliest[1:])
    sign = "−" if likeliest[0] == MINUS else "+"
    title = f"an accuracy, digit by digit: z = {sign}{digits[0]}.{digits[1:]}"
    ax.set_title(title, fontsize=10)


def main(
    out: Annotated[Path, typer.Option(help="The picture.")] = Path("docs/front_and_digits.png"),
    quick: Quick = False,
) -> None:
    """Draw both halves."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.8), width_ratios=(1.5, 1))
    draw_front(left, 12 if quick else max(STAGES))
    draw_digits(right, digit_probabilities())
    figure.tight_layout()
    figure.savefig(out, dpi=130)


if __name__ == "__main__":
    run_command(main)
