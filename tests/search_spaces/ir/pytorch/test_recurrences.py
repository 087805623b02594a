"""Claims about state-space and hybrid language models: exact parameters, few operators, and torch's
values.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from torch import Tensor, nn

from search_spaces import InputError
from search_spaces.common.torchvision import prepare_torchvision
from search_spaces.ir.costs import graph_params
from search_spaces.ir.graph import BATCH
from search_spaces.ir.onnx import from_model, to_model
from search_spaces.ir.pytorch import record, record_with_numbers
from search_spaces.ir.pytorch.modules import associative_scan
from search_spaces.ir.text import compact, write

prepare_torchvision()
import transformers  # noqa: E402

SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
STATES = {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 4, **SPECIAL}
HYBRID = {
    "vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 64, **SPECIAL,
}  # fmt: skip
SECOND = {
    "mamba_n_heads": 8,
    "mamba_d_head": 8,
    "mamba_d_state": 8,
    "mamba_n_groups": 1,
    "mamba_chunk_size": 8,
}
EXPERTS = {"num_experts_per_tok": 1, "num_local_experts": 2}
NETWORKS: dict[str, dict[str, Any]] = {
    "MambaForCausalLM": STATES,
    "FalconMambaModel": STATES,
    "Mamba2Model": {**STATES, "num_heads": 8, "head_dim": 8, "n_groups": 1, "chunk_size": 8},
    "RecurrentGemmaModel": {**HYBRID, "num_hidden_layers": 3, "lru_width": 32, "attention_window_size": 8},
    "JambaModel": {
        **HYBRID, "mamba_d_state": 4, "mamba_dt_rank": 4, "attn_layer_period": 2, "attn_layer_offset": 1,
        "expert_layer_period": 2, "expert_layer_offset": 1, "num_experts": 2, "use_mamba_kernels": False,
    },
    "BambaModel": {**HYBRID, **SECOND, "attn_layer_indices": [1]},
    "FalconH1Model": {**HYBRID, **SECOND, "mamba_d_ssm": 64, "head_dim": 8},
    "GraniteMoeHybridModel": {
        **HYBRID, **SECOND, **EXPERTS, "layer_types": ["mamba", "attention"], "shared_intermediate_size": 32,
    },
    "Lfm2Model": {**HYBRID, "layer_types": ["conv", "full_attention"]},
    "MiniMaxModel": {
        **HYBRID, **EXPERTS, "layer_types": ["linear_attention", "full_attention"], "block_size": 8, "head_dim": 8,
    },
    "MixtralModel": {**HYBRID, **EXPERTS},
}  # fmt: skip


def network(name: str) -> nn.Module:
    torch.manual_seed(0)
    cls = getattr(transformers, name)
    return cls(cls.config_class(**NETWORKS[name])).eval()


@pytest.mark.parametrize("name", NETWORKS)
def test_state_space_and_hybrid_models_are_read_with_exact_parameters(name: str) -> None:
    module, length = network(name), 32
    graph, numbers = record_with_numbers(module, torch.zeros(1, length, dtype=torch.int64))
    assert graph.shapes[graph.inputs[0]][0] == BATCH
    assert graph_params(graph) == sum(p.numel() for p in module.parameters())
    model = to_model(graph, numbers=numbers)
    assert write(compact(from_model(model))) == write(
        compact(record(module, torch.zeros(1, length, dtype=torch.int64)))
    )
    session, ids = (
        onnxruntime.InferenceSession(model.SerializeToString()),
        torch.randint(3, 99, (3, length)),
    )
    with torch.no_grad():
        expected = module(ids)[0].numpy()
    np.testing.assert_allclose(
        np.asarray(session.run(None, {"input": ids.numpy()})[0]), expected, rtol=1e-3, atol=1e-4
    )


@pytest.mark.parametrize(
    "name", ["MambaForCausalLM", "FalconMambaModel", "JambaModel", "RecurrentGemmaModel"]
)
def test_number_of_operators_grows_with_the_logarithm_of_the_length(name: str) -> None:
    counts = [
        len(record(network(name), torch.zeros(1, n, dtype=torch.int64)).nodes)
        for n in (32, 64, 128)
    ]
    assert counts[2] - counts[1] <= counts[1] - counts[0] + 2, (
        "doubling the length adds one step to each scan"
    )
    assert counts[2] < 500


def test_scan_by_doubling_is_a_loop() -> None:
    slopes, offsets = torch.rand(2, 7, 3), torch.randn(2, 7, 3)

    def composed(one: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return one[0] * other[0], other[0] * one[1] + other[1]

    _, states = associative_scan(composed, (slopes, offsets), 1)
    state = torch.zeros(2, 3)
    for step in range(7):
        state = slopes[:, step] * state + offsets[:, step]
        torch.testing.assert_close(states[:, step], state)


def test_loop_over_too_many_steps_is_refused_with_a_remedy() -> None:
    class Loop(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            state = x[:, 0]
            for step in range(1, x.shape[1]):
                state = (state * 0.5).tanh() + x[:, step].sigmoid()
            return state

    with pytest.raises(InputError, match="if it loops over time, give a shorter example"):
        record(Loop(), torch.zeros(1, 3000, 2))
