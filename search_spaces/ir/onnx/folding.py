"""Constant folding: nodes of an ONNX model whose operands are known.

They are computed at both sizes that are assumed for every open size (`search_spaces.ir.constants`).
Of learned operands only the shapes are known, and so are those of the results.
"""

from __future__ import annotations

from math import prod

import numpy as np
import onnx

from search_spaces.common.errors import InputError
from search_spaces.ir import standard
from search_spaces.ir.constants import MAX_ELEMENTS, Known, from_assumed, is_weight
from search_spaces.ir.ops import get_operator

_FEW_ELEMENTS = 64  # results such as shapes, which are always computed
_MAX_TOTAL_ELEMENTS = 1 << 24  # of all folded values of a model


class Folder:
    """Computes nodes whose operands are known, up to limits on the size of one and all results.

    Args:
        opset: opset of the model.
    """

    def __init__(self, opset: int) -> None:
        self.opset, self.spent = opset, 0

    def fold(self, node: onnx.NodeProto, operands: list[Known | None]) -> list[Known] | None:
        """The outputs of a node with known operands (None if omitted).

        Returns:
            The outputs; None if the node is not folded.

        Raises:
            InputError: if the operands do not match.
        """
        known = [operand for operand in operands if operand is not None]
        if get_operator(node.op_type).folded_size is None or not known:
            return None
        if any(is_weight(operand) or operand.values is None for operand in known):
            return self._fold_shape(node, operands)

        # 1. The node at the first assumed sizes, and at the second ones where they matter.
        pairs = [operand.values for operand in known if operand.values is not None]
        first = self._run(node, operands, [a for a, _ in pairs])
        second = first
        depends_on_sizes = not all(a is b for a, b in pairs)
        if depends_on_sizes and first is not None:
            second = self._run(node, operands, [b for _, b in pairs])
        if first is None or second is None:
            return None

        # 2. Both results as one.
        folded = []
        for a, b in zip(first, second, strict=True):
            element = standard.element_name(onnx.helper.np_dtype_to_tensor_dtype(a.dtype))
            folded.append(from_assumed(a, b, element))
        return folded

    def _run(
        self, node: onnx.NodeProto, operands: list[Known | None], arrays: list[np.ndarray]
    ) -> list[np.ndarray] | None:
        """The outputs for these arrays of the operands; None if they are too large."""
        from onnx.reference import ReferenceEvaluator

        # 1. The limits.
        folded_size = get_operator(node.op_type).folded_size
        assert folded_size is not None
        size = folded_size(arrays)
        is_too_much = size > _FEW_ELEMENTS and self.spent + size > _MAX_TOTAL_ELEMENTS
        if size > MAX_ELEMENTS or is_too_much:
            return None
        self.spent += size

        # 2. ONNX's reference.
        pairs = zip(node.input, operands, strict=True)
        names = [name for name, operand in pairs if operand is not None]
        try:
            with np.errstate(all="ignore"):
                evaluator = ReferenceEvaluator(node, opsets={"": self.opset})
                results = evaluator.run(None, dict(zip(names, arrays, strict=True)))
                return [np.asarray(result) for result in results]
        except Exception as error:  # the file's numbers may cause any error
            raise InputError(
                f"constants do not match: {' '.join(str(error).split())[:160]}"
            ) from error

    def _fold_shape(self, node: onnx.NodeProto, operands: list[Known | None]) -> list[Known] | None:
        """The outputs of a node with learned operands: tensors whose shapes are inferred."""
        schema = standard.schema(node.op_type)
        if schema is None or get_operator(node.op_type).shape_from_numbers:
            return None
        # 1. What ONNX's inference needs: types, and the numbers of short settings.
        types, data, learned = {}, {}, {}
        for name, known in zip(node.input, operands, strict=True):
            if known is None:
                continue
            types[name] = standard.type_proto(known.shape)
            if is_weight(known):
                learned[name] = known
            elif known.static is not None and known.static.size <= _FEW_ELEMENTS:
                data[name] = onnx.numpy_helper.from_array(known.static)
        versions = [onnx.helper.make_opsetid("", standard.opset(node.op_type))]
        try:
            inferred = onnx.shape_inference.infer_node_outputs(
                schema, node, types, data, None, versions
            )
        except Exception:  # of the native library: the node is then added to the graph
            return None
        shapes = []
        for name in node.output:
            if name not in inferred:
                continue
            shape = standard.shape_of(inferred[name])
            if shape is None or any(isinstance(dim, str) for dim in shape):
                return None
            shapes.append(shape)

        # 2. The results are computed from the initializers from which the operands are.
        sources: frozenset[tuple[str, int]] = frozenset()
        for name, known in learned.items():
            sources |= known.sources or {(name, prod(map(int, known.shape)))}
        is_placed = any(known.placed for known in learned.values())
        outputs = []
        for shape in shapes:
            outputs.append(Known(shape, learned=bool(learned), placed=is_placed, sources=sources))
        return outputs
