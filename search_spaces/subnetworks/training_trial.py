"""Trials in training mode, where other code of a module may run, such as auxiliary heads, and masks of
random places of the input in models of speech.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from search_spaces.ir.pytorch.modules import Example, run

MakeModule = Callable[[], nn.Module]
TrainingTrial = Callable[[nn.Module, MakeModule | None], None]
"""Runs a module in training mode, which is given without data, and as a function that makes it with
data, if there are any. Raises any error of the module's code.
"""


def training_trial(
    example: Example,
    whole: nn.Module,
    make_whole: MakeModule | None,
    has_unread: bool,
) -> TrainingTrial | None:
    """The first kind of trial that the whole module passes; None if it passes none.

    One without data takes the least time, but does not see all sizes, such as that of what masks
    put in.

    Args:
        example: the module's example input.
        whole: the whole module without data.
        make_whole: makes it with data; None if it has none.
        has_unread: True if the module has parameters that only training may read.
    """

    def without_data(module: nn.Module, _: MakeModule | None) -> None:
        _run_on_two(module.to("meta"), tree_map(_without_data, example))

    def with_data(_: nn.Module, make: MakeModule | None) -> None:
        assert make is not None
        _run_on_two(make(), example)

    trials: list[TrainingTrial] = [without_data]
    if make_whole is not None:
        trials.insert(0 if has_unread else 1, with_data)
    for trial in trials:
        try:
            trial(whole, make_whole)
        except Exception:  # the module's own code may raise any
            continue
        return trial
    return None


def _without_data(x: Any) -> Any:
    return x.to("meta") if isinstance(x, Tensor) else x


def _run_on_two(module: nn.Module, example: Example) -> None:
    """Run a module in training mode on two samples, since statistics need several.

    The states of random generators stay.
    """

    def two(x: Any) -> Any:
        return torch.cat([x] * 2) if isinstance(x, Tensor) and x.dim() else x

    drawn = np.random.get_state()  # noqa: NPY002  the state of users' code
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            run(module.train(), tree_map(two, example))
    finally:
        np.random.set_state(drawn)  # noqa: NPY002
