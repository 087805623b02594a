"""Claims about modules that tools of torch transformed: read as they were before, or refused with
what to do.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
from torch import nn

from search_spaces import InputError, TorchSpace

X = torch.zeros(1, 8)


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 2))


def compiled() -> nn.Module:
    module = torch.compile(network())
    assert isinstance(module, nn.Module)
    return module


def compiled_in_place() -> nn.Module:
    module = network()
    module.compile()
    return module


def quantized() -> nn.Module:
    return torch.ao.quantization.quantize_dynamic(network(), {nn.Linear}, dtype=torch.qint8)


def text(build: Callable[[], nn.Module]) -> str:
    space = TorchSpace(lambda trial: build(), X)
    return space.to_text(space.architecture({}))


@pytest.mark.parametrize(
    "build",
    [
        compiled,
        lambda: nn.Sequential(compiled()),
        compiled_in_place,
    ],
)
def test_compiled_modules_are_read_as_they_were_without_a_warning(
    build: Callable[[], nn.Module],
) -> None:
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        assert text(build) == text(network)
    assert not [w for w in shown if w.category is UserWarning], "warnings of the compiler"


TRANSFORMED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "traced": (lambda: torch.jit.trace(network(), X), "scripted or traced"),
    "scripted": (lambda: torch.jit.script(network()), "scripted or traced"),
    "a traced layer": (lambda: nn.Sequential(torch.jit.trace(network(), X)), "scripted or traced"),
    "quantized": (quantized, "use the module before its quantization"),
    "exported": (
        lambda: torch.export.export(network(), (X,)).module(),
        "use the module that was exported",
    ),
    "orthogonal": (
        lambda: nn.Sequential(nn.utils.parametrizations.orthogonal(nn.Linear(8, 4))),
        "orthogonal parametrizations",
    ),
}


@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"
)
@pytest.mark.parametrize("name", TRANSFORMED)
def test_other_transformed_modules_are_refused_with_what_to_do(name: str) -> None:
    build, remedy = TRANSFORMED[name]
    with pytest.raises(InputError, match=remedy) as refusal:
        text(build)
    assert len(str(refusal.value)) < 250
    assert "\n" not in str(refusal.value)


@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"
)
def test_quantized_modules_with_weights_are_refused_too() -> None:
    from search_spaces.ir.pytorch import record

    with pytest.raises(InputError, match="use the module before its quantization"):
        record(quantized(), X)


def test_network_that_may_be_quantized_later_is_read() -> None:
    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.sum = nn.Linear(8, 8), torch.ao.nn.quantized.FloatFunctional()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.sum.add(self.layer(x), x)

    assert "Add" in text(Sum)
