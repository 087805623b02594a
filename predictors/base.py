"""The contract of all predictors: ONNX text (or models) in, metrics with uncertainty out."""

from __future__ import annotations

import gc
import importlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from predictors.metrics import is_chosen
from search_spaces import to_text
from search_spaces.common import plug_ins
from search_spaces.common.errors import InputError, unknown
from search_spaces.common.files import replacing

if TYPE_CHECKING:
    import onnx

ENTRY_POINTS = "rlm_nas.predictors"
FORMAT_VERSION = 2
CHECKPOINTS = Path(__file__).parent / "checkpoints"
STREAMED = 256  # of more, one process has nothing left to do while another is at its last
GUESSES = 4  # samples of a point estimate
_KINDS = {
    "rlm": "predictors.rlm.predictor:RLM",
    "gnn": "predictors.gnn.predictor:GNN",
    "ridge": "predictors.simple:Ridge",
    "forest": "predictors.simple:Forest",
}

Inputs = Sequence["str | onnx.ModelProto"]
Metrics = Mapping[str, Sequence[float] | np.ndarray]


@dataclass(frozen=True)
class Predictions:
    """Predictions of m metrics for n architectures, in the metrics' own units.

    mean, median, std: (n, m). samples: (n, samples, m), joint over the metrics. `metrics` names the columns.
    """

    metrics: tuple[str, ...]
    mean: np.ndarray
    median: np.ndarray
    std: np.ndarray
    samples: np.ndarray

    @classmethod
    def of_samples(cls, metrics: Sequence[str], samples: np.ndarray) -> Predictions:
        """Summaries of samples (n, samples, m)."""
        samples = np.asarray(samples, np.float64)
        return cls(tuple(metrics), samples.mean(1), np.median(samples, 1), samples.std(1), samples)

    def __getitem__(self, metric: str) -> np.ndarray:
        """The point estimate (n,) of one metric: the median, which a rare wrong exponent does not move."""
        return self.median[:, self.metrics.index(metric)]


class Predictor(ABC):
    """Learns metrics from architectures. Higher and lower values are just numbers here: no direction is assumed.

    The same seeds and inputs give the same numbers.
    """

    kind: str = ""

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    @property
    @abstractmethod
    def metrics(self) -> tuple[str, ...]:
        """Metrics that can be predicted."""

    @abstractmethod
    def fit(self, architectures: Inputs, metrics: Metrics) -> Self:
        """Learn from n architectures and, per metric, n values; NaN where a value is missing."""

    @abstractmethod
    def predict(
        self,
        architectures: Inputs,
        metrics: Sequence[str],
        given: Metrics | None = None,
        samples: int = 64,
        seed: int = 0,
    ) -> Predictions:
        """Predict `metrics` for n architectures; `given` holds n known values of other metrics (NaN: unknown)."""

    def estimate(self, architectures: Inputs, metrics: Sequence[str], given: Metrics | None = None) -> np.ndarray:
        """Point estimates (n, metrics), as cheap as this predictor can make them; see `predict` for the arguments."""
        return self.predict(architectures, metrics, given, samples=GUESSES).median

    def predict_stream(
        self,
        architectures: Iterable[str | onnx.ModelProto],
        metrics: Sequence[str],
        samples: int = 64,
        seed: int = 0,
        jobs: int = 1,
    ) -> Iterator[Predictions]:
        """Predict any number of architectures in constant memory: `predict` of 256 at a time.

        jobs: processes of one thread each that share the work; each begins with what `save` writes.
        """
        options = {"metrics": metrics, "samples": samples, "seed": seed}
        yield from self._stream("predict", architectures, jobs, options)

    def estimate_stream(
        self, architectures: Iterable[str | onnx.ModelProto], metrics: Sequence[str], jobs: int = 1
    ) -> Iterator[np.ndarray]:
        """`estimate`, of 256 at a time; see `predict_stream`."""
        yield from self._stream("estimate", architectures, jobs, {"metrics": metrics})

    def _stream(
        self, method: str, architectures: Iterable[str | onnx.ModelProto], jobs: int, options: dict[str, Any]
    ) -> Iterator[Any]:
        remaining = iter(architectures)
        chunks = iter(lambda: as_texts(list(islice(remaining, STREAMED))), [])
        if jobs == 1:
            yield from (getattr(self, method)(chunk, **options) for chunk in chunks)
            return
        from joblib import Parallel, delayed

        with TemporaryDirectory() as folder:
            self.save(folder)
            asked = delayed(_in_worker)
            work = (asked(type(self), folder, method, chunk, options) for chunk in chunks)
            yield from Parallel(n_jobs=jobs, pre_dispatch="2*n_jobs", return_as="generator")(work)

    @abstractmethod
    def _state(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Configuration (JSON) and tensors that `_restore` rebuilds the predictor from."""

    @classmethod
    @abstractmethod
    def _restore(cls, config: dict[str, Any], tensors: dict[str, np.ndarray]) -> Self:
        """The inverse of `_state`."""

    def save(self, folder: str | Path) -> None:
        """Write `config.json` and `model.safetensors`; each file appears whole or not at all."""
        from safetensors.numpy import save

        config, tensors = self._state()
        header = {"format": "rlm-nas predictor", "version": FORMAT_VERSION, "kind": self.kind}
        files = {
            "model.safetensors": save({k: np.ascontiguousarray(v) for k, v in tensors.items()}),
            "config.json": json.dumps({**header, **config}, indent=1).encode(),
        }
        for name, content in files.items():
            with replacing(Path(folder) / name) as path:
                path.write_bytes(content)


@lru_cache(maxsize=1)
def _loaded(kind: type[Predictor], folder: str) -> Predictor:
    """A saved predictor, once per process."""
    import torch

    torch.set_num_threads(1)
    loaded = load(folder, kind)
    gc.freeze()  # what is there stays: looking at it again and again took the collector a tenth of the time
    return loaded


def _in_worker(kind: type[Predictor], folder: str, method: str, texts: list[str], options: dict[str, Any]) -> Any:
    return getattr(_loaded(kind, folder), method)(texts, **options)


def list_predictors() -> list[str]:
    """Names that `create` takes, those of installed packages included."""
    return sorted({*_KINDS, *plug_ins.installed(ENTRY_POINTS)})


def predictor_class(name: str) -> type[Predictor]:
    """The predictor of that name, or the class in a user's file (`my_predictor.py:Nearest`)."""
    return _from_file(name) if plug_ins.is_file(name) else _named(name)


def _named(name: str) -> type[Predictor]:
    if name in _KINDS:
        module, _, class_name = _KINDS[name].partition(":")
        return getattr(importlib.import_module(module), class_name)
    found = plug_ins.from_package(ENTRY_POINTS, name, Predictor)
    if found is None:
        raise unknown("predictor", name, list_predictors())
    found.kind = name
    return found


def _from_file(reference: str) -> type[Predictor]:
    found = plug_ins.from_file(reference, Predictor, "predictor")
    if found.kind in ("", *_KINDS):  # its checkpoints are not those of the class that it may derive from
        found.kind = found.__name__
    return found


def create(name: str, seed: int = 0, **options: Any) -> Predictor:
    """An untrained predictor: "rlm", "gnn", "ridge", "forest", one of an installed package, or `file.py:Class`."""
    try:
        return predictor_class(name)(seed=seed, **options)
    except TypeError as error:
        raise InputError(f"predictor {name!r} does not take these options: {error}") from None


def checkpoint(name: str | Path) -> Path:
    """Folder of a shipped checkpoint by name, or the folder itself."""
    shipped = CHECKPOINTS / name
    return shipped if shipped.is_dir() else Path(name)


def load(name: str | Path, of: type[Predictor] | None = None) -> Predictor:
    """A predictor by its shipped name, or from a folder of `save`; checks its format, version and tensors' shapes.

    of: the class of a predictor of your own that no installed package announces. What a checkpoint says of itself runs
    no file.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load as load_tensors

    folder = checkpoint(name)
    try:
        config = json.loads((folder / "config.json").read_text())
        tensors = load_tensors((folder / "model.safetensors").read_bytes())
    except FileNotFoundError as error:
        raise InputError(f"{folder}: not a checkpoint ({Path(error.filename).name} is missing)") from None
    except (ValueError, SafetensorError) as error:
        raise InputError(f"{folder}: damaged checkpoint ({str(error)[:200]})") from None
    if not isinstance(config, dict) or config.get("format") != "rlm-nas predictor":
        raise InputError(f"{folder}: config.json is not of a predictor")
    if config.get("version") != FORMAT_VERSION:
        raise InputError(
            f"{folder}: the checkpoint has format version {config.get('version')}, "
            f"this release reads {FORMAT_VERSION}; train it again"
        )
    kind = of or _announced(folder, config.get("kind"))
    if kind.kind != config.get("kind"):
        raise InputError(f"{folder}: a checkpoint of {config.get('kind')!r}, not of {kind.kind!r}")
    try:
        return kind._restore(config, tensors)
    except (KeyError, TypeError, AttributeError, IndexError, RuntimeError, ValueError) as error:
        raise InputError(f"{folder}: damaged checkpoint ({type(error).__name__}: {str(error)[:200]})") from None


def _announced(folder: Path, kind: Any) -> type[Predictor]:
    """The class that a checkpoint says it is of, by a name that this or an installed package knows."""
    if kind not in list_predictors():
        raise InputError(
            f"{folder}: a checkpoint of {kind!r}, which no installed package has: name its class, as "
            "`nas predict --predictor FILE.py:CLASS` or predictors.load(folder, CLASS)"
        )
    return _named(kind)


# --- shared by the implementations -----------------------------------------------------------------------------------


def as_texts(architectures: Inputs) -> list[str]:
    """Texts as they are, ONNX models as their text."""
    return [a if isinstance(a, str) else to_text(a) for a in architectures]


def as_targets(architectures: Inputs, metrics: Metrics) -> dict[str, np.ndarray]:
    """Checked training targets: float64 (n,) per metric, at least one finite value in each, no infinite one."""
    if not len(architectures):
        raise InputError("there is no architecture to learn from")
    if not metrics:
        raise InputError("there is no metric to learn")
    targets = as_given(architectures, metrics)
    for name, values in targets.items():
        if np.isnan(values).all():
            raise InputError(f"metric {name!r} has no value to learn from")
    return targets


def as_given(architectures: Inputs, metrics: Metrics | None) -> dict[str, np.ndarray]:
    """Checked known values: float64 (n,) per metric, NaN where unknown."""
    checked: dict[str, np.ndarray] = {}
    for name, values in (metrics or {}).items():
        array = np.asarray(values, np.float64)
        if array.shape != (len(architectures),):
            raise InputError(f"metric {name!r} has shape {array.shape} for {len(architectures)} architectures")
        if np.isinf(array).any():
            raise InputError(f"metric {name!r} has an infinite value; use NaN for a missing one")
        checked[name] = array
    return checked


def check_request(
    predictor: Predictor, architectures: Inputs, metrics: Sequence[str], given: Metrics | None, samples: int
) -> dict[str, np.ndarray]:
    """Check what `predict` is asked; returns the given values."""
    if not predictor.metrics:
        raise InputError(f"the {predictor.kind} predictor is not trained: call fit first, or load a checkpoint")
    for name in metrics:
        if name not in predictor.metrics:
            raise unknown("metric", name, predictor.metrics)
    if samples < 1:
        raise InputError(f"samples must be at least 1, not {samples}")
    known = as_given(architectures, given)
    for name in known:
        if name not in predictor.metrics and not is_chosen(name):
            raise unknown("given metric", name, predictor.metrics)
    return known


def patterns(count: int, known: Metrics) -> list[tuple[np.ndarray, list[str]]]:
    """Rows of `count`, grouped by which metrics (count,) are known for them, and not NaN."""
    if not known:
        return [(np.arange(count), [])]
    names = list(known)
    present = ~np.isnan(np.stack([known[name] for name in names], 1))
    found, group = np.unique(present, axis=0, return_inverse=True)
    return [
        (np.flatnonzero(group.ravel() == g), [n for n, here in zip(names, pattern, strict=True) if here])
        for g, pattern in enumerate(found)
    ]


def under(part: str, tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The tensors of a part, by their names in it."""
    return {name.removeprefix(f"{part}."): t for name, t in tensors.items() if name.startswith(f"{part}.")}
