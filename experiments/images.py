"""`composed_images`: 32×32 colour images on which width and depth of a network matter.

Each image shows a handwritten digit and a geometric shape in different places, colours and sizes,
over a gradient, with strokes that belong to neither, shifted and with noise. The class is the pair
of digit and shape: 10 · 3 classes. Digits of the test part are other people's images than those of
the training part. Everything follows from the seed.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from search_spaces.common.files import replacing

SIDE = 32  # pixels
SHAPES = 3  # ring, square, cross
CLASSES = 10 * SHAPES
TRAIN = 8000  # images; the validation and the test part have a quarter of that


def composed_images(
    count: int, digits: np.ndarray, labels: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Images and classes.

    Args:
        count: number of images.
        digits: handwritten digits (n, 8, 8) in 0…1 to draw from.
        labels: their numbers (n,).
        rng: draws everything.

    Returns:
        Images (count, 3, 32, 32) uint8 and classes (count,) int64.
    """
    images = np.zeros((count, 3, SIDE, SIDE), np.float32)
    classes = np.zeros(count, np.int64)
    rows, columns = np.mgrid[:SIDE, :SIDE].astype(np.float32)
    colour = (3, 1, 1)  # shape of one number per channel
    for i in range(count):
        # 1. A gradient between two dark colours.
        slope = rng.normal(size=2)
        ramp = (slope[0] * rows + slope[1] * columns) / SIDE
        ground = rng.uniform(0.1, 0.4, colour)
        image = ground + rng.uniform(-0.15, 0.15, colour) * ramp

        # 2. A digit of 12 to 18 pixels, in the left or right half.
        chosen = int(rng.integers(len(digits)))
        side = int(rng.integers(12, 19))
        picked = (np.arange(side) * 8 / side).astype(int)
        digit = digits[chosen][np.ix_(picked, picked)]
        is_left = bool(rng.integers(2))
        top = int(rng.integers(0, SIDE - side + 1))
        start = int(rng.integers(0, 3))
        if not is_left:
            start += SIDE - side - 2
        window = image[:, top : top + side, start : start + side]
        window += rng.uniform(0.25, 0.7, colour) * digit

        # 3. A shape in the other half.
        kind = int(rng.integers(SHAPES))
        y = rng.uniform(7, SIDE - 7)
        x = rng.uniform(SIDE - 11, SIDE - 7) if is_left else rng.uniform(7, 11)
        brightness = rng.uniform(0.2, 0.6, colour)
        image += brightness * _shape(kind, rows - y, columns - x, rng)

        # 4. Strokes that mean nothing.
        for _ in range(2):
            a = rng.normal()
            b = rng.normal()
            offset = rng.uniform(-12, 12)
            signed = a * (rows - 16) + b * (columns - 16) + offset
            distance = np.abs(signed) / np.hypot(a, b)
            image += rng.uniform(0.05, 0.3, colour) * (distance < 0.7)

        # 5. Noise.
        images[i] = image + rng.normal(0, 0.12, image.shape)
        classes[i] = SHAPES * labels[chosen] + kind
    return (255 * images.clip(0, 1)).astype(np.uint8), classes


def _shape(kind: int, y: np.ndarray, x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A ring, a square or a cross around the origin, turned at random; 1 inside, 0 outside."""
    radius = rng.uniform(3.5, 6)
    angle = rng.uniform(-0.4, 0.4)
    down = np.abs(y * np.cos(angle) + x * np.sin(angle))
    across = np.abs(x * np.cos(angle) - y * np.sin(angle))
    if kind == 0:
        return np.abs(np.hypot(down, across) - radius) < 1.2
    border = np.maximum(down, across)
    if kind == 1:
        return np.abs(border - radius) < 1.2
    is_stroke = np.minimum(down, across) < 1.2
    return is_stroke & (border < radius)


def write_images(
    path: Path, train: int = TRAIN, seed: int = 0, held_out: int | None = None
) -> None:
    """Write the data set with its three parts as `.npz`, as `nas.load_dataset` reads it.

    Args:
        path: the file.
        train: training images.
        seed: of everything.
        held_out: validation images, with twice as many test images; None for a quarter of the
            training images in each part.
    """
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    pixels = (pixels / 16).astype(np.float32).reshape(-1, 8, 8)
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(pixels))
    people = np.split(order, [1100, 1400])  # digits of the training, validation and test part
    arrays: dict[str, np.ndarray] = {}
    counts = (train, train // 4, train // 4)
    if held_out is not None:
        counts = (train, held_out, 2 * held_out)
    for name, rows, count in zip(("train", "val", "test"), people, counts, strict=True):
        x, y = composed_images(count, pixels[rows], labels[rows], rng)
        arrays |= {f"x_{name}": x, f"y_{name}": y}
    with replacing(path) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]


if __name__ == "__main__":
    write_images(Path(sys.argv[1]))
