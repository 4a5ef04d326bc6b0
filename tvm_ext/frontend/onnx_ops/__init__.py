"""ONNX operators that TVM's importer lacks or gets wrong, as Relax expressions.

:data:`CONVERTERS` maps (domain, operator) to a converter class of TVM's kind. Importing this package imports TVM's
ONNX frontend.
"""

from __future__ import annotations

from tvm_ext.frontend.onnx_ops import (
    attention,
    blocked,
    casts,
    contrib_attention,
    elementwise,
    extents,
    fused,
    gathered,
    integer,
    normalization,
    operator_level,
    pieces,
    quantized,
    recurrent,
    resize,
    selections,
    spectral,
    strict,
    training,
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
    fused,
    normalization,
    elementwise,
    resize,
    windows,
    selections,
    casts,
    strict,
    training,
    gathered,
    extents,
)

CONVERTERS: dict[tuple[str, str], type] = {
    key: converter for family in _FAMILIES for key, converter in family.CONVERTERS.items()
}

__all__ = ["CONVERTERS"]
