"""Result folders: each belongs to one command, so that no search overwrites the results of another.

`search.json` in a folder records the command's arguments, its searches, and their identity
(`nas.search.study.provenance`).
"""

from __future__ import annotations

import datetime
import glob
import itertools
import json
import os
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nas.search.study.load import load_studies
from nas.search.study.provenance import check_same, is_unused
from nas.search.study.schema import SETTINGS_KEY, SOURCE_KEY
from search_spaces.common.errors import InputError
from search_spaces.common.files import replacing

if TYPE_CHECKING:
    import optuna

RECORD = "search.json"
# A folder without a record must have none of these
RESULTS = (
    "studies",
    "front",
    "front.csv",
    "summary.json",
)
MAX_NAME_LENGTH = 120  # characters; most file systems allow 255 bytes


def folder_name(searched: str, objectives: Iterable[str]) -> str:
    """`SPACE-OBJECTIVES-DATE`, such as `digits201-digits_accuracy+cpu_latency_ms-2026-11-24`.

    Args:
        searched: name of a space or table, or `FILE.py:NAME`.
        objectives: names of the metrics.
    """
    path, _, of_class = searched.rpartition("/")[2].partition(":")
    name = plain_name(f"{of_class or Path(path).stem}-{'+'.join(objectives)}")
    return f"{name}-{datetime.date.today().isoformat()}"


def plain_name(text: str) -> str:
    """The text as a file name, without separators and spaces."""
    return re.sub(r"[^\w.+-]+", "_", text)[:MAX_NAME_LENGTH]


@contextmanager
def chosen_folder(
    folder: Path, arguments: Mapping[str, Any], searches: Iterable[str], new: bool
) -> Iterator[Path]:
    """Find the folder in which a command resumes, or create one that no other process can choose.

    Candidates are `folder`, `folder-2`, `folder-3` and so on. A command resumes in a folder that
    was begun with the same arguments and holds only searches of this command; it can add seeds and
    samplers. A created folder is removed if an error leaves it empty.

    Args:
        folder: first choice.
        arguments: of the command, as JSON values, without those that only limit it.
        searches: names of the command's searches.
        new: never resume, always create a folder.

    Raises:
        InputError: a folder cannot be created, or a record is damaged.
    """
    requested, made = set(searches), list[Path]()
    for number in itertools.count(1):
        path = folder if number == 1 else folder.with_name(f"{folder.name}-{number}")
        if made := _make(path):
            break
        record = _read(path)
        if (
            not new
            and record
            and record["arguments"] == arguments
            and requested.issuperset(record["searches"])
        ):
            break
    try:
        yield path
    except BaseException:
        with suppress(OSError):  # the folder is not empty
            for one in made:
                one.rmdir()
        raise


def _make(folder: Path) -> list[Path]:
    """Create a folder with its parents, and list the created ones, innermost first.

    The list is empty if the folder exists.
    """
    missing = [one for one in (folder, *folder.parents) if not one.exists()]
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        return []
    except OSError as error:
        raise InputError(
            f"{folder} cannot be created ({error.strerror}): give another --out"
        ) from error
    return missing


def earlier_folders(folder: Path, arguments: Mapping[str, Any]) -> list[Path]:
    """Folders of the same command from other days, the latest first."""
    name = folder.name.removesuffix(datetime.date.today().isoformat())
    dated = [
        path
        for path in folder.parent.glob(f"{glob.escape(name)}[0-9]*")
        if not path.name.startswith(folder.name)
    ]
    return sorted(
        (path for path in dated if _is_of(path, arguments)),
        key=lambda p: p.stat().st_mtime,
        reverse=True,
    )


def _is_of(folder: Path, arguments: Mapping[str, Any]) -> bool:
    with suppress(InputError):  # a damaged record
        record = _read(folder)
        return record is not None and bool(record["arguments"] == arguments)
    return False


def claim(
    folder: Path,
    searches: Iterable[str],
    begun_with: Mapping[str, Any],
    arguments: Mapping[str, Any],
) -> None:
    """Write the record of a command that begins or resumes in a folder.

    Args:
        folder: the result folder.
        searches: names of the command's searches.
        begun_with: identity of the searches (`nas.search.study.provenance.provenance_of`).
        arguments: of the command.

    Raises:
        InputError: the folder holds other searches, or these were begun with other settings, data
            or networks (`nas.search.study.provenance.check_same`).
    """
    names = list(searches)
    record = _read(folder)
    if record is None:
        if strange := [name for name in RESULTS if (folder / name).exists()]:
            raise InputError(
                f"{folder} already holds {strange[0]}, but no {RECORD}: give another folder"
            )
        if _write_first(
            folder, {"arguments": arguments, "searches": names, "begun_with": begun_with}
        ):
            return
        record = _read(folder)  # another process has just written it
    if record:
        is_fresh = _is_unused(folder)
        stored = (
            {**begun_with, "settings": record["begun_with"]["settings"]}
            if is_fresh
            else record["begun_with"]
        )
        check_same(str(folder), stored, begun_with)
        if missing := [name for name in record["searches"] if name not in names]:
            raise InputError(
                f"{folder} also holds the search {missing[0]}: name its sampler and seed with the "
                "others, or use another folder (--new, or another --out)"
            )
        begun_with, arguments = stored, record["arguments"]
    _write(folder / RECORD, {"arguments": arguments, "searches": names, "begun_with": begun_with})


def _write(path: Path, record: Mapping[str, Any]) -> None:
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(record, indent=1) + "\n")


def _write_first(folder: Path, record: Mapping[str, Any]) -> bool:
    """Write a folder's first record.

    Returns False if another process has written one in the meantime.
    """
    # Process ids are not unique across machines and threads
    aside = folder / f".{RECORD}-{uuid.uuid4().hex}"
    try:
        _write(aside, record)
    except InputError as error:  # it names a file that the user does not know
        raise InputError(str(error).replace(str(aside), str(folder))) from error
    try:
        os.link(aside, folder / RECORD)
    except FileExistsError:
        return False
    except OSError:  # a file system without links
        os.replace(aside, folder / RECORD)
    finally:
        aside.unlink(missing_ok=True)
    return True


def check_free(folder: Path, studies: Iterable[optuna.Study] = ()) -> None:
    """Raise InputError if a folder holds a search other than these.

    Its results would be overwritten.
    """
    record = _read(folder)
    if record is None:
        return
    begun = record["begun_with"]
    stored = [
        (study.user_attrs.get(SETTINGS_KEY, {}), study.user_attrs.get(SOURCE_KEY))
        for study in studies
    ]
    same = [
        begun["settings"].items() <= settings.items() and source == begun["source"]
        for settings, source in stored
    ]
    if not same or not all(same):
        raise InputError(f"{folder} holds the results of another search: give another --out")


def _is_unused(folder: Path) -> bool:
    """True if the folder's studies have no evaluation yet."""
    journals = sorted((folder / "studies").glob("*.journal"))
    return bool(journals) and all(
        is_unused(study) for path in journals for study in load_studies(path)
    )


def searched_table(folder: Path) -> dict[str, Any]:
    """Arguments of `load_benchmark` for the table that a folder's searches use.

    {} if they use none.
    """
    record = _read(folder)
    source = record["begun_with"]["source"] if record else {}
    keys = ("benchmark", "space", "space_options") if "benchmark" in source else ()
    return {key: source[key] for key in keys if key in source}


def _read(folder: Path) -> dict[str, Any] | None:
    """The folder's record, or None; InputError if it is damaged."""
    try:
        record = json.loads((folder / RECORD).read_text())
        names, begun = record["searches"], record["begun_with"]
        whole = all(isinstance(begun.get(part, {}), dict) for part in ("settings", "source"))
        if "arguments" in record and whole and all(isinstance(name, str) for name in names):
            return dict(record)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        pass
    raise InputError(
        f"{folder / RECORD}: damaged, or not the record of a search: give another folder"
    )
