"""The regression language model as a predictor: fit, predict, save, load."""

from __future__ import annotations

import copy
import json
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

import numpy as np
import torch
from scipy.stats import rankdata
from tokenizers import Tokenizer

from predictors.base import (
    GUESSES,
    Inputs,
    Metrics,
    as_targets,
    as_texts,
    check_request,
    checkpoint,
    load,
    under,
)
from predictors.conditioned import Conditioned, estimated, is_told, mixed
from predictors.estimate import BEFORE, MOST, Estimator, Kernel, Seen, some_of
from predictors.features import feature_matrix, telling
from predictors.metrics import decoding_order, is_cheap, is_chosen
from predictors.rlm.backbone import load_backbone, text_encoder
from predictors.rlm.decoding import Sampler, digit_tree, sample_numbers
from predictors.rlm.model import MAX_METRICS, ModelConfig, NumberDecoder, Readout, TextEncoder
from predictors.rlm.numbers import NUMBER_TOKENS, NumberFormat, Scale
from predictors.rlm.reader import Reader, batches
from predictors.rlm.steps import keep_aside, only, validated_steps
from predictors.rlm.structure import structure
from predictors.rlm.tokenizer import is_onnx, token_parts, tokenize, train_tokenizer
from predictors.rlm.training import Column, Schedule, Training, train
from search_spaces.common.errors import InputError, unknown

if TYPE_CHECKING:
    from accelerate import Accelerator

Module = TypeVar("Module", bound=torch.nn.Module)
BASE = "rlm-base"
LONGEST = 4  # times the usual number of steps
MIN_RANKED, FEW = 4, 40  # so many values of a new metric are compared with the known ones


@lru_cache(maxsize=4)
def _base(folder: str) -> RLM:
    """A pretrained model, loaded once per process, so that its reading of a text is remembered too."""
    loaded = load(folder)
    if not isinstance(loaded, RLM):
        raise InputError(f"{folder}: holds a {loaded.kind} predictor, not an rlm")
    return loaded


def _embeddings(teacher: str, texts: list[str]) -> np.ndarray:
    """(n, E): what a GNN makes of texts, each dimension's mean 0, and 1 the mean of their variances."""
    from predictors.gnn import GNN

    loaded = load(teacher)
    if not isinstance(loaded, GNN):
        raise InputError(f"{teacher}: holds a {loaded.kind} predictor, not a gnn")
    embedded = loaded.embed(texts)
    return (embedded - embedded.mean(0)) / max(float(np.sqrt(embedded.var(0).mean())), 1e-6)


class RLM(Conditioned):
    """Reads ONNX text and decodes metrics digit by digit: cheap ones first, then accuracies, then latencies.

    base: checkpoint folder or shipped name to fine-tune, None to start from nothing.
    encoder: "frozen" fine-tunes the decoder only, so a text is read once, however often the model is refitted, and
        two thirds of the samples are those of Gaussian processes that see the same (`predictors.estimate`): all of a
        device's where it is given what was chosen, which the decoder is not told; "tuned" trains everything; "alone"
        trains the encoder on all metrics of a text at once, and on its operators and paths, and leaves the decoder as
        it is, to be trained afterwards. Without a base nothing is frozen.
    teacher: checkpoint of a GNN; an encoder that is trained alone also learns what this makes of a text.
    rehearse: cheap metrics are learned like the others, as in pretraining, and not only used as known values.
    learn: the metrics that are learned, whichever they are; the others only serve as known values for these.
    quick: whether the processes answer alone, where they can, and the decoder learns nothing: a fit takes a second.
    by_value: whether estimates go by distances between values, as a search needs to know how far the best may be
        surpassed, and not by ranks, which orders networks better where some of them fail. Where the encoder had a
        teacher, the processes of accuracies then see what it tells of the teacher's embeddings, and not its states.
    memory: by text, what a frozen encoder read (M, D), for a search that fits again and again: what it finds then does
        not depend on what else the process has read (`Reader`). None: the process remembers, for all of one base.
    steps: optimizer steps of a fit; None chooses by the amount of data, and with the encoder by a part of it.
    accelerator: where a fit runs, in which precision and in how many processes; None: on the processor, alone.
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
        learn: Sequence[str] | None = None,
        quick: bool = False,
        by_value: bool = False,
        memory: dict[str, torch.Tensor] | None = None,
        steps: int | None = None,
        accelerator: Accelerator | None = None,
        sizes: dict[str, Any] | None = None,
        schedule: dict[str, float] | None = None,
        progress: Callable[[int, int, float], None] | None = None,
        kept: Path | None = None,
        backbone: str | None = None,
        teacher: str | None = None,
    ) -> None:
        super().__init__(seed)
        if encoder not in ("frozen", "tuned", "alone"):
            raise InputError(f"encoder must be 'frozen', 'tuned' or 'alone', not {encoder!r}")
        self.base, self.mode, self.steps = None if backbone else base, encoder, steps
        if teacher and encoder != "alone":
            raise InputError(f"a teacher is for an encoder that is trained alone, not {encoder!r}")
        self.backbone, self.rehearse, self.learn = backbone, rehearse, learn
        self.quick, self.by_value, self.memory = quick, by_value, memory
        self.accelerator, self.teacher = accelerator, teacher
        self.sizes, self.schedule, self.progress, self.kept = sizes or {}, schedule or {}, progress, kept
        self.losses: list[float] = []
        self.scales: dict[str, Scale] = {}
        self.reader: Reader | None = None
        self.likeness: np.ndarray | None = None  # (D, D'), from a text's mean state to its teacher's embedding
        self.estimator: Estimator | None = None
        self.alone = False  # whether the processes answer alone
        self.remembered: list[str] = []
        self.before: RLM | None = None  # the base, where it knows what is learned
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
        for name in self.learn or ():
            if name not in targets:
                raise unknown("metric to learn", name, targets)
        torch.manual_seed(self.seed)
        tuned = self._prepare(texts)
        reader, decoder = self._parts()
        if self.accelerator:
            reader.encoder.to(self.accelerator.device)
        if not tuned:
            reader.read(texts)  # all at once: a text's state differs in its last bits by what is read along with it
        self.estimator, self.alone = None, False
        learned = [name for name in targets if self._is_learned(name, targets)]
        self.remembered = [name for name in learned if self.before and name in self.before.scales]
        everything, targets = targets, {name: v for name, v in targets.items() if not is_chosen(name)}
        if not tuned and not self.rehearse:
            self.estimator = self._second_opinion(texts, everything)
            self.alone = self.quick and self.estimator.knows(learned)
        self._add_metrics(texts, targets)
        if self.alone:
            return self
        if tuned:
            reader.forget()
            self.likeness = None  # of the encoder as it was
        decoder.train()
        reader.encoder.train(tuned)
        columns = self._columns(targets)
        steps = self.steps or self._steps(texts, columns, tuned)
        training = self._training(texts, columns, tuned, steps)
        self.losses = train(training, self.progress, self.kept)
        decoder.eval()
        reader.encoder.cpu().eval()
        if self.teacher:
            head = training.modules["likeness"].cpu()
            self.likeness = head.get_parameter("weight").detach().numpy().T
        return self

    def _steps(self, texts: list[str], columns: list[Column], tuned: bool) -> int:
        """How many steps to train: few for metrics that the base knows already, since it forgets in more.

        With the encoder, as many as are best for a fifth of the texts; the decoder alone hardly depends on it.
        """
        distinct = len(set(texts))
        if not tuned and len(self.remembered) == sum(column.target for column in columns):
            return int(np.clip(distinct, 20, 800))
        usual = int(np.clip(2 * distinct, 100, 800))
        aside = keep_aside(texts, self.seed) if tuned and not self.accelerator else None
        if aside is None:
            return usual
        trial = self._training(texts, only(columns, ~aside), tuned, LONGEST * usual)
        judge = self._training(texts, only(columns, aside), tuned, LONGEST * usual)
        judge.modules = trial.modules
        return validated_steps(trial, judge, usual // 2)

    def _training(self, texts: list[str], columns: list[Column], tuned: bool, steps: int) -> Training:
        """What is to be trained on the columns of the texts, and how."""
        reader, decoder = self._parts()
        chosen = {"learning_rate": 5e-4 if tuned else 1e-3, "batch": 32, "jitter": 0.6, **self.schedule}
        schedule, rng = Schedule(steps, **chosen), np.random.default_rng(self.seed)  # type: ignore[arg-type]
        modules: dict[str, torch.nn.Module] = {} if self.mode == "alone" else {"decoder": decoder}
        made_of, taught, lengths = None, None, None
        if tuned:
            made_of = structure(texts) if self.mode == "alone" and is_onnx(texts) else None
            components = 0 if made_of is None else made_of.shape[1]
            modules |= {"encoder": reader.encoder, "readout": Readout(decoder.config, components)}
            lengths = np.array([len(ids) for ids in reader.tokens(texts)])
        if self.teacher:
            taught = _embeddings(self.teacher, texts)
            modules["likeness"] = torch.nn.Linear(decoder.config.width, taught.shape[1])

        def read(rows: np.ndarray) -> torch.Tensor:
            batch = [texts[i] for i in rows]
            if not tuned:
                return reader.recall(batch)
            with self.accelerator.autocast() if self.accelerator else nullcontext():
                return reader.encode(batch).float()

        return Training(read, modules, columns, self.number, schedule, rng, lengths, made_of, taught, self.accelerator)

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
            if self.memory is not None:
                base = base._remembering_in(self.memory)
            assert base.reader is not None
            self.reader, self.decoder, self.scales = base.reader, copy.deepcopy(base.decoder), dict(base.scales)
            tuned = self.mode != "frozen"
            self.before, self.likeness = base, base.likeness
        if tuned:
            assert self.reader is not None
            self.reader = Reader(self.reader.tokenizer, copy.deepcopy(self.reader.encoder))
        return tuned

    def _remembering_in(self, memory: dict[str, torch.Tensor]) -> RLM:
        """The same model, with what it has read elsewhere."""
        reader, _ = self._parts()
        model = copy.copy(self)
        model.reader = Reader(reader.tokenizer, reader.encoder, memory)
        return model

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
            if not self.alone and known and name not in known and MIN_RANKED <= len(rows) <= FEW:
                there = {other: targets[other][rows] for other in known if other in targets}
                self._begin_like(name, known, [texts[i] for i in rows], values[rows], there)

    def _begin_like(
        self, name: str, known: list[str], texts: list[str], values: np.ndarray, there: dict[str, np.ndarray]
    ) -> None:
        """Let a new metric's token begin as that of the known metric which ranks the few values (n,) best.

        there: values of known metrics where there are any; the others are predicted.
        """
        asked = [other for other in known if other not in there or np.isnan(there[other]).any()]
        columns = dict(there)
        if asked:
            predicted = self.predict(texts, asked, given=there, samples=1)
            columns |= {other: predicted[other] for other in asked}
        with np.errstate(invalid="ignore", divide="ignore"):  # one that is equal for all
            ranks = [np.corrcoef(rankdata(columns[other]), rankdata(values))[0, 1] for other in known]
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

    def _second_opinion(self, texts: list[str], targets: dict[str, np.ndarray]) -> Estimator:
        """An estimator of what is learned, from `MOST` texts at most: the time that it takes grows with their cube."""
        learned = np.stack([~np.isnan(v) for name, v in targets.items() if self._is_learned(name, targets)]).any(0)
        rows = np.flatnonzero(learned)
        rows = rows[some_of(len(rows), MOST)]
        known = {name: values[rows] for name, values in targets.items()}
        here = [texts[i] for i in rows]
        known |= self._expected_before(here)
        counted = telling(here) if is_onnx(here) else []
        table = {name: values for name, values in known.items() if not np.isnan(values).all()}
        return self._estimator(self._seen(here, counted), counted, table)

    def _estimator(
        self,
        seen: Seen,
        names: Sequence[str],
        values: Mapping[str, np.ndarray],
        kernels: Mapping[tuple[str, ...], Kernel] | None = None,
    ) -> Estimator:
        return Estimator(seen, names, values, self.by_value, kernels, self.likeness if self.by_value else None)

    def _expected_before(self, texts: list[str]) -> dict[str, np.ndarray]:
        """What the base expected (n,) of those metrics that it knew before they were learned again."""
        if self.before is None or not self.remembered:
            return {}
        return {name + BEFORE: values for name, values in self.before._expected(texts, self.remembered, {}).items()}

    def _expected(self, texts: list[str], metrics: list[str], given: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """What is expected (n,) of each metric: by the estimator where it has learned it, or by a few samples."""
        found: dict[str, np.ndarray] = {}
        if self.estimator is not None:
            seen, known = self._seen(texts, self.estimator.names), {**given, **self._expected_before(texts)}
            expected = {name: self.estimator.expect(name, seen, known) for name in metrics}
            found = {name: values for name, values in expected.items() if values is not None}
        if rest := [name for name in metrics if name not in found]:
            randomness = np.stack([_randomness(text, 0, len(rest), GUESSES) for text in texts])
            found |= dict(zip(rest, np.median(self._decode(texts, rest, given, randomness), 1).T, strict=True))
        return found

    def _seen(self, texts: list[str], counted: list[str]) -> Seen:
        """What the estimator sees of texts."""
        return Seen(self._parts()[0].recall(texts).mean(1).numpy(), _counts(texts, counted))

    def _is_learned(self, name: str, targets: dict[str, np.ndarray]) -> bool:
        """Whether a metric is learned, and does not only serve as a known value."""
        if self.learn is not None:
            return name in self.learn
        return self.rehearse or not is_cheap(name) or all(map(is_cheap, targets))

    # --- predicting

    def expect(self, architectures: Inputs, metrics: Sequence[str], given: Metrics | None = None) -> np.ndarray:
        """(n, metrics): what the decoder expects of each metric by itself, by its digits' probabilities, unsampled."""
        known = check_request(self, architectures, metrics, given, 1)
        texts = as_texts(architectures)
        found = np.empty((len(texts), len(metrics)))
        for rows, here, asked, forced in self._requests(texts, metrics, known):
            values = forced | {name: self._expect(here, name, forced) for name in asked}
            found[rows] = np.stack([values[name] for name in metrics], 1)
        return found

    def _expect(self, texts: list[str], metric: str, forced: Mapping[str, np.ndarray]) -> np.ndarray:
        reader, decoder = self._parts()
        found, allowed = np.empty(len(texts)), torch.from_numpy(self.number.allowed)
        for rows in batches(range(len(texts)), [len(ids) for ids in reader.tokens(texts)]):
            memory, prefix = reader.recall([texts[i] for i in rows]), self._prefix(forced, rows)
            tokens, probability = digit_tree(decoder, memory, prefix, self._slot(metric), allowed)
            values = self.scales[metric].from_scale(self.number.decode(tokens.numpy()))
            found[rows] = (values * probability.numpy()).sum(1)
        return found

    def _ordered(self, names: Iterable[str]) -> list[str]:
        """In the order of decoding."""
        return sorted(names, key=lambda name: (decoding_order(name), -1 if is_chosen(name) else self._slot(name)))

    def _sample(
        self, texts: list[str], metrics: list[str], given: Mapping[str, np.ndarray], samples: int, seed: int
    ) -> list[np.ndarray]:
        distinct, place = _firsts(zip(texts, *given.values(), strict=True))
        read = [texts[row] for row in distinct]
        known = {name: values[distinct] for name, values in given.items()}
        found = self._estimates(read, metrics, known, samples, seed)

        def draw(asked: list[str], count: int) -> dict[str, np.ndarray]:
            randomness = np.stack([_randomness(text, seed, len(asked), samples)[:, : 1 + count] for text in read])
            return dict(zip(asked, self._decode(read, asked, known, randomness).transpose(2, 0, 1), strict=True))

        return [values[place] for values in mixed(metrics, samples, found, draw)]

    def _decode(
        self, texts: list[str], metrics: list[str], known: Mapping[str, np.ndarray], randomness: np.ndarray
    ) -> np.ndarray:
        """The decoder's samples (n, S, metrics) by random numbers (n, metrics, 1 + S), the same for the same text."""
        known = {name: values for name, values in known.items() if not is_chosen(name)}
        distinct, place = _firsts(zip(texts, *known.values(), strict=True))
        known = {name: values[distinct] for name, values in known.items()}
        read, randomness = [texts[row] for row in distinct], randomness[distinct]
        reader, decoder = self._parts()
        slots, allowed = [self._slot(name) for name in metrics], torch.from_numpy(self.number.allowed)
        drawn = np.empty((len(read), randomness.shape[2] - 1, len(metrics)))
        for rows in batches(range(len(read)), [len(ids) for ids in reader.tokens(read)]):
            sampler = Sampler(allowed, torch.from_numpy(randomness[rows]))
            memory, prefix = reader.recall([read[i] for i in rows]), self._prefix(known, rows)
            drawn[rows] = self.number.decode(sample_numbers(decoder, memory, prefix, slots, sampler).numpy())
        for column, name in enumerate(metrics):
            drawn[:, :, column] = self.scales[name].from_scale(drawn[:, :, column])
        return drawn[place]

    def _estimates(
        self, texts: list[str], metrics: list[str], known: Mapping[str, np.ndarray], samples: int, seed: int
    ) -> dict[str, np.ndarray]:
        """The estimator's share of the samples (n, share) of each metric that it has learned."""
        share = samples * 2 // 3
        counts = {name: samples if self.alone or is_told(name, known) else share for name in metrics}
        if self.estimator is None or not any(counts.values()):
            return {}
        seen = self._seen(texts, self.estimator.names)
        known = {**known, **self._expected_before(texts)}
        return estimated(self.estimator, texts, seen, known, counts, (seed,))

    def _prefix(self, known: Mapping[str, np.ndarray], rows: Sequence[int]) -> torch.Tensor:
        """The known metrics of some rows as tokens (rows, P)."""
        prefix = [torch.empty(len(rows), 0, dtype=torch.long)]
        for name, values in known.items():
            if is_chosen(name):
                continue
            tokens = torch.from_numpy(self.number.encode(self.scales[name].to_scale(values[list(rows)])))
            prefix += [torch.full((len(rows), 1), NUMBER_TOKENS + self._slot(name)), tokens]
        return torch.cat(prefix, 1)

    # --- checkpoints

    def _state(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        reader = self._parts()[0]
        config, tensors = self._learned()
        config |= {"seed": self.seed, "encoder": self.mode, "tokenizer": json.loads(reader.tokenizer.to_str())}
        if self.likeness is not None:
            tensors["likeness"] = self.likeness
        return config, tensors | _weights("encoder", reader.encoder)

    def _learned(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """All but what reads."""
        decoder = self._parts()[1]
        config: dict[str, Any] = {"model": asdict(decoder.config), "scales": _knots(self.scales)}
        tensors = _weights("decoder", decoder)
        if self.estimator is not None:
            names = {"estimated": list(self.estimator.values), "counted": self.estimator.names}
            kernels = [[*key, kernel.numbers] for key, kernel in self.estimator.kernels.items()]
            config |= {"by_value": self.estimator.by_value, "alone": self.alone, "kernels": kernels, **names}
            tensors |= self.estimator.seen._asdict()
            tensors["values"] = np.stack(list(self.estimator.values.values()))
            if self.before is not None and self.remembered:
                before, of_before = self.before._learned()
                config |= {"remembered": self.remembered, "before": before}
                tensors |= {f"before.{name}": tensor for name, tensor in of_before.items()}
        return config, tensors

    @classmethod
    def _restore(cls, config: dict[str, Any], tensors: dict[str, np.ndarray]) -> Self:
        encoder = _with_weights(text_encoder(ModelConfig(**config["model"])), under("encoder", tensors))
        predictor = cls._recalled(config, tensors, Reader(Tokenizer.from_str(json.dumps(config["tokenizer"])), encoder))
        predictor.seed, predictor.mode = config["seed"], config["encoder"]
        return predictor

    @classmethod
    def _recalled(cls, config: dict[str, Any], tensors: dict[str, np.ndarray], reader: Reader) -> Self:
        """The model that has learned what is in a checkpoint."""
        predictor = cls(base=None)
        predictor.reader, predictor.likeness = reader, tensors.get("likeness")
        predictor.decoder = _with_weights(NumberDecoder(ModelConfig(**config["model"])), under("decoder", tensors))
        predictor.scales = _scales(config["scales"])
        if names := config.get("estimated"):
            states, counted = tensors["states"], config["counted"]
            seen = Seen(states, tensors["counts"].reshape(len(states), len(counted)))
            values = tensors["values"].reshape(len(names), len(states))
            table, predictor.by_value = dict(zip(names, values, strict=True)), config["by_value"]
            kernels = {tuple(key): Kernel(numbers) for *key, numbers in config["kernels"]}
            predictor.estimator = predictor._estimator(seen, counted, table, kernels)
            predictor.alone = config.get("alone", False)
        if names := config.get("remembered"):
            predictor.remembered = names
            predictor.before = cls._recalled(config["before"], under("before", tensors), reader)
        return predictor


def _weights(part: str, module: torch.nn.Module) -> dict[str, np.ndarray]:
    return {f"{part}.{name}": tensor.numpy() for name, tensor in module.state_dict().items()}


def _with_weights(module: Module, tensors: dict[str, np.ndarray]) -> Module:
    module.load_state_dict({name: torch.from_numpy(tensor) for name, tensor in tensors.items()})
    return module.eval()


def _knots(scales: dict[str, Scale]) -> dict[str, list[float]]:
    return {name: list(scale.knots) for name, scale in scales.items()}


def _scales(knots: dict[str, list[float]]) -> dict[str, Scale]:
    return {name: Scale(tuple(of_name)) for name, of_name in knots.items()}


def _firsts(keys: Iterable[tuple]) -> tuple[list[int], list[int]]:
    """Rows of the first of all equal keys, and for every key which of these it is."""
    first: dict[tuple, int] = {}
    rows: list[int] = []
    place = [first.setdefault(key, len(first)) for key in keys]
    for row, at in enumerate(place):
        if at == len(rows):
            rows.append(row)
    return rows, place


def _counts(texts: list[str], names: list[str]) -> np.ndarray:
    """(n, names): how often each occurs in every text."""
    return feature_matrix(texts, names).astype(np.float32) if names else np.empty((len(texts), 0), np.float32)


def _randomness(text: str, seed: int, metrics: int, samples: int) -> np.ndarray:
    """Random numbers (metrics, 1 + samples) of a text's own, so that its samples don't depend on its company."""
    return np.random.default_rng([seed, zlib.crc32(text.encode())]).random((metrics, 1 + samples))
