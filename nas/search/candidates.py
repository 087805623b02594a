"""Candidates of a guided search: evolution on predictions proposes architectures, and those that
cannot be built, or have been chosen before, are left out.

A prediction is cheap compared with an evaluation. So a population evolves for some generations on
predicted ranks alone, starting from what has been evaluated.

`build` may reject an architecture, which then has no text (`Texts`). Others have one and fail all the
same: a runtime cannot convert an operator, or a training always diverges. This is a hidden
constraint, which only the attempt shows (Gelbart, Snoek and Adams 2014, "Bayesian optimization with
unknown constraints"). `Feasibility` learns it from the failures: a search weights the expected
improvement of a candidate by the probability that its evaluation succeeds.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Sequence, Set
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from search_spaces.common.errors import InputError

if TYPE_CHECKING:
    from sklearn.linear_model import LogisticRegression

    from predictors import Predictor
    from search_spaces import Architecture, SearchSpace

GENERATIONS = 5
MAX_TRIES = 10  # children of a generation, per requested architecture
PARENTS = 50
RANDOM_SHARE = 0.2  # of the children are random architectures
MUTATED_SHARE = 0.5  # of the other children have one parent; the rest are crossed, too
MAX_RANDOM_DRAWS = 1000
MAX_LISTED_SIZE = 100_000  # of a space whose unseen architectures are listed after these draws
ROUNDING = 1e-6  # relative: two processors round the result of one training differently


def evolve(
    space: SearchSpace,
    start: Iterable[Architecture],
    seen: Set[Architecture],
    size: int,
    rank: Callable[[Sequence[Architecture]], np.ndarray],
    rng: np.random.Generator,
    accept: Callable[[Architecture], bool] = lambda _: True,
    generations: int = GENERATIONS,
) -> list[Architecture]:
    """Evolve distinct new architectures towards the predicted front.

    Args:
        space: the search space.
        start: the first population, which may be in `seen`.
        seen: architectures that are not returned.
        size: number of architectures.
        rank: maps n architectures to predicted ranks (n,), lower is better.
        rng: source of randomness.
        accept: False for an architecture that is no candidate, such as one that cannot be built.
        generations: number of generations, each of which is ranked once.

    Returns:
        Up to `size` architectures; all that are left in a small space.
    """
    population = list(start)

    # 1. In a small space, all that is left are candidates, and there is nothing to evolve.
    if space.size is not None and space.size <= size + len(seen):
        if len(seen) >= space.size:
            return []
        unseen = (architecture for architecture in space.enumerate() if architecture not in seen)
        return [architecture for architecture in unseen if accept(architecture)]

    # 2. Each generation adds the same number of children of the best architectures so far.
    children: dict[Architecture, None] = {}  # an ordered set
    for generation in range(1, generations + 1):
        best = best_first(rank(population), rng)[:PARENTS]
        parents = [population[i] for i in best]
        target = size * generation // generations
        for _ in range(MAX_TRIES * size):
            if len(children) >= target:
                break
            child = _child(space, parents, rng)
            if child not in seen and accept(child):
                children[child] = None
        else:
            break  # a space of unknown size has few new architectures left
        population = list(dict.fromkeys([*parents, *children]))
    return list(children)


def _child(
    space: SearchSpace, parents: Sequence[Architecture], rng: np.random.Generator
) -> Architecture:
    """A random architecture, a mutation of a parent, or a mutation of two crossed parents."""
    if rng.random() < RANDOM_SHARE:
        return space.sample(rng)
    first, second = (parents[i] for i in rng.integers(len(parents), size=2))
    if rng.random() < MUTATED_SHARE:
        return space.mutate(first, rng)
    crossed = space.crossover(first, second, rng)
    return space.mutate(crossed, rng)


def best_first(ranks: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Indices (n,) that sort the ranks (n,), lowest first.

    Ties, which are frequent on a front, are shuffled.
    """
    tie_breaks = rng.random(len(ranks))
    return np.lexsort((tie_breaks, ranks))


def random_unseen(
    space: SearchSpace, seen: Set[Architecture], rng: np.random.Generator
) -> Architecture | None:
    """A random architecture outside `seen`.

    None if there is none, or if `MAX_RANDOM_DRAWS` draws give none in a space that is too large to
    be listed.
    """
    for _ in range(MAX_RANDOM_DRAWS):
        architecture = space.sample(rng)
        if architecture not in seen:
            return architecture

    if space.size is None or space.size > MAX_LISTED_SIZE:
        return None
    unseen = [architecture for architecture in space.enumerate() if architecture not in seen]
    if not unseen:
        return None
    return unseen[rng.integers(len(unseen))]


# --- repetitions


def without_repetitions(
    candidates: list[Architecture],
    texts: Texts,
    trained: Iterable[Architecture],
    results: Iterable[tuple[Hashable, Sequence[float] | np.ndarray]],
) -> list[Architecture]:
    """Drop duplicates of trained architectures if another training of these is useless.

    Args:
        candidates: the architectures to choose from.
        texts: of the search; duplicates have equal ones.
        trained: architectures that have been trained.
        results: of their trainings, see `repeat_exactly`.
    """
    if not repeat_exactly(results):
        return candidates
    repeated = set(texts(trained))
    pairs = zip(candidates, texts(candidates), strict=True)
    return [architecture for architecture, text in pairs if text not in repeated]


def repeat_exactly(results: Iterable[tuple[Hashable, Sequence[float] | np.ndarray]]) -> bool:
    """True if duplicates were trained and always reached equal accuracies.

    Training another duplicate is then useless. Accuracies that differ by `ROUNDING` are equal:
    another machine may have computed them.

    Args:
        results: for each training, a key that duplicates share, and its accuracies (k,) in %.
    """
    first: dict[Hashable, Sequence[float] | np.ndarray] = {}
    count = 0
    for key, accuracies in results:
        if not np.allclose(first.setdefault(key, accuracies), accuracies, rtol=ROUNDING, atol=0):
            return False
        count += 1
    return len(first) < count


# --- which candidates can be built


class Texts:
    """Writes the text of each architecture of a space once.

    A space's `build` may fail for some choices. Such architectures are no candidates of a search.
    """

    def __init__(self, space: SearchSpace) -> None:
        self.space = space
        self._texts: dict[Architecture, str] = {}
        self._failed: set[Architecture] = set()

    def __call__(self, architectures: Iterable[Architecture]) -> list[str]:
        """Texts of the architectures.

        Raises:
            InputError: if one cannot be built.
        """
        texts = []
        for architecture in architectures:
            if architecture not in self._texts:
                self._texts[architecture] = self.space.to_text(architecture)
            texts.append(self._texts[architecture])
        return texts

    def inputs(
        self, predictor: Predictor, architectures: Iterable[Architecture]
    ) -> Sequence[str | Architecture]:
        """What a predictor reads of the architectures: choices or texts."""
        return list(architectures) if predictor.reads_choices else self(architectures)

    def can_be_written(self, architecture: Architecture) -> bool:
        """False if the architecture cannot be built."""
        if architecture in self._failed:
            return False
        try:
            self([architecture])
        except InputError:
            self._failed.add(architecture)
            return False
        return True

    def stored(self, architectures: Iterable[Architecture]) -> list[str]:
        """The texts of those architectures whose texts have been written."""
        written = self._texts
        return [written[architecture] for architecture in architectures if architecture in written]

    def forget_all_but(self, architectures: Iterable[Architecture]) -> None:
        """Drop the texts of all other architectures."""
        written = self._texts
        kept = [architecture for architecture in architectures if architecture in written]
        self._texts = {architecture: written[architecture] for architecture in kept}


# --- which candidates can be evaluated

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
