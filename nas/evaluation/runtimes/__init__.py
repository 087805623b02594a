"""Runtimes besides ONNX Runtime that measure networks on this machine: the one table of them."""

from __future__ import annotations

from importlib import import_module
from typing import NamedTuple

from nas.evaluation.runtimes.base import Runtime

__all__ = ["RUNTIMES", "RUNTIME_METRICS", "RuntimeMetric", "get_runtime"]

# Name of a runtime, which its metrics begin with: module in this package and class.
_CLASSES = {
    "openvino": "openvino:OpenVINO",
    "ncnn": "ncnn:Ncnn",
    "mnn": "mnn:MNN",
    "litert": "litert:LiteRT",
    "executorch": "executorch:ExecuTorch",
    "torch": "torch_module:TorchEager",
    "torch_compile": "torch_module:TorchCompiled",
}
RUNTIMES: dict[str, Runtime] = {}
for _name, _place in _CLASSES.items():
    _module, _, _class = _place.partition(":")
    RUNTIMES[_name] = getattr(import_module(f"{__name__}.{_module}"), _class)()


class RuntimeMetric(NamedTuple):
    """A metric that a runtime measures: which runtime, and the rest of the metric's name."""

    runtime: str
    quantity: str


def _metrics() -> dict[str, RuntimeMetric]:
    metrics = {}
    for name, runtime in RUNTIMES.items():
        quantities = ["latency_ms"]
        quantities += ["fallback_ops"] if runtime.tells_fallback else []
        quantities += ["peak_memory_mb"] if runtime.tells_memory else []
        quantities += ["size_mb"] if runtime.has_file else []
        for quantity in quantities:
            metrics[f"{name}_{quantity}"] = RuntimeMetric(name, quantity)
    return metrics


RUNTIME_METRICS = _metrics()
"""All metrics of runtimes by name, whether installed or not."""


def get_runtime(name: str) -> Runtime:
    """The runtime of this name."""
    return RUNTIMES[name]
