"""Sizes whose order matters: code such as `if self.inputs != self.outputs: x = self.shortcut(x)` takes
another branch where a sub-network's sizes are equal and the model's are not.

1. `neighbours`: the widths of what a layer reads and returns, if the layer's code compares anything.
2. `trial_sizes`: sizes with which such widths are equal, or in the opposite order. `prunable` tries them.
3. `keep_order`: where the module does not work with them, the larger width loses the sizes that are
   not above the smaller one.
"""

from __future__ import annotations

import dis
import inspect
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from torch import nn

from search_spaces.subnetworks.axes import Atom, Axis, atoms_of
from search_spaces.subnetworks.coupling import Coupling
from search_spaces.subnetworks.groups import Group
from search_spaces.subnetworks.reading import Reading


class Width(NamedTuple):
    """The size of an axis.

    Attributes:
        group: the group that it follows; None if it stays.
        factor: elements of the axis for each position of the group; the size of an axis that stays.
    """

    group: Group | None
    factor: int

    @property
    def whole(self) -> int:
        return self.factor if self.group is None else self.group.sizes[-1] * self.factor

    def options(self) -> dict[int, int]:
        """The group's size by size of the axis."""
        if self.group is None:
            return {self.factor: 0}
        return {size * self.factor: size for size in self.group.sizes}

    def chosen(self, size: int) -> dict[Group, int]:
        """The choice with which the axis has a size."""
        return {} if self.group is None else {self.group: self.options()[size]}


class Pair(NamedTuple):
    """Two widths that a layer may compare, of which the second one is larger in the model."""

    smaller: Width
    larger: Width


def neighbours(
    module: nn.Module,
    reading: Reading,
    coupling: Coupling,
    groups: Iterable[Group],
) -> list[Pair]:
    """Widths of what a layer with comparisons in its code reads, and of what it returns."""
    group_of = {group.atom: group for group in groups}
    pairs: dict[Pair, None] = {}
    for call in reading.recorder.calls:
        if call.source is None or not _compares(type(module.get_submodule(call.name))):
            continue
        results = [value for value in call.results if value is not None]
        read = _widths(coupling.axes.get(call.source, ()), group_of)
        made = [width for v in results for width in _widths(coupling.axes.get(v, ()), group_of)]
        for a in read:
            for b in made:
                smaller, larger = sorted((a, b), key=lambda width: width.whole)
                can_meet = larger.group is not None and min(larger.options()) <= smaller.whole
                if smaller.whole < larger.whole and can_meet:
                    pairs[Pair(smaller, larger)] = None
    return list(pairs)


def _compares(kind: type) -> bool:
    """True if a method of a class that is not torch's compares values, other than by identity."""
    if kind.__module__.startswith("torch."):
        return False
    for owner in kind.__mro__:
        if owner.__module__.startswith("torch."):
            continue
        for name, method in vars(owner).items():
            code = getattr(inspect.unwrap(method), "__code__", None) if callable(method) else None
            if code is None or name == "__init__":
                continue
            if any(step.opname == "COMPARE_OP" for step in dis.get_instructions(code)):
                return True
    return False


def _widths(axes: Sequence[Axis], group_of: Mapping[Atom, Group]) -> list[Width]:
    """The widths among the axes of a value: those of one group each, and those that stay."""
    widths = []
    for axis in axes:
        changing = {atom for atom in atoms_of(axis) if atom in group_of}
        if not changing and axis.size > 1:
            widths.append(Width(None, axis.size))
        elif len(changing) == 1:
            (atom,) = changing
            widths.append(Width(group_of[atom], axis.size // atom.size))
    return widths


def trial_sizes(pairs: Sequence[Pair]) -> list[dict[Group, int]]:
    """Few choices of sizes, so that each pair is once of equal widths, and once in opposite order."""
    trials: list[dict[Group, int]] = []
    for smaller, larger in pairs:
        equal = sorted(smaller.options().keys() & larger.options().keys(), reverse=True)
        alternatives = [smaller.chosen(size) | larger.chosen(size) for size in equal]
        _add(trials, alternatives)
        least = min(larger.options())
        if least < smaller.whole:
            _add(trials, [smaller.chosen(smaller.whole) | larger.chosen(least)])
    return trials


def _add(trials: list[dict[Group, int]], alternatives: Sequence[dict[Group, int]]) -> None:
    """Add one of some alternatives to the first trial that it does not contradict."""
    for trial in trials:
        for sizes in alternatives:
            if all(trial.get(group, size) == size for group, size in sizes.items()):
                trial.update(sizes)
                return
    if alternatives:
        trials.append(dict(alternatives[0]))


def keep_order(pair: Pair) -> bool:
    """Remove the sizes of the larger width that are not above the smaller one; False for none."""
    group = pair.larger.group
    assert group is not None
    options = pair.larger.options()
    kept = [options[size] for size in sorted(options) if size > pair.smaller.whole]
    is_less = len(kept) < len(group.sizes)
    group.sizes = tuple(kept)
    return is_less
