"""An ONNX file behind the signature of a PyTorch module, so that a user's own code scores what a
device will run.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves, tree_unflatten

from nas.evaluation.latency import open_session
from search_spaces.common.errors import InputError


class OnnxModule(nn.Module):
    """Runs an ONNX model in ONNX Runtime, called like the PyTorch module that it was written from.

    It has `train`, `eval`, `parameters` and `to` like any module, but nothing of it can be learned:
    its only parameter has no influence, and its gradients are zeros. So code that trains, too, runs
    on it unchanged, and scores the file.

    Example:

        >>> import nas, numpy as np, torch
        >>> from search_spaces import get_space
        >>> space = get_space("tiny-resnet", input_shape=(1, 8, 8))
        >>> file = space.to_onnx(space.sample(np.random.default_rng(0))).SerializeToString()
        >>> model = nas.OnnxModule(file)
        >>> model(torch.zeros(5, 1, 8, 8)).shape, [p.shape for p in model.parameters()]
        (torch.Size([5, 10]), [torch.Size([])])

    Args:
        model: path of an ONNX file, or a serialized model.
        structure: of the outputs (`torch.utils._pytree`) if these are neither one tensor nor a
            tuple of tensors; see `output_structure`.
        threads: threads of ONNX Runtime.

    Raises:
        InputError: ONNX Runtime cannot run the model.
    """

    def __init__(
        self, model: str | Path | bytes, structure: TreeSpec | None = None, threads: int = 1
    ) -> None:
        super().__init__()
        source = model if isinstance(model, bytes) else str(model)
        if isinstance(source, str) and not Path(source).is_file():
            raise InputError(f"{source}: no such file")
        self.session = open_session(source, threads)
        self.structure = structure
        self.unused = nn.Parameter(torch.zeros(()))  # optimizers need a parameter

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """The outputs for a batch of inputs, on the device of the first input.

        Raises:
            InputError: another number of inputs, or ONNX Runtime cannot run them.
        """
        # 1. Inputs by the model's names; keyword arguments of other names come in their order.
        tensors = [leaf for leaf in tree_leaves((inputs, named)) if isinstance(leaf, Tensor)]
        slots = self.session.get_inputs()
        if len(tensors) != len(slots):
            raise InputError(
                f"the model takes {len(slots)} inputs ({', '.join(slot.name for slot in slots)}), "
                f"not {len(tensors)}"
            )
        by_name = {slot.name: tensor for slot, tensor in zip(slots, tensors, strict=True)}
        by_name |= {name: value for name, value in named.items() if name in by_name}
        types = {slot.name: _TYPES.get(slot.type, torch.float32) for slot in slots}
        feed = {
            name: value.detach().cpu().to(types[name]).contiguous().numpy()
            for name, value in by_name.items()
        }

        # 2. The session's outputs, as tensors that a backward pass may start from.
        try:
            arrays = self.session.run(None, feed)
        except Exception as error:  # ONNX Runtime's errors share no public base class
            reason = " ".join(str(error).split())[:200]
            raise InputError(f"ONNX Runtime cannot run these inputs: {reason}") from error
        device = tensors[0].device
        outputs = [
            _Fixed.apply(torch.from_numpy(array).to(device), self.unused) for array in arrays
        ]

        # 3. In the structure of the module's own outputs.
        if self.structure is not None and self.structure.num_leaves == len(outputs):
            return tree_unflatten(outputs, self.structure)
        return outputs[0] if len(outputs) == 1 else tuple(outputs)


class _Fixed(torch.autograd.Function):
    """Outputs that do not depend on the parameter beside them: its gradient is zero."""

    @staticmethod
    def forward(context: Any, output: Tensor, unused: Tensor) -> Tensor:
        context.save_for_backward(unused)
        return output

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[None, Tensor]:
        (unused,) = context.saved_tensors
        return None, torch.zeros_like(unused)


_TYPES = {
    "tensor(float)": torch.float32,
    "tensor(float16)": torch.float16,
    "tensor(double)": torch.float64,
    "tensor(int64)": torch.int64,
    "tensor(int32)": torch.int32,
    "tensor(bool)": torch.bool,
}


def output_structure(module: nn.Module, example: Any) -> TreeSpec:
    """The structure of the outputs of a module, such as a dictionary's keys, from one call."""
    from search_spaces.ir.pytorch import run

    training = module.training
    with torch.no_grad():
        outputs = run(module.eval(), example)
    module.train(training)
    return tree_flatten(outputs)[1]
