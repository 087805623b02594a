"""The public source files of NAS-Bench-201's table, each pinned to a commit, a size and a
checksum.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Source:
    """One file of a public repository at one commit."""

    repository: str
    commit: str
    path: str
    licence: str
    bytes: int
    sha256: str

    @property
    def location(self) -> str:
        """`repository/commit/path`, relative to the server's base URL and to the cache folder."""
        return f"{self.repository}/{self.commit}/{self.path}"


def nasbench201_sources() -> list[Source]:
    """The files of accuracies (CSV, one per data set) and latencies (`.pt`, one per device)."""
    text = (Path(__file__).parent / "data" / "sources.json").read_text(encoding="utf-8")
    return [Source(**entry) for entry in json.loads(text)]
