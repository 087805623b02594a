"""Fetching NAS-Bench-201: pinned files come from a server, are verified, and become one table or
none.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import threading
import time
from collections.abc import Iterator, Sequence
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from nas.benchmarks import fetch, load_benchmark
from nas.benchmarks.fetch import Source, nasbench201_sources
from search_spaces import get_space
from search_spaces.common.errors import InputError

SPACE = get_space("nasbench201")
ARCHS = [SPACE.format(SPACE.sample(np.random.default_rng(seed))) for seed in range(5)]
DATASETS = ("cifar10", "cifar100", "ImageNet16-120")


class Server:
    """A folder behind a local HTTP server, and the requested paths."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.requests: list[str] = []
        self.seconds_a_byte = 0.0
        server = self

        class Handler(SimpleHTTPRequestHandler):
            def copyfile(self, source: Any, outputfile: Any) -> None:
                while byte := source.read(1 if server.seconds_a_byte else -1):
                    outputfile.write(byte)
                    time.sleep(server.seconds_a_byte)

            def log_request(self, code: object = "-", size: object = "-") -> None:
                server.requests.append(self.path)

            def log_message(self, *args: object) -> None:
                pass

        class Http(ThreadingHTTPServer):
            def handle_error(self, *_: object) -> None:
                """A client that hangs up early is part of the tests."""

        self._http = Http(("127.0.0.1", 0), partial(Handler, directory=str(folder)))
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True).start()

    def add(self, repository: str, path: str, data: bytes) -> Source:
        """Serve `data` in the public layout. Returns its pinned source."""
        source = Source(
            repository, "c0ffee", path, "MIT", len(data), hashlib.sha256(data).hexdigest()
        )
        file = self.folder / source.location
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
        return source

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()


@pytest.fixture
def server(tmp_path: Path, cache: Path) -> Iterator[Server]:
    server = Server(tmp_path / "server")
    yield server
    server.close()


def accuracy_csv(
    archs: list[str], validation: Sequence[float | str], test: Sequence[float | str]
) -> bytes:
    """A table as NASGraph publishes them."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(
        [
            "file id",
            "arch str",
            "cfg name",
            "C",
            "N",
            "train accuracy",
            "validation accuracy",
            "test accuracy",
        ]
    )
    for i, row in enumerate(zip(archs, validation, test, strict=True)):
        writer.writerow([i, row[0], "infer.tiny", 16, 5, 99.0, row[1], row[2]])
    return text.getvalue().encode()


def latency_pt(values: object) -> bytes:
    """A list of latencies as HELP publishes them."""
    stream = io.BytesIO()
    torch.save(values, stream)
    return stream.getvalue()


@pytest.fixture
def sources(server: Server) -> list[Source]:
    """Five architectures on three data sets and two devices."""
    files = []
    for i, dataset in enumerate(DATASETS):
        data = accuracy_csv(
            ARCHS, [90.0 - i + j for j in range(5)], [80.0 - i + j for j in range(5)]
        )
        files.append(server.add("someone/accuracies", f"data/nasbench201_{dataset}.csv", data))
    for device, base in (("fpga", 1.0), ("1080ti_256", 20.0)):
        data = latency_pt([base + j for j in range(5)])
        files.append(server.add("someone/latencies", f"data/nasbench201/latency/{device}.pt", data))
    return files


def test_the_files_become_one_table_that_is_found_by_name(
    server: Server, sources: list[Source]
) -> None:
    fetched = fetch("nasbench201", server.url, sources=sources)
    benchmark = load_benchmark("nasbench201")
    assert set(benchmark.metrics) == {
        "cifar10_validation_accuracy",
        "cifar10_test_accuracy",
        "cifar100_validation_accuracy",
        "cifar100_test_accuracy",
        "imagenet16_120_validation_accuracy",
        "imagenet16_120_test_accuracy",
        "fpga_latency_ms",
        "1080ti_256_latency_ms",
    }
    assert fetched.notations == benchmark.notations == ARCHS
    row = benchmark.query(SPACE.parse(ARCHS[3]))
    assert (row["cifar10_validation_accuracy"], row["cifar100_test_accuracy"]) == (93.0, 82.0)
    assert (row["imagenet16_120_test_accuracy"], row["fpga_latency_ms"]) == (81.0, 4.0)
    assert {entry["sha256"] for entry in benchmark.header.sources} == {
        source.sha256 for source in sources
    }


def test_progress_counts_the_bytes_of_all_files(server: Server, sources: list[Source]) -> None:
    calls: list[tuple[str, int, int]] = []
    fetch("nasbench201", server.url, lambda *args: calls.append(args), sources)
    total = sum(source.bytes for source in sources)
    assert [call[1] for call in calls] == sorted(call[1] for call in calls)
    assert calls[-1] == ("bytes", total, total)
    assert len(calls) == len(sources)


def test_a_wrong_checksum_names_file_expected_and_found_and_leaves_nothing(
    server: Server, sources: list[Source], cache: Path
) -> None:
    file = server.folder / sources[-1].location
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    found = hashlib.sha256(file.read_bytes()).hexdigest()
    with pytest.raises(
        InputError, match=f"1080ti_256.pt: wrong checksum: expected sha256 {sources[-1].sha256}"
    ) as error:
        fetch("nasbench201", server.url, sources=sources)
    assert found in str(error.value)
    assert not list(cache.rglob("*1080ti_256*"))
    with pytest.raises(InputError, match="not on this machine"):
        load_benchmark("nasbench201")


def test_after_a_failure_only_what_is_missing_or_damaged_is_downloaded_again(
    server: Server, sources: list[Source], cache: Path
) -> None:
    file = server.folder / sources[-1].location
    good = file.read_bytes()
    file.write_bytes(b"bad")
    with pytest.raises(InputError):
        fetch("nasbench201", server.url, sources=sources)
    file.write_bytes(good)
    (cache / "sources" / sources[0].location).write_bytes(b"damaged on disk")
    server.requests.clear()
    fetch("nasbench201", server.url, sources=sources)
    assert server.requests == [f"/{sources[0].location}", f"/{sources[-1].location}"]


def test_a_server_that_sends_too_slowly_is_given_up(
    server: Server, sources: list[Source], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(fetch.__globals__, "MAX_SECONDS", 0.5)
    server.seconds_a_byte = 0.02  # 12 s for the first file, and never 30 s without a byte
    began = time.monotonic()
    with pytest.raises(
        InputError, match=r"nasbench201_cifar10\.csv: the downloads took more than 0\.5 s: repeat"
    ):
        fetch("nasbench201", server.url, sources=sources)
    assert time.monotonic() < began + 3
    assert not list(cache.rglob("*cifar10*"))


def test_a_longer_file_is_not_read_to_its_end(server: Server, sources: list[Source]) -> None:
    file = server.folder / sources[0].location
    file.write_bytes(file.read_bytes() + b"x" * 10_000_000)
    with pytest.raises(InputError, match="wrong checksum"):
        fetch("nasbench201", server.url, sources=sources)


def test_a_missing_file_a_dead_server_and_a_wrong_url_are_named(
    server: Server, sources: list[Source]
) -> None:
    (server.folder / sources[0].location).unlink()
    with pytest.raises(InputError, match=r"nasbench201_cifar10\.csv: the server answers 404"):
        fetch("nasbench201", server.url, sources=sources)
    server.close()
    with pytest.raises(InputError, match=r"nasbench201_cifar10\.csv: cannot be downloaded"):
        fetch("nasbench201", server.url, sources=sources)
    with pytest.raises(InputError, match="must begin with http"):
        fetch("nasbench201", "file:///etc", sources=sources)
    with pytest.raises(InputError, match="did you mean 'nasbench201'"):
        fetch("nasbench101", server.url)


def test_files_that_disagree_make_no_table(server: Server, sources: list[Source]) -> None:
    swapped = accuracy_csv([ARCHS[1], ARCHS[0], *ARCHS[2:]], [1.0] * 5, [1.0] * 5)
    short, not_a_list = latency_pt([1.0] * 4), latency_pt({"fpga": [1.0] * 5})
    infinite = latency_pt([1.0, float("inf"), 1.0, 1.0, 1.0])
    for path, data, message in [
        ("data/nasbench201_cifar100.csv", swapped, "not in the order of the official index"),
        ("data/nasbench201/latency/fpga.pt", short, r"fpga\.pt: not a list of 5 latencies"),
        ("data/nasbench201/latency/fpga.pt", not_a_list, r"fpga\.pt: not a list of 5 latencies"),
        ("data/nasbench201/latency/fpga.pt", infinite, r"fpga\.pt: a latency is not finite"),
    ]:
        kept = [source for source in sources if source.path != path]
        with pytest.raises(InputError, match=message):
            fetch(
                "nasbench201", server.url, sources=[*kept, server.add("someone/else", path, data)]
            )


def test_fetching_keeps_values_of_an_earlier_import(server: Server, sources: list[Source]) -> None:
    fetch("nasbench201", server.url, sources=sources[:3])
    fetch("nasbench201", server.url, sources=[sources[0], sources[3]])
    assert {"cifar100_test_accuracy", "fpga_latency_ms"} <= set(
        load_benchmark("nasbench201").metrics
    )


def test_the_packaged_sources_pin_three_data_sets_and_27_devices() -> None:
    sources = nasbench201_sources()
    assert sum(source.path.endswith(".csv") for source in sources) == 3
    assert len({source.path for source in sources if source.path.endswith(".pt")}) == 27
    assert all(
        len(source.commit) == 40 and len(source.sha256) == 64 and source.bytes > 0
        for source in sources
    )


def test_the_real_files_carry_the_pinned_checksums_and_agree_with_the_real_table(
    nas_data: Path, server: Server
) -> None:
    """Latency lists are the public ones; accuracy files are written here, in NASGraph's form, from
    the ready table.
    """
    raw = nas_data / "raw"
    devices = ("fpga", "gold_6226")
    if not all((raw / f"{device}.pt").is_file() for device in devices):
        pytest.skip("NAS_DATA has no raw latency files")
    with gzip.open(nas_data / "nasbench201.csv.gz", "rt", newline="") as stream:
        rows = list(csv.DictReader(stream))
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    pinned = {Path(source.path).stem: source for source in nasbench201_sources()}
    sources = []
    for dataset in DATASETS[:2]:
        accuracies = (columns[f"{dataset}_{split}_accuracy"] for split in ("validation", "test"))
        data = accuracy_csv(columns["arch"], *accuracies)
        sources.append(server.add("someone/accuracies", f"data/nasbench201_{dataset}.csv", data))
    for device in devices:
        source = pinned[device]
        (server.folder / source.location).parent.mkdir(parents=True, exist_ok=True)
        (server.folder / source.location).write_bytes((raw / f"{device}.pt").read_bytes())
        sources.append(source)
    benchmark = fetch("nasbench201", server.url, sources=sources)
    assert benchmark.notations == columns["arch"]
    for metric in benchmark.metrics:
        np.testing.assert_allclose(
            benchmark.values(metric), [float(v) for v in columns[metric]], rtol=1e-5
        )


def test_the_real_excerpt_has_the_form_that_is_parsed(nas_data: Path, server: Server) -> None:
    excerpt = nas_data / "raw" / "nasbench201_cifar10_excerpt.csv"
    if not excerpt.is_file():
        pytest.skip("NAS_DATA has no raw excerpt")
    source = server.add("someone/accuracies", "data/nasbench201_cifar10.csv", excerpt.read_bytes())
    benchmark = fetch("nasbench201", server.url, sources=[source])
    with gzip.open(nas_data / "nasbench201.csv.gz", "rt", newline="") as stream:
        rows = [row for row, _ in zip(csv.DictReader(stream), range(len(benchmark)), strict=False)]
    assert benchmark.notations == [row["arch"] for row in rows]
    for metric in benchmark.metrics:
        np.testing.assert_allclose(
            benchmark.values(metric), [float(row[metric]) for row in rows], rtol=1e-5
        )
