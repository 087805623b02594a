"""Claims about language models: prefill, decoding with a key-value cache, and its memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import nas
from nas.evaluation.language import LanguageModel, generate
from nas.evaluation.latency import LatencyTask
from nas.evaluation.measurement import Measurement
from nas.evaluation.trainable import Trainable
from search_spaces import InputError, TorchSpace, get_space
from search_spaces.common.torchvision import prepare_torchvision

prepare_torchvision()
from transformers import LlamaConfig, LlamaForCausalLM  # noqa: E402

LENGTH = 24
METRICS = ("cpu_prefill_latency_ms", "cpu_decoding_latency_ms", "kv_cache_mb")


def build(trial: Any) -> nn.Module:
    heads = 4
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=heads * trial.suggest_categorical("head_width", [8, 16]),
        intermediate_size=trial.suggest_categorical("mlp_width", [64, 128]),
        num_hidden_layers=trial.suggest_int("depth", 1, 3),
        num_attention_heads=heads,
        num_key_value_heads=trial.suggest_categorical("kv_heads", [1, 2, 4]),
        max_position_embeddings=64,
    )
    return LlamaForCausalLM(config)


def network(**choices: int) -> Trainable:
    space = TorchSpace(build, {"input_ids": torch.zeros(1, LENGTH, dtype=torch.long)})
    given = {"head_width": 8, "mlp_width": 64, "depth": 2, "kv_heads": 2} | choices
    torch.manual_seed(0)
    return Trainable.of(space, space.architecture(given))


def test_prefill_and_decoding_generate_what_the_model_generates() -> None:
    of = network()
    model = LanguageModel.of(of)
    tokens = torch.randint(64, (3, LENGTH), generator=torch.Generator().manual_seed(1))
    expected = model.module.generate(tokens, max_new_tokens=2, do_sample=False)[:, LENGTH:]
    assert generate(model.files(), tokens.numpy()).tolist() == expected.tolist()


def test_files_name_their_cache() -> None:
    files = LanguageModel.of(network(depth=2)).files()
    assert [info.name for info in files.decoding.graph.input] == [
        "input_ids",
        *[f"past_key_values.{i}.{kind}" for i in range(2) for kind in ("key", "value")],
    ]
    outputs = [info.name for info in files.prefill.graph.output]
    assert outputs == [info.name for info in files.decoding.graph.output]
    assert outputs[0] == "logits"


def test_the_cache_has_the_bytes_of_its_keys_and_values() -> None:
    for depth, kv_heads, width in ((1, 1, 8), (3, 2, 16), (2, 4, 8)):
        files = LanguageModel.of(network(depth=depth, kv_heads=kv_heads, head_width=width)).files()
        assert files.cache_bytes == 2 * depth * kv_heads * width * LENGTH * 4


def test_metrics_of_language_models_are_measured() -> None:
    task = LatencyTask(runs=5, windows=1)
    values = Measurement((*METRICS, "params"), latency=task)(network(), lambda: None).values  # type: ignore[arg-type, return-value]
    assert values["kv_cache_mb"].value == pytest.approx(2 * 2 * 2 * 8 * LENGTH * 4 / 1e6)
    assert 0 < values["cpu_decoding_latency_ms"].value < values["cpu_prefill_latency_ms"].value


def test_other_networks_are_refused_in_one_line() -> None:
    space = get_space("tiny-resnet")
    of = Trainable.of(space, space.sample(np.random.default_rng(0)))
    with pytest.raises(InputError, match="need a space of language models"):
        LanguageModel.of(of)
    plain = nas.TorchSpace(lambda trial: nn.Embedding(9, 4), torch.zeros(1, 4, dtype=torch.long))
    with pytest.raises(InputError, match="Embedding is no language model that decodes"):
        LanguageModel.of(Trainable.of(plain, plain.architecture({})))
