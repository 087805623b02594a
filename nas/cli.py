"""The command line `nas`. Heavy packages are imported inside the commands, so that help answers at once."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from search_spaces.errors import InputError

if TYPE_CHECKING:
    import onnx

    from nas.compare import Compared
    from nas.measurement import Measured, Measurement
    from predictors.base import Predictor
    from search_spaces import SearchSpace

app = typer.Typer(
    name="nas",
    help="Multi-objective neural architecture search guided by a language model that reads ONNX text.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
benchmarks_app = typer.Typer(help="Benchmark tables: list, fetch, import, build.", no_args_is_help=True)
app.add_typer(benchmarks_app, name="benchmarks")

Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
Seed = Annotated[int, typer.Option(help="Seed of everything random.")]
Space = Annotated[str, typer.Option("--space", help="Space name, or FILE.py:CLASS.")]
SpaceOptions = Annotated[
    list[str] | None,
    typer.Option("--option", help="Option of the space, NAME=VALUE, as input_shape=1,8,8; repeatable."),
]
BenchmarkName = Annotated[str, typer.Option("--benchmark", help="digits201, nasbench201, or a CSV file.")]


def main() -> None:
    """Entry point: bad input is one line on standard error and exit status 2."""
    try:
        app()
    except InputError as error:
        print(f"nas: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(2)
    except OSError as error:
        print(f"nas: {error.filename or ''}: {error.strerror or error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("nas: interrupted; run the same command again to go on", file=sys.stderr)
        sys.exit(130)


@contextmanager
def progress_bar(label: str) -> Iterator[Callable[[str, int, int], None]]:
    """A bar on standard error; call with what is done, how far, of how much."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn(),
    )  # fmt: skip
    # Time left by all steps so far: in a search one may take minutes, and others nothing.
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, speed_estimate_period=math.inf) as bar:
        task = bar.add_task(label, total=None)

        def update(what: str, done: int, total: int) -> None:
            if done < bar.tasks[0].completed:  # something new has begun
                bar.reset(task)
            bar.update(task, description=f"{label}: {what}" if what else label, completed=done, total=total)

        yield update


def print_json(value: object) -> None:
    print(json.dumps(value, indent=1))


def print_table(title: str, rows: list[dict[str, Any]]) -> None:
    """Rows of one kind as a table on standard output, turned on its side where it is too wide for the terminal."""
    from rich.console import Console
    from rich.table import Table

    names = list(dict.fromkeys(name for row in rows for name in row))
    values = [[row.get(name, "") for name in names] for row in rows]
    lines = [names, *([f"{v:.4g}" if isinstance(v, float) else str(v) for v in row] for row in values)]
    console, turned = Console(), [list(column) for column in zip(*lines, strict=True)]
    if _width(lines) > max(console.width, _width(turned)):
        lines = turned
    table = Table(title=title, title_justify="left")
    for name in lines[0]:
        table.add_column(name, overflow="fold")
    for line in lines[1:]:
        table.add_row(*line)
    console.print(table)


def _width(lines: list[list[str]]) -> int:
    """Characters that a table of such lines needs, its frame included."""
    return sum(max(map(len, column)) + 3 for column in zip(*lines, strict=True)) + 1


def _write_text(path: Path | None, text: str) -> None:
    if path is None:
        print(text, end="")
    else:
        from search_spaces.files import replacing

        with replacing(path) as temporary:
            temporary.write_text(text)


def _settings(arguments: list[str] | None, option: str) -> dict[str, Any]:
    """NAME=VALUE arguments; values are Python literals, anything else is text."""
    import ast

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


# --- spaces and texts ------------------------------------------------------------------------------------------------


@app.command()
def spaces(as_json: Json = False) -> None:
    """List the search spaces."""
    from search_spaces import get_space, list_spaces

    rows = []
    for name in list_spaces():
        space = get_space(name)
        size = "unknown" if space.size is None else f"{space.size:,}"
        rows.append({"space": name, "architectures": size, "about": (space.__doc__ or "").strip().split("\n")[0]})
    print_json(rows) if as_json else print_table("Search spaces", rows)


@app.command()
def sample(
    space: Space,
    option: SpaceOptions = None,
    count: Annotated[int, typer.Option(help="How many architectures.", min=1)] = 1,
    seed: Seed = 0,
    out: Annotated[Path | None, typer.Option(help="Write .onnx and .txt files into this folder.")] = None,
    as_json: Json = False,
) -> None:
    """Random architectures with their costs, as table, JSON, or ONNX files."""
    import numpy as np

    from search_spaces import get_space

    chosen, rng = get_space(space, **_settings(option, "--option")), np.random.default_rng(seed)
    rows = []
    for i in range(count):
        arch = chosen.sample(rng)
        rows.append({"architecture": chosen.format(arch), "params": chosen.params(arch), "flops": chosen.flops(arch)})
        if out is not None:
            chosen.save_onnx(arch, out / f"{i:04d}.onnx", seed)
            _write_text(out / f"{i:04d}.txt", chosen.to_text(arch))
    print_json(rows) if as_json else print_table(f"{count} of {space}", rows)


@app.command()
def text(
    model: Annotated[Path, typer.Argument(help="An .onnx file.")],
    out: Annotated[Path | None, typer.Option(help="Write the text here instead of printing it.")] = None,
) -> None:
    """The compact text of an ONNX model."""
    from search_spaces import load_model, to_text

    _write_text(out, _naming(model, lambda: to_text(load_model(str(model)))))


def _naming(path: Path, action: Callable[[], Any]) -> Any:
    """Run an action on a file; its errors name the file."""
    try:
        return action()
    except InputError as error:
        raise error if str(path) in str(error) else InputError(f"{path}: {error}") from None


def _read_network(path: Path) -> str | onnx.ModelProto:
    """A `.txt` file as checked text, anything else as an ONNX model."""
    from search_spaces import load_model
    from search_spaces.program import compact, expand
    from search_spaces.text import read, write

    if path.suffix != ".txt":
        return load_model(str(path))
    try:
        content = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read as text ({error})") from None
    return _naming(path, lambda: write(compact(expand(read(content)))))


# --- benchmarks ------------------------------------------------------------------------------------------------------


@benchmarks_app.command("list")
def benchmarks_list(as_json: Json = False) -> None:
    """The benchmark tables and how to get them."""
    from dataclasses import asdict

    from nas.benchmarks import list_benchmarks

    infos = [asdict(info) for info in list_benchmarks()]
    if as_json:
        print_json(infos)
        return
    rows = [{**i, "rows": i["rows"] or "–", "metrics": len(i["metrics"]) or "–"} for i in infos]
    print_table("Benchmarks", rows)


@benchmarks_app.command("fetch")
def benchmarks_fetch(
    name: Annotated[str, typer.Argument(help="nasbench201")] = "nasbench201",
    base_url: Annotated[str | None, typer.Option(help="Download from a mirror instead of GitHub.")] = None,
) -> None:
    """Download public measurements at their pinned versions and build the table."""
    from nas.benchmarks import fetch

    with progress_bar(f"fetching {name}") as bar:
        table = fetch(name, base_url=base_url, progress=bar) if base_url else fetch(name, progress=bar)
    _announce(f"{table.name}: {len(table):,} architectures, {len(table.metrics)} metrics")


@benchmarks_app.command("import")
def benchmarks_import(
    path: Annotated[Path, typer.Argument(help="NAS-Bench-201-*.pth or HW-NAS-Bench-*.pickle")],
) -> None:
    """Read an official benchmark file that you have, without running code in it."""
    from nas.benchmarks import import_file

    with progress_bar(f"importing {path.name}") as bar:
        table = import_file(path, bar)
    _announce(f"{table.name}: {len(table):,} architectures, {len(table.metrics)} metrics")


def _announce(line: str) -> None:
    import os

    print(line)
    if os.environ.get("NAS_DATA"):
        print("note: NAS_DATA is set, and its nasbench201 table is preferred to this one")


@benchmarks_app.command("build")
def benchmarks_build(
    name: Annotated[str, typer.Argument(help="digits201, digits-darts, … (see `nas benchmarks list`)")],
    out: Annotated[
        Path | None, typer.Option(help="Folder for journals and the table; results/NAME by default.")
    ] = None,
    stage: Annotated[list[str] | None, typer.Option(help="accuracy, proxies, latency; all by default.")] = None,
) -> None:
    """Train and time every network of a population again (hours; interrupt and resume as you like)."""
    from nas.benchmarks.building import STAGES, build
    from nas.benchmarks.populations import get_population

    population = get_population(name)
    with progress_bar(f"building {name}") as bar:
        path = build(population, out or Path("results") / name, stages=tuple(stage or STAGES), progress=bar)
    print(path)


# --- predictors ------------------------------------------------------------------------------------------------------


@app.command()
def train(
    predictor: Annotated[str, typer.Argument(help="rlm, gnn, ridge, forest, an installed one, or FILE.py:CLASS")],
    out: Annotated[Path, typer.Option(help="Folder for the checkpoint.")],
    benchmark: Annotated[
        str | None, typer.Option(help="Learn from this table of networks: digits201, nasbench201, or a CSV file.")
    ] = None,
    metrics: Annotated[str | None, typer.Option(help="The benchmark's metrics to learn, comma-separated.")] = None,
    size: Annotated[int | None, typer.Option(help="Train on this many random architectures; all by default.")] = None,
    table: Annotated[
        Path | None,
        typer.Option(help="Learn from this .parquet, .csv or .csv.gz instead: any texts for rlm, ONNX for others."),
    ] = None,
    text: Annotated[str, typer.Option(help="The table's column with the texts.")] = "input",
    targets: Annotated[
        str, typer.Option(help="The table's columns with numbers, comma-separated; target_type names a single one's.")
    ] = "target",
    test_share: Annotated[
        float, typer.Option(min=0, max=0.9, help="Share of the table's texts to keep for testing.")
    ] = 0.1,
    base: Annotated[
        str | None,
        typer.Option(help="Checkpoint to begin with. rlm: rlm-base, none for a table; gnn: gnn-label-free by default."),
    ] = None,
    backbone: Annotated[str | None, typer.Option(help="rlm: a T5Gemma to read with, folder or hub name.")] = None,
    steps: Annotated[
        int | None, typer.Option(min=1, help="rlm, gnn: optimizer steps; by the data's size by default.")
    ] = None,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Train a predictor on a benchmark, or on a table of texts, and save a checkpoint."""
    import predictors

    if (benchmark is None) == (table is None):
        raise InputError("give either --benchmark with --metrics, or --table")
    options = _given(base=base, backbone=backbone, steps=steps)
    if benchmark is not None:
        if not metrics:
            raise InputError("--benchmark needs --metrics, the ones to learn")
        model = predictors.create(predictor, seed=seed, **options)
        _train_on_benchmark(model, benchmark, _split(metrics), size, seed)
        rows = []
    else:
        assert table is not None
        if predictor == "rlm":
            options = {"base": None, **options}
        model = predictors.create(predictor, seed=seed, **options)
        rows = _train_on_table(model, table, text, _split(targets), test_share, seed)
    model.save(out)
    if as_json:
        print_json({"checkpoint": str(out), "tests": rows})
        return
    if rows:
        print_table("Texts that were not trained on", [{k: _rounded(v) for k, v in row.items()} for row in rows])
    print(out)


def _train_on_benchmark(model: Predictor, benchmark: str, names: list[str], size: int | None, seed: int) -> None:
    import numpy as np

    from nas.benchmarks import load_benchmark
    from nas.compare import known_metrics

    table = load_benchmark(benchmark)
    count = len(table) if size is None else size
    if not 1 <= count <= len(table):
        raise InputError(f"--size {count}: {benchmark} has {len(table)} architectures")
    rows = np.random.default_rng(seed).permutation(len(table))[:count]
    columns = known_metrics(table, [n for n in names if n in ("params", "flops")])
    columns |= {n: table.values(n) for n in names if n not in columns}
    with progress_bar(f"training {model.kind}") as bar:
        texts = table.load_texts(bar)
        bar("fitting", 0, 1)
        model.fit([texts[i] for i in rows], {n: v[rows] for n, v in columns.items()})


def _train_on_table(
    model: Predictor, path: Path, text: str, targets: list[str], test_share: float, seed: int
) -> list[dict[str, Any]]:
    """Rank correlations on the texts that were kept for testing."""
    from nas.text_tables import rank_correlations, read_text_table, split

    training, tests = split(read_text_table(path, text, targets), test_share, seed)
    with progress_bar(f"training {model.kind}") as bar:
        bar("fitting", 0, 1)
        model.fit(training.texts, training.metrics)
        bar("testing", 0, 1)
        return rank_correlations(model, tests, seed=seed) if tests.texts else []


def _rounded(value: Any) -> Any:
    return f"{value:.3f}" if isinstance(value, float) else value


@app.command()
def predict(
    networks: Annotated[list[Path], typer.Argument(help=".onnx or .txt files")],
    checkpoint: Annotated[str, typer.Option(help="A checkpoint's folder, or a shipped one: rlm-nasbench201.")],
    metrics: Annotated[
        str | None, typer.Option(help="Comma-separated; all that the checkpoint knows by default.")
    ] = None,
    given: Annotated[list[str] | None, typer.Option(help="A known value, METRIC=NUMBER; for all networks.")] = None,
    samples: Annotated[int, typer.Option(min=1, help="Samples per network.")] = 64,
    predictor: Annotated[
        str | None, typer.Option(help="FILE.py:CLASS that the checkpoint is of, if it is a predictor of your own.")
    ] = None,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Predict metrics of ONNX models or texts, with uncertainty (mean ± standard deviation)."""
    import predictors
    from predictors.base import predictor_class

    model = predictors.load(checkpoint, predictor_class(predictor) if predictor else None)
    known = {name: [value] * len(networks) for name, value in map(_known_value, given or ())}
    asked = _split(metrics) if metrics else [m for m in model.metrics if m not in known]
    inputs = [_read_network(path) for path in networks]
    result = model.predict(inputs, asked, given=known, samples=samples, seed=seed)
    rows: list[dict[str, Any]] = []
    for i, path in enumerate(networks):
        values = {m: {"mean": result.mean[i, j], "std": result.std[i, j]} for j, m in enumerate(asked)}
        rows.append({"network": str(path), **values})
    if as_json:
        print_json(rows)
        return
    shown = [{k: f"{v['mean']:.4g} ± {v['std']:.2g}" if isinstance(v, dict) else v for k, v in r.items()} for r in rows]
    print_table(f"Predictions of {checkpoint}", shown)


def _known_value(argument: str) -> tuple[str, float]:
    name, _, value = argument.partition("=")
    try:
        return name, float(value)
    except ValueError:
        raise InputError(f"--given {argument}: write METRIC=NUMBER") from None


def _split(names: str) -> list[str]:
    parts = [part.strip() for part in names.split(",") if part.strip()]
    if not parts:
        raise InputError(f"no name in {names!r}: write names separated by commas")
    return parts


def _sizes(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise InputError(f"--sizes {text}: write whole numbers separated by commas") from None


@app.command()
def compare(
    benchmark: Annotated[
        list[str], typer.Option("--benchmark", help="digits201, nasbench201, or a CSV file; repeatable.")
    ],
    metric: Annotated[list[str], typer.Option("--metric", help="Metric that the predictors learn; repeatable.")],
    test_metric: Annotated[
        list[str] | None,
        typer.Option("--test-metric", help="Metric to rank by, one for each --metric; the same by default."),
    ] = None,
    predictor: Annotated[
        str, typer.Option("--predictors", help="Comma-separated: ours, installed ones, FILE.py:CLASS.")
    ] = "rlm,gnn,ridge,forest",
    sizes: Annotated[str, typer.Option(help="Training sizes, comma-separated.")] = "78,156,469,781",
    seeds: Annotated[int, typer.Option(help="Number of seeds.")] = 5,
    first_seed: Annotated[int, typer.Option(help="The first of them; take unused ones to confirm a choice.")] = 0,
    given: Annotated[str, typer.Option(help="Exact metrics that are known of all, such as params,flops.")] = "",
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for scores, a table and figures; an interrupted comparison goes on there. Of several "
            "benchmarks or metrics, each has a folder in it."
        ),
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Processes; the scores do not depend on it.")] = 1,
    as_json: Json = False,
) -> None:
    """Rank unseen architectures with every predictor: Kendall's τ against the number of examples, paired over seeds."""
    from nas.benchmarks import load_benchmark
    from nas.compare import Comparison
    from nas.compare import compare as run

    tested = test_metric or metric
    if len(tested) != len(metric):
        raise InputError(f"give a --test-metric for each of the {len(metric)} --metric, or none")
    names, known = tuple(_split(predictor)), tuple(_split(given)) if given else ()
    wanted = [
        Comparison(table, learned, ranked, names, _sizes(sizes), seeds, known, first_seed)
        for table in benchmark
        for learned, ranked in zip(metric, tested, strict=True)
    ]
    results = []
    for comparison in wanted:
        folder = out
        if out and len(wanted) > 1:
            folder = out / f"{Path(comparison.benchmark).stem}-{comparison.train_metric}"
        label = f"{comparison.train_metric} on {comparison.benchmark}"
        with progress_bar(f"comparing {label}") as bar:
            opened = load_benchmark(comparison.benchmark)
            result = run(comparison, opened, folder / "scores.jsonl" if folder else None, bar, jobs)
        if folder:
            result.save(folder)
        results.append(result)
        if not as_json:
            _print_compared(result)
    if as_json:
        rows, pairs = [row for c in results for row in c.rows()], [pair for c in results for pair in c.pairs()]
        print_json({"predictors": rows, "pairs": pairs})


def _print_compared(result: Compared) -> None:
    comparison = result.comparison
    labels = {"tau": "τ", "tau_top": "τ, best"}
    shown = [
        {
            "predictor": r["predictor"],
            "N": r["size"],
            **{label: f"{r[name]:.3f}±{r[f'{name}_std']:.3f}".replace("0.", ".") for name, label in labels.items()},
            "best 10": f"{r['top10']:.2f}±{r['top10_std']:.2f}",
            "regret": f"{r['regret']:.2f}±{r['regret_std']:.2f}",
            "50/90 %": f"{100 * r['cover50']:.0f}/{100 * r['cover90']:.0f}",
            "s": f"{r['fit_seconds']:.0f}+{r['predict_seconds']:.0f}",
        }
        for r in result.rows()
    ]
    numbers = f"seeds {comparison.first_seed} to {comparison.first_seed + comparison.seeds - 1}"
    metrics = f"{comparison.train_metric} → {comparison.test_metric}"
    print_table(f"{metrics} on {comparison.benchmark}, {numbers} (mean ± std)", shown)
    for pair in result.pairs():
        print(f"N = {pair['size']}: {pair['sentence']}")


# --- measuring and searching -----------------------------------------------------------------------------------------

DataSet = Annotated[
    str | None, typer.Option(help="digits (the default), a .npz file, or a folder with a folder of images per class.")
]
Epochs = Annotated[int | None, typer.Option(help="Epochs of training; 6 by default.")]
Training = Annotated[
    list[str] | None,
    typer.Option(
        "--training",
        help="Setting of the training, NAME=VALUE: batch, learning_rate, weight_decay, schedule (one-cycle, cosine), "
        "shift, noise, flip, patience, validation; repeatable.",
    ),
]
Device = Annotated[str | None, typer.Option(help="Device to train on, as cuda; cpu by default.")]
Threads = Annotated[int | None, typer.Option(help="Threads of ONNX Runtime; 1 by default.")]
Batch = Annotated[int | None, typer.Option(help="Samples per timed inference; 1 by default.")]
Provider = Annotated[
    str | None, typer.Option(help="Execution provider of ONNX Runtime; CPUExecutionProvider by default.")
]


def _given(**settings: Any) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if value is not None}


@app.command()
def evaluate(
    network: Annotated[str, typer.Argument(help="An .onnx file, a space name, or FILE.py:CLASS.")],
    arch: Annotated[
        str | None, typer.Option(help="Architecture in the space's notation; a random one of --seed by default.")
    ] = None,
    option: SpaceOptions = None,
    metrics: Annotated[str | None, typer.Option(help="Comma-separated; all by default.")] = None,
    dataset: DataSet = None,
    seeds: Annotated[int, typer.Option(min=1, help="Trainings, each with its own seed.")] = 1,
    epochs: Epochs = None,
    training: Training = None,
    device: Device = None,
    threads: Threads = None,
    batch: Batch = None,
    provider: Provider = None,
    seed: Seed = 0,
    resume: Annotated[
        Path | None, typer.Option(help="Folder for the training's state; an interrupted one goes on there.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure a network: train it from scratch, time it, and weigh it."""
    from nas.latency import LatencyTask
    from nas.measurement import Measurement, known_metrics
    from nas.subjects import subject_of_file, subject_of_space
    from nas.training import training_task
    from search_spaces.model import fingerprint
    from search_spaces.program import compact
    from search_spaces.text import write

    timing = LatencyTask(**_given(threads=threads, batch=batch, provider=provider))
    task = training_task({**_settings(training, "--training"), **_given(epochs=epochs)})
    wanted = _split(metrics) if metrics else []
    source = (dataset or "digits") if not wanted or any("accuracy" in metric for metric in wanted) else None
    if network.endswith(".onnx"):
        if arch or option:
            raise InputError(f"{network} is one network: --arch and --option go with a space")
        subject = subject_of_file(network, source)
    else:
        subject = subject_of_space(network, _settings(option, "--option"), source, arch, seed)
    known = known_metrics(timing, subject.data.metric if subject.data else None)
    numbers = tuple(range(seed, seed + seeds))
    measurement = Measurement(tuple(wanted or known), subject.data, numbers, task, timing, device or "cpu")
    checkpoint = resume / f"{fingerprint(write(compact(subject.graph)))}.pt" if resume else None
    with progress_bar("measuring") as bar:
        found = measurement(subject.graph, subject.model, checkpoint, bar)
    if as_json:
        print_json({"network": subject.name, **{metric: _plain(value) for metric, value in found.items()}})
        return
    rows = []
    for metric, measured in found.items():
        low, high = (measured.low, measured.high) if measured.low < measured.high else ("", "")
        rows.append({"metric": metric, "value": measured.value, "low": low, "high": high, "spread": measured.spread})
    print_table(subject.name, rows)


def _plain(measured: Measured) -> dict[str, Any]:
    """A measured value for JSON, which has no NaN."""
    return {name: None if value != value else value for name, value in measured._asdict().items()}


@app.command()
def search(
    objectives: Annotated[str, typer.Option(help="Comma-separated metrics; METRIC:max or METRIC:min to override.")],
    benchmark: Annotated[
        str | None, typer.Option(help="Look values up in this table: digits201, nasbench201, or a CSV file.")
    ] = None,
    space: Annotated[
        str | None, typer.Option(help="Measure every network of this space: a name, or FILE.py:CLASS.")
    ] = None,
    sampler: Annotated[
        str, typer.Option(help="One or more of rlm, gnn, forest, ridge, nsga2, nsga3, tpe, gp, random.")
    ] = "rlm",
    evaluations: Annotated[int, typer.Option(min=1, help="True evaluations to spend.")] = 200,
    constraint: Annotated[list[str] | None, typer.Option(help='Such as "pixel3_latency_ms <= 8"; repeatable.')] = None,
    seed: Seed = 0,
    seeds: Annotated[int, typer.Option(min=1, help="Repeat with this many seeds and report mean ± std.")] = 1,
    option: SpaceOptions = None,
    dataset: DataSet = None,
    trainings: Annotated[
        int | None, typer.Option(min=1, help="Trainings per network, whose mean accuracy counts; 1 by default.")
    ] = None,
    epochs: Epochs = None,
    training: Training = None,
    device: Device = None,
    threads: Threads = None,
    batch: Batch = None,
    provider: Provider = None,
    reference: Annotated[
        str | None,
        typer.Option(help="Reference point of the hypervolume, a value per objective; the worst measured by default."),
    ] = None,
    known: Annotated[
        Path | None,
        typer.Option(help="CSV of measurements that you have: architecture and the metrics. They are not counted."),
    ] = None,
    hours: Annotated[float | None, typer.Option(min=0, help="Begin no evaluation of a search after so long.")] = None,
    patience: Annotated[
        int | None, typer.Option(min=1, help="End a search after so many evaluations without a better front.")
    ] = None,
    predictor: Annotated[
        str | None,
        typer.Option(help="Search the space by predictions alone: a checkpoint's folder or name (rlm-nasbench201)."),
    ] = None,
    storage: Annotated[
        str | None,
        typer.Option(help="Keep searches there, where `nas worker` joins them: sqlite:///…, postgresql://…, grpc://…"),
    ] = None,
    study: Annotated[str, typer.Option(help="In a storage, searches are named STUDY-SAMPLER-SEED.")] = "search",
    out: Annotated[Path, typer.Option(help="Result folder; an interrupted search goes on there.")] = Path(
        "results/search"
    ),
    as_json: Json = False,
) -> None:
    """Search for the Pareto front of several objectives: in a benchmark's table, or by measuring a space's networks."""
    from nas.studies import Terms, run_measured_studies, run_predicted_studies, run_studies
    from search_spaces import get_space

    limited = _given(seconds=None if hours is None else 3600 * hours, patience=patience)
    terms = Terms(known, **limited, storage=storage, study=study)
    samplers, limits, numbers = _split(sampler), constraint or [], range(seed, seed + seeds)
    measured = _given(
        option=option, dataset=dataset, trainings=trainings, epochs=epochs, training=training, device=device,
        threads=threads, batch=batch, provider=provider, reference=reference,
    )  # fmt: skip
    if (benchmark is None) == (space is None):
        raise InputError("give either --benchmark, to look values up, or --space, to measure")
    if benchmark is not None and measured:
        raise InputError(f"--{next(iter(measured))} goes with --space: nothing is measured on a benchmark")
    if predictor is not None and (benchmark is not None or measured.keys() - {"option"}):
        raise InputError("--predictor goes with --space, --option and nothing that is measured or looked up")
    with progress_bar("searching") as bar:
        if benchmark is not None:
            studies = run_studies(benchmark, objectives, samplers, evaluations, numbers, out, limits, bar, terms=terms)
        elif predictor is not None:
            opened = get_space(str(space), **_settings(option, "--option"))
            studies = run_predicted_studies(
                opened, predictor, objectives, samplers, evaluations, numbers, out, limits, bar, terms
            )
        else:
            opened, measurement = _measured_space(str(space), objectives, limits, measured)
            point = None if reference is None else _numbers(reference, "--reference")
            studies = run_measured_studies(
                opened, measurement, objectives, samplers, evaluations, numbers, out, limits, bar, point, terms
            )
        studies.save(out)
    front = studies.first.front
    if as_json:
        print_json({"summary": studies.table(), "front": front})
        return
    truth = "the true hypervolume" if benchmark else "the hypervolume of the best front found"
    print_table(f"{objectives} on {benchmark or space}: share of {truth}", studies.table())
    print_table(f"Pareto front of {samplers[0]}, seed {seed}", front)
    print(f"written to {out}")


@app.command()
def worker(
    storage: Annotated[str, typer.Option(help="Journal file or URL that `nas search --storage` was given.")],
    study: Annotated[str | None, typer.Option(help="One search; by default all that are unfinished.")] = None,
    place: Annotated[
        str | None, typer.Option(help="Where the table, data set or checkpoint is on this machine, if elsewhere.")
    ] = None,
    device: Device = None,
) -> None:
    """Join searches that were begun elsewhere, until they have all their evaluations."""
    import optuna

    from nas.searching import is_unfinished, join, list_searches
    from nas.standing import labelled

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    names = [study] if study else [name for name in list_searches(storage) if is_unfinished(storage, name)]
    with progress_bar("working") as bar:
        for name in names:
            join(storage, name, place, device or "cpu", labelled(bar, name))
    print(f"{', '.join(names)}: finished" if names else f"{storage}: no search is unfinished")


Source = Annotated[
    str, typer.Argument(help="A folder that `nas search` wrote, a journal file, or the URL of a storage.")
]
Searched = Annotated[
    str | None, typer.Option("--benchmark", help="The table that was searched, where the folder does not say.")
]
Study = Annotated[str | None, typer.Option(help="The study's name in a storage; all of its searches by default.")]


def _folder(source: str, out: Path | None) -> Path:
    """Where figures and reports go: into the folder of the searches, unless they are elsewhere."""
    if out is None and not Path(source).is_dir():
        raise InputError(f"{source} is no folder: give --out, a folder to write to")
    return Path(source) if out is None else out


@app.command()
def plot(
    source: Source,
    benchmark: Searched = None,
    study: Study = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the figures; that of the searches by default.")] = None,
    kind: Annotated[str, typer.Option(help="png, svg or pdf.")] = "png",
) -> None:
    """Draw fronts, hypervolume and predictions of searches, finished or not."""
    from nas.studies import open_studies

    if kind not in ("png", "svg", "pdf"):
        raise InputError(f"--kind {kind}: write png, svg or pdf")
    folder = _folder(source, out)
    for path in open_studies(source, benchmark, study).plot(folder, kind):
        print(path)


@app.command()
def report(
    source: Source,
    benchmark: Searched = None,
    study: Study = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the result; that of the searches by default.")] = None,
    as_json: Json = False,
) -> None:
    """Write everything about searches, finished or not: report.html, front.csv, networks, figures, summary.json."""
    from nas.studies import open_studies

    folder = _folder(source, out)
    studies = open_studies(source, benchmark, study)
    studies.save(folder)
    print_json(studies.summary()) if as_json else print(folder / "report.html")


def _measured_space(
    name: str, objectives: str, constraints: list[str], given: dict[str, Any]
) -> tuple[SearchSpace, Measurement]:
    """The space of that name, built for the data set, and the measurement of all that a search needs to know."""
    from nas.latency import LatencyTask
    from nas.measurement import Measurement
    from nas.objectives import parse_constraints, parse_objectives
    from nas.subjects import open_space
    from nas.training import training_task

    objective_metrics = [objective.metric for objective in parse_objectives(objectives)]
    bounded = [constraint.metric for constraint in parse_constraints(constraints)]
    metrics = tuple(dict.fromkeys(objective_metrics + bounded))
    source = given.get("dataset", "digits") if any("accuracy" in metric for metric in metrics) else None
    space, data = open_space(name, _settings(given.get("option"), "--option"), source)
    task = training_task({**_settings(given.get("training"), "--training"), **_only(given, "epochs")})
    timing = LatencyTask(**_only(given, "threads", "batch", "provider"))
    seeds = tuple(range(given.get("trainings", 1)))
    return space, Measurement(metrics, data, seeds, task, timing, given.get("device", "cpu"))


def _only(settings: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: settings[name] for name in names if name in settings}


def _numbers(text: str, option: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"{option} {text}: write numbers separated by commas") from None


if __name__ == "__main__":
    main()
