"""How well architecture alone can rank top-1: `python -m experiments.zoo_ceiling`, with the table of
timm in `$NAS_DATA/zoo`.

A network's published accuracy depends on its training recipe, too. Of some architectures, the table
has the best and the worst of several recipes, all on ImageNet-1k alone. A predictor that reads the
architecture gives them one answer, so it ranks the published values at most as well as the
architectures' own qualities would:

1. Ranges between recipes tell the standard deviation σ of a recipe: the range of k normal values has a
   known mean square in units of σ.
2. Published values y are qualities with recipes. If both are normal, a quality given y has mean
   m + λ (y - m) and variance λ σ², where λ = 1 - σ² / var(y).
3. The ceiling is the mean rank correlation of qualities drawn like this with y, over all networks, and
   over those of the families that `experiments.zoo` holds out.

It is an estimate: architectures with several recipes are popular ones, whose later recipes are much
better. `half` is the ceiling if only half of the variance between recipes is unknown to a predictor,
as where a family shares its recipe. With `--texts`, `same text` replaces each value by the mean of the
networks with the same text; the first time, all texts take a quarter of an hour.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
import typer

from experiments.runner import AsJson, Seeds, run_command
from experiments.tables import spearman
from experiments.zoo import held_out_networks
from experiments.zoo_tables import TOP1, timm_zoo, zoo_rows
from nas.cli.console import print_json, print_table

IN1K = "in1k"  # trained on ImageNet-1k alone
DRAWS = 1000
RANGES = 20_000  # simulated ranges of k normal values


def recipe_deviation(ranges: np.ndarray, counts: np.ndarray) -> float:
    """Standard deviation of a recipe, in points, from ranges (n,) between counts (n,) of recipes."""
    rng = np.random.default_rng(0)
    # Mean squared range of k values of unit variance, by k.
    squares = {}
    for k in set(counts.tolist()):
        simulated = np.ptp(rng.normal(size=(RANGES, k)), 1)
        squares[k] = np.mean(simulated**2)
    units = np.array([squares[k] for k in counts.tolist()])
    return float(np.sqrt(np.sum(ranges**2) / np.sum(units)))


def ceiling(values: np.ndarray, deviation: float, rows: np.ndarray, draws: int = DRAWS) -> float:
    """Mean rank correlation of networks' qualities with their published values (n,) among some rows.

    Args:
        values: (n,) published values of all networks.
        deviation: of a recipe.
        rows: networks that are ranked.
        draws: of the qualities.
    """
    rng = np.random.default_rng(0)
    share = max(0.0, 1 - deviation**2 / values.var())
    means = values.mean() + share * (values[rows] - values.mean())
    spread = deviation * share**0.5
    qualities = means + spread * rng.normal(size=(draws, len(rows)))
    return float(np.mean([spearman(of_draw, values[rows]) for of_draw in qualities]))


def main(
    seeds: Seeds = 3,
    texts: Annotated[bool, typer.Option("--texts", help="Also compare equal texts.")] = False,
    as_json: AsJson = False,
) -> None:
    """Estimate the ceiling; print it."""
    rows = [row for row in zoo_rows("timm") if row["imagenet_top1"] and row["trained_on"] == IN1K]
    values = np.array([float(row["imagenet_top1"]) for row in rows])

    # 1. What recipes change.
    counts = np.array([int(row["tags_compared"]) for row in rows])
    worst = np.array([float(row["imagenet_top1_lowest_tag"]) for row in rows])
    several = counts > 1
    ranges = (values - worst)[several]
    deviation = recipe_deviation(ranges, counts[several])
    half = deviation * 0.5**0.5

    # 2. The ceiling for all networks, and for the held-out families of `experiments.zoo`.
    all_families = np.array([row["family"] for row in zoo_rows("timm")])
    families = [row["family"] for row in rows]
    everything = np.arange(len(rows))
    of_one, of_half = [], []
    for seed in range(seeds):
        is_held_out = held_out_networks(all_families, seed)
        part = np.flatnonzero(np.isin(families, all_families[is_held_out]))
        of_one.append(ceiling(values, deviation, part))
        of_half.append(ceiling(values, half, part))
    result = {
        "networks": len(rows),
        "several recipes": int(several.sum()),
        "median range (points)": float(np.median(ranges)),
        "recipe (points)": deviation,
        "networks (points)": float(values.std()),
        "best with worst": spearman(values[several], worst[several]),
        "ceiling": ceiling(values, deviation, everything),
        "half": ceiling(values, half, everything),
        "ceiling, held out": float(np.mean(of_one)),
        "half, held out": float(np.mean(of_half)),
    }

    # 3. Networks with one text.
    if texts:
        zoo = timm_zoo()
        known = ~np.isnan(zoo.values[TOP1])
        _, group = np.unique(np.array(zoo.texts)[known], return_inverse=True)
        means = (np.bincount(group, values) / np.bincount(group))[group]
        result["same text"] = spearman(means, values)
    if as_json:
        print_json(result)
    else:
        columns = [{"figure": name, "value": value} for name, value in result.items()]
        print_table("Spearman's correlation of top-1 that architecture alone can reach", columns)


if __name__ == "__main__":
    run_command(main)
