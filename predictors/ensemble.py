"""Ensembles with equal weights, named by their members: `rlm+gp`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, ClassVar, Self

import numpy as np

from predictors.base import Inputs, Metrics, Predictions, Predictor, check_samples
from predictors.checkpoint import with_prefix, without_prefix
from search_spaces.common.errors import InputError


class Ensemble(Predictor):
    """Predictors fitted to the same examples.

    Their samples are pooled and their estimates averaged. Subclasses, which `joined`
    creates, set `members`.

    Args:
        seed: seed of every member.
    """

    members: ClassVar[tuple[type[Predictor], ...]] = ()

    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed)
        self.parts = [member(seed=seed) for member in self.members]

    @property
    def metrics(self) -> tuple[str, ...]:
        return self.parts[0].metrics

    def fit(self, architectures: Inputs, metrics: Metrics) -> Self:
        for part in self.parts:
            part.fit(architectures, metrics)
        return self

    def predict(
        self,
        architectures: Inputs,
        metrics: Sequence[str],
        given: Metrics | None = None,
        samples: int = 64,
        seed: int = 0,
    ) -> Predictions:
        """As `Predictor.predict`; the members share the number of samples as evenly as possible."""
        check_samples(samples)
        shares = np.array_split(np.arange(samples), len(self.parts))
        drawn = []
        for part, share in zip(self.parts, shares, strict=True):
            count = len(share)
            if count:
                predicted = part.predict(architectures, metrics, given, count, seed)
                drawn.append(predicted.samples)  # (n, count, m)
        return Predictions.of_samples(metrics, np.concatenate(drawn, 1))

    def estimate(
        self,
        architectures: Inputs,
        metrics: Sequence[str],
        given: Metrics | None = None,
    ) -> np.ndarray:
        estimates = [part.estimate(architectures, metrics, given) for part in self.parts]
        return np.mean(estimates, 0)

    def _state(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        configs: list[dict[str, Any]] = []
        tensors: dict[str, np.ndarray] = {}
        for i, part in enumerate(self.parts):
            config, own = part._state()
            configs.append(config)
            tensors |= with_prefix(str(i), own)
        return {"seed": self.seed, "parts": configs}, tensors

    @classmethod
    def _restore(cls, config: dict[str, Any], tensors: dict[str, np.ndarray]) -> Self:
        self = cls(seed=config["seed"])
        self.parts = []
        for i, (member, of_part) in enumerate(zip(cls.members, config["parts"], strict=True)):
            own = without_prefix(str(i), tensors)
            self.parts.append(member._restore(of_part, own))
        return self


@lru_cache
def joined(name: str, members: tuple[type[Predictor], ...]) -> type[Ensemble]:
    """The class of the ensemble `name`, such as `rlm+gp`.

    Raises:
        InputError: if a member occurs twice, or if some members read texts and others read choices.
    """
    if len(set(members)) < len(members):
        raise InputError(f"ensemble {name!r}: name every member once")
    if len({member.reads_choices for member in members}) > 1:
        raise InputError(
            f"ensemble {name!r}: members that read texts and members that read choices cannot be "
            "joined"
        )
    attributes = {"kind": name, "members": members, "reads_choices": members[0].reads_choices}
    return type("Ensemble", (Ensemble,), attributes)
