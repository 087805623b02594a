"""Features of a network's graph: how often each kind of operator occurs, how it is connected, and how
many of a kind the longest and the shortest path pass.

After GRAF (Kadlecová et al., "Surprisingly strong performance prediction with neural graph features",
arXiv 2404.16551), which describes a cell by the counts of its operators, by degrees, and by the
lengths of its paths over subsets of its operators. Here the graph is the whole unrolled network, where
no path has operators of one kind alone. So a path is as long as the number of its operators in the
subset; subsets are one kind, and all. Costs are added, since the paper adds proxies.

Sizes in comments: n operators, s subsets.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from predictors.rlm.tokens import Tokens, tokenize
from search_spaces import read

MAX_KINDS = 64  # kinds of operators that are subsets, the first ones that occur
COSTS = ("params", "macs", "elements", "tokens", "depth")  # log2, in the order of `Tokens.totals`
MEASURES = ("count", "longest", "shortest", "in", "out")  # of a subset
_CACHED_TEXTS = 16384


@lru_cache(maxsize=_CACHED_TEXTS)
def graph_features(text: str) -> dict[str, float]:
    """Features of a network by name: a measure and a subset, or a cost.

    Raises:
        InputError: if it is not the text of an architecture.
    """
    if not text.startswith("<ir_version"):
        read(text)  # raises: tokens could be words of any text
    tokens = tokenize(text)
    kinds, kind_of_token = _kinds(tokens)
    count = len(kind_of_token)

    # 1. Which operators are in which subset; the last one has all.                         (n, s)
    member = np.zeros((count, len(kinds) + 1))
    member[np.arange(count), kind_of_token] = 1
    member[:, -1] = 1
    member = np.delete(member, np.s_[MAX_KINDS:-1], 1)
    names = [*kinds[:MAX_KINDS], "all"]

    # 2. Longest and shortest paths that end with each operator, from those that it reads.  (n, s)
    longest, shortest = member.copy(), member.copy()
    reads: list[list[int]] = [[] for _ in range(count)]
    for source, target in tokens.edges.T.tolist():
        reads[target].append(source)
    for operator, sources in enumerate(reads):
        if sources:
            longest[operator] += longest[sources].max(0)
            shortest[operator] += shortest[sources].min(0)

    # 3. Paths of the network end with the operators that nobody reads.
    degree_in = np.bincount(tokens.edges[1], minlength=count)  # (n,)
    degree_out = np.bincount(tokens.edges[0], minlength=count)
    is_last = degree_out == 0
    size = member.sum(0)  # (s,)
    of_subsets = {
        "count": size,
        "longest": longest[is_last].max(0),
        "shortest": shortest[is_last].min(0),
        "in": degree_in @ member / np.maximum(size, 1),  # means
        "out": degree_out @ member / np.maximum(size, 1),
    }
    features = {
        f"{measure} {name}": float(value)
        for measure in MEASURES
        for name, value in zip(names, of_subsets[measure], strict=True)
    }
    return features | dict(zip(COSTS, tokens.totals.tolist(), strict=True))


def _kinds(tokens: Tokens) -> tuple[list[str], np.ndarray]:
    """Names of the kinds of operators, and the kind (n,) of each operator: its words."""
    words = [tuple(part.tolist()) for part in np.split(tokens.words, tokens.starts[1:])]
    numbers = {kind: number for number, kind in enumerate(dict.fromkeys(words))}
    return [str(kind) for kind in numbers], np.array([numbers[kind] for kind in words])


def graph_matrix(texts: Sequence[str], names: Sequence[str]) -> np.ndarray:
    """Matrix (texts, features) of named features; 0 where a network lacks one."""
    rows = [[graph_features(text).get(name, 0.0) for name in names] for text in texts]
    return np.array(rows).reshape(len(texts), len(names))


def select_graph_features(texts: Sequence[str]) -> list[str]:
    """Names of the features that differ between texts."""
    names = sorted(set().union(*map(graph_features, texts)))
    differs = np.ptp(graph_matrix(texts, names), 0) > 0
    return [name for name, is_used in zip(names, differs, strict=True) if is_used]


def is_graph_feature(name: str) -> bool:
    """True if it is the name of one of these features."""
    return name in COSTS or name.partition(" ")[0] in MEASURES
