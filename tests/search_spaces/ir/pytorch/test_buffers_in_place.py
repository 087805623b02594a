"""Claims about buffers that a module's code changes: a recording sees the changes, and undoes them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnxruntime
import pytest
import torch
from torch import Tensor, nn

from search_spaces import Subnetworks
from search_spaces.ir.onnx import to_model
from search_spaces.ir.pytorch import record, record_with_numbers


class Code(nn.Module):
    """Runs one function on its buffers and input."""

    def __init__(self, code: Callable[[Code, Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm = nn.Linear(8, 16), nn.BatchNorm1d(16)
        self.last = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 3))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self.register_buffer("state", torch.randn(16, 16))
        self.register_buffer("late", None, persistent=False)
        self.register_buffer("unknown", torch.full((4,), torch.nan))
        self.attribute = torch.zeros(3)
        self.code = code

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.last(self.norm(self.code(self, self.first(x))))
        return made

    steps: Tensor
    state: Tensor


def counts(m: Code, x: Tensor) -> Tensor:
    m.steps += 1
    m.attribute.add_(1)
    return x + m.steps


def clears(m: Code, x: Tensor) -> Tensor:
    first = x @ m.state
    m.state.zero_()
    return first + x @ m.state


def writes_into_a_view(m: Code, x: Tensor) -> Tensor:
    first = x @ m.state
    m.state.view(-1)[:40] = 2
    return first + x @ m.state


def writes_with_out(m: Code, x: Tensor) -> Tensor:
    first = x @ m.state
    torch.mul(m.state, 3, out=m.state)
    return first + x @ m.state


def replaces(m: Code, x: Tensor) -> Tensor:
    m.state = m.state * 2
    return x @ m.state


def keeps_a_value(m: Code, x: Tensor) -> Tensor:
    m.state = x
    return x


def registers(m: Code, x: Tensor) -> Tensor:
    m.late = torch.ones(16)
    m.register_buffer("further", torch.ones(16))
    return x * m.late


def assigns_data(m: Code, x: Tensor) -> Tensor:
    m.state.data = torch.ones(16, 2)
    return x


CODES = [
    counts,
    clears,
    writes_into_a_view,
    writes_with_out,
    replaces,
    keeps_a_value,
    registers,
    assigns_data,
]


def tensors(module: Code) -> dict[str, Tensor]:
    state = dict([*module.named_parameters(), *module.named_buffers()])
    return state | {"attribute": module.attribute}


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("read", [record, Subnetworks])
def test_a_module_is_the_same_after_it_was_read(
    read: Callable[..., object], code: Callable[[Code, Tensor], Tensor]
) -> None:
    module = Code(code).eval()
    before = tensors(module)
    numbers = {name: x.clone() for name, x in before.items()}
    read(module, torch.randn(2, 8))
    after = tensors(module)
    assert after.keys() == before.keys()
    for name, x in after.items():
        assert x is before[name]
        assert torch.equal(x.nan_to_num(7), numbers[name].nan_to_num(7)), name


@pytest.mark.parametrize("code", CODES)
def test_written_numbers_are_those_at_the_time_they_are_read(
    code: Callable[[Code, Tensor], Tensor],
) -> None:
    module = Code(code).eval()
    x = torch.randn(2, 8)
    graph, numbers = record_with_numbers(module, x)
    model = to_model(graph, numbers=numbers)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    (made,) = session.run(None, {"input": x.numpy()})
    expected = module(x).detach().numpy()
    np.testing.assert_allclose(made, expected, rtol=1e-4, atol=1e-4)
