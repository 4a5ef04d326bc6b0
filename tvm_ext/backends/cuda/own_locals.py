"""Numbers of a thread are declared within its kernel.

before: ``start = alloc(local); launch(threads): start[0] = ...``
after:  ``launch(threads): start = alloc(local); start[0] = ...``

TVM's scan (``cumsum``) declares them around the launch. Then they are memory of the host, whose address all threads are
given: one that no GPU can write to.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from tvm_ext.schedules.rule import RULE_ATTRIBUTE

EXTENT = "thread_extent"


def own_locals() -> tvm.transform.Pass:
    """Make the pass."""

    @tvm.transform.module_pass(opt_level=0, name="tvm_ext.OwnLocals")
    def _own_locals(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        result = tvm.IRModule(mod.functions, attrs=mod.attrs, global_infos=mod.global_infos)
        for variable, func in mod.functions_items():
            if isinstance(func, tirx.PrimFunc) and RULE_ATTRIBUTE not in (func.attrs or {}):
                body = tvm_ffi.structural_mutate(func.body, [(tirx.SeqStmt, _sequence)])
                if not body.same_as(func.body):
                    changed = tirx.PrimFunc(func.params, body, func.ret_type, func.attrs, func.span)
                    result.update_func(variable, changed)
        return result

    return _own_locals


def _sequence(node: Any, mutator: Any) -> Any:
    """Move allocations that one launch of a sequence uses, and nothing else, into it."""
    statements = list(node.seq)
    for item in [item for item in statements if _is_local(item)]:
        users = [other for other in statements if other is not item and _uses(other, item.buffer)]
        if len(users) == 1 and _is_launch(users[0]):
            place = next(number for number, other in enumerate(statements) if other is users[0])
            statements[place] = _with_allocation(users[0], item)
            statements = [other for other in statements if other is not item]
    if len(statements) == len(node.seq):
        return mutator.default_mutate(node)
    whole = statements[0] if len(statements) == 1 else tirx.SeqStmt(statements)
    return mutator.mutate(whole) if len(statements) == 1 else mutator.default_mutate(whole)


def _with_allocation(launch: Any, allocation: Any) -> Any:
    """Put an allocation into the innermost of the scopes that name threads and blocks."""
    inner = launch.body
    if _is_launch(inner):
        body = _with_allocation(inner, allocation)
    else:
        rest: Sequence[Any] = list(inner.seq) if isinstance(inner, tirx.SeqStmt) else [inner]
        body = tirx.SeqStmt([allocation, *rest])
    return tirx.AttrStmt(launch.node, launch.attr_key, launch.value, body)


def _is_local(item: Any) -> bool:
    return isinstance(item, tirx.AllocBuffer) and str(item.buffer.scope()) == "local"


def _is_launch(item: Any) -> bool:
    return isinstance(item, tirx.AttrStmt) and str(item.attr_key) == EXTENT


def _uses(statement: Any, buffer: Any) -> bool:
    found = [False]

    def visit(node: Any) -> None:
        found[0] = found[0] or (node.buffer if isinstance(node, tirx.BufferStore) else node.source).same_as(buffer)

    tvm_ffi.structural_walk(statement, [(tirx.BufferStore, visit), (tvm.ir.TensorLoad, visit)])
    return found[0]
