"""Ablation of the pretraining tasks: `python -m experiments.pretraining.ablation` (hours).

All rows use the encoder of `rlm-generated`. For each row, reader and decoder are trained from the
same initial weights and for the same number of steps, without one kind of task. Then the RLM learns
50 networks of each family of `experiments.family_tables` and ranks the others (Kendall's τ).
Trainings and rows resume after an interruption.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import typer

from experiments.family_tables import FAMILIES, available, labelled
from experiments.pretraining.random_tasks import FUNCTIONS, PRIOR, Prior, SpaceStates
from experiments.runner import AsJson, Quick, Seeds, run_command
from experiments.tables import Scores, chosen, compute, pivot, publish, show, summarize
from nas.cli.progress import progress_bar
from search_spaces.common.progress import Progress

if TYPE_CHECKING:
    from predictors.rlm.model import Model

BASE = "rlm-generated"
LEARNING_RATE = 1e-3
LEARNED, TESTED = 50, 1000
FEW_SPACES = 20
OVER_COORDINATES = ("kernel", "linear", "network")  # random functions of a state's coordinates
# Random devices, qualities and networks, and counts of lines
STRUCTURAL = (
    "counts",
    "targets",
    "product",
)


def _without(*kinds: str) -> Prior:
    """The prior without some kinds of random functions."""
    left = {name: share for name, share in FUNCTIONS.items() if name not in kinds}
    return replace(
        PRIOR, functions={name: share / sum(left.values()) for name, share in left.items()}
    )


PRIORS = {
    "all tasks": PRIOR,
    "no random functions": _without(*OVER_COORDINATES),
    "no random devices": _without(*STRUCTURAL),
    "no proxies": replace(PRIOR, measured=0.0),
    "no extrapolation": replace(PRIOR, extrapolating=0.0),
    f"{FEW_SPACES} spaces": PRIOR,
}


def train(name: str, out: Path, generated: int, with_proxies: int, steps: int) -> Path:
    """Train reader and decoder for a row, unless its checkpoint exists.

    Returns the folder of the checkpoint.
    """
    from accelerate import Accelerator

    import predictors
    from experiments.pretraining.pretrain import pretrain_context
    from predictors.rlm.predictor import RLM

    folder = out / f"{name.replace(' ', '-')}-{steps}"
    if not folder.exists():
        base = predictors.load(BASE)
        assert isinstance(base, RLM)
        model = _fresh(base.model)
        with progress_bar(name) as bar:
            spaces = _spaces(model, out / "bank", generated, with_proxies, bar)
            some = (
                spaces[:: max(1, len(spaces) // FEW_SPACES)] if name.endswith("spaces") else spaces
            )
            path = out / f"{folder.name}.safetensors"
            pretrain_context(
                model, some, steps, LEARNING_RATE, 0, path, Accelerator(), bar, PRIORS[name]
            )
        RLM.of(model).save(folder)
    return folder


def _fresh(trained: Model) -> Model:
    """A model with the trained encoder, and with random weights in reader and decoder."""
    import torch

    from predictors.rlm.model import Model

    torch.manual_seed(0)
    model = Model(trained.config)
    model.encoder.load_state_dict(trained.encoder.state_dict())
    return model


_STATES: list[SpaceStates] = []


def _spaces(
    model: Model,
    bank: Path,
    generated: int,
    with_proxies: int,
    bar: Progress,
) -> list[SpaceStates]:
    """The encoder's states of all generated spaces, computed once per process."""
    from experiments.pretraining.bank import build_bank, generated_files, load_space
    from experiments.pretraining.pretrain import read_states

    if not _STATES:
        paths = build_bank(bank, generated_files(generated, with_proxies), bar)
        _STATES.extend(read_states(model, load_space(path)) for path in paths)
    return _STATES


def score(checkpoint: str, family: str, metric: str, tested: int, seed: int) -> Scores:
    """Kendall's τ on at most `tested` networks of a family, with `LEARNED` others as examples."""
    from scipy.stats import kendalltau

    from predictors.rlm.predictor import RLM

    table = labelled(family, metric)
    order = np.random.default_rng(seed).permutation(len(table.texts))
    learned, rest = order[:LEARNED], order[LEARNED:][:tested]
    model = RLM(seed=seed, base=checkpoint)
    model.fit([table.texts[i] for i in learned], {metric: table.values[learned]})
    predicted = model.estimate([table.texts[i] for i in rest], [metric])[:, 0]
    return {"tau": float(np.nan_to_num(kendalltau(predicted, table.values[rest]).statistic))}


def main(
    out: Annotated[
        Path, typer.Option(help="Folder for the bank, trainings, checkpoints and rows.")
    ] = Path("results/ablation"),
    only: Annotated[str, typer.Option(help="Rows, separated by commas.")] = ",".join(PRIORS),
    steps: Annotated[int, typer.Option(min=1, help="Steps of each training.")] = 1000,
    generated: Annotated[int, typer.Option(min=1, help="Generated spaces, see `pretrain`.")] = 130,
    with_proxies: Annotated[
        int, typer.Option(min=0, help="Further spaces, with proxies if they are small.")
    ] = 600,
    seeds: Seeds = 5,
    quick: Quick = False,
    as_json: AsJson = False,
) -> None:
    """Train, learn and rank; print a table of means over the families and seeds."""
    names = chosen(only, list(PRIORS))
    tested = TESTED
    families = {m: available(m) for m in FAMILIES}
    if quick:
        steps, generated, with_proxies, seeds, tested, names = 2, 2, 0, 1, 50, names[:2]
        families = {metric: names_of_metric[:1] for metric, names_of_metric in families.items()}
    means: dict[tuple[str, str, int], Scores] = {}
    for name in names:
        folder = str(train(name, out, generated, with_proxies, steps))
        for metric, members in families.items():
            tasks = [
                (folder, family, metric, tested, seed)
                for seed in range(seeds)
                for family in members
            ]
            taus = (
                np.array([row["tau"] for row in compute(tasks, score, out)])
                .reshape(seeds, -1)
                .mean(1)
            )
            means |= {(name, metric, seed): {"tau": float(tau)} for seed, tau in enumerate(taus)}
    summary = summarize(list(means), list(means.values()))
    publish(out, pivot(summary, "tau"), f"mean τ, {LEARNED} labels")
    show("Mean Kendall's τ over the families", ("pretrained with", "metric"), summary, as_json)


if __name__ == "__main__":
    run_command(main)
