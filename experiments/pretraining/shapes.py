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
SIZES = (
    (0.34, 0.46),
    (0.13, 0.18),
)  # radii of the shape that counts and of the other one, relative to the image
COLOUR, CLUTTER, HUE, NOISE = (
    0.8,
    0.7,
    0.7,
    0.15,
)  # deviations: of shapes, background, classes, pixels
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
        self.count, self.generator = count, torch.Generator(device).manual_seed(seed)
        self.hues = _HUES.to(device)

    def paint(self, shape: tuple[int, int, int]) -> tuple[Tensor, Tensor]:
        channels, height, width = shape
        y, x = torch.meshgrid(
            (torch.arange(height) + 0.5) / height,
            (torch.arange(width) + 0.5) / width,
            indexing="ij",
        )
        images = self._background(x[None], y[None])
        classes, others = (
            torch.randint(CLASSES, (self.count,), generator=self.generator) for _ in range(2)
        )
        large, first = self._object(x[None], y[None], classes, SIZES[0])
        small, second = self._object(x[None], y[None], others, SIZES[1])
        behind = self._uniform() < 0.5
        images = torch.where(large[:, None], first, images)
        images = torch.where((small & ~(large & behind))[:, None], second, images)
        images = images + NOISE * self._normal(3, height, width)
        if channels == 1:
            images = images.mean(1, keepdim=True)
        elif channels != 3:
            images = torch.einsum(
                "nchw,cd->ndhw", images, torch.randn(3, channels, generator=self.generator)
            )
        deviation, mean = torch.std_mean(images, (0, 2, 3), keepdim=True)
        return (images - mean) / deviation, classes

    def _background(self, x: Tensor, y: Tensor) -> Tensor:
        """Overlapping discs (n, 3, H, W)."""
        images = (CLUTTER * self._normal(3, 1, 1)).expand(-1, -1, *x.shape[1:])
        for _ in range(LEAVES):
            u = self._uniform()
            squared_radius = 1 / ((1 - u) / 0.1**2 + u / 0.5**2)
            inside = (x - self._uniform()) ** 2 + (y - self._uniform()) ** 2 < squared_radius
            images = torch.where(inside[:, None], CLUTTER * self._normal(3, 1, 1), images)
        return images

    def _object(
        self, x: Tensor, y: Tensor, classes: Tensor, sizes: tuple[float, float]
    ) -> tuple[Tensor, Tensor]:
        """Mask (n, H, W) and colours (n, 3, H, W) of one shape per image."""
        size = sizes[0] + (sizes[1] - sizes[0]) * self._uniform()
        u, v = (axis - size - (1 - 2 * size) * self._uniform() for axis in (x, y))
        u, v = _turned(u / size, v / size, MAX_TURN * (2 * self._uniform() - 1))
        mask = _outlines(u, v).gather(
            0, (classes // TEXTURES)[None, :, None, None].expand(1, *u.shape)
        )[0]
        frequency = FREQUENCY[0] + (FREQUENCY[1] - FREQUENCY[0]) * self._uniform()
        p, q = _turned(x, y, 2 * torch.pi * self._uniform())
        phase = 2 * torch.pi * self._uniform()
        stripes, across = (torch.sin(2 * torch.pi * frequency * axis + phase) for axis in (p, q))
        texture = torch.where(
            (classes % TEXTURES == 0)[:, None, None], stripes, 1.6 * stripes * across
        )
        hue = HUE * self.hues[classes][:, :, None, None]
        return mask, hue + COLOUR * (
            self._normal(3, 1, 1) + self._normal(3, 1, 1) * texture[:, None]
        )

    def _uniform(self) -> Tensor:
        """(n, 1, 1) from 0 to 1."""
        return torch.rand(self.count, 1, 1, generator=self.generator)

    def _normal(self, *shape: int) -> Tensor:
        return torch.randn(self.count, *shape, generator=self.generator)


def _turned(u: Tensor, v: Tensor, angle: Tensor) -> tuple[Tensor, Tensor]:
    return u * angle.cos() + v * angle.sin(), v * angle.cos() - u * angle.sin()


def _outlines(u: Tensor, v: Tensor) -> Tensor:
    """Whether points (n, H, W) are inside a disc, a square, a triangle, a ring and a cross: (5, n,
    H, W).
    """
    radius, far = (u.square() + v.square()).sqrt(), torch.maximum(u.abs(), v.abs())
    return torch.stack(
        [
            radius < 1,
            far < 0.86,
            (v > -0.7) & (v < 1 - 1.9 * u.abs()),
            (radius < 1) & (radius > 0.55),
            (torch.minimum(u.abs(), v.abs()) < 0.36) & (far < 1),
        ]
    )
