"""Where the lanes of a vector lie: what an index is in each of them, and whether it stays inside its tensor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir.prim import expr as prim

from tvm_ext.schedules.simd.known_loads import KnownLoads
from tvm_ext.schedules.simd.vector import broadcast, element_type, lanes_of, operation


class Lanes:
    """``lanes`` consecutive iterations of one loop, of which the first ones take part.

    Parameters
    ----------
    variable : tvm.ir.Var
        The loop variable.
    first : expression
        Its value in lane 0.
    lanes : int
        Iterations in a vector.
    active : int or expression
        How many lanes take part, from lane 0 on, at least one; ``lanes`` when all do.
    analyzer : tvm.sym.Analyzer
        Knows the ranges of the loops around.
    scratch : mapping of buffer to int, optional
        Buffers of the thread's own that end with a whole vector, and the number of elements in use.
    streams : bool
        Whether whole vectors are stored past the caches.
    """

    def __init__(
        self,
        variable: Any,
        first: Any,
        lanes: int,
        active: Any,
        analyzer: Any,
        scratch: Mapping[Any, int] | None = None,
        streams: bool = False,
    ) -> None:
        self._streams = streams
        self._scratch: Mapping[Any, int] = {} if scratch is None else scratch
        self._variable, self._first, self._lanes, self._analyzer = variable, first, lanes, analyzer
        self._integer = element_type(variable)
        self._lane = tvm.ir.Var("lane", variable.ty)
        self._any_lane = tvm.ir.Var("any_lane", variable.ty)
        self._rounded = False
        self._names: dict[Any, Any] = {}
        whole = isinstance(active, int) and active == lanes
        limit = tirx.const(active, self._integer) if isinstance(active, int) else active
        # A range of one lane would make the lane vanish from the addresses that show how they depend on it.
        known = tirx.const(2, self._integer) if isinstance(active, int) and active == 1 else limit
        analyzer.bind(self._lane, tvm.ir.Range(tirx.const(0, self._integer), known))
        # An address that is used without a mask is computed, and read from, in the lanes that take no part as well.
        analyzer.bind(self._any_lane, tvm.ir.Range(tirx.const(0, self._integer), tirx.const(lanes, self._integer)))
        self.mask: Any = None if whole else self._ramp(tirx.const(0, self._integer)) < broadcast(limit, lanes)
        self._conditional = False
        self._nested = 0
        self._loads = KnownLoads()
        self._active = active if isinstance(active, int) else 0

    def linear(self, index: Any) -> tuple[Any, int] | None:
        """Write an index as ``base + stride * lane``, and return the two; None when it is nothing of the kind."""
        index = self._at_lane(index)
        if _holds_vector(index):
            return None
        lane = self._lane
        if self._integer != element_type(index):
            lane = tvm.ir.Var("lane", index.ty)
            index = tvm_ffi.structural_map(index, (prim.Cast, lambda node: self._cast_apart(node, lane)))
        found = tvm.sym.detect_linear_equation(index, [lane])
        if len(found) != 2 or not isinstance(found[0], prim.IntImm) or self._varies(found[1]):
            return None
        return found[1], int(found[0])

    def _cast_apart(self, cast: Any, lane: Any) -> Any:
        """Write a cast of ``base + stride * lane`` to the wider type of an index as a sum of ``lane`` of that type.

        TVM counts some loops in 32 bits, in addresses of 64 bits.
        """
        whole = element_type(cast.value) == self._integer and element_type(cast) == element_type(lane)
        found: Any = tvm.sym.detect_linear_equation(cast.value, [self._lane]) if whole else ()
        if len(found) != 2 or not isinstance(found[0], prim.IntImm) or self._varies(found[1]):
            return cast
        base = self._analyzer.simplify(prim.Cast(element_type(cast), found[1]))
        return base + lane * int(found[0])

    def _is_uniform(self, condition: Any) -> bool:
        """Whether a condition holds in all lanes or in none, as ``16 * block + lane < 32`` does in 16 lanes."""
        if holds_load(condition):
            return False
        first, any_lane = (self._at_lane(condition, lane) for lane in (tirx.const(0, self._integer), self._any_lane))
        if self._varies(first) or self._varies(any_lane):  # a named vector is part of it
            return False
        same = prim.Or(prim.And(first, any_lane), prim.And(prim.Not(first), prim.Not(any_lane)))
        return bool(self._analyzer.can_prove(same, tvm.sym.ProofStrength.SYMBOLIC_BOUND))

    def _ramp(self, base: Any, stride: int = 1) -> Any:
        return prim.Ramp(base, tirx.const(stride, element_type(base)), self._lanes)

    def _renamed(self, variable: Any) -> Any:
        return self._names.get(variable, variable)

    def _at_lane(self, expression: Any, lane: Any = None) -> Any:
        """Write an expression for a lane that takes part, or for the lane given."""
        position = self._first + (self._lane if lane is None else lane)

        def replace(variable: Any) -> Any:
            return position if variable.same_as(self._variable) else self._renamed(variable)

        return self._simplified(tvm_ffi.structural_map(expression, (tvm.ir.Var, replace)))

    def _simplified(self, expression: Any) -> Any:
        """Simplify an expression, unless a variable of one lane became a vector in it.

        What surrounds such a variable still has the type of one lane: no expression that TVM could make anew.
        """
        return expression if _holds_vector(expression) else self._analyzer.simplify(expression)

    def _varies(self, expression: Any) -> bool:
        """Whether an expression made by :meth:`_at_lane` differs between lanes."""
        found = tirx.analysis.undefined_vars(expression)
        return any(variable.same_as(self._lane) or lanes_of_variable(variable) > 1 for variable in found)

    def _every_lane_inside(self, buffer: Any, found: tuple[Any, int] | None, index: Any) -> bool:
        """Whether the addresses of a gather, ``found`` or else those of ``index``, lie in the buffer in all lanes."""
        if found is not None:
            base, stride = found
            return self._inside(buffer, base) and self._inside(buffer, base + stride * (self._lanes - 1))
        if holds_load(index):  # what a masked load gives the other lanes may be anything
            return False
        return self._inside(buffer, self._at_lane(index, self._any_lane))

    def _loads_inside(self, expression: Any) -> bool:
        """Whether what an expression loads lies in its tensors in every lane that takes part, chosen or not.

        What stands in a branch is loaded under the branch's own condition, by TVM's rules, too.
        """
        outside: list[Any] = []

        def load(node: Any, visitor: Any) -> None:
            if len(node.indices) != 1 or not self._iteration_inside(node.source, node.indices[0]):
                outside.append(node)
            visitor.default_visit(node)

        def call(node: Any, visitor: Any) -> None:
            if operation(node) == "if_then_else":
                visitor.visit(node.args[0])
            else:
                visitor.default_visit(node)

        tvm_ffi.structural_visit(expression, [(tvm.ir.TensorLoad, load), (tvm.ir.Call, call)])
        return not outside

    def _inside(self, buffer: Any, index: Any) -> bool:
        if _holds_vector(index):
            return False
        extent = buffer.ty.shape[0]
        return bool(self._analyzer.can_prove(prim.And(index >= 0, index < extent)))

    def _iteration_inside(self, buffer: Any, index: Any) -> bool:
        """Whether an index stays inside its tensor in every iteration, so in all lanes that take part.

        Of an open extent the analyzer knows no number, but that the iterations end before it.
        """
        if self._inside(buffer, self._at_lane(index)):
            return True
        index = tvm_ffi.structural_map(index, (tvm.ir.Var, self._renamed))
        if isinstance(buffer.ty.shape[0], prim.IntImm) or _holds_vector(index) or holds_load(index):
            return False
        inside = prim.And(index >= 0, index < buffer.ty.shape[0])
        return bool(self._analyzer.can_prove(inside, tvm.sym.ProofStrength.SYMBOLIC_BOUND))

    def _ends_scratch(self, buffer: Any, base: Any) -> bool:
        """Whether the active lanes from ``base`` on are the last elements in use of a lengthened buffer.

        A vector that begins at no multiple of its lanes may still not fit into the buffer.
        """
        if self._conditional or not self._active or buffer not in self._scratch:
            return False
        if not self._analyzer.can_prove_equal(base + self._active, self._scratch[buffer]):
            return False
        return self._inside(buffer, base) and self._inside(buffer, base + (self._lanes - 1))

    def _at(self, expression: Any, lane: int) -> Any:
        """Evaluate an expression in one lane, as far as it is known."""
        position = self._first + lane

        def replace(variable: Any) -> Any:
            return position if variable.same_as(self._variable) else self._renamed(variable)

        return self._simplified(tvm_ffi.structural_map(expression, (tvm.ir.Var, replace)))


def _holds_vector(expression: Any) -> bool:
    """Whether a variable of an expression has several lanes."""
    return any(lanes_of_variable(variable) > 1 for variable in tirx.analysis.undefined_vars(expression))


def lanes_of_variable(variable: Any) -> int:
    """Lanes of a variable; handles and buffers count as one."""
    return lanes_of(variable) if isinstance(variable.ty, tvm.ir.PrimType) else 1


def holds_load(expression: Any) -> bool:
    """Whether an expression, widened or not, loads anything."""

    def interrupt(node: Any) -> Any:
        is_load = isinstance(node, tvm.ir.TensorLoad) or operation(node) == "masked_load"
        return tvm_ffi.VisitInterrupt(True) if is_load else None

    return tvm_ffi.structural_walk(expression, ((tvm.ir.TensorLoad, tvm.ir.Call), interrupt)) is not None
