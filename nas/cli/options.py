"""Options that several commands share, and the parsing of their values."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Annotated, Any

import typer

from search_spaces.common.errors import InputError
from search_spaces.common.seeds import MAX_SEED

NETWORK = (
    "An .onnx or .txt file, FILE.py:FUNCTION that builds a PyTorch module, or a network of a "
    "library: timm:resnet50, timm:resnet50@288 for images of that size, torchvision:NAME, "
    "transformers:CLASS."
)
# Headings of `--help`
TRAINING, TIMING, MODEL, INT8 = "Training", "Latency", "A trained model", "8-bit integers"
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
Space = Annotated[
    str, typer.Option("--space", help="Space name, or FILE.py:NAME of a class or function.")
]
SpaceOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--option",
        help="Option of the space, NAME=VALUE, for example input_shape=1,8,8; repeatable.",
    ),
]
Model = Annotated[
    str | None,
    typer.Option(
        "--model",
        help="Search the sub-networks of a trained model: FILE.py:NAME of a PyTorch module, or of "
        "a function without arguments that returns one.",
        rich_help_panel=MODEL,
    ),
]
Weights = Annotated[
    Path | None,
    typer.Option(
        "--weights",
        help="Its weights: a .safetensors file or a torch state dict.",
        rich_help_panel=MODEL,
    ),
]
Width = Annotated[
    str | None,
    typer.Option(
        help="Shares of the channels and heads of every group to choose from; 0.25,0.5,0.75,1 by "
        "default.",
        rich_help_panel=MODEL,
    ),
]
Depth = Annotated[
    bool | None,
    typer.Option(
        "--depth/--no-depth",
        help="Leave residual blocks out; on by default.",
        rich_help_panel=MODEL,
    ),
]
Kernel = Annotated[
    str | None,
    typer.Option(
        help="Smaller kernels of convolutions, cut from the centre: sizes such as 3,5, or all; "
        "none by default.",
        rich_help_panel=MODEL,
    ),
]
RoundTo = Annotated[
    int | None,
    typer.Option(
        help="Channels are multiples of this number; 8 by default.", rich_help_panel=MODEL
    ),
]
Keep = Annotated[
    list[str] | None,
    typer.Option(
        help="Layer whose own channels stay, such as head or stages.0.*; repeatable.",
        rich_help_panel=MODEL,
    ),
]
Precision = Annotated[
    str | None,
    typer.Option(
        help="Precisions that each block may have, as in fp32,int8; search by metrics of int8. "
        "None by default.",
        rich_help_panel=MODEL,
    ),
]
Start = Annotated[
    str | None,
    typer.Option(
        help="inherited: networks start from the model's weights (the default); fresh: from new "
        "ones. Without --model: the .safetensors file that `nas supernet` wrote.",
        rich_help_panel=MODEL,
    ),
]
TeacherOption = Annotated[
    str | None,
    typer.Option(
        "--teacher",
        help="model: networks also learn from the model's outputs (the default); none: from the "
        "data alone.",
        rich_help_panel=MODEL,
    ),
]
Outputs = Annotated[
    str | None,
    typer.Option(
        help="What the model's outputs are: classes (the default) or vectors, whose cosine is the "
        "fidelity.",
        rich_help_panel=MODEL,
    ),
]
TableSpace = Annotated[
    str | None,
    typer.Option(
        "--space",
        help="Space of a CSV file's networks: a name or FILE.py:NAME; nasbench201 by default.",
    ),
]
DataSet = Annotated[
    str | None,
    typer.Option(
        help="digits (the default), a .npz file, or a folder of images with a folder per class or "
        "targets.csv.",
        rich_help_panel=TRAINING,
    ),
]
Epochs = Annotated[
    int | None, typer.Option(help="Epochs of training; 6 by default.", rich_help_panel=TRAINING)
]
Training = Annotated[
    list[str] | None,
    typer.Option(
        "--training",
        help="Training setting, NAME=VALUE: batch, learning_rate, weight_decay, optimizer (sgd, "
        "adamw), schedule (one-cycle, cosine), shift, noise, flip, patience, validation; "
        "repeatable. By default sgd with a learning_rate of 0.1. Networks that inherit weights get "
        "adamw with up to 0.002, the less, the nearer they are to the model.",
        rich_help_panel=TRAINING,
    ),
]
Calibration = Annotated[
    str | None,
    typer.Option(
        help="Inputs that set the ranges of activations in metrics of int8 and in the file {int8} of "
        "a command: a data set, or FILE.py:NAME of an array or a function that returns one; by "
        "default inputs of the training, and noise where only a latency is measured.",
        rich_help_panel=INT8,
    ),
]
OwnEvaluator = Annotated[
    str | None,
    typer.Option(
        "--evaluator",
        help="FILE.py:FUNCTION that trains a network and returns its metrics: evaluate(model, "
        "architecture, report). --epochs and --training are its keyword arguments.",
        rich_help_panel=TRAINING,
    ),
]
Device = Annotated[
    str | None,
    typer.Option(
        help="Device to train on, for example cuda; cpu by default.", rich_help_panel=TRAINING
    ),
]
Threads = Annotated[
    int | None, typer.Option(help="Threads of ONNX Runtime; 1 by default.", rich_help_panel=TIMING)
]
Batch = Annotated[
    int | None,
    typer.Option(help="Samples per timed inference; 1 by default.", rich_help_panel=TIMING),
]
Provider = Annotated[
    str | None,
    typer.Option(
        help="Execution provider of ONNX Runtime; CPUExecutionProvider by default.",
        rich_help_panel=TIMING,
    ),
]
LatencyCommand = Annotated[
    list[str] | None,
    typer.Option(
        "--latency-command",
        help="NAME=COMMAND gives NAME_latency_ms: a shell command that receives an ONNX file, "
        "{model} (or {int8}, {tflite}, {openvino}, {ncnn}, {mnn}, {pte}), and prints "
        "milliseconds, for example 'pi=scp {model} pi: && ssh pi ./bench model.onnx'; repeatable.",
        rich_help_panel=TIMING,
    ),
]
MetricCommand = Annotated[
    list[str] | None,
    typer.Option(
        "--metric-command",
        help="METRIC:min=COMMAND, for example 'board_energy_mj:min=./measure {model}': a shell "
        "command that prints a number, or JSON with the values of several metrics, separated by "
        "commas before the =; repeatable.",
        rich_help_panel=TIMING,
    ),
]
LatencySetting = Annotated[
    list[str] | None,
    typer.Option(
        "--latency-setting",
        help="Setting of --latency-command and --metric-command, NAME=VALUE: warmup, runs, timeout (s), retries; "
        "repeatable.",
        rich_help_panel=TIMING,
    ),
]
Source = Annotated[
    str,
    typer.Argument(
        help="A result folder of `nas search`, a journal or SQLite file, or the URL of a storage."
    ),
]
Searched = Annotated[
    str | None,
    typer.Option("--benchmark", help="The searched table, if the folder does not record it."),
]
Study = Annotated[
    str | None, typer.Option(help="Name of a study in the storage; all studies by default.")
]
ReportedSpace = Annotated[
    str | None,
    typer.Option(
        "--space",
        help="Space of the studies, a name or FILE.py:NAME, if they do not record it or it has "
        "moved.",
    ),
]
Trust = Annotated[
    bool,
    typer.Option("--trust", help="Run the Python files that a study names, such as its space."),
]


def model_options(
    model: str | None,
    weights: Path | None,
    width: str | None,
    depth: bool | None,
    kernel: str | None,
    round_to: int | None,
    keep: list[str] | None,
    start: str | None,
    teacher: str | None,
    outputs: str | None,
    precision: str | None = None,
) -> list[str]:
    """The options of the space of a model's sub-networks, as `--option` takes them.

    There are none without a model.

    Raises:
        InputError: if an option needs --model, or is no list of numbers.
    """
    widths = None if width is None else parse_numbers(width, "--width")
    kernels: bool | list[int] | None = None
    if kernel is not None:
        kernels = True if kernel == "all" else _whole_numbers(kernel, "--kernel")
    options = given_only(
        weights=None if weights is None else str(weights.absolute()),
        width=widths,
        depth=depth,
        kernel=kernels,
        round_to=round_to,
        keep=keep,
        precision=None if precision is None else split_names(precision),
        teacher=teacher,
        outputs=outputs,
        start=start,
    )
    if model is None:
        if options:
            raise InputError(
                f"--{next(iter(options)).replace('_', '-')} applies to a trained model: give --model"
            )
        return []
    return [f"{name}={value!r}" for name, value in {"start": "inherited", **options}.items()]


def _whole_numbers(text: str, option: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError as error:
        raise InputError(
            f"{option} {text}: write all, or whole numbers separated by commas"
        ) from error


def parse_settings(arguments: list[str] | None, option: str) -> dict[str, Any]:
    """Parse NAME=VALUE arguments of an option.

    Values are Python literals; anything else is a string.
    """
    options = {}
    for argument in arguments or ():
        name, separator, value = argument.partition("=")
        if not separator or not name:
            raise InputError(f"{option} {argument}: write NAME=VALUE")
        try:
            options[name] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            options[name] = value
    return options


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
    """Folder for figures and reports: `out`, or `source` if that is a folder.

    Raises InputError if neither exists.
    """
    if "://" not in source and not Path(source).exists():
        raise InputError(f"{source}: no such file or folder")
    if out is None and not Path(source).is_dir():
        raise InputError(f"{source} is not a folder: give --out, a folder to write to")
    return Path(source) if out is None else out
