"""Compact texts of networks from files, code and libraries:

net.onnx   net.onnx@320   net.txt   my_model.py:build   timm:resnet50   timm:resnet50@288   transformers:BertModel
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from search_spaces.common.errors import InputError, describe
from search_spaces.common.plug_ins import is_file
from search_spaces.ir.costs import graph_flops
from search_spaces.ir.onnx import cost_error, from_model, load_model
from search_spaces.ir.text import compact, expand, read, write
from search_spaces.registry import get_space

if TYPE_CHECKING:
    from search_spaces.ir.graph import Graph

LIBRARIES = ("timm:", "torchvision:", "transformers:")
_LIBRARY = re.compile(r"(timm|torchvision|transformers):([\w.]+)(?:@(\d+))?")


class LibraryNetwork(NamedTuple):
    """A network of a library.

    Attributes:
        library: timm, torchvision or transformers.
        name: name of the network in the library.
        size: height and width of the input; None for the network's default.
    """

    library: str
    name: str
    size: int | None

    def __str__(self) -> str:
        return f"{self.library}:{self.name}" + (f"@{self.size}" if self.size else "")


def library_network(source: str) -> LibraryNetwork | None:
    """Parse LIBRARY:NAME or LIBRARY:NAME@SIZE; None for any other source.

    Raises:
        InputError: if the size is zero.
    """
    match = _LIBRARY.fullmatch(source)
    if match is None:
        return None
    library, name, digits = match.groups()
    size = int(digits) if digits else None
    if size == 0:
        raise InputError(f"{source}: the size must be at least 1")
    return LibraryNetwork(library, name, size)


def read_source(source: str) -> str:
    """The compact text of a network.

    Args:
        source: an .onnx file, with @SIZES for its open sizes, see `load_model`; a .txt file with a
            text; FILE.py:NAME, a space or function with one network; or LIBRARY:NAME of timm,
            torchvision or transformers, with @SIZE for another input size.

    Raises:
        InputError: if the network cannot be read; the message names the source.
    """
    named = library_network(source)
    if named:
        return _naming(source, lambda: write(compact(_of_library(named))))
    if is_file(source):
        return _naming(source, lambda: write(compact(_of_code(source))))
    if source.startswith(LIBRARIES):
        raise InputError(
            f"{source}: no name of a network: write for example timm:resnet50 or timm:resnet50@288"
        )
    if source.endswith(".txt"):
        return _naming(source, lambda: write(compact(expand(read(_content(source))))))
    return _naming(source, lambda: write(compact(from_model(load_model(source)))))


@contextmanager
def naming_costs(sources: Sequence[str], texts: Sequence[str]) -> Iterator[None]:
    """Errors about what networks cost name the source, and the node of an ONNX file."""
    try:
        yield
    except InputError as error:
        for source, text in zip(sources, texts, strict=True):
            _raise_cost_error(source, text, error)
        raise


def _raise_cost_error(source: str, text: str, error: InputError) -> None:
    """Raise the error with the name of its source, if counting that network raises it."""
    try:
        graph_flops(expand(read(text)))
    except InputError as cause:
        if str(cause) != str(error):
            return
        if source.endswith(".txt") or is_file(source) or library_network(source):
            raise InputError(f"{source}: {error}") from error
        raise InputError(f"{source}: {cost_error(load_model(source), error)}") from error


def _naming(source: str, action: Callable[[], str]) -> str:
    try:
        return action()
    except InputError as error:
        if source.partition(":")[0] in str(error):
            raise
        raise InputError(f"{source}: {error}") from error


def _content(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read as text ({error})") from error


def _of_code(reference: str) -> Graph:
    space = get_space(reference)
    architecture = space.sample(np.random.default_rng(0))
    if architecture.choices:
        names = ", ".join(architecture.as_dict())
        raise InputError(
            f"{reference} has choices ({names}): write one of its networks with `nas sample`"
        )
    return space.graph(architecture)


def _of_library(named: LibraryNetwork) -> Graph:
    from search_spaces.ir.pytorch import layer_of, record
    from search_spaces.ir.pytorch.libraries import build

    module, example = build(*named)
    try:
        return record(module, example)
    except Exception as error:  # the library's code may raise any
        raise InputError(f"{named}: {describe(error)}{layer_of(error, module)}") from error
