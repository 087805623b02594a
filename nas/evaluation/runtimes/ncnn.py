"""ncnn, for the CPUs of phones and boards. pnnx converts ONNX to its format."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from nas.evaluation.child_process import Finished, last_line
from nas.evaluation.runtimes.base import LoadedNetwork, Runtime, read_inputs
from search_spaces.common.errors import InputError

STANDARD_ERROR = 2  # file descriptor
_TYPES = {"float32": "f32", "int64": "i64", "int32": "i32"}


class Ncnn(Runtime):
    name = "ncnn"
    title = "ncnn"
    extra = "ncnn"
    modules = ("ncnn", "pnnx")
    packages = ("ncnn", "pnnx")

    def convert(self, model: Path, folder: Path, batch: int) -> Path:
        if batch != 1:
            raise InputError("ncnn runs one sample at a time: measure with batch = 1")
        shapes = []
        for shape, dtype in read_inputs(model, batch):
            if dtype not in _TYPES:
                raise InputError(f"inputs of type {dtype} are not supported")
            shapes.append(f"[{','.join(map(str, shape))}]{_TYPES[dtype]}")
        file = folder / "model.ncnn.param"
        weights = folder / "model.ncnn.bin"
        command = [_pnnx(), str(model), f"inputshape={','.join(shapes)}", "fp16=0"]
        command += [f"ncnnparam={file}", f"ncnnbin={weights}", f"ncnnpy={folder / 'ncnn.py'}"]
        command += [f"pnnxparam={folder / 'p.param'}", f"pnnxbin={folder / 'p.bin'}"]
        command += [f"pnnxpy={folder / 'p.py'}", f"pnnxonnx={folder / 'p.onnx'}"]
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", check=False, cwd=folder
        )
        if failure := Finished(done.returncode, done.stdout, done.stderr).failure:
            raise InputError(f"pnnx {failure}")
        if not file.exists():
            raise InputError("pnnx wrote no file")
        return file

    def load(self, file: Path, threads: int) -> LoadedNetwork:
        import ncnn

        network = ncnn.Net()
        network.opt.num_threads = threads
        for half in ("fp16_packed", "fp16_storage", "fp16_arithmetic", "bf16_storage"):
            setattr(network.opt, f"use_{half}", False)
        network.opt.use_vulkan_compute = False
        _load(network.load_param, file, "network")
        _load(network.load_model, file.with_suffix(".bin"), "weights")
        return _Network(network)


class _Network(LoadedNetwork):
    def __init__(self, network: Any) -> None:
        self._network = network
        self._inputs = network.input_names()
        self._outputs = network.output_names()

    def run(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        import ncnn

        extractor = self._network.create_extractor()
        for name, values in zip(self._inputs, inputs, strict=True):
            extractor.input(name, ncnn.Mat(values[0]))  # without the batch
        results = []
        for name in self._outputs:
            status, output = extractor.extract(name)
            if status != 0:
                raise InputError("ncnn cannot run the converted network")
            results.append(np.array(output))
        return results


def _load(reader: Callable[[str], int], file: Path, content: str) -> None:
    """Let ncnn read a file. What its C++ code prints meanwhile names a missing operator.

    Raises:
        InputError: it cannot.
    """
    with tempfile.TemporaryFile() as printed:
        original = os.dup(STANDARD_ERROR)
        os.dup2(printed.fileno(), STANDARD_ERROR)
        try:
            status = reader(str(file))
        finally:
            os.dup2(original, STANDARD_ERROR)
            os.close(original)
        printed.seek(0)
        reason = last_line(printed.read().decode(errors="replace"))
    if status != 0:
        raise InputError(f"ncnn cannot read the converted {content}{reason}")


def _pnnx() -> str:
    """The converter's program. Importing its package would load torch."""
    spec = find_spec("pnnx")
    assert spec is not None
    assert spec.origin is not None
    return str(Path(spec.origin).parent / "pnnx")
