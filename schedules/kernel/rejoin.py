"""Initial values of reductions put back into the blocks that they were taken out of.

A kernel of open extents comes to its rule with initial values set apart from loops that may have no iteration. A rule
that gives every row its initial value before it reduces it wants the one block that computes a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm_ffi
from tvm import s_tir, tirx
from tvm.tirx import IterVar, PrimFunc

from tvm_ext.relax_utils import substitute


def with_initial_values(func: PrimFunc) -> PrimFunc:
    """Make one block of an initial value and the reduction right behind it.

    before: ``for i: y[i] = 0``, ``for i, k: y[i] = y[i] + x[i, k]``, in one loop or in several
    after:  ``for i, k: with T.init(): y[i] = 0``, ``y[i] = y[i] + x[i, k]``
    """

    def join(sequence: Any, mutator: Any) -> Any:
        statements: list[Any] = []
        for statement in mutator.default_mutate(sequence).seq:
            joined = _joined(statements[-1], statement) if statements else None
            if joined is None:
                statements.append(statement)
            else:
                statements[-1] = joined
        return statements[0] if len(statements) == 1 else tirx.SeqStmt(statements)

    return tvm_ffi.structural_mutate(func, [(tirx.SeqStmt, join)])


def _joined(before: Any, statement: Any) -> Any:
    initial, reduction = _only_block(before), _only_block(statement)
    if initial is None or reduction is None or reduction.init is not None or initial.init is not None:
        return None
    results = [axis for axis in reduction.iter_vars if int(axis.iter_type) == IterVar.DataPar]
    own = [region.source for region in reduction.writes]
    if len(results) == len(reduction.iter_vars) or len(results) != len(initial.iter_vars):
        return None
    values = {axis.var: result.var for axis, result in zip(initial.iter_vars, results, strict=True)}
    written = [substitute(region, values) for region in initial.writes]
    if initial.reads or not _same(written, reduction.writes):
        return None
    reads = [region for region in reduction.reads if not any(region.source.same_as(buffer) for buffer in own)]
    joined = s_tir.SBlock(
        reduction.iter_vars, reads, reduction.writes, reduction.name_hint.removesuffix("_update"), reduction.body,
        substitute(initial.body, values), reduction.alloc_buffers, reduction.match_buffers, reduction.annotations,
    )  # fmt: skip

    def replace(block: Any, _mutator: Any) -> Any:
        return joined if block.same_as(reduction) else block

    return tvm_ffi.structural_mutate(statement, [(s_tir.SBlock, replace)])


def _same(one: Sequence[Any], other: Sequence[Any]) -> bool:
    return len(one) == len(other) and all(
        a.source.same_as(b.source) and tvm_ffi.structural_equal(a.region, b.region, map_free_vars=False)
        for a, b in zip(one, other, strict=True)
    )


def _only_block(statement: Any) -> Any:
    """Find the block that nothing but loops is around."""
    while isinstance(statement, tirx.For):
        statement = statement.body
    return statement.block if isinstance(statement, s_tir.SBlockRealize) else None
