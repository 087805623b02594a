"""Options that depend on another choice under the same name: every search ends, and reaches the
whole space.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from optuna.trial import FixedTrial, TrialState

from nas import Problem, search
from nas.search.planners import MAX_FRUITLESS
from nas.search.rows import among_rows
from nas.search.sampler import PredictorSampler
from nas.search.search import run_search
from nas.search.settings import SearchSettings
from nas.search.study.load import read_search
from nas.search.study.trials import TrialReader
from nas.search.tracking import TrackedTrial
from predictors import create
from search_spaces import Architecture, SearchSpace
from search_spaces.common.errors import InputError
from search_spaces.ir.builder import Network, Tensor
from search_spaces.parameter_names import plain_names
from search_spaces.testing import check_space

optuna.logging.set_verbosity(optuna.logging.ERROR)

# Ways to write a domain, with its options.
CATEGORIES = st.lists(
    st.sampled_from([1, 2, 3, 4, "a", True, None, 0.5, " in [1]"]), min_size=1, max_size=3
)
DOMAINS = st.one_of(
    st.tuples(st.just("categorical"), CATEGORIES.map(lambda c: tuple(dict.fromkeys(c)))),
    st.tuples(st.just("int"), st.integers(1, 9), st.integers(0, 2), st.integers(1, 3)),
    st.tuples(st.just("log int"), st.integers(1, 9), st.integers(0, 2)),
    st.tuples(
        st.just("float"), st.integers(-3, 3), st.integers(0, 2), st.sampled_from([0.1, 0.5, 1.0])
    ),
)


def suggest(trial: Any, name: str, domain: tuple[Any, ...]) -> Any:
    kind, *numbers = domain
    if kind == "categorical":
        return trial.suggest_categorical(name, list(numbers[0]))
    low, steps = numbers[:2]
    if kind == "int":
        return trial.suggest_int(name, low, low + steps * numbers[2], step=numbers[2])
    if kind == "log int":
        return trial.suggest_int(name, low, low + steps, log=True)
    return trial.suggest_float(name, low, low + steps * numbers[2], step=numbers[2])


class Dependent(SearchSpace):
    """`w` has the domain that `kind` names. Networks of equal choices are equal, others may be."""

    name = "dependent"
    input_shape = (1, 8, 8)

    def __init__(self, domains: Sequence[tuple[Any, ...]]) -> None:
        super().__init__()
        self.domains = list(domains)

    def ask(self, trial: Any) -> int:
        kind = trial.suggest_int("kind", 0, len(self.domains) - 1)
        suggest(trial, "w", self.domains[kind])
        return kind

    def build(self, trial: Any, net: Network) -> Tensor:
        return net.classifier(net.conv_bn_relu(net.input, 1 + self.ask(trial)))


# Two lists of numbers that share one, a range of integers, one of floats, and a list of other
# types.
DOMAINS_OF_ALL_KINDS = (
    ("categorical", (4, 8)),
    ("categorical", (8, 16, 32)),
    ("int", 2, 2, 3),
    ("float", 0, 2, 0.5),
    ("categorical", ("8", None)),
    ("log int", 5, 2),
)
SIZE = 2 + 3 + 3 + 3 + 2 + 3
OPTUNAS = ["random", "tpe", "nsga2", "nsga3"]
GUIDED = ["ridge", "forest", "gp-choices", "rlm", "gnn"]
SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("optuna-gp", *GUIDED[1:])]


class Numbered:
    """Gives each architecture its number as the quality."""

    metrics = ("quality", "params")

    def __init__(self, space: SearchSpace) -> None:
        self.space = space
        self.numbers: dict[Architecture, int] = dict(zip(space.enumerate(), count(), strict=False))
        self.evaluated: list[Architecture] = []

    def __call__(self, architectures: Sequence[Architecture]) -> np.ndarray:
        self.evaluated += architectures
        return np.array(
            [[self.numbers[a], self.space.params(a)] for a in architectures], dtype=float
        )


def search_all(
    sampler: Any, domains: Sequence[tuple[Any, ...]] = DOMAINS_OF_ALL_KINDS, **options: Any
) -> Any:
    """Search a space until nothing is left; the result and the evaluator."""
    space = Dependent(domains)
    evaluator = Numbered(space)
    # Optuna's samplers cannot know that nothing is left; predictors would be fitted again for each
    # further trial.
    evaluations = SIZE if sampler in GUIDED else 1000
    return search(
        Problem(space, evaluator, "quality:max,params"),
        sampler=sampler,
        evaluations=evaluations,
        **options,
    ), evaluator


@pytest.mark.parametrize("sampler", [*OPTUNAS, "ridge", *SLOW])
def test_every_sampler_evaluates_the_whole_space(sampler: str) -> None:
    result, evaluator = search_all(sampler)
    assert sorted(map(str, evaluator.evaluated)) == sorted(map(str, evaluator.numbers))  # each once
    assert len(result.evaluated.architectures) == SIZE
    assert not result.failures


@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(DOMAINS, min_size=2, max_size=3), st.sampled_from(OPTUNAS))
def test_domains_of_any_kinds_may_share_a_name(
    domains: list[tuple[Any, ...]], sampler: str
) -> None:
    result, evaluator = search_all(sampler, domains)
    assert set(result.evaluated.architectures) == set(evaluator.numbers)
    assert not result.failures


class Unteachable(optuna.samplers.BaseSampler):
    """A user's own sampler: it fails for values of other domains under the parameter's name."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)

    def infer_relative_search_space(self, study: Any, trial: Any) -> dict[str, Any]:
        return {}

    def sample_relative(self, study: Any, trial: Any, search_space: Any) -> dict[str, Any]:
        return {}

    def sample_independent(
        self, study: Any, trial: Any, param_name: str, param_distribution: Any
    ) -> Any:
        for other in study.get_trials(deepcopy=False):
            if (
                param_name in other.distributions
                and other.distributions[param_name] != param_distribution
            ):
                raise KeyError(param_name)
        return optuna.samplers.RandomSampler(int(self.rng.integers(2**31))).sample_independent(
            study, trial, param_name, param_distribution
        )


def test_samplers_see_one_distribution_per_parameter() -> None:
    result, _ = search_all(Unteachable())
    assert len(result.evaluated.architectures) == SIZE
    parameters = {name for trial in result.study.trials for name in trial.params}
    assert len(parameters) == 1 + len(DOMAINS_OF_ALL_KINDS)


@pytest.mark.parametrize("sampler", ["random", "tpe"])
@pytest.mark.parametrize("storage", ["journal", "sqlite"])
def test_a_search_resumes_with_the_same_names(tmp_path: Path, sampler: str, storage: str) -> None:
    place = (
        tmp_path / "search.journal" if storage == "journal" else f"sqlite:///{tmp_path}/search.db"
    )
    space = Dependent(DOMAINS_OF_ALL_KINDS)
    for evaluations in (3, 7, SIZE):
        # A new space, as in a new process.
        result = search(
            Problem(Dependent(DOMAINS_OF_ALL_KINDS), Numbered(space), "quality:max,params"),
            sampler=sampler,
            evaluations=evaluations,
            storage=place,
        )
    assert len(result.evaluated.architectures) == SIZE
    assert not result.failures
    assert {frozenset(plain_names(trial.params)) for trial in result.study.trials} == {
        frozenset({"kind", "w"})
    }
    assert len({name for trial in result.study.trials for name in trial.params}) == 1 + len(
        DOMAINS_OF_ALL_KINDS
    )
    again = read_search(place)  # the class is in no file: its choices are read without it
    assert {frozenset(a.as_dict()) for a in again.evaluated.architectures} == {
        frozenset({"kind", "w"})
    }
    assert len(again.evaluated.architectures) == SIZE


def test_prior_observations_are_stored_under_the_names_of_their_domains(tmp_path: Path) -> None:
    space = Dependent(DOMAINS_OF_ALL_KINDS)
    evaluator = Numbered(space)
    prior = {a: evaluator([a])[0].tolist() for a in list(evaluator.numbers)[::2]}
    for storage in (None, tmp_path / "search.journal", f"sqlite:///{tmp_path}/search.db"):
        result = search(
            Problem(space, evaluator, "quality:max,params"),
            sampler="tpe",
            evaluations=SIZE - len(prior),
            storage=storage,
            known=prior,
        )
        assert len(result.evaluated.architectures) == SIZE
        assert result.prior.sum() == len(prior)
        assert not result.failures


@pytest.mark.parametrize("sampler", ["random", "tpe", "nsga2"])
def test_a_table_without_some_rows_is_searched_whole(sampler: str) -> None:
    space = Dependent(DOMAINS_OF_ALL_KINDS)
    rows = list(space.enumerate())[1:]
    result = run_search(
        among_rows(space, rows),
        "quality:max,params",
        Numbered(space),
        SearchSettings(sampler=sampler, evaluations=1000),
    )
    assert set(result.evaluated.architectures) == set(rows)


def test_enqueued_choices_have_plain_names_in_a_study_of_your_own() -> None:
    space = Dependent(DOMAINS_OF_ALL_KINDS)
    study = optuna.create_study(
        directions=["minimize"], sampler=optuna.samplers.RandomSampler(seed=0)
    )
    chosen: list[Architecture] = []

    def objective(trial: optuna.Trial) -> float:
        chosen.append(space.choose(trial))
        return float(space.params(chosen[-1]))

    expected = list(space.enumerate())
    for architecture in expected:
        study.enqueue_trial(architecture.as_dict())
    study.optimize(objective, n_trials=len(expected))
    assert chosen == expected
    # The usual ways to build a trial's network again.
    for trial in study.trials:
        assert space.architecture(trial.params) == expected[trial.number]
        assert space.choose(trial) == expected[trial.number]
        assert space.choose(FixedTrial(trial.params)) == expected[trial.number]
        assert space.choose(FixedTrial(plain_names(trial.params))) == expected[trial.number]


def test_an_enqueued_value_that_is_no_option_fails_and_is_named() -> None:
    space = Dependent([("categorical", (4, 8)), ("categorical", (16, 32)), ("int", 1, 2, 1)])
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    study.enqueue_trial({"kind": 0, "w": 4})
    study.optimize(lambda trial: float(space.params(space.choose(trial))), n_trials=1)
    for choices in ({"kind": 1, "w": 4}, {"kind": 0, "w": 16}, {"kind": 2, "w": 9}):
        study.enqueue_trial(choices)
        trial = study.ask()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Optuna warns, too
            with pytest.raises(InputError, match=str(choices["w"])):
                space.choose(trial)


def test_a_guided_sampler_works_in_a_study_of_your_own() -> None:
    space = Dependent(DOMAINS_OF_ALL_KINDS)
    sampler = PredictorSampler(space, lambda: create("ridge"), ["params", "flops"], n_startup=12)
    study = optuna.create_study(directions=["minimize", "minimize"], sampler=sampler)

    def objective(trial: optuna.Trial) -> tuple[int, int]:
        trial.suggest_float("lr", 1e-3, 1, log=True)
        architecture = space.choose(trial)
        return space.params(architecture), space.flops(architecture)

    study.optimize(objective, n_trials=SIZE)
    assert len({space.architecture(trial.params, others=True) for trial in study.trials}) == SIZE


def test_old_studies_with_several_ranges_under_one_name_resume() -> None:
    """Until now, ranges of numbers shared the plain name, as Optuna allows."""
    domains = [("int", 1, 2, 1), ("int", 5, 2, 2)]
    space = Dependent(domains)
    evaluator = Numbered(space)
    storage = optuna.storages.InMemoryStorage()
    search(
        Problem(space, evaluator, "quality:max,params"),
        sampler="random",
        evaluations=1,
        storage=storage,
    )
    [study] = [optuna.load_study(study_name="search", storage=storage)]
    first = study.trials[0].params
    old = next(a for a in evaluator.numbers if a.as_dict()["kind"] != first["kind"])
    values = evaluator([old])[0].tolist()
    kind = int(old.as_dict()["kind"])
    distribution = (
        optuna.distributions.IntDistribution(1, 3)
        if not kind
        else optuna.distributions.IntDistribution(5, 9, step=2)
    )
    study.add_trial(
        optuna.trial.create_trial(
            params=old.as_dict(),
            distributions={"kind": optuna.distributions.IntDistribution(0, 1), "w": distribution},
            values=values,
        )
    )
    result = search(
        Problem(space, evaluator, "quality:max,params"),
        sampler="random",
        evaluations=1000,
        storage=storage,
    )
    assert set(result.evaluated.architectures) == set(evaluator.numbers)


def test_log_and_trackers_name_choices_plainly() -> None:
    result, _ = search_all("random")
    reader = TrialReader(result.space, result.objectives, ())
    for trial in result.study.trials:
        assert TrackedTrial.of(trial, reader).choices.keys() == {"kind", "w"}


def test_the_conformance_suite_and_the_operators_stay_in_the_space() -> None:
    space = Dependent(DOMAINS_OF_ALL_KINDS)
    check_space(space, count=8)
    members, rng = set(space.enumerate()), np.random.default_rng(0)
    assert len(members) == SIZE
    parents = sorted(members, key=str)
    mutants, children = set(), set()
    for _ in range(40):
        for parent in parents:
            mutants.add(space.mutate(parent, rng))
        a, b = (parents[i] for i in rng.integers(SIZE, size=2))
        children.add(space.crossover(a, b, rng))
    assert mutants == members
    assert children <= members


def test_names_that_look_like_stored_ones_are_refused() -> None:
    class Odd(Dependent):
        def ask(self, trial: Any) -> int:
            trial.suggest_int("w in [1, 2]", 1, 2)
            return 0

    with pytest.raises(InputError, match="cannot be named"):
        Odd(DOMAINS_OF_ALL_KINDS).sample(np.random.default_rng(0))


# --- no search runs for ever


class Rejecting(Dependent):
    """`build` fails in every trial of a search before it has made all choices, but not
    elsewhere.
    """

    def ask(self, trial: Any) -> int:
        if type(trial).__name__ == "TrialChooser":
            trial.suggest_int("kind", 0, len(self.domains) - 1)
            raise InputError("no network today")
        return super().ask(trial)


def test_a_search_whose_trials_are_all_rejected_ends() -> None:
    space = Rejecting(DOMAINS_OF_ALL_KINDS)
    storage = optuna.storages.InMemoryStorage()
    with pytest.raises(InputError, match=f"{MAX_FRUITLESS} trials in a row.* no network today"):
        search(
            Problem(space, Numbered(space), "quality:max,params"),
            sampler="random",
            evaluations=5,
            storage=storage,
        )
    result = read_search(storage)
    assert sum(failure["trials"] for failure in result.failures) == MAX_FRUITLESS
    assert len(result.study.get_trials(states=(TrialState.FAIL,))) == MAX_FRUITLESS


class Wandering(Dependent):
    """`build` makes other choices whenever it is called in a trial, so that its trials cannot be
    read again.
    """

    calls = count()

    def ask(self, trial: Any) -> int:
        if type(trial).__name__ == "TrialChooser":
            trial.suggest_int(f"call{next(self.calls)}", 0, 1)
        return super().ask(trial)


def test_a_search_whose_trials_cannot_be_read_ends() -> None:
    space = Wandering([("int", 1, 2, 1), ("int", 5, 2, 2)])
    storage = optuna.storages.InMemoryStorage()
    evaluations: list[Architecture] = []

    class Counting(Numbered):
        def __call__(self, architectures: Sequence[Architecture]) -> np.ndarray:
            evaluations.extend(architectures)
            return np.ones((len(architectures), 2))

    search(
        Problem(space, Counting(space), "quality:max,params"),
        sampler="random",
        evaluations=5,
        storage=storage,
    )
    assert len(evaluations) <= MAX_FRUITLESS
