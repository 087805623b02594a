"""What is measured: the network in an ONNX file, or one of a space that is built for a data set."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from nas.evaluation.datasets import Dataset, load_dataset
from nas.evaluation.trainable import Trainable
from search_spaces import SearchSpace, get_space, load_model
from search_spaces.common.errors import InputError
from search_spaces.graph.ir import element_type, typed
from search_spaces.onnx import from_model

if TYPE_CHECKING:
    import onnx


class Subject(NamedTuple):
    """A network to measure, and the data set that it is to be trained on, if any."""

    name: str
    network: Trainable
    model: onnx.ModelProto
    data: Dataset | None


def subject_of_file(path: str, source: str | None) -> Subject:
    """The network in an `.onnx` file; `source` names a data set (`nas.evaluation.datasets.load_dataset`)."""
    model = load_model(path)
    try:
        graph = from_model(model)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    takes = graph.shapes[graph.inputs[0]]
    sizes = tuple(d for d in takes[1:] if isinstance(d, int))
    is_fixed = len(sizes) == len(takes) - 1
    data = load_dataset(source, typed(sizes, element_type(takes)) if is_fixed else None) if source else None
    return Subject(path, Trainable(graph), model, data)


def subject_of_space(
    name: str, options: Mapping[str, Any], source: str | None, architecture: str | None, seed: int
) -> Subject:
    """An architecture in the space's notation, or a random one drawn from `seed`, with weights drawn from `seed`."""
    space, data = open_space(name, options, source)
    rng = np.random.default_rng(seed)
    chosen = space.sample(rng) if architecture is None else space.parse(architecture)
    return Subject(space.format(chosen), Trainable.of(space, chosen), space.to_onnx(chosen, seed), data)


def open_space(name: str, options: Mapping[str, Any], source: str | None) -> tuple[SearchSpace, Dataset | None]:
    """A space, and the data set that its networks are to be trained on, if any.

    Where the space takes `input_shape` and `num_classes` as options, they are those of the data set unless given.
    Raises InputError where the two do not fit.
    """
    space = get_space(name, **options)
    if source is None:
        return space, None
    data = load_dataset(source, space.input_shape)
    wanted = {"input_shape": data.shape, "num_classes": data.outputs}
    for names in (("input_shape", "num_classes"), ("num_classes",), ("input_shape",)):
        if not _fits(space, data):
            with suppress(InputError):  # of a space that has no such options
                space = get_space(name, **{**{key: wanted[key] for key in names}, **options})
    if not _fits(space, data):
        shape = ",".join(map(str, data.shape))
        raise InputError(
            f"{name} is for inputs {tuple(space.input_shape)} and {space.num_classes} outputs, {data.name} has inputs "
            f"{tuple(data.shape)} and {data.outputs} {'numbers' if data.is_regression else 'classes'}: set input_shape "
            "and num_classes in the class, or where it takes them as options: "
            f"--option input_shape={shape} --option num_classes={data.outputs}"
        )
    return space, data


def _fits(space: SearchSpace, data: Dataset) -> bool:
    return (tuple(space.input_shape), space.num_classes) == (tuple(data.shape), data.outputs)
