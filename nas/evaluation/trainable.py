"""A network as a PyTorch module for training, and as a graph with trained weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from search_spaces import Subnetworks, TorchSpace
from search_spaces.common.errors import InputError
from search_spaces.ir.text import compact, write

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor, nn

    from search_spaces import Architecture, SearchSpace
    from search_spaces.ir.graph import Graph

State = dict[str, "Tensor"]
"""Tensors of a module by name, as in `torch.nn.Module.state_dict`."""


@dataclass(frozen=True, eq=False)
class Trainable:
    """A network and the PyTorch module that trains it.

    Attributes:
        graph: what the network computes.
        build: makes the user's own module with fresh weights; None if the module is a
            `GraphModule`.
        example: an input of the user's own module.
        model: the trained model of which the network is a part, with its weights; None without one.
        teacher: a trained model whose outputs the network learns, too; None without one.
        inherits: True if the module has weights of a trained model, so that a training need not
            have epochs.
        imitates: what the teacher's outputs are: "classes" or "vectors".
        label: tells networks of one text apart that inherit other weights; "" if the text says
            everything.
    """

    graph: Graph
    build: Callable[[], nn.Module] | None = None
    example: Any = None
    model: nn.Module | None = None
    teacher: nn.Module | None = None
    inherits: bool = False
    imitates: str = "classes"
    label: str = ""

    @classmethod
    def of(cls, space: SearchSpace, architecture: Architecture) -> Trainable:
        """An architecture of a space."""
        graph = space.graph(architecture)
        if not isinstance(space, TorchSpace):
            return cls(graph)
        network = cls(
            graph,
            lambda: space.module(architecture),
            space.example_input,
            inherits=space.inherits,
            label=space.format(architecture) if space.inherits else "",
        )
        if not isinstance(space, Subnetworks):
            return network
        return replace(
            network,
            model=space.model if space.inherits else None,
            teacher=space.model if space.teacher == "model" else None,
            imitates=space.outputs,
        )

    @cached_property
    def text(self) -> str:
        """The network's text."""
        return write(compact(self.graph))

    @property
    def identity(self) -> str:
        """What distinguishes the network from others.

        It is its text and, if it inherits weights, which ones.
        """
        return self.text + self.label

    def module(self, replicas: int = 1) -> nn.Module:
        """The module with fresh weights, of one or several networks side by side.

        Raises:
            InputError: an operator cannot be trained, or the networks cannot train side by side.
        """
        import torch

        from nas.evaluation.module import GraphModule
        from search_spaces.ir.pytorch import is_lazy, run

        if self.build is None:
            return GraphModule(self.graph, replicas)
        if replicas > 1:
            raise InputError("your own modules are trained one by one")
        module = self.build()
        if is_lazy(module):
            with torch.no_grad():
                run(module.eval(), self.example)
        return module.train()

    def outputs(self, module: nn.Module, x: Tensor) -> Tensor:
        """The module's output for a batch; the first tensor if there are several."""
        from torch import Tensor
        from torch.utils._pytree import tree_leaves

        named = isinstance(self.example, Mapping)
        made = module(**{next(iter(self.example)): x}) if named else module(x)
        return (
            made
            if isinstance(made, Tensor)
            else next(y for y in tree_leaves(made) if isinstance(y, Tensor))
        )

    def state(self, module: nn.Module, replica: int = 0) -> State:
        """A CPU copy of one network's tensors, by their names in `module()`; see `last_state`."""
        from nas.evaluation.module import GraphModule

        if isinstance(module, GraphModule):
            return module.state_of(replica)
        return {name: tensor.detach().cpu().clone() for name, tensor in module.state_dict().items()}

    def last_state(self, module: nn.Module) -> State:
        """The tensors of `state` of a module that is not trained any further.

        Those on the CPU are not copied.
        """
        from nas.evaluation.module import GraphModule

        if isinstance(module, GraphModule):
            return module.state_of(0)
        return {name: tensor.detach().cpu() for name, tensor in module.state_dict().items()}

    def trained(self, state: Mapping[str, Tensor]) -> tuple[Graph, dict[int, list[np.ndarray]]]:
        """The network with trained tensors: a graph and its weights.

        `search_spaces.ir.onnx.to_model` takes it.

        Raises:
            InputError: the state belongs to another network.
        """
        from nas.evaluation.module import GraphModule
        from search_spaces.ir.pytorch import record_with_numbers

        module = self.module()
        try:
            module.load_state_dict(dict(state))
        except RuntimeError as error:
            reason = " ".join(str(error).split())[:200]
            raise InputError(f"the weights belong to another network ({reason})") from error
        if isinstance(module, GraphModule):
            return self.graph, module.numbers()
        return record_with_numbers(module, self.example)
