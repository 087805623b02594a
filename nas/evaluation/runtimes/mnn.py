"""MNN, for phones and other small devices. Its converter reads ONNX."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nas.evaluation.runtimes.base import LoadedNetwork, Runtime, output_names
from search_spaces.common.errors import InputError

_HALIDE = {"float32": "Halide_Type_Float", "int32": "Halide_Type_Int"}


class MNN(Runtime):
    name = "mnn"
    title = "MNN"
    extra = "mnn"
    modules = ("MNN", "_tools")
    packages = ("MNN",)

    def prepare(self, model: Path, folder: Path) -> Path:
        """A copy of the model in which strides are written out.

        The converter takes a missing attribute for 0, and the process ends by an illegal
        instruction where it divides by it.
        """
        import onnx

        network = onnx.load(model)
        bodies = [network.graph, *network.functions]
        for node in [node for body in bodies for node in body.node]:
            attributes = {attribute.name: attribute for attribute in node.attribute}
            if "kernel_shape" in attributes and "strides" not in attributes:
                ones = [1] * len(attributes["kernel_shape"].ints)
                node.attribute.append(onnx.helper.make_attribute("strides", ones))
        prepared = folder / "strided.onnx"
        onnx.save(network, prepared)
        return prepared

    def convert(self, model: Path, folder: Path, batch: int) -> Path:
        # What the command `mnnconvert` calls. Imported as `MNN.tools.mnnconvert`, it would install
        # packages with pip, and report each conversion to a server.
        import _tools

        file = folder / "model.mnn"
        arguments = ["mnnconvert", "-f", "ONNX", "--modelFile", str(model)]
        _tools.mnnconvert([*arguments, "--MNNModel", str(file), "--bizCode", "nas"])
        if not file.exists():
            raise InputError("mnnconvert wrote no file")
        # Sessions name outputs, in the order of their names.
        (folder / "model.outputs").write_text("\n".join(output_names(model)))
        return file

    def load(self, file: Path, threads: int) -> LoadedNetwork:
        import MNN

        interpreter = MNN.Interpreter(str(file))
        # "high" computes in float32; the default takes what is fast.
        session = interpreter.createSession(
            {"numThread": threads, "backend": "CPU", "precision": "high"}
        )
        return _Network(interpreter, session, file.with_suffix(".outputs").read_text().split("\n"))


class _Network(LoadedNetwork):
    def __init__(self, interpreter: Any, session: Any, outputs: Sequence[str]) -> None:
        self._interpreter, self._session = interpreter, session
        self._inputs = list(interpreter.getSessionInputAll(session).values())
        self._outputs = [interpreter.getSessionOutput(session, name) for name in outputs]

    def run(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        import MNN

        for tensor, values in zip(self._inputs, inputs, strict=True):
            tensor.copyFrom(_host_tensor(values))
        self._interpreter.runSession(self._session)
        results = []
        for output in self._outputs:
            shape = output.getShape()
            host = MNN.Tensor(
                shape,
                MNN.Halide_Type_Float,
                np.zeros(shape, np.float32),
                MNN.Tensor_DimensionType_Caffe,
            )
            output.copyToHostTensor(host)
            results.append(np.array(host.getNumpyData()))
        return results


def _host_tensor(values: np.ndarray) -> Any:
    import MNN

    if values.dtype.name not in _HALIDE:
        raise InputError(f"inputs of type {values.dtype} are not supported")
    kind = getattr(MNN, _HALIDE[values.dtype.name])
    return MNN.Tensor(values.shape, kind, values, MNN.Tensor_DimensionType_Caffe)
