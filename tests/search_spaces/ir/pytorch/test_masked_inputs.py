"""Claims about networks of transformers with masks among their inputs: ONNX Runtime computes what
torch does.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from search_spaces import InputError, TorchSpace
from search_spaces.common.torchvision import prepare_torchvision
from search_spaces.ir.costs import graph_params
from search_spaces.ir.graph import BATCH
from search_spaces.ir.onnx import from_model, to_model
from search_spaces.ir.pytorch import record, record_with_numbers
from search_spaces.ir.text import compact, write

prepare_torchvision()
import transformers  # noqa: E402

LENGTH, WORDS = 12, 99
SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
BERT = {
    "vocab_size": WORDS, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32,
    "max_position_embeddings": 64, **SPECIAL,
}  # fmt: skip
LLAMA = {**BERT, "num_key_value_heads": 1}
GPT2 = {"vocab_size": WORDS, "n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 40, **SPECIAL}
T5 = {
    "vocab_size": WORDS, "d_model": 16, "num_layers": 1, "num_heads": 2, "d_ff": 32, "d_kv": 8,
    "decoder_start_token_id": 0, **SPECIAL,
}  # fmt: skip
BART = {
    "vocab_size": WORDS, "d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "max_position_embeddings": 40,
    "decoder_start_token_id": 2, **SPECIAL,
}  # fmt: skip
VIT = {
    "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32, "image_size": 32,
    "patch_size": 8,
}  # fmt: skip
Example = dict[str, Tensor]


def words(samples: int) -> Tensor:
    return torch.randint(3, WORDS, (samples, LENGTH))


def mask(samples: int, dtype: torch.dtype = torch.int64) -> Tensor:
    """Ones for the words of texts of different lengths, the first of which has two words of
    padding.
    """
    lengths = torch.randint(4, LENGTH + 1, (samples, 1))
    lengths[0] = LENGTH - 2
    return (torch.arange(LENGTH) < lengths).to(dtype)


def masked(samples: int, dtype: torch.dtype = torch.int64) -> Example:
    return {"input_ids": words(samples), "attention_mask": mask(samples, dtype)}


def padded_left(samples: int) -> Example:
    return {"input_ids": words(samples), "attention_mask": mask(samples).flip(1)}


def decoded(samples: int) -> Example:
    return {**masked(samples), "decoder_input_ids": words(samples)[:, :5]}


def decoded_twice(samples: int) -> Example:
    return {**decoded(samples), "decoder_attention_mask": mask(samples)[:, :5]}


def described(samples: int) -> Example:
    positions = torch.arange(LENGTH).expand(samples, -1).contiguous()
    return {
        **masked(samples),
        "token_type_ids": torch.randint(0, 2, (samples, LENGTH)),
        "position_ids": positions,
    }


def placed(samples: int) -> Example:
    return {
        "input_ids": words(samples),
        "position_ids": torch.arange(LENGTH).expand(samples, -1).contiguous(),
    }


NETWORKS: dict[str, tuple[str, dict[str, Any], Callable[[int], Example]]] = {
    "BERT": ("BertModel", BERT, masked),
    "BERT with a mask of bools": ("BertModel", BERT, lambda n: masked(n, torch.bool)),
    "BERT with a mask of floats": ("BertModel", BERT, lambda n: masked(n, torch.float32)),
    "BERT with types and positions": ("BertModel", BERT, described),
    "BERT with a decoder's mask": ("BertModel", {**BERT, "is_decoder": True}, masked),
    "BERT with eager attention": ("BertModel", {**BERT, "attn_implementation": "eager"}, masked),
    "RoBERTa": ("RobertaForSequenceClassification", BERT, masked),
    "DistilBERT": (
        "DistilBertModel", {"vocab_size": WORDS, "dim": 16, "n_layers": 1, "n_heads": 2, "hidden_dim": 32}, masked,
    ),
    "T5": ("T5Model", T5, decoded_twice),
    "T5 for generation": ("T5ForConditionalGeneration", T5, decoded),
    "BART": ("BartModel", BART, decoded_twice),
    "GPT-2": ("GPT2Model", GPT2, masked),
    "GPT-2 for classes": ("GPT2ForSequenceClassification", GPT2, masked),
    "Llama": ("LlamaForCausalLM", LLAMA, masked),
    "Llama with padding before the text": ("LlamaModel", LLAMA, padded_left),
    "Llama with positions": ("LlamaModel", {**LLAMA, "use_cache": False}, placed),
    "Llama with eager attention": ("LlamaModel", {**LLAMA, "attn_implementation": "eager"}, masked),
    "Mistral with windows": ("MistralModel", {**LLAMA, "sliding_window": 4}, masked),
    "Qwen": ("Qwen2Model", LLAMA, masked),
    "OPT": (
        "OPTModel",
        {**BERT, "ffn_dim": 32, "word_embed_proj_dim": 16},
        masked,
    ),
    "BLOOM": ("BloomModel", {"vocab_size": WORDS, "hidden_size": 16, "n_layer": 1, "n_head": 2, **SPECIAL}, masked),
    "ViT-MAE with noise": (
        "ViTMAEModel", {**VIT, "mask_ratio": 0.5},
        lambda n: {"pixel_values": torch.randn(n, 3, 32, 32), "noise": torch.rand(n, 16)},
    ),
    "BEiT with masked patches": (
        "BeitModel", {**VIT, "use_mask_token": True},
        lambda n: {"pixel_values": torch.randn(n, 3, 32, 32), "bool_masked_pos": torch.rand(n, 16) > 0.5},
    ),
}  # fmt: skip


def network(name: str, settings: dict[str, Any]) -> nn.Module:
    torch.manual_seed(0)
    cls = getattr(transformers, name)
    return cls._from_config(cls.config_class(**settings)).eval()


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_with_masks_are_computed_for_any_number_of_samples_and_any_mask(name: str) -> None:
    cls, settings, example = NETWORKS[name]
    module = network(cls, settings)
    graph, numbers = record_with_numbers(module, example(1))
    assert all(graph.shapes[v][0] == BATCH for v in graph.inputs)
    assert graph_params(graph) == sum(p.numel() for p in module.parameters())
    model = to_model(graph, numbers=numbers)
    assert write(compact(from_model(model))) == write(compact(record(module, example(1))))
    session = onnxruntime.InferenceSession(model.SerializeToString())
    inputs = example(3)
    made = session.run(
        None,
        {i.name: x.numpy() for i, x in zip(session.get_inputs(), inputs.values(), strict=True)},
    )
    with torch.no_grad():
        expected = [t for t in tree_leaves(module(**inputs).to_tuple()) if isinstance(t, Tensor)]
    for one, other in zip(made, expected, strict=False):  # equal outputs are one in the file
        np.testing.assert_allclose(np.asarray(one), other.numpy(), rtol=1e-3, atol=1e-4)


def test_mask_may_hide_nothing_in_the_example() -> None:
    module = network("BertModel", BERT)
    whole = {**masked(1), "attention_mask": torch.ones(1, LENGTH, dtype=torch.int64)}
    assert record(module, whole) == record(module, masked(1))


def test_network_whose_branch_on_the_mask_changes_the_result_is_refused() -> None:
    class Branching(nn.Module):
        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            return x if mask.all() else -x

    with pytest.raises(InputError, match="bool depends on the data"):
        record(Branching(), (torch.ones(1, 4), torch.ones(1, 4)))


QUANTIFIERS: dict[str, Callable[[Tensor], Any]] = {
    "all": lambda x: ((x > 0).all(-1), torch.all(x > -9), x.all(1, keepdim=True)),
    "any": lambda x: ((x > 1).any(1), torch.any(x > 9), (x > 1).any(dim=-1, keepdim=True)),
    "isfinite": lambda x: (torch.isfinite(x / x.relu()), torch.count_nonzero(x > 0, dim=-1)),
    "diff with ends": lambda x: torch.diff(x, prepend=x[..., :1] - 1, append=x[..., -1:], dim=-1),
}


class Function(nn.Module):
    def __init__(self, function: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Any:
        return self.function(x)


@pytest.mark.parametrize("name", QUANTIFIERS)
def test_truth_of_all_or_any_elements_is_computed(name: str) -> None:
    torch.manual_seed(0)
    module, x = Function(QUANTIFIERS[name]), torch.randn(5, 3, 4)
    graph, numbers = record_with_numbers(module, x[:1])
    session = onnxruntime.InferenceSession(to_model(graph, numbers=numbers).SerializeToString())
    made = session.run(None, {"input": x.numpy()})
    for one, other in zip(made, tree_leaves(module(x)), strict=True):
        np.testing.assert_array_equal(np.asarray(one), other.numpy())


def test_random_numbers_are_drawn_in_every_run() -> None:
    graph, numbers = record_with_numbers(
        Function(lambda x: x + torch.rand(x.shape[0], 3)), torch.zeros(1, 3)
    )
    session = onnxruntime.InferenceSession(to_model(graph, numbers=numbers).SerializeToString())
    one, other = (
        np.asarray(session.run(None, {"input": np.zeros((500, 3), np.float32)})[0])
        for _ in range(2)
    )
    assert (one != other).any()
    assert abs(one.mean() - 0.5) < 0.1
    assert (one.min(), one.max()) == (pytest.approx(0, abs=0.05), pytest.approx(1, abs=0.05))


def test_class_that_is_imported_in_build_is_read_in_a_fresh_process(tmp_path: Path) -> None:
    (tmp_path / "lazy.py").write_text(
        f"""
import torch

def build():
    from transformers import BertConfig, BertModel
    return BertModel(BertConfig(**{BERT}))

ids = torch.zeros(1, {LENGTH}, dtype=torch.int64)
build.example_input = {{"input_ids": ids, "attention_mask": torch.ones_like(ids)}}
"""
    )
    command = [sys.executable, "-m", "nas.cli", "text", f"{tmp_path / 'lazy.py'}:build"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    example = {"input_ids": words(1), "attention_mask": mask(1)}
    space = TorchSpace(lambda trial: network("BertModel", BERT), example)
    assert text.strip() == space.to_text(space.architecture({})).strip()
