"""The regression language model as a predictor: `fit` stores examples, `predict` decodes numbers
digit by digit.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from predictors.base import Progress
from predictors.calibration import widen, widening_factors
from predictors.checkpoint import load_base
from predictors.files import examples, load_weights, with_prefix
from predictors.inputs import Inputs, Metrics, as_targets, as_texts, group_by_known
from predictors.metrics import decoding_order
from predictors.rlm.coordinates import States
from predictors.rlm.decoding import joint_scores
from predictors.rlm.encoder import COMMON
from predictors.rlm.examples import (
    MAX_EXAMPLES,
    Context,
    Examples,
    Group,
    groups,
    nearest_distances,
    nearest_group,
)
from predictors.rlm.lines import TEXT_NUMBERS
from predictors.rlm.model import Model, ModelConfig
from predictors.rlm.quantiles import joint_quantiles
from predictors.rlm.tuning import fit_kernels, tune
from predictors.sampling import SamplingPredictor
from predictors.scores import Scores
from search_spaces.common.errors import InputError, unknown
from search_spaces.ir.pytorch import without_weights
from search_spaces.ir.text import TEXT_VERSION, fingerprint

if TYPE_CHECKING:
    from predictors.rlm.backbone import T5GemmaReader

log = logging.getLogger(__name__)

BASE = "rlm-base"
MAX_CACHED_TEXTS = 30_000  # cached states take 120 MB
MAX_KEPT_EXAMPLES = 1000  # whose kernels are kept between two metrics; they take 64 MB
MAX_CONTEXTS = 8  # cached; a context of 2,000 examples takes about 60 MB
MAX_KERNEL_ROWS = 1000  # examples to which kernels are fitted, at a cost that grows with their cube
MAX_QUERIES = 1024  # decoded at once at most
MAX_NUMBERS = 80_000  # queries times samples decoded at once, about 5 KB each
MAX_HALF = float(np.finfo(np.float16).max)
NEIGHBOUR_ROWS = 1000  # approximate number of examples that determine the unit of novelty


class RLM(SamplingPredictor):
    """Reads ONNX text and decodes metrics digit by digit, accuracies first, then latencies, from
    labelled examples.

    `fit` stores the examples and, unless `steps` or `kernel_steps` is set, takes no gradient step.
    A query attends to the examples, and its metrics are decoded in turn, each conditioned on those
    before. Given metrics become coordinates of examples and queries. After "Regression Language
    Models for Code" (arXiv 2509.26476), in context as in TabPFN (arXiv 2207.01848).

    Args:
        seed: seed of samples and of fine-tuning.
        base: folder or shipped name of the checkpoint with the weights. Its examples are not used;
            `load` the checkpoint to predict from them.
        steps: optimizer steps of the whole model on the examples of `fit`, for texts other than
            networks; 0 for none.
        backbone: folder or hub name of a T5Gemma that replaces the encoder.
        progress: called as `progress(step, steps, loss)` during fine-tuning.
        kernel_steps: optimizer steps of the kernels alone, for networks and from about 300
            examples; 0 for none.

    Raises:
        InputError: if a number of steps is negative.
    """

    kind = "rlm"

    def __init__(
        self, seed: int = 0, base: str = BASE, steps: int = 0, backbone: str | None = None,
        progress: Progress | None = None, kernel_steps: int = 0,
    ) -> None:  # fmt: skip
        super().__init__(seed)
        if min(steps, kernel_steps) < 0:
            raise InputError(f"rlm: steps must be 0 or more, not {min(steps, kernel_steps)}")
        self.base, self.backbone, self.progress = base, backbone, progress
        self.steps, self.kernel_steps = steps, kernel_steps
        self._model: Model | None = None
        self._cache: dict[str, np.ndarray] = {}
        self._store([], np.empty((0, 0), np.float32), {})

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
            from predictors.rlm.backbone import T5GemmaReader

            self._reader = T5GemmaReader(self.backbone)
        self._model = model

    @property
    def model(self) -> Model:
        """The network: that of the base, or a fine-tuned copy after `fit` with `steps`."""
        if self._model is None:
            base = load_base(self.base, RLM)
            self._use(base.model)
            if not self.backbone:
                self._cache = (
                    base._cache
                )  # shared by all predictors of this base: a search fits again and again
        assert self._model is not None
        return self._model

    # --- learning

    def fit(self, architectures: Inputs, metrics: Metrics) -> Self:
        """As `Predictor.fit`: store the examples; fine-tune the base on them if `steps` or
        `kernel_steps` is set.
        """
        texts, values = as_texts(architectures), as_targets(architectures, metrics)
        if self.steps or self.kernel_steps:
            self._model = None  # an earlier fit may have tuned it
        model = self.model
        if self.steps:
            frozen = self._read(texts) if self.backbone else None
            self._model = model = copy.deepcopy(model)
            tune(model, texts, values, self.steps, self.seed, frozen, self.progress)
            if not self.backbone:
                self._reader, self._cache = model, {}
        self._store(fingerprints(texts), self._read(texts), values)
        if self.kernel_steps:
            self._model = copy.deepcopy(model)
            rows = np.random.default_rng(self.seed).permutation(len(texts))[:MAX_KERNEL_ROWS]
            contexts = [self._context(rows, name, []) for name in values]
            fit_kernels(self._model.reader.kernels, contexts, self.kernel_steps, self.progress)
            self._store(
                self._texts, self._states, values
            )  # its contexts had the kernels from before
        return self

    def _store(self, texts: list[str], states: np.ndarray, values: dict[str, np.ndarray]) -> None:
        """Store the examples: fingerprints of n texts, their states (n, S) and values (n,) per
        metric.
        """
        self._texts, self._states = texts, states
        self._values, self._metrics = values, tuple(values)
        self._novelty_units: dict[str | None, float] = {}
        self._widening: dict[str, float] = {}
        self._scales = {name: Scores.of(name, v[~np.isnan(v)]) for name, v in values.items()}
        self._groups: dict[tuple[str, ...], list[Group]] = {}
        self._contexts: dict[tuple[str, tuple[str, ...], bytes], Context] = {}
        self._last_examples: tuple[tuple[tuple[str, ...], bytes], Examples] | None = None

    def calibrate(self, architectures: Inputs, groups: Sequence[str]) -> Self:
        """Widen predictions so that their 90 % intervals hold for groups, such as families, without
        examples.

        If exact costs are known of all examples of a device metric, its intervals hold for
        predictions with given costs.

        Args:
            architectures: the n examples of `fit`.
            groups: name of each example's group.

        Returns:
            The predictor itself.

        Raises:
            InputError: if these are not as many as the examples of `fit`.
        """
        texts = as_texts(architectures)
        if not len(texts) == len(groups) == len(self._states):
            raise InputError(
                f"calibrate needs the {len(self._states)} examples of fit and the group of each"
            )

        def fit_rows(rows: np.ndarray, metrics: Sequence[str]) -> RLM:
            part = copy.copy(self)
            kept = [self._texts[row] for row in rows]
            part._store(
                kept, self._states[rows], {name: self._values[name][rows] for name in metrics}
            )
            return part

        numbers = np.unique(list(groups), return_inverse=True)[1].ravel()
        self._widening = widening_factors(fit_rows, texts, self._values, numbers, self.seed)
        return self

    def examples_of(self, architectures: Inputs) -> dict[str, np.ndarray]:
        """Stored values (n,) per metric of n architectures; NaN for those that are not among the
        examples.

        An architecture is known by its text: states differ in their last digits from one processor
            to another.
        """
        asked = fingerprints(as_texts(architectures))
        known: dict[str, np.ndarray] = {}
        for name, column in self._values.items():
            there = ~np.isnan(column)
            value_of = dict(zip(np.array(self._texts)[there].tolist(), column[there], strict=True))
            known[name] = np.array([value_of.get(text, np.nan) for text in asked])
        return known

    def extend(self, architectures: Inputs, metrics: Metrics) -> None:
        """Add further examples; new values of a stored architecture are merged with, or replace,
        its old ones.
        """
        texts, new = as_texts(architectures), as_targets(architectures, metrics)
        place = {text: row for row, text in enumerate(self._texts)}
        stored, states = list(self._texts), list(self._states)
        rows = []
        for name, state in zip(fingerprints(texts), self._read(texts), strict=True):
            rows.append(place.setdefault(name, len(stored)))
            if rows[-1] == len(stored):
                stored.append(name)
                states.append(state)
        values = {}
        for name in {**self._values, **new}:
            values[name] = np.full(len(stored), np.nan)
            values[name][: len(self._texts)] = self._values.get(name, np.nan)
            for row, value in zip(rows, new.get(name, ()), strict=False):
                if not np.isnan(value):
                    values[name][row] = value
        widening = {name: self._widening.get(name, 1.0) for name in values}
        self._store(stored, np.array(states, np.float32), values)
        self._widening = widening

    def states(self, architectures: Inputs) -> np.ndarray:
        """States (n, S), float32, of n architectures: the encoder's outputs. `fit` is not
        needed.
        """
        return self._read(as_texts(architectures))

    def proxies(self, architectures: Inputs) -> np.ndarray:
        """Predicted proxies and accuracies of short trainings (n, PROXIES + ACCURACIES), comparable
        within a space.

        Raises:
            InputError: if a backbone replaces the encoder.
        """
        if self.backbone:
            raise InputError("rlm: a backbone predicts no proxies")
        return self.states(architectures)[:, -COMMON:-TEXT_NUMBERS]

    def novelty(self, architectures: Inputs, metrics: Sequence[str] = ()) -> np.ndarray:
        """Distance (n,) of each architecture to its nearest example, relative to the distances
        among the examples.

        Distances are those of the states' structure. The unit is the 95th percentile of the
        examples' distances to their nearest other example, so that 1 is farther than 95 % of these.
        Only examples that have a metric count for it; of several metrics, the largest distance
        counts.

        Raises:
            InputError: if there are no examples, or a metric is unknown.
        """
        if not len(self._states):
            raise InputError(
                "this rlm is not trained: call fit first; novelty is the distance to its examples"
            )
        asked = States.of(self.states(architectures)).structure
        largest = np.zeros(len(asked))
        for metric in metrics or (None,):
            if metric is not None and metric not in self._values:
                raise unknown("metric", metric, self.metrics)
            known, unit = self._neighbourhood(metric)
            largest = np.maximum(largest, nearest_distances(asked, known) / max(unit, 1e-6))
        return largest

    def _neighbourhood(self, metric: str | None) -> tuple[np.ndarray, float]:
        """Structure (k, …) of the examples with a metric, or of all, and the unit of their
        distances.
        """
        known = States.of(self._states).structure
        if metric is not None:
            known = known[~np.isnan(self._values[metric])]
        if metric not in self._novelty_units:
            rows = np.arange(0, len(known), max(1, len(known) // NEIGHBOUR_ROWS))
            near = nearest_distances(known[rows], known, rows)
            self._novelty_units[metric] = (
                float(np.quantile(near, 0.95)) if len(known) > 1 else np.inf
            )
        return known, self._novelty_units[metric]

    def _read(self, texts: Sequence[str]) -> np.ndarray:
        """States (n, S) of n texts, cached by text."""
        _ = self.model  # loads the base, and with it the reader
        if len(self._cache) > MAX_CACHED_TEXTS:
            self._cache.clear()
        if new := [text for text in dict.fromkeys(texts) if text not in self._cache]:
            self._cache.update(zip(new, _rounded(self._reader.states(new)), strict=True))
        size = next(iter(self._cache.values())).shape[0] if self._cache else 0
        return np.array([self._cache[text] for text in texts], np.float32).reshape(len(texts), size)

    # --- predicting

    def _draw(
        self,
        architectures: Inputs,
        metrics: Sequence[str],
        known: dict[str, np.ndarray],
        samples: int,
        seed: int,
    ) -> np.ndarray:
        texts = as_texts(architectures)
        drawn = np.empty((len(texts), samples, len(metrics)))
        for rows, names in group_by_known(len(texts), known):
            forced = {name: known[name][rows] for name in names}
            asked = sorted(
                (m for m in dict.fromkeys(metrics) if m not in forced), key=decoding_order
            )
            found = (
                self._sample([texts[i] for i in rows], asked, forced, samples, seed)
                if asked
                else {}
            )
            for column, name in enumerate(metrics):
                if name in found:
                    drawn[rows, :, column] = found[name]
        return drawn

    def estimate(
        self, architectures: Inputs, metrics: Sequence[str], given: Metrics | None = None
    ) -> np.ndarray:
        """Point estimates (n, m): the median of each metric, decoded without conditioning on the
        others.

        This is cheaper than `predict`, which reads a query several times for all but the first
        metric.
        """
        texts = as_texts(architectures)
        found = [self.predict(texts, [name], given, samples=1).median for name in metrics]
        return np.concatenate(found, 1) if found else np.zeros((len(texts), 0))

    def _sample(
        self,
        texts: list[str],
        metrics: list[str],
        given: Mapping[str, np.ndarray],
        samples: int,
        seed: int,
    ) -> dict[str, np.ndarray]:
        """Samples (n, samples) per metric."""
        states = self._read(texts)
        found = {name: np.empty((len(texts), samples)) for name in metrics}
        chosen = self._groups_with(metrics)
        group_of = nearest_group(states, chosen)
        for number, group in enumerate(chosen):
            rows = np.flatnonzero(group_of == number)
            if not len(rows):
                continue
            contexts = [
                self._context(group.rows, name, [*given, *metrics[:k]])
                for k, name in enumerate(metrics)
            ]
            quantiles = joint_quantiles(
                self._states[group.rows], (samples, len(metrics)), (self.seed, seed)
            )
            at_once = max(1, min(MAX_QUERIES, MAX_NUMBERS // samples))
            for part in np.array_split(rows, -(-len(rows) // at_once)):
                scores = [
                    self._scales[name].normalize(values[part]) for name, values in given.items()
                ]
                places = quantiles(states[part], [texts[i] for i in part])
                decoded = joint_scores(contexts, states[part], _columns(scores, len(part)), places)
                for name, values in zip(metrics, decoded, strict=True):
                    widened = widen(values, self._widening.get(name, 1.0))
                    found[name][part] = self._scales[name].restore(widened)
        return found

    def _groups_with(self, metrics: Sequence[str]) -> list[Group]:
        """Groups of the examples with at least one of these metrics."""
        key = tuple(metrics)
        if key not in self._groups:
            known = np.flatnonzero(~np.isnan([self._values[name] for name in metrics]).all(0))
            self._groups[key] = [
                Group(center, known[rows]) for center, rows in groups(self._states[known])
            ]
        return self._groups[key]

    def _context(self, rows: np.ndarray, metric: str, covariates: list[str]) -> Context:
        """Context of the examples among `rows` with the metric; if there are none, of the first
        that have it.
        """
        known = ~np.isnan(self._values[metric])
        rows = rows[known[rows]] if known[rows].any() else np.flatnonzero(known)[:MAX_EXAMPLES]
        key = (metric, tuple(covariates), rows.tobytes())
        if key not in self._contexts:
            if len(self._contexts) >= MAX_CONTEXTS:
                self._contexts.clear()
            scores = self._scales[metric].normalize(self._values[metric][rows])
            self._contexts[key] = Context(self._examples(rows, covariates), scores)
        return self._contexts[key]

    def _examples(self, rows: np.ndarray, covariates: list[str]) -> Examples:
        """The examples of these rows. The last ones are kept: a search asks for each metric of the
        same examples.
        """
        key = (tuple(covariates), rows.tobytes())
        if self._last_examples is None or self._last_examples[0] != key:
            columns = [
                self._scales[name].normalize(self._values[name][rows]) for name in covariates
            ]
            found = Examples(self.model, self._states[rows], _columns(columns, len(rows)))
            self._last_examples = (key, found) if len(rows) <= MAX_KEPT_EXAMPLES else None
            return found
        return self._last_examples[1]

    # --- checkpoints

    def _state(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        whole = {name: tensor.numpy() for name, tensor in self.model.state_dict().items()}
        halves = {name: tensor.astype(np.float16) for name, tensor in whole.items()}
        is_half = all(
            (halves[name] == whole[name]).all() for name in whole
        )  # true of the shipped models
        config = {
            "seed": self.seed,
            "base": self.base,
            "backbone": self.backbone,
            "model": asdict(self.model.config),
            "metrics": list(self.metrics),
            "widening": self._widening,
            "text_version": TEXT_VERSION,
            "texts": " ".join(self._texts),  # one string takes less room than a list of thousands
        }
        tensors = with_prefix("model", halves if is_half else whole)
        if self.metrics:
            states, common = np.split(self._states, [-COMMON], 1)
            values = np.stack(list(self._values.values()))
            tensors |= {"states": states.astype(np.float16), "common": common, "values": values}
        return config, tensors

    @classmethod
    def _restore(cls, config: dict[str, Any], tensors: dict[str, np.ndarray]) -> Self:
        self = cls(seed=config["seed"], base=config["base"], backbone=config["backbone"])
        sizes = ModelConfig.restore(config["model"])
        with without_weights():
            model = Model(sizes).eval()
        load_weights(model, "model", tensors)
        self._use(model)
        if config["metrics"]:
            states = np.concatenate([tensors["states"].astype(np.float32), tensors["common"]], 1)
            if not self.backbone and states.shape[1:] != (sizes.encoder.outputs,):
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
                    "the checkpoint knows its %d examples by texts of version %s; this release "
                    "writes version %s and "
                    "may not recognise them: make the checkpoint again",
                    len(texts), config["text_version"], TEXT_VERSION,
                )  # fmt: skip
            self._store(texts, states, examples(config, {**tensors, "states": states}, "states"))
            self._widening = {
                name: float(config.get("widening", {}).get(name, 1.0)) for name in self.metrics
            }
            if not all(1 <= factor < np.inf for factor in self._widening.values()):
                raise InputError(
                    "damaged checkpoint: the factors that widen its intervals are not numbers from "
                    "1"
                )
        return self


def fingerprints(texts: Sequence[str]) -> list[str]:
    """Fingerprints of n texts, by which examples are recognised on every machine."""
    return [fingerprint(text) for text in texts]


def _rounded(states: np.ndarray) -> np.ndarray:
    """States (n, S) as checkpoints store them: all but the common numbers have 16 bits."""
    states[:, :-COMMON] = states[:, :-COMMON].clip(-MAX_HALF, MAX_HALF).astype(np.float16)
    return states


def _columns(columns: list[np.ndarray], count: int) -> np.ndarray:
    """Matrix (count, c) of columns, clipped so that float32 can square them."""
    return np.stack(columns, 1).clip(-1e6, 1e6) if columns else np.zeros((count, 0))
