"""`SearchSpace`: from one method, `build`, follow sampling, mutation, ONNX, text and costs."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from search_spaces import choosers
from search_spaces.choosers import Chooser, Questions, Trial
from search_spaces.common.errors import (
    Infeasible,
    InputError,
    NasError,
    describe,
    exits_as_errors,
    where,
)
from search_spaces.common.process import collection_paused
from search_spaces.domains import Choice, count
from search_spaces.ir.builder import Network, Tensor
from search_spaces.ir.costs import graph_flops, graph_params
from search_spaces.ir.graph import Graph
from search_spaces.ir.text import compact, write
from search_spaces.parameter_names import plain_names

if TYPE_CHECKING:
    import onnx

# After so many draws with the same error, the error is one of `build`, not of the choices
MAX_EQUAL_ERRORS = 20
CHECKED = 3  # architectures that `check_repeatable` builds twice
MAX_REFUSED_DRAWS = 200  # after so many infeasible draws in a row, sampling gives up


@dataclass(frozen=True)
class Architecture:
    """One member of a search space.

    Attributes:
        space: name of the space.
        choices: name and value of every choice, in the order in which `build` makes them.
    """

    space: str
    choices: tuple[tuple[str, Choice], ...]

    def as_dict(self) -> dict[str, Choice]:
        """The choices by name."""
        return dict(self.choices)


class SearchSpace:
    """Base class of search spaces. A subclass sets the shapes and defines `build`:

        >>> import numpy as np
        >>> from search_spaces import SearchSpace
        >>> class SmallResNet(SearchSpace):
        ...     name = "small-resnet"
        ...     input_shape = (3, 32, 32)
        ...     num_classes = 10
        ...
        ...     def build(self, trial, net):
        ...         x = net.conv_bn_relu(net.input, 16)
        ...         for _ in range(trial.suggest_int("blocks", 1, 4)):
        ...             with net.block("block"):
        ...                 x = net.relu(net.add(x, net.conv_bn(x)))
        ...         return net.classifier(x)
        >>> space = SmallResNet()
        >>> architecture = space.sample(np.random.default_rng(0))
        >>> architecture.as_dict()
        {'blocks': 4}
        >>> space.params(architecture)
        9978

    The decorator `register_space("small-resnet")` makes it known by its name.

    `build` is define-by-run like an Optuna objective, and must depend on the choices alone. For
    choices that exclude each other it raises `Infeasible`, at any point. The options of a choice
    may depend on earlier choices, also under the same name (`search_spaces.parameter_names`).
    """

    name: str = ""
    input_shape: tuple[int, ...] = (3, 32, 32)
    num_classes: int = 10

    _file = ""  # FILE.py:NAME for code in a user's file

    def __init__(
        self, input_shape: tuple[int, ...] | None = None, num_classes: int | None = None
    ) -> None:
        """Create the space, possibly for another data set.

        Args:
            input_shape: shape of one input without the batch; None for the class's default.
            num_classes: number of classes; None for the class's default.

        Raises:
            InputError: if a size is not positive.
        """
        if min((*(input_shape or ()), num_classes or 1)) < 1:
            raise InputError(f"{self.name}: input sizes and number of classes must be positive")
        if input_shape is not None:
            self.input_shape = tuple(input_shape)
        if num_classes is not None:
            self.num_classes = num_classes

    def build(self, trial: Trial, net: Network) -> Tensor:
        """Build one network.

        Args:
            trial: makes the choices, with Optuna's `suggest_*` methods.
            net: builder of the network.

        Returns:
            The logits (N, num_classes).

        Raises:
            Infeasible: if the choices exclude each other.
        """
        raise InputError(f"{type(self).__name__} does not define build(self, trial, net)")

    def ask(self, trial: Trial) -> Any:
        """Make the choices of `build` in the same order.

        Override this to make the choices without building a network: sampling becomes many times
            faster.
        """
        return self._built(trial)

    @property
    def reference(self) -> str:
        """The argument of `get_space` for this space.

        It is the name, or `FILE.py:NAME` for code in a user's file.
        """
        return self._file or self.name

    @property
    def size(self) -> int | None:
        """Number of architectures, None if unknown."""
        return None

    @property
    def options(self) -> dict[str, Any]:
        """Keyword options with which `get_space(reference, **options)` returns this space again."""
        return {
            name: value
            for name, value in vars(self).items()
            if name in ("input_shape", "num_classes")
        }

    # --- from choices to architectures

    def _built(self, trial: Trial) -> tuple[Network, Tensor]:
        """The network that `trial` chooses, and its logits; `Network.graph` finishes the graph."""
        net = Network(self.input_shape, self.num_classes)
        output = self.build(trial, net)
        if not isinstance(output, Tensor):
            raise InputError(
                f"{self.name}: build returned {type(output).__name__}, not the network's output "
                "tensor"
            )
        return net, output

    def _chosen(self, chooser: Chooser) -> Architecture:
        with self.user_code():
            self.ask(chooser)
        return Architecture(self.name, tuple(chooser.choices.items()))

    def _drawn(self, chooser: Chooser) -> Architecture:
        """As `_chosen`, but without building a network if the same choices were made before."""
        if type(self).ask is not SearchSpace.ask:
            return self._chosen(chooser)
        if not self._known_questions.ask(chooser):
            self._chosen(chooser)
            self._known_questions.learn(chooser)
        return Architecture(self.name, tuple(chooser.choices.items()))

    @cached_property
    def _known_questions(self) -> Questions:
        return Questions()

    def _first_feasible(self, chooser: Callable[[], Chooser]) -> Architecture:
        """The first feasible architecture of up to `MAX_REFUSED_DRAWS` new choosers."""
        refused: list[str] = []
        for _ in range(MAX_REFUSED_DRAWS):
            try:
                return self._drawn(chooser())
            except InputError as error:
                refused.append(str(error))
                if (
                    len(refused) == MAX_EQUAL_ERRORS
                    and len(set(refused)) == 1
                    and not isinstance(error, Infeasible)
                ):
                    raise
        raise Infeasible(
            f"{self.name}: {MAX_REFUSED_DRAWS} draws in a row were infeasible; the last: "
            f"{refused[-1]}"
        )

    def architecture(self, choices: Mapping[str, Choice], others: bool = False) -> Architecture:
        """The architecture with the given choices.

        Args:
            choices: by name, such as the parameters of an Optuna trial.
            others: True if there may be other names, such as a learning rate that a study tunes,
                too.

        Raises:
            InputError: if a choice is missing, invalid, or unused without `others`.
        """
        chooser = choosers.ReplayChooser(plain_names(choices))
        arch = self._chosen(chooser)
        if not others:
            chooser.check_all_used()
        return arch

    def choose(self, trial: Trial) -> Architecture:
        """The architecture that an Optuna trial suggests, for use in your own objective function.

        Raises:
            Infeasible: if the choices exclude each other.
        """
        return self._chosen(choosers.TrialChooser(trial))

    def sample(self, rng: np.random.Generator) -> Architecture:
        """A random architecture, of which every choice is drawn uniformly.

        If the choices are infeasible, all are drawn again.

        Raises:
            Infeasible: if `MAX_REFUSED_DRAWS` draws in a row are infeasible.
        """
        return self._first_feasible(lambda: choosers.RandomChooser(rng))

    @property
    def inherits(self) -> bool:
        """True if trainings of its networks start from the weights of a trained model."""
        return False

    def initial_designs(self, count: int) -> list[Architecture]:
        """At most `count` networks that a search should start with; none by default.

        Override this where something is known before the first evaluation, such as the networks
        that pruning proposes (`Subnetworks`). Guided samplers evaluate them first.
        """
        return []

    def mutate(self, arch: Architecture, rng: np.random.Generator) -> Architecture:
        """The architecture with one random choice changed.

        Choices that exist only after the change are random. Returns the architecture itself if no
        feasible change is found.
        """
        parent = arch.as_dict()
        replay = choosers.ReplayChooser(parent)
        self._drawn(replay)
        free = [name for name, options in replay.options.items() if count(options) != 1]
        if not free:
            return arch
        try:
            return self._first_feasible(
                lambda: choosers.MutationChooser(parent, free[int(rng.integers(len(free)))], rng)
            )
        except Infeasible:
            return arch

    def crossover(self, a: Architecture, b: Architecture, rng: np.random.Generator) -> Architecture:
        """Every choice from a random one of the two parents.

        It is the first parent if no feasible mixture is found.
        """
        try:
            return self._first_feasible(
                lambda: choosers.CrossoverChooser(a.as_dict(), b.as_dict(), rng)
            )
        except Infeasible:
            return a

    def enumerate(self) -> Iterator[Architecture]:
        """All feasible architectures of a finite space, in the order of the options.

        Raises:
            InputError: if a choice is continuous.
        """
        positions: list[int] | None = []
        while positions is not None:
            chooser = choosers.EnumerationChooser(positions)
            with suppress(InputError):
                yield self._chosen(chooser)
            positions = chooser.next_positions()

    # --- notation of the literature; published spaces override both

    def parse(self, native: str) -> Architecture:
        """Read an architecture from the space's notation, by default a dictionary of choices.

        Raises:
            InputError: if it is not the notation of an architecture of this space.
        """
        try:
            choices = ast.literal_eval(native)
        except (ValueError, SyntaxError) as error:
            raise InputError(f"not a dictionary of choices: {native[:200]!r}") from error
        if not isinstance(choices, dict):
            raise InputError(f"not a dictionary of choices: {native[:200]!r}")
        return self.architecture(choices)

    def format(self, arch: Architecture) -> str:
        """Write an architecture in the space's notation, which `parse` reads back."""
        return repr(arch.as_dict())

    # --- from architectures to networks

    def graph(self, arch: Architecture) -> Graph:
        """The weightless graph of an architecture."""
        self.check_member(arch)
        with self.user_code():
            net, output = self._built(choosers.ReplayChooser(arch.as_dict()))
            return net.graph(output)

    def check_member(self, arch: Architecture) -> None:
        """Raise InputError for an architecture of another space."""
        if arch.space != self.name:
            raise InputError(f"the architecture is of space {arch.space!r}, not {self.name!r}")

    @contextmanager
    def user_code(self) -> Iterator[None]:
        """Turn exceptions of user code into InputErrors that name file and line.

        Exceptions of Optuna pass through.
        """
        try:
            with exits_as_errors():
                yield
        except InputError as error:
            if type(error) is InputError and (place := where(error)):
                error.args = (f"{place}{error}",)
            raise
        except NasError:  # such as that of a storage with a full disk: not the fault of user code
            raise
        except Exception as error:
            if type(error).__module__.startswith("optuna."):  # a pruned trial, for example
                raise
            raise InputError(describe(error)) from error

    def to_onnx(self, arch: Architecture, seed: int = 0) -> onnx.ModelProto:
        """A runnable ONNX model with random weights drawn from `seed`."""
        from search_spaces.ir.onnx import to_model

        return to_model(self.graph(arch), seed)

    def save_onnx(self, arch: Architecture, path: Path, seed: int = 0) -> None:
        """Write the model of `to_onnx` to a file, atomically.

        Raises:
            InputError: if the file cannot be written.
        """
        from search_spaces.common.files import replacing
        from search_spaces.ir.onnx import write_model

        graph = self.graph(arch)
        with replacing(path) as temporary, temporary.open("wb") as file:
            write_model(graph, file, seed)

    @collection_paused()
    def to_text(self, arch: Architecture) -> str:
        """The architecture's compact text; faster than, and equal to,
        `to_text(space.to_onnx(arch))`.
        """
        return write(compact(self.graph(arch)))

    def params(self, arch: Architecture) -> int:
        """Number of trained weights."""
        return graph_params(self.graph(arch))

    def flops(self, arch: Architecture) -> int:
        """Multiply-accumulates for one input; see `graph_flops`."""
        return graph_flops(self.graph(arch))


# --- the contract of `build`


def check_repeatable(space: SearchSpace) -> None:
    """Check that `build` depends on the choices alone, on which everything else relies.

    `CHECKED` random architectures are built twice.

    Raises:
        InputError: if equal choices give different networks or other choices, or if no architecture
            can be built.
    """
    rng = np.random.default_rng(0)
    errors: list[InputError] = []
    for _ in range(CHECKED):
        arch = space.sample(rng)
        try:
            first = space.to_text(arch)
            second = space.to_text(arch)
            again = space.architecture(arch.as_dict())
        except Infeasible:  # `build` may raise it after `ask` has made all choices
            continue
        except InputError as error:  # `build` may fail for some choices
            errors.append(error)
            continue
        if again != arch:
            raise InputError(
                f"{space.name}: build does not make the same choices again for {space.format(arch)}"
            )
        if first != second:
            raise InputError(
                f"{space.name}: build made two networks of the same choices "
                f"({_difference(first, second)}): it must "
                "depend on the trial alone, without random numbers and state; choices: "
                f"{space.format(arch)}"
            )
    if len(errors) == CHECKED:
        raise errors[0]


def _difference(first: str, second: str) -> str:
    """The first line of each text that the other lacks."""
    changed = [
        line for line in difflib.ndiff(first.splitlines(), second.splitlines()) if line[:1] in "-+"
    ]
    a = next((line[2:].strip() for line in changed if line.startswith("-")), "nothing")
    b = next((line[2:].strip() for line in changed if line.startswith("+")), "nothing")
    return f"{a!r} and {b!r}"
