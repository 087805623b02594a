"""Import torchvision even if its wheel was built for another torch; timm and transformers import
it, too.
"""

from __future__ import annotations

import importlib
import sys

_kept: list[object] = []  # keeps libraries alive, and with them their operators


def prepare_torchvision() -> bool:
    """Make torchvision importable; True if its operators had to be declared.

    The default wheel is built for CUDA. With a CPU build of torch its compiled operators are
    missing, but importing torchvision needs their names.
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
    """True if torchvision's missing operators caused an error, also in another library's import."""
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
