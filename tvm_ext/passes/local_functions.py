"""Makes functions that are defined inside others functions of the module.

TVM's own pipelines leave this to the caller, and refuse such modules in their last pass. So come modules whose
operators were given to another code generator (``FuseOpsByPattern(annotate_codegen=True)``) which was not run.
"""

from __future__ import annotations

from collections.abc import Iterator

import tvm
from tvm import relax


def lift_local_functions() -> tvm.transform.Pass:
    """Make the pass; what a local function reads of the one around it becomes arguments, or a closure.

    Before and after::

        @R.function                                     def main_inner(y, a):
        def main(x, w):                                     return R.add(R.nn.relu(y), a)
            a = R.matmul(x, w)
            @R.function                              ->  def main(x, w):
            def inner(y):                                    a = R.matmul(x, w)
                return R.add(R.nn.relu(y), a)                return cls.main_inner(a, a)
            return inner(a)
    """

    @tvm.transform.module_pass(opt_level=0, name="tvm_ext.LiftLocalFunctions")
    def _lift_local_functions(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        functions = (func for func in mod.functions.values() if isinstance(func, relax.Function))
        if any(isinstance(value, relax.Function) for func in functions for value in _values(func.body)):
            return relax.transform.LambdaLift()(mod)
        return mod

    return _lift_local_functions


def _values(body: relax.Expr) -> Iterator[relax.Expr]:
    """Give what variables are bound to, in branches as well."""
    blocks = body.blocks if isinstance(body, relax.SeqExpr) else []
    for block in blocks:
        for binding in block.bindings:
            yield binding.value
            if isinstance(binding.value, relax.If):
                yield from _values(binding.value.true_branch)
                yield from _values(binding.value.false_branch)
