"""Claims about ONNX models that were made elsewhere: text, costs and a runnable model from any of
them.
"""

from __future__ import annotations

import copy
import importlib.util
import io
import logging
import resource
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from search_spaces import InputError, flops, from_text, get_space, load_model, params, to_text

EXPORTERS = ["torchscript", "dynamo"]
UNFOLDED: dict[str, dict[str, Any]] = {
    "torchscript": {"training": torch.onnx.TrainingMode.PRESERVE, "do_constant_folding": False},
    "dynamo": {"optimize": False},
}


# --- networks as users write them


class Basic(nn.Module):
    """ResNet's basic block."""

    def __init__(self, inputs: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, channels, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.down = None
        if stride > 1 or inputs != channels:
            self.down = nn.Sequential(
                nn.Conv2d(inputs, channels, 1, stride, bias=False), nn.BatchNorm2d(channels)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.bn2(self.conv2(functional.relu(self.bn1(self.conv1(x)))))
        return functional.relu(y + (x if self.down is None else self.down(x)))


class ResNet(nn.Module):
    """ResNet-18's first two stages in torchvision's form, narrow."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 8, 7, 2, 3, bias=False),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.MaxPool2d(3, 2, 1),
        )
        widths = [8, 16]
        self.layers = nn.Sequential(
            *[
                nn.Sequential(Basic(i, o, 1 if o == 8 else 2), Basic(o, o, 1))
                for i, o in zip([8, *widths], widths, strict=False)
            ]
        )
        self.pool, self.fc = nn.AdaptiveAvgPool2d(1), nn.Linear(16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(torch.flatten(self.pool(self.layers(self.stem(x))), 1))


class SqueezeExcite(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.reduce, self.expand = nn.Conv2d(channels, 4, 1), nn.Conv2d(4, channels, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * functional.hardsigmoid(
            self.expand(functional.relu(self.reduce(x.mean((2, 3), keepdim=True))))
        )


class MobileBlock(nn.Module):
    """MobileNetV3's block: expansion, depthwise convolution, squeeze and excitation, projection."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        hidden = 3 * channels
        self.body = nn.Sequential(
            nn.Conv2d(channels, hidden, 1, bias=False), nn.BatchNorm2d(hidden), nn.Hardswish(),
            nn.Conv2d(hidden, hidden, 5, 1, 2, groups=hidden, bias=False), nn.BatchNorm2d(hidden), nn.ReLU6(),
            SqueezeExcite(hidden), nn.Conv2d(hidden, channels, 1, bias=False), nn.BatchNorm2d(channels),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.body(x)


class Attention(nn.Module):
    """Multi-head attention on torch's fused operator."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n, length, width = x.shape
        q, k, v = self.qkv(x).reshape(n, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        y = functional.scaled_dot_product_attention(q, k, v)
        return self.out(y.transpose(1, 2).reshape(n, length, width))


class EncoderBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, 2)
        self.mlp = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class VisionTransformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 16, 8, 8)
        self.token, self.positions = (
            nn.Parameter(torch.zeros(1, 1, 16)),
            nn.Parameter(torch.randn(1, 17, 16)),
        )
        self.blocks = nn.Sequential(EncoderBlock(16), EncoderBlock(16))
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.positions
        return self.head(self.norm(self.blocks(x))[:, 0])


class Speech(nn.Module):
    """1-D convolutions and an LSTM over time."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv1d(4, 8, 5, 2, 2, bias=False), nn.BatchNorm1d(8), nn.PReLU(8)
        )
        self.lstm = nn.LSTM(8, 6, batch_first=True, bidirectional=True)
        self.head = nn.Linear(12, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, _ = self.lstm(self.conv(x).transpose(1, 2))
        return self.head(y[:, -1])


class Language(nn.Module):
    """Token ids in, a Transformer encoder of torch's own."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(50, 8), nn.Embedding(6, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, activation="gelu")
        self.head = nn.Linear(8, 50)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids) + self.positions(torch.arange(6))
        return self.head(self.layer(x))


class Mixed(nn.Module):
    """Other operators: 3-D and transposed convolutions, other normalizations, interpolation,
    splits, pads.
    """

    def __init__(self) -> None:
        super().__init__()
        self.up, self.group = nn.ConvTranspose2d(8, 6, 2, 2), nn.GroupNorm(2, 6)
        self.instance, self.conv3 = (
            nn.InstanceNorm2d(6, affine=True),
            nn.Conv3d(1, 2, (2, 3, 3), padding=(0, 1, 1)),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a, b = torch.split(x, [3, 5], dim=1)
        x = torch.cat([functional.pad(a, (1, 1, 1, 1)), functional.pad(b, (1, 1, 1, 1))], 1)
        x = self.instance(self.group(self.up(x)))
        x = functional.interpolate(x, scale_factor=2.0, mode="nearest")
        x = self.conv3(x.unsqueeze(1)).flatten(1, 2)
        return (x / 1.5).clamp(min=0).pow(2).sum((2, 3)).softmax(-1)


class Decoder(nn.Module):
    """Causal attention on token ids of any number, as a language model has it."""

    mask: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.words, self.norm, self.qkv = nn.Embedding(50, 8), nn.LayerNorm(8), nn.Linear(8, 24)
        self.head = nn.Linear(8, 50, bias=False)
        self.register_buffer(
            "mask", torch.tril(torch.ones(12, 12, dtype=torch.bool)), persistent=False
        )

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids)
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        scores = (q @ k.transpose(1, 2) / 8**0.5).masked_fill(~self.mask, float("-inf"))
        return self.head(x + scores.softmax(-1) @ v)


IMAGE, SMALL = (3, 32, 32), (8, 6, 6)
NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "resnet": (ResNet, IMAGE),
    "mobilenet": (lambda: nn.Sequential(MobileBlock(8), MobileBlock(8)), SMALL),
    "vit": (VisionTransformer, IMAGE),
    "speech": (Speech, (4, 20)),
    "language": (Language, (6,)),
    "decoder": (Decoder, (12,)),
    "mixed": (Mixed, SMALL),
}


def example(name: str, batch: int = 2) -> torch.Tensor:
    """A fixed random input."""
    shape, generator = (batch, *NETWORKS[name][1]), torch.Generator().manual_seed(0)
    if name in ("language", "decoder"):
        return torch.randint(0, 50, shape, generator=generator)
    return torch.randn(shape, generator=generator)


def export(
    module: nn.Module, x: torch.Tensor, exporter: str, batch: str = "dynamic", **options: Any
) -> onnx.ModelProto:
    """The model that torch exports. batch: "dynamic" or "fixed"."""
    if exporter == "dynamo" and not importlib.util.find_spec("onnxscript"):
        pytest.skip("torch.onnx.export(dynamo=True) needs the package onnxscript")
    if batch == "dynamic" and exporter == "dynamo":
        options["dynamic_shapes"] = ({0: torch.export.Dim("batch")},)
    elif batch == "dynamic":
        options.update(
            dynamic_axes={"x": {0: "batch"}, "y": {0: "batch"}},
            input_names=["x"],
            output_names=["y"],
        )
    file: Any = io.BytesIO()  # torch names files alone, and writes to any stream
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        torch.onnx.export(module, (x,), file, dynamo=exporter == "dynamo", verbose=False, **options)
    return onnx.load_from_string(file.getvalue())


@cache
def exported(
    name: str, exporter: str, batch: str = "dynamic", **options: Any
) -> tuple[nn.Module, onnx.ModelProto]:
    torch.manual_seed(0)
    torch.backends.mha.set_fastpath_enabled(False)  # its one fused operator cannot be exported
    module = NETWORKS[name][0]().eval()
    for tensor in (
        *module.parameters(),
        *module.buffers(),
    ):  # zeros and ones would be left out by the exporters
        if tensor.dtype == torch.float32:
            torch.nn.init.uniform_(tensor, 0.5, 1.5)
    return module, export(module, example(name), exporter, batch, **options)


def run(model: onnx.ModelProto, x: torch.Tensor) -> list[np.ndarray]:
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return session.run(None, {session.get_inputs()[0].name: x.numpy()})


def check(model: onnx.ModelProto, x: torch.Tensor) -> str:
    """The model's text. Checks that it gives a model with equal text, costs and output shapes."""
    text = to_text(model)
    onnx.checker.check_model(onnx.parser.parse_model(text))
    rebuilt = from_text(text)
    onnx.checker.check_model(rebuilt)
    assert to_text(rebuilt) == text
    assert (params(rebuilt), flops(rebuilt)) == (params(model), flops(model))
    assert [y.shape for y in run(rebuilt, x)] == [y.shape for y in run(model, x)]
    return text


# --- exports

IN_DAILY_LOOP = "mobilenet"  # exported by dynamo with batch normalization and without
WITHOUT_BATCH_NORM = ["vit", "language", "decoder"]


@pytest.mark.slow
@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize("name", NETWORKS)
def test_export_becomes_text_and_a_model_again(name: str, exporter: str) -> None:
    check(exported(name, exporter)[1], example(name))


def filled(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with weights that depend on the sum of an element's indices: the same for a
    transposed tensor.
    """
    for tensor in model.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT and np.prod(tensor.dims) > 1:
            values = 0.12 + 0.1 * np.sin(1 + np.indices(tuple(tensor.dims)).sum(0))
            tensor.CopyFrom(numpy_helper.from_array(values.astype(np.float32), tensor.name))
    return model


@pytest.mark.parametrize("name", NETWORKS)
def test_text_holds_the_computation(name: str) -> None:
    model = exported(name, "torchscript", training=torch.onnx.TrainingMode.PRESERVE)[1]
    rebuilt = filled(from_text(to_text(model)))
    ours, theirs = (run(m, example(name))[0] for m in (rebuilt, filled(copy.deepcopy(model))))
    assert np.ptp(theirs) > 0
    np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    "name",
    [
        name if name == IN_DAILY_LOOP else pytest.param(name, marks=pytest.mark.slow)
        for name in NETWORKS
    ],
)
def test_exporters_of_torch_give_one_text(name: str) -> None:
    texts = [to_text(exported(name, exporter)[1]) for exporter in EXPORTERS]
    assert texts[0] == texts[1]


CELL = "|nor_conv_3x3~0|+|nor_conv_1x1~0|avg_pool_3x3~1|+|avg_pool_3x3~0|none~1|nor_conv_3x3~2|"


class _NASBench201(nn.Module):
    """`CELL` in the official skeleton, in plain PyTorch."""

    def __init__(self, channels: int, cells: int) -> None:
        super().__init__()
        self.stem, blocks = self.conv(3, channels, 3), []
        for stage in range(3):
            if stage:
                blocks.append(self.reduction(channels, channels := 2 * channels))
            for _ in range(cells):
                kernels = {"a": 3, "b": 1, "c": 3}
                blocks.append(
                    nn.ModuleDict(
                        {name: self.conv(channels, channels, k) for name, k in kernels.items()}
                    )
                )
        self.blocks = nn.ModuleList(blocks)
        self.norm, self.classifier = nn.BatchNorm2d(channels), nn.Linear(channels, 10)

    def conv(self, inputs: int, channels: int, kernel: int, stride: int = 1) -> nn.Module:
        conv = nn.Conv2d(inputs, channels, kernel, stride, padding=kernel // 2, bias=False)
        return nn.Sequential(conv, nn.BatchNorm2d(channels))

    def reduction(self, inputs: int, channels: int) -> nn.Module:
        first, second = self.conv(inputs, channels, 3, stride=2), self.conv(channels, channels, 3)
        down = nn.Sequential(nn.AvgPool2d(2), nn.Conv2d(inputs, channels, 1, bias=False))
        return nn.ModuleDict(
            {"down": down, "y": nn.Sequential(nn.ReLU(), first, nn.ReLU(), second)}
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pool = nn.AvgPool2d(3, 1, 1, count_include_pad=False)
        x = self.stem(x)
        for block in self.blocks:
            assert isinstance(block, nn.ModuleDict)
            if "down" in block:
                x = block["y"](x) + block["down"](x)
            else:
                active = torch.relu(x)
                middle = pool(block["a"](active)) + block["b"](active)
                x = block["c"](torch.relu(middle)) + pool(x)
        return self.classifier(
            functional.adaptive_avg_pool2d(torch.relu(self.norm(x)), 1).flatten(1)
        )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("exporter", "options"),
    [
        (
            "torchscript",
            {"training": torch.onnx.TrainingMode.PRESERVE, "do_constant_folding": False},
        ),
        ("dynamo", {"optimize": False}),
    ],
)
def test_a_network_exported_from_torch_has_the_text_of_its_architecture(
    exporter: str, options: dict[str, Any]
) -> None:
    space = get_space("nasbench201", channels=4, cells=3)
    model = export(_NASBench201(4, 3).eval(), torch.zeros(2, 3, 32, 32), exporter, **options)
    assert to_text(model) == space.to_text(space.parse(CELL))


@pytest.mark.parametrize("name", ["resnet", "mobilenet", "speech", "mixed"])
def test_batch_size_that_was_fixed_by_the_export_is_open_in_the_text(name: str) -> None:
    texts = [to_text(exported(name, "torchscript", batch)[1]) for batch in ("dynamic", "fixed")]
    assert texts[0] == texts[1]


def test_batch_size_that_nodes_need_stays_fixed() -> None:
    text = check(exported("vit", "torchscript", "fixed")[1], example("vit"))
    assert "float[2,3,32,32] x" in text


def test_batch_size_that_is_needed_by_nodes_that_are_fused_is_open() -> None:
    """Keys are transposed so in exports of attention for one batch size."""
    sizes = "s = Constant <value_ints = [2,3,4]> () t = Constant <value_ints = [1,2,4,3]> ()"
    body = (
        f"{sizes} a = Reshape (x, s) b = Transpose <perm = [0,2,1]> (a) c = Reshape (b, t) y = "
        "MatMul (x, c)"
    )
    text = check_text(parsed(body, "(float[1,2,3,4] x) => (float[1,2,3,3] y)"))
    assert "(float[N,2,3,4] x) => (float[N,2,3,3] y)" in text


@pytest.mark.parametrize("name", WITHOUT_BATCH_NORM)
@pytest.mark.parametrize(
    "exporter", ["torchscript", pytest.param("dynamo", marks=pytest.mark.slow)]
)
def test_params_are_those_that_torch_counts(name: str, exporter: str) -> None:
    module, model = exported(name, exporter)
    assert params(model) == sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize("name", [IN_DAILY_LOOP, pytest.param("resnet", marks=pytest.mark.slow)])
def test_batch_normalization_is_there_folded_by_the_exporter_or_not(
    name: str, exporter: str
) -> None:
    module, model = exported(name, exporter, **UNFOLDED[exporter])
    text = check(model, example(name))
    assert "net.ConvBn" in text
    folded = exported(name, exporter)[1]
    assert "BatchNormalization" not in {node.op_type for node in folded.graph.node}
    assert to_text(folded) == text
    assert params(folded) == params(model) == sum(p.numel() for p in module.parameters())


class Normalized(nn.Module):
    """Batch normalization with its own epsilon, after layers with bias, without scale and shift."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(8, 4, 3), nn.BatchNorm2d(4, eps=1e-3)
        self.up, self.plain = nn.ConvTranspose2d(4, 2, 2, 2), nn.BatchNorm2d(2, affine=False)
        self.head, self.last = nn.Linear(128, 5), nn.BatchNorm1d(5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.head(self.plain(self.up(self.norm(self.conv(x)))).flatten(1)))


@pytest.mark.slow
def test_dynamo_says_exactly_what_it_folded() -> None:
    module = Normalized().eval()
    model, plain = (
        export(module, torch.randn(2, 8, 6, 6), "dynamo", optimize=optimize)
        for optimize in (True, False)
    )
    assert {node.op_type for node in model.graph.node} & {"BatchNormalization"} == set()
    assert to_text(model) == to_text(plain)
    assert "bias = 1, channels = 4, epsilon = 0.001" in to_text(model)
    assert params(model) == sum(p.numel() for p in module.parameters())


def test_torchscript_does_not_say_whether_what_it_folded_had_a_bias() -> None:
    model = export(nn.Sequential(nn.Conv2d(8, 4, 3), nn.BatchNorm2d(4, eps=1e-3)).eval(), torch.randn(2, 8, 6, 6),
                   "torchscript")  # fmt: skip
    assert "net.ConvBn <channels = 4, kernel = [3,3], pads = [0,0,0,0]> (x)" in to_text(model)


@pytest.mark.parametrize("name", ["resnet", "mobilenet", "vit", "language", "decoder"])
def test_flops_are_half_of_what_torch_counts(name: str) -> None:
    module, model = exported(name, "torchscript")
    counter = FlopCounterMode(display=False)
    math = torch.nn.attention.sdpa_kernel(
        torch.nn.attention.SDPBackend.MATH
    )  # the one that torch counts
    with math, counter, torch.no_grad():
        module(example(name, batch=1))
    assert 2 * flops(model) == counter.get_total_flops()


# --- files


def parsed(
    body: str, signature: str = "(float[N,4] x) => (float[N,4] y)", opset: int = 21
) -> onnx.ModelProto:
    """A model from ONNX text; weights are written as `<float[4,4] w>` behind the signature."""
    return onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : {opset}]> net {signature} {{ {body} }}'
    )


def with_weight(
    w: np.ndarray, body: str, signature: str = "(float[N,4] x) => (float[N,4] y)"
) -> onnx.ModelProto:
    model = parsed("y = Identity (x)", signature)
    model.graph.node.pop()
    model.graph.node.extend(parsed(body, f"{signature} <float[1] w>").graph.node)
    model.graph.initializer.append(numpy_helper.from_array(w, "w"))
    return model


def line(model: onnx.ModelProto) -> str:
    """The operators of the text, one after another."""
    return " | ".join(
        row.partition(" = ")[2] for row in to_text(model).splitlines() if row.startswith("  ")
    )


def save_apart(tmp_path: Path, location: str = "weights.bin") -> Path:
    """A model with weights in another file."""
    model = with_weight(np.ones((4, 4), np.float32), "y = MatMul (x, w)")
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", "0"), ("length", "64")):
        tensor.external_data.add(key=key, value=value)
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def test_weights_in_another_file_need_not_be_there(tmp_path: Path) -> None:
    assert "net.Linear <bias = 0, features = 4> (x)" in to_text(
        load_model(str(save_apart(tmp_path)))
    )


def test_sizes_in_another_file_are_read(tmp_path: Path) -> None:
    model = parsed("y = Reshape (x, s)", "(float[N,4] x) => (float[N,2,2] y)")
    model.graph.initializer.append(numpy_helper.from_array(np.array([-1, 2, 2]), "s"))
    path = tmp_path / "model.onnx"
    onnx.save(model, path, save_as_external_data=True, size_threshold=0, location="sizes.bin")
    assert "net.Reshape <shape = [0,2,2]> (x)" in to_text(load_model(str(path)))
    (tmp_path / "sizes.bin").write_bytes(b"short")
    with pytest.raises(InputError, match=r"'sizes\.bin' ends before tensor 's' does"):
        load_model(str(path))


@pytest.mark.parametrize(
    "location", ["../weights.bin", "/etc/hostname", "link", "", "sub/../../weights.bin"]
)
def test_no_file_outside_of_the_folder_is_read(tmp_path: Path, location: str) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (tmp_path / "weights.bin").write_bytes(bytes(64))
    (folder / "link").symlink_to(tmp_path / "weights.bin")
    with pytest.raises(InputError, match="not in the model's folder"):
        load_model(str(save_apart(folder, location)))


# --- what is read as what


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("c = Constant <value_float = 1.4142135> () y = Div (x, c)", "net.Div <B = 1.4142135> (x)"),
        ("c = Constant <value_float = 1.0> () y = Sub (c, x)", "net.Sub <A = 1> (x)"),
        ("c = Constant <value_float = 2.0> () y = Mul (c, x)", "net.Mul <B = 2> (x)"),
        ("c = Constant <value_float = 0.0> () y = Mul (c, x)", "net.Zero (x)"),
        ("c = Constant <value_float = 0.0> () y = Max (x, c)", "net.Clip <min = 0> (x)"),
        ("c = Constant <value_ints = [-1]> () y = ReduceMean (x, "
         "c)", "net.ReduceMean <axes = [1]> (x)"),
        ("y = Softmax <axis = 1> (x)", "Softmax (x)"),
        ("a = Identity (x) b = Dropout (a) y = Relu (b)", "Relu (x)"),
        ("a = Concat <axis = 1> (x) y = Relu (a)", "Relu (x)"),
        ("c = Constant <value_ints = [0, -1]> () s = Reshape (x, c) y = Relu (s)", "Relu (x)"),
        ("s = Constant <value_floats = [1.0,1.0,1.0,1.0]> () y = LayerNormalization (x, s)",
         "net.LayerNormalization <affine = 0> (x)"),
        ("s = Constant <value_floats = [2.0,2.0,2.0,2.0]> () y = LayerNormalization (x, s)",
         "net.LayerNormalization <bias = 0> (x)"),
        ("c = Constant <value_ints = [0,0,0,0]> () a = Pad (x, c) y = Relu (a)", "Relu (x)"),
        ("p, q = Split <axis = 1, num_outputs = 2> (x) y = Concat <axis = 1> (q, q)",
         "net.Slice <axes = [1], ends = [4], starts = [2]> (x) | Concat <axis = 1> (a, a)"),
    ],
)  # fmt: skip
def test_constants_are_attributes(body: str, expected: str) -> None:
    model = parsed(body)
    assert line(model) == line(from_text(to_text(model))) == expected


def test_padding_by_nothing_in_a_text_is_read() -> None:
    padded = parsed(
        "c = Constant <value_ints = [0,1,0,1]> () y = Pad (x, c)",
        "(float[N,4] x) => (float[N,6] y)",
    )
    text = to_text(padded).replace("[0,1,0,1]", "[0,0,0,0]").replace("float[N,6]", "float[N,4]")
    assert line(from_text(text)) == "Identity (x)"


def test_learned_tensors_show_their_shape_alone() -> None:
    texts = {
        to_text(with_weight(np.array([[k] * 4] * 4, np.float32), "y = MatMul (x, w)"))
        for k in (1, 2)
    }
    assert len(texts) == 1
    values = {to_text(with_weight(np.array(k, np.float32), "y = Mul (x, w)")) for k in (1.5, 2.5)}
    assert len(values) == 2


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("t = Transpose (w) y = MatMul (x, t)", "net.Linear <bias = 0, features = 4> (x)"),
        ("h = MatMul (x, w) y = MatMul (h, "
         "w)", "net.Param <shape = [4,4]> () | MatMul (x, a) | MatMul (b, a)"),
        ("t = Transpose (w) h = MatMul (x, t) y = MatMul (h, w)",
         "net.Param <shape = [4,4]> () | Transpose (a) | MatMul (x, b) | MatMul (c, a)"),
    ],
)  # fmt: skip
def test_weights_that_layers_have_in_common_count_once(body: str, expected: str) -> None:
    model = with_weight(np.ones((4, 4), np.float32), body)
    assert line(model) == line(from_text(to_text(model))) == expected
    assert params(model) == 16


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_bias_of_a_layer_that_is_called_twice_counts_once(exporter: str) -> None:
    conv, linear = nn.Conv2d(4, 4, 1), nn.Linear(4, 4)
    module = nn.Sequential(conv, nn.ReLU(), conv, nn.Flatten(), linear, nn.ReLU(), linear).eval()
    model = export(module, torch.zeros(2, 4, 1, 1), exporter)
    check_text(model)
    assert params(model) == params(from_text(to_text(model))) == 2 * (16 + 4)


def test_equal_biases_that_the_exporter_stored_once_are_counted_apart() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)).eval()
    for name in ("0.bias", "2.bias"):
        nn.init.zeros_(module.get_parameter(name))
    model = export(module, torch.zeros(2, 3, 4), "torchscript")
    assert line(model) == "net.Linear <features = 4> (x) | Relu (a) | net.Linear <features = 4> (b)"
    assert params(model) == 40


def test_long_tables_of_numbers_show_their_shape_and_limit() -> None:
    model = parsed("g = Gather (t, i) y = Cast <to = 1> (g)", "(int64[N,4] i) => (float[N,4] y)")
    table = np.random.default_rng(0).integers(0, 9, 999)
    model.graph.initializer.append(numpy_helper.from_array(table, "t"))
    assert 'net.Buffer <element = "int64", limit = 9, shape = [999]> ()' in check_text(model)
    assert params(model) == 0


def test_learned_number_stays_learned() -> None:
    text = to_text(with_weight(np.array([1, 2, 3, 4], np.float32), "y = Mul (x, w)")).replace(
        "shape = [4]", "shape = [1]"
    )
    assert "net.Param <shape = [1]> ()" in text
    assert to_text(from_text(text)) == text


@pytest.mark.parametrize("name", ["0.gate.bias", "gate.bias", "F1_1/Linear_2.bias", "block/0.bias"])
def test_bias_of_one_element_is_learned(name: str) -> None:
    model = with_weight(np.ones((4, 1), np.float32), "h = MatMul (x, w) y = Add (h, b)")
    model.graph.node[-1].input[1] = name
    model.graph.initializer.append(numpy_helper.from_array(np.ones(1, np.float32), name))
    assert line(model) == "net.Linear <features = 1> (x)"


def test_old_operator_sets_are_converted() -> None:
    old = parsed(
        "u = Unsqueeze <axes = [2]> (x) s = Squeeze <axes = [2]> (u) y = Relu (s)", opset=11
    )
    new = parsed(
        "c = Constant <value_ints = [2]> () u = Unsqueeze (x, c) s = Squeeze (u, c) y = Relu (s)"
    )
    assert to_text(old) == to_text(new)


@pytest.mark.parametrize(
    ("opset", "body"),
    [
        (8, "y = Upsample <mode = mode, scales = [1.0,1.0,1.5,1.5]> (x)"),
        (
            9,
            "s = Constant <value = float[4] {1.0,1.0,1.5,1.5}> () y = Upsample <mode = mode> (x, "
            "s)",
        ),
        (
            10,
            "s = Constant <value = float[4] {1.0,1.0,1.5,1.5}> () y = Resize <mode = mode> (x, s)",
        ),
    ],
)
@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_old_interpolation_is_computed_alike(opset: int, body: str, mode: str) -> None:
    model = parsed(
        body.replace("mode = mode", f'mode = "{mode}"'),
        "(float[N,4,6,6] x) => (float[N,4,9,9] y)",
        opset,
    )
    text = check_text(model)
    assert ("roi" in text, 'coordinate_transformation_mode = "asymmetric"' in text) == (False, True)
    x = torch.randn(2, 4, 6, 6)
    np.testing.assert_allclose(run(from_text(text), x)[0], run(model, x)[0], rtol=1e-5, atol=1e-6)


def test_functions_of_a_model_are_written_out() -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 21, "my" : 1]>
        net (float[N,4] x) => (float[N,4] y) { a = my.block (x) y = my.block (a) }
        <domain: "my", opset_import: ["" : 21]> block (p) => (q) { r = Relu (p) q = Tanh (r) }"""
    )
    assert line(model) == "Relu (x) | Tanh (a) | Relu (b) | Tanh (c)"


def test_branch_of_a_known_condition_is_taken() -> None:
    body = """s = Shape (x) i = Constant <value_int = 1> () d = Gather (s, i) f = Constant <value_int = 4> ()
    c = Equal (d, f) y = If (c) <then_branch = yes () => (float[N,4] a) { a = Relu (x) },
    else_branch = no () => (float[N,4] b) { b = Tanh (x) }>"""
    assert line(parsed(body)) == "Relu (x)"


def test_unknown_sizes_other_than_the_batch_are_letters() -> None:
    model = parsed("t = Transpose <perm = [0,2,1]> (x) s = MatMul (x, t) y = Softmax (s)",
                   "(float[batch,length,8] x) => (float[batch,length,length] y)")  # fmt: skip
    assert "float[N,L,8] x) => (float[N,L,L] y)" in check_text(model)
    with pytest.raises(
        InputError,
        match=r"costs need numbers, but a shape is \['N', 'L', 'L', 8\]; .*'length' open",
    ):
        flops(model)


def check_text(model: onnx.ModelProto) -> str:
    text = to_text(model)
    assert to_text(from_text(text)) == text
    return text


def test_operators_with_several_outputs_show_which_is_used() -> None:
    model = parsed("k = Constant <value_ints = [2]> () v, i = TopK (x, k) y = Cast <to = 1> (i)",
                   "(float[N,4] x) => (float[N,2] y)")  # fmt: skip
    assert "net.TopK <K = [2], output = 1> (x)" in check_text(model)


def test_weights_in_the_constants_of_other_files_are_learned() -> None:
    values = ",".join(["0.5"] * 16)
    model = parsed(f"w = Constant <value = float[4,4] {{{values}}}> () y = MatMul (x, w)")
    assert line(model) == "net.Linear <bias = 0, features = 4> (x)"


def test_values_and_indices_of_pooling_are_outputs() -> None:
    model = parsed("y, i = MaxPool <kernel_shape = [2,2]> (x)",
                   "(float[N,4,6,6] x) => (float[N,4,5,5] y, int64[N,4,5,5] i)")  # fmt: skip
    assert "net.MaxPool <kernel_shape = [2,2], output = 1> (x)" in check(
        model, torch.randn(2, 4, 6, 6)
    )


def test_equal_outputs_are_one() -> None:
    model = parsed(
        "y = Relu (x) z = Identity (y) v = Identity (x) w = Identity (x)",
        # Fmt: skip
        "(float[N,4] x) => (float[N,4] y, float[N,4] z, float[N,4] v, float[N,4] w)",
    )
    assert line(model) == line(from_text(to_text(model))) == "Identity (x) | Relu (x)"


# --- what is refused

BRANCHES = """<then_branch = yes () => (float[N,4] a) {a = Relu (x)},
               else_branch = no () => (float[N,4] b) {b = Neg (x)}>"""


def custom_operator() -> onnx.ModelProto:
    model = parsed("y = Relu (x)")
    model.opset_import.add(domain="my", version=1)
    model.graph.node[0].domain, model.graph.node[0].name = "my", "first"
    return model


def branches() -> onnx.ModelProto:
    return parsed(f"y = If (c) {BRANCHES}", "(float[N,4] x, bool c) => (float[N,4] y)")


def training() -> onnx.ModelProto:
    weights = "<float[4] w = {1.0,1.0,1.0,1.0}>"
    body = "y, m, v = BatchNormalization <training_mode = 1> (x, w, w, w, w)"
    return parsed(body, f"(float[N,4] x) => (float[N,4] y) {weights}")


def sequences() -> onnx.ModelProto:
    return parsed("s = SplitToSequence (x) y = ConcatFromSequence <axis = 0> (s)")


def hardmax() -> onnx.ModelProto:
    return parsed("y = Hardmax <axis = 1> (x)", "(float[N,4,6] x) => (float[N,4,6] y)", opset=11)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            branches,
            r"If \(node ''\): control flow that depends on the data is not supported: it depends on input 'c'; store",
        ),
        (
            custom_operator,
            r"my.Relu \(node 'first'\) is not a standard ONNX operator: export the model without custom",
        ),
        (training, "batch normalization in training mode: export the model in evaluation mode"),
        (
            hardmax,
            r"^Hardmax \(node ''\): its axis had another meaning in old opsets: export the model with opset 13",
        ),
        (
            sequences,
            "sequences and optional values are not supported: export the model with tensors only",
        ),
    ],
)
def test_what_text_cannot_hold_is_refused_with_a_remedy(
    build: Callable[[], onnx.ModelProto], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        to_text(build())


def huge() -> onnx.ModelProto:
    model = with_weight(np.ones(1, np.float32), "y = MatMul (x, w)")
    model.graph.initializer[0].dims[:] = [1 << 40, 1 << 20]
    return model


def many() -> onnx.ModelProto:
    model = parsed("y = Relu (x)")
    for i in range(100_000):
        model.graph.node.add(
            op_type="Relu", input=["y" if i == 0 else f"v{i - 1}"], output=[f"v{i}"]
        )
    return model


def functions() -> onnx.ModelProto:
    laughs = "".join(
        f'<domain: "f", opset_import: ["" : 21, "f" : 1]> f{i} (x) => (y) {{ a = f.f{i + 1} (x) y = f.f{i + 1} (a) }} '
        for i in range(30)
    )
    return onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 21, "f" : 1]> net (float[N,4] x) => (float[N,4] y) {{ y = f.f0 (x) }}
        {laughs} <domain: "f", opset_import: ["" : 21]> f30 (x) => (y) {{ y = Relu (x) }}"""
    )


def loop() -> onnx.ModelProto:
    model = parsed("y = my.f (x)")
    call = helper.make_node("f", ["x"], ["y"], domain="my")
    model.functions.append(
        helper.make_function("my", "f", ["x"], ["y"], [call], [helper.make_opsetid("my", 1)])
    )
    return model


SIZES = "s = Constant <value_ints = [1000000, 1000000]> () "


def filled_sizes() -> onnx.ModelProto:
    return parsed(SIZES + "c = ConstantOfShape (s) r = ReduceSum (c) y = Add (x, r)")


def tiled() -> onnx.ModelProto:
    return parsed(
        SIZES
        + "c = Constant <value_float = 1.0> () e = Expand (c, s) r = ReduceMax (e) y = Add (x, r)"
    )


def chain() -> onnx.ModelProto:
    body = SIZES.replace("[1000000, 1000000]", "[500, 500]") + "c0 = ConstantOfShape (s) "
    body += "".join(f"c{i + 1} = Add (c{i}, c{i}) " for i in range(3000))
    return parsed(body + "r = ReduceMax (c3000) y = Add (x, r)")


@pytest.mark.parametrize("build", [huge, many, functions, loop, filled_sizes, tiled, chain])
def test_small_files_with_huge_sizes_are_read_cheaply(build: Callable[[], onnx.ModelProto]) -> None:
    model = build()
    memory, started = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    with suppress(InputError):
        to_text(model)
    assert time.process_time() - started < 5
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory < 300_000  # kB
