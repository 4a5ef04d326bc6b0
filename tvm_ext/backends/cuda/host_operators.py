"""Operators that TVM's runtime has for CPUs alone get their tensors on the host, and give theirs back to the GPU.

before: ``y = call_pure_packed("relax.run.nonzero", x)``
after:  ``y = to_device(call_pure_packed("relax.run.nonzero", to_device(x, cpu)), cuda)``

How many elements come out of them is known when the model runs only, so no kernel has them. Copies wait for what the
GPU computes before.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_ext.passes.bindings import calls
from tvm_ext.relax_utils import rewriting_pass

FUNCTIONS = ("relax.run.nonzero", "relax.run.unique")
COPY = "vm.builtin.to_device"


def host_operators() -> tvm.transform.Pass:
    """Make the pass; it comes behind ``LegalizeOps``, which makes calls of the runtime of these operators."""
    return rewriting_pass("tvm_ext.HostOperators", _HostOperators)


@mutator
class _HostOperators(PyExprMutator):
    def visit_call_(self, call: relax.Call) -> relax.Expr:
        """Put copies around an operator of the host."""
        call = super().visit_call_(call)
        if not calls(call, "relax.call_pure_packed") or str(call.args[0].global_symbol) not in FUNCTIONS:
            return call
        arguments = [self._copied(argument, tvm.cpu()) for argument in call.args[1:]]
        result = self.builder_.emit(relax.Call(call.op, [call.args[0], *arguments], call.attrs, call.ty_args))
        if isinstance(result.ty, relax.TupleType):
            parts = [
                self._copied(self.builder_.emit(relax.TupleGetItem(result, number)), tvm.cuda())
                for number in range(len(result.ty.fields))
            ]
            return relax.Tuple(parts)
        return self._copied(result, tvm.cuda())

    def _copied(self, value: relax.Expr, device: tvm.runtime.Device) -> Any:
        if not isinstance(value.ty, relax.TensorType):
            return value
        place = [relax.prim_value(device.dlpack_device_type()), relax.prim_value(device.index)]
        return self.builder_.emit(relax.op.call_pure_packed(COPY, value, *place, ty_args=[value.ty]))
