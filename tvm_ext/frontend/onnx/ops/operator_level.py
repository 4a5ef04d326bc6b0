"""Clip, Pad and Sum as Relax operators.

TVM's converters emit TIR kernels for the first two at import, which no graph pass can look into: a ReLU6 between two
convolutions would end every layout, fusion and rewriting decision. Sums they stack before adding up, copies and all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from tvm import relax
from tvm.relax.frontend.onnx import onnx_frontend
from tvm.relax.frontend.onnx.onnx_frontend import OnnxOpConverter

from tvm_ext.relax_utils import constant


class Clip(OnnxOpConverter):
    """``Clip(x, min, max)`` as ``relax.clip``, or as maximum and minimum when the bounds are computed."""

    @classmethod
    def _impl_v1(cls, bb: relax.BlockBuilder, inputs: Sequence[Any], attr: dict[str, Any], params: Any) -> Any:
        # A missing attribute is the end of the type; a missing input, of later versions, is no bound.
        limit = float(np.finfo("float32").max)
        low, high = float(attr.get("min", -limit)), float(attr.get("max", limit))
        return _clip(inputs[0], np.asarray(low), np.asarray(high))

    @classmethod
    def _impl_v11(cls, bb: relax.BlockBuilder, inputs: Sequence[Any], attr: dict[str, Any], params: Any) -> Any:
        bounds = [inputs[position] if len(inputs) > position else None for position in (1, 2)]
        values = [None if bound is None else constant(bound) for bound in bounds]
        if any(value is None and bound is not None for value, bound in zip(values, bounds, strict=True)):
            return onnx_frontend.Clip._impl_v13(bb, inputs, attr, params)
        low, high = values
        return _clip(inputs[0], low, high)


def _clip(data: relax.Expr, low: np.ndarray | None, high: np.ndarray | None) -> relax.Expr:
    """Clip to constant bounds; a missing or NaN bound does not bound, as in onnxruntime."""
    dtype = str(data.ty.dtype)
    floating = np.issubdtype(np.dtype(dtype), np.floating) if dtype != "bfloat16" else True
    minimum = None if low is None or np.isnan(low.item()) or low.item() == -np.inf else low.item()
    maximum = None if high is None or np.isnan(high.item()) or high.item() == np.inf else high.item()
    if minimum is None and maximum is None:
        return data
    if floating and minimum is not None and maximum is not None and minimum <= maximum:
        return relax.op.clip(data, float(minimum), float(maximum))
    if minimum == 0 and maximum is None and floating:
        return relax.op.nn.relu(data)
    result = data
    if minimum is not None:
        result = relax.op.maximum(result, relax.const(minimum, dtype))
    if maximum is not None:
        result = relax.op.minimum(result, relax.const(maximum, dtype))
    return result


class Pad(onnx_frontend.Pad):
    """``Pad`` by known widths as ``relax.nn.pad``; what takes elements away as TVM's converter does it."""

    modes: ClassVar[Mapping[str, str]] = {
        "constant": "constant",
        "reflect": "reflect",
        "edge": "replicate",
        "wrap": "circular",
    }

    @classmethod
    def _lower_pad(
        cls, bb: relax.BlockBuilder, inputs: Sequence[Any], attr: dict[str, Any], params: Any, allowed_modes: set[str]
    ) -> Any:
        mode = attr.get("mode", b"constant").decode()
        before, after, value = cls._parse_pads_and_axes(inputs, params)
        if mode in allowed_modes and min([*before, *after], default=0) >= 0:
            widths = [int(width) for pair in zip(before, after, strict=True) for width in pair]
            return relax.op.nn.pad(inputs[0], widths, cls.modes[mode], float(value))
        return super()._lower_pad(bb, inputs, attr, params, allowed_modes)


class Sum(OnnxOpConverter):
    """``Sum`` of any number of tensors as additions, first to last."""

    @classmethod
    def _impl_v1(cls, bb: relax.BlockBuilder, inputs: Sequence[Any], attr: dict[str, Any], params: Any) -> Any:
        total = inputs[0]
        for position in range(1, len(inputs)):
            total = bb.normalize(relax.op.add(total, inputs[position]))
        return total


CONVERTERS: dict[tuple[str, str], type] = {("", "Clip"): Clip, ("", "Sum"): Sum}
