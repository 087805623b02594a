"""The command line `nas`. Commands import heavy packages when they run, so that help is fast."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from importlib.metadata import version
from io import TextIOWrapper
from typing import Annotated

import typer

from nas.cli.benchmarks import (
    benchmarks_build,
    benchmarks_fetch,
    benchmarks_import,
    benchmarks_list,
)
from nas.cli.compare import compare
from nas.cli.device import device_add, device_list, device_remove
from nas.cli.evaluate import evaluate
from nas.cli.plot import plot
from nas.cli.predict import predict
from nas.cli.profile import profile
from nas.cli.rank import rank
from nas.cli.report import report
from nas.cli.retrain import retrain
from nas.cli.sample import sample
from nas.cli.search import search
from nas.cli.spaces import spaces
from nas.cli.supernet import supernet
from nas.cli.text import text
from nas.cli.train import train
from nas.cli.worker import worker
from nas.search.study.interrupts import termination_as_interrupt
from search_spaces.common.errors import NasError, user_errors_as_input

app = typer.Typer(
    name="nas",
    help="Multi-objective neural architecture search guided by a language model that reads ONNX "
    "text.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
benchmarks_app = typer.Typer(
    help="Benchmark tables: list, fetch, import, build.", no_args_is_help=True
)
device_app = typer.Typer(
    help="Your own devices: predict the latencies of all networks from a few measurements.",
    no_args_is_help=True,
)
COMMANDS: dict[str, Callable[..., None]] = {
    "spaces": spaces,
    "sample": sample,
    "text": text,
    "train": train,
    "predict": predict,
    "rank": rank,
    "compare": compare,
    "evaluate": evaluate,
    "profile": profile,
    "supernet": supernet,
    "search": search,
    "worker": worker,
    "plot": plot,
    "report": report,
    "retrain": retrain,
}
BENCHMARK_COMMANDS: dict[str, Callable[..., None]] = {
    "list": benchmarks_list,
    "fetch": benchmarks_fetch,
    "import": benchmarks_import,
    "build": benchmarks_build,
}
INTERRUPTED = 130  # exit status of typer after a KeyboardInterrupt
DEVICE_COMMANDS: dict[str, Callable[..., None]] = {
    "add": device_add,
    "list": device_list,
    "remove": device_remove,
}


def _print_version(is_requested: bool) -> None:
    if is_requested:
        print(f"nas {version('rlm-nas')}")
        raise typer.Exit


@app.callback()
def _options(
    _: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    pass


for name, command in COMMANDS.items():
    app.command(name)(command)
for name, command in BENCHMARK_COMMANDS.items():
    benchmarks_app.command(name)(command)
for name, command in DEVICE_COMMANDS.items():
    device_app.command(name)(command)
app.add_typer(benchmarks_app, name="benchmarks")
app.add_typer(device_app, name="device")


class _Warnings(logging.Handler):
    """Prints each warning as one line on standard error."""

    def emit(self, record: logging.LogRecord) -> None:
        print(f"nas: {' '.join(record.getMessage().split())}", file=sys.stderr)


def main() -> None:
    """Entry point of the command line.

    Bad input and errors in user code print one line on standard error; the exit status is 2. Ctrl-C
    and SIGTERM end a command in order, with status 130: what was being evaluated is given back.
    """
    if sys.stderr is None:  # closed by the caller (`2>&-`)
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  # until the process ends
    # A terminal that is not UTF-8 cannot show the lines of tables
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")
    warnings = _Warnings(logging.WARNING)
    logging.getLogger("nas").addHandler(warnings)
    try:
        with termination_as_interrupt(), user_errors_as_input():
            app()
    except NasError as error:
        print(f"nas: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(2)
    except OSError as error:
        print(f"nas: {error.filename or ''}: {error.strerror or error}", file=sys.stderr)
        sys.exit(2)
    except SystemExit as end:
        if end.code == INTERRUPTED:
            print("nas: interrupted; run the same command again to continue", file=sys.stderr)
        raise
    finally:
        logging.getLogger("nas").removeHandler(warnings)
