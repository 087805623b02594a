"""LiteRT, formerly TensorFlow Lite, with XNNPACK. litert-torch converts from a PyTorch module.

litert-torch works without TensorFlow, and is kept by LiteRT's makers. onnx2tf, which reads ONNX,
needs TensorFlow.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nas.evaluation.runtimes.base import LoadedNetwork
from nas.evaluation.runtimes.torch_module import FromModule, example_inputs, module_of


class LiteRT(FromModule):
    name = "litert"
    title = "LiteRT"
    extra = "litert"
    modules = ("ai_edge_litert", "litert_torch", "litert_converter")
    packages = ("ai-edge-litert", "litert-torch")

    def convert(self, model: Path, folder: Path, batch: int) -> Path:
        import litert_torch
        import onnx

        converted: Any = litert_torch.convert(
            module_of(onnx.load(model)), example_inputs(model, batch)
        )
        file = folder / "model.tflite"
        converted.export(str(file))
        return file

    def load(self, file: Path, threads: int) -> LoadedNetwork:
        from ai_edge_litert.interpreter import Interpreter

        interpreter = Interpreter(str(file), num_threads=threads)
        interpreter.allocate_tensors()
        return _Network(interpreter)


class _Network(LoadedNetwork):
    def __init__(self, interpreter: Any) -> None:
        self._interpreter = interpreter
        self._inputs = [entry["index"] for entry in _in_order(interpreter.get_input_details())]
        self._outputs = [entry["index"] for entry in _in_order(interpreter.get_output_details())]

    def run(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        for index, values in zip(self._inputs, inputs, strict=True):
            self._interpreter.set_tensor(index, values)
        self._interpreter.invoke()
        return [self._interpreter.get_tensor(index) for index in self._outputs]


def _in_order(details: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Inputs or outputs in the order of the module's.

    The converter numbers them in their names, as `serving_default_args_1:0`.
    """

    def number(entry: dict[str, Any]) -> int:
        digits = entry["name"].partition(":")[0].rpartition("_")[2]
        return int(digits) if digits.isdigit() else 0

    return sorted(details, key=number)
