"""Append-only journals of long builds: one JSON line `[name, value]` per result, so that a build can resume."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


class Journal:
    """Results by name, in memory and in a file. A line that a killed process left incomplete is ignored."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.known: dict[str, Any] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            return
        data = path.read_bytes()
        for line in data.decode(errors="replace").splitlines():
            try:
                name, value = json.loads(line)
            except ValueError:
                continue
            self.known[name] = value
        if data and not data.endswith(b"\n"):
            with path.open("a") as file:
                file.write("\n")

    def append(self, name: str, value: Any) -> None:
        """Add a result. It is in the file when this returns."""
        self.known[name] = value
        with self.path.open("a") as file:
            file.write(json.dumps([name, value]) + "\n")
