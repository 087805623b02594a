"""Properties that sub-networks of all kinds of models have."""

from __future__ import annotations

import io
from functools import cache
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from search_spaces import Subnetworks, to_text
from search_spaces.ir.pytorch import run
from search_spaces.subnetworks.axes import atoms_of, labels_of
from tests.search_spaces.subnetworks.small_networks import NETWORKS

TOLERANCE = 1e-5
SAMPLES = 3
# Networks whose every group can be pruned, and the kinds of choices that they must have.
KINDS = {
    "resnet": ("width", "depth", "kernel"),
    "mobilenetv3": ("width", "depth", "kernel"),
    "efficientnet": ("width", "depth", "kernel"),
    "convnext": ("width", "depth", "kernel"),
    "vit": ("width", "heads", "depth"),
    "swin": ("width", "heads", "depth"),
    "torchvision vit": ("width", "heads", "depth"),
    "encoder": ("width", "heads", "depth"),
    "small gpt": ("width", "depth"),
    "torchvision swin": ("width", "depth"),
    "bert": ("width", "heads", "depth"),
    "gpt2": ("width", "heads", "depth"),
    "llama": ("width", "heads", "depth"),
    "distilbert": ("width", "heads", "depth"),
    "albert": ("width", "heads"),
    "t5": ("width", "heads", "depth"),
    "xcit": ("width", "depth"),
    "regnet": ("width", "depth"),
    "u-net": ("width",),
    "densenet": ("width",),
    "lstm": ("width",),
    "gru": ("width",),
    "last states": ("width",),
    "mixer": ("width", "depth"),
    "weight standardization": ("width",),
    "plain": ("width", "kernel"),
}


@cache
def space_of(name: str) -> tuple[Subnetworks, Any]:
    """The space of a network, and its example input."""
    module, example = NETWORKS[name]()
    return Subnetworks(module, example, kernel=True, name=name), example


def output(module: nn.Module, example: Any) -> Tensor:
    """The first tensor of a module's output."""
    with torch.no_grad():
        made = run(module.eval(), example)
    return next(x for x in tree_leaves(made) if isinstance(x, Tensor))


@pytest.mark.parametrize("name", NETWORKS)
def test_the_whole_network_has_the_models_outputs(name: str) -> None:
    space, example = space_of(name)
    whole = space.module(space.whole)
    assert torch.allclose(output(whole, example), output(space.model, example), atol=TOLERANCE)
    assert whole.state_dict().keys() == space.model.state_dict().keys()
    assert whole is not space.model


@pytest.mark.parametrize("name", NETWORKS)
def test_random_sub_networks_run_and_have_the_computed_text_and_parameters(name: str) -> None:
    space, example = space_of(name)
    rng = np.random.default_rng(0)
    shape = output(space.model, example).shape
    for arch in [space.sample(rng) for _ in range(SAMPLES)]:
        module = space.module(arch)
        made = output(module, example)
        assert made.shape == shape
        assert torch.isfinite(made).all()
        model = space.to_onnx(arch)
        assert space.to_text(arch) == to_text(model), arch
        np.testing.assert_allclose(
            _in_onnx_runtime(model, example), made.numpy(), rtol=1e-3, atol=1e-4
        )
        assert space.params(arch) == sum(p.numel() for p in module.parameters()), arch
        assert space.flops(arch) <= space.flops(space.whole)
        assert space.parse(space.format(arch)) == arch


def _in_onnx_runtime(model: onnx.ModelProto, example: Any) -> np.ndarray:
    """The first output of an ONNX model for an example input."""
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    tensors = [x.numpy() for x in tree_leaves(example) if isinstance(x, Tensor)]
    return session.run(
        None, {i.name: x for i, x in zip(session.get_inputs(), tensors, strict=True)}
    )[0]


@pytest.mark.parametrize("name", NETWORKS)
def test_channels_that_nothing_reads_can_be_removed_without_any_change(name: str) -> None:
    module, example = NETWORKS[name]()
    # 1. Nothing reads the channels of a random part of each group that allows it.
    analysed = Subnetworks(module, example, name=name, depth=False)._prunable
    rng, shortened = np.random.default_rng(1), {}
    with torch.no_grad():
        for group in analysed.choices.groups:
            if not group.exact:
                continue
            size = group.sizes[0]
            unread = rng.permutation(group.atom.size)[size:]
            shortened[group.name] = size
            for role in analysed.coupling.roles:
                if any(group.atom in set(atoms_of(axis)) for axis in role.reads):
                    _ignore(analysed, role, group.atom, unread)
    # 2. The space finds and removes them.
    space = Subnetworks(module, example, name=name, depth=False)
    arch = space.architecture({**space.whole.as_dict(), **shortened})
    changed = (output(space.module(arch), example) - output(module, example)).abs().max()
    scale = max(1.0, float(output(module, example).abs().max()))
    assert changed <= TOLERANCE * scale
    if shortened:
        assert space.params(arch) < space.params(space.whole)


def _ignore(analysed: Any, role: Any, atom: Any, unread: np.ndarray) -> None:
    """Zero what a weight reads from these positions."""
    made = [set(atoms_of(axis)) for axis in role.makes]
    for value in analysed.reading.origins(role.value) or [role.value]:
        for dim, axis in enumerate(analysed.coupling.weights[value]):
            if atom in set(atoms_of(axis)) and set(atoms_of(axis)) not in made:
                places = np.flatnonzero(np.isin(labels_of(axis, atom), unread))
                analysed.reading.sources[value].index_fill_(dim, torch.from_numpy(places), 0.0)


@pytest.mark.parametrize(("name", "kinds"), KINDS.items())
def test_the_choices_of_a_kind_of_network(name: str, kinds: tuple[str, ...]) -> None:
    space, _ = space_of(name)
    assert {choice.partition(".")[0] for choice in space.whole.as_dict()} >= {*kinds}


@pytest.mark.parametrize("name", ["resnet", "vit", "lstm", "torchvision vit"])
def test_a_sub_network_can_be_trained_and_saved(name: str) -> None:
    space, example = space_of(name)
    module = space.module(space.sample(np.random.default_rng(2))).train()
    made = run(module, example)
    next(x for x in tree_leaves(made) if isinstance(x, Tensor)).square().mean().backward()
    assert all(p.grad is not None for p in module.parameters())
    before = space.model.state_dict()
    stored = io.BytesIO()
    torch.save(module.state_dict(), stored)
    stored.seek(0)
    again = space.module(space.sample(np.random.default_rng(2)))
    again.load_state_dict(torch.load(stored, weights_only=True))
    assert all(torch.equal(x, space.model.state_dict()[key]) for key, x in before.items())
