"""The user's devices, whose latency of any network is predicted from a few measured ones.

The metric may be another one that is positive. Predictions are by counted costs and by the RLM
(`nas.evaluation.new_device.NewDeviceModel`).
"""

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
from nas.evaluation.runtimes import RUNTIMES
from predictors.metrics import Metric
from search_spaces.common.errors import InputError, unknown
from search_spaces.common.files import replacing
from search_spaces.ir.text import fingerprint

if TYPE_CHECKING:
    from nas.evaluation.new_device import NewDeviceModel

SAMPLES = 32  # per predicted latency
QUANTILES = (0.5, 0.1, 0.9)  # of the samples, the columns of a prediction
MIN_MEASURED = 3  # networks that a prediction needs at least
_NAME = re.compile(r"[a-z][a-z0-9_]*")
# Names of latencies that are measured on this machine
_TAKEN = ("cpu", "cpu_int8", "cpu_prefill", "cpu_decoding", "cuda", "device", *RUNTIMES)


def devices_folder() -> Path:
    """Folder of all devices, which may not exist yet.

    It is `$NAS_DEVICES`, or a folder in the user's data directory.
    """
    if override := os.environ.get("NAS_DEVICES"):
        return Path(override)
    from platformdirs import user_data_dir

    return Path(user_data_dir("rlm-nas"), "devices")


def list_devices() -> list[str]:
    """Names of the stored devices."""
    return sorted(path.parent.name for path in devices_folder().glob(f"*/{PredictedDevice.ABOUT}"))


def devices_of(metrics: Iterable[str], measured: Iterable[str] = ()) -> tuple[PredictedDevice, ...]:
    """The stored devices that predict these metrics, except those in `measured`."""
    by_metric = {}
    for name in list_devices():
        device = PredictedDevice(name)
        by_metric[device.metric] = device
    predicted = [metric for metric in metrics if metric in by_metric and metric not in measured]
    return tuple(by_metric[metric] for metric in predicted)


def device_of(settings: Mapping[str, str]) -> PredictedDevice:
    """Load the device that a search was begun with.

    Args:
        settings: its `PredictedDevice.settings`.

    Raises:
        InputError: the device is not stored on this machine, or its measurements or the checkpoint
            have changed.
    """
    device = PredictedDevice(settings["name"])
    if not device.exists:
        raise InputError(
            f"device {device.name!r} is not stored here: copy its folder into {devices_folder()}"
        )
    if device.settings != dict(settings):
        raise InputError(
            f"device {device.name!r} has changed since the search was begun: begin another search"
        )
    return device


class PredictedDevice:
    """A device with the texts and latencies of the networks that were timed on it.

    A folder of its name holds `device.json`, which says how the device is measured, and
    `measurements.jsonl`, with a line per network.

    Raises:
        InputError: the name is not a lower-case identifier, or is reserved for a latency that is
            always measured; or the measurements are damaged.
    """

    ABOUT = "device.json"
    MEASUREMENTS = "measurements.jsonl"

    def __init__(self, name: str) -> None:
        if not _NAME.fullmatch(name) or name in _TAKEN:
            taken = ", ".join(_TAKEN)
            raise InputError(
                f"device {name!r}: use lower-case letters, digits and _, and none of the names "
                f"{taken}"
            )
        self.name = name
        self.folder = devices_folder() / name
        path = self.folder / self.MEASUREMENTS
        self._journal = Journal(path) if self.exists else None
        for text, row in self.tried.items():
            if not _is_result(row):
                raise InputError(
                    f"{path}: the line of {text[:40]!r} is damaged: remove it, and add the "
                    "device again"
                )

    @property
    def metric(self) -> str:
        """Name of the predicted metric: the declared one, else `NAME_latency_ms`."""
        return self.declared.name

    @cached_property
    def declared(self) -> Metric:
        """The predicted metric, as it was declared when the device was added."""
        stored = self.about.get("metric") if self.exists else None
        latency = f"{self.name}{SUFFIX}"
        return Metric.parse(stored or latency)

    @property
    def exists(self) -> bool:
        """True if the device is stored on this machine."""
        return (self.folder / self.ABOUT).is_file()

    @property
    def about(self) -> dict[str, Any]:
        """How the device is measured, as given to `begin`."""
        try:
            return dict(json.loads((self.folder / self.ABOUT).read_text()))
        except (OSError, ValueError) as error:
            raise InputError(f"{self.folder / self.ABOUT}: cannot be read ({error})") from error

    def begin(self, about: dict[str, Any]) -> None:
        """Create the folder, or open it if it was created with the same `about`.

        Raises:
            InputError: the device was measured differently, so that its values are not comparable.
        """
        if self.exists and self.about != about:
            raise InputError(
                f"device {self.name!r} was measured differently ({json.dumps(self.about)}): "
                f"remove it with `nas device remove {self.name}`, or give another name"
            )
        if not self.exists:
            with replacing(self.folder / self.ABOUT) as temporary:
                temporary.write_text(json.dumps(about, indent=1))
        self._journal = Journal(self.folder / self.MEASUREMENTS)
        self._forget("declared")

    def remove(self) -> None:
        """Delete the device and its measurements."""
        if not self.exists:
            raise unknown("device", self.name, list_devices())
        shutil.rmtree(self.folder)

    def add(
        self, text: str, architecture: str, latency: Sequence[float] | None, failure: str = ""
    ) -> None:
        """Store the result of one network.

        Args:
            text: the network's text.
            architecture: the network in the space's notation.
            latency: median, 10 % and 90 % quantile, in ms or the metric's unit; None if the network
                could not be timed.
            failure: the reason why it could not be timed.
        """
        assert self._journal is not None
        times = None if latency is None else list(latency)
        row = {"architecture": architecture, "ms": times, "failure": failure}
        self._journal.append(text, row)
        self._forget("_fitted", "texts", "latencies")

    def _forget(self, *names: str) -> None:
        """Let cached properties be computed anew."""
        for name in names:
            self.__dict__.pop(name, None)

    @property
    def tried(self) -> dict[str, Any]:
        """All networks by text, also failed ones: `architecture`, `ms`, `failure`."""
        return self._journal.known if self._journal else {}

    @property
    def failures(self) -> list[str]:
        """Reasons why networks could not be timed."""
        return [row["failure"] for row in self.tried.values() if row["ms"] is None]

    @cached_property
    def texts(self) -> list[str]:
        """Texts of the k measured networks."""
        return [text for text, row in self.tried.items() if row["ms"] is not None]

    @cached_property
    def latencies(self) -> np.ndarray:
        """Median, 10 % and 90 % quantile (k, 3) of the measured latencies in ms."""
        rows = [self.tried[text]["ms"] for text in self.texts]
        return np.array(rows, float).reshape(-1, 3)

    @property
    def settings(self) -> dict[str, str]:
        """What predictions depend on: measurements, checkpoint and method, as a checksum."""
        from nas.evaluation.new_device import NewDeviceModel
        from predictors.checkpoint import checksum
        from predictors.rlm.predictor import BASE

        medians = self.latencies[:, 0].tolist()
        content = json.dumps([self.texts, medians, checksum(BASE), NewDeviceModel.VERSION])
        return {"name": self.name, "sha256": fingerprint(content)}

    def predict(self, texts: Sequence[str]) -> np.ndarray:
        """Median, 10 % and 90 % quantile (n, 3) of the predicted latencies of n networks, in ms."""
        return quantiles(self.sample(texts), QUANTILES).T

    def sample(self, texts: Sequence[str]) -> np.ndarray:
        """Samples (n, SAMPLES) of the predicted latencies in ms.

        Raises:
            InputError: too few networks are measured, a text is not that of a network, or it is not
                known what an operator costs.
        """
        return _sampled(self._fitted, texts)

    def novelty(self, texts: Sequence[str]) -> np.ndarray:
        """Distance (n,) of networks from the measured ones.

        The unit is the distance between measured ones.
        """
        import predictors

        self._check_measured()
        values = {self.declared.key: self.latencies[:, 0]}
        return predictors.create("rlm").fit(self.texts, values).novelty(texts)

    def leave_one_out(self) -> np.ndarray:
        """Leave-one-out predictions (k, 3) of the measured networks in ms.

        The columns are those of `predict`.
        """
        count = len(self.texts)
        samples = []
        for left_out, text in enumerate(self.texts):
            model = self._fit(np.arange(count) != left_out)
            samples.append(_sampled(model, [text]))  # (1, SAMPLES)
        return quantiles(np.concatenate(samples), QUANTILES).T

    @cached_property
    def _fitted(self) -> NewDeviceModel:
        """The model of all measured networks."""
        self._check_measured()
        return self._fit(np.full(len(self.texts), True))

    def _check_measured(self) -> None:
        """Raise InputError if too few networks are measured for predictions."""
        if not self.exists:
            raise unknown("device", self.name, list_devices())
        if len(self.texts) < MIN_MEASURED:
            raise InputError(
                f"device {self.name!r} has {len(self.texts)} measured networks: measure at least "
                f"{MIN_MEASURED}"
            )

    def _fit(self, rows: np.ndarray) -> NewDeviceModel:
        """The model of some measured networks, a mask (k,)."""
        import predictors
        from nas.evaluation.new_device import NewDeviceModel, counted_costs

        texts = [text for text, is_used in zip(self.texts, rows, strict=True) if is_used]
        medians = self.latencies[rows, 0]
        return NewDeviceModel(predictors.create("rlm"), texts, medians, counted_costs(texts))


def _is_result(row: Any) -> bool:
    """True for a stored result of one network, as `PredictedDevice.add` writes it."""
    if not isinstance(row, dict):
        return False
    if not {"architecture", "ms", "failure"} <= row.keys():
        return False
    times = row["ms"]
    if times is None:
        return isinstance(row["failure"], str)
    if not (isinstance(times, list) and len(times) == 3):
        return False
    return all(isinstance(time, int | float) and time > 0 for time in times)


def _sampled(model: NewDeviceModel, texts: Sequence[str]) -> np.ndarray:
    """Samples (n, SAMPLES) of the latencies of networks."""
    from nas.evaluation.new_device import counted_costs

    return model.sample(texts, counted_costs(texts), samples=SAMPLES)


def quantiles(samples: np.ndarray, shares: Sequence[float]) -> np.ndarray:
    """Quantiles (shares, n) of samples (n, s).

    Each sample is the middle of an equal part of its distribution. numpy's default takes the outer
    samples for the ends of the distribution. Its central 90 % of 32 such samples hold 87 % of the
    distribution.
    """
    return np.quantile(samples, shares, axis=1, method="hazen")
