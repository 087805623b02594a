"""Texts of real networks: `python -m experiments.zoo_texts`.

The command builds each architecture of `$NAS_DATA/zoo/timm.csv.gz` at its image size, and the
networks of `aihub.csv.gz` that timm, torchvision or transformers have, without weights, and
converts them to text. It reports how many could be read, the length of their texts and the
processor time (without imports), and names the others.

`words` counts operators, function calls and their attributes, with each function's body once.
`tokens` counts words and their numbers, of which a text of NAS-Bench-201 has about 80. `signs`
counts words, names, numbers and punctuation marks, `lines` the lines of the text, `operators` the
operators that run, `encoded` those that the RLM's encoder reads: the operators of equal calls once.
"""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import numpy as np
import typer

from experiments.runner import AsJson, Quick, run_command
from experiments.zoo_tables import timm_source, zoo_rows
from nas.cli.console import print_json, print_table
from nas.cli.progress import progress_bar
from nas.evaluation.journal import Journal
from search_spaces.common.errors import InputError

if TYPE_CHECKING:
    from search_spaces.ir.text.program import Item, Program

_SIGN = re.compile(r"\w+|[^\w\s]")
QUICK = 20


class Entry(NamedTuple):
    """A network of the zoo: its table, its source, and its published number of parameters.

    The number is 0 if it is unknown.
    """

    table: str
    source: str
    params: int


def entries() -> list[Entry]:
    """All networks of the zoo that a library names."""
    networks = [Entry("timm", timm_source(row), int(row["params"])) for row in zoo_rows("timm")]
    for row in zoo_rows("aihub"):
        for library in ("torchvision", "timm", "transformers"):
            name = row[f"{library}_{'class' if library == 'transformers' else 'name'}"]
            if name:
                networks.append(Entry("aihub", f"{library}:{name}", 0))
    return list(dict.fromkeys(networks))


def read_entry(entry: Entry) -> dict[str, Any]:
    """Read one network: lengths, seconds and whether parameters are exact.

    For an unreadable network, the `reason` instead.
    """
    from predictors.rlm.tokens import tokenize
    from search_spaces.ir.costs import graph_params
    from search_spaces.ir.text import expand, read
    from search_spaces.sources import read_source

    begin = time.process_time()
    try:
        text = read_source(entry.source)
    except InputError as error:
        return {"reason": " ".join(str(error).split())}
    seconds = time.process_time() - begin
    program = read(text)
    unrolled = tokenize(text)
    params = graph_params(expand(program))
    return {
        "seconds": seconds,
        "words": _words(program),
        "tokens": _words(program) + _numbers(program),
        "signs": len(_SIGN.findall(text)),
        "lines": text.count("\n"),
        "operators": len(unrolled.starts),
        "encoded": int(unrolled.shared.max()) + 1,
        "exact": float(params == entry.params) if entry.params else None,
    }


def _words(program: Program) -> int:
    """Number of operators, calls and attributes in a text."""
    return sum(1 + len(item.attrs) for item in _items(program))


def _numbers(program: Program) -> int:
    """Number of numbers in the attributes of a text; a parameter counts as one."""
    values = [value for item in _items(program) for _, value in item.attrs]
    return sum(len(value) if isinstance(value, tuple) else 1 for value in values)


def _items(program: Program) -> list[Item]:
    """The operators and calls of a text, with those of each function once."""
    return [item for block in (program.main, *program.functions.values()) for item in block.items]


def _summary(table: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    read = [row for row in rows if "reason" not in row]
    summary: dict[str, Any] = {"table": table, "networks": len(rows), "read": len(read)}
    for name in ("words", "tokens", "signs", "lines", "operators", "encoded", "seconds"):
        values = [row[name] for row in read]
        summary |= {
            f"{name}, median": float(np.median(values)),
            f"{name}, most": float(max(values)),
        }
    summary["more than 2 s"] = sum(row["seconds"] > 2 for row in read)
    exact = [row["exact"] for row in read if row["exact"] is not None]
    return {**summary, "exact params": int(sum(exact)) if exact else "unknown"}


def main(
    out: Annotated[Path, typer.Option(help="Folder for finished rows.")] = Path(
        "results/zoo-texts"
    ),
    quick: Quick = False,
    as_json: AsJson = False,
) -> None:
    """Read all networks; print a summary and the networks that could not be read."""
    chosen = entries()[:: QUICK if quick else 1]
    journal = Journal(out / "networks.jsonl")
    if any(entry.source not in journal.known for entry in chosen):
        # Import the library before the first measurement
        read_entry(Entry("timm", "timm:resnet18", 0))
    with progress_bar("networks") as bar:
        for i, entry in enumerate(chosen):
            if entry.source not in journal.known:
                journal.append(entry.source, read_entry(entry))
            bar(entry.source, i + 1, len(chosen))
    summary = []
    for table in dict.fromkeys(entry.table for entry in chosen):
        summary.append(
            _summary(table, [journal.known[e.source] for e in chosen if e.table == table])
        )
    missing = [
        {"network": e.source, "reason": journal.known[e.source]["reason"]}
        for e in chosen
        if "reason" in journal.known[e.source]
    ]
    if as_json:
        print_json({"summary": summary, "not read": missing})
        return
    print_table("Texts of real networks", summary)
    if missing:
        print_table("Not read", missing)


if __name__ == "__main__":
    run_command(main)
