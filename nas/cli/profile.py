"""`nas profile`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from nas.cli.console import print_json, print_table
from nas.cli.options import (
    Batch,
    Calibration,
    Depth,
    Json,
    Keep,
    Kernel,
    LatencyCommand,
    LatencySetting,
    MetricCommand,
    Precision,
    Provider,
    RoundTo,
    Seed,
    SpaceOptions,
    Threads,
    Weights,
    Width,
    given_only,
    model_options,
    parse_settings,
    split_names,
)


def profile(
    source: Annotated[
        str,
        typer.Argument(
            help="FILE.py:NAME of a trained model, whose sub-networks are the space, or of a "
            "space; or a space name."
        ),
    ],
    constraint: Annotated[
        list[str] | None,
        typer.Option(help='A limit, for example "cpu_latency_ms <= 8"; repeatable.'),
    ] = None,
    metrics: Annotated[
        str | None,
        typer.Option(
            help="Comma-separated metrics besides params and flops; cpu_latency_ms by default. "
            "Latencies of `nas device list` are predicted. torch_compile_latency_ms takes about "
            "half a minute per network, other latencies seconds."
        ),
    ] = None,
    samples: Annotated[
        int, typer.Option(min=1, help="Random networks whose costs are counted.")
    ] = 200,
    measured: Annotated[
        int, typer.Option(min=1, help="Random networks that are measured or predicted.")
    ] = 20,
    option: SpaceOptions = None,
    weights: Weights = None,
    width: Width = None,
    depth: Depth = None,
    kernel: Kernel = None,
    round_to: RoundTo = None,
    keep: Keep = None,
    precision: Precision = None,
    calibration: Calibration = None,
    threads: Threads = None,
    batch: Batch = None,
    provider: Provider = None,
    latency_command: LatencyCommand = None,
    metric_command: MetricCommand = None,
    latency_setting: LatencySetting = None,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Say what the networks of a space cost, and whether a limit can be kept, before a search."""
    from nas.cli.measured import calibration_inputs, device_commands
    from nas.evaluation.devices import devices_of
    from nas.evaluation.latency import LatencyTask, check_provider
    from nas.evaluation.measurement import Measurement, metrics_of
    from nas.profiling import BRIEFLY
    from nas.profiling import profile as profile_of
    from nas.search.objectives import parse_constraints
    from search_spaces.registry import get_space, is_model

    # 1. The space: of a model's sub-networks, or as it is named.
    model = source if is_model(source) else None
    of_model = model_options(
        model, weights, width, depth, kernel, round_to, keep, None, None, None, precision
    )
    space = get_space(source, **parse_settings([*(option or ()), *of_model], "--option"))

    # 2. What is measured.
    if provider is not None:
        check_provider(provider)
    given = given_only(threads=threads, batch=batch, provider=provider)
    timing = LatencyTask(**BRIEFLY, **given)
    commands = device_commands(
        given_only(
            latency_command=latency_command,
            metric_command=metric_command,
            latency_setting=latency_setting,
        )
    )
    limits = parse_constraints(constraint)
    default = () if limits or commands else (timing.metric,)
    names = [*split_names(metrics)] if metrics else [*default, *metrics_of(commands)]
    metrics_of_limits = [limit.metric for limit in limits]
    devices = devices_of([*names, *metrics_of_limits], metrics_of(commands))
    inputs = calibration_inputs(
        calibration, [*names, *metrics_of_limits], commands, space.input_shape
    )
    measurement = Measurement(
        (), latency=timing, commands=commands, devices=devices, calibration=inputs
    )
    result = profile_of(
        space,
        limits,
        names,
        samples=samples,
        measured=measured,
        measurement=measurement,
        seed=seed,
    )

    # 3. The answer.
    if as_json:
        print_json(result.to_dict())
    else:
        rows = result.table.to_dict("index")
        shown = [{"metric": name, **row} for name, row in rows.items()]
        print_table(f"Networks of {space.name}", shown)
        for limit in result.limits:
            kept = f"{limit.share:.0%} of {limit.networks} random networks"
            print(f"{limit.constraint}: {kept}; the nearest value is {limit.nearest:.4g}")
    if not result.reachable:
        missed = [str(limit.constraint) for limit in result.limits if not limit.reached]
        print(f"nas: no network was met that satisfies {' and '.join(missed)}", file=sys.stderr)
        raise typer.Exit(1)
