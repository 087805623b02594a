"""`RLMSampler`: multi-objective search for networks, guided by a Regression Language Model."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import predictors
from nas import PredictorSampler
from search_spaces import SearchSpace, TorchSpace, get_space


class RLMSampler(PredictorSampler):
    """Chooses the networks of a study by the predictions of a Regression Language Model.

    The model reads each network as short ONNX text, and learns the study's evaluations in context,
    without training. The next networks are those with the highest expected hypervolume improvement.
    The objective function gets its choices from `sampler.space.choose(trial)`.

    Args:
        space: a function `build(trial)` that returns a `torch.nn.Module` and has an
            `example_input`; the name of a published space such as "nasbench201"; or a
            `search_spaces.SearchSpace`.
        objectives: the study's objectives in order, with directions: `{"accuracy": "max",
            "latency_ms": "min"}`. The model tells accuracies from costs by their directions.
        base: shipped checkpoint or folder. "rlm-generated" has seen generated networks only,
            "rlm-base" also published spaces.
        seed: seed of all random choices.
        options: further arguments of `nas.PredictorSampler`, such as `n_startup` and `constraints`.
    """

    def __init__(
        self,
        space: str | SearchSpace | Callable[..., Any],
        objectives: dict[str, str],
        *,
        base: str = "rlm-base",
        seed: int = 0,
        **options: Any,
    ) -> None:
        if isinstance(space, str):
            space = get_space(space)
        elif not isinstance(space, SearchSpace):
            space = TorchSpace(space)
        predictor = partial(predictors.create, "rlm", seed=seed, base=base)
        super().__init__(space, predictor, objectives, seed=seed, **options)
