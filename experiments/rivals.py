"""Predictors and samplers of others, for comparisons. They need `pip install '.[rivals]'`, HEBO more.

Predictors are plug-ins: `python -m experiments.unseen_spaces --only rlm,experiments/rivals.py:LightGBM`.

- `LightGBM`: gradient boosting (LightGBM's own package) on the features of `ridge` and on those of
  `forest`, which are neural graph features (`predictors.graph_features`).

Samplers run in Optuna's loop: `BotorchSampler` is BoTorch's qLogNEHVI (arXiv 2310.20708) on one-hot
choices, `SmacSampler` is SMAC3 with ParEGO, and `HeboSampler` is HEBO (arXiv 2012.03826).
`python -m experiments.pareto --only qlognehvi,smac,hebo` compares them.

pip cannot install HEBO 0.3.6 beside this project's versions, since it names numpy below 1.25 and
pymoo 0.6.0. It runs with newer ones:

    pip install '.[rivals]' GPy catboost pymoo disjoint-set
    pip install --no-deps 'HEBO>=0.3.6'

TabPFN and TabICL are missing: their packages contain no weights, which come from the Hugging Face
hub.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from optuna.study import StudyDirection
from optuna.trial import TrialState

from nas.search.candidates import random_unseen
from nas.search.pareto import non_dominated
from nas.search.replay import ReplaySampler
from nas.search.study.schema import CHOICES_KEY
from predictors.base import Inputs, as_texts
from predictors.baselines import MIN_STD, Regression, RegressionPredictor
from predictors.features import feature_matrix, named_matrix, select_features, varying_names
from predictors.graph_features import graph_features
from search_spaces import Architecture, SearchSpace
from search_spaces.common.errors import InputError

if TYPE_CHECKING:
    import optuna
    from optuna.trial import FrozenTrial

GRAPH_PREFIX = "graph: "  # of names of features, beside those of the text
FOLDS = 5  # of the cross-validation that gives the uncertainty of LightGBM
BOOSTING = {
    "n_estimators": 300,
    "learning_rate": 0.05,
    "num_leaves": 15,
    "min_child_samples": 5,
    "subsample": 0.8,
    "subsample_freq": 1,
    "colsample_bytree": 0.5,
    "reg_lambda": 1.0,
    "n_jobs": 1,
    "verbose": -1,
}
STARTUP = 10
OPTION_SAMPLES = 500  # random networks, from which the options of choices are read
BATCH = 5
RANDOM_CANDIDATES, MUTATIONS = 300, 30  # per trial, and per network of the front
MC_SAMPLES, AT_ONCE = 64, 64


# --- gradient boosting


class LightGBM(RegressionPredictor):
    """Gradient boosting on the features of the text and on those of its graph.

    Its uncertainty is the error of a cross-validation.
    """

    kind = "lightgbm"

    def _select(self, architectures: Inputs) -> list[str]:
        texts = as_texts(architectures)
        of_graph = varying_names([graph_features(text) for text in texts])
        return select_features(texts) + [GRAPH_PREFIX + name for name in of_graph]

    def _encode(self, architectures: Inputs) -> np.ndarray:
        texts = as_texts(architectures)
        of_text = []
        of_graph = []
        for name in self._names:
            if name.startswith(GRAPH_PREFIX):
                of_graph.append(name.removeprefix(GRAPH_PREFIX))
            else:
                of_text.append(name)
        graphs = named_matrix([graph_features(text) for text in texts], of_graph)
        return np.concatenate([feature_matrix(texts, of_text), graphs], 1)

    def _fit_regression(self, inputs: np.ndarray, targets: np.ndarray) -> Regression:
        try:
            from lightgbm import LGBMRegressor
        except ImportError as error:
            raise InputError(f"LightGBM is missing ({error}): pip install lightgbm") from error

        count = len(targets)
        if count < FOLDS:
            mean = float(targets.mean())
            return Regression(
                lambda points: (np.full(len(points), mean), np.ones(len(points))), targets - mean
            )

        def boosted(rows: np.ndarray) -> LGBMRegressor:
            model = LGBMRegressor(**BOOSTING, random_state=self.seed)
            return model.fit(inputs[rows], targets[rows])

        # 1. Errors on left-out fifths.                                                       (N,)
        fold = np.random.default_rng(self.seed).permutation(count) % FOLDS
        errors = np.zeros(count)
        for number in range(FOLDS):
            left_out = fold == number
            model = boosted(np.flatnonzero(~left_out))
            errors[left_out] = targets[left_out] - _predicted(model, inputs[left_out])
        std = max(MIN_STD, float(np.sqrt(np.mean(errors**2))))

        # 2. One model of all points.
        model = boosted(np.arange(count))
        return Regression(
            lambda points: (_predicted(model, points), np.full(len(points), std)), errors / std
        )


def _predicted(model: Any, points: np.ndarray) -> np.ndarray:
    return np.asarray(model.booster_.predict(points))


# --- searches


class BotorchSampler(ReplaySampler):
    """BoTorch's qLogNEHVI on one-hot choices, for `space.choose(trial)` in an Optuna study.

    A Gaussian process per objective is fitted every `BATCH` trials, as often as `rlm` learns.
    Candidates are random networks and mutations of the best ones; none is evaluated twice.

    Args:
        space: the search space; all of its networks have the same choices.
        seed: seed of all random choices.
        startup: random networks before the first fit.
    """

    def __init__(self, space: SearchSpace, seed: int = 0, startup: int = STARTUP) -> None:
        super().__init__(seed)
        self.space, self.startup = space, startup
        self._queue: list[Architecture] = []  # the rest of the batch

    def choose(self, study: optuna.Study, trial: FrozenTrial) -> Architecture:
        if self._queue:
            return self._queue.pop(0)
        rng = np.random.default_rng([self.seed, trial.number])
        evaluated = [
            (self.space.architecture(one.system_attrs[CHOICES_KEY]), one.values)
            for one in study.get_trials(deepcopy=False, states=[TrialState.COMPLETE])
        ]
        seen = {architecture for architecture, _ in evaluated}
        drawn = [random_unseen(self.space, seen, rng) for _ in range(RANDOM_CANDIDATES)]
        candidates = [architecture for architecture in drawn if architecture is not None]
        if len(evaluated) < self.startup or not candidates:
            return candidates[0] if candidates else self.space.sample(rng)

        # 1. Values, all to be maximized, and mutations of the best networks.
        signs = [1 if d == StudyDirection.MAXIMIZE else -1 for d in study.directions]
        values = np.array([values for _, values in evaluated]) * signs  # (n, m)
        for row in np.flatnonzero(non_dominated(-values)):
            parent = evaluated[row][0]
            candidates += [self.space.mutate(parent, rng) for _ in range(MUTATIONS)]
        pool = [one for one in dict.fromkeys(candidates) if one not in seen]

        # 2. The batch with the largest acquisition, one after the other.
        inputs = _one_hot([*(one for one, _ in evaluated), *pool])
        points, of_pool = np.split(inputs, [len(values)])
        batch = _log_nehvi_batch(points, values, of_pool, min(BATCH, len(pool)), trial.number)
        self._queue = [pool[i] for i in batch]
        return self._queue.pop(0)


class SmacSampler(ReplaySampler):
    """SMAC3 with ParEGO and its random forest, asked and told in an Optuna study.

    Args:
        space: the search space; all of its networks have the same choices.
        seed: seed of all random choices.
        folder: where SMAC writes its files.
        evaluations: number of trials.
    """

    def __init__(self, space: SearchSpace, seed: int, folder: Path, evaluations: int) -> None:
        super().__init__(seed)
        try:
            from ConfigSpace import Categorical, ConfigurationSpace
            from smac import HyperparameterOptimizationFacade, Scenario
            from smac.multi_objective.parego import ParEGO
        except ImportError as error:
            raise InputError(f"SMAC is missing ({error}): pip install smac") from error
        self.space = space
        self._options = options_of(space)
        configurations = ConfigurationSpace(seed=seed)
        configurations.add([Categorical(name, range(len(o))) for name, o in self._options.items()])
        scenario = Scenario(
            configurations,
            name=str(seed),
            output_directory=folder,
            objectives=["first", "second"],
            deterministic=True,
            n_trials=evaluations,
            seed=seed,
        )
        self._smac = HyperparameterOptimizationFacade(
            scenario,
            lambda configuration, seed: (0.0, 0.0),  # never called: the study evaluates
            multi_objective_algorithm=ParEGO(scenario),
            overwrite=True,
            logging_level=False,
        )
        self._asked: dict[int, Any] = {}  # by number of the trial

    def choose(self, study: optuna.Study, trial: FrozenTrial) -> Architecture:
        from smac.runhistory.dataclasses import TrialValue

        signs = [-1 if d == StudyDirection.MAXIMIZE else 1 for d in study.directions]
        for one in study.get_trials(deepcopy=False, states=[TrialState.COMPLETE]):
            if (info := self._asked.pop(one.number, None)) is not None:
                losses = [sign * value for sign, value in zip(signs, one.values, strict=True)]
                self._smac.tell(info, TrialValue(cost=losses))
        info = self._asked[trial.number] = self._smac.ask()
        choices = {name: self._options[name][int(i)] for name, i in info.config.items()}
        return self.space.architecture(choices)


class HeboSampler(ReplaySampler):
    """HEBO's GeneralBO, asked and told in an Optuna study: a Gaussian process per objective, and a
    front of lower confidence bounds by NSGA-II, of which one network is evaluated.

    Args:
        space: the search space; all of its networks have the same choices.
        seed: seed of all random choices.
    """

    def __init__(self, space: SearchSpace, seed: int) -> None:
        super().__init__(seed)
        try:
            from hebo.design_space.design_space import DesignSpace
        except ImportError as error:
            raise InputError(f"HEBO is missing ({error}): see experiments/rivals.py") from error
        self.space = space
        self._options = options_of(space)
        dimensions = []
        for name, options in self._options.items():
            categories = [str(i) for i in range(len(options))]
            dimensions.append({"name": name, "type": "cat", "categories": categories})
        self._design = DesignSpace().parse(dimensions)
        self._optimizer: Any = None  # made when the number of objectives is known
        self._asked: dict[int, Any] = {}  # proposals by number of the trial

    def choose(self, study: optuna.Study, trial: FrozenTrial) -> Architecture:
        from hebo.optimizers.general import GeneralBO

        signs = [-1 if d == StudyDirection.MAXIMIZE else 1 for d in study.directions]
        with seeded(self.seed, trial.number), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if self._optimizer is None:
                self._optimizer = GeneralBO(self._design, num_obj=len(signs))
            for one in study.get_trials(deepcopy=False, states=[TrialState.COMPLETE]):
                if (proposal := self._asked.pop(one.number, None)) is not None:
                    losses = np.array([one.values]) * signs  # (1, m)
                    self._optimizer.observe_new_data(proposal, losses)
            proposal = self._asked[trial.number] = self._optimizer.suggest(1)
        row = proposal.iloc[0]
        choices = {name: options[int(row[name])] for name, options in self._options.items()}
        return self.space.architecture(choices)


@contextmanager
def seeded(*key: int) -> Iterator[None]:
    """Seed the global generators, from which packages draw, and restore them afterwards."""
    import torch

    seed = int(np.random.SeedSequence(key).generate_state(1)[0])
    state = np.random.get_state()  # noqa: NPY002
    try:
        with torch.random.fork_rng(devices=[]):
            np.random.seed(seed)  # noqa: NPY002
            torch.manual_seed(seed)
            yield
    finally:
        np.random.set_state(state)  # noqa: NPY002


def options_of(space: SearchSpace) -> dict[str, list[Any]]:
    """Options of each choice, from random networks.

    Packages choose the number of an option, since options may be of any type.
    """
    rng = np.random.default_rng(0)
    samples = [space.sample(rng).as_dict() for _ in range(OPTION_SAMPLES)]
    options = {}
    for name in samples[0]:
        options[name] = list(dict.fromkeys(sample[name] for sample in samples))
    return options


def _one_hot(architectures: Sequence[Architecture]) -> np.ndarray:
    """One-hot choices (n, d)."""
    rows = [{f"{name}={value}" for name, value in one.choices} for one in architectures]
    names = sorted(set().union(*rows))
    return np.array([[float(name in row) for name in names] for row in rows])


def _log_nehvi_batch(
    points: np.ndarray, values: np.ndarray, pool: np.ndarray, size: int, seed: int
) -> list[int]:
    """A batch of candidates by qLogNEHVI: rows of `pool` (k, d).

    The given points (n, d) have values (n, m).
    """
    import torch

    try:
        from botorch.acquisition.multi_objective.logei import (
            qLogNoisyExpectedHypervolumeImprovement,
        )
        from botorch.fit import fit_gpytorch_mll
        from botorch.models import SingleTaskGP
        from botorch.sampling import SobolQMCNormalSampler
        from botorch.utils.multi_objective.hypervolume import infer_reference_point
        from botorch.utils.multi_objective.pareto import is_non_dominated
        from gpytorch.mlls import ExactMarginalLogLikelihood
    except ImportError as error:
        raise InputError(f"BoTorch is missing ({error}): pip install botorch") from error
    x = torch.from_numpy(points)
    y = torch.from_numpy((values - values.mean(0)) / np.maximum(values.std(0), 1e-9))
    candidates = torch.from_numpy(pool)
    torch.manual_seed(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # 1. BoTorch's default Gaussian processes.
        model = SingleTaskGP(x, y)
        fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
        acquisition = qLogNoisyExpectedHypervolumeImprovement(
            model,
            infer_reference_point(y[is_non_dominated(y)]),
            x,
            sampler=SobolQMCNormalSampler(torch.Size([MC_SAMPLES]), seed=seed),
            prune_baseline=True,
        )
        # 2. Each candidate is chosen given those before it, which are pending.
        batch: list[int] = []
        for _ in range(size):
            acquisition.set_X_pending(candidates[batch] if batch else None)
            with torch.inference_mode():
                parts = [acquisition(part[:, None]) for part in candidates.split(AT_ONCE)]
            scores = torch.cat(parts)  # (k,)
            scores[batch] = -torch.inf
            batch.append(int(scores.argmax()))
    return batch
