"""Claims about modules with their weights: ONNX Runtime computes what the module does, and the text
stays the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from torch import nn
from torch.nn import functional

from search_spaces import to_text
from search_spaces.ir.onnx import to_model
from search_spaces.ir.pytorch import record, record_with_numbers


class Tokens(nn.Module):
    """Embedded tokens with positions that are computed, learned, and kept as a table, and a
    Transformer on them.
    """

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.words, self.learned = nn.Embedding(50, width), nn.Parameter(torch.randn(1, 12, width))
        angles = torch.arange(12)[:, None] / 100 ** (torch.arange(width) / width)
        self.register_buffer(
            "table", torch.where(torch.arange(width) % 2 == 0, angles.sin(), angles.cos())
        )
        layer = nn.TransformerEncoderLayer(width, 4, 32, batch_first=True, norm_first=True)
        self.encoder, self.head = (
            nn.TransformerEncoder(layer, 2, enable_nested_tensor=False),
            nn.Linear(width, 3),
        )

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(self.words(ids) + self.learned + self.table).mean(1))


class Recurrent(nn.Module):
    def __init__(self, kind: Callable[..., nn.Module], **options: Any) -> None:
        super().__init__()
        self.layers = kind(6, 5, batch_first=True, **options)
        self.head = nn.Linear(10 if options.get("bidirectional") else 5, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(x)[0][:, -1])


class LastState(nn.Module):
    """Reads all outputs of an LSTM, so that none owns the weights alone."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(6, 5, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, (h, c) = self.lstm(x)
        return y[:, 0] + h[0] * c[0]


class Products(nn.Module):
    """Weights that are multiplied from either side, scaled, standardized, or read twice."""

    def __init__(self) -> None:
        super().__init__()
        self.square, self.scale = nn.Parameter(torch.randn(6, 6)), nn.Parameter(torch.tensor(0.7))
        self.tied, self.gain = nn.Linear(6, 6), nn.Parameter(torch.rand(6) + 0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x @ self.square + functional.linear(x, self.square * self.scale)
        weight = (self.tied.weight - self.tied.weight.mean()) / (self.tied.weight.std() + 1e-5)
        return self.tied(self.tied(y)) * self.gain + functional.linear(y, weight)


class Convolutions(nn.Module):
    """Normalizations of all kinds, with and without scale, and a convolution whose weights are
    normalized.
    """

    def __init__(self) -> None:
        super().__init__()
        normed = nn.utils.parametrizations.weight_norm(nn.Conv2d(8, 8, 3, padding=1))
        self.body = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.PReLU(8), normed,
            nn.GroupNorm(2, 8), nn.Conv2d(8, 8, 3, groups=4), nn.BatchNorm2d(8, affine=False), nn.GELU(),
            nn.ConvTranspose2d(8, 4, 2, stride=2), nn.InstanceNorm2d(4, affine=True), nn.Hardswish(),
            nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.LayerNorm(16), nn.Linear(16, 3),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x)


MODULES: dict[str, tuple[Callable[[], nn.Module], torch.Tensor]] = {
    "convolutions": (Convolutions, torch.randn(2, 3, 8, 8)),
    "transformer": (Tokens, torch.randint(0, 50, (2, 12))),
    "products": (Products, torch.randn(2, 6)),
    "all outputs of an LSTM": (LastState, torch.randn(2, 4, 6)),
    "lstm": (lambda: Recurrent(nn.LSTM, num_layers=2, bidirectional=True), torch.randn(2, 4, 6)),
    "gru": (lambda: Recurrent(nn.GRU, bidirectional=True), torch.randn(2, 4, 6)),
    "gru without bias": (lambda: Recurrent(nn.GRU, bias=False), torch.randn(2, 4, 6)),
    "rnn": (lambda: Recurrent(nn.RNN), torch.randn(2, 4, 6)),
    "lazy": (
        lambda: nn.Sequential(nn.LazyConv1d(4, 3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(2)),
        torch.randn(2, 3, 7),
    ),
}


@pytest.mark.parametrize("name", MODULES)
def test_onnx_runtime_computes_what_the_module_does(name: str) -> None:
    torch.manual_seed(0)
    build, x = MODULES[name]
    module = build()
    with torch.no_grad():
        module(x)  # running statistics that are not those of a fresh network
        module.eval()
        for tensor in (*module.parameters(), *module.buffers()):
            if tensor.is_floating_point() and tensor.numel() > 1:
                tensor.mul_(torch.empty_like(tensor).uniform_(0.8, 1.2))
        expected = module(x).numpy()
    graph, numbers = record_with_numbers(module, x)
    model = to_model(graph, numbers=numbers)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    found = np.asarray(session.run(None, {"input": x.numpy()})[0])
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)
    assert to_text(model) == to_text(to_model(record(module, x)))


INTEGERS, FLOATS = torch.tensor([[-7, -1, 5, 8]]), torch.tensor([[-1.26, 0.44, 1.3, 2.7]])


@pytest.mark.parametrize(
    ("function", "x"),
    [
        (lambda x: x // 4, INTEGERS), (lambda x: x // -3, INTEGERS), (lambda x: x % 4, INTEGERS),
        (lambda x: x.clamp(0.5, 6.5), INTEGERS), (lambda x: torch.maximum(x, torch.tensor(0.5)), INTEGERS),
        (lambda x: x // 0.7, FLOATS), (lambda x: x % 0.7, FLOATS),
        (lambda x: torch.remainder(x, x.abs() + 0.3), FLOATS),
        (lambda x: x + torch.full_like(x, fill_value=3.0), FLOATS), (lambda x: x + torch.full_like(x, 3.0), FLOATS),
    ],
)  # fmt: skip
def test_quotients_remainders_and_bounds_are_those_of_torch(
    function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor
) -> None:
    class Function(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return function(x)

    graph, numbers = record_with_numbers(Function(), x)
    session = onnxruntime.InferenceSession(to_model(graph, numbers=numbers).SerializeToString())
    (found,) = session.run(None, {"input": x.numpy()})
    wanted = function(x).numpy()
    assert found.dtype == wanted.dtype
    np.testing.assert_allclose(found, wanted, atol=1e-6)
