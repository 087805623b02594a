"""Pretrain `rlm-base`: the RLM on generated architectures and label-free metrics only (exact counts, proxies).

    python -m experiments.pretrain --out runs/pretrain

writes the checkpoint to `runs/pretrain/rlm-base`. Corpus and proxies are kept in the folder, so that another run with
other settings starts at once.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nas.cli import progress_bar
from search_spaces.errors import InputError

if TYPE_CHECKING:
    from predictors.rlm.predictor import RLM

SCHEDULE = {"jitter": 0.05, "batch": 64, "learning_rate": 1.5e-3, "most_metrics": 5}
SAVE_EVERY = 250


def main(
    out: Annotated[Path, typer.Option(help="Folder for proxies, corpus and checkpoint.")] = Path("results/pretrain"),
    size: Annotated[int, typer.Option(min=100, help="Generated architectures.")] = 40_000,
    steps: Annotated[int, typer.Option(min=1, help="Optimizer steps of 64 architectures.")] = 1500,
    base: Annotated[str | None, typer.Option(help="Go on from this checkpoint instead of from nothing.")] = None,
    precision: Annotated[str, typer.Option(help="bfloat16, or float32 where the processor lacks it.")] = "bfloat16",
    seed: Annotated[int, typer.Option(help="Seed of corpus, weights and batches.")] = 0,
) -> None:
    """Build the corpus and pretrain; an intermediate checkpoint is kept every 250 steps."""
    import predictors
    from nas.corpus import build_corpus
    from predictors.rlm.predictor import RLM

    checkpoint = out / "rlm-base"
    with progress_bar("pretraining") as bar:
        texts, metrics = build_corpus(out, size, seed=seed, progress=bar)
        model = predictors.create(
            "rlm", seed=seed, base=base, encoder="tuned", steps=steps, precision=precision, schedule=SCHEDULE
        )
        assert isinstance(model, RLM)
        model.progress = _saving(model, checkpoint, bar)
        model.fit(texts, metrics)
    model.save(checkpoint)
    print(checkpoint)


def _saving(model: RLM, checkpoint: Path, bar: Callable[[str, int, int], None]) -> Callable[[int, int, float], None]:
    def progress(step: int, steps: int, loss: float) -> None:
        bar(f"loss {loss:.3f}", step, steps)
        if step % SAVE_EVERY == 0:
            model.save(checkpoint)

    return progress


if __name__ == "__main__":
    try:
        typer.run(main)
    except InputError as error:
        sys.exit(f"pretrain: {error}")
