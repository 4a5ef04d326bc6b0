"""``Squeeze``, whose result would have another rank where an open extent happens to be 1, and ``Unsqueeze``."""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.relax.frontend.onnx import onnx_frontend

from tvm_ext.frontend.onnx.ops.base import Converter, Node, constant, emit
from tvm_ext.frontend.onnx.ops.extents import number, taken_as

_AXES_BECAME_INPUT = 13


class Squeeze(Converter):
    """Without the axes that are named, of one element each; each run compares those that are open.

    Where none is named those known to be 1 go. Open ones stay: that they are not 1 is a condition on the inputs, or
    looked at when the model runs (:mod:`tvm_ext.frontend.onnx.value_checks`).
    """

    @classmethod
    def convert(cls, node: Node, bb: relax.BlockBuilder, inputs: Any) -> Any:
        """Give the tensor of fewer dimensions."""
        x, given = emit(bb, inputs[0]), inputs[1] if len(inputs) > 1 else None
        named = node.integers("axes") if given is None else [int(a) for a in node.constant(given, "axes").ravel()]
        if isinstance(x, tvm.ir.GenericConst):
            return constant(np.squeeze(x.value.numpy(), tuple(named) or None))
        if not isinstance(x.ty.shape, relax.ShapeExpr):
            operands = onnx_frontend.onnx_input([x, None if given is None else constant(named, "int64")])
            return onnx_frontend.Squeeze.get_converter(_AXES_BECAME_INPUT)(bb, operands, {}, node.parameters)
        dims = node.dims(x, "data")
        axes = sorted({node.in_range(axis, len(dims)) for axis in named})
        for axis in axes:
            if isinstance(dims[axis], int) and dims[axis] != 1:
                node.damaged(f"dimension {axis} of its input is {dims[axis]}, and only those of 1 can be left out")
        if not named:
            axes = [axis for axis, dim in enumerate(dims) if isinstance(dim, int) and dim == 1]
        elif not all(isinstance(dims[axis], int) for axis in axes):
            x = taken_as(bb, x, [number(1) if axis in axes else extent for axis, extent in enumerate(x.ty.shape)])
        return relax.op.squeeze(x, axes) if axes else x


class Unsqueeze(onnx_frontend.Unsqueeze):
    """With further axes of one element; one axis may be given as a scalar, as PyTorch's exporter writes it."""

    @classmethod
    def _impl_v13(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict[str, Any], params: Any) -> Any:
        axes = onnx_frontend.get_constant(inputs[1], params)
        if isinstance(axes, tvm.ir.GenericConst) and axes.value.numpy().ndim == 0:
            inputs = onnx_frontend.onnx_input([inputs[0], constant([int(axes.value.numpy())], "int64")])
        return super()._impl_v13(bb, inputs, attr, params)


CONVERTERS: dict[tuple[str, str], type] = {("", "Squeeze"): Squeeze, ("", "Unsqueeze"): Unsqueeze}
