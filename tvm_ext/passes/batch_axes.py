"""Products of matrices whose batches and heads were made one axis get their axes back, so that transposes reach them.

before: ``left, right = (reshape(permute_dims(x, [0, 2, 1, 3]), (b * h, rows, d)) for x in (q, k))``
        ``y = reshape(softmax(matmul(left, permute_dims(right, [0, 2, 1])) * scale), (b, h, rows, columns))``
after:  ``left, right = permute_dims(q, [0, 2, 1, 3]), permute_dims(k, [0, 2, 3, 1])``
        ``y = softmax(matmul(left, right) * scale)``

PyTorch's products of more than three axes are ``bmm`` of three, with such reshapes around them, and ``einsum`` adds
axes of one element. A kernel of attention reads through a transpose, and not through a reshape between the two.
Transposes and reshapes of others become one.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import tvm
from tvm import relax
from tvm.relax.expr_functor import mutator

from tvm_ext.passes.bindings import calls, permutation
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
        self._apart_from: set[Any] = set()  # what was asked, and does not

    def reshape(self, call: relax.Call) -> relax.Expr:
        """Leave out what a transpose does to axes of one element, as ``einsum`` has for letters of one operand."""
        made = super().reshape(call)
        if not calls(made, "relax.reshape"):
            return made
        turned, shape = made.args
        plain = self.source(turned, "relax.expand_dims")
        if plain is not None:
            return self.reshape(self.builder_.normalize(relax.op.reshape(plain, shape)))
        axes, source = permutation(self.value(turned)), self.source(turned, "relax.permute_dims")
        if axes is None or source is None or not _units(open_shape(source) or ()):
            return made
        order = [axis for axis in axes if axis not in _units(open_shape(source) or ())]
        inner = self.source(source, "relax.expand_dims")
        inner = self.source(source, "relax.reshape") if inner is None else inner
        if inner is not None and _has_same_elements(inner, source):
            places = {axis: place for place, axis in enumerate(_others(open_shape(source) or ()))}
            order = [_others(open_shape(inner) or ())[places[axis]] for axis in order]
            source = inner
        if order != sorted(order):
            order = [*_units(open_shape(source) or ()), *order]
            source = self.builder_.emit(self.transpose(self.builder_.normalize(relax.op.permute_dims(source, order))))
        if same_extents(open_shape(source) or (), open_shape(made) or ()):
            return source
        return super().reshape(self.builder_.normalize(relax.op.reshape(source, shape)))

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
        leading = [open_shape(one)[:-2] for one in found if one is not None]  # type: ignore[index]
        if not leading:
            return call
        if not all(same_extents(leading[0], other) for other in leading):
            # Heads that several queries share have an axis more.
            leading = [min(leading, key=len)]
            if not all(_refines(open_shape(one)[:-2], leading[0]) for one in found if one is not None):  # type: ignore[index]
                return call
            found = [self._apart(operand, leading[0]) for operand in call.args]
        for place, operand in enumerate(call.args):
            # A reshape of a reshape has become one, which may be of other axes.
            if found[place] is None and calls(self.value(operand), "relax.reshape"):
                shape = relax.ShapeExpr([*leading[0], *open_shape(operand)[-2:]])  # type: ignore[index]
                apart = self.builder_.normalize(relax.op.reshape(operand, shape))
                found[place] = self.builder_.emit(self.reshape(apart))
        if any(one is None for one in found) or not any(
            self._follows(one) or permutation(self.value(one)) for one in found
        ):
            return call
        return self._merged(relax.op.matmul(*found, out_dtype=call.attrs.out_dtype), call)

    def _follows(self, expr: Any) -> bool:
        """Whether a tensor is a product that got its axes, or made of one step by step, of which there may be many."""
        waiting = [expr]
        while waiting:
            before = [] if self._is_known(waiting[-1]) else self._made_of(waiting[-1])
            unknown = [one for one in before if not self._is_known(one)]
            waiting.extend(unknown)
            if not unknown:
                last = waiting.pop()
                if not self._is_known(last):
                    (self._products if any(one in self._products for one in before) else self._apart_from).add(last)
        return expr in self._products

    def _is_known(self, expr: Any) -> bool:
        return expr in self._products or expr in self._apart_from

    def _made_of(self, expr: Any) -> list[Any]:
        """List what a tensor is another name of, or is computed of element by element."""
        value = self.builder_.lookup_binding(expr) if isinstance(expr, relax.Var) else None
        if isinstance(value, relax.Var):
            return [value]
        name = getattr(getattr(value, "op", None), "name", "")
        return list(value.args) if name == "relax.nn.softmax" or name in ELEMENTWISE else []  # type: ignore[union-attr]

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

    def _apart(self, merged: relax.Expr, leading: Sequence[Any] | None = None) -> relax.Expr | None:
        """Find a tensor with the axes that were merged in front of the last two, transposed as ``merged`` is.

        Where ``leading`` says what axes are wanted, those of a tensor with others become them.
        """
        value, shape = self.value(merged), open_shape(merged)
        if shape is None:
            return None
        if permutation(value) == (0, 2, 1):
            inner = self._apart(value.args[0], leading)
            if inner is None:
                return None
            *batches, row, column = range(int(inner.ty.ndim))
            swapped = self.builder_.normalize(relax.op.permute_dims(inner, [*batches, column, row]))
            return self.builder_.emit(self.transpose(swapped))
        source = self.source(merged, "relax.reshape")
        extents = None if source is None else open_shape(source)
        if extents is None or not len(extents) > len(shape) == _MERGED:
            return None
        if not same_extents(extents[-2:], shape[-2:]):
            return None
        if leading is None or same_extents(extents[:-2], leading):
            return source
        wanted = relax.op.reshape(source, relax.ShapeExpr([*leading, *shape[-2:]]))
        return self.builder_.emit(self.reshape(self.builder_.normalize(wanted)))


def _refines(fine: Sequence[Any], coarse: Sequence[Any]) -> bool:
    """Whether some axes one after the other are each axis of another shape."""
    rest = [extent for extent in fine if not (isinstance(extent, int) and extent == 1)]
    for extent in coarse:
        if isinstance(extent, int) and extent == 1:
            continue
        part = [rest.pop(0)] if rest else [1]
        while rest and all(isinstance(one, int) for one in (extent, *part, rest[0])) and prod(part) < extent:
            part.append(rest.pop(0))
        if not (same_extents([extent], part) if len(part) == 1 else prod(part) == extent):
            return False
    return not rest


def _units(shape: Sequence[Any]) -> list[int]:
    """List the axes of one element."""
    return [axis for axis, extent in enumerate(shape) if isinstance(extent, int) and extent == 1]


def _others(shape: Sequence[Any]) -> list[int]:
    units = _units(shape)
    return [axis for axis in range(len(shape)) if axis not in units]


def _has_same_elements(first: relax.Expr, second: relax.Expr) -> bool:
    """Whether two tensors differ by axes of one element alone."""
    one, other = open_shape(first), open_shape(second)
    if one is None or other is None:
        return False
    return same_extents([one[axis] for axis in _others(one)], [other[axis] for axis in _others(other)])
