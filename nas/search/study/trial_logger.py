"""What an evaluation writes into its trial besides objectives: learning curve, further values,
trained weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from nas.evaluation.trainable import Trainable
from nas.search.study.networks import NetworkId
from nas.search.study.schema import EPOCH_KEY, FURTHER_KEY, NETWORK_KEY, SPREAD_KEY, WEIGHTS_KEY
from nas.search.study.storage import set_intermediate_value
from predictors.metrics import is_valid
from search_spaces.common.errors import EvaluatorError, InputError

if TYPE_CHECKING:
    from pathlib import Path

    import optuna

    from nas.search.study.files import WeightFolder, Weights
    from search_spaces import Architecture, SearchSpace


MAX_SHOWN = 60  # characters of a user's value in a message
MAX_EPOCH = 2**31 - 1  # the largest that a database stores


class EvaluationLogger:
    """Takes what an evaluation says besides its values, and discards it: outside of a search.

    Attributes:
        reported: the highest epoch that was reported; 0 for none.
        weights: folder for trained weights; None discards them.
    """

    weights: WeightFolder | None = None

    def __init__(self) -> None:
        self.reported = 0

    def identify(self, network: Trainable) -> None:
        """Take what identifies the network."""

    def report(self, epoch: int, metrics: Mapping[str, float]) -> bool:
        """Take values after an epoch. False if the training is to end."""
        self.reported = max(self.reported, whole_epoch(epoch))
        return True

    def spread(self, spreads: Mapping[str, tuple[float, float, str]]) -> None:
        """Take the spread of repeated measurements.

        For each metric: low value, high value, and what these are.
        """

    def keep(
        self,
        further: Mapping[str, float],
        weights: Weights | None = None,
        int8: bytes | None = None,
    ) -> Path | None:
        """Take further values, trained weights or a copy of their file, and the quantized network.

        Returns:
            The path of the weights; None if they were discarded.
        """
        return None


class TrialLogger(EvaluationLogger):
    """Writes into one running trial of a search.

    Args:
        study: the search's study.
        trial: the running trial.
        weights: folder for trained weights; None discards them.
    """

    def __init__(
        self, study: optuna.Study, trial: optuna.Trial, weights: WeightFolder | None
    ) -> None:
        super().__init__()
        self.study, self.trial, self.weights = study, trial, weights
        self._identified = False

    def identify(self, network: Trainable) -> None:
        """Store what identifies the network, once.

        Duplicates are then recognized without building a network again.
        """
        if not self._identified:
            self.trial.set_user_attr(NETWORK_KEY, NetworkId.of(network).stored)
            self._identified = True

    def identify_architecture(self, space: SearchSpace, architecture: Architecture) -> None:
        """As `identify`, if the network has not been identified and can be built."""
        if not self._identified:
            # An evaluator may know values of choices that build no network
            with suppress(InputError):
                self.identify(Trainable.of(space, architecture))

    def report(self, epoch: int, metrics: Mapping[str, float]) -> bool:
        """Record values after an epoch.

        Returns False if one is not valid, as when the training has diverged. The trial's user
        attribute `nas:epoch:N` stores them. The first value is also the trial's intermediate value,
        which Optuna's plots show.

        Raises:
            EvaluatorError: the epoch is no whole number, which would damage a journal, or the
                metrics have no names.
            InputError: a value is not a number.
        """
        epoch = whole_epoch(epoch)
        if not isinstance(metrics, Mapping):
            raise EvaluatorError(
                f"report({epoch}, {metrics!r}): give the values by metric, as in {{'top1': 71.3}}"
            )
        values = {str(name): plain_number(str(name), value) for name, value in metrics.items()}
        self.reported = max(self.reported, epoch)
        self.trial.set_user_attr(f"{EPOCH_KEY}{epoch}", values)
        if values and is_valid(first := next(iter(values.values()))):
            set_intermediate_value(self.study, self.trial, epoch, first)
        return bool(is_valid(np.array(list(values.values()))).all())

    def spread(self, spreads: Mapping[str, tuple[float, float, str]]) -> None:
        """Store the spread of repeated measurements.

        For each metric: low value, high value, and what these are.
        """
        if spreads:
            stored = dict(self.trial.user_attrs.get(SPREAD_KEY, {}))
            stored |= {metric: list(spread) for metric, spread in spreads.items()}
            self.trial.set_user_attr(SPREAD_KEY, stored)

    def keep(
        self,
        further: Mapping[str, float],
        weights: Weights | None = None,
        int8: bytes | None = None,
    ) -> Path | None:
        """Store further values, trained weights or a copy of their file.

        A quantized network beside them is stored, too.

        Returns:
            The path of the weights; None if there are none or no folder is given.
        """
        if valid := {name: value for name, value in further.items() if is_valid(value)}:
            self.trial.set_user_attr(FURTHER_KEY, valid)
        if weights is None or self.weights is None:
            return None
        path = self.weights.write(self.trial.number, weights, int8)
        self.trial.set_user_attr(WEIGHTS_KEY, str(path))
        return path


def plain_number(metric: str, value: Any) -> float:
    """A user's value of a metric, as a number.

    The value may be a NumPy array, PyTorch tensor or the like with one element.

    Raises:
        InputError: for anything else, such as None or a text; the message names metric, value and
            type.
    """
    # PyTorch warns if a tensor with a gradient becomes a number.
    number = value.detach() if hasattr(value, "detach") else value
    try:
        if hasattr(number, "item"):
            number = number.item()  # ValueError or RuntimeError for several elements
        if not isinstance(number, str | bytes):
            return float(number)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        pass
    shown = " ".join(repr(value).split())
    raise InputError(
        f"{metric} is {shown[:MAX_SHOWN]}{'…' if len(shown) > MAX_SHOWN else ''} "
        f"({type(value).__name__}): the evaluator must return one number per metric, and NaN for "
        "a failure"
    )


def whole_epoch(epoch: object) -> int:
    """An epoch as a plain integer.

    NumPy's and PyTorch's integers and 2.0 are whole numbers, too. Raises EvaluatorError for
    anything else.
    """
    with suppress(TypeError, ValueError, OverflowError):
        number = int(epoch)  # type: ignore[call-overload]  # what it does not accept is refused below
        if number == epoch and 0 <= number <= MAX_EPOCH:
            return int(number)
    raise EvaluatorError(
        f"report({epoch!r}, …): the epoch must be a whole number; the first epoch is 1"
    )
