"""`nas search`."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nas.cli.config import Config, is_given, written
from nas.cli.console import (
    print_sentence,
    warn_if_seen,
    warn_of_directions,
)
from nas.cli.options import (
    TRAINING,
    Batch,
    Calibration,
    DataSet,
    Depth,
    Device,
    Epochs,
    Json,
    Keep,
    Kernel,
    LatencyCommand,
    LatencySetting,
    MetricCommand,
    Model,
    Outputs,
    OwnEvaluator,
    Precision,
    Provider,
    Quiet,
    RoundTo,
    Seed,
    SpaceOptions,
    Start,
    StorageTimeout,
    TeacherOption,
    Threads,
    Training,
    Weights,
    Width,
    given_only,
    model_options,
    parse_numbers,
    parse_settings,
    split_names,
)
from nas.cli.progress import progress_bar
from nas.cli.search_output import ending_prepared, show_search
from search_spaces.common.errors import InputError
from search_spaces.common.files import replacing

if TYPE_CHECKING:
    from nas.comparison.runs import Budget
    from nas.search.duration import Duration

REPEATS = "search.toml"  # file of the result folder: `nas search --config` with it is this search

# Headings of `--help`.
LIMITS, BY_COST, SHARING = "Limits", "Short trainings first", "Storage, processes, results"

# A search can resume with other values of these. Samplers and seeds are part of the names of
# searches.
CHANGEABLE_OPTIONS = (
    "evaluations",
    "budget",
    "hours",
    "prepare",
    "patience",
    "confirm",
    "jobs",
    "track",
    "storage_timeout",
    "sampler",
    "seed",
    "seeds",
    "out",
    "new",
    "config",
    "quiet",
    "as_json",
)

# Options that a search by cost does not accept, and what to do instead.
NOT_BY_COST = {
    "evaluations": "--budget limits the search",
    "hours": "limit seconds by --budget and --cost seconds",
    "patience": "--budget limits the search, and a larger one resumes it",
    "predictor": "leave it out, since predictions cost nothing",
}


def search(
    context: typer.Context,
    objectives: Annotated[
        str,
        typer.Option(
            help="Comma-separated metrics; METRIC:max or METRIC:min sets the direction. params and "
            "flops are counted, latencies and peak_memory_mb measured in seconds "
            "(torch_compile_latency_ms in about half a minute); accuracies cost a training."
        ),
    ],
    benchmark: Annotated[
        str | None,
        typer.Option(
            help="Look values up in this table (`nas benchmarks list`), or in a CSV file of "
            "networks of --space."
        ),
    ] = None,
    space: Annotated[
        str | None,
        typer.Option(
            help="Measure every network of this space: a name, or FILE.py:NAME of a class or "
            "function."
        ),
    ] = None,
    sampler: Annotated[
        str,
        typer.Option(
            help="Comma-separated: predictors (rlm, gnn, gp, gp-choices, forest, ridge, "
            "FILE.py:CLASS), nsga2, nsga3, tpe, optuna-gp, random; with --budget: predictors, "
            "asha, hyperband, random."
        ),
    ] = "rlm",
    evaluations: Annotated[
        int, typer.Option(min=1, help="Number of evaluations.", rich_help_panel=LIMITS)
    ] = 200,
    constraint: Annotated[
        list[str] | None,
        typer.Option(help='A constraint, for example "pixel3_latency_ms <= 8"; repeatable.'),
    ] = None,
    seed: Seed = 0,
    seeds: Annotated[
        int, typer.Option(min=1, help="Repeat with this many seeds and report mean ± std.")
    ] = 1,
    option: SpaceOptions = None,
    model: Model = None,
    weights: Weights = None,
    width: Width = None,
    depth: Depth = None,
    kernel: Kernel = None,
    round_to: RoundTo = None,
    keep: Keep = None,
    precision: Precision = None,
    start: Start = None,
    teacher: TeacherOption = None,
    outputs: Outputs = None,
    dataset: DataSet = None,
    trainings: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Trainings per network, whose mean accuracy counts; 1 by default.",
            rich_help_panel=TRAINING,
        ),
    ] = None,
    epochs: Epochs = None,
    training: Training = None,
    evaluator: OwnEvaluator = None,
    calibration: Calibration = None,
    depends: Annotated[
        list[Path] | None,
        typer.Option(
            help="A file or folder that the evaluator or the space reads; the search resumes only "
            "with the same contents; repeatable.",
            rich_help_panel=TRAINING,
        ),
    ] = None,
    device: Device = None,
    threads: Threads = None,
    batch: Batch = None,
    provider: Provider = None,
    latency_command: LatencyCommand = None,
    metric_command: MetricCommand = None,
    latency_setting: LatencySetting = None,
    reference: Annotated[
        str | None,
        typer.Option(
            help="Reference point of the hypervolume, a value per objective; by default the worst "
            "values of networks that keep the constraints."
        ),
    ] = None,
    known: Annotated[
        Path | None,
        typer.Option(
            help="CSV of prior observations: architecture and metrics. They do not count as "
            "evaluations."
        ),
    ] = None,
    hours: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="Start no evaluation after this many hours; 0 as --prepare.",
            rich_help_panel=LIMITS,
        ),
    ] = None,
    prepare: Annotated[
        bool,
        typer.Option(
            "--prepare",
            help="Only store the search, for `nas worker`. The same command without it shows the "
            "results.",
            rich_help_panel=SHARING,
        ),
    ] = False,
    patience: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Stop after this many evaluations without a better front.",
            rich_help_panel=LIMITS,
        ),
    ] = None,
    confirm: Annotated[
        int,
        typer.Option(
            min=0,
            help="Train the front's networks so many times again at the end, with fresh seeds.",
            rich_help_panel=TRAINING,
        ),
    ] = 0,
    measure: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Networks per training whose latency and other cheap metrics a guiding predictor "
            "knows before it chooses; by default 1 to 5, as many as seconds of trainings pay for.",
        ),
    ] = None,
    cheap: Annotated[
        str | None,
        typer.Option(
            help="Comma-separated columns of --benchmark that count as measured without a training, "
            "as by --measure."
        ),
    ] = None,
    fidelities: Annotated[
        str | None,
        typer.Option(
            help="Search by cost: epochs after which a training may pause, and its last epoch, as "
            "in 2,6.",
            rich_help_panel=BY_COST,
        ),
    ] = None,
    budget: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="Total cost of a search with --fidelities, instead of --evaluations.",
            rich_help_panel=BY_COST,
        ),
    ] = None,
    cost: Annotated[
        str,
        typer.Option(
            help="Unit of --budget: epochs, seconds, or a metric that is the cost of one epoch.",
            rich_help_panel=BY_COST,
        ),
    ] = "epochs",
    predictor: Annotated[
        str | None,
        typer.Option(
            help="Search --space by predictions only, of this checkpoint: a folder, or "
            "rlm-nasbench201."
        ),
    ] = None,
    storage: Annotated[
        str | None,
        typer.Option(
            help="Storage that `nas worker` can join: sqlite:///…, postgresql://…, grpc://…, or "
            "FILE.journal.",
            rich_help_panel=SHARING,
        ),
    ] = None,
    storage_timeout: StorageTimeout = 600,
    jobs: Annotated[
        int,
        typer.Option(
            min=1,
            help="Processes per search, which share the GPUs; results depend on their number.",
            rich_help_panel=SHARING,
        ),
    ] = 1,
    track: Annotated[
        list[str] | None,
        typer.Option(
            help="Log every trial to mlflow:URI, wandb:PROJECT or tensorboard:FOLDER; repeatable.",
            rich_help_panel=SHARING,
        ),
    ] = None,
    study: Annotated[
        str,
        typer.Option(
            help="Prefix of study names in a storage: STUDY-SAMPLER-SEED.", rich_help_panel=SHARING
        ),
    ] = "search",
    out: Annotated[
        Path | None,
        typer.Option(
            help="Result folder, where the same search resumes; results/SPACE-OBJECTIVES-DATE by "
            "default.",
            show_default=False,
            rich_help_panel=SHARING,
        ),
    ] = None,
    new: Annotated[
        bool,
        typer.Option(
            "--new",
            help="Start in a new folder: FOLDER-2 if FOLDER exists.",
            rich_help_panel=SHARING,
        ),
    ] = False,
    config: Config = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Search for the Pareto front of several objectives, in a table or by measuring networks."""
    from nas.benchmarks import load_benchmark
    from nas.cli.measured import (
        declare_objectives,
        device_commands,
        open_measured,
        warn_of_missing_weights,
    )
    from nas.comparison.runs import (
        SearchOptions,
        run_measured_studies,
        run_predicted_studies,
        run_studies,
    )
    from nas.report.folders import save_studies
    from nas.search.study.retry import set_timeout
    from nas.search.study.schema import sampler_label
    from nas.search.study.storage import address
    from search_spaces import Subnetworks, get_space
    from search_spaces.registry import SUPERNET

    set_timeout(storage_timeout)
    samplers = split_names(sampler)
    constraints = constraint or []
    all_seeds = range(seed, seed + seeds)

    # 1. When the searches end.
    seconds = None if hours is None else 3600 * hours
    if prepare:
        seconds = 0.0
    if seconds == 0 and jobs > 1:
        raise InputError(f"--prepare evaluates nothing: give --jobs {jobs} to nas worker")
    by_cost = _budget(fidelities, budget, cost)
    _check_limits(context, by_cost is not None)

    # 2. Where values come from. The sub-networks of a model are a space, with options of its own.
    if model is None and start is not None and start.endswith(SUPERNET):
        option, start = [*(option or ()), f"start={start!r}"], None
    of_model = model_options(
        model, weights, width, depth, kernel, round_to, keep, start, teacher, outputs, precision
    )
    if model is not None:
        if space is not None:
            raise InputError("--model is the space of its sub-networks: leave out --space")
        space, option = model, [*(option or ()), *of_model]
    measured = given_only(
        option=option, dataset=dataset, trainings=trainings, epochs=epochs, training=training, device=device,
        threads=threads, batch=batch, provider=provider, reference=reference, evaluator=evaluator,
        calibration=calibration,
        latency_command=latency_command, metric_command=metric_command, latency_setting=latency_setting,
    )  # fmt: skip
    if benchmark is None and predictor is None:
        objectives = declare_objectives(objectives, device_commands(measured))
    _check_source(benchmark, space, predictor, measured)
    _check_measure(measure, cheap, samplers, benchmark, predictor)

    # 3. What applies to each search, and what its folder records.
    arguments = {}
    for name, value in context.params.items():
        if name not in CHANGEABLE_OPTIONS and value is not None:
            arguments[name] = str(value)
    arguments["storage"] = address(storage)  # without a password
    durations: list[Duration] = []

    def announce(duration: Duration) -> None:
        durations.append(duration)
        if not quiet:
            print(f"nas: {duration.sentence}", file=sys.stderr)

    options = SearchOptions(
        known,
        **given_only(seconds=seconds, patience=patience),
        budget=by_cost,
        storage=storage,
        study=study,
        jobs=jobs,
        track=tuple(track or ()),
        arguments=arguments,
        depends=tuple(depends or ()),
        confirm=confirm,
        measure=measure,
        cheap=None if cheap is None else tuple(split_names(cheap)),
        announce=announce,
    )

    # 4. The result folder.
    if new and storage:
        raise InputError(
            "--new starts a new folder: with --storage, choose another --study instead"
        )
    labels = [sampler_label(one) for one in samplers]
    searches = [f"{label}-{number}" for number in all_seeds for label in labels]
    chosen = _result_folder(out, new, str(benchmark or space), objectives, arguments, searches)
    warn_of_directions(objectives)

    # 5. The searches, their results, and the file that repeats them.
    with chosen as folder, progress_bar("searching", quiet) as bar, ending_prepared(as_json):
        common = (objectives, samplers, evaluations, all_seeds, folder, constraints, bar)
        if benchmark is not None:
            warn_if_seen(benchmark, samplers)
            table = load_benchmark(benchmark, space, parse_settings(option, "--option"))
            studies = run_studies(table, *common, options=options)
        elif predictor is not None:
            opened = get_space(str(space), **parse_settings(option, "--option"))
            studies = run_predicted_studies(opened, predictor, *common, options=options)
        else:
            measuring = open_measured(
                str(space), objectives, constraints, measured, folder, by_cost
            )
            if isinstance(measuring.space, Subnetworks) and not quiet:
                print(f"nas: {model}: {measuring.space.summary}", file=sys.stderr)
            point = None if reference is None else parse_numbers(reference, "--reference")
            studies = run_measured_studies(measuring, *common, point=point, options=options)
        prospects = save_studies(folder, studies)
        with replacing(folder / REPEATS) as file:
            file.write_text(written(context), encoding="utf-8")

    # 6. What the user sees.
    warn_of_missing_weights(studies, folder)
    title = f"{objectives} on {benchmark or space}"
    show_search(studies, constraints, title, as_json, durations)
    for sentence in prospects.sentences:
        print_sentence(sentence)
    print(f"written to {folder}")


def _check_source(
    benchmark: str | None, space: str | None, predictor: str | None, measured: dict[str, Any]
) -> None:
    """Raise InputError unless values come from one source.

    Args:
        measured: options of measurements that were given.
    """
    if benchmark is None and space is None:
        raise InputError(
            "give --benchmark, a table to search, --space, whose networks to measure, or --model, "
            "a trained model"
        )
    if benchmark is not None and (
        wrong := [name for name in measured if not (space and name == "option")]
    ):
        raise InputError(
            f"--{wrong[0]} applies to --space only: nothing is measured on a benchmark"
        )
    if predictor is not None and (benchmark is not None or measured.keys() - {"option"}):
        raise InputError(
            "--predictor needs --space, and excludes --benchmark and all options of measurements"
        )


def _check_measure(
    measure: int | None,
    cheap: str | None,
    samplers: list[str],
    benchmark: str | None,
    predictor: str | None,
) -> None:
    """Raise InputError if networks cannot be measured before a choice."""
    from nas.search.samplers import is_guided

    if cheap is not None and benchmark is None:
        raise InputError("--cheap names columns of --benchmark: without a table, leave it out")
    if measure is not None and predictor is not None:
        raise InputError("--measure does not apply with --predictor: nothing is measured there")
    if measure is not None and not any(map(is_guided, samplers)):
        raise InputError(
            f"--measure {measure} does not apply to {', '.join(samplers)}: only a predictor that "
            "guides the search, such as rlm, chooses among measured networks"
        )


def _result_folder(
    out: Path | None,
    new: bool,
    searched: str,
    objectives: str,
    arguments: dict[str, str],
    searches: list[str],
) -> AbstractContextManager[Path]:
    """The folder `out` or, by default or with `new`, one that no other search uses."""
    from nas.comparison.folders import chosen_folder, earlier_folders, folder_name
    from nas.search.objectives import parse_objectives

    if out is not None and not new:
        return nullcontext(out)
    name = folder_name(searched, [objective.name for objective in parse_objectives(objectives)])
    first = out or Path("results", name)
    if not new and not first.exists() and (earlier := earlier_folders(first, arguments)):
        print(
            f"nas: starting a new folder; --out {earlier[0]} resumes an earlier search",
            file=sys.stderr,
        )
    return chosen_folder(first, arguments, searches, new)


def _check_limits(context: typer.Context, by_cost: bool) -> None:
    """Raise InputError for an option that does not apply to this kind of search."""
    set_options = [name for name in context.params if is_given(context, name)]
    if not by_cost and "cost" in set_options:
        raise InputError("--cost is the unit of --budget: it needs --fidelities and --budget")
    if by_cost and (wrong := [name for name in set_options if name in NOT_BY_COST]):
        raise InputError(f"--{wrong[0]} does not apply with --fidelities: {NOT_BY_COST[wrong[0]]}")


def _budget(fidelities: str | None, budget: float | None, cost: str) -> Budget | None:
    """Budget of a search by cost; None for any other search."""
    from nas.comparison.runs import Budget

    if (fidelities is None) != (budget is None):
        raise InputError(
            "give --fidelities and --budget together: --fidelities 2,6 --budget 300 spends 300 "
            "epochs"
        )
    if fidelities is None or budget is None:
        return None
    try:
        return Budget(tuple(int(part) for part in fidelities.split(",")), budget, cost)
    except ValueError as error:
        raise InputError(
            f"--fidelities {fidelities}: write whole numbers separated by commas"
        ) from error
