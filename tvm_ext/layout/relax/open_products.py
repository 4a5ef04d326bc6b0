"""Turn matrix products of open extents into kernels over a packed right operand.

before: ``y = matmul(x, w)`` with ``x: [batch, seq, 768]`` and a constant ``w``
after:  ``y = product(x, w')``, ``w'`` packed here; what follows the product may become part of the kernel

A right operand that is computed is packed by a kernel of its own, one that is transposed before without its transpose.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
from tvm import relax, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_ext.graph.decisions import Decision, deciding_pass
from tvm_ext.graph.origins import words_of
from tvm_ext.layout.product_plan import OpenProductPlan, plan_open_product
from tvm_ext.layout.verify import verify_open_product
from tvm_ext.passes.bindings import Bindings, calls
from tvm_ext.relax_utils import OUT_ELEMENTWISE, read_only, static_shape
from tvm_ext.schedules.compute.matmul import pack_columns
from tvm_ext.schedules.compute.open_product import open_product
from tvm_ext.schedules.cpu.machine import Machine, machine_of
from tvm_ext.schedules.cpu.open_product import open_packing

DTYPES = ("float32", "float64")

FEW_COLUMNS = 2
"""Products with fewer columns than this are left to the rule of open extents, which sums along the row.

It sums up two or three columns element by element; a vector that is mostly padding is up to twenty times faster.
"""


def open_products() -> tvm.transform.Pass:
    """Make the pass; it belongs behind the packing of products whose extents are known."""
    return deciding_pass("tvm_ext.OpenProducts", lambda mod: _Rewriter(mod, machine_of()))


@mutator
class _Rewriter(PyExprMutator):
    """Rewrites one module, function by function."""

    def __init__(self, mod: tvm.IRModule, machine: Machine) -> None:
        super().__init__(mod)
        self.machine = machine
        self.bindings = Bindings()
        self.packed: dict[Any, relax.Expr] = {}
        self.decisions: list[Decision] = []
        self._words: tuple[str, ...] = ()

    def begin(self, function: relax.Function) -> bool:
        """Look at a function before it is rewritten, and say whether there is anything to rewrite."""
        self.bindings = Bindings()
        self.bindings.visit_expr(function)
        return any(_is_open_product(value) for value in self.bindings.values.values())

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        """Rewrite a binding; what it comes from goes into the decision."""
        self._words = words_of(binding.var)
        super().visit_var_binding_(binding)

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        """Replace a product."""
        if not _is_open_product(call):
            return super().visit_call_(call)
        (left, right), out = (list(map(_extents, call.args))), _extents(call)
        assert left is not None
        assert right is not None
        assert out is not None
        flat = len(right) == 2
        dtype = str(call.ty.dtype)
        columns, reduction = (
            int(extent) if isinstance(extent, tirx.IntImm) else None for extent in (out[-1], left[-1])
        )
        plan = plan_open_product(columns, reduction, dtype, self.machine)
        verify_open_product(plan, columns)
        self.decisions.append(Decision.of("matmul", "open product", plan, self._words))
        packed = self._packed(call.args[1], right, 1 if flat else _product(left[:-2]), plan)
        return self.builder_.call_te(
            open_product, self.visit_expr(call.args[0]), packed, out[-1], flat, plan.tile,
            primfunc_name_hint="open_product", primfunc_attrs={"op_pattern": OUT_ELEMENTWISE},
        )  # fmt: skip

    def _packed(self, weight: relax.Expr, shape: list[Any], batch: Any, plan: OpenProductPlan) -> relax.Expr:
        """Pack the right operand: here if it is a constant, by a kernel otherwise."""
        dtype, lanes, vectors = str(weight.ty.dtype), plan.lanes, plan.tile[1]
        if isinstance(weight, tvm.ir.GenericConst):
            key = (weight.value, lanes, vectors)
            if key not in self.packed:
                array = read_only(weight.value)
                chunks = plan.chunks(array.shape[-1])
                columns = pack_columns(array.reshape(-1, *array.shape[-2:]), lanes, chunks)
                self.packed[key] = relax.const(columns, dtype)
            return self.packed[key]
        source, transposed = self._untransposed(weight)
        reduction, columns = shape[-2], shape[-1]
        operand = self._reshaped(source, [batch, columns, reduction] if transposed else [batch, reduction, columns])
        chunks = _simple(plan.chunks(columns))
        kernel = self.builder_.add_func(open_packing(vectors, lanes, transposed, dtype, self.machine), "open_packing")
        result = relax.TensorType([batch, chunks, reduction, lanes], dtype)
        return self.builder_.emit(relax.call_tir(kernel, [operand], result))

    def _untransposed(self, weight: relax.Expr) -> tuple[relax.Expr, bool]:
        """Give an operand with its columns one after the other, where a transpose has just put them side by side."""
        value = self.bindings.values.get(weight) if isinstance(weight, relax.Var) else None
        if value is None or not calls(value, "relax.permute_dims") or not isinstance(value.args[0], relax.Var):
            return self.visit_expr(weight), False
        rank = int(value.ty.ndim)
        axes = value.attrs.axes
        order = list(reversed(range(rank))) if axes is None else [int(axis) % rank for axis in axes]
        order[-2], order[-1] = order[-1], order[-2]
        if order[-1] != rank - 1:
            return self.visit_expr(weight), False
        source = self.visit_expr(value.args[0])
        if order != list(range(rank)):
            source = self.builder_.emit(relax.op.permute_dims(source, order))
        return source, True

    def _reshaped(self, value: relax.Expr, shape: Sequence[Any]) -> relax.Expr:
        return self.builder_.emit(relax.op.reshape(value, relax.ShapeExpr(list(shape))))


def _is_open_product(value: Any) -> bool:
    """Whether a value is a product of known ranks, some of whose extents are open."""
    if not calls(value, "relax.matmul") or len({str(expr.ty.dtype) for expr in (value, *value.args)}) > 1:
        return False
    shapes = [_extents(expr) for expr in (value, *value.args)]
    if str(value.ty.dtype) not in DTYPES or any(shape is None or len(shape) < 2 for shape in shapes):
        return False
    if all(static_shape(expr) is not None for expr in value.args):
        return False
    out, left, right = shapes
    assert out is not None
    assert left is not None
    assert right is not None
    narrow = isinstance(out[-1], tirx.IntImm) and int(out[-1]) < FEW_COLUMNS
    analyzer = tvm.sym.Analyzer()
    return (
        not narrow
        and analyzer.can_prove_equal(left[-1], right[-2])
        and (len(right) == 2 or (len(left) == len(right) and all(map(analyzer.can_prove_equal, left[:-2], right[:-2]))))
    )


def _extents(expr: Any) -> list[Any] | None:
    shape = getattr(expr.ty, "shape", None)
    return list(shape) if isinstance(shape, relax.ShapeExpr) else None


def _product(extents: Sequence[Any]) -> Any:
    total: Any = tirx.IntImm("int64", 1)
    for extent in extents:
        total = total * extent
    return _simple(total)


def _simple(extent: Any) -> Any:
    return tvm.sym.Analyzer().simplify(extent)
