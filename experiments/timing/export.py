"""Time of our ONNX models and texts compared with `torch.onnx.export`.

Run `python -m experiments.timing.export`.

Both use one core and write files to a temporary folder. Our time includes all steps from the
architecture: graph, model with weights, and text. Torch's time is the export alone; its module with
weights is built before.
"""

from __future__ import annotations

import logging
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import numpy as np
import typer

from experiments.runner import AsJson, Quick, run_command
from nas.cli.console import print_json, print_table
from nas.cli.progress import progress_bar
from search_spaces import Architecture, SearchSpace, get_space, list_spaces
from search_spaces.common.progress import Progress
from search_spaces.ir.graph import Graph
from search_spaces.ir.onnx import write_model
from search_spaces.ir.text import compact, write

EXPORTERS = {"TorchScript": False, "torch.export": True}


def _milliseconds(action: Callable[[Any], object], items: Sequence[Any]) -> float:
    """Mean processor time of one call, which excludes other processes on the machine."""
    started = time.process_time()
    for item in items:
        action(item)
    return 1e3 * (time.process_time() - started) / len(items)


def ours(space: SearchSpace, archs: Sequence[Architecture], path: Path) -> dict[str, float]:
    """Milliseconds per architecture of each step, and of all steps together (`ours`)."""
    graphs = [space.graph(arch) for arch in archs]

    def save(graph: Graph) -> None:
        with path.open("wb") as file:
            write_model(graph, file)

    steps = {
        "graph": _milliseconds(space.graph, archs),
        "model file": _milliseconds(save, graphs),
        "text": _milliseconds(lambda graph: write(compact(graph)), graphs),
    }

    def together(arch: Architecture) -> str:
        graph = space.graph(arch)
        save(graph)
        return write(compact(graph))

    return {**steps, "ours": _milliseconds(together, archs)}


def torchs(space: SearchSpace, arch: Architecture, dynamo: bool, path: Path) -> float:
    """Milliseconds of one `torch.onnx.export` of the architecture."""
    import torch

    from nas.evaluation.module import GraphModule

    graph = space.graph(arch)
    module = GraphModule(graph).eval()
    x = torch.zeros(1, *map(int, graph.shapes[graph.inputs[0]][1:]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that its older exporter is deprecated
        return _milliseconds(
            lambda file: torch.onnx.export(module, (x,), file, dynamo=dynamo, verbose=False),
            [path],
        )


def measure(
    name: str,
    exporters: Sequence[str],
    seeds: int,
    count: int,
    path: Path,
    progress: Progress,
) -> dict[str, Any]:
    """A row of milliseconds and speedups, mean ± standard deviation over the seeds."""
    space = get_space(name)
    rows: list[dict[str, float]] = []
    for seed in range(seeds):
        rng = np.random.default_rng(seed)
        archs = [space.sample(rng) for _ in range(count)]
        row = ours(space, archs, path)
        for exporter in exporters:
            progress(f"{name}, {exporter}", seed, seeds)
            row[exporter] = torchs(space, archs[0], EXPORTERS[exporter], path)
            row[f"× {exporter}"] = row[exporter] / row["ours"]
        rows.append(row)
    cells = {"space": name}
    for key in rows[0]:
        column = np.array([row[key] for row in rows])
        cells[key] = f"{column.mean():,.1f} ± {column.std():,.1f}"
    return cells


def main(
    space: Annotated[
        list[str] | None, typer.Option(help="Only this space; may be repeated.")
    ] = None,
    seeds: Annotated[
        int, typer.Option(min=1, help="Seeds; each exports one network with each exporter.")
    ] = 5,
    count: Annotated[
        int, typer.Option(min=1, help="Architectures per seed for our mean time.")
    ] = 20,
    quick: Quick = False,
    as_json: AsJson = False,
) -> None:
    """Print milliseconds per network."""
    import torch

    if quick:
        space, seeds, count = ["tiny-resnet"], 1, 2
    torch.set_num_threads(1)
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    exporters = [
        name for name, dynamo in EXPORTERS.items() if not dynamo or find_spec("onnxscript")
    ]
    small = get_space("tiny-resnet")
    rows = []
    with TemporaryDirectory() as folder, progress_bar("export") as bar:
        path = Path(folder, "net.onnx")
        for exporter in exporters:  # the first export of a process mostly imports modules
            torchs(small, next(small.enumerate()), EXPORTERS[exporter], path)
        for name in space or list_spaces():
            rows.append(measure(name, exporters, seeds, count, path, bar))
    print_json(rows) if as_json else print_table(
        "Milliseconds per network, and torch's in multiples of ours", rows
    )
    if len(exporters) < len(EXPORTERS):
        print("torch.export was left out: it needs the package onnxscript", file=sys.stderr)


if __name__ == "__main__":
    run_command(main)
