"""The data of a report page as JSON values, which the scripts in `assets` display."""

from __future__ import annotations

import math
from base64 import b64encode
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import numpy as np
from scipy.stats import kendalltau

from nas.benchmarks.csv_file import ORIGIN_COLUMNS
from nas.evaluation.metrics import PRICES, price
from nas.evaluation.runtimes import RUNTIMES
from nas.report.collecting import Network, collect, labelled, propose
from nas.report.drawing import draw_blocks
from nas.report.plots import metric_label
from nas.search.objectives import parse_constraints
from nas.search.policy_planner import is_by_cost, read_runs
from nas.search.study.provenance import used_settings
from nas.search.study.schema import IDENTITY_KEY, SETTINGS_KEY, SOURCE_KEY
from predictors.metrics import Metric
from search_spaces.common.plug_ins import without_folder

if TYPE_CHECKING:
    from nas.comparison.studies import Studies
    from nas.report.outlook import Prospects
    from nas.search.study.result import SearchResult
    from nas.search.trainings import Run

MAX_CURVE_POINTS = 200  # per sampler
# Of all ONNX models that are embedded in the page; beyond it, they are linked
MAX_MODEL_BYTES = 6_000_000
_LATENCY = "_latency_ms"  # ends the name of a latency, after the runtime
_RUNTIME_TITLES = {
    "cpu": "ONNX Runtime",
    "cpu_int8": "ONNX Runtime, int8",
    "cuda": "ONNX Runtime, CUDA",
    **{name: runtime.title for name, runtime in RUNTIMES.items()},
}


def page_data(studies: Studies, models: Path, prospects: Prospects) -> dict[str, Any]:
    """Networks, proposals, and where they come from, as JSON values.

    Args:
        studies: the searches.
        models: folder of ONNX models beside the page.
        prospects: what to expect of the front and of further evaluations.
    """
    # 1. The networks of all searches, then proposals. Those of the front come first.
    networks = [*collect(studies), *propose(studies)]
    for network, expected in zip(networks, prospects.expected, strict=False):
        network.expected = expected
    metrics = _metrics(studies.objectives, networks)
    names = [metric.name for metric in metrics]
    links = _model_links(models)

    # 2. What each search has beside evaluated networks.
    searches = list(labelled(studies))
    failures: list[dict[str, Any]] = []
    paused: list[dict[str, Any]] = []
    for label, result in searches:
        failures += [{"search": label, **failure} for failure in result.failures]
        paused += _paused(label, result, names)

    # 3. The page, from its title to the settings at its end.
    return _plain(
        {
            "searched": _searched(studies),
            "has_space": bool(studies.first.space.name),
            "searches": [label for label, _ in searches],
            "objectives": len(studies.objectives),
            "origin_columns": ORIGIN_COLUMNS,
            "metrics": [_described(metric) for metric in metrics],
            "prospects": prospects.sentences,
            "constraints": _constraints(studies),
            "networks": [_network(network, names, links) for network in networks],
            "not_built": studies.not_built,
            "failures": failures,
            "paused": paused,
            "yardstick": "true front" if studies.benchmark else "best front of all searches here",
            "true_front": _true_front(studies),
            "samplers": studies.table(),
            "curves": _curves(studies),
            "runtimes": compare_runtimes(networks),
            "agreement": [_agreement(*predicted) for predicted in studies.first.predicted.items()],
            "made": _made(studies),
        }
    )


def _searched(studies: Studies) -> str:
    """What was searched: a table or a space; the study's name if it names neither."""
    if studies.benchmark:
        return studies.benchmark.name
    return without_folder(studies.first.space.name) or studies.first.study.study_name


def _constraints(studies: Studies) -> list[dict[str, Any]]:
    """Constraints; `sign` is 1 for an upper bound, -1 for a lower one."""
    settings = studies.first.study.user_attrs.get(SETTINGS_KEY, {})
    constraints = []
    for constraint in parse_constraints(settings.get("constraints")):
        sign = 1 if constraint.op == "<=" else -1
        constraints.append({"metric": constraint.metric, "sign": sign, "bound": constraint.bound})
    return constraints


def _metrics(objectives: Sequence[Metric], networks: Sequence[Network]) -> list[Metric]:
    """Objectives, then all other metrics of the networks."""
    metrics = {metric.name: metric for metric in objectives}
    for network in networks:
        for name in network.values:
            if name not in metrics:
                metrics[name] = _metric(name)
    return list(metrics.values())


def _described(metric: Metric) -> dict[str, Any]:
    """What the page shows of a metric."""
    return {
        "name": metric.name,
        "label": metric_label(metric.name, unit=metric.unit),
        "sign": metric.sign,
        "unit": metric.unit,
        "price": price(metric),
    }


def _metric(name: str) -> Metric:
    """A further metric of a user's function, whose name may be anything, such as `val:loss`."""
    return replace(Metric.parse(name.replace(":", "_").strip() or "?"), name=name)


def _network(network: Network, names: Sequence[str], links: Mapping[str, str]) -> dict[str, Any]:
    """A network with its values in the order of the metrics' names; None where they are unknown."""
    drawings = draw_blocks(network.text, network.output_names) if network.text else {}
    return {
        "notation": network.notation,
        "search": network.search,
        "evaluation": network.evaluation,
        "trial": network.trial,
        "origin": [network.origin.get(name) for name in ORIGIN_COLUMNS],
        "others": network.others,
        "plan": network.plan,
        "values": [network.values.get(name) for name in names],
        "spreads": [network.spreads.get(name) for name in names],
        "test": [[metric_label(name), value] for name, value in network.test.items()],
        "predicted": [network.predicted.get(name) for name in names],
        "expected": [network.expected.get(name) for name in names],
        "again": [network.confirmed.get(name) for name in names],
        "feasible": network.violation <= 0,
        "violation": network.violation,
        "place": network.place,
        "text": network.text,
        "drawings": drawings,
        "model": links.get(network.file or ""),
    }


def _paused(search: str, result: SearchResult, names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Trainings of a search with fidelities that were not completed, the longest first."""
    if not is_by_cost(result):
        return
    runs = read_runs(result)
    begun = [run for run in runs.runs.values() if run.values and run.reached < runs.fidelities.last]
    for run in sorted(begun, key=lambda run: -run.reached):
        yield {
            "notation": result.space.format(run.architecture),
            "search": search,
            "epochs": _epochs(run, runs.fidelities.last),
            "values": [run.values[run.reached].get(name) for name in names],
        }


def _epochs(run: Run, last: int) -> str:
    """How far a training came, in words."""
    if run.ruled_out:
        return "none, breaks a constraint"
    if run.is_measured_only:
        return "none, measured only"
    return f"{run.reached} of {last}"


def _model_links(folder: Path) -> dict[str, str]:
    """Links to the models by file name: data URLs if the models are small, else paths."""
    paths = sorted(folder.glob("*.onnx"))
    total = sum(path.stat().st_size for path in paths)
    links = {}
    for path in paths:
        if total > MAX_MODEL_BYTES:
            links[path.stem] = quote(f"{folder.name}/{path.name}")
        else:
            content = b64encode(path.read_bytes()).decode()
            links[path.stem] = f"data:application/octet-stream;base64,{content}"
    return links


def _true_front(studies: Studies) -> list[list[float]]:
    """Values (k, m) of a table's true front; empty without a table."""
    if studies.benchmark is None:
        return []
    return (studies.reference.true_front * [o.sign for o in studies.objectives]).tolist()


def _curves(studies: Studies) -> list[dict[str, Any]]:
    """Mean hypervolume ratio of each sampler after n evaluations; empty for one objective."""
    if len(studies.objectives) == 1:
        return []
    curves = []
    for name, shares in studies.curves().items():
        # `shares` (seeds, n), of which some columns are drawn, evenly spaced.
        columns = np.linspace(0, shares.shape[1] - 1, MAX_CURVE_POINTS).astype(int)
        columns = np.unique(columns)
        means = shares.mean(axis=0)[columns]
        points = np.column_stack([columns + 1, means])  # evaluations and mean share
        curves.append({"name": name, "points": points.tolist()})
    return curves


def _agreement(metric: str, values: np.ndarray) -> dict[str, Any]:
    """How well predictions agreed with later measurements.

    Args:
        metric: its name.
        values: (k, 3), predicted mean, its standard deviation, and measured value.
    """
    mean, std, measured = values[np.isfinite(values).all(axis=1)].T  # (finite,) each
    errors = np.abs(mean - measured)
    return {
        "metric": metric,
        "label": metric_label(metric),
        "networks": len(mean),
        "tau": float(kendalltau(mean, measured).statistic) if len(mean) > 1 else None,
        "error": float(errors.mean()) if len(mean) else None,
        "within": float((errors <= 2 * std).mean()) if len(mean) else None,
    }


def compare_runtimes(networks: Sequence[Network]) -> list[dict[str, Any]]:
    """A row for each runtime in which the networks were measured, the fastest first.

    There are none for less than two runtimes. Only the n networks count that all of these runtimes
    have measured. A row has

        runtime   its name
        median    median latency in ms
        ratio     geometric mean of the latency, relative to the first row's
        fastest   on how many of the networks it is the fastest
        networks  n
        tau       Kendall's τ of its order of networks with the first row's; None for one network
    """
    # 1. The latency in each runtime, of the networks that all of these runtimes have measured.
    latencies: list[dict[str, float]] = []
    for network in networks:
        of_network = {}
        for metric, value in network.values.items():
            runtime = metric.removesuffix(_LATENCY)
            if metric.endswith(_LATENCY) and runtime in _RUNTIME_TITLES:
                of_network[runtime] = value
        latencies.append(of_network)
    runtimes = list(dict.fromkeys(chain.from_iterable(latencies)))
    complete = []
    for of_network in latencies:
        if len(of_network) == len(runtimes):
            complete.append([of_network[runtime] for runtime in runtimes])
    if len(runtimes) < 2 or not complete:
        return []

    # 2. A row per runtime, by the geometric mean of its latencies.
    logs = np.log(complete)  # (n, runtimes)
    order = np.argsort(logs.mean(axis=0), kind="stable")
    first = logs[:, order[0]]  # (n,) of the runtime that is the fastest on average
    fastest = np.bincount(logs.argmin(axis=1), minlength=len(runtimes))  # (runtimes,)
    rows = []
    for index in order.tolist():
        own = logs[:, index]
        tau = float(kendalltau(own, first).statistic) if len(own) > 1 else None
        rows.append(
            {
                "runtime": _RUNTIME_TITLES[runtimes[index]],
                "median": float(np.exp(np.median(own))),
                "ratio": float(np.exp((own - first).mean())),
                "fastest": int(fastest[index]),
                "networks": len(own),
                "tau": tau,
            }
        )
    return rows


def _made(studies: Studies) -> list[dict[str, Any]]:
    """Settings and times of the first search, from its study: sections with titles and rows."""
    study = studies.first.study
    attributes = study.user_attrs

    # 1. Times and states of the trials.
    trials = study.get_trials(deepcopy=False)
    times = []
    for trial in trials:
        stamps = (trial.datetime_start, trial.datetime_complete)
        times += [stamp for stamp in stamps if stamp is not None]
    states = Counter(trial.state.name.lower() for trial in trials)

    # 2. What the search stored, without the fingerprints of networks, and what the user did.
    identity = dict(attributes.get(IDENTITY_KEY, {}))
    identity.pop("networks", None)
    own = {key: value for key, value in attributes.items() if not key.startswith("nas:")}
    prices = {}
    for objective in studies.objectives:
        prices[metric_label(objective.name, unit=objective.unit)] = PRICES[price(objective)]

    # 3. The sections that are not empty.
    sections = {
        "Study": {
            "name": study.study_name,
            "began": f"{min(times):%Y-%m-%d %H:%M}" if times else "",
            "last change": f"{max(times):%Y-%m-%d %H:%M}" if times else "",
            "trials": dict(states),
        },
        "Price of the metrics": prices,
        "Command, machine and versions": identity,
        "Search": attributes.get(SETTINGS_KEY, {}),
        "Where values come from": used_settings(attributes.get(SOURCE_KEY, {})),
        "Attributes of the study": own,
    }
    return [
        {"title": title, "rows": list(_rows(section))}
        for title, section in sections.items()
        if section
    ]


def _rows(value: Any, name: str = "") -> Iterator[list[str]]:
    """Names and values of nested settings, with names such as `training: epochs`."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _rows(inner, f"{name}: {key}" if name else str(key))
    elif value not in (None, "", []):
        yield [name, ", ".join(map(str, value)) if isinstance(value, list) else str(value)]


def _plain(value: Any) -> Any:
    """The value for JSON, with None for non-finite numbers."""
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
