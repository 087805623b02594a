"""Draws the blocks of a network's text in SVG: a layered graph per function, top to bottom."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from search_spaces.ir.text import read
from search_spaces.ir.text.program import Block, Item

MIN_FUNCTION_OPERATORS = 3  # operators; smaller functions are not drawn
MAX_FUNCTIONS = 3  # functions per network
MAX_MAIN_OPERATORS = 40  # a larger main block is not drawn
MAX_LABEL = 16  # characters that fit into a box
# Width and height of an operator box, and of the gap between two, in pixels
BOX, GAP = (92, 22), (14, 26)


class Spot(NamedTuple):
    """Position of a node, as the centre of its box in pixels, and its label."""

    x: float
    y: float
    label: str


def draw_blocks(text: str, output_names: Sequence[str] = ()) -> dict[str, str]:
    """Draw a network: its main block if it is short, and its `MAX_FUNCTIONS` largest functions.

    Args:
        text: ONNX text of the network.
        output_names: names of its outputs, if they have any.

    Returns:
        SVG by name of the block. The page styles it by the class `block`.
    """
    program = read(text)
    drawings = {}
    if len(program.main.items) <= MAX_MAIN_OPERATORS:
        drawings["net"] = draw(program.main, output_names)
    largest_first = sorted(program.functions.items(), key=lambda named: -len(named[1].items))
    for name, block in largest_first[:MAX_FUNCTIONS]:
        if len(block.items) >= MIN_FUNCTION_OPERATORS:
            drawings[name] = draw(block)
    return drawings


def draw(block: Block, output_names: Sequence[str] = ()) -> str:
    """A block as SVG. Nodes are its inputs, its operators and its outputs."""
    edges = _edges(block)
    labels = ["in"] * block.inputs
    labels += [_label(item) for item in block.items]
    labels += _output_labels(len(block.outputs), output_names)
    spots = _layout(edges, labels)
    right = max(spot.x for spot in spots)
    bottom = max(spot.y for spot in spots)
    width = right + (BOX[0] + GAP[0]) / 2
    height = bottom + BOX[1] / 2 + 4
    lines = "".join([_line(spots[start], spots[end]) for start, end in edges])
    boxes = "".join([_box(spot) for spot in spots])
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="block" viewBox="0 0 {width:g} {height:g}" width="{width:g}" '
        f'role="img" aria-label="A block of {len(block.items)} operators">{lines}{boxes}</svg>'
    )


def _edges(block: Block) -> list[tuple[int, int]]:
    """Pairs of nodes: inputs first, then operators, then outputs."""
    maker = list(range(block.inputs))  # the node that makes each value
    edges = []
    for node, item in enumerate(block.items, start=block.inputs):
        edges += [(maker[value], node) for value in item.inputs]
        maker += [node] * item.outputs
    first_output = block.inputs + len(block.items)
    edges += [(maker[value], node) for node, value in enumerate(block.outputs, first_output)]
    return edges


def _label(item: Item) -> str:
    """Name of an operator, short enough for its box, with the size of its kernel."""
    name = item.op.removeprefix("net.")
    name = name.replace("AveragePool", "AvgPool").replace("BatchNorm", "Norm")
    attrs = dict(item.attrs)
    kernel = attrs.get("kernel", attrs.get("kernel_shape"))
    if isinstance(kernel, tuple) and all(isinstance(size, int) for size in kernel):
        name = f"{name} {'×'.join(map(str, kernel))}"
    return name


def _output_labels(count: int, names: Sequence[str]) -> list[str]:
    """Labels of a block's outputs: names with an arrow, which no operator has, or else numbers."""
    if names:
        return [f"→ {name}" for name in names]
    if count == 1:
        return ["out"]
    return [f"out {number}" for number in range(1, count + 1)]


def _layout(edges: Sequence[tuple[int, int]], labels: Sequence[str]) -> list[Spot]:
    """Place nodes in layers, sorted by the mean position of their inputs.

    A node's layer is the length of the longest path from an input.
    """
    # 1. The nodes that each node takes values of.
    before: list[list[int]] = [[] for _ in labels]
    for start, end in edges:
        before[end].append(start)

    # 2. Its layer is one below the lowest of these; nodes are in topological order.
    layer: list[int] = []
    for node in range(len(labels)):
        lowest = max((layer[start] for start in before[node]), default=-1)
        layer.append(lowest + 1)
    rows: list[list[int]] = [[] for _ in range(max(layer) + 1)]
    for node, number in enumerate(layer):
        rows[number].append(node)

    # 3. From the top, a layer is sorted by the mean position of inputs and centred, in boxes.
    across = [0.0] * len(labels)

    def mean_position(node: int) -> float:
        positions = [across[start] for start in before[node]]
        return sum(positions) / max(1, len(positions))

    widest = max(map(len, rows))
    for row in rows:
        row.sort(key=mean_position)
        left = (widest - len(row)) / 2
        for place, node in enumerate(row):
            across[node] = left + place

    # 4. In pixels.
    width = BOX[0] + GAP[0]
    height = BOX[1] + GAP[1]
    spots = []
    for node, label in enumerate(labels):
        x = (across[node] + 0.5) * width
        y = layer[node] * height + BOX[1] / 2 + 2
        spots.append(Spot(x, y, label))
    return spots


def _line(start: Spot, end: Spot) -> str:
    """A curve from the lower border of one box to the upper border of another, as SVG."""
    half_width, half_height = BOX[0] / 2, BOX[1] / 2
    top = start.y + half_height
    bottom = end.y - half_height
    # A line that skips layers bends sideways, around the boxes between them.
    skips_layers = bottom - top > GAP[1] + 1
    aside = half_width + GAP[0] / 2 if skips_layers else 0.0
    bend = (top + bottom) / 2
    first = f"{start.x + aside:g} {bend:g}"
    second = f"{end.x + aside:g} {bend:g}"
    target = f"{end.x:g} {bottom:g}"
    return f'<path d="M{start.x:g} {top:g}C{first} {second} {target}"/>'


def _box(spot: Spot) -> str:
    """A box with its label, as SVG; the page's style gives its size.

    A label that is too long ends in "…"; browsers show all of it, the title, under the mouse.
    """
    width, height = BOX
    label, title = escape(spot.label), ""
    if len(spot.label) > MAX_LABEL:
        label, title = escape(f"{spot.label[: MAX_LABEL - 1]}…"), f"<title>{label}</title>"
    return (
        f'<rect x="{spot.x - width / 2:g}" y="{spot.y - height / 2:g}"/>'
        f'<text x="{spot.x:g}" y="{spot.y + 4:g}">{title}{label}</text>'
    )
