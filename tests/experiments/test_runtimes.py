"""The experiment of networks and runtimes, on a made-up table and on one real measurement."""

from __future__ import annotations

import json
import sys
from itertools import islice
from pathlib import Path

import numpy as np
import onnx
import pytest

from experiments.runtimes import measuring, study
from experiments.runtimes.__main__ import main
from experiments.runtimes.measuring import TABLE, candidates, measure_table, read_table
from nas.evaluation.journal import Journal
from nas.evaluation.latency import Latency, LatencyTask
from search_spaces.common.errors import InputError

RUNTIMES = ["onnxruntime", "openvino", "ncnn"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table in which the runtimes differ by a power of the latency and a little noise."""
    out = tmp_path_factory.mktemp("table")
    journal, rng = Journal(out / TABLE), np.random.default_rng(0)
    for network in islice(candidates(), 24):
        arch = network.architecture
        flops, params = network.space.flops(arch), network.space.params(arch)
        base = (flops / 1e8) ** 0.7 * (params / 1e6) ** 0.2
        for power, runtime in zip((1.0, 0.9, 1.2), RUNTIMES, strict=True):
            ms = 2 * base**power * float(np.exp(rng.normal(0, 0.02)))
            journal.append(f"{runtime} {network.name}", {"ms": [ms, ms, ms]})
    return out


def test_networks_are_distinct_take_turns_and_are_the_same_again() -> None:
    names = [network.name for network in islice(candidates(), 40)]
    assert len(set(names)) == 40
    assert names == [network.name for network in islice(candidates(), 40)]
    labels = [network.label for network in islice(candidates(), 22)]
    assert labels[:11] == labels[11:]
    assert len(set(labels)) == 11


@pytest.mark.parametrize("method", ["additive", "regression", "forest", "log-linear"])
def test_rivals_predict_a_new_runtime_from_ten_measurements(method: str, folder: Path) -> None:
    scores = study.score(method, "ncnn", 10, str(folder), ",".join(RUNTIMES), 0)
    assert scores["networks"] == 14
    if method == "regression":
        assert scores["rho"] > 0.97
        assert scores["error"] < 15
    else:
        assert scores["rho"] > 0.5


@pytest.mark.slow
@pytest.mark.parametrize("method", ["rlm", "rlm-costs"])
def test_the_rlm_reads_texts_and_known_runtimes(method: str, folder: Path) -> None:
    scores = study.score(method, "openvino", 10, str(folder), ",".join(RUNTIMES), 0)
    assert scores["rho"] > 0.9


def test_the_command_judges_a_stored_table(folder: Path) -> None:
    only, methods = ",".join(RUNTIMES), "regression,log-linear"
    main(folder, networks=0, only=only, methods=methods, seeds=2, first_seed=0, jobs=1)
    summary = json.loads((folder / "summary.json").read_text())
    better, worse = summary["rows"]
    assert better["error in %, 10"] < worse["error in %, 10"]
    assert summary["failed measurements"] == dict.fromkeys(RUNTIMES, 0)


def test_a_table_that_is_too_small_says_so(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="0 networks have values in all of ncnn; 20 are needed"):
        read_table(tmp_path, ["ncnn"])


def test_a_measured_table_continues_and_keeps_crashes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that ends at once is a crash; the next network gets a new one."""
    pytest.importorskip("openvino", reason="OpenVINO is not installed")
    monkeypatch.setattr(measuring, "CHILD", ["false"])
    measure_table(tmp_path, 1, ["openvino"], lambda *step: None)
    (failed,) = Journal(tmp_path / TABLE).known.values()
    assert failed["error"].startswith("crashed (1) while starting")

    (tmp_path / TABLE).unlink()
    monkeypatch.undo()
    steps: list[str] = []
    for _ in range(2):
        measure_table(tmp_path, 1, ["openvino"], lambda name, done, total: steps.append(name))
    (measured,) = Journal(tmp_path / TABLE).known.values()
    low, median, high = (measured["ms"][i] for i in (1, 0, 2))
    assert 0 < low <= median <= high
    assert steps == ["nasbench201, openvino", "", ""]


# A worker's process: it keeps the file that it gets and its job, and claims a time.
KEEPS_FILES = """
import json, pathlib, shutil, sys
for line in sys.stdin:
    folder = pathlib.Path(line.strip())
    job = json.loads((folder / "job.json").read_text())
    kept = pathlib.Path(sys.argv[1])
    shutil.copy(job["models"][0], kept / "openvino.onnx")
    (kept / "job.json").write_text(json.dumps(job))
    result = {"latency_ms": [1, 0.9, 1.1, ""], "difference": 0, "fallback_ops": 0, "size_mb": 1}
    temporary = folder / "written"
    temporary.write_text(json.dumps(result))
    temporary.rename(folder / "result.json")
"""


@pytest.mark.parametrize("suffix", ["", "-int8"])
def test_columns_of_int8_time_the_quantized_file(
    suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("openvino", reason="OpenVINO is not installed")
    timed: list[bytes] = []

    def time_serialized(models: list[bytes], task: LatencyTask) -> list[Latency]:
        timed.extend(models)
        return [Latency(2.0, 1.9, 2.1)]

    monkeypatch.setattr(measuring, "time_serialized", time_serialized)
    monkeypatch.setattr(measuring, "CHILD", [sys.executable, "-c", KEEPS_FILES, str(tmp_path)])
    columns = [f"onnxruntime{suffix}", f"openvino{suffix}"]
    measure_table(tmp_path, 1, columns, lambda *step: None)

    stored = {key.split()[0]: row["ms"][0] for key, row in Journal(tmp_path / TABLE).known.items()}
    assert stored == {columns[0]: 2.0, columns[1]: 1.0}
    (of_onnxruntime,) = timed
    of_openvino = (tmp_path / "openvino.onnx").read_bytes()
    for serialized in (of_onnxruntime, of_openvino):
        operators = {node.op_type for node in onnx.load_from_string(serialized).graph.node}
        assert ("QuantizeLinear" in operators) == bool(suffix)
    # Where both runtimes round, outputs differ by more than between floats.
    assert ("tolerance" in json.loads((tmp_path / "job.json").read_text())) == bool(suffix)
