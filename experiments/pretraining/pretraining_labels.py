"""What a base should have learned: `python -m experiments.pretraining.pretraining_labels` (an hour and a half).

Bases learn NAS-Bench-201's published networks with more and more labels that need no training, and in the end this
project's populations with their digits accuracies; then each is fine-tuned on CIFAR-10 validation accuracies of N
networks and ranks 2,000 others by test accuracy. Every base but `nothing` also learns the paths of operators in a text.
They are much shorter trained than the shipped ones. The seeds are those on which settings are chosen.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from experiments.pretraining.corpus import EXACT, PROXIES, Corpus, build_corpus, published_texts, trained
from experiments.pretraining.pretrain import SCHEDULE, SIZES
from experiments.runner import AsJson, Jobs, Quick, Seeds, run_command
from experiments.tables import Scores, chosen, compute, made_once, show, summarize
from nas.cli.console import progress_bar

LEARNED, RANKED = "cifar10_validation_accuracy", "cifar10_test_accuracy"
NOTHING, PROXIED, POPULATIONS = "nothing", "exact costs and proxies", "and accuracies of populations"
LABELS: dict[str, tuple[str, ...]] = {
    "parameters and FLOPs": ("params", "flops"),
    "exact costs": tuple(EXACT),
    PROXIED: (*EXACT, *PROXIES),
}
VARIANTS = (NOTHING, *LABELS, POPULATIONS)
N, QUICK_N, FIRST_SEED = (78, 469), (20,), 100
TEST, QUICK_TEST, SAMPLES = 2000, 100, 16
QUICK_STEPS, QUICK_CELLS, QUICK_EACH = 4, 30, 4


def score(name: str, size: int, most: int, steps: int, base: str, seed: int) -> Scores:
    """Kendall's τ on networks that were not learned."""
    from scipy.stats import kendalltau

    import predictors
    from nas.benchmarks import load_benchmark

    table = load_benchmark("nasbench201")
    texts, learned, ranked = table.load_texts(), table.values(LEARNED), table.values(RANKED)
    order = np.random.default_rng(seed).permutation(len(table))
    train, test = order[:size], order[size : size + most]
    model = predictors.create("rlm", seed=seed, base=base or None)
    model.fit([texts[i] for i in train], {LEARNED: learned[train]})
    predicted = model.predict([texts[i] for i in test], [LEARNED], samples=SAMPLES, seed=seed)
    return {"tau": float(kendalltau(predicted[LEARNED], ranked[test]).statistic)}


def pretrain(name: str, steps: int, corpus: Corpus, cells: int | None, out: Path) -> str:
    """The folder of a base that has learned these labels; "" for none. cells: as of the corpus."""
    if name == NOTHING:
        return ""
    folder = out / f"{name.replace(' ', '-')}-{steps}"
    if name == POPULATIONS:
        return _learned(folder, pretrain(PROXIED, steps, corpus, cells, out), "frozen", steps // 4, trained(corpus))
    published = published_texts(cells)
    rows = [i for i, text in enumerate(corpus.texts) if text in published]
    known = Corpus([corpus.texts[i] for i in rows], {label: corpus.metrics[label][rows] for label in LABELS[name]})
    encoder = _learned(folder.with_name(f"{folder.name}-encoder"), None, "alone", steps, known)
    return _learned(folder, encoder, "frozen", steps // 2, known)


def _learned(folder: Path, base: str | None, encoder: str, steps: int, known: Corpus) -> str:
    """The folder of a model that has learned what is known."""
    import predictors

    def learned() -> predictors.Predictor:
        with progress_bar(folder.name) as bar:
            model = predictors.create(
                "rlm",
                base=base,
                encoder=encoder,
                rehearse=True,
                steps=steps,
                sizes=SIZES,
                schedule=SCHEDULE,
                progress=lambda step, of, loss: bar(f"{folder.name}, loss {loss:.3f}", step, of),
            )
            return model.fit(known.texts, known.metrics)

    return made_once(folder, learned)


def main(
    steps: Annotated[int, typer.Option(min=4, help="Steps of each encoder, of 64 networks.")] = 600,
    out: Annotated[Path, typer.Option(help="Folder for corpus, bases and rows.")] = Path("results/pretraining-labels"),
    cells: Annotated[int | None, typer.Option(min=1, help="NAS-Bench-201 cells to learn; all by default.")] = None,
    only: Annotated[str, typer.Option(help="Sets of labels, separated by commas.")] = ",".join(VARIANTS),
    seeds: Seeds = 5,
    jobs: Jobs = 1,
    quick: Quick = False,
    as_json: AsJson = False,
) -> None:
    """Pretrain, train and rank; a table of means over the seeds."""
    names, each = chosen(only, VARIANTS), None
    sizes, most, seeds = (QUICK_N, QUICK_TEST, 1) if quick else (N, TEST, seeds)
    if quick:
        steps, cells, each = QUICK_STEPS, QUICK_CELLS, QUICK_EACH
    with progress_bar("corpus") as bar:
        corpus = build_corpus(out, 0, cells=cells, each=each, progress=bar)
    bases = {name: pretrain(name, steps, corpus, cells, out) for name in names}
    tuning = range(FIRST_SEED, FIRST_SEED + seeds)
    tasks = [(n, size, most, steps, base, seed) for n, base in bases.items() for size in sizes for seed in tuning]
    rows = compute(tasks, score, out, jobs)
    about = ("labels", "trained on", "tested on", "steps", "base")
    show("Kendall's τ by what the base has learned", about, summarize(tasks, rows), as_json)


if __name__ == "__main__":
    run_command(main)
