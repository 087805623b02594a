"""Claims about `nas rank`: measured values stay, bounds are kept, and own measurements make a new
device known.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import spearmanr

from nas import cli
from nas.ranking import _ranked
from nas.search.objectives import parse_constraints, parse_objectives
from predictors import create
from search_spaces import from_text, get_space, params


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint with accuracy and latency of 24 networks. Their texts and those of six others
    are files.
    """
    folder = tmp_path_factory.mktemp("rank")
    space, rng = get_space("tiny-resnet"), np.random.default_rng(0)
    texts = list(dict.fromkeys(space.to_text(space.sample(rng)) for _ in range(80)))[:30]
    for i, text in enumerate(texts):
        (folder / f"{i}.txt").write_text(text)
    size = np.array([np.log(params(from_text(text))) for text in texts])
    model = create("rlm").fit(texts[:24], {"top1_accuracy": 50 + size[:24], "phone_ms": size[:24]})
    model.save(folder / "checkpoint")
    (folder / "mine.csv").write_text(
        "network,board_ms\n" + "".join(f"{folder / f'{i}.txt'},{size[i] ** 2}\n" for i in range(10))
    )
    return folder


def ranked(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *options: str
) -> str:
    files = [str(folder / f"{i}.txt") for i in range(30)]
    line = [
        "nas",
        "rank",
        *files,
        "--checkpoint",
        str(folder / "checkpoint"),
        "--samples",
        "16",
        *options,
    ]
    monkeypatch.setattr(sys, "argv", line)
    with pytest.raises(SystemExit) as stop:
        cli.main()
    captured = capsys.readouterr()
    return captured.out if not stop.value.code else captured.err


def test_known_networks_have_their_measured_values_and_the_front_keeps_its_bound(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bound = float(np.log(params(from_text((folder / "0.txt").read_text()))))
    options = (
        "--objectives",
        "top1_accuracy,phone_ms",
        "--constraint",
        f"phone_ms <= {bound}",
        "--json",
    )
    rows = json.loads(ranked(folder, monkeypatch, capsys, *options))["networks"]
    assert len(rows) == 30
    known = next(row for row in rows if row["network"].endswith("/0.txt"))
    assert known["phone_ms"]["measured"]
    assert known["phone_ms"]["low"] == known["phone_ms"]["high"] == pytest.approx(bound)
    own = next(row for row in rows if row["network"].endswith("/29.txt"))
    assert not own["phone_ms"]["measured"]
    assert own["phone_ms"]["low"] < own["phone_ms"]["high"]
    assert rows[0]["front"]
    assert all(row["phone_ms"]["median"] <= bound for row in rows if row["front"])
    assert not any(row["front_probability"] for row in rows if row["constraints_kept"] == 0)


def test_ten_measurements_make_a_device_that_can_be_asked_for(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--measured", str(folder / "mine.csv"), "--objectives", "board_ms", "--json")
    rows = json.loads(ranked(folder, monkeypatch, capsys, *options))["networks"]
    found = {
        Path(row["network"]).stem: row["board_ms"]["median"]
        for row in rows
        if not row["board_ms"]["measured"]
    }
    assert len(found) == 20
    true = [params(from_text((folder / f"{name}.txt").read_text())) for name in found]
    assert spearmanr(true, list(found.values())).statistic > 0.8


def test_costs_are_counted_in_the_networks_and_not_predicted(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = [(folder / f"{i}.txt").read_text() for i in range(30)]
    model = create("rlm").fit(
        texts[:5], {"params": np.ones(5), "flops": np.ones(5), "phone_ms": np.arange(5.0)}
    )
    model.save(folder / "costs")
    options = ("--checkpoint", str(folder / "costs"), "--objectives", "phone_ms,params", "--json")
    rows = json.loads(ranked(folder, monkeypatch, capsys, *options))["networks"]
    for row in rows:
        counted = params(from_text(Path(row["network"]).read_text()))
        assert row["params"] == {
            "median": counted,
            "low": counted,
            "high": counted,
            "measured": True,
        }


def test_people_get_a_table_and_an_unknown_metric_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    table = ranked(
        folder, monkeypatch, capsys, "--objectives", "top1_accuracy,params", "--top", "3"
    )
    assert re.search(r" \(([\d.]+ to [\d.]+|measured)\)", table), (
        "an accuracy is predicted or measured"
    )
    assert re.search(r"│ [\d,]+ +│", table), "parameters are counted"
    assert "30 networks" in table
    assert "unknown metric 'top5'" in ranked(folder, monkeypatch, capsys, "--objectives", "top5")


def test_a_metric_is_checked_before_networks_are_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    message = ranked(folder, monkeypatch, capsys, "missing.onnx", "--objectives", "phone")
    assert "unknown metric 'phone': did you mean 'phone_ms'?" in message
    assert "missing.onnx" not in message


def test_known_devices_predict_a_new_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A device that is twice as slow as the known one is predicted so, far beyond the measured
    range.
    """
    size = [np.log(params(from_text((folder / f"{i}.txt").read_text()))) for i in range(24)]
    smallest = np.argsort(size)[:8]
    rows = "".join(f"{folder / f'{i}.txt'},{2 * size[i]}\n" for i in smallest)
    (folder / "twice.csv").write_text("network,twice_ms\n" + rows)
    options = ("--measured", str(folder / "twice.csv"), "--objectives", "twice_ms", "--json")
    found = json.loads(ranked(folder, monkeypatch, capsys, *options))["networks"]
    medians = {int(Path(row["network"]).stem): row["twice_ms"]["median"] for row in found}
    others = [i for i in range(24) if i not in smallest]
    np.testing.assert_allclose(
        [medians[i] for i in others], [2 * size[i] for i in others], rtol=0.03
    )


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (
            "{0}/0.txt,1\n{0}/1.txt,2\n",
            "the checkpoint does not know new_ms, and 2 values are too few: give at least 3",
        ),
        ("{0}/0.txt,1\n{0}/none.txt,2\n", "own.csv, line 3: "),
    ],
)
def test_too_few_and_unreadable_measurements_are_refused(
    rows: str,
    message: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (folder / "own.csv").write_text("network,new_ms\n" + rows.format(folder))
    assert message in ranked(
        folder, monkeypatch, capsys, "--measured", str(folder / "own.csv"), "--objectives", "new_ms"
    )


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (("0.txt,1.5", "1.txt,2.5", "0.txt,3.5"), r"mine\.csv, line 4: .*0\.txt is measured above"),
        (
            ("0.txt,1.5", "1.txt,0"),
            r"mine\.csv, line 3: board_ms is 0, which is not a positive number",
        ),
        (
            ("0.txt,fast", "1.txt,2"),
            "leave missing values empty, and remove columns that are no metrics",
        ),
    ],
)
def test_measurements_that_cannot_be_are_refused_by_line(
    rows: tuple[str, ...], message: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    path = tmp_path / "mine.csv"
    path.write_text("\n".join(["network,board_ms", *(f"{folder}/{row}" for row in rows)]))
    error = ranked(
        folder,
        monkeypatch,
        capsys,
        "--measured",
        str(path),
        "--objectives",
        "top1_accuracy,board_ms",
    )
    assert re.search(message, error)


def test_a_prediction_shows_values_that_the_checkpoint_has_measured(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    known, new = str(folder / "0.txt"), str(folder / "29.txt")
    monkeypatch.setattr(
        sys, "argv", ["nas", "predict", known, new, "--checkpoint", str(folder / "checkpoint")]
    )
    with pytest.raises(SystemExit) as stop:
        cli.main()
    printed = capsys.readouterr().out
    assert not stop.value.code
    assert f"{known}: the checkpoint has measurements: top1_accuracy" in printed
    assert f"{new}: measured" not in printed


def test_a_network_unlike_all_examples_with_a_metric_is_named(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    other = get_space("ofa-mbv3")
    (tmp_path / "other.txt").write_text(other.to_text(other.sample(np.random.default_rng(0))))
    names = [str(folder / "0.txt"), str(tmp_path / "other.txt")]
    monkeypatch.setattr(
        sys, "argv", ["nas", "predict", *names, "--checkpoint", str(folder / "checkpoint")]
    )
    with pytest.raises(SystemExit) as stop:
        cli.main()
    printed = " ".join(capsys.readouterr().out.split())
    assert not stop.value.code
    note = "unlike the examples of the checkpoint with"
    assert re.search(
        rf"other\.txt: {note} (top1_accuracy, phone_ms|phone_ms, top1_accuracy): [\d.]+ times as far",
        printed,
    )
    assert f"0.txt: {note}" not in printed


def test_the_probability_of_being_on_the_front_counts_samples() -> None:
    samples = np.array(
        [[[90.0, 1.0], [90.0, 1.0]], [[80.0, 2.0], [95.0, 2.0]], [[99.0, 9.0], [99.0, 9.0]]]
    )
    goals = parse_objectives("accuracy,x_ms")
    found = _ranked(
        ("accuracy", "x_ms"), samples, np.zeros((3, 2), bool), goals, parse_constraints("x_ms <= 5")
    )
    assert found.front.tolist() == [1.0, 0.5, 0.0]
    assert found.kept.tolist() == [1.0, 1.0, 0.0]
    assert found.order.tolist() == [0, 1, 2]
