"""Features of a network's graph: how often each kind of operator occurs, how it is connected, and how
many of a kind the longest and the shortest path pass.

After GRAF (Kadlecová et al., "Surprisingly strong performance prediction with neural graph features",
arXiv 2404.16551), which describes a cell by the counts of its operators, by degrees, and by the
lengths of its paths over subsets of its operators. Here the graph is the whole network, where no path
has operators of one kind alone. So a path is as long as the number of its operators in the subset;
subsets are one kind, and all. Costs are added, since the paper adds proxies.

Sizes in comments: n operators, s subsets.
"""

from __future__ import annotations

from functools import lru_cache
from math import log2, prod

import numpy as np

from predictors.features import kind_attributes, reading
from search_spaces.ir.graph import Graph, Node
from search_spaces.ir.text import expand
from search_spaces.ir.text.program import total_cost

MAX_KINDS = 64  # kinds of operators that are subsets, the first ones that occur
COSTS = ("log2 params", "log2 flops", "log2 elements")
MEASURES = ("count", "longest", "shortest", "in", "out")  # of a subset
_CACHED_TEXTS = 16384


@lru_cache(maxsize=_CACHED_TEXTS)
def graph_features(text: str) -> dict[str, float]:
    """Features of a network by name: a measure and a subset, or a cost.

    Raises:
        InputError: if it is not the text of an architecture.
    """
    program, at_sites, _ = reading(text)
    graph = expand(program)
    kinds = [_kind(node) for node in graph.nodes]
    count = len(kinds)

    # 1. Which operators are in which subset; the last one has all.                         (n, s)
    names = [*dict.fromkeys(kinds)][:MAX_KINDS]
    member = np.zeros((count, len(names) + 1))
    for subset, name in enumerate(names):
        member[:, subset] = [kind == name for kind in kinds]
    member[:, -1] = 1

    # 2. Longest and shortest paths that end with each operator, from those that it reads.  (n, s)
    longest, shortest = member.copy(), member.copy()
    degree_in = np.zeros(count)
    degree_out = np.zeros(count)
    for operator, sources in enumerate(_reads(graph)):
        if sources:
            longest[operator] += longest[sources].max(0)
            shortest[operator] += shortest[sources].min(0)
        degree_in[operator] = len(sources)
        np.add.at(degree_out, sources, 1)

    # 3. Paths of the network end with the operators that nobody reads.
    is_last = degree_out == 0
    size = member.sum(0)  # (s,)
    at_least_one = np.maximum(size, 1)
    of_subsets = {
        "count": size,
        "longest": longest[is_last].max(0, initial=0),
        "shortest": shortest[is_last].min(0, initial=count),
        "in": degree_in @ member / at_least_one,  # means
        "out": degree_out @ member / at_least_one,
    }

    # 4. A feature per measure and subset, and the costs.
    features = {}
    for measure in MEASURES:
        for name, value in zip([*names, "all"], of_subsets[measure], strict=True):
            features[f"{measure} {name}"] = float(value)
    cost = total_cost(at_sites)
    amounts = (cost.params, cost.flops, _elements(graph))
    for name, amount in zip(COSTS, amounts, strict=True):
        features[name] = log2(1 + amount)
    return features


def _kind(node: Node) -> str:
    """An operator with its attributes, without widths."""
    return " ".join([node.op, *kind_attributes(node.attrs)])


def _reads(graph: Graph) -> list[list[int]]:
    """Per operator, those that make what it reads."""
    maker: dict[int, int] = {}
    reads = []
    for operator, node in enumerate(graph.nodes):
        reads.append([maker[value] for value in node.inputs if value in maker])
        maker.update(dict.fromkeys(node.outputs, operator))
    return reads


def _elements(graph: Graph) -> int:
    """Numbers in the outputs of all operators, for one input."""
    elements = 0
    for node in graph.nodes:
        _, *sizes = graph.shapes[node.outputs[0]]
        elements += prod([size for size in sizes if isinstance(size, int)])
    return elements


def is_graph_feature(name: str) -> bool:
    """True if it is the name of one of these features."""
    return name in COSTS or name.partition(" ")[0] in MEASURES
