"""Softmax as it was before opset 13: over all axes from one on, which is along one where that is the last.

Without the reshapes to a matrix and back it is found where it is a part of an attention, and its result is written
where it belongs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import relax
from tvm.relax.frontend.onnx import onnx_frontend


def _converter(base: Any, operator: Callable[..., Any]) -> type:
    """Make the converter of an operator that takes an axis, from TVM's one."""

    class Along(base):
        @classmethod
        def _impl_v1(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict[str, Any], params: list[Any]) -> Any:
            rank = int(getattr(getattr(inputs[0], "ty", None), "ndim", -1))
            if rank > 1 and int(attr.get("axis", 1)) in (rank - 1, -1):
                return operator(inputs[0], axis=-1)
            return super()._impl_v1(bb, inputs, attr, params)

        _impl_v11 = _impl_v1

    Along.__name__ = Along.__qualname__ = base.__name__
    return Along


CONVERTERS: dict[tuple[str, str], type] = {
    ("", "Softmax"): _converter(onnx_frontend.Softmax, relax.op.nn.softmax),
    ("", "LogSoftmax"): _converter(onnx_frontend.LogSoftmax, relax.op.nn.log_softmax),
}
