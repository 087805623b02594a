"""Batch normalization that torch's exporters fold into the weights before it, unfolded again.

`torch.onnx.export(dynamo=True)` leaves in the node's metadata which function of torch it came from: epsilon, whether
there are scale and shift, and whether the convolution had a bias of its own are all there. The TorchScript exporter
leaves weights without a module's name: such a convolution is read as one without bias before a batch normalization
with torch's epsilon. Exports without folding need no such reading: `torch.onnx.export(…, optimize=False)`, or with
`dynamo=False` the options `training=TrainingMode.PRESERVE, do_constant_folding=False`.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import onnx

from search_spaces.graph.ir import Attrs
from search_spaces.graph.owned_weights import BATCH_NORM_EPSILON
from search_spaces.graph.standard import shortest

_CALL = re.compile(r"batch_norm\w*\.default\]\(args = \((.*)\), kwargs")
_UNNAMED = "onnx::Conv_"


class FoldedNorm(NamedTuple):
    """A batch normalization in the weights of another operator, and whether that had a bias before."""

    attrs: Attrs
    bias: bool


def folded_norm(node: onnx.NodeProto) -> FoldedNorm | None:
    """The batch normalization in the weights of a `Conv`, `ConvTranspose` or `Gemm`; None where there is none."""
    if len(node.input) < 3:
        return None
    if node.op_type == "Conv" and all(name.startswith(_UNNAMED) for name in node.input[1:3]):
        return FoldedNorm((("affine", 1), ("epsilon", BATCH_NORM_EPSILON)), bias=False)
    call = next((_CALL.search(p.value) for p in node.metadata_props if p.key == "pkg.torch.onnx.fx_node"), None)
    if call is None:
        return None
    arguments = call[1].split(", ")
    affine = int(arguments[1] != "None")
    epsilon = shortest(float(arguments[-1]))
    return FoldedNorm((("affine", affine), ("epsilon", epsilon)), bias=node.input[2] != f"{node.input[1]}_bias")
