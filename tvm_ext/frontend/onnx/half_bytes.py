"""Integers of less than a byte, which TVM has no tensors of: held in whole bytes where a model only moves them.

A quantised number lies within the limits of its type, so that operators which move elements need not know that it is
held in a wider one, and what dequantises it gives the same number.
"""

from __future__ import annotations

from typing import Any

import onnx
from onnx import TensorProto
from tvm import relax

WHOLE_BYTES = {"int2": "int8", "int4": "int8", "uint2": "uint8", "uint4": "uint8"}
"""What elements are held in; the operators that take them compute in wider types."""

MOVES = frozenset(["Flatten", "Identity", "Pad", "Reshape", "Squeeze", "Transpose", "Unsqueeze"])
"""Operators whose elements are those of their inputs."""

_CODES = {"int8": TensorProto.INT8, "uint8": TensorProto.UINT8}


def held_in(node: onnx.NodeProto, dtype: str) -> str | None:
    """Say which type the result of a node is held in, where that is not the type which ONNX gives it.

    Parameters
    ----------
    node : onnx.NodeProto
    dtype : str
        Of its output, by ONNX.
    """
    return WHOLE_BYTES.get(dtype) if node.op_type in (*MOVES, "QuantizeLinear") else None


def quantized(bb: relax.BlockBuilder, levels: Any, dtype: str) -> Any:
    """Clip levels that are held in whole bytes to the limits of the type that they have in the model.

    Parameters
    ----------
    bb : relax.BlockBuilder
    levels : relax.Expr
        Of int8 or uint8, clipped to its limits.
    dtype : str
        A key of :data:`WHOLE_BYTES`.
    """
    bits = int(dtype.lstrip("uint"))
    low, high = (0, 2**bits - 1) if dtype.startswith("u") else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    held = WHOLE_BYTES[dtype]
    levels = bb.normalize(relax.op.maximum(bb.normalize(levels), relax.const(low, held)))
    return bb.normalize(relax.op.minimum(levels, relax.const(high, held)))


def code_of(dtype: str) -> int:
    """Give ONNX's number of the type that a dtype is held in."""
    return int(_CODES[WHOLE_BYTES[dtype]])
