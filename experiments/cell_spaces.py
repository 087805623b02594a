"""Five cell spaces, a few labels each: `python -m experiments.cell_spaces --base runs/pretrain/rlm-label-free`.

For each of NASNet, Amoeba, PNAS, ENAS and DARTS, a predictor learns the digits accuracy of 16 of the population's
networks (DARTS: 100) and ranks the others. All predictors also know the trained populations of the *other* spaces;
`alone` does without these. The RLM begins from a base that has seen no accuracy of any space. The ceiling is Kendall's
τ between the accuracies of two training seeds.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from experiments.runner import AsJson, FirstSeed, Jobs, Quick, Seeds, run_command
from experiments.tables import Scores, chosen, compute, made_once, pivot, publish, show, summarize
from nas.benchmarks import load_benchmark

SPACES = ("nasnet", "amoeba", "pnas", "enas", "darts")
OTHERS = (*SPACES, "nasbench101")
METRIC = "digits_accuracy"
LABELS = {"darts": 100}
PREDICTORS = ("rlm", "rlm alone", "gnn", "gnn alone", "forest", "forest alone", "ridge", "ridge alone")
STEPS, EVERY = 800, 500
QUICK_STEPS, QUICK_MOST = 10, 40
SAMPLES = 32


def score(predictor: str, space: str, base: str, steps: int, most: int, seed: int, *, folder: Path) -> Scores:
    """Kendall's τ on the networks of `space` that were not learned; of other spaces at most `most` each are known."""
    from scipy.stats import kendalltau

    import predictors

    texts, accuracy = _population(space)
    order = np.random.default_rng(seed).permutation(len(texts))
    train, test = np.split(order, [LABELS.get(space, 16)])
    test = test[:most]
    labelled = [texts[i] for i in train], accuracy[train]
    kind, _, alone = predictor.partition(" ")
    if kind == "rlm":
        start = base if alone else _taught(space, base, steps, most, folder)
        model = predictors.create("rlm", seed=seed, base=start)
        model.fit(labelled[0], {METRIC: labelled[1]})
    else:
        others = ([], np.empty(0)) if alone else _others(space, most)
        model = predictors.create(kind, seed=seed)
        model.fit([*others[0], *labelled[0]], {METRIC: np.concatenate([others[1], labelled[1]])})
    predicted = model.predict([texts[i] for i in test], [METRIC], samples=SAMPLES, seed=seed)
    return {"tau": float(kendalltau(predicted[METRIC], accuracy[test]).statistic)}


def ceiling(space: str) -> float:
    """Kendall's τ between the accuracies of two training seeds."""
    from scipy.stats import kendalltau

    table = load_benchmark(f"digits-{space}")
    return float(kendalltau(table.values(f"{METRIC}_seed0"), table.values(f"{METRIC}_seed1")).statistic)


def _population(space: str) -> tuple[list[str], np.ndarray]:
    table = load_benchmark(f"digits-{space}")
    return table.load_texts(), table.values(METRIC)


def _others(space: str, most: int) -> tuple[list[str], np.ndarray]:
    """Texts and accuracies of all populations but that of `space`, of each at most `most`."""
    texts: list[str] = []
    accuracies = []
    for other in OTHERS:
        if other != space:
            found, accuracy = _population(other)
            texts += found[:most]
            accuracies.append(accuracy[:most])
    return texts, np.concatenate(accuracies)


def _taught(space: str, base: str, steps: int, most: int, folder: Path) -> str:
    """A checkpoint of `base` that has learned the accuracies of all populations but that of `space`; made once."""
    import predictors
    from predictors.checkpoint import checkpoint

    def learned() -> predictors.Predictor:
        texts, accuracy = _others(space, most)
        return predictors.create("rlm", base=base, steps=steps).fit(texts, {METRIC: accuracy})

    return made_once(folder / f"{checkpoint(base).name}-without-{space}-{steps}-{most}", learned)


def main(
    base: Annotated[str, typer.Option(help="A label-free RLM: a checkpoint's name or folder.")] = "rlm-label-free",
    out: Annotated[Path, typer.Option(help="Folder in which finished rows and bases are kept.")] = Path(
        "results/cell-spaces"
    ),
    seeds: Seeds = 5,
    first_seed: FirstSeed = 0,
    only: Annotated[str, typer.Option(help="Predictors, separated by commas.")] = ",".join(PREDICTORS),
    jobs: Jobs = 1,
    quick: Quick = False,
    as_json: AsJson = False,
) -> None:
    """Train and rank; a table of means over the seeds."""
    names = chosen(only, PREDICTORS)
    spaces, steps, most, seeds = (SPACES[:1], QUICK_STEPS, QUICK_MOST, 1) if quick else (SPACES, STEPS, EVERY, seeds)
    tasks = [
        (predictor, space, base, steps, most, seed)
        for space in spaces
        for predictor in names
        for seed in range(first_seed, first_seed + seeds)
    ]
    rows = compute(tasks, partial(score, folder=out), out, jobs)
    for row, (_, space, *_) in zip(rows, tasks, strict=True):
        row["ceiling"] = ceiling(space)
    about = ("predictor", "space", "base", "steps", "of each space")
    summary = summarize(tasks, rows)
    table = pivot(summary, "tau")
    table["two training seeds"] = {space: {"mean": ceiling(space), "std": 0.0} for space in spaces}
    publish(out, table, "Kendall's τ")
    show("Kendall's τ in five cell spaces", about, summary, as_json)


if __name__ == "__main__":
    run_command(main)
