"""The compact table: what is written is read back, looked up by architecture, and never
half-written.
"""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file

from nas import TableEvaluator
from nas.benchmarks import text_cache
from nas.benchmarks.table import Benchmark, Header, Table
from search_spaces import Architecture, get_space
from search_spaces.common.errors import InputError

SPACE = get_space("nasbench201")
ARCHS = [SPACE.format(SPACE.sample(np.random.default_rng(seed))) for seed in range(8)]
SMALL = {"channels": 4, "cells": 1, "input_shape": [1, 8, 8], "prune": True}
# The edge into node 2 leads nowhere, so that pruned they are one network.
TWIN_A = "|skip_connect~0|+|nor_conv_3x3~0|none~1|+|skip_connect~0|nor_conv_1x1~1|none~2|"
TWIN_B = "|skip_connect~0|+|nor_conv_1x1~0|none~1|+|skip_connect~0|nor_conv_1x1~1|none~2|"
OTHER = "|nor_conv_3x3~0|+|none~0|none~1|+|none~0|nor_conv_3x3~1|none~2|"

values = st.floats(allow_infinity=False) | st.integers(0, 2**40).map(float)


def saved(
    path: Path, archs: list[str], columns: Mapping[str, Sequence[float]], **header: Any
) -> Benchmark:
    table = Table(
        Header("test", "nasbench201", **header), archs, {k: np.array(v) for k, v in columns.items()}
    )
    table.save(path)
    return Benchmark(path)


@given(st.lists(values, min_size=1, max_size=8))
def test_values_come_back_bit_for_bit_in_the_order_of_the_rows(
    tmp_path_factory: pytest.TempPathFactory, column: list[float]
) -> None:
    archs = ARCHS[: len(column)]
    benchmark = saved(tmp_path_factory.mktemp("table") / "t", archs, {"fpga_latency_ms": column})
    np.testing.assert_array_equal(benchmark.values("fpga_latency_ms"), column)
    assert [SPACE.format(arch) for arch in benchmark.architectures] == archs
    assert len(benchmark) == len(archs)


def test_query_gives_all_metrics_of_the_architecture_and_nan_for_a_missing_one(
    tmp_path: Path,
) -> None:
    benchmark = saved(
        tmp_path / "t",
        ARCHS[:2],
        {"cifar10_flops": [1e6, 113951371], "fpga_latency_ms": [1.5, np.nan]},
    )
    assert benchmark.metrics == ("cifar10_flops", "fpga_latency_ms")
    row = benchmark.query(SPACE.parse(ARCHS[1]))
    assert row["cifar10_flops"] == 113951371
    assert np.isnan(row["fpga_latency_ms"])


def test_costs_without_a_column_are_counted_in_the_networks(tmp_path: Path) -> None:
    benchmark = saved(
        tmp_path / "t",
        ARCHS[:3],
        {"cifar10_test_accuracy": [90.0, 91.0, 92.0], "flops": [1.0, 2.0, 3.0]},
    )
    counted = [SPACE.params(SPACE.parse(arch)) for arch in ARCHS[:3]]
    assert benchmark.values("params").tolist() == counted
    assert benchmark.values("flops").tolist() == [1, 2, 3], "a column of the table comes first"
    assert benchmark.query(SPACE.parse(ARCHS[1]), ["params"]) == {"params": counted[1]}
    assert "params" not in benchmark.query(SPACE.parse(ARCHS[1])), (
        "only columns, unless it is asked for"
    )


def test_columns_that_contradict_the_counts_are_refused_in_searches(tmp_path: Path) -> None:
    counted = [SPACE.params(SPACE.parse(arch)) for arch in ARCHS[:3]]
    named = saved(
        tmp_path / "a", ARCHS[:3], {"params": counted, "params_m": [c / 1e6 for c in counted]}
    )
    TableEvaluator(named, ["params", "params_m"])
    TableEvaluator(saved(tmp_path / "c", ARCHS[:3], {"params": [np.nan] * 3}), ["params"])
    millions = saved(tmp_path / "b", ARCHS[:3], {"params": [c / 1e6 for c in counted]})
    with pytest.raises(
        InputError, match=rf"params of .* but the network has {counted[0]:,}: .* params_m"
    ):
        TableEvaluator(millions, ["params"])


def test_changing_returned_values_does_not_change_the_benchmark(tmp_path: Path) -> None:
    benchmark = saved(tmp_path / "t", ARCHS[:2], {"params": [1.0, 2.0]})
    benchmark.values("params")[:] = 0
    assert benchmark.query(benchmark.architectures[1]) == {"params": 2.0}


def test_an_unknown_architecture_metric_or_space_is_an_input_error(tmp_path: Path) -> None:
    benchmark = saved(tmp_path / "t", ARCHS[:2], {"params": [1.0, 2.0]})
    with pytest.raises(InputError, match="no row for architecture"):
        benchmark.query(SPACE.parse(ARCHS[2]))
    with pytest.raises(InputError, match="did you mean 'params'"):
        benchmark.values("parms")
    with pytest.raises(
        InputError, match="has architectures of 'nasbench201', not of 'tiny-resnet'"
    ):
        benchmark.query(Architecture("tiny-resnet", ()))


def test_architectures_can_be_indexed_sliced_and_iterated(tmp_path: Path) -> None:
    architectures = saved(tmp_path / "t", ARCHS, {"params": list(range(8))}).architectures
    assert architectures[-1] == SPACE.parse(ARCHS[-1])
    assert architectures[2:4] == [architectures[2], architectures[3]] == list(architectures)[2:4]
    with pytest.raises(IndexError):
        architectures[8]


def test_a_duplicate_is_found_by_its_text_only_where_rows_are_distinct_networks(
    tmp_path: Path, cache: Path
) -> None:
    columns = {"digits_accuracy": [90.0, 95.0]}
    by_text = saved(tmp_path / "a", [OTHER, TWIN_A], columns, space_options=SMALL, by_text=True)
    assert by_text.query(SPACE.parse(TWIN_B)) == {"digits_accuracy": 95.0}
    with pytest.raises(InputError, match="no row"):
        saved(tmp_path / "b", [OTHER, TWIN_A], columns, space_options=SMALL).query(
            SPACE.parse(TWIN_B)
        )


def test_an_exact_row_is_found_without_writing_any_text(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    benchmark = saved(
        tmp_path / "t", [OTHER, TWIN_A], {"params": [1.0, 2.0]}, space_options=SMALL, by_text=True
    )
    monkeypatch.setattr(benchmark.space, "to_text", lambda arch: pytest.fail("a text was written"))
    assert benchmark.query(SPACE.parse(TWIN_A)) == {"params": 2.0}


def test_texts_equal_those_of_the_space_and_are_written_once_per_cache(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = saved(tmp_path / "t", [OTHER, TWIN_A], {"params": [1.0, 2.0]}, space_options=SMALL)
    calls: list[tuple[str, int, int]] = []
    assert first.load_texts(lambda *args: calls.append(args)) == [
        first.space.to_text(a) for a in first.architectures
    ]
    assert calls == [("texts", 1, 2), ("texts", 2, 2)]
    again = Benchmark(first.path)
    monkeypatch.setattr(
        again.space, "to_text", lambda arch: pytest.fail("a text was written again")
    )
    assert again.texts == first.texts


def test_texts_are_rewritten_for_other_options_and_damaged_cache_files(
    tmp_path: Path, cache: Path
) -> None:
    small = saved(tmp_path / "a", [TWIN_A], {"params": [1.0]}, space_options=SMALL)
    large = saved(
        tmp_path / "b", [TWIN_A], {"params": [1.0]}, space_options=SMALL | {"channels": 8}
    )
    assert small.texts != large.texts
    for file in (cache / "texts").iterdir():
        file.write_bytes(file.read_bytes()[:-9])
    assert Benchmark(small.path).texts == small.texts


def test_texts_are_rewritten_when_the_text_version_changes(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    benchmark = saved(tmp_path / "t", [TWIN_A], {"params": [1.0]}, space_options=SMALL)
    assert benchmark.texts != ["new text"]
    monkeypatch.setattr(text_cache, "text_version", lambda space: "another version")
    again = Benchmark(benchmark.path)
    monkeypatch.setattr(again.space, "to_text", lambda arch: "new text")
    assert again.texts == ["new text"]


rows = st.dictionaries(st.sampled_from(ARCHS), st.floats(0, 1) | st.just(np.nan), min_size=1)


def as_table(column: dict[str, float], name: str, source: str) -> Table:
    header = Header("t", "nasbench201", sources=[{"from": source, "sha256": source}])
    return Table(header, list(column), {name: np.array(list(column.values()))})


@given(rows, rows, st.booleans())
def test_merging_keeps_every_known_value_and_prefers_the_update(
    old: dict[str, float], new: dict[str, float], same_column: bool
) -> None:
    name = "a" if same_column else "b"
    merged = as_table(old, "a", "old").merged(as_table(new, name, "new"))
    assert set(merged.archs) == old.keys() | new.keys()
    for i, arch in enumerate(merged.archs):
        expected = {"a": old.get(arch, np.nan)} | ({} if same_column else {"b": np.nan})
        if not np.isnan(new.get(arch, np.nan)):
            expected[name] = new[arch]
        assert {column: merged.columns[column][i] for column in merged.columns} == pytest.approx(
            expected, nan_ok=True
        )
    assert [source["from"] for source in merged.header.sources] == ["old", "new"]


@pytest.mark.parametrize("keep", [0, 1, 8, 100, -1])
def test_a_truncated_table_is_named_in_one_line(tmp_path: Path, keep: int) -> None:
    path = saved(tmp_path / "t", ARCHS, {"params": list(range(8))}).path
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(InputError, match=r"^[^\n]*t: not a benchmark table[^\n]*$"):
        Benchmark(path)


def test_foreign_and_future_tables_are_refused(tmp_path: Path) -> None:
    save_file({"x": np.zeros(1)}, tmp_path / "foreign")
    with pytest.raises(InputError, match="not a benchmark table"):
        Benchmark(tmp_path / "foreign")
    save_file({"x": np.zeros(1)}, tmp_path / "future", {"table": json.dumps({"format": 99})})
    with pytest.raises(InputError, match="another version"):
        Benchmark(tmp_path / "future")


def test_a_column_of_another_length_is_refused(tmp_path: Path) -> None:
    benchmark = saved(tmp_path / "t", ARCHS[:2], {"params": [1.0, 2.0, 3.0]})
    with pytest.raises(InputError, match=r"'params' has shape \(3,\), not \(2,\)"):
        benchmark.query(SPACE.parse(ARCHS[0]))


def test_a_full_disk_leaves_the_old_table_and_no_litter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = saved(tmp_path / "t", ARCHS[:1], {"params": [1.0]}).path
    before = path.read_bytes()

    def full(self: Path, data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(
        InputError, match=r"cannot be written \(No space left on device\): choose another folder"
    ):
        saved(path, ARCHS[:1], {"params": [2.0]})
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.slow
def test_texts_of_a_large_table_are_made_in_a_script_without_a_main_guard(tmp_path: Path) -> None:
    """Helper processes must not run the user's script again."""
    script = tmp_path / "script.py"
    script.write_text(
        "import nas\n"
        "from nas.benchmarks import text_cache\n"
        "text_cache.MIN_PARALLEL_TEXTS = 100\n"
        "benchmark = nas.load_benchmark('digits-fbnet')\n"
        "assert benchmark.texts[7] == benchmark.space.to_text(benchmark.architectures[7])\n"
        "print(len(benchmark.texts))\n"
    )
    done = subprocess.run(
        [sys.executable, script],
        env={**os.environ, "NAS_CACHE": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.returncode) == ("500\n", 0), done.stderr
