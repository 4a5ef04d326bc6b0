"""Quantize and dequantize nodes of values that depend on no input stay as they are, and are folded.

Folding runs kernels on this machine, which has no HVX.
"""

from __future__ import annotations

from typing import Any

from tvm import relax

from tvm_ext.graph.origins import variables_of
from tvm_ext.quantized.relax.mutator import Rule


def fixed_variables(function: relax.Function) -> set[relax.Var]:
    """Find the variables of a function's blocks that depend on no parameter."""
    found: set[relax.Var] = set()
    for block in function.body.blocks:
        for binding in block.bindings:
            if isinstance(binding, relax.VarBinding) and found.issuperset(variables_of(binding.value)):
                found.add(binding.var)
    return found


def _fixed(rewriter: Any, var: relax.Var, call: relax.Call) -> bool:
    """Leave a call as it stands; constants that are dequantised may be weights."""
    data = call.args[0]
    if data not in rewriter.fixed if isinstance(data, relax.Var) else call.op.name == "relax.dequantize":
        return False
    rewriter.set_var_remap(var, rewriter.emit(rewriter.visit_expr(call)))
    return True


FIXED_RULES: dict[str, Rule] = dict.fromkeys(("relax.quantize", "relax.dequantize"), _fixed)
"""For a mutator with the set ``fixed``, before all others."""
