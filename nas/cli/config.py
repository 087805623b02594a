"""`--config FILE.toml`: the options of a command from a file, and the file that repeats a command.

A key is the name of an option without its dashes: `evaluations = 60`, `constraint = ["params <=
2e5"]`, `new = true`. Options on the command line replace those of the file.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperOption

from nas.search.study.schema import without_passwords
from search_spaces.common.errors import InputError, unknown

_SELF = "config"


def _read(context: typer.Context, path: Path | None) -> Path | None:
    """Make the file's values the defaults of the command's options."""
    if path is None:
        return None
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not a TOML file ({error})") from error
    options = _options(context)
    defaults: dict[str, Any] = {}
    for key, value in values.items():
        if key not in options:
            raise unknown(f"option in {path}", key, options)
        defaults[str(options[key].name)] = _checked(path, key, value, options[key])
    context.default_map = {**(context.default_map or {}), **defaults}
    return path


def _checked(path: Path, key: str, value: object, option: TyperOption) -> object:
    """The value as the option takes it.

    Options take text, numbers and flags, or a list of these if they are repeatable. Raises
    InputError for anything else.
    """
    values = value if isinstance(value, list) else [value]
    if not all(isinstance(one, str | int | float | bool) for one in values):
        raise InputError(f"{path}: {key} = {value!r}: give text, a number or true and false")
    if isinstance(value, list) and not option.multiple:
        raise InputError(
            f"{path}: {key} = {value!r}: give one value; commas separate several names"
        )
    if isinstance(value, bool) != option.is_flag:
        remedy = "give true or false" if option.is_flag else "give a value"
        raise InputError(f"{path}: {key} = {value!r}: {remedy}")
    if option.multiple:
        return [str(one) for one in values]
    return value if option.is_flag else str(value)


def _options(context: typer.Context) -> dict[str, TyperOption]:
    """The command's options by their long names without dashes."""
    options = [
        parameter for parameter in context.command.params if isinstance(parameter, TyperOption)
    ]
    return {
        flag.removeprefix("--"): option
        for option in options
        if option.name != _SELF
        for flag in option.opts
        if flag.startswith("--")
    }


Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        callback=_read,
        is_eager=True,
        help="TOML file of options, such as evaluations = 60; those on the command line replace "
        "them.",
    ),
]


def is_given(context: typer.Context, name: str) -> bool:
    """True if the user gave this parameter, on the command line or in the file."""
    source = context.get_parameter_source(name)
    return source is not None and source.name in ("COMMANDLINE", "DEFAULT_MAP")


def written(context: typer.Context) -> str:
    """The TOML file that repeats a command.

    It has the options that the user gave, on the command line or in a file. Passwords in URLs are
    left out.
    """
    lines = [
        f"{flag} = {_toml(context.params[str(option.name)])}"
        for flag, option in _options(context).items()
        if is_given(context, str(option.name)) and context.params[str(option.name)] is not None
    ]
    return without_passwords("".join(f"{line}\n" for line in lines))


def _toml(value: object) -> str:
    """A value in TOML."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    text = str(value).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{text}"'
