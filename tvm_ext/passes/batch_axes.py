"""Products of matrices whose batches and heads were made one axis get their axes back, so that transposes reach them.

before: ``left, right = (reshape(permute_dims(x, [0, 2, 1, 3]), (b * h, rows, d)) for x in (q, k))``
        ``y = reshape(softmax(matmul(left, permute_dims(right, [0, 2, 1])) * scale), (b, h, rows, columns))``
after:  ``left, right = permute_dims(q, [0, 2, 1, 3]), permute_dims(k, [0, 2, 3, 1])``
        ``y = softmax(matmul(left, right) * scale)``

PyTorch's products of more than three axes are ``bmm`` of three, with such reshapes around them. A kernel of attention
reads through a transpose, and not through a reshape between the two. Transposes and reshapes of others become one.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax
from tvm.relax.expr_functor import mutator

from tvm_ext.passes.bindings import permutation
from tvm_ext.passes.view_mutator import ViewMutator, view_pass
from tvm_ext.relax_utils import open_shape, same_extents
from tvm_ext.schedules.compute.attention import ELEMENTWISE

_MERGED = 3
"""Axes of a product with one of batches."""


def batch_axes() -> tvm.transform.Pass:
    """Make the pass."""
    return view_pass("tvm_ext.BatchAxes", _BatchAxes)


@mutator
class _BatchAxes(ViewMutator):
    def __init__(self, mod: tvm.IRModule) -> None:
        super().__init__(mod)
        self._products: set[relax.Var] = set()  # with their axes, and what follows from them

    def other(self, call: relax.Call, name: str) -> relax.Expr:
        """Give a product its axes, and what is done with one that has them."""
        shape = open_shape(call)
        if shape is None or len(shape) != _MERGED:
            return call
        if name == "relax.matmul":
            return self._product(call)
        last = name == "relax.nn.softmax" and int(call.attrs.axis) in (-1, _MERGED - 1)
        return self._step(call, shape) if last or name in ELEMENTWISE else call

    def _product(self, call: relax.Call) -> relax.Expr:
        found = [self._apart(operand) for operand in call.args]
        shapes = [open_shape(one) for one in found if one is not None]
        if len(shapes) < 2 or not same_extents(shapes[0][:-2], shapes[1][:-2]):  # type: ignore[index]
            return call
        if not any(one in self._products or permutation(self.value(one)) for one in found):
            return call
        return self._merged(relax.op.matmul(*found, out_dtype=call.attrs.out_dtype), call)

    def _step(self, call: relax.Call, shape: tuple[Any, ...]) -> relax.Expr:
        """Do with a product that has its axes what is done with the merged one."""
        arguments, leading = [], []
        for argument in call.args:
            extents = open_shape(argument)
            apart = self._apart(argument) if extents is not None and same_extents(extents, shape) else None
            if apart in self._products:
                leading.append(open_shape(apart)[:-2])  # type: ignore[index]
            elif extents is None or (len(extents) == _MERGED and extents[0] != 1):
                return call
            arguments.append(argument if apart is None else apart)
        if not leading or not all(same_extents(leading[0], other) for other in leading):
            return call
        if call.op.name == "relax.nn.softmax":
            return self._merged(relax.op.nn.softmax(arguments[0], -1), call)
        return self._merged(relax.Call(call.op, arguments, call.attrs), call)

    def _merged(self, made: relax.Call, call: relax.Call) -> relax.Call:
        """Keep what has its axes for what follows, and merge them for others, which may be none."""
        apart = self.builder_.emit(made)
        self._products.add(apart)
        return relax.op.reshape(apart, relax.ShapeExpr(open_shape(call)))

    def _apart(self, merged: relax.Expr) -> relax.Expr | None:
        """Find a tensor with the axes that were merged in front of the last two, transposed as ``merged`` is."""
        value, shape = self.value(merged), open_shape(merged)
        if shape is None:
            return None
        if permutation(value) == (0, 2, 1):
            inner = self._apart(value.args[0])
            if inner is None:
                return None
            *batches, row, column = range(int(inner.ty.ndim))
            swapped = self.builder_.normalize(relax.op.permute_dims(inner, [*batches, column, row]))
            return self.builder_.emit(self.transpose(swapped))
        source = self.source(merged, "relax.reshape")
        extents = None if source is None else open_shape(source)
        if extents is None or not len(extents) > len(shape) == _MERGED:
            return None
        return source if same_extents(extents[-2:], shape[-2:]) else None
