"""`nas sample`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nas.cli.console import print_json, print_table, write_text
from nas.cli.options import Json, Seed, Space, SpaceOptions, parse_settings


def sample(
    space: Space,
    option: SpaceOptions = None,
    count: Annotated[int, typer.Option(help="Number of architectures.", min=1)] = 1,
    seed: Seed = 0,
    out: Annotated[
        Path | None, typer.Option(help="Write .onnx and .txt files into this folder.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Sample random architectures, show their costs, and write ONNX files and texts with --out."""
    import numpy as np

    from search_spaces import get_space

    chosen = get_space(space, **parse_settings(option, "--option"))
    rng = np.random.default_rng(seed)
    rows = []
    for i in range(count):
        arch = chosen.sample(rng)
        rows.append(
            {
                "architecture": chosen.format(arch),
                "params": chosen.params(arch),
                "flops": chosen.flops(arch),
            }
        )
        if out is not None:
            chosen.save_onnx(arch, out / f"{i:04d}.onnx", seed)
            write_text(out / f"{i:04d}.txt", chosen.to_text(arch))
    print_json(rows) if as_json else print_table(f"{count} of {space}", rows)
