"""The networks of a report: those that searches evaluated, with their values, and those that they
would evaluate next.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from nas.benchmarks.csv_file import ORIGIN_COLUMNS
from nas.search.evaluators import TableEvaluator
from nas.search.multi_fidelity import BASELINES
from nas.search.policy_planner import is_by_cost, next_jobs
from nas.search.rows import among_rows
from nas.search.sampler import PredictorSampler
from nas.search.samplers import create_sampler
from nas.search.study.files import network_name
from nas.search.study.schema import SETTINGS_KEY
from nas.search.trainings import NEW
from predictors.registry import is_predictor
from search_spaces.common.errors import InputError
from search_spaces.ir.costs import graph_flops, graph_params
from search_spaces.ir.text import compact, write

if TYPE_CHECKING:
    from nas.benchmarks import Benchmark
    from nas.comparison.studies import Studies
    from nas.search.study.networks import DistinctNetwork
    from nas.search.study.result import SearchResult
    from search_spaces import Architecture, SearchSpace

MAX_BUILT = 200  # networks that are built for their text, the front first
NEXT_TRAININGS = 5  # proposals of a search by cost
_REPEAT = re.compile(r"(.+)_seed\d+")


@dataclass
class Network:
    """A network of a report; values are in the metrics' own units.

    Attributes:
        architecture: the network.
        notation: the same in the space's notation.
        search: label of the search that evaluated it; "" if it is only proposed.
        evaluation: its number among the architectures of that search, from 1; 0 if it is only
            proposed.
        trial: number of its trial in the study and its log.
        origin: values of `nas.search.study.networks.ORIGIN_COLUMNS`; empty if it is only proposed.
        others: label of the search and number of the trial of its other evaluations; the values are
            means over all.
        plan: what the search would do with a proposed network; "" for an ordinary evaluation.
        values: objectives, then all other known metrics.
        spreads: for each metric, low and high value of repeated measurements, and their
            description.
        test: values that must not guide a choice, such as test scores; only for networks on the
            front.
        predicted: mean and standard deviation of each metric before it was measured.
        expected: mean and standard deviation of trained metrics that a predictor expects, having
            learned all other networks; only on the front.
        confirmed: by metric value, low and high value of later measurements, and what these are.
        violation: largest constraint violation, relative to its bound; at most 0 if all are
            satisfied.
        place: index on the front of all searches; None if it is not on the front.
        file: name of its files in the folder `front`, without extension; None if it has none there.
        text: ONNX text; None if it was not built.
        output_names: names of its outputs; empty if they have none, or it was not built.
    """

    architecture: Architecture
    notation: str
    search: str = ""
    evaluation: int = 0
    trial: int | None = None
    origin: Mapping[str, Any] = field(default_factory=dict)
    others: Sequence[tuple[str, int]] = ()
    plan: str = ""
    values: dict[str, float] = field(default_factory=dict)
    spreads: dict[str, tuple[float, float, str]] = field(default_factory=dict)
    test: dict[str, float] = field(default_factory=dict)
    predicted: Mapping[str, Sequence[float]] = field(default_factory=dict)
    expected: Mapping[str, Sequence[float]] = field(default_factory=dict)
    confirmed: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    violation: float = 0.0
    place: int | None = None
    file: str | None = None
    text: str | None = None
    output_names: Sequence[str] = ()


def collect(studies: Studies) -> list[Network]:
    """The networks of `studies.distinct` in their order."""
    labels = [label for label, _ in labelled(studies)]
    front = len(studies.front_networks)
    networks = [
        _network(distinct, labels, place, front) for place, distinct in enumerate(studies.distinct)
    ]
    if studies.benchmark is not None:
        for network, distinct in zip(networks, studies.distinct, strict=True):
            _add_repeats(network, distinct.architectures, studies.benchmark)
    if studies.not_built is None:
        build(networks, studies.first.space)
    return networks


def _network(network: DistinctNetwork, labels: Sequence[str], place: int, front: int) -> Network:
    """A network of the report.

    Args:
        network: the evaluated network.
        labels: of the searches.
        place: its place among all networks, of which the front comes first.
        front: number of networks on the front.
    """
    first = network.representative
    others = [evaluation for evaluation in network.evaluations if evaluation is not first]
    predictions = [evaluation.predicted for evaluation in network.evaluations]
    return Network(
        network.architecture,
        network.notation,
        search=labels[first.search],
        evaluation=first.row + 1,
        trial=first.trial,
        origin=dict(zip(ORIGIN_COLUMNS, network.origin.values(), strict=True)),
        others=[(labels[other.search], other.trial) for other in others],
        values=dict(network.values),
        spreads=dict(network.spreads),
        test=dict(network.test) if network.on_front else {},
        predicted=next((predicted for predicted in predictions if predicted), {}),
        confirmed=network.confirmed if network.on_front else {},
        violation=network.violation,
        place=place if network.on_front else None,
        file=network_name(place, front) if network.on_front else None,
    )


def build(networks: Sequence[Network], space: SearchSpace) -> None:
    """Add text, params and FLOPs to the first `MAX_BUILT` networks."""
    for network in networks[:MAX_BUILT]:
        try:
            graph = space.graph(network.architecture)
        except InputError:  # the space's code has changed since
            continue
        network.text = write(compact(graph))
        network.output_names = graph.output_names
        network.values.setdefault("params", graph_params(graph))
        network.values.setdefault("flops", graph_flops(graph))


def labelled(studies: Studies) -> Iterator[tuple[str, SearchResult]]:
    """Every search with a label that is unique among the searches."""
    for sampler, results in studies.results.items():
        for number, result in enumerate(results):
            yield sampler if len(results) == 1 else f"{sampler}, {_run(result, number)}", result


def _run(result: SearchResult, number: int) -> str:
    """What distinguishes a search from others with its sampler: the seed, or else its number."""
    seed = result.study.user_attrs.get(SETTINGS_KEY, {}).get("seed")
    return f"run {number + 1}" if seed is None else f"seed {seed}"


def _add_repeats(network: Network, architectures: Sequence[Architecture], table: Benchmark) -> None:
    """Replace a table's columns METRIC_seed0, METRIC_seed1, … by the spread of METRIC."""
    # 1. The finite values of all seeds by metric.
    by_metric: dict[str, list[float]] = {}
    for column in table.metrics:
        if not _REPEAT.fullmatch(column):
            continue
        network.values.pop(column, None)
        metric = column.rpartition("_seed")[0]
        values = [table.query(architecture, [column])[column] for architecture in architectures]
        finite = [value for value in values if np.isfinite(value)]
        by_metric.setdefault(metric, []).extend(finite)

    # 2. Their standard deviation around the network's value.
    for metric, values in by_metric.items():
        if len(values) > 1 and metric in network.values:
            value = network.values[metric]
            std = float(np.std(values, ddof=1))
            meaning = f"± standard deviation over {len(values)} seeds"
            network.spreads[metric] = (value - std, value + std, meaning)


# --- proposals


def propose(studies: Studies) -> list[Network]:
    """Networks that the first search would evaluate next, best first.

    Returns:
        The next batch of a sampler with a predictor, or the next trainings of a search by cost.
        Empty for other samplers, for predictors in a file, which a report does not run, and if
        networks cannot be built.
    """
    search = studies.first
    sampler = search.study.user_attrs.get(SETTINGS_KEY, {}).get("sampler", "")
    by_cost = is_by_cost(search)
    guided = is_predictor(sampler)
    if studies.not_built or not (guided or (by_cost and sampler in BASELINES)):
        return []
    networks = _next_trainings(studies) if by_cost else _next_evaluations(studies)
    build(networks, search.space)
    return networks


def _next_evaluations(studies: Studies) -> list[Network]:
    search = studies.first
    settings = search.study.user_attrs[SETTINGS_KEY]
    sampler = create_sampler(
        settings["sampler"], _searched_space(studies), search.objectives, settings["seed"],
        constraints=settings["constraints"], **settings["sampler_options"],
    )  # fmt: skip
    assert isinstance(sampler, PredictorSampler)
    return [
        Network(architecture, search.space.format(architecture), predicted=predicted)
        for architecture, predicted in sampler.propose(search.study).items()
    ]


def _searched_space(studies: Studies) -> SearchSpace:
    """The space, limited to the rows of the searched table if that does not cover it."""
    search = studies.first
    if studies.benchmark is None:
        return search.space
    metrics = [*(objective.name for objective in search.objectives), *search.bounded]
    return among_rows(search.space, TableEvaluator(studies.benchmark, metrics).rows)


def _next_trainings(studies: Studies) -> list[Network]:
    space = studies.first.space
    networks = []
    for job in next_jobs(studies.first, _searched_space(studies), NEXT_TRAININGS):
        begins = "new" if job.begun == NEW else f"paused at {job.begun}"
        network = Network(
            job.architecture,
            space.format(job.architecture),
            predicted=job.predicted,
            plan=f"to epoch {job.until}, {begins}",
        )
        networks.append(network)
    return networks
