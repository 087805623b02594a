"""Reads third-party pickles without executing them; only containers, strings and numbers can come
out.

A pickle builds objects by calling the functions that it names. This reader allows the few names
that data files need and replaces them with its own functions. Numpy's functions, which trust their
arguments, are never called. A malicious file can still exhaust memory.
"""

from __future__ import annotations

import pickle
import re
import zipfile
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from search_spaces.common.errors import InputError

TORCH_MAGIC = 0x1950A86A20F9469CFC6C  # first object of a file in torch's format before zip


def load_pickle(path: Path) -> Any:
    """Contents of a pickle file, with numpy arrays as lists.

    Raises InputError if it is damaged or not plain data.
    """
    with _refusing(path), path.open("rb") as stream:
        return _Unpickler(stream).load()


def load_torch_file(path: Path) -> Any:
    """Contents of a file of plain data that `torch.save` wrote.

    The file is in its zip format or the format before. The unpickler is written in C: 4.7 GB of
    NAS-Bench-201 take half a minute instead of ten with `torch.load(weights_only=True)`.

    Raises:
        InputError: the file is damaged or not plain data.
    """
    with _refusing(path), path.open("rb") as stream:
        if zipfile.is_zipfile(stream):
            with zipfile.ZipFile(stream) as archive:
                member = next(
                    (name for name in archive.namelist() if name.endswith("/data.pkl")), "data.pkl"
                )
                with archive.open(member) as data:
                    return _Unpickler(data).load()
        stream.seek(0)
        if _Unpickler(stream).load() != TORCH_MAGIC:
            raise pickle.UnpicklingError("it is not a torch file")
        _version = _Unpickler(stream).load()
        _system = _Unpickler(stream).load()
        return _Unpickler(stream).load()


@contextmanager
def _refusing(path: Path) -> Iterator[None]:
    """Turn any error from a missing, damaged or malicious file into an InputError.

    A bad pickle can raise anything.
    """
    try:
        yield
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error})") from error
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"{path}: refused as damaged or not plain data: {reason}") from error


class _Dtype:
    """Replacement for numpy.dtype that allows numbers only."""

    def __init__(self, code: str, *_: object) -> None:
        if not re.fullmatch(r"[biuf][1248]", code):
            raise pickle.UnpicklingError(f"it has numpy data of type {code!r}")
        self.value = np.dtype(code)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.value = self.value.newbyteorder(state[1])


class _Array(list[Any]):
    """Replacement for numpy.ndarray: a list of the array's numbers."""

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _version, shape, dtype, fortran, data = state
        self[:] = (
            np.frombuffer(data, dtype.value).reshape(shape, order="F" if fortran else "C").tolist()
        )


def _scalar(dtype: _Dtype, data: bytes) -> Any:
    return np.frombuffer(data, dtype.value).item()


def _reconstruct(*_: object) -> _Array:
    return _Array()


def _encode(text: str, _encoding: str) -> bytes:
    # Pickles before protocol 3 write bytes as a call of this, or of bytes() if empty
    return text.encode("latin1")


def _empty() -> bytes:
    return b""


# Both spellings occur: Python 2's modules in pickles before protocol 3, numpy.core in files before
# numpy 2.
_ALLOWED: dict[tuple[str, str], Any] = {
    ("builtins", "set"): set,
    ("__builtin__", "set"): set,
    ("collections", "OrderedDict"): OrderedDict,
    ("_codecs", "encode"): _encode,
    ("__builtin__", "bytes"): _empty,
    ("numpy", "dtype"): _Dtype,
    ("numpy", "ndarray"): _Array,
    ("numpy.core.multiarray", "scalar"): _scalar,
    ("numpy._core.multiarray", "scalar"): _scalar,
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"it names {module}.{name}")
        return _ALLOWED[module, name]
