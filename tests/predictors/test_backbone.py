"""Claims about T5Gemma as the RLM's encoder: it is loaded, trained or left alone, kept, and refused with a reason."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from predictors.rlm.tokenizer import train_tokenizer
from predictors.rlm.training import digit_loss

import predictors
from predictors.rlm.backbone import T5GemmaTextEncoder
from predictors.rlm.model import ModelConfig, NumberDecoder
from predictors.rlm.predictor import RLM
from search_spaces import InputError, get_space

SPACE = get_space("nasbench201", channels=4, cells=1, input_shape=(1, 8, 8))
TINY = {"width": 32, "heads": 2, "decoder_layers": 1, "latents": 4}
# The encoder of "t5gemma-b-b": 282 million weights with the embedding of 256,000 tokens.
BASE_SIZES = {
    "hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 12, "num_attention_heads": 12,
    "num_key_value_heads": 12, "head_dim": 64, "query_pre_attn_scalar": 64, "vocab_size": 256_000,
}  # fmt: skip


def _texts(count: int = 24) -> tuple[list[str], dict[str, np.ndarray]]:
    archs = [SPACE.sample(np.random.default_rng(i)) for i in range(count)]
    return [SPACE.to_text(a) for a in archs], {"my_latency_ms": np.array([SPACE.flops(a) / 1e5 for a in archs])}


@pytest.fixture(scope="module")
def t5gemma(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random T5Gemma with a tokenizer, as the hub would have it, on disk."""
    from transformers import PreTrainedTokenizerFast, T5GemmaConfig, T5GemmaModel

    folder = tmp_path_factory.mktemp("t5gemma")
    tokenizer = train_tokenizer(_texts()[0], vocabulary=400)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>").save_pretrained(folder)
    sizes = {
        "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
        "num_key_value_heads": 1, "head_dim": 16, "query_pre_attn_scalar": 16, "max_position_embeddings": 512,
        "vocab_size": tokenizer.get_vocab_size(),
    }  # fmt: skip
    torch.manual_seed(0)
    T5GemmaModel(T5GemmaConfig(encoder=sizes, decoder=sizes)).save_pretrained(folder)
    return folder


def _fitted(t5gemma: Path, encoder: str) -> RLM:
    texts, metrics = _texts()
    model = predictors.create("rlm", backbone=str(t5gemma), encoder=encoder, sizes=TINY, steps=20)
    return model.fit(texts, metrics)  # type: ignore[return-value]


def _own_weights(model: RLM) -> dict[str, np.ndarray]:
    return {name: value for name, value in model._state()[1].items() if name.startswith("encoder.backbone.")}


def _pretrained(t5gemma: Path) -> dict[str, np.ndarray]:
    from safetensors.numpy import load_file

    saved = load_file(t5gemma / "model.safetensors")
    return {f"encoder.backbone.{name}": value for name, value in saved.items() if name.startswith("encoder.")}


def test_frozen_keeps_the_pretrained_weights_and_learns_what_stands_on_them(t5gemma: Path) -> None:
    model = _fitted(t5gemma, "frozen")
    kept = _own_weights(model)
    assert set(kept) == set(_pretrained(t5gemma))
    assert all(np.array_equal(kept[name], value) for name, value in _pretrained(t5gemma).items())
    assert model.losses[-1] < model.losses[0]


def test_tuned_trains_the_backbone_too(t5gemma: Path) -> None:
    tuned = _own_weights(_fitted(t5gemma, "tuned"))
    changed = [name for name, value in _pretrained(t5gemma).items() if not np.array_equal(tuned[name], value)]
    assert any("layers.0" in name for name in changed)
    assert any("embed_tokens" in name for name in changed)


def test_a_checkpoint_needs_neither_hub_nor_folder(t5gemma: Path, tmp_path: Path) -> None:
    texts, _ = _texts()
    model = _fitted(t5gemma, "frozen")
    model.save(tmp_path / "kept")
    again = predictors.load(tmp_path / "kept")
    expected, found = (m.predict(texts[:5], ["my_latency_ms"], samples=8).samples for m in (model, again))
    np.testing.assert_array_equal(found, expected)


def test_another_model_and_a_missing_one_are_refused_with_the_remedy(tmp_path: Path) -> None:
    texts, metrics = _texts()
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(InputError, match="a bert model; the backbone of an rlm is a t5gemma"):
        predictors.create("rlm", backbone=str(tmp_path)).fit(texts, metrics)
    with pytest.raises(InputError, match=r"config\.json, tokenizer\.json and model\.safetensors"):
        predictors.create("rlm", backbone=str(tmp_path / "nowhere")).fit(texts, metrics)


def test_the_published_size_takes_a_training_step() -> None:
    config = ModelConfig(vocabulary=256_000, backbone=BASE_SIZES)
    encoder, decoder = T5GemmaTextEncoder(config), NumberDecoder(config)
    assert 250e6 < sum(p.numel() for p in encoder.parameters()) < 350e6
    optimizer = torch.optim.SGD([*encoder.parameters(), *decoder.parameters()], lr=0.01)
    tokens, lengths = torch.randint(3, 256_000, (2, 12)), torch.tensor([12, 7])
    numbers = torch.tensor([[12, 0, 0, 2, 3, 4, 5], [12, 0, 0, 3, 4, 5, 6]])
    allowed = torch.ones(6, 12, dtype=torch.bool)

    def step() -> float:
        loss = digit_loss(decoder, encoder(tokens, lengths), numbers[:, :-1], numbers[:, 1:], allowed)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        return loss.item()

    assert step() > step()
