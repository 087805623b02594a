"""Claims about the identity of a search: a resumed one never mixes values of different origin."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import predictors
from nas import Measurement, Problem, load_benchmark, search
from nas.comparison.runs import open_studies
from nas.evaluation.datasets import digits
from nas.evaluation.latency import LatencyTask
from nas.evaluation.training import TrainingTask
from nas.search.evaluators import PredictionEvaluator, TableEvaluator, as_evaluator
from nas.search.measured_evaluator import MeasuredEvaluator
from nas.search.objectives import parse_objectives
from nas.search.study import provenance
from nas.search.study.load import read_search
from nas.search.study.provenance import check_same, command, provenance_of
from nas.search.study.schema import IDENTITY_KEY
from nas.search.study.trials import TrialReader
from search_spaces import SearchSpace, get_space
from search_spaces.common.errors import InputError

SPACE_FILE = """
from search_spaces import SearchSpace

class Mine(SearchSpace):
    input_shape, num_classes = (1, 8, 8), 10

    def build(self, trial, net):
        x = net.conv_bn_relu(net.input, trial.suggest_categorical("width", [4, 8, 12]), kernel=KERNEL)
        for i in range(trial.suggest_int("blocks", 1, 4)):
            x = net.conv_bn_relu(x, 8)
        return net.classifier(x)
"""


class Params:
    """An evaluator of the user's that returns parameters."""

    metrics = ("params",)

    def __init__(self, space: SearchSpace, **settings: Any) -> None:
        self.space, self.settings = space, settings

    def __call__(self, architectures: Any) -> np.ndarray:
        return np.array([[self.space.params(a)] for a in architectures], dtype=float)


def run(folder: Path, space: SearchSpace, evaluations: int = 3, **settings: Any) -> None:
    search(
        Problem(space, Params(space, **settings), "params"),
        sampler="random",
        evaluations=evaluations,
        storage=folder / "j.log",
    )


def mine(folder: Path, kernel: int = 3, more: str = "") -> SearchSpace:
    (folder / "mine.py").write_text(
        SPACE_FILE.replace("KERNEL", str(kernel)).replace("[4, 8, 12]", f"[4, 8, 12{more}]")
    )
    return get_space(f"{folder}/mine.py:Mine")


# --- the space


def test_a_space_whose_file_was_edited_is_refused_with_what_differs_and_the_remedy(
    tmp_path: Path,
) -> None:
    run(tmp_path, mine(tmp_path))
    with pytest.raises(
        InputError,
        match=r"other networks \(32 of 32 sampled ones differ\): .* another search \(--new",
    ):
        run(tmp_path, mine(tmp_path, kernel=5), 5)
    with pytest.raises(InputError, match="started with a space with other choices"):
        run(tmp_path, mine(tmp_path, more=", 16"), 5)
    assert len(read_search(tmp_path / "j.log").study.trials) == 3
    run(tmp_path, mine(tmp_path), 5)
    assert len(read_search(tmp_path / "j.log").evaluated.architectures) == 5


def test_the_same_space_goes_on_under_another_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine(tmp_path)
    monkeypatch.chdir(tmp_path)
    run(tmp_path, get_space("mine.py:Mine"))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    run(tmp_path, get_space("../mine.py:Mine"), 4)
    run(tmp_path, mine(tmp_path / "elsewhere"), 5)
    assert len(read_search(tmp_path / "j.log").evaluated.architectures) == 5
    assert open_studies(tmp_path / "j.log", trust=True).not_built is None, (
        "its file is found from any folder"
    )


def test_all_differences_are_in_one_message(tmp_path: Path) -> None:
    run(tmp_path, mine(tmp_path), epochs=6)
    space = mine(tmp_path, kernel=5)
    with pytest.raises(InputError) as caught:
        search(
            Problem(space, Params(space, epochs=8), "params"),
            sampler="random",
            evaluations=3,
            seed=4,
            storage=tmp_path / "j.log",
        )
    for difference in ("seed 0, not 4", "evaluator.epochs 6, not 8", "builds other networks"):
        assert difference in str(caught.value)


def test_a_slow_space_is_compared_by_fewer_networks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(provenance, "MAX_SAMPLING_SECONDS", 0.0)
    run(tmp_path, mine(tmp_path))
    monkeypatch.undo()
    with pytest.raises(InputError, match="1 of 1 sampled ones"):
        run(tmp_path, mine(tmp_path, kernel=5))


def test_a_space_that_fails_for_some_choices_has_a_fingerprint(switches: SearchSpace) -> None:
    class Picky(type(switches)):  # type: ignore[misc]
        def build(self, trial: Any, net: Any) -> Any:
            x = super().build(trial, net)
            if trial.suggest_categorical("bad", [False, True]):
                raise ValueError("not this one")
            return x

    def networks() -> Any:
        space = Picky()
        reader = TrialReader(space, parse_objectives("params"), ())
        return provenance_of(reader, as_evaluator(Params(space)))["identity"]["networks"]

    assert networks() == networks()
    assert len({text for _, text in networks()}) > 2


def test_a_study_without_a_fingerprint_is_refused(tmp_path: Path) -> None:
    run(tmp_path, mine(tmp_path))
    lines = (tmp_path / "j.log").read_text().splitlines(keepends=True)
    (tmp_path / "j.log").write_text("".join(line for line in lines if IDENTITY_KEY not in line))
    with pytest.raises(InputError, match="stored no fingerprint"):
        run(tmp_path, mine(tmp_path))


# --- where values come from


def write_table(path: Path, latency: float) -> TableEvaluator:
    space = get_space("nasbench201")
    rows = [
        f"{space.format(a)},{i},{latency}"
        for i, a in zip(range(40), space.enumerate(), strict=False)
    ]
    path.write_text("\n".join(["arch,x_accuracy,d_latency_ms", *rows]))
    return TableEvaluator(load_benchmark(str(path)), ["x_accuracy", "d_latency_ms"])


def test_a_table_is_known_by_its_content_and_not_by_its_name(cache: Path, tmp_path: Path) -> None:
    first, renamed = (write_table(tmp_path / name, 1.0).source for name in ("a.csv", "b.csv"))
    other = write_table(tmp_path / "a.csv", 2.0).source
    with pytest.raises(InputError, match="sha256"):
        check(first, other)
    check(first, renamed)


def check(source: Any, other: Any, **identity: Any) -> None:
    """Call `check_same` for two searches that differ only in their source or in the present
    identity.
    """
    same = {
        "text_version": 1, "networks": [["a", "b"]], "machine": {"processor": "P", "device": "cpu"},
        "versions": {"torch": "2.6.1", "numpy": "2.1.0"},
    }  # fmt: skip
    is_worker = identity.pop("is_worker", False)
    stored = {"settings": {}, "source": source, "identity": same}
    check_same(
        "here", stored, {"settings": {}, "source": other, "identity": same | identity}, is_worker
    )


def test_a_checkpoint_is_known_by_its_content(tmp_path: Path) -> None:
    space, sources = get_space("tiny-resnet"), []
    texts = [space.to_text(space.sample(np.random.default_rng(i))) for i in range(12)]
    for slope in (1.0, 2.0):
        predictors.create("ridge").fit(texts, {"my_ms": slope * np.arange(12)}).save(
            tmp_path / f"{slope}"
        )
        sources.append(
            PredictionEvaluator.load(str(tmp_path / f"{slope}"), space, ["my_ms"]).source
        )
    with pytest.raises(InputError, match="sha256"):
        check(*sources)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"training": TrainingTask(epochs=7)}, "measurement.training.epochs 1, not 7"),
        ({"data": digits(100)}, "measurement.data.sha256"),
        ({"seeds": (0, 1)}, r"measurement.seeds \[0\], not \[0, 1\]"),
    ],
)
def test_other_training_or_data_are_refused(change: dict[str, Any], message: str) -> None:
    space = get_space("nasbench201", input_shape=(1, 8, 8))
    settings: dict[str, Any] = {
        "metrics": ("digits_accuracy",),
        "data": digits(),
        "training": TrainingTask(epochs=1),
    }
    first, second = (
        MeasuredEvaluator(space, Measurement(**chosen)).source
        for chosen in (settings, settings | change)
    )
    check(first, first)
    with pytest.raises(InputError, match=message):
        check(first, second)


def test_unused_settings_may_change() -> None:
    def source(metrics: tuple[str, ...], **settings: Any) -> dict[str, Any]:
        return MeasuredEvaluator(get_space("tiny-resnet"), Measurement(metrics, **settings)).source

    slow = {"training": TrainingTask(epochs=9), "latency": LatencyTask(threads=2)}
    check(source(("params",)), source(("params",), **slow))
    with pytest.raises(InputError, match=r"with measurement\.latency\.threads 1, not 2:"):
        check(source(("cpu_latency_ms",)), source(("cpu_latency_ms",), **slow))


# --- machine and versions

TIMED = {"measurement": {"metrics": ["digits_accuracy", "cpu_latency_ms"]}}
TABLE = {"benchmark": "digits201", "sha256": "0"}


@pytest.mark.parametrize(
    ("source", "change", "refused"),
    [
        (TIMED, {"machine": {"processor": "Q", "device": "cpu"}}, "processor 'P', not 'Q'"),
        (TIMED, {"machine": {"processor": "P", "device": "H100"}}, "device 'cpu', not 'H100'"),
        (TIMED, {"versions": {"torch": "2.7.0", "numpy": "2.1.0"}}, "torch 2.6.1, not 2.7.0"),
        (TIMED, {"versions": {"torch": "2.6.2", "numpy": "2.1.0"}}, ""),
        (TIMED, {"versions": {"torch": "2.6.1", "numpy": "3.0.0"}}, ""),
        (TABLE, {"machine": {"processor": "Q", "device": "cpu"}}, ""),
        (TABLE, {"versions": {"torch": "3.0.0", "numpy": "2.1.0"}}, ""),
        (TIMED, {"machine": {"processor": "Q", "device": "cpu"}, "is_worker": True}, ""),
    ],
)
def test_changes_that_affect_measured_values_are_refused_and_others_are_warnings(
    source: Any, change: Any, refused: str, caplog: pytest.LogCaptureFixture
) -> None:
    if refused:
        with pytest.raises(InputError, match=refused):
            check(source, source, **change)
        return
    with caplog.at_level(logging.WARNING):
        check(source, source, **change)
    assert "here: the search was started with" in caplog.text


# --- what is kept


def test_a_study_stores_how_it_was_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "sys.argv", ["/bin/nas", "search", "--storage", "postgresql://me:secret@host/db"]
    )
    run(tmp_path, mine(tmp_path))
    kept = read_search(tmp_path / "j.log").study.user_attrs[IDENTITY_KEY]
    assert kept["command"] == "nas search --storage postgresql://me:***@host/db"
    assert {"python", "torch", "onnxruntime", "optuna"} <= kept["versions"].keys()
    assert kept["machine"]["processor"]
    assert json.loads(json.dumps(kept)) == kept


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clear the cache: files with the same name are other spaces in other tests."""
    provenance._sampled.cache_clear()


def test_the_stored_command_contains_no_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["nas", "--storage=mysql+pymysql://u:p:q@h:3306/d"])
    assert "p:q" not in command()
