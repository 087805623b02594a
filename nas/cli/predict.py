"""`nas predict`."""

from __future__ import annotations

import math
from typing import Annotated, Any

import numpy as np
import typer

from nas.cli.console import print_json, print_table
from nas.cli.options import NETWORK, Json, Seed, split_names
from search_spaces.common.errors import InputError

MEASURED_SHOWN = 4  # measured values per network in a note
METRICS_SHOWN = 3  # metrics in a note
# Novelty above which a network is farther than 95 % of the examples from their nearest other one
FAR = 1.0


def predict(
    networks: Annotated[list[str], typer.Argument(help=NETWORK)],
    checkpoint: Annotated[
        str | None,
        typer.Option(
            help="A checkpoint's folder, rlm-zoo, or rlm-nasbench201. Not needed for your own "
            "devices."
        ),
    ] = None,
    metrics: Annotated[
        str | None,
        typer.Option(
            help="Comma-separated: metrics of the checkpoint or of devices (`nas device list`), "
            "params, flops; all metrics of the checkpoint by default."
        ),
    ] = None,
    given: Annotated[
        list[str] | None,
        typer.Option(help="A known value, METRIC=NUMBER, that holds for all networks; repeatable."),
    ] = None,
    samples: Annotated[int, typer.Option(min=1, help="Samples per network.")] = 64,
    predictor: Annotated[
        str | None,
        typer.Option(help="FILE.py:CLASS of your own predictor, if the checkpoint holds one."),
    ] = None,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Predict metrics of networks, with uncertainty (mean ± standard deviation)."""
    from nas.evaluation.devices import devices_of
    from nas.networks import network_text
    from nas.sampling import draw
    from predictors.base import as_given
    from predictors.features import exact_costs
    from predictors.registry import load_trained, predictor_class
    from search_spaces.sources import naming_costs

    known: dict[str, list[float]] = {}
    for name, value in map(_known_value, given or ()):
        if name in known:
            raise InputError(f"--given {name}: give it once")
        known[name] = [value] * len(networks)
    # 1. What gives the values: the checkpoint, devices, and what is counted.
    model = None
    if checkpoint:
        own_class = predictor_class(predictor) if predictor else None
        model = load_trained(checkpoint, own_class)
    learnable = model.metrics if model else ()
    unknown = [name for name in learnable if name not in known]
    requested = split_names(metrics) if metrics else unknown
    devices = devices_of(requested, measured=learnable)
    inputs = [network_text(source) for source in networks]

    # 2. Samples (networks, samples) by metric; of what is counted, one.
    drawn: dict[str, np.ndarray] = {}
    with naming_costs(networks, inputs):
        for name, column in exact_costs(inputs, requested).items():
            drawn[name] = np.array(column)[:, None]
        for device in devices:
            drawn[device.metric] = device.sample(inputs)
    learned = [name for name in requested if name not in drawn]
    if model:
        with naming_costs(networks, inputs):
            drawn |= draw(model, inputs, learned, as_given(inputs, known), samples, seed)
    elif learned:
        raise InputError(f"give --checkpoint: no device has the metric {learned[0]}")
    elif not requested:
        raise InputError("give --checkpoint or --metrics")

    # 3. A row per network.
    rows: list[dict[str, Any]] = [{"network": source} for source in networks]
    for name in requested:
        means, stds = drawn[name].mean(1), drawn[name].std(1)  # (networks,)
        for row, mean, std in zip(rows, means.tolist(), stds.tolist(), strict=True):
            row[name] = {"mean": mean, "std": std}

    # 4. How far networks are from the examples with a metric; NaN if the predictor cannot tell.
    novelty = {name: model.novelty(inputs, [name]) for name in learned} if model else {}
    if as_json:
        farthest = np.full(len(networks), np.nan)
        if novelty:
            farthest = np.max([*novelty.values()], 0)
        for row, distance in zip(rows, farthest.tolist(), strict=True):
            row["novelty"] = None if np.isnan(distance) else distance
        print_json(rows)
        return
    shown = [{name: _shown(name, value) for name, value in row.items()} for row in rows]
    names = [name for name in (checkpoint, *(device.name for device in devices)) if name]
    print_table(f"Predictions of {', '.join(names) or 'nothing'}", shown)
    _warn(networks, "examples of the checkpoint", novelty)
    if model:
        _note_measured(networks, model.examples_of(inputs), learned)
    for device in devices:
        _warn(
            networks, f"networks measured on {device.name}", {device.metric: device.novelty(inputs)}
        )


def _shown(name: str, value: Any) -> Any:
    """A cell of the table: an exact count, or a prediction with its standard deviation."""
    from predictors.metrics import EXACT

    if not isinstance(value, dict):
        return value
    return f"{value['mean']:,.0f}" if name in EXACT else f"{value['mean']:.4g} ± {value['std']:.2g}"


def _warn(networks: list[str], examples: str, novelty: dict[str, np.ndarray]) -> None:
    """Name the networks that are far from all examples with a metric.

    The novelty (n,) per metric measures this. Errors of such predictions are larger on average. The
    note does not say that the others are right.
    """
    for i, source in enumerate(networks):
        far = {name: float(values[i]) for name, values in novelty.items() if values[i] > FAR}
        if far:
            names = sorted(far, key=far.__getitem__, reverse=True)
            more = f" and {len(names) - METRICS_SHOWN} more" if len(names) > METRICS_SHOWN else ""
            print(
                f"{source}: unlike the {examples} with {', '.join(names[:METRICS_SHOWN])}{more}: "
                f"{far[names[0]]:.1f} times as far from the nearest as 95 % of these from theirs"
            )


def _note_measured(
    networks: list[str], examples: dict[str, np.ndarray], metrics: list[str]
) -> None:
    """Print the networks that are examples of the checkpoint, with their measurements.

    Predictions do not use their measured values.
    """
    for i, source in enumerate(networks):
        measured = {
            name: values[i]
            for name, values in examples.items()
            if name in metrics and not np.isnan(values[i])
        }
        if measured:
            texts = [f"{name} {value:.4g}" for name, value in measured.items()]
            shown = ", ".join(texts[:MEASURED_SHOWN])
            if len(texts) > MEASURED_SHOWN:
                shown += f" and {len(texts) - MEASURED_SHOWN} more"
            print(f"{source}: the checkpoint has measurements: {shown} (`nas rank` uses them)")


def _known_value(argument: str) -> tuple[str, float]:
    from predictors.metrics import EXACT

    name, _, value = argument.partition("=")
    if name in EXACT:
        raise InputError(f"--given {argument}: leave it out, {name} is counted in each network")
    try:
        if math.isfinite(number := float(value)):
            return name, number
    except ValueError:
        pass
    raise InputError(f"--given {argument}: write METRIC=NUMBER")
