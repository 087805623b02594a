"""PyTorch itself, eager and compiled, and what runtimes need that convert from a PyTorch module."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from shutil import which
from typing import TYPE_CHECKING, Any

import numpy as np

from nas.evaluation.runtimes.base import LoadedNetwork, Runtime, read_inputs
from search_spaces.common.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor, nn

# For the compiler: worker processes would compute besides the network, and outlive it.
_COMPILER_THREADS = "TORCHINDUCTOR_COMPILE_THREADS"


class FromModule(Runtime):
    """Base of runtimes that convert from a PyTorch module: that of the network's graph."""

    def prepare(self, model: Path, folder: Path) -> Path:
        """The network as `to_model` writes it, from which the module takes its weights.

        A model of another origin gets initial weights: these matter neither for time nor for size.
        """
        import onnx

        from search_spaces.ir.onnx import from_model, to_model

        network = onnx.load(model)
        graph = from_model(network)
        try:
            module_of(network)
        except ValueError:
            prepared = folder / "prepared.onnx"
            onnx.save(to_model(graph), prepared)
            return prepared
        return model


class TorchEager(FromModule):
    name = "torch"
    title = "PyTorch"
    extra = ""
    modules = ("torch",)
    packages = ("torch",)
    tells_memory = False
    has_file = False

    def convert(self, model: Path, folder: Path, batch: int) -> Path:
        return model

    def load(self, file: Path, threads: int) -> LoadedNetwork:
        import onnx
        import torch

        torch.set_num_threads(threads)
        return _Network(self._ready(module_of(onnx.load(file))))

    def _ready(self, module: nn.Module) -> nn.Module:
        return module


class TorchCompiled(TorchEager):
    name = "torch_compile"
    title = "torch.compile"

    @property
    def is_installed(self) -> bool:
        return super().is_installed and _can_compile()

    def check_installed(self, metric: str) -> None:
        super().check_installed(metric)
        if not _can_compile():
            raise InputError(
                f"{metric} needs a C++ compiler and the headers of Python, for instance the "
                "packages g++ and python3-dev"
            )

    def _ready(self, module: nn.Module) -> nn.Module:
        import torch

        os.environ[_COMPILER_THREADS] = "1"
        compiled: Any = torch.compile(module)
        return compiled


def _can_compile() -> bool:
    """True if there is what torch.compile runs: a C++ compiler, with the headers of Python."""
    compilers = (os.environ.get("CXX"), "g++", "clang++", "c++")
    headers = Path(sysconfig.get_paths()["include"], "Python.h")
    return headers.is_file() and any(which(name) for name in compilers if name)


class _Network(LoadedNetwork):
    def __init__(self, module: nn.Module) -> None:
        self._module = module

    def run(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        import torch

        with torch.inference_mode():
            outputs = self._module(*map(torch.from_numpy, inputs))
        return [output.numpy() for output in outputs]


def module_of(model: Any) -> nn.Module:
    """The module of an ONNX model that `to_model` wrote, with its weights.

    It returns a tuple of all outputs.

    Raises:
        InputError: the model is of another origin, or PyTorch lacks an operator.
    """
    from nas.evaluation.module import GraphModule
    from search_spaces.ir.onnx import from_model

    class AllOutputs(GraphModule):
        def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
            values = self.values(*inputs)
            return tuple(values[output] for output in self.graph.outputs)

    module = AllOutputs(from_model(model))
    module.load_weights(model)
    return module.eval()


def example_inputs(model: Path, batch: int) -> tuple[Tensor, ...]:
    """Tensors of zeros of the shapes and types of an ONNX file's inputs."""
    import torch

    inputs = read_inputs(model, batch)
    return tuple(torch.from_numpy(np.zeros(shape, dtype)) for shape, dtype in inputs)
