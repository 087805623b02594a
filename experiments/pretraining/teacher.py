"""What a graph network could teach the encoder: `python -m experiments.pretraining.teacher` (half
an hour).

A student of `gnn-label-free` would know its own states and, at best, the graph network's embedding.
Here the RLM gets both: it starts from `rlm-generated`, and principal axes of the embedding are
given as known metrics of all networks. The graph network has seen the networks of most of these
families, without labels, so that the gain is an upper bound for spaces that nobody has seen.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from experiments.family_tables import available, labelled
from experiments.runner import AsJson, Jobs, Quick, Seeds, run_command
from experiments.tables import Scores, at_rows, compute, pivot, publish, show, summarize

TEACHER, STUDENT = "gnn-label-free", "rlm-generated"
GIVEN = (0, 2, 6)  # axes of the embedding that the RLM is given
LEARNED, TESTED = (50, 100), 1000
BATCH = 128


@lru_cache(maxsize=1)
def embeddings(family: str) -> np.ndarray:
    """Embeddings (n, members · width) of a family's networks."""
    import torch

    import predictors
    from predictors.gnn.graph import collate, text_graph
    from predictors.gnn.predictor import GNN

    teacher = predictors.load(TEACHER)
    assert isinstance(teacher, GNN)
    graphs = [text_graph(text) for text in labelled(family, "accuracy").texts]
    parts = []
    with torch.no_grad():
        for start in range(0, len(graphs), BATCH):
            batch = collate(graphs[start : start + BATCH])
            parts.append(teacher._network.embed(batch, teacher._vocabulary.features(batch.kinds)))
    return torch.cat(parts, 1).transpose(0, 1).flatten(1).double().numpy()


def score(family: str, covariates: int, learned: int, tested: int, seed: int) -> Scores:
    """Kendall's τ on at most `tested` networks of a family, with `learned` others as examples."""
    from scipy.stats import kendalltau

    from predictors.rlm.predictor import RLM

    table = labelled(family, "accuracy")
    metric = "accuracy"
    order = np.random.default_rng(seed).permutation(len(table.texts))
    examples = order[:learned]
    rest = order[learned:][:tested]

    # 1. Principal axes of the teacher's embeddings are covariates.
    states = embeddings(family)
    centred = states - states[examples].mean(0)
    _, _, directions = np.linalg.svd(centred[examples], full_matrices=False)
    along = centred @ directions[:covariates].T  # (n, covariates)
    known = {f"axis{i}_accuracy": column for i, column in enumerate(along.T)}

    # 2. Learn with them, and rank the others.
    columns = {**known, metric: table.values}
    model = RLM(seed=seed, base=STUDENT)
    model.fit([table.texts[i] for i in examples], at_rows(columns, examples))
    texts = [table.texts[i] for i in rest]
    predicted = model.estimate(texts, [metric], given=at_rows(known, rest))[:, 0]
    tau = kendalltau(predicted, table.values[rest]).statistic
    return {"tau": float(np.nan_to_num(tau))}


def main(
    out: Annotated[Path, typer.Option(help="Folder for finished rows and the table.")] = Path(
        "results/teacher"
    ),
    seeds: Seeds = 5,
    jobs: Jobs = 1,
    quick: Quick = False,
    as_json: AsJson = False,
) -> None:
    """Learn and rank with and without the embedding; print means over the families."""
    families, tested = available("accuracy"), TESTED
    sizes: tuple[int, ...] = LEARNED
    if quick:
        families, sizes, tested, seeds = families[:1], sizes[:1], 50, 1
    tasks = [
        (family, given, n, tested, seed)
        for family in families
        for n in sizes
        for given in GIVEN
        for seed in range(seeds)
    ]
    rows = compute(tasks, score, out, jobs)

    # Means over the families.
    taus = {task: row["tau"] for task, row in zip(tasks, rows, strict=True)}
    means = {}
    for given, n, seed in product(GIVEN, sizes, range(seeds)):
        of_families = [taus[family, given, n, tested, seed] for family in families]
        key = (f"{given} axes given", f"{n} labels", seed)
        means[key] = {"tau": float(np.mean(of_families))}
    summary = summarize(list(means), list(means.values()))
    publish(out, pivot(summary, "tau"), f"mean τ of {len(families)} families")
    show(
        "Mean Kendall's τ over the families",
        ("the graph network's embedding", "examples"),
        summary,
        as_json,
    )


if __name__ == "__main__":
    run_command(main)
