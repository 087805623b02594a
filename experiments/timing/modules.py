"""Reading PyTorch modules: our recorder compared with `torch.export`.

Run `python -m experiments.timing.modules` (minutes).

Both read the same module with the same example input on one core, and shall leave the batch size
open. Ours gives the graph with parameters, multiply-accumulates and the text. `torch.export` gives
a graph of aten operators alone, from which an ONNX file would still have to be made. Times are
processor times of the second call: the first one imports modules.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

from experiments.runner import AsJson, Quick, run_command
from nas.cli.console import print_json, print_table
from nas.cli.progress import progress_bar
from search_spaces import TorchSpace
from search_spaces.common.torchvision import prepare_torchvision

TIMM = (
    "resnet18",
    "mobilenetv3_small_100",
    "efficientnet_b0",
    "convnext_atto",
    "densenet121",
    "vit_tiny_patch16_224",
    "swin_tiny_patch4_window7_224",
    "mobilevit_xxs",
    "levit_128s",
    "ghostnet_100",
)


def _own_modules() -> dict[str, tuple[Callable[[], Any], Any]]:
    """Modules as users write them: name, function that makes one, example input."""
    import torch
    from torch import Tensor, nn

    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(32, 64, num_layers=2, batch_first=True, bidirectional=True)
            self.head = nn.Linear(128, 10)

        def forward(self, x: Tensor) -> Tensor:
            states, _ = self.lstm(x)
            logits: Tensor = self.head(states[:, -1])
            return logits

    class Positions(nn.Module):
        """The batch size is read from the input, as in many attention layers."""

        def __init__(self) -> None:
            super().__init__()
            self.positions = nn.Parameter(torch.zeros(1, 16, 32))
            self.head = nn.Linear(16 * 32, 10)

        def forward(self, x: Tensor) -> Tensor:
            batch, length, width = x.shape
            y = x + self.positions.expand(batch, length, width)
            logits: Tensor = self.head(y.reshape(batch, -1))
            return logits

    return {
        "LSTM classifier": (Recurrent, torch.zeros(1, 16, 32)),
        "positions by batch size": (Positions, torch.zeros(1, 16, 32)),
    }


def _timm_module(name: str) -> Any:
    prepare_torchvision()
    import timm

    return timm.create_model(name, pretrained=False)


def _second_call(action: Callable[[], object]) -> tuple[float, str]:
    """Milliseconds of the second call, and the error of the first one, empty if there is none."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            action()
            started = time.process_time()
            action()
            return 1e3 * (time.process_time() - started), ""
    except Exception as error:  # torch.export raises errors of many classes
        return float("nan"), type(error).__name__


def measure(name: str, make: Callable[[], Any], example: Any) -> dict[str, Any]:
    """A row: milliseconds of both, and whether `torch.export` leaves the batch size open."""
    import torch

    module = make().eval()

    def ours() -> str:
        space = TorchSpace(lambda trial: module, example_input=example)
        architecture = next(space.enumerate())
        return space.to_text(architecture)

    def torchs() -> object:
        batch = torch.export.Dim("batch", min=1, max=1024)
        several = torch.cat([example] * 2)  # torch.export makes a batch of one a constant
        return torch.export.export(module, (several,), dynamic_shapes=({0: batch},), strict=False)

    our_time, our_error = _second_call(ours)
    export_time, export_error = _second_call(torchs)
    return {
        "module": name,
        "ours (ms)": our_error or round(our_time),
        "torch.export (ms)": export_error or round(export_time),
        "ratio": "" if our_error or export_error else f"{export_time / our_time:.1f}",
    }


def main(quick: Quick = False, as_json: AsJson = False) -> None:
    """Print milliseconds per module."""
    import torch

    torch.set_num_threads(1)
    modules = _own_modules()
    for name in () if quick else TIMM:
        size = 256 if name == "mobilevit_xxs" else 224
        modules[name] = (partial(_timm_module, name), torch.zeros(1, 3, size, size))
    rows = []
    with progress_bar("modules") as bar:
        for index, (name, (make, example)) in enumerate(modules.items()):
            bar(name, index, len(modules))
            rows.append(measure(name, make, example))
    print_json(rows) if as_json else print_table("Reading a module, processor time", rows)


if __name__ == "__main__":
    run_command(main)
