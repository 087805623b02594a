"""Claims about the predictor-guided sampler."""

from __future__ import annotations

import copy
import doctest
import pickle
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal, Self

import moocore
import numpy as np
import optuna
import pytest
from optuna.samplers import BaseSampler
from optuna.testing.pytest_samplers import BasicSamplerTestCase, MultiObjectiveSamplerTestCase
from optuna.trial import TrialState

from nas import PredictorSampler, create_sampler, list_samplers
from nas.search import sampler
from nas.search.candidates import GENERATIONS, evolve, random_unseen
from nas.search.initial_design import DRAWS_PER_ARCHITECTURE, initial_design
from nas.search.pareto import hypervolume, infer_reference_point
from nas.search.sampler import LATER_EFFORT
from nas.search.study.load import read_study
from predictors import Predictions, create
from predictors.metrics import decoding_order
from search_spaces import Architecture, SearchSpace, get_space
from search_spaces.common.errors import Infeasible, InputError

SPACE = get_space("tiny-resnet")
METRICS = ("mass_accuracy", "length_ms")
DIRECTIONS: list[Literal["maximize", "minimize"]] = ["maximize", "minimize"]


def measure(text: str) -> list[float]:
    """Two conflicting metrics: large networks are accurate, long texts slow."""
    return [100 - 1e5 / sum(map(ord, text)), len(text) / 100 + text.count("[5,5]")]


class Oracle:
    """A predictor that knows the truth but for a little noise."""

    reads_choices = False

    fits = 0

    def fit(self, texts: Sequence[str], metrics: dict[str, np.ndarray]) -> Self:
        type(self).fits += 1
        assert all(
            np.isfinite(values).all() and len(values) == len(texts) for values in metrics.values()
        )
        return self

    def predict(
        self,
        texts: Sequence[str],
        metrics: Sequence[str],
        given: Any = None,
        samples: int = 64,
        seed: int = 0,
    ) -> Predictions:
        truth = np.array([measure(text) for text in texts])[
            :, None, [METRICS.index(metric) for metric in metrics]
        ]
        noise = np.random.default_rng(seed).standard_normal((len(texts), samples, len(metrics)))
        return Predictions.of_samples(metrics, truth + 0.01 * noise)

    def estimate(
        self, texts: Sequence[str], metrics: Sequence[str], given: Any = None
    ) -> np.ndarray:
        return self.predict(texts, metrics, given).mean


def guided(space: SearchSpace = SPACE, **options: Any) -> PredictorSampler:
    options = {"n_startup": 6, "refit_every": 5, "fresh": 60} | options
    return PredictorSampler(space, Oracle, METRICS, **options)  # type: ignore[arg-type]


def objective(trial: optuna.Trial, space: SearchSpace = SPACE) -> list[float]:
    return measure(space.to_text(space.choose(trial)))


class Fragile(SearchSpace):
    """Networks of which some cannot be built, which `ask` does not know."""

    name, input_shape = "fragile", (1, 8, 8)

    def __init__(self, error: type[Exception] = Infeasible) -> None:
        self.error = error

    def ask(self, trial: Any) -> tuple[int, int]:
        return trial.suggest_int("width", 4, 99), trial.suggest_int("kernel", 1, 4)

    def build(self, trial: Any, net: Any) -> Any:
        width, kernel = self.ask(trial)
        if kernel == 2:
            raise self.error("no kernel of 2")
        return net.classifier(net.conv(net.input, width, kernel))


@pytest.mark.parametrize("error", [Infeasible, ValueError])
def test_networks_that_cannot_be_built_are_no_candidates(error: type[Exception]) -> None:
    space = Fragile(error)
    study = optuna.create_study(directions=DIRECTIONS, sampler=guided(space))
    study.optimize(lambda trial: objective(trial, space), n_trials=20)
    assert {trial.state for trial in study.trials} == {TrialState.COMPLETE}
    assert len({str(trial.params) for trial in study.trials}) == 20


def test_a_study_may_tune_more_than_the_architecture() -> None:
    def tuned(trial: optuna.Trial) -> list[float]:
        trial.suggest_float("lr", 1e-4, 0.1, log=True)
        return objective(trial)

    study = optuna.create_study(directions=DIRECTIONS, sampler=guided())
    study.optimize(tuned, n_trials=12)
    assert len({str({**trial.params, "lr": 0}) for trial in study.trials}) == 12
    assert sum("nas:predicted" in trial.system_attrs for trial in study.trials) >= 5
    result = read_study(study, "tiny-resnet")
    assert len(result.evaluated.architectures) == len(result.trial_numbers) == 12
    assert result.expected


class Slow(optuna.storages.InMemoryStorage):
    """A storage in which other threads run before a choice is stored."""

    def set_trial_system_attr(self, *arguments: Any) -> None:
        time.sleep(0.02)
        super().set_trial_system_attr(*arguments)


def test_threads_choose_different_architectures() -> None:
    study = optuna.create_study(
        directions=DIRECTIONS, sampler=guided(refit_every=1), storage=Slow()
    )
    study.optimize(objective, n_trials=24, n_jobs=2)
    assert len({str(trial.params) for trial in study.trials}) == 24


def test_networks_that_compute_nothing_do_not_move_the_reference_point() -> None:
    """Else what is a little faster than they are, and as wrong, would seem to be worth more than
    what is accurate.
    """
    useful = np.array(
        [[9.0, 30.0], [10.0, 20.0], [12.0, 10.0], [15.0, 5.0], [20.0, 40.0]]
    )  # errors, milliseconds
    nothing = np.array([[90.0, 0.1], [91.0, 0.2]])
    ideal, reference = infer_reference_point(useful[:4], useful)
    assert (ideal == [9, 5]).all()
    assert (reference == [21, 55]).all(), "a whole span beyond the nadir"
    _, moved = infer_reference_point(
        np.concatenate([useful[:4], nothing[:1]]), np.concatenate([useful, nothing])
    )
    assert moved[0] < 90, "they add nothing to the hypervolume"


def test_an_accurate_network_counts_up_to_the_largest_costs_of_the_first_design() -> None:
    """Else a front of small networks hides larger ones, however accurate they are."""
    first = np.array(
        [[40.0, 2.0], [45.0, 4.0], [50.0, 6.0], [48.0, 8.0], [47.0, 12.0]]
    )  # errors, milliseconds
    small = first[:1]
    least = np.array([-np.inf, first[:, 1].max()])
    assert infer_reference_point(small, first)[1][1] < 12
    assert infer_reference_point(small, first, least)[1][1] >= 12
    assert (
        infer_reference_point(small, first, least)[1][0]
        == infer_reference_point(small, first)[1][0]
    ), "errors as before"
    far = np.concatenate([first, [[49.0, 500.0]]])
    assert infer_reference_point(small, far, np.array([-np.inf, 500.0]))[1][1] < 60, (
        "unless that is an outlier"
    )


def test_evaluations_in_one_corner_do_not_narrow_the_frame_to_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else a search that has looked at fast networks for long counts the accurate ones of its front
    as worthless.
    """
    first = [[60.0, 2.0], [70.0, 5.0], [80.0, 10.0], [85.0, 20.0], [88.0, 35.0], [90.0, 40.0]]
    values = iter([*first, *([50 + i / 100, 1 + i / 1000] for i in range(30))])
    references: list[np.ndarray] = []

    def recorded(*arguments: Any) -> tuple[np.ndarray, np.ndarray]:
        found = framed(*arguments)
        references.append(found[1])
        return found

    def given(trial: optuna.Trial) -> list[float]:
        SPACE.choose(trial)
        return next(values)

    framed = infer_reference_point
    monkeypatch.setattr(sampler, "infer_reference_point", recorded)
    study = optuna.create_study(directions=DIRECTIONS)
    study.optimize(given, n_trials=36)
    guided().propose(study)
    assert references[0][1] > 40


def study_of(
    sampler: BaseSampler, n_trials: int, storage: Any = None, **options: Any
) -> optuna.Study:
    study = optuna.create_study(
        directions=DIRECTIONS, sampler=sampler, storage=storage, study_name="s", load_if_exists=True
    )
    study.optimize(objective, n_trials=n_trials, **options)
    return study


def architectures(study: optuna.Study, space: SearchSpace = SPACE) -> list[Architecture]:
    return [space.architecture(trial.params) for trial in study.trials]


class TestOptunaConformance(BasicSamplerTestCase, MultiObjectiveSamplerTestCase):
    """Optuna's own suite for samplers: parameters that do not belong to the space are sampled at
    random.
    """

    @pytest.fixture
    def sampler(self, switches: SearchSpace) -> Callable[[], BaseSampler]:
        return lambda: guided(switches)


@pytest.mark.slow
def test_the_example_of_the_docstring_runs() -> None:
    result = doctest.testmod(sampler)
    assert result.attempted > 0
    assert result.failed == 0


@pytest.mark.slow
def test_guided_search_beats_random_search() -> None:
    def volume(study: optuna.Study) -> float:
        return hypervolume(
            np.array([trial.values for trial in study.trials]) * [-1, 1], [-98.6, 13.0]
        )

    def mean(sampler: Callable[[int], BaseSampler]) -> float:
        return float(np.mean([volume(study_of(sampler(seed), 30)) for seed in range(3)]))

    assert mean(lambda seed: guided(seed=seed)) > mean(
        lambda seed: create_sampler("random", SPACE, METRICS, seed)
    )


def test_no_architecture_is_chosen_twice_and_the_predictor_is_fitted_once_per_batch() -> None:
    Oracle.fits = 0
    chosen = architectures(study_of(guided(), 31))
    assert len(set(chosen)) == 31
    assert Oracle.fits == 5


def test_candidates_stay_and_each_is_written_once(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[Architecture] = []
    write = SearchSpace.to_text

    def noting(space: SearchSpace, architecture: Architecture) -> str:
        written.append(architecture)
        return write(space, architecture)

    monkeypatch.setattr(SearchSpace, "to_text", noting)
    sampler = guided(fresh=20)
    study = optuna.create_study(directions=DIRECTIONS, sampler=sampler)
    study.optimize(lambda trial: measure(write(SPACE, SPACE.choose(trial))), n_trials=16)
    assert Oracle.fits
    assert len(written) == len(set(written)), "no text is written twice"
    assert len(written) <= 6 * DRAWS_PER_ARCHITECTURE + Oracle.fits * 20
    # Random networks that the first design did not take may be proposed later, but never one that
    # was evaluated.
    before_last_fit = architectures(study)[:11]
    assert not set(before_last_fit) & set(sampler._candidates)


def test_a_sampler_by_name_chooses_as_one_with_the_predictor_of_that_name() -> None:
    chosen = [
        architectures(study_of(sampler, 13))
        for sampler in (
            create_sampler("ridge", SPACE, METRICS, 3, n_startup=6, fresh=20),
            PredictorSampler(
                SPACE, lambda: create("ridge"), METRICS, seed=3, n_startup=6, fresh=20
            ),
        )
    ]
    assert chosen[0] == chosen[1]


def test_only_the_best_candidates_stay() -> None:
    some, all_of_them = guided(fresh=40, pool=10), guided(fresh=40)
    for one in (some, all_of_them):
        study_of(one, 7)
    estimates = all_of_them._surrogate.estimates(all_of_them._candidates)
    ranks = moocore.pareto_rank(estimates * [-1, 1])
    assert some._candidates == all_of_them._candidates[:10]
    assert ranks[0] == 0 < ranks[-1]
    assert (np.diff(ranks) >= 0).all()


def test_of_many_candidates_a_fit_estimates_the_best_and_some_of_the_others_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sampler, "EFFORT", sampler.EFFORT._replace(best=20, others=10))
    one = guided(fresh=40)
    study = study_of(one, 12)  # two fits: 80 candidates, of which at least 70 stay
    before = list(one._candidates)
    study.sampler = one
    study.optimize(objective, n_trials=5)
    estimated = [a for a in before if SPACE.to_text(a) in one._surrogate._estimated]
    assert 30 <= len(estimated) < len(before)
    assert set(before[:15]) <= {*estimated, *architectures(study)}
    assert len(one._candidates) == len(set(one._candidates)) > len(before)


class Repeats:
    """Values of NAS-Bench-201 cells, of which many have the same text; accuracies are those of the
    text, or noisy.
    """

    space = get_space("nasbench201", channels=4, cells=1)

    def __init__(self, noise: float) -> None:
        self.noise, self.rng = noise, np.random.default_rng(0)
        self.texts: list[str] = []

    def __call__(self, trial: optuna.Trial) -> list[float]:
        self.texts.append(self.space.to_text(self.space.choose(trial)))
        accuracy, latency = measure(self.texts[-1])
        return [accuracy + self.noise * self.rng.standard_normal(), latency + self.rng.random()]

    def repeated(self) -> int:
        study = optuna.create_study(directions=DIRECTIONS, sampler=guided(self.space, fresh=50))
        study.optimize(self, n_trials=60)
        return len(self.texts) - len(set(self.texts))


@pytest.mark.slow
def test_a_network_is_not_trained_again_once_trainings_have_repeated_exactly() -> None:
    assert Repeats(noise=0.0).repeated() <= 5, "a batch"
    assert Repeats(noise=1.0).repeated() > 5, "noisy trainings are worth repeating"


@pytest.mark.slow
def test_fits_become_rarer_as_evaluations_become_many() -> None:
    Oracle.fits = 0
    study_of(guided(refit_every=1, n_startup=56, fresh=20), 60)
    assert Oracle.fits == 2  # a twentieth of 56 is 2, as of 58


def test_a_fit_adds_fewer_candidates_once_many_are_stored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    requested: list[tuple[int, int]] = []

    def recorded(*arguments: Any, **options: Any) -> list[Architecture]:
        requested.append((options["size"], options["generations"]))
        return evolve(*arguments, **options)

    monkeypatch.setattr(sampler, "evolve", recorded)
    monkeypatch.setattr(sampler, "MANY_STORED", 40)
    study_of(guided(fresh=30), 30)
    assert requested[0] == (30, GENERATIONS)
    assert requested[-1] == (10, GENERATIONS), "a search goes on looking"


def test_a_fit_looks_at_fewer_candidates_once_there_are_many_evaluations(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    generations: list[int] = []

    def recorded(*arguments: Any, **options: Any) -> list[Architecture]:
        generations.append(options["generations"])
        return evolve(*arguments, **options)

    monkeypatch.setattr(sampler, "evolve", recorded)
    monkeypatch.setattr(sampler, "MANY_EVALUATED", 20)
    study_of(guided(fresh=30), 30)
    assert generations[0] == GENERATIONS
    assert generations[-1] == LATER_EFFORT.generations < GENERATIONS


@pytest.mark.slow
def test_the_same_seed_chooses_the_same() -> None:
    assert architectures(study_of(guided(seed=3), 15)) == architectures(
        study_of(guided(seed=3), 15)
    )
    assert architectures(study_of(guided(seed=3), 15)) != architectures(
        study_of(guided(seed=4), 15)
    )


def test_a_resumed_study_goes_on_without_repeating_anything() -> None:
    storage = optuna.storages.InMemoryStorage()
    for _ in range(4):  # in the start and in the middle of batches
        study = study_of(guided(), 4, storage)
    assert len(set(architectures(study))) == 16


def test_parallel_trials_get_different_architectures() -> None:
    study = study_of(guided(), 24, n_jobs=3)
    assert len(set(architectures(study))) == 24


def test_a_small_space_is_searched_completely_and_then_repeated(switches: SearchSpace) -> None:
    study = optuna.create_study(
        directions=DIRECTIONS, sampler=guided(switches, n_startup=3, refit_every=2)
    )
    study.optimize(lambda trial: objective(trial, switches), n_trials=10)
    assert len(set(architectures(study, switches)[:8])) == 8


def test_an_enqueued_architecture_is_evaluated_as_given() -> None:
    wanted = initial_design(SPACE, 6, np.random.default_rng(0))[
        2
    ]  # which the sampler would have chosen as its third
    study = optuna.create_study(directions=DIRECTIONS, sampler=guided(seed=0))
    study.enqueue_trial(wanted.as_dict())
    study.optimize(objective, n_trials=6)
    assert architectures(study)[0] == wanted
    assert len(set(architectures(study))) == 6


def test_a_trial_keeps_its_architecture_when_its_process_is_replaced() -> None:
    study = optuna.create_study(directions=DIRECTIONS, sampler=guided(seed=1))
    trial = study.ask()
    study.sampler = guided(seed=2)
    finished_elsewhere = optuna.Trial(study, trial._trial_id)
    assert SPACE.choose(finished_elsewhere) == SPACE.choose(trial)


def test_failed_trials_are_neither_learned_from_nor_repeated() -> None:
    study = optuna.create_study(directions=DIRECTIONS, sampler=guided())
    for i in range(20):
        trial = study.ask()
        values = objective(trial)
        if i % 2:
            study.tell(trial, state=TrialState.FAIL)
        else:
            study.tell(trial, [*values[:1], float("inf") if i == 4 else values[1]])
    assert len(set(architectures(study))) == 20


def test_the_predictor_learns_the_kind_that_an_objective_declares(switches: SearchSpace) -> None:
    """The kind decides what is decoded first, and `usefulness` alone would be taken for a
    measurement.
    """
    learned: list[str] = []

    class Listening(Oracle):
        def fit(self, texts: Sequence[str], metrics: dict[str, np.ndarray]) -> Self:
            learned[:] = metrics
            return self

        def predict(
            self, texts: Sequence[str], metrics: Sequence[str], *_: Any, **__: Any
        ) -> Predictions:
            return Predictions.of_samples(metrics, np.ones((len(texts), 32, len(metrics))))

    objectives = ["usefulness:accuracy:max", "depth"]
    sampler = PredictorSampler(switches, Listening, objectives, n_startup=2, refit_every=1)  # type: ignore[arg-type]
    study = optuna.create_study(directions=["maximize", "minimize"], sampler=sampler)
    study.optimize(lambda trial: (switches.params(switches.choose(trial)), 1.0), n_trials=4)
    assert learned == ["usefulness:accuracy", "depth"]
    assert sorted(learned, key=decoding_order) == ["usefulness:accuracy", "depth"]
    assert sorted(["usefulness", "x_accuracy"], key=decoding_order) == ["x_accuracy", "usefulness"]


def test_candidates_that_break_a_constraint_are_avoided() -> None:
    bound = 12.0
    study = optuna.create_study(
        directions=DIRECTIONS, sampler=guided(constraints=f"length_ms <= {bound}")
    )

    def constrained(trial: optuna.Trial) -> list[float]:
        values = objective(trial)
        trial.set_constraint(f"length_ms <= {bound:g}", values[1] - bound)
        return values

    study.optimize(constrained, n_trials=26)
    kept = [trial.values[1] <= bound for trial in study.trials]
    assert not all(kept[:6])
    assert all(kept[6:])


def test_random_unseen_finds_the_last_network_and_then_none(switches: SearchSpace) -> None:
    *seen, last = switches.enumerate()
    assert random_unseen(switches, set(seen), np.random.default_rng(0)) == last
    assert random_unseen(switches, {*seen, last}, np.random.default_rng(0)) is None


@pytest.mark.parametrize(
    "options",
    [
        {"n_startup": 0},
        {"refit_every": 0},
        {"pool": 0},
        {"fresh": 0},
        {"given": ("accuracy",)},
        {"constraints": "x < 1"},
    ],
)
def test_bad_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        guided(**options)


@pytest.mark.parametrize("name", list_samplers())
def test_every_sampler_is_made_by_name(name: str) -> None:
    assert isinstance(create_sampler(name, SPACE, METRICS, seed=1), BaseSampler)


def test_an_unknown_sampler_names_the_nearest() -> None:
    with pytest.raises(InputError, match="did you mean 'nsga2'"):
        create_sampler("nsga-2", SPACE, METRICS)


# --- mistakes, and samplers that travel


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda sampler: pickle.loads(pickle.dumps(sampler))]
)
def test_a_copied_sampler_chooses_as_the_original(copied: Callable[[Any], Any]) -> None:
    def chosen(change: Callable[[Any], Any]) -> list[Architecture]:
        study = study_of(guided(), 12)  # it has a fitted predictor and a queue
        study.sampler = change(study.sampler)
        study.optimize(objective, n_trials=8)
        return architectures(study)

    assert chosen(copied) == chosen(lambda sampler: sampler)


def test_a_sampler_by_name_can_be_pickled() -> None:
    sampler = create_sampler("ridge", SPACE, METRICS, n_startup=2)
    study_of(sampler, 3)
    assert pickle.loads(pickle.dumps(sampler)).n_startup == 2


def test_a_study_that_contradicts_the_samplers_objectives_is_refused() -> None:
    study = optuna.create_study(directions=DIRECTIONS[::-1], sampler=guided())
    with pytest.raises(
        InputError, match=f"{METRICS[0]}: the study says minimize, its sampler maximize"
    ):
        study.optimize(objective, n_trials=3)
    study = optuna.create_study(direction="maximize", sampler=guided())
    with pytest.raises(InputError, match="the study has 1 objectives, its sampler 2"):
        study.optimize(lambda trial: objective(trial)[0], n_trials=3)


def test_a_constraint_that_no_trial_stores_is_an_error() -> None:
    study = optuna.create_study(
        directions=DIRECTIONS, sampler=guided(constraints="params <= 5000", n_startup=3)
    )
    with pytest.raises(
        InputError,
        match=r"no trial stores violations of 'params <= 5000': call trial.set_constraint",
    ):
        study.optimize(objective, n_trials=9)
    assert len([trial for trial in study.trials if trial.state.is_finished()]) >= 3
