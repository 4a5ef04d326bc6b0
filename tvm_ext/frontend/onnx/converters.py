"""All converters of ONNX operators, those of ONNX itself and those of onnxruntime.

:data:`CONVERTERS` maps (domain, operator) to a converter class of TVM's kind. Importing this module imports TVM's
ONNX frontend.
"""

from __future__ import annotations

from tvm_ext.frontend.onnx.contrib import attention as contrib_attention
from tvm_ext.frontend.onnx.contrib import fused, grouped_attention, quantized
from tvm_ext.frontend.onnx.ops import (
    affine_grid,
    attention,
    blocked,
    casts,
    einsum,
    elementwise,
    extents,
    gathered,
    integer,
    learners,
    normalization,
    operator_level,
    pieces,
    recurrent,
    resize,
    selections,
    softmax,
    spectral,
    squeezing,
    strict,
    suppression,
    training,
    trees,
    windows,
)

_FAMILIES = (
    operator_level,
    pieces,
    recurrent,
    spectral,
    integer,
    quantized,
    blocked,
    attention,
    contrib_attention,
    grouped_attention,
    fused,
    normalization,
    einsum,
    elementwise,
    resize,
    windows,
    selections,
    softmax,
    casts,
    strict,
    suppression,
    training,
    gathered,
    extents,
    learners,
    trees,
    squeezing,
    affine_grid,
)

CONVERTERS: dict[tuple[str, str], type] = {
    key: converter for family in _FAMILIES for key, converter in family.CONVERTERS.items()
}

__all__ = ["CONVERTERS"]
