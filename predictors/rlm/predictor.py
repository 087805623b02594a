"""The regression language model as a predictor: `fit` stores examples, `predict` decodes numbers
digit by digit.

What happens to a text: `tokens` reads it, `encoder` makes a state of it, `examples` chooses the
examples that it is compared with, `kernel_regression` and `in_context` read these, and `decoder`
writes the numbers.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any, Self

import numpy as np

from predictors.base import (
    Inputs,
    Metrics,
    SamplingPredictor,
    as_targets,
    as_texts,
    group_by_observed,
    restore_values,
)
from predictors.checkpoint import load_weights, with_prefix
from predictors.metrics import decoding_order
from predictors.registry import load_base
from predictors.rlm.encoder import T5GemmaReader
from predictors.rlm.examples import FittedContext
from predictors.rlm.model import Model, ModelConfig, fit_kernels, tune
from predictors.rlm.tokens import COMMON, TEXT_NUMBERS
from predictors.uncertainty import widening_factors
from search_spaces.common.errors import InputError
from search_spaces.common.progress import Progress
from search_spaces.ir.pytorch import without_weights
from search_spaces.ir.text import TEXT_VERSION, fingerprint

log = logging.getLogger(__name__)

BASE = "rlm-base"
MAX_CACHED_TEXTS = 30_000  # cached states take 120 MB
MAX_KERNEL_ROWS = 1000  # examples to which kernels are fitted, at a cost that grows with their cube
MAX_HALF = float(np.finfo(np.float16).max)


class RLM(SamplingPredictor):
    """Reads ONNX text and decodes metrics digit by digit, given labelled examples.

    Accuracies are decoded first, then latencies. `fit` stores the examples and, unless `steps` or
    `kernel_steps` is set, takes no gradient step. A query attends to the examples, and its metrics
    are decoded in turn, each conditioned on those before. Given metrics become features of examples
    and queries. After "Regression Language Models for Code" (arXiv 2509.26476), in context as in
    TabPFN (arXiv 2207.01848).

    Example: accuracies of ten networks, in %, from those of fifty.

        >>> import nas
        >>> table = nas.load_benchmark("digits201")
        >>> texts = [table.space.to_text(network) for network in table.architectures[:60]]
        >>> accuracies = table.values("digits_accuracy")[:60]
        >>> model = nas.RLM(seed=0).fit(texts[:50], {"digits_accuracy": accuracies[:50]})
        >>> predicted = model.predict(texts[50:], ["digits_accuracy"], samples=16)
        >>> predicted.median.shape, predicted.samples.shape
        ((10, 1), (10, 16, 1))

    Args:
        seed: seed of samples and of fine-tuning.
        base: folder or shipped name of the checkpoint with the weights. Its examples are not used;
            `load` the checkpoint to predict from them.
        steps: optimizer steps of the whole model on the examples of `fit`, for texts other than
            networks; 0 for none.
        backbone: folder or hub name of a T5Gemma that replaces the encoder.
        progress: called with the loss, the number of the step, and the number of steps, during
            fine-tuning.
        kernel_steps: optimizer steps of the kernels alone, for networks and from about 300
            examples; 0 for none.

    Raises:
        InputError: if a number of steps is negative.
    """

    kind = "rlm"

    def __init__(
        self,
        seed: int = 0,
        base: str = BASE,
        steps: int = 0,
        backbone: str | None = None,
        progress: Progress | None = None,
        kernel_steps: int = 0,
    ) -> None:
        super().__init__(seed)
        if min(steps, kernel_steps) < 0:
            raise InputError(f"rlm: steps must be 0 or more, not {min(steps, kernel_steps)}")
        self.base = base
        self.backbone = backbone
        self.progress = progress
        self.steps = steps
        self.kernel_steps = kernel_steps
        self._model: Model | None = None
        self._cache: dict[str, np.ndarray] = {}  # states by text
        self._fitted: FittedContext | None = None

    @classmethod
    def of(cls, model: Model) -> Self:
        """A predictor with a pretrained model and no examples."""
        self = cls()
        self._use(model.eval())
        return self

    def _use(self, model: Model) -> None:
        """Predict with a model, whose encoder or the backbone reads the texts."""
        self._reader: Model | T5GemmaReader = model
        if self.backbone:
            self._reader = T5GemmaReader(self.backbone)
        self._model = model

    @property
    def model(self) -> Model:
        """The network: that of the base, or a fine-tuned copy after `fit` with `steps`."""
        if self._model is None:
            base = load_base(self.base, RLM)
            self._use(base.model)
            if not self.backbone:
                # All predictors of this base share the states: a search fits again and again.
                self._cache = base._cache
        assert self._model is not None
        return self._model

    @property
    def metrics(self) -> tuple[str, ...]:
        return self._fitted.metrics if self._fitted else ()

    # --- learning

    def fit(self, architectures: Inputs, metrics: Metrics) -> Self:
        """As `Predictor.fit`: store the examples.

        If `steps` or `kernel_steps` is set, fine-tune the base on them.
        """
        texts = as_texts(architectures)
        values = as_targets(architectures, metrics)
        # 1. Take the model of the base: an earlier fit may have tuned its own.
        if self.steps or self.kernel_steps:
            self._model = None
        model = self.model

        # 2. Tune a copy of all of it, and read the texts anew.
        if self.steps:
            states = self._read(texts) if self.backbone else None
            model = copy.deepcopy(model)
            self._model = model
            tune(
                model,
                texts,
                values,
                steps=self.steps,
                seed=self.seed,
                states=states,
                progress=self.progress,
            )
            if not self.backbone:
                self._reader = model
                self._cache = {}

        # 3. Store the examples.
        self._fitted = FittedContext(
            model=model,
            fingerprints=[fingerprint(text) for text in texts],
            states=self._read(texts),
            values=values,
            seed=self.seed,
        )

        # 4. Fit the kernels of a copy to them.
        if self.kernel_steps:
            self._model = copy.deepcopy(model)
            shuffled = np.random.default_rng(self.seed).permutation(len(texts))
            rows = shuffled[:MAX_KERNEL_ROWS]
            examples = [self._fitted.training_examples(rows, name) for name in values]
            fit_kernels(self._model.reader.kernels, examples, self.kernel_steps, self.progress)
            self._fitted = replace(self._fitted, model=self._model)
        return self

    def extend(self, architectures: Inputs, metrics: Metrics) -> None:
        """Add further examples.

        New values of a stored architecture are merged with its old ones, or replace them.
        """
        texts = as_texts(architectures)
        values = as_targets(architectures, metrics)
        names = [fingerprint(text) for text in texts]
        states = self._read(texts)
        nothing = FittedContext(
            model=self.model,
            fingerprints=[],
            states=states[:0],
            values={},
            seed=self.seed,
        )
        before = self._fitted or nothing
        self._fitted = before.extended(names, states, values)

    def examples_of(self, architectures: Inputs) -> dict[str, np.ndarray]:
        """Stored values (n,) per metric of n architectures.

        They are NaN for architectures that are not among the examples. An architecture is known by
        its text: states differ in their last digits from one processor to another.
        """
        texts = as_texts(architectures)
        if self._fitted is None:
            return {}
        return self._fitted.values_of([fingerprint(text) for text in texts])

    def calibrate(self, architectures: Inputs, groups: Sequence[str]) -> Self:
        """Widen predictions so that their 90 % intervals hold for groups without examples.

        Such groups are families, for example. If exact costs are known of all examples of a device
        metric, its intervals hold for predictions with given costs.

        Args:
            architectures: the n examples of `fit`.
            groups: name of each example's group.

        Returns:
            The predictor itself.

        Raises:
            InputError: if these are not as many as the examples of `fit`.
        """
        texts = as_texts(architectures)
        fitted = self._fitted
        count = len(fitted.states) if fitted else 0
        if fitted is None or not len(texts) == len(groups) == count:
            raise InputError(f"calibrate needs the {count} examples of fit and the group of each")

        def fit_rows(rows: np.ndarray, metrics: Sequence[str]) -> RLM:
            part = copy.copy(self)
            part._fitted = fitted.subset(rows, metrics)
            return part

        _, numbers = np.unique(list(groups), return_inverse=True)
        group_of_text = numbers.ravel()  # (n,)
        fitted.widening = widening_factors(
            fit_rows,
            texts,
            fitted.values,
            groups=group_of_text,
            seed=self.seed,
        )
        return self

    # --- reading

    def states(self, architectures: Inputs) -> np.ndarray:
        """States (n, S), float32, of n architectures: the outputs of the encoder.

        `fit` is not needed.
        """
        return self._read(as_texts(architectures))

    def proxies(self, architectures: Inputs) -> np.ndarray:
        """Predicted proxies and accuracies of short trainings (n, PROXIES + ACCURACIES).

        They are comparable within a space.

        Raises:
            InputError: if a backbone replaces the encoder.
        """
        if self.backbone:
            raise InputError("rlm: a backbone predicts no proxies")
        return self.states(architectures)[:, -COMMON:-TEXT_NUMBERS]

    def novelty(self, architectures: Inputs, metrics: Sequence[str] = ()) -> np.ndarray:
        """Distance (n,) of each architecture to its nearest example.

        It is relative to the distances among the examples. Distances are those of the states'
        structure. The unit is the 95th percentile of the examples' distances to their nearest other
        example, so that 1 is farther than 95 % of these. Only examples that have a metric count for
        it; of several metrics, the largest distance counts.

        Raises:
            InputError: if there are no examples, or a metric is unknown.
        """
        if self._fitted is None:
            raise InputError(
                "this rlm is not trained: call fit first; novelty is the distance to its examples"
            )
        return self._fitted.novelty(self.states(architectures), metrics)

    def _read(self, texts: Sequence[str]) -> np.ndarray:
        """States (n, S) of n texts, cached by text."""
        _ = self.model  # loads the base, and with it the reader
        if len(self._cache) > MAX_CACHED_TEXTS:
            self._cache.clear()
        new = [text for text in dict.fromkeys(texts) if text not in self._cache]
        if new:
            states = _as_stored(self._reader.states(new))
            self._cache.update(zip(new, states, strict=True))
        if not texts:
            return np.empty((0, self._state_size()), np.float32)
        return np.array([self._cache[text] for text in texts], np.float32)

    def _state_size(self) -> int:
        """Size of a state; 0 while no text has been read."""
        for state in self._cache.values():
            return len(state)
        return 0

    # --- predicting

    def _draw(
        self,
        architectures: Inputs,
        metrics: Sequence[str],
        observed: dict[str, np.ndarray],
        samples: int,
        seed: int,
    ) -> np.ndarray:
        assert self._fitted is not None, "predict has checked it"
        texts = as_texts(architectures)
        drawn = np.empty((len(texts), samples, len(metrics)))
        # Rows with the same known metrics are decoded together, the others in decoding order.
        for rows, names in group_by_observed(len(texts), observed):
            given = {name: observed[name][rows] for name in names}
            unknown_metrics = [name for name in dict.fromkeys(metrics) if name not in given]
            if not unknown_metrics:
                continue
            ordered = sorted(unknown_metrics, key=decoding_order)
            of_rows = [texts[i] for i in rows]
            states = self._read(of_rows)
            sampled = self._fitted.sample(
                of_rows,
                states,
                ordered,
                given=given,
                samples=samples,
                seed=seed,
            )
            for column, name in enumerate(metrics):
                if name in sampled:
                    drawn[rows, :, column] = sampled[name]
        return drawn

    def estimate(
        self,
        architectures: Inputs,
        metrics: Sequence[str],
        given: Metrics | None = None,
    ) -> np.ndarray:
        """Point estimates (n, m): the median of each metric.

        It is decoded without conditioning on the others. This is cheaper than `predict`, which
        reads a query several times for all but the first metric.
        """
        texts = as_texts(architectures)
        medians = [np.zeros((len(texts), 0))]
        for name in metrics:
            predicted = self.predict(texts, [name], given, samples=1)
            medians.append(predicted.median)  # (n, 1)
        return np.concatenate(medians, 1)

    # --- checkpoints

    def _state(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        # 1. The weights: those of the shipped models are halves; others keep all of their bits.
        weights = {name: tensor.numpy() for name, tensor in self.model.state_dict().items()}
        halves = {name: tensor.astype(np.float16) for name, tensor in weights.items()}
        is_half = all((halves[name] == weights[name]).all() for name in weights)
        tensors = with_prefix("model", halves if is_half else weights)

        # 2. The examples.
        fitted = self._fitted
        widening: dict[str, float] = {}
        fingerprints: list[str] = []
        if fitted:
            widening = fitted.widening
            fingerprints = fitted.fingerprints
            states, common = np.split(fitted.states, [-COMMON], 1)
            tensors["states"] = states.astype(np.float16)
            tensors["common"] = common
            tensors["values"] = np.stack(list(fitted.values.values()))

        config = {
            "seed": self.seed,
            "base": self.base,
            "backbone": self.backbone,
            "model": asdict(self.model.config),
            "metrics": list(self.metrics),
            "widening": widening,
            "text_version": TEXT_VERSION,
            # One string takes less room than a list of thousands.
            "texts": " ".join(fingerprints),
        }
        return config, tensors

    @classmethod
    def _restore(cls, config: dict[str, Any], tensors: dict[str, np.ndarray]) -> Self:
        # 1. The model.
        self = cls(seed=config["seed"], base=config["base"], backbone=config["backbone"])
        sizes = ModelConfig.restore(config["model"])
        with without_weights():
            model = Model(sizes).eval()
        load_weights(model, "model", tensors)
        self._use(model)
        if not config["metrics"]:
            return self

        # 2. The examples, which must fit to it.
        learned = tensors["states"].astype(np.float32)
        states = np.concatenate([learned, tensors["common"]], 1)  # (N, S)
        expected_size = (sizes.encoder.outputs,)
        if not self.backbone and states.shape[1:] != expected_size:
            raise InputError(
                "damaged checkpoint: its examples do not have the size of its model's states"
            )
        texts = config["texts"].split()
        if len(texts) != len(states):
            raise InputError(
                f"damaged checkpoint: {len(texts)} fingerprints of {len(states)} examples"
            )
        if config["text_version"] != TEXT_VERSION:
            log.warning(
                "the checkpoint knows its %d examples by texts of version %s; this release writes "
                "version %s and may not recognise them: make the checkpoint again",
                len(texts),
                config["text_version"],
                TEXT_VERSION,
            )
        values = restore_values(config, {**tensors, "states": states}, "states")

        # 3. The factors that widen its intervals.
        stored = config.get("widening", {})
        widening = {name: float(stored.get(name, 1.0)) for name in values}
        if not all(1 <= factor < np.inf for factor in widening.values()):
            raise InputError(
                "damaged checkpoint: the factors that widen its intervals are not numbers from 1"
            )
        self._fitted = FittedContext(
            model=model,
            fingerprints=texts,
            states=states,
            values=values,
            seed=self.seed,
            widening=widening,
        )
        return self


def _as_stored(states: np.ndarray) -> np.ndarray:
    """States (n, S) as checkpoints store them: all but the common numbers have 16 bits."""
    learned = states[:, :-COMMON]  # a view
    rounded = learned.clip(-MAX_HALF, MAX_HALF).astype(np.float16)
    learned[:] = rounded
    return states
