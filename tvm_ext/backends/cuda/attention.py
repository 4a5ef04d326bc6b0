"""Attention becomes one kernel, where the rule for it takes it and the cost model says that it pays.

before: ``s = matmul(permute_dims(q), permute_dims(k)); p = nn.softmax(add(multiply(s, 0.125), mask))``
        ``y = permute_dims(matmul(p, permute_dims(v)))``
after:  ``y = call_tir(attention, (q, k, v, mask))``, which computes the same row by row

Products and softmax must be used by nothing else. The matrix of scores is then never in memory. Where products are
rounded to 16 bits, operands are in memory already, and the result is too, which a product reads next.
"""

from __future__ import annotations

import tvm
from tvm import relax
from tvm.relax.expr_functor import mutator

from tvm_ext.backends.cuda.tensor_parts import TensorPart, tensor_part
from tvm_ext.passes.attention import Attention, find_attention
from tvm_ext.passes.attention_mutator import AttentionMutator
from tvm_ext.passes.bindings import Bindings, Operand, calls
from tvm_ext.relax_utils import OPAQUE, open_shape, same_extents
from tvm_ext.schedules.compute.row_attention import row_attention
from tvm_ext.schedules.cuda.attention_tile import HALVES, AttentionShape, attention_tile, pays
from tvm_ext.schedules.cuda.machine import GpuMachine, machine_of
from tvm_ext.schedules.cuda.open_extents import estimated, is_open

DTYPES = ("float32", "float16", "bfloat16")
"""Element types of attentions that are taken."""


def attention_kernels(precision: str = "float32") -> tvm.transform.Pass:
    """Make the pass.

    Parameters
    ----------
    precision : str
        What operands of products in float32 are rounded to.
    """

    @tvm.transform.module_pass(opt_level=0, name="tvm_ext.AttentionKernels")
    def _attention(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        machine = machine_of()
        rewriter = _Rewriter(mod, machine, precision)
        for variable, func in mod.functions_items():
            if isinstance(func, relax.Function) and not (func.attrs and "Primitive" in func.attrs):
                rewriter.builder_.update_func(variable, rewriter.rewritten(func))
        return relax.transform.DeadCodeElimination()(rewriter.builder_.finalize())

    return _attention


@mutator
class _Rewriter(AttentionMutator):
    def __init__(self, mod: tvm.IRModule, machine: GpuMachine, precision: str) -> None:
        super().__init__(mod)
        self.machine, self.precision = machine, precision

    def rewritten(self, func: relax.Function) -> relax.Function:
        """Rewrite one function."""
        self.bindings = Bindings()
        self.bindings.visit_expr(func)
        return self.visit_expr(func)

    def attention_kernel(self, var: relax.Var, product: relax.Call, order: tuple[int, ...] | None) -> relax.Call | None:
        """Compute the attention whose second product this is, where that pays."""
        found = find_attention(self.bindings, product, lambda expr: self.bindings.is_visible(expr, var))
        if found is None or str(product.ty.dtype) not in DTYPES:
            return None
        parts = [self._operand(var, expr) for expr in (*found.scores.args, product.args[1])]
        dtype = str(product.ty.dtype)
        query, key, value = parts
        if query is None or key is None or value is None or len({str(part.expr.ty.dtype) for part in parts}) > 1:  # type: ignore[union-attr]
            return None
        if not all(same_extents(query.shape[:-2], part.shape[:-2]) for part in (key, value)):
            return None
        if any(map(is_open, (query.shape[-1], value.shape[-1]))):
            return None
        operand = self.precision if dtype == "float32" else dtype
        shape = AttentionShape.of(query.shape, value.shape, operand, _bytes(found, dtype))
        tile = attention_tile(shape, self.machine)
        # Where the length is open, the scores that one kernel never moves may be any number.
        if tile is None or not (is_open(value.shape[-2]) or pays(shape, tile, self.machine)):
            return None
        wholes = [tensor_part(self.bindings, var, part) for part in (query, key, value)]
        narrow = dtype == "float32" and operand in HALVES
        made = self.builder_.call_te(
            row_attention,
            *(self._tensor(whole, operand if narrow else dtype) for whole in wholes),
            [self.visit_expr(other) for other in found.others],
            axes=[whole.axes for whole in wholes],
            fixed=[whole.fixed for whole in wholes],
            steps=found.steps,
            out_axes=order or tuple(range(len(query.shape))),
            operand=operand,
            primfunc_name_hint="attention",
            primfunc_attrs={"op_pattern": OPAQUE},
        )
        return relax.op.astype(self.builder_.emit(made), dtype) if narrow else made

    def _tensor(self, whole: TensorPart, dtype: str) -> relax.Expr:
        """Convert what an operand is a part of, before a reshape, so that what makes it does that."""
        tensor = self.visit_expr(whole.expr)
        value = self.builder_.lookup_binding(tensor) if isinstance(tensor, relax.DataflowVar) else None
        if calls(value, "relax.reshape"):
            tensor = value.args[0]  # type: ignore[union-attr]
        if str(tensor.ty.dtype) != dtype:
            tensor = self.builder_.emit(relax.op.astype(tensor, dtype))
        shape = open_shape(tensor)
        if shape is not None and same_extents(shape, whole.shape):
            return tensor
        return self.builder_.emit(relax.op.reshape(tensor, whole.shape))

    def _operand(self, user: relax.Var, expr: relax.Expr) -> Operand | None:
        """Look through the transposes before an operand."""
        shape = open_shape(expr)
        if shape is None or len(shape) < 2 or any(not is_open(extent) and extent == 0 for extent in shape):
            return None
        return self.bindings.operand(user, expr, shape)


def _bytes(found: Attention, dtype: str) -> int:
    """Count the bytes of what is added to the scores and the like."""
    shapes = [(open_shape(other) or (), str(other.ty.dtype)) for other in found.others]
    total = 0
    for shape, kind in shapes:
        size = max(1, tvm.DataType(kind).bits // 8)
        for extent in shape:
            size *= estimated(extent)
        total += size
    return total
