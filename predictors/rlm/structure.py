"""What an architecture is made of, as numbers for an encoder to learn: it shall not forget operators and paths.

Trained on sizes and proxies alone, an encoder keeps what tells these and loses which operators a network has, which its
latencies depend on. Paths of operators through a cell describe it well (arXiv 1910.11858).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
from sklearn.feature_extraction import DictVectorizer

from search_spaces import read
from search_spaces.graph.ir import Graph, Node
from search_spaces.text.program import expand

COMPONENTS = 40
LONGEST = 4
LEAST = 0.002  # of the texts must have a path

Path = tuple[str, ...]


def structure(texts: Sequence[str]) -> np.ndarray:
    """(n, COMPONENTS): principal components of the logarithms of n ONNX texts' counts of paths, the largest first.

    They are those of the different texts.
    """
    number = {text: i for i, text in enumerate(dict.fromkeys(texts))}
    found = [{" > ".join(path): n for path, n in operator_paths(expand(read(text))).items()} for text in number]
    counts = DictVectorizer(dtype=np.float32).fit_transform(found)
    frequent = np.asarray((counts > 0).mean(0)).ravel() >= LEAST
    matrix = np.log1p(counts[:, frequent].toarray())
    matrix -= matrix.mean(0)
    _, directions = np.linalg.eigh(matrix.T @ matrix)
    components = matrix @ directions[:, ::-1][:, :COMPONENTS]
    padded = np.pad(components, ((0, 0), (0, COMPONENTS - components.shape[1])))
    return padded[[number[text] for text in texts]]


def operator_paths(graph: Graph) -> Counter[Path]:
    """How many paths there are through the network's cells, by the convolutions and poolings on them.

    A cell ends where a single value is all that the rest is computed from, and at every concatenation. Of longer paths
    the last `LONGEST` operators count.
    """
    last_use = {value: i for i, node in enumerate(graph.nodes) for value in node.inputs}
    paths: dict[int, Counter[Path]] = {value: Counter({(): 1}) for value in graph.inputs}
    alive = set(graph.inputs)
    total: Counter[Path] = Counter()
    for i, node in enumerate(graph.nodes):
        here = _through(node, (paths[value] for value in node.inputs))
        alive = {value for value in alive if last_use.get(value, 0) > i} | set(node.outputs)
        if len(alive) == 1 or node.op == "Concat":
            total.update(here)
            here = Counter({(): 1})
        paths |= dict.fromkeys(node.outputs, here)
    return total


def _through(node: Node, before: Iterable[Counter[Path]]) -> Counter[Path]:
    """The paths that end with the node's output."""
    merged: Counter[Path] = Counter()
    if node.op == "Zero":
        return merged
    for paths in before:
        merged.update(paths)
    attrs = dict(node.attrs)
    size = attrs.get("kernel", attrs.get("kernel_shape"))
    if size is None:
        return merged
    kind = node.op if node.op.endswith("Pool") else "Depthwise" if "depthwise" in attrs else "Conv"
    longer: Counter[Path] = Counter()
    for path, n in merged.items():
        longer[(*path, f"{kind} {size}")[-LONGEST:]] += n
    return longer
