"""Predictors by name: classes of this package, of installed packages or in a user's file, and trained
ones in checkpoints.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from predictors.base import Predictor
from predictors.checkpoint import CHECKPOINTS, checkpoint, read
from search_spaces.common import plug_ins
from search_spaces.common.errors import InputError, unknown

# Increase it whenever the predictions of a predictor or of a shipped checkpoint change: results
# are not mixed with those of other versions.
RESULT_VERSION = 21
ENTRY_POINTS = "rlm_nas.predictors"
JOIN = "+"  # joins the members of an ensemble: rlm+gp
_CLASSES = {
    "rlm": "predictors.rlm.predictor:RLM",
    "gnn": "predictors.gnn.predictor:GNN",
    "gp": "predictors.baselines:TextGP",
    "gp-choices": "predictors.baselines:ChoicesGP",
    "ridge": "predictors.baselines:Ridge",
    "forest": "predictors.baselines:Forest",
}
_HERE = Path(__file__).parent

Trained = TypeVar("Trained", bound=Predictor)


def list_predictors() -> list[str]:
    """Sorted names that `create` accepts, including those of installed packages."""
    return sorted({*_CLASSES, *plug_ins.installed(ENTRY_POINTS)})


def create(
    name: str,
    seed: int = 0,
    **options: Any,
) -> Predictor:
    """Create an untrained predictor.

    Args:
        name: a name of `list_predictors`, several names joined by `+`, or `file.py:Class`.
        seed: seed of the predictor.
        options: further arguments of the predictor's class.

    Raises:
        InputError: if the name or an option is unknown.

    >>> import predictors
    >>> predictors.create("ridge").kind
    'ridge'
    """
    try:
        return predictor_class(name)(seed=seed, **options)
    except TypeError as error:
        raise InputError(f"predictor {name!r} does not take these options: {error}") from error


def load(name: str | Path, of: type[Predictor] | None = None) -> Predictor:
    """Load a trained predictor.

    Args:
        name: name of a shipped checkpoint, or a folder that `Predictor.save` wrote.
        of: class of the predictor; needed for a class that neither this nor an installed package
            registers. A checkpoint never names a file to import.

    Raises:
        InputError: if the checkpoint is missing, damaged, or of another format or predictor.

    >>> import predictors
    >>> predictors.load("gnn-label-free").kind
    'gnn'
    """
    folder = checkpoint(name)
    if not folder.exists():
        raise unknown("checkpoint", str(name), (path.name for path in CHECKPOINTS.iterdir()))
    config, tensors = read(folder)
    stored = config.get("kind")
    if of is None and not (isinstance(stored, str) and is_predictor(stored)):
        raise InputError(
            f"{folder}: a checkpoint of predictor {stored!r}, which no installed package provides: "
            "name its class with `nas predict --predictor FILE.py:CLASS` or "
            "predictors.load(folder, CLASS)"
        )
    kind = of or predictor_class(str(stored))
    if kind.kind != stored:
        raise InputError(f"{folder}: a checkpoint of predictor {stored!r}, not of {kind.kind!r}")
    try:
        return kind._restore(config, tensors)
    except InputError as error:
        raise InputError(f"{folder}: {_one_line(error)}") from error
    except (
        LookupError,
        TypeError,
        AttributeError,
        RuntimeError,
        ValueError,
        ArithmeticError,
        MemoryError,
    ) as error:
        reason = f"{type(error).__name__}: {_one_line(error)}"
        raise InputError(f"{folder}: damaged checkpoint ({reason})") from error


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]


def load_trained(name: str | Path, of: type[Predictor] | None = None) -> Predictor:
    """Load a predictor that can predict.

    Raises:
        InputError: as by `load`, or if the checkpoint has only weights, as `rlm-base`.
    """
    loaded = load(name, of)
    if not loaded.metrics:
        raise InputError(
            f"{name}: this checkpoint has no examples to predict from: give rlm-zoo (real "
            "networks), rlm-nasbench201 or a folder that `nas train` wrote, or your own "
            "measurements to `nas rank --measured`"
        )
    return loaded


@lru_cache(maxsize=8)
def load_base(name: str, of: type[Trained]) -> Trained:
    """Load a pretrained predictor once per process.

    Raises:
        InputError: as by `load`, or if the predictor is not of this class.
    """
    folder = str(checkpoint(name))
    loaded = load(folder)
    if not isinstance(loaded, of):
        article = "an" if of.kind == "rlm" else "a"
        raise InputError(f"{folder}: holds a {loaded.kind} predictor, not {article} {of.kind}")
    return loaded


# --- classes


def is_predictor(name: str) -> bool:
    """True if the name is that of a registered predictor or of an ensemble of such."""
    return all(part in list_predictors() for part in name.split(JOIN))


def predictor_class(name: str) -> type[Predictor]:
    """The class of a predictor.

    Args:
        name: a registered name, `rlm+gp` for an ensemble, or `my_predictor.py:Nearest` for a class
            in a file.

    Raises:
        InputError: if there is no such predictor.
    """
    if plug_ins.is_file(name):
        of_file = plug_ins.from_file(name, Predictor, "predictor")
        # A subclass of a shipped predictor must not claim its checkpoints.
        if of_file.kind in ("", *_CLASSES):
            of_file.kind = of_file.__name__
        return of_file
    if JOIN in name:
        from predictors.ensemble import joined

        return joined(name, tuple([_registered(part) for part in name.split(JOIN)]))
    return _registered(name)


def _registered(name: str) -> type[Predictor]:
    if name in _CLASSES:
        module, _, class_name = _CLASSES[name].partition(":")
        return getattr(importlib.import_module(module), class_name)
    installed = plug_ins.from_package(ENTRY_POINTS, name, Predictor)
    if installed is None:
        raise unknown("predictor", name, list_predictors())
    installed.kind = name
    return installed


def version(name: str | None = None) -> str:
    """Version of a predictor's results: `RESULT_VERSION`.

    For a plug-in, a digest of the file follows.

    Args:
        name: name of a predictor; None for the version of this package.
    """
    if name is None:
        return str(RESULT_VERSION)
    file = Path(inspect.getfile(predictor_class(name)))
    if file.is_relative_to(_HERE):
        return str(RESULT_VERSION)
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    return f"{RESULT_VERSION}-{digest[:8]}"
