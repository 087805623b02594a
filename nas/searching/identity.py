"""The identity of a search: what it was begun with, and whether another run may go on with it.

A study mixes values of different origin without a trace if its space, data or training change between two runs. So a
study keeps a fingerprint of all that its values depend on, and a run with another one is refused.
"""

from __future__ import annotations

import json
import logging
import re
import shlex
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from optuna.trial import TrialState

from nas.evaluation import memory
from nas.evaluation.machine import machine, versions
from nas.searching.evaluators import MeasuredEvaluator
from nas.searching.own_evaluator import FunctionEvaluator
from nas.searching.sources import measured_metrics, source_of, used_settings
from nas.searching.trials import is_evaluated
from nas.searching.workers import Worker
from search_spaces.common import plug_ins
from search_spaces.common.errors import InputError
from search_spaces.text import TEXT_VERSION, fingerprint

if TYPE_CHECKING:
    import optuna

    from nas.searching.evaluators import Evaluator
    from nas.searching.objectives import Constraint
    from predictors.metrics import Metric
    from search_spaces import SearchSpace

IDENTITY_KEY = "nas:identity"  # study user attribute
SAMPLED_NETWORKS = 32
MAX_SAMPLING_SECONDS = 1.0  # after which no further network is sampled: a text may take a second
REMEDY = "go on as it was begun, or begin another search (--new; another --out, --storage or --study)"
MEASURING = ("torch", "onnxruntime")  # a new minor version of them may measure other values
_FILE_NAMES = ("benchmark", "predictor", "measurement.data.source", "evaluator.function")
_DIGITS = 12  # of a fingerprint: 48 bits tell a few dozen networks apart

log = logging.getLogger(__name__)


def begun_with(
    space: SearchSpace, objectives: Sequence[Metric], constraints: Sequence[Constraint], evaluator: Evaluator
) -> dict[str, dict[str, Any]]:
    """What the values of a search depend on, as plain values: `settings`, `source` and `identity`.

    The identity holds networks, machine, versions and command. networks: pairs of fingerprints, of the choices and of
    the text, of up to `SAMPLED_NETWORKS` random architectures, the same in every process (fewer of a slow space).
    """
    device = evaluator.device if isinstance(evaluator, MeasuredEvaluator | FunctionEvaluator) else "cpu"
    return {
        "settings": {
            "space": space.reference,
            "space_options": space.options,
            "objectives": [str(objective) for objective in objectives],
            "constraints": [str(constraint) for constraint in constraints],
        },
        "source": source_of(evaluator),
        "identity": {
            "text_version": TEXT_VERSION,
            "networks": [list(pair) for pair in _sampled(space)],
            "machine": machine(device),
            "versions": versions(),
            "command": command(),
        },
    }


def command() -> str:
    """The command of this process, without passwords."""
    words = [Path(sys.argv[0]).name, *sys.argv[1:]]
    return re.sub(r"(://[^/@:\s]+):[^/@\s]+@", r"\1:***@", shlex.join(words))


@lru_cache(maxsize=8)
def _sampled(space: SearchSpace) -> tuple[tuple[str, str], ...]:
    return tuple(_sample(space))


def _sample(space: SearchSpace) -> Iterator[tuple[str, str]]:
    """Fingerprints of random architectures. What a faulty or infeasible one raises is a part of the fingerprint."""
    started, rng = time.monotonic(), np.random.default_rng(0)
    for _ in range(SAMPLED_NETWORKS):
        choices = text = ""
        try:
            architecture = space.sample(rng)
            choices, text = space.format(architecture), space.to_text(architecture)
        except Exception as error:  # of the user's `build`: the search will report it
            text = type(error).__name__
        yield fingerprint(choices)[:_DIGITS], fingerprint(text)[:_DIGITS]
        if time.monotonic() > started + MAX_SAMPLING_SECONDS:
            return


class Difference(NamedTuple):
    """What was and what is, in words, and whether values of the two must not be mixed."""

    text: str
    forbids: bool = True


def is_unused(study: optuna.Study) -> bool:
    """True if nothing has been evaluated in a study yet, and no process works on it: its origin may still change."""
    trials = study.get_trials(deepcopy=False)
    begun = any(is_evaluated(trial) or trial.state == TrialState.PRUNED for trial in trials)
    return not begun and not Worker(study).has_others()


def check_same(where: str, stored: Mapping[str, Any], present: Mapping[str, Any], is_worker: bool = False) -> None:
    """Raise InputError that names all differences, if the values of two searches must not be mixed.

    Args:
        where: folder or storage that holds the search.
        stored, present: `settings`, `source` and `identity` of the stored search and of this run.
        is_worker: this run joins a search. Its machine may be another one, which is a warning only.
    """
    stored, present = json.loads(json.dumps(stored)), json.loads(json.dumps(present))
    try:
        found = [*_differences(stored, present, is_worker)]
    except (AttributeError, LookupError, TypeError) as error:
        raise InputError(f"{where} is damaged: what it was begun with lacks or garbles {error}") from error
    if conflicts := [difference.text for difference in found if difference.forbids]:
        raise InputError(f"{where} holds another search, begun with {'; '.join(conflicts)}: {REMEDY}")
    for difference in found:
        log.warning("%s: the search was begun with %s", where, difference.text)


def _differences(stored: Mapping[str, Any], present: Mapping[str, Any], is_worker: bool) -> Iterator[Difference]:
    for key, old, new in _changes(stored["settings"], present["settings"]):
        if not _is_file_of_space(key, old, new):
            yield Difference(f"{key} {old!r}, not {new!r}")
    yield from _source_differences(used_settings(stored["source"]), used_settings(present["source"]))
    yield from _identity_differences(stored["identity"], present["identity"], present["source"], is_worker)


def _source_differences(stored: Mapping[str, Any], present: Mapping[str, Any]) -> list[Difference]:
    """Differences in where values come from. A file's name does not matter where its content is the same."""
    changes = [*_changes(stored, present)]
    if stored.keys() == present.keys() and not any(key.endswith("sha256") for key, _, _ in changes):
        changes = [change for change in changes if change[0] not in _FILE_NAMES and not _is_file_of_space(*change)]
    return [Difference(f"{key} {_short(old)}, not {_short(new)}") for key, old, new in changes]


def _is_file_of_space(key: str, old: Any, new: Any) -> bool:
    """True for two files of a space: its networks are compared, not the files' names."""
    return key == "space" and plug_ins.is_file(str(old)) and plug_ins.is_file(str(new))


def _identity_differences(
    stored: Mapping[str, Any], present: Mapping[str, Any], source: Mapping[str, Any], is_worker: bool
) -> Iterator[Difference]:
    if not stored:
        yield Difference("a version of rlm-nas that kept no fingerprint of its space")
        return
    yield from _network_differences(stored, present)
    measured = measured_metrics(source)
    matters = {"processor": any(m.startswith("cpu_") or m == memory.METRIC for m in measured), "device": bool(measured)}
    for key, old, new in _changes(stored["machine"], present["machine"]):
        if key in matters:
            yield Difference(f"{key} {old!r}, not {new!r}", matters[key] and not is_worker)
    for package, old, new in _changes(stored["versions"], present["versions"]):
        forbids = bool(measured) and package in MEASURING and _minor(old) != _minor(new)
        yield Difference(f"{package} {old}, not {new}", forbids)


def _network_differences(stored: Mapping[str, Any], present: Mapping[str, Any]) -> Iterator[Difference]:
    pairs = [*zip(stored["networks"], present["networks"], strict=False)]  # as many as both have
    changed = sum(old != new for old, new in pairs)
    if any(old[0] != new[0] for old, new in pairs):
        yield Difference("a space of other choices")
    elif changed and stored["text_version"] != present["text_version"]:
        yield Difference(f"texts of version {stored['text_version']}, not {present['text_version']}")
    elif changed:
        yield Difference(f"a space that builds other networks ({changed} of {len(pairs)} sampled ones)")


def _changes(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Name, old and new value of all that differs, in nested settings as `training.epochs`."""
    for key in dict.fromkeys([*old, *new]):
        a, b = old.get(key), new.get(key)
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            yield from _changes(a, b, f"{prefix}{key}.")
        elif a != b:
            yield f"{prefix}{key}", a, b


def _minor(version: str | None) -> list[str]:
    """Major and minor version."""
    return (version or "").split(".")[:2]


def _short(value: Any) -> str:
    """A value for a message; of a checksum its beginning."""
    text = repr(value)
    return f"{text[:_DIGITS]}…" if len(text) > 64 else text
