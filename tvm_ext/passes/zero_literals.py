"""Keeps a zero that tensors are multiplied with or divided by in memory, where TVM computes with it as IEEE 754 has it.

before: ``y = multiply(x, const(0.0))``, ``z = divide(x, const(0.0))``
after:  ``y = multiply(x, const([0.0]))``, ``z = divide(x, const([0.0]))``

A scalar constant becomes a literal of the kernel. TVM makes 0 of ``x * 0.0``, also where x is NaN or infinite, and
refuses to divide by it. What is computed of constants alone may turn out to be such a zero when constants are folded:

before: ``s = floor(const(0.5)); z = divide(const(1.0), s)``
after:  ``s = floor(const(0.5)); z = divide(const(1.0), reshape(s, (1,)))``

Literals that are not finite are taken out of ``full`` on the way (:mod:`tvm_ext.passes.non_finite_fills`).
"""

from __future__ import annotations

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_ext.passes.non_finite_fills import broadcast_fill
from tvm_ext.relax_utils import rewriting_pass

OPERATORS = frozenset(["relax.multiply", "relax.divide", "relax.mod", "relax.floor_mod", "relax.floor_divide"])


def zero_literals() -> tvm.transform.Pass:
    """Make the pass; only constants of floating-point types are changed."""
    return rewriting_pass("tvm_ext.ZeroLiterals", _ZeroMutator)


@mutator
class _ZeroMutator(PyExprMutator):
    def begin(self, function: relax.Function) -> bool:
        """Note the scalars that do not depend on arguments."""
        self.computed = _computed_of_constants(function)
        return True

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        """Give a zero scalar, or one that may be found to be zero, an axis; broadcast what fills a tensor."""
        are_computed = [argument in self.computed for argument in call.args if isinstance(argument, relax.Var)]
        call = self.visit_expr_post_order(call)
        if not isinstance(call.op, tvm.ir.Op) or call.op.name not in OPERATORS:
            return broadcast_fill(call)
        if not any(are_computed) and not any(map(_is_zero, call.args)):
            return call
        arguments = [self._with_an_axis(argument) for argument in call.args]
        result = relax.Call(call.op, arguments, call.attrs)
        if call.ty.ndim == 0:  # of scalars only
            return relax.op.reshape(self.builder_.emit(result), ())
        return result

    def _with_an_axis(self, argument: relax.Expr) -> relax.Expr:
        if _is_zero(argument):
            return relax.const(argument.value.numpy().reshape(1), str(argument.ty.dtype))
        if not isinstance(argument, relax.Var) or not _is_float_scalar(argument):
            return argument
        return self.builder_.emit(relax.op.reshape(argument, (1,)))


def _computed_of_constants(function: relax.Function) -> frozenset[relax.Var]:
    """List the scalars that do not depend on the arguments of a function."""
    known: set[relax.Var] = set()

    def binding(node: relax.Expr) -> None:
        if not isinstance(node, relax.SeqExpr):
            return
        for block in node.blocks:
            for one in block.bindings:
                value = one.value if isinstance(one, relax.VarBinding) else None
                if isinstance(value, relax.Call) and isinstance(value.op, tvm.ir.Op) and value.args:
                    if all(isinstance(item, tvm.ir.GenericConst) or item in known for item in value.args):
                        known.add(one.var)

    relax.analysis.post_order_visit(function, binding)
    return frozenset(var for var in known if _is_float_scalar(var))


def _is_float_scalar(argument: relax.Expr) -> bool:
    ty = argument.ty
    return isinstance(ty, relax.TensorType) and ty.ndim == 0 and "float" in str(ty.dtype)


def _is_zero(argument: relax.Expr) -> bool:
    return isinstance(argument, tvm.ir.GenericConst) and _is_float_scalar(argument) and not argument.value.numpy().any()
