"""A small model with random weights: enough for claims that hold for any weights."""

from __future__ import annotations

import pytest
import torch

from predictors.rlm.encoder import EncoderConfig
from predictors.rlm.in_context import ContextConfig
from predictors.rlm.model import Model, ModelConfig
from predictors.rlm.predictor import RLM

SMALL = ModelConfig(
    EncoderConfig(width=16, layers=1, windows=2, structure=24, frequencies=2),
    ContextConfig(
        width=16, heads=2, layers=2, distance=4, kernels=2, number_width=8, number_layers=1
    ),
)


@pytest.fixture(scope="session")
def small_base(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Folder of the small model."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("rlm") / "base"
    RLM.of(Model(SMALL)).save(folder)
    return str(folder)
