"""Claims about sources of networks: files, code and names of libraries give the same texts."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import onnx
import pytest

from search_spaces import InputError, from_text, params, read_source
from search_spaces.ir.costs import graph_params
from search_spaces.ir.text import expand, read

needs_timm = pytest.mark.skipif(find_spec("timm") is None, reason="timm is an extra")

MODULE = """
import torch
from torch import nn

def build():
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 10))

def chosen(trial):
    return nn.Linear(4, trial.suggest_int("width", 1, 8))

build.example_input = torch.zeros(1, 3, 8, 8)
chosen.example_input = torch.zeros(1, 4)
"""


@pytest.fixture
def code(tmp_path: Path) -> str:
    path = tmp_path / "mine.py"
    path.write_text(MODULE)
    return str(path)


def test_code_and_its_exported_files_are_one_network(code: str, tmp_path: Path) -> None:
    text = read_source(f"{code}:build")
    onnx.save(from_text(text), tmp_path / "net.onnx")
    (tmp_path / "net.txt").write_text(text)
    assert read_source(str(tmp_path / "net.onnx")) == read_source(str(tmp_path / "net.txt")) == text


def test_a_function_that_chooses_is_no_network(code: str) -> None:
    with pytest.raises(InputError, match=r"has choices \(width\)"):
        read_source(f"{code}:chosen")


@pytest.mark.slow
@needs_timm
def test_timm_by_name_has_timms_parameters_and_the_size_asked_for() -> None:
    from search_spaces.ir.pytorch.libraries import build

    module, _ = build("timm", "resnet10t")
    text = read_source("timm:resnet10t@64")
    assert params(from_text(text)) == sum(p.numel() for p in module.parameters())
    assert "float[N,3,64,64]" in text


@pytest.mark.slow
@needs_timm  # it comes with torchvision
def test_networks_of_other_libraries_are_read() -> None:
    assert "float[N,3,16,112,112]" in read_source("torchvision:video.mc3_18")
    assert "int64[N,128]" in read_source("transformers:DistilBertForMaskedLM")
    assert "int64[N,128]" in read_source("transformers:XLNetModel"), (
        "no limit to the length of a text"
    )


@pytest.mark.slow
@needs_timm
@pytest.mark.parametrize(
    ("source", "words"),
    [
        (
            "torchvision:mvit_v2_s",
            "float[N,3,16,224,224]",
        ),  # other sizes do not fit its tables of positions
        ("torchvision:s3d", "float[N,3,16,224,224]"),
        ("timm:volo_d1_224", "Col2Im"),
        ("timm:qwen3_vit_88m", "float[N,3,768,768]"),  # without prefix tokens: an empty slice
        ("timm:lambda_resnet26rpt_256", "float[N,3,256,256]"),  # positions at two index tensors
        ("timm:edgenext_xx_small", "float[N,3,256,256]"),  # position encodings of all samples
        ("transformers:RoFormerModel", "int64[N,128]"),  # looks for padding
        ("transformers:SiglipTextModel", "int64[N,64]"),  # takes no longer texts
        ("transformers:ASTModel", "float[N,1024,128]"),  # spectrograms
    ],
)
def test_unusual_networks_are_read_exactly(source: str, words: str) -> None:
    from search_spaces.ir.pytorch.libraries import build

    text = read_source(source)
    assert words in text
    library, name = source.split(":")
    module, _ = build(library, name)
    assert graph_params(expand(read(text))) == sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize(
    ("source", "words"),
    [
        pytest.param("timm:resnot50", "did you mean resnet50", marks=needs_timm),
        ("transformers:NoSuchModel", "no network class"),
        ("timm:resnet18@0", "size must be at least 1"),
        ("nothere.onnx", "no such file"),
        ("nothere.txt", "cannot be read as text"),
    ],
)
def test_unreadable_sources_are_named_with_the_remedy(source: str, words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        read_source(source)
    assert "\n" not in str(caught.value)
