"""Data augmentation: random changes of training images that preserve their class."""

from __future__ import annotations

import numpy as np


def augment(
    images: np.ndarray, rng: np.random.Generator, shift: int, noise: float, flip: bool = False
) -> np.ndarray:
    """Augmented copies of images.

    Args:
        images: (n, channels, height, width) float32.
        rng: source of randomness.
        shift: largest translation in pixels, along both axes; zeros fill the border.
        noise: standard deviation of added Gaussian noise.
        flip: mirror each image left to right with probability 1/2.

    Returns:
        (n, channels, height, width) float32.
    """
    augmented = images
    if shift:
        corners = rng.integers(0, 2 * shift + 1, (len(images), 2))
        augmented = _shifted(images, corners, shift)
    if noise:
        augmented = augmented + noise * rng.standard_normal(augmented.shape, np.float32)
    if flip:
        is_mirrored = rng.integers(0, 2, (len(images), 1, 1, 1))
        augmented = np.where(is_mirrored, augmented[..., ::-1], augmented)
    return augmented


def _shifted(images: np.ndarray, corners: np.ndarray, shift: int) -> np.ndarray:
    """Windows of the images padded by `shift` pixels, in their original size.

    The windows' upper left corners (n, 2) are in pixels of the padded image.
    """
    count, channels, height, width = images.shape
    border = (shift, shift)
    padded = np.pad(images, ((0, 0), (0, 0), border, border))
    # Indices of the image, channel, row and column, which broadcast to (n, channels, H, W).
    image = np.arange(count).reshape(count, 1, 1, 1)
    channel = np.arange(channels).reshape(1, channels, 1, 1)
    rows = corners[:, :1] + np.arange(height)  # (n, H)
    columns = corners[:, 1:] + np.arange(width)  # (n, W)
    row = rows.reshape(count, 1, height, 1)
    column = columns.reshape(count, 1, 1, width)
    return padded[image, channel, row, column]
