"""Claims about T5Gemma as the RLM's reader: it is loaded, kept by its name, and refused with a reason."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

import predictors
from search_spaces import InputError, get_space

SPACE = get_space("nasbench201", channels=4, cells=1, input_shape=(1, 8, 8))


def _texts(count: int = 24) -> tuple[list[str], dict[str, np.ndarray]]:
    archs = [SPACE.sample(np.random.default_rng(i)) for i in range(count)]
    return [SPACE.to_text(a) for a in archs], {"my_latency_ms": np.array([SPACE.flops(a) / 1e5 for a in archs])}


@pytest.fixture(scope="module")
def t5gemma(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random T5Gemma with a tokenizer, as the hub would have it, on disk."""
    from transformers import PreTrainedTokenizerFast, T5GemmaConfig, T5GemmaModel

    folder = tmp_path_factory.mktemp("t5gemma")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=["<pad>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(_texts()[0], trainer)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>").save_pretrained(folder)
    sizes = {
        "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
        "num_key_value_heads": 1, "head_dim": 16, "query_pre_attn_scalar": 16, "max_position_embeddings": 2048,
        "vocab_size": tokenizer.get_vocab_size(),
    }  # fmt: skip
    torch.manual_seed(0)
    T5GemmaModel(T5GemmaConfig(encoder=sizes, decoder=sizes)).save_pretrained(folder)
    return folder


def test_a_t5gemma_reads_the_texts_and_is_found_again_by_its_folder(t5gemma: Path, tmp_path: Path) -> None:
    texts, metrics = _texts()
    model = predictors.create("rlm", backbone=str(t5gemma)).fit(texts[:20], {n: v[:20] for n, v in metrics.items()})
    predicted = model.predict(texts[20:], ["my_latency_ms"], samples=8)
    assert np.isfinite(predicted.samples).all()
    model.save(tmp_path)
    again = predictors.load(tmp_path).predict(texts[20:], ["my_latency_ms"], samples=8)
    np.testing.assert_array_equal(again.samples, predicted.samples)


def test_a_missing_backbone_is_one_line_that_says_what_to_give(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no T5Gemma could be loaded") as found:
        predictors.create("rlm", backbone=str(tmp_path)).fit(["a"], {"metric": [1.0]})
    assert "\n" not in str(found.value)
