"""`Subnetworks`: the parts of a trained PyTorch model as a search space; its networks inherit the
model's weights.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from search_spaces.choosers import Trial
from search_spaces.common.errors import InputError, describe, unknown, where
from search_spaces.common.files import weights_digest
from search_spaces.ir.graph import Graph
from search_spaces.ir.precision import check_precision, set_precision
from search_spaces.space import Architecture
from search_spaces.torch_space import TorchSpace, no_example

if TYPE_CHECKING:
    import onnx
    from torch import nn

    from search_spaces.subnetworks.groups import Group
    from search_spaces.subnetworks.prunable import Choice, Prunable
    from search_spaces.subnetworks.resizing import Block
    from search_spaces.subnetworks.stages import Stage

WIDTHS = (0.25, 0.5, 0.75, 1.0)
ROUND_TO = 8  # channels; hardware computes multiples of 8 without waste
STARTS, TEACHERS, OUTPUTS = ("inherited", "fresh"), ("model", "none"), ("classes", "vectors")
MAX_NAMED = 3  # names in a summary
DESIGN_FLOPS = (0.85, 0.25)  # of the model, of the widest and the narrowest first network
BISECTIONS = 8  # which find a share to less than 1 %


class Subnetworks(TorchSpace):
    """The sub-networks of a trained model: fewer channels, heads and blocks, smaller kernels.

    The model is read once, from one call without data. Channels that belong together (of residual
    sums, depthwise and grouped convolutions, concatenations) are removed together. What cannot be
    removed safely stays whole; `unpruned` names it. Graphs, texts, parameters and FLOPs of
    sub-networks are computed without building them.

    Example: a model of one group of 32 channels; weights of a file are named by `weights`.

        >>> import nas, torch
        >>> from torch import nn
        >>> net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4)).eval()
        >>> space = nas.Subnetworks(net, torch.zeros(1, 8))
        >>> space.groups[0].name, space.groups[0].sizes
        ('width.0', (8, 16, 24, 32))
        >>> half = space.uniform(0.5)
        >>> space.params(half), space.params(space.whole)
        (212, 420)
        >>> smaller = space.module(half)  # an nn.Module with the weights of the 16 most important channels
        >>> smaller(torch.zeros(3, 8)).shape
        torch.Size([3, 4])

    Args:
        net: a module, or a function without arguments that returns one. A space without `net`
            cannot exist.
        example_input: arguments of `forward`, batch first: a tensor, a tuple, or a dictionary of
            keyword arguments. The default is the attribute `example_input` of `net`.
        weights: a .safetensors file or a torch state dict, loaded into `net`; None if it has its
            weights.
        width: shares of the channels and heads of every group to choose from.
        depth: True if residual blocks may be left out. Of those that compute alike, a number is
            chosen; those without which the outputs change most stay.
        kernel: True for all smaller odd kernels of convolutions, or their sizes, cut from the
            centre; False for none.
        round_to: channels are multiples of this number, because hardware computes these without
            waste.
        keep: names of layers, or patterns such as "stages.0.*", whose own channels stay.
        importance: which channels stay: "magnitude", "taylor" or "activation"; see `Importance`.
        importance_data: batches for "taylor" (inputs and targets) and "activation" (inputs). Which
            blocks stay is decided on the first of them, too, and without them on noise.
        start: "inherited": networks have the model's weights; "fresh": they are initialized anew.
        teacher: "model": networks that are trained also learn from the model's outputs; "none":
            from the data alone.
        outputs: what the model's outputs are to these and to the metric `fidelity`: "classes" or
            "vectors".
        sha256: SHA-256 of the file of weights, if it must be a certain one.
        precision: precisions that each block may have, as in ("fp32", "int8"); () for none. A block
            is what the model's lists and sequences hold: layers whose names agree up to their first
            numbers, such as `layer1.0`, and each layer outside of these. The module computes as
            before; files and scores of int8 (`nas.evaluation.int8`) concern the blocks in int8.
        name: name of the space.

    Raises:
        InputError: the model cannot be read, nothing of it can be removed, the weights do not fit,
            or a setting is wrong.
    """

    given_shape: tuple[int, ...] | None = None  # of the example input, if it was made from a shape

    def __init__(
        self,
        net: nn.Module | Callable[[], nn.Module],
        example_input: Any = None,
        *,
        weights: str | Path | None = None,
        width: Sequence[float] = WIDTHS,
        depth: bool = True,
        kernel: bool | Sequence[int] = False,
        round_to: int = ROUND_TO,
        keep: Iterable[str] = (),
        importance: str = "magnitude",
        importance_data: Sequence[Any] = (),
        start: str = "inherited",
        teacher: str = "model",
        outputs: str = "classes",
        sha256: str = "",
        precision: Sequence[str] = (),
        name: str = "",
    ) -> None:
        from search_spaces.subnetworks.importance import Importance
        from search_spaces.subnetworks.prunable import Settings

        self.name = name or getattr(net, "__name__", "") or type(net).__name__
        self.start = _one_of("start", start, STARTS)
        self.teacher = _one_of("teacher", teacher, TEACHERS)
        self.outputs = _one_of("outputs", outputs, OUTPUTS)
        self._settings = Settings(
            _shares(width),
            _flag("depth", depth),
            _kernels(kernel),
            _count("round_to", round_to),
            _names(keep),
        )
        self._precisions = _precisions(precision)
        self._importance = Importance(importance, importance_data)
        self._net, self._weights = net, weights
        self._sha256 = "" if weights is None else weights_digest(weights, sha256)
        self.example_input = (
            getattr(net, "example_input", None) if example_input is None else example_input
        )
        if self.example_input is None:
            raise no_example(self.name, "net.", ", or as the second argument")
        self._options = {}
        self._last: tuple[Architecture, Graph] | None = None
        self.input_shape = self._shape_of_example()  # type: ignore[assignment]
        choices = self._prunable.choices
        if not (choices.groups or choices.blocks or choices.kernels or self._precisions):
            raise InputError(f"{self.name}: nothing of the model can be left out{self._reasons()}")

    @property
    def options(self) -> dict[str, Any]:
        """Keyword arguments with which `get_space(reference, **options)` returns this space."""
        settings = self._settings
        kernel = settings.kernel
        options: dict[str, Any] = {}
        if self._weights is not None:
            options["weights"] = str(Path(self._weights).absolute())
            options["sha256"] = self._sha256
        options |= {
            "width": list(settings.width),
            "depth": settings.depth,
            "kernel": kernel if isinstance(kernel, bool) else list(kernel),
            "round_to": settings.round_to,
            "keep": list(settings.keep),
            "importance": self._importance.kind,
            "start": self.start,
            "teacher": self.teacher,
            "outputs": self.outputs,
        }
        if self._precisions:
            options["precision"] = list(self._precisions)
        if self.given_shape is not None:
            options["input_shape"] = list(self.given_shape)
        return options

    @cached_property
    def num_classes(self) -> int:  # type: ignore[override]
        """Last dimension of the first output."""
        graph = self._prunable.reading.graph
        return int(graph.shapes[graph.outputs[0]][-1])

    @property
    def groups(self) -> list[Group]:
        """The groups of channels and heads, in the order of the model's parameters."""
        return self._prunable.choices.groups

    @property
    def stages(self) -> list[Stage]:
        """The residual blocks, those that compute alike together, in the order of the model."""
        return self._prunable.stages

    @property
    def unpruned(self) -> dict[str, str]:
        """What stays whole, and why."""
        return self._prunable.choices.unpruned

    @property
    def summary(self) -> str:
        """What can be chosen, and what stays whole with its reason, in one line."""
        choices = self._prunable.choices
        counts = {
            "group of channels": sum(group.kind == "width" for group in choices.groups),
            "group of heads": sum(group.kind == "heads" for group in choices.groups),
            "block": len(choices.blocks),
            "kernel": len(choices.kernels),
        }
        shown = [_counted(number, name) for name, number in counts.items() if number]
        to_choose = f"{', '.join(shown)} to choose from"
        whole = [f"{name} ({reason})" for name, reason in self.unpruned.items()]
        if not whole:
            return to_choose
        hidden = len(whole) - MAX_NAMED
        and_more = f" and {hidden} more" if hidden > 0 else ""
        return f"{to_choose}; whole stay {', '.join(whole[:MAX_NAMED])}{and_more}"

    @property
    def model(self) -> nn.Module:
        """The trained model, in evaluation mode."""
        return self._prunable.module

    @cached_property
    def whole(self) -> Architecture:
        """The architecture of the whole model."""
        prunable = self._prunable.choices
        choices: dict[str, Any] = {}
        for stage in self.stages:
            choices[f"depth.{stage.name}"] = len(stage.blocks)
        for group in self.groups:
            choices[group.name] = group.sizes[-1]
        for kernel in prunable.kernels:
            choices[kernel.name] = kernel.sizes[-1]
        for name in self.precision_blocks:
            choices[f"precision.{name}"] = self._precisions[0]
        return self.architecture(choices)

    def ranked(self, share: float) -> Architecture:
        """The sub-network with this share of all channels.

        There is one threshold of importance for all groups. Groups of less important channels
        become narrower, as in global pruning; no block is left out.

        Raises:
            InputError: if the share is not above 0 and at most 1.
        """
        _check_share(share)
        return self._with({g.name: size for g, size in self._prunable.ranked(share).items()})

    def uniform(self, share: float) -> Architecture:
        """The sub-network with this share of the channels of every group.

        Each share is as near as the group's sizes come.

        Raises:
            InputError: if the share is not above 0 and at most 1.
        """
        _check_share(share)
        sizes = {}
        for group in self.groups:
            aim = share * group.sizes[-1]
            sizes[group.name] = min(group.sizes, key=lambda size: abs(size - aim))
        return self._with(sizes)

    @property
    def inherits(self) -> bool:
        """True unless `start` is "fresh"."""
        return self.start == "inherited"

    def shallow(self, share: float) -> Architecture:
        """The sub-network with this share of the blocks of every stage, at full width.

        Raises:
            InputError: if the share is not above 0 and at most 1.
        """
        _check_share(share)
        kept = {}
        for stage in self.stages:
            kept[f"depth.{stage.name}"] = round(share * len(stage.blocks))
        return self._with(kept)

    def initial_designs(self, count: int) -> list[Architecture]:
        """The whole model, with `precision` also in each single precision, then what pruning
        proposes at ever fewer FLOPs: by importance, with equal shares, and with fewer blocks, in
        turns.
        """
        # 1. The whole model in each precision.
        whole = self.whole
        designs = [whole]
        for precision in self._precisions[1:]:
            uniform = {f"precision.{block}": precision for block in self.precision_blocks}
            designs.append(self.architecture(whole.as_dict() | uniform))

        # 2. Ever fewer FLOPs. Sizes are rounded, so that rankings may agree; then the next one
        #    proposes.
        rankings = [self.ranked, self.uniform]
        if any(len(stage.blocks) > 1 for stage in self.stages):
            rankings.append(self.shallow)
        shares = np.linspace(*DESIGN_FLOPS, max(count - 1, 0))
        for i, share in enumerate(shares.tolist()):
            first = i % len(rankings)
            for ranking in [*rankings[first:], *rankings[:first]]:
                design = self._with_flops(ranking, share)
                if design not in designs:
                    designs.append(design)
                    break
        return designs[:count]

    def _with_flops(self, ranking: Callable[[float], Architecture], aim: float) -> Architecture:
        """The network of a ranking whose FLOPs are nearest to a share of the model's.

        It is found by bisection of the share of channels.
        """
        whole = self.flops(self.whole)
        low = 0.0
        high = 1.0
        nearest: dict[Architecture, float] = {}
        for _ in range(BISECTIONS):
            share = (low + high) / 2
            design = ranking(share)
            flops = self.flops(design) / whole
            nearest[design] = abs(flops - aim)
            low, high = (low, share) if flops > aim else (share, high)
        return min(nearest, key=nearest.__getitem__)

    def _with(self, sizes: Mapping[str, int]) -> Architecture:
        """The whole model with other values of some choices. What these leave out is not chosen."""
        choices = {**self.whole.as_dict(), **sizes}
        for block in self._left_out(choices):
            for name in self._inside[block.name]:
                choices.pop(name, None)
        return self.architecture(choices)

    def _left_out(self, choices: Mapping[str, Any]) -> list[Block]:
        left_out: list[Block] = []
        for stage in self.stages:
            left_out += stage.left_out(choices[f"depth.{stage.name}"])
        return left_out

    # --- choices

    def ask(self, trial: Trial) -> None:
        """Blocks first: the widths inside of a block that is left out are not chosen."""
        choices = self._prunable.choices
        unused: set[str] = set()
        for stage in self.stages:
            kept = trial.suggest_categorical(f"depth.{stage.name}", stage.sizes)
            for block in stage.left_out(kept):
                unused |= self._inside[block.name]
        for group in choices.groups:
            if group.name not in unused:
                trial.suggest_categorical(group.name, group.sizes)
        for kernel in choices.kernels:
            if kernel.name not in unused:
                trial.suggest_categorical(kernel.name, kernel.sizes)
        for name in self.precision_blocks:
            if f"precision.{name}" not in unused:
                trial.suggest_categorical(f"precision.{name}", self._precisions)

    def build(self, trial: Trial) -> nn.Module:  # type: ignore[override]
        """The module of the sub-network that `trial` chooses."""
        return self.module(self.choose(trial))

    @cached_property
    def _inside(self) -> dict[str, set[str]]:
        """By block, the names of the choices that concern only its inside."""
        from search_spaces.subnetworks.prunable import atoms_inside

        choices = self._prunable.choices
        inside = {}
        for block in choices.blocks:
            # 1. Groups of which all channels are in the block.
            atoms = atoms_inside(self._prunable, block)
            names = {group.name for group in self.groups if group.atom in atoms}
            # 2. Kernels.
            names.update([k.name for k in choices.kernels if k.value in block.nodes])
            # 3. Precisions of layers that are all in the block.
            for precision_block, layers in self.precision_blocks.items():
                values = [value for layer in layers for value in self._prunable.layers[layer]]
                if block.nodes.issuperset(values):
                    names.add(f"precision.{precision_block}")
            inside[block.name] = names
        return inside

    # --- precision

    @cached_property
    def precision_blocks(self) -> dict[str, list[str]]:
        """The blocks whose precision is chosen, with their convolutions and linear layers.

        {} without `precision`.
        """
        blocks: dict[str, list[str]] = {}
        for layer in self._prunable.layers if self._precisions else ():
            blocks.setdefault(_block_of(layer), []).append(layer)
        return blocks

    def _precision_of_layers(self, arch: Architecture) -> dict[str, str]:
        """Precision by layer."""
        chosen = arch.as_dict()
        precisions: dict[str, str] = {}
        for block, layers in self.precision_blocks.items():
            choice = f"precision.{block}"
            if choice in chosen:
                for layer in layers:
                    precisions[layer] = chosen[choice]
        return precisions

    def _choice(self, arch: Architecture) -> Choice:
        from search_spaces.subnetworks.prunable import Choice

        self.check_member(arch)
        chosen = arch.as_dict()
        choices = self._prunable.choices
        groups = [group for group in choices.groups if group.name in chosen]
        kernels = [kernel for kernel in choices.kernels if kernel.name in chosen]
        return Choice(
            sizes={group: chosen[group.name] for group in groups},
            skipped=tuple(self._left_out(chosen)),
            kernels={kernel: chosen[kernel.name] for kernel in kernels},
        )

    # --- networks

    def graph(self, arch: Architecture) -> Graph:
        # The last graph is kept: text and costs of one architecture are often needed together.
        if self._last is None or self._last[0] != arch:
            precisions: dict[int, str] = {}  # by output value of each call of a layer
            for layer, precision in self._precision_of_layers(arch).items():
                precisions.update(dict.fromkeys(self._prunable.layers[layer], precision))
            self._last = arch, self._prunable.graph(self._choice(arch), precisions)
        return self._last[1]

    def module(self, arch: Architecture) -> nn.Module:
        """The sub-network: a copy of the model with the weights of the channels that stay.

        It is in evaluation mode. With `start="fresh"`, its layers are initialized anew from
        torch's random generator.
        """
        module = self._prunable.sub_module(self._choice(arch))
        if self.start == "fresh":
            for layer in module.modules():
                public = getattr(layer, "reset_parameters", None)
                reset = public or getattr(layer, "_reset_parameters", None)
                if callable(reset):
                    reset()
        for name, precision in self._precision_of_layers(arch).items():
            set_precision(module.get_submodule(name), precision)
        return module

    def to_onnx(self, arch: Architecture, seed: int = 0) -> onnx.ModelProto:
        """The sub-network with its inherited weights as an ONNX model.

        The weights are random if the model has none.
        """
        from search_spaces.ir.onnx import to_model
        from search_spaces.ir.pytorch import record_with_numbers

        if any(p.is_meta for p in self.model.parameters()):
            return super().to_onnx(arch, seed)
        graph, numbers = record_with_numbers(self.module(arch), self.example_input)
        return to_model(graph, seed, numbers)

    def save_onnx(self, arch: Architecture, path: Path, seed: int = 0) -> None:
        from search_spaces.common.files import replacing
        from search_spaces.ir.onnx import write_model
        from search_spaces.ir.pytorch import record_with_numbers

        if any(p.is_meta for p in self.model.parameters()):
            super().save_onnx(arch, path, seed)
            return
        graph, numbers = record_with_numbers(self.module(arch), self.example_input)
        with replacing(path) as temporary, temporary.open("wb") as file:
            write_model(graph, file, seed, numbers)

    # --- the model

    @cached_property
    def _prunable(self) -> Prunable:
        from torch import nn

        from search_spaces.ir.pytorch import is_lazy, layer_of, run
        from search_spaces.subnetworks.prunable import Prunable
        from search_spaces.subnetworks.weight_files import load_weights

        module: Any = self._net
        if not isinstance(module, nn.Module):
            with self.user_code():
                module = self._net()
        if not isinstance(module, nn.Module):
            made = type(module).__name__
            raise InputError(
                f"{self.name}: {made} is no torch.nn.Module, and no function that returns one"
            )
        if self._weights is not None:
            if is_lazy(module):
                import torch

                with torch.no_grad():
                    run(module.eval(), self.example_input)
            load_weights(module, self._weights)
        try:
            return Prunable(module, self.example_input, self._settings, self._importance)
        except Exception as error:  # the model's own code may raise any
            place = where(error) or f"{self.name}: "
            reason = describe(error).removeprefix(place)
            raise InputError(f"{place}{reason}{layer_of(error, module)}") from error

    def _reasons(self) -> str:
        for name, reason in self.unpruned.items():
            return f"; for example, {name} stays whole because of {reason}"
        return ""


def _counted(number: int, name: str) -> str:
    """For example "2 groups of channels"."""
    noun, *others = name.split(" ")
    plural = f"{noun}s" if number > 1 else noun
    return " ".join([str(number), plural, *others])


def _precisions(precision: Sequence[str]) -> tuple[str, ...]:
    names = (precision,) if isinstance(precision, str) else tuple(precision)
    return tuple(dict.fromkeys(check_precision(name) for name in names))


def _block_of(layer: str) -> str:
    """The block of a layer: the module around it whose name ends with the first numbers in it, such
    as `layer1.0` or `blocks.1.0`; the layer itself if there is none.
    """
    *around, _ = layer.split(".")
    first = next((i for i, part in enumerate(around) if part.isdecimal()), None)
    if first is None:
        return layer
    numbers = itertools.takewhile(str.isdecimal, around[first:])
    return ".".join([*around[:first], *numbers])


def _shares(width: Sequence[float]) -> tuple[float, ...]:
    listed = width if isinstance(width, Iterable) else (width,)
    try:
        shares = tuple(sorted({float(share) for share in listed}))
    except (TypeError, ValueError) as error:
        raise InputError(f"width = {width!r}: give shares such as (0.25, 0.5, 1)") from error
    if not shares or not all(0 < share <= 1 for share in shares):
        raise InputError(f"width = {width!r}: shares of the channels are above 0 and at most 1")
    return shares


def _one_of(name: str, value: Any, known: Sequence[str]) -> str:
    if value not in known:
        raise unknown(name, str(value), known)
    return str(value)


def _check_share(share: float) -> None:
    if not 0 < share <= 1:
        raise InputError(f"share = {share}: it is above 0 and at most 1")


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise InputError(f"{name} = {value!r}: give True or False")
    return value


def _kernels(kernel: Any) -> bool | tuple[int, ...]:
    if isinstance(kernel, bool):
        return kernel
    sizes = tuple(sorted({*kernel} if isinstance(kernel, Iterable) else {kernel}))
    if not all(isinstance(size, int) and size > 0 and size % 2 for size in sizes):
        raise InputError(f"kernel = {kernel!r}: give True, False, or odd sizes such as (3, 5)")
    return sizes


def _count(name: str, value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InputError(f"{name} = {value!r}: give a whole number from 1")
    return value


def _names(keep: Iterable[str]) -> tuple[str, ...]:
    names = (keep,) if isinstance(keep, str) else tuple(keep)
    for name in names:
        if not isinstance(name, str) or not name:
            raise unknown("layer in keep:", str(name), ())
    return names
