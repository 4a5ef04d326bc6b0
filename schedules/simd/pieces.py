"""Loops whose addresses change their form at known places are divided there, so that each piece reads in order.

before: ``for i in range(106): y[i] = x[3 - i if i < 3 else 201 - i if i >= 103 else i - 3]``
after:  ``for i in range(3): y[i] = x[3 - i]``, ``for i in range(100): y[i + 3] = x[i]``, ``for i in range(3): ...``

So are rows that are padded by reflection or by their edges. Vectors of such a row were gathered element by element.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir.prim import expr as prim

from tvm_ext.relax_utils import substitute
from tvm_ext.schedules.simd.vector import element_type, operation

MOST_PIECES = 5
"""Pieces into which a loop is divided at most."""

_COMPARISONS = (prim.LT, prim.LE, prim.GT, prim.GE)


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
    places = sorted(place for place in _places(loop.body, variable) if 0 < place < extent)
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


def reads_in_pieces(body: Any, variable: Any) -> bool:
    """Whether all that a statement reads lies in order along a variable, but for some places known beforehand."""
    found: list[bool] = []

    def note(load: Any) -> None:
        found.append(all(is_piecewise(index, variable) for index in load.indices))

    tvm_ffi.structural_walk(body, [(tvm.ir.TensorLoad, note)])
    return bool(found) and all(found) and bool(_places(body, variable))


def is_piecewise(index: Any, variable: Any) -> bool:
    """Whether an index is ``variable`` with steps of one, up or down, in each of some pieces, or none of it."""
    if isinstance(index, prim.IntImm) or not _uses(index, variable) or variable.same_as(index):
        return True
    if isinstance(index, (prim.Add, prim.Sub)):
        return (is_piecewise(index.a, variable) and not _uses(index.b, variable)) or (
            is_piecewise(index.b, variable) and not _uses(index.a, variable)
        )
    if isinstance(index, (prim.Min, prim.Max)):
        return is_piecewise(index.a, variable) and is_piecewise(index.b, variable)
    parts = _chosen(index)
    return parts is not None and all(is_piecewise(part, variable) for part in parts[1:])


def _places(body: Any, variable: Any) -> set[int]:
    """Iterations at which conditions on the loop variable change inside the addresses that a loop reads."""
    found: set[int] = set()

    def compared(node: Any) -> None:
        found.update(_changes(node, variable))

    def in_address(load: Any) -> None:
        for index in load.indices:
            tvm_ffi.structural_walk(index, ((*_COMPARISONS, prim.Min, prim.Max), compared))

    tvm_ffi.structural_walk(body, [(tvm.ir.TensorLoad, in_address)])
    return found


def _changes(node: Any, variable: Any) -> set[int]:
    """Iterations at which a comparison, or a choice of the smaller or larger, begins to come out differently."""
    linear = tvm.sym.detect_linear_equation(node.a - node.b, [variable])
    if len(linear) != 2 or not all(isinstance(part, prim.IntImm) for part in linear):
        return set()
    slope, offset = (int(part) for part in linear)
    if abs(slope) != 1:
        return set()
    root = -offset if slope == 1 else offset
    # Up to the root, or beyond it, ``a`` is the smaller one; whether at the root itself depends on the comparison.
    with_root = isinstance(node, (prim.LE, prim.GT)) if slope == 1 else isinstance(node, (prim.LT, prim.GE))
    return {root + 1 if with_root else root}


def _simplified(body: Any, variable: Any, analyzer: tvm.sym.Analyzer) -> Any:
    """Simplify the addresses that use a loop's variable, whose range the analyzer knows."""

    def load(node: Any, mutator: Any) -> Any:
        made = mutator.default_mutate(node)
        indices = [analyzer.simplify(index) if _uses(index, variable) else index for index in made.indices]
        return tirx.BufferLoad(made.source, indices)

    return tvm_ffi.structural_mutate(body, (tvm.ir.TensorLoad, load))


def _chosen(expr: Any) -> tuple[Any, Any, Any] | None:
    """Give condition and both values of a choice; None for anything else."""
    if isinstance(expr, prim.Select):
        return expr.condition, expr.true_value, expr.false_value
    if isinstance(expr, tvm.ir.Call) and operation(expr) == "if_then_else":
        return tuple(expr.args)
    return None


def _uses(expr: Any, variable: Any) -> bool:
    return any(variable.same_as(other) for other in tirx.analysis.undefined_vars(expr))
