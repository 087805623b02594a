"""Pretrain `rlm-base`: the RLM on generated architectures and label-free metrics only (exact counts, proxies).

    python -m experiments.pretrain --out runs/pretrain

writes the checkpoint to `runs/pretrain/rlm-base` and the loss of every step beside it. An interrupted run goes on where
it was, to the same losses; proxies are kept in the folder for runs with other settings, too.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from nas.cli import progress_bar
from search_spaces.errors import InputError
from search_spaces.files import replacing

SCHEDULE = {"jitter": 0.05, "batch": 64, "learning_rate": 1.5e-3, "most_metrics": 5}


def main(
    out: Annotated[Path, typer.Option(help="Folder for proxies, corpus and checkpoint.")] = Path("results/pretrain"),
    size: Annotated[int, typer.Option(min=100, help="Generated architectures.")] = 40_000,
    cells: Annotated[int | None, typer.Option(min=0, help="Different cells that get proxies; all by default.")] = None,
    steps: Annotated[int, typer.Option(min=1, help="Optimizer steps of 64 architectures.")] = 1500,
    base: Annotated[str | None, typer.Option(help="Go on from this checkpoint instead of from nothing.")] = None,
    precision: Annotated[str, typer.Option(help="bfloat16, or float32 where the processor lacks it.")] = "bfloat16",
    seed: Annotated[int, typer.Option(help="Seed of corpus, weights and batches.")] = 0,
) -> None:
    """Build the corpus and pretrain; the training is kept every 250 steps."""
    import predictors
    from nas.corpus import build_corpus
    from predictors.rlm.predictor import RLM

    checkpoint = out / "rlm-base"
    with progress_bar("pretraining") as bar:
        texts, metrics = build_corpus(out, size, cells=cells, seed=seed, progress=bar)
        model = predictors.create(
            "rlm",
            seed=seed,
            base=base,
            encoder="tuned",
            steps=steps,
            precision=precision,
            schedule=SCHEDULE,
            progress=lambda step, of, loss: bar(f"loss {loss:.3f}", step, of),
            kept=out / "training.safetensors",
        )
        assert isinstance(model, RLM)
        model.fit(texts, metrics)
    model.save(checkpoint)
    with replacing(out / "losses.csv") as file:
        file.write_text(
            "".join(["step,loss\n", *(f"{i},{loss:.6f}\n" for i, loss in enumerate(model.losses, start=1))])
        )
    print(checkpoint)


if __name__ == "__main__":
    try:
        typer.run(main)
    except InputError as error:
        sys.exit(f"pretrain: {error}")
