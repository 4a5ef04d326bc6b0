"""What follows a product of two matrices is done in its own shape, so that it becomes part of its kernel.

before: ``y = reshape(add(matmul(x, w), bias), (2, 17, 64)); z = add(residual, gelu(y))``
after:  ``y = gelu(add(matmul(x, w), bias)); z = reshape(add(reshape(residual, (34, 64)), y), (2, 17, 64))``

PyTorch's linear layers of more than two axes are such products with a reshape behind them, which ends what may be
fused to a product. A reshape of what lies in memory is no kernel.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax
from tvm.relax.expr_functor import mutator

from tvm_ext.passes.bindings import calls
from tvm_ext.passes.view_mutator import ViewMutator, view_pass
from tvm_ext.relax_utils import open_shape, same_extents

_STEPS = frozenset(
    f"relax.{name}"
    for name in (
        "abs", "add", "astype", "clip", "divide", "erf", "exp", "log", "maximum", "minimum", "multiply", "negative",
        "nn.gelu", "nn.gelu_tanh", "nn.leakyrelu", "nn.relu", "nn.silu", "power", "rsqrt", "sigmoid", "sqrt",
        "square", "subtract", "tanh",
    )
)  # fmt: skip
"""Operators on the elements of a tensor, and of another one that may be broadcast."""

_MOST_STEPS = 16
"""Behind a product, after which it is not looked for."""


def product_rows() -> tvm.transform.Pass:
    """Make the pass."""
    return view_pass("tvm_ext.ProductRows", _ProductRows)


@mutator
class _ProductRows(ViewMutator):
    def other(self, call: relax.Call, name: str) -> relax.Expr:
        """Do a step in the shape of the product behind one of its operands."""
        shape = open_shape(call)
        if name not in _STEPS or shape is None or len(shape) < 2:
            return call
        rows = next((found for operand in call.args if (found := self._rows(operand, shape)) is not None), None)
        arguments = [] if rows is None else [self._argument(operand, shape, rows) for operand in call.args]
        if rows is None or None in arguments:
            return call
        made = self.builder_.emit(relax.Call(call.op, arguments, call.attrs))
        return relax.op.reshape(made, relax.ShapeExpr(shape))

    def _rows(self, operand: relax.Expr, shape: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """Give the shape of the product, or of what was made of it, that an operand is a reshape of."""
        source = self.source(operand, "relax.reshape")
        if source is None or not self._follows_product(source, _MOST_STEPS):
            return None
        given, rows = open_shape(operand), open_shape(source)
        if given is None or rows is None or not same_extents(given, shape):
            return None
        return rows if same_extents(rows[-1:], shape[-1:]) else None

    def _argument(self, operand: relax.Expr, shape: tuple[Any, ...], rows: tuple[Any, ...]) -> relax.Expr | None:
        """Give an operand for rows: a reshape of one of the whole shape, and what is the same for all rows as it is."""
        given = open_shape(operand)
        if given is None or not isinstance(operand.ty, relax.TensorType):
            return operand if isinstance(operand.ty, tvm.ir.PrimType) else None
        if same_extents(given, shape):
            return self._reshaped(operand, rows)
        if any(extent != 1 if isinstance(extent, int) else True for extent in given[:-1]):
            return None
        return operand if len(given) < 2 else self._reshaped(operand, given[-1:])

    def _reshaped(self, operand: relax.Expr, shape: tuple[Any, ...]) -> relax.Expr:
        call = self.builder_.normalize(relax.op.reshape(operand, relax.ShapeExpr(shape)))
        return self.builder_.emit(self.reshape(call))

    def _follows_product(self, expr: relax.Expr, steps: int) -> bool:
        value = self.value(expr)
        if calls(value, "relax.matmul"):
            return int(value.ty.ndim) == 2
        if not steps or not isinstance(value, relax.Call) or getattr(value.op, "name", "") not in _STEPS:
            return False
        return any(self._follows_product(argument, steps - 1) for argument in value.args)
