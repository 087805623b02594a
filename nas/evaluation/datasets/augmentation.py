"""Random changes of training images that leave their class as it is."""

from __future__ import annotations

import numpy as np


def augment(images: np.ndarray, rng: np.random.Generator, shift: int, noise: float, flip: bool = False) -> np.ndarray:
    """Copies of images (n, channels, height, width) for augmentation.

    Each is moved by up to `shift` pixels in both directions (zeros move in), given Gaussian noise of standard deviation
    `noise`, and with `flip` mirrored left to right or not.
    """
    moved = images
    if shift:
        moved = _shifted(images, rng.integers(0, 2 * shift + 1, (len(images), 2)), shift)
    if noise:
        moved = moved + noise * rng.standard_normal(moved.shape, np.float32)
    if flip:
        moved = np.where(rng.integers(0, 2, (len(images), 1, 1, 1)), moved[..., ::-1], moved)
    return moved


def _shifted(images: np.ndarray, moves: np.ndarray, shift: int) -> np.ndarray:
    """Windows that start at `moves` (n, 2) of the images padded by `shift`."""
    height, width = images.shape[2:]
    padded = np.pad(images, ((0, 0), (0, 0), (shift, shift), (shift, shift)))
    rows, columns = moves[:, :1] + np.arange(height), moves[:, 1:] + np.arange(width)
    n, c = np.arange(len(images))[:, None, None, None], np.arange(images.shape[1])[:, None, None]
    return padded[n, c, rows[:, None, :, None], columns[:, None, None, :]]
