"""Which blocks in 8-bit integers? All 4,096 answers of one trained network, and how searches find the
best: `python -m experiments.precision OUT --study table` (an hour on an idle core; it
resumes), then `python -m experiments.precision OUT`.

1. A residual network of twelve blocks is trained on composed images of 30 classes: basic and inverted
   blocks in turns.
2. Every assignment of fp32 or int8 to its blocks is quantized statically. Latency, accuracy on 200
   images, and the relative error of the logits against the float network's are those of that very
   ONNX file in ONNX Runtime. Ranges of activations are measured once, since all assignments share
   the float network; a check compares the file with that of `nas.evaluation.int8.quantize`.
   Latencies are measured in `ROUNDS` windows each, in turns with others, and each beside the
   reference network.
3. Searches look the values up: error and latency down. The accuracy is the same for all assignments
   that were measured, and so tells nothing apart; the error of the logits does. A row is a method's
   share of the hypervolume of the true front, after some evaluations, and the evaluations to 95 % of
   it (`evaluations` + 1 if that is not reached).

`sensitivity` is what tools for mixed precision do: measure the float network and each block alone in
int8, order the blocks by the error that they add per millisecond that they save, and quantize ever
more of them in this order; then likewise by added error alone, and by saved time alone.
"""

from __future__ import annotations

import copy
import csv
import itertools
import json
import math
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from experiments.images import write_images
from experiments.runner import AsJson, FirstSeed, Jobs, Quick, Seeds, run_command
from experiments.tables import Scores, Task, chosen, compute, show, summarize
from nas import Evaluator, Problem, Reference, search
from nas.evaluation.datasets import Dataset, load_dataset
from nas.evaluation.export import load_weights, save_weights, trained_model
from nas.evaluation.int8 import (
    calibration_reader,
    calibration_samples,
    quantize,
    quietly,
    with_followers,
)
from nas.evaluation.latency import LatencyTask, open_session, time_serialized
from nas.evaluation.tasks import TrainingTask
from nas.evaluation.trainable import Trainable
from nas.search.pareto import non_dominated
from predictors.metrics import Metric
from search_spaces import Architecture, SearchSpace
from search_spaces.common.errors import InputError
from search_spaces.ir.precision import PRECISIONS, quantized_nodes

if TYPE_CHECKING:
    import onnx

    from search_spaces.choosers import Trial
    from search_spaces.ir.builder import Network, Tensor

BLOCKS = 12
WIDTHS = (16, 32, 64)  # channels of the three stages
EXPANSION = 3  # of inverted blocks
TRAIN_IMAGES, HELD_OUT = 6000, 1000
IMAGES = 200  # of the validation part, on which files are scored
TRAINING = TrainingTask(epochs=12, batch=50, learning_rate=0.05, shift=2, noise=0.0)
ERROR, ACCURACY = "images_int8_error", "images_int8_accuracy"
LATENCY = "cpu_int8_latency_ms"
COLUMNS = ("blocks", ERROR, ACCURACY, LATENCY)
OBJECTIVES = (Metric(ERROR, "accuracy", "min"), Metric(LATENCY))
ROUNDS = 2  # windows of a latency
TOGETHER = 16  # files whose latencies are measured in turns
METHODS = ("rlm", "gp-choices", "nsga2", "tpe", "random", "sensitivity")
SHARE = 0.95
SHOWN = (10, 20, 40, 80)


class PrecisionNet(SearchSpace):
    """One network of twelve blocks; the choices are their precisions.

    Args:
        choices: number of blocks whose precision is chosen, those in the middle; the others compute
            in floats.
    """

    name = "precision-net"
    input_shape = (3, 32, 32)
    num_classes = 30

    def __init__(self, choices: int = BLOCKS) -> None:
        first = (BLOCKS - choices) // 2
        self.chosen = range(first, first + choices)

    @property
    def size(self) -> int:
        return len(PRECISIONS) ** len(self.chosen)

    def build(self, trial: Trial, net: Network) -> Tensor:
        with net.precision("fp32"):
            x = net.conv_bn_relu(net.input, WIDTHS[0], stride=2)
        for i in range(BLOCKS):
            stage, place = divmod(i, BLOCKS // len(WIDTHS))
            precision = "fp32"
            if i in self.chosen:
                precision = trial.suggest_categorical(f"block{i}", list(PRECISIONS))
            with net.precision(precision), net.block("block"):
                if stage and not place:
                    x = net.conv_bn_relu(x, WIDTHS[stage], stride=2)
                x = _inverted(net, x) if place % 2 else _basic(net, x)
        with net.precision("fp32"):
            return net.classifier(x)

    def assignment(self, blocks: Sequence[int]) -> Architecture:
        """The network whose blocks are in int8 where a 1 stands, of all twelve."""
        return self.architecture({f"block{i}": PRECISIONS[blocks[i]] for i in self.chosen})

    def rows(self) -> list[str]:
        """All assignments as strings: 0 (fp32) or 1 (int8) for each of the twelve blocks."""
        options = ["01" if i in self.chosen else "0" for i in range(BLOCKS)]
        return ["".join(bits) for bits in itertools.product(*options)]


def _basic(net: Network, x: Tensor) -> Tensor:
    return net.relu(net.add(x, net.conv_bn(net.conv_bn_relu(x))))


def _inverted(net: Network, x: Tensor) -> Tensor:
    """Expansion, depthwise convolution, projection (arXiv 1801.04381)."""
    width = int(x.shape[1])
    hidden = EXPANSION * width
    inner = net.relu6(net.conv_bn(x, hidden, kernel=1))
    inner = net.relu6(net.conv_bn(inner, kernel=3, groups=hidden))
    projected = net.conv_bn(inner, width, kernel=1)
    return net.add(x, projected)


# --- the network


def images(folder: Path) -> Dataset:
    """The data set, written on first use."""
    path = folder / "images.npz"
    if not path.exists():
        write_images(path, TRAIN_IMAGES, held_out=HELD_OUT)
    return load_dataset(str(path), PrecisionNet.input_shape)


def float_model(folder: Path, data: Dataset) -> onnx.ModelProto:
    """The trained network, all in floats; trained on first use."""
    from nas.evaluation.training import train

    space = PrecisionNet()
    path = folder / "weights.safetensors"
    network = Trainable.of(space, space.assignment([0] * BLOCKS))
    if not path.exists():
        trained = train(network, data, (0,), TRAINING, checkpoint=folder / "training.pt")
        assert trained.state is not None
        about = {"validation": str(trained.validation[0]), "test": str(trained.test[0])}
        save_weights(path, trained.state, about)
    return trained_model(network, load_weights(path)[0])


# --- all assignments


class Quantizer:
    """Quantizes one network in many ways; the ranges of its activations are measured once.

    Args:
        model: the float network.
        samples: calibration inputs (n, …).
    """

    def __init__(self, model: onnx.ModelProto, samples: np.ndarray) -> None:
        import onnx
        from onnxruntime.quantization import CalibrationMethod, create_calibrator
        from onnxruntime.quantization.shape_inference import quant_pre_process

        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder, "float.onnx")
            merged = Path(folder, "merged.onnx")
            source.write_bytes(model.SerializeToString())
            quant_pre_process(str(source), str(merged), skip_symbolic_shape=True)
            self.merged = onnx.load(merged)
            calibrator = create_calibrator(
                merged, None, f"{folder}/augmented.onnx", CalibrationMethod.MinMax
            )
            calibrator.collect_data(calibration_reader(model, samples))
            self.ranges = calibrator.compute_data()

    def __call__(self, layers: Sequence[str]) -> bytes:
        """The serialized network with these convolutions on integers."""
        from onnxruntime.quantization import QuantType
        from onnxruntime.quantization.qdq_quantizer import QDQQuantizer
        from onnxruntime.quantization.registry import QDQRegistry, QLinearOpsRegistry

        if not layers:
            return bytes(self.merged.SerializeToString())
        nodes = with_followers(self.merged, layers)
        quantizer = QDQQuantizer(
            copy.deepcopy(self.merged), True, False, QuantType.QInt8, QuantType.QUInt8, self.ranges,
            nodes, [], sorted({*QDQRegistry, *QLinearOpsRegistry}), {},
        )  # fmt: skip
        quantizer.quantize_model()
        return bytes(quantizer.model.model.SerializeToString())


def measure(
    folder: Path, choices: int = BLOCKS, limit: int | None = None, part: tuple[int, int] = (1, 1)
) -> None:
    """Write a row of `table.csv` for every assignment that it lacks, in random order.

    Args:
        folder: for network and table.
        choices: see `PrecisionNet`.
        limit: number of assignments; None for all.
        part: number of this process, and of all that share the work.
    """
    folder.mkdir(parents=True, exist_ok=True)
    data = images(folder)
    assert data.validation is not None
    model = float_model(folder, data)
    space = PrecisionNet()
    samples = calibration_samples(data)

    # 1. The convolutions of each block, and that both ways to quantize agree.
    state, _ = load_weights(folder / "weights.safetensors")
    layers = []
    for block in range(BLOCKS):
        alone = space.assignment([int(i == block) for i in range(BLOCKS)])
        layers.append(quantized_nodes(space.to_onnx(alone)) or [])
    with quietly():
        quantizer = Quantizer(model, samples)
        every = space.assignment([1] * BLOCKS)
        whole = quantize(trained_model(Trainable.of(space, every), state), samples)
        ours = quantizer([name for block in layers for name in block])
    x = data.validation.inputs[:IMAGES]
    y = data.validation.targets[:IMAGES]
    exact = outputs(model.SerializeToString(), x)
    assert np.array_equal(outputs(whole, x), outputs(ours, x))

    # 2. Assignments, some at a time: their latencies are measured in turns.
    done = {row["blocks"] for row in rows_of(folder / "table.csv")}
    rows = PrecisionNet(choices).rows()
    order = np.random.default_rng(0).permutation(len(rows))[:limit][part[0] - 1 :: part[1]]
    missing = [rows[i] for i in order if rows[i] not in done]
    task = LatencyTask(windows=ROUNDS, runs=30)
    with (folder / "table.csv").open("a", newline="") as file:
        writer = csv.writer(file)
        if not file.tell():
            writer.writerow(COLUMNS)
            file.flush()
        for start in range(0, len(missing), TOGETHER):
            some = missing[start : start + TOGETHER]
            files = []
            for row in some:
                nodes = []
                for bit, names in zip(row, layers, strict=True):
                    if bit == "1":
                        nodes += names
                with quietly():
                    files.append(quantizer(nodes))
            times = time_serialized(files, task)
            for row, quantized, latency in zip(some, files, times, strict=True):
                logits = outputs(quantized, x)
                accuracy = 100 * float((logits.argmax(1) == y).mean())
                writer.writerow([row, relative_error(exact, logits), accuracy, latency.median])
            file.flush()


def outputs(model: bytes, x: np.ndarray) -> np.ndarray:
    """Logits (n, classes) of a serialized model in ONNX Runtime."""
    session = open_session(model)
    name = session.get_inputs()[0].name
    parts = []
    for start in range(0, len(x), 50):
        (logits, *_) = session.run(None, {name: x[start : start + 50]})
        parts.append(logits)
    return np.concatenate(parts)


def relative_error(exact: np.ndarray, quantized: np.ndarray) -> float:
    """Root of the mean squared error of logits, in % of that of the exact ones around zero."""
    return 100 * math.sqrt(float(((quantized - exact) ** 2).sum() / (exact**2).sum()))


def rows_of(path: Path) -> list[dict[str, str]]:
    """The rows of a table; none if there is no file."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


# --- searches


@cache
def table_of(path: str, choices: int) -> dict[str, tuple[float, float]]:
    """Relative error of the logits in % and latency in ms by assignment.

    The latencies are sums over blocks and pairs of neighbours, fitted to all measured ones: blocks
    differ by less than one measurement varies, and the front would be made of lucky ones.

    Raises:
        InputError: the table lacks an assignment.
    """
    rows = {row["blocks"]: row for row in rows_of(Path(path))}
    assignments = PrecisionNet(choices).rows()
    if missing := [row for row in assignments if row not in rows]:
        raise InputError(f"{path} lacks {len(missing)} assignments: run --study table first")
    measured = np.array([float(row[LATENCY]) for row in rows.values()])
    latencies, _ = fitted_latencies(list(rows), measured)
    latency_of = dict(zip(rows, latencies.tolist(), strict=True))
    return {row: (float(rows[row][ERROR]), latency_of[row]) for row in assignments}


def fitted_latencies(
    rows: Sequence[str], latencies: np.ndarray, neighbours: bool = True
) -> tuple[np.ndarray, float]:
    """Latencies (n,) as sums over int8 blocks and pairs of neighbours that are both int8, and the
    median relative error of such sums for rows that they were not fitted to, by five folds.
    """
    # 1. The design: a constant, int8 blocks, and pairs of neighbours.              (n, terms)
    bits = np.array([[int(bit) for bit in row] for row in rows])
    terms = [np.ones((len(rows), 1)), bits]
    if neighbours:
        terms.append(bits[:, 1:] * bits[:, :-1])
    design = np.hstack(terms)

    # 2. Errors of rows that were left out, by folds.
    errors = np.empty(len(rows))
    order = np.random.default_rng(0).permutation(len(rows))
    for fold in np.array_split(order, 5):
        kept = np.setdiff1d(np.arange(len(rows)), fold)
        weights, *_ = np.linalg.lstsq(design[kept], latencies[kept], rcond=None)
        predicted = design[fold] @ weights
        errors[fold] = np.abs(predicted / latencies[fold] - 1)

    # 3. The sums, fitted to all rows.
    weights, *_ = np.linalg.lstsq(design, latencies, rcond=None)
    return design @ weights, float(np.median(errors))


def blocks_of(architecture: Architecture) -> str:
    """The assignment of an architecture, as in the table."""
    chosen = architecture.as_dict()
    precisions = [chosen.get(f"block{i}", "fp32") for i in range(BLOCKS)]
    return "".join(str(PRECISIONS.index(precision)) for precision in precisions)


class Lookup(Evaluator):
    """Looks the values of an assignment up."""

    metrics = (ERROR, LATENCY)

    def __init__(self, values: Mapping[str, tuple[float, float]]) -> None:
        self.values = values

    def __call__(self, architectures: Sequence[Architecture]) -> np.ndarray:
        return np.array([self.values[blocks_of(a)] for a in architectures])


def by_sensitivity(values: Mapping[str, tuple[float, float]], seed: int) -> Iterator[str]:
    """The assignments that greedy sensitivity measures, in order; at last the others at random."""
    floats = "0" * BLOCKS
    alone = sorted(row for row in values if row.count("1") == 1)
    blocks = [row.index("1") for row in alone]
    yield floats
    yield from alone
    # 1. What each block alone loses and saves. Noise may make it gain.
    lost = np.array([values[row][0] - values[floats][0] for row in alone])
    saved = np.array([values[floats][1] - values[row][1] for row in alone])
    ratio = np.where(saved > 0, lost / np.maximum(saved, 1e-9), np.inf)
    # 2. Ever more blocks, in three orders.
    seen = {floats, *alone}
    for order in (np.argsort(ratio), np.argsort(lost), np.argsort(-saved)):
        chosen = ["0"] * BLOCKS
        for place in order:
            chosen[blocks[place]] = "1"
            if (row := "".join(chosen)) not in seen:
                seen.add(row)
                yield row
    # 3. It has nothing more to say.
    rest = sorted(values.keys() - seen)
    yield from (rest[i] for i in np.random.default_rng(seed).permutation(len(rest)))


def search_score(path: str, choices: int, method: str, evaluations: int, seed: int) -> Scores:
    """Shares of the true front's hypervolume after some evaluations, and evaluations to 95 %."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    values = table_of(path, choices)
    reference = Reference.of_table(np.array(list(values.values())), OBJECTIVES)
    if method == "sensitivity":
        rows = list(itertools.islice(by_sensitivity(values, seed), evaluations))
    else:
        problem = Problem(PrecisionNet(choices), Lookup(values), OBJECTIVES)
        result = search(problem, sampler=method, evaluations=evaluations, seed=seed)
        rows = [blocks_of(architecture) for architecture in result.evaluated.architectures]
    shares = reference.curve(np.array([values[row] for row in rows]))
    score = {f"HV@{n}": float(shares[n - 1]) for n in SHOWN if n <= len(shares)}
    return score | {"to 95%": float(np.argmax([*(shares >= SHARE), True]) + 1)}


def describe(path: Path, choices: int) -> dict[str, Any]:
    """What the table says: the front, the ends, and how well latencies of blocks add up."""
    values = table_of(str(path), choices)
    rows = rows_of(path)
    losses = np.array(list(values.values()))
    names = [row["blocks"] for row in rows]
    measured = np.array([float(row[LATENCY]) for row in rows])
    accuracies = [float(row[ACCURACY]) for row in rows]
    return {
        "assignments": len(values),
        "front": len({*map(tuple, losses[non_dominated(losses)])}),
        "error in %": [float(losses[:, 0].min()), float(losses[:, 0].max())],
        "latency in ms": [float(losses[:, 1].min()), float(losses[:, 1].max())],
        "accuracy in %": [min(accuracies), max(accuracies)],
        "median error of latency as a sum of blocks": fitted_latencies(names, measured, False)[1],
        "with pairs of neighbours": fitted_latencies(names, measured)[1],
    }


class Study(StrEnum):
    """The two steps of this module."""

    table = "table"
    searches = "searches"


def main(
    out: Annotated[Path, typer.Argument(help="Folder for network, table and finished rows.")],
    study: Annotated[Study, typer.Option(help="Measure the table, or search it.")] = Study.searches,
    choices: Annotated[
        int, typer.Option(min=1, max=BLOCKS, help="Blocks in the middle that are chosen.")
    ] = BLOCKS,
    evaluations: Annotated[int, typer.Option(min=1, help="Of each search.")] = 150,
    seeds: Seeds = 10,
    first_seed: FirstSeed = 0,
    only: Annotated[str | None, typer.Option(help="Methods, separated by commas.")] = None,
    table: Annotated[
        Path | None, typer.Option(help="A finished table; OUT/table.csv by default.")
    ] = None,
    part: Annotated[
        str, typer.Option(help="Part of the table for this process, such as 1/2.")
    ] = "1/1",
    quick: Quick = False,
    jobs: Jobs = 1,
    as_json: AsJson = False,
) -> None:
    """Measure all assignments of precisions to twelve blocks, or find the best by searches."""
    path = out / "table.csv" if table is None else table
    if study == Study.table:
        number, _, parts = part.partition("/")
        measure(out, choices, limit=8 if quick else None, part=(int(number), int(parts)))
        return
    print(json.dumps(describe(path, choices), indent=1))
    names = chosen(only or ",".join(METHODS), METHODS)
    every = range(first_seed, first_seed + (2 if quick else seeds))
    count = min(20, evaluations) if quick else evaluations
    tasks: list[Task] = [
        (str(path), choices, name, count, seed) for seed in every for name in names
    ]
    rows = compute(tasks, search_score, out / "searches", jobs)
    keys = ("table", "choices", "method", "evaluations")
    show("Share of the true hypervolume", keys, summarize(tasks, rows), as_json)


if __name__ == "__main__":
    run_command(main)
