"""Static int8 quantization by ONNX Runtime, and the score of a quantized network."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from nas.evaluation.latency import open_session, random_inputs
from search_spaces.common.errors import InputError

if TYPE_CHECKING:
    import onnx

    from nas.evaluation.datasets import Dataset, Part

LATENCY = "cpu_int8_latency_ms"
CALIBRATION_SAMPLES = 256  # training inputs that set the ranges of activations
BATCH_SIZE = 32  # samples per inference


def score_metrics(data: Dataset) -> tuple[str, str]:
    """Names of a quantized network's validation score and test score."""
    kind = data.metric.rpartition("_")[2]
    return f"{data.name}_int8_{kind}", f"{data.name}_test_int8_{kind}"


def quantize(model: onnx.ModelProto, samples: np.ndarray | None = None) -> bytes:
    """Quantize weights and activations to 8 bits; weights are scaled per channel.

    Args:
        model: the network as ONNX, with one input.
        samples: (n, …) inputs that calibrate the ranges of activations; None for Gaussian noise,
            which suffices for timing.

    Returns:
        The serialized quantized model.

    Raises:
        InputError: ONNX Runtime cannot quantize the model.
    """
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    with tempfile.TemporaryDirectory(prefix="nas-") as folder:
        floats, merged, integers = (
            Path(folder, name) for name in ("float.onnx", "merged.onnx", "int8.onnx")
        )
        floats.write_bytes(model.SerializeToString())
        try:
            with _quiet():
                quant_pre_process(
                    str(floats), str(merged), skip_symbolic_shape=True
                )  # merges batch normalizations
                quantize_static(
                    str(merged), str(integers), _reader(model, samples), quant_format=QuantFormat.QDQ, per_channel=True,
                    activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8,
                )  # fmt: skip
        except Exception as error:  # ONNX Runtime's errors share no public base class
            reason = " ".join(str(error).split())[:200]
            raise InputError(f"ONNX Runtime cannot quantize the network: {reason}") from error
        return integers.read_bytes()


def score(model: bytes, data: Dataset, part: Part) -> float:
    """Accuracy in %, or root mean square error, of a serialized model on one part of a data set."""
    import torch

    from nas.evaluation.goals import goal_of

    session = open_session(model)
    name, goal = session.get_inputs()[0].name, goal_of(data)
    batches = [part.inputs[start : start + BATCH_SIZE] for start in range(0, len(part), BATCH_SIZE)]
    outputs = np.concatenate([session.run(None, {name: batch})[0] for batch in batches])
    terms = goal.terms(torch.from_numpy(outputs)[:, None], torch.from_numpy(part.targets))
    return goal.score(float(terms.mean()))


def calibration_samples(data: Dataset) -> np.ndarray:
    """A fixed random choice of training inputs, (`CALIBRATION_SAMPLES`, …) or fewer."""
    rows = np.random.default_rng(0).permutation(len(data.train))[:CALIBRATION_SAMPLES]
    return data.train.inputs[np.sort(rows)]


def _reader(model: onnx.ModelProto, samples: np.ndarray | None) -> object:
    """A `CalibrationDataReader` of the samples, or of noise."""
    from onnxruntime.quantization import CalibrationDataReader

    if samples is None:
        batches = iter([random_inputs(open_session(model.SerializeToString()), BATCH_SIZE)])
    else:
        name = model.graph.input[0].name
        batches = iter(
            [
                {name: samples[start : start + BATCH_SIZE]}
                for start in range(0, len(samples), BATCH_SIZE)
            ]
        )

    class Reader(CalibrationDataReader):
        def get_next(self) -> dict[str, np.ndarray] | None:
            return next(batches, None)

    return Reader()


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the quantizer's warnings and remove the log handlers that it installs."""
    root, before = logging.getLogger(), logging.getLogger().handlers[:]
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(level)
        root.handlers[:] = before
