"""`nas text`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nas.cli.console import write_text
from nas.cli.options import naming


def text(
    model: Annotated[Path, typer.Argument(help="An .onnx file.")],
    out: Annotated[Path | None, typer.Option(help="Write the text here instead of printing it.")] = None,
) -> None:
    """The compact text of an ONNX model."""
    from search_spaces import load_model, to_text

    write_text(out, naming(model, lambda: to_text(load_model(str(model)))))
