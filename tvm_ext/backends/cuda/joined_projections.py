"""Queries, keys and values that are computed of the same tensor by products of their own become parts of one product.

before: ``q, k, v = (permute_dims(reshape(add(matmul(x, w[i]), b[i]), heads), [0, 2, 1, 3]) for i in range(3))``
after:  ``y = add(matmul(x, concat(w)), concat(b))``, and ``strided_slice`` of y in the place of each sum

The kernel of attention reads the slices where they are (:mod:`.tensor_parts`). One product of three times the columns
occupies more of a GPU, and reads x once. Weights that several layers share are joined once.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_ext.passes.bindings import Bindings, calls, permutation
from tvm_ext.relax_utils import rewriting_pass, static_shape

_FEWEST_AXES = 4
"""Of what heads are taken apart to."""


def joined_projections() -> tvm.transform.Pass:
    """Make the pass."""
    steps = [rewriting_pass("tvm_ext.JoinedProjections", _Joined), relax.transform.DeadCodeElimination()]
    return tvm.transform.Sequential(steps, name="tvm_ext.JoinedProjections")


@dataclass(frozen=True)
class _Projection:
    """A product with a constant, and perhaps a constant sum: the variable of the whole, and what it is made of."""

    var: relax.Var
    source: relax.Expr
    weight: Any
    bias: Any


@mutator
class _Joined(PyExprMutator):
    def __init__(self, mod: tvm.IRModule) -> None:
        super().__init__(mod)
        self._constants: list[tuple[list[Any], Any]] = []
        self._groups: dict[relax.Var, list[_Projection]] = {}
        self._parts: dict[relax.Var, relax.Var] = {}

    def begin(self, func: relax.Function) -> bool:
        """Find the groups of one function; without any it stays as it is."""
        bindings = Bindings()
        bindings.visit_expr(func)
        followers: defaultdict[relax.Var, list[relax.Var]] = defaultdict(list)
        for var, value in bindings.values.items():
            for argument in value.args if isinstance(value, relax.Call) else ():
                if isinstance(argument, relax.Var):
                    followers[argument].append(var)
        found: defaultdict[Any, list[_Projection]] = defaultdict(list)
        for var in bindings.values:
            projection = _projection(bindings, followers, var)
            if projection is not None:
                shapes = static_shape(projection.weight), str(projection.weight.ty.dtype), projection.bias is None
                found[projection.source, bindings.blocks.get(var), shapes].append(projection)
        self._groups = {group[0].var: group for group in found.values() if len(group) > 1}
        self._parts = {}
        return bool(self._groups)

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        """Put the part of a joined product in the place of one."""
        if group := self._groups.get(binding.var):
            self._join(group)
        if binding.var in self._parts:
            self.set_var_remap(binding.var, self._parts[binding.var])
        else:
            super().visit_var_binding_(binding)

    def _join(self, group: list[_Projection]) -> None:
        emit = self.builder_.emit
        weight = self._side_by_side([one.weight for one in group])
        whole = emit(relax.op.matmul(self.visit_expr(group[0].source), weight, out_dtype=str(group[0].var.ty.dtype)))
        if group[0].bias is not None:
            whole = emit(relax.op.add(whole, self._side_by_side([one.bias for one in group])))
        columns, axis = group[0].weight.ty.shape.values[-1].value, int(whole.ty.ndim) - 1
        for number, one in enumerate(group):
            begin = number * columns
            self._parts[one.var] = emit(relax.op.strided_slice(whole, [axis], [begin], [begin + columns]))

    def _side_by_side(self, constants: list[Any]) -> Any:
        for others, joined in self._constants:
            if len(others) == len(constants) and all(map(tvm.ir.Expr.same_as, others, constants)):
                return joined
        array = np.concatenate([constant.value.numpy() for constant in constants], -1)
        self._constants.append((constants, relax.const(array, str(constants[0].ty.dtype))))
        return self._constants[-1][1]


def _projection(bindings: Bindings, followers: dict[relax.Var, list[relax.Var]], var: relax.Var) -> _Projection | None:
    """Read a projection off whose heads are taken apart next, and nothing else."""
    shape, reader = static_shape(var), followers[var]
    if shape is None or bindings.uses[var] != 1 or len(reader) != 1 or not isinstance(var, relax.DataflowVar):
        return None
    apart = bindings.values[reader[0]]
    if not calls(apart, "relax.reshape") or int(apart.ty.ndim) < _FEWEST_AXES:
        return None
    if not any(permutation(bindings.values[user]) for user in followers[reader[0]]):
        return None
    value, bias = bindings.values[var], None
    if calls(value, "relax.add"):
        first, second = value.args
        inner, bias = (second, first) if isinstance(first, tvm.ir.GenericConst) else (first, second)
        if static_shape(bias) != shape[-1:] or bindings.uses[inner] != 1 or not isinstance(bias, tvm.ir.GenericConst):
            return None
        value = bindings.values.get(inner)
    if not calls(value, "relax.matmul") or not isinstance(value.args[1], tvm.ir.GenericConst):
        return None
    weight, source = value.args[1], value.args[0]
    columns = static_shape(weight)
    if columns is None or len(columns) != 2 or not bindings.is_visible(source, var) or value.ty.dtype != var.ty.dtype:
        return None
    # What makes heads of the columns may make rows of them, too.
    heads = static_shape(apart)
    whole = heads is not None and heads[-1] * heads[-2] == columns[1]
    return _Projection(var, source, weight, bias) if whole else None
