"""`Prunable`: what of a trained module can be left out, tried on the module itself.

1. Read the module once (`reading`), and couple the axes of its tensors (`coupling`).
2. Find groups of channels, heads, blocks and kernels (`groups`).
3. Try them: the sliced module runs, and has the graph that was computed for it. What fails, stays
   whole and is named.
4. Score the channels (`importance`) and the blocks (`stages`); sub-networks keep the most important
   ones.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cached_property, partial
from itertools import product

import numpy as np
import torch
from torch import nn

from search_spaces.common.errors import describe, unknown
from search_spaces.ir.fusion import fuse
from search_spaces.ir.graph import Graph
from search_spaces.ir.precision import LAYERS, with_precision
from search_spaces.ir.pytorch.modules import Example, evaluating, plain_attributes, run, unchanged
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
from search_spaces.subnetworks.ordered_sizes import keep_order, neighbours, trial_sizes
from search_spaces.subnetworks.reading import Reading, read_module
from search_spaces.subnetworks.resizing import Block, Resizer
from search_spaces.subnetworks.slicing import Slicer, kept_of
from search_spaces.subnetworks.stages import OutputChange, find_stages, noisy_inputs
from search_spaces.subnetworks.training_trial import TrainingTrial, training_trial

Option = Group | Block | Kernel

MAX_ASSIGNMENTS = 24  # tries to find out which sizes a module's attributes hold
MAX_ALL_ASSIGNMENTS = 72  # of all kinds of choices together
MAX_TRIAL_SECONDS = 60.0  # of processor time; choices that are not tried by then stay whole
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
        stages: the blocks of `choices`, those that compute alike together.
        scores: importance (size,) of the positions of each group's atom.
        order: those positions from the most to the least important one; equal ones in their order.

    Raises:
        InputError: if the module cannot be read, or a name in `keep` is unknown.
    """

    def __init__(
        self,
        module: nn.Module,
        example: Example,
        settings: Settings,
        importance: Importance,
    ) -> None:
        # 1. and 2. What could be chosen.
        self.module = evaluating(module)
        self._attributes = plain_attributes(module)
        self.example = example
        self.settings = settings
        self.reading: Reading = read_module(module, example)
        self.coupling: Coupling = couple(self.reading, RULES)
        self._fix_kept()
        self.choices = self._choices()
        self.order: dict[Atom, np.ndarray] = {}
        self._assignment: dict[tuple[type, str], str] = {}
        self._assignments_left = MAX_ALL_ASSIGNMENTS
        self._started = time.process_time()

        # 3. What works.
        self._prepare()
        self._drop_what_fails()
        self._prepare()
        if self._keep_orders():
            self._prepare()

        # 4. What is important.
        graph = self.reading.graph
        inputs = importance.inputs[:1] or noisy_inputs(example, graph)
        influence = OutputChange(self.module, inputs)
        with unchanged(module):
            self.stages = find_stages(self.choices.blocks, graph, influence)
            self.scores = importance.scores(module, self.reading, self.coupling, self._members)
        for atom, score in self.scores.items():
            self.order[atom] = np.argsort(-score, kind="stable")

    @property
    def _members(self) -> list[Group]:
        """All groups, also those that follow others."""
        return [member for group in self.choices.groups for member in group.members]

    def _fix_kept(self) -> None:
        """Let the channels stay whole that kept layers make."""
        names = [name for name, _ in self.module.named_modules() if name]
        for pattern in self.settings.keep:
            kept = {name for name in names if fnmatchcase(name, pattern)}
            if not kept:
                raise unknown("layer in keep:", pattern, names)
            inside = tuple(f"{name}." for name in kept)
            for call in self.reading.recorder.calls:
                if call.name not in kept and not call.name.startswith(inside):
                    continue
                for value in call.results:
                    axes = self.coupling.axes.get(value, ()) if value is not None else ()
                    for axis in axes:
                        fix(axis, "kept")

    def _choices(self) -> Choices:
        """What the coupled axes allow, before it is tried."""
        settings = self.settings
        groups, unpruned = find_groups(self.module, self.reading, self.coupling)
        choices = Choices(unpruned=unpruned)
        for group in groups:
            group.sizes = size_options(group, settings.width, settings.round_to)
            if len(group.sizes) > 1:
                choices.groups.append(group)
            elif any(ratio < 1 for ratio in settings.width):
                channels = group.atom.size * group.unit
                choices.unpruned[group.name] = f"{channels} channels are too few for round_to"
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
        """True if a layer, or one that it is inside of, is kept."""
        parts = name.split(".")
        for end in range(1, len(parts) + 1):
            prefix = ".".join(parts[:end])
            if any(fnmatchcase(prefix, pattern) for pattern in self.settings.keep):
                return True
        return False

    def _prepare(self) -> None:
        """Set up slicing and resizing for the current choices."""
        members = self._members
        self.slicer = Slicer(self.module, self.reading, self.coupling, members, self._attributes)
        self.slicer.assignment = self._assignment
        atoms = [group.atom for group in members]
        for atom in atoms:
            self.order.setdefault(atom, np.arange(atom.size))
        constants = {}
        for value, (_, tensor) in self.reading.constants.items():
            constants[value] = tensor.detach().float().cpu().numpy()
        graph = self.reading.graph
        self.resizer = Resizer(graph, self.coupling, atoms, constants, self.order)

    # --- sub-networks

    def graph(self, choice: Choice, precisions: Mapping[int, str] | None = None) -> Graph:
        """The graph of a sub-network, computed from that of the module.

        Args:
            choice: the sub-network.
            precisions: of layers, by their output value.
        """
        kernels = {}
        for kernel, size in choice.kernels.items():
            if size < kernel.size[0]:
                kernels[kernel.value] = (size,) * len(kernel.size)
        graph = self.resizer(_atom_sizes(choice), choice.skipped, kernels)
        if precisions:
            nodes = []
            for node in graph.nodes:
                precision = precisions.get(node.outputs[0])
                attrs = with_precision(node.attrs, precision) if precision else node.attrs
                nodes.append(node._replace(attrs=attrs))
            graph = replace(graph, nodes=tuple(nodes))
        return fuse(graph)

    @cached_property
    def layers(self) -> dict[str, list[int]]:
        """Convolutions and linear layers by name, with the output values of their calls."""
        names = {id(tensor): name for name, tensor in self.module.named_parameters()}
        layers: dict[str, list[int]] = {}
        for node in self.reading.graph.nodes:
            value = node.outputs[0]
            if node.op not in LAYERS or value not in self.reading.recorder.owned:
                continue
            weight, _ = self.reading.recorder.owned[value][0]
            sources = self.reading.recorder.weights.sources(weight)
            owners = [names[i].rpartition(".")[0] for i in sources if i in names]
            if owners:
                layers.setdefault(owners[0], []).append(value)
        return layers

    def sub_module(self, choice: Choice, meta: bool = False) -> nn.Module:
        """The module of a sub-network with the weights of the most important channels.

        Args:
            choice: the sub-network.
            meta: make parameters without data.
        """
        kernels = {}
        for kernel, size in choice.kernels.items():
            if size < kernel.size[0]:
                kernels[kernel.layer] = (kernel, size)
        kept = kept_of(_atom_sizes(choice), self.order)
        return self.slicer(kept, choice.skipped, kernels, meta)

    def ranked(self, share: float) -> dict[Group, int]:
        """Numbers of channels by one threshold for all groups, as in global pruning.

        Args:
            share: of all channels, to stay. The importance of a channel counts relative to the mean
                of its group.
        """
        relative: dict[Group, np.ndarray] = {}
        for group in self.choices.groups:
            score = self.scores[group.atom]
            relative[group] = score / max(score.mean(), 1e-30)
        all_scores = np.concatenate([*relative.values(), np.zeros(1)])
        threshold = np.quantile(all_scores, 1 - share)
        sizes = {}
        for group, score in relative.items():
            above = int((score >= threshold).sum())
            sizes[group] = min(group.sizes, key=lambda size: abs(size - above))
        return sizes

    # --- trials

    def _drop_what_fails(self) -> None:
        """Keep the choices with which the module runs and has the computed graph.

        The others are named. Attributes of a module may hold sizes under any name, and its code may
        have sizes of its own. Nobody can read that from outside, so it is tried.
        """
        choices = self.choices
        everything: list[Option] = [*choices.groups, *choices.blocks, *choices.kernels]

        # 1. All choices together, as nearly always; or after its attributes are understood anew.
        if not everything or self._works(everything):
            return

        # 2. Heads with the channels that their attention reads: the code may compute the width of a
        #    head from both.
        ties = tie(self.coupling, choices.groups)
        tied = [member for group in ties for member in group.members]
        untied = [choice for choice in everything if not _is_of(choice, tied)]
        if ties and self._failure([*untied, *ties]) is None:
            self._keep([*untied, *ties])
            return

        # 3. Choices of a kind, by halving.
        reasons: dict[Option, str] = {}
        working: list[Option] = []
        for batch in _alike(everything):
            self._works(batch)
            working += self._working(batch, reasons)

        # 4. Choices may work one by one, but not together.
        if self._failure(working) is not None:
            together: list[Option] = []
            for choice in working:
                reason = self._failure([*together, choice])
                if reason is None:
                    together.append(choice)
                else:
                    reasons[choice] = reason
            working = together

        # 5. Some heads may work with their channels, where not all do.
        failing = [choice for choice in choices.groups if choice not in working]
        for group in tie(self.coupling, failing):
            if self._is_late():
                break
            if self._failure([*working, group]) is None:
                working.append(group)

        # 6. The others stay whole.
        members: list[Group] = []
        for choice in working:
            if isinstance(choice, Group):
                members += choice.members
        for choice in everything:
            if choice not in working and not _is_of(choice, members):
                reason = reasons.get(choice, "the module does not run without it")
                choices.unpruned[_label(choice)] = reason
        self._keep(working)

    def _keep_orders(self) -> bool:
        """Let widths stay in the model's order where its code compares them; False if none must."""
        choices = self.choices
        pairs = neighbours(self.module, self.reading, self.coupling, choices.groups)
        trials = trial_sizes(pairs)
        if all(self._reason(Choice(sizes)) is None for sizes in trials):
            return False

        # 1. The pairs that fail by themselves; if none does, all of them.
        failing = []
        for pair in pairs:
            if any(self._reason(Choice(sizes)) is not None for sizes in trial_sizes([pair])):
                failing.append(pair)
        for pair in failing or pairs:
            group = pair.larger.group
            other = pair.smaller.group
            if group is not None and keep_order(pair):
                name = "another width" if other is None else other.name
                reason = f"the module's code compares it with {name}, and it stays larger"
                choices.unpruned[f"small sizes of {group.name}"] = reason

        # 2. Groups of one size are none.
        choices.groups = [group for group in choices.groups if len(group.sizes) > 1]
        return True

    def _keep(self, options: Iterable[Option]) -> None:
        """Offer these choices alone: groups in their order, then those with tied ones."""
        stays = list(options)
        choices = self.choices
        ties = [choice for choice in stays if isinstance(choice, Group) and choice.tied]
        choices.groups = [group for group in choices.groups if group in stays] + ties
        choices.blocks = [block for block in choices.blocks if block in stays]
        choices.kernels = [kernel for kernel in choices.kernels if kernel in stays]

    def _is_late(self) -> bool:
        return time.process_time() > self._started + MAX_TRIAL_SECONDS

    def _works(self, tried: Sequence[Option]) -> bool:
        """True if choices work together.

        If they need another meaning of the attributes, it is kept.
        """
        if self._failure(tried) is None:
            return True
        assignment = self._working_assignment(tried)
        if assignment is None:
            return False
        self.slicer.assignment = self._assignment = assignment
        return True

    def _working(self, tried: Sequence[Option], reasons: dict[Option, str]) -> list[Option]:
        """Those of similar choices that work, by halving.

        Args:
            tried: the choices.
            reasons: gets the reason of each that does not work.
        """
        # 1. All of them, if there is time.
        if self._is_late():
            reasons.update(dict.fromkeys(tried, "it was not tried: other trials took too long"))
            return []
        reason = self._failure(tried)
        if reason is None:
            return list(tried)

        # 2. Of many, three: if each fails alone, so will the others.
        if len(tried) > PROBED:
            probes = [self._failure([tried[i]]) for i in (0, len(tried) // 2, -1)]
            if all(probes):
                reasons.update(dict.fromkeys(tried, str(probes[0])))
                return []

        # 3. Both halves.
        if len(tried) == 1:
            reasons[tried[0]] = reason
            return []
        middle = len(tried) // 2
        first = self._working(tried[:middle], reasons)
        return [*first, *self._working(tried[middle:], reasons)]

    def _working_assignment(self, tried: Sequence[Option]) -> dict[tuple[type, str], str] | None:
        """Another meaning of the module's attributes with which choices work, or None."""
        # 1. The atoms of the choices.
        touched = set()
        for choice in tried:
            if isinstance(choice, Group):
                touched.update([member.atom for member in choice.members])
        if not touched:
            return None

        # 2. One attribute understood in another way, or two of them. Farther axes of a kind come
        #    last.
        changes: list[dict[tuple[type, str], str]] = []
        farther: list[dict[tuple[type, str], str]] = []
        for key, others in self.slicer.ambiguous(touched):
            for other in others:
                is_farther = " " in other
                (farther if is_farther else changes).append({key: other})
        pairs = []
        for first, second in product(changes, changes):
            both = first | second
            if len(both) > len(first):
                pairs.append(both)

        # 3. The first that works.
        current = dict(self.slicer.assignment)
        tries = [*[*changes, *pairs][:MAX_ASSIGNMENTS], *farther[:MAX_ASSIGNMENTS]]
        try:
            for change in tries[: self._assignments_left]:
                self._assignments_left -= 1
                self.slicer.assignment = current | change
                if self._failure(tried) is None:
                    return current | change
        finally:
            self.slicer.assignment = current
        return None

    def _failure(self, tried: Iterable[Option]) -> str | None:
        """Why the module does not work with small choices of these; None if it does."""
        # 1. Groups get different shares, so that equal sizes are not mistaken for each other.
        options = list(tried)
        groups = [choice for choice in options if isinstance(choice, Group)]
        sizes = {}
        for i, group in enumerate(groups):
            smaller = group.sizes[:-1]
            sizes[group] = smaller[i % len(smaller)]
        kernels = {choice: choice.sizes[0] for choice in options if isinstance(choice, Kernel)}
        skipped = tuple([choice for choice in options if isinstance(choice, Block)])

        # 2. Without the blocks, and with them.
        reason = self._reason(Choice(sizes, skipped, kernels))
        if reason is None and skipped:
            reason = self._reason(Choice(sizes, (), kernels))

        # 3. Every second group, since the code may need equal sizes, whatever these are.
        if reason is None and len(groups) > 1:
            reason = self._reason(Choice({group: sizes[group] for group in groups[::2]}))
        return reason

    @cached_property
    def _trial_in_training(self) -> TrainingTrial | None:
        whole = self.sub_module(Choice(), meta=True)
        read = {id(tensor) for tensor in self.reading.sources.values()}
        has_unread = any(id(parameter) not in read for parameter in self.module.parameters())
        return training_trial(self.example, whole, self._with_data(Choice()), has_unread)

    def _with_data(self, choice: Choice) -> Callable[[], nn.Module] | None:
        """Makes a sub-network with data; None if there are none."""
        tensors = *self.module.parameters(), *example_tensors(self.example)
        return None if any(x.is_meta for x in tensors) else partial(self.sub_module, choice)

    def _reason(self, choice: Choice) -> str | None:
        """Why a sub-network does not work; None if it does."""
        # 1. Without data: the recorded graph and the computed one have the same text.
        try:
            module = self.sub_module(choice, meta=True)
            # The recording first: it stops where the module does not run, mostly early.
            recorded = write(compact(record(module, self.example)))
            computed = write(compact(self.graph(choice)))
        except Exception as error:  # the module's own code may raise any
            return f"the module does not run with other sizes ({_first_line(error)})"
        if computed != recorded:
            return "the module's code has sizes of its own"

        # 2. In training mode, where other layers may run, such as auxiliary heads.
        make = self._with_data(choice)
        if self._trial_in_training is not None:
            try:
                self._trial_in_training(module, make)
            except Exception as error:
                return f"the module does not train with other sizes ({_first_line(error)})"

        # 3. With data, if there are any.
        if make is None:
            return None
        try:
            with torch.no_grad():
                run(make().eval(), self.example)
        except Exception as error:
            return f"the module does not run with other sizes ({_first_line(error)})"
        return None


def _atom_sizes(choice: Choice) -> dict[Atom, int]:
    """The numbers of positions of the atoms that are shortened."""
    sizes: dict[Atom, int] = {}
    for group, size in choice.sizes.items():
        for atom, number in group.atom_sizes(size).items():
            if number < atom.size:
                sizes[atom] = number
    return sizes


def _first_line(error: BaseException) -> str:
    return (describe(error).splitlines() or [""])[0][:120]


def _label(choice: Option) -> str:
    return f"depth.{choice.name}" if isinstance(choice, Block) else choice.name


def _is_of(choice: Option, groups: Iterable[Group]) -> bool:
    """True for a group whose atom is one of these groups'."""
    return isinstance(choice, Group) and any(choice.atom is group.atom for group in groups)


def _alike(choices: Iterable[Option]) -> list[list[Option]]:
    """Choices of the same kind and the same last part of the name.

    All heads of a network's attentions are one such list.
    """
    batches: dict[tuple[str, str], list[Option]] = {}
    for choice in choices:
        if isinstance(choice, Group):
            last = "" if choice.kind == HEADS else choice.name.rpartition(".")[2]
            key = choice.kind, last
        else:
            key = type(choice).__name__, ""
        batches.setdefault(key, []).append(choice)
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
