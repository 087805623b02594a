"""Claims about modules as ONNX files: a file that is written has the text and the costs of the
module.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

from search_spaces import TorchSpace, from_text, params, to_text
from search_spaces.ir.costs import graph_flops, graph_params
from search_spaces.ir.onnx import from_model
from search_spaces.ir.pytorch import without_weights
from search_spaces.ir.text import compact, write
from search_spaces.testing import check_space

IDS = torch.zeros(1, 12, dtype=torch.int64)


class Words(nn.Module):
    """Token ids with positions, which are moved to the ids' device, and one type for all tokens of
    the batch.
    """

    def __init__(self) -> None:
        super().__init__()
        self.words, self.positions, self.types = (
            nn.Embedding(20, 8),
            nn.Embedding(12, 8),
            nn.Embedding(2, 8),
        )

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        positions = self.positions(torch.arange(ids.shape[1])).to(ids.device)
        return self.words(ids) + positions.cpu() + self.types(torch.zeros_like(ids))


class Repeated(nn.Module):
    """One layer with biases that is called twice, as in ALBERT."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Sequential(nn.Linear(12, 12), nn.LayerNorm(12), nn.ReLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(self.layer(x.float()))


class Relative(nn.Module):
    """A table of learned numbers that is read at constant places, as for relative positions."""

    places: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.zeros(5, 2))
        self.register_buffer("places", torch.arange(12) % 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[..., None] + self.table[self.places]


class Gate(nn.Module):
    """A layer whose bias has one element."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.gate = nn.Linear(12, 12), nn.Linear(12, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.body(x).relu()
        return x * self.gate(x).sigmoid()


class Constants(nn.Module):
    """Products and convolutions with constants, which have no parameters."""

    large: torch.Tensor
    small: torch.Tensor
    kernel: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3, 2)
        self.register_buffer("large", torch.arange(144).view(12, 12).cos())
        self.register_buffer("small", torch.arange(36).view(12, 3).cos())
        self.register_buffer("kernel", torch.tensor([[[1.0, 2, 1]]]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = nn.functional.linear(x @ self.large, self.large.T)
        return self.head(nn.functional.conv1d(y[:, None], self.kernel, padding=1) @ self.small)


class Table(nn.Module):
    """Layers on a table of constants, as for the biases of relative positions."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(2, 6), nn.ReLU(), nn.Linear(6, 1, bias=False), nn.LayerNorm(1)
        )
        self.norm = nn.LayerNorm(2)
        self.register_buffer("table", torch.arange(72).view(3, 12, 2).cos())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, None] + (self.body(self.table) + self.body[0](self.norm(self.table))).mean(-1)


# torch's annotation leaves out None, which stands for one norm of all numbers.
norm_of_all: Callable[..., nn.Module] = weight_norm


def shared(normed: nn.Module) -> nn.Module:
    """A layer with a normalized weight that is called twice."""
    return nn.Sequential(nn.Unflatten(1, (4, 3)), normed, nn.ReLU(), normed)


def embedded(dtype: torch.dtype) -> nn.Module:
    return nn.Sequential(nn.Embedding(20, 8), nn.Linear(8, 4)).to(dtype)


def normalized() -> nn.Module:
    return nn.Sequential(nn.Unflatten(1, (4, 3)), weight_norm(nn.Conv1d(4, 6, 3), dim=2))


MODULES: dict[str, tuple[Callable[[], nn.Module], torch.Tensor]] = {
    "words": (Words, IDS),
    "repeated": (Repeated, torch.zeros(1, 12)),
    "relative": (Relative, torch.zeros(1, 12)),
    "weight norm": (normalized, torch.zeros(1, 12)),
    "constants": (Constants, torch.zeros(1, 12)),
    "weight norm, twice": (lambda: shared(weight_norm(nn.Conv1d(4, 4, 1))), torch.zeros(1, 12)),
    "weight norm of a matrix, twice": (
        lambda: shared(norm_of_all(nn.Linear(3, 3), dim=None)),
        torch.zeros(1, 12),
    ),
    "table": (Table, torch.zeros(1, 12)),
    "half embedding": (lambda: embedded(torch.float16), IDS),
    "double embedding": (lambda: embedded(torch.float64), IDS),
    "bfloat16 embedding": (lambda: embedded(torch.bfloat16), IDS),
    "gates": (
        lambda: nn.Sequential(nn.Unflatten(1, (1, 12)), Gate(), Gate(), Gate()),
        torch.zeros(1, 12),
    ),
}


@pytest.mark.parametrize("name", MODULES)
def test_the_file_of_a_module_has_its_text_and_costs(name: str) -> None:
    make, example = MODULES[name]
    space = TorchSpace(lambda trial: make(), example)
    architecture = space.architecture({})
    read = from_model(space.to_onnx(architecture))
    assert write(compact(read)) == space.to_text(architecture)
    assert (
        graph_params(read)
        == space.params(architecture)
        == sum(p.numel() for p in make().parameters())
    )
    assert graph_flops(read) == space.flops(architecture)
    again = from_text(space.to_text(architecture))
    assert (to_text(again), params(again)) == (
        space.to_text(architecture),
        space.params(architecture),
    )


def test_an_embedding_has_the_type_of_its_weights() -> None:
    space = TorchSpace(lambda trial: embedded(torch.float16), IDS)
    assert "=> (float16[N,12,4] y)" in space.to_text(space.architecture({}))


def test_a_large_whole_number_for_the_whole_batch_is_kept_exactly() -> None:
    class Shifted(nn.Module):
        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return ids + torch.full((ids.shape[0], 12), 16_777_217)

    space = TorchSpace(lambda trial: Shifted(), IDS)
    model = space.to_onnx(space.architecture({}))
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    (found,) = session.run(None, {"input": np.zeros((2, 12), np.int64)})
    assert (found == 16_777_217).all()
    assert write(compact(from_model(model))) == space.to_text(space.architecture({}))


def test_weights_that_are_drawn_until_they_lie_within_bounds_end_without_data() -> None:
    with without_weights():
        weight = nn.Parameter(torch.full((40, 40), 9.0))
        nn.init.trunc_normal_(weight, std=0.5)
        nn.init.trunc_normal_(weight, mean=3.0, a=-1.0, b=1.0)
    assert weight.abs().max() <= 1


SIZES: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
}
TEXT, VISION = {**SIZES, "vocab_size": 40}, {**SIZES, "image_size": 32, "patch_size": 8}
IMAGE = torch.zeros(1, 3, 32, 32)
STAGES = {"hidden_sizes": [8, 8, 16, 16], "depths": [1, 1, 1, 1]}
CONFIGURATIONS: dict[str, tuple[dict[str, Any], torch.Tensor]] = {
    "BertForSequenceClassification": (TEXT, IDS),
    "RobertaForSequenceClassification": (TEXT, IDS),
    "DistilBertForSequenceClassification": (
        {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 32, "vocab_size": 40},
        IDS,
    ),
    "ElectraForSequenceClassification": ({**TEXT, "embedding_size": 16}, IDS),
    "AlbertForSequenceClassification": ({**TEXT, "embedding_size": 8}, IDS),
    "GPT2LMHeadModel": ({"n_embd": 16, "n_layer": 2, "n_head": 2, "vocab_size": 40}, IDS),
    "LlamaForCausalLM": ({**TEXT, "num_key_value_heads": 2}, IDS),
    "T5EncoderModel": (
        {"d_model": 16, "num_layers": 2, "num_heads": 2, "d_ff": 32, "d_kv": 8, "vocab_size": 40},
        IDS,
    ),
    "ViTForImageClassification": (VISION, IMAGE),
    "BeitForImageClassification": (VISION, IMAGE),
    "SwinForImageClassification": (
        {
            "image_size": 32,
            "patch_size": 2,
            "embed_dim": 8,
            "depths": [2, 2],
            "num_heads": [2, 2],
            "window_size": 4,
        },
        IMAGE,
    ),
    "ConvNextForImageClassification": (STAGES, IMAGE),
    "SegformerForImageClassification": (
        {**STAGES, "num_attention_heads": [1, 1, 2, 2]},
        torch.zeros(1, 3, 64, 64),
    ),
    "ASTForAudioClassification": (
        {**SIZES, "max_length": 64, "num_mel_bins": 32},
        torch.zeros(1, 64, 32),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_configurations_of_hugging_face_are_spaces(name: str) -> None:
    from search_spaces.common.torchvision import prepare_torchvision

    prepare_torchvision()
    import transformers

    settings, example = CONFIGURATIONS[name]
    network = getattr(transformers, name)
    check_space(
        TorchSpace(lambda trial: network(network.config_class(**settings)), example), count=1
    )
