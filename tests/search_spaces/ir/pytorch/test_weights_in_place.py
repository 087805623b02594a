"""Claims about weights that a module's code changes in place: the written numbers have the change."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnxruntime
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from search_spaces.common.errors import InputError
from search_spaces.ir.onnx import to_model
from search_spaces.ir.pytorch import record, record_with_numbers


class Code(nn.Module):
    """Runs one function on its parameters and input."""

    def __init__(self, code: Callable[[Code, Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.weight, self.bias = nn.Parameter(torch.randn(6, 6)), nn.Parameter(torch.randn(6))
        self.short = nn.Parameter(torch.randn(3))
        self.code = code

    def forward(self, x: Tensor) -> Tensor:
        return self.code(self, x)


def part_of_a_bias(m: Code, x: Tensor) -> Tensor:  # as Swin V2 of torchvision
    bias = m.bias.clone()
    bias[2:4].zero_()
    return functional.linear(x, m.weight, bias)


def views_of_views(m: Code, x: Tensor) -> Tensor:
    weight = m.weight.clone()
    part = weight.t()[1:]
    corner = part[:, 2:]
    corner += 1
    part[0].mul_(3)
    weight.view(-1)[3] = 1
    weight.t().fill_diagonal_(0)
    return functional.linear(x, weight)


def a_view_after_its_base_has_changed(m: Code, x: Tensor) -> Tensor:
    weight = m.weight.clone()
    turned = weight.t()
    weight[0] = 0
    return functional.linear(x, turned)


def before_and_after(m: Code, x: Tensor) -> Tensor:
    weight = m.weight.clone()
    double = weight * 2
    x = functional.linear(x, weight)
    weight[0].mul_(2)
    return functional.linear(functional.linear(x, weight), double)


def operators(m: Code, x: Tensor) -> Tensor:
    bias = torch.cat([m.short, m.short * 2])
    x = x * bias
    bias.chunk(2)[1].mul_(2)
    bias.view(2, 3)[0].zero_()
    return x + bias


def constants(m: Code, x: Tensor) -> Tensor:
    bias = torch.zeros(6)
    bias[:2] = m.short[1:]
    bias[3:].copy_(m.short)
    return functional.linear(x, m.weight, bias)


def by_arguments(m: Code, x: Tensor) -> Tensor:
    weight = m.weight.clone()
    functional.relu(weight[1:], inplace=True)
    other = m.weight.clone()
    torch.mul(m.weight, 2, out=other)
    return functional.linear(functional.linear(x, weight), other)


def shapes(m: Code, x: Tensor) -> Tensor:
    bias = m.bias.clone()
    bias.unsqueeze_(0)
    bias[:, 1:3] = 2.0
    return x + bias


@pytest.mark.parametrize(
    "code",
    [
        part_of_a_bias, views_of_views, a_view_after_its_base_has_changed, before_and_after,
        operators, constants, by_arguments, shapes,
    ],
)  # fmt: skip
def test_numbers_have_changes_in_place(code: Callable[[Code, Tensor], Tensor]) -> None:
    module, x = Code(code).eval(), torch.randn(2, 6)
    with torch.no_grad():
        expected = module(x).numpy()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    graph, numbers = record_with_numbers(module, x)
    model = to_model(graph, numbers=numbers)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    (found,) = session.run(None, {"input": x.numpy()})
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    for name, tensor in module.state_dict().items():
        assert torch.equal(tensor, before[name]), name


@pytest.mark.parametrize(
    "change",
    [lambda p: p.mul_(2), lambda p: p.data.clamp_(0), lambda p: p.detach()[0].zero_()],
)
def test_code_that_changes_its_own_parameters_is_refused(change: Callable[[Tensor], None]) -> None:
    def code(m: Code, x: Tensor) -> Tensor:
        change(m.weight)
        return functional.linear(x, m.weight)

    module = Code(code)
    before = module.weight.detach().clone()
    with pytest.raises(InputError, match="changes a weight in place"):
        record(module, torch.randn(2, 6))
    assert torch.equal(module.weight, before)
