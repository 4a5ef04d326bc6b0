"""Turn attention of open extents into one kernel: the scores are never in memory.

before: ``s = matmul(q, permute_dims(k)); p = nn.softmax(s * 0.125); y = permute_dims(matmul(p, v))`` with ``q: [batch,
        heads, seq, 64]``
after:  ``y = open_attention(q, k, v)``, which reads and writes through the transposes
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax
from tvm.relax.expr_functor import mutator

from tvm_ext.graph.decisions import Decision, deciding_pass
from tvm_ext.graph.origins import all_origins
from tvm_ext.passes.attention import find_attention
from tvm_ext.passes.attention_mutator import AttentionMutator
from tvm_ext.passes.bindings import Bindings, Operand, calls
from tvm_ext.relax_utils import open_shape, same_extents, static_shape
from tvm_ext.schedules.cpu.machine import Machine, machine_of
from tvm_ext.schedules.cpu.open_attention import OpenAttention

DTYPES = ("float32", "float64")

TILE_ROWS, FEW_TILE_ROWS = 8, 4
"""Queries of a register tile where there are 32 vector registers, and where there are fewer."""


def open_attention() -> tvm.transform.Pass:
    """Make the pass; it belongs behind the packing of products whose extents are known, before that of open ones."""
    return deciding_pass("tvm_ext.OpenAttention", lambda mod: _Rewriter(mod, machine_of()))


@mutator
class _Rewriter(AttentionMutator):
    """Rewrites one module, function by function."""

    def __init__(self, mod: tvm.IRModule, machine: Machine) -> None:
        super().__init__(mod)
        self.machine = machine
        self.words: dict[Any, tuple[str, ...]] = {}
        self.decisions: list[Decision] = []
        self.kernels: dict[OpenAttention, tvm.ir.GlobalVar] = {}

    def begin(self, function: relax.Function) -> bool:
        """Look at a function before it is rewritten, and say whether there is anything to rewrite."""
        self.bindings = Bindings()
        self.bindings.visit_expr(function)
        self.words = all_origins(function)
        return any(
            calls(value, "relax.matmul") and static_shape(value.args[0]) is None
            for value in self.bindings.values.values()
        )

    def attention_kernel(self, var: relax.Var, product: relax.Call, order: tuple[int, ...] | None) -> relax.Call | None:
        """Compute the attention whose second product this is, where that pays."""
        found = find_attention(self.bindings, product, lambda expr: self.bindings.is_visible(expr, var), True)
        dtype = str(product.ty.dtype)
        if found is None or dtype not in DTYPES:
            return None
        query, key, value = (self._operand(var, expr) for expr in (*found.scores.args, product.args[1]))
        if query is None or key is None or value is None:
            return None
        *batch, rows, size = query.shape
        columns, scores = value.shape[-1], open_shape(found.scores)
        order = tuple(range(len(query.shape))) if order is None else order
        assert scores is not None
        others = [_broadcast(other, scores) for other in found.others]
        if (
            all(isinstance(extent, int) for extent in (*batch, rows, key.shape[-1]))
            or not (isinstance(size, int) and isinstance(columns, int) and size and columns)
            or not (same_extents(batch, key.shape[:-2]) and same_extents(batch, value.shape[:-2]))
            or not (same_extents([size], [key.shape[-2]]) and same_extents([key.shape[-1]], [value.shape[-2]]))
            or order[-1] != len(order) - 1
            or any(other is None for other in others)
            or any(str(part.expr.ty.dtype) != dtype for part in (query, key, value))
        ):
            return None
        wide = self.machine.vector_registers >= 32
        spec = OpenAttention(
            tuple(map(_number, batch)), _number(rows), _number(key.shape[-1]), size, columns,
            (query.axes, key.axes, value.axes), order, found.steps,
            tuple(other for other in others if other is not None), dtype,
            TILE_ROWS if wide else FEW_TILE_ROWS, self.machine.lanes(dtype), found.zeros,
        )  # fmt: skip
        self.decisions.append(Decision.of("matmul", "open attention", spec, self.words.get(var, ())))
        # Layers share a kernel; the builder does not find them equal, as each has variables of its own.
        kernel = self.kernels.get(spec)
        if kernel is None:
            kernel = self.kernels[spec] = self.builder_.add_func(spec.kernel(), "open_attention")
        logical = [*batch, rows, columns]
        result = relax.TensorType([logical[axis] for axis in order], dtype)
        given = [self.visit_expr(expr) for expr in (query.expr, key.expr, value.expr, *found.others)]
        return relax.call_tir(kernel, given, result)

    def _operand(self, user: relax.Var, expr: relax.Expr) -> Operand | None:
        """Look through the transposes before an operand."""
        shape = open_shape(expr)
        if shape is None or len(shape) < 2 or isinstance(expr, tvm.ir.GenericConst):
            return None
        return self.bindings.operand(user, expr, shape)


def _broadcast(other: relax.Expr, scores: tuple[Any, ...]) -> tuple[tuple[bool, ...], str] | None:
    """Say along which axes a tensor has the extents of the scores; None if it fits neither them nor 1."""
    shape = open_shape(other)
    if shape is None or len(shape) > len(scores):
        return None
    found = []
    for extent, whole in zip(shape, scores[len(scores) - len(shape) :], strict=True):
        single = isinstance(extent, int) and extent == 1
        if not single and not same_extents([extent], [whole]):
            return None
        found.append(not single)
    return tuple(found), str(other.ty.dtype)


def _number(extent: Any) -> int | None:
    return extent if isinstance(extent, int) else None
