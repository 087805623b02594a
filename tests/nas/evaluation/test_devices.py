"""Claims about devices whose latencies are predicted, tested with a program that is as flaky as a
real device.
"""

from __future__ import annotations

import csv
import json
import re
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nas import cli
from nas.evaluation import device_command, device_measuring
from nas.evaluation.device_command import DeviceCommand
from nas.evaluation.device_measuring import draw_pool, measure, quality
from nas.evaluation.devices import PredictedDevice, devices_of, list_devices
from nas.evaluation.measurement import Measurement, measurement_of
from nas.evaluation.trainable import Trainable
from search_spaces import InputError, get_space

SPACE = get_space("tiny-resnet")
# The larger the file, the longer it takes. Every second call fails, and files of some sizes always.
BENCH = """
import os, sys
size = os.path.getsize(sys.argv[1])
with open("calls", "a") as file:
    file.write(f"{size}\\n")
calls = sum(1 for _ in open("calls"))
if size % 7 == 0:
    sys.exit("operator not supported")
if calls % 2 == 0:
    sys.exit("no route to host")
print(size / 1000, "ms")
"""


@pytest.fixture(autouse=True)
def small_pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NAS_DEVICES", str(tmp_path / "devices"))
    monkeypatch.setattr(device_measuring, "POOL_SIZE", 40)
    monkeypatch.setattr(device_command, "sleep", lambda seconds: None)
    Path("bench.py").write_text(BENCH)


def command(program: str = "bench.py") -> DeviceCommand:
    return DeviceCommand(f"{sys.executable} {program} {{model}}", "pi", warmup=0, runs=1, retries=1)


def measured_device(count: int = 8) -> PredictedDevice:
    device = PredictedDevice("pi")
    device.begin({"command": "bench"})
    measure(device, SPACE, command(), count)
    return device


def run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str
) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["nas", *arguments])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    output = capsys.readouterr()
    return int(stop.value.code or 0), output.out, output.err


@pytest.mark.slow
def test_latencies_of_other_networks_follow_from_a_few_measurements_of_a_flaky_device() -> None:
    device = measured_device(10)
    assert len(device.texts) == 10
    pool = draw_pool(SPACE, 0)
    others = [text for text in pool if text not in device.tried]
    median, low, high = device.predict(others).T
    assert (low > 0).all()
    assert (low <= median).all()
    assert (median <= high).all()
    true = np.array([SPACE.to_onnx(pool[text]).ByteSize() for text in others])  # as `BENCH` tells
    assert np.corrcoef(median.argsort().argsort(), true.argsort().argsort())[0, 1] > 0.7
    found = quality(device, others)
    assert found.spearman > 0.5
    assert 0 < found.uncertainty < 0.8
    assert found.spread == 0  # it prints one number


def test_networks_that_cannot_be_timed_are_kept_with_their_reason_and_nothing_is_timed_twice() -> (
    None
):
    device = measured_device(4)
    before = dict(device.tried)
    again = PredictedDevice("pi")
    assert again.tried == before
    measure(again, SPACE, command(), 8)
    assert {text: again.tried[text] for text in before} == before
    timed = [int(line) for line in Path("calls").read_text().split()]
    assert len(timed) <= 2 * len(again.tried)  # two tries at most
    for row in again.tried.values():
        assert (row["ms"] is None) == ("operator not supported" in row["failure"])


def test_a_device_that_cannot_run_many_networks_is_measured_on_the_others() -> None:
    """The larger half of the networks: those beside the largest one fail, too."""
    sizes = [SPACE.to_onnx(one).ByteSize() for one in draw_pool(SPACE, 0).values()]
    limit = int(np.median(sizes))
    Path("small.py").write_text(
        f"import os, sys\nsize = os.path.getsize(sys.argv[1])\n"
        f"print(size if size <= {limit} else sys.exit('out of memory'))\n"
    )
    device = PredictedDevice("pi")
    device.begin({"command": "small"})
    measure(device, SPACE, command("small.py"), 4)
    assert len(device.texts) == 4
    assert len(device.failures) > 1


def test_a_device_that_is_not_there_is_given_up_after_ten_networks() -> None:
    Path("off.py").write_text("import sys\nsys.exit('no route to host')\n")
    device = PredictedDevice("pi")
    device.begin({"command": "off"})
    with pytest.raises(
        InputError,
        match=r"10 consecutive networks could not be timed; the last: .*no route to host",
    ):
        measure(device, SPACE, command("off.py"), 8)
    assert len(device.failures) == 10
    with pytest.raises(InputError, match="'pi' has 0 measured networks: measure at least 3"):
        device.predict(["text"])


def test_measurements_of_two_commands_do_not_mix() -> None:
    PredictedDevice("pi").begin({"command": "a"})
    with pytest.raises(InputError, match=r"'pi' was measured differently .*nas device remove pi"):
        PredictedDevice("pi").begin({"command": "b"})


@pytest.mark.parametrize("name", ["cpu", "My Pi", "../pi", "", "PI"])
def test_names_are_plain_and_differ_from_built_in_metrics(name: str) -> None:
    with pytest.raises(InputError, match="use lower-case letters"):
        PredictedDevice(name)


def test_a_search_is_not_resumed_after_further_measurements() -> None:
    device = measured_device(4)
    assert devices_of(["params", "pi_latency_ms"])[0].name == "pi"
    measurement = Measurement(("pi_latency_ms",), devices=(device,))
    settings = json.loads(json.dumps(measurement.settings))
    network = Trainable.of(SPACE, SPACE.sample(np.random.default_rng(0)))
    found = measurement_of(settings)(
        network, SPACE.to_onnx(SPACE.sample(np.random.default_rng(0)))
    ).values
    assert found["pi_latency_ms"].low <= found["pi_latency_ms"].value <= found["pi_latency_ms"].high
    assert "predicted from 4 networks" in found["pi_latency_ms"].spread
    measure(PredictedDevice("pi"), SPACE, command(), 5)
    with pytest.raises(InputError, match="'pi' has changed since"):
        measurement_of(settings)
    device.remove()
    with pytest.raises(InputError, match="'pi' is not stored here"):
        measurement_of(settings)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([("{first}", 1.5), ("{second}", 0.0)], "pi_latency_ms is 0, which is not a positive time"),
        (
            [("{first}", 1.5), ("{second}", -2.0)],
            "line 3, column 'pi_latency_ms': -2 is less than zero",
        ),
        (
            [("{first}", 1.5), ("{first}", 2.5)],
            "line 3: .* has other values above: keep one row, or their means",
        ),
        ([("nothing", 1.5)], "line 2: "),
    ],
)
def test_measurements_that_cannot_be_leave_no_device(
    rows: list[tuple[str, float]],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    first, second = (SPACE.format(architecture) for architecture in islice(SPACE.enumerate(), 2))
    with open("pi.csv", "w", newline="") as file:
        named = [(name.format(first=first, second=second), value) for name, value in rows]
        csv.writer(file).writerows([["architecture", "pi_latency_ms"], *named])
    add = ("device", "add", "pi", "--space", "tiny-resnet", "--measurements", "pi.csv")
    code, _, err = run(monkeypatch, capsys, *add, "--quiet")
    assert (code, err.count("\n")) == (2, 1)
    assert re.search(message, err)
    assert list_devices() == []


STRANGE: list[dict[str, Any]] = [
    {"ms": "x"},
    {"ms": [1]},
    {"ms": ["1", "1", "1"]},
    {"ms": [1, 1, 0]},
    {"ms": None, "failure": 1},
]


@pytest.mark.parametrize(
    "row", [3, {}, {"ms": None}, *({"architecture": "a", "failure": "", **row} for row in STRANGE)]
)
def test_a_strange_result_of_a_device_is_named(row: Any) -> None:
    device = PredictedDevice("pi")
    device.begin({"command": "bench"})
    device.add("text", "architecture", [1.0, 1.0, 1.0])
    device.add("other", "architecture", None, "no answer")
    assert len(PredictedDevice("pi").tried) == 2
    with (device.folder / "measurements.jsonl").open("a") as file:
        file.write(json.dumps(["strange", row]) + "\n")
    with pytest.raises(
        InputError, match=r"measurements\.jsonl: the line of 'strange' is damaged: remove it"
    ):
        PredictedDevice("pi")


def test_a_table_of_measurements_becomes_an_objective(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [
        [SPACE.format(a), SPACE.to_onnx(a).ByteSize()]
        for a in list(draw_pool(SPACE, 1).values())[::6]
    ]
    with open("pi.csv", "w", newline="") as file:
        csv.writer(file).writerows([["architecture", "pi_latency_ms"], *rows])
    add = ("device", "add", "pi", "--space", "tiny-resnet")
    code, out, _ = run(monkeypatch, capsys, *add, "--measurements", "pi.csv", "--json", "--quiet")
    assert code == 0
    assert json.loads(out)["measured"] == len(rows)
    assert list_devices() == ["pi"]
    search = (
        "search",
        "--space",
        "tiny-resnet",
        "--objectives",
        "pi_latency_ms,params:max",
        "--sampler",
        "random",
    )
    code, out, _ = run(
        monkeypatch, capsys, *search, "--evaluations", "3", "--out", "out", "--json", "--quiet"
    )
    assert code == 0
    assert all(0 < float(row["pi_latency_ms"]) < 1e9 for row in json.loads(out)["front"])
    table = (
        "search",
        "--benchmark",
        "digits201",
        "--objectives",
        "digits_accuracy,pi_latency_ms",
        "--out",
        "table",
    )
    code, _, err = run(monkeypatch, capsys, *table, "--quiet")
    assert (code, err.count("\n")) == (2, 1)
    assert "pi_latency_ms is predicted" in err
    run(monkeypatch, capsys, "sample", "--space", "tiny-resnet", "--out", "nets")
    code, out, _ = run(
        monkeypatch,
        capsys,
        "predict",
        "nets/0000.onnx",
        "--metrics",
        "pi_latency_ms,params",
        "--json",
    )
    ((row),) = json.loads(out)
    assert row["pi_latency_ms"]["std"] > 0 == row["params"]["std"]
    code, _, err = run(
        monkeypatch, capsys, "predict", "nets/0000.onnx", "--metrics", "phone_latency_ms"
    )
    assert (code, err) == (2, "nas: give --checkpoint: no device has the metric phone_latency_ms\n")
    code, out, _ = run(monkeypatch, capsys, "device", "remove", "pi")
    assert code == 0
    assert list_devices() == []
    code, _, err = run(monkeypatch, capsys, "device", "remove", "pi")
    assert (code, err.startswith("nas: unknown device 'pi'")) == (2, True)


def test_another_metric_is_learned_as_latencies_are_and_keeps_its_direction(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("rate.py").write_text("import os, sys; print(1e9 / os.path.getsize(sys.argv[1]))")
    measured = f"pi_tops:max={sys.executable} rate.py {{model}}"
    quick = ("--latency-setting", "warmup=0", "--latency-setting", "runs=1", "--quiet")
    add = ("device", "add", "pi", "--space", "tiny-resnet", "--networks", "6", *quick)
    code, out, _ = run(monkeypatch, capsys, *add, "--metric-command", measured, "--json")
    assert code == 0
    assert json.loads(out)["metric"] == "pi_tops"
    search = ("search", "--space", "tiny-resnet", "--objectives", "params,pi_tops")
    small = ("--sampler", "random", "--evaluations", "3", "--out", "out", "--json", "--quiet")
    code, out, err = run(monkeypatch, capsys, *search, *small)
    assert code == 0, err
    front = json.loads(out)["front"]
    best = max(front, key=lambda row: float(row["pi_tops"]))
    assert best["params"] == min(row["params"] for row in front)

    two = f"a_mj,b_mj={sys.executable} rate.py {{model}}"
    other = ("device", "add", "other", "--space", "tiny-resnet", "--metric-command", two, "--quiet")
    code, _, err = run(monkeypatch, capsys, *other)
    assert (code, err.count("\n")) == (2, 1)
    assert "a device predicts one metric, not 2" in err
