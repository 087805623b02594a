"""Control flow whose course is known: branches are chosen, loops and scans are written out step by
step.

The body of a loop becomes a function of the text that is called once per step. Weights inside a
body are read in every step and count once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import onnx
from onnx import helper

from search_spaces.common.errors import InputError
from search_spaces.ir.onnx.folding import Known, read_tensor
from search_spaces.ir.onnx.loading import MAX_NODES
from search_spaces.ir.onnx.reader import Reader, node_attributes

CONTROL_FLOW = frozenset({"If", "Loop", "Scan"})


def read_if(reader: Reader, node: onnx.NodeProto) -> list[Known] | None:
    """Replace an `If` with a known condition by the nodes of its branch; None if it is not
    known.
    """
    condition = _static(reader, node.input[0])
    if condition is None:
        return None
    branch = node_attributes(node)["then_branch" if condition.all() else "else_branch"].g
    body = _Body(reader, branch, _prefix(reader, node))
    _alias(reader, body.run([]), node.output)
    return []


def read_loop(reader: Reader, node: onnx.NodeProto) -> list[Known] | None:
    """Write out a `Loop` whose number of steps is known; None if it depends on the data."""
    most, condition = (_static(reader, name) for name in (*node.input, "", "")[:2])
    if (most is None and node.input[0]) or (
        condition is None and len(node.input) > 1 and node.input[1]
    ):
        return None
    steps = MAX_NODES if most is None else int(most.item())
    body = _Body(reader, node_attributes(node)["body"].g, _prefix(reader, node))
    states = list(node.input[2:])
    stacked: list[list[str]] = [[] for _ in node.output[len(states) :]]
    goes_on = condition is None or bool(condition.all())
    for step in range(steps):
        if not goes_on:
            break
        names = [f"{body.prefix}{step}/{name}" for name in ("step", "goes_on")]
        _read(
            reader,
            [_constant(names[0], np.array(step, np.int64)), _constant(names[1], np.array(True))],
        )
        ends, *results = body.run([*names, *states])
        after = _static(reader, ends)
        if after is None:
            raise InputError("the number of steps depends on the data: no text can show it")
        goes_on, states = bool(after.all()), results[: len(states)]
        for parts, name in zip(stacked, results[len(states) :], strict=True):
            parts.append(name)
    _alias(reader, states, node.output[: len(states)])
    for name, parts in zip(node.output[len(states) :], stacked, strict=True):
        _stack(reader, parts, name, axis=0, used=name in reader.used)
    return []


def read_scan(reader: Reader, node: onnx.NodeProto) -> list[Known] | None:
    """Write out a `Scan` over a known number of elements.

    Raises:
        InputError: if the number of steps is open.
    """
    attributes = node_attributes(node)
    count = attributes["num_scan_inputs"].i
    states, sequences = (
        list(node.input[: len(node.input) - count]),
        node.input[len(node.input) - count :],
    )
    outputs = len(node.output) - len(states)
    axes, reverse = (
        _integers(attributes, f"scan_input_{name}", count) for name in ("axes", "directions")
    )
    out_axes, out_reverse = (
        _integers(attributes, f"scan_output_{name}", outputs) for name in ("axes", "directions")
    )
    steps = reader.shape(sequences[0])[axes[0]]
    if isinstance(steps, str):
        raise InputError("the number of steps is open")
    body = _Body(reader, attributes["body"].g, _prefix(reader, node))
    stacked: list[list[str]] = [[] for _ in range(outputs)]
    for step in range(steps):
        elements = []
        for i, name in enumerate(sequences):
            at = steps - 1 - step if reverse[i] else step
            index, element = f"{body.prefix}{step}/at{i}", f"{body.prefix}{step}/element{i}"
            taken = helper.make_node("Gather", [name, index], [element], axis=axes[i])
            _read(reader, [_constant(index, np.array(at, np.int64)), taken])
            elements.append(element)
        results = body.run([*states, *elements])
        states = results[: len(states)]
        for parts, name in zip(stacked, results[len(states) :], strict=True):
            parts.append(name)
    _alias(reader, states, node.output[: len(states)])
    for i, name in enumerate(node.output[len(states) :]):
        parts = stacked[i][::-1] if out_reverse[i] else stacked[i]
        _stack(reader, parts, name, out_axes[i], used=name in reader.used)
    return []


class _Body:
    """A body that is written out once per call of `run`, with names of its own for every step.

    Args:
        reader: the reader that gets its nodes.
        graph: the body.
        prefix: start of its names.
    """

    def __init__(self, reader: Reader, graph: onnx.GraphProto, prefix: str) -> None:
        self.reader, self.graph, self.prefix, self.steps = reader, graph, prefix, 0
        # What does not change from step to step is stored once: initializers and constants.
        self.fixed = {tensor.name: f"{prefix}{tensor.name}" for tensor in graph.initializer}
        for tensor in graph.initializer:
            known = read_tensor(tensor, learned=True)
            reader.known[self.fixed[tensor.name]] = reader.initializers[self.fixed[tensor.name]] = (
                known
            )
        constants = [node for node in graph.node if node.op_type == "Constant"]
        self.fixed |= {node.output[0]: f"{prefix}{node.output[0]}" for node in constants}
        _read(reader, _renamed(constants, self.fixed))
        self.nodes = [node for node in graph.node if node.op_type != "Constant"]

    def run(self, inputs: Iterable[str]) -> list[str]:
        """Read the nodes of one step; return the names of its outputs."""
        step = f"{self.prefix}{self.steps}/"
        self.steps += 1
        names = dict(self.fixed)
        names |= {info.name: name for info, name in zip(self.graph.input, inputs, strict=True)}
        names |= {name: f"{step}{name}" for node in self.nodes for name in node.output if name}
        outputs = [names.get(info.name, info.name) for info in self.graph.output]
        self.reader.used.update(outputs)
        _read(self.reader, _renamed(self.nodes, names))
        return outputs


def _renamed(nodes: Iterable[onnx.NodeProto], names: Mapping[str, str]) -> Iterator[onnx.NodeProto]:
    """Copies of nodes with other names, also where their subgraphs read names from outside."""
    for node in nodes:
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        for field in (copy.input, copy.output):
            field[:] = [names.get(name, name) for name in field]
        for attribute in copy.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                _rename_outside(attribute.g, names)
        yield copy


def _rename_outside(graph: onnx.GraphProto, names: Mapping[str, str]) -> None:
    """Rename what a subgraph reads from outside, in place; its own names stay."""
    own = {info.name for info in graph.input} | {tensor.name for tensor in graph.initializer}
    own |= {name for node in graph.node for name in node.output}
    outside = {name: new for name, new in names.items() if name not in own}
    nodes = list(_renamed(graph.node, outside))
    del graph.node[:]
    graph.node.extend(nodes)
    for info in graph.output:
        info.name = outside.get(info.name, info.name)


def _read(reader: Reader, nodes: Iterable[onnx.NodeProto]) -> None:
    added = list(nodes)
    if len(reader.flat) + len(added) > MAX_NODES:
        raise InputError(f"written out, loops have more than {MAX_NODES:,} nodes")
    reader.used.update(name for node in added for name in node.input)
    reader.read_nodes(added)


def _alias(reader: Reader, names: Iterable[str], outputs: Iterable[str]) -> None:
    """Give values the names of a node's outputs."""
    _read(
        reader,
        [helper.make_node("Identity", [a], [b]) for a, b in zip(names, outputs, strict=True) if b],
    )


def _stack(reader: Reader, parts: list[str], name: str, axis: int, used: bool) -> None:
    """Stack the values of all steps along a new axis; what nobody reads is left out."""
    if not name or not used:
        return
    if not parts:
        raise InputError("a loop without steps gives an empty value")
    nodes = [_constant(f"{name}/axis", np.array([axis], np.int64))]
    nodes += [
        helper.make_node("Unsqueeze", [part, f"{name}/axis"], [f"{name}/{i}"])
        for i, part in enumerate(parts)
    ]
    _read(
        reader,
        [
            *nodes,
            helper.make_node(
                "Concat", [f"{name}/{i}" for i in range(len(parts))], [name], axis=axis
            ),
        ],
    )


def _constant(name: str, array: np.ndarray) -> onnx.NodeProto:
    return helper.make_node("Constant", [], [name], value=onnx.numpy_helper.from_array(array, name))


def _static(reader: Reader, name: str) -> np.ndarray | None:
    known = reader.known.get(name) if name else None
    return known.static if known else None


def _integers(attributes: Mapping[str, onnx.AttributeProto], name: str, count: int) -> list[int]:
    return list(attributes[name].ints) if name in attributes else [0] * count


def _prefix(reader: Reader, node: onnx.NodeProto) -> str:
    """Names of a body start with that of its node, and a number for nodes without one."""
    return f"{node.name or node.op_type}@{len(reader.flat)}/"
