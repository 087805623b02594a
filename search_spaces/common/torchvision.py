"""Importing torchvision, which timm and transformers import, too, where its wheel was built for another torch."""

from __future__ import annotations

import importlib
import sys

_kept: list[object] = []  # declared operators vanish with their library


def prepare_torchvision() -> bool:
    """Make torchvision importable; False where nothing is missing, or torchvision itself.

    The wheel that a package index has is of a CUDA build. On a torch for the CPU its operators are missing, and its
    import needs their names.
    """
    try:
        importlib.import_module("torchvision")
    except ModuleNotFoundError:
        return False
    except RuntimeError as error:
        if not lacks_operators(error):
            raise
        _declare_operators()
        importlib.import_module("torchvision")
        return True
    return False


def lacks_operators(error: BaseException | None) -> bool:
    """True if an import failed as torchvision's operators are missing, whichever library imported it."""
    while error is not None:
        if "torchvision::" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


def _declare_operators() -> None:
    import torch

    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        del sys.modules[name]
    operators = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        operators.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _kept.append(operators)
