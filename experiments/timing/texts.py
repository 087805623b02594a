"""Speed from choices to text in all registered spaces: `python -m experiments.timing.texts`.

Processor time on one core is measured on new architectures. `--only resnet50` measures a ResNet-50
of torchvision, including the construction of the module. The checksum covers all texts: run the
command with the `PYTHONPATH` of another version to compare both speed and texts.
"""

from __future__ import annotations

import hashlib
import time
from typing import Annotated, Any

import numpy as np
import typer

from experiments.runner import AsJson, Quick, run_command
from nas.cli.console import print_json, print_table
from nas.cli.options import split_names
from search_spaces import SearchSpace, TorchSpace, get_space, list_spaces

QUICK = 3
RESNET50 = "resnet50"


def resnet50() -> TorchSpace:
    """ResNet-50 of torchvision with 64 to 1,024 channels per group.

    Its images have 224 × 224 pixels.
    """
    import torch

    from search_spaces.common.torchvision import prepare_torchvision

    prepare_torchvision()
    from torchvision import models

    def build(trial: Any) -> torch.nn.Module:
        return models.resnet50(weights=None, width_per_group=trial.suggest_int("width", 64, 1024))

    return TorchSpace(build, torch.zeros(1, 3, 224, 224))


def measure(name: str, space: SearchSpace, count: int) -> dict[str, Any]:
    """Texts per second, milliseconds per text, and the checksum of `count` texts."""
    rng = np.random.default_rng(0)
    for _ in range(count):  # fill the caches, as in a long search
        space.to_text(space.sample(rng))
    archs = [space.sample(rng) for _ in range(count)]
    started = time.process_time()
    texts = [space.to_text(arch) for arch in archs]
    seconds = time.process_time() - started
    checksum = hashlib.sha256("".join(texts).encode()).hexdigest()[:16]
    return {
        "space": name,
        "texts/s": count / seconds,
        "ms": 1000 * seconds / count,
        "checksum": checksum,
    }


def main(
    architectures: Annotated[int, typer.Option(min=1, help="Architectures of each space.")] = 200,
    only: Annotated[str, typer.Option(help="Comma-separated spaces; all by default.")] = "",
    quick: Quick = False,
    as_json: AsJson = False,
) -> None:
    """Print a row per space."""
    names = split_names(only) if only else list_spaces()
    spaces = {name: resnet50() if name == RESNET50 else get_space(name) for name in names}
    rows = [
        measure(name, space, QUICK if quick else architectures) for name, space in spaces.items()
    ]
    if as_json:
        print_json(rows)
    else:
        print_table("From choices to text, one core", rows)


if __name__ == "__main__":
    run_command(main)
