"""Writes result folders of searches and of comparisons of predictors, and the page `report.html`."""

from __future__ import annotations

import csv
import json
from base64 import b64encode
from dataclasses import asdict, fields
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING

from nas.comparison.compare import Score
from nas.report.outlook import Prospects
from nas.report.page_data import page_data
from nas.report.plots import plot_kendall, plot_learning_curves, plot_ranks, plot_studies
from nas.search.study.files import save_front
from search_spaces.common.files import replacing

if TYPE_CHECKING:
    from nas.comparison.compare import Compared
    from nas.comparison.studies import Studies

_SCRIPTS = ("networks.js", "charts.js", "scatter.js", "tables.js", "page.js")


def save_studies(folder: Path, studies: Studies) -> Prospects:
    """Write the result folder of searches.

    `front.csv` and `front/NN.onnx|txt` are the front of all searches together, `networks.csv` all
    networks, `summary.json` all figures; then the figures of `plot_studies` and `report.html`.

    Returns:
        What to expect of the front and of further evaluations.
    """
    prospects = Prospects.of(studies)
    texts = {
        "front.csv": studies.front_csv,
        "networks.csv": studies.networks_csv,
        "summary.json": json.dumps(studies.summary() | prospects.summary, indent=1) + "\n",
    }
    if studies.not_built is None:
        save_front(folder, studies.front_networks, texts)
    else:
        for name, text in texts.items():
            with replacing(folder / name) as path:
                path.write_text(text, encoding="utf-8")
    plot_studies(folder, studies)
    write_report(folder / "report.html", studies, prospects)
    return prospects


def save_comparison(folder: Path, compared: Compared) -> None:
    """Write the results of a comparison.

    `scores.csv` has a row per score, `summary.json` means over seeds and differences between
    predictors. The figures are `tau.png`, `predicted.png` and `ranks.png`.
    """
    with (
        replacing(folder / "scores.csv") as path,
        path.open("w", newline="", encoding="utf-8") as file,
    ):
        writer = csv.DictWriter(file, [field.name for field in fields(Score)])
        writer.writeheader()
        writer.writerows(asdict(score) for score in compared.scores)
    rows = compared.rows()
    with replacing(folder / "summary.json") as path:
        path.write_text(
            json.dumps({"predictors": rows, "pairs": compared.pairs()}, indent=1) + "\n"
        )
    learned = compared.comparison.learned.name
    ranked = compared.comparison.test_metric
    plot_learning_curves(folder / "tau.png", rows)
    plot_kendall(
        folder / "predicted.png",
        {(n, learned): (p.learned, p.predicted) for n, p in compared.predicted.items()},
    )
    plot_ranks(
        folder / "ranks.png",
        {n: (p.truth, p.predicted) for n, p in compared.predicted.items()},
        ranked,
    )


# --- the page


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
