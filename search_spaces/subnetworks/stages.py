"""Stages: residual blocks that compute alike. How many of them stay is a choice; those without which
the outputs change most stay.

As with channels, which ones stay is a matter of importance, computed once per model, so that a
sub-network's text says all about it. A sentence encoder without the two of its six layers that have
the least influence keeps 82 % of its vectors' direction, without any two 59 %. How much a block changes
its input (ShortGPT, arXiv 2403.03853) costs less to compute, and says as much there; on a vision
transformer it chose a layer without which 57 % of the classes stay, where influence finds one with 77 %.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from search_spaces.ir.graph import Graph
from search_spaces.ir.pytorch.modules import Example, run
from search_spaces.ir.pytorch.recording import example_tensors
from search_spaces.subnetworks.resizing import Block

MAX_PROBES = 8  # noisy inputs on which influences are measured
MAX_PROBE_VALUES = 2**18  # numbers in them, so that large images get one
DIGITS = 4  # of an influence that count: machines round differently


@dataclass(frozen=True, eq=False)
class Stage:
    """Blocks that compute alike, of which a number is chosen.

    Attributes:
        name: what the names of its layers have in common, such as "encoder.layer".
        blocks: in the order in which they are left out, the one of the least influence first.
    """

    name: str
    blocks: tuple[Block, ...]

    @property
    def sizes(self) -> tuple[int, ...]:
        """Numbers of blocks to choose from; the last is all of them."""
        return tuple(range(len(self.blocks) + 1))

    def left_out(self, kept: int) -> tuple[Block, ...]:
        """The blocks that are left out if so many stay."""
        return self.blocks[: len(self.blocks) - kept]


def find_stages(blocks: Sequence[Block], graph: Graph, influence: Influence) -> list[Stage]:
    """The stages of a module, in the order of their first blocks.

    Args:
        blocks: the blocks that may be left out, in the order of their calls.
        graph: of the module, before fusion.
        influence: of a block on the outputs.
    """
    # 1. Blocks with the same operators and shapes.
    alike: dict[Any, list[Block]] = {}
    for block in blocks:
        alike.setdefault(_computation(block, graph), []).append(block)

    # 2. Within a stage, by influence. A single block needs none.
    names = _stage_names(list(alike.values()))
    stages = []
    for name, stage in zip(names, alike.values(), strict=True):
        ordered = sorted(stage, key=influence) if len(stage) > 1 else stage
        stages.append(Stage(name, tuple(ordered)))
    return stages


def _computation(block: Block, graph: Graph) -> tuple[Any, ...]:
    """What a block computes: operators, attributes and shapes, in their order."""
    return tuple(
        (node.op, node.attrs, graph.shapes[node.outputs[0]])
        for node in graph.nodes
        if node.outputs[0] in block.nodes
    )


def _stage_names(stages: Sequence[Sequence[Block]]) -> list[str]:
    """The common beginning of the layers' names, or the first name where that is not unique."""
    common = []
    for stage in stages:
        parts = zip(*[block.name.split(".") for block in stage], strict=False)
        shared = takewhile(lambda names: len(set(names)) == 1, parts)
        common.append(".".join([names[0] for names in shared]))
    counts = Counter(common)
    names = []
    for stage, name in zip(stages, common, strict=True):
        is_unique = name and counts[name] == 1
        names.append(name if is_unique else stage[0].name)
    return names


# --- influence


Influence = Callable[[Block], float]


class OutputChange:
    """The influence of a block: how much the outputs of a module change without it, relatively.

    0 for all blocks if the module has no weights, or does not run on the inputs.

    Args:
        module: the module, in evaluation mode.
        inputs: arguments of its `forward`.
    """

    def __init__(self, module: nn.Module, inputs: Iterable[Example]) -> None:
        self.module = module
        self.inputs = inputs

    def __call__(self, block: Block) -> float:
        if not self._outputs:
            return 0.0
        layer = self.module.get_submodule(block.name)
        handle = layer.register_forward_hook(_input_instead_of_result, with_kwargs=True)
        try:
            changes = []
            for example, old in self._outputs:
                new = _first_output(self.module, example)
                changes.append(float((new - old).norm() / old.norm().clamp(min=1e-12)))
        finally:
            handle.remove()
        return float(f"{sum(changes) / len(changes):.{DIGITS - 1}e}")

    @cached_property
    def _outputs(self) -> list[tuple[Example, Tensor]]:
        """Inputs, and the first output for each."""
        if any(x.is_meta for x in self.module.parameters()):
            return []
        try:
            return [(example, _first_output(self.module, example)) for example in self.inputs]
        except Exception:  # the module's own code may raise any on noise
            return []


def _input_instead_of_result(_: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
    """A hook that leaves out what a layer computes."""
    leaves, structure = tree_flatten(output)
    place = next(i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor))
    for x in tree_leaves((args, kwargs)):
        if isinstance(x, Tensor) and x.shape == leaves[place].shape:
            leaves[place] = x
            break
    return tree_unflatten(leaves, structure)


def _first_output(module: nn.Module, example: Example) -> Tensor:
    """The first tensor of a module's output, as floats."""
    with torch.no_grad():
        leaves = tree_leaves(run(module, example))
    return next(x for x in leaves if isinstance(x, Tensor)).float()


def noisy_inputs(example: Example, graph: Graph) -> list[Example]:
    """Inputs like the example, with noise where it says nothing: seeded, the same every time.

    A tensor of equal floats becomes normal noise, equal numbers that an embedding reads become random
    rows of it. Everything else, such as a mask, stays.
    """
    rows = _rows_of_inputs(graph)
    by_tensor = dict(zip(map(id, example_tensors(example)), rows, strict=False))
    generator = torch.Generator().manual_seed(0)

    def noisy(x: Any) -> Any:
        if not isinstance(x, Tensor) or x.is_meta or x.unique().numel() > 1:
            return x
        if x.is_floating_point():
            return torch.randn(x.shape, generator=generator).to(x)
        count = by_tensor.get(id(x))
        if count is None:
            return x
        return torch.randint(count, x.shape, generator=generator).to(x)

    values = sum(x.numel() for x in example_tensors(example))
    count = min(max(MAX_PROBE_VALUES // max(values, 1), 1), MAX_PROBES)
    return [tree_map(noisy, example) for _ in range(count)]


def _rows_of_inputs(graph: Graph) -> list[int | None]:
    """For each input of a graph, the rows of the embedding that reads it; None without one."""
    rows: dict[int, int] = {}
    for node in graph.nodes:
        number = dict(node.attrs).get("rows")
        if node.op == "Embedding" and isinstance(number, int):
            rows[node.inputs[0]] = min(number, rows.get(node.inputs[0], number))
    return [rows.get(value) for value in graph.inputs]
