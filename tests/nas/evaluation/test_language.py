"""Claims about language models: prefill, decoding with a key-value cache, and its memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import nas
from nas.evaluation.language import LanguageFiles, LanguageModel, generate
from nas.evaluation.latency import CPU, LatencyTask, open_session
from nas.evaluation.measurement import Measurement
from nas.evaluation.trainable import Trainable
from search_spaces import InputError, TorchSpace, get_space
from search_spaces.common.torchvision import prepare_torchvision

prepare_torchvision()
import transformers  # noqa: E402
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
    module: Any = model.module  # of transformers
    expected = module.generate(tokens, max_new_tokens=2, do_sample=False)[:, LENGTH:]
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


# --- families

SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
OF_GPT2 = {"vocab_size": 64, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
WINDOW = 8  # tokens, of a sliding window, less than `LENGTH`
FAMILIES = {
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", OF_GPT2),
    "qwen2": ("Qwen2ForCausalLM", "Qwen2Config", SIZES),
    "qwen3": ("Qwen3ForCausalLM", "Qwen3Config", {**SIZES, "head_dim": 16}),
    "mistral": ("MistralForCausalLM", "MistralConfig", {**SIZES, "sliding_window": WINDOW}),
    "gemma2": (
        "Gemma2ForCausalLM",
        "Gemma2Config",
        {**SIZES, "head_dim": 8, "sliding_window": WINDOW},
    ),
    "gemma3": (
        "Gemma3ForCausalLM",
        "Gemma3TextConfig",
        {**SIZES, "head_dim": 8, "sliding_window": 64},
    ),
}


def _causal(model: str, config: str, sizes: dict[str, int]) -> nn.Module:
    torch.manual_seed(0)
    return getattr(transformers, model)(getattr(transformers, config)(**sizes)).eval()


def _logits(files: LanguageFiles, prompt: torch.Tensor, token: torch.Tensor) -> np.ndarray:
    """Logits (n, 2, vocabulary) of the last token of a prompt (n, length) and of one more (n, 1),
    by prefill and one step of decoding in ONNX Runtime.
    """
    prefill, decoding = (
        open_session(model.SerializeToString(), provider=CPU)
        for model in (files.prefill, files.decoding)
    )
    first, *cache = prefill.run(None, {"input_ids": prompt.numpy()})
    names = [info.name for info in decoding.get_inputs()[1:]]
    feed = {"input_ids": token.numpy(), **dict(zip(names, cache, strict=True))}
    return np.concatenate([first, decoding.run(None, feed)[0]], axis=1)


@pytest.mark.parametrize("family", FAMILIES)
def test_each_family_decodes_as_if_it_read_all_tokens_at_once(family: str) -> None:
    module = _causal(*FAMILIES[family])
    tokens = torch.randint(64, (3, LENGTH + 1), generator=torch.Generator().manual_seed(1))
    prompt, token = tokens[:, :-1], tokens[:, -1:]
    files = LanguageModel(module, prompt).files()
    with torch.no_grad():
        expected = module(input_ids=tokens, use_cache=False).logits[:, -2:].numpy()
    np.testing.assert_allclose(_logits(files, prompt, token), expected, atol=1e-5)


def test_a_sliding_window_keeps_its_last_tokens_only() -> None:
    prompt = torch.zeros(1, LENGTH, dtype=torch.long)
    windowed = LanguageModel(_causal(*FAMILIES["mistral"]), prompt).files()
    assert windowed.cache_bytes == 2 * 2 * 2 * 8 * (WINDOW - 1) * 4


def test_models_with_another_memory_are_refused_with_the_reason() -> None:
    prompt = torch.zeros(1, LENGTH, dtype=torch.long)
    mamba = _causal(
        "MambaForCausalLM",
        "MambaConfig",
        {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 1},
    )
    with pytest.raises(InputError, match="MambaForCausalLM is no language model that decodes"):
        LanguageModel(mamba, prompt)
    of_t5 = {
        "vocab_size": 64,
        "d_model": 32,
        "d_kv": 8,
        "d_ff": 48,
        "num_layers": 1,
        "num_heads": 4,
    }
    translates = _causal("T5ForConditionalGeneration", "T5Config", of_t5)
    with pytest.raises(InputError, match="T5ForConditionalGeneration does not decode with a key"):
        LanguageModel(translates, prompt).files()


def test_a_model_that_ignores_its_cache_is_refused() -> None:
    """It reads every token as if nothing were before it."""

    class Forgetful(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = _causal(*FAMILIES["gpt2"])

        def forward(
            self, input_ids: torch.Tensor, past_key_values: Any = None, use_cache: bool = True
        ) -> Any:
            return self.inner(input_ids=input_ids, use_cache=True)

    tokens = torch.arange(LENGTH)[None]
    with pytest.raises(InputError, match="its logits differ by"):
        LanguageModel(Forgetful(), tokens).files()
