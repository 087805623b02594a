"""Claims about torch functions as users write them: ONNX Runtime computes from the recorded graph what torch does."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import onnxruntime
import pytest

from search_spaces.common.errors import InputError
from search_spaces.graph import graph_params
from search_spaces.onnx import to_model

torch = pytest.importorskip("torch", reason="the functions are torch's")
from torch import Tensor, nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch.utils._pytree import tree_leaves  # noqa: E402

from search_spaces.pytorch import record, record_with_numbers  # noqa: E402

IMAGE, SEQUENCE = (2, 4, 8, 8), (2, 5, 6)


class Function(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *x: Tensor) -> Any:
        return self.function(*x)


def assert_computed(module: nn.Module, *x: Tensor) -> None:
    """The outputs of ONNX Runtime and of torch are equal, also for another batch size than the example's."""
    graph, numbers = record_with_numbers(module, tuple(t[:1] for t in x))
    session = onnxruntime.InferenceSession(to_model(graph, numbers=numbers).SerializeToString())
    found = session.run(None, {i.name: t.numpy() for i, t in zip(session.get_inputs(), x, strict=True)})
    with torch.no_grad():
        expected = [t for t in tree_leaves(module(*x)) if isinstance(t, Tensor)]
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(np.asarray(one), other.numpy(), rtol=1e-4, atol=1e-5)


WRITTEN_OTHERWISE: dict[str, Callable[[Tensor], Any]] = {
    "softmax without an axis": lambda x: nn.Softmax()(x),
    "log_softmax without an axis": lambda x: nn.LogSoftmax()(x.flatten(1)),
    "softmin": lambda x: F.softmin(x, 1),
    "method where": lambda x: x.where(x > 0, -2 * x),
    "tensor_split into parts": lambda x: torch.tensor_split(x, 3, 1),
    "tensor_split at indices": lambda x: torch.tensor_split(x, (1, 3), dim=1)[1:],
    "tensor_split by name": lambda x: x.tensor_split(indices=(1,), dim=2)[1],
    "list of one index": lambda x: x[:, [2]] - x[..., [-1], :],
    "one window": lambda x: (F.unfold(x[..., :1], (3, 1), padding=(1, 0)), x.unfold(2, 8, 1)[:, :, 0]),
    "index_select of one": lambda x: x.index_select(2, torch.tensor([3])),
}


@pytest.mark.filterwarnings("ignore:Implicit dimension choice")
@pytest.mark.parametrize("name", WRITTEN_OTHERWISE)
def test_other_ways_to_write_a_function_are_computed_alike(name: str) -> None:
    assert_computed(Function(WRITTEN_OTHERWISE[name]), torch.randn(IMAGE))


def test_one_group_per_sample_fixes_the_batch_size() -> None:
    class Conditional(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.experts, self.route = nn.Parameter(torch.randn(3, 8, 4, 3, 3)), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            n, c, h, w = x.shape
            mixed = self.route(x.mean((2, 3))).softmax(-1) @ self.experts.flatten(1)
            return F.conv2d(x.reshape(1, n * c, h, w), mixed.view(n * 8, c, 3, 3), padding=1, groups=n).view(n, 8, h, w)

    graph = record(Conditional(), torch.zeros(IMAGE))
    assert ("group", 2) in next(node.attrs for node in graph.nodes if node.op == "Conv")


def unseen(x: Tensor) -> Tensor:
    with torch._C.DisableTorchFunction():
        return x.detach()


@pytest.mark.parametrize("hidden", [lambda: torch.jit.script(nn.Linear(8, 3)), lambda: Function(unseen)])
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_calls_that_cannot_be_seen_are_refused_and_not_taken_for_constants(hidden: Callable[[], nn.Module]) -> None:
    with pytest.raises(InputError, match=r"torch\.jit"):
        record(nn.Sequential(nn.Linear(6, 8), hidden()), torch.zeros(2, 6))


# --- constants of all samples ----------------------------------------------------------------------------------------


def positions(x: Tensor) -> Tensor:
    """Position encodings that are computed for each sample, as in DETR."""
    rows = torch.ones(x.shape[0], 5, 6).cumsum(1)[..., None] / 100 ** (torch.arange(256) / 256)
    return x[..., None] * torch.stack((rows.sin(), rows.cos()), 3).flatten(3)


def test_large_constants_that_are_equal_for_all_samples_are_computed_for_few() -> None:
    module = Function(positions)
    begin = time.process_time()
    graph = record(module, torch.zeros(SEQUENCE))
    assert time.process_time() - begin < 1
    assert graph.shapes[graph.inputs[0]] == ("N", 5, 6)
    assert_computed(module, torch.randn(SEQUENCE))


def test_large_constants_that_differ_between_samples_have_the_examples_batch_size() -> None:
    function = Function(lambda x: x + torch.ones(x.shape[0], 400).cumsum(0).cos())
    graph = record(function, torch.randn(2, 400))
    assert graph.shapes[graph.inputs[0]] == (2, 400)
