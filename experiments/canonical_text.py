"""What functions and canonical order buy in the text: `python -m experiments.canonical_text` (an hour).

Networks are written in four forms: the text; the text without the functions that Re-Pair finds;
without any function; and without a function in the order in which the network was built. First
table: length, distinct texts, and time of each form. Second table: how well `rlm` ranks networks
that it reads in each form. The shipped checkpoint was trained on the first form.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Annotated, Any

import numpy as np
import typer
from scipy.stats import spearmanr

import predictors
from experiments.runner import AsJson, Quick, run_command
from nas.benchmarks import load_benchmark
from nas.cli.console import print_json, print_table
from search_spaces import get_space, list_spaces, read_source
from search_spaces.ir.graph import Graph, Node
from search_spaces.ir.text import compact, expand, read, write
from search_spaces.ir.text.functions import compact_regions, flat_program
from search_spaces.ir.text.program import Block, Item, Program

TABLES = ("digits-fbnet", "digits-pnas", "digits-nasbench101")
METRIC = "digits_accuracy"
QUICK_SPACES = ("nasbench201", "tiny-resnet")
TESTED = 300  # networks that are ranked
REORDERED = 20  # networks of each space whose nodes are put into another order
ZOO = (
    "resnet50", "densenet121", "inception_v3", "efficientnet_b0", "mobilenetv3_large_100",
    "regnety_032", "convnext_tiny", "hrnet_w18", "vit_base_patch16_224", "swin_tiny_patch4_window7_224",
    "mixer_b16_224", "coatnet_0_rw_224",
)  # fmt: skip


def as_built(graph: Graph) -> Program:
    """The nodes in the order of the graph, without functions."""
    items = []
    for node in graph.nodes:
        items.append(Item(node.op, node.inputs, node.attrs, len(node.outputs)))
    block = Block(len(graph.inputs), tuple(items), graph.outputs)
    inputs = tuple([graph.shapes[value] for value in graph.inputs])
    outputs = tuple([graph.shapes[value] for value in graph.outputs])
    return Program(block, {}, inputs, outputs)


FORMS: dict[str, Callable[[Graph], Program]] = {
    "text": compact,
    "without Re-Pair": compact_regions,
    "without functions": flat_program,
    "as built": as_built,
}


def reordered(graph: Graph, rng: np.random.Generator) -> Graph:
    """The graph with its nodes in a random topological order."""
    readers: dict[int, list[int]] = {}
    missing = [len(set(node.inputs).difference(graph.inputs)) for node in graph.nodes]
    for i, node in enumerate(graph.nodes):
        for value in set(node.inputs):
            readers.setdefault(value, []).append(i)
    ready = [(rng.random(), i) for i, count in enumerate(missing) if count == 0]
    heapify(ready)
    number = {value: value for value in graph.inputs}
    shapes = [graph.shapes[value] for value in graph.inputs]
    nodes: list[Node] = []
    while ready:
        node = graph.nodes[heappop(ready)[1]]
        for value in node.outputs:
            number[value] = len(shapes)
            shapes.append(graph.shapes[value])
            for reader in readers.get(value, ()):
                missing[reader] -= 1
                if missing[reader] == 0:
                    heappush(ready, (rng.random(), reader))
        inputs = tuple(number[value] for value in node.inputs)
        nodes.append(node._replace(inputs=inputs, outputs=tuple(number[v] for v in node.outputs)))
    outputs = tuple(number[value] for value in graph.outputs)
    return Graph(graph.inputs, tuple(nodes), outputs, tuple(shapes))


def tokens(program: Program) -> int:
    """Operators, calls, attributes and numbers in the text, each function once."""
    total = 0
    for block in (program.main, *program.functions.values()):
        for item in block.items:
            total += 1 + len(item.attrs)
            total += sum(len(v) if isinstance(v, tuple) else 1 for _, v in item.attrs)
    return total


def measure(source: str, graphs: list[Graph]) -> list[dict[str, Any]]:
    """A row per form: mean tokens, distinct texts, texts that a new order of nodes leaves, time."""
    rng = np.random.default_rng(0)
    others = [reordered(graph, rng) for graph in graphs[:REORDERED]]
    rows = []
    for form, program_of in FORMS.items():
        start = time.process_time()
        programs = [program_of(graph) for graph in graphs]
        texts = [write(program) for program in programs]
        seconds = time.process_time() - start
        same = [write(program_of(g)) == text for g, text in zip(others, texts, strict=False)]
        rows.append({
            "networks": source,
            "form": form,
            "tokens": float(np.mean([tokens(program) for program in programs])),
            "distinct": len(set(texts)),
            "kept by a new order": float(np.mean(same)),
            "ms": 1000 * seconds / len(graphs),
        })  # fmt: skip
    return rows


def rank(table: str, sizes: tuple[int, ...], seeds: int, tested: int) -> list[dict[str, Any]]:
    """A row per form and number of labels: Spearman's ρ over the seeds.

    `ms` is the time to predict one network in the first of these runs, when no text is cached.
    """
    benchmark = load_benchmark(table)
    values = benchmark.values(METRIC)
    graphs = [expand(read(text)) for text in benchmark.load_texts()]
    rows: list[dict[str, Any]] = []
    for form, program_of in FORMS.items():
        texts = [write(program_of(graph)) for graph in graphs]
        seconds = None
        for size in sizes:
            scores = []
            for seed in range(seeds):
                order = np.random.default_rng(seed).permutation(len(texts))
                train, test = order[:size], order[size : size + tested]
                model = predictors.create("rlm", seed=seed)
                model.fit([texts[i] for i in train], {METRIC: values[train]})
                start = time.process_time()
                predicted = model.predict([texts[i] for i in test], [METRIC]).mean[:, 0]
                seconds = time.process_time() - start if seconds is None else seconds
                scores.append(float(spearmanr(predicted, values[test]).statistic))
            rows.append({
                "table": table,
                "form": form,
                "labels": size,
                "rho": float(np.mean(scores)),
                "std": float(np.std(scores)),
                "ms": 1000 * seconds / tested if seconds else None,
            })  # fmt: skip
    return rows


def main(
    networks: Annotated[int, typer.Option(min=1, help="Networks of each space.")] = 1000,
    seeds: Annotated[int, typer.Option(min=1, help="Draws of labels.")] = 5,
    quick: Quick = False,
    as_json: AsJson = False,
) -> None:
    """Print both tables."""
    count = 10 if quick else networks
    forms = []
    for name in QUICK_SPACES if quick else list_spaces():
        space = get_space(name)
        rng = np.random.default_rng(0)
        forms += measure(name, [space.graph(space.sample(rng)) for _ in range(count)])
    for name in ZOO[:1] if quick else ZOO:
        source = f"timm:{name}"
        forms += measure(source, [expand(read(read_source(source)))])
    ranks = []
    for table in TABLES[:1] if quick else TABLES:
        ranks += rank(table, (20,) if quick else (50, 100), 1 if quick else seeds, TESTED)
    if as_json:
        print_json({"forms": forms, "ranks": ranks})
    else:
        print_table("Forms of the text", forms)
        print_table("Ranks by rlm", ranks)


if __name__ == "__main__":
    run_command(main)
