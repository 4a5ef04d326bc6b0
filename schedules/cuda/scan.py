"""Cumulative sums and products along the rows of a matrix: a block of threads a row.

A thread adds up its own four elements, the block the sums of its threads, in rounds of twice the distance each (Hillis
and Steele, "Data Parallel Algorithms", 1986); what came before is handed from one part of a row to the
next. TVM's kernels count on threads of a warp that go in step, which CUDA does not promise.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx
from tvm.tirx import PrimFunc

from tvm_ext.schedules.cuda.machine import WARP
from tvm_ext.schedules.rule import RULE_ATTRIBUTE

ITEMS, MOST_THREADS = 4, 256
"""Elements of a thread, and threads of a block."""

NAME = "cuda.scan"


def scan_kernel(
    rows: int | tirx.Var, length: int | tirx.Var, dtype: str, out_dtype: str, product: bool, exclusive: bool
) -> PrimFunc:
    """Make the kernel that takes ``(rows, length)`` of ``dtype`` to as many of ``out_dtype``; both may be open.

    With ``exclusive`` an element is no part of its own sum. Floats of 16 bits are added up in float32.
    """
    from tvm.script import tirx as T

    total = "float32" if tvm.DataType(out_dtype).bits == 16 and "float" in out_dtype else out_dtype
    is_open = not isinstance(length, int)
    threads = MOST_THREADS if is_open else WARP
    while threads < MOST_THREADS and threads * ITEMS < length:
        threads *= 2
    rounds = threads.bit_length() - 1
    part = threads * ITEMS
    parts = tirx.floordiv(length + part - 1, part) if is_open else -(-length // part)
    neutral = tirx.const(1 if product else 0, total)
    behind = 1 if exclusive else 0

    def joined(first: tvm.ir.Expr, second: tvm.ir.Expr) -> tvm.ir.Expr:
        return first * second if product else first + second

    def place(step: Any, thread: Any, item: Any) -> Any:
        return step * part + thread * ITEMS + item

    @T.prim_func(private=True, s_tir=True)
    def scan(x: T.Buffer((rows, length), dtype), y: T.Buffer((rows, length), out_dtype)):  # type: ignore[no-untyped-def,valid-type]
        for row in T.thread_binding(rows, thread="blockIdx.x"):
            with T.sblock("scan"):
                own = T.sblock_alloc_buffer((ITEMS,), total, scope="local")
                before = T.sblock_alloc_buffer((1,), total, scope="local")
                sums = T.sblock_alloc_buffer((2, threads), total, scope="shared")
                for thread in T.thread_binding(threads, thread="threadIdx.x"):
                    before[0] = neutral
                    for step in T.serial(parts):
                        for item in T.unroll(ITEMS):
                            own[item] = T.if_then_else(
                                place(step, thread, item) < length,
                                T.Cast(total, x[row, place(step, thread, item)]),
                                neutral,
                            )
                        for item in T.unroll(ITEMS - 1):
                            own[item + 1] = joined(own[item], own[item + 1])
                        sums[0, thread] = own[ITEMS - 1]
                        for number in T.unroll(rounds):
                            sums[(number + 1) % 2, thread] = joined(
                                T.if_then_else(
                                    thread >= (1 << number), sums[number % 2, thread - (1 << number)], neutral
                                ),
                                sums[number % 2, thread],
                            )
                        for item in T.unroll(ITEMS):
                            if place(step, thread, item) < length:
                                y[row, place(step, thread, item)] = T.Cast(
                                    out_dtype,
                                    joined(
                                        joined(
                                            before[0],
                                            T.if_then_else(thread > 0, sums[rounds % 2, thread - 1], neutral),
                                        ),
                                        T.if_then_else(item >= behind, own[item - behind], neutral),
                                    ),
                                )
                        before[0] = joined(before[0], sums[rounds % 2, threads - 1])

    return scan.with_attr("tirx.is_scheduled", True).with_attr(RULE_ATTRIBUTE, NAME)
