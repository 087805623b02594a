"""Modules that tools of torch have transformed so that their calls cannot be seen: refusals that
say what to do.
"""

from __future__ import annotations

import traceback

import torch
from torch import nn

from search_spaces.common.errors import InputError

_SCRIPTED = "torch.jit modules cannot be recorded: use the modules that were scripted or traced"
_QUANTIZED = "quantized modules cannot be recorded: use the module before its quantization"
_EXPORTED = "exported programs cannot be recorded: use the module that was exported"
_ORTHOGONAL = (
    "orthogonal parametrizations cannot be recorded: leave them out, the plain layer "
    "has "
    "the same text and costs"
)
_TOOLS = {
    "torch/jit/": _SCRIPTED,
    "torch/ao/quantization/": _QUANTIZED,
    "torch/ao/nn/": _QUANTIZED,
    "torch/export/": _EXPORTED,
}
"""By folder of torch, what to say if a tool there fails on a module without weights."""


def check_untransformed(module: nn.Module) -> None:
    """InputError if a layer was scripted, traced, quantized or exported, or is orthogonal."""
    for layer in module.modules():
        kind = type(layer)
        if isinstance(layer, torch.jit.ScriptModule):
            raise InputError(_SCRIPTED)
        prepared = kind.__name__ == "FloatFunctional"  # of a network that may be quantized later
        if (
            kind.__module__.startswith(("torch.ao.nn.quantized", "torch.ao.nn.intrinsic.quantized"))
            and not prepared
        ):
            raise InputError(_QUANTIZED)
        if kind.__name__ == "_Orthogonal" and kind.__module__.startswith("torch.nn.utils"):
            raise InputError(_ORTHOGONAL)


def failed_tool(error: BaseException) -> str | None:
    """What to do about an error of a tool that transforms modules; None for other errors."""
    files = [
        frame.f_code.co_filename.replace("\\", "/")
        for frame, _ in traceback.walk_tb(error.__traceback__)
    ]
    return next(
        (text for folder, text in _TOOLS.items() if any(folder in file for file in files)), None
    )
