"""What each part of the RLM adds: `python -m experiments.ablation OUT` (hours; it resumes).

Every row learns the same networks and predicts the same others. States are computed once.

- *kernel*: the kernel regression alone, with Gaussians from its leave-one-out errors.
- *Gaussian*, *quantiles*, *digits, each alone*: attention over the examples, and an output of this
  form (`experiments.ablation.heads`), trained on the same tasks.
- *rlm*: the RLM as it is shipped, with digits that follow each other; *without* some parts of the
  states; with the operators of each text *shuffled*; with the states of a *language* model. Reader
  and decoder stay as they are, so that a row without a part tells what the trained model reads there.

The base is `rlm-generated`, which has seen none of the families. NAS-Bench-201 with 78 and 156 labels
has `rlm-base` instead. Measures: Kendall's τ; the continuous ranked probability score (CRPS) of z,
lower is better; the share of true values in intervals of 90 %.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer
from torch import Tensor

from experiments.ablation.heads import (
    DRAWS,
    LEVELS,
    SPACES,
    STEPS,
    Digits,
    Head,
    gaussian_quantiles,
    trained_heads,
)
from experiments.ablation.readers import load_model, metrics_of, stored_states, without
from experiments.family_tables import FAMILIES, available
from experiments.runner import AsJson, Quick, Seeds, run_command
from experiments.tables import (
    Scores,
    Task,
    chosen,
    compute,
    integers,
    pivot,
    publish,
    show,
    summarize,
)
from predictors.rlm.kernel_regression import Projection
from predictors.transforms import TargetTransform

GENERATED, TRAINED = "rlm-generated", "rlm-base"
STATES: dict[str, tuple[str, tuple[str, ...]]] = {
    "rlm": ("encoder", ()),
    "without sketches": ("encoder", ("sketches",)),
    "without costs": ("encoder", ("costs",)),
    "without predicted proxies": ("encoder", ("proxies",)),
    "operators shuffled": ("shuffled", ()),
    "all parts": ("encoder", ()),
    "structure alone": ("encoder", ("sketches", "costs", "proxies", "quality")),
    "language": ("language", ()),
    "random language": ("random language", ()),
}
"""Reader and missing parts of the states of each row."""
LANGUAGE_ROWS = ("all parts", "structure alone", "language", "random language")
LANGUAGE_FAMILIES = ("digits-nasbench101", "nasbench201", "nasbench101")
LANGUAGE_NETWORKS = 500  # per family: the language model reads two texts per second
SIZES = {"accuracy": (16, 50, 100), "latency": (50,)}
TRAINED_SIZES = (78, 156)  # of NAS-Bench-201, with the base that has seen its networks
MOST, TESTED = 1000, 400  # networks of a family at most, and of them tested
KINDS = {"accuracy": "digits_accuracy", "latency": "cpu_latency_ms"}  # decide the target transform
MEASURES = ("tau", "crps", "covered")
STACKED = -2  # among the outputs of the kernel regression


def score(
    out: str, row: str, base: str, metric: str, family: str, most: int, size: int, seed: int
) -> Scores:
    """Measures of each output of a row, by its name."""
    reader, missing = STATES[row]
    stored = _states(out, reader, base, family, most)
    states, values = stored["states"], stored[metric]
    order = np.random.default_rng(seed).permutation(len(values))
    train, test = order[:size], order[size:][:TESTED]
    transform = TargetTransform.for_metric(KINDS[metric], values[train])
    states = without(states[order], missing)
    heads = _heads(out) if row == "rlm" and base == GENERATED else {}
    examples = states[:size]
    queries = states[size:][:TESTED]
    predicted = _quantiles(base, heads, examples, transform.to_z(values[train]), queries)
    z = transform.to_z(values[test])
    scores = {}
    for name, quantiles in predicted.items():
        for measure, value in _measures(quantiles, z).items():
            scores[f"{name} {measure}"] = value
    return scores


@lru_cache(maxsize=64)
def _states(out: str, reader: str, base: str, family: str, most: int) -> dict[str, np.ndarray]:
    return stored_states(Path(out) / "states", reader, base, family, most)


_model = lru_cache(maxsize=2)(load_model)


@lru_cache(maxsize=2)
def _heads(out: str) -> dict[str, Head]:
    return trained_heads(_model(GENERATED), Path(out), GENERATED)


@torch.inference_mode()
def _quantiles(
    base: str,
    heads: dict[str, Head],
    examples: np.ndarray,
    targets: np.ndarray,
    queries: np.ndarray,
) -> dict[str, np.ndarray]:
    """Quantiles (q, s) of z per output: of the kernel regression, of the heads, of the RLM.

    Args:
        base: name of the model.
        heads: other outputs.
        examples: states (n, S).
        targets: (n,) z.
        queries: states (q, S).
    """
    model = _model(base)
    # 1. Features of examples and queries, as in the RLM.
    covariates = np.zeros((len(examples), 0))
    projection = Projection.fit(examples, covariates)

    def features(states: np.ndarray) -> Tensor:
        return torch.from_numpy(projection(states, np.zeros((len(states), 0))))[None]

    z = torch.from_numpy(targets).float()[None]  # (1, n)
    kernels = model.reader.kernels.kernels(features(examples))
    memory = model.reader.examples(features(examples), z, kernels)

    # 2. The kernel regression alone: its prediction, and its leave-one-out errors as the spread.
    left_out, _ = model.reader.kernels.fit(kernels, z)
    spread = (left_out[0, :, STACKED] - z[0]).square().mean().sqrt().numpy()
    mean = model.reader.kernels(features(queries), memory.regression)[0, :, STACKED].numpy()
    predicted = {"kernel": gaussian_quantiles(mean[:, None], spread)}

    # 3. All outputs that read the hidden state after attention.
    hidden = model.reader(features(queries), memory)[0]  # (q, D)
    outputs: dict[str, Head | Digits] = {**heads, "rlm": Digits(model.decoder)}
    return predicted | {name: head.quantiles(hidden) for name, head in outputs.items()}


def _measures(quantiles: np.ndarray, z: np.ndarray) -> Scores:
    """τ of the means, CRPS, and the share of z (q,) in the intervals of 90 %."""
    from scipy.stats import kendalltau

    from nas.evaluation.devices import quantiles as at_shares

    # The CRPS is twice the mean pinball loss over all levels.
    missed = z[:, None] - quantiles
    pinball = np.maximum(LEVELS * missed, (LEVELS - 1) * missed)
    low, high = at_shares(quantiles, [0.05, 0.95])
    is_covered = (low <= z) & (z <= high)
    tau = kendalltau(quantiles.mean(1), z).statistic
    return {
        "tau": float(np.nan_to_num(tau)),
        "crps": 2 * float(pinball.mean()),
        "covered": float(is_covered.mean()),
    }


def _tasks(
    out: str,
    rows: Sequence[str],
    metrics: Sequence[str],
    labels: Sequence[int] | None,
    families: Sequence[str] | None,
    networks: int,
    seeds: int,
) -> list[Task]:
    """All tasks; seeds come last, so that what is finished is finished for all rows."""
    places = []
    for metric in metrics:
        for family in available(metric):
            is_chosen = families is None or family in families
            if is_chosen and metric in metrics_of(family):
                for size in labels or SIZES[metric]:
                    places.append((GENERATED, metric, family, size))
    if families is None and "nasbench201" in available("accuracy") and "accuracy" in metrics:
        places += [(TRAINED, "accuracy", "nasbench201", size) for size in TRAINED_SIZES]
    tasks: list[Task] = []
    for seed in range(seeds):
        for row in rows:
            few = row in LANGUAGE_ROWS
            most = min(networks, LANGUAGE_NETWORKS) if few else networks
            for base, metric, family, size in places:
                in_few = family in LANGUAGE_FAMILIES and (base, metric) == (GENERATED, "accuracy")
                if in_few or not few:
                    tasks.append((out, row, base, metric, family, most, size, seed))
    return tasks


def main(
    out: Annotated[Path, typer.Argument(help="Folder for states, heads, rows and tables.")],
    only: Annotated[str, typer.Option(help="Rows, separated by commas.")] = ",".join(STATES),
    metrics: Annotated[str, typer.Option(help="Metrics, separated by commas.")] = ",".join(
        FAMILIES
    ),
    labels: Annotated[
        str | None, typer.Option(help="Numbers of labels, separated by commas; all by default.")
    ] = None,
    families: Annotated[
        str | None, typer.Option(help="Families, separated by commas; all by default.")
    ] = None,
    networks: Annotated[int, typer.Option(min=150, help="Networks of a family at most.")] = MOST,
    seeds: Seeds = 20,
    quick: Quick = False,
    as_json: AsJson = False,
) -> None:
    """Learn, predict and compare; print a table of means over the families."""
    rows = chosen(only, list(STATES))
    learned = chosen(metrics, list(FAMILIES))
    sizes = integers(labels) if labels else None
    some = chosen(families, FAMILIES["accuracy"]) if families else None
    spaces, draws, steps = SPACES, DRAWS, STEPS
    tasks = _tasks(str(out), rows, learned, sizes, some, networks, seeds)
    if quick:
        spaces, draws, steps = 2, 4, 20
        tasks = [
            (str(out), row, GENERATED, metric, "digits-nasbench101", 150, 16, 0)
            for row in rows
            for metric in learned
        ]
    if "rlm" in rows:
        trained_heads(_model(GENERATED), out, GENERATED, spaces, draws, steps)
    for _, row, base, _, family, most, *_ in tasks:
        _states(str(out), STATES[row][0], base, family, most)
    scores = compute(tasks, score, out)
    summary = summarize(*_over_families(tasks, scores))
    for measure in MEASURES:
        publish(out / measure, pivot(summary, measure), measure)
    show("Means over the families", ("row", "learned"), summary, as_json)


def _over_families(
    tasks: Sequence[Task], scores: Sequence[Scores]
) -> tuple[list[Task], list[Scores]]:
    """Means over the families: one row per output, metric with its number of labels, and seed."""
    # 1. The scores of all families, by row.
    groups: dict[Task, list[Scores]] = {}
    for (_, row, base, metric, _, _, size, seed), of_task in zip(tasks, scores, strict=True):
        outputs = {"rlm": row, "kernel": "kernel" if row == "rlm" else f"kernel, {row}"}
        few = " of three families" if row in LANGUAGE_ROWS else ""
        place = f"nasbench201, {base}" if base == TRAINED else metric + few
        names = dict.fromkeys(name.rpartition(" ")[0] for name in of_task)
        for name in names:
            cells = {measure: of_task[f"{name} {measure}"] for measure in MEASURES}
            group = (outputs.get(name, name), f"{place}, {size}", seed)
            groups.setdefault(group, []).append(cells)

    # 2. Their means.
    means = []
    for members in groups.values():
        mean = {}
        for measure in MEASURES:
            mean[measure] = float(np.mean([cells[measure] for cells in members]))
        means.append(mean)
    return list(groups), means


if __name__ == "__main__":
    run_command(main)
