"""Devices of the user's own: the RLM predicts any network's latency from those of a few measured networks."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nas.evaluation.device_command import SUFFIX
from nas.evaluation.journal import Journal
from search_spaces.common.errors import InputError, unknown
from search_spaces.common.files import replacing
from search_spaces.text import fingerprint

if TYPE_CHECKING:
    from predictors import Predictor

SAMPLES = 32  # of each prediction
MIN_MEASURED = 3  # networks that a prediction needs
_NAME = re.compile(r"[a-z][a-z0-9_]*")
_TAKEN = ("cpu", "cpu_int8", "cuda", "device")  # whose latency is always measured


def devices_folder() -> Path:
    """`$NAS_DEVICES` if set, else a folder among the user's data (not necessarily existing yet)."""
    if override := os.environ.get("NAS_DEVICES"):
        return Path(override)
    from platformdirs import user_data_dir

    return Path(user_data_dir("rlm-nas"), "devices")


def list_devices() -> list[str]:
    """Names of the devices that are kept."""
    return sorted(path.parent.name for path in devices_folder().glob(f"*/{PredictedDevice.ABOUT}"))


def devices_of(metrics: Iterable[str], measured: Iterable[str] = ()) -> tuple[PredictedDevice, ...]:
    """The kept devices that give these metrics, but for those that are measured anyway."""
    kept = {f"{name}{SUFFIX}": name for name in list_devices()}
    return tuple(PredictedDevice(kept[metric]) for metric in metrics if metric in kept and metric not in measured)


def device_of(settings: Mapping[str, str]) -> PredictedDevice:
    """The kept device with these `PredictedDevice.settings`; InputError where it is not here or has changed."""
    device = PredictedDevice(settings["name"])
    if not device.exists:
        raise InputError(f"device {device.name!r} is not kept here: copy its folder into {devices_folder()}")
    if device.settings != dict(settings):
        raise InputError(f"device {device.name!r} has other measurements than when the search was begun")
    return device


class PredictedDevice:
    """A device, and the networks that were timed on it, by their texts.

    It is kept in a folder of its name: how it is measured, and a line for each network. Raises InputError for a name
    that is no identifier in small letters, or one that is always measured.
    """

    ABOUT = "device.json"

    def __init__(self, name: str) -> None:
        if not _NAME.fullmatch(name) or name in _TAKEN:
            raise InputError(f"device {name!r}: write a name in small letters, digits and _ that is not {_TAKEN}")
        self.name, self.folder = name, devices_folder() / name
        self._journal = Journal(self.folder / "measurements.jsonl") if self.exists else None

    @property
    def metric(self) -> str:
        return f"{self.name}{SUFFIX}"

    @property
    def exists(self) -> bool:
        return (self.folder / self.ABOUT).is_file()

    @property
    def about(self) -> dict[str, Any]:
        """How it is measured."""
        try:
            return dict(json.loads((self.folder / self.ABOUT).read_text()))
        except (OSError, ValueError) as error:
            raise InputError(f"{self.folder / self.ABOUT}: cannot be read ({error})") from None

    def begin(self, about: dict[str, Any]) -> None:
        """Make the folder, or find that it was made for the same: values that are measured otherwise do not mix."""
        if self.exists and self.about != about:
            raise InputError(
                f"device {self.name!r} was measured otherwise ({json.dumps(self.about)}): `nas device remove "
                f"{self.name}` forgets it, or give another name"
            )
        if not self.exists:
            with replacing(self.folder / self.ABOUT) as temporary:
                temporary.write_text(json.dumps(about, indent=1))
        self._journal = Journal(self.folder / "measurements.jsonl")

    def remove(self) -> None:
        """Forget the device and its measurements."""
        if not self.exists:
            raise unknown("device", self.name, list_devices())
        shutil.rmtree(self.folder)

    def add(self, text: str, architecture: str, latency: Sequence[float] | None, failure: str = "") -> None:
        """Keep a network's latency in ms: median, low and high; or None and the reason why there is none."""
        assert self._journal is not None
        self._journal.append(text, {"architecture": architecture, "ms": latency and list(latency), "failure": failure})
        for name in ("_fitted", "texts", "latencies"):
            self.__dict__.pop(name, None)

    @property
    def tried(self) -> dict[str, Any]:
        """All networks by text: architecture, milliseconds, failure."""
        return self._journal.known if self._journal else {}

    @property
    def failures(self) -> list[str]:
        return [row["failure"] for row in self.tried.values() if row["ms"] is None]

    @cached_property
    def texts(self) -> list[str]:
        """Texts (k) of the networks that have a latency."""
        return [text for text, row in self.tried.items() if row["ms"] is not None]

    @cached_property
    def latencies(self) -> np.ndarray:
        """Their median, low and high latencies (k, 3) in ms."""
        return np.array([self.tried[text]["ms"] for text in self.texts], float).reshape(-1, 3)

    @property
    def settings(self) -> dict[str, str]:
        """All that predictions depend on."""
        from predictors.checkpoint import checksum
        from predictors.rlm.predictor import BASE

        values = json.dumps([self.texts, self.latencies[:, 0].tolist(), checksum(BASE)])
        return {"name": self.name, "sha256": fingerprint(values)}

    def predict(self, texts: Sequence[str]) -> np.ndarray:
        """Median, 10 % and 90 % quantile (n, 3) of predicted latencies in ms, of n networks."""
        return _quantiles(self.sample(texts))

    def sample(self, texts: Sequence[str]) -> np.ndarray:
        """Samples (n, samples) of predicted latencies in ms."""
        return _sampled(self._fitted, self.metric, texts)

    def novelty(self, texts: Sequence[str]) -> np.ndarray:
        """How far (n,) networks are from the measured ones, in units of how far these are apart."""
        return self._fitted.novelty(texts)

    def leave_one_out(self) -> np.ndarray:
        """Latencies (k, 3) of the measured networks, each predicted from the others."""
        known, rows = self.latencies[:, 0], np.arange(len(self.texts))
        return np.concatenate(
            [
                _quantiles(_sampled(self._fit(np.where(rows == i, np.nan, known)), self.metric, [self.texts[i]]))
                for i in rows
            ]
        )

    @cached_property
    def _fitted(self) -> Predictor:
        if not self.exists:
            raise unknown("device", self.name, list_devices())
        if len(self.texts) < MIN_MEASURED:
            raise InputError(
                f"device {self.name!r} has {len(self.texts)} measured networks: add {MIN_MEASURED} or more"
            )
        return self._fit(self.latencies[:, 0])

    def _fit(self, latencies: np.ndarray) -> Predictor:
        """The RLM with these latencies (k,) as examples, in logarithms: a prediction is never below zero."""
        import predictors

        return predictors.create("rlm").fit(self.texts, {self.metric: np.log(latencies)})


def _sampled(predictor: Predictor, metric: str, texts: Sequence[str]) -> np.ndarray:
    return np.exp(predictor.predict(texts, [metric], samples=SAMPLES).samples[:, :, 0])


def _quantiles(samples: np.ndarray) -> np.ndarray:
    """Median, 10 % and 90 % quantile (n, 3) of samples (n, s)."""
    return np.quantile(samples, [0.5, 0.1, 0.9], axis=1).T
