"""OpenVINO, on Intel's and other x86 and Arm CPUs. It reads ONNX itself."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nas.evaluation.runtimes.base import LoadedNetwork, Runtime, read_inputs

if TYPE_CHECKING:
    import numpy as np


class OpenVINO(Runtime):
    name = "openvino"
    title = "OpenVINO"
    extra = "openvino"
    modules = ("openvino",)
    packages = ("openvino",)
    tells_fallback = True

    def convert(self, model: Path, folder: Path, batch: int) -> Path:
        import openvino

        network = openvino.Core().read_model(model)
        shapes = [list(shape) for shape, _ in read_inputs(model, batch)]
        network.reshape(dict(enumerate(shapes)))
        file = folder / "model.xml"  # and model.bin, the weights
        openvino.save_model(network, file, compress_to_fp16=False)
        return file

    def load(self, file: Path, threads: int) -> LoadedNetwork:
        import openvino

        settings = {
            "INFERENCE_NUM_THREADS": threads,
            "NUM_STREAMS": 1,
            "PERFORMANCE_HINT": "LATENCY",
            # The CPU plugin else takes bfloat16 where the processor has it.
            "INFERENCE_PRECISION_HINT": "f32",
        }
        compiled = openvino.Core().compile_model(str(file), "CPU", settings)
        return _Network(compiled)


class _Network(LoadedNetwork):
    def __init__(self, compiled: Any) -> None:
        self._request = compiled.create_infer_request()
        self._outputs = compiled.outputs
        self.fallback_ops = _count_reference_kernels(compiled)

    def run(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        results = self._request.infer(dict(enumerate(inputs)))
        return [results[output] for output in self._outputs]


def _count_reference_kernels(compiled: Any) -> int:
    """Layers without an optimized kernel, which OpenVINO's slow reference code runs."""
    layers = [node.get_rt_info() for node in compiled.get_runtime_model().get_ops()]
    return sum(str(layer["primitiveType"].value).startswith("ref") for layer in layers)
