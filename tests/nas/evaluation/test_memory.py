"""Claims about measured peak memory: it counts a network's weights and activations, not the
runtime's own.
"""

from __future__ import annotations

import sys
from pathlib import Path

import onnx
import pytest

from nas.evaluation.child_process import TIMEOUT
from nas.evaluation.memory import measure_memory
from search_spaces.common.errors import InputError
from search_spaces.ir.builder import Network
from search_spaces.ir.onnx import to_model

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="peak memory is measured on Linux only"
)


def network(width: int, size: int) -> onnx.ModelProto:
    net = Network((3, size, size), 10)
    return to_model(net.graph(net.classifier(net.relu(net.conv(net.input, width)))))


def test_memory_is_that_of_the_activations() -> None:
    """64 channels of 256 × 256 pixels, float32: 16.8 MB; ONNX Runtime may keep two such values at a
    time.
    """
    assert 16 < measure_memory(network(64, 256)) < 60
    assert measure_memory(network(4, 8)) < 3


def test_parent_process_does_not_count() -> None:
    ballast = bytearray(200_000_000)
    assert measure_memory(network(4, 8)) < 3
    del ballast


def test_model_that_cannot_be_run_is_one_line() -> None:
    model = network(4, 8)
    model.graph.node[0].op_type = "NoSuchOperator"
    with pytest.raises(
        InputError, match="peak_memory_mb could not be measured: ONNX Runtime cannot run"
    ) as caught:
        measure_memory(model)
    assert "\n" not in str(caught.value)


def test_a_process_that_crashes_or_hangs_is_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    python = tmp_path / "python"
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setenv(TIMEOUT, "0.5")
    for script, reason in {
        "kill -SEGV $$": r"the process crashed \(SIGSEGV\)",
        "sleep 60": r"it took more than 0\.5 s",
    }.items():
        python.write_text(f"#!/bin/sh\n{script}\n")
        python.chmod(0o755)
        with pytest.raises(InputError, match=f"^peak_memory_mb could not be measured: {reason}$"):
            measure_memory(network(4, 8))


def test_python_that_is_gone_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(InputError, match="exit status 1"):
        measure_memory(network(4, 8))
