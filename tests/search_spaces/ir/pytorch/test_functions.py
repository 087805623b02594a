"""Claims about torch functions as users write them: ONNX Runtime computes from the recorded graph
what torch does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from search_spaces import to_text
from search_spaces.common.errors import InputError
from search_spaces.ir.costs import graph_params
from search_spaces.ir.onnx import to_model
from search_spaces.ir.pytorch import record, record_with_numbers

IMAGE, SEQUENCE = (2, 4, 8, 8), (2, 5, 6)


class Function(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *x: Tensor) -> Any:
        return self.function(*x)


def assert_computed(module: nn.Module, *x: Tensor) -> None:
    """The outputs of ONNX Runtime and of torch are equal, also for another batch size than the
    example's.
    """
    graph, numbers = record_with_numbers(module, tuple(t[:1] for t in x))
    session = onnxruntime.InferenceSession(to_model(graph, numbers=numbers).SerializeToString())
    found = session.run(
        None, {i.name: t.numpy() for i, t in zip(session.get_inputs(), x, strict=True)}
    )
    with torch.no_grad():
        expected = [t for t in tree_leaves(module(*x)) if isinstance(t, Tensor)]
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(np.asarray(one), other.numpy(), rtol=1e-4, atol=1e-5)


WRITTEN_OTHERWISE: dict[str, Callable[[Tensor], Any]] = {
    "softmax without an axis": lambda x: nn.Softmax()(x),
    "log_softmax without an axis": lambda x: nn.LogSoftmax()(x.flatten(1)),
    "softmin": lambda x: F.softmin(x, 1),
    "method where": lambda x: x.where(x > 0, -2 * x),
    "method where of a constant": lambda x: torch.ones(8).where(x > 0, other=x),
    "parts of results by name": lambda x: (
        x.max(dim=1).values,
        x.min(1).indices,
        torch.topk(x, 2, dim=2).values,
    ),
    "parts of results by number": lambda x: (
        *x.max(1),
        torch.topk(x, 2)[1],
        torch.stack(x.min(1, keepdim=True))[:1],
    ),
    "tensor_split into parts": lambda x: torch.tensor_split(x, 3, 1),
    "tensor_split at indices": lambda x: torch.tensor_split(x, (1, 3), dim=1)[1:],
    "tensor_split by name": lambda x: x.tensor_split(indices=(1,), dim=2)[1],
    "list of one index": lambda x: x[:, [2]] - x[..., [-1], :],
    "one window": lambda x: (
        F.unfold(x[..., :1], (3, 1), padding=(1, 0)),
        x.unfold(2, 8, 1)[:, :, 0],
    ),
    "index_select of one": lambda x: x.index_select(2, torch.tensor([3])),
    "take_along_dim, which broadcasts": lambda x: torch.take_along_dim(
        x, x.argmax(1, keepdim=True)[..., :1], dim=1
    ),
    "smaller by antialiased interpolation": lambda x: F.interpolate(
        x, size=(3, 3), mode="bilinear", antialias=True
    ),
    "smaller by antialiased cubic interpolation": lambda x: F.interpolate(
        x, size=(3, 5), mode="bicubic", antialias=True
    ),
    "larger by antialiased interpolation": lambda x: F.interpolate(
        x, size=(11, 9), mode="bicubic", antialias=True
    ),
}


@pytest.mark.filterwarnings("ignore:Implicit dimension choice")
@pytest.mark.parametrize("name", WRITTEN_OTHERWISE)
def test_other_ways_to_write_a_function_are_computed_alike(name: str) -> None:
    assert_computed(Function(WRITTEN_OTHERWISE[name]), torch.randn(IMAGE))


def test_method_where_of_a_mask_is_the_function_with_operands_in_another_order() -> None:
    method = Function(lambda x: (x > 0).where(x < 1, x > -1))
    function = Function(lambda x: torch.where(x < 1, x > 0, x > -1))
    texts = {to_text(to_model(record(module, torch.zeros(IMAGE)))) for module in (method, function)}
    assert len(texts) == 1


def test_one_group_per_sample_fixes_the_batch_size() -> None:
    class Conditional(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.experts, self.route = nn.Parameter(torch.randn(3, 8, 4, 3, 3)), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            n, c, h, w = x.shape
            mixed = self.route(x.mean((2, 3))).softmax(-1) @ self.experts.flatten(1)
            return F.conv2d(
                x.reshape(1, n * c, h, w), mixed.view(n * 8, c, 3, 3), padding=1, groups=n
            ).view(n, 8, h, w)

    graph = record(Conditional(), torch.zeros(IMAGE))
    assert ("group", 2) in next(node.attrs for node in graph.nodes if node.op == "Conv")


def unseen(x: Tensor) -> Tensor:
    with torch._C.DisableTorchFunction():
        return x.detach()


@pytest.mark.parametrize(
    "hidden", [lambda: torch.jit.script(nn.Linear(8, 3)), lambda: Function(unseen)]
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_calls_that_cannot_be_seen_are_refused_and_not_taken_for_constants(
    hidden: Callable[[], nn.Module],
) -> None:
    with pytest.raises(InputError, match=r"torch\.jit"):
        record(nn.Sequential(nn.Linear(6, 8), hidden()), torch.zeros(2, 6))


# --- functions that consist of others


def shifted_in_time(x: Tensor) -> Tensor:
    y = torch.zeros_like(x)
    y[:, :-1, :2] = x[:, 1:, :2]
    y[:, 1:, 2:4] = x[:, :-1, 2:4]
    y[:, :, 4:] = x[:, :, 4:]
    return y


def of_pairs(x: Tensor) -> Tensor:
    rows, columns = torch.triu_indices(5, 6)
    return x[:, rows, columns]


COMPOSED: dict[str, Callable[[Tensor], Any]] = {
    "zeros into which values are written": shifted_in_time,
    "copy_": lambda x: torch.zeros_like(x).copy_(x[:, :1]),
    "constant indices on two axes": of_pairs,
    "an index for each sample": lambda x: x[torch.arange(x.shape[0]), x.sum(-1).argmax(-1)],
    "one_hot": lambda x: F.one_hot(x.argmax(-1), 6).float(),
    "norm of torch": lambda x: x / torch.norm(x, dim=1, keepdim=True),
    "cosine_similarity": lambda x: F.cosine_similarity(x, x.sigmoid(), -1),
    "pairwise_distance": lambda x: F.pairwise_distance(x, x.sigmoid()),
    "area": lambda x: (
        F.interpolate(x, size=2, mode="area")
        + F.interpolate(x, scale_factor=0.5, mode="area")[..., :2]
    ),
    "nearest-exact": lambda x: F.interpolate(x, size=4, mode="nearest-exact"),
    "logical_not": lambda x: torch.logical_not(x.relu()).float(),
    "slice of nothing": lambda x: torch.cat([x[:, :0], x[:, 0:].relu()], 1),
    "meshgrid": lambda x: torch.meshgrid(x.mean((0, 1)) * 0, torch.arange(3.0), indexing="ij"),
    "meshgrid of two values": lambda x: torch.meshgrid(
        x.mean((0, 1)) * 0, x.sum((0, 2)) * 0, indexing="xy"
    ),
    "meshgrid of constants as another tensor": lambda x: (
        x
        * torch.stack(
            torch.meshgrid(torch.arange(5).type_as(x), torch.arange(6).to(x), indexing="ij")
        ).sum(0)
    ),
    "cdist": lambda x: (torch.cdist(x, x[:, :3]), torch.cdist(x, torch.ones(2, 6), p=1)),
    "outer": lambda x: (
        x + torch.outer(torch.arange(5.0), torch.arange(6.0)) * x.mean(-1, keepdim=True)
    ),
    "outer of values": lambda x: (
        torch.einsum("bi,ijk->bjk", x[:, :2, 0], torch.ones(2, 3, 4)).mean(0).diagonal()
    ),
    "cross": lambda x: (
        torch.cross(x[..., :3], x[..., 3:], dim=-1),
        torch.linalg.cross(x[..., :3], torch.arange(3.0)[None, None]),
    ),
    "diagonal": lambda x: (x.diagonal(dim1=1, dim2=2), torch.diagonal(x, -1, 2, 1)),
    "diff": lambda x: (x.diff(), torch.diff(x, dim=1, n=2)),
    "atan2": lambda x: (
        torch.atan2(x, x.roll(1, 1)),
        (x.round() + 0.0).atan2(x.roll(1, 2).round() + 0.0),
    ),
    "atan2 of constants": lambda x: (
        torch.atan2(x, torch.zeros(6)),
        torch.ones(6).atan2(x - x),
        x.sign().atan2(-x.exp()),
    ),
    "nan_to_num": lambda x: torch.where(x > 0, x.exp() / 0, x.log()).nan_to_num(),
    "nan_to_num by these": lambda x: torch.where(x > 0, x / 0, -x.abs() / 0).nan_to_num(
        neginf=2, posinf=3
    ),
    "bucketize": lambda x: torch.bucketize(x, torch.linspace(-1, 1, 5)),
    "bucketize of equals": lambda x: torch.bucketize(
        x.round(), torch.tensor([-1.0, 0, 1]), right=True, out_int32=True
    ),
    "searchsorted": lambda x: torch.searchsorted(torch.linspace(-1, 1, 5), x),
    "affine_grid": lambda x: F.affine_grid(
        x.reshape(-1, 5, 2, 3)[:, 0], [len(x), 1, 4, 5], align_corners=False
    ),
    "shrinks": lambda x: (
        F.hardshrink(x, 0.2),
        F.softshrink(x, 0.3),
        F.threshold(x, 0.1, -2.0),
        nn.RReLU().eval()(x),
    ),
}


@pytest.mark.parametrize("name", COMPOSED)
def test_functions_that_consist_of_others_are_computed(name: str) -> None:
    assert_computed(Function(COMPOSED[name]), torch.randn(SEQUENCE))


# --- orders and computed places


ORDERS: dict[str, Callable[[Tensor], Any]] = {
    "sort": lambda x: (*x.sort(), *torch.sort(x, 1, descending=True)),
    "argsort": lambda x: (
        x.gather(-1, x.argsort(-1)),
        torch.argsort(x, dim=1, descending=True, stable=True),
    ),
    "median": lambda x: (
        *x.median(-1),
        x.median(1, keepdim=True).values,
        x[..., :5].median(2).indices,
    ),
    "kthvalue": lambda x: (*x.kthvalue(2), x.kthvalue(3, 1, keepdim=True)[0]),
    "scatter": lambda x: torch.zeros_like(x).scatter(-1, x.argmax(-1, keepdim=True), 1.0),
    "scatter of values": lambda x: x.scatter(1, x.argmax(1, keepdim=True), -x[:, :3]),
    "scatter in place": lambda x: torch.zeros_like(x).scatter_(
        2, x.topk(2).indices, x.topk(2).values
    ),
    "scatter of products": lambda x: x.scatter(
        1, x.argmax(1, keepdim=True), 2.0, reduce="multiply"
    ),
    "scatter_add": lambda x: torch.zeros_like(x).scatter_add(-1, x.argsort(-1) // 2, x),
    "scatter_reduce": lambda x: x.scatter_reduce(2, x.argsort(-1) // 2, 2 * x, "amax"),
    "index_add": lambda x: x.index_add(1, torch.tensor([0, 2]), x[:, :2], alpha=2),
    "index_add in place": lambda x: (3 * x).index_add_(-1, torch.tensor([0, 2, 0]), x[..., :3]),
}


@pytest.mark.parametrize("name", ORDERS)
def test_orders_and_writes_to_computed_places_are_computed(name: str) -> None:
    torch.manual_seed(0)
    assert_computed(Function(ORDERS[name]), torch.randn(SEQUENCE))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.sort(0)[0],
        lambda x: x.median(),
        lambda x: x.scatter(0, x.argmax(0, keepdim=True), 1.0),
        lambda x: x.diagonal(),
    ],
)
def test_orders_and_writes_along_the_batch_fix_its_size(
    function: Callable[[Tensor], Tensor],
) -> None:
    x = torch.randn(SEQUENCE)
    graph, numbers = record_with_numbers(Function(function), x)
    session = onnxruntime.InferenceSession(to_model(graph, numbers=numbers).SerializeToString())
    (only,) = session.get_inputs()
    assert only.shape == list(SEQUENCE)
    np.testing.assert_allclose(session.run(None, {only.name: x.numpy()})[0], function(x).numpy())


class Segments(nn.Module):
    """Puts the values of each half image back to the places of the maxima, as in SegNet (arXiv
    1511.00561).
    """

    def __init__(self, **windows: Any) -> None:
        super().__init__()
        self.down, self.up = nn.MaxPool2d(**windows, return_indices=True), nn.MaxUnpool2d(**windows)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        y, places = self.down(x)
        return self.up(y, places), self.up(2 * y, places, output_size=x.shape), places


@pytest.mark.parametrize(
    ("windows", "size"),
    [({"kernel_size": 2}, (6, 8)), ({"kernel_size": 3, "stride": 2, "padding": 1}, (7, 9))],
)
def test_maxima_go_back_to_their_places(windows: dict[str, int], size: tuple[int, int]) -> None:
    torch.manual_seed(0)
    assert_computed(Segments(**windows), torch.randn(2, 3, *size))


def test_bilinear_layers_and_bags_of_words_own_their_weights() -> None:
    class Bags(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.pairs = nn.Bilinear(6, 6, 4)
            self.bags = nn.ModuleList(
                nn.EmbeddingBag(8, 4, mode=mode) for mode in ("mean", "sum", "max")
            )

        def forward(self, x: Tensor) -> tuple[Tensor, ...]:
            bags = [bag(x.argmax(-1)) for bag in self.bags]
            weighted = F.embedding_bag(
                x.argmax(-1),
                self.get_parameter("bags.0.weight"),
                per_sample_weights=x[..., 0],
                mode="sum",
            )
            return self.pairs(x, x.relu()), self.pairs(x[:, 0], x[:, 1]), *bags, weighted

    torch.manual_seed(0)
    module = Bags()
    assert_computed(module, torch.randn(SEQUENCE))
    assert graph_params(record(module, torch.randn(SEQUENCE))) == sum(
        p.numel() for p in module.parameters()
    )


def test_part_that_is_changed_in_place_is_changed_in_the_whole() -> None:
    def changed(x: Tensor) -> Tensor:
        y = x.relu()
        y[:, 1:] += x[:, :-1]
        y[:, :, :2] *= 3
        return y

    assert_computed(Function(changed), torch.randn(SEQUENCE))


def with_column(index: Any, value: Callable[[Tensor], Any]) -> Callable[[Tensor], Tensor]:
    def changed(x: Tensor) -> Tensor:
        y = x.relu()
        y[index] = value(x)
        return y

    return changed


ALL = slice(None)


@pytest.mark.parametrize(
    "function",
    [
        with_column((ALL, 0), lambda x: torch.tensor([1.0, 2, 3])),
        with_column((ALL, 0), lambda x: x.mean((0, 1, 2)) * 0 + torch.tensor([1.0, 2, 3])),
        with_column((ALL, -1), lambda x: x[:, :1, 0]),
        with_column((ALL, 1, ALL, 2), lambda x: x[:, 0, :1, 0]),
        with_column((ALL, 1, slice(0, 2), 2), lambda x: torch.tensor([[[4.0, 5]]])),
        with_column((..., 0), lambda x: x[:, 0, 0, 0][:, None, None]),
        with_column((ALL, 2), lambda x: torch.tensor(0.5)),
        with_column((ALL, slice(None, None, 2)), lambda x: x[:, :2]),
        with_column((ALL, slice(1, None, 2), slice(0, 2)), lambda x: 2.0),
        with_column((ALL, 0, slice(0, 3, 2)), lambda x: x[:, 1, 1:]),
    ],
)
def test_values_that_replace_a_part_are_broadcast_as_in_torch(
    function: Callable[[Tensor], Tensor],
) -> None:
    assert_computed(Function(function), torch.randn(2, 3, 3, 3))


def test_view_of_a_constant_is_not_read_after_the_constant_changed() -> None:
    def changed(x: Tensor) -> Tensor:
        y = torch.zeros(3)
        first = y[:1]
        y[:] = x.mean()
        return first + x

    with pytest.raises(InputError, match="changed in place"):
        record(Function(changed), torch.zeros(SEQUENCE))


def test_fold_adds_windows() -> None:
    def folded(x: Tensor) -> Tensor:
        return F.fold(F.unfold(x, 3, padding=1, stride=2).exp(), (8, 8), 3, padding=1, stride=2)

    assert_computed(Function(folded), torch.randn(IMAGE))


class Steps(nn.Module):
    """A recurrent cell in a loop."""

    def __init__(self, kind: Callable[..., nn.Module], **options: Any) -> None:
        super().__init__()
        self.cell = kind(6, 4, **options)

    def forward(self, x: Tensor) -> Any:
        zeros = x.new_zeros(x.shape[0], 4)
        state: Any = (zeros, zeros) if isinstance(self.cell, nn.LSTMCell) else zeros
        for step in range(x.shape[1]):
            state = self.cell(x[:, step], state)
        return state


@pytest.mark.parametrize(
    "module",
    [
        Steps(nn.LSTMCell),
        Steps(nn.GRUCell),
        Steps(nn.GRUCell, bias=False),
        Steps(nn.RNNCell, nonlinearity="relu"),
    ],
    ids=lambda m: str(m.cell),
)
def test_recurrent_cells_are_computed_and_own_their_weights_once(module: Steps) -> None:
    assert_computed(module, torch.randn(SEQUENCE))
    graph = record(module, torch.zeros(SEQUENCE))
    assert graph_params(graph) == sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize("dim", [0, 1, None])
def test_normalized_weight_of_a_layer_that_is_called_twice_is_computed(dim: int | None) -> None:
    norm: Callable[..., nn.Module] = nn.utils.parametrizations.weight_norm  # None: of the whole
    layer = norm(nn.Linear(6, 6), dim=dim).eval()
    module = nn.Sequential(layer, nn.ReLU(), layer)
    assert_computed(module, torch.randn(SEQUENCE))
    assert graph_params(record(module, torch.zeros(SEQUENCE))) == sum(
        p.numel() for p in layer.parameters()
    )


def test_transformer_takes_a_mask_of_padding() -> None:
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(6, 2, 8, batch_first=True), 1).eval()
    mask = torch.tensor([[False, True, False, False, True], [False] * 5])
    record(encoder, {"src": torch.zeros(SEQUENCE), "src_key_padding_mask": mask})
    masked = Function(lambda x, m: encoder(x, src_key_padding_mask=m > 0))
    assert_computed(masked.eval(), torch.randn(SEQUENCE), mask.float())


def test_functions_that_return_a_weight_itself_leave_it_to_its_layer() -> None:
    class Same(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return F.linear(x, self.weight.contiguous().flatten(1), self.bias)

    from search_spaces.ir.pytorch import without_weights

    with without_weights():
        module = Same(6, 4)
    assert [node.op for node in record(module, torch.zeros(2, 6)).nodes] == ["Linear"]


def test_weights_that_change_their_shape_in_place_while_a_module_is_built_have_the_new_one() -> (
    None
):
    class Turned(nn.Linear):
        def __init__(self) -> None:
            super().__init__(4, 6)
            self.weight.t_().mul_(2)

    from search_spaces.ir.pytorch import without_weights

    with without_weights():
        module = Turned()
        nn.init.orthogonal_(module.weight)  # PyTorch 2.11 and older compute with transposed weights
    assert module.weight.shape == (4, 6)
    assert [node.op for node in record(module, torch.zeros(2, 6)).nodes] == ["Linear"]


def test_weight_that_changes_in_the_call_is_refused_by_name() -> None:
    from search_spaces.ir.pytorch import without_weights

    with without_weights():
        module = nn.Linear(6, 4)
    changing = nn.Sequential(Function(lambda x: x + module.weight.div_(2).sum()))
    with pytest.raises(InputError, match="div changes a weight in place"):
        record(changing, torch.zeros(2, 6))


def test_search_for_padding_is_left_out_since_it_only_warns() -> None:
    class Model(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            self.warn_if_padding_and_no_attention_mask(x)
            return super().forward(x)

        def warn_if_padding_and_no_attention_mask(self, x: Tensor) -> None:
            assert 0 in x

    module = Model(6, 4)
    assert [node.op for node in record(module, torch.zeros(2, 6)).nodes] == ["Linear"]
    module(torch.zeros(2, 6))
    assert "warn_if_padding_and_no_attention_mask" not in vars(module)


def test_what_a_module_notes_of_itself_while_it_is_recorded_stays() -> None:
    """As SegFormer of transformers, which installs hooks when it is called first, and notes it."""

    class Noting(nn.Module):
        installed = 0

        def forward(self, x: Tensor) -> Tensor:
            self.warn_if_padding_and_no_attention_mask(x)
            if "hooks" not in vars(self):
                self.hooks = True
                type(self).installed += 1
            return x.view(len(x), -1) + 1

        def warn_if_padding_and_no_attention_mask(self, x: Tensor) -> None:
            assert x.sum() > 0

    module = Noting()
    record(module, torch.zeros(2, 3))
    record(module, torch.zeros(2, 3))
    assert module.hooks
    assert Noting.installed == 1


# --- constants of all samples


def positions(x: Tensor) -> Tensor:
    """Position encodings that are computed for each sample, as in DETR."""
    rows = torch.ones(x.shape[0], 5, 6).cumsum(1)[..., None] / 100 ** (torch.arange(256) / 256)
    return x[..., None] * torch.stack((rows.sin(), rows.cos()), 3).flatten(3)


class Largest(TorchDispatchMode):
    """The number of elements of the largest tensor that is computed."""

    elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        stored = [
            t.untyped_storage().nbytes() // t.itemsize
            for t in tree_leaves(made)
            if isinstance(t, Tensor)
        ]
        if not any(isinstance(t, Tensor) and t.is_meta for t in tree_leaves(made)):
            self.elements = max(self.elements, *stored, 0)
        return made


def test_large_constants_that_are_equal_for_all_samples_are_computed_for_few() -> None:
    module = Function(positions)
    with Largest() as largest:
        graph = record(module, torch.zeros(SEQUENCE))
    assert largest.elements < 1e6, "the position encodings of all samples have 77 million elements"
    assert graph.shapes[graph.inputs[0]] == ("N", 5, 6)
    assert_computed(module, torch.randn(SEQUENCE))


def test_large_constants_that_differ_between_samples_have_the_examples_batch_size() -> None:
    function = Function(lambda x: x + torch.ones(x.shape[0], 400).cumsum(0).cos())
    graph = record(function, torch.randn(2, 400))
    assert graph.shapes[graph.inputs[0]] == (2, 400)
