"""`TorchSpace`: PyTorch modules as a search space."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from search_spaces import choosers
from search_spaces.choosers import Trial
from search_spaces.common.errors import InputError, NoExampleInput, describe, where
from search_spaces.common.files import weights_digest
from search_spaces.common.torchvision import lacks_operators, prepare_torchvision
from search_spaces.ir.graph import Graph, Shape, typed
from search_spaces.space import Architecture, SearchSpace

if TYPE_CHECKING:
    from torch import nn

    from search_spaces.shared_weights import SharedWeights


def no_example(name: str, owner: str = "", further: str = "") -> NoExampleInput:
    """Error for a space without an example input.

    Args:
        name: name of the space.
        owner: object that should have the attribute, followed by a dot; "" for a class attribute.
        further: what else the user may do.
    """
    return NoExampleInput(
        f"{name} has no example input: give one, such as `{owner}example_input = torch.zeros(1, 3, "
        f"32, 32)`{further}"
    )


class TorchSpace(SearchSpace):
    """A space whose `build(trial)` returns a `torch.nn.Module`.

    Either `build` is a function with an example input,

        >>> import numpy, torch
        >>> from torch import nn
        >>> from search_spaces import TorchSpace
        >>> def build(trial):
        ...     width = trial.suggest_int("width", 16, 64, step=16)
        ...     return nn.Sequential(nn.Conv2d(3, width, 3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(10))
        >>> build.example_input = torch.zeros(1, 3, 32, 32)
        >>> space = TorchSpace(build)
        >>> narrow = space.architecture({"width": 16})
        >>> space.params(narrow)  # 448 of the convolution, 144,010 of the linear layer
        144458

    or a subclass with the method `build(self, trial)` and the attribute `example_input`.

    The module itself is trained. Graph, ONNX, text and costs follow from one call of it without
    data, in evaluation mode (`search_spaces.ir.pytorch.record`).

    Args:
        build: function from a trial to a module; None in subclasses.
        example_input: arguments of `forward`, batch first: a tensor, a tuple of tensors, or a
            dictionary of keyword arguments. The default is the attribute of that name.
        options: keyword arguments of `build`. The option `input_shape` also sets the shape of the
            example input.

    Raises:
        InputError: if there is no example input, or `input_shape` does not match it.
        TypeError: if `build` does not take an option.
    """

    example_input: Any = None
    _supernet: tuple[str, str] | None = None  # file and SHA-256 of weights to start with
    _shared_weights: SharedWeights | None = None  # its content

    def __init__(
        self, build: Callable[..., Any] | None = None, example_input: Any = None, **options: Any
    ) -> None:
        if build is not None:
            self.build = build  # type: ignore[method-assign]
            named = build.func if isinstance(build, partial) else build
            self.name = self.name or getattr(named, "__name__", type(named).__name__)
        own = self.example_input if build is None else getattr(build, "example_input", None)
        self.example_input = own if example_input is None else example_input
        if self.example_input is None:
            raise no_example(self.name or type(self).__name__, "" if build is None else "build.")
        self._options = options
        inspect.signature(self.build).bind(None, **options)  # TypeError for unknown options
        if "input_shape" in options:
            self._reshape_example(tuple(options["input_shape"]))
        self.input_shape = self._shape_of_example()  # type: ignore[assignment]

    def _reshape_example(self, sizes: tuple[int, ...]) -> None:
        import torch

        if not isinstance(self.example_input, torch.Tensor) or min(sizes) < 1:
            raise InputError(f"{self.name}: input_shape = {sizes} does not fit the example input")
        self.example_input = torch.zeros((1, *sizes), dtype=self.example_input.dtype)

    def _shape_of_example(self) -> Shape:
        """Shape of the first tensor without the batch."""
        from search_spaces.ir.pytorch import example_tensors
        from search_spaces.ir.pytorch.calls import element

        tensors = example_tensors(self.example_input)
        if not tensors or not tensors[0].dim():
            raise InputError(
                f"{self.name}: the example input must hold a tensor, batch first, such as "
                "torch.zeros(1, 8)"
            )
        return typed(tensors[0].shape[1:], element(tensors[0].dtype))

    @property
    def options(self) -> dict[str, Any]:
        if self._supernet is None:
            return dict(self._options)
        path, sha256 = self._supernet
        return {**self._options, "start": str(Path(path).absolute()), "sha256": sha256}

    @property
    def inherits(self) -> bool:
        """True if modules start with the weights of a supernet."""
        return self._supernet is not None

    def inherit(self, supernet: str | Path, sha256: str = "") -> None:
        """Let all modules start with the weights that `nas supernet` trained for this space.

        Args:
            supernet: the file.
            sha256: its SHA-256, if it must be a certain one.

        Raises:
            InputError: if it is no such file, or another one.
        """
        from search_spaces.shared_weights import SharedWeights

        self._supernet = (str(supernet), weights_digest(supernet, sha256))
        self._shared_weights = SharedWeights.load(supernet)

    @cached_property
    def num_classes(self) -> int:  # type: ignore[override]
        """Last dimension of the first output, by building a random architecture."""
        graph = self.graph(self.sample(np.random.default_rng(0)))
        return int(graph.shapes[graph.outputs[0]][-1])

    def build(self, trial: Trial) -> nn.Module:  # type: ignore[override]
        """Build one module; `trial` makes the choices with Optuna's `suggest_*` methods."""
        raise InputError(f"{type(self).__name__} does not define build(self, trial)")

    def _built(self, trial: Trial) -> Any:
        """The module that `trial` chooses, without memory for its weights."""
        from search_spaces.ir.pytorch import without_weights

        with without_weights():
            return self._module(trial)

    def _module(self, trial: Trial) -> nn.Module:
        from torch import nn

        try:
            built = self.build(trial, **self._options)
        except Exception as error:  # `build` may import a library that imports torchvision
            from search_spaces.ir.pytorch import failed_tool

            if remedy := failed_tool(error):
                raise InputError(f"{where(error)}{remedy}") from error
            if not (lacks_operators(error) and prepare_torchvision()):
                raise
            built = self.build(trial, **self._options)
        if not isinstance(built, nn.Module):
            raise InputError(
                f"{self.name}: build returned {type(built).__name__}: it must return a "
                "torch.nn.Module"
            )
        return built

    def graph(self, arch: Architecture) -> Graph:
        from search_spaces.ir.pytorch import is_lazy, layer_of, record

        self.check_member(arch)
        with self.user_code():
            module = self._built(choosers.ReplayChooser(arch.as_dict()))
        module = self.module(arch) if is_lazy(module) else module
        try:
            return record(module, self.example_input, any_batch=True)
        except Exception as error:
            place = where(error) or f"{self.name}: "
            reason = describe(error).removeprefix(place)
            raise InputError(f"{place}{reason}{layer_of(error, module)}") from error

    def module(self, arch: Architecture) -> nn.Module:
        """The module of an architecture with its initial weights, or those of a supernet."""
        self.check_member(arch)
        with self.user_code():
            module = self._module(choosers.ReplayChooser(arch.as_dict()))
        if self._shared_weights is not None:
            self._shared_weights.load_into(self.with_sizes(module))
        return module

    def with_sizes(self, module: nn.Module) -> nn.Module:
        """The module, whose lazy layers get their sizes from one call."""
        import torch

        from search_spaces.ir.pytorch import is_lazy, run

        if is_lazy(module):
            with torch.no_grad():
                run(module.eval(), self.example_input)
        return module

    def example_arrays(self) -> Mapping[str, np.ndarray]:
        """The tensors of the example input by the input names of the ONNX model."""
        from search_spaces.ir.pytorch import example_tensors

        tensors = example_tensors(self.example_input)
        if len(tensors) == 1:
            return {"input": tensors[0].numpy()}
        return {f"input{i}": tensor.numpy() for i, tensor in enumerate(tensors)}
