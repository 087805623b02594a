"""Samplers by name."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import optuna

from nas.search.objectives import ConstraintsLike, ObjectivesLike, parse_objectives
from nas.search.sampler import PredictorSampler
from predictors import create, list_predictors
from predictors.registry import is_predictor, predictor_class
from search_spaces.common import plug_ins
from search_spaces.common.errors import InputError, unknown
from search_spaces.common.seeds import check_seed

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler

    from predictors import Predictor
    from search_spaces import SearchSpace

POPULATION_SIZE = 20
# Optuna's exact hypervolume improvement needs memory that grows by a large factor with each
# objective. Measured: 0.6 GB with three objectives after 32 trials, 2.0 GB with four after 18, 3.6
# GB with five after 13, and still rising.
MAX_OPTUNA_GP_OBJECTIVES = 3
_PLAIN: dict[str, Callable[[int], BaseSampler]] = {
    "random": lambda seed: optuna.samplers.RandomSampler(seed=seed),
    "nsga2": lambda seed: optuna.samplers.NSGAIISampler(population_size=POPULATION_SIZE, seed=seed),
    "nsga3": lambda seed: optuna.samplers.NSGAIIISampler(
        population_size=POPULATION_SIZE, seed=seed
    ),
    # On categorical spaces, the default TPE often repeats itself. The multivariate one does so much
    # less.
    "tpe": lambda seed: optuna.samplers.TPESampler(multivariate=True, seed=seed),
    "optuna-gp": lambda seed: optuna.samplers.GPSampler(seed=seed, warn_independent_sampling=False),
}


def list_samplers() -> list[str]:
    """Names that `create_sampler` and `nas.search` accept, sorted.

    Example:

        >>> import nas
        >>> {"random", "rlm", "tpe"} <= set(nas.list_samplers())
        True
    """
    return sorted([*_PLAIN, *list_predictors()])


def check_sampler(name: str, objectives: int = 1) -> None:
    """Raise InputError for a name that `create_sampler` does not accept.

    It is also raised if the sampler cannot optimize this number of objectives.
    """
    if name not in _PLAIN and not is_guided(name):
        raise unknown("sampler", name, list_samplers())
    if name == "optuna-gp":
        _check_gp(objectives)


def check_objectives(sampler: BaseSampler, objectives: int) -> None:
    """Raise InputError for one of Optuna's samplers that cannot optimize so many objectives."""
    if isinstance(sampler, optuna.samplers.GPSampler):
        _check_gp(objectives)


def _check_gp(objectives: int) -> None:
    if objectives > MAX_OPTUNA_GP_OBJECTIVES:
        raise InputError(
            f"Optuna's GP sampler needs many gigabytes of memory for {objectives} objectives: "
            f"with more than {MAX_OPTUNA_GP_OBJECTIVES}, use gp, gp-choices, forest, rlm, tpe or "
            "nsga3"
        )


def is_guided(name: str) -> bool:
    """True if a sampler is a predictor that guides the search.

    `name` is a predictor's, or `FILE.py:CLASS`, whose file is run.
    """
    return bool(predictor_class(name)) if plug_ins.is_file(name) else is_predictor(name)


def create_sampler(
    name: str,
    space: SearchSpace,
    objectives: ObjectivesLike,
    seed: int = 0,
    *,
    constraints: ConstraintsLike = None,
    predictor: Callable[[], Predictor] | None = None,
    **options: Any,
) -> BaseSampler:
    """Create an Optuna sampler by name.

    Example: one of Optuna's own, and one that a predictor guides.

        >>> import nas
        >>> space = nas.load_benchmark("digits201").space
        >>> type(nas.create_sampler("nsga2", space, "digits_accuracy,params")).__name__
        'NSGAIISampler'
        >>> nas.create_sampler("gp", space, "digits_accuracy,params", n_startup=20).n_startup
        20

    Args:
        name: random, nsga2, nsga3, tpe, optuna-gp, or a predictor that guides the search: rlm, gnn,
            gp, gp-choices, forest, ridge, one of an installed package, `FILE.py:CLASS`, or several
            as in rlm+gp.
        space: the search space.
        objectives: see `nas.search.objectives.parse_objectives`.
        seed: of the sampler.
        constraints: see `nas.search.objectives.parse_constraints`.
        predictor: creates the predictor of each refit, by default a new one of that name.
        options: n_startup, refit_every, pool, fresh, given and acquisition of `PredictorSampler`.

    Raises:
        InputError: unknown name, no valid seed, or more objectives than the sampler can optimize.
    """
    check_sampler(name, len(parse_objectives(objectives)))
    seed = check_seed(seed)
    if is_guided(name):
        make = predictor or partial(create, name)  # the search gives each fit its own seed
        return PredictorSampler(
            space, make, objectives, seed=seed, constraints=constraints, **options
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return _PLAIN[name](seed)
