"""ExecuTorch with XNNPACK, PyTorch's own runtime for devices. It converts from a PyTorch module."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nas.evaluation.runtimes.base import LoadedNetwork
from nas.evaluation.runtimes.torch_module import FromModule, example_inputs, module_of


class ExecuTorch(FromModule):
    name = "executorch"
    title = "ExecuTorch"
    extra = "executorch"
    modules = ("executorch", "torchao")
    packages = ("executorch",)
    tells_fallback = True

    def convert(self, model: Path, folder: Path, batch: int) -> Path:
        import onnx
        import torch
        from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
        from executorch.exir import to_edge_transform_and_lower

        module = module_of(onnx.load(model))
        program = torch.export.export(module, example_inputs(model, batch))
        lowered = to_edge_transform_and_lower(program, partitioner=[XnnpackPartitioner()])
        file = folder / "model.pte"
        file.write_bytes(lowered.to_executorch().buffer)
        nodes = lowered.exported_program().graph.nodes
        fallback = _count_fallback(nodes)
        (folder / "fallback.json").write_text(json.dumps(fallback))
        return file

    def load(self, file: Path, threads: int) -> LoadedNetwork:
        from executorch.extension.pybindings import portable_lib
        from executorch.runtime import Runtime as Program

        portable_lib._unsafe_reset_threadpool(threads)
        method = Program.get().load_program(file).load_method("forward")
        counted = file.parent / "fallback.json"
        return _Network(method, json.loads(counted.read_text()) if counted.exists() else None)


class _Network(LoadedNetwork):
    def __init__(self, method: Any, fallback_ops: int | None) -> None:
        self._method, self.fallback_ops = method, fallback_ops

    def run(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        import torch

        outputs = self._method.execute([torch.from_numpy(values) for values in inputs])
        return [output.numpy() for output in outputs]


def _count_fallback(nodes: Any) -> int:
    """Calls outside of XNNPACK, which portable kernels run; views of delegates' results are none."""
    targets = [str(node.target) for node in nodes if node.op == "call_function"]
    return sum("executorch_call_delegate" not in t and "getitem" not in t for t in targets)
