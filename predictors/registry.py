"""Predictors by name: of this package, of installed packages, or in a user's file."""

from __future__ import annotations

import importlib
from typing import Any

from predictors.base import Predictor
from search_spaces.common import plug_ins
from search_spaces.common.errors import InputError, unknown

ENTRY_POINTS = "rlm_nas.predictors"
_CLASSES = {
    "rlm": "predictors.rlm.predictor:RLM",
    "gnn": "predictors.gnn.predictor:GNN",
    "gp": "predictors.gp:TextGP",
    "gp-choices": "predictors.gp:ChoicesGP",
    "ridge": "predictors.simple:Ridge",
    "forest": "predictors.simple:Forest",
}
JOIN = "+"  # joins the members of an ensemble: rlm+gp


def list_predictors() -> list[str]:
    """Sorted names that `create` accepts, including those of installed packages."""
    return sorted({*_CLASSES, *plug_ins.installed(ENTRY_POINTS)})


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
        found = plug_ins.from_file(name, Predictor, "predictor")
        if found.kind in (
            "",
            *_CLASSES,
        ):  # a subclass of a shipped predictor must not claim its checkpoints
            found.kind = found.__name__
        return found
    if JOIN in name:
        from predictors.ensemble import joined

        return joined(name, tuple([_named(part) for part in name.split(JOIN)]))
    return _named(name)


def _named(name: str) -> type[Predictor]:
    if name in _CLASSES:
        module, _, class_name = _CLASSES[name].partition(":")
        return getattr(importlib.import_module(module), class_name)
    found = plug_ins.from_package(ENTRY_POINTS, name, Predictor)
    if found is None:
        raise unknown("predictor", name, list_predictors())
    found.kind = name
    return found


def create(name: str, seed: int = 0, **options: Any) -> Predictor:
    """Create an untrained predictor.

    Args:
        name: a name of `list_predictors`, several names joined by `+`, or `file.py:Class`.
        seed: seed of the predictor.
        options: further arguments of the predictor's class.

    Raises:
        InputError: if the name or an option is unknown.
    """
    try:
        return predictor_class(name)(seed=seed, **options)
    except TypeError as error:
        raise InputError(f"predictor {name!r} does not take these options: {error}") from error
