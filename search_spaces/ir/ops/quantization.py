"""Quantization: numbers of few bits with scales and zero points.

Scales and zero points are part of the quantization, not weights. Quantized convolutions and products
are beside the others of their families.
"""

from __future__ import annotations

from search_spaces.ir.ops.elementwise import broadcast_size
from search_spaces.ir.ops.operator import Operator, named

OPERATORS = (
    *[
        Operator(name=name, folded_size=broadcast_size, settings=(1, 2), rearranges=True)
        for name in ("QuantizeLinear", "DequantizeLinear")
    ],
    *named("DynamicQuantizeLinear"),
)
