"""Writes a self-contained report page about searches."""

from __future__ import annotations

import json
from base64 import b64encode
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING

from nas.report.outlook import Prospects
from nas.report.page_data import page_data
from search_spaces.common.files import replacing

if TYPE_CHECKING:
    from nas.comparison.studies import Studies

_SCRIPTS = ("networks.js", "charts.js", "scatter.js", "tables.js", "page.js")


def write_report(path: Path, studies: Studies, prospects: Prospects | None = None) -> None:
    """Write the page to `path`.

    ONNX models of `SearchResult.save` are read from `front/` beside it.
    """
    data = json.dumps(
        page_data(studies, path.parent / "front", prospects or Prospects.of(studies)),
        allow_nan=False,
        separators=(",", ":"),
    )
    charts = _asset("echarts.min.js")
    script = "\n".join(map(_asset, _SCRIPTS))
    content = Template(_asset("report.html")).substitute(
        scripts=f"{_hash(charts)} {_hash(script)}",
        style=_asset("report.css"),
        data=data.replace("<", "\\u003c"),  # so that no name can close the script element
        charts=charts,
        script=script,
    )
    with replacing(path) as file:
        file.write_text(content, encoding="utf-8")


def _asset(name: str) -> str:
    return files("nas.report").joinpath("assets", name).read_text(encoding="utf-8")


def _hash(script: str) -> str:
    """Hash of a script for the content security policy, which allows no other script."""
    return f"'sha256-{b64encode(sha256(script.encode()).digest()).decode()}'"
