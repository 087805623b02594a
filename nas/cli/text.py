"""`nas text`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nas.cli.console import write_text
from nas.cli.options import NETWORK


def text(
    model: Annotated[str, typer.Argument(help=NETWORK)],
    out: Annotated[
        Path | None, typer.Option(help="Write the text here instead of printing it.")
    ] = None,
) -> None:
    """Print the compact text of a network."""
    from nas.networks import network_text

    write_text(out, network_text(model))
