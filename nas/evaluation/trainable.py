"""A network as it is trained, and its trained weights as the ONNX model has them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor, nn

from nas.evaluation.module import GraphModule
from search_spaces.common.errors import InputError
from search_spaces.text.program import compact
from search_spaces.text.syntax import write

if TYPE_CHECKING:
    from search_spaces import Architecture, SearchSpace
    from search_spaces.graph.ir import Graph

State = dict[str, Tensor]
"""Tensors of a module by name, as `torch.nn.Module.state_dict` gives them."""


@dataclass(frozen=True, eq=False)
class Trainable:
    """A network and the PyTorch module in which it is trained.

    graph: what the network computes. build: makes the module with fresh weights; None: a `GraphModule`.
    """

    graph: Graph
    build: Callable[[], nn.Module] | None = None

    @classmethod
    def of(cls, space: SearchSpace, architecture: Architecture) -> Trainable:
        """An architecture of a space."""
        return cls(space.graph(architecture))

    @cached_property
    def text(self) -> str:
        """The network's text."""
        return write(compact(self.graph))

    def module(self, replicas: int = 1) -> nn.Module:
        """The module with fresh weights, or several networks side by side; InputError where these cannot be."""
        if self.build is None:
            return GraphModule(self.graph, replicas)
        if replicas > 1:
            raise InputError("modules of your own are trained one by one")
        return self.build()

    def state(self, module: nn.Module, replica: int = 0) -> State:
        """A copy on the CPU of one network's tensors, by the names that they have in `module()`."""
        if isinstance(module, GraphModule):
            return module.state_of(replica)
        return {name: tensor.detach().cpu().clone() for name, tensor in module.state_dict().items()}

    def onnx_weights(self, state: Mapping[str, Tensor]) -> list[np.ndarray | None]:
        """Trained tensors in the order of `search_spaces.onnx.to_model`'s; None for weights that nothing depends on.

        Raises InputError for the state of another network.
        """
        module = self.module()
        load_state(module, state)
        assert isinstance(module, GraphModule)
        return module.onnx_weights()


def load_state(module: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Give a module the tensors of `Trainable.state`; InputError for those of another network."""
    try:
        module.load_state_dict(dict(state))
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"the weights are not those of this network ({reason})") from None
