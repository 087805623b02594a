"""A head trained with squared error, to compare with the RLM's decoder: a small network from states
to scores.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import nn
from torch.nn import functional

WIDTH = 128
LEARNING_RATE = 1e-3
WEIGHT_DECAY = 0.1


def head_predictions(
    states: np.ndarray, scores: np.ndarray, query_states: np.ndarray, steps: int, seed: int
) -> np.ndarray:
    """Predict scores (q, m) of states `query_states` (q, S).

    The head is trained on states (n, S) and scores (n, m).
    """
    torch.manual_seed(seed)
    center = states.mean(0)
    spread = states.std(0)
    spread = np.where(spread > 1e-6, spread, 1.0)

    def standardized(x: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(((x - center) / spread).clip(-10, 10)).float()

    inputs = standardized(states)
    queries = standardized(query_states)
    targets = torch.from_numpy(scores).float()
    hidden = nn.Linear(states.shape[1], WIDTH)
    out = nn.Linear(WIDTH, scores.shape[1])
    head = nn.Sequential(hidden, nn.GELU(), out)
    optimizer = torch.optim.AdamW(head.parameters(), LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = LEARNING_RATE * (1 - step / steps)
        optimizer.zero_grad()
        functional.mse_loss(head(inputs), targets).backward()
        optimizer.step()
    with torch.inference_mode():
        return head(queries).numpy()
