"""Importing official files: their numbers arrive under our names, and nothing in them is ever
executed.
"""

from __future__ import annotations

import builtins
import csv
import gzip
import json
import os
import pickle
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from nas_201_api import ArchResults, NASBench201API, ResultsCount

from nas.benchmarks import import_file, load_benchmark
from nas.benchmarks.restricted_pickle import load_pickle
from search_spaces import get_space
from search_spaces.common.errors import InputError

SPACE = get_space("nasbench201")
ARCHS = [SPACE.format(SPACE.sample(np.random.default_rng(seed))) for seed in range(4)]
SETS = {
    "cifar10-valid": ("x-valid", "ori-test"),
    "cifar10": ("ori-test",),
    "cifar100": ("x-valid", "x-test", "ori-test"),
    "ImageNet16-120": ("x-valid", "x-test", "ori-test"),
}


# --- the official NAS-Bench-201 file


def trial(arch: str, dataset: str, seed: int, epochs: int, final: dict[str, float]) -> ResultsCount:
    """One training run as the package stores it, with accuracies in % per epoch and set."""
    config = {"channel": 16, "num_cells": 5, "arch_str": arch, "class_num": 10}
    history = dict.fromkeys(range(epochs), 50.0)
    result = ResultsCount(
        dataset, None, history, history, 0.129306, 15.64737, config, seed, epochs, [0.02, 0.04]
    )
    result.update_train_info(history, history, history, dict.fromkeys(range(epochs), 7.0))
    last = epochs - 1
    accuracies = {
        f"{name}@{epoch}": final[name] - (last - epoch) for name in final for epoch in range(epochs)
    }
    result.update_eval(accuracies, dict.fromkeys(accuracies, 1.0), dict.fromkeys(accuracies, 2.0))
    return result


def official(archs: list[str], datasets: tuple[str, ...] = tuple(SETS)) -> dict[str, Any]:
    """Contents of a NAS-Bench-201 file. Each accuracy encodes its index, data set, seed, set and
    epochs.
    """
    infos = {}
    for index, arch in enumerate(archs):
        states = {}
        for kind, epochs, seeds, extra in (("full", 4, (777, 888), 0.5), ("less", 2, (777,), 0.0)):
            results = ArchResults(index, arch)
            for position, dataset in enumerate(datasets):
                for tenths, seed in enumerate(seeds):
                    base = 10 * index + position + tenths / 10 + extra
                    final = {name: base + 0.01 * i for i, name in enumerate(SETS[dataset])}
                    results.update(dataset, seed, trial(arch, dataset, seed, epochs, final))
            states[kind] = results.state_dict()
        infos[index] = states
    return {
        "meta_archs": archs,
        "arch2infos": OrderedDict(infos),
        "evaluated_indexes": set(range(len(archs))),
    }


@pytest.mark.parametrize("zipped", [False, True], ids=["old format", "zip format"])
def test_an_official_file_gives_accuracies_costs_and_latency(
    tmp_path: Path, cache: Path, zipped: bool
) -> None:
    path = tmp_path / "NAS-Bench-201-v1_1-096897.pth"
    torch.save(official(ARCHS), path, _use_new_zipfile_serialization=zipped)
    import_file(path)
    row = load_benchmark("nasbench201").query(SPACE.parse(ARCHS[2]))
    assert row["cifar10_validation_accuracy"] == pytest.approx(
        20.55
    )  # the mean of two seeds, cifar10-valid
    assert row["cifar10_test_accuracy"] == pytest.approx(20.56)
    assert row["cifar10_validation_accuracy_12epochs"] == pytest.approx(20.0)
    assert row["cifar10_test_accuracy_12epochs"] == pytest.approx(
        21.0
    )  # trained on train + validation
    assert row["cifar100_validation_accuracy"] == pytest.approx(22.55)
    assert row["imagenet16_120_test_accuracy"] == pytest.approx(23.56)
    assert (row["cifar10_params"], row["cifar10_flops"]) == (129306, 15647370)
    assert row["cifar100_batch256_latency_ms"] == pytest.approx(30.0)


def test_accuracies_are_those_that_the_official_api_answers(tmp_path: Path, cache: Path) -> None:
    contents = official(ARCHS)
    torch.save(contents, tmp_path / "official.pth")
    benchmark = import_file(tmp_path / "official.pth")
    api = NASBench201API(contents, verbose=False)
    for name, dataset in (
        ("cifar10", "cifar10-valid"),
        ("cifar100", "cifar100"),
        ("imagenet16_120", "ImageNet16-120"),
    ):
        for index, arch in enumerate(ARCHS):
            info = api.get_more_info(index, dataset, hp="200", is_random=False)
            row = benchmark.query(SPACE.parse(arch))
            assert row[f"{name}_validation_accuracy"] == pytest.approx(info["valid-accuracy"])
            assert row[f"{name}_test_accuracy"] == pytest.approx(info["test-accuracy"])


def test_untrained_data_sets_are_missing_values(tmp_path: Path, cache: Path) -> None:
    torch.save(official(ARCHS, ("cifar10-valid",)), tmp_path / "v1.pth")
    row = import_file(tmp_path / "v1.pth").query(SPACE.parse(ARCHS[0]))
    assert row["cifar10_validation_accuracy"] == pytest.approx(0.55)
    assert np.isnan(
        [
            row["cifar100_test_accuracy"],
            row["cifar100_params"],
            row["cifar10_test_accuracy_12epochs"],
        ]
    ).all()


def test_progress_counts_architectures(tmp_path: Path, cache: Path) -> None:
    torch.save(official(ARCHS), tmp_path / "official.pth")
    calls: list[tuple[str, int, int]] = []
    import_file(tmp_path / "official.pth", lambda *args: calls.append(args))
    assert calls == [("architectures", i, 4) for i in (1, 2, 3, 4)]


def broken(**changes: object) -> dict[str, Any]:
    return {
        key: value for key, value in (official(ARCHS[:1]) | changes).items() if value is not None
    }


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        ([1.0, 2.0], "not in the layout of NAS-Bench-201's official file"),
        (broken(arch2infos=None), "'arch2infos'"),
        (broken(evaluated_indexes={0, 7}), "not in the layout"),
        (broken(evaluated_indexes=set()), "has no evaluated architecture"),
        (broken(meta_archs=["|what~0|"]), "architecture 0: "),
        (broken(arch2infos={0: {"full": {"all_results": 3}, "less": {}}}), "not in the layout"),
    ],
)
def test_a_file_with_another_layout_is_refused_and_nothing_is_written(
    tmp_path: Path, cache: Path, contents: object, message: str
) -> None:
    torch.save(contents, tmp_path / "other.pth")
    with pytest.raises(InputError, match=message):
        import_file(tmp_path / "other.pth")
    assert not cache.exists()


# --- HW-NAS-Bench


def hwnasbench(archs: list[str], metrics: dict[str, Any]) -> dict[str, Any]:
    """Contents of HW-NAS-Bench's file: lists per data set, and the configurations that name the
    rows.
    """
    configs = [
        {"name": "infer.tiny", "C": 16, "N": 5, "arch_str": arch, "num_classes": 10}
        for arch in archs
    ]
    nasbench201 = {"cifar10": metrics | {"config": configs}, "cifar100": {}, "ImageNet16-120": {}}
    return {
        "nasbench201": nasbench201,
        "fbnet": {"edgegpu_latency": {"Skip_H32_W32_Cin16_Cout16_stride1": 0.5}},
    }


@pytest.mark.parametrize("protocol", [2, 3, 4])
@pytest.mark.parametrize("kind", [list, np.array, lambda values: list(np.array(values, ">f4"))])
def test_latencies_and_energies_arrive_with_their_units(
    tmp_path: Path, cache: Path, protocol: int, kind: Callable[[list[float]], object]
) -> None:
    metrics = {
        "edgegpu_latency": kind([5.0, 6.5, 7.0, 8.0]),
        "edgegpu_energy": kind([24.0, 29.0, 1.0, 2.0]),
        "eyeriss_arithmetic_intensity": kind([6.0] * 4),
    }
    path = tmp_path / "HW-NAS-Bench-v1_0.pickle"
    data = pickle.dumps(hwnasbench(ARCHS, metrics), protocol)
    path.write_bytes(
        data.replace(b"numpy._core.", b"numpy.core.") if protocol == 2 else data
    )  # as numpy 1 wrote it
    benchmark = import_file(path)
    assert benchmark.metrics == ("edgegpu_latency_ms", "edgegpu_energy_mj")
    assert benchmark.query(SPACE.parse(ARCHS[1])) == {
        "edgegpu_latency_ms": 6.5,
        "edgegpu_energy_mj": 29.0,
    }


def test_imports_are_merged_by_architecture_in_any_order(tmp_path: Path, cache: Path) -> None:
    torch.save(official(ARCHS[:3]), tmp_path / "official.pth")
    import_file(tmp_path / "official.pth")
    (tmp_path / "hw.pickle").write_bytes(
        pickle.dumps(
            hwnasbench(
                ARCHS[:0:-1], {"pixel3_latency": [3.0, 2.0, 1.0], "fpga_energy": [1.0, 1.0, 1.0]}
            )
        )
    )
    benchmark = import_file(tmp_path / "hw.pickle")
    assert len(benchmark) == 4
    assert benchmark.values("pixel3_latency_ms").tolist() == pytest.approx(
        [np.nan, 1, 2, 3], nan_ok=True
    )
    assert benchmark.values("cifar10_params").tolist() == pytest.approx(
        [129306] * 3 + [np.nan], nan_ok=True
    )
    assert [source["from"] for source in benchmark.header.sources] == ["official.pth", "hw.pickle"]


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        ({"fbnet": {}}, "'nasbench201'"),
        ([], "not in the layout of HW-NAS-Bench"),
        (hwnasbench(ARCHS, {"fpga_latency": [1.0, 2.0]}), r"shape \(2,\) for 4 architectures"),
        (hwnasbench(ARCHS, {"fpga_latency": ["fast"] * 4}), "not a number"),
        (hwnasbench(ARCHS, {"fpga_latency": [10**400] * 4}), "not a number"),
        (hwnasbench(ARCHS, {"fpga_latency": [1.0, [2.0, [3.0]], 4.0, 5.0]}), "not a number"),
        (
            hwnasbench([ARCHS[0], ARCHS[0]], {"fpga_latency": [1.0, 2.0]}),
            "architecture 1: .* repeats",
        ),
    ],
)
def test_a_pickle_with_another_layout_is_refused(
    tmp_path: Path, cache: Path, contents: object, message: str
) -> None:
    (tmp_path / "other.pickle").write_bytes(pickle.dumps(contents))
    with pytest.raises(InputError, match=message):
        import_file(tmp_path / "other.pickle")
    assert not cache.exists()


def test_the_printed_examples_of_hwnasbench_agree_with_the_latencies_of_the_real_table(
    nas_data: Path, tmp_path: Path, cache: Path
) -> None:
    file = nas_data / "hwnasbench_examples.json"
    if not file.is_file():
        pytest.skip("NAS_DATA has no hwnasbench_examples.json")
    examples = [e for e in json.loads(file.read_text())["nasbench201"] if e["dataset"] == "cifar10"]
    with gzip.open(nas_data / "nasbench201.csv.gz", "rt", newline="") as stream:
        rows = {int(row["index"]): row for row in csv.DictReader(stream)}
    archs = [rows[example["arch"]]["arch"] for example in examples]
    metrics = {
        name: [example["metrics"][name] for example in examples] for name in examples[0]["metrics"]
    }
    (tmp_path / "hw.pickle").write_bytes(pickle.dumps(hwnasbench(archs, metrics)))
    benchmark = import_file(tmp_path / "hw.pickle")
    assert len(benchmark.metrics) == 9
    for example, arch in zip(examples, archs, strict=True):
        row = benchmark.query(SPACE.parse(arch))
        for device in ("raspi4", "pixel3", "eyeriss", "fpga"):
            expected = float(rows[example["arch"]][f"{device}_latency_ms"])
            assert row[f"{device}_latency_ms"] == pytest.approx(expected, rel=1e-5)


# --- hostile files


class Calls:
    """Pickles as a call of `function` with `arguments`, which a careless reader executes."""

    def __init__(self, function: Any, *arguments: object) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> tuple[Any, tuple[object, ...]]:
        return self.call


def attacks(victim: Path) -> list[Calls]:
    return [
        Calls(os.system, f"touch {victim}"),
        Calls(builtins.exec, f"open({str(victim)!r}, 'w')"),
        Calls(builtins.open, str(victim), "w"),
        Calls(builtins.getattr, Calls(__import__, "os"), "system"),
        Calls(torch.load, str(victim)),
        Calls(np.save, str(victim), np.zeros(1)),
    ]


@pytest.mark.parametrize("attack", range(6))
@pytest.mark.parametrize("suffix", [".pickle", ".pth", ".zip.pth"])
def test_a_hostile_file_is_refused_and_executes_nothing(
    tmp_path: Path, cache: Path, suffix: str, attack: int
) -> None:
    victim, path = tmp_path / "victim", tmp_path / f"evil{suffix}"
    contents = {
        "nasbench201": {"cifar10": {}},
        "meta_archs": [],
        "arch2infos": attacks(victim)[attack],
    }
    if suffix == ".pickle":
        path.write_bytes(pickle.dumps(contents))
    else:
        torch.save(contents, path, _use_new_zipfile_serialization=suffix == ".zip.pth")
    with pytest.raises(InputError, match=r"refused as .*: it names \S+$"):
        import_file(path)
    assert not victim.exists()
    assert not cache.exists()


def test_the_attacks_of_these_tests_do_work_on_a_careless_reader(tmp_path: Path) -> None:
    pickle.loads(pickle.dumps(attacks(tmp_path / "victim")[0]))
    assert (tmp_path / "victim").exists()


def test_a_path_in_place_of_results_is_not_opened(tmp_path: Path, cache: Path) -> None:
    victim = tmp_path / "victim"
    torch.save(attacks(victim)[0], tmp_path / "evil.pth")
    torch.save(
        broken(arch2infos={0: {"full": str(tmp_path / "evil.pth"), "less": {}}}),
        tmp_path / "outer.pth",
    )
    with pytest.raises(InputError, match="not in the layout"):
        import_file(tmp_path / "outer.pth")
    assert not victim.exists()


@pytest.mark.parametrize(
    "data", [np.array([object()]), np.array(["text"]), np.zeros(2, "f8,i4"), np.float64]
)
def test_numpy_data_other_than_numbers_is_refused(tmp_path: Path, data: object) -> None:
    (tmp_path / "t.pickle").write_bytes(pickle.dumps({"values": data}, 2))
    with pytest.raises(InputError, match="refused"):
        load_pickle(tmp_path / "t.pickle")


plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner),
    max_leaves=10,
)


@pytest.mark.slow
@given(plain, st.integers(2, 5))
def test_plain_data_is_read_as_pickle_reads_it(
    tmp_path_factory: pytest.TempPathFactory, data: object, protocol: int
) -> None:
    path = tmp_path_factory.mktemp("plain") / "t.pickle"
    path.write_bytes(pickle.dumps(data, protocol))
    assert load_pickle(path) == data


@pytest.mark.parametrize("suffix", [".pickle", ".pth", ".zip.pth"])
def test_a_truncated_file_is_refused_in_one_line(tmp_path: Path, cache: Path, suffix: str) -> None:
    path = tmp_path / f"short{suffix}"
    if suffix == ".pickle":
        path.write_bytes(pickle.dumps(hwnasbench(ARCHS, {"fpga_latency": np.arange(4.0)})))
    else:
        torch.save(official(ARCHS[:1]), path, _use_new_zipfile_serialization=suffix == ".zip.pth")
    whole = path.read_bytes()
    for keep in np.random.default_rng(0).integers(0, len(whole) // 2, 40):
        path.write_bytes(whole[:keep])
        with pytest.raises(InputError, match=r"^[^\n]*refused[^\n]*$"):
            import_file(path)
    assert not cache.exists()


def test_unsupported_and_missing_files_are_named(tmp_path: Path, cache: Path) -> None:
    with pytest.raises(
        InputError, match=r"table\.txt: not a NAS-Bench-201 \.pth or a HW-NAS-Bench \.pickle file"
    ):
        import_file(tmp_path / "table.txt")
    for name in ("absent.pth", "absent.pickle"):
        with pytest.raises(InputError, match=r"absent.* cannot be read \(No such file"):
            import_file(tmp_path / name)
    (tmp_path / "text.pth").write_text("hello")
    with pytest.raises(InputError, match="refused"):
        import_file(tmp_path / "text.pth")
