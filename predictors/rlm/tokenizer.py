"""Byte-pair tokenizer for ONNX text: a line `b = net.ConvBn <…> (a)` becomes about two tokens."""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import inf

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from search_spaces.common.errors import InputError

PAD = 0
# Merges stay inside these pieces: file and function headers, signatures, an operator with its attributes, and what
# stands between two operators: the arguments of one and the value of the next.
_PIECES = (
    r"<(?:ir_version|domain)[^\n]*>\n\w+"
    r"|[^\n]*\{(?:\n  \w[\w, ]* =)?"
    r"| [\w.]+(?: <[^>]*>)?(?= \()"
    r"| \([^()\n]*\)\n  \w[\w, ]* ="
    r"| \([^()\n]*\)\n\}\n"
)


# In other texts they stay inside words, spaces and punctuation, and every digit is a token: numbers tell most there.
_OTHER_PIECES = r"\d| ?[^\W\d]+| ?[^\w\s]+|\s+"


def is_onnx(texts: Sequence[str]) -> bool:
    """Whether all texts are models in ONNX text."""
    return all(text.startswith("<ir_version") for text in texts)


def train_tokenizer(texts: Sequence[str], vocabulary: int = 4096) -> Tokenizer:
    """A tokenizer trained on `texts`, ONNX or others; every byte has a token, so any text can be read."""
    pieces = _PIECES if is_onnx(texts) else _OTHER_PIECES
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pieces), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=["<pad>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


# An attribute with its value, the value that a line defines, a word: `kernel = [3,3]`, `d =`, `net.ConvBn`.
_PARTS = re.compile(r"\w[\w.]*(?:: \w+)? = (?:\[[^\]]*\]|@?\w+)|\w+ =\Z|\w[\w.]*")


def token_parts(tokenizer: Tokenizer) -> list[list[int]]:
    """For every token the numbers, from 1 on, of the parts that it is made of.

    ` (b, f)\\n  g =` and ` (b)\\n  c =` share the part `b`: what is learned of a value's name or a kernel size serves
    all tokens that it occurs in.
    """
    numbers: dict[str, int] = {}
    texts = [tokenizer.decode([i], skip_special_tokens=False) for i in range(tokenizer.get_vocab_size())]
    return [[numbers.setdefault(part, len(numbers) + 1) for part in _PARTS.findall(text)] for text in texts]


def tokenize(tokenizer: Tokenizer, texts: Sequence[str], limit: float = inf) -> list[list[int]]:
    """Token ids of every text; `InputError` for one that is empty or has more than `limit` tokens (nothing is cut)."""
    encoded = [e.ids for e in tokenizer.encode_batch(list(texts))]
    for ids, text in zip(encoded, texts, strict=True):
        if not ids:
            raise InputError("an empty text has nothing to predict from")
        if len(ids) > limit:
            raise InputError(f"the text {text[:60]!r}… has {len(ids)} tokens; this model reads {limit}")
    return encoded
