"""Keep numbers that several kernels read out of fusion, lest what reads them be merged around them.

before: ``z = cast(y); a = subtract(product(x, v), z); b = subtract(product(x, w), z); c = multiply(a, b)``, one kernel
after:  ``z = cast_apart(y)``, which is never fused: each product ends in its own difference

``FuseOps`` merges an element-wise kernel with all that lies between it and where its readers meet again. For a tensor
that is right; a number, such as the zero point that two products of dynamically quantised models share, drags both
into one kernel, which no schedule rule takes. It is stored instead, once for all who read it.
"""

from __future__ import annotations

from math import prod
from typing import Any

import tvm
from tvm import relax

from tvm_ext.passes.limit_recomputation import ApartMutator
from tvm_ext.relax_utils import INJECTIVE, OPAQUE, rewritten, static_shape


def shared_numbers() -> tvm.transform.Pass:
    """Make the pass; it runs before operators are fused, after they became annotated kernels."""

    @tvm.transform.module_pass(opt_level=0, name="tvm_ext.SharedNumbers")
    def _shared(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        apart = {
            variable
            for func in mod.functions.values()
            if isinstance(func, relax.Function) and isinstance(func.body, relax.SeqExpr)
            for block in func.body.blocks
            for variable in _meeting_places(mod, block)
        }
        return rewritten(mod, ApartMutator(mod, apart)) if apart else mod

    return _shared


def _meeting_places(mod: tvm.IRModule, block: relax.BindingBlock) -> list[relax.Var]:
    """List the numbers of a block from which paths to different tensors part for good."""
    numbers: set[Any] = set()
    readers: dict[Any, list[Any]] = {}
    for binding in block.bindings:
        if _makes_a_number(mod, binding):
            numbers.add(binding.var)
        for read in set(relax.analysis.free_vars(binding.value)) & numbers:
            readers.setdefault(read, []).append(binding.var)
    # What reads a number, directly or by other numbers, and is none itself.
    reached: dict[Any, frozenset[Any]] = {}
    found = []
    for binding in reversed(block.bindings):
        if binding.var in numbers:
            after = [reached.get(reader, frozenset([reader])) for reader in readers.get(binding.var, [])]
            reached[binding.var] = frozenset().union(*after)
            # Where one of several paths reaches all, they have met in a number further on, which is stored.
            if len(after) > 1 and len(reached[binding.var]) > 1 and reached[binding.var] not in after:
                found.append(binding.var)
    return found[::-1]


def _makes_a_number(mod: tvm.IRModule, binding: relax.Binding) -> bool:
    call = getattr(binding, "value", None)
    if not isinstance(call, relax.Call) or getattr(call.op, "name", "") != "relax.call_tir":
        return False
    shape = static_shape(binding.var) if isinstance(binding.var.ty, relax.TensorType) else None
    pattern = int((mod[call.args[0]].attrs or {}).get("op_pattern", OPAQUE))
    return shape is not None and prod(shape) == 1 and pattern <= INJECTIVE
