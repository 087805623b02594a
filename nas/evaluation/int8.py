"""Networks in 8-bit integers: static quantization by ONNX Runtime, and how inputs for it are found.

    float ONNX model ──┐
    calibration inputs ┴─▶ quantize ─▶ int8 ONNX model (QDQ) ─▶ score, latency

Quantization replaces each weight by 8-bit integers with a scale per channel, and puts a pair of
`QuantizeLinear` and `DequantizeLinear` (QDQ) around the operators, which ONNX Runtime then runs on
integers. The scale of an activation follows from its range on the calibration inputs.
"""

from __future__ import annotations

import hashlib
import logging
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nas.evaluation.latency import open_session, random_inputs
from search_spaces.common.errors import InputError
from search_spaces.ir.graph import element_type
from search_spaces.ir.precision import quantized_nodes

if TYPE_CHECKING:
    import onnx
    from torch import nn

    from nas.evaluation.datasets import Dataset, Part
    from search_spaces.ir.graph import Shape

LATENCY = "cpu_int8_latency_ms"
CALIBRATION_SAMPLES = 256  # training inputs that set the ranges of activations
BATCH_SIZE = 32  # samples per inference
_INT8 = "int8_"
MAX_NAMED = 5  # operators in a message

# Operators that ONNX Runtime has on integers, and that own no weights
_FOLLOWERS = frozenset(
    {
        "Add", "AveragePool", "Clip", "Concat", "Flatten", "GlobalAveragePool", "MaxPool", "Mul",
        "Pad", "Relu", "Reshape", "Sigmoid", "Split", "Squeeze", "Transpose", "Unsqueeze",
    }
)  # fmt: skip

Samples = Sequence[np.ndarray]
"""For each input of a model its values, (n, …) of the same n samples."""


# --- names of metrics


def score_metrics(data: Dataset) -> tuple[str, str]:
    """Names of a quantized network's validation score and test score."""
    return int8_metric(data.metric), f"{data.name}_test_int8_{data.metric.rpartition('_')[2]}"


def int8_metric(metric: str) -> str:
    """Name of a score after quantization: `digits_int8_accuracy` of `digits_accuracy`."""
    name, separator, kind = metric.rpartition("_")
    return f"{name}{separator}{_INT8}{kind}"


def float_metric(metric: str) -> str:
    """The score whose name after quantization this is; "" if it is no such name."""
    name, separator, kind = metric.rpartition(_INT8)
    is_int8 = separator and kind and "_" not in kind and (not name or name.endswith("_"))
    return f"{name}{kind}" if is_int8 else ""


def is_quantized(metric: str) -> bool:
    """True if a metric is the score or the latency of a network in 8-bit integers."""
    return metric == LATENCY or bool(float_metric(metric))


# --- quantization


def quantize(model: onnx.ModelProto, samples: Samples | np.ndarray | None = None) -> bytes:
    """Quantize weights and activations to 8 bits; weights are scaled per channel.

    Args:
        model: the network as ONNX. If it notes precisions (`search_spaces.ir.precision`), the
            layers of int8 are quantized, otherwise all.
        samples: values of each input, or of the only one, that calibrate the ranges of activations:
            (n, …) arrays; None for Gaussian noise, which suffices for timing.

    Returns:
        The serialized quantized model.

    Raises:
        InputError: ONNX Runtime cannot quantize the model, or has no 8-bit form of any of its
            operators.
    """
    import onnx
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    layers = quantized_nodes(model)
    if layers == []:
        return bytes(model.SerializeToString())
    reader = calibration_reader(model, samples)
    with tempfile.TemporaryDirectory(prefix="nas-") as folder:
        floats, merged, integers = (
            Path(folder, name) for name in ("float.onnx", "merged.onnx", "int8.onnx")
        )
        floats.write_bytes(model.SerializeToString())
        try:
            with quietly():
                # 1. Batch normalizations are merged into the convolutions before them.
                quant_pre_process(str(floats), str(merged), skip_symbolic_shape=True)
                # 2. The operators to quantize, all unless the network says which.
                nodes = None if layers is None else with_followers(onnx.load(merged), layers)
                # 3. Ranges of activations are measured; the pairs of QDQ get their scales.
                quantize_static(
                    str(merged),
                    str(integers),
                    reader,
                    quant_format=QuantFormat.QDQ,
                    per_channel=True,
                    activation_type=QuantType.QUInt8,
                    weight_type=QuantType.QInt8,
                    nodes_to_quantize=nodes,
                )
        except Exception as error:  # ONNX Runtime's errors share no public base class
            reason = " ".join(str(error).split())[:200]
            raise InputError(f"ONNX Runtime cannot quantize the network: {reason}") from error
        quantized = integers.read_bytes()
    operators = {node.op_type for node in onnx.load_from_string(quantized).graph.node}
    if "QuantizeLinear" not in operators:
        floating = ", ".join(sorted({node.op_type for node in model.graph.node})[:MAX_NAMED])
        raise InputError(
            f"ONNX Runtime has no 8-bit form of any operator of the network ({floating}): "
            "leave out int8"
        )
    return quantized


def with_followers(model: onnx.ModelProto, layers: Collection[str]) -> list[str]:
    """Names of quantized layers and of the operators that read nothing but quantized values.

    ONNX Runtime computes an activation or a sum on integers, too, if all that it reads are.

    Args:
        model: the model, in topological order.
        layers: names of its quantized convolutions and products.
    """
    chosen, weights = set(layers), {tensor.name for tensor in model.graph.initializer}
    integers: set[str] = set()  # names of quantized values
    nodes = []
    for node in model.graph.node:
        reads = [name for name in node.input if name and name not in weights]
        follows = node.op_type in _FOLLOWERS and reads and integers.issuperset(reads)
        if node.name in chosen or follows:
            nodes.append(node.name)
            integers.update(node.output)
    return nodes


def calibration_reader(model: onnx.ModelProto, samples: Samples | np.ndarray | None) -> Any:
    """A `CalibrationDataReader` of the samples, or of noise."""
    from onnxruntime.quantization import CalibrationDataReader

    if samples is None:
        feeds = [random_inputs(open_session(model.SerializeToString()), BATCH_SIZE)]
    else:
        columns = _columns(model, [samples] if isinstance(samples, np.ndarray) else samples)
        count = min(map(len, columns.values()))
        feeds = []
        for start in range(0, count, BATCH_SIZE):
            rows = slice(start, start + BATCH_SIZE)
            feeds.append({name: column[rows] for name, column in columns.items()})
    batches = iter(feeds)

    class Reader(CalibrationDataReader):  # type: ignore[misc]  # of a library without types
        def get_next(self) -> dict[str, np.ndarray] | None:
            return next(batches, None)

    return Reader()


def _columns(model: onnx.ModelProto, samples: Samples) -> dict[str, np.ndarray]:
    """Samples (n, …) by the name of the model's input, in its floating-point or integer type.

    Raises:
        InputError: there are no samples, or not of each input.
    """
    from onnx.helper import tensor_dtype_to_np_dtype

    weights = {tensor.name for tensor in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in weights]
    if len(inputs) != len(samples):
        raise InputError(
            f"the network's number of inputs is {len(inputs)}, that of the calibration arrays "
            f"{len(samples)}: give one array for each input"
        )
    if not all(map(len, samples)):
        raise InputError("there are no calibration samples")
    columns = {}
    for value, column in zip(inputs, samples, strict=True):
        dtype = np.dtype(tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type))
        is_same_kind = np.can_cast(column.dtype, dtype, "same_kind")
        columns[value.name] = column.astype(dtype, copy=False) if is_same_kind else column
    return columns


@contextmanager
def quietly() -> Iterator[None]:
    """Silence the quantizer's warnings and remove the log handlers that it installs."""
    root, before = logging.getLogger(), logging.getLogger().handlers[:]
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(level)
        root.handlers[:] = before


# --- scores of a quantized network


def scores(model: bytes, data: Dataset) -> tuple[float, float]:
    """Validation and test score of a serialized model, on a data set with a validation part."""
    assert data.validation is not None
    return score(model, data, data.validation), score(model, data, data.test)


def score(model: bytes, data: Dataset, part: Part) -> float:
    """Accuracy in %, or root mean square error, of a serialized model on one part of a data set."""
    import torch

    from nas.evaluation.goals import goal_of
    from nas.evaluation.inheritance import per_position, targets_per_position

    # 1. Outputs of all batches.
    session = open_session(model)
    name = session.get_inputs()[0].name
    outputs = []
    for start in range(0, len(part), BATCH_SIZE):
        batch = part.inputs[start : start + BATCH_SIZE]
        outputs.append(session.run(None, {name: batch})[0])

    # 2. The score of a single replica.
    goal = goal_of(data)
    predicted = per_position(torch.from_numpy(np.concatenate(outputs)))[:, None]
    targets = targets_per_position(torch.from_numpy(part.targets))
    terms = goal.terms(predicted, targets)
    return goal.score(float(terms.mean()))


# --- calibration inputs


def calibration_samples(data: Dataset) -> np.ndarray:
    """A fixed random choice of training inputs, (`CALIBRATION_SAMPLES`, …) or fewer."""
    rows = np.random.default_rng(0).permutation(len(data.train))[:CALIBRATION_SAMPLES]
    return data.train.inputs[np.sort(rows)]


def read_calibration(source: str, shape: Shape | None) -> Samples:
    """Calibration inputs that a user names.

    Args:
        source: `FILE.py:NAME` of an array, a tensor, a tuple of these (one for each input), or a
            function without arguments that returns one; or a data set, see `load_dataset`.
        shape: of one input of the networks.

    Returns:
        For each input at most `CALIBRATION_SAMPLES` values, as they are; of a data set, normalized
        as in training.

    Raises:
        InputError: the source cannot be read, or has no samples.
    """
    from nas.evaluation.datasets import load_dataset
    from search_spaces.common.plug_ins import is_file, value_in_file

    if not is_file(source):
        return [calibration_samples(load_dataset(source, shape))]
    expected = "an array of inputs, or a function that returns one"
    made = value_in_file(source, "calibration inputs", expected)
    if callable(made) and not hasattr(made, "shape"):
        made = made()
    columns = list(made) if isinstance(made, tuple | list) else [made]
    arrays = [np.asarray(column) for column in columns]
    are_numbers = [a.dtype.kind in "biuf" and a.ndim > 0 and a.size > 0 for a in arrays]
    if not arrays or not all(are_numbers):
        raise InputError(
            f"{source}: no calibration inputs, but {type(made).__name__}: it must be an array of "
            "inputs, samples first, or a tuple with an array for each input"
        )
    _check_first_input(source, arrays[0], shape)
    return [array[:CALIBRATION_SAMPLES] for array in arrays]


def _check_first_input(source: str, array: np.ndarray, shape: Shape | None) -> None:
    """Raise InputError unless an array (n, …) has inputs that networks with this shape take."""
    if not np.isfinite(array[:CALIBRATION_SAMPLES]).all():
        raise InputError(f"{source}: the calibration inputs have values that are not finite")
    if shape is None:
        return
    if array.shape[1:] != tuple(shape):
        raise InputError(
            f"{source}: calibration inputs have shape {array.shape[1:]} without the samples, and "
            f"the networks take {tuple(shape)}"
        )
    if element_type(shape) == "float" and array.dtype.kind != "f":
        raise InputError(
            f"{source}: calibration inputs are {array.dtype}, and the networks take floats: convert "
            "them as in training"
        )


@dataclass(frozen=True, eq=False)
class Calibration:
    """Calibration inputs that a user names, read when they are first needed.

    Attributes:
        source: see `read_calibration`; with an absolute path if it is a file.
        shape: of one input of the networks.
        sha256: of the data set or of the file.
    """

    source: str
    shape: Shape | None
    sha256: str

    @classmethod
    def read(cls, source: str, shape: Shape | None) -> Calibration:
        """Read them now, so that errors come before a training.

        Raises:
            InputError: see `read_calibration`.
        """
        from search_spaces.common.plug_ins import is_file

        if is_file(source):
            path, colon, name = source.partition(":")
            source = f"{Path(path).absolute()}{colon}{name}"
        calibration = cls(source, shape, _fingerprint(source, shape))
        _ = calibration.samples
        return calibration

    @classmethod
    def of_settings(cls, settings: Mapping[str, str], shape: Shape | None) -> Calibration:
        """Those with stored `settings`, which are not read."""
        return cls(settings["source"], shape, settings["sha256"])

    @property
    def settings(self) -> dict[str, str]:
        """What quantized networks depend on, as JSON values."""
        return {"source": self.source, "sha256": self.sha256}

    @cached_property
    def samples(self) -> Samples:
        """The inputs.

        Raises:
            InputError: they cannot be read, or their data set or file has changed.
        """
        if _fingerprint(self.source, self.shape) != self.sha256:
            raise InputError(
                f"{self.source}: these are not the calibration inputs that the search was started "
                "with"
            )
        return read_calibration(self.source, self.shape)


def _fingerprint(source: str, shape: Shape | None) -> str:
    """SHA-256 of a data set, or of the bytes of a file."""
    from nas.evaluation.datasets import load_dataset
    from search_spaces.common.plug_ins import is_file

    if not is_file(source):
        return load_dataset(source, shape).fingerprint
    path = Path(source.partition(":")[0])
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error


class InputRecorder:
    """Records the first inputs that a module gets in training mode, for calibration.

    A user's own training shows its networks the inputs of its own data. So these need not be given
    a second time.

        with InputRecorder(module) as recorder:
            train(module)
        quantize(model, recorder.samples)
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self._batches: list[list[np.ndarray]] = []

    def __enter__(self) -> InputRecorder:
        self._handle = self.module.register_forward_pre_hook(self._record, with_kwargs=True)
        return self

    def __exit__(self, *error: object) -> None:
        self._handle.remove()

    def _record(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        from torch.utils._pytree import tree_leaves

        count = sum(len(batch[0]) for batch in self._batches)
        missing = CALIBRATION_SAMPLES - count
        if not module.training or missing <= 0:
            return
        batch = []
        for leaf in tree_leaves((args, kwargs)):
            if hasattr(leaf, "detach"):
                some = leaf[:missing]
                batch.append(some.detach().cpu().numpy().copy())
        self._batches.append(batch)

    @property
    def samples(self) -> Samples:
        """The recorded inputs.

        Raises:
            InputError: the module got none in training mode.
        """
        if not self._batches or not self._batches[0]:
            raise InputError(
                "int8 needs inputs that set the ranges of activations, but the evaluator calls the "
                "model on none in training mode: give --calibration, a data set or FILE.py:NAME"
            )
        return [np.concatenate(column) for column in zip(*self._batches, strict=True)]
