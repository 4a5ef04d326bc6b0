"""Writes the attention operators as products and a softmax, which the other passes know.

before: ``y = nn.attention(q, k, v)``
after:  ``s = multiply(matmul(permute_dims(q), permute_dims(k)), scale)``
        ``y = permute_dims(matmul(nn.softmax(s), permute_dims(v)))``
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.relax import op
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_ext.relax_utils import static_shape

_OPERATORS = ("relax.nn.attention", "relax.nn.attention_bias")


def decompose_attention() -> tvm.transform.Pass:
    """Make the pass; attention with symbolic extents or over a sliding window is left alone."""

    @tvm.transform.module_pass(opt_level=0, name="tvm_ext.DecomposeAttention")
    def _decompose(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        rewriter = _Rewriter(mod)
        for variable, function in mod.functions_items():
            if isinstance(function, relax.Function):
                rewriter.builder_.update_func(variable, rewriter.visit_expr(function))
        return rewriter.builder_.finalize()

    return _decompose


@mutator
class _Rewriter(PyExprMutator):
    def visit_call_(self, call: relax.Call) -> relax.Expr:
        """Replace an attention of queries (B, S, N, H), keys (B, T, N, H) and values (B, T, N, H')."""
        call = self.visit_expr_post_order(call)
        if getattr(call.op, "name", "") not in _OPERATORS or call.attrs.window_size is not None:
            return call
        shapes = [static_shape(arg) for arg in call.args]
        if any(shape is None for shape in shapes):
            return call
        return self._decomposed(call, [shape for shape in shapes if shape is not None])

    def _decomposed(self, call: Any, shapes: list[tuple[int, ...]]) -> relax.Expr:
        emit, dtype = self.builder_.emit, str(call.ty.dtype)
        query = emit(op.permute_dims(call.args[0], [0, 2, 1, 3]))
        key = emit(op.permute_dims(call.args[1], [0, 2, 3, 1]))
        value = emit(op.permute_dims(call.args[2], [0, 2, 1, 3]))
        scale = 1 / math.sqrt(shapes[0][-1]) if call.attrs.scale is None else float(call.attrs.scale)
        scores = emit(op.matmul(query, key))
        scores = emit(op.multiply(scores, relax.const(scale, dtype)))
        if len(shapes) == 4:
            scores = emit(op.add(scores, call.args[3]))
        if call.attrs.causal_mask is not None:
            rows, columns = shapes[0][1], shapes[1][1]
            offset = abs(rows - columns) if str(call.attrs.causal_mask) == "BottomRight" else 0
            kept = relax.const(np.tril(np.ones((rows, columns), bool), offset))
            scores = emit(op.where(kept, scores, relax.const(-math.inf, dtype)))
        weights = emit(op.nn.softmax(scores, -1))
        return op.permute_dims(emit(op.matmul(weights, value)), [0, 2, 1, 3])
