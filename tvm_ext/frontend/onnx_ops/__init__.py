"""ONNX operators that TVM's importer lacks or gets wrong, as Relax expressions.

:data:`CONVERTERS` maps (domain, operator) to a converter class of TVM's kind. Importing this package imports TVM's
ONNX frontend.
"""

from __future__ import annotations

from tvm_ext.frontend.onnx_ops import operator_level, recurrent, spectral

CONVERTERS: dict[tuple[str, str], type] = {
    **operator_level.CONVERTERS,
    **recurrent.CONVERTERS,
    **spectral.CONVERTERS,
}

__all__ = ["CONVERTERS"]
