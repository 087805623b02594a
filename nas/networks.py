"""Texts of networks from files, functions and libraries; those of libraries are cached."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from nas.evaluation.machine import cache_folder
from search_spaces.common.errors import InputError
from search_spaces.common.files import replacing
from search_spaces.ir.text import TEXT_VERSION
from search_spaces.sources import library_network, read_source


def network_text(source: str) -> str:
    """The compact text of a network. A library's network is built once per version of the library.

    Args:
        source: a file, a function or a library's network, see `search_spaces.sources.read_source`.

    Raises:
        InputError: the network cannot be read.
    """
    named = library_network(source)
    if named is None:
        return read_source(source)
    try:
        release = version(named.library)
    except PackageNotFoundError:
        return read_source(source)  # raises an error that says what to install
    file = f"{named.name}{f'@{named.size}' if named.size else ''}.txt"
    path = cache_folder() / "networks" / f"{named.library}-{release}-{TEXT_VERSION}" / file
    if path.is_file():
        return path.read_text(encoding="utf-8")
    text = read_source(source)
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return text


def matching(source: str) -> list[str]:
    """The sources that match a pattern such as `timm:resnet*`; any other source itself.

    Raises:
        InputError: no network matches.
    """
    library, _, pattern = source.partition(":")
    if library != "timm" or "*" not in pattern:
        return [source]
    from search_spaces.ir.pytorch.libraries import timm_networks

    matches = [f"timm:{name}" for name in timm_networks(pattern)]
    if not matches:
        raise InputError(f"timm has no network that matches {pattern!r}")
    return matches
