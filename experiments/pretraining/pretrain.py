"""Pretrain `rlm-label-free` and `gnn-label-free` on metrics that need no training, and `rlm-base` with accuracies, too.

    python -m experiments.pretraining.pretrain --out runs/pretrain

writes the checkpoints there, and the losses of every step. The encoder learns first, from all metrics of a text at
once; then the same and, at once, what `gnn-label-free` makes of the text; then the decoder learns to write and to be
given any of them, which makes `rlm-label-free`; at last it learns the accuracies of the networks that this project
trained on digits. An interrupted run goes on where it was, to the same losses; proxies are kept in the folder for runs
with other settings, too. It takes a GPU where there is one, and several with
`accelerate launch --num_processes N -m experiments.pretraining.pretrain`.

    python -m experiments.pretraining.pretrain --kind gnn --out runs/pretrain

pretrains the graph network on the same corpus, as often from NAS-Bench-201's networks, by a processor.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from experiments.runner import Quick, run_command
from nas.cli.console import progress_bar
from search_spaces.common.files import replacing

if TYPE_CHECKING:
    from experiments.pretraining.corpus import Corpus, Progress
    from predictors.gnn import GNN
    from predictors.rlm.predictor import RLM

SCHEDULE = {"jitter": 0.05, "batch": 64, "learning_rate": 1.5e-3, "most_metrics": 5}
TAUGHT_SCHEDULE = {**SCHEDULE, "learning_rate": 1e-3}
SIZES = {"dropout": 0.0}
TEACHER = "gnn-label-free"
STEPS = {"rlm": 4200, "gnn": 1800}
GNN_SCHEDULE = {"batch": 64, "learning_rate": 3e-3}


class Kind(StrEnum):
    """What is trained."""

    rlm = "rlm"
    gnn = "gnn"


class Precision(StrEnum):
    """What matrices of the encoder are multiplied in."""

    no = "no"
    bf16 = "bf16"


def main(
    kind: Annotated[Kind, typer.Option(help="The predictor to pretrain.")] = Kind.rlm,
    out: Annotated[Path, typer.Option(help="Folder for proxies, corpus and checkpoint.")] = Path("results/pretrain"),
    size: Annotated[int, typer.Option(min=100, help="Random architectures beside NAS-Bench-201's.")] = 16_000,
    cells: Annotated[int | None, typer.Option(min=0, help="NAS-Bench-201 cells with proxies; all by default.")] = None,
    steps: Annotated[
        int | None,
        typer.Option(min=2, help="Steps of the encoder, of 64 architectures each; 4,200 by default, 1,800 of gnn."),
    ] = None,
    decoder_steps: Annotated[int, typer.Option(min=1, help="rlm: steps of the decoder after that.")] = 1500,
    taught_steps: Annotated[int, typer.Option(min=1, help="rlm: further steps of the encoder, with a teacher.")] = 1000,
    teacher: Annotated[
        str, typer.Option(help="rlm: the pretrained GNN that teaches it: a name or a folder.")
    ] = TEACHER,
    accuracy_steps: Annotated[int, typer.Option(min=1, help="rlm: steps with accuracies in the end.")] = 400,
    precision: Annotated[Precision, typer.Option(help="rlm: bf16 on GPUs and processors that have it.")] = Precision.no,
    seed: Annotated[int, typer.Option(help="Seed of corpus, weights and batches.")] = 0,
    quick: Quick = False,
) -> None:
    """Build the corpus and pretrain; the rlm's trainings are kept every 250 steps."""
    source = Source(out, size, cells, None, seed)
    lengths = steps or STEPS[kind], taught_steps, decoder_steps, accuracy_steps
    if quick:
        source, lengths = Source(out, 30, 30, 4, seed), (3, 3, 3, 3)
    if kind == Kind.rlm:
        _language_model(source, lengths, teacher, precision)
        return
    with progress_bar("pretraining") as bar:
        _write(_graph_network(source, lengths[0], bar), out, "gnn-label-free")
    print(out / "gnn-label-free")


class Source(NamedTuple):
    """Where a corpus lies, and what it is of: see `experiments.pretraining.corpus.build_corpus`."""

    out: Path
    size: int
    cells: int | None
    each: int | None
    seed: int

    def corpus(self, progress: Progress) -> Corpus:
        from experiments.pretraining.corpus import build_corpus

        return build_corpus(self.out, self.size, cells=self.cells, each=self.each, seed=self.seed, progress=progress)


def _graph_network(source: Source, steps: int, bar: Progress) -> GNN:
    """One that has learned all metrics of the corpus at once."""
    from experiments.pretraining.corpus import emphasized
    from predictors.gnn import GNN

    data = emphasized(source.corpus(bar), source.cells)
    model = GNN(
        seed=source.seed,
        base=None,
        steps=steps,
        schedule=GNN_SCHEDULE,
        progress=lambda step, of, loss: bar(f"gnn-label-free, loss {loss:.3f}", step, of),
    )
    return model.fit(data.texts, data.metrics)


def _language_model(source: Source, steps: tuple[int, ...], teacher: str, precision: Precision) -> None:
    """Train the encoder, the encoder with a teacher, the decoder, and this with accuracies, for so many steps each."""
    from accelerate import Accelerator

    import predictors
    from experiments.pretraining.corpus import emphasized, trained
    from predictors.rlm.predictor import RLM

    accelerator = Accelerator(mixed_precision=precision.value)
    with progress_bar("pretraining") as bar:
        with accelerator.main_process_first():
            corpus = source.corpus(bar)
        half_published = emphasized(corpus, source.cells)
        phases = (
            ("encoder", "alone", None, half_published),
            ("taught", "alone", teacher, half_published),
            ("rlm-label-free", "frozen", None, corpus),
            ("rlm-base", "frozen", None, trained(corpus)),
        )
        base = None
        for (name, encoder, taught_by, data), length in zip(phases, steps, strict=True):
            model = predictors.create(
                "rlm",
                seed=source.seed,
                base=base,
                encoder=encoder,
                teacher=taught_by,
                rehearse=True,
                steps=length,
                accelerator=accelerator,
                sizes=SIZES,
                schedule=TAUGHT_SCHEDULE if taught_by else SCHEDULE,
                progress=lambda step, of, loss, name=name: bar(f"{name}, loss {loss:.3f}", step, of),
                kept=source.out / f"training-{name}.safetensors",
            )
            assert isinstance(model, RLM)
            model.fit(data.texts, data.metrics)
            base = str(source.out / name)
            if accelerator.is_main_process:
                _write(model, source.out, name)
            accelerator.wait_for_everyone()
    accelerator.print(base)


def _write(model: RLM | GNN, out: Path, name: str) -> None:
    model.save(out / name)
    losses = "".join(["step,loss\n", *(f"{i},{loss:.6f}\n" for i, loss in enumerate(model.losses, start=1))])
    with replacing(out / f"losses-{name}.csv") as file:
        file.write_text(losses)


if __name__ == "__main__":
    run_command(main)
