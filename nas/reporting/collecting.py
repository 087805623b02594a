"""Collects the distinct networks that searches evaluated, with their values, for a report."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from nas.comparison.folders import plain_name
from nas.searching.networks import network_name
from nas.searching.objectives import to_losses
from nas.searching.pareto import non_dominated
from nas.searching.result import SETTINGS_KEY
from search_spaces.common.errors import InputError
from search_spaces.graph.costs import graph_flops, graph_params
from search_spaces.text import compact, write

if TYPE_CHECKING:
    from nas.benchmarks import Benchmark
    from nas.comparison.studies import Studies
    from nas.searching.result import SearchResult
    from search_spaces import Architecture, SearchSpace

MAX_BUILT = 200  # networks that are built for their text and costs, the front first
_REPEAT = re.compile(r"(.+)_seed\d+")


@dataclass
class Network:
    """An evaluated network; values are in the metrics' own units.

    Attributes:
        architecture: the network.
        notation: the same in the space's notation.
        search: label of the search that evaluated it; "" if it is only proposed.
        evaluation: its number among the distinct networks of that search, from 1; 0 if it is only proposed.
        trial: number of its trial in the study and its log.
        plan: what the search would do with a proposed network; "" for an ordinary evaluation.
        values: objectives, then all other known metrics.
        spreads: for each metric, low and high value of repeated measurements, and their description.
        test: values that must not guide a choice, such as test scores; only for networks on the front.
        predicted: mean and standard deviation of each metric before it was measured.
        violation: largest constraint violation, relative to its bound; at most 0 if all are satisfied.
        on_front: True if no network of any of the searches dominates it.
        place: index on the front of the first search.
        file: name of its files in the folder `front`, without extension; None if it has none there.
        text: ONNX text; None if it was not built.
        same_as: index of an earlier network with the same text.
    """

    architecture: Architecture
    notation: str
    search: str = ""
    evaluation: int = 0
    trial: int | None = None
    plan: str = ""
    values: dict[str, float] = field(default_factory=dict)
    spreads: dict[str, tuple[float, float, str]] = field(default_factory=dict)
    test: dict[str, float] = field(default_factory=dict)
    predicted: Mapping[str, Sequence[float]] = field(default_factory=dict)
    violation: float = 0.0
    on_front: bool = False
    place: int | None = None
    file: str | None = None
    text: str | None = None
    same_as: int | None = None


def collect(studies: Studies) -> list[Network]:
    """Networks with finite objectives: those on the front, sorted by the first objective, then the others.

    If several searches evaluated a network, the first one's values count.
    """
    networks = distinct(studies)
    if studies.benchmark is not None:
        for network in networks:
            _look_up(network, studies.benchmark)
    if studies.not_built is None:
        build(networks, studies.first.space)
    return networks


def distinct(studies: Studies) -> list[Network]:
    """The networks of `collect` in its order, with the values of the searches only."""
    found: dict[Architecture, Network] = {}
    for label, result in labelled(studies):
        for network in _evaluated(label, result):
            found.setdefault(network.architecture, network)
    networks = list(found.values())
    if not networks:
        return []
    values = np.array([[network.values[o.name] for o in studies.objectives] for network in networks])
    kept = np.array([network.violation <= 0 for network in networks])
    losses = to_losses(values, studies.objectives)
    mask = non_dominated(np.where(kept[:, None], losses, np.nan))
    front, rest = np.flatnonzero(mask), np.flatnonzero(~mask)
    for i in front:
        networks[i].on_front = True
        networks[i].file = plain_name(f"{networks[i].search}-trial-{networks[i].trial}")
    for i in rest:
        networks[i].test = {}
    by_notation = {network.notation: network for network in networks}
    own = studies.first.front
    for place, row in enumerate(own):
        network = by_notation[row["architecture"]]
        network.place, network.file = place, network_name(place, len(own))
    return [networks[i] for i in [*front[np.lexsort(losses[front].T[::-1])], *rest]]


def build(networks: list[Network], space: SearchSpace) -> None:
    """Add text, params and FLOPs to the first `MAX_BUILT` networks."""
    known: dict[str, int] = {}
    for index, network in enumerate(networks[:MAX_BUILT]):
        try:
            graph = space.graph(network.architecture)
        except InputError:  # the space's code has changed since
            continue
        network.text = write(compact(graph))
        network.values.setdefault("params", graph_params(graph))
        network.values.setdefault("flops", graph_flops(graph))
        first = known.setdefault(network.text, index)
        network.same_as = first if first < index else None


def labelled(studies: Studies) -> Iterator[tuple[str, SearchResult]]:
    """Every search with a label that is unique among the searches."""
    for sampler, results in studies.results.items():
        for number, result in enumerate(results):
            yield sampler if len(results) == 1 else f"{sampler}, {_run(result, number)}", result


def _run(result: SearchResult, number: int) -> str:
    seed = result.study.user_attrs.get(SETTINGS_KEY, {}).get("seed")
    return f"run {number + 1}" if seed is None else f"seed {seed}"


def _evaluated(label: str, result: SearchResult) -> Iterator[Network]:
    names = [o.name for o in result.objectives]
    expected, spreads, further, trials = result.expected, result.spreads, result.further, result.trial_numbers
    for i, architecture in enumerate(result.evaluated.architectures):
        values = result.evaluated.values[i]
        if np.isfinite(values).all():
            bounded = {name: float(column[i]) for name, column in result.bounded.items()}
            more = further.get(architecture, {})
            test = {name: value for name, value in more.items() if is_test_score(name)}
            own = {name: value for name, value in more.items() if name not in test}
            yield Network(
                architecture,
                result.space.format(architecture),
                search=label,
                evaluation=i + 1,
                trial=trials[architecture],
                values=dict(zip(names, values.tolist(), strict=True)) | bounded | own,
                spreads=spreads.get(architecture, {}),
                test=test,
                predicted=expected.get(architecture, {}),
                violation=float(result.violation[i]),
            )


def is_test_score(metric: str) -> bool:
    """True if the metric's name says that it is a test score, which must not guide a choice."""
    return "test" in re.split(r"[^a-z]+", metric.lower())


def _look_up(network: Network, table: Benchmark) -> None:
    """Add a network's values from the table. Columns METRIC_seed0, METRIC_seed1, … give the spread of METRIC."""
    repeats: dict[str, list[float]] = {}
    for name, value in table.query(network.architecture).items():
        if match := _REPEAT.fullmatch(name):
            repeats.setdefault(match[1], []).append(value)
        else:
            network.values.setdefault(name, value)
    for name, some in repeats.items():
        if len(some) > 1 and name in network.values:
            value, std = network.values[name], float(np.std(some, ddof=1))
            network.spreads[name] = (value - std, value + std, f"± standard deviation over {len(some)} seeds")
