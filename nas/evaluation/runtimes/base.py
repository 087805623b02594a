"""What a runtime is: it converts an ONNX file, and runs the converted file.

The rest of the package measures any of them alike. A new runtime is a file with a subclass of
`Runtime`, and a line in the table of `nas.evaluation.runtimes`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from search_spaces.common.errors import InputError

if TYPE_CHECKING:
    import numpy as np


class LoadedNetwork(ABC):
    """A converted network, ready to run.

    Attributes:
        fallback_ops: number of operators that do not run in the runtime's own kernels; None if the
            runtime does not tell.
    """

    fallback_ops: int | None = None

    @abstractmethod
    def run(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """One inference.

        Args:
            inputs: arrays in the order and of the shapes of the ONNX model's inputs.

        Returns:
            The outputs in the order of the ONNX model's.
        """


class Runtime(ABC):
    """Converts and runs networks.

    Converters may crash or hang, so that only a child process calls these methods
    (`nas.evaluation.runtimes.child`).

    Attributes:
        name: metrics begin with it, as `openvino_latency_ms`.
        title: the runtime's name in texts.
        extra: of this package, which installs it: `pip install 'rlm-nas[EXTRA]'`; "" if it is
            always there.
        modules: the Python modules that it needs.
        packages: distributions whose versions a latency depends on.
        tolerance: largest difference from ONNX Runtime's output that counts as equal, relative to
            the largest output.
        tells_fallback: True if it has the metric `NAME_fallback_ops`.
        tells_memory: True if it has the metric `NAME_peak_memory_mb`: a process that loads a file
            of the runtime holds little else.
        has_file: True if what it loads is a file of its own format, which can be deployed.
    """

    name: str
    title: str
    extra: str
    modules: tuple[str, ...]
    packages: tuple[str, ...]
    tolerance: float = 1e-3
    tells_fallback: bool = False
    tells_memory: bool = True
    has_file: bool = True

    @property
    def is_installed(self) -> bool:
        return not self._missing

    @property
    def _missing(self) -> list[str]:
        return [module for module in self.modules if find_spec(module) is None]

    def check_installed(self, metric: str) -> None:
        """Raise InputError with the command that installs the runtime, if it is missing."""
        if self._missing:
            raise InputError(
                f"{metric} needs {self.title} ({', '.join(self._missing)} not installed): "
                f"pip install 'rlm-nas[{self.extra}]'"
            )

    def prepare(self, model: Path, folder: Path) -> Path:
        """The ONNX file that is converted, and that ONNX Runtime runs for comparison.

        It is the model itself, unless the runtime needs another one of the same computation.
        """
        return model

    @abstractmethod
    def convert(self, model: Path, folder: Path, batch: int) -> Path:
        """Convert an ONNX file to the runtime's format.

        Args:
            model: the file.
            folder: an existing folder for the result, and for what the converter writes besides.
            batch: replaces a symbolic batch size.

        Returns:
            The file to load; others of its format may lie beside it.
        """

    @abstractmethod
    def load(self, file: Path, threads: int) -> LoadedNetwork:
        """Load a converted file, to be run on the CPU with this number of threads."""


class Input(NamedTuple):
    """Shape and NumPy type of an ONNX model's input."""

    shape: tuple[int, ...]
    dtype: str


def read_inputs(model: Path, batch: int) -> list[Input]:
    """The inputs of an ONNX file; `batch` replaces a symbolic first dimension.

    Raises:
        InputError: another dimension is symbolic.
    """
    import onnx

    graph = onnx.load(model, load_external_data=False).graph
    weights = {tensor.name for tensor in graph.initializer}
    inputs = []
    for value in graph.input:
        if value.name in weights:
            continue
        tensor = value.type.tensor_type
        first, *rest = tensor.shape.dim
        if any(not dim.HasField("dim_value") for dim in rest):
            raise InputError(f"input {value.name}: fix all sizes except the batch")
        size = first.dim_value if first.HasField("dim_value") else batch
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        inputs.append(Input((size, *[dim.dim_value for dim in rest]), dtype.name))
    return inputs


def output_names(model: Path) -> list[str]:
    """Names of an ONNX file's outputs."""
    import onnx

    return [value.name for value in onnx.load(model, load_external_data=False).graph.output]
