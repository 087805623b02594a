"""Small networks of timm for images of 64 pixels, as a space of one choice: which of them."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from search_spaces.common.torchvision import prepare_torchvision

IMAGE = torch.zeros(1, 3, 64, 64)  # example input, from which shapes are derived
NAMES = (
    "resnet10t",
    "mobilenetv3_small_050",
    "regnetx_002",
    "convnext_atto",
    "mnasnet_small",
    "repvgg_a0",
    "lcnet_050",
    "efficientnet_lite0",
    "dla46_c",
    "ghostnet_050",
    "resnet18",
    "mobilenetv2_050",
    "regnety_002",
    "semnasnet_075",
    "tinynet_e",
    "ese_vovnet19b_slim",
    "hardcorenas_a",
    "resnet14t",
    "fbnetc_100",
    "starnet_s1",
    "lcnet_100",
    "mobilenetv2_100",
    "dla46x_c",
    "spnasnet_100",
    "mobilenetv3_small_100",
    "regnetx_004",
    "tinynet_d",
    "convnext_femto",
    "mobilenetv4_conv_small",
    "selecsls42",
)


def build(trial: Any) -> nn.Module:
    """The chosen network, with ten classes and random weights."""
    prepare_torchvision()  # timm imports it
    import timm

    name = trial.suggest_categorical("network", NAMES)
    return timm.create_model(name, num_classes=10)


build.example_input = IMAGE  # type: ignore[attr-defined]
