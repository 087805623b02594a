"""Caches of texts depend on `TEXT_VERSION`: no text may change without it."""

from __future__ import annotations

import hashlib

import numpy as np

from search_spaces import get_space
from search_spaces.ir.text import TEXT_VERSION

SPACES = (
    "nasbench101",
    "nasbench201",
    "darts",
    "fbnet",
    "ofa-resnet50",
    "inception",
    "tiny-resnet",
)
DIGESTS = dict.fromkeys(
    (1, 2, 3, 4), "9d176ea8e2c39b83"
)  # of these texts; 2 and 4 changed modules, 3 few cells


def test_texts_of_a_version_stay_the_same() -> None:
    digest = hashlib.sha256()
    for name in SPACES:
        space, rng = get_space(name), np.random.default_rng(0)
        for _ in range(5):
            digest.update(space.to_text(space.sample(rng)).encode())
    found = digest.hexdigest()[:16]
    assert DIGESTS.get(TEXT_VERSION) == found, (
        f"texts have changed: raise TEXT_VERSION and add its digest, {found!r}"
    )
