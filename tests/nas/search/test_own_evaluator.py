"""Claims about evaluators in a user's file: their arguments, what is stored, and messages for their
mistakes.
"""

from __future__ import annotations

import threading
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from optuna.visualization.matplotlib import plot_intermediate_values

from nas import Measurement, Problem, search
from nas.evaluation import machine
from nas.evaluation.latency import LatencyTask
from nas.evaluation.module import GraphModule
from nas.search.joining import join
from nas.search.own_evaluator import FunctionEvaluator, code_checksum
from nas.search.study.load import read_search
from nas.search.study.schema import EPOCH_KEY
from search_spaces import Architecture, SearchSpace, get_space
from search_spaces.common.errors import EvaluatorError, InputError

CODE = """
def evaluate(model, architecture, report, epochs=2, gain=1.0):
    size = sum(p.numel() for p in model.parameters())
    for epoch in range(1, epochs + 1):
        if not report(epoch, {"mAP": gain * epoch, "loss": 1 / epoch}):
            break
    return {"mAP": gain * size, "test_mAP": 0.5 * size, "epochs_done": epoch}
"""


@pytest.fixture
def space() -> SearchSpace:
    return get_space("tiny-resnet", input_shape=(1, 8, 8))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(CODE)
    return path


def run(
    space: SearchSpace,
    evaluator: FunctionEvaluator,
    folder: Path,
    evaluations: int = 3,
    **more: Any,
) -> Any:
    return search(
        Problem(space, evaluator, "mAP:max,flops"),
        sampler="random",
        evaluations=evaluations,
        storage=folder / "s.journal",
        **more,
    )


def own(
    space: SearchSpace, file: Path, metrics: tuple[str, ...] = ("mAP",), **options: Any
) -> FunctionEvaluator:
    return FunctionEvaluator(space, f"{file}:evaluate", metrics, Measurement(("flops",)), options)


def test_values_of_the_function_join_measured_ones_and_further_ones_are_stored(
    space: SearchSpace, file: Path, tmp_path: Path
) -> None:
    result = run(space, own(space, file, gain=3.0), tmp_path)
    for architecture, (quality, flops) in zip(*result.evaluated, strict=True):
        assert (quality, flops) == (3 * space.params(architecture), space.flops(architecture))
        assert result.further[architecture] == {
            "test_mAP": space.params(architecture) / 2,
            "epochs_done": 2,
        }


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
def test_reports_are_intermediate_values_and_attributes_of_the_trial(
    space: SearchSpace, file: Path, tmp_path: Path
) -> None:
    result = run(space, own(space, file, epochs=3), tmp_path, 1)
    (trial,) = result.study.trials
    assert trial.intermediate_values == {
        1: 1.0,
        2: 2.0,
        3: 3.0,
    }  # of the metric that was named first
    assert trial.user_attrs[f"{EPOCH_KEY}2"] == {"mAP": 2.0, "loss": 0.5}
    (line,) = plot_intermediate_values(result.study).get_lines()
    assert np.asarray(line.get_ydata()).tolist() == [
        1.0,
        2.0,
        3.0,
    ]  # Optuna's plot reads them, of several objectives, too


def test_report_ends_a_training_that_diverges(
    space: SearchSpace, file: Path, tmp_path: Path
) -> None:
    file.write_text(
        CODE.replace('"loss": 1 / epoch', '"loss": float("nan") if epoch == 2 else 1.0')
    )
    result = run(space, own(space, file, epochs=9), tmp_path, 1)
    assert result.further[result.evaluated.architectures[0]]["epochs_done"] == 2


def test_the_built_in_training_reports_its_curve(space: SearchSpace, tmp_path: Path) -> None:
    from nas.evaluation.datasets import digits
    from nas.evaluation.training import TrainingTask
    from nas.search.measured_evaluator import MeasuredEvaluator

    measurement = Measurement(
        ("digits_accuracy",), digits(train_images=64), training=TrainingTask(2)
    )
    result = search(
        Problem(space, MeasuredEvaluator(space, measurement), "digits_accuracy"),
        sampler="random",
        evaluations=1,
    )
    (trial,) = result.study.trials
    assert trial.intermediate_values.keys() == {1, 2}
    assert trial.intermediate_values[2] == trial.values[0]


def test_a_network_begins_with_the_same_weights_whenever_it_is_evaluated(
    space: SearchSpace,
) -> None:
    seen: list[torch.Tensor] = []

    def evaluate(
        model: torch.nn.Module, architecture: Architecture, report: Any
    ) -> dict[str, float]:
        assert isinstance(model, GraphModule)
        seen.append(next(model.parameters()).detach().clone())
        return {"mAP": 1.0}

    evaluator = FunctionEvaluator(space, evaluate, ["mAP"])
    first = next(iter(space.enumerate()))
    evaluator([first, first])
    assert torch.equal(*seen)
    assert evaluator.settings == {}  # no other process can open it


def test_an_exception_fails_the_trial_with_file_and_line(
    space: SearchSpace, file: Path, tmp_path: Path
) -> None:
    check = "    if architecture.as_dict()['width'] < 32: raise RuntimeError('no')\n"
    file.write_text(CODE.replace("    size", f"{check}    size", 1))
    result = run(space, own(space, file), tmp_path, 6)
    assert 0 < len(result.failures) < 6
    assert f"{file}, line 3: RuntimeError: no" in result.failures[0]["reason"]


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("return {'map': 1.0}", "the evaluator returned no 'mAP'; it returned map"),
        (
            "return {'mAP': 1, 'flops': 0.5}",
            "returned 'flops', which nas measures itself: rename it",
        ),
        (
            "model.extra = __import__('torch').nn.Linear(1, 1); return {'mAP': 1}",
            "added or removed weights",
        ),
    ],
)
def test_a_broken_contract_ends_the_search_at_once(
    space: SearchSpace, file: Path, tmp_path: Path, code: str, message: str
) -> None:
    file.write_text(f"def evaluate(model, architecture, report):\n    {code}\n")
    with pytest.raises(EvaluatorError, match=message):
        run(space, own(space, file), tmp_path)
    file.write_text(CODE)
    assert (
        len(run(space, own(space, file), tmp_path).evaluated.architectures) == 3
    )  # once it is mended


def test_a_function_that_does_not_take_its_arguments_is_refused(
    space: SearchSpace, file: Path
) -> None:
    with pytest.raises(
        InputError, match=r"must take \(model, architecture, report, speed\): .*'speed'"
    ):
        own(space, file, speed=2)
    with pytest.raises(
        InputError, match=r"unknown evaluator in .*mine.py: 'evaluat': did you mean 'evaluate'"
    ):
        FunctionEvaluator(space, f"{file}:evaluat", ["mAP"])
    with pytest.raises(InputError, match=r"'evaluate': write FILE.py:FUNCTION"):
        FunctionEvaluator(space, "evaluate", ["mAP"])


def test_values_of_an_edited_function_are_not_mixed_with_others(
    space: SearchSpace, file: Path, tmp_path: Path
) -> None:
    run(space, own(space, file), tmp_path)
    file.write_text(f"# a remark\n{CODE}")
    run(space, own(space, file), tmp_path, 4)
    file.write_text(CODE.replace("0.5 * size", "0.6 * size"))
    with pytest.raises(InputError, match=r"evaluator.sha256 .* another search"):
        run(space, own(space, file), tmp_path, 5)
    file.write_text(CODE)
    with pytest.raises(
        InputError,
        match=r"evaluator.options.gain 2.0, not 1.0|evaluator.options.gain None, not 2.0",
    ):
        run(space, own(space, file, gain=2.0), tmp_path, 5)


def test_checksums_are_of_code_alone(file: Path) -> None:
    before = code_checksum(file)
    file.write_text(CODE.replace("epochs=2", "epochs = 2"))
    assert code_checksum(file) == before
    file.write_text("def (")
    with pytest.raises(InputError, match=r"mine\.py: cannot be read as Python"):
        code_checksum(file)


def test_a_checksum_is_of_the_files_that_it_imports_too(file: Path) -> None:
    beside, package = file.with_name("my_losses.py"), file.with_name("my_data")
    package.mkdir()
    (package / "__init__.py").touch()
    for changed in (beside, package / "loading.py"):
        changed.write_text("size = 1\n")
    file.write_text(
        "import numpy\nfrom my_losses import size\n\ndef evaluate(m, a, r):\n    import "
        "my_data.loading\n"
    )
    found = {code_checksum(file)}
    for changed in (beside, package / "loading.py"):
        changed.write_text("size = 2\n")
        found.add(code_checksum(file))
    assert len(found) == 3
    file.with_name("other.py").write_text("size = 2\n")
    assert code_checksum(file) in found


def test_a_worker_runs_the_function_only_if_it_is_named_or_trusted(
    space: SearchSpace, file: Path, tmp_path: Path
) -> None:
    run(space, own(space, file), tmp_path)
    journal = tmp_path / "s.journal"
    read_search(journal).study.set_user_attr("nas:evaluations", 4)
    with pytest.raises(
        InputError, match=r"mine.py:evaluate, Python code that was not run: give --trust"
    ):
        join(journal)
    moved = file.rename(tmp_path / "moved.py")
    assert len(join(journal, evaluator=f"{moved}:evaluate").evaluated.architectures) == 4
    moved.rename(file)
    read_search(journal).study.set_user_attr("nas:evaluations", 5)
    assert len(join(journal, trust=True).evaluated.architectures) == 5
    file.write_text(CODE.replace("0.5", "0.7"))
    with pytest.raises(
        InputError, match="its code differs from the evaluator that the search was started with"
    ):
        join(journal, trust=True)


def test_latency_is_measured_as_without_a_function(space: SearchSpace) -> None:
    measurement = Measurement(("cpu_latency_ms",), latency=LatencyTask(runs=3, warmup=1, windows=1))
    evaluator = FunctionEvaluator(
        space, lambda model, architecture, report: {"mAP": 1.0}, ["mAP"], measurement
    )
    ((quality, latency),) = evaluator([next(iter(space.enumerate()))]).tolist()
    assert quality == 1
    assert latency > 0


def test_a_function_that_ends_the_process_fails_the_trial(
    space: SearchSpace, tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(
        CODE.replace("    for epoch", "    raise SystemExit(1)\n    for epoch", 1)
    )
    with pytest.raises(
        InputError, match=r"10 evaluations in a row failed.*mine.py, line 4: .* SystemExit\(1\)"
    ):
        run(space, own(space, tmp_path / "mine.py"), tmp_path, 12)


@pytest.mark.parametrize("epoch", ["1.0", "True", "np.int64(1)", "torch.tensor(1)"])
def test_any_whole_number_is_an_epoch_and_the_stored_search_can_be_read(
    space: SearchSpace, tmp_path: Path, epoch: str
) -> None:
    file = tmp_path / "mine.py"
    code = f"    report({epoch}, {{'mAP': 2.0}})\n    return {{'mAP': 1.0}}\n"
    file.write_text(
        f"import numpy as np, torch\ndef evaluate(model, architecture, report):\n{code}"
    )
    run(space, own(space, file), tmp_path, 1)
    (trial,) = read_search(tmp_path / "s.journal").study.trials
    assert trial.intermediate_values == {1: 2.0}
    assert trial.user_attrs[f"{EPOCH_KEY}1"] == {"mAP": 2.0}


def test_a_reported_tensor_may_have_a_gradient(space: SearchSpace) -> None:
    def evaluate(model: torch.nn.Module, architecture: Architecture, report: Any) -> dict[str, Any]:
        score = next(model.parameters()).sum()
        report(1, {"mAP": score})
        return {"mAP": score}

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = search(
            Problem(space, FunctionEvaluator(space, evaluate, ["mAP"]), "mAP:max"),
            sampler="random",
            evaluations=1,
        )
    (trial,) = result.study.trials
    assert trial.intermediate_values == {1: trial.value}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            "report(1.5, {'mAP': 1})",
            r"report\(1.5, …\): the epoch must be a whole number; the first epoch is 1",
        ),
        ("report('1', {'mAP': 1})", r"report\('1', …\): the epoch must be a whole number"),
        ("report(-1, {'mAP': 1})", r"report\(-1, …\): the epoch must be a whole number"),
        ("report(float('nan'), {'mAP': 1})", r"report\(nan, …\): the epoch must be a whole number"),
        ("report(2**31, {'mAP': 1})", r"report\(2147483648, …\): the epoch must be a whole number"),
        ("report(1, 0.5)", r"report\(1, 0.5\): give the values by metric"),
    ],
)
def test_a_wrong_report_ends_the_search_with_its_arguments(
    space: SearchSpace, tmp_path: Path, call: str, message: str
) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        f"def evaluate(model, architecture, report):\n    {call}\n    return {{'mAP': 1.0}}\n"
    )
    with pytest.raises(EvaluatorError, match=message):
        run(space, own(space, file), tmp_path, 1)


def test_a_training_waits_between_epochs_while_another_process_measures(
    space: SearchSpace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "_lock_file", lambda: tmp_path / "measuring.lock")
    begun, over = threading.Event(), threading.Event()
    seen: list[tuple[int, bool]] = []

    def measure() -> None:
        with machine.measuring():
            begun.set()
            time.sleep(0.5)
            over.set()

    def evaluate(model: Any, architecture: Any, report: Any) -> dict[str, float]:
        other = threading.Thread(target=measure)  # its own handle of the lock, as another process
        other.start()
        begun.wait()
        report(1, {"quality": 1.0})
        seen.append((1, over.is_set()))
        other.join()
        return {"quality": 1.0}

    evaluator = FunctionEvaluator(space, evaluate, ["quality"])
    search(Problem(space, evaluator, "quality:max"), sampler="random", evaluations=1)
    assert seen == [(1, True)]
