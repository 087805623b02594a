"""Pretrain `rlm-generated` and `rlm-base`: `python -m experiments.pretraining.pretrain --out
runs/pretrain`.

`rlm-generated` is trained on generated spaces alone: random cells, stages and tokens, no published
space. `rlm-base` is trained further on published spaces without labels and on the shipped
populations. There are three stages, each of which resumes after an interruption: the bank of
spaces, the encoder, and the in-context decoder on random tasks. The decoder trains on a GPU if
there is one, and on several with `accelerate launch -m experiments.pretraining.pretrain`.
"""

from __future__ import annotations

import math
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import typer

from experiments.runner import Quick, run_command
from nas.cli.progress import progress_bar
from search_spaces.common.progress import Progress

if TYPE_CHECKING:
    from accelerate import Accelerator

    from experiments.pretraining.bank import BankedSpace
    from experiments.pretraining.random_tasks import Prior, SpaceStates
    from predictors.rlm.model import Model, Task

LEARNING_RATE = 1e-3
SMALL, MANY = (6, 220), (220, 900)  # ranges of examples: of most tasks, and of the others
# Per step: tasks at most, and examples and queries together at most
TASKS, CONTEXT_TOKENS = 10, 1400
ACCURACY_STEPS = 4000  # at most, of the network for accuracies of short trainings
SAVE_EVERY = 200


class Checkpoint(StrEnum):
    """The checkpoints that this command makes."""

    generated = "rlm-generated"
    base = "rlm-base"


def main(
    checkpoint: Annotated[
        Checkpoint, typer.Option(help="The checkpoint to make.")
    ] = Checkpoint.base,
    out: Annotated[
        Path, typer.Option(help="Folder for bank, training states and checkpoints.")
    ] = Path("results/pretrain"),
    generated: Annotated[int, typer.Option(min=1, help="Generated spaces.")] = 130,
    with_proxies: Annotated[
        int, typer.Option(min=0, help="Further spaces, with proxies if they are small.")
    ] = 600,
    encoder_steps: Annotated[
        int, typer.Option(min=1, help="Steps of the encoder on generated spaces.")
    ] = 8000,
    steps: Annotated[
        int, typer.Option(min=1, help="Steps of the in-context decoder on generated spaces.")
    ] = 8000,
    further_steps: Annotated[
        int, typer.Option(min=1, help="rlm-base: further steps of the encoder on all spaces.")
    ] = 8000,
    seed: Annotated[int, typer.Option(help="Seed of weights and tasks.")] = 0,
    quick: Quick = False,
) -> None:
    """Build the bank, train the encoder, then reader and decoder, and write the checkpoint."""
    from accelerate import Accelerator

    from experiments.pretraining.bank import (
        build_bank,
        generated_files,
        load_space,
        published_files,
    )

    if quick:
        generated, with_proxies, encoder_steps, steps, further_steps = 2, 0, 2, 2, 6
    accelerator = Accelerator()
    with progress_bar("pretraining") as bar:
        with accelerator.main_process_first():
            spaces = [
                load_space(path)
                for path in build_bank(out / "bank", generated_files(generated, with_proxies), bar)
            ]
        model = _seeded(seed)
        train = partial(_train, model, out=out, accelerator=accelerator, bar=bar)
        train("generated", [spaces], encoder_steps, steps, LEARNING_RATE, seed)
        if checkpoint == Checkpoint.base:
            pools = [spaces]
            for names in filter(None, published_files(quick)):
                with accelerator.main_process_first():
                    pools.append(
                        [load_space(path) for path in build_bank(out / "bank", names, bar)]
                    )
            train("base", pools, further_steps, further_steps // 3, LEARNING_RATE / 2, seed + 1)
    if accelerator.is_main_process:
        _write(model, out / checkpoint.value)
        print(out / checkpoint.value)


def _seeded(seed: int) -> Model:
    import torch

    from predictors.rlm.model import Model, ModelConfig

    torch.manual_seed(seed)
    model = Model(ModelConfig())
    # Until it is trained, it says nothing
    torch.nn.init.zeros_(model.encoder.accuracies.get_parameter("4.weight"))
    return model


def _train(
    model: Model,
    name: str,
    pools: list[list[BankedSpace]],
    encoder_steps: int,
    steps: int,
    rate: float,
    seed: int,
    *,
    out: Path,
    accelerator: Accelerator,
    bar: Progress,
) -> None:
    """Train the encoder on equally likely pools of spaces, then reader and decoder, in place."""
    from experiments.pretraining.accuracies import pretrain_accuracies
    from experiments.pretraining.encoder import pretrain_encoder

    with accelerator.main_process_first():  # the other processes load its checkpoint
        path = out / f"encoder-{name}.safetensors"

        def progress(step: str, done: int, total: int) -> None:
            bar(f"encoder, {name}, {step}", done, total)

        pretrain_encoder(model.encoder, pools, encoder_steps, seed, path, progress, rate)
        if name == "base":  # too few generated spaces have trainings to predict those of others
            pretrain_accuracies(
                model.encoder, pools, min(encoder_steps, ACCURACY_STEPS), seed, progress
            )
    states = [read_states(model, space) for pool in pools for space in pool]
    pretrain_context(
        model, states, steps, rate, seed, out / f"context-{name}.safetensors", accelerator, bar
    )


def read_states(model: Model, space: BankedSpace) -> SpaceStates:
    """The encoder's states of a space's networks."""
    import torch

    from experiments.pretraining.random_tasks import SpaceStates
    from predictors.rlm.encoder import collate

    with torch.inference_mode():
        parts = [
            model.encoder(collate(space.lines[i : i + 64])) for i in range(0, len(space.lines), 64)
        ]
    return SpaceStates.of(torch.cat(parts).double().numpy(), space.targets, space.others)


def pretrain_context(
    model: Model,
    spaces: list[SpaceStates],
    steps: int,
    rate: float,
    seed: int,
    path: Path,
    accelerator: Accelerator,
    bar: Progress,
    prior: Prior | None = None,
) -> None:
    """Train reader and decoder, in place, on random tasks; `PRIOR` by default.

    Each process draws its own tasks; gradients are averaged.
    """
    import torch

    from experiments.pretraining.encoder import keep, resume
    from experiments.pretraining.random_tasks import PRIOR
    from predictors.rlm.model import task_loss

    modules: dict[str, torch.nn.Module] = {"reader": model.reader, "decoder": model.decoder}
    for module in modules.values():
        module.to(accelerator.device)
    parameters = [p for module in modules.values() for p in module.parameters()]
    optimizer = torch.optim.AdamW(parameters, rate, betas=(0.9, 0.98), weight_decay=0.02)
    for step in range(resume(path, modules, optimizer), steps):
        rng = np.random.default_rng([seed, step, accelerator.process_index])
        loss = task_loss(model.reader, model.decoder, _tasks(spaces, rng, prior or PRIOR))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        for parameter in parameters:
            if accelerator.num_processes > 1 and parameter.grad is not None:
                parameter.grad = accelerator.reduce(parameter.grad, "mean")
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        for group in optimizer.param_groups:
            group["lr"] = rate * min(
                (step + 1) / 200, 0.5 * (1 + math.cos(math.pi * step / steps)) + 0.02
            )
        optimizer.step()
        done = step + 1
        if accelerator.is_main_process and (done % SAVE_EVERY == 0 or done == steps):
            keep(path, modules, optimizer, done)
        bar(f"context, loss {loss.item():.3f}", done, steps)
    model.cpu()


def _tasks(spaces: list[SpaceStates], rng: np.random.Generator, prior: Prior) -> list[Task]:
    """Tasks for one step, of spaces with enough networks.

    All have equal numbers of examples and queries.
    """
    from experiments.pretraining.random_tasks import draw_task

    # 1. Numbers of examples and queries, as far as the largest space has networks.
    if rng.random() < 0.8:
        log_n = rng.uniform(*np.log(SMALL))
        n = int(np.exp(log_n))
        q = 32
    else:
        n = int(rng.integers(*MANY))
        q = 64
    largest = max(len(space.states) for space in spaces)
    q = min(q, max(8, largest - n))
    n = min(n, largest - 8)

    # 2. As many tasks as there is memory for.
    able = [space for space in spaces if len(space.states) >= n + q]
    count = max(1, min(TASKS, CONTEXT_TOKENS // (n + q)))
    return [draw_task(able, n, q, rng, prior) for _ in range(count)]


def _write(model: Model, folder: Path) -> None:
    """Write the checkpoint with 16-bit weights."""
    import torch

    from predictors.rlm.predictor import RLM

    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            tensor.copy_(tensor.half().float())
    RLM.of(model).save(folder)


if __name__ == "__main__":
    run_command(main)
