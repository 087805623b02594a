"""Pretrain `gnn-label-free` on metrics that need no training.

Run `python -m experiments.pretraining.pretrain_gnn`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from experiments.runner import Quick, run_command
from nas.cli.progress import progress_bar

SCHEDULE = {"batch": 64, "learning_rate": 3e-3}
NAME = "gnn-label-free"


def main(
    out: Annotated[Path, typer.Option(help="Folder for proxies, corpus and checkpoint.")] = Path(
        "results/pretrain"
    ),
    size: Annotated[
        int, typer.Option(min=100, help="Random architectures besides NAS-Bench-201's.")
    ] = 16_000,
    cells: Annotated[
        int | None, typer.Option(min=0, help="NAS-Bench-201 cells with proxies; all by default.")
    ] = None,
    steps: Annotated[
        int, typer.Option(min=2, help="Optimizer steps, of 64 architectures each.")
    ] = 1800,
    seed: Annotated[int, typer.Option(help="Seed of corpus, weights and batches.")] = 0,
    quick: Quick = False,
) -> None:
    """Build the corpus, pretrain, and write the checkpoint."""
    import predictors
    from experiments.pretraining.corpus import build_corpus, emphasized

    each = None
    if quick:
        size, cells, each, steps = 30, 30, 4, 3
    with progress_bar("pretraining") as bar:
        corpus = build_corpus(out, size, cells=cells, each=each, seed=seed, progress=bar)
        data = emphasized(corpus, cells)
        model = predictors.create(
            "gnn",
            seed=seed,
            base=None,
            steps=steps,
            schedule=SCHEDULE,
            progress=lambda step, done, total: bar(f"{NAME}, {step}", done, total),
        )
        model.fit(data.texts, data.metrics).save(out / NAME)
    print(out / NAME)


if __name__ == "__main__":
    run_command(main)
