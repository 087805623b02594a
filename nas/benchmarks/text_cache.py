"""Disk cache of the ONNX texts of a table, because a large table takes a minute to convert."""

from __future__ import annotations

import gzip
import hashlib
import inspect
import json
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from joblib import Parallel, delayed

from nas.evaluation.machine import cache_folder
from search_spaces import Architecture, SearchSpace
from search_spaces.common.files import replacing
from search_spaces.common.progress import Progress
from search_spaces.ir.text import TEXT_VERSION

MIN_PARALLEL_TEXTS = 2000  # fewer are made in this process
TEXTS_PER_TASK = 100


def cached_texts(
    space: SearchSpace,
    space_key: str,
    architectures: Sequence[Architecture],
    notations: Sequence[str],
    progress: Progress | None = None,
) -> list[str]:
    """Texts of n architectures, from the cache folder if possible.

    The cache key covers the architectures, the space, its options and the version of the texts. A
    damaged file is replaced.

    Args:
        space: makes the texts.
        space_key: identifies the space and its options.
        architectures: (n).
        notations: the same (n) as strings.
        progress: called with ("texts", done, total) while texts are made.
    """
    key = hashlib.sha256(
        "\n".join([space_key, text_version(space), *notations]).encode()
    ).hexdigest()
    path = cache_folder() / "texts" / f"{key[:32]}.json.gz"
    texts = _read(path)
    if texts is None or len(texts) != len(architectures):
        texts = []
        for text in _texts(space, architectures):
            texts.append(text)
            if progress:
                progress("texts", len(texts), len(architectures))
        with replacing(path) as temporary:
            temporary.write_bytes(
                gzip.compress(json.dumps(texts).encode(), compresslevel=6, mtime=0)
            )
    return texts


def _texts(space: SearchSpace, architectures: Sequence[Architecture]) -> Iterator[str]:
    """Texts of the architectures, made on all cores if there are many.

    A space from a user's file exists in this process only, so its texts are made here.
    """
    if len(architectures) < MIN_PARALLEL_TEXTS or not type(space).__module__.startswith(
        "search_spaces."
    ):
        yield from map(space.to_text, architectures)
        return
    # Unlike multiprocessing, joblib's processes do not run the user's script again.
    parallel = Parallel(n_jobs=-1, batch_size=TEXTS_PER_TASK, return_as="generator")
    yield from parallel(delayed(space.to_text)(arch) for arch in architectures)


def _read(path: Path) -> list[str] | None:
    try:
        return json.loads(gzip.decompress(path.read_bytes()))
    except (OSError, EOFError, zlib.error, ValueError):
        return None


def text_version(space: SearchSpace) -> str:
    """Version of a space's texts: `TEXT_VERSION`, and for a plug-in the checksum of its file."""
    if type(space).__module__.startswith("search_spaces."):
        return str(TEXT_VERSION)
    own_file = Path(inspect.getfile(type(space)))
    return f"{TEXT_VERSION}-{hashlib.sha256(own_file.read_bytes()).hexdigest()}"
