"""Options that several commands share, and the parsing of their values."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Annotated, Any

import typer

from search_spaces.common.errors import InputError
from search_spaces.common.seeds import MAX_SEED

NETWORK = (
    "An .onnx or .txt file, FILE.py:FUNCTION that builds a PyTorch module, or a network of a library: timm:resnet50, "
    "timm:resnet50@288 for images of that size, torchvision:NAME, transformers:CLASS."
)
TRAINING, TIMING = "Training", "Latency"  # headings of `--help`
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
StorageTimeout = Annotated[
    float,
    typer.Option(
        min=0,
        envvar="NAS_STORAGE_TIMEOUT",
        help="Seconds to wait for a storage that does not respond.",
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")]
Seed = Annotated[int, typer.Option(min=0, max=MAX_SEED, help="Random seed.")]
Space = Annotated[str, typer.Option("--space", help="Space name, or FILE.py:NAME of a class or function.")]
SpaceOptions = Annotated[
    list[str] | None,
    typer.Option("--option", help="Option of the space, NAME=VALUE, for example input_shape=1,8,8; repeatable."),
]
TableSpace = Annotated[
    str | None,
    typer.Option("--space", help="Space of a CSV file's networks: a name or FILE.py:NAME; nasbench201 by default."),
]
DataSet = Annotated[
    str | None,
    typer.Option(
        help="digits (the default), a .npz file, or a folder of images with a folder per class or targets.csv.",
        rich_help_panel=TRAINING,
    ),
]
Epochs = Annotated[int | None, typer.Option(help="Epochs of training; 6 by default.", rich_help_panel=TRAINING)]
Training = Annotated[
    list[str] | None,
    typer.Option(
        "--training",
        help="Training setting, NAME=VALUE: batch, learning_rate, weight_decay, optimizer (sgd, adamw), schedule "
        "(one-cycle, cosine), shift, noise, flip, patience, validation; repeatable.",
        rich_help_panel=TRAINING,
    ),
]
OwnEvaluator = Annotated[
    str | None,
    typer.Option(
        "--evaluator",
        help="FILE.py:FUNCTION that trains a network and returns its metrics: evaluate(model, architecture, report). "
        "--epochs and --training are its keyword arguments.",
        rich_help_panel=TRAINING,
    ),
]
Device = Annotated[
    str | None, typer.Option(help="Device to train on, for example cuda; cpu by default.", rich_help_panel=TRAINING)
]
Threads = Annotated[int | None, typer.Option(help="Threads of ONNX Runtime; 1 by default.", rich_help_panel=TIMING)]
Batch = Annotated[int | None, typer.Option(help="Samples per timed inference; 1 by default.", rich_help_panel=TIMING)]
Provider = Annotated[
    str | None,
    typer.Option(help="Execution provider of ONNX Runtime; CPUExecutionProvider by default.", rich_help_panel=TIMING),
]
LatencyCommand = Annotated[
    list[str] | None,
    typer.Option(
        "--latency-command",
        help="NAME=COMMAND gives NAME_latency_ms: a shell command that receives an ONNX file, {model}, and prints "
        "milliseconds, for example 'pi=scp {model} pi: && ssh pi ./bench model.onnx'; repeatable.",
        rich_help_panel=TIMING,
    ),
]
LatencySetting = Annotated[
    list[str] | None,
    typer.Option(
        "--latency-setting",
        help="Setting of --latency-command, NAME=VALUE: warmup, runs, timeout (s), retries; repeatable.",
        rich_help_panel=TIMING,
    ),
]
Source = Annotated[
    str, typer.Argument(help="A result folder of `nas search`, a journal or SQLite file, or the URL of a storage.")
]
Searched = Annotated[
    str | None, typer.Option("--benchmark", help="The searched table, if the folder does not record it.")
]
Study = Annotated[str | None, typer.Option(help="Name of a study in the storage; all studies by default.")]
ReportedSpace = Annotated[
    str | None,
    typer.Option(
        "--space", help="Space of the studies, a name or FILE.py:NAME, if they do not record it or it has moved."
    ),
]
Trust = Annotated[bool, typer.Option("--trust", help="Run the Python files that a study names, such as its space.")]


def parse_settings(arguments: list[str] | None, option: str) -> dict[str, Any]:
    """Parse NAME=VALUE arguments of an option. Values are Python literals; anything else is a string."""
    found = {}
    for argument in arguments or ():
        name, separator, value = argument.partition("=")
        if not separator or not name:
            raise InputError(f"{option} {argument}: write NAME=VALUE")
        try:
            found[name] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            found[name] = value
    return found


def given_only(**settings: Any) -> dict[str, Any]:
    """The settings that are not None."""
    return {name: value for name, value in settings.items() if value is not None}


def pick(settings: dict[str, Any], *names: str) -> dict[str, Any]:
    """The settings with these names, if present."""
    return {name: settings[name] for name in names if name in settings}


def split_names(names: str) -> list[str]:
    """Split names at commas; InputError if there is none."""
    parts = [part.strip() for part in names.split(",") if part.strip()]
    if not parts:
        raise InputError(f"no name in {names!r}: write names separated by commas")
    return parts


def parse_sizes(text: str) -> tuple[int, ...]:
    """Parse the integers of `--sizes`."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise InputError(f"--sizes {text}: write whole numbers separated by commas") from error


def parse_numbers(text: str, option: str) -> list[float]:
    """Parse the numbers of an option."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError as error:
        raise InputError(f"{option} {text}: write numbers separated by commas") from error


def output_folder(source: str, out: Path | None) -> Path:
    """Folder for figures and reports: `out`, or `source` if that is a folder; InputError if neither exists."""
    if "://" not in source and not Path(source).exists():
        raise InputError(f"{source}: no such file or folder")
    if out is None and not Path(source).is_dir():
        raise InputError(f"{source} is not a folder: give --out, a folder to write to")
    return Path(source) if out is None else out
