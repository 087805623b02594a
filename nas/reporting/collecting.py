"""The distinct networks that searches evaluated, with their values, for a report."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

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

MAX_BUILT = 200  # networks that are built for their text and costs, those on the front first
_REPEAT = re.compile(r"(.+)_seed\d+")


@dataclass
class Network:
    """An evaluated network; values are in the metrics' own units.

    Attributes:
        search: label of the search that evaluated it; "" if it is only proposed.
        evaluation: its number in that search, from 1.
        values: objectives, then all other known metrics.
        spreads: by metric, low and high value of repeated measurements, and a description of both.
        test: values that must not guide a choice, such as test scores; only for networks on the front.
        predicted: mean and standard deviation of each metric before it was measured.
        violation: the largest constraint violation; at most 0 if all constraints are satisfied.
        on_front: no network of any search here dominates it.
        place: index on the front of the first search, used in its file names.
        text: ONNX text; None if it was not built.
        same_as: index of an earlier network with the same text.
    """

    architecture: Architecture
    notation: str
    search: str = ""
    evaluation: int = 0
    values: dict[str, float] = field(default_factory=dict)
    spreads: dict[str, tuple[float, float, str]] = field(default_factory=dict)
    test: dict[str, float] = field(default_factory=dict)
    predicted: Mapping[str, Sequence[float]] = field(default_factory=dict)
    violation: float = 0.0
    on_front: bool = False
    place: int | None = None
    text: str | None = None
    same_as: int | None = None


def collect(studies: Studies) -> list[Network]:
    """Networks with finite objectives: those on the front, sorted by the first objective, then the others.

    If several searches evaluated a network, the first one's values count.
    """
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
    for i in rest:
        networks[i].test = {}
    networks = [networks[i] for i in [*front[np.lexsort(losses[front].T[::-1])], *rest]]
    by_notation = {network.notation: network for network in networks}
    for place, row in enumerate(studies.first.front):
        by_notation[row["architecture"]].place = place
    if studies.benchmark is not None:
        for network in networks:
            _look_up(network, studies.benchmark)
    if studies.not_built is None:
        build(networks, studies.first.space)
    return networks


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
    expected, spreads, further = result.expected, result.spreads, result.further
    for i, architecture in enumerate(result.evaluated.architectures):
        values = result.evaluated.values[i]
        if np.isfinite(values).all():
            bounded = {name: float(column[i]) for name, column in result.bounded.items()}
            yield Network(
                architecture,
                result.space.format(architecture),
                search=label,
                evaluation=i + 1,
                values=dict(zip(names, values.tolist(), strict=True)) | bounded,
                spreads=spreads.get(architecture, {}),
                test=further.get(architecture, {}),
                predicted=expected.get(architecture, {}),
                violation=float(result.violation[i]),
            )


def _look_up(network: Network, table: Benchmark) -> None:
    """Add a network's values in the table; columns METRIC_seed0, METRIC_seed1, … give the spread of METRIC."""
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
