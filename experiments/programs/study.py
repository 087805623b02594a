"""Run time and memory of programs from their text: `python -m experiments.programs.study`.

The study uses the code path of `nas train rlm --table`. A fifth of the programs is held out, the
RLM is fine-tuned on the others, and Spearman's correlation is computed on the held-out ones: of all
languages together, and of each alone (`python`, `c`, `c++`).

`words` and `bytes` are our fine-tuned encoder with one line per word, number and sign, or per byte.
`t5gemma` is a small frozen T5Gemma with random weights. From the same states, the RLM decodes
`digits`, and a head trained with `squared error` predicts. `costs of the text` is a ridge
regression on the text's length and its three largest numbers. `measured` is the agreement of two
halves of the runs, an approximate upper bound. Settings were chosen on seeds from 100.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from experiments.programs.readers import as_bytes, random_t5gemma
from experiments.programs.squared_error import head_predictions
from experiments.programs.table import SHIPPED
from experiments.programs.writing import LANGUAGES
from experiments.runner import AsJson, FirstSeed, Jobs, Quick, Seeds, run_command
from experiments.tables import Scores, Table, chosen, compute, publish, show, spearman, summarize
from nas.benchmarks.text_tables import TextTable, read_text_table, split

METRICS = ("run_time_ms", "peak_memory_kib")
HALVES = ("first", "second")
READERS = ("words", "bytes", "t5gemma")
COSTS, MEASURED = "costs of the text", "measured"
RIVALS = (*READERS, COSTS, MEASURED)
HELD_OUT = 0.2
STEPS = 60  # of each part; the default of `nas train rlm --table` is 300
QUICK_STEPS, QUICK_EVERY = 2, 14
ALL = "all"


def score(table: str, folder: str, every: int, steps: int, rival: str, seed: int) -> Scores:
    """Correlations of predictions on one split of every `every`-th program.

    The predictions are those of a reader or of a baseline.
    """
    columns = (*METRICS, *(f"{metric}_{half}" for half in HALVES for metric in METRICS))
    programs = read_text_table(Path(table), "input", columns)
    programs = programs.rows(np.arange(0, len(programs.texts), every))
    backbone = random_t5gemma(programs.texts, Path(folder), 0) if rival == "t5gemma" else None
    if rival == "bytes":
        programs = TextTable(
            [as_bytes(text) for text in programs.texts], programs.spaces, programs.metrics
        )
    training, tests = split(programs, HELD_OUT, seed)
    if rival == MEASURED:
        return _judged(tests, {MEASURED: _columns(tests, "_first")}, _columns(tests, "_second"))
    predictions = (
        {COSTS: _regression(training, tests)}
        if rival == COSTS
        else _read(training, tests, backbone, steps, seed)
    )
    return _judged(tests, predictions, _columns(tests))


def _columns(table: TextTable, suffix: str = "") -> np.ndarray:
    """Values (n, metrics) of a table."""
    return np.stack([table.metrics[f"{metric}{suffix}"] for metric in METRICS], 1)


def _judged(tests: TextTable, answers: dict[str, np.ndarray], true: np.ndarray) -> Scores:
    """Spearman's correlations of predictions (q, metrics) with true values.

    There is one for each predictor, metric and language.
    """
    spaces = np.array(tests.spaces)
    scores: Scores = {}
    for answer, predicted in answers.items():
        for column, metric in enumerate(METRICS):
            for space in (ALL, *LANGUAGES):
                rows = np.flatnonzero((spaces == space) | (space == ALL))
                correlation = spearman(predicted[rows, column], true[rows, column])
                scores[f"{answer}: {metric}, {space}"] = correlation
    return scores


def _read(
    training: TextTable, tests: TextTable, backbone: str | None, steps: int, seed: int
) -> dict[str, np.ndarray]:
    """Predictions (q, metrics) of the decoder and of the head with squared error.

    Both read the same states.
    """
    import predictors
    from predictors.rlm.predictor import RLM
    from predictors.transforms import TargetTransform

    targets = {metric: training.metrics[metric] for metric in METRICS}
    model = predictors.create("rlm", seed=seed, steps=steps, backbone=backbone)
    assert isinstance(model, RLM)
    model.fit(training.texts, targets)

    # 1. The decoder writes each metric alone.                                         (q, metrics)
    columns = [model.predict(tests.texts, [metric], seed=seed)[metric] for metric in METRICS]
    digits = np.stack(columns, 1)

    # 2. The head learns z of all metrics.                                             (n, metrics)
    z = []
    for values in targets.values():
        z.append(TargetTransform.fit(values, by_rank=True).to_z(values))
    states = model.states(training.texts)
    queries = model.states(tests.texts)
    head = head_predictions(states, np.stack(z, 1), queries, steps, seed)
    return {"digits": digits, "squared error": head}


def _regression(training: TextTable, tests: TextTable) -> np.ndarray:
    """Log predictions (q, metrics) of a ridge regression on `_costs`."""
    from sklearn.linear_model import RidgeCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    inputs = np.stack([_costs(text) for text in training.texts])
    queries = np.stack([_costs(text) for text in tests.texts])
    model = make_pipeline(StandardScaler(), RidgeCV(np.logspace(-2, 3, 11)))
    return model.fit(inputs, np.log(_columns(training))).predict(queries)


def _costs(text: str) -> np.ndarray:
    """Features (6,) of a text.

    These are logarithms of its length and of its three largest numbers, whether it
    is C or C++, and whether it is C++.
    """
    numbers = [float(number) for number in re.findall(r"\d+", text)]
    largest = [*sorted(numbers, reverse=True), 0, 0, 0][:3]
    is_c = "#include" in text
    is_cpp = "std::" in text
    return np.array([np.log(len(text)), *np.log1p(largest), is_c, is_cpp])


def main(
    out: Annotated[Path, typer.Option(help="Folder for finished rows and tables.")] = Path(
        "results/programs"
    ),
    table: Annotated[
        Path, typer.Option(help="Table of programs; the shipped one by default.")
    ] = SHIPPED,
    seeds: Seeds = 5,
    first_seed: FirstSeed = 0,
    only: Annotated[
        str | None, typer.Option(help="Rivals, separated by commas; all by default.")
    ] = None,
    steps: Annotated[
        int, typer.Option(min=1, help="Optimizer steps of encoder, decoder and head, each.")
    ] = STEPS,
    jobs: Jobs = 1,
    quick: Quick = False,
    as_json: AsJson = False,
) -> None:
    """Learn and rank; print a table of means over the splits."""
    every, steps, seeds = (QUICK_EVERY, QUICK_STEPS, 1) if quick else (1, steps, seeds)
    rivals = chosen(only, RIVALS) if only else RIVALS
    numbers = range(first_seed, first_seed + seeds)
    tasks = [
        (str(table), str(out / "t5gemma"), every, steps, rival, seed)
        for rival in rivals
        for seed in numbers
    ]
    summary = summarize(tasks, compute(tasks, score, out, jobs))
    publish(out, _by_answer(summary), "Spearman's correlation")
    show("Spearman's correlation", ("table", "folder", "every", "steps", "rival"), summary, as_json)


def _by_answer(summary: list[dict[str, Any]]) -> Table:
    """Arrange a summary with a row per reader and predictor.

    There is a column per metric and language.
    """
    table: Table = {}
    for row in summary:
        for name, cell in row.items():
            answer, _, column = name.partition(": ")
            if column:
                label = answer if answer == row["task4"] else f"{row['task4']}, {answer}"
                table.setdefault(label, {})[column] = cell
    return table


if __name__ == "__main__":
    run_command(main)
