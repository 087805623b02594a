"""`Subnetworks`: settings, weights, importance, errors."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from search_spaces import InputError, Subnetworks
from search_spaces.ir.pytorch.libraries import build
from search_spaces.testing import check_space
from tests.search_spaces.subnetworks.small_networks import SmallGPT


class Net(nn.Module):
    """Two residual blocks between a stem and a head."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.blocks = nn.Sequential(*[Block(width) for _ in range(2)])
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


class Block(nn.Module):
    """x + f(x)"""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.wide, self.norm = nn.Conv2d(width, 2 * width, 5, padding=2), nn.BatchNorm2d(2 * width)
        self.narrow = nn.Conv2d(2 * width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.narrow(self.norm(self.wide(x)).relu())


EXAMPLE = torch.zeros(2, 3, 8, 8)


def net(seed: int = 0) -> Net:
    torch.manual_seed(seed)
    return Net()


def test_the_space_passes_the_conformance_checks() -> None:
    check_space(Subnetworks(net(), EXAMPLE, kernel=True))


def test_the_choices_have_the_names_of_layers() -> None:
    space = Subnetworks(net(), EXAMPLE, kernel=True)
    assert space.whole.as_dict() == {
        "depth.blocks": 2,
        "width.stem": 32,
        "width.blocks.0.wide": 64,
        "width.blocks.1.wide": 64,
        "kernel.blocks.0.wide": 5,
        "kernel.blocks.1.wide": 5,
    }
    assert space.unpruned == {}
    assert space.summary == "3 groups of channels, 2 blocks, 2 kernels to choose from"
    assert [group.sizes for group in space.groups] == [
        (8, 16, 24, 32),
        (16, 32, 48, 64),
        (16, 32, 48, 64),
    ]


def test_widths_inside_of_a_block_that_is_left_out_are_not_chosen() -> None:
    space = Subnetworks(net(), EXAMPLE, kernel=True)
    choices = {
        "depth.blocks": 1,
        "width.stem": 16,
        "width.blocks.1.wide": 16,
    }
    arch = space.architecture({**choices, "kernel.blocks.1.wide": 3})
    module = space.module(arch)
    assert sum(p.numel() for p in module.parameters()) == space.params(arch)
    assert module.get_parameter("blocks.1.wide.weight").shape == (16, 16, 3, 3)
    with pytest.raises(InputError, match=re.escape("width.blocks.0.wide")):
        space.architecture({**arch.as_dict(), "width.blocks.0.wide": 16})


def test_a_kernel_is_cut_to_its_centre() -> None:
    model = net()
    space = Subnetworks(model, EXAMPLE, width=(1,), depth=False, kernel=(3,))
    arch = space.architecture({**space.whole.as_dict(), "kernel.blocks.0.wide": 3})
    cut = space.module(arch).get_submodule("blocks.0.wide")
    assert isinstance(cut, nn.Conv2d)
    assert torch.equal(cut.weight, model.get_parameter("blocks.0.wide.weight")[:, :, 1:4, 1:4])
    assert (cut.kernel_size, cut.padding) == ((3, 3), (1, 1))
    with torch.no_grad():
        model.get_parameter("blocks.0.wide.weight")[:, :, [0, -1]] = 0
        model.get_parameter("blocks.0.wide.weight")[..., [0, -1]] = 0
        x = torch.randn(2, 3, 8, 8)
        assert torch.allclose(space.module(arch)(x), model.eval()(x), atol=1e-5)


def test_the_most_important_channels_stay_in_their_order() -> None:
    model = net()
    with torch.no_grad():
        model.get_parameter("blocks.0.narrow.weight")[:, 16:] *= 10
        model.get_parameter("blocks.0.narrow.weight")[:, 3] *= 100
    space = Subnetworks(model, EXAMPLE, round_to=1, width=(0.5, 1))
    module = space.module(space.architecture({**space.whole.as_dict(), "width.blocks.0.wide": 32}))
    rows = [
        int((model.get_parameter("blocks.0.wide.weight") == row).all((1, 2, 3)).nonzero())
        for row in module.get_parameter("blocks.0.wide.weight")
    ]
    assert rows == sorted(rows)
    assert rows[0] == 3
    assert all(row == 3 or row >= 16 for row in rows)


def test_one_threshold_for_all_groups_narrows_the_less_important_ones() -> None:
    model = net()
    with torch.no_grad():
        model.get_parameter("blocks.0.narrow.weight")[:, 16:] *= 0.01
    space = Subnetworks(model, EXAMPLE)
    assert space.ranked(1) == space.whole
    chosen = space.ranked(0.7).as_dict()
    assert chosen["width.blocks.0.wide"] == 16
    assert chosen["width.blocks.1.wide"] >= 48
    shares = [space.params(space.ranked(share)) for share in (0.2, 0.5, 0.8, 1)]
    assert shares == sorted(shares)
    with pytest.raises(InputError, match="share = 0"):
        space.ranked(0)


def test_uniform_widths_are_the_same_share_of_every_group() -> None:
    space = Subnetworks(net(), EXAMPLE)
    sizes = [space.uniform(0.5).as_dict()[group.name] for group in space.groups]
    assert sizes == [group.sizes[-1] / 2 for group in space.groups]


def test_the_first_designs_are_the_model_and_ever_smaller_pruned_networks() -> None:
    space = Subnetworks(net(), EXAMPLE, width=[i / 8 for i in range(1, 9)])
    designs = space.initial_designs(6)
    flops = [space.flops(design) / space.flops(space.whole) for design in designs]
    assert designs[0] == space.whole
    assert len(set(designs)) == 6
    assert flops == sorted(flops, reverse=True)
    assert flops == pytest.approx([1, 0.85, 0.7, 0.55, 0.4, 0.25], abs=0.1)
    assert space.initial_designs(1) == [space.whole]
    assert space.initial_designs(0) == []


def _batches(count: int = 2) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(4, 3, 8, 8, generator=generator) for _ in range(count)]


@pytest.mark.parametrize("importance", ["taylor", "activation"])
def test_importance_from_data_sees_channels_that_never_answer(importance: str) -> None:
    model = net()
    with torch.no_grad():
        model.get_parameter("blocks.0.norm.weight")[::2] = 0
        model.get_parameter("blocks.0.norm.bias")[
            ::2
        ] = -1  # behind the activation these channels are 0
    batches: list[Any] = _batches()
    if importance == "taylor":
        batches = [(x, torch.tensor([0, 1, 2, 3])) for x in batches]
    space = Subnetworks(
        model, EXAMPLE, importance=importance, importance_data=batches, width=(0.5, 1)
    )
    module = space.module(space.architecture({**space.whole.as_dict(), "width.blocks.0.wide": 32}))
    if importance == "taylor":
        assert torch.equal(
            module.get_parameter("blocks.0.wide.weight"),
            model.get_parameter("blocks.0.wide.weight")[1::2],
        )
        x = torch.randn(2, 3, 8, 8)
        assert torch.allclose(module(x), model.eval()(x), atol=1e-5)
        assert all(p.grad is None and p.requires_grad for p in model.parameters())
    magnitude = Subnetworks(model, EXAMPLE, width=(0.5, 1))
    other = magnitude.module(
        magnitude.architecture({**space.whole.as_dict(), "width.blocks.0.wide": 32})
    )
    assert not torch.equal(
        other.get_parameter("blocks.0.wide.weight"), module.get_parameter("blocks.0.wide.weight")
    )


@pytest.mark.parametrize(
    ("kept", "missing"), [("stem", "width.stem"), ("blocks.0", "width.blocks.0.wide")]
)
def test_kept_layers_stay_whole(kept: str, missing: str) -> None:
    space = Subnetworks(net(), EXAMPLE, keep=(kept,), kernel=True)
    assert missing not in space.whole.as_dict()
    if kept == "blocks.0":
        assert {"depth.blocks.0", "kernel.blocks.0.wide"}.isdisjoint(space.whole.as_dict())
    assert "width.blocks.1.wide" in space.whole.as_dict()


def test_round_to_is_of_channels_not_of_heads() -> None:
    layer = nn.TransformerEncoderLayer(48, 4, 64, batch_first=True)
    model = nn.Sequential(nn.Linear(5, 48), layer, nn.Linear(48, 3))
    space = Subnetworks(model, torch.zeros(2, 6, 5), round_to=16)
    # A head has 12 channels: of 4 heads, only 4 together have a multiple of 16.
    assert {group.name: group.sizes for group in space.groups} == {
        "width.0": (16, 32, 48),
        "width.1.linear1": (16, 32, 48, 64),
    }
    assert "heads.1.self_attn" in space.unpruned


# --- weights


def test_weights_come_from_safetensors_and_state_dicts(tmp_path: Path) -> None:
    trained = net(seed=1)
    x = torch.randn(2, 3, 8, 8)
    save_file(trained.state_dict(), tmp_path / "net.safetensors")
    torch.save(trained.state_dict(), tmp_path / "net.pt")
    torch.save(
        {"state_dict": {f"module.{k}": v for k, v in trained.state_dict().items()}},
        tmp_path / "parallel.pth",
    )
    half = {f"_orig_mod.{k}": v.bfloat16() for k, v in trained.state_dict().items()}
    torch.save(half, tmp_path / "compiled.pt")
    torch.save(
        {"state_dict": {f"model.net.{k}": v for k, v in trained.state_dict().items()}},
        tmp_path / "lightning.ckpt",
    )
    for name in ("net.safetensors", "net.pt", "parallel.pth", "compiled.pt", "lightning.ckpt"):
        space = Subnetworks(net(), EXAMPLE, weights=tmp_path / name)
        tolerance = 0.05 if name == "compiled.pt" else 1e-5
        assert torch.allclose(space.module(space.whole)(x), trained.eval()(x), atol=tolerance)


def test_one_of_the_tied_weights_of_a_model_is_enough(tmp_path: Path) -> None:
    class Language(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(40, 16)
            self.wide, self.narrow = nn.Linear(16, 64), nn.Linear(64, 16)
            self.head = nn.Linear(16, 40, bias=False)
            self.head.weight = self.embedding.weight

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            x = self.embedding(ids)
            return self.head(x + self.narrow(self.wide(x).relu()))

    torch.manual_seed(1)
    trained = Language().eval()
    # As transformers writes it: safetensors holds no tensor twice.
    state = {name: x for name, x in trained.state_dict().items() if name != "head.weight"}
    save_file(state, tmp_path / "model.safetensors")
    ids = torch.randint(40, (2, 5))
    space = Subnetworks(Language(), ids, weights=tmp_path / "model.safetensors")
    assert torch.allclose(space.module(space.whole)(ids), trained(ids), atol=1e-5)
    half = space.module(space.uniform(0.5))
    assert half.get_submodule("wide").get_parameter("weight").shape[0] < 64
    assert half(ids).shape == (2, 5, 40)


def test_a_function_that_returns_the_module(tmp_path: Path) -> None:
    torch.save(net(seed=1).state_dict(), tmp_path / "net.pt")
    space = Subnetworks(lambda: Net(), EXAMPLE, weights=tmp_path / "net.pt", name="made")
    assert torch.equal(
        space.module(space.whole).get_parameter("head.weight"), net(seed=1).head.weight
    )


def _refused(tmp_path: Path, state: Any) -> str:
    torch.save(state, tmp_path / "bad.pt")
    with pytest.raises(InputError) as error:
        Subnetworks(net(), EXAMPLE, weights=tmp_path / "bad.pt")
    message = str(error.value)
    assert "\n" not in message
    assert "bad.pt" in message
    return message


def test_weights_that_do_not_fit_are_named(tmp_path: Path) -> None:
    state = net().state_dict()
    renamed = {key.replace("head", "heads"): value for key, value in state.items()}
    assert "missing head.weight (the nearest is heads.weight)" in _refused(tmp_path, renamed)
    wider = {**state, "head.weight": torch.zeros(10, 64)}
    assert "head.weight [10, 64] instead of [10, 32]" in _refused(tmp_path, wider)
    assert "missing" in _refused(tmp_path, {})
    assert "state dict" in _refused(tmp_path, [1, 2])


def test_a_pickled_module_is_not_run(tmp_path: Path) -> None:
    torch.save(net(), tmp_path / "net.pt")
    with pytest.raises(InputError, match=r"net.pt: not a .safetensors file or state dict"):
        Subnetworks(net(), EXAMPLE, weights=tmp_path / "net.pt")
    with pytest.raises(InputError, match="no such file of weights"):
        Subnetworks(net(), EXAMPLE, weights=tmp_path / "none.pt")


# --- what cannot be read or pruned


class DataDependent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) if x.sum() > 0 else x


class HardCoded(nn.Module):
    """Its forward has the number of channels in its code."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 32), nn.Linear(32, 32)
        self.third, self.head = nn.Linear(32, 32), nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x).reshape(-1, 4, 8).flatten(1)
        return self.head(self.third(self.second(x).relu()).relu())


def test_sizes_in_the_code_are_found_by_trying_and_named() -> None:
    space = Subnetworks(HardCoded(), torch.zeros(2, 8))
    assert {group.name for group in space.groups} == {"width.second", "width.third"}
    (reason,) = [reason for name, reason in space.unpruned.items() if "first" in name]
    assert "other sizes" in reason or "sizes of its own" in reason
    assert space.summary.startswith("2 groups of channels to choose from; whole stay width.first (")


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (DataDependent(), "depends on the data"),
        (nn.Linear(8, 10), "nothing of the model can be left out"),
        (nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 10)), "too few"),
    ],
)
def test_models_without_sub_networks_are_refused(model: nn.Module, message: str) -> None:
    with pytest.raises(InputError, match=message) as error:
        Subnetworks(model, torch.zeros(2, 8))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"width": (0.5, 2)}, "width"),
        ({"width": ()}, "width"),
        ({"width": "wide"}, "width"),
        ({"round_to": 0}, "round_to"),
        ({"depth": 3}, "depth"),
        ({"kernel": (2,)}, "kernel"),
        ({"keep": ("stern",)}, "stem"),
        ({"importance": "taylr"}, "taylor"),
        ({"importance": "taylor"}, "importance_data"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Subnetworks(net(), EXAMPLE, **settings)


def test_a_model_without_an_example_is_refused() -> None:
    with pytest.raises(InputError, match=r"such as `net\.example_input = .*, or as the second arg"):
        Subnetworks(net())


def test_the_model_is_not_changed_and_sub_networks_do_not_share_memory() -> None:
    model = net()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    space = Subnetworks(model, EXAMPLE)
    module = space.module(space.sample(np.random.default_rng(0)))
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_()
    assert all(torch.equal(value, model.state_dict()[key]) for key, value in before.items())


class Scaled(nn.Module):
    """Sizes in a tuple, positions in a buffer, a window of the channels as a chunk, and a weight
    that is computed.
    """

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 32)
        self.shape = (1, 32)
        self.scale = nn.Parameter(torch.rand(32))
        self.register_buffer("positions", torch.randn(9, 32))
        self.gated = nn.Linear(32, 48)
        self.last = nn.utils.parametrizations.weight_norm(nn.Linear(24, 16))
        self.head = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x) * self.scale.view(self.shape) + self.positions
        a, b = self.gated(x).chunk(2, -1)
        return self.head(self.last(a * b.sigmoid()).relu().mean(1))


def test_sizes_in_tuples_buffers_and_computed_weights_are_mended() -> None:
    torch.manual_seed(0)
    model = Scaled().eval()
    space = Subnetworks(model, torch.zeros(2, 9, 6))
    assert {group.name: group.sizes for group in space.groups} == {
        "width.first": (8, 16, 24, 32),
        "width.gated": (8, 16, 24),
        "width.last": (8, 16),
    }
    x = torch.randn(2, 9, 6)
    rng = np.random.default_rng(0)
    for arch in [space.whole, *[space.sample(rng) for _ in range(4)]]:
        module = space.module(arch)
        assert module(x).isfinite().all()
        assert module.positions.shape == (9, arch.as_dict()["width.first"])
    assert torch.allclose(space.module(space.whole)(x), model(x), atol=1e-5)


def test_heads_whose_width_follows_from_the_channels_are_chosen_with_them() -> None:
    torch.manual_seed(0)
    space = Subnetworks(SmallGPT(), torch.zeros(2, 7, dtype=torch.int64))
    (group,) = [group for group in space.groups if group.tied]
    assert (group.name, group.sizes) == ("width.words", (8, 16, 24, 32))
    assert space.unpruned == {}
    module = space.module(space.architecture({**space.whole.as_dict(), "width.words": 8}))
    block: Any = module.get_submodule("blocks.1")
    assert (block.n_embd, block.n_head) == (8, 1)
    assert module.get_parameter("blocks.0.c_attn.weight").shape == (24, 8)
    assert module.get_parameter("head.weight") is module.get_parameter("words.weight")


def test_a_candidate_of_resnet50_takes_less_than_fifty_milliseconds() -> None:
    """Sampling, text, parameters and FLOPs, without building the module; in processor time."""
    module, _ = build("timm", "resnet50")
    space = Subnetworks(module, torch.zeros(1, 3, 224, 224), name="resnet50")
    rng, seconds = np.random.default_rng(0), []
    for _ in range(15):
        started = time.process_time()
        arch = space.sample(rng)
        assert space.to_text(arch)
        assert space.params(arch) < 26e6
        assert space.flops(arch) < 4.2e9
        seconds.append(time.process_time() - started)
    assert np.median(seconds) < 0.05
