"""Claims about networks of model libraries: `TorchSpace` and both ONNX exporters of torch give one text."""

from __future__ import annotations

import io
import logging
import warnings
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from torch import nn

from search_spaces import TorchSpace, flops, params, to_text
from search_spaces.common.torchvision import prepare_torchvision

TORCHVISION = (
    "resnet18", "resnet50", "resnext50_32x4d", "mobilenet_v2", "mobilenet_v3_small", "squeezenet1_1",
    "shufflenet_v2_x0_5", "mnasnet0_5", "regnet_y_400mf", "resnet34", "efficientnet_b0", "densenet121",
    "googlenet",
)  # fmt: skip
TIMM = (
    "resnet10t", "lcnet_050", "ghostnet_050", "spnasnet_100", "mobilenetv3_small_050", "repvgg_a0", "convmixer_768_32",
)  # fmt: skip
EPSILON = 1e-5  # of batch normalization, torch's own: the older exporter notes no other one where it folds
SIDE = 64  # pixels: small images are exported as fast as it gets


def build(library: str, name: str) -> nn.Module:
    prepare_torchvision()
    if library == "timm":
        return pytest.importorskip("timm").create_model(name, pretrained=False)
    models = pytest.importorskip("torchvision").models
    options: dict[str, Any] = {"aux_logits": False, "init_weights": False} if name == "googlenet" else {}
    return models.get_model(name, weights=None, **options)


def exported(module: nn.Module, dynamo: bool) -> onnx.ModelProto:
    """The model of torch's default exporter (`dynamo`) or of its older one, for any batch size."""
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    x, file = torch.zeros(2, 3, SIDE, SIDE), io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch, about its older exporter
        if dynamo:
            shapes = ({0: torch.export.Dim.DYNAMIC},)
            program = torch.onnx.export(module, (x,), dynamo=True, verbose=False, dynamic_shapes=shapes)
            assert program is not None
            return program.model_proto
        axes = {"x": {0: "batch"}, "y": {0: "batch"}}
        options: Any = {"input_names": ["x"], "output_names": ["y"], "dynamic_axes": axes}
        if any(isinstance(m, nn.BatchNorm2d) and m.eps != EPSILON for m in module.modules()):
            options |= {"training": torch.onnx.TrainingMode.PRESERVE, "do_constant_folding": False}  # or it is lost
        torch.onnx.export(module, (x,), file, dynamo=False, **options)
    return onnx.load_from_string(file.getvalue())


@pytest.mark.slow
@pytest.mark.parametrize("dynamo", [False, True], ids=["older", "default"])
@pytest.mark.parametrize(
    ("library", "name"), [*[("torchvision", name) for name in TORCHVISION], *[("timm", name) for name in TIMM]]
)
def test_exporters_and_modules_give_one_text(library: str, name: str, dynamo: bool) -> None:
    space = TorchSpace(lambda trial: build(library, name), torch.zeros(1, 3, SIDE, SIDE))
    architecture = space.sample(np.random.default_rng(0))
    model = exported(build(library, name).eval(), dynamo)
    assert to_text(model) == space.to_text(architecture)
    assert params(model) == space.params(architecture)
    assert flops(model) == space.flops(architecture)
