"""Stages: residual blocks that compute alike. How many of them stay is a choice; the ones that change
their inputs most stay.

As with channels, which ones stay is a matter of importance, computed once per model, so that a
sub-network's text says all about it. The importance of a block is its influence: 1 - the cosine of its
input and its result, as in ShortGPT (arXiv 2403.03853). A sentence encoder without the two of its six
layers that have the least influence keeps 82 % of its vectors' direction, without any two 59 %.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity
from torch.utils._pytree import tree_leaves, tree_map

from search_spaces.ir.graph import Graph
from search_spaces.ir.pytorch.modules import Example, run
from search_spaces.ir.pytorch.recording import example_tensors
from search_spaces.subnetworks.resizing import Block

PROBES = 4  # noisy inputs on which influences are measured
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


def find_stages(
    blocks: Sequence[Block], graph: Graph, module: nn.Module, inputs: Iterable[Example]
) -> list[Stage]:
    """The stages of a module, in the order of their first blocks.

    Args:
        blocks: the blocks that may be left out, in the order of their calls.
        graph: of the module, before fusion.
        module: the module.
        inputs: arguments of its `forward` on which influences are measured.
    """
    # 1. Blocks with the same operators and shapes.
    alike: dict[Any, list[Block]] = {}
    for block in blocks:
        alike.setdefault(_computation(block, graph), []).append(block)

    # 2. Within a stage, by influence. A single block needs none.
    several = [block for stage in alike.values() if len(stage) > 1 for block in stage]
    influences = block_influences(several, module, inputs)
    names = _stage_names(list(alike.values()))
    stages = []
    for name, stage in zip(names, alike.values(), strict=True):
        ordered = sorted(stage, key=lambda block: influences.get(block, 0.0))
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


def block_influences(
    blocks: Sequence[Block], module: nn.Module, inputs: Iterable[Example]
) -> dict[Block, float]:
    """The influence of each block, 0 to 2: mean of 1 - cosine of input and result.

    {} if the module has no weights or does not run on the inputs.

    Args:
        blocks: layers whose result may be replaced by their input.
        module: the module, in evaluation mode.
        inputs: arguments of its `forward`.
    """
    if not blocks or any(x.is_meta for x in module.parameters()):
        return {}
    sums: dict[Block, float] = dict.fromkeys(blocks, 0.0)

    # 1. Listen to the blocks.
    def listen(block: Block) -> Any:
        def hook(_: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            result = next(x for x in tree_leaves(output) if isinstance(x, Tensor))
            for x in tree_leaves((args, kwargs)):
                if isinstance(x, Tensor) and x.shape == result.shape:
                    cosine = cosine_similarity(x.flatten(), result.flatten(), dim=0)
                    sums[block] += 1 - float(cosine)
                    return

        return module.get_submodule(block.name).register_forward_hook(hook, with_kwargs=True)

    handles = [listen(block) for block in blocks]

    # 2. Run the module.
    count = 0
    try:
        with torch.no_grad():
            for example in inputs:
                run(module, example)
                count += 1
    except Exception:  # the module's own code may raise any on noise
        return {}
    finally:
        for handle in handles:
            handle.remove()
    return {block: _rounded(total / max(count, 1)) for block, total in sums.items()}


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS - 1}e}")


def noisy_inputs(example: Example, graph: Graph) -> Iterator[Example]:
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

    for _ in range(PROBES):
        yield tree_map(noisy, example)


def _rows_of_inputs(graph: Graph) -> list[int | None]:
    """For each input of a graph, the rows of the embedding that reads it; None without one."""
    rows: dict[int, int] = {}
    for node in graph.nodes:
        number = dict(node.attrs).get("rows")
        if node.op == "Embedding" and isinstance(number, int):
            rows[node.inputs[0]] = min(number, rows.get(node.inputs[0], number))
    return [rows.get(value) for value in graph.inputs]
