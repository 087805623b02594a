"""Numbers as tokens: sign, exponent's sign, exponent, mantissa digits; and the scale that a metric is written on.

3.142 with three digits is `+ + 0 3 1 4`. Numbers are rounded, not cut off.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

PLUS, MINUS, ZERO = 0, 1, 2
NUMBER_TOKENS = 12
_MAX_EXPONENT = 9


@dataclass(frozen=True)
class NumberFormat:
    """Fixed-length decimal floating point with `digits` significant digits and exponents of -9…9."""

    digits: int = 3

    @property
    def length(self) -> int:
        """Tokens per number."""
        return 3 + self.digits

    @property
    def allowed(self) -> np.ndarray:
        """(length, 12) booleans: the tokens that may stand at each position. Any such sequence is a number."""
        mask = np.zeros((self.length, NUMBER_TOKENS), bool)
        mask[:2, :ZERO] = True
        mask[2:, ZERO:] = True
        return mask

    def encode(self, values: np.ndarray) -> np.ndarray:
        """Finite values (n,) → tokens (n, length); beyond ±9.99e9 the largest number stands for them."""
        values = np.asarray(values, np.float64)
        scale = 10.0 ** (self.digits - 1)
        size = np.abs(values)
        exponent = np.floor(np.log10(np.where(size > 0, size, 1.0))).clip(-_MAX_EXPONENT, _MAX_EXPONENT)
        mantissa = np.rint(size / 10.0**exponent * scale)
        overflow = mantissa >= 10 * scale
        exponent = np.where(overflow & (exponent < _MAX_EXPONENT), exponent + 1, exponent)
        mantissa = np.rint(size / 10.0**exponent * scale).clip(0, 10 * scale - 1)
        tokens = np.empty((len(values), self.length), np.int64)
        tokens[:, 0] = np.where(values < 0, MINUS, PLUS)
        tokens[:, 1] = np.where(exponent < 0, MINUS, PLUS)
        tokens[:, 2] = ZERO + np.abs(exponent)
        for i in range(self.digits):
            tokens[:, 3 + i] = ZERO + mantissa // 10.0 ** (self.digits - 1 - i) % 10
        return tokens

    def decode(self, tokens: np.ndarray) -> np.ndarray:
        """Tokens (…, length) → values (…)."""
        tokens = np.asarray(tokens)
        powers = 10.0 ** -np.arange(self.digits)
        mantissa = ((tokens[..., 3:] - ZERO) * powers).sum(-1)
        exponent = (tokens[..., 2] - ZERO) * np.where(tokens[..., 1] == MINUS, -1, 1)
        return np.where(tokens[..., 0] == MINUS, -1.0, 1.0) * mantissa * 10.0**exponent


LOW, HIGH = 1.0, 9.0


@dataclass(frozen=True)
class Scale:
    """The scale that a metric's values are written on: training quantiles at equal distances from 1 to 9.

    Every digit then tells equally much, whether the metric spans five decades or half a percent. The map is
    increasing and goes on linearly outside, so values beyond the training range can be written too.
    """

    knots: tuple[float, ...]
    """Values at equal distances on the scale: increasing, at least two."""

    @classmethod
    def of(cls, values: np.ndarray, most: int = 33) -> Scale:
        """The scale of finite training values (n,)."""
        values = np.unique(np.asarray(values, np.float64))
        middle = float(np.median(values))
        smallest = max(abs(middle), 1e-6) * 1e-6
        if values[-1] - values[0] <= smallest:
            width = max(abs(middle) * 0.1, smallest)
            return cls((middle - width, middle + width))
        # A knot for every eight values; a little of the straight line keeps knots apart where values crowd.
        count = int(np.clip(len(values) // 8, 2, most))
        quantiles = np.quantile(values, np.linspace(0, 1, count))
        even = np.linspace(values[0], values[-1], count)
        knots = 0.999 * quantiles + 0.001 * even
        return cls(tuple(float(k) for k in knots))

    @property
    def _positions(self) -> np.ndarray:
        return np.linspace(LOW, HIGH, len(self.knots))

    def to_scale(self, values: np.ndarray) -> np.ndarray:
        """Values in the metric's unit → positions on the scale."""
        return _interpolate(np.asarray(values, np.float64), np.array(self.knots), self._positions)

    def from_scale(self, positions: np.ndarray) -> np.ndarray:
        """The inverse of `to_scale`, up to a quarter of the range outside of the training values: there it is cut off.

        A language model now and then gets an exponent wrong; such a sample must not rule a mean.
        """
        margin = (HIGH - LOW) / 4
        inside = np.asarray(positions, np.float64).clip(LOW - margin, HIGH + margin)
        return _interpolate(inside, self._positions, np.array(self.knots))


def _interpolate(x: np.ndarray, xs: np.ndarray, ys: np.ndarray) -> np.ndarray:
    """Piecewise linear through (xs, ys); outside on the mean slope of the outer quarter, so no end knot rules it."""
    quarter = max(1, (len(xs) - 1) // 4)
    below = ys[0] + (x - xs[0]) * (ys[quarter] - ys[0]) / (xs[quarter] - xs[0])
    above = ys[-1] + (x - xs[-1]) * (ys[-1] - ys[-1 - quarter]) / (xs[-1] - xs[-1 - quarter])
    return np.where(x < xs[0], below, np.where(x > xs[-1], above, np.interp(x, xs, ys)))
