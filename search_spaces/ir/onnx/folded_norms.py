"""Recover batch normalization that torch's exporters fold into the preceding weights.

`torch.onnx.export(dynamo=True)` records the original torch call in the node's metadata: epsilon,
whether there are scale and shift, and whether the convolution had a bias. The TorchScript exporter
stores folded weights without a module's name: such a convolution is read as one without bias,
followed by a batch normalization with torch's default epsilon. Exports without folding are not
affected: `torch.onnx.export(…, optimize=False)`, or with `dynamo=False` the options
`training=TrainingMode.PRESERVE, do_constant_folding=False`.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import onnx

from search_spaces.ir.graph import Attrs
from search_spaces.ir.owned_weights import BATCH_NORM_EPSILON
from search_spaces.ir.standard import shortest

_CALL = re.compile(r"batch_norm\w*\.default\]\(args = \((.*)\), kwargs")
_WEIGHTED = re.compile(r"aten\.(?:conv\w*|linear)\.default\]\(args = \(%\w+, %\w+, %\w")
_UNNAMED = "onnx::Conv_"


class FoldedNorm(NamedTuple):
    """A batch normalization that was folded into another operator.

    Attributes:
        attrs: attributes of the batch normalization.
        bias: whether the other operator had a bias before.
    """

    attrs: Attrs
    bias: bool


def folded_norm(node: onnx.NodeProto) -> FoldedNorm | None:
    """The batch normalization that was folded into a `Conv`, `ConvTranspose` or `Gemm`; None if
    there is none.
    """
    if (
        node.op_type == "Conv"
        and len(node.input) > 2
        and all(name.startswith(_UNNAMED) for name in node.input[1:3])
    ):
        return FoldedNorm((("affine", 1), ("epsilon", BATCH_NORM_EPSILON)), bias=False)
    call = _CALL.search(_origin(node))
    if call is None:
        return None
    arguments = call[1].split(", ")
    affine = int(arguments[1] != "None")
    epsilon = shortest(float(arguments[-1]))
    # The bias of folding is named after the weights. In an untrained network it is zero and
    # omitted.
    bias = len(node.input) > 2 and node.input[2] != f"{node.input[1]}_bias"
    return FoldedNorm((("affine", affine), ("epsilon", epsilon)), bias)


def is_bias_left_out(node: onnx.NodeProto) -> bool:
    """True if torch's exporter omitted a layer's bias, as it does if all of its numbers are
    zero.
    """
    return len(node.input) < 3 and _WEIGHTED.search(_origin(node)) is not None


def _origin(node: onnx.NodeProto) -> str:
    """The torch call that the exporter recorded in the node's metadata; "" if there is none."""
    return next((p.value for p in node.metadata_props if p.key == "pkg.torch.onnx.fx_node"), "")
