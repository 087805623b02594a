"""Common parts of GENNAPE's families `hiaml`, `two-path` and `inception` (Mills et al., AAAI 2023,
arXiv 2211.17226).

The paper names the families and counts their networks; their construction follows the authors'
released code. Where its TensorFlow and PyTorch networks differ, these are the TensorFlow ones,
whose graphs were published: average pooling does not count the padding.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any, ClassVar

from search_spaces.choosers import Trial
from search_spaces.common.errors import InputError
from search_spaces.domains import Choice
from search_spaces.space import SearchSpace


class Family(SearchSpace):
    """A family of CIFAR-10 networks.

    Args:
        channels: channels of the stem, a multiple of `least_channels`; None for the published
            number.
        input_shape: shape of one input.
        num_classes: number of classes.
    """

    least_channels: ClassVar[int] = 1
    default_channels: ClassVar[int] = 32

    def __init__(
        self,
        channels: int | None = None,
        input_shape: tuple[int, ...] = (3, 32, 32),
        num_classes: int = 10,
    ) -> None:
        self.channels = self.default_channels if channels is None else channels
        fits = self.channels > 0 and self.channels % self.least_channels == 0
        if min(num_classes, *input_shape) < 1 or not fits:
            raise InputError(
                f"{self.name}: classes and input sizes must be positive, channels a multiple of "
                f"{self.least_channels}"
            )
        self.input_shape = tuple(input_shape)
        self.num_classes = num_classes

    @property
    def options(self) -> dict[str, Any]:
        return {
            "channels": self.channels,
            "input_shape": self.input_shape,
            "num_classes": self.num_classes,
        }


def literal(native: str, what: str) -> Any:
    """Parse a Python literal; InputError otherwise, with `what` as description of the notation."""
    try:
        return ast.literal_eval(native)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError) as error:
        raise InputError(f"not {what}: {native[:200]!r}") from error


# --- chains of operations: convolutions and at most one supplement


def suggest_operations(
    trial: Trial,
    prefix: str,
    low: int,
    high: int,
    convolutions: tuple[str, ...],
    supplements: tuple[str, ...],
) -> list[str]:
    """Choose a chain of `low` to `high` operations.

    At least one is a convolution, and at most one a supplement.
    """
    # 1. How many operations, and where the supplement stands; -1 for none.
    length = trial.suggest_int(f"{prefix}_operations", low, high)
    place = -1
    if length > 1:
        place = trial.suggest_int(f"{prefix}_supplement_at", -1, length - 1)

    # 2. The operations.
    operations = []
    for i in range(length):
        if i == place:
            operation = trial.suggest_categorical(f"{prefix}_supplement", supplements)
        else:
            operation = trial.suggest_categorical(f"{prefix}_convolution{i}", convolutions)
        operations.append(operation)
    return operations


def operation_choices(
    prefix: str, operations: list[str], supplements: tuple[str, ...]
) -> dict[str, Choice]:
    """The choices for which `suggest_operations` returns this chain."""
    place = next((i for i, name in enumerate(operations) if name in supplements), -1)
    choices: dict[str, Choice] = {f"{prefix}_operations": len(operations)}
    if len(operations) > 1:
        choices[f"{prefix}_supplement_at"] = place
    for i, operation in enumerate(operations):
        name = f"{prefix}_supplement" if i == place else f"{prefix}_convolution{i}"
        choices[name] = operation
    return choices


def chosen_operations(chosen: Mapping[str, Choice], prefix: str) -> list[str]:
    """The chain that `suggest_operations` returned for these choices."""
    place = chosen.get(f"{prefix}_supplement_at", -1)
    operations = []
    for i in range(chosen[f"{prefix}_operations"]):
        name = f"{prefix}_supplement" if i == place else f"{prefix}_convolution{i}"
        operations.append(chosen[name])
    return operations
