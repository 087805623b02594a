"""How long work reports its progress."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, int, int], None]
"""Called as `progress(step, done, total)`: what is under way, such as "epochs" or "loss 0.123", the
amount done, and the amount in total."""
