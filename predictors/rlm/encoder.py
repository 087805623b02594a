"""The text encoder: tokens pass messages along the data flow, and pooled tokens are a text's state.

As in GraphCodeBERT (arXiv 2009.08366), a token reads the tokens that produce its arguments and those
that use its value. Another encoder, T5Gemma, can take its place for texts other than networks.

Sizes in comments: B texts, n tokens of all texts, m distinct ones, e edges, w words, D width, K
windows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from predictors.rlm.tokens import (
    ACCURACIES,
    BUCKETS,
    COMMON,
    COUNTS,
    NEIGHBOURS,
    PROXIES,
    QUALITY,
    TEXT_NUMBERS,
    TOKEN_NUMBERS,
    Tokens,
)
from search_spaces.common.errors import InputError

WINDOW_SHARPNESS = 12.5  # a window is a Gaussian of standard deviation 0.2 along the text
BACKBONE_TEXTS = 8  # encoded at once by a backbone


@dataclass(frozen=True)
class EncoderConfig:
    """Sizes of the encoder."""

    width: int = 128  # width of the layers
    layers: int = 3  # number of layers
    windows: int = 3  # soft sections of a text that are pooled separately, beside the whole text
    structure: int = 256  # size of the structure in a state, which is linear in the pooled tokens
    hidden: int = 256  # width of the network from structure to quality
    frequencies: int = 4  # sine and cosine features per number of a token

    @property
    def outputs(self) -> int:
        """Size of a text's state; see `TextFeatures` for its parts."""
        return self.structure + QUALITY + COUNTS + NEIGHBOURS + COMMON


class Batch(NamedTuple):
    """The tokens of B texts; see `Tokens`."""

    words: Tensor  # (w,)
    starts: Tensor  # (n,) index of each token's first word
    numbers: Tensor  # (n, TOKEN_NUMBERS)
    edges: Tensor  # (2, e) producer and consumer
    text: Tensor  # (n,) text of each token
    position: Tensor  # (n,) in [0, 1]
    shared: Tensor  # (n,) which of the m distinct tokens it is
    totals: Tensor  # (B, TEXT_NUMBERS)
    counts: Tensor  # (B, COUNTS)
    neighbours: Tensor  # (B, NEIGHBOURS)


def collate(texts: Sequence[Tokens]) -> Batch:
    """Concatenate the tokens of several texts; words and tokens are numbered on."""
    sizes = [len(text.starts) for text in texts]
    first_word = _starts([len(text.words) for text in texts])
    first_token = _starts(sizes)
    first_distinct = _starts([text.shared.max() + 1 for text in texts])
    text_of_token = np.repeat(np.arange(len(texts)), sizes)
    return Batch(
        words=_joined([text.words for text in texts]),
        starts=_numbered_on([text.starts for text in texts], first_word),
        numbers=_joined([text.numbers for text in texts]),
        edges=_numbered_on([text.edges for text in texts], first_token, axis=1),
        text=torch.from_numpy(text_of_token),
        position=_joined([text.position for text in texts]),
        shared=_numbered_on([text.shared for text in texts], first_distinct),
        totals=_stacked([text.totals for text in texts]),
        counts=_stacked([text.counts for text in texts]),
        neighbours=_stacked([text.neighbours for text in texts]),
    )


def _joined(arrays: Sequence[np.ndarray], axis: int = 0) -> Tensor:
    """Arrays of the texts, one after the other."""
    return torch.from_numpy(np.concatenate(arrays, axis))


def _numbered_on(
    arrays: Sequence[np.ndarray],
    first: np.ndarray,
    axis: int = 0,
) -> Tensor:
    """Arrays of numbers, joined so that each text begins at its `first` number.

    The numbers of each array begin at 0.
    """
    numbered = [array + start for array, start in zip(arrays, first, strict=True)]
    return _joined(numbered, axis)


def _stacked(arrays: Sequence[np.ndarray]) -> Tensor:
    """Arrays of equal shape, one row per text."""
    return torch.from_numpy(np.stack(arrays))


def _starts(sizes: Sequence[int]) -> np.ndarray:
    """First index of each of several consecutive ranges."""
    ends = np.cumsum([0, *sizes])
    return ends[:-1]


class TextEncoder(nn.Module):
    """Encodes the tokens of B texts as states (B, S), whose parts `TextFeatures` names.

    Structure is linear in the pooled tokens. Quality is nonlinear; zero-cost proxies are predicted
    from it, up to their order within a space. The sketches are not learned, so that they
    distinguish all token types in any space. The common part holds the predicted proxies, predicted
    accuracies of short trainings, and exact costs.
    """

    frequency: Tensor

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.config = config
        d = config.width

        # 1. Words and numbers of the tokens.
        self.words = nn.EmbeddingBag(BUCKETS, d, mode="sum", padding_idx=0)
        nn.init.normal_(self.words.weight, std=0.5)
        numbers = TOKEN_NUMBERS * (1 + 2 * config.frequencies)
        self.numbers = nn.Linear(numbers, d)
        nn.init.normal_(self.numbers.weight, std=0.5 * numbers**-0.5)
        octaves = 2.0 ** torch.arange(config.frequencies)
        self.register_buffer("frequency", octaves * torch.pi / 16)

        # 2. Layers, and the structure of a text from its pooled tokens.
        layers = [Layer(d) for _ in range(config.layers)]
        self.layers = nn.ModuleList(layers)
        self.norm = nn.RMSNorm(d)
        pooled = (1 + config.windows) * d
        self.out = nn.Linear(pooled, config.structure, bias=False)
        nn.init.orthogonal_(self.out.weight)
        self.structure_norm = nn.RMSNorm(config.structure)

        # 3. What is read from the structure.
        read = config.structure + TEXT_NUMBERS
        self.quality = _network(read, config.hidden, QUALITY)
        self.accuracies = _network(read + NEIGHBOURS, config.hidden, ACCURACIES)
        self.proxies = nn.Linear(QUALITY, PROXIES, bias=False)

    def forward(self, batch: Batch, exact: bool = False) -> Tensor:
        """States (B, S) of a batch.

        Args:
            batch: B texts.
            exact: True for states whose bits do not depend on the other texts of the batch, see
                `_linear`; False is faster to train.
        """
        flow = Flow(batch)
        token_rows = single_rows = None  # rows per text, if texts are kept apart
        if exact:
            token_rows = torch.bincount(batch.text).tolist()
            single_rows = [1] * len(flow.sizes)
            flow.rows = torch.bincount(flow.text).tolist()

        # 1. Embed the tokens: the sum of their words, and their numbers as waves.          (n, D)
        angle = batch.numbers[..., None] * self.frequency
        angle = angle.flatten(1)  # (n, TOKEN_NUMBERS * frequencies)
        numbers = torch.cat([batch.numbers / 8, angle.sin(), angle.cos()], 1)
        embedded_numbers = _linear(self.numbers, numbers, token_rows)
        embedded_words = self.words(batch.words, batch.starts)
        x = embedded_words + embedded_numbers

        # 2. Tokens that equal calls share are one from here on: the mean of them.           (m, D)
        distinct = len(flow.times)
        x = _sums(x, batch.shared, distinct) / flow.times

        # 3. Pass messages.                                                                  (m, D)
        for layer in self.layers:
            x = layer(x, flow)
        x = self.norm(x)

        # 4. Pool the whole text and K soft windows along it.                    (B, (1 + K) * D)
        centers = torch.linspace(0, 1, self.config.windows)  # (K,)
        distance = batch.position[:, None] - centers  # (n, K)
        window = torch.exp(-WINDOW_SHARPNESS * distance**2)
        in_windows = _sums(window, batch.shared, distinct)  # (m, K)
        weights = [flow.times, *in_windows.T[..., None]]  # (1 + K) times (m, 1)
        weighted = torch.cat([x * weight for weight in weights], 1)
        pooled = _sums(weighted, flow.text, len(flow.sizes))

        # 5. Structure is linear in the pooled tokens; all that is learned reads it.
        pooled = pooled / flow.sizes.sqrt()
        structure = _linear(self.out, pooled, single_rows)  # (B, structure)
        totals = batch.totals / 8  # (B, TEXT_NUMBERS)
        read = torch.cat([self.structure_norm(structure), totals], 1)
        quality = _network_of(self.quality, read, single_rows)  # (B, QUALITY)
        proxies = _linear(self.proxies, quality, single_rows)  # (B, PROXIES)
        around = functional.rms_norm(batch.neighbours, (NEIGHBOURS,), eps=1e-6)
        with_neighbours = torch.cat([read, around], 1)
        accuracies = _network_of(self.accuracies, with_neighbours, single_rows)  # (B, ACCURACIES)
        return torch.cat(
            [
                structure,
                quality,
                batch.counts,
                batch.neighbours,
                proxies,
                accuracies,
                batch.totals,
            ],
            1,
        )


def _network(
    inputs: int,
    hidden: int,
    outputs: int,
) -> nn.Sequential:
    """Two hidden layers."""
    return nn.Sequential(
        nn.Linear(inputs, hidden),
        nn.GELU(),
        nn.Linear(hidden, hidden),
        nn.GELU(),
        nn.Linear(hidden, outputs, bias=False),
    )


class Layer(nn.Module):
    """Residual block of message passing: over a token, the tokens that it reads, the tokens that
    read it, and the text's mean token.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(width)
        self.up = nn.Linear(4 * width, 2 * width)
        self.down = nn.Linear(2 * width, width, bias=False)

    def forward(self, x: Tensor, flow: Flow) -> Tensor:
        """Tokens x (m, D) to tokens (m, D)."""
        messages = flow.messages(self.norm(x))  # (m, 4D)
        hidden = functional.gelu(_linear(self.up, messages, flow.rows))
        return x + _linear(self.down, hidden, flow.rows)


class Flow:
    """The data flow between the m distinct tokens of a batch.

    A token reads the sum of its neighbours on a side, divided by the square root of their number.
    If it belongs to several calls, it reads the mean of these sums.
    """

    def __init__(self, batch: Batch) -> None:
        # 1. Distinct tokens: how many calls each has, and the text that it belongs to.
        times = torch.bincount(batch.shared).float()
        self.times = times[:, None]  # (m, 1) calls of each token
        text = torch.empty(len(times), dtype=torch.long)
        self.text = text.index_copy(0, batch.shared, batch.text)  # (m,) text of each token
        sizes = torch.bincount(batch.text).float()
        self.sizes = sizes[:, None]  # (B, 1) tokens of each text
        self.rows: list[int] | None = None  # distinct tokens per text, if they are kept apart

        # 2. Edges among them, with the weights of messages to the producer and to the consumer.
        self.ends = batch.shared[batch.edges]  # (2, e) among the distinct tokens
        self.weights = []  # twice (e, 1)
        count = len(batch.starts)
        for end, distinct in zip(batch.edges, self.ends, strict=True):
            neighbours = torch.bincount(end, minlength=count)  # (n,)
            scale = neighbours[end, None].rsqrt()  # (e, 1)
            self.weights.append(scale / self.times[distinct])

    def messages(self, x: Tensor) -> Tensor:
        """For tokens x (m, D), what they read, what reads them, and their text's mean token.

        Returns (m, 4D): the tokens themselves and the three messages.
        """
        source, target = self.ends
        to_source, to_target = self.weights
        # 1. What each token reads, and what reads it.                                       (m, D)
        produced = x.index_select(0, source) * to_target
        read = _sums(produced, target, len(x))
        consumed = x.index_select(0, target) * to_source
        readers = _sums(consumed, source, len(x))

        # 2. The mean token of its text.                                                     (m, D)
        total = _sums(x * self.times, self.text, len(self.sizes))  # (B, D)
        mean = total / self.sizes
        mean_of_token = mean.index_select(0, self.text)
        return torch.cat([x, read, readers, mean_of_token], 1)


def _linear(
    layer: nn.Linear,
    x: Tensor,
    rows: list[int] | None,
) -> Tensor:
    """A linear layer, one text at a time.

    The last bits of a matrix product depend on its number of rows, and on its address in memory.
    All else is computed per row, so that a batch saves the overhead of small operations and gives
    the bits of single texts.

    Args:
        layer: the layer.
        x: (n, inputs).
        rows: how many of the n rows each text has; None to compute all at once.
    """
    if rows is None:
        return layer(x)
    outputs = []
    for of_text in x.split(rows):
        # A copy begins at an aligned address, as that of a single text: it decides the order of
        # sums, too.
        aligned = of_text.clone()
        outputs.append(functional.linear(aligned, layer.weight, layer.bias))
    return torch.cat(outputs)


def _network_of(
    network: nn.Sequential,
    x: Tensor,
    rows: list[int] | None,
) -> Tensor:
    """A network of linear layers and activations, one text at a time; see `_linear`."""
    for layer in network:
        x = _linear(layer, x, rows) if isinstance(layer, nn.Linear) else layer(x)
    return x


def _sums(
    x: Tensor,
    rows: Tensor,
    count: int,
) -> Tensor:
    """(count, D) sums of x (n, D) by row (n,)."""
    zeros = x.new_zeros(count, x.shape[1])
    return zeros.index_add(0, rows, x)


class T5GemmaReader:
    """A frozen, pretrained T5Gemma encoder.

    A text's state is the mean of the last hidden states of its tokens. This is the backbone of
    arXiv 2509.26476. Any T5Gemma (arXiv 2504.06225) works: a folder, or a name on the Hugging Face
    hub such as `google/t5gemma-b-b-ul2`, whose licence must be accepted there once. Only
    safetensors are read, and no code is loaded from a model.

    Args:
        name: folder or hub name.

    Raises:
        InputError: if there is no T5Gemma of this name, or it cannot be loaded.
    """

    def __init__(self, name: str) -> None:
        from search_spaces.common.torchvision import prepare_torchvision

        prepare_torchvision()
        import transformers
        from transformers.models.t5gemma.modeling_t5gemma import T5GemmaEncoderModel

        try:
            config = transformers.AutoConfig.from_pretrained(name)
            if config.model_type != "t5gemma":
                raise InputError(
                    f"{name}: a {config.model_type} model; the backbone of an rlm must be a t5gemma"
                )
            config.is_encoder_decoder = False
            self.limit = int(config.encoder.max_position_embeddings)
            self.tokenizer = transformers.AutoTokenizer.from_pretrained(name).backend_tokenizer
            self.encoder = T5GemmaEncoderModel.from_pretrained(
                name,
                config=config,
                dtype=torch.float32,
                use_safetensors=True,
            ).eval()
        except InputError:
            raise
        except (OSError, ValueError, AttributeError) as error:
            reason = " ".join(str(error).split())[:300]
            raise InputError(
                f"{name}: no T5Gemma could be loaded ({reason}). Give a folder with config.json, "
                "tokenizer.json and model.safetensors, or a hub name whose licence you accepted "
                "(log in with `hf auth login`)"
            ) from error

    @torch.inference_mode()
    def states(self, texts: Sequence[str]) -> np.ndarray:
        """States (n, hidden + QUALITY + COUNTS + NEIGHBOURS + COMMON) of n texts, never truncated.

        All parts but the first are 0, except one common number: log2 of 1 plus the number of
        tokens.

        Raises:
            InputError: if a text is empty or longer than the model's limit.
        """
        ids = self._token_ids(texts)
        lengths = [len(tokens) for tokens in ids]
        size = self.encoder.config.encoder.hidden_size
        others = QUALITY + COUNTS + NEIGHBOURS + COMMON
        states = np.zeros((len(ids), size + others), np.float32)

        # Texts of similar length need little padding in a batch.
        by_length = sorted(range(len(ids)), key=lengths.__getitem__)
        for start in range(0, len(by_length), BACKBONE_TEXTS):
            rows = by_length[start : start + BACKBONE_TEXTS]
            # 1. Pad the texts.                                                       (b, longest)
            of_rows = [torch.tensor(ids[i]) for i in rows]
            padded = nn.utils.rnn.pad_sequence(of_rows, batch_first=True)
            count = torch.tensor([lengths[i] for i in rows])  # (b,)
            mask = torch.arange(padded.shape[1]) < count[:, None]

            # 2. Encode them, and take the mean of their tokens.                       (b, hidden)
            output = self.encoder(input_ids=padded, attention_mask=mask)
            hidden = output.last_hidden_state  # (b, longest, hidden)
            total = (hidden * mask[..., None]).sum(1)
            mean = total / count[:, None]
            states[rows, :size] = mean.numpy()
            states[rows, -2] = torch.log2(1.0 + count).numpy()
        return states

    def _token_ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Token numbers of each text, none of which is empty or too long."""
        ids = [encoded.ids for encoded in self.tokenizer.encode_batch(list(texts))]
        for tokens, text in zip(ids, texts, strict=True):
            if not tokens:
                raise InputError("an empty text has nothing to predict from")
            if len(tokens) > self.limit:
                raise InputError(
                    f"the text {text[:60]!r}… has {len(tokens)} tokens; the model's limit is "
                    f"{self.limit}"
                )
        return ids
