"""Sub-networks of trained models against pruning: are they faster at equal accuracy, and does a
short training rank them?

Per family and seed, a network is trained on `composed_images`. Then, with the same number of epochs
of fine-tuning for every method:

1. *rivals*: Torch-Pruning with uniform and global ratios, by magnitude, and by Taylor expansion.
2. *searches*: the search of this project, TPE and NSGA-II in the space of sub-networks. They score a
   network after `search_epochs`; the finalists are fine-tuned as long as the pruned networks, unless
   they were already. The accuracy has a floor below the model's, which the samplers know.
3. *fresh*: the same search, where every network is trained from new weights.
4. *ranks*: Kendall's τ between scores after few epochs from inherited weights and a long training.

Every evaluation is one line of `results.jsonl`, so that an interrupted run goes on.
"""

from __future__ import annotations

import copy
import importlib.util
import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import moocore
import numpy as np
import torch
from scipy.stats import kendalltau
from torch import nn

import nas
from experiments.images import CLASSES, write_images
from experiments.sub_networks.models import EXAMPLE, FAMILIES
from nas.evaluation.datasets import Dataset, load_dataset
from nas.evaluation.latency import open_session, random_inputs
from nas.evaluation.tasks import TrainingTask
from nas.evaluation.trainable import Trainable
from nas.evaluation.training import train
from nas.search.evaluators import MAX_PER_TRAINING, Values
from nas.search.samplers import is_guided
from nas.search.study.trial_logger import EvaluationLogger
from nas.search.trainings import Segment
from search_spaces import Architecture, Subnetworks
from search_spaces.ir.onnx import to_model
from search_spaces.ir.pytorch import record, record_with_numbers

RIVALS = ("uniform magnitude", "global magnitude", "uniform taylor", "global taylor")
SAMPLERS = ("rlm", "tpe", "nsga2")
DROPS = (0.5, 2.0)  # points of accuracy below the model
WINDOWS, RUNS = 15, 12  # of a paired measurement, and inferences of each network per window
TAYLOR_BATCHES = 8  # of 64 images
FLOOR = 12.0  # points below the model: a search needs no networks beyond
MAX_RATIO = 0.6375  # of channels that Torch-Pruning removes
SHIFT = 2  # pixels, of training images
N_STARTUP = 10  # networks of a guided search before its first fit
VIT_LONGER = 4  # times the epochs of a ResNet, which learns faster from so few images


class Size(NamedTuple):
    """Sizes of a run.

    Attributes:
        images: training images.
        held_out: validation images; the test part has twice as many.
        model_epochs: of the model; `VIT_LONGER` times as many of a vision transformer.
        tune_epochs: of every network that is compared.
        ratios: networks per rival.
        evaluations: of each search, after `search_epochs` each.
        search_epochs: of an evaluation in a search.
        finalists: of each search, fine-tuned for `tune_epochs`.
        fresh_epochs: of an evaluation in the search from fresh weights.
        ranked: networks of *ranks*.
        few_epochs: epochs of the early scores.
        long_epochs: of the long training.
        round_to: channels are multiples of it.
    """

    images: int
    held_out: int
    model_epochs: int
    tune_epochs: int
    ratios: int
    evaluations: int
    search_epochs: int
    finalists: int
    fresh_epochs: int
    ranked: int
    few_epochs: tuple[int, ...]
    long_epochs: int
    round_to: int


SIZES = {
    "full": Size(8000, 2000, 30, 4, 15, 40, 1, 5, 16, 30, (0, 1, 4), 16, 8),
    "medium": Size(4000, 1000, 24, 4, 15, 40, 1, 5, 12, 20, (0, 1, 4), 12, 8),
    "small": Size(1500, 500, 16, 2, 6, 8, 2, 8, 8, 6, (0, 1), 4, 8),
    "quick": Size(256, 64, 1, 1, 1, 3, 0, 1, 1, 2, (0,), 1, 4),
}
FULL_PER_FRESH = 3  # evaluations of a search per one of the search from fresh weights
WORST = (0.0, 1.2)  # reference point of hypervolumes: no accuracy, slower than the model


class Lines:
    """A file of results, one JSON object per line, by key; done ones are not repeated."""

    def __init__(self, path: Path) -> None:
        self.path = path
        lines = path.read_text().splitlines() if path.exists() else []
        self.rows: dict[str, dict[str, Any]] = {row["key"]: row for row in map(json.loads, lines)}

    def __call__(self, key: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        if key not in self.rows:
            self.rows[key] = {"key": key, **make()}
            with self.path.open("a") as file:
                file.write(json.dumps(self.rows[key]) + "\n")
        return self.rows[key]


def relative_latency(module: nn.Module, reference: bytes, example: Any = EXAMPLE) -> float:
    """Median latency of a module relative to a reference network, in ONNX Runtime on one thread.

    The two run in turns, and the ratio of each window counts, so that other programs of the machine
    slow both.
    """
    sessions = [open_session(model) for model in (serialized(module, example), reference)]
    feeds = [random_inputs(session, 1) for session in sessions]
    medians = [
        [_median_time(session, feed) for session, feed in zip(sessions, feeds, strict=True)]
        for _ in range(WINDOWS + 1)
    ]
    table = np.array(medians[1:])  # the first window warms up
    return float(np.median(table[:, 0] / table[:, 1]))


def serialized(module: nn.Module, example: Any) -> bytes:
    """The module's ONNX model."""
    graph, numbers = record_with_numbers(module, example)
    return to_model(graph, 0, numbers).SerializeToString()


def _median_time(session: Any, feed: dict[str, np.ndarray]) -> float:
    times = []
    for _ in range(RUNS):
        start = time.perf_counter()
        session.run(None, feed)
        times.append(time.perf_counter() - start)
    return float(np.median(times))


@dataclass(frozen=True)
class Score:
    """A network's accuracies in %, and its latency relative to the model's."""

    validation: float
    test: float
    latency: float


class Study:
    """The comparison of one family with one seed.

    Args:
        family: of `FAMILIES`.
        seed: of the model's weights and of the searches.
        data: the images.
        folder: for the model and the results.
        size: of the run.
        quick: take the tiny network.
        lines: the file of results.
    """

    def __init__(
        self,
        family: str,
        seed: int,
        data: Dataset,
        folder: Path,
        size: Size,
        lines: Lines,
        quick: bool = False,
    ) -> None:
        self.family, self.seed, self.data, self.size = family, seed, data, size
        self.lines, self.folder = lines, folder
        self.make = FAMILIES[family][int(quick)]

    def row(self, key: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The line of this family and seed with this key."""
        return self.lines(f"{self.family} {self.seed} {key}", make)

    # --- the model and its sub-networks

    @cached_property
    def weights(self) -> Path:
        """The trained model's weights; trained now if they are missing."""
        file = self.folder / f"{self.family}-{self.seed}.safetensors"
        if not file.exists():
            from safetensors.torch import save_file

            torch.manual_seed(self.seed)
            model = self.make(CLASSES)
            network = Trainable(
                record(model, EXAMPLE), lambda: copy.deepcopy(model).train(), EXAMPLE
            )
            epochs = self.size.model_epochs * (VIT_LONGER if self.family == "vit" else 1)
            task = self.task(epochs, fresh=True)
            trained = train(network, self.data, (self.seed,), task)
            assert trained.state is not None
            save_file({name: x.contiguous() for name, x in trained.state.items()}, file)
        return file

    @cached_property
    def space(self) -> Subnetworks:
        return self.space_of("inherited")

    def space_of(self, start: str) -> Subnetworks:
        """The sub-networks, with every multiple of an eighth of the channels."""
        eighths = tuple(i / 8 for i in range(1, 9))
        return Subnetworks(
            self.make(CLASSES),
            EXAMPLE,
            weights=self.weights,
            width=eighths,
            round_to=self.size.round_to,
            start=start,
            teacher="model" if start == "inherited" else "none",
            name=f"{self.family}-{start}",
        )

    def some_batches(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Training images and classes for Taylor expansions."""
        inputs, targets = self.data.train.inputs, self.data.train.targets
        starts = range(0, min(64 * TAYLOR_BATCHES, len(inputs)), 64)
        return [
            (torch.from_numpy(inputs[i : i + 64]), torch.from_numpy(targets[i : i + 64]))
            for i in starts
        ]

    @cached_property
    def reference(self) -> bytes:
        return serialized(self.space.model, EXAMPLE)

    # --- evaluations

    def task(self, epochs: int, fresh: bool = False) -> TrainingTask:
        """The training of a model from fresh weights, or a fine-tuning with the default rates."""
        task = TrainingTask(epochs, shift=SHIFT, noise=0)
        if fresh and self.family == "vit":
            return replace(task, learning_rate=2e-3, optimizer="adamw", weight_decay=0.02)
        return task

    def score(self, key: str, network: Trainable, epochs: int, fresh: bool = False) -> Score:
        """Accuracies and relative latency of a network after some epochs; stored."""

        def measure() -> dict[str, Any]:
            trained = train(network, self.data, (self.seed,), self.task(epochs, fresh))
            module = network.module().eval()
            return {
                "epochs": epochs,
                "validation": trained.validation[0],
                "test": trained.test[0],
                "latency": relative_latency(module, self.reference),
            }

        row = self.row(key, measure)
        return Score(row["validation"], row["test"], row["latency"])

    def score_of(self, arch: Architecture, epochs: int) -> Score:
        """`score` of a sub-network with inherited weights."""
        text = json.dumps(list(arch.as_dict().values()))
        return self.score(f"sub {epochs} {text}", Trainable.of(self.space, arch), epochs)

    def latency_of(self, arch: Architecture, space: Subnetworks | None = None) -> float:
        """Relative latency of a sub-network; stored. Weights do not matter for it."""

        def measure() -> dict[str, Any]:
            module = (space or self.space).module(arch).eval()
            return {"latency": relative_latency(module, self.reference)}

        text = json.dumps(list(arch.as_dict().values()))
        return float(self.row(f"latency {text}", measure)["latency"])

    @cached_property
    def model_score(self) -> Score:
        whole = Trainable.of(self.space, self.space.whole)
        return self.score("model", whole, 0)

    @property
    def floor(self) -> float:
        """The lowest validation accuracy in % that a search needs."""
        return self.model_score.validation - FLOOR

    # --- 1. rivals

    def pruned(self, rival: str) -> list[Score]:
        """Torch-Pruning's networks of several ratios, fine-tuned with the same teacher.

        The smallest ones come first. Once a network is within the smallest of `DROPS`, slower ones
        cannot be the rival's fastest at any drop, and are not trained.
        """
        scope, kind = rival.split()
        ratios = np.linspace(0, MAX_RATIO, self.size.ratios + 1)[:0:-1].tolist()
        needed = self.model_score.test - min(DROPS)
        scores: list[Score] = []
        for ratio in ratios:
            module = self._pruned(ratio, scope == "global", kind)
            good = [score.latency for score in scores if score.test >= needed]
            if good and relative_latency(module, self.reference) >= min(good):
                continue
            network = Trainable(
                record(module, EXAMPLE),
                lambda module=module: copy.deepcopy(module),  # type: ignore[misc]
                EXAMPLE,
                teacher=self.space.model,
                inherits=True,
            )
            scores.append(self.score(f"{rival} {ratio:.3f}", network, self.size.tune_epochs))
        return scores

    def _pruned(self, ratio: float, everywhere: bool, kind: str) -> nn.Module:
        import torch_pruning

        made: Any = copy.deepcopy(self.space.model)
        importances = {
            "magnitude": torch_pruning.importance.GroupMagnitudeImportance(p=2),
            "taylor": torch_pruning.importance.GroupTaylorImportance(),
        }
        attentions = [layer.attention for layer in getattr(made, "layers", ())]
        heads = {
            projection: projection.out_features // attention.head_width
            for attention in attentions
            for projection in (attention.q, attention.k, attention.v)
        }
        pruner = torch_pruning.pruner.BasePruner(
            made,
            EXAMPLE,
            importance=importances[kind],
            pruning_ratio=ratio,
            global_pruning=everywhere,
            ignored_layers=[made.head],
            round_to=self.size.round_to,
            num_heads=heads,
            prune_num_heads=True,
            prune_head_dims=False,  # the model's heads have a fixed width
            head_pruning_ratio=ratio,
        )
        if kind == "taylor":
            made.zero_grad()
            for inputs, targets in self.some_batches():
                nn.functional.cross_entropy(made(inputs), targets).backward()
        pruner.step()
        return made.eval()

    # --- 2. searches

    def searched(self, sampler: str) -> list[Score]:
        """The finalists of a search, fine-tuned."""
        size = self.size
        archs, scores = explored(
            self.seed,
            sampler,
            self.space,
            self._short_score,
            self.latency_of,
            size.evaluations,
            self.floor,
        )
        if size.search_epochs == size.tune_epochs:
            return scores

        # The front, the fastest network first. Its finalists are looked for by validation scores.
        near = [i for i, score in enumerate(scores) if score.validation >= self.floor]
        if not near:
            return []
        losses = np.array([[-scores[i].validation, scores[i].latency] for i in near])
        front = [near[i] for i in np.flatnonzero(moocore.is_nondominated(losses))]
        front.sort(key=lambda i: scores[i].latency)
        needed = [self.model_score.validation - drop for drop in DROPS]
        return bisected(
            len(front),
            lambda place: self.score_of(archs[front[place]], size.tune_epochs),
            needed,
            size.finalists,
        )

    def _short_score(self, arch: Architecture) -> Score:
        return self.score_of(arch, self.size.search_epochs)

    # --- 3. fresh weights

    def hypervolumes(self) -> dict[str, list[tuple[int, float]]]:
        """Epochs spent and hypervolume of the best networks so far: the search from inherited
        weights, and the one from fresh ones.

        A network counts with the score that the search sees after its last epoch.
        """
        size = self.size
        space = self.space_of("fresh")

        def fresh(arch: Architecture) -> Score:
            text = json.dumps(list(arch.as_dict().values()))
            network = Trainable.of(space, arch)
            return self.score(f"fresh {size.fresh_epochs} {text}", network, size.fresh_epochs, True)

        count = max(2, size.evaluations // FULL_PER_FRESH)
        latency, evaluations = self.latency_of, size.evaluations
        of_fresh = partial(latency, space=space)
        _, short = explored(self.seed, "rlm", self.space, self._short_score, latency, evaluations)
        _, long = explored(self.seed, "rlm", space, fresh, of_fresh, count)
        return {
            "inherited": _volumes(short, size.search_epochs),
            "fresh": _volumes(long, size.fresh_epochs),
        }

    # --- 4. ranks

    def ranks(self) -> dict[int, float]:
        """Kendall's τ between the scores after few epochs and after the long training.

        The keys are the few epochs.
        """
        rng = np.random.default_rng(self.seed)
        archs = [self.space.sample(rng) for _ in range(self.size.ranked)]
        long = [self.score_of(arch, self.size.long_epochs).test for arch in archs]
        return {
            few: float(kendalltau([self.score_of(a, few).test for a in archs], long).statistic)
            for few in self.size.few_epochs
        }


def explored(
    seed: int,
    sampler: str,
    space: Subnetworks,
    score: Callable[[Architecture], Score],
    latency: Callable[[Architecture], float],
    evaluations: int,
    floor: float | None = None,
) -> tuple[list[Architecture], list[Score]]:
    """The networks of a search by accuracy and latency, and their scores.

    Args:
        seed: of the sampler.
        sampler: its name.
        space: the sub-networks.
        score: trains and scores one.
        latency: measures one. A guided sampler measures five networks per training.
        evaluations: number of networks.
        floor: the lowest validation accuracy in % that counts; None without one.
    """
    evaluator = _Scored(score, latency)
    limits = [] if floor is None else [f"accuracy >= {floor:.2f}"]
    objectives = {"accuracy": "max", "cpu_latency_ms": "min"}
    problem = nas.Problem(space, evaluator, objectives, limits)
    options = {"n_startup": min(N_STARTUP, evaluations - 1)} if is_guided(sampler) else None
    nas.search(
        problem, sampler=sampler, evaluations=evaluations, seed=seed, sampler_options=options
    )
    return list(evaluator.scores), list(evaluator.scores.values())


class _Scored(nas.Evaluator):
    """Scores of a study: latencies are measured before trainings. See `explored`."""

    metrics = ("accuracy", "cpu_latency_ms")
    trained = ("accuracy",)
    measured_per_training = MAX_PER_TRAINING

    def __init__(
        self, score: Callable[[Architecture], Score], latency: Callable[[Architecture], float]
    ) -> None:
        self.score, self.latency = score, latency
        self.scores: dict[Architecture, Score] = {}

    def measure(self, architecture: Architecture, log: EvaluationLogger) -> dict[str, float]:
        return {"cpu_latency_ms": self.latency(architecture)}

    def train(
        self,
        architecture: Architecture,
        observed: Values,
        log: EvaluationLogger,
        segment: Segment | None = None,
    ) -> dict[str, float]:
        self.scores[architecture] = self.score(architecture)
        return {**observed, "accuracy": self.scores[architecture].validation}


def _volumes(scores: Sequence[Score], epochs: int) -> list[tuple[int, float]]:
    """Epochs spent and hypervolume after each evaluation."""
    points = np.array([[-score.test, score.latency] for score in scores])
    volumes = []
    for count in range(1, len(points) + 1):
        volume = moocore.hypervolume(points[:count], ref=WORST)
        volumes.append((epochs * count, float(volume)))
    return volumes


def bisected(
    length: int, score: Callable[[int], Score], needed: Sequence[float], count: int
) -> list[Score]:
    """Look by bisection for the fastest network of a front that is accurate enough.

    Args:
        length: of the front.
        score: fine-tunes the network at a place of the front, the fastest one at place 0. Accuracies
            rise along the front, as far as short trainings tell.
        needed: validation accuracies in %, the highest first. Each may use its share of the
            networks that are left.
        count: networks to fine-tune at most.

    Returns:
        Scores of those that were fine-tuned.
    """
    scores: dict[int, Score] = {}
    for i, accuracy in enumerate(needed):
        share = math.ceil((count - len(scores)) / (len(needed) - i))
        until = len(scores) + share
        low, high = 0, length  # the fastest one that is accurate enough is at `low` to `high`
        while low < high:
            middle = (low + high) // 2
            if middle not in scores:
                if len(scores) == until:
                    break
                scores[middle] = score(middle)
            if scores[middle].validation >= accuracy:
                high = middle
            else:
                low = middle + 1
    return list(scores.values())


def fastest(scores: Sequence[Score], needed: float) -> float:
    """The lowest relative latency of the networks that reach a test accuracy; NaN if none does."""
    return min((s.latency for s in scores if s.test >= needed), default=float("nan"))


def run_study(study: Study, parts: Sequence[str], only: Sequence[str] = ()) -> None:
    """Run some of the parts, and print what they find.

    only: the methods; all by default.
    """
    name = f"{study.family} {study.seed}"
    model = study.model_score
    print(f"{name}: the model has {model.test:.2f} % test accuracy", flush=True)
    methods: dict[str, list[Score]] = {}
    rivals = [name for name in RIVALS if name in only or not only]
    samplers = [name for name in SAMPLERS if name in only or not only]
    if "rivals" in parts and importlib.util.find_spec("torch_pruning") is None:
        print("Torch-Pruning is not installed: no rivals (pip install torch-pruning --no-deps)")
    elif "rivals" in parts:
        methods |= {rival: study.pruned(rival) for rival in rivals}
    if "searches" in parts:
        methods |= {sampler: study.searched(sampler) for sampler in samplers}
    for drop in DROPS if methods else ():
        needed = model.test - drop
        shown = ", ".join(f"{m} {fastest(s, needed):.3f}" for m, s in methods.items())
        print(f"{name}: latency / model's within {drop} points: {shown}", flush=True)
    if "ranks" in parts:
        taus = ", ".join(f"{few} epochs {tau:.2f}" for few, tau in study.ranks().items())
        print(f"{name}: τ with {study.size.long_epochs} epochs: {taus}", flush=True)
    if "fresh" in parts:
        for start, curve in study.hypervolumes().items():
            shown = ", ".join(f"{epochs}: {volume:.1f}" for epochs, volume in curve)
            print(f"{name}: hypervolume by epochs from {start} weights: {shown}", flush=True)


def images(folder: Path, size: Size) -> Dataset:
    """The data set of a folder; made if it is missing."""
    file = folder / "images.npz"
    if not file.exists():
        write_images(file, size.images, held_out=size.held_out)
    return load_dataset(file)
