"""Which channels stay: an importance of every position of a group, computed once per module.

- Magnitude: a channel matters as much as what it is made of times what reads it. One that no layer
  reads has importance 0. Both are norms of weights, each relative to the mean of its tensor.
- Taylor: how much the loss would change without the channel, to first order: the sum of weight times
  gradient over all of its weights (Molchanov et al., 2019).
- Activation: how large the channel is on data, times what reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

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

    @property
    def inputs(self) -> list[Any]:
        """The batches of inputs in `data`."""
        return [inputs for inputs, _ in self.data] if self.kind == "taylor" else list(self.data)

    def scores(
        self,
        module: nn.Module,
        reading: Reading,
        coupling: Coupling,
        groups: Sequence[Group],
    ) -> dict[Atom, np.ndarray]:
        """The importance (size,) of each position of each group's atom.

        For a module without weights, all are equal.
        """
        atoms = [group.atom for group in groups]
        equal = {atom: np.ones(atom.size) for atom in atoms}
        if any(x.is_meta for x in module.parameters()):
            return equal
        if self.kind == "taylor":
            return self._taylor(module, reading, coupling, atoms)
        made, read = _norms(reading, coupling, atoms)
        if self.kind == "activation":
            activations = self._activations(module, reading, coupling, atoms)
            # Norms that are not finite stay as they are.
            for atom, norm in made.items():
                if not np.isfinite(norm).all():
                    activations[atom] = norm
            made = activations
        scores = {}
        for atom, ones in equal.items():
            scores[atom] = made.get(atom, ones) * read.get(atom, ones)
        return scores

    def _taylor(
        self,
        module: nn.Module,
        reading: Reading,
        coupling: Coupling,
        atoms: Sequence[Atom],
    ) -> dict[Atom, np.ndarray]:
        """|sum of weight · gradient| over all weights of a position, sum over the batches."""
        totals = {atom: np.zeros(atom.size) for atom in atoms}
        places = _places(module, reading, coupling, atoms)
        required_grad = {p: p.requires_grad for p in module.parameters()}
        try:
            for p in module.parameters():
                p.requires_grad_(p.is_floating_point())
            for inputs, targets in self.data:
                # 1. Gradients of the loss of a batch.
                module.zero_grad(set_to_none=True)
                self._loss(run(module, inputs), targets).backward()
                # 2. The change without a position: of all weights along each of its places.
                changes = {atom: np.zeros(atom.size) for atom in atoms}
                for parameter, (dim, atom, labels) in places:
                    if parameter.grad is not None:
                        product = (parameter.detach() * parameter.grad).double()
                        _add(changes[atom], labels, _sums_along(product, dim))
                for atom, change in changes.items():
                    totals[atom] += np.abs(change)
        finally:
            module.zero_grad(set_to_none=True)
            for p, required in required_grad.items():
                p.requires_grad_(required)
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
        self,
        module: nn.Module,
        reading: Reading,
        coupling: Coupling,
        atoms: Sequence[Atom],
    ) -> dict[Atom, np.ndarray]:
        """Mean absolute value of each position in the results of layers.

        It is relative to the mean of the layer.
        """
        totals = {atom: np.zeros(atom.size) for atom in atoms}
        handles = []
        # 1. Listen to each layer of whose result an axis contains an atom.
        for call in reading.recorder.calls:
            value = next((v for v in call.results if v is not None), None)
            axes = coupling.axes.get(value, ()) if value is not None else ()
            watched = _occurrences(axes, totals)
            if watched:
                hook = _listener(len(axes), watched, totals)
                layer = module.get_submodule(call.name)
                handles.append(layer.register_forward_hook(hook))
        # 2. Run the module.
        try:
            with torch.no_grad():
                for inputs in self.data:
                    run(module, inputs)
        finally:
            for handle in handles:
                handle.remove()
        return totals


class _Occurrence(NamedTuple):
    """A place where an atom occurs in an axis of a tensor.

    Attributes:
        dim: dimension of the axis.
        atom: the atom.
        labels: (size of the axis,) for each position of the axis that of the atom, or -1.
    """

    dim: int
    atom: Atom
    labels: np.ndarray


def _listener(
    rank: int,
    watched: Sequence[_Occurrence],
    totals: dict[Atom, np.ndarray],
) -> Callable[..., None]:
    """A hook that adds the sizes of a layer's results to the totals.

    Args:
        rank: number of axes of the result.
        watched: where atoms occur in the result.
        totals: by atom.
    """

    def hook(_: nn.Module, args: Any, output: Any) -> None:
        x = next((x for x in tree_leaves(output) if isinstance(x, Tensor)), None)
        if x is None or x.dim() != rank:
            return
        for dim, atom, labels in watched:
            others = [i for i in range(rank) if i != dim]
            mean = x.detach().abs().double().mean(others).cpu().numpy()
            score = np.zeros(atom.size)
            _add(score, labels, mean)
            totals[atom] += score / max(score.mean(), 1e-12)

    return hook


def _norms(
    reading: Reading,
    coupling: Coupling,
    atoms: Sequence[Atom],
) -> tuple[dict[Atom, np.ndarray], dict[Atom, np.ndarray]]:
    """Norms (size,) of what makes and of what reads each position.

    Squares, for each weight relative to its mean square, are added up over the weights.
    """
    made: dict[Atom, np.ndarray] = {}
    read: dict[Atom, np.ndarray] = {}
    for role in coupling.roles:
        for sums, axes in ((made, role.makes), (read, role.reads)):
            touched = {atom for axis in axes for atom in atoms_of(axis)}
            for atom in touched.intersection(atoms):
                squares = _squares(reading, role.value, coupling.weights[role.value], atom)
                if squares is not None:
                    sums[atom] = sums.get(atom, 0) + squares / max(squares.mean(), 1e-30)
    for sums in (made, read):
        for atom, total in sums.items():
            sums[atom] = np.sqrt(total)
    return made, read


def _squares(
    reading: Reading,
    value: int,
    axes: Sequence[Axis],
    atom: Atom,
) -> np.ndarray | None:
    """Sums of squares (size,) of a weight's elements at each position of an atom."""
    tensor = reading.numbers[value]()
    if not tensor.is_floating_point():
        return None
    squares = tensor.detach().double().square()
    score = np.zeros(atom.size)
    for dim, _, labels in _occurrences(axes, [atom]):
        _add(score, labels, _sums_along(squares, dim))
    return score


def _places(
    module: nn.Module,
    reading: Reading,
    coupling: Coupling,
    atoms: Sequence[Atom],
) -> list[tuple[nn.Parameter, _Occurrence]]:
    """The places where atoms occur in parameters."""
    places = []
    for value in source_names(module, reading):
        tensor = reading.sources[value]
        if isinstance(tensor, nn.Parameter):
            for occurrence in _occurrences(coupling.weights[value], atoms):
                places.append((tensor, occurrence))
    return places


def _occurrences(
    axes: Sequence[Axis],
    atoms: Iterable[Atom],
) -> list[_Occurrence]:
    """The places where atoms occur in the axes of a tensor."""
    chosen = set(atoms)
    occurrences = []
    for dim, axis in enumerate(axes):
        for atom in dict.fromkeys(atoms_of(axis)):
            if atom in chosen:
                occurrences.append(_Occurrence(dim, atom, labels_of(axis, atom)))
    return occurrences


def _sums_along(x: Tensor, dim: int) -> np.ndarray:
    """Sums over all other axes, (size of the axis,)."""
    others = [i for i in range(x.dim()) if i != dim]
    return (x.sum(others) if others else x).cpu().numpy()


def _add(score: np.ndarray, labels: np.ndarray, values: np.ndarray) -> None:
    """Add values (n,) to the positions (n,) that they belong to; -1 belongs to none."""
    inside = labels >= 0
    np.add.at(score, labels[inside], values[inside])
