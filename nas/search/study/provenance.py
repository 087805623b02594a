"""The provenance of a search: what its values depend on, and whether another run may continue it.

If space, data or training changed between two runs, the study would mix values of different origin
unnoticed. Therefore a study stores a fingerprint of everything that its values depend on, and
rejects runs with another one.
"""

from __future__ import annotations

import hashlib
import json
import logging
import shlex
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import optuna
from optuna.trial import TrialState

from nas.evaluation import memory
from nas.evaluation.machine import machine, versions
from nas.search.study.bound_values import FLOATS, BoundValues, attribute_values, bound_values
from nas.search.study.schema import (
    IDENTITY_KEY,
    SCRIPT,
    SETTINGS_KEY,
    SOURCE_KEY,
    sampler_label,
    without_passwords,
)
from nas.search.study.storage import address, fail_trial, name_metrics, open_storage
from nas.search.study.trials import is_evaluated
from nas.search.study.workers import Worker
from search_spaces.common import plug_ins
from search_spaces.common.errors import InputError
from search_spaces.ir.text import TEXT_VERSION, fingerprint

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler

    from nas.search.evaluators import Evaluator
    from nas.search.settings import SearchSettings
    from nas.search.study.trials import TrialReader
    from predictors.metrics import Metric
    from search_spaces import SearchSpace


SAMPLED_NETWORKS = 32
MAX_SAMPLING_SECONDS = 1.0  # no network is sampled afterwards: one text may take a second
REMEDY = (
    "continue with the original settings, or start another search (--new; another --out, "
    "--storage or --study)"
)
MEASURING = ("torch", "onnxruntime")  # packages whose minor versions may change measured values
_FILE_NAMES = ("benchmark", "predictor", "measurement.data.source", "evaluator.function")
_OTHERWISE_KNOWN = ("name", "input_shape", "num_classes", "example_input")  # attributes of a space
_DIGITS = 12  # hexadecimal digits of a fingerprint: 48 bits distinguish a few dozen networks

log = logging.getLogger(__name__)
Source = Mapping[str, Any]
"""What a study stores about its evaluator: see `nas.search.evaluators.Evaluator.source`."""


def provenance_of(
    reader: TrialReader, evaluator: Evaluator, depends: Iterable[str | Path] = ()
) -> dict[str, dict[str, Any]]:
    """Everything that the values of a search depend on.

    Args:
        reader: has the search's space, objectives and constraints.
        evaluator: of the search.
        depends: files and folders whose contents are compared, too.

    Returns:
        Plain values under `settings`, `source` and `identity`. The identity holds text version,
        networks, values that `build` is bound to, dependencies, machine, package versions and
        command. `networks` are fingerprint pairs (choices, text) of up to `SAMPLED_NETWORKS` random
        architectures, the same ones in every process; a slow space has fewer.
    """
    space = reader.space
    return {
        "settings": {
            "space": space.reference,
            "space_options": space.options,
            "objectives": [str(objective) for objective in reader.objectives],
            "constraints": [str(constraint) for constraint in reader.constraints],
        },
        "source": evaluator.source,
        "identity": {
            "text_version": TEXT_VERSION,
            "networks": [list(pair) for pair in _sampled(space)],
            "build": values_of_build(space).known,
            "depends": content_hashes(depends),
            "machine": machine(evaluator.device),
            "versions": versions(),
            "command": command(),
        },
    }


@lru_cache(
    maxsize=8
)  # as they were first in this process: `build` may count its calls in an attribute
def values_of_build(space: SearchSpace) -> BoundValues:
    """Values that the user's own `build` is bound to, or attributes of the user's own class.

    Its code is not among them: the networks that it builds are compared.
    """
    space = getattr(space, "space", space)  # the rows of a table
    build = vars(space).get("build")
    if build is not None:
        return bound_values(build)
    is_users = not type(space).__module__.startswith("search_spaces.")
    return attribute_values(space, without=_OTHERWISE_KNOWN) if is_users else BoundValues()


_said = set[str]()  # notes that this process has logged


def note_unknown(space: SearchSpace, evaluator: Evaluator) -> None:
    """Log once which values of evaluator and `build` cannot be compared when the search resumes."""
    for owner, values in (
        ("evaluator", evaluator.uncompared),
        ("space", values_of_build(space).unknown),
    ):
        names = ", ".join(f"{name} ({kind})" for name, kind in values.items())
        note = (
            f"changes of these values of the {owner} will not be noticed when the search "
            f"resumes: {names}"
        )
        if names and note not in _said:
            _said.add(note)
            log.warning("%s; --depends (depends=) compares the contents of files", note)


def command() -> str:
    """The command of this process, without passwords."""
    words = [Path(sys.argv[0]).name, *sys.argv[1:]]
    return without_passwords(shlex.join(words))


@lru_cache(maxsize=8)
def _sampled(space: SearchSpace) -> tuple[tuple[str, str], ...]:
    return tuple(_sample(space))


def _sample(space: SearchSpace) -> Iterator[tuple[str, str]]:
    """Fingerprints of the choices and of the texts of random architectures.

    If a network cannot be built, the exception's name replaces its text.
    """
    started = time.monotonic()
    rng = np.random.default_rng(0)
    for _ in range(SAMPLED_NETWORKS):
        choices = text = ""
        try:
            architecture = space.sample(rng)
            choices = space.format(architecture)
            text = space.to_text(architecture)
        except Exception as error:  # the user's `build` failed: the search will report it
            text = type(error).__name__
        yield fingerprint(choices)[:_DIGITS], fingerprint(text)[:_DIGITS]
        if time.monotonic() > started + MAX_SAMPLING_SECONDS:
            return


def measured_metrics(source: Source) -> list[str]:
    """Metrics whose values may depend on the machine and the installed packages.

    They are measured, or returned by a function of the user's.
    """
    own = source.get("evaluator", {})
    return [*own.get("metrics", ()), *(own or source).get("measurement", {}).get("metrics", ())]


def used_settings(source: Source) -> dict[str, Any]:
    """The settings of a source that its metrics use.

    Seeds and training are left out without a data set, latency settings without a latency or memory
    metric.
    """
    kept = dict(source)
    if isinstance(kept.get("evaluator"), Mapping):
        kept["evaluator"] = used_settings(kept["evaluator"])
    if isinstance(kept.get("measurement"), Mapping) and "metrics" in kept["measurement"]:
        measurement = dict(kept["measurement"])
        if not measurement.get("data"):
            unused = ("seeds", "training")
            measurement = {name: value for name, value in measurement.items() if name not in unused}
        if not any(
            metric.endswith("_latency_ms") or metric == memory.METRIC
            for metric in measurement["metrics"]
        ):
            measurement.pop("latency", None)
        kept["measurement"] = measurement
    return kept


class Difference(NamedTuple):
    """A difference between two runs, in words.

    `forbids` is true if the values of the two runs must not be mixed.
    """

    text: str
    forbids: bool = True


def open_study(
    settings: SearchSettings,
    objectives: Sequence[Metric],
    sampler: BaseSampler,
    provenance: dict[str, Any],
) -> optuna.Study:
    """Load the study of a search, or create it with its provenance.

    Args:
        settings: name the study and its storage, and tell if this process joins the search of
            another one.
        objectives: m objectives, which give the study its directions and names of metrics.
        sampler: of a new study, and of this process.
        provenance: settings, source and identity of this run, see `provenance_of`.

    Raises:
        InputError: the stored study is already in use with another provenance, or was not made by a
            search.
    """
    where = address(settings.storage)
    directions = [objective.direction for objective in objectives]
    study = optuna.create_study(
        storage=open_storage(settings.storage),
        sampler=sampler,
        study_name=settings.name,
        directions=directions,
        load_if_exists=True,
    )

    # 1. What the study stores: nothing if it is new. A study with trials but without settings is
    #    somebody else's.
    keys = {"settings": SETTINGS_KEY, "source": SOURCE_KEY, "identity": IDENTITY_KEY}
    attributes = study.user_attrs
    stored = {part: attributes.get(key) for part, key in keys.items()}
    has_other_directions = [d.name.lower() for d in study.directions] != directions
    if stored["settings"] is None and (has_other_directions or study.get_trials(deepcopy=False)):
        raise InputError(
            f"study {settings.name!r} in {where} was not made by a search: give another name or "
            "storage"
        )

    # 2. As long as nothing has been evaluated, the files that the settings name may move and change:
    #    the present provenance replaces the stored one. Other differences of the settings raise an
    #    error here, since only the settings of the two sides differ.
    is_same_kind = (stored["source"] or {}).keys() == provenance["source"].keys()
    has_changed = stored["settings"] not in (None, provenance["settings"])
    if has_changed and is_same_kind and not settings.joins and is_unused(study):
        check_same(where, {**provenance, "settings": stored["settings"]}, provenance)
        for trial in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            fail_trial(study, trial)
        stored["settings"] = None

    # 3. Store the provenance of a new search, or compare it with the stored one.
    if stored["settings"] is None:
        # Settings last: a study that has them has the other parts, too.
        for part, key in reversed(keys.items()):
            study.set_user_attr(key, provenance[part])
        name_metrics(study, [objective.name for objective in objectives])
    else:
        complete = {part: value or {} for part, value in stored.items()}
        check_same(where, complete, provenance, is_worker=settings.joins)
    return study


def is_unused(study: optuna.Study) -> bool:
    """True if the study has no evaluation yet and no process works on it."""
    trials = study.get_trials(deepcopy=False)
    started = any(is_evaluated(trial) or trial.state == TrialState.PRUNED for trial in trials)
    return not started and not Worker(study).has_others()


def check_same(
    where: str, stored: Mapping[str, Any], present: Mapping[str, Any], is_worker: bool = False
) -> None:
    """Check that this run may continue a stored search.

    Differences that do no harm are logged as warnings.

    Args:
        where: folder or storage that holds the search.
        stored, present: `settings`, `source` and `identity` of the stored search and of this run.
        is_worker: this run joins a search. Another machine is then a warning only.

    Raises:
        InputError: the values of both must not be mixed. The message names all differences.
    """
    stored = json.loads(json.dumps(stored))
    present = json.loads(json.dumps(present))
    try:
        differences = [*_differences(stored, present, is_worker)]
    except (AttributeError, LookupError, TypeError) as error:
        raise InputError(
            f"{where} is damaged: a stored setting is missing or malformed ({error})"
        ) from error
    if conflicts := [difference.text for difference in differences if difference.forbids]:
        raise InputError(
            f"{where} holds another search, started with {'; '.join(conflicts)}: {REMEDY}"
        )
    for difference in differences:
        log.warning("%s: the search was started with %s", where, difference.text)


def _differences(
    stored: Mapping[str, Any], present: Mapping[str, Any], is_worker: bool
) -> Iterator[Difference]:
    for key, old, new in _changes(stored["settings"], present["settings"]):
        if not _is_moved_file(key, old, new):
            yield Difference(f"{key} {old!r}, not {new!r}")
    processors = [run["identity"].get("machine", {}).get("processor") for run in (stored, present)]
    has_moved = processors[0] != processors[1]
    yield from _source_differences(
        used_settings(stored["source"]), used_settings(present["source"]), has_moved
    )
    yield from _identity_differences(
        stored["identity"], present["identity"], present["source"], is_worker
    )


def _source_differences(
    stored: Mapping[str, Any], present: Mapping[str, Any], has_moved: bool
) -> list[Difference]:
    """Differences between two sources of values.

    File names are ignored if the files' checksums are equal. `has_moved` is true on
    another processor.
    """
    changes = [change for change in _changes(stored, present) if not _is_older(change)]
    if stored.keys() == present.keys() and not any(key.endswith("sha256") for key, _, _ in changes):
        changes = [
            change
            for change in changes
            if change[0] not in _FILE_NAMES and not _is_moved_file(*change)
        ]
    return [
        Difference(
            f"{key} {_short(old)}, not {_short(new)}",
            forbids=not (has_moved and _is_float_array(old, new)),
        )
        for key, old, new in changes
    ]


def _is_older(change: tuple[str, Any, Any]) -> bool:
    """True if the search was started by a version that did not store these values."""
    key, old, _ = change
    return old is None and key in (SCRIPT, "evaluator.values")


def _is_float_array(old: object, new: object) -> bool:
    """True for digests of numbers whose last bits may differ between processors."""
    return str(old).startswith(FLOATS) and str(new).startswith(FLOATS)


def _is_moved_file(key: str, old: Any, new: Any) -> bool:
    """True if a setting names the same thing at two paths.

    For a space, any two files: their networks are compared instead. For a sampler, two files with
    the same label.
    """
    if key == "sampler":
        return sampler_label(str(old)) == sampler_label(str(new))
    return key == "space" and plug_ins.is_file(str(old)) and plug_ins.is_file(str(new))


def _identity_differences(
    stored: Mapping[str, Any],
    present: Mapping[str, Any],
    source: Mapping[str, Any],
    is_worker: bool,
) -> Iterator[Difference]:
    if not stored:
        yield Difference("a version of rlm-nas that stored no fingerprint of the space")
        return
    yield from _network_differences(stored, present)
    yield from map(Difference, differences(stored.get("depends", {}), present.get("depends", {})))
    yield from _build_differences(stored, present)
    measured = measured_metrics(source)
    matters = {
        "processor": any(m.startswith("cpu_") or m == memory.METRIC for m in measured),
        "device": bool(measured),
    }
    for key, old, new in _changes(stored["machine"], present["machine"]):
        if key in matters:
            yield Difference(f"{key} {old!r}, not {new!r}", matters[key] and not is_worker)
    for package, old, new in _changes(stored["versions"], present["versions"]):
        forbids = bool(measured) and package in MEASURING and _minor(old) != _minor(new)
        yield Difference(f"{package} {old}, not {new}", forbids)


def _build_differences(
    stored: Mapping[str, Any], present: Mapping[str, Any]
) -> Iterator[Difference]:
    """Differences between the values that `build` is bound to.

    There are none if the stored search is an older version's.
    """
    if "build" not in stored:
        return
    has_moved = stored["machine"].get("processor") != present["machine"].get("processor")
    for name, old, new in _changes(stored["build"], present.get("build", {})):
        forbids = not (has_moved and _is_float_array(old, new))
        yield Difference(f"{name} {_short(old)} of the space, not {_short(new)}", forbids)


def _network_differences(
    stored: Mapping[str, Any], present: Mapping[str, Any]
) -> Iterator[Difference]:
    # A slow space may have fewer in one run
    pairs = [*zip(stored["networks"], present["networks"], strict=False)]
    changed = sum(old != new for old, new in pairs)
    if any(old[0] != new[0] for old, new in pairs):
        yield Difference("a space with other choices")
    elif changed and stored["text_version"] != present["text_version"]:
        yield Difference(
            f"texts of version {stored['text_version']}, not {present['text_version']}"
        )
    elif changed:
        yield Difference(
            f"a space that builds other networks ({changed} of {len(pairs)} sampled ones differ)"
        )


def _changes(
    old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = ""
) -> Iterator[tuple[str, Any, Any]]:
    """Name, old value and new value of each difference.

    Nested names are joined, as in `training.epochs`.
    """
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
    """A value for a message; a long one, such as a checksum, is shortened."""
    text = repr(value)
    return f"{text[:_DIGITS]}…" if len(text) > 64 else text


# --- files that a search depends on besides its code

_IGNORED = {"__pycache__"}


def content_hashes(paths: Iterable[str | Path]) -> dict[str, str]:
    """SHA-256 of the contents by absolute path.

    That of a folder covers all files in it by relative name and content.

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
    """Differences between stored and present dependencies, in words. Files may have moved."""
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
