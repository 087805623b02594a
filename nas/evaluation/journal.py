"""Append-only journals of long builds: one JSON line `[name, value]` per result, so that a build
can resume.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from search_spaces.common.errors import InputError


class Journal:
    """Results by name, in memory and in a file. A line that a killed process left incomplete is
    ignored.

    Raises:
        InputError: a complete line is none of a journal.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.known: dict[str, Any] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            return
        data = path.read_bytes()
        for number, line in enumerate(data.decode(errors="replace").split("\n"), 1):
            try:
                row = json.loads(line)
            except ValueError:
                continue
            if not (isinstance(row, list) and len(row) == 2 and isinstance(row[0], str)):
                raise InputError(
                    f"{path}, line {number}: {line[:40]} is not [name, value]: remove the line"
                )
            self.known[row[0]] = row[1]
        if data and not data.endswith(b"\n"):
            with path.open("a") as file:
                file.write("\n")

    def append(self, name: str, value: Any) -> None:
        """Add a result. It is in the file when this returns."""
        self.known[name] = value
        with self.path.open("a") as file:
            file.write(json.dumps([name, value]) + "\n")
