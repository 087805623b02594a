"""Different computation, different text; other names and another order, the same text: in every
space.

What a network computes is compared by a hash of its own here, which knows nothing of blocks,
functions and order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable
from functools import cache

import numpy as np
import onnx
import pytest

from search_spaces import Architecture, SearchSpace, get_space, list_spaces, to_text
from search_spaces.ir.graph import Graph
from search_spaces.ir.ops import COMMUTATIVE

WALKS, STEPS = 4, 6


@cache
def _space(name: str) -> SearchSpace:
    return get_space(name)


def _walk(space: SearchSpace, rng: np.random.Generator) -> list[Architecture]:
    """A random architecture and a chain of mutations."""
    archs = [space.sample(rng)]
    for _ in range(STEPS):
        archs.append(space.mutate(archs[-1], rng))
    return archs


def _computation(graph: Graph) -> Hashable:
    """Equal for isomorphic graphs: every node's label, and all before and after it, whatever the
    names and order.

    Two sweeps (from the inputs, then from the outputs) and a third over both see a node's whole
    surroundings; nodes are a multiset, since two of one kind own weights of their own.
    """
    before: dict[int, Hashable] = {
        v: ("input", i, graph.shapes[v]) for i, v in enumerate(graph.inputs)
    }
    for _ in range(2):
        for node in graph.nodes:
            sources = [before[v] for v in node.inputs]
            ordered = sorted(sources, key=hash) if node.op in COMMUTATIVE else sources
            own = (node.op, node.attrs, before.get(node.outputs[0]))
            before[node.outputs[0]] = hash((own, *ordered))
        after: defaultdict[int, list[Hashable]] = defaultdict(list)
        after.update({v: [("output", i)] for i, v in enumerate(graph.outputs)})
        for node in reversed(graph.nodes):
            here = hash((before[node.outputs[0]], *sorted(map(hash, after[node.outputs[0]]))))
            before[node.outputs[0]] = here
            for position, v in enumerate(node.inputs):
                after[v].append((here, None if node.op in COMMUTATIVE else position))
    return tuple(sorted(map(hash, before.values())))


@pytest.mark.slow
@pytest.mark.parametrize("name", list_spaces())
def test_texts_are_one_to_one_with_computations(name: str) -> None:
    space, rng = _space(name), np.random.default_rng(0)
    texts: dict[Hashable, str] = {}
    computations: dict[str, Hashable] = {}
    for arch in [arch for _ in range(WALKS) for arch in _walk(space, rng)]:
        text, computation = space.to_text(arch), _computation(space.graph(arch))
        assert computations.setdefault(text, computation) == computation, (
            "one text for two computations"
        )
        assert texts.setdefault(computation, text) == text, "two texts for one computation"
    assert len(texts) > 1


def _renamed_and_reordered(model: onnx.ModelProto, rng: np.random.Generator) -> onnx.ModelProto:
    """Values and nodes with random names, in random scopes, nodes in another topological order,
    summands swapped.
    """
    fresh = cache(lambda old: f"n{rng.integers(2**60)}" if old else "")
    graph = model.graph
    for thing in (*graph.input, *graph.output, *graph.initializer):
        thing.name = fresh(thing.name)
    known = {thing.name for thing in (*graph.input, *graph.initializer)} | {""}
    waiting = list(graph.node)
    del graph.node[:]
    for node in waiting:
        node.name = "/".join(
            [*(f"scope{rng.integers(3)}" for _ in range(rng.integers(4))), fresh(node.name)]
        )
        node.output[:] = [fresh(v) for v in node.output]
        node.input[:] = [fresh(v) for v in node.input]
        if node.op_type in COMMUTATIVE:
            node.input[:] = rng.permutation(list(node.input)).tolist()
    rng.shuffle(waiting)
    while waiting:
        node = next(node for node in waiting if known.issuperset(node.input))
        waiting.remove(node)
        graph.node.append(node)
        known.update(node.output)
    return model


@pytest.mark.slow
@pytest.mark.parametrize("name", list_spaces())
def test_names_and_order_do_not_change_the_text(name: str) -> None:
    space, rng = _space(name), np.random.default_rng(0)
    for _ in range(3):
        arch = space.sample(rng)
        assert to_text(_renamed_and_reordered(space.to_onnx(arch), rng)) == space.to_text(arch)


def test_the_hash_distinguishes_a_shared_layer_from_two() -> None:
    from search_spaces import Network

    def network(shared: bool, swapped: bool = False) -> Graph:
        net = Network((2, 4, 4), 2)
        a = net.conv(net.input)
        b = a if shared else net.conv(net.input)
        joined = net.concat(net.relu(a), b) if not swapped else net.concat(b, net.relu(a))
        return net.graph(net.classifier(joined))

    hashes = {
        _computation(network(True)),
        _computation(network(False)),
        _computation(network(True, swapped=True)),
    }
    assert len(hashes) == 3
    assert _computation(network(True)) in hashes
