"""Claims about the batch size: a module's file runs on any number of samples with torch's values,
or is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves

from search_spaces import InputError, TorchSpace
from search_spaces.ir.graph import BATCH
from search_spaces.ir.onnx import to_model
from search_spaces.ir.pytorch import record, record_with_numbers

SIZES = (6, 8)  # of one sample


class Function(nn.Module):
    """A function of the input and a learned token (1, 8)."""

    def __init__(self, function: Callable[[Tensor, Tensor], Any]) -> None:
        super().__init__()
        self.function, self.token = function, nn.Parameter(torch.randn(1, 8))

    def forward(self, x: Tensor) -> Any:
        return self.function(x, self.token)


class Attention(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, **options)

    def forward(self, x: Tensor) -> Any:
        x = x if self.attention.batch_first else x.transpose(0, 1)
        return self.attention(x, x, x)


class Recurrent(nn.Module):
    """A recurrent layer whose initial state is made for the batch."""

    def __init__(
        self, kind: type[nn.Module], state: Callable[[Tensor, int], Tensor], **options: Any
    ) -> None:
        super().__init__()
        self.layer, self.state = kind(8, 5, batch_first=True, **options), state
        self.count = (2 if options.get("bidirectional") else 1) * options.get("num_layers", 1)

    def forward(self, x: Tensor) -> Any:
        state = self.state(x, self.count)
        return self.layer(x, (state, state) if isinstance(self.layer, nn.LSTM) else state)[0]


class Heads(nn.Module):
    """Samples and heads in one dimension, with a bias for each head, as in BLOOM."""

    def forward(self, x: Tensor) -> Tensor:
        n, length, _ = x.shape
        heads = x.view(n, length, 2, 4).transpose(1, 2).reshape(n * 2, length, 4)
        slopes = (
            torch.tensor([0.5, 0.25])[None, :, None]
            * torch.arange(length).expand(n, length)[:, None]
        )
        scores = torch.baddbmm(slopes.reshape(n * 2, 1, length), heads, heads.transpose(1, 2))
        return (
            (scores.softmax(-1) @ heads).view(n, 2, length, 4).transpose(1, 2).reshape(n, length, 8)
        )


class Windows(nn.Module):
    """Windows of all samples in one dimension with a mask for each window, as in Swin."""

    mask: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.arange(3 * 2 * 2).view(3, 2, 2).cos())

    def forward(self, x: Tensor) -> Tensor:
        n = x.shape[0]
        windows = x.view(n, 3, 2, 8).reshape(-1, 2, 8)
        scores = windows @ windows.transpose(1, 2) + self.mask.repeat(windows.shape[0] // 3, 1, 1)
        return (scores.softmax(-1) @ windows).view(n, 6, 8)


class Generated(nn.Module):
    """Positions, masks and grids that are made for the batch in forward."""

    def __init__(self) -> None:
        super().__init__()
        self.positions, self.kinds = nn.Embedding(6, 8), nn.Embedding(2, 8)

    def forward(self, x: Tensor) -> Tensor:
        n, length = x.shape[:2]
        places = torch.arange(length).unsqueeze(0).repeat(n, 1)
        kinds = torch.zeros(n, length, dtype=torch.long)
        kinds[:, 3:] = 1
        mask = torch.ones(n, length, length).tril().bool()
        y = x + self.positions(places) + self.kinds(kinds)
        return F.scaled_dot_product_attention(y, y, y, mask)


class Remembering(nn.Module):
    """Keeps what it computed from its weights for the next call, as LeViT does."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(2, 4))
        self.kept: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.kept is None:
            self.kept = self.table[:, torch.arange(8) % 4].sum(0)
        return x.view(x.shape[0], 6, 8) + self.kept


def rows(x: Tensor) -> Tensor:
    return torch.arange(x.shape[0])


def longest(x: Tensor) -> Tensor:
    return x.sum(-1).argmax(-1)


OPEN: dict[str, Callable[[Tensor, Tensor], Any]] = {
    # an index that counts the samples
    "all samples": lambda x, w: x[rows(x)] * 2,
    "one place of all samples": lambda x, w: x[rows(x), 2],
    "the last place of all samples": lambda x, w: x[torch.arange(x.size(0)), -1, :],
    "a place of each sample": lambda x, w: x[rows(x), longest(x)],
    "a place of each sample, from the end": lambda x, w: x[rows(x), longest(x) - 6],
    "a part of a place of each sample": lambda x, w: x[rows(x), longest(x), 3],
    "two places of each sample": lambda x, w: x[rows(x), longest(x), x[:, 0].argmax(-1)],
    "places of each sample": lambda x, w: x[rows(x)[:, None], x.argmax(1)[:, :3]],
    "places of each sample in both "
    "axes": lambda x, w: x[rows(x)[:, None], x.argmax(1)[:, :3], x.argmax(2)[:, :3]],
    "the same places of all samples": lambda x, w: x[rows(x)[:, None], torch.tensor([[0, 2, 5]])],
    "the same places of all samples, once each": lambda x, w: x[rows(x), torch.full((len(x),), 3)],
    "a mask, as in transformers": lambda x, w: (x[..., 0] > 0)[
        rows(x)[:, None, None, None], torch.arange(6)[None, None, None, :]
    ].expand(len(x), -1, 6, 6),
    "a mask of two axes": lambda x, w: x[rows(x)[:, None, None], torch.arange(6)[:, None], torch.arange(4)],
    "index_select of all samples": lambda x, w: x.index_select(0, rows(x)),
    # a mask or a place in each sample that is set
    "elements set by a mask": lambda x, w: set_to(x, lambda y: (y > 0.5, 0.0)),
    "rows set by a mask": lambda x, w: set_to(x, lambda y: (y.sum(-1) > 0, w[0])),
    "a place in each sample": lambda x, w: set_to(x[..., 0], lambda y: ((rows(y), y.argmax(-1) - 6), 9.0)),
    # a token, state or constant for each sample
    "expanded token": lambda x, w: torch.cat([w.expand(x.shape[0], 1, -1), x], 1),
    "expanded as": lambda x, w: torch.cat([w[None].expand_as(x[:, :1]), x], 1),
    "repeated token": lambda x, w: torch.cat([w.repeat(x.shape[0], 1, 1), x], 1),
    "tiled token": lambda x, w: torch.cat([torch.tile(w, (len(x), 1, 1)), x], 1),
    "token that is repeated one by "
    "one": lambda x, w: torch.cat([w[None].repeat_interleave(len(x), 0), x], 1),
    "zeros": lambda x, w: torch.cat([torch.zeros(x.shape[0], 1, 8), x], 1),
    "new ones": lambda x, w: torch.cat([x.new_ones(len(x), 1, 8), x], 1),
    "full": lambda x, w: torch.cat([torch.full((x.size(0), 1, 8), 0.5), x], 1),
    "zeros like": lambda x, w: torch.cat([torch.zeros_like(x[:, :1]), x], 1),
    "positions": lambda x, w: x + torch.arange(6).repeat(len(x), 1)[..., None],
    "positions that are expanded": lambda x, w: x + torch.arange(6.0).expand(len(x), 6).unsqueeze(-1) * w,
    "identities": lambda x, w: torch.eye(6).repeat(x.shape[0], 1, 1) @ x + torch.eye(6, 8).expand(len(x), 6, 8),
    # several times the batch size
    "zeros for each head": lambda x, w: torch.cat([x.reshape(-1, 3, 8), torch.zeros(x.shape[0] * 2, 1, 8)], 1),
    "ones for each head": lambda x, w: x.reshape(len(x) * 2, 3, 8) * torch.full((len(x) * 2, 1, 1), 3.0),
    "token for each head": lambda x, w: torch.cat([x.reshape(-1, 3, 8), w.expand(2 * len(x), 1, 8)], 1),
    "repeated token for each head": lambda x, w: torch.cat([x.reshape(-1, 3, 8), w.repeat(2 * len(x), 1, 1)], 1),
    "repeated constants": lambda x, w: x.reshape(-1, 8) + torch.arange(6.0)[:, None].repeat(len(x), 1),
    "repeated weights": lambda x, w: x.reshape(-1, 4) + w.view(2, 4).repeat(6 * len(x), 1),
    "constants that are repeated one by one": lambda x, w: x.reshape(-1, 8)[:, :1]
    + torch.arange(6.0).repeat_interleave(len(x), 0).view(6, -1).T.reshape(-1, 1),
    # sizes
    "view of the batch": lambda x, w: x.view(x.shape[0], 2, -1),
    "view without it": lambda x, w: x.view(-1, 48),
    "view behind a one": lambda x, w: x.view(1, x.shape[0], 48).squeeze(0),
    "view of samples as channels": lambda x, w: x.reshape(1, x.shape[0] * 6, 8).reshape(-1, 6, 8),
    "quotient of sizes": lambda x, w: x.reshape(x.shape[0], x.numel() // x.shape[0]),
    "unflatten": lambda x, w: x.flatten(0, 1).unflatten(0, (len(x), 6)),
    "flattened and back": lambda x, w: x.reshape(-1, 8).relu().reshape(x.size(0), x.size(1), -1),
    "samples as a sequence": lambda x, w: x.transpose(0, 1).reshape(6, x.shape[0], 2, 4).permute(1, 0, 3, 2),
    "mean over samples": lambda x, w: x - x.mean(0),
    "softmax over samples": lambda x, w: x.softmax(0),
    "samples by samples": lambda x, w: x.flatten(1) @ x.flatten(1).T @ x.flatten(1),
    "largest sample": lambda x, w: x.amax(0, keepdim=True) + x,
    "roll of all": lambda x, w: x.roll(2, 1) + x.flip(1),
}  # fmt: skip


def set_to(x: Tensor, part: Callable[[Tensor], tuple[Any, Any]]) -> Tensor:
    y = x * 1.5
    index, value = part(y)
    y[index] = value
    return y


MODULES: dict[str, Callable[[], nn.Module]] = {
    **{name: partial(Function, function) for name, function in OPEN.items()},
    "attention": lambda: Attention(batch_first=True),
    "attention with zeros": lambda: Attention(batch_first=True, add_zero_attn=True),
    "attention with a learned key": lambda: Attention(batch_first=True, add_bias_kv=True),
    "attention with both": lambda: Attention(add_zero_attn=True, add_bias_kv=True),
    "LSTM": lambda: Recurrent(
        nn.LSTM, lambda x, n: torch.zeros(n, x.shape[0], 5), num_layers=2, bidirectional=True
    ),
    "GRU": lambda: Recurrent(nn.GRU, lambda x, n: x.new_zeros(n, len(x), 5)),
    "RNN": lambda: Recurrent(
        nn.RNN, lambda x, n: torch.zeros_like(x[:, :1, :5]).transpose(0, 1).repeat(n, 1, 1)
    ),
    "heads": Heads,
    "windows": Windows,
    "generated": Generated,
    "remembering": Remembering,
}


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("recorded", [1, 2])
def test_file_runs_on_any_number_of_samples_with_torchs_values(name: str, recorded: int) -> None:
    torch.manual_seed(0)
    module = MODULES[name]()
    graph, numbers = record_with_numbers(module, torch.randn(recorded, *SIZES))
    assert graph.shapes[graph.inputs[0]] == (BATCH, *SIZES)
    if not isinstance(module, Remembering):
        record(module, torch.randn(recorded, *SIZES), any_batch=True)
    session = onnxruntime.InferenceSession(to_model(graph, numbers=numbers).SerializeToString())
    for samples in (1, 2, 5):
        x = torch.randn(samples, *SIZES)
        made = session.run(None, {session.get_inputs()[0].name: x.numpy()})
        if isinstance(module, Remembering):
            module.kept = None  # a tensor of the recording
        with torch.no_grad():
            expected = [t for t in tree_leaves(module(x)) if isinstance(t, Tensor)]
        for one, other in zip(made, expected, strict=True):
            np.testing.assert_allclose(np.asarray(one), other.numpy(), rtol=1e-4, atol=1e-5)


def experts(x: Tensor, w: Tensor) -> Tensor:
    """A kernel for each sample, all of which are one grouped convolution."""
    n = x.shape[0]
    kernels = (x.mean((1, 2))[:, None] * w).reshape(n, 1, 8)[:, :, :3]
    return F.conv1d(x[:, 0].reshape(1, n, 8), kernels, groups=n)


REFUSED: dict[str, tuple[Callable[[Tensor, Tensor], Any], str]] = {
    "one sample": (lambda x, w: x.view(1, 48), r"cannot be viewed"),
    "the first sample": (lambda x, w: x[0] + x, "an index into the batch"),
    "a loop over samples": (lambda x, w: torch.stack([x[i] * 2 for i in range(x.shape[0])]), "an index into the batch"),
    "samples one by one": (lambda x, w: torch.stack([sample * 2 for sample in x]), "a slice along the batch"),
    "halves of the batch": (lambda x, w: torch.cat(x.chunk(2, 0)), "a slice along the batch"),
    "numbers of samples": (lambda x, w: x + torch.arange(x.shape[0])[:, None, None], "differs between the samples"),
    "sum over the number of "
    "samples": (lambda x, w: x.sum(0) / x.shape[0], "follows from the batch size"),
    "the number of samples among others": (
        lambda x, w: x + torch.tensor([x.shape[0], 1.0, 2, 3, 4, 5, 6, 7]), "depends on the batch size",
    ),
    "the number of samples in a table": (
        lambda x, w: x + torch.arange(48.0).view(6, 8).cos().repeat(3, 1)[:6] * torch.tensor([x.shape[0]] * 8),
        "depends on the batch size",
    ),
    "a branch on the number of "
    "samples": (lambda x, w: x * 2 if x.shape[0] % 2 else x * 3, "depends on the batch size"),
    "one group per sample": (experts, "one group per sample"),
    "samples in another order": (lambda x, w: x.flip(0), "a flip of the batch"),
    "samples by a computed index": (lambda x, w: x[torch.arange(len(x)) // 2], "an index into the batch"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_networks_of_one_batch_size_are_refused_as_spaces_in_one_line(name: str) -> None:
    function, reason = REFUSED[name]
    space = TorchSpace(lambda trial: Function(function), torch.zeros(1, *SIZES))
    with pytest.raises(InputError, match=f"for a batch of 1 only: .*({reason})") as refusal:
        space.graph(space.architecture({}))
    assert "\n" not in str(refusal.value)
