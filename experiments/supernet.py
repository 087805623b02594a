"""One training for a whole space against separate trainings: `python -m experiments.supernet`.

Per space of `own_spaces`, a supernet is trained on digits. Random networks are scored with its
weights and recalibrated statistics, and trained separately; Kendall's τ between the two says
whether the first can stand for the second. Rows are stored, so that an interrupted run resumes.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from scipy.stats import kendalltau

from experiments.own_families import POPULATIONS
from experiments.runner import Quick, run_command
from nas.evaluation.datasets import digits
from nas.evaluation.supernet import supernet_score, train_supernet
from nas.evaluation.tasks import DigitsTask, TrainingTask
from nas.evaluation.trainable import Trainable
from nas.evaluation.training import train
from search_spaces import TorchSpace, get_space
from search_spaces.common.errors import unknown

FOLDER = Path("results/supernet")


def compare(name: str, folder: Path, epochs: int, networks: int, rate: float) -> dict[str, Any]:
    """Train the supernet and the networks of one space, and compare their scores."""
    population = POPULATIONS[f"own-{name}"]
    space = get_space(population.space)
    assert isinstance(space, TorchSpace)
    separate = DigitsTask(**population.task)
    data = digits(separate.train_images, separate.shift, separate.noise, test_share=0.0)
    task = TrainingTask(epochs, learning_rate=rate)

    # 1. One training for all.
    start = time.process_time()
    weights = train_supernet(space, data, task, checkpoint=folder / f"{name}-{epochs}-{rate}.pt")
    seconds = time.process_time() - start

    # 2. Random networks: inherited, and trained separately.
    rng = np.random.default_rng(1)
    archs = [space.sample(rng) for _ in range(networks)]
    shared = [supernet_score(space, weights, arch, data, task) for arch in archs]
    file = folder / f"{name}-separate-{separate.epochs}.json"
    scores = json.loads(file.read_text()) if file.exists() else []
    start = time.process_time()
    trained = 0
    for arch in archs[len(scores) :]:
        network = Trainable.of(space, arch)
        scores.append(train(network, data, task=separate).validation[0])
        file.write_text(json.dumps(scores))
        trained += 1
    per_network = (time.process_time() - start) / trained if trained else float("nan")
    scores = scores[:networks]
    return {
        "space": name,
        "networks": networks,
        "tau": float(kendalltau(shared, scores).statistic),
        "mean accuracy, supernet": float(np.mean(shared)),
        "mean accuracy, separate": float(np.mean(scores)),
        "supernet, CPU s": seconds,
        "separate training, CPU s": per_network,
    }


def main(
    folder: Annotated[Path, typer.Argument(help="Folder for the results.")] = FOLDER,
    spaces: Annotated[str, typer.Option(help="Of own_spaces.")] = "widths,transformer",
    epochs: Annotated[int, typer.Option(min=1, help="Of the supernet.")] = 80,
    networks: Annotated[int, typer.Option(min=2, help="Networks that are compared.")] = 24,
    rate: Annotated[float, typer.Option(help="Learning rate of the supernet.")] = 0.1,
    quick: Quick = False,
) -> None:
    """Compare a supernet's scores with those of separate trainings."""
    known = [name.removeprefix("own-") for name in POPULATIONS]
    for name in spaces.split(","):
        if name not in known:
            raise unknown("space", name, known)
    folder.mkdir(parents=True, exist_ok=True)
    for name in spaces.split(","):
        row = compare(name, folder, 1 if quick else epochs, 2 if quick else networks, rate)
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    run_command(main)
