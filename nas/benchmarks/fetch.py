"""Downloads NAS-Bench-201 from its public sources, each pinned to a commit, a size and a checksum,
into one compact table.
"""

from __future__ import annotations

import io
import json
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from queue import Empty, Queue

import numpy as np

from nas.benchmarks.csv_file import parse_csv
from nas.benchmarks.loading import sha256, update_nasbench201
from nas.benchmarks.table import Benchmark, Header, Table, canonical
from nas.evaluation.machine import cache_folder
from search_spaces.common.errors import InputError, unknown
from search_spaces.common.files import replacing
from search_spaces.common.progress import Progress

BASE_URL = "https://raw.githubusercontent.com"
TIMEOUT_SECONDS = 30.0  # without data from the server
MAX_SECONDS = 1800.0  # for all downloads together, at least 6 kB/s


@dataclass(frozen=True)
class Source:
    """One file of a public repository at one commit."""

    repository: str
    commit: str
    path: str
    licence: str
    bytes: int
    sha256: str

    @property
    def location(self) -> str:
        """`repository/commit/path`, relative to the server's base URL and to the cache folder."""
        return f"{self.repository}/{self.commit}/{self.path}"


def nasbench201_sources() -> list[Source]:
    """The files of accuracies (CSV, one per data set) and latencies (`.pt`, one per device)."""
    text = (Path(__file__).parent / "data" / "sources.json").read_text(encoding="utf-8")
    return [Source(**entry) for entry in json.loads(text)]


def fetch(
    name: str,
    base_url: str = BASE_URL,
    progress: Progress | None = None,
    sources: Sequence[Source] | None = None,
) -> Benchmark:
    """Download the pinned source files of a benchmark.

    They are verified and merged into the cached table. Verified files are kept and not downloaded
    again, so that a call that ran into `MAX_SECONDS` can be repeated.

    nasbench201 has these columns, in the order of the official index: validation and test accuracy
    in % after 200 epochs (mean over seeds) on CIFAR-10 (the "cifar10-valid" setting), CIFAR-100 and
    ImageNet16-120, from NASGraph, and 27 device latencies in ms, from HELP. The latency files are
    bare lists. That they follow the official index was checked value by value for fpga and
    gold_6226 and is assumed for the other 25. `import_file` adds 12-epoch accuracies, parameters
    and FLOPs from the official file; this function keeps them.

    Args:
        name: the benchmark, `"nasbench201"`.
        base_url: a server with the layout `base_url/repository/commit/path`.
        progress: called with ("bytes", done, total).
        sources: the pinned files, by default those of the package.

    Raises:
        InputError: the name is unknown, a download failed, or a checksum differs. The table is then
            unchanged.
    """
    if name != "nasbench201":
        raise unknown("benchmark to fetch", name, ["nasbench201"])
    if not base_url.startswith(("http://", "https://")):
        raise InputError(f"base URL {base_url!r}: it must begin with http:// or https://")
    sources = nasbench201_sources() if sources is None else sources
    total = sum(source.bytes for source in sources)
    done = 0
    contents = {}
    deadline = time.monotonic() + MAX_SECONDS
    for source in sources:
        contents[source] = _verified(source, base_url, deadline)
        done += source.bytes
        if progress:
            progress("bytes", done, total)
    return update_nasbench201(_merge(contents))


def _verified(source: Source, base_url: str, deadline: float) -> bytes:
    """The file's bytes: from the cache if its copy is intact, else downloaded before `deadline`."""
    path = cache_folder() / "sources" / source.location
    if path.is_file():
        data = path.read_bytes()
        if sha256(data) == source.sha256:
            return data
    url = f"{base_url.rstrip('/')}/{source.location}"
    data = _until(deadline, url, lambda: _download(url, source.bytes))
    if sha256(data) != source.sha256:
        raise InputError(
            f"{url}: wrong checksum: expected sha256 {source.sha256}, found {sha256(data)}"
        )
    with replacing(path) as temporary:
        temporary.write_bytes(data)
    return data


def _until(deadline: float, url: str, download: Callable[[], bytes]) -> bytes:
    """The result of `download`, which is abandoned at `deadline`.

    A slow server may never reach its timeout. Raises InputError at the deadline.
    """
    answers: Queue[bytes | Exception] = Queue()

    def run() -> None:
        try:
            answers.put(download())
        except Exception as error:
            answers.put(error)

    threading.Thread(target=run, daemon=True).start()
    try:
        answer = answers.get(timeout=max(0.0, deadline - time.monotonic()))
    except Empty as error:
        raise InputError(
            f"{url}: the downloads took more than {MAX_SECONDS:g} s: repeat the command, which "
            "resumes with this file, or give another base URL"
        ) from error
    if isinstance(answer, Exception):
        raise answer
    return answer


def _download(url: str, size: int) -> bytes:
    """At most `size` + 1 bytes from `url`.

    A longer file thus fails its checksum without being read to the end.
    """
    # Imports ssl and email, which is too slow for every command
    from http.client import HTTPException
    from urllib.error import HTTPError
    from urllib.parse import quote
    from urllib.request import urlopen

    try:
        with urlopen(quote(url, safe=":/"), timeout=TIMEOUT_SECONDS) as response:
            return response.read(size + 1)
    except HTTPError as error:
        raise InputError(
            f"{url}: the server answers {error.code} {error.reason}; check the base URL"
        ) from error
    except (OSError, HTTPException, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise InputError(
            f"{url}: cannot be downloaded ({reason}); check the network and the base URL"
        ) from error


def _merge(contents: dict[Source, bytes]) -> Table:
    """Merge all files into a table.

    The CSV files name the architectures; the `.pt` lists have the same order.
    """
    archs: list[str] = []
    columns: dict[str, np.ndarray] = {}
    for source, data in contents.items():
        if not source.path.endswith(".csv"):
            continue
        path = Path(source.location)
        table = parse_csv(data, path, arch_columns=("arch str",), ignore=("cfg name",))
        if (archs and table.archs != archs) or np.any(
            table.columns["file id"] != np.arange(len(table.archs))
        ):
            raise InputError(f"{path}: its rows are not in the order of the official index")
        archs = table.archs
        dataset = path.stem.removeprefix("nasbench201_").replace("-", "_").lower()
        for split in ("validation", "test"):
            columns[f"{dataset}_{split}_accuracy"] = table.columns[f"{split} accuracy"]
    for source, data in contents.items():
        if source.path.endswith(".pt"):
            columns[f"{PurePosixPath(source.path).stem}_latency_ms"] = _latencies(
                source, data, len(archs)
            )
    origins = [
        {"from": f"{source.repository} ({source.licence})", "sha256": source.sha256}
        for source in contents
    ]
    header = Header("nasbench201", "nasbench201", sources=origins)
    archs = canonical(
        header.open_space(), archs, lambda i: f"architecture {i} of nasbench201's sources"
    )
    return Table(header, archs, columns)


def _latencies(source: Source, data: bytes, rows: int) -> np.ndarray:
    """Latencies (n,) in ms from a `.pt` file, which is a pickle of a plain list."""
    import torch

    values = torch.load(io.BytesIO(data), weights_only=True)
    if not isinstance(values, list) or len(values) != rows:
        raise InputError(f"{source.location}: not a list of {rows} latencies")
    latencies = np.array(values, np.float64)
    if not np.isfinite(latencies).all():
        raise InputError(f"{source.location}: a latency is not finite")
    return latencies
