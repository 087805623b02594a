"""scikit-learn's handwritten digits, made hard enough that networks differ in accuracy."""

from __future__ import annotations

import hashlib
from functools import lru_cache

import numpy as np

from nas.evaluation.datasets.augmentation import augment
from nas.evaluation.datasets.dataset import Dataset, Part
from search_spaces.common.errors import InputError


@lru_cache(maxsize=4)
def digits(
    train_images: int = 512,
    shift: int = 1,
    noise: float = 0.1,
    seed: int = 0,
    test_share: float = 0.5,
) -> Dataset:
    """Handwritten digits: 1,797 images (1, 8, 8) with pixels in 0…1, of which few are for training.

    The held-out images are augmented once, so that every network is scored on the same ones.

    Args:
        train_images: number of training images.
        shift: translation of held-out images in pixels, see `augment`.
        noise: noise of held-out images, see `augment`.
        seed: draws the split and the augmentation.
        test_share: share of the held-out images that makes the test part; the others make the
            validation part.

    Raises:
        InputError: `train_images` is not between 1 and 1,796.
    """
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    images = (images / 16).astype(np.float32).reshape(-1, 1, 8, 8)
    labels = labels.astype(np.int64)
    if not 1 <= train_images < len(images):
        raise InputError(f"digits: {train_images} training images; give 1 to {len(images) - 1}")
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(images))
    train, others = order[:train_images], order[train_images:]
    settings = f"digits, augmented: {seed} {train_images} {shift} {noise}"
    content = hashlib.sha256(
        (Part(images[others], labels[others]).fingerprint + settings).encode()
    ).hexdigest()
    held_out = Part(augment(images[others], rng, shift, noise), labels[others], content)
    count = len(held_out) - round(test_share * len(held_out))
    return Dataset(
        "digits", Part(images[train], labels[train]), held_out.rows(slice(count, None)), 10,
        validation=held_out.rows(slice(count)), source="digits",
    )  # fmt: skip
