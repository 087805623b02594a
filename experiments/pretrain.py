"""Pretrain `rlm-label-free` on metrics that need no training, and `rlm-base` with accuracies of own populations, too.

    python -m experiments.pretrain --out runs/pretrain

writes the checkpoints there, and the losses of every step. The encoder learns first, from all metrics of a text at
once; then the decoder learns to write and to be given any of them, which makes `rlm-label-free`; at last it learns the
accuracies of the networks that this project trained on digits. An interrupted run goes on where it was, to the same
losses; proxies are kept in the folder for runs with other settings, too. It takes a GPU where there is one, and several
with `accelerate launch --num_processes N -m experiments.pretrain`.
"""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from experiments.tables import Quick
from nas.cli import progress_bar
from search_spaces.errors import InputError
from search_spaces.files import replacing

if TYPE_CHECKING:
    from predictors.rlm.predictor import RLM

SCHEDULE = {"jitter": 0.05, "batch": 64, "learning_rate": 1.5e-3, "most_metrics": 5}
SIZES = {"dropout": 0.0}


class Precision(StrEnum):
    """What matrices of the encoder are multiplied in."""

    no = "no"
    bf16 = "bf16"


def main(
    out: Annotated[Path, typer.Option(help="Folder for proxies, corpus and checkpoint.")] = Path("results/pretrain"),
    size: Annotated[int, typer.Option(min=100, help="Random architectures beside NAS-Bench-201's.")] = 16_000,
    cells: Annotated[int | None, typer.Option(min=0, help="NAS-Bench-201 cells with proxies; all by default.")] = None,
    steps: Annotated[int, typer.Option(min=1, help="Steps of the encoder, of 64 architectures each.")] = 4200,
    decoder_steps: Annotated[int, typer.Option(min=1, help="Steps of the decoder after that.")] = 1500,
    accuracy_steps: Annotated[int, typer.Option(min=1, help="Steps with accuracies in the end.")] = 400,
    precision: Annotated[Precision, typer.Option(help="bf16 on GPUs and processors that have it.")] = Precision.no,
    seed: Annotated[int, typer.Option(help="Seed of corpus, weights and batches.")] = 0,
    quick: Quick = False,
) -> None:
    """Build the corpus and pretrain; trainings are kept every 250 steps."""
    from accelerate import Accelerator

    import predictors
    from nas.corpus import build_corpus, emphasized, trained
    from predictors.rlm.predictor import RLM

    each = None
    if quick:
        size, cells, each, steps, decoder_steps, accuracy_steps = 30, 30, 4, 3, 3, 3
    accelerator = Accelerator(mixed_precision=precision.value)
    with progress_bar("pretraining") as bar:
        with accelerator.main_process_first():
            corpus = build_corpus(out, size, cells=cells, each=each, seed=seed, progress=bar)
        phases = (
            ("encoder", "alone", steps, emphasized(corpus, cells)),
            ("rlm-label-free", "frozen", decoder_steps, corpus),
            ("rlm-base", "frozen", accuracy_steps, trained(corpus)),
        )
        base = None
        for name, encoder, length, data in phases:
            model = predictors.create(
                "rlm",
                seed=seed,
                base=base,
                encoder=encoder,
                rehearse=True,
                steps=length,
                accelerator=accelerator,
                sizes=SIZES,
                schedule=SCHEDULE,
                progress=lambda step, of, loss, name=name: bar(f"{name}, loss {loss:.3f}", step, of),
                kept=out / f"training-{name}.safetensors",
            )
            assert isinstance(model, RLM)
            model.fit(data.texts, data.metrics)
            base = str(out / name)
            if accelerator.is_main_process:
                _write(model, out, name)
            accelerator.wait_for_everyone()
    accelerator.print(base)


def _write(model: RLM, out: Path, name: str) -> None:
    model.save(out / name)
    losses = "".join(["step,loss\n", *(f"{i},{loss:.6f}\n" for i, loss in enumerate(model.losses, start=1))])
    with replacing(out / f"losses-{name}.csv") as file:
        file.write_text(losses)


if __name__ == "__main__":
    try:
        typer.run(main)
    except InputError as error:
        sys.exit(f"pretrain: {error}")
