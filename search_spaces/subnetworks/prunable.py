"""`analyse`: what of a trained module can be left out, tried on the module itself.

1. Read the module once (`reading`), and couple the axes of its tensors (`coupling`).
2. Find groups of channels, heads, blocks and kernels (`groups`).
3. Try them: the sliced module runs, and has the graph that was computed for it. What fails, stays
   whole and is named.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import product as combinations

import numpy as np
import torch
from torch import nn

from search_spaces.common.errors import describe, unknown
from search_spaces.ir.fusion import fuse
from search_spaces.ir.graph import Graph
from search_spaces.ir.pytorch.modules import Example, run
from search_spaces.ir.pytorch.recording import example_tensors, record
from search_spaces.ir.text import compact, write
from search_spaces.subnetworks.axes import Atom, atoms_of, fix
from search_spaces.subnetworks.coupling import Coupling, couple
from search_spaces.subnetworks.groups import (
    HEADS,
    Choices,
    Group,
    Kernel,
    find_blocks,
    find_groups,
    find_kernels,
    kernel_options,
    size_options,
    source_names,
    tie,
)
from search_spaces.subnetworks.importance import Importance
from search_spaces.subnetworks.layer_rules import RULES
from search_spaces.subnetworks.reading import Reading, read_module
from search_spaces.subnetworks.resizing import Block, Resizer
from search_spaces.subnetworks.slicing import Slicer, kept_of

MAX_ASSIGNMENTS = 24  # tries to find out which sizes a module's attributes hold
MAX_ALL_ASSIGNMENTS = 72  # of all kinds of choices together
MAX_TRIAL_SECONDS = 60.0  # choices that are not tried by then stay whole
PROBED = 8  # of more choices alike, three are tried one by one, and if all fail, none works


@dataclass(frozen=True)
class Settings:
    """What may be chosen.

    Attributes:
        width: shares of the channels and heads.
        depth: True if residual blocks may be left out.
        kernel: True for all smaller odd kernels, or their sizes; False for none.
        round_to: channels are multiples of this number.
        keep: names of layers whose own channels stay, or patterns such as "stages.0.*".
    """

    width: tuple[float, ...] = (0.25, 0.5, 0.75, 1.0)
    depth: bool = True
    kernel: bool | tuple[int, ...] = False
    round_to: int = 8
    keep: tuple[str, ...] = ()


@dataclass(frozen=True)
class Choice:
    """One sub-network.

    Attributes:
        sizes: numbers of channels or heads by group; groups that are missing stay whole.
        skipped: blocks that are left out.
        kernels: kernel sizes.
    """

    sizes: Mapping[Group, int] = field(default_factory=dict)
    skipped: tuple[Block, ...] = ()
    kernels: Mapping[Kernel, int] = field(default_factory=dict)


class Prunable:
    """A trained module that was read, and its sub-networks.

    Args:
        module: the module; it is left in evaluation mode.
        example: its example input.
        settings: what may be chosen.
        importance: which channels stay.

    Attributes:
        choices: everything that can be chosen.

    Raises:
        InputError: if the module cannot be read, or a name in `keep` is unknown.
    """

    def __init__(
        self, module: nn.Module, example: Example, settings: Settings, importance: Importance
    ) -> None:
        self.module, self.example, self.settings = module.eval(), example, settings
        self.reading: Reading = read_module(module, example)
        self.coupling: Coupling = couple(self.reading, RULES)
        self._fix_kept()
        self.choices = self._choices()
        self.order: dict[Atom, np.ndarray] = {}
        self._assignment: dict[tuple[type, str], str] = {}
        self._assignments_left, self._started = MAX_ALL_ASSIGNMENTS, time.monotonic()
        self._prepare()
        self._drop_what_fails()
        self._prepare()
        groups = [member for group in self.choices.groups for member in group.members]
        self.scores = importance.scores(self.module, self.reading, self.coupling, groups)
        # From the most to the least important position; equal ones in their order.
        self.order = {
            atom: np.argsort(-score, kind="stable") for atom, score in self.scores.items()
        }

    def _fix_kept(self) -> None:
        """Let the channels stay whole that kept layers make."""
        names = [name for name, _ in self.module.named_modules() if name]
        for pattern in self.settings.keep:
            kept = {name for name in names if fnmatchcase(name, pattern)}
            if not kept:
                raise unknown("layer in keep:", pattern, names)
            for call in self.reading.recorder.calls:
                if any(call.name == name or call.name.startswith(f"{name}.") for name in kept):
                    for value in call.results:
                        for axis in self.coupling.axes.get(value, ()) if value is not None else ():
                            fix(axis, "kept")

    def _choices(self) -> Choices:
        settings = self.settings
        groups, unpruned = find_groups(self.module, self.reading, self.coupling)
        choices = Choices(unpruned=unpruned)
        for group in groups:
            group.sizes = size_options(group, settings.width, settings.round_to)
            if len(group.sizes) > 1:
                choices.groups.append(group)
            elif any(ratio < 1 for ratio in settings.width):
                choices.unpruned[group.name] = (
                    f"{group.atom.size * group.unit} channels are too few for round_to"
                )
        if settings.depth:
            blocks = find_blocks(self.reading, self.coupling, self.module)
            choices.blocks = [block for block in blocks if not self._is_kept(block.name)]
        if settings.kernel:
            names = source_names(self.module, self.reading)
            for kernel in find_kernels(self.module, self.reading, names):
                kernel.sizes = kernel_options(kernel, settings.kernel)
                if len(kernel.sizes) > 1 and not self._is_kept(kernel.layer):
                    choices.kernels.append(kernel)
        return choices

    def _is_kept(self, name: str) -> bool:
        parts = name.split(".")
        prefixes = [".".join(parts[: i + 1]) for i in range(len(parts))]
        return any(
            fnmatchcase(prefix, pattern) for prefix in prefixes for pattern in self.settings.keep
        )

    def _prepare(self) -> None:
        """Set up slicing and resizing for the current choices."""
        groups = [member for group in self.choices.groups for member in group.members]
        self.slicer = Slicer(self.module, self.reading, self.coupling, groups)
        self.slicer.assignment = self._assignment
        self.resizer = Resizer(self.reading.graph, self.coupling, [group.atom for group in groups])
        for group in groups:
            self.order.setdefault(group.atom, np.arange(group.atom.size))

    # --- sub-networks

    def graph(self, choice: Choice) -> Graph:
        """The graph of a sub-network, computed from that of the module."""
        sizes = _atom_sizes(choice)
        kernels = {
            kernel.value: (size,) * len(kernel.size)
            for kernel, size in choice.kernels.items()
            if size < kernel.size[0]
        }
        return fuse(self.resizer(sizes, choice.skipped, kernels))

    def sub_module(self, choice: Choice, meta: bool = False) -> nn.Module:
        """The module of a sub-network with the weights of the most important channels.

        Args:
            choice: the sub-network.
            meta: make parameters without data.
        """
        sizes = _atom_sizes(choice)
        kernels = {
            kernel.layer: (kernel, size)
            for kernel, size in choice.kernels.items()
            if size < kernel.size[0]
        }
        return self.slicer(kept_of(sizes, self.order), choice.skipped, kernels, meta)

    def ranked(self, share: float, costs: Mapping[Group, float] | None = None) -> dict[Group, int]:
        """Numbers of channels by one threshold for all groups, as in global pruning.

        Args:
            share: of all channels, to stay. The importance of a channel counts relative to the mean
                of its group.
            costs: what one channel of each group costs; its importance is divided by that. None
                for equal costs.
        """
        relative: dict[Group, np.ndarray] = {}
        for group in self.choices.groups:
            score = self.scores[group.atom]
            cost = 1.0 if costs is None else costs[group]
            relative[group] = score / max(score.mean(), 1e-30) / cost
        threshold = np.quantile(np.concatenate([*relative.values(), np.zeros(1)]), 1 - share)
        sizes = {}
        for group, score in relative.items():
            stays = int((score >= threshold).sum())
            sizes[group] = min(group.sizes, key=lambda size: abs(size - stays))
        return sizes

    # --- trials

    def _drop_what_fails(self) -> None:
        """Keep the choices with which the module runs and has the computed graph; name the
        others.
        """
        choices = self.choices
        everything: list[Group | Block | Kernel] = [
            *choices.groups,
            *choices.blocks,
            *choices.kernels,
        ]
        if not everything or self._failure(everything) is None:
            return
        if (assignment := self._working_assignment(everything)) is not None:
            self.slicer.assignment = self._assignment = assignment
            return
        reasons: dict[Group | Block | Kernel, str] = {}
        working: list[Group | Block | Kernel] = []
        for batch in _alike(everything):
            if (
                self._failure(batch) is not None
                and (assignment := self._working_assignment(batch)) is not None
            ):
                self.slicer.assignment = self._assignment = assignment
            working += self._working(batch, reasons)
        # Choices may work one by one, but not together.
        if self._failure(working) is not None:
            together: list[Group | Block | Kernel] = []
            for choice in working:
                reason = self._failure([*together, choice])
                if reason is None:
                    together.append(choice)
                else:
                    reasons[choice] = reason
            working = together
        # Heads may work together with the channels that their attention reads.
        failing = [choice for choice in choices.groups if choice not in working]
        tied: set[Group | Block | Kernel] = set()
        for group in tie(self.coupling, failing):
            if (
                time.monotonic() < self._started + MAX_TRIAL_SECONDS
                and self._failure([*working, group]) is None
            ):
                working.append(group)
                everything.append(group)
                choices.groups.append(group)
                tied.update(
                    choice
                    for choice in failing
                    if choice.atom in {one.atom for one in group.members}
                )
        stays = set(working)
        for choice in everything:
            if choice not in stays and choice not in tied:
                choices.unpruned[_label(choice)] = reasons.get(
                    choice, "the module does not run without it"
                )
        choices.groups = [group for group in choices.groups if group in stays]
        choices.blocks = [block for block in choices.blocks if block in stays]
        choices.kernels = [kernel for kernel in choices.kernels if kernel in stays]

    def _working(
        self, tried: Sequence[Group | Block | Kernel], reasons: dict[Group | Block | Kernel, str]
    ) -> list[Group | Block | Kernel]:
        """Those of similar choices that work, found by halving."""
        if time.monotonic() > self._started + MAX_TRIAL_SECONDS:
            reasons.update(dict.fromkeys(tried, "it was not tried: other trials took too long"))
            return []
        reason = self._failure(tried)
        if reason is None:
            return list(tried)
        if len(tried) > PROBED:
            probes = [self._failure([tried[i]]) for i in (0, len(tried) // 2, -1)]
            if all(probes):
                reasons.update(dict.fromkeys(tried, str(probes[0])))
                return []
        if len(tried) == 1:
            reasons[tried[0]] = reason
            return []
        middle = len(tried) // 2
        return [*self._working(tried[:middle], reasons), *self._working(tried[middle:], reasons)]

    def _working_assignment(
        self, tried: Sequence[Group | Block | Kernel]
    ) -> dict[tuple[type, str], str] | None:
        """Another meaning of the module's attributes with which choices work; None if there is
        none.
        """
        touched = {
            member.atom
            for choice in tried
            if isinstance(choice, Group)
            for member in choice.members
        }
        if not touched:
            return None
        usual = dict(self.slicer.assignment)
        keys = [(key, others) for key, others in self.slicer.ambiguous(touched) if others]
        changes = [{key: other} for key, others in keys for other in others]
        pairs = [a | b for a, b in combinations(changes, changes) if a.keys() < (a | b).keys()]
        try:
            for change in [*changes, *pairs][: min(MAX_ASSIGNMENTS, self._assignments_left)]:
                self._assignments_left -= 1
                self.slicer.assignment = usual | change
                if self._failure(tried) is None:
                    return usual | change
        finally:
            self.slicer.assignment = usual
        return None

    def _failure(self, tried: Iterable[Group | Block | Kernel]) -> str | None:
        """Why the module does not work with small choices of these; None if it does."""
        tried = list(tried)
        sizes = {}
        for i, group in enumerate(choice for choice in tried if isinstance(choice, Group)):
            sizes[group] = group.sizes[i % (len(group.sizes) - 1)]  # not all by the same share
        kernels = {choice: choice.sizes[0] for choice in tried if isinstance(choice, Kernel)}
        choice = Choice(sizes, tuple(c for c in tried if isinstance(c, Block)), kernels)
        every = [choice] if not choice.skipped else [choice, Choice(sizes, (), kernels)]
        return next((reason for one in every if (reason := self._reason(one)) is not None), None)

    def _reason(self, choice: Choice) -> str | None:
        try:
            made = self.sub_module(choice, meta=True)
            expected = write(compact(self.graph(choice)))
            recorded = write(compact(record(made, self.example)))
        except Exception as error:  # the module's own code may raise any
            return f"the module does not run with other sizes ({_first_line(error)})"
        if expected != recorded:
            return "the module's code has sizes of its own"
        if any(x.is_meta for x in (*self.module.parameters(), *example_tensors(self.example))):
            return None
        try:
            with torch.no_grad():
                run(self.sub_module(choice).eval(), self.example)
        except Exception as error:
            return f"the module does not run with other sizes ({_first_line(error)})"
        return None


def _atom_sizes(choice: Choice) -> dict[Atom, int]:
    """The numbers of positions of the atoms that are shortened."""
    sizes = {
        atom: n
        for group, size in choice.sizes.items()
        for atom, n in group.atom_sizes(size).items()
    }
    return {atom: size for atom, size in sizes.items() if size < atom.size}


def _first_line(error: BaseException) -> str:
    return (describe(error).splitlines() or [""])[0][:120]


def _label(choice: Group | Block | Kernel) -> str:
    return f"depth.{choice.name}" if isinstance(choice, Block) else choice.name


def _alike(choices: Iterable[Group | Block | Kernel]) -> list[list[Group | Block | Kernel]]:
    """Choices of the same kind and the same last part of the name, such as all heads of a network's
    attentions.
    """
    batches: dict[tuple[str, str], list[Group | Block | Kernel]] = {}
    for choice in choices:
        kind = choice.kind if isinstance(choice, Group) else type(choice).__name__
        name = choice.name.rpartition(".")[2] if isinstance(choice, Group) else ""
        batches.setdefault((kind, "" if kind == HEADS else name), []).append(choice)
    return list(batches.values())


def atoms_inside(prunable: Prunable, block: Block) -> set[Atom]:
    """The atoms of channels that exist only inside of a block."""
    inside: set[Atom] = set()
    outside: set[Atom] = set()
    for value, axes in prunable.coupling.axes.items():
        atoms = {atom for axis in axes for atom in atoms_of(axis)}
        if value in block.nodes and value != block.result:
            inside |= atoms
        else:
            outside |= atoms
    return inside - outside
