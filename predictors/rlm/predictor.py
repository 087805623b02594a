"""The regression language model as a predictor: fit, predict, save, load."""

from __future__ import annotations

import copy
import json
import zlib
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from scipy.stats import rankdata
from tokenizers import Tokenizer

from predictors.base import (
    Inputs,
    Metrics,
    Predictions,
    Predictor,
    as_targets,
    as_texts,
    check_request,
    load,
)
from predictors.metrics import decoding_order, is_cheap
from predictors.rlm.backbone import load_backbone, text_encoder
from predictors.rlm.decoding import Sampler, sample_numbers
from predictors.rlm.model import MAX_METRICS, ModelConfig, NumberDecoder, Readout, TextEncoder
from predictors.rlm.numbers import NUMBER_TOKENS, NumberFormat, Scale
from predictors.rlm.reader import Reader, batches
from predictors.rlm.tokenizer import token_parts, tokenize, train_tokenizer
from predictors.rlm.training import Column, Schedule, Training, train
from search_spaces.errors import InputError

CHECKPOINTS = Path(__file__).parent.parent / "checkpoints"
BASE = "rlm-base"
MIN_RANKED, FEW = 4, 40  # so many values of a new metric are compared with the known ones


@lru_cache(maxsize=4)
def _base(folder: str) -> RLM:
    """A pretrained model, loaded once per process, so that its reading of a text is remembered too."""
    loaded = load(folder)
    if not isinstance(loaded, RLM):
        raise InputError(f"{folder}: holds a {loaded.kind} predictor, not an rlm")
    return loaded


class RLM(Predictor):
    """Reads ONNX text and decodes metrics digit by digit: cheap ones first, then accuracies, then latencies.

    base: checkpoint folder or shipped name to fine-tune, None to start from nothing.
    encoder: "frozen" fine-tunes the decoder only, so a text is read once, however often the model is refitted;
        "tuned" trains everything; "alone" trains the encoder on all metrics of a text at once and leaves the decoder as
        it is, to be trained afterwards. Without a base nothing is frozen.
    rehearse: cheap metrics are learned like the others, as in pretraining, and not only used as known values.
    steps: optimizer steps of a fit; None chooses by the amount of data.
    precision: "bfloat16" trains the encoder about twice as fast on processors that have it; for pretraining.
    backbone: a T5Gemma by folder or hub name to read with instead of an encoder of ours, without a base; `encoder` says
        whether its own weights are trained.
    kept: a file in which a fit is kept as it goes, so that it goes on there after an interruption.
    """

    kind = "rlm"

    def __init__(
        self,
        seed: int = 0,
        base: str | None = BASE,
        encoder: str = "frozen",
        rehearse: bool = False,
        steps: int | None = None,
        precision: str = "float32",
        sizes: dict[str, Any] | None = None,
        schedule: dict[str, float] | None = None,
        progress: Callable[[int, int, float], None] | None = None,
        kept: Path | None = None,
        backbone: str | None = None,
    ) -> None:
        super().__init__(seed)
        if encoder not in ("frozen", "tuned", "alone"):
            raise InputError(f"encoder must be 'frozen', 'tuned' or 'alone', not {encoder!r}")
        if precision not in ("float32", "bfloat16"):
            raise InputError(f"precision must be 'float32' or 'bfloat16', not {precision!r}")
        self.base, self.mode, self.steps = None if backbone else base, encoder, steps
        self.backbone, self.rehearse = backbone, rehearse
        self.precision = getattr(torch, precision)
        self.sizes, self.schedule, self.progress, self.kept = sizes or {}, schedule or {}, progress, kept
        self.losses: list[float] = []
        self.scales: dict[str, Scale] = {}
        self.reader: Reader | None = None
        self.decoder: NumberDecoder | None = None

    @property
    def metrics(self) -> tuple[str, ...]:
        return tuple(self.scales)

    def _parts(self) -> tuple[Reader, NumberDecoder]:
        if self.reader is None or self.decoder is None:
            raise InputError("the rlm predictor is not trained: call fit first, or load a checkpoint")
        return self.reader, self.decoder

    @property
    def number(self) -> NumberFormat:
        return NumberFormat(self._parts()[1].config.number_length - 3)

    # --- learning

    def fit(self, architectures: Inputs, metrics: Metrics) -> Self:
        """Fine-tune on n architectures; cheap metrics among `metrics` also serve as known values for the others."""
        texts = as_texts(architectures)
        targets = as_targets(architectures, metrics)
        torch.manual_seed(self.seed)
        tuned = self._prepare(texts)
        self._add_metrics(texts, targets)
        columns = self._columns(targets)
        reader, decoder = self._parts()
        modules: dict[str, torch.nn.Module] = {} if self.mode == "alone" else {"decoder": decoder}
        distinct = len(set(texts))
        if tuned:
            reader.forget()
            modules |= {"encoder": reader.encoder, "readout": Readout(decoder.config)}
        else:
            reader.read(texts)
        rng = np.random.default_rng(self.seed)

        def read(rows: np.ndarray) -> torch.Tensor:
            batch = [texts[i] for i in rows]
            if not tuned:
                return reader.recall(batch)
            with torch.autocast("cpu", self.precision, enabled=self.precision is torch.bfloat16):
                return reader.encode(batch).float()

        schedule = self._schedule(distinct, tuned)
        decoder.train()
        reader.encoder.train(tuned)
        lengths = np.array([len(ids) for ids in reader.tokens(texts)]) if tuned else None
        training = Training(read, modules, columns, self.number, schedule, rng, lengths)
        self.losses = train(training, self.progress, self.kept)
        decoder.eval()
        reader.encoder.eval()
        return self

    def _prepare(self, texts: list[str]) -> bool:
        """Set up tokenizer, encoder and decoder; whether the encoder is to be trained."""
        if self.decoder is not None:
            tuned = self.mode != "frozen"
        elif self.backbone is not None:
            tokenizer, encoder = load_backbone(self.backbone, self.sizes, frozen=self.mode == "frozen")
            self.reader, self.decoder = Reader(tokenizer, encoder), NumberDecoder(encoder.config)
            return True
        elif self.base is None:
            tokenizer = train_tokenizer(texts)
            longest = max(map(len, tokenize(tokenizer, texts)))
            parts = token_parts(tokenizer)
            read = {
                "vocabulary": tokenizer.get_vocab_size(),
                "parts": max(map(max, filter(None, parts)), default=0),
                "token_parts": max(1, *map(len, parts)),
                "text_tokens": max(ModelConfig.text_tokens, 2 * longest),
            }
            config = ModelConfig(**{**read, **self.sizes})
            self.reader, self.decoder = Reader(tokenizer, TextEncoder(config, parts)), NumberDecoder(config)
            return True
        else:
            base = _base(str(checkpoint(self.base)))
            assert base.reader is not None
            self.reader, self.decoder, self.scales = base.reader, copy.deepcopy(base.decoder), dict(base.scales)
            tuned = self.mode != "frozen"
        if tuned:
            assert self.reader is not None
            self.reader = Reader(self.reader.tokenizer, copy.deepcopy(self.reader.encoder))
        return tuned

    def _add_metrics(self, texts: list[str], targets: dict[str, np.ndarray]) -> None:
        """Scales of what is to be learned, from its values here: those of the base may reach much farther."""
        known = list(self.scales)
        for name, values in targets.items():
            if name in known and (self.rehearse or not self._is_learned(name, targets)):
                continue
            if len(self.scales) == MAX_METRICS and name not in known:
                raise InputError(f"the model has room for {MAX_METRICS} metrics; {name!r} is one too many")
            rows = np.flatnonzero(~np.isnan(values))
            self.scales[name] = Scale.of(values[rows])
            if known and name not in known and MIN_RANKED <= len(rows) <= FEW:
                self._begin_like(name, known, [texts[i] for i in rows], values[rows])

    def _begin_like(self, name: str, known: list[str], texts: list[str], values: np.ndarray) -> None:
        """Let a new metric's token begin as that of the known metric which ranks the few values (n,) best."""
        predicted = self.predict(texts, known, samples=1)
        with np.errstate(invalid="ignore", divide="ignore"):  # one that is predicted equal for all
            ranks = [np.corrcoef(rankdata(predicted[other]), rankdata(values))[0, 1] for other in known]
        best = known[int(np.nan_to_num(ranks, nan=-1.0).argmax())]
        tokens = self._parts()[1].embedding.weight.data
        tokens[NUMBER_TOKENS + self._slot(name)] = tokens[NUMBER_TOKENS + self._slot(best)]

    def _slot(self, metric: str) -> int:
        return list(self.scales).index(metric)

    def _columns(self, targets: dict[str, np.ndarray]) -> list[Column]:
        return [
            Column(
                self._slot(name),
                self.scales[name].to_scale(values),
                MAX_METRICS * decoding_order(name) + self._slot(name),
                target=self._is_learned(name, targets),
            )
            for name, values in targets.items()
        ]

    def _is_learned(self, name: str, targets: dict[str, np.ndarray]) -> bool:
        """Whether a metric is learned, and does not only serve as a known value."""
        return self.rehearse or not is_cheap(name) or all(map(is_cheap, targets))

    def _schedule(self, distinct: int, tuned: bool) -> Schedule:
        steps = self.steps or int(np.clip(2 * distinct, 100, 800))
        chosen = {"steps": steps, "learning_rate": 5e-4 if tuned else 1e-3, "batch": 32, "jitter": 0.6}
        return Schedule(**{**chosen, **self.schedule})  # type: ignore[arg-type]

    # --- predicting

    def predict(
        self,
        architectures: Inputs,
        metrics: Sequence[str],
        given: Metrics | None = None,
        samples: int = 64,
        seed: int = 0,
    ) -> Predictions:
        """Sample `metrics`, each conditioned on `given` and on those decoded before it; a given one comes back."""
        known = check_request(self, architectures, metrics, given, samples)
        texts = as_texts(architectures)
        result = np.empty((len(texts), samples, len(metrics)))
        for rows, names in _patterns(len(texts), known) if result.size else ():
            forced = {name: known[name][rows] for name in sorted(names, key=self._order)}
            asked = [name for name in metrics if name not in forced]
            drawn = iter(self._sample([texts[i] for i in rows], asked, forced, samples, seed) if asked else ())
            for column, name in enumerate(metrics):
                result[rows, :, column] = forced[name][:, None] if name in forced else next(drawn)
        return Predictions.of_samples(metrics, result)

    def _order(self, metric: str) -> tuple[int, int]:
        return decoding_order(metric), self._slot(metric)

    def _sample(
        self, texts: list[str], metrics: Sequence[str], forced: dict[str, np.ndarray], samples: int, seed: int
    ) -> list[np.ndarray]:
        """(n, samples) per metric, for texts that all have the same metrics given."""
        reader, decoder = self._parts()
        keys = list(zip(texts, *forced.values(), strict=True))
        rows: dict[tuple, int] = {key: row for row, key in reversed(list(enumerate(keys)))}
        asked = sorted(metrics, key=self._order)
        slots = [self._slot(name) for name in asked]
        values: dict[tuple, np.ndarray] = {}
        distinct = list(rows)
        lengths = [len(ids) for ids in reader.tokens([key[0] for key in distinct])]
        for batch in batches(distinct, lengths):
            randomness = np.stack([_randomness(key[0], seed, len(slots), samples) for key in batch])
            sampler = Sampler(torch.from_numpy(self.number.allowed), torch.from_numpy(randomness))
            prefix = self._prefix(forced, [rows[key] for key in batch])
            memory = reader.recall([key[0] for key in batch])
            tokens = sample_numbers(decoder, memory, prefix, slots, sampler)
            values.update(zip(batch, self.number.decode(tokens.numpy()), strict=True))
        scaled = np.stack([values[key] for key in keys])
        return [self.scales[name].from_scale(scaled[:, :, asked.index(name)]) for name in metrics]

    def _prefix(self, forced: dict[str, np.ndarray], rows: list[int]) -> list[torch.Tensor]:
        prefix = []
        for name, values in forced.items():
            tokens = torch.from_numpy(self.number.encode(self.scales[name].to_scale(values[rows])))
            prefix.append(torch.full((len(rows),), NUMBER_TOKENS + self._slot(name)))
            prefix += list(tokens.unbind(1))
        return prefix

    # --- checkpoints

    def _state(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        reader, decoder = self._parts()
        config = {
            "seed": self.seed,
            "encoder": self.mode,
            "model": asdict(decoder.config),
            "scales": {name: list(scale.knots) for name, scale in self.scales.items()},
            "tokenizer": json.loads(reader.tokenizer.to_str()),
        }
        parts = {"encoder": reader.encoder, "decoder": decoder}
        return config, {f"{p}.{n}": t.numpy() for p, module in parts.items() for n, t in module.state_dict().items()}

    @classmethod
    def _restore(cls, config: dict[str, Any], tensors: dict[str, np.ndarray]) -> Self:
        predictor = cls(seed=config["seed"], base=None, encoder=config["encoder"])
        sizes = ModelConfig(**config["model"])
        encoder, decoder = text_encoder(sizes), NumberDecoder(sizes)
        for part, module in (("encoder", encoder), ("decoder", decoder)):
            own = {n.removeprefix(f"{part}."): torch.from_numpy(t) for n, t in tensors.items() if n.startswith(part)}
            module.load_state_dict(own)
            module.eval()
        predictor.reader = Reader(Tokenizer.from_str(json.dumps(config["tokenizer"])), encoder)
        predictor.decoder = decoder
        predictor.scales = {name: Scale(tuple(knots)) for name, knots in config["scales"].items()}
        return predictor


def _randomness(text: str, seed: int, metrics: int, samples: int) -> np.ndarray:
    """Random numbers (metrics, 1 + samples) of a text's own, so that its samples don't depend on its company."""
    return np.random.default_rng([seed, zlib.crc32(text.encode())]).random((metrics, 1 + samples))


def checkpoint(name: str) -> Path:
    """Folder of a shipped checkpoint by name, or the folder itself."""
    shipped = CHECKPOINTS / name
    return shipped if shipped.is_dir() else Path(name)


def _patterns(count: int, known: dict[str, np.ndarray]) -> list[tuple[np.ndarray, list[str]]]:
    """Rows grouped by which metrics are known for them."""
    if not known:
        return [(np.arange(count), [])]
    names = list(known)
    present = ~np.isnan(np.stack([known[name] for name in names], 1))
    patterns, group = np.unique(present, axis=0, return_inverse=True)
    return [
        (np.flatnonzero(group.ravel() == g), [n for n, here in zip(names, pattern, strict=True) if here])
        for g, pattern in enumerate(patterns)
    ]
