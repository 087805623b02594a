"""Claims about networks of model libraries: `TorchSpace` and both ONNX exporters of torch give one
text.
"""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from torch import nn

from search_spaces import TorchSpace, flops, params, to_text
from search_spaces.common.torchvision import prepare_torchvision

TORCHVISION = (
    "resnet18", "squeezenet1_1", "resnet50", "resnext50_32x4d", "mobilenet_v2", "mobilenet_v3_small",
    "shufflenet_v2_x0_5", "mnasnet0_5", "regnet_y_400mf", "resnet34", "efficientnet_b0", "densenet121",
    "googlenet",
)  # fmt: skip
TIMM = (
    "resnet10t", "lcnet_050", "ghostnet_050", "spnasnet_100", "mobilenetv3_small_050", "repvgg_a0", "convmixer_768_32",
)  # fmt: skip
ANY_BATCH = {
    "resnet18", "mobilenet_v3_small", "squeezenet1_1", "shufflenet_v2_x0_5", "googlenet", "resnet10t", "lcnet_050",
}  # fmt: skip
"""Models that the default exporter writes for any batch size; it takes twice as long as for a batch of one."""
# Of batch normalization, torch's own: the older exporter notes no other one where it folds
EPSILON = 1e-5
SIDE = 64  # pixels: small images are exported as fast as it gets


def build(library: str, name: str) -> nn.Module:
    prepare_torchvision()
    if library == "timm":
        return pytest.importorskip("timm").create_model(name, pretrained=False)
    models = pytest.importorskip("torchvision").models
    options: dict[str, Any] = (
        {"aux_logits": False, "init_weights": False} if name == "googlenet" else {}
    )
    return models.get_model(name, weights=None, **options)


def exported(module: nn.Module, any_batch: bool) -> onnx.ModelProto:
    """The model of torch's default exporter, for a batch of one or for any batch size."""
    shapes = ({0: torch.export.Dim.DYNAMIC},) if any_batch else None
    x = torch.zeros(2 if any_batch else 1, 3, SIDE, SIDE)
    with quiet():
        program = torch.onnx.export(module, (x,), dynamo=True, verbose=False, dynamic_shapes=shapes)
    assert program is not None
    return program.model_proto


def exported_by_older(module: nn.Module) -> onnx.ModelProto:
    """The model of torch's older exporter, for any batch size."""
    axes = {"x": {0: "batch"}, "y": {0: "batch"}}
    options: Any = {"input_names": ["x"], "output_names": ["y"], "dynamic_axes": axes}
    if any(isinstance(m, nn.BatchNorm2d) and m.eps != EPSILON for m in module.modules()):
        options |= {
            "training": torch.onnx.TrainingMode.PRESERVE,
            "do_constant_folding": False,
        }  # or it is lost
    file: Any = io.BytesIO()  # torch names files alone, and writes to any stream
    with quiet():
        torch.onnx.export(module, (torch.zeros(2, 3, SIDE, SIDE),), file, dynamo=False, **options)
    return onnx.load_from_string(file.getvalue())


@contextmanager
def quiet() -> Iterator[None]:
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch, about its older exporter
        yield


MODELS = [*[("torchvision", name) for name in TORCHVISION], *[("timm", name) for name in TIMM]]


@pytest.mark.slow
@pytest.mark.parametrize(("library", "name"), MODELS)
def test_exporters_and_modules_give_one_text(library: str, name: str) -> None:
    space = TorchSpace(lambda trial: build(library, name), torch.zeros(1, 3, SIDE, SIDE))
    architecture = space.sample(np.random.default_rng(0))
    text, costs = (
        space.to_text(architecture),
        (space.params(architecture), space.flops(architecture)),
    )
    module = build(library, name).eval()
    for model in (exported_by_older(module), exported(module, any_batch=name in ANY_BATCH)):
        assert to_text(model) == text
        assert (params(model), flops(model)) == costs
