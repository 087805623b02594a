"""`nas benchmarks`: list, fetch, import, build."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nas.cli.console import print_json, print_table
from nas.cli.options import Json
from nas.cli.progress import progress_bar


def benchmarks_list(as_json: Json = False) -> None:
    """List the benchmark tables and how to get them."""
    from dataclasses import asdict

    from nas.benchmarks import list_benchmarks

    infos = [asdict(info) for info in list_benchmarks()]
    if as_json:
        print_json(infos)
        return
    rows = [{**i, "rows": i["rows"] or "–", "metrics": len(i["metrics"]) or "–"} for i in infos]
    print_table("Benchmarks", rows)


def benchmarks_fetch(
    name: Annotated[str, typer.Argument(help="nasbench201")] = "nasbench201",
    base_url: Annotated[
        str | None, typer.Option(help="Download from a mirror instead of GitHub.")
    ] = None,
) -> None:
    """Download public measurements at their pinned versions and build the table."""
    from nas.benchmarks import fetch

    with progress_bar(f"fetching {name}") as bar:
        table = (
            fetch(name, base_url=base_url, progress=bar) if base_url else fetch(name, progress=bar)
        )
    _announce(f"{table.name}: {len(table):,} architectures, {len(table.metrics)} metrics")


def benchmarks_import(
    path: Annotated[Path, typer.Argument(help="NAS-Bench-201-*.pth or HW-NAS-Bench-*.pickle")],
) -> None:
    """Import an official benchmark file without running any code in it."""
    from nas.benchmarks import import_file

    with progress_bar(f"importing {path.name}") as bar:
        table = import_file(path, bar)
    _announce(f"{table.name}: {len(table):,} architectures, {len(table.metrics)} metrics")


def _announce(line: str) -> None:
    import os

    print(line)
    if os.environ.get("NAS_DATA"):
        print("note: NAS_DATA is set, and its nasbench201 table takes precedence over this one")


def benchmarks_build(
    name: Annotated[
        str, typer.Argument(help="digits201, digits-darts, … (see `nas benchmarks list`)")
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for the journals and the table; results/NAME by default."),
    ] = None,
    stage: Annotated[
        list[str] | None,
        typer.Option(help="accuracy, proxies or latency; repeatable; all by default."),
    ] = None,
) -> None:
    """Train and time every network of a population (takes hours; an interrupted build resumes)."""
    from nas.benchmarks.building import STAGES, build
    from nas.benchmarks.populations import get_population

    population = get_population(name)
    with progress_bar(f"building {name}") as bar:
        path = build(
            population, out or Path("results") / name, stages=tuple(stage or STAGES), progress=bar
        )
    print(path)
