"""`nas worker`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nas.cli.options import Device, Quiet, StorageTimeout, Trust
from nas.cli.progress import progress_bar


def worker(
    storage: Annotated[
        str, typer.Option(help="Journal file or URL, as given to `nas search --storage`.")
    ],
    study: Annotated[
        str | None, typer.Option(help="Name of one search; all unfinished searches by default.")
    ] = None,
    path_override: Annotated[
        str | None,
        typer.Option(
            "--path",
            help="Path of the table, data set or checkpoint on this machine, if it differs.",
        ),
    ] = None,
    space: Annotated[
        str | None,
        typer.Option(help="FILE.py:NAME of the search's space on this machine; the file is run."),
    ] = None,
    evaluator: Annotated[
        str | None,
        typer.Option(
            help="FILE.py:FUNCTION of the search's --evaluator on this machine; the file is run."
        ),
    ] = None,
    depends: Annotated[
        list[Path] | None,
        typer.Option(
            help="Path on this machine of a file or folder that the search depends on; repeatable."
        ),
    ] = None,
    weights: Annotated[
        Path | None,
        typer.Option(
            help="Folder for trained weights, with a subfolder per search; the search's own folder "
            "by default."
        ),
    ] = None,
    checkpoints: Annotated[
        Path | None,
        typer.Option(
            help="Folder for paused trainings of searches by cost; the search's own folder by "
            "default."
        ),
    ] = None,
    device: Device = None,
    jobs: Annotated[
        int, typer.Option(min=1, help="Processes of each search, which share the GPUs.")
    ] = 1,
    hours: Annotated[
        float | None,
        typer.Option(
            min=0, help="End after this many hours; an evaluation that has begun is finished."
        ),
    ] = None,
    evaluations: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="End after this many evaluations of this worker (training segments with "
            "--fidelities).",
        ),
    ] = None,
    storage_timeout: StorageTimeout = 600,
    trust: Trust = False,
    quiet: Quiet = False,
) -> None:
    """Join searches started elsewhere, until all their evaluations are done or for some of them."""
    import optuna

    from nas.search.joining import join
    from nas.search.progress import labelled
    from nas.search.study.load import is_unfinished, list_searches
    from nas.search.study.retry import set_timeout
    from nas.search.study.workers import Share

    set_timeout(storage_timeout)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    names = (
        [study]
        if study
        else [name for name in list_searches(storage) if is_unfinished(storage, name)]
    )
    share = Share.of(evaluations, None if hours is None else 3600 * hours)
    with progress_bar("working", quiet) as bar:
        for name in names:
            if share.is_used_up:
                break
            kept = weights / name if weights else None
            join(
                storage,
                name,
                path_override,
                device or "cpu",
                labelled(bar, name),
                trust,
                evaluator,
                kept,
                checkpoints,
                jobs,
                space=space,
                share=share,
                depends=depends or (),
            )
    unfinished = (
        [name for name in names if is_unfinished(storage, name)] if share.is_used_up else []
    )
    if unfinished:
        print(f"{', '.join(unfinished)}: this worker's share is done, the search goes on")
    else:
        print(f"{', '.join(names)}: finished" if names else f"{storage}: all searches are finished")
