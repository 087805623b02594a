"""The network to measure: from an ONNX file, or from a search space that matches a data set."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from nas.evaluation.datasets import Dataset, load_dataset
from nas.evaluation.trainable import Trainable
from search_spaces import SearchSpace, Subnetworks, get_space, load_model
from search_spaces.common.errors import InputError, NoExampleInput
from search_spaces.ir.graph import element_type, typed
from search_spaces.ir.onnx import from_model

if TYPE_CHECKING:
    import onnx

    from search_spaces.ir.graph import Shape


class Subject(NamedTuple):
    """A network to measure, with the data set to train it on.

    `network` is its PyTorch form; `model` is its ONNX model or a function that makes it.
    """

    name: str
    network: Trainable
    model: onnx.ModelProto | Callable[[], onnx.ModelProto]
    data: Dataset | None

    @property
    def input_shape(self) -> Shape | None:
        """Shape of an input without the batch, the first of several; None if a size is not fixed."""
        graph = self.network.graph
        shape = graph.shapes[graph.inputs[0]]
        sizes = tuple(size for size in shape[1:] if isinstance(size, int))
        return typed(sizes, element_type(shape)) if len(sizes) == len(shape) - 1 else None


def subject_of_file(path: str, source: str | None) -> Subject:
    """The network in an ONNX file.

    Args:
        path: the file.
        source: name or path of a data set, see `nas.evaluation.datasets.load_dataset`; None without
            training.

    Raises:
        InputError: the file or the data set cannot be read.
    """
    model = load_model(path)
    try:
        graph = from_model(model)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    subject = Subject(path, Trainable(graph), model, None)
    if source is None:
        return subject
    return subject._replace(data=load_dataset(source, subject.input_shape))


def subject_of_space(
    name: str, options: Mapping[str, Any], source: str | None, architecture: str | None, seed: int
) -> Subject:
    """A network of a search space.

    Args:
        name: of the space.
        options: of the space.
        source: name or path of a data set; None without training.
        architecture: in the space's notation; None for a random one.
        seed: draws the weights, and the architecture if none is given.

    Raises:
        InputError: the space, the architecture or the data set is unknown, or space and data set do
            not match.
    """
    space, data = open_space(name, options, source)
    rng = np.random.default_rng(seed)
    chosen = space.sample(rng) if architecture is None else space.parse(architecture)
    return Subject(
        space.format(chosen), Trainable.of(space, chosen), lambda: space.to_onnx(chosen, seed), data
    )


def open_space(
    name: str, options: Mapping[str, Any], source: str | None
) -> tuple[SearchSpace, Dataset | None]:
    """Load a search space, and the data set to train its networks on, if any.

    If the space has the options `input_shape` and `num_classes`, they are set to match the data set
    unless given. A trained model without an example input takes the inputs of a `.npz` file.

    Args:
        name: of the space.
        options: of the space.
        source: name or path of a data set.

    Raises:
        InputError: the space or the data set is unknown, or they do not match.
    """
    try:
        space = get_space(name, **options)
    except NoExampleInput:
        is_model = "start" in options
        taken = _shape_in_file(source) if is_model else None
        if taken is None:
            raise
        space = get_space(name, **{**options, "input_shape": taken})
    if source is None:
        return space, None
    data = load_dataset(source, space.input_shape)
    of_data = {"input_shape": data.shape, "num_classes": data.outputs}
    for names in (("input_shape", "num_classes"), ("num_classes",), ("input_shape",)):
        if not fits(space, data):
            with suppress(InputError):  # the space has no such options
                space = get_space(name, **{**{key: of_data[key] for key in names}, **options})
    if not fits(space, data) and isinstance(space, Subnetworks):
        sizes = "".join([f", {size}" for size in space.input_shape])
        raise InputError(
            f"{name} has inputs {tuple(space.input_shape)} and {space.num_classes} outputs, but "
            f"{data.name} has inputs {tuple(data.shape)} and {data.outputs} "
            f"{'targets' if data.is_regression else 'classes'}: give --dataset a .npz file whose x "
            f"has the shape (n{sizes})"
        )
    if not fits(space, data):
        shape = ",".join(map(str, data.shape))
        raise InputError(
            f"{name} has inputs {tuple(space.input_shape)} and {space.num_classes} outputs, but "
            f"{data.name} has inputs {tuple(data.shape)} and {data.outputs} "
            f"{'targets' if data.is_regression else 'classes'}: set input_shape and num_classes "
            f"in the class or, if it takes them as options, with --option input_shape={shape} "
            f"--option num_classes={data.outputs}"
        )
    return space, data


def _shape_in_file(source: str | None) -> Shape | None:
    """Shape of the inputs in a `.npz` file; None for token ids and other data sets.

    Images in a folder do not say which size a model takes.
    """
    if source is None or not source.endswith(".npz"):
        return None
    shape = load_dataset(source).shape
    return shape if element_type(shape) == "float" else None


def fits(space: SearchSpace, data: Dataset) -> bool:
    """True if the space's networks take the inputs of the data set.

    If it has targets, they must also have as many outputs.
    """
    same = tuple(space.input_shape) == tuple(data.shape)
    return same and (not data.labelled or space.num_classes == data.outputs)
