"""Which channels stay: an importance of every position of a group, computed once per module.

A channel matters as much as what it is made of times what reads it: one that no layer reads has
importance 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from search_spaces.common.errors import InputError, unknown
from search_spaces.ir.pytorch.modules import run
from search_spaces.subnetworks.axes import Atom, Axis, atoms_of, labels_of
from search_spaces.subnetworks.coupling import Coupling
from search_spaces.subnetworks.groups import Group, source_names
from search_spaces.subnetworks.reading import Reading

Loss = Callable[[Any, Any], Tensor]


@dataclass(frozen=True)
class Importance:
    """How the importance of channels is computed.

    Attributes:
        kind: "magnitude": norms of the weights that make a channel, times those that read it.
            "taylor": the change of the loss without the channel, to first order, on `data`.
            "activation": mean absolute value of the channel on `data`, times the norms of the
            weights that read it.
        data: pairs of inputs and targets for "taylor", inputs for "activation". Each is a batch: a
            tensor, a tuple or a dictionary, as the example input.
        loss: of outputs and targets, for "taylor"; None for the cross-entropy of classes, or, for
            pairs without targets, for the squared outputs.
    """

    kind: str = "magnitude"
    data: Sequence[Any] = ()
    loss: Loss | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        kinds = ("magnitude", "taylor", "activation")
        if self.kind not in kinds:
            raise unknown("importance", self.kind, kinds)
        if self.kind != "magnitude" and not len(self.data):
            raise InputError(
                f"importance {self.kind!r} needs data: give importance_data, a list of batches"
            )

    def scores(
        self, module: nn.Module, reading: Reading, coupling: Coupling, groups: Sequence[Group]
    ) -> dict[Atom, np.ndarray]:
        """The importance (size,) of each position of each group's atom; equal ones for a module
        without weights.
        """
        if any(x.is_meta for x in module.parameters()):
            return {group.atom: np.ones(group.atom.size) for group in groups}
        if self.kind == "taylor":
            return self._taylor(module, reading, coupling, groups)
        made, read = _norms(reading, coupling, groups)
        if self.kind == "activation":
            made = self._activations(module, reading, coupling, groups) | {
                atom: norm for atom, norm in made.items() if not np.isfinite(norm).all()
            }
        return {
            group.atom: made.get(group.atom, np.ones(group.atom.size))
            * read.get(group.atom, np.ones(group.atom.size))
            for group in groups
        }

    def _taylor(
        self, module: nn.Module, reading: Reading, coupling: Coupling, groups: Sequence[Group]
    ) -> dict[Atom, np.ndarray]:
        """|sum of weight · gradient| over all weights of a position, mean over the batches."""
        totals = {group.atom: np.zeros(group.atom.size) for group in groups}
        places = _places(module, reading, coupling, totals)
        needs = {p: p.requires_grad for p in module.parameters()}
        try:
            for p in module.parameters():
                p.requires_grad_(p.is_floating_point())
            for inputs, targets in self.data:
                module.zero_grad(set_to_none=True)
                self._loss(run(module, inputs), targets).backward()
                change = {atom: np.zeros(len(total)) for atom, total in totals.items()}
                for parameter, dim, atom, labels in places:
                    if parameter.grad is None:
                        continue
                    product = (parameter.detach() * parameter.grad).double()
                    others = [i for i in range(product.dim()) if i != dim]
                    per_position = (
                        product.sum(others).cpu().numpy() if others else product.cpu().numpy()
                    )
                    _add(change[atom], labels, per_position)
                for atom, total in totals.items():
                    total += np.abs(change[atom])
        finally:
            module.zero_grad(set_to_none=True)
            for p, need in needs.items():
                p.requires_grad_(need)
        return totals

    def _loss(self, outputs: Any, targets: Any) -> Tensor:
        if self.loss is not None:
            return self.loss(outputs, targets)
        first = next(x for x in tree_leaves(outputs) if isinstance(x, Tensor))
        if targets is None:
            return first.square().mean()
        if targets.is_floating_point():
            return torch.nn.functional.mse_loss(first, targets)
        return torch.nn.functional.cross_entropy(first, targets)

    def _activations(
        self, module: nn.Module, reading: Reading, coupling: Coupling, groups: Sequence[Group]
    ) -> dict[Atom, np.ndarray]:
        """Mean absolute value of each position in the results of layers, relative to the mean of
        the layer.
        """
        chosen = {group.atom for group in groups}
        totals = {group.atom: np.zeros(group.atom.size) for group in groups}
        handles = []

        def listen(layer: nn.Module, axes: Sequence[Axis]) -> None:
            watched = [
                (dim, atom, labels_of(axis, atom))
                for dim, axis in enumerate(axes)
                for atom in dict.fromkeys(atoms_of(axis))
                if atom in chosen
            ]

            def hook(_: nn.Module, args: Any, output: Any) -> None:
                x = next((x for x in tree_leaves(output) if isinstance(x, Tensor)), None)
                if x is None or x.dim() != len(axes):
                    return
                for dim, atom, labels in watched:
                    others = [i for i in range(x.dim()) if i != dim]
                    mean = x.detach().abs().double().mean(others).cpu().numpy()
                    score = np.zeros(len(totals[atom]))
                    _add(score, labels, mean)
                    totals[atom] += score / max(score.mean(), 1e-12)

            if watched:
                handles.append(layer.register_forward_hook(hook))

        for call in reading.recorder.calls:
            value = next((v for v in call.results if v is not None), None)
            if value is not None and value in coupling.axes:
                listen(module.get_submodule(call.name), coupling.axes[value])
        try:
            with torch.no_grad():
                for inputs in self.data:
                    run(module, inputs)
        finally:
            for handle in handles:
                handle.remove()
        return totals


def _norms(
    reading: Reading, coupling: Coupling, groups: Sequence[Group]
) -> tuple[dict[Atom, np.ndarray], dict[Atom, np.ndarray]]:
    """Norms of what makes and of what reads each position: squares, each weight relative to its
    mean, added up.
    """
    chosen = {group.atom for group in groups}
    made: dict[Atom, np.ndarray] = {}
    read: dict[Atom, np.ndarray] = {}
    for role in coupling.roles:
        axes = coupling.weights[role.value]
        for sums, roles in ((made, role.makes), (read, role.reads)):
            for atom in {atom for axis in roles for atom in atoms_of(axis)} & chosen:
                squares = _squares(reading, role.value, axes, atom)
                if squares is not None:
                    sums[atom] = sums.get(atom, 0) + squares / max(squares.mean(), 1e-30)
    return ({atom: np.sqrt(x) for atom, x in sums.items()} for sums in (made, read))  # type: ignore[return-value]


def _squares(reading: Reading, value: int, axes: Sequence[Axis], atom: Atom) -> np.ndarray | None:
    """Sums of squares (size,) of a weight's elements at each position of an atom."""
    tensor = reading.numbers[value]()
    if not tensor.is_floating_point():
        return None
    squares, score = tensor.detach().double().square(), np.zeros(atom.size)
    for dim, axis in enumerate(axes):
        if any(a is atom for a in atoms_of(axis)):
            others = [i for i in range(squares.dim()) if i != dim]
            per_position = squares.sum(others) if others else squares
            _add(score, labels_of(axis, atom), per_position.cpu().numpy())
    return score


def _places(
    module: nn.Module, reading: Reading, coupling: Coupling, atoms: Iterable[Atom]
) -> list[tuple[nn.Parameter, int, Atom, np.ndarray]]:
    """Parameter, dimension, atom and labels of each place where an atom occurs."""
    chosen = set(atoms)
    return [
        (tensor, dim, atom, labels_of(axis, atom))
        for value in source_names(module, reading)
        if isinstance(tensor := reading.sources[value], nn.Parameter)
        for dim, axis in enumerate(coupling.weights[value])
        for atom in dict.fromkeys(atoms_of(axis))
        if atom in chosen
    ]


def _add(score: np.ndarray, labels: np.ndarray, values: np.ndarray) -> None:
    """Add values (n,) to the positions (n,) that they belong to; -1 belongs to none."""
    inside = labels >= 0
    np.add.at(score, labels[inside], values[inside])
