"""Loops whose addresses change their form at known places are divided there, so that each piece reads in order.

before: ``for i in range(106): y[i] = x[3 - i if i < 3 else 201 - i if i >= 103 else i - 3]``
after:  ``for i in range(3): y[i] = x[3 - i]``, ``for i in range(100): y[i + 3] = x[i]``, ``for i in range(3): ...``

So are rows that are padded by reflection or by their edges. Vectors of such a row were gathered element by element.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir.prim import expr as prim

from tvm_ext.relax_utils import substitute
from tvm_ext.schedules.simd.vector import element_type, operation
from tvm_ext.schedules.simd.widen import uses

MOST_PIECES = 5
"""Pieces into which a loop is divided at most."""

_CHOICES = (prim.LT, prim.LE, prim.GT, prim.GE, prim.Min, prim.Max, prim.FloorMod)
"""Expressions that are of one form up to some iteration, and of another one from there on."""


def pieces_of(loop: Any, analyzer: tvm.sym.Analyzer) -> list[Any]:
    """Divide a loop of known extent where the addresses it reads change their form; gives the loop if they do not.

    Returns
    -------
    list of tvm.tirx.For
        Loops from 0 on, in order, marked as the loop was.
    """
    variable = loop.loop_var
    if not isinstance(loop.extent, prim.IntImm) or not isinstance(loop.min, prim.IntImm) or int(loop.min) != 0:
        return [loop]
    extent = int(loop.extent)
    places = _places(loop.body, variable, extent)
    if not places or len(places) >= MOST_PIECES:
        return [loop]
    loops = []
    for first, last in zip([0, *places], [*places, extent], strict=True):
        inner = tvm.ir.Var(variable.name, variable.ty)
        count = tirx.const(last - first, element_type(variable))
        analyzer.bind(inner, tvm.ir.Range(tirx.const(0, element_type(variable)), count))
        moved = substitute(loop.body, {variable: inner + first})
        body = _simplified(moved, inner, analyzer)
        loops.append(tirx.For(inner, loop.min, count, loop.kind, body, loop.thread_binding, loop.annotations))
    return loops


def reads_in_pieces(body: Any, variable: Any, extent: int) -> bool:
    """Whether what a statement reads lies in order along a variable of this extent, but for a few places."""
    found: list[bool] = []

    def note(load: Any) -> None:
        found.append(all(is_piecewise(index, variable) for index in load.indices))

    tvm_ffi.structural_walk(body, [(tvm.ir.TensorLoad, note)])
    return all(found) and 0 < len(_places(body, variable, extent)) < MOST_PIECES


def is_piecewise(index: Any, variable: Any) -> bool:
    """Whether an index is ``variable`` with steps of one, up or down, in each of some pieces, or none of it."""
    if isinstance(index, prim.IntImm) or not uses(index, variable) or variable.same_as(index):
        return True
    if isinstance(index, (prim.Add, prim.Sub)):
        return (is_piecewise(index.a, variable) and not uses(index.b, variable)) or (
            is_piecewise(index.b, variable) and not uses(index.a, variable)
        )
    if isinstance(index, (prim.Min, prim.Max)):
        return is_piecewise(index.a, variable) and is_piecewise(index.b, variable)
    if isinstance(index, prim.FloorMod):
        return is_piecewise(index.a, variable) and isinstance(index.b, prim.IntImm)
    parts = _chosen(index)
    return parts is not None and all(is_piecewise(part, variable) for part in parts[1:])


def _places(body: Any, variable: Any, extent: int) -> list[int]:
    """List the iterations of a loop at which what it reads lies elsewhere than behind the last, in order."""
    found: set[int] = set()

    def compared(node: Any) -> None:
        found.update(_changes(node, variable, extent))

    def in_address(load: Any) -> None:
        for index in load.indices:
            tvm_ffi.structural_walk(index, (_CHOICES, compared))

    tvm_ffi.structural_walk(body, [(tvm.ir.TensorLoad, in_address)])
    return sorted(place for place in found if 0 < place < extent)


def _changes(node: Any, variable: Any, extent: int) -> set[int]:
    """Find where a comparison, a choice of the smaller or larger, or a remainder takes another form."""
    if isinstance(node, prim.FloorMod):
        return _wraps(node, variable, extent)
    found = set()
    for left, right in product(_leaves(node.a), _leaves(node.b)):
        linear = _linear(left - right, variable)
        if linear is None or abs(linear[0]) != 1:
            continue
        slope, offset = linear
        root = -slope * offset
        # Up to the root, or beyond it, ``a`` is the smaller one; whether at the root itself depends on the comparison.
        with_root = isinstance(node, (prim.LE, prim.GT) if slope == 1 else (prim.LT, prim.GE))
        found.add(root + 1 if with_root else root)
    return found


def _wraps(remainder: Any, variable: Any, extent: int) -> set[int]:
    """Find where a remainder begins anew; nowhere if that is too often."""
    linear = _linear(remainder.a, variable)
    if linear is None or linear[0] != 1 or not isinstance(remainder.b, prim.IntImm):
        return set()
    size, offset = int(remainder.b), linear[1]
    if size < 1 or extent // size >= MOST_PIECES:
        return set()
    return set(range(-offset % size, extent, size))


def _leaves(expr: Any) -> list[Any]:
    """Give the values between which minima and maxima choose."""
    if isinstance(expr, (prim.Min, prim.Max)):
        return [*_leaves(expr.a), *_leaves(expr.b)]
    return [expr]


def _linear(expr: Any, variable: Any) -> tuple[int, int] | None:
    """Give slope and offset of an expression that is linear in one variable; None for another one."""
    linear = tvm.sym.detect_linear_equation(expr, [variable])
    if len(linear) != 2 or not all(isinstance(part, prim.IntImm) for part in linear):
        return None
    return int(linear[0]), int(linear[1])


def _simplified(body: Any, variable: Any, analyzer: tvm.sym.Analyzer) -> Any:
    """Simplify the addresses that use a loop's variable, whose range the analyzer knows."""

    def load(node: Any, mutator: Any) -> Any:
        made = mutator.default_mutate(node)
        indices = [analyzer.simplify(index) if uses(index, variable) else index for index in made.indices]
        return tirx.BufferLoad(made.source, indices)

    return tvm_ffi.structural_mutate(body, (tvm.ir.TensorLoad, load))


def _chosen(expr: Any) -> tuple[Any, Any, Any] | None:
    """Give condition and both values of a choice; None for anything else."""
    if isinstance(expr, prim.Select):
        return expr.condition, expr.true_value, expr.false_value
    if isinstance(expr, tvm.ir.Call) and operation(expr) == "if_then_else":
        return tuple(expr.args)
    return None
