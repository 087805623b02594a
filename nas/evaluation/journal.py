"""Journals of long builds: a JSON line `[name, value]` per result, appended as it comes, so that a build can go on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


class Journal:
    """What is known by name, in memory and in a file. A last line cut off by a kill is dropped."""

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
        """Keep a result; it is in the file when this returns."""
        self.known[name] = value
        with self.path.open("a") as file:
            file.write(json.dumps([name, value]) + "\n")
