"""Claims about graphs of PyTorch modules: one text with the builder's network and with what torch's
exporter writes.
"""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Callable
from typing import Any

import onnx
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from search_spaces import InputError, to_text
from search_spaces.ir.builder import Network, Tensor
from search_spaces.ir.costs import graph_flops, graph_params
from search_spaces.ir.graph import Graph
from search_spaces.ir.pytorch import record, without_weights
from search_spaces.ir.pytorch.calls import tensors_in
from search_spaces.ir.text import compact, expand, read, write


def text_of(graph: Graph) -> str:
    return write(compact(graph))


# --- the same network by the builder


class Bottleneck(nn.Module):
    """ResNet's bottleneck block, as torchvision writes it."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * width
        self.conv1, self.bn1 = nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = (
            nn.Conv2d(width, width, 3, stride, 1, bias=False),
            nn.BatchNorm2d(width),
        )
        self.conv3, self.bn3 = nn.Conv2d(width, outputs, 1, bias=False), nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.downsample: nn.Module | None = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        identity = x
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        if self.downsample is not None:
            identity = self.downsample(x)
        y += identity
        return self.relu(y)


class ResNet(nn.Module):
    def __init__(self, blocks: tuple[int, ...] = (3, 4, 6, 3), width: int = 64) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width)
        self.relu, self.maxpool = nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)
        layers, inputs = [], width
        for stage, count in enumerate(blocks):
            for i in range(count):
                layers.append(Bottleneck(inputs, width << stage, 2 if stage and not i else 1))
                inputs = 4 * width << stage
        self.layers = nn.Sequential(*layers)
        self.avgpool, self.fc = nn.AdaptiveAvgPool2d((1, 1)), nn.Linear(inputs, 1000)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        return self.fc(torch.flatten(self.avgpool(self.layers(x)), 1))


def resnet(net: Network, blocks: tuple[int, ...] = (3, 4, 6, 3), width: int = 64) -> Tensor:
    x = net.max_pool(net.conv_bn_relu(net.input, width, kernel=7, stride=2), kernel=3, stride=2)
    for stage, count in enumerate(blocks):
        for i in range(count):
            stride, inner = 2 if stage and not i else 1, width << stage
            y = net.conv_bn_relu(net.conv_bn_relu(x, inner, kernel=1), kernel=3, stride=stride)
            y = net.conv_bn(y, 4 * inner, kernel=1)
            x = net.conv_bn(x, 4 * inner, kernel=1, stride=stride) if i == 0 else x
            x = net.relu(net.add(y, x))
    return net.classifier(x)


class SqueezeExcite(nn.Module):
    def __init__(self, channels: int, hidden: int) -> None:
        super().__init__()
        self.reduce, self.expand = nn.Conv2d(channels, hidden, 1), nn.Conv2d(hidden, channels, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * functional.hardsigmoid(
            self.expand(functional.relu(self.reduce(x.mean((2, 3), keepdim=True))))
        )


class Inverted(nn.Module):
    """MobileNetV3's block."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        hidden = 4 * inputs
        self.body = nn.Sequential(
            nn.Conv2d(inputs, hidden, 1, bias=False), nn.BatchNorm2d(hidden), nn.Hardswish(inplace=True),
            nn.Conv2d(hidden, hidden, 5, stride, 2, groups=hidden, bias=False), nn.BatchNorm2d(hidden),
            nn.ReLU6(inplace=True), SqueezeExcite(hidden, 8),
            nn.Conv2d(hidden, outputs, 1, bias=False), nn.BatchNorm2d(outputs),
        )  # fmt: skip
        self.skip = stride == 1 and inputs == outputs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.body(x) if self.skip else self.body(x)


class MobileNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        blocks = [Inverted(8, 8, 1), Inverted(8, 16, 2), Inverted(16, 16, 1), Inverted(16, 16, 1)]
        self.stem = nn.Sequential(
            nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU6()
        )
        self.blocks, self.head = nn.Sequential(*blocks), nn.Linear(16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(functional.adaptive_avg_pool2d(self.blocks(self.stem(x)), 1).flatten(1))


def mobilenet(net: Network) -> Tensor:
    x = net.relu6(net.conv_bn(net.input, 8, stride=2))
    for outputs, stride in ((8, 1), (16, 2), (16, 1), (16, 1)):
        inputs = int(x.shape[1])
        y = net.hard_swish(net.conv_bn(x, 4 * inputs, kernel=1))
        y = net.relu6(net.conv_bn(y, kernel=5, stride=stride, groups=4 * inputs))
        y = net.conv_bn(net.squeeze_excite(y, 8), outputs, kernel=1)
        x = net.add(x, y) if stride == 1 and inputs == outputs else y
    return net.classifier(x)


SAME: dict[
    str, tuple[Callable[[], nn.Module], Callable[[Network], Tensor], tuple[int, ...], int]
] = {
    "resnet-50": (ResNet, resnet, (3, 224, 224), 1000),
    "small resnet": (
        lambda: ResNet((2, 2), 8),
        lambda net: resnet(net, (2, 2), 8),
        (3, 32, 32),
        1000,
    ),
    "mobilenet": (MobileNet, mobilenet, (3, 32, 32), 10),
}


@pytest.mark.parametrize("name", SAME)
def test_module_has_the_text_and_costs_of_the_same_network_from_the_builder(name: str) -> None:
    make, build, shape, classes = SAME[name]
    with without_weights():
        module = make()
    graph, net = record(module, torch.zeros(1, *shape)), Network(shape, classes)
    built = net.graph(build(net))
    assert text_of(graph) == text_of(built)
    assert graph_params(graph) == graph_params(built) == sum(p.numel() for p in module.parameters())
    assert graph_flops(graph) == graph_flops(built)


def test_module_without_weights_takes_no_memory_and_gives_the_same_graph() -> None:
    with without_weights():
        light = ResNet((1, 1), 8)
    assert all(p.is_meta for p in light.parameters())
    x = torch.zeros(1, 3, 32, 32)
    assert record(light, x) == record(ResNet((1, 1), 8), x)


# --- one text with torch's exporter, function by function


class Function(nn.Module):
    """A function of an image (4, 8, 8), or a layer."""

    def __init__(self, function: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(x)


def exported(module: nn.Module, x: torch.Tensor) -> onnx.ModelProto:
    """The model of torch's exporter without constant folding."""
    file: Any = io.BytesIO()  # torch names files alone, and writes to any stream
    axes = {"x": {0: "batch"}, "y": {0: "batch"}}
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module, (x,), file, dynamo=False, verbose=False, input_names=["x"], output_names=["y"], dynamic_axes=axes,
            training=torch.onnx.TrainingMode.PRESERVE, do_constant_folding=False,
        )  # fmt: skip
    return onnx.load_from_string(file.getvalue())


def masked(x: torch.Tensor) -> torch.Tensor:
    return functional.scaled_dot_product_attention(
        x.relu(), x.tanh(), x, torch.arange(64.0).view(8, 8)
    )


F = functional
FUNCTIONS: list[Callable[[torch.Tensor], Any]] = [
    F.gelu, lambda x: F.gelu(x, approximate="tanh"), F.silu, F.hardswish, F.hardsigmoid, F.relu6, F.elu, F.celu,
    F.selu, F.logsigmoid, F.softsign, F.tanhshrink, lambda x: F.leaky_relu(x, 0.1), lambda x: F.hardtanh(x, -1, 1),
    lambda x: x.softmax(-1), lambda x: x.log_softmax(1), lambda x: F.glu(x, 1), torch.erf, torch.tanh, torch.abs,
    lambda x: x.mean((2, 3)), lambda x: x.mean((2, 3), keepdim=True), lambda x: x.sum(-1), lambda x: x.amax((2, 3)),
    lambda x: x.max(1)[0], lambda x: x.std((2, 3)), lambda x: x.norm(dim=1, keepdim=True),
    lambda x: F.normalize(x, dim=-1), lambda x: F.adaptive_avg_pool2d(x, 1), lambda x: F.adaptive_avg_pool2d(x, 2),
    lambda x: F.max_pool2d(x, 3, 2, 1), lambda x: F.max_pool2d(x, 3, 2, ceil_mode=True), lambda x: F.avg_pool2d(x, 2),
    lambda x: F.avg_pool2d(x, 3, 1, 1), lambda x: F.avg_pool2d(x, 3, 1, 1, count_include_pad=False),
    lambda x: F.lp_pool2d(x, 2, 2), lambda x: x.flatten(1), lambda x: x.flatten(2).transpose(1, 2),
    lambda x: x.reshape(x.shape[0], 2, -1), lambda x: x.permute(0, 2, 3, 1), lambda x: x.unsqueeze(1),
    lambda x: x.mean(1, keepdim=True).squeeze(1), lambda x: x[:, 1:3], lambda x: x[:, 0], lambda x: x[:, -1],
    lambda x: x[:, :, ::2, 1::2], lambda x: x[:, None], lambda x: x[..., 0], lambda x: x[:, [2, 0, 3]],
    lambda x: torch.cat(x.chunk(2, 1)[::-1], 1), lambda x: torch.cat(x.split([1, 3], 1)[::-1], 1),
    lambda x: sum(x.unbind(1)), lambda x: torch.stack([x, x.relu()], 1), lambda x: F.pad(x, (1, 2, 0, 1)),
    lambda x: F.pad(x, (1, 1), value=-1.0), lambda x: F.pad(x, (1, 1, 1, 1), mode="reflect"),
    lambda x: F.interpolate(x, scale_factor=2.0), lambda x: F.interpolate(x, scale_factor=2.0, mode="bilinear"),
    lambda x: F.interpolate(x, size=(12, 12), mode="bicubic"),
    lambda x: F.interpolate(x, size=(16, 16), mode="bilinear", align_corners=True), lambda x: x @ x.transpose(-1, -2),
    lambda x: torch.einsum("bchw,bcij->bhwij", x, x), lambda x: x + 1, lambda x: 1 - x, lambda x: x / 8,
    lambda x: 1 / x, lambda x: x**2, lambda x: x.sqrt(), lambda x: -x, lambda x: x * 0, lambda x: x * x,
    lambda x: torch.sub(x, x, alpha=2), lambda x: torch.maximum(x, x.relu()), lambda x: torch.where(x > 0, x, x.exp()),
    lambda x: x.masked_fill(x > 0, 0.0), lambda x: x.clamp(min=0.1), lambda x: x.clamp(max=0.1),
    lambda x: x + torch.arange(8), lambda x: torch.cat([x, torch.zeros(x.shape[0], 1, 8, 8)], 1),
    lambda x: torch.roll(x, (-1, -1), (2, 3)), lambda x: x.flip(3), lambda x: x.repeat(1, 2, 1, 1),
    lambda x: x.mean(1, keepdim=True).expand(-1, 3, -1, -1), lambda x: x.index_select(1, torch.tensor([2, 0])),
    lambda x: x.cumsum(1), lambda x: x.topk(2, 1)[0], lambda x: x.argmax(1), lambda x: F.pixel_shuffle(x, 2),
    lambda x: F.pixel_unshuffle(x, 2),
    lambda x: x.view(x.shape[0], 2, 2, 8, 8).transpose(1, 2).reshape(x.shape[0], 4, 8, 8), lambda x: (x > 0).float(),
    lambda x: x.tril(), lambda x: F.local_response_norm(x, 3), masked,
]  # fmt: skip
LAYERS: list[nn.Module] = [
    nn.Conv2d(4, 6, 3), nn.Conv2d(4, 6, 3, padding="same"), nn.Conv2d(4, 6, 3, padding=1, padding_mode="reflect"),
    nn.Conv2d(4, 8, 3, 2, 1, 2, groups=4),
    nn.ConvTranspose2d(4, 6, 3, 2, 1, output_padding=1), nn.Linear(8, 5), nn.Linear(8, 5, bias=False),
    nn.Sequential(nn.Flatten(), nn.Linear(256, 3)), nn.BatchNorm2d(4), nn.BatchNorm2d(4, affine=False, eps=1e-3),
    nn.LayerNorm(8), nn.LayerNorm((8, 8), eps=1e-6), nn.LayerNorm(8, elementwise_affine=False), nn.GroupNorm(2, 4),
    nn.InstanceNorm2d(4, affine=True), nn.InstanceNorm2d(4), nn.PReLU(4),
    nn.Upsample(scale_factor=2, mode="bilinear"), nn.Dropout(0.5), nn.Unflatten(1, (2, 2)),
]  # fmt: skip


@pytest.mark.parametrize("module", [*map(Function, FUNCTIONS), *LAYERS], ids=lambda m: str(m)[:40])
def test_functions_and_layers_have_the_text_of_what_the_exporter_writes(module: nn.Module) -> None:
    module = module.eval()
    for tensor in (
        *module.parameters(),
        *module.buffers(),
    ):  # zeros and ones would be taken for constants
        if tensor.dtype == torch.float32:
            nn.init.uniform_(tensor, 0.5, 1.5)
    x = torch.rand(2, 4, 8, 8)
    assert text_of(record(module, x)) == to_text(exported(module, x))


torch.backends.mha.set_fastpath_enabled(
    False
)  # its one fused operator can neither be exported nor counted


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.attention(x, x, x, need_weights=False)[0]


def test_multi_head_attention_is_what_torch_computes() -> None:
    x = torch.rand(2, 6, 8)
    assert text_of(record(Attention(), x)) == to_text(exported(Attention().eval(), x))


# --- costs


class Encoder(nn.Module):
    """Token ids, positions from a table, a class token, torch's own encoder, tied output
    weights.
    """

    def __init__(self) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(50, 8), nn.Embedding(12, 8)
        self.token = nn.Parameter(torch.zeros(1, 1, 8))
        layer = nn.TransformerEncoderLayer(
            8, 2, 16, batch_first=True, activation="gelu", norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(8)
        self.scale = nn.Parameter(torch.tensor(0.5))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        x = torch.cat([self.token.expand(ids.shape[0], -1, -1), x], 1)
        return functional.linear(self.norm(self.encoder(x)) * self.scale, self.words.weight)


class Standardized(nn.Conv2d):
    """Convolution with standardized and scaled weights."""

    def __init__(self) -> None:
        super().__init__(4, 6, 3)
        self.gain = nn.Parameter(torch.ones(6, 1, 1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        std, mean = torch.std_mean(self.weight, (1, 2, 3), keepdim=True)
        return functional.conv2d(x, self.gain * (self.weight - mean) / (std + 1e-5), self.bias)


class Twice(nn.Module):
    """A layer that is called twice, and a buffer."""

    mean: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.register_buffer("mean", torch.arange(256.0).view(1, 4, 8, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(2):
            x = self.norm(self.conv(x - self.mean))
        return x


IMAGE = torch.rand(2, 4, 8, 8)
MODULES: dict[str, tuple[nn.Module, torch.Tensor]] = {
    "encoder": (Encoder(), torch.zeros(2, 12, dtype=torch.int64)),
    "standardized": (Standardized(), IMAGE),
    "twice": (Twice(), IMAGE),
    "weight norm": (nn.utils.parametrizations.weight_norm(nn.Conv2d(4, 6, 3)), IMAGE),
    "lstm": (
        nn.Sequential(nn.Flatten(1, 2), nn.LSTM(8, 5, 2, batch_first=True, bidirectional=True)),
        IMAGE,
    ),
    "attention": (Attention(), torch.rand(2, 6, 8)),
    "mobilenet": (MobileNet(), torch.rand(2, 3, 32, 32)),
}


@pytest.mark.parametrize("name", MODULES)
def test_params_are_those_that_torch_counts(name: str) -> None:
    module, x = MODULES[name]
    graph = record(module, x)
    assert graph_params(graph) == sum(p.numel() for p in module.parameters())
    assert graph_params(expand(read(write(compact(graph))))) == graph_params(graph)


@pytest.mark.parametrize("name", ["encoder", "standardized", "twice", "attention", "mobilenet"])
def test_flops_are_half_of_what_torch_counts(name: str) -> None:
    module, x = MODULES[name]
    math = nn.attention.sdpa_kernel(nn.attention.SDPBackend.MATH)  # the one that torch counts
    with math, FlopCounterMode(display=False) as counter, torch.no_grad():
        module.eval()(x[:1])
    assert 2 * graph_flops(record(module, x)) == counter.get_total_flops()


# --- the batch, and what cannot be


def test_batch_size_of_the_example_does_not_matter() -> None:
    graphs = [record(Encoder(), torch.zeros(n, 12, dtype=torch.int64)) for n in (1, 3)]
    assert graphs[0] == graphs[1]
    assert graphs[0].shapes[0] == graphs[0].shapes[0].__class__(("N", 12), "int64")  # type: ignore[call-arg]


def test_network_that_needs_its_batch_size_has_the_examples() -> None:
    graph = record(Function(lambda x: x.reshape(x.shape[0] // 2, 2, -1)), torch.zeros(4, 4, 8, 8))
    assert [graph.shapes[v] for v in (*graph.inputs, *graph.outputs)] == [(4, 4, 8, 8), (2, 2, 256)]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x / x.shape[0], lambda x: x.sum(0) / len(x), lambda x: x / x.numel(), lambda x: x / len(x) ** 0.5,
        lambda x: x ** (1 / x.size(0)), lambda x: x.clamp(max=x.shape[0] / 4),
    ],
)  # fmt: skip
def test_numbers_that_follow_from_the_batch_size_are_the_examples(
    function: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    graph = record(Function(function), torch.zeros(4, 8))
    assert graph.shapes[graph.inputs[0]] == (4, 8), "the batch size is fixed"
    numbers = [
        value for node in graph.nodes for _, value in node.attrs if isinstance(value, int | float)
    ]
    assert numbers
    assert all(abs(number) in (4, 2, 32, 0.25, 1, 0) for number in numbers)


def in_place_on_a_view(x: torch.Tensor) -> torch.Tensor:
    y = x.relu()
    y.view(-1, 256).add_(1)
    return y


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: x if x.sum() > 0 else -x, "bool depends on the data"),
        (lambda x: x * x.max().item(), "item depends on the data"),
        (lambda x: x[x > 0], "indexing by a mask depends on the data"),
        (
            torch.fft.fft2,
            "torch's function 'fft_fft2' is not supported: see docs/how-to/own_model.md",
        ),
        (in_place_on_a_view, "read after it was changed in place"),
        (lambda x: functional.dropout(x, 0.5, True), "dropout in training mode"),
        (lambda x: torch.round(x, decimals=1), "round to decimals"),
        (lambda x: functional.softplus(x, threshold=1), "softplus with another threshold"),
        (
            lambda x: functional.interpolate(x, scale_factor=1.3, recompute_scale_factor=True),
            "give the size",
        ),
        (lambda x: "no tensor", "forward returned str, which holds no tensor"),
    ],
)
def test_modules_without_a_fixed_graph_are_refused_by_name(
    function: Callable[[torch.Tensor], Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        record(Function(function), IMAGE)


def test_dropout_in_place_changes_nothing_in_evaluation() -> None:
    class Halves(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            part = x[:, :2]
            nn.functional.dropout(x, 0.5, self.training, inplace=True)
            return part + x[:, 2:]

    assert "Add" in {node.op for node in record(Halves(), torch.zeros(1, 4)).nodes}


def test_changes_in_place_are_seen() -> None:
    def changed(x: torch.Tensor) -> torch.Tensor:
        y = x.relu()
        y += 1
        y[:, :2] = 0.0
        return y.mul_(2).sigmoid_()

    def pure(x: torch.Tensor) -> torch.Tensor:
        y = x.relu() + 1
        return (torch.cat([torch.zeros(y.shape[0], 2, 8, 8), y[:, 2:]], 1) * 2).sigmoid()

    assert text_of(record(Function(changed), IMAGE)) == text_of(record(Function(pure), IMAGE))


def test_tensors_are_found_wherever_they_stand_among_arguments() -> None:
    x, y, z = torch.zeros(1), torch.ones(1), torch.ones(2)
    found = list(tensors_in(([1, 2.0, None], [0, x], {"a": (y, "b")}, [[True], [z]])))
    assert [id(tensor) for tensor in found] == [id(x), id(y), id(z)]
