"""Control flow whose course is known: branches are chosen, loops and scans are written out step by
step.

No graph has these operators. Their nodes become nodes of the model, with names of their own for
every step; the body of a loop then becomes a function of the text that is called once per step.
Weights inside a body are read in every step and count once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import onnx
from onnx import helper

from search_spaces.common.errors import InputError
from search_spaces.ir.constants import Known, read_tensor
from search_spaces.ir.graph import MAX_NODES
from search_spaces.ir.ops.operator import Importer, Operator, node_attributes


def _read_if(reader: Importer, node: onnx.NodeProto) -> list[Known] | None:
    """Replace an `If` with a known condition by the nodes of its branch; None if it is unknown."""
    condition = _static(reader, node.input[0])
    if condition is None:
        return None
    branch = node_attributes(node)["then_branch" if condition.all() else "else_branch"].g
    body = _Body(reader, branch, _prefix(reader, node))
    _alias(reader, body.run([]), node.output)
    return []


def _read_loop(reader: Importer, node: onnx.NodeProto) -> list[Known] | None:
    """Write out a `Loop` whose number of steps is known; None if it depends on the data."""
    # 1. The operands: the largest number of steps, the first condition, the states. The first two
    #    may be omitted.
    steps_name, condition_name = (*node.input, "", "")[:2]
    max_steps = _static(reader, steps_name)
    condition = _static(reader, condition_name)
    if (steps_name and max_steps is None) or (condition_name and condition is None):
        return None
    steps = MAX_NODES if max_steps is None else int(max_steps.item())
    states = list(node.input[2:])
    state_count = len(states)

    # 2. The outputs: the last states, then what every step computes, stacked.
    last_states = node.output[:state_count]
    stacked_outputs = node.output[state_count:]
    results_of_steps: list[list[str]] = [[] for _ in stacked_outputs]

    # 3. Each step reads its number, a condition and the states, and computes the next ones.
    body = _Body(reader, node_attributes(node)["body"].g, _prefix(reader, node))
    goes_on = condition is None or bool(condition.all())
    for step in range(steps):
        if not goes_on:
            break
        step_name = f"{body.prefix}{step}/step"
        goes_on_name = f"{body.prefix}{step}/goes_on"
        constants = [
            _constant(step_name, np.array(step, np.int64)),
            _constant(goes_on_name, np.array(True)),
        ]
        _read(reader, constants)
        next_condition, *results = body.run([step_name, goes_on_name, *states])
        condition = _static(reader, next_condition)
        if condition is None:
            raise InputError("the number of steps depends on the data: no text can show it")
        goes_on = bool(condition.all())
        states = results[:state_count]
        _append_each(results_of_steps, results[state_count:])

    # 4. The outputs get their names.
    _alias(reader, states, last_states)
    for name, results in zip(stacked_outputs, results_of_steps, strict=True):
        _stack(reader, results, name, axis=0)
    return []


def _append_each(results_of_steps: list[list[str]], names: list[str]) -> None:
    """Append what a step computed to the results of each stacked output."""
    for results, name in zip(results_of_steps, names, strict=True):
        results.append(name)


def _read_scan(reader: Importer, node: onnx.NodeProto) -> list[Known] | None:
    """Write out a `Scan` over a known number of elements.

    Raises:
        InputError: if the number of steps is open.
    """
    # 1. The operands: states, then sequences, with an axis and a direction each.
    attributes = node_attributes(node)
    sequence_count = attributes["num_scan_inputs"].i
    state_count = len(node.input) - sequence_count
    states = list(node.input[:state_count])
    sequences = node.input[state_count:]
    axes = _integers(attributes, "scan_input_axes", sequence_count)
    is_reverse = _integers(attributes, "scan_input_directions", sequence_count)
    steps = reader.shape(sequences[0])[axes[0]]
    if isinstance(steps, str):
        raise InputError("the number of steps is open")

    # 2. The outputs: states, then sequences.
    last_states = node.output[:state_count]
    stacked_outputs = node.output[state_count:]
    output_count = len(stacked_outputs)
    output_axes = _integers(attributes, "scan_output_axes", output_count)
    is_output_reverse = _integers(attributes, "scan_output_directions", output_count)
    results_of_steps: list[list[str]] = [[] for _ in stacked_outputs]

    # 3. Each step reads the states and an element of every sequence.
    body = _Body(reader, attributes["body"].g, _prefix(reader, node))
    for step in range(steps):
        elements = []
        for i, name in enumerate(sequences):
            place = steps - 1 - step if is_reverse[i] else step
            index = f"{body.prefix}{step}/at{i}"
            element = f"{body.prefix}{step}/element{i}"
            constant = _constant(index, np.array(place, np.int64))
            gather = helper.make_node("Gather", [name, index], [element], axis=axes[i])
            _read(reader, [constant, gather])
            elements.append(element)
        results = body.run([*states, *elements])
        states = results[:state_count]
        _append_each(results_of_steps, results[state_count:])

    # 4. The outputs get their names.
    _alias(reader, states, last_states)
    for i, name in enumerate(stacked_outputs):
        results = results_of_steps[i]
        if is_output_reverse[i]:
            results = results[::-1]
        _stack(reader, results, name, output_axes[i])
    return []


class _Body:
    """A body that is written out once per call of `run`, with names of its own for every step.

    Args:
        reader: the reader that gets its nodes.
        graph: the body.
        prefix: start of its names.
    """

    def __init__(self, reader: Importer, graph: onnx.GraphProto, prefix: str) -> None:
        self.reader = reader
        self.graph = graph
        self.prefix = prefix
        self.steps = 0
        # What does not change from step to step is stored once: initializers and constants.
        self.fixed: dict[str, str] = {}
        for tensor in graph.initializer:
            name = f"{prefix}{tensor.name}"
            known = read_tensor(tensor, learned=True)
            self.fixed[tensor.name] = name
            reader.initializers[name] = known
            reader.known[name] = known
        constants = [node for node in graph.node if node.op_type == "Constant"]
        for node in constants:
            self.fixed[node.output[0]] = f"{prefix}{node.output[0]}"
        _read(reader, _renamed(constants, self.fixed))
        self.nodes = [node for node in graph.node if node.op_type != "Constant"]

    def run(self, inputs: Iterable[str]) -> list[str]:
        """Read the nodes of one step; return the names of its outputs."""
        step = f"{self.prefix}{self.steps}/"
        self.steps += 1
        names = dict(self.fixed)
        for info, name in zip(self.graph.input, inputs, strict=True):
            names[info.name] = name
        for node in self.nodes:
            for name in node.output:
                if name:
                    names[name] = f"{step}{name}"
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
    inner_names = {info.name for info in graph.input}
    inner_names |= {tensor.name for tensor in graph.initializer}
    for node in graph.node:
        inner_names.update(node.output)
    outside = {name: new for name, new in names.items() if name not in inner_names}
    nodes = list(_renamed(graph.node, outside))
    del graph.node[:]
    graph.node.extend(nodes)
    for info in graph.output:
        info.name = outside.get(info.name, info.name)


def _read(reader: Importer, nodes: Iterable[onnx.NodeProto]) -> None:
    added = list(nodes)
    if len(reader.flat) + len(added) > MAX_NODES:
        raise InputError(f"written out, loops have more than {MAX_NODES:,} nodes")
    reader.used.update(name for node in added for name in node.input)
    reader.read_nodes(added)


def _alias(reader: Importer, names: Iterable[str], outputs: Iterable[str]) -> None:
    """Give values the names of a node's outputs."""
    identities = []
    for name, output in zip(names, outputs, strict=True):
        if output:
            identities.append(helper.make_node("Identity", [name], [output]))
    _read(reader, identities)


def _stack(
    reader: Importer,
    parts: list[str],
    name: str,
    axis: int,
) -> None:
    """Stack the values of all steps along a new axis; what nobody reads is left out."""
    if not name or name not in reader.used:
        return
    if not parts:
        raise InputError("a loop without steps gives an empty value")
    axis_name = f"{name}/axis"
    nodes = [_constant(axis_name, np.array([axis], np.int64))]
    slabs = []
    for i, part in enumerate(parts):
        slab = f"{name}/{i}"
        slabs.append(slab)
        nodes.append(helper.make_node("Unsqueeze", [part, axis_name], [slab]))
    nodes.append(helper.make_node("Concat", slabs, [name], axis=axis))
    _read(reader, nodes)


def _constant(name: str, array: np.ndarray) -> onnx.NodeProto:
    return helper.make_node("Constant", [], [name], value=onnx.numpy_helper.from_array(array, name))


def _static(reader: Importer, name: str) -> np.ndarray | None:
    known = reader.known.get(name) if name else None
    return known.static if known else None


def _integers(attributes: Mapping[str, onnx.AttributeProto], name: str, count: int) -> list[int]:
    return list(attributes[name].ints) if name in attributes else [0] * count


def _prefix(reader: Importer, node: onnx.NodeProto) -> str:
    """Names of a body start with that of its node, and a number for nodes without one."""
    return f"{node.name or node.op_type}@{len(reader.flat)}/"


OPERATORS = (
    Operator(name="If", is_in_graphs=False, fold=_read_if),
    Operator(name="Loop", is_in_graphs=False, fold=_read_loop),
    Operator(name="Scan", is_in_graphs=False, fold=_read_scan),
)
