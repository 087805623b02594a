"""Predictors by name: those of this package, of installed packages, and in a user's file."""

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
JOIN = "+"  # between the members of an ensemble, as in rlm+gp


def list_predictors() -> list[str]:
    """Names that `create` takes, those of installed packages included; any of them can be joined: `rlm+gp`."""
    return sorted({*_CLASSES, *plug_ins.installed(ENTRY_POINTS)})


def is_predictor(name: str) -> bool:
    """True if the name is that of a predictor, or of an ensemble of such."""
    return all(part in list_predictors() for part in name.split(JOIN))


def predictor_class(name: str) -> type[Predictor]:
    """The predictor of that name, the class in a user's file (`my_predictor.py:Nearest`), or an ensemble (`rlm+gp`)."""
    if plug_ins.is_file(name):
        return _from_file(name)
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


def _from_file(reference: str) -> type[Predictor]:
    found = plug_ins.from_file(reference, Predictor, "predictor")
    if found.kind in ("", *_CLASSES):  # its checkpoints are not those of the class that it may derive from
        found.kind = found.__name__
    return found


def create(name: str, seed: int = 0, **options: Any) -> Predictor:
    """An untrained predictor: a name of `list_predictors`, names joined by `+`, or `file.py:Class`.

    Raises:
        InputError: for an unknown name or option.
    """
    try:
        return predictor_class(name)(seed=seed, **options)
    except TypeError as error:
        raise InputError(f"predictor {name!r} does not take these options: {error}") from None
