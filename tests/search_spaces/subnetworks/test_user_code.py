"""Models as users write them: what of their code sub-networks must respect."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from torch import Tensor, nn

from search_spaces import Subnetworks, to_text
from search_spaces.ir.pytorch import record, run
from search_spaces.ir.text import compact, write

ARCHITECTURES = 6


def check_sub_networks(space: Subnetworks, seed: int = 0) -> None:
    """Random sub-networks run, and have the computed text and parameters; the whole one has the
    model's outputs.
    """
    example = space.example_input
    with torch.no_grad():
        made: Any = run(space.module(space.whole), example)
        expected: Any = run(space.model, example)
    torch.testing.assert_close(made, expected, rtol=1e-5, atol=1e-5)
    rng = np.random.default_rng(seed)
    for arch in [space.sample(rng) for _ in range(ARCHITECTURES)]:
        module = space.module(arch)
        run(module, example)
        assert space.to_text(arch) == write(compact(record(module, example))), arch
        assert space.params(arch) == sum(p.numel() for p in module.parameters()), arch


# --- parts of equal sizes


class Scales(nn.Module):
    """Parts of the channels by `split`, each of which goes through a layer of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.width = 16
        self.stem = nn.Conv2d(3, 64, 3, padding=1)
        self.scales = nn.ModuleList([nn.Conv2d(16, 16, 3, padding=1) for _ in range(3)])
        self.join, self.head = nn.Conv2d(64, 32, 1), nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        first, *parts = torch.split(self.stem(x).relu(), self.width, 1)
        made = [first, *[scale(part) for scale, part in zip(self.scales, parts, strict=True)]]
        return self.head(self.join(torch.cat(made, 1)).mean((2, 3)))


class Halves(nn.Module):
    """Halves of the channels by `chunk`, one of which is narrowed, as in C2f."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.narrow = nn.Conv2d(3, 64, 1), nn.Conv2d(32, 16, 3, padding=1)
        self.join, self.head = nn.Conv2d(80, 32, 1), nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.stem(x).chunk(2, 1)
        made = self.join(torch.cat([a, b, self.narrow(b).relu()], 1))
        return self.head(made.mean((2, 3)))


@pytest.mark.parametrize("model", [Scales, Halves])
def test_parts_by_chunk_and_split_are_narrowed_alike(model: type[nn.Module]) -> None:
    torch.manual_seed(0)
    space = Subnetworks(model(), torch.randn(2, 3, 6, 6))
    stem = space.groups[0]
    assert stem.name == "width.stem"
    assert stem.sizes[-1] == {Scales: 16, Halves: 32}[model]
    assert not space.unpruned
    check_sub_networks(space)


# --- one head


class OneKeyHead(nn.Module):
    """Linear attention: one head of keys and values, expanded to all heads of queries."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = 4
        self.stem = nn.Linear(6, 32)
        self.query, self.key, self.value = nn.Linear(32, 32), nn.Linear(32, 8), nn.Linear(32, 8)
        self.join, self.head = nn.Linear(32, 32), nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        queries = self.query(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)  # (N, heads, L, 8)
        context = self.key(x).transpose(1, 2).softmax(-1) @ self.value(x)  # (N, 8, 8)
        context = context.unsqueeze(1).expand(-1, self.heads, -1, -1)
        made = (queries @ context).transpose(1, 2).flatten(2)
        return self.head((x + self.join(made)).mean(1))


def test_an_expansion_to_one_head_is_no_operator() -> None:
    torch.manual_seed(0)
    space = Subnetworks(OneKeyHead(), torch.randn(2, 5, 6))
    (heads,) = [group for group in space.groups if group.kind == "heads"]
    one = space.architecture({**space.whole.as_dict(), heads.name: 1})
    assert "Expand" in space.to_text(space.whole)
    assert "Expand" not in space.to_text(one)
    check_sub_networks(space)


# --- blocks that return more than a tensor


class WithShares(nn.Module):
    """A residual block that returns a tuple, as those of language models."""

    def __init__(self, returns_shares: bool) -> None:
        super().__init__()
        self.returns_shares = returns_shares
        self.score, self.wide, self.narrow = nn.Linear(32, 1), nn.Linear(32, 64), nn.Linear(64, 32)

    def forward(self, mask: None, x: Tensor) -> tuple[Tensor, Tensor | None]:
        shares = self.score(x).softmax(1)
        x = x + self.narrow(self.wide(x * shares).relu())
        return x, shares if self.returns_shares else None


class ReturnsTuples(nn.Module):
    def __init__(self, returns_shares: bool) -> None:
        super().__init__()
        self.stem, self.head = nn.Linear(6, 32), nn.Linear(32, 4)
        self.blocks = nn.ModuleList([WithShares(returns_shares) for _ in range(2)])

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x, shares = block(None, x)
            assert shares is None or shares.shape == (*x.shape[:2], 1)
        return self.head(x.mean(1))


@pytest.mark.parametrize("returns_shares", [False, True])
def test_blocks_that_return_tuples_can_be_left_out(returns_shares: bool) -> None:
    torch.manual_seed(0)
    space = Subnetworks(ReturnsTuples(returns_shares), torch.randn(2, 5, 6))
    names = {block.name for stage in space.stages for block in stage.blocks}
    assert names == {"blocks.0", "blocks.1"}
    assert not space.unpruned
    check_sub_networks(space)


# --- constants that are computed from buffers


class Frozen(nn.Module):
    """A frozen batch normalization, as in detection models."""

    weight: Tensor
    bias: Tensor
    mean: Tensor
    variance: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        for name in ("weight", "bias", "mean"):
            self.register_buffer(name, torch.randn(width))
        self.register_buffer("variance", torch.rand(width))

    def forward(self, x: Tensor) -> Tensor:
        weight, bias, mean, variance = (
            y.reshape(1, -1, 1, 1) for y in (self.weight, self.bias, self.mean, self.variance)
        )
        scale = weight * (variance + 1e-5).rsqrt()
        return x * scale + (bias - mean * scale)


class Detector(nn.Module):
    """Two widths: numbers are written up to 64 channels, and not above."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 32, 3, padding=1), Frozen(32)
        self.second, self.wide_norm = nn.Conv2d(32, 128, 3, padding=1), Frozen(128)
        self.head = nn.Linear(128, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.first(x)).relu()
        return self.head(self.wide_norm(self.second(x)).relu().mean((2, 3)))


class Positions(nn.Module):
    """A table of positions, of which the first ones are read."""

    table: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.randn(1, 12, 32))
        self.stem, self.wide, self.head = nn.Linear(6, 32), nn.Linear(32, 64), nn.Linear(64, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x) + self.table[:, : x.size(1)]
        return self.head(self.wide(x).relu().mean(1))


@pytest.mark.parametrize(
    ("model", "shape", "names"),
    [
        (Detector, (2, 3, 6, 6), {"width.first", "width.second"}),
        (Positions, (2, 5, 6), {"width.stem", "width.wide"}),
    ],
)
def test_constants_of_buffers_are_narrowed_with_the_channels(
    model: type[nn.Module], shape: tuple[int, ...], names: set[str]
) -> None:
    torch.manual_seed(0)
    space = Subnetworks(model(), torch.randn(shape))
    assert {group.name for group in space.groups} == names
    assert not space.unpruned
    check_sub_networks(space)
    narrow = space.architecture({group.name: group.sizes[0] for group in space.groups})
    module, x = space.module(narrow), torch.randn(shape)
    model_of_file = space.to_onnx(narrow)
    assert to_text(model_of_file) == space.to_text(narrow)
    session = onnxruntime.InferenceSession(model_of_file.SerializeToString())
    (made,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    np.testing.assert_allclose(made, module(x).detach().numpy(), rtol=1e-4, atol=1e-5)


# --- what calls leave in a module


class Biases(nn.Module):
    """Attention with biases that are computed once for all calls until the next training."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = 4
        self.qkv, self.join = nn.Linear(32, 96), nn.Linear(32, 32)
        self.biases = nn.Parameter(torch.randn(4, 7))
        self.cache: dict[str, Tensor] = {}
        self.last: Tensor | None = None

    def train(self, mode: bool = True) -> Biases:
        super().train(mode)
        if mode:
            self.cache.clear()
            self.last = None
        return self

    def forward(self, x: Tensor) -> Tensor:
        if not self.cache:
            self.cache["cpu"] = self.biases[:, torch.arange(49) % 7].unflatten(1, (7, 7))
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        shares = (q @ k.transpose(-2, -1) + self.cache["cpu"]).softmax(-1)
        self.last = self.join((shares @ v).transpose(1, 2).flatten(2))
        return self.last


class CachesBiases(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.attention, self.head = nn.Linear(6, 32), Biases(), nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        return self.head((x + self.attention(x)).mean(1))


def test_what_a_model_has_cached_is_not_inherited() -> None:
    torch.manual_seed(0)
    model, x = CachesBiases().eval(), torch.randn(2, 7, 6)
    expected = model(x)
    space = Subnetworks(model, x)
    assert not space.unpruned
    check_sub_networks(space)
    torch.testing.assert_close(model(x), expected)
    # The model's own cache is used again, and its copies have none.
    assert model.attention.cache["cpu"].device.type == "cpu"
    assert not space.module(space.uniform(0.5)).get_submodule("attention").cache


# --- sizes in attributes


class CrossStage(nn.Module):
    """Its attribute has the size of several axes by chance."""

    def __init__(self, read: int, made: int, inner: int) -> None:
        super().__init__()
        self.expand_chs = inner
        self.down, self.expand = nn.Conv2d(read, made, 3, padding=1), nn.Conv2d(made, inner, 1)
        self.part, self.join = nn.Conv2d(inner // 2, inner // 2, 1), nn.Conv2d(inner, made, 1)

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.expand(self.down(x)).split(self.expand_chs // 2, 1)
        return self.join(torch.cat([a, self.part(b)], 1))


class CrossStages(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stages = nn.Sequential(CrossStage(3, 64, 64), CrossStage(64, 48, 96))
        self.head = nn.Linear(48, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.stages(x).mean((2, 3)))


def test_an_attribute_may_be_the_size_of_a_farther_axis() -> None:
    torch.manual_seed(0)
    space = Subnetworks(CrossStages(), torch.randn(2, 3, 6, 6))
    assert not space.unpruned
    check_sub_networks(space)


# --- what shows only in some sub-networks, or only in training


class EqualWidths(nn.Module):
    """Four branches, of which the first and the last must be equally wide."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.ModuleList([nn.Linear(8, 32) for _ in range(4)])
        self.narrow = nn.ModuleList([nn.Linear(32, 8) for _ in range(4)])

    def forward(self, x: Tensor) -> Tensor:
        inner = [wide(x).relu() for wide in self.wide]
        if inner[0].shape != inner[3].shape:
            raise ValueError("the first and the last branch differ")
        for y, narrow in zip(inner, self.narrow, strict=True):
            x = x + narrow(y)
        return x


def test_widths_that_must_be_equal_stay_whole() -> None:
    torch.manual_seed(0)
    space = Subnetworks(EqualWidths(), torch.randn(2, 8))
    assert [group.name for group in space.groups] == ["width.wide.1", "width.wide.2"]
    assert {"width.wide.0", "width.wide.3"} == space.unpruned.keys()
    check_sub_networks(space)


class Auxiliary(nn.Module):
    """Has a second head in training, as GoogLeNet."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 32), nn.Linear(32, 32)
        self.norm, self.head, self.other = nn.BatchNorm1d(32), nn.Linear(32, 4), nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Any:
        x = self.first(x).relu()
        y = self.head(self.norm(self.second(x)))
        return (y, self.other(x)) if self.training else y


def test_sub_networks_run_in_training_mode_as_the_model_does() -> None:
    torch.manual_seed(0)
    space = Subnetworks(Auxiliary(), torch.randn(1, 8))
    assert [group.name for group in space.groups] == ["width.second"]
    assert "does not train with other sizes" in space.unpruned["width.first"]
    y, other = space.module(space.uniform(0.5)).train()(torch.randn(4, 8))
    assert y.shape == other.shape == (4, 4)


class Masked(nn.Module):
    """Replaces random places of its input in training, as models of speech; that needs data."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(8, 32), nn.Linear(32, 32), nn.Linear(32, 4)
        self.replacement = nn.Parameter(torch.randn(32))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x).relu()
        if self.training:
            x = x.clone()
            x[torch.rand(x.shape[:2]) < 0.5] = self.replacement
        made: Tensor = self.head(self.second(x).relu())
        return made


def test_a_module_that_trains_on_data_alone_is_tried_on_data() -> None:
    torch.manual_seed(0)
    model, example = Masked(), torch.randn(1, 5, 8)
    drawn = torch.get_rng_state()
    space = Subnetworks(model, example)
    assert torch.equal(torch.get_rng_state(), drawn)
    assert [group.name for group in space.groups] == ["width.second"]
    assert "does not train with other sizes" in space.unpruned["width.first"]
    module = space.module(space.uniform(0.5))
    assert module.train()(torch.randn(4, 5, 8)).shape == (4, 5, 4)


class Shortcut(nn.Module):
    """A residual block whose code compares its widths, as those of diffusion models do."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.inputs, self.outputs = inputs, outputs
        self.first = nn.Conv2d(inputs, 32, 3, padding=1)
        self.last = nn.Conv2d(32, outputs, 3, padding=1)
        self.shortcut = nn.Conv2d(inputs, outputs, 1)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.last(self.first(x).relu())
        if self.inputs != self.outputs:
            x = self.shortcut(x)
        return x + made


def test_widths_that_the_code_compares_keep_their_order() -> None:
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 32, 3), Shortcut(32, 64), Shortcut(64, 128)]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 4)]
    space = Subnetworks(nn.Sequential(*layers, *head), torch.randn(2, 3, 8, 8))
    for seed in range(4):
        check_sub_networks(space, seed)


def test_the_narrower_of_two_compared_widths_has_all_sizes() -> None:
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 32, 3), Shortcut(32, 64), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    space = Subnetworks(nn.Sequential(*layers, nn.Linear(64, 4)), torch.randn(2, 3, 8, 8))
    sizes = {group.name: group.sizes for group in space.groups}
    assert sizes["width.0"] == (8, 16, 24, 32)
    assert sizes["width.1.last"] == (48, 64)
    (reason,) = space.unpruned.values()
    assert reason == "the module's code compares it with width.0, and it stays larger"


class SharedPositions(nn.Module):
    """A block that returns the positions that it was given, as those of T5 do."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.narrow = nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, None]:
        return x + self.narrow((self.wide(x) + positions).relu()), positions, None


class Positioned(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.stem = nn.Parameter(torch.randn(5, 1)), nn.Linear(6, 16)
        self.blocks = nn.ModuleList([SharedPositions() for _ in range(3)])
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        positions = self.table * 2
        x = self.stem(x) + positions
        for block in self.blocks:
            x, positions, _ = block(x, positions)
        made: Tensor = self.head(x.mean(1))
        return made


def test_blocks_that_return_their_arguments_can_be_left_out() -> None:
    torch.manual_seed(0)
    space = Subnetworks(Positioned(), torch.randn(2, 5, 6))
    (stage,) = space.stages
    assert {block.name for block in stage.blocks} == {"blocks.0", "blocks.1", "blocks.2"}
    check_sub_networks(space)


# --- weights that are computed


def test_layers_with_spectral_norm_stay_whole_alone_and_say_why() -> None:
    torch.manual_seed(0)
    spectral = nn.utils.parametrizations.spectral_norm
    layers = [nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 32, 3), nn.ReLU()]
    layers += [spectral(nn.Conv2d(32, 16, 1)), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    space = Subnetworks(nn.Sequential(*layers, nn.Linear(16, 4)), torch.randn(2, 3, 8, 8))
    assert [group.name for group in space.groups] == ["width.0"]
    reason = "its weight is computed in a way that cannot be followed, as by spectral_norm"
    assert space.unpruned["4"] == reason
    assert set(space.unpruned.values()) == {reason}
    check_sub_networks(space)
