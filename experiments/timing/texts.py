"""From choices to text, in every registered space: `python -m experiments.timing.texts`.

One core, processor time, architectures that were not written before. The checksum is that of all texts one after
another: run it with another version's `PYTHONPATH` to compare both speed and texts.
"""

from __future__ import annotations

import hashlib
import time
from typing import Annotated, Any

import numpy as np
import typer

from experiments.runner import AsJson, Quick, run_command
from nas.cli.console import print_json, print_table
from search_spaces import get_space, list_spaces

WARM_UP, QUICK = 20, 3


def measure(name: str, count: int) -> dict[str, Any]:
    """Texts per second, and the checksum of `count` texts."""
    space, rng = get_space(name), np.random.default_rng(0)
    for _ in range(WARM_UP):
        space.to_text(space.sample(rng))
    archs = [space.sample(rng) for _ in range(count)]
    started = time.process_time()
    texts = [space.to_text(arch) for arch in archs]
    seconds = time.process_time() - started
    checksum = hashlib.sha256("".join(texts).encode()).hexdigest()[:16]
    return {"space": name, "texts/s": count / seconds, "checksum": checksum}


def main(
    architectures: Annotated[int, typer.Option(min=1, help="Architectures of each space.")] = 200,
    quick: Quick = False,
    as_json: AsJson = False,
) -> None:
    """A row per space."""
    rows = [measure(name, QUICK if quick else architectures) for name in list_spaces()]
    if as_json:
        print_json(rows)
    else:
        print_table("From choices to text, one core", rows)


if __name__ == "__main__":
    run_command(main)
