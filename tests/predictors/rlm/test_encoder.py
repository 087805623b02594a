"""Claims about T5Gemma as the RLM's encoder: it reads texts, is saved by its name, and is refused
with a reason.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from predictors import load
from predictors.rlm.encoder import T5GemmaReader
from predictors.rlm.predictor import RLM
from predictors.rlm.tokens import COMMON, COUNTS, NEIGHBOURS, QUALITY
from search_spaces import InputError

pytestmark = pytest.mark.slow  # a T5Gemma is built

TEXTS = [f"width {i % 7} depth {i % 5}" for i in range(24)]
VALUES = {"top1": np.arange(24.0)}
HIDDEN, LIMIT = 32, 64


@pytest.fixture(scope="module")
def t5gemma(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Folder of a tiny random T5Gemma with a tokenizer, as the hub would have it."""
    from search_spaces.common.torchvision import prepare_torchvision

    prepare_torchvision()
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, T5GemmaConfig, T5GemmaModel

    folder = tmp_path_factory.mktemp("t5gemma")
    words = ["<pad>", "<unk>", "width", "depth", *map(str, range(10))]
    tokenizer = Tokenizer(
        models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>").save_pretrained(folder)
    sizes = {
        "hidden_size": HIDDEN, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
        "num_key_value_heads": 1, "head_dim": 16, "query_pre_attn_scalar": 16, "max_position_embeddings": LIMIT,
        "vocab_size": len(words),
    }  # fmt: skip
    torch.manual_seed(0)
    T5GemmaModel(T5GemmaConfig(encoder=sizes, decoder=sizes)).save_pretrained(folder)
    return str(folder)


def test_states_do_not_depend_on_the_other_texts(t5gemma: str) -> None:
    reader = T5GemmaReader(t5gemma)
    texts = [TEXTS[0], "depth 3", "width 1 depth 2 width 3 depth 4"]
    together = reader.states(texts)
    assert together.shape == (3, HIDDEN + QUALITY + COUNTS + NEIGHBOURS + COMMON)
    assert np.isfinite(together).all()
    np.testing.assert_allclose(
        together, np.concatenate([reader.states([text]) for text in texts]), atol=1e-5
    )
    assert np.abs(together[0] - together[1]).max() > 1e-3


def test_an_rlm_with_a_backbone_is_saved_with_its_name(
    t5gemma: str, small_base: str, tmp_path: Path
) -> None:
    model = RLM(base=small_base, backbone=t5gemma).fit(TEXTS[:16], {"top1": VALUES["top1"][:16]})
    assert model.states(TEXTS).shape == (24, HIDDEN + QUALITY + COUNTS + NEIGHBOURS + COMMON)
    found = model.predict(TEXTS[16:], ["top1"], samples=8).samples
    assert np.isfinite(found).all()
    model.save(tmp_path)
    np.testing.assert_array_equal(
        load(tmp_path).predict(TEXTS[16:], ["top1"], samples=8).samples, found
    )


def test_tuning_leaves_the_backbone_frozen(t5gemma: str, small_base: str) -> None:
    before = RLM(base=small_base, backbone=t5gemma).states(TEXTS)
    model = RLM(base=small_base, backbone=t5gemma, steps=3).fit(TEXTS, VALUES)
    np.testing.assert_array_equal(model.states(TEXTS), before)
    np.testing.assert_allclose(
        before, T5GemmaReader(t5gemma).states(TEXTS), rtol=1e-3, atol=1e-6
    )  # 16 bits


def test_texts_that_the_backbone_cannot_read_are_refused(t5gemma: str) -> None:
    reader = T5GemmaReader(t5gemma)
    with pytest.raises(InputError, match="empty text"):
        reader.states([""])
    with pytest.raises(InputError, match=f"101 tokens; the model's limit is {LIMIT}"):
        reader.states(["width" + " 1" * 100])


def test_another_model_and_a_missing_one_are_refused_with_the_remedy(
    small_base: str, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(InputError, match="a bert model; the backbone of an rlm must be a t5gemma"):
        RLM(base=small_base, backbone=str(tmp_path)).fit(TEXTS, VALUES)
    with pytest.raises(InputError, match=r"config\.json, tokenizer\.json and model\.safetensors"):
        RLM(base=small_base, backbone=str(tmp_path / "nowhere")).fit(TEXTS, VALUES)
