"""Search spaces by name: of this package, of installed packages, or in a user's file."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

from search_spaces.common import plug_ins
from search_spaces.common.errors import InputError, unknown
from search_spaces.space import SearchSpace
from search_spaces.subnetworks import Subnetworks
from search_spaces.torch_space import TorchSpace, no_example

ENTRY_POINTS = "rlm_nas.search_spaces"
SUPERNET = ".safetensors"  # files of shared weights to start with
EXPECTED = (
    "a function `build(trial)` that returns a torch.nn.Module, or a subclass of TorchSpace "
    "or "
    "SearchSpace"
)

_SPACES: dict[str, type[SearchSpace]] = {}


def register_space(name: str) -> Callable[[type[SearchSpace]], type[SearchSpace]]:
    """Class decorator that makes a space available as `get_space(name)`.

    Raises:
        InputError: if another space has this name.
    """

    def register(space: type[SearchSpace]) -> type[SearchSpace]:
        if name in _SPACES and _SPACES[name].__qualname__ != space.__qualname__:
            raise InputError(f"a search space named {name!r} is already registered")
        space.name = name
        _SPACES[name] = space
        return space

    return register


def list_spaces() -> list[str]:
    """Sorted names of all registered spaces, including those of installed packages."""
    return sorted({*_SPACES, *plug_ins.installed(ENTRY_POINTS)})


def get_space(name: str, **options: Any) -> SearchSpace:
    """Create a search space.

    Args:
        name: a registered name, or a class or function in a user's file: `my_space.py:TinyResNet`.
        options: arguments of the space's class, or of the function. With the option `start`, the
            name is a trained model, `my_net.py:net`, and the space is that of its sub-networks,
            `Subnetworks`; if `start` is a .safetensors file, modules start with the weights of
            this supernet (`nas supernet`).

    Raises:
        InputError: if the name or an option is unknown.
    """
    if str(options.get("start", "")).endswith(SUPERNET):
        return _of_supernet(name, **options)
    if plug_ins.is_file(name) and "start" in options:
        return _of_model(name, **options)
    space = _from_file(name) if plug_ins.is_file(name) else _named(name)
    try:
        return space(**options)
    except TypeError as error:
        raise InputError(
            f"space {name!r} does not take these options, {options}: {error}"
        ) from error


def _named(name: str) -> type[SearchSpace]:
    if name not in _SPACES:
        installed = plug_ins.from_package(ENTRY_POINTS, name, SearchSpace)
        if installed is not None:
            register_space(name)(installed)
    if name not in _SPACES:
        raise unknown("search space", name, list_spaces())
    return _SPACES[name]


def _from_file(reference: str) -> Callable[..., SearchSpace]:
    picked = plug_ins.pick(reference, "space or network", EXPECTED, _is_space, _is_meant)
    if inspect.isfunction(picked):
        return partial(_of_function, reference, picked)
    return partial(_of_class, reference, picked)


def _is_space(value: object) -> bool:
    """True for a subclass of SearchSpace, and for any function.

    Only a call of a function shows whether it builds modules.
    """
    return issubclass(value, SearchSpace) if isinstance(value, type) else inspect.isfunction(value)


def _is_meant(name: str, value: object) -> bool:
    """True if a reference without a name may refer to this function or class of its file."""
    return isinstance(value, type) or name == "build" or hasattr(value, "example_input")


def _of_class(reference: str, space_class: Any, **options: Any) -> SearchSpace:
    space: SearchSpace = space_class.__new__(space_class)
    space._file = plug_ins.absolute(reference)
    space.name = space_class.name or reference  # before __init__, whose errors name the space
    space_class.__init__(space, **options)
    return space


def _of_function(reference: str, build: Callable[..., Any], **options: Any) -> SearchSpace:
    if getattr(build, "example_input", None) is None:
        raise no_example(reference, f"{reference.partition(':')[2] or 'build'}.")
    space = TorchSpace(
        _without_choices(build) if not inspect.signature(build).parameters else build, **options
    )
    space.name = reference
    space._file = plug_ins.absolute(reference)
    return space


def _of_supernet(
    name: str,
    start: str,
    sha256: str = "",
    **options: Any,
) -> TorchSpace:
    """A space whose modules start with the weights of a supernet."""
    space = get_space(name, **options)
    if not isinstance(space, TorchSpace):
        raise InputError(f"{name}: a supernet is for spaces of PyTorch modules")
    space.inherit(start, sha256)
    return space


def is_model(reference: str) -> bool:
    """True if a reference names a torch module of a user's file, or a function there without
    arguments, which can only return one.

    Raises:
        InputError: if the file has no such name, or cannot be imported.
    """
    if not plug_ins.is_file(reference) or ":" not in reference:
        return False
    from torch import nn

    named = plug_ins.value_in_file(reference, "space or model", EXPECTED)
    takes_nothing = inspect.isfunction(named) and not inspect.signature(named).parameters
    return isinstance(named, nn.Module) or takes_nothing


def _of_model(reference: str, input_shape: Any = None, **options: Any) -> Subnetworks:
    """The sub-networks of a module in a user's file.

    The file may have a function without arguments that returns the module instead.
    """
    expected = "a torch.nn.Module, or a function without arguments that returns one"
    net = plug_ins.value_in_file(reference, "model", expected)
    example = getattr(net, "example_input", None)
    if input_shape is not None:
        import torch

        sizes = [input_shape] if isinstance(input_shape, int) else input_shape
        example = torch.zeros(1, *sizes)
    if not callable(net) or (inspect.isfunction(net) and _required(net)):
        raise InputError(f"{reference} cannot be the model: give {expected}")
    if example is None:
        on_command_line = ", or on the command line --option input_shape=3,32,32"
        raise no_example(reference, f"{reference.partition(':')[2] or 'net'}.", on_command_line)
    try:
        space = Subnetworks(net, example, name=reference, **options)
    except TypeError as error:
        raise InputError(
            f"the model {reference!r} does not take these options, {options}: {error}"
        ) from error
    space._file = plug_ins.absolute(reference)
    if input_shape is not None:
        space.given_shape = tuple(space.input_shape)
    return space


def _required(function: Callable[..., Any]) -> list[str]:
    """Names of the arguments without a default."""
    parameters = inspect.signature(function).parameters.values()
    return [
        p.name
        for p in parameters
        if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]


def _without_choices(build: Callable[[], Any]) -> Callable[..., Any]:
    """Adapt a function without arguments, which builds one network, to `build(trial)`."""

    def built(_: Any) -> Any:
        return build()

    built.__dict__.update(vars(build))
    return built
