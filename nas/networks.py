"""Networks by what a user has of them: their texts, those of libraries kept in the cache folder."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from nas.benchmarks.cache import cache_folder
from search_spaces.common.errors import InputError
from search_spaces.common.files import replacing
from search_spaces.sources import library_network, read_source
from search_spaces.text import TEXT_VERSION


def network_text(source: str) -> str:
    """The compact text of a network; see `search_spaces.sources.read_source` for what `source` can be.

    A library's network is built once for each version of the library.
    """
    named = library_network(source)
    if named is None:
        return read_source(source)
    try:
        release = version(named.library)
    except PackageNotFoundError:
        return read_source(source)  # says what to install
    file = f"{named.name}{f'@{named.size}' if named.size else ''}.txt"
    path = cache_folder() / "networks" / f"{named.library}-{release}-{TEXT_VERSION}" / file
    if path.is_file():
        return path.read_text()
    text = read_source(source)
    with replacing(path) as temporary:
        temporary.write_text(text)
    return text


def matching(source: str) -> list[str]:
    """The sources that a pattern such as `timm:resnet*` stands for; any other source itself."""
    library, _, pattern = source.partition(":")
    if library != "timm" or "*" not in pattern:
        return [source]
    from search_spaces.pytorch.libraries import timm_networks

    found = [f"timm:{name}" for name in timm_networks(pattern)]
    if not found:
        raise InputError(f"timm has no network like {pattern!r}")
    return found
