"""Files that a search's values depend on besides its code, such as a configuration that the
evaluator reads.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from search_spaces.common.errors import InputError

_IGNORED = {"__pycache__"}


def content_hashes(paths: Iterable[str | Path]) -> dict[str, str]:
    """SHA-256 of the contents by absolute path; of a folder, of all files in it by relative name
    and content.

    Raises:
        InputError: a path does not exist or cannot be read.
    """
    return {str(Path(path).absolute()): _hash(Path(path)) for path in paths}


def _hash(path: Path) -> str:
    try:
        if not path.is_dir():
            return _file_hash(path)
        digest = hashlib.sha256()
        files = (
            file for file in path.rglob("*") if file.is_file() and _IGNORED.isdisjoint(file.parts)
        )
        for file in sorted(files, key=lambda file: file.relative_to(path).as_posix()):
            digest.update(f"{file.relative_to(path).as_posix()}\0{_file_hash(file)}\0".encode())
        return digest.hexdigest()
    except OSError as error:
        raise InputError(
            f"{path}: cannot be read ({error.strerror}), but the search depends on it"
        ) from error


def _file_hash(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def moved(stored: Mapping[str, str], overrides: Iterable[str | Path]) -> list[Path]:
    """The paths of stored dependencies on this machine.

    Args:
        stored: hashes by path, as the search was started.
        overrides: paths that replace the stored ones of the same file name.

    Raises:
        InputError: an override has the name of no stored dependency.
    """
    absolute = [str(Path(path).absolute()) for path in overrides]
    by_name = {Path(path).name: Path(path) for path in absolute if path not in stored}
    names = [Path(path).name for path in stored]
    if strange := [path for name, path in by_name.items() if name not in names]:
        known = ", ".join(names) or "nothing"
        raise InputError(
            f"{strange[0]}: the search was started with --depends {known}, not {strange[0].name}"
        )
    return [by_name.get(Path(path).name, Path(path)) for path in stored]


def differences(stored: Mapping[str, str], present: Mapping[str, str]) -> Iterator[str]:
    """What distinguishes stored dependencies from the present ones, in words. Files may have
    moved.
    """
    moved_to = [path for path in present if path not in stored]
    for path, content in stored.items():
        if path in present:
            if present[path] != content:
                yield f"another content of {path}"
            continue
        # The same content at another path comes first, then the same name.
        same = next((other for other in moved_to if present[other] == content), None)
        named = next((other for other in moved_to if Path(other).name == Path(path).name), None)
        if same or named:
            moved_to.remove(same or named or "")
        if named and not same:
            yield f"another content of {named}"
        elif not same:
            yield f"--depends {path}"
    yield from (f"no --depends {path}" for path in moved_to)
