"""Real networks: `python -m experiments.zoo`, with the tables of `$NAS_DATA/zoo`.

Three studies report Spearman's rank correlation of each metric over all networks that were not
learned.

families: a quarter of timm's families is held out. Predicted are ImageNet top-1 (of weights trained
    on ImageNet-1k alone) and milliseconds per image on six devices. `within` is the mean
    correlation within held-out families of at least five networks, `error` the median error in
    points or %, `covered` and `half` the shares of true values inside the 90 % and 50 % intervals.
    `far` is how well the novelty finds the tenth of the predictions with the largest errors: the
    area under the ROC curve, 0.5 by chance.
given: the same, with the five other devices given for each device, and all six for top-1.
new: ten random networks are measured on a new device; all networks have been measured on the five
    others.

`rlm` is as in the checkpoint `rlm-zoo`: each metric by itself; for latencies, the exact parameters
and multiply-accumulates are given. Without these costs, `rlm-plain` decodes each metric by itself,
and `rlm-sequence` decodes all in one sequence, accuracy first. `log-linear` is a regression on the
logarithms of parameters and multiply-accumulates. `operators` is a random forest on the same and on
counts of operators. `regression` is a ridge regression on the logarithms of the given latencies.
The RLM's base has seen none of these networks. The baselines learn logarithms of latencies,
predictors choose by themselves. Settings were chosen on seeds from 100; seeds 0 to 4 are reported.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
import typer

from experiments.runner import AsJson, FirstSeed, Jobs, Quick, Seeds, run_command
from experiments.tables import Scores, chosen, compute, publish, show, spearman, summarize
from experiments.zoo_tables import SETTINGS, TOP1, Zoo, timm_zoo
from nas.evaluation.devices import quantiles

STUDIES = ("families", "given", "new")
COSTS = ("params", "macs")
FORMULAS = (*COSTS, "log-linear", "operators")
PLAIN, SEQUENCE, REGRESSION = "rlm-plain", "rlm-sequence", "regression"
PREDICTORS = {
    "families": (*FORMULAS, "rlm", PLAIN, SEQUENCE, "gp", "gnn"),
    "given": (REGRESSION, "rlm", "gp"),
    "new": (REGRESSION, "rlm"),
}
METRICS = (TOP1, *SETTINGS)
HELD_OUT = 0.25  # of the families
WORST = 0.1  # of the predictions, those that the novelty should find
MIN_FAMILY = 5  # networks, for a correlation within a family
MEASURED = 10
TREES = 200
SAMPLES = 32
QUICK_EVERY = 8
PENALTIES = np.logspace(-3, 3, 13)


def score(study: str, predictor: str, every: int, seed: int) -> Scores:
    """Scores of one predictor for one random choice of held-out families.

    In the study of a new device, the random choice is that of ten measured networks.
    """
    zoo = timm_zoo(every)
    if study == "new":
        return _new_device(zoo, predictor, seed)
    held_out = held_out_networks(zoo.families, seed)
    tests = _tests(zoo, held_out, study == "given")
    if predictor in (*FORMULAS, REGRESSION):
        plain = {
            name: _restored(name, _plain(zoo, predictor, name, held_out, seed)[rows])
            for name, rows in tests
        }
        return _judged(zoo, {name: Judged(rows, plain[name]) for name, rows in tests})
    return _judged(zoo, _learned(zoo, predictor, held_out, tests, study == "given", seed))


def held_out_networks(families: np.ndarray, seed: int) -> np.ndarray:
    """Mask (n,) of the networks in a random quarter of the families."""
    names = np.random.default_rng(seed).permutation(np.unique(families))
    return np.isin(families, names[: max(1, round(HELD_OUT * len(names)))])


def _tests(zoo: Zoo, held_out: np.ndarray, with_devices: bool) -> list[tuple[str, np.ndarray]]:
    """Rows on which each metric is tested.

    With devices, these are rows with a value of every device.
    """
    if with_devices:
        held_out = held_out & ~np.isnan([zoo.values[name] for name in SETTINGS]).any(0)
    return [(name, np.flatnonzero(held_out & ~np.isnan(zoo.values[name]))) for name in METRICS]


def _costs(zoo: Zoo) -> np.ndarray:
    """Logarithms (n, 2) of exact parameters and multiply-accumulates."""
    from predictors.rlm.tokens import tokenize

    return np.stack([tokenize(text).totals[:2] for text in zoo.texts]).astype(float)


def _plain(zoo: Zoo, name: str, metric: str, held_out: np.ndarray, seed: int) -> np.ndarray:
    """Predictions (n,) of a baseline, without the structure.

    It reads costs, counts of operators, or other devices.
    """
    costs = _costs(zoo)
    if name in COSTS:
        return costs[:, COSTS.index(name)]
    if name == REGRESSION:
        costs = np.stack(
            [_target(other, zoo.values[other]) for other in SETTINGS if other != metric], 1
        )
    values = _target(metric, zoo.values[metric])
    known = np.flatnonzero(~np.isnan([values, *costs.T]).any(0))
    rows = known[~held_out[known]]
    predicted = np.full(len(values), np.nan)
    if name == "operators":
        predicted[known] = _forest(
            np.concatenate([costs, _operators(zoo.texts)], 1), values, rows, seed
        )[known]
    else:
        predicted[known] = _ridge(costs[known], values[known], np.searchsorted(known, rows))
    return predicted


def _ridge(inputs: np.ndarray, values: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Predictions (n,) for inputs (n, k) by ridge regression on some rows."""
    from sklearn.linear_model import RidgeCV

    inputs = (inputs - inputs[rows].mean(0)) / np.maximum(inputs[rows].std(0), 1e-9)
    return RidgeCV(PENALTIES).fit(inputs[rows], values[rows]).predict(inputs)


def _operators(texts: Sequence[str]) -> np.ndarray:
    """Counts (n, kinds) of each kind of operator in each network."""
    from predictors.features import feature_matrix, features

    return feature_matrix(
        texts, sorted({name for text in texts for name in features(text) if " > " not in name})
    )


def _forest(inputs: np.ndarray, values: np.ndarray, rows: np.ndarray, seed: int) -> np.ndarray:
    """Predictions (n,) for inputs (n, k) by a random forest on some rows."""
    from sklearn.ensemble import RandomForestRegressor

    forest = RandomForestRegressor(TREES, max_features=1 / 3, random_state=seed)
    return forest.fit(inputs[rows], values[rows]).predict(inputs)


def _target(metric: str, values: np.ndarray) -> np.ndarray:
    """Values (n,) that baselines learn: logarithms of latencies, accuracies as they are."""
    return values if metric == TOP1 else np.log(values)


def _restored(metric: str, targets: np.ndarray) -> np.ndarray:
    """The inverse of `_target`."""
    return targets if metric == TOP1 else np.exp(targets)


class Judged(NamedTuple):
    """Predictions of one metric for the networks in q rows, in its unit."""

    rows: np.ndarray  # (q,)
    predicted: np.ndarray  # (q,)
    samples: np.ndarray | None = None  # (q, s)
    novelty: np.ndarray | None = None  # (q,)


def _learned(
    zoo: Zoo,
    predictor: str,
    held_out: np.ndarray,
    tests: list[tuple[str, np.ndarray]],
    with_devices: bool,
    seed: int,
) -> dict[str, Judged]:
    import predictors
    from predictors.features import exact_costs
    from predictors.metrics import EXACT
    from predictors.rlm.predictor import RLM

    model = predictors.create(predictor.partition("-")[0], seed=seed)
    rows = np.flatnonzero(~held_out)
    counted = exact_costs(zoo.texts, EXACT) if predictor == "rlm" and not with_devices else {}
    costs = {name: np.array(values) for name, values in counted.items()}
    targets = {**costs, **{name: zoo.values[name] for name in METRICS}}
    learned = [zoo.texts[i] for i in rows]
    model.fit(learned, {name: values[rows] for name, values in targets.items()})
    if isinstance(model, RLM):
        model.calibrate(learned, list(zoo.families[rows]))
    judged: dict[str, Judged] = {}
    if predictor == SEQUENCE:
        held = np.flatnonzero(held_out)
        together = model.predict([zoo.texts[i] for i in held], METRICS, samples=SAMPLES, seed=seed)
        for column, (name, some) in enumerate(tests):
            at = np.searchsorted(held, some)
            judged[name] = Judged(some, together[name][at], together.samples[at, :, column])
        return judged
    for name, some in tests:
        others = (
            [other for other in SETTINGS if other != name]
            if with_devices
            else list(costs)
            if name != TOP1
            else []
        )
        known = {other: targets[other][some] for other in others}
        texts = [zoo.texts[i] for i in some]
        predicted = model.predict(texts, [name], given=known, samples=SAMPLES, seed=seed)
        judged[name] = Judged(
            some, predicted[name], predicted.samples[:, :, 0], model.novelty(texts, [name])
        )
    return judged


def _judged(zoo: Zoo, judged: dict[str, Judged]) -> Scores:
    """Score predictions: correlations, errors, coverage, and what the novelty finds.

    Correlations are across and within families.
    """
    scores: Scores = {}
    for name, (rows, predicted, samples, novelty) in judged.items():
        short = _short(name)
        true = zoo.values[name][rows]
        # 1. Correlation and median error: in points of accuracy, or in % of a latency.
        relative = 100 * np.abs(predicted / true - 1)
        errors = np.abs(predicted - true) if name == TOP1 else relative
        scores[short] = spearman(predicted, true)
        scores[f"{short} error"] = float(np.median(errors))

        # 2. The mean correlation within families.
        families = zoo.families[rows]
        inside = []
        for family in np.unique(families):
            members = np.flatnonzero(families == family)
            if len(members) >= MIN_FAMILY:
                inside.append(spearman(predicted[members], true[members]))
        scores[f"{short} within"] = float(np.mean(inside)) if inside else 0.0

        # 3. Shares of intervals that hold the true value.
        if samples is not None:
            for measure, level in (("covered", 0.9), ("half", 0.5)):
                low, high = quantiles(samples, [(1 - level) / 2, (1 + level) / 2])
                is_inside = (low <= true) & (true <= high)
                scores[f"{short} {measure}"] = float(np.mean(is_inside))

        # 4. Whether the novelty finds the worst predictions.
        if novelty is not None and np.isfinite(novelty).all():
            missed = np.abs(_target(name, predicted) - _target(name, true))
            scores[f"{short} far"] = _found_worst(novelty, missed)
    return scores


def _found_worst(novelty: np.ndarray, errors: np.ndarray) -> float:
    """Area under the ROC curve of the novelty (q,) for the worst predictions.

    These have the largest errors (q,).
    """
    from sklearn.metrics import roc_auc_score

    return float(roc_auc_score(errors > np.quantile(errors, 1 - WORST), novelty))


def _new_device(zoo: Zoo, predictor: str, seed: int) -> Scores:
    import predictors
    from nas.evaluation.new_device import relative_samples

    values = np.stack([zoo.values[name] for name in SETTINGS], 1)
    rows = np.flatnonzero(~np.isnan(values).any(1))
    texts = [zoo.texts[i] for i in rows]
    values = values[rows]
    order = np.random.default_rng(seed).permutation(len(rows))
    measured, others = order[:MEASURED], order[MEASURED:]
    scores: Scores = {}
    for column, name in enumerate(SETTINGS):
        known = np.delete(values, column, 1)
        true = values[:, column]
        if predictor == REGRESSION:
            predicted = _ridge(np.log(known), np.log(true), measured)[others]
        else:
            model = predictors.create(predictor, seed=seed)
            own = [texts[i] for i in measured]
            asked = [texts[i] for i in others]
            drawn = relative_samples(
                model, own, true[measured], known[measured], asked, known[others], SAMPLES, seed
            )
            low, predicted, high = quantiles(drawn, [0.05, 0.5, 0.95])
            is_inside = (low <= true[others]) & (true[others] <= high)
            scores[f"{_short(name)} covered"] = float(is_inside.mean())
        scores[_short(name)] = spearman(predicted, true[others])
    return scores


def _short(metric: str) -> str:
    return "top1" if metric == TOP1 else metric.removesuffix("_ms")


def main(
    out: Annotated[Path, typer.Option(help="Folder for finished rows and tables.")] = Path(
        "results/zoo"
    ),
    seeds: Seeds = 5,
    first_seed: FirstSeed = 0,
    studies: Annotated[str, typer.Option(help="Studies, separated by commas.")] = ",".join(STUDIES),
    only: Annotated[
        str | None, typer.Option(help="Predictors, separated by commas; all by default.")
    ] = None,
    jobs: Jobs = 1,
    quick: Quick = False,
    as_json: AsJson = False,
) -> None:
    """Learn and rank; print a table of means over the seeds for each study."""
    every, seeds = (QUICK_EVERY, 1) if quick else (1, seeds)
    known = list(dict.fromkeys(name for names in PREDICTORS.values() for name in names))
    kept = known
    if only:
        kept = chosen(only, known)
    elif quick:
        kept = [name for name in known if name not in ("gnn", "gp")]
    requested = chosen(studies, STUDIES)
    numbers = range(first_seed, first_seed + seeds)
    tasks = [
        (s, p, every, seed)
        for s in requested
        for p in PREDICTORS[s]
        if p in kept
        for seed in numbers
    ]
    summary = summarize(tasks, compute(tasks, score, out, jobs))
    for study in requested:
        of_study = [row for row in summary if row["task0"] == study]
        _publish(out / study, of_study, [_short(name) for name in METRICS])
        show(f"Spearman's correlation, {study}", ("study", "predictor", "every"), of_study, as_json)


def _publish(
    folder: Path, summary: Sequence[dict[str, dict[str, float]]], names: list[str]
) -> None:
    table = {}
    for row in summary:
        table[str(row["task1"])] = {name: row[name] for name in names if name in row}
    if table:
        publish(folder, table, "Spearman's correlation")


if __name__ == "__main__":
    run_command(main)
