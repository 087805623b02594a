"""Claims about devices of the user's, tested with a program that is as slow and flaky as a real
device.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import onnx
import pytest

from nas import cli
from nas.evaluation import device_command, device_measuring
from nas.evaluation.device_command import (
    DeviceCommand,
    DeviceError,
    measure_on_device,
    time_on_device,
)
from nas.evaluation.int8 import Calibration
from nas.evaluation.latency import LatencyTask
from nas.evaluation.measurement import Measurement, known_metrics, measurement_of
from nas.evaluation.runtimes import RUNTIMES
from nas.evaluation.trainable import Trainable
from search_spaces import InputError, flops, get_space

SPACE = get_space("tiny-resnet")
ARCHITECTURE = SPACE.sample(np.random.default_rng(0))
MODEL = SPACE.to_onnx(ARCHITECTURE)
BENCH = """
import os, sys, time
calls = sum(1 for _ in open("calls")) if os.path.exists("calls") else 0
with open("calls", "a") as file:
    file.write(f"{time.time()}\\n")
BEHAVIOUR
"""
FLAKY = """
if calls % 2 == 0:
    sys.exit("ssh: connect to host pi port 22: No route to host")
assert os.path.getsize(sys.argv[1]) > 10_000
print("[I] warming up ...")
print(10.0 + calls, "ms")
print("done in 3 iterations")
"""


class Bench:
    """Writes a device program with a behaviour, and keeps the pauses between retries (seconds)."""

    def __init__(self) -> None:
        self.pauses: list[float] = []

    def __call__(self, behaviour: str) -> str:
        Path("bench.py").write_text(BENCH.replace("BEHAVIOUR", behaviour))
        return f"{sys.executable} bench.py {{model}}"


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """Its pauses are recorded instead of waited for."""
    monkeypatch.chdir(tmp_path)
    bench = Bench()
    monkeypatch.setattr(device_command, "sleep", bench.pauses.append)
    return bench


def calls() -> int:
    return len(Path("calls").read_text().splitlines())


def test_a_flaky_device_is_tried_again_and_its_median_and_spread_count(bench: Bench) -> None:
    latency = time_on_device(MODEL, DeviceCommand(bench(FLAKY), "pi", warmup=1, runs=3))
    assert calls() == 8, "each of the four calls failed once"
    assert bench.pauses == [1.0] * 4
    assert latency.median == 15.0, "13, 15 and 17 count; 11 was the warm-up"
    assert latency.low == pytest.approx(13.4)
    assert latency.high == pytest.approx(16.6)


def test_the_command_gets_a_file_of_the_network_with_a_fixed_batch(bench: Bench) -> None:
    command = bench("import shutil; shutil.copy(sys.argv[1], 'seen.onnx'); print(1)")
    time_on_device(MODEL, DeviceCommand(command, warmup=0, runs=1), batch=2)
    seen = onnx.load("seen.onnx")
    onnx.checker.check_model(seen, full_check=True)
    assert seen.graph.input[0].type.tensor_type.shape.dim[0].dim_value == 2
    assert flops(seen) == flops(MODEL)
    assert MODEL.graph.input[0].type.tensor_type.shape.dim[0].dim_param, (
        "the given model is left as it was"
    )


@pytest.mark.parametrize(
    ("behaviour", "message"),
    [
        (
            "sys.exit('adb: no devices/emulators found')",
            r"pi: .*exit status 1: adb: no devices.* \(3 tries\)",
        ),
        (
            "print('latency unknown')",
            r"printed no line with a number of milliseconds: latency unknown",
        ),
        ("print(-1)", "printed -1, which is not a time"),
        ("print('1e999')", "printed inf, which is not a time"),
        ("pass", "printed no line"),
    ],
)
def test_a_device_that_does_not_answer_says_why(bench: Bench, behaviour: str, message: str) -> None:
    with pytest.raises(DeviceError, match=message):
        time_on_device(MODEL, DeviceCommand(bench(behaviour), "pi"))
    assert calls() == 3
    assert bench.pauses == [1.0, 2.0], "the pauses grow"


def test_a_hanging_device_is_given_up_with_all_that_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    command = "sleep 60 & echo $! > child; wait; cat {model}"
    started = time.monotonic()
    with pytest.raises(DeviceError, match=r"device: the command took more than 0\.5 s"):
        time_on_device(MODEL, DeviceCommand(command, timeout=0.5, retries=0))
    assert time.monotonic() - started < 20
    child = int(Path("child").read_text())
    for _ in range(100):
        if not Path(f"/proc/{child}").exists() or ") Z " in Path(f"/proc/{child}/stat").read_text():
            return
        time.sleep(0.05)
    os.kill(child, signal.SIGKILL)
    pytest.fail("what the command had started was still there")


@pytest.mark.parametrize(
    ("then", "timeout", "passes"), [("sleep 30", 0.5, False), ("echo 3", 20, True)]
)
def test_a_detached_process_of_the_command_is_not_waited_for(
    then: str, timeout: float, passes: bool
) -> None:
    command = f"setsid sleep 10 & {then}; : {{model}}"
    started = time.monotonic()
    with nullcontext() if passes else pytest.raises(DeviceError, match=r"took more than 0\.5 s"):
        assert (
            time_on_device(
                MODEL, DeviceCommand(command, warmup=0, runs=1, timeout=timeout, retries=0)
            ).median
            == 3
        )
    assert time.monotonic() - started < 8


def test_a_device_measures_one_network_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    command = "echo begin >> log; sleep 0.05; echo end >> log; echo 3; : {model}"
    threads = [
        threading.Thread(target=time_on_device, args=(MODEL, DeviceCommand(command)))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert Path("log").read_text().split() == ["begin", "end"] * 12


@pytest.mark.parametrize(
    ("text", "name", "command"),
    [
        ("pi=ssh pi ./bench {model}", "pi", "ssh pi ./bench {model}"),
        ("pi_latency_ms=./b {model}", "pi", "./b {model}"),
        ("./b --x=1 {model}", "device", "./b --x=1 {model}"),
        (
            "CUDA_VISIBLE_DEVICES=1 trtexec --onnx={model}",
            "device",
            "CUDA_VISIBLE_DEVICES=1 trtexec --onnx={model}",
        ),
    ],
)
def test_a_command_may_have_a_name(text: str, name: str, command: str) -> None:
    parsed = DeviceCommand.parse(text, {"runs": 5})
    assert (parsed.name, parsed.command, parsed.runs) == (name, command, 5)
    assert parsed.metric == f"{name}_latency_ms"


def test_control_characters_of_a_device_do_not_reach_the_terminal(bench: Bench) -> None:
    device = DeviceCommand(bench(r"print('\0low \x1b[31mpower')"), warmup=0, retries=0)
    with pytest.raises(DeviceError, match=r"milliseconds: \?low \?\[31mpower$"):
        time_on_device(MODEL, device)


def test_bad_commands_and_settings_are_refused() -> None:
    for text, settings, message in (
        ("pi=ssh pi ./bench", {}, r"lacks \{model\}"),
        ("b {model}", {"run": 3}, "did you mean 'runs'"),
        ("b {model}", {"runs": 0}, "an integer of at least 1"),
        ("b {model}", {"runs": 1.5}, "an integer of at least 1"),
        ("b {model}", {"timeout": 0}, "a positive number of seconds"),
        ("b {model}", {"timeout": "long"}, "timeout = long"),
    ):
        with pytest.raises(InputError, match=message):
            DeviceCommand.parse(text, settings)


def test_a_device_cannot_have_the_name_of_a_metric_of_this_machine() -> None:
    for name in ("cpu", "cpu_int8"):
        with pytest.raises(
            InputError, match=rf"{name}_latency_ms is measured on this machine: .* another name"
        ):
            Measurement(("params",), commands=(DeviceCommand("bench {model}", name),))


def test_a_measurement_on_devices_is_recreated_from_its_settings(bench: Bench) -> None:
    device = DeviceCommand(bench("print(4.5); print(5.5)"), "pi", warmup=0, runs=2)
    assert "pi_latency_ms" in known_metrics(LatencyTask(), None, [device])
    measurement = Measurement(("pi_latency_ms", "params"), commands=(device,))
    again = measurement_of(json.loads(json.dumps(measurement.settings)))
    assert again.commands == (device,)
    found = again(Trainable.of(SPACE, ARCHITECTURE), MODEL).values
    assert found["pi_latency_ms"].value == 5.0
    assert (found["pi_latency_ms"].low, found["pi_latency_ms"].high) == (4.5, 5.5)
    assert "2 calls" in found["pi_latency_ms"].spread


@pytest.mark.slow
def test_a_search_by_a_device_keeps_spreads_and_reasons(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = bench(
        "import hashlib; digest = hashlib.sha256(open(sys.argv[1], 'rb').read()).digest()\n"
        "if digest[0] % 3 == 0: sys.exit('Illegal instruction')\n"
        "print(digest[0] / 10 + calls % 2 / 100 + 1)"
    )
    search = [
        "nas", "search", "--space", "tiny-resnet", "--objectives", "params,pi_latency_ms", "--sampler", "random",
        "--evaluations", "12", "--latency-command", f"pi={command}", "--latency-setting", "runs=2",
        "--latency-setting", "retries=0", "--out", "out", "--json",
    ]  # fmt: skip
    done = subprocess.run(
        [search[0].replace("nas", sys.executable), "-m", "nas.cli", *search[1:]],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["front"]
    assert found["failures"]
    assert all("Illegal instruction" in failure["reason"] for failure in found["failures"])
    from nas.search.study.load import read_search

    spreads = read_search(Path("out/studies/random-0.journal")).spreads
    assert all(low < high for values in spreads.values() for low, high, _ in values.values())
    assert len(spreads) == 12 - len(found["failures"])


# --- any metric, and the file that the device needs


def test_a_command_prints_any_metric_with_its_spread(bench: Bench) -> None:
    printed = """print('{"board_energy_mj": {"value": 3, "spread": 0.5}, "board_ram_kb": [20, 22, 24], "other": 1}')"""
    text = f"board_energy_mj:min,board_ram_kb={bench(printed)}"
    command = DeviceCommand.parse_metrics(text, {"warmup": 0, "runs": 1})
    assert [str(m) for m in command.metrics] == ["board_energy_mj:min", "board_ram_kb:min"]
    assert [m.unit for m in command.metrics] == ["mj", "kb"]
    values = measure_on_device(MODEL, command)
    assert values["board_energy_mj"][:3] == (3.0, 2.5, 3.5)
    assert values["board_ram_kb"].median == 22
    assert 20 < values["board_ram_kb"].low < 22 < values["board_ram_kb"].high < 24


def test_a_declared_direction_holds_whatever_the_name_says(bench: Bench) -> None:
    command = DeviceCommand.parse_metrics(f"board_accuracy:min={bench('print(-2)')}")
    (metric,) = command.metrics
    assert (metric.kind, metric.direction, metric.price) == ("measured", "minimize", "measured")
    assert measure_on_device(MODEL, command)["board_accuracy"].median == -2


@pytest.mark.parametrize(
    ("printed", "message"),
    [
        ("print('{\"ram_kb\": 3}')", "no line with a number of energy_mj"),
        ("""print('{"ram_kb": 3, "energy_mj": "much"}')""", '"much" for energy_mj, which is no'),
        ("""print('{"ram_kb": 3, "energy_mj": NaN}')""", "nan, which is not a value of energy_mj"),
        ("""print('{"energy_mj": ' + 400 * "9" + "}")""", "9+ for energy_mj, which is no number"),
        ("print(5)", "no line with a number of energy_mj"),
    ],
)
def test_a_program_without_a_number_is_quoted(bench: Bench, printed: str, message: str) -> None:
    text = f"energy_mj,ram_kb={bench(printed)}"
    with pytest.raises(DeviceError, match=message) as error:
        measure_on_device(MODEL, DeviceCommand.parse_metrics(text, {"retries": 0}))
    assert "\n" not in str(error.value)


def test_zero_and_negative_times_are_no_times(bench: Bench) -> None:
    for value in (0, -1):
        command = DeviceCommand.parse_metrics(f"start_s={bench(f'print({value})')}", {"retries": 0})
        with pytest.raises(DeviceError, match=f"printed {value}, which is not a time in start_s"):
            measure_on_device(MODEL, command)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("./measure {model}", "write METRIC:min=COMMAND"),
        ("energy_mj:trained=./m {model}", "energy_mj: a command measures it without training"),
        ("params=./m {model}", "params: a command measures it without training, not 'counted'"),
        ("energy_mj:up=./m {model}", "bad suffix 'up'"),
        ("energy_mj=./m {onnx}", r"placeholder \{onnx\}, which is none of \{model\}, \{int8\}, "),
        ("energy_mj=./m", r"lacks \{model\}"),
    ],
)
def test_a_metric_command_that_cannot_be_understood_is_refused(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        DeviceCommand.parse_metrics(text)


def test_braces_of_shell_and_awk_are_no_placeholders() -> None:
    command = DeviceCommand("a=${HOME}; ./m {model} | awk '{ print }' | cut -c{1,2}")
    assert command.placeholders == ("model",)


def test_a_command_gets_the_file_in_8_bit_integers(bench: Bench) -> None:
    copy = "import shutil; shutil.copy(sys.argv[1], 'seen.onnx'); print(1)"
    command = bench(copy).replace("{model}", "{int8}")
    time_on_device(MODEL, DeviceCommand(command, warmup=0, runs=1))
    assert "QuantizeLinear" in {node.op_type for node in onnx.load("seen.onnx").graph.node}


def scale_of_the_image() -> float:
    """Step of the 8-bit integers of the network's input in `seen.onnx`."""
    graph = onnx.load("seen.onnx").graph
    (reader,) = [node for node in graph.node if graph.input[0].name in node.input]
    stored = {tensor.name: tensor for tensor in graph.initializer}
    return float(onnx.numpy_helper.to_array(stored[reader.input[1]]))


def test_inputs_of_the_user_set_the_ranges_of_that_file(bench: Bench) -> None:
    """Images from -8 to 8 need a scale of 16 / 255; noise has other ranges."""
    copy = "import shutil; shutil.copy(sys.argv[1], 'seen.onnx'); print(1)"
    command = DeviceCommand(bench(copy).replace("{model}", "{int8}"), warmup=0, runs=1)
    made = "np.linspace(-8, 8, 4 * 3 * 32 * 32, dtype='float32').reshape(4, 3, 32, 32)"
    Path("inputs.py").write_text(f"import numpy as np\nx = {made}\n")
    calibration = Calibration.read("inputs.py:x", SPACE.input_shape)
    network = Trainable.of(SPACE, ARCHITECTURE)
    Measurement((command.metric,), commands=(command,), calibration=calibration)(network, MODEL)
    assert scale_of_the_image() == pytest.approx(16 / 255, rel=0.02)
    Measurement((command.metric,), commands=(command,))(network, MODEL)
    assert scale_of_the_image() < 0.8 * 16 / 255


@pytest.mark.parametrize(
    "command",
    [
        "evaluate tiny-resnet --metrics board_latency_ms --latency-command board={program}",
        "profile tiny-resnet --latency-command board={program} --samples 2 --measured 1",
        "device add board --space tiny-resnet --latency-command {program} --networks 3 --json",
    ],
)
def test_all_commands_that_time_a_file_in_int8_take_inputs_for_its_ranges(
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """In double precision, as NumPy makes arrays; the networks take single."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NAS_DEVICES", str(tmp_path / "devices"))
    monkeypatch.setattr(device_measuring, "POOL_SIZE", 6)
    values = "np.linspace(-8, 8, 4 * 3 * 32 * 32).reshape(4, 3, 32, 32)"
    Path("inputs.py").write_text(f"import numpy as np\nx = {values}\nsmall = x[:, :1]\n")
    arguments = command.split()
    place = next(i for i, argument in enumerate(arguments) if "{program}" in argument)
    quick = ["--latency-setting", "warmup=0", "--latency-setting", "runs=1"]

    def run(program: str, inputs: str) -> tuple[int, str]:
        own = arguments[place].replace("{program}", program)
        line = [*arguments[:place], own, *arguments[place + 1 :], *quick, "--calibration", inputs]
        monkeypatch.setattr(sys, "argv", ["nas", *line])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        return int(stop.value.code or 0), capsys.readouterr().err

    status, errors = run("cp {int8} seen.onnx && wc -c < {int8}", "inputs.py:x")
    assert status == 0, errors
    assert scale_of_the_image() == pytest.approx(16 / 255, rel=0.02)
    status, errors = run("wc -c < {model}", "inputs.py:x")
    assert (status, errors.count("\n")) == (2, 1)
    assert "board_latency_ms are of floats: give a metric of int8" in errors
    status, errors = run("wc -c < {int8}", "inputs.py:small")
    assert (status, errors.count("\n")) == (2, 1)
    assert "have shape (1, 32, 32) without the samples, and the networks take (3, 32" in errors


@pytest.mark.parametrize("placeholder", ["openvino", "ncnn", "mnn", "pte", "tflite"])
def test_a_command_gets_the_file_of_its_runtime(placeholder: str, tmp_path: Path) -> None:
    runtime = RUNTIMES[device_command.CONVERTED[placeholder]]
    if not runtime.is_installed:
        pytest.skip(f"{runtime.title} is not installed: pip install 'rlm-nas[{runtime.extra}]'")
    command = f"board=cp {{{placeholder}}} {tmp_path}/seen && wc -c < {{{placeholder}}}"
    size = time_on_device(MODEL, DeviceCommand.parse(command, {"warmup": 0, "runs": 1})).median
    assert size == (tmp_path / "seen").stat().st_size > 100


def test_commands_with_declared_metrics_are_stored_and_opened_again(bench: Bench) -> None:
    command = DeviceCommand.parse_metrics(f"b_ram_kb,b_energy_mj:max={bench('print(1)')}")
    measurement = Measurement(("b_energy_mj",), commands=(command,))
    stored = json.loads(json.dumps(measurement.settings))
    assert measurement_of(stored).commands == (command,)
    plain = DeviceCommand("./m {model}")
    assert "declared" not in plain.settings
