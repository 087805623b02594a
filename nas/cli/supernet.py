"""`nas supernet`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nas.cli.console import print_json, print_table
from nas.cli.options import (
    DataSet,
    Json,
    Quiet,
    Seed,
    Space,
    SpaceOptions,
    Training,
    given_only,
    parse_settings,
)
from nas.cli.progress import progress_bar
from search_spaces.common.errors import InputError

EPOCHS = 80  # by default: many networks share them


def supernet(
    space: Space,
    out: Annotated[Path, typer.Option(help="The .safetensors file to write.")] = Path(
        "supernet.safetensors"
    ),
    dataset: DataSet = None,
    epochs: Annotated[
        int, typer.Option(min=1, help="Epochs, in each of which all batches train four networks.")
    ] = EPOCHS,
    training: Training = None,
    option: SpaceOptions = None,
    seed: Seed = 0,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Train all networks of a space at once; `nas search --start FILE` begins with their weights.

    An interrupted training resumes with the same command.
    """
    from nas.evaluation.subjects import open_space
    from nas.evaluation.supernet import scores_of_ends, train_supernet
    from nas.evaluation.tasks import training_task
    from search_spaces import TorchSpace

    if out.suffix != ".safetensors":
        raise InputError(f"--out {out}: the file ends with .safetensors")
    if out.exists():
        raise InputError(f"{out} exists: give another --out, or remove it")
    task = training_task({**parse_settings(training, "--training"), **given_only(epochs=epochs)})
    opened, data = open_space(space, parse_settings(option, "--option"), dataset or "digits")
    if not isinstance(opened, TorchSpace):
        raise InputError(f"{space}: a supernet needs a space of PyTorch modules")
    assert data is not None
    state = out.with_name(f"{out.stem}.training.pt")
    with progress_bar("training", quiet) as bar:
        weights = train_supernet(
            opened,
            data,
            task,
            seed=seed,
            checkpoint=state,
            progress=bar,
        )
    weights.save(out)
    state.unlink(missing_ok=True)
    scores = scores_of_ends(opened, weights, data, task, seed)
    if as_json:
        print_json({"supernet": str(out), **scores})
        return
    rows = [{"network": name, data.metric: score} for name, score in scores.items()]
    print_table("Networks with its weights and recalibrated statistics", rows)
    print(f"written to {out}")
