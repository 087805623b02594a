"""The user's cache folder."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path


def cache_folder() -> Path:
    """`$NAS_CACHE` if set, else the platform's cache folder of `rlm-nas`. It may not exist yet."""
    override = os.environ.get("NAS_CACHE")
    if override:
        return Path(override)
    from platformdirs import user_cache_dir

    return Path(user_cache_dir("rlm-nas"))


def sha256(data: bytes) -> str:
    """Hexadecimal SHA-256 of `data`."""
    return hashlib.sha256(data).hexdigest()
