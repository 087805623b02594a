"""Readers of programs in the study: inputs for our encoder (words or bytes), and a T5Gemma with
random weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from search_spaces.common.torchvision import prepare_torchvision

FIRST_SIGN = 0x2800  # of the 256 Braille characters, which the encoder never joins to words
T5GEMMA = {
    "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 32, "query_pre_attn_scalar": 32, "max_position_embeddings": 4096,
    "vocab_size": 1024,
}  # fmt: skip


def as_bytes(text: str) -> str:
    """Replace each byte by one character, so that the encoder reads one line per byte."""
    return "".join(chr(FIRST_SIGN + byte) for byte in text.encode())


def random_t5gemma(texts: Sequence[str], folder: Path, seed: int) -> str:
    """Save a small T5Gemma with random weights, and a tokenizer, unless they exist.

    The byte-pair tokenizer is trained on the texts.

    Returns:
        The folder's path.
    """
    if (folder / "config.json").is_file():
        return str(folder)
    prepare_torchvision()
    import torch
    from tokenizers import ByteLevelBPETokenizer
    from transformers import PreTrainedTokenizerFast, T5GemmaConfig, T5GemmaModel

    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(
        texts, vocab_size=T5GEMMA["vocab_size"], special_tokens=["<pad>"], show_progress=False
    )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer._tokenizer, pad_token="<pad>"
    ).save_pretrained(folder)
    torch.manual_seed(seed)
    T5GemmaModel(T5GemmaConfig(encoder=T5GEMMA, decoder=T5GEMMA)).save_pretrained(folder)
    return str(folder)
