"""The probability that a network can be evaluated at all, learned from those that could not.

A runtime that cannot convert an operator, or a training that always diverges, is a hidden constraint:
only the attempt shows it (Gelbart, Snoek and Adams 2014, "Bayesian optimization with unknown
constraints"). A guided search weights the expected improvement of a candidate by the probability
that its evaluation succeeds. As long as nothing has failed, it is 1.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from sklearn.linear_model import LogisticRegression

    from nas.search.candidates import Texts
    from search_spaces import Architecture

# An operator or a block of a text, and its attributes: `net.ConvBn <channels = 32, kernel = [3,3]> (`
_CALL = re.compile(r"= ([\w.]+) (?:<([^>]*)> )?\(")
# Of an operator beside a choice of 1, so that the regularized model blames it first: what fails is
# more often an operator than its place, and an operator is known wherever it stands.
OPERATOR_WEIGHT = 2.0
_CACHED_TEXTS = 16384
_ATTRIBUTE = re.compile(r"(\w+) = (\[[^\]]*\]|[^,\s]+)")


class Feasibility:
    """Probability of success of networks, from those that were tried.

    Logistic regression reads which choices a network has, and which operators and values of their
    attributes its text has. An operator that a runtime lacks stands in the text wherever the network
    has it, whatever the choice is called that puts it there.

    Args:
        texts: of the search.
    """

    def __init__(self, texts: Texts) -> None:
        self.texts = texts
        self._column: dict[str, int] = {}  # of each property
        self._model: LogisticRegression | None = None

    def fit(self, succeeded: Iterable[Architecture], failed: Iterable[Architecture]) -> None:
        """Learn from networks whose evaluation succeeded or failed.

        Networks without a text, which cannot be built, teach nothing: they are no candidates.
        """
        self._model = None
        has_text = self.texts.can_be_written
        negatives = [architecture for architecture in failed if has_text(architecture)]
        if not negatives:
            return
        positives = [architecture for architecture in succeeded if has_text(architecture)]
        if not positives:
            return

        from sklearn.linear_model import LogisticRegression

        tried = [*positives, *negatives]
        properties = sorted(set().union(*map(self._properties, tried)))
        self._column = {name: column for column, name in enumerate(properties)}
        is_success = np.arange(len(tried)) < len(positives)
        self._model = LogisticRegression(max_iter=1000).fit(self._inputs(tried), is_success)

    def __call__(self, architectures: Sequence[Architecture]) -> np.ndarray:
        """Probability of success (n,) of n networks; 1 if nothing has failed."""
        if self._model is None or not architectures:
            return np.ones(len(architectures))
        return self._model.predict_proba(self._inputs(architectures))[:, 1]

    def doubts(self, architectures: Sequence[Architecture]) -> np.ndarray:
        """A penalty (n,) for ranks, which adds to a relative violation of constraints.

        It is 0 for networks that more likely succeed than fail, rising to 1 for those that
        certainly fail.
        """
        return np.maximum(1 - 2 * self(architectures), 0.0)

    def _inputs(self, architectures: Sequence[Architecture]) -> np.ndarray:
        """Weights of the known properties that n networks have: (n, properties), else 0."""
        inputs = np.zeros((len(architectures), len(self._column)))
        for row, architecture in zip(inputs, architectures, strict=True):
            for name, weight in self._properties(architecture).items():
                if name in self._column:
                    row[self._column[name]] = weight
        return inputs

    def _properties(self, architecture: Architecture) -> dict[str, float]:
        """Choices, operators, and operators with one attribute each, with their weights."""
        (text,) = self.texts([architecture])
        choices = [f"{name}: {value!r}" for name, value in architecture.choices]
        return dict.fromkeys(choices, 1.0) | dict.fromkeys(_operators(text), OPERATOR_WEIGHT)


@lru_cache(maxsize=_CACHED_TEXTS)
def _operators(text: str) -> frozenset[str]:
    """Operators of a text, and operators with one attribute each."""
    operators = set()
    for kind, attributes in _CALL.findall(text):
        operators.add(kind)
        for name, value in _ATTRIBUTE.findall(attributes):
            operators.add(f"{kind} {name} = {value}")
    return frozenset(operators)
