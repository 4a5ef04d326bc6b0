"""Quotients in the addresses of a loop, written so that the analyzer sees their bounds and patterns.

Enlarging an image by repeating its pixels reads ``x[max(min(truncdiv(i, 2), 39), 0)]``. Of a numerator that is never
negative the quotient rounds down as well, and then the limits are seen to change nothing: what is left, ``x[i // 2]``,
is a load and a shuffle, where eight elements were gathered one by one.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir.prim import expr as prim

_COMPUTED = (prim.Cast, prim.FloatImm, tvm.ir.TensorLoad, prim.FloorMod, prim.Mod, prim.Select, tvm.ir.Call)
"""What an address that is a quotient of an axis does not hold."""


def with_floored_quotients(loop: Any, analyzer: tvm.sym.Analyzer) -> Any:
    """Rewrite the addresses that a loop reads; the loop itself where they hold no such quotients.

    Parameters
    ----------
    loop : tvm.tirx.For
        A loop over flat buffers.
    analyzer : tvm.sym.Analyzer
        Knows the ranges of the loops around it.
    """
    analyzer.bind(loop.loop_var, tvm.ir.Range.from_min_extent(loop.min, loop.extent), allow_override=True)

    def quotient(node: Any, mutator: Any) -> Any:
        made = mutator.default_mutate(node)
        is_whole = isinstance(made.b, prim.IntImm) and int(made.b) > 0
        return tirx.floordiv(made.a, made.b) if is_whole and analyzer.can_prove(made.a >= 0) else made

    def load(node: Any, mutator: Any) -> Any:
        indices = [_simplified(index, quotient, analyzer) for index in node.indices]
        if all(map(tvm_ffi.Object.same_as, indices, node.indices)):
            return mutator.default_mutate(node)
        return tirx.BufferLoad(node.source, indices)

    return tvm_ffi.structural_mutate(loop, [(tvm.ir.TensorLoad, load)])


def repeats_elements(body: Any) -> bool:
    """Whether what a statement reads lies at quotients of whole numbers, and nowhere at what is computed otherwise."""
    found: list[bool] = []

    def note(load: Any) -> None:
        found.extend(tvm_ffi.structural_walk(index, [(_COMPUTED, _interrupt)]) is None for index in load.indices)
        quotients.extend(tvm_ffi.structural_walk(index, [(prim.Div, _interrupt)]) is not None for index in load.indices)

    quotients: list[bool] = []
    tvm_ffi.structural_walk(body, [(tvm.ir.TensorLoad, note)])
    return all(found) and any(quotients)


def _interrupt(_node: Any) -> Any:
    return tvm_ffi.VisitInterrupt(True)


def _simplified(index: Any, quotient: Any, analyzer: tvm.sym.Analyzer) -> Any:
    floored = tvm_ffi.structural_mutate(index, [(prim.Div, quotient)])
    return index if floored.same_as(index) else analyzer.simplify(floored)
