"""What is beyond a program's addresses is refused before TVM's passes stumble over it."""

from __future__ import annotations

import math

import tvm
from tvm import relax

from tvm_ext.errors import CompileError
from tvm_ext.graph.origins import with_nodes, words_of
from tvm_ext.relax_utils import static_shape

MOST_ELEMENTS = (1 << 31) - 1
"""Elements of a tensor: they are counted in int32."""


def check_elements() -> tvm.ir.transform.Pass:
    """Make a pass that changes nothing, and refuses with a ``CompileError`` a model with a larger tensor."""

    @tvm.transform.module_pass(opt_level=0, name="CheckElements")
    def check(mod: tvm.IRModule, context: tvm.transform.PassContext) -> tvm.IRModule:
        for function in mod.functions.values():
            if not isinstance(function, relax.Function) or not isinstance(function.body, relax.SeqExpr):
                continue
            bound = (binding.var for block in function.body.blocks for binding in block.bindings)
            for var in (*function.params, *bound):
                shape = static_shape(var)
                if shape is not None and math.prod(shape) > MOST_ELEMENTS:
                    name = with_nodes(repr(str(var.name)), words_of(var))
                    raise CompileError(
                        f"tensor {name} has {math.prod(shape):,} elements and a tensor of a Hexagon program at most "
                        f"{MOST_ELEMENTS:,}; make the input smaller"
                    )
        return mod

    return check
