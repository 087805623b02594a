"""Shapes: a procedural data set of images, for short trainings of networks of any input shape.

The larger of two textured shapes on a cluttered background gives the class: one of five outlines
with one of two textures. Colours, place and rotation vary; each class prefers a colour. So there
are cues for linear classifiers, for local features and for the outline, as in photographs.
"""

from __future__ import annotations

import torch
from torch import Tensor

CLASSES, TEXTURES = 10, 2
LEAVES = 6  # discs in the background
# Radii of the shape that counts and of the other one, relative to the image
SIZES = (
    (0.34, 0.46),
    (0.13, 0.18),
)
# deviations: of shapes, background, classes, pixels
COLOUR, CLUTTER, HUE, NOISE = 0.8, 0.7, 0.7, 0.15
MAX_TURN = 0.5  # radians
FREQUENCY = (3.0, 4.7)  # of textures, in periods per image

_HUES = torch.randn(CLASSES, 3, generator=torch.Generator().manual_seed(5))


def shapes(
    count: int, shape: tuple[int, int, int], seed: int, device: str = "cpu"
) -> tuple[Tensor, Tensor]:
    """Draw images (count, *shape), each channel standardized, and their classes (count,).

    Args:
        count: number of images.
        shape: channels, height, width. Images with other than one or three channels are random
            mixtures of colours.
        seed: draws everything. Devices of different kinds draw different images.
        device: of the result.
    """
    with torch.device(device):
        return _Painter(count, seed, device).paint(shape)


class _Painter:
    """Draws a batch of images. Sizes in comments: n images, H height, W width."""

    def __init__(self, count: int, seed: int, device: str) -> None:
        self.count = count
        self.generator = torch.Generator(device).manual_seed(seed)
        self.hues = _HUES.to(device)

    def paint(self, shape: tuple[int, int, int]) -> tuple[Tensor, Tensor]:
        channels, height, width = shape
        # 1. Places of the pixels' centres, 0 to 1.                                      (1, H, W)
        rows = (torch.arange(height) + 0.5) / height
        columns = (torch.arange(width) + 0.5) / width
        y, x = torch.meshgrid(rows, columns, indexing="ij")
        y, x = y[None], x[None]

        # 2. The background, the shape that counts, and a smaller one before or behind it.
        images = self._background(x, y)  # (n, 3, H, W)
        classes = torch.randint(CLASSES, (self.count,), generator=self.generator)
        others = torch.randint(CLASSES, (self.count,), generator=self.generator)
        large, first = self._object(x, y, classes, SIZES[0])
        small, second = self._object(x, y, others, SIZES[1])
        is_behind = self._uniform() < 0.5
        is_hidden = large & is_behind
        images = torch.where(large[:, None], first, images)
        images = torch.where((small & ~is_hidden)[:, None], second, images)

        # 3. Noise, and the number of channels.
        images = images + NOISE * self._normal(3, height, width)
        if channels == 1:
            images = images.mean(1, keepdim=True)
        elif channels != 3:
            mixture = torch.randn(3, channels, generator=self.generator)
            images = torch.einsum("nchw,cd->ndhw", images, mixture)
        deviation, mean = torch.std_mean(images, (0, 2, 3), keepdim=True)
        return (images - mean) / deviation, classes

    def _background(self, x: Tensor, y: Tensor) -> Tensor:
        """Overlapping discs (n, 3, H, W)."""
        images = (CLUTTER * self._normal(3, 1, 1)).expand(-1, -1, *x.shape[1:])
        for _ in range(LEAVES):
            u = self._uniform()
            squared_radius = 1 / ((1 - u) / 0.1**2 + u / 0.5**2)
            from_left = x - self._uniform()
            from_top = y - self._uniform()
            is_inside = from_left**2 + from_top**2 < squared_radius  # (n, H, W)
            colour = CLUTTER * self._normal(3, 1, 1)
            images = torch.where(is_inside[:, None], colour, images)
        return images

    def _object(
        self, x: Tensor, y: Tensor, classes: Tensor, sizes: tuple[float, float]
    ) -> tuple[Tensor, Tensor]:
        """Mask (n, H, W) and colours (n, 3, H, W) of one shape per image."""
        # 1. The outline, somewhere in the image, turned a little.                       (n, H, W)
        smallest, largest = sizes
        size = smallest + (largest - smallest) * self._uniform()
        room = 1 - 2 * size
        u = (x - size - room * self._uniform()) / size
        v = (y - size - room * self._uniform()) / size
        turn = MAX_TURN * (2 * self._uniform() - 1)
        outlines = _outlines(*_turned(u, v, turn))  # (5, n, H, W)
        kind = (classes // TEXTURES)[None, :, None, None]
        mask = outlines.gather(0, kind.expand(1, *outlines.shape[1:]))[0]

        # 2. The texture: stripes, or checks, in any direction.                          (n, H, W)
        slowest, fastest = FREQUENCY
        frequency = slowest + (fastest - slowest) * self._uniform()
        p, q = _turned(x, y, 2 * torch.pi * self._uniform())
        phase = 2 * torch.pi * self._uniform()
        stripes = torch.sin(2 * torch.pi * frequency * p + phase)
        across = torch.sin(2 * torch.pi * frequency * q + phase)
        is_striped = (classes % TEXTURES == 0)[:, None, None]
        texture = torch.where(is_striped, stripes, 1.6 * stripes * across)

        # 3. Colours around the one that the class prefers.                           (n, 3, H, W)
        hue = HUE * self.hues[classes][:, :, None, None]
        colour = self._normal(3, 1, 1)
        contrast = self._normal(3, 1, 1)
        return mask, hue + COLOUR * (colour + contrast * texture[:, None])

    def _uniform(self) -> Tensor:
        """(n, 1, 1) from 0 to 1."""
        return torch.rand(self.count, 1, 1, generator=self.generator)

    def _normal(self, *shape: int) -> Tensor:
        return torch.randn(self.count, *shape, generator=self.generator)


def _turned(u: Tensor, v: Tensor, angle: Tensor) -> tuple[Tensor, Tensor]:
    return u * angle.cos() + v * angle.sin(), v * angle.cos() - u * angle.sin()


def _outlines(u: Tensor, v: Tensor) -> Tensor:
    """Whether points (n, H, W) are inside a disc, a square, a triangle, a ring and a cross.

    The shape is (5, n, H, W).
    """
    radius = (u.square() + v.square()).sqrt()
    far = torch.maximum(u.abs(), v.abs())
    return torch.stack(
        [
            radius < 1,
            far < 0.86,
            (v > -0.7) & (v < 1 - 1.9 * u.abs()),
            (radius < 1) & (radius > 0.55),
            (torch.minimum(u.abs(), v.abs()) < 0.36) & (far < 1),
        ]
    )
