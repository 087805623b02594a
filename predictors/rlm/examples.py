"""What `RLM.fit` stores, and predictions from it: which examples a query sees, and samples of several
metrics in turn.

`FittedContext` holds the examples. A query sees up to `MAX_EXAMPLES` of them: those of the group
whose center is nearest to it. The examples of a group are processed once per metric
(`MetricContext`), and every query reads the result.

Sizes in comments: N stored examples, n examples of a group, q queries, S numbers of a state, F
features, s samples, c covariates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from predictors.rlm.decoder import couple_samples, sample_numbers
from predictors.rlm.kernel_regression import (
    Projection,
    nearest_distances,
    squared_distances,
)
from predictors.rlm.model import Model
from predictors.rlm.tokens import TextFeatures, learned_features
from predictors.transforms import TargetTransform
from predictors.uncertainty import widen
from search_spaces.common.errors import unknown

MAX_EXAMPLES = 2000  # per query, which bounds memory and time of a prediction
STRATA = 8  # groups of samples; each is conditioned on its means of the earlier metrics
MAX_QUERIES = 1024  # decoded at once at most
MAX_NUMBERS = 80_000  # queries times samples decoded at once, about 5 KB each
MAX_COVARIATE = 1e6  # largest absolute z of a covariate: float32 can square it
MAX_CONTEXTS = 8  # cached; a context of 2,000 examples takes about 60 MB
MAX_CACHED_KERNELS = 1000  # examples whose kernels are kept between two metrics; they take 64 MB
NOVELTY_ROWS = 1000  # approximate number of examples that determine the unit of novelty
NOVELTY_QUANTILE = 0.95  # of the examples' distances to their nearest other one: the unit


# --- which examples a query sees


class Group(NamedTuple):
    """Examples that are shared by all queries near one center."""

    center: np.ndarray  # the learned features of a state
    rows: np.ndarray  # (n,) row numbers of the stored examples


def group_examples(states: np.ndarray) -> list[Group]:
    """Divide N stored examples with states (N, S) into groups.

    Up to `MAX_EXAMPLES` examples are one group. With more, every group holds the examples nearest
    to its center, one half, and examples spread over all states that every group shares. The group
    of a query depends on the query's state alone.
    """
    points = learned_features(states)
    if len(points) <= MAX_EXAMPLES:
        everything = np.arange(len(points))
        return [Group(points.mean(0), everything)]

    # 1. One half of each group is spread over all states.
    count = MAX_EXAMPLES // 2
    spread = _farthest_points(points, MAX_EXAMPLES - count)

    # 2. The centers are the first of these: as many as the nearest examples need.
    centers_needed = -(-len(points) // count)  # rounded up
    centers = points[spread[:centers_needed]]

    # 3. The other half are the examples nearest to the center.
    rest = np.setdiff1d(np.arange(len(points)), spread)
    distances = squared_distances(centers, points[rest])  # (centers, rest)
    groups = []
    for center, from_center in zip(centers, distances, strict=True):
        order = np.argsort(from_center, kind="stable")
        nearest = rest[order[:count]]
        rows = np.sort(np.concatenate([spread, nearest]))
        groups.append(Group(center, rows))
    return groups


def nearest_group(states: np.ndarray, groups: list[Group]) -> np.ndarray:
    """Number (q,) of the group with the nearest center for queries with states (q, S)."""
    if len(groups) == 1:
        return np.zeros(len(states), int)
    points = learned_features(states)
    centers = np.stack([group.center for group in groups])
    return squared_distances(points, centers).argmin(1)


def _farthest_points(points: np.ndarray, count: int) -> np.ndarray:
    """Row numbers (count,) by farthest-point sampling (Gonzalez 1985).

    The first is the row nearest to the mean.
    """

    def squared_distances_to(point: np.ndarray) -> np.ndarray:
        return ((points - point) ** 2).sum(1)  # (N,)

    first = int(squared_distances_to(points.mean(0)).argmin())
    chosen = [first]
    nearest = squared_distances_to(points[first])  # (N,) to the nearest chosen one
    while len(chosen) < count:
        farthest = int(nearest.argmax())
        chosen.append(farthest)
        nearest = np.minimum(nearest, squared_distances_to(points[farthest]))
    return np.array(chosen)


# --- the examples of a group, processed


class ProjectedExamples:
    """Features and kernels of n examples, which all metrics share.

    Args:
        model: the network.
        states: (n, S) of the examples.
        covariates: (n, c) z of the metrics that are known of queries, too; NaN where unknown.
    """

    def __init__(
        self,
        model: Model,
        states: np.ndarray,
        covariates: np.ndarray,
    ) -> None:
        self.model = model
        self.projection = Projection.fit(states, covariates)
        features = self.projection(states, covariates)
        self.features = torch.from_numpy(features)[None]  # (1, n, F)
        with torch.inference_mode():
            self.kernels = model.reader.kernels.kernels(self.features)


class MetricContext:
    """Examples of one metric, processed once for any number of queries.

    Args:
        examples: n examples.
        targets: (n,) z of the metric.
    """

    def __init__(self, examples: ProjectedExamples, targets: np.ndarray) -> None:
        self.model = examples.model
        self.projection = examples.projection
        self.targets = torch.from_numpy(targets).float()[None]  # (1, n)
        reader = self.model.reader
        with torch.inference_mode():
            self.memory = reader.examples(examples.features, self.targets, examples.kernels)

    @torch.inference_mode()
    def conditions(self, states: np.ndarray, covariates: np.ndarray) -> Tensor:
        """Conditions (q, d) of the digit decoder for queries.

        The queries have states (q, S) and covariates (q, c).
        """
        projected = self.projection(states, covariates)  # (q, F)
        features = torch.from_numpy(projected)[None]  # (1, q, F)
        hidden = self.model.reader(features, self.memory)[0]  # (q, D)
        return self.model.decoder.conditions(hidden)


def sample_jointly(
    contexts: Sequence[MetricContext],
    states: np.ndarray,
    covariates: np.ndarray,
    quantiles: np.ndarray,
) -> list[np.ndarray]:
    """Sample M metrics, each conditioned on the covariates and on the metrics before it.

    A query's samples are sorted by the metric decoded last and divided into `STRATA` groups. The
    next metric is conditioned on the means of each group, so that a query is read `STRATA` times
    instead of once per sample.

    Args:
        contexts: one per metric, in decoding order; the last k covariates of context k are the k
            earlier metrics.
        states: (q, S) of the queries.
        covariates: (q, c) z of the given metrics.
        quantiles: (q, s, M), see `couple_samples`.

    Returns:
        (q, s) z per metric.
    """
    q, samples, _ = quantiles.shape
    query = np.arange(q)
    strata = min(STRATA, samples)
    stratum = np.arange(samples) * strata // samples  # (s,) of the sorted samples
    drawn: list[np.ndarray] = []
    for k, context in enumerate(contexts):
        if not drawn:
            # The first metric: each query is one row of the decoder.
            conditions = context.conditions(states, covariates)  # (q, d)
            order = np.broadcast_to(np.arange(samples), (q, samples))
            rows = np.repeat(query, samples)  # (q s,)
        else:
            # 1. Sort the samples of each query by the metric decoded last.               (q, s, k)
            order = drawn[-1].argsort(1, kind="stable")  # (q, s)
            in_order = [np.take_along_axis(z, order, 1) for z in drawn]
            earlier = np.stack(in_order, 2)

            # 2. Each stratum is one row, with its means of the earlier metrics.     (q strata, k)
            means = [earlier[:, stratum == number].mean(1) for number in range(strata)]
            means_of_rows = np.stack(means, 1).reshape(-1, k)
            states_of_rows = np.repeat(states, strata, 0)  # (q strata, S)
            covariates_of_rows = np.repeat(covariates, strata, 0)  # (q strata, c)
            conditioned = np.concatenate([covariates_of_rows, means_of_rows], 1)
            conditions = context.conditions(states_of_rows, conditioned)  # (q strata, d)
            rows = (query[:, None] * strata + stratum).ravel()  # (q s,)

        # 3. Decode, and put the samples back into the order of the first metric.            (q, s)
        of_metric = quantiles[:, :, k].flatten()  # (q s,)
        numbers = sample_numbers(context.model.decoder, conditions, rows, of_metric)
        z = np.empty((q, samples))
        np.put_along_axis(z, order, numbers.reshape(q, samples), 1)
        drawn.append(z)
    return drawn


# --- all that a fit stores


_ProjectionKey = tuple[tuple[str, ...], bytes]  # names of the covariates, row numbers


def _projection_key(rows: np.ndarray, covariates: list[str]) -> _ProjectionKey:
    return tuple(covariates), rows.tobytes()


@dataclass
class FittedContext:
    """The examples of a fit, and predictions from them.

    What is derived from the examples is computed when it is needed and kept here: it is forgotten
    together with them.

    Attributes:
        model: the network.
        fingerprints: N, one per text: by these, examples are recognised on every machine.
        states: (N, S).
        values: (N,) per metric in its own unit, NaN where missing.
        seed: seed of the predictor.
        widening: factor per metric by which samples are widened, see `widening_factors`.
    """

    model: Model
    fingerprints: list[str]
    states: np.ndarray
    values: dict[str, np.ndarray]
    seed: int = 0
    widening: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.transforms: dict[str, TargetTransform] = {}
        for name, column in self.values.items():
            observed = column[~np.isnan(column)]
            self.transforms[name] = TargetTransform.for_metric(name, observed)
        self._groups: dict[tuple[str, ...], list[Group]] = {}
        self._contexts: dict[tuple[str, _ProjectionKey], MetricContext] = {}
        self._last_projected: tuple[_ProjectionKey, ProjectedExamples] | None = None
        self._novelty_units: dict[str | None, float] = {}

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of the metrics."""
        return tuple(self.values)

    # --- other examples

    def subset(self, rows: np.ndarray, metrics: Sequence[str]) -> FittedContext:
        """The examples of these rows with some metrics, not widened."""
        return FittedContext(
            model=self.model,
            fingerprints=[self.fingerprints[row] for row in rows],
            states=self.states[rows],
            values={name: self.values[name][rows] for name in metrics},
            seed=self.seed,
        )

    def extended(
        self,
        fingerprints: Sequence[str],
        states: np.ndarray,
        values: Mapping[str, np.ndarray],
    ) -> FittedContext:
        """With further examples; values of a stored text are merged with, or replace, its old ones.

        Args:
            fingerprints: of n texts.
            states: (n, S).
            values: (n,) per metric, NaN where missing; there may be new metrics.
        """
        # 1. New texts are appended; `rows` are those of the n texts among all examples.
        stored = list(self.fingerprints)
        stored_states = list(self.states)
        row_of = {fingerprint: row for row, fingerprint in enumerate(stored)}
        rows = []
        for fingerprint, state in zip(fingerprints, states, strict=True):
            if fingerprint not in row_of:
                row_of[fingerprint] = len(stored)
                stored.append(fingerprint)
                stored_states.append(state)
            rows.append(row_of[fingerprint])

        # 2. Values of old and new metrics; a missing one replaces nothing.
        before = len(self.fingerprints)
        merged = {}
        for name in {**self.values, **values}:
            column = np.full(len(stored), np.nan)
            column[:before] = self.values.get(name, np.nan)
            for row, value in zip(rows, values.get(name, ()), strict=False):
                if not np.isnan(value):
                    column[row] = value
            merged[name] = column
        return FittedContext(
            model=self.model,
            fingerprints=stored,
            states=np.array(stored_states, np.float32),
            values=merged,
            seed=self.seed,
            widening={name: self.widening.get(name, 1.0) for name in merged},
        )

    def values_of(self, fingerprints: Sequence[str]) -> dict[str, np.ndarray]:
        """Stored values (n,) per metric of n texts; NaN for texts that are not examples."""
        stored = np.array(self.fingerprints)
        values = {}
        for metric, column in self.values.items():
            is_known = ~np.isnan(column)
            names = stored[is_known].tolist()
            value_of = dict(zip(names, column[is_known], strict=True))
            of_texts = [value_of.get(fingerprint, np.nan) for fingerprint in fingerprints]
            values[metric] = np.array(of_texts)
        return values

    def targets(self, rows: np.ndarray, metric: str) -> np.ndarray:
        """Values (n,) of a metric as z."""
        return self.transforms[metric].to_z(self.values[metric][rows])

    def training_examples(self, rows: np.ndarray, metric: str) -> tuple[Tensor, Tensor]:
        """Features (1, n, F) and targets (1, n) of those rows that have a metric.

        If none of them has it, the first rows with the metric stand in.
        """
        rows = self._rows_with(rows, metric)
        states = self.states[rows]
        covariates = np.zeros((len(rows), 0))
        projection = Projection.fit(states, covariates)
        features = torch.from_numpy(projection(states, covariates))
        targets = torch.from_numpy(self.targets(rows, metric)).float()
        return features[None], targets[None]

    # --- predictions

    def sample(
        self,
        texts: Sequence[str],
        states: np.ndarray,
        metrics: Sequence[str],
        given: Mapping[str, np.ndarray],
        samples: int,
        seed: int,
    ) -> dict[str, np.ndarray]:
        """Samples (q, s) per metric of q queries, in the metric's own unit.

        Args:
            texts: of the queries.
            states: (q, S).
            metrics: in decoding order; each is conditioned on those before it.
            given: (q,) known values per further metric, all of them known.
            samples: number of samples.
            seed: of the samples.
        """
        drawn = {name: np.empty((len(texts), samples)) for name in metrics}
        z_given = [self.transforms[name].to_z(values) for name, values in given.items()]
        covariates = _as_covariates(z_given, len(texts))  # (q, c)
        at_once = max(1, min(MAX_QUERIES, MAX_NUMBERS // samples))
        groups = self.groups_with(metrics)
        group_of_query = nearest_group(states, groups)
        for number, group in enumerate(groups):
            queries = np.flatnonzero(group_of_query == number)
            if not len(queries):
                continue
            # 1. Process the examples of this group, once per metric.
            contexts = []
            for k, name in enumerate(metrics):
                conditions = [*given, *metrics[:k]]
                contexts.append(self.context(group.rows, name, conditions))
            size = (samples, len(metrics))
            coupling = couple_samples(self.states[group.rows], size, (self.seed, seed))

            # 2. Decode as many queries at once as memory allows.
            parts = -(-len(queries) // at_once)  # rounded up
            for part in np.array_split(queries, parts):
                texts_of_part = [texts[i] for i in part]
                quantiles = coupling(states[part], texts_of_part)  # (p, s, M)
                z = sample_jointly(contexts, states[part], covariates[part], quantiles)

                # 3. Calibrate, and go back to the unit of the metric.                      (p, s)
                for name, of_metric in zip(metrics, z, strict=True):
                    factor = self.widening.get(name, 1.0)
                    widened = widen(of_metric, factor)
                    drawn[name][part] = self.transforms[name].to_values(widened)
        return drawn

    def groups_with(self, metrics: Sequence[str]) -> list[Group]:
        """Groups of the examples with at least one of these metrics."""
        key = tuple(metrics)
        if key not in self._groups:
            is_missing = np.isnan([self.values[name] for name in metrics])  # (metrics, N)
            rows = np.flatnonzero(~is_missing.all(0))
            groups = group_examples(self.states[rows])
            self._groups[key] = [Group(group.center, rows[group.rows]) for group in groups]
        return self._groups[key]

    def context(
        self,
        rows: np.ndarray,
        metric: str,
        covariates: list[str],
    ) -> MetricContext:
        """The processed examples of those rows that have the metric.

        If none of them has it, the first rows with the metric stand in.
        """
        rows = self._rows_with(rows, metric)
        key = (metric, _projection_key(rows, covariates))
        if key not in self._contexts:
            if len(self._contexts) >= MAX_CONTEXTS:
                self._contexts.clear()
            examples = self._projected(rows, covariates)
            targets = self.targets(rows, metric)
            self._contexts[key] = MetricContext(examples, targets)
        return self._contexts[key]

    def _rows_with(self, rows: np.ndarray, metric: str) -> np.ndarray:
        """Those of the rows that have a metric, or the first of all that have it."""
        is_known = ~np.isnan(self.values[metric])
        if is_known[rows].any():
            return rows[is_known[rows]]
        return np.flatnonzero(is_known)[:MAX_EXAMPLES]

    def _projected(self, rows: np.ndarray, covariates: list[str]) -> ProjectedExamples:
        """Features and kernels of these rows.

        The last ones are kept: a search asks for each metric of the same examples.
        """
        key = _projection_key(rows, covariates)
        if self._last_projected is not None:
            last_key, last = self._last_projected
            if last_key == key:
                return last
        z = [self.targets(rows, name) for name in covariates]
        of_rows = _as_covariates(z, len(rows))
        examples = ProjectedExamples(self.model, self.states[rows], of_rows)
        self._last_projected = None
        if len(rows) <= MAX_CACHED_KERNELS:
            self._last_projected = (key, examples)
        return examples

    # --- distance from the examples

    def novelty(self, states: np.ndarray, metrics: Sequence[str] = ()) -> np.ndarray:
        """Distance (q,) of queries with states (q, S) to the nearest example, see `RLM.novelty`.

        Raises:
            InputError: if a metric is unknown.
        """
        structure = TextFeatures.split(states).structure  # (q, structure)
        stored = TextFeatures.split(self.states).structure  # (N, structure)
        largest = np.zeros(len(states))
        for metric in metrics or (None,):
            examples = stored
            if metric is not None:
                if metric not in self.values:
                    raise unknown("metric", metric, self.metrics)
                is_known = ~np.isnan(self.values[metric])
                examples = stored[is_known]
            distances = nearest_distances(structure, examples)  # (q,)
            unit = max(self._novelty_unit(metric, examples), 1e-6)
            largest = np.maximum(largest, distances / unit)
        return largest

    def _novelty_unit(self, metric: str | None, examples: np.ndarray) -> float:
        """The unit of distances to the examples with a metric; infinite if there is only one."""
        if metric not in self._novelty_units:
            unit = np.inf
            if len(examples) > 1:
                step = max(1, len(examples) // NOVELTY_ROWS)
                rows = np.arange(0, len(examples), step)
                apart = nearest_distances(examples[rows], examples, own=rows)
                unit = float(np.quantile(apart, NOVELTY_QUANTILE))
            self._novelty_units[metric] = unit
        return self._novelty_units[metric]


def _as_covariates(columns: list[np.ndarray], count: int) -> np.ndarray:
    """Matrix (count, c) of columns of z."""
    if not columns:
        return np.zeros((count, 0))
    return np.stack(columns, 1).clip(-MAX_COVARIATE, MAX_COVARIATE)
