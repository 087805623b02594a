"""`SharedWeights`: the parameters of all networks of a space, each stored once ("supernet").

Parameters of equal names share: a smaller one is the leading part of a larger one, along every axis
of channels, and the centre of it along the axes of a kernel. This holds for any space of plain
PyTorch modules, without special layers (Cai et al., "Once-for-All", ICLR 2020; Yu et al., "BigNAS",
ECCV 2020, share in the same way between layers made for it).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from search_spaces.common.errors import InputError
from search_spaces.common.files import replacing

if TYPE_CHECKING:
    from torch import Tensor, nn

METADATA = "nas supernet"  # key of the file's header


class _Place(NamedTuple):
    """One parameter of a module.

    Attributes:
        key: under which it is shared: its name, and the kind of its layer, since a convolution
            shares nothing with a normalization that has its name in another network.
        name: in the module.
        parameter: itself.
        kernel: first axis of the kernel; the number of axes if there is none.
    """

    key: str
    name: str
    parameter: nn.Parameter
    kernel: int


class SharedWeights:
    """The parameters of all networks of a space.

    Args:
        tensors: by key, as `tensors` of another one; none by default.
        about: what they were trained on, as JSON values.
    """

    def __init__(
        self, tensors: Mapping[str, Tensor] | None = None, about: Mapping[str, Any] | None = None
    ) -> None:
        self.tensors: dict[str, Tensor] = dict(tensors or {})
        self.about: dict[str, Any] = dict(about or {})

    def grow(self, module: nn.Module) -> None:
        """Make room for the parameters of a module.

        What is new or larger than before starts with the module's own values.
        """
        import torch

        for key, _, parameter, kernel in _places(module):
            old = self.tensors.get(key)
            own = parameter.detach()
            if old is None:
                self.tensors[key] = own.clone()
                continue
            sizes = [max(a, b) for a, b in zip(old.shape, own.shape, strict=True)]
            if sizes == list(old.shape):
                continue
            # Where both are smaller along some axis, the corner that neither has starts at zero.
            grown = torch.zeros(sizes, dtype=old.dtype)
            _part(grown, own.shape, kernel).copy_(own)
            _part(grown, old.shape, kernel).copy_(old)
            self.tensors[key] = grown

    def covers(self, module: nn.Module) -> bool:
        """True if every parameter of a module has weights here."""
        return self._lacking(module) is None

    def slices(self, module: nn.Module) -> dict[str, Tensor]:
        """The parameters of a module by name, as views of the shared ones.

        Raises:
            InputError: a parameter was never met, or only smaller.
        """
        if (name := self._lacking(module)) is not None:
            raise InputError(
                f"the supernet has no weights for {name} of this network: it was trained on "
                "another space, or did not meet this size"
            )
        return {
            name: _part(self.tensors[key], parameter.shape, kernel)
            for key, name, parameter, kernel in _places(module)
        }

    def load_into(self, module: nn.Module) -> None:
        """Set the parameters of a module; its buffers stay.

        Raises:
            InputError: see `slices`.
        """
        import torch

        views = self.slices(module)
        with torch.no_grad():
            for _, name, parameter, _ in _places(module):
                parameter.copy_(views[name])

    def _lacking(self, module: nn.Module) -> str | None:
        """Name of a parameter without weights here."""
        for key, name, parameter, _ in _places(module):
            stored = self.tensors.get(key)
            if stored is None or any(
                has < needs for has, needs in zip(stored.shape, parameter.shape, strict=True)
            ):
                return name
        return None

    # --- files

    def save(self, path: str | Path) -> None:
        """Write a .safetensors file, atomically.

        Raises:
            InputError: if the file cannot be written.
        """
        from safetensors.torch import save_file

        tensors = {key: tensor.detach().cpu().contiguous() for key, tensor in self.tensors.items()}
        with replacing(Path(path)) as file:
            save_file(tensors, file, metadata={METADATA: json.dumps(self.about)})

    @classmethod
    def load(cls, path: str | Path) -> SharedWeights:
        """Read a file that `save` wrote.

        Raises:
            InputError: if there is no such file, or it was not written by `save`.
        """
        from safetensors import safe_open

        try:
            with safe_open(str(path), framework="pt") as file:
                header = (file.metadata() or {}).get(METADATA)
                tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        except Exception as error:  # safetensors' errors share no base class with OSError
            reason = (str(error).splitlines() or [type(error).__name__])[0][:120]
            raise InputError(f"{path}: not a supernet ({reason})") from error
        if header is None:
            raise InputError(f"{path}: not a supernet: train one with nas supernet --space …")
        return cls(tensors, json.loads(header))


def _places(module: nn.Module) -> Iterator[_Place]:
    """The parameters of a module; tied ones once."""
    seen: set[int] = set()
    for prefix, layer in module.named_modules():
        grouped = " in groups" if getattr(layer, "groups", 1) != 1 else ""
        for own, parameter in layer.named_parameters(recurse=False):
            if id(parameter) in seen:
                continue
            seen.add(id(parameter))
            name = f"{prefix}.{own}" if prefix else own
            rank = parameter.dim()
            is_kernel = rank > 2 and hasattr(layer, "kernel_size")
            key = f"{name} ({type(layer).__name__}{grouped}, {rank} axes)"
            yield _Place(key, name, parameter, 2 if is_kernel else rank)


def _part(stored: Tensor, shape: tuple[int, ...], kernel: int) -> Tensor:
    """The leading part of a tensor, and its centre along the axes of a kernel."""
    index = []
    for axis, (has, needs) in enumerate(zip(stored.shape, shape, strict=True)):
        start = (has - needs) // 2 if axis >= kernel else 0
        index.append(slice(start, start + needs))
    return stored[tuple(index)]
