"""Computes ONNX nodes whose inputs are all constants, with the reference implementation that comes with ``onnx``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from onnx import helper

from tvm_ext.frontend.onnx.infer import MalformedNodeError
from tvm_ext.frontend.onnx.reference import run_node
from tvm_ext.frontend.onnx.values import Value, byte_count, element_count, element_type, known_shape, partial_shape

# What weight and shape arithmetic consists of, and NumPy does at speed. Left out on purpose: QuantizeLinear and
# DequantizeLinear (folding them would turn an int8 model into a float one), random numbers, sequences, and everything
# with a window (Conv, pooling, Resize), which the reference implementation computes element by element.
FOLDABLE = frozenset(
    """
    Abs Acos Acosh Add And ArgMax ArgMin Asin Asinh Atan Atanh BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor Cast
    CastLike Ceil Clip Compress Concat ConstantOfShape Cos Cosh CumSum DepthToSpace Div Equal Erf Exp Expand
    EyeLike Flatten Floor Gather GatherElements GatherND Gemm Greater GreaterOrEqual Identity IsInf IsNaN LeakyRelu Less
    LessOrEqual Log MatMul Max Mean Min Mod Mul Neg NonZero Not OneHot Or Pad Pow Range Reciprocal ReduceL1 ReduceL2
    ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare Relu Reshape Round
    Scatter ScatterElements ScatterND Shape Sigmoid Sign Sin Sinh Size Slice Softmax SpaceToDepth Split Sqrt Squeeze
    Sub Sum Tan Tanh Tile TopK Transpose Trilu Unique Unsqueeze Where Xor
    HannWindow HammingWindow BlackmanWindow MelWeightMatrix
    """.split()
)

# Operators whose result is never larger than what they read, whatever the values are.
SHRINKING = frozenset(["ArgMax", "ArgMin", "Compress", "NonZero", "Slice", "Unique"])

MULTIPLY_LIMIT = 10**10
"""Multiplications that folding one MatMul or Gemm may cost."""


class Evaluator:
    """Computes constant nodes within a budget of memory.

    Parameters
    ----------
    opsets : mapping from str to int
        Version of each operator domain.
    ir_version : int
        Of the model.
    budget : int
        Bytes by which results may exceed what they were computed from, in sum over a model. A file of a few bytes can
        ask for terabytes (``ConstantOfShape``), above all a damaged one.

    Attributes
    ----------
    failures : list of str
        A sentence for each constant node that was to be computed and could not be.
    """

    def __init__(self, opsets: Mapping[str, int], ir_version: int, budget: int = 2**31) -> None:
        self._opsets = dict(opsets)
        self._ir_version = ir_version
        self._budget = budget
        self.failures: list[str] = []

    def __call__(
        self,
        node: onnx.NodeProto,
        inputs: Sequence[Value | None],
        types: Sequence[onnx.TypeProto | None],
        label: str,
    ) -> list[np.ndarray] | None:
        """Compute a node.

        Parameters
        ----------
        node : onnx.NodeProto
        inputs : sequence of Value or None
            None for an optional input that is left out.
        types : sequence of onnx.TypeProto or None
            Inferred types of the outputs; a result of another shape or dtype is not trusted.
        label : str
            Words for the node, for the error message.

        Returns
        -------
        list of numpy.ndarray or None
            The outputs, None when the node is to stay in the graph.

        Raises
        ------
        MalformedNodeError
            If the budget is too small for the result: whoever computed it later would run out of memory as well.
        """
        if node.op_type not in FOLDABLE or node.domain not in ("", "ai.onnx"):
            return None
        if any(value is not None and value.constant is None for value in inputs):
            return None
        growth = self._growth(node, inputs, types)
        if growth is not None and growth > self._budget:
            raise MalformedNodeError(f"{label}: its constant result would take another {growth / 1e9:.1f} GB of memory")
        if growth is None or _multiplications(node, inputs, types) > MULTIPLY_LIMIT:
            return None
        try:
            given = [None if value is None else value.array for value in inputs]
            arrays = run_node(node, given, self._opsets, self._ir_version)
        except Exception as error:  # whatever NumPy thinks of values the operator is not defined for
            reason = " ".join(str(error).split())[:200] or "no reason given"
            self.failures.append(f"{label} has constant inputs and could not be computed: {reason}")
            return None
        if any(array.dtype == object for array in arrays):
            return None
        if not _fit(arrays, types):
            found = ", ".join(f"{array.dtype}{list(array.shape)}" for array in arrays)
            self.failures.append(f"{label} has constant inputs, and its result {found} is not what ONNX infers")
            return None
        self._budget -= max(growth, 0)
        return arrays

    def _growth(
        self, node: onnx.NodeProto, inputs: Sequence[Value | None], types: Sequence[onnx.TypeProto | None]
    ) -> int | None:
        read = sum(byte_count(value.type) or 0 for value in inputs if value is not None)
        written = [byte_count(type_proto) for type_proto in types]
        if None in written:
            # NonZero writes an int64 per dimension and element: at most 8 times what it reads, per dimension.
            return read * 64 if node.op_type in SHRINKING else None
        return sum(size or 0 for size in written) - read


def _multiplications(
    node: onnx.NodeProto, inputs: Sequence[Value | None], types: Sequence[onnx.TypeProto | None]
) -> int:
    """Multiplications of a MatMul or Gemm: one for each element of the result and of the summed dimension."""
    first = inputs[0].shape if inputs and inputs[0] is not None else None
    result = known_shape(types[0]) if types else None
    if node.op_type not in ("MatMul", "Gemm") or not first or result is None:
        return 0
    transposed = any(attribute.name == "transA" and attribute.i for attribute in node.attribute)
    return element_count(result) * (first[0] if transposed else first[-1])


def _fit(arrays: Sequence[np.ndarray], types: Sequence[onnx.TypeProto | None]) -> bool:
    """Whether results have the element types and the known dimensions that inference predicted."""
    for array, expected in zip(arrays, types, strict=False):
        if expected is None:
            continue
        if element_type(expected) not in (0, helper.np_dtype_to_tensor_dtype(array.dtype)):
            return False
        dims = partial_shape(expected)
        if dims is None:
            continue
        if len(dims) != array.ndim or any(a not in (None, b) for a, b in zip(dims, array.shape, strict=True)):
            return False
    return True
