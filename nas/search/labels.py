"""Names of samplers and storages, as they are shown and stored."""

from __future__ import annotations

import re
from pathlib import Path

from search_spaces.common import plug_ins


def sampler_label(name: str) -> str:
    """A sampler's name in tables, studies and folders: `mine.Nearest` for
    `folder/mine.py:Nearest`.
    """
    path, _, of_class = name.partition(":")
    return ".".join(filter(None, (Path(path).stem, of_class))) if plug_ins.is_file(name) else name


def without_passwords(text: str) -> str:
    """The text with the passwords of its URLs replaced by `***`."""
    return re.sub(r"(://[^/@:\s]+):[^/@\s]+@", r"\1:***@", text)
