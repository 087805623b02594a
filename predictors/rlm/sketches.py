"""Sketches of a text's lines: sums of random signs, which no training can make blind to a kind of
line.

Signs of different kinds are almost orthogonal, so that a linear function of a sketch can
approximate any linear function of the counts per kind.
"""

from __future__ import annotations

import hashlib

import numpy as np

COUNTS = 128  # size of the sketch of how often each kind of line occurs
COUNT_STEPS = 64  # steps per octave to which this sketch rounds sizes
NEIGHBOURS = 512  # size of the sketch of the lines around each line
HOPS = 2  # lines up and down the data flow that it looks at
_WORD = 64  # bits of a hash


def kind_sketch(words: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """Pseudo-random signs (COUNTS,) of one kind of line, by its words and its numbers rounded to 1
    / `COUNT_STEPS`.

    The latency of operators that run in sequence, for instance, is a linear function of the counts
    of such kinds.
    """
    sizes = np.rint(numbers * COUNT_STEPS).astype(np.int32)
    digest = hashlib.blake2b(
        words.astype(np.int32).tobytes() + sizes.tobytes(), digest_size=COUNTS // 8
    ).digest()
    return np.unpackbits(np.frombuffer(digest, np.uint8)).astype(np.float32) * 2 - 1


def neighbour_sketch(words: np.ndarray, lengths: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Sum (NEIGHBOURS,) of pseudo-random signs of each line, and of what is up to `HOPS` lines
    above and below it.

    These are the labels of Weisfeiler and Leman's colour refinement, along and against the data
    flow. They tell where in a cell an operator is. Sizes are left out, so that copies of a cell
    count together.

    Args:
        words: (w,) hashed words, line after line.
        lengths: (n,) words per line.
        edges: (2, e) line that produces a value, line that reads it.
    """
    count = len(lengths)
    kinds = _mixed(
        _sums(count, np.repeat(np.arange(count), lengths), _mixed(words.astype(np.uint64)))
    )
    above = below = kinds
    labels = [kinds]
    source, target = edges
    for _ in range(HOPS):
        above = _mixed(3 * kinds + _sums(count, target, _mixed(above[source])))
        below = _mixed(5 * kinds + _sums(count, source, _mixed(~below[target])))
        labels += [above, below]
    found, times = np.unique(np.concatenate(labels), return_counts=True)
    columns = np.arange(1, NEIGHBOURS // _WORD + 1, dtype=np.uint64)
    bits = np.unpackbits(
        _mixed(found[:, None] + columns * 1_000_003).astype("<u8").view(np.uint8), axis=1
    )
    return times.astype(np.float32) @ (2 * bits.astype(np.float32) - 1)


def _sums(count: int, rows: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Sums (count,) of hashes by row, which do not depend on their order."""
    found = np.zeros(count, np.uint64)
    np.add.at(found, rows, values)
    return found


def _mixed(hashes: np.ndarray) -> np.ndarray:
    """Hashes of 64-bit numbers (splitmix64)."""
    hashes = hashes + np.uint64(0x9E3779B97F4A7C15)
    hashes = (hashes ^ (hashes >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    hashes = (hashes ^ (hashes >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return hashes ^ (hashes >> np.uint64(31))
