"""Loops that a schedule marked with :func:`mark_simd` become vector statements; remainders are masked vectors.

So do loops that are marked for TVM's vectoriser, where that would make scalar code of them.

before: ``for k in range(100):  # simd 16         total[0] = total[0] + exp(x[k])``
after:  ``partial[0:16] = 0; for b in range(6): partial += exp(x[b*16 : b*16+16])``, a masked step for the last four,
        and the 16 partial results combined two by two

The mark is a promise that iterations are independent, except for sums, products, minima and maxima, whose order the
compiler is free to choose. A loop that has no vector form runs as it stands.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir.prim import expr as prim
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV

from tvm_ext.schedules.simd.float_quotients import DIVIDING_ISAS, with_float_quotients
from tvm_ext.schedules.simd.imported import LANEWISE, imported
from tvm_ext.schedules.simd.pieces import pieces_of
from tvm_ext.schedules.simd.prefetch import insert_prefetches, next_row
from tvm_ext.schedules.simd.quotients import with_floored_quotients
from tvm_ext.schedules.simd.reductions import Reduction, check_independent, find_reduction, loads_of
from tvm_ext.schedules.simd.scratch import pad_scratch
from tvm_ext.schedules.simd.small_floats import has_no_vectors, names_small_floats, one_by_one
from tvm_ext.schedules.simd.stream import is_marked
from tvm_ext.schedules.simd.tile_marks import STAGING_ATTRIBUTE, TILE_ATTRIBUTE
from tvm_ext.schedules.simd.tiles import tile_loops
from tvm_ext.schedules.simd.transcendental import expands
from tvm_ext.schedules.simd.vector import broadcast, choose, element_type
from tvm_ext.schedules.simd.widen import NeedsWholeVectors, NotVectorizable, Widener, uses

EXACT_ATTRIBUTE = "tvm_ext.exact_buffers"
"""Attribute of a kernel that uses all of its buffers: with open extents TVM would not find that, but make their strides
the largest of all counts that it meets."""

SIMD_ATTRIBUTE = "tvm_ext.simd"
"""Loop annotation: lanes of the vectors that the loop is to be made of."""

NAN_ATTRIBUTE = "tvm_ext.forget_nan"
"""Annotation of the same loop: 1 if the minima and maxima that it takes need not be NaN where it meets NaN."""

PARTIAL_RESULTS = 4
"""Accumulators of a long reduction: the latency of an addition over its rate, on current CPUs."""

UNROLLED_VECTORS = 4
"""Vectors up to which a loop is written out, so that what an outer loop accumulates can stay in registers."""


def mark_simd(schedule: Schedule, loop: LoopRV, lanes: int) -> None:
    """Ask for a loop to be made of vectors of ``lanes`` iterations when the kernel is lowered."""
    schedule.annotate(loop, SIMD_ATTRIBUTE, lanes)


def mark_forgotten_nan(schedule: Schedule, loop: LoopRV) -> None:
    """Allow a loop to take minima and maxima as if there were no NaN, as something else sees to it."""
    schedule.annotate(loop, NAN_ATTRIBUTE, 1)


def holds_extremes_in_vectors(loop: Any) -> bool:
    """Whether TVM's vectoriser is to make vectors of a loop that takes maxima or minima of two computed floats.

    They hand NaN on by means of ``isnan``, at which TVM's vectoriser falls back on one iteration after the other.
    """
    if loop.kind != tirx.ForKind.VECTORIZED or not isinstance(loop.extent, prim.IntImm):
        return False

    def interrupt(extreme: Any) -> Any:
        is_computed = not isinstance(extreme.a, prim.FloatImm) and not isinstance(extreme.b, prim.FloatImm)
        return tvm_ffi.VisitInterrupt(True) if is_computed and element_type(extreme).startswith("float") else None

    return tvm_ffi.structural_walk(loop.body, ((prim.Max, prim.Min), interrupt)) is not None


def _holds_lanewise_function(loop: Any) -> bool:
    """Whether TVM's vectoriser is to make vectors of a loop that calls a function which it has only for one lane.

    Transcendental functions are such: of whole vectors they are computed with instructions that pick entries of tables,
    of a lane, which TVM would widen afterwards, without.
    """
    if loop.kind != tirx.ForKind.VECTORIZED or not isinstance(loop.extent, prim.IntImm):
        return False

    def interrupt(call: Any) -> Any:
        return tvm_ffi.VisitInterrupt(True) if imported(call) in LANEWISE or expands(call) else None

    return tvm_ffi.structural_walk(loop.body, [(tvm.ir.Call, interrupt)]) is not None


def vectorize_marked_loops(func: tvm.tirx.PrimFunc, isa: str = "") -> tvm.tirx.PrimFunc:
    """Rewrite the marked loops of a kernel that has no blocks any more and flat buffers, for an instruction set."""
    func = insert_prefetches(func)
    func, scratch = pad_scratch(func)
    analyzer = tvm.sym.Analyzer()

    def vectorize(loop: Any, lanes: int) -> Any:
        loop = with_floored_quotients(loop, analyzer)
        if isa in DIVIDING_ISAS:
            loop = with_float_quotients(loop)
        pieces = pieces_of(loop, analyzer)
        if len(pieces) == 1:
            return _vectorize(loop, lanes, analyzer, scratch)
        return _sequence([_vectorize_if_possible(piece, lanes, analyzer, scratch) for piece in pieces])

    def tile(loop: Any, side: int) -> Any:
        return tile_loops(loop, side, analyzer, int(loop.annotations.get(STAGING_ATTRIBUTE, 0)))

    def visit(loop: Any, mutator: Any) -> Any:
        if has_no_vectors(loop):
            return mutator.default_mutate(one_by_one(loop))
        for attribute, rewrite in ((TILE_ATTRIBUTE, tile), (SIMD_ATTRIBUTE, vectorize)):
            marked = loop.annotations.get(attribute) if loop.annotations else None
            is_own = holds_extremes_in_vectors(loop) or _holds_lanewise_function(loop)
            if attribute is SIMD_ATTRIBUTE and marked is None and is_own:
                marked = loop.extent
            if marked is not None:
                try:
                    made = rewrite(loop, int(marked))
                except NotVectorizable:
                    continue
                if not names_small_floats(made):
                    return made
        analyzer.bind(loop.loop_var, tvm.ir.Range.from_min_extent(loop.min, loop.extent))
        return mutator.default_mutate(loop)

    return tvm_ffi.structural_mutate(func, (tirx.For, visit))


def _vectorize_if_possible(loop: Any, lanes: int, analyzer: Any, scratch: Mapping[Any, int]) -> Any:
    try:
        return _vectorize(loop, lanes, analyzer, scratch)
    except NotVectorizable:
        return loop


def _vectorize(loop: Any, lanes: int, analyzer: Any, scratch: Mapping[Any, int]) -> Any:
    if not (isinstance(loop.min, prim.IntImm) and int(loop.min) == 0) or loop.step is not None:
        raise NotVectorizable("a loop that does not start at 0 or not step by 1")
    statements = _without_names(list(loop.body.seq) if isinstance(loop.body, tirx.SeqStmt) else [loop.body])
    reductions = {
        number: found for number, part in enumerate(statements) if (found := find_reduction(part, loop.loop_var))
    }
    analyzer.bind(loop.loop_var, tvm.ir.Range.from_min_extent(loop.min, loop.extent), allow_override=True)
    check_independent(_sequence(statements), [reduction.store.buffer for reduction in reductions.values()])
    return _Rewriter(loop, lanes, statements, reductions, analyzer, scratch).rewrite()


class _Rewriter:
    """Builds the vector form of one loop."""

    def __init__(
        self,
        loop: Any,
        lanes: int,
        statements: Sequence[Any],
        reductions: dict[int, Reduction],
        analyzer: Any,
        scratch: Mapping[Any, int],
    ) -> None:
        self._scratch, self._streams, self._next_row = scratch, is_marked(loop), next_row(loop)
        self._variable, self._analyzer = loop.loop_var, analyzer
        self._integer = element_type(loop.loop_var)
        self._statements, self._reductions = statements, reductions
        extent = loop.extent
        if isinstance(extent, prim.IntImm):
            count = int(extent)
            self._lanes = min(lanes, 1 << (count - 1).bit_length())
            self._vectors: Any = count // self._lanes
            self._rest: Any = count % self._lanes
        else:
            self._lanes = lanes
            self._vectors = analyzer.simplify(tirx.floordiv(extent, lanes))
            self._rest = analyzer.simplify(tirx.floormod(extent, lanes))
        if self._lanes < 2:
            raise NotVectorizable("a single iteration")
        wanted = PARTIAL_RESULTS if reductions else self._next_row.vectors(self._lanes) if self._next_row else 1
        self._unroll = wanted if not isinstance(self._vectors, int) or self._vectors >= 2 * wanted else 1
        self._partial = {
            number: tirx.decl_buffer((self._unroll * self._lanes,), reduction.element, "partial")
            for number, reduction in reductions.items()
        }
        self._forgets_nan = bool(loop.annotations) and NAN_ATTRIBUTE in loop.annotations
        # NaN that comes by is noted beside the partial results: they would wait for each comparison with NaN.
        self._noted = {
            number: tirx.decl_buffer((self._lanes,), reduction.element, "noted")
            for number, reduction in reductions.items()
            if reduction.is_extreme and not self._forgets_nan
        }

    def rewrite(self) -> Any:
        parts: list[Any] = []
        for number, reduction in self._reductions.items():
            if number in self._noted:
                parts.append(tirx.AllocBuffer(self._noted[number]))
                parts.append(self._note(number, broadcast(tirx.const(0, reduction.element), self._lanes)))
            parts.append(tirx.AllocBuffer(self._partial[number]))
            parts += [
                self._put(number, part, broadcast(reduction.neutral(), self._lanes)) for part in range(self._unroll)
            ]
        parts += self._whole_vectors()
        parts += self._remainder()
        for number in self._reductions:
            parts += self._result(number)
        if not parts:
            raise NotVectorizable("a loop of no iterations")
        return parts[0] if len(parts) == 1 else tirx.SeqStmt(parts)

    def _whole_vectors(self) -> list[Any]:
        if isinstance(self._vectors, int):
            rounds, single = divmod(self._vectors, self._unroll)
        else:
            rounds = tirx.floordiv(self._vectors, self._unroll)
            single = self._vectors - rounds * self._unroll
        parts = self._loop(rounds, 0, self._unroll)
        if self._unroll > 1:
            parts += self._loop(single, rounds * self._unroll, 1)
        return parts

    def _loop(self, rounds: Any, start: Any, unroll: int) -> list[Any]:
        """Emit ``rounds`` times ``unroll`` vectors, from vector ``start`` on."""
        if isinstance(rounds, int) and (rounds <= 1 or rounds * unroll <= UNROLLED_VECTORS):
            return [part for offset in range(unroll * rounds) for part in self._vector(start + offset, offset % unroll)]
        block = tvm.ir.Var("block", self._variable.ty)
        extent = tirx.const(rounds, self._integer) if isinstance(rounds, int) else self._analyzer.simplify(rounds)
        if isinstance(extent, tirx.IntImm) and not int(extent):  # fewer iterations than lanes, as the extent says
            return []
        self._analyzer.bind(block, tvm.ir.Range(tirx.const(0, self._integer), extent))
        body = [part for offset in range(unroll) for part in self._vector(block * unroll + (start + offset), offset)]
        zero = tirx.const(0, self._integer)
        return [tirx.For(block, zero, extent, tirx.ForKind.SERIAL, _sequence(body))]

    def _remainder(self) -> list[Any]:
        if isinstance(self._rest, int):
            if self._rest < 2:
                return self._single(self._vectors * self._lanes) if self._rest else []
            try:
                return self._vector(self._vectors, 0, self._rest)
            except NeedsWholeVectors:
                return self._ever_smaller_vectors()
        return [tirx.IfThenElse(self._rest > 0, _sequence(self._vector(self._vectors, 0, self._rest)), None)]

    def _single(self, number: int) -> list[Any]:
        """Emit one iteration as it stands."""
        position = tirx.const(number, self._integer)
        replace = (tvm.ir.Var, lambda variable: position if variable.same_as(self._variable) else variable)
        return [tvm_ffi.structural_map(statement, replace) for statement in self._statements]

    def _ever_smaller_vectors(self) -> list[Any]:
        """Emit the last iterations as vectors of half, a quarter, ... of the lanes, none of them masked."""
        if self._reductions:
            raise NotVectorizable("a reduction beside a store to a buffer of the thread's own")
        parts: list[Any] = []
        done, lanes = self._vectors * self._lanes, self._lanes // 2
        while lanes > 1:
            if self._rest & lanes:
                first = tirx.const(done, self._integer)
                widener = Widener(self._variable, first, lanes, lanes, self._analyzer, self._scratch)
                parts += [widener.statement(statement) for statement in self._statements]
                done += lanes
            lanes //= 2
        return parts + (self._single(done) if self._rest & 1 else [])

    def _vector(self, number: Any, part: int, active: Any = None) -> list[Any]:
        """Emit the statements of vector ``number``, which reduce into partial result ``part``."""
        first = number * self._lanes
        first = tirx.const(first, self._integer) if isinstance(first, int) else self._analyzer.simplify(first)
        active = self._lanes if active is None else active
        widener = Widener(self._variable, first, self._lanes, active, self._analyzer, self._scratch, self._streams)
        parts = []
        if self._next_row and active == self._lanes and part % self._next_row.vectors(self._lanes) == 0:
            parts += self._next_row.fetches(self._statements, widener)
        for position, statement in enumerate(self._statements):
            reduction = self._reductions.get(position)
            if reduction is None:
                parts.append(widener.statement(statement))
                continue
            before, operand = self._get(position, part), widener.wide(reduction.operand)
            value = reduction.met(before, operand)
            parts.append(
                self._put(position, part, value if widener.mask is None else choose(widener.mask, value, before))
            )
            if position in self._noted:
                is_nan = tirx.isnan(operand)
                if widener.mask is not None:  # not `and`, by which TVM would load the lanes outside, too
                    is_nan = choose(widener.mask, is_nan, broadcast(tirx.const(False, "bool"), self._lanes))
                parts.append(self._note(position, prim.Select(is_nan, operand, self._get_noted(position))))
        return parts

    def _get_noted(self, number: int) -> Any:
        return tirx.BufferLoad(self._noted[number], [self._ramp(0)])

    def _note(self, number: int, value: Any) -> Any:
        return tirx.BufferStore(self._noted[number], value, [self._ramp(0)])

    def _ramp(self, part: int, lanes: int | None = None) -> Any:
        lanes = lanes or self._lanes
        return prim.Ramp(tirx.const(part * lanes, "int32"), tirx.const(1, "int32"), lanes)

    def _get(self, number: int, part: int) -> Any:
        return tirx.BufferLoad(self._partial[number], [self._ramp(part)])

    def _put(self, number: int, part: int, value: Any) -> Any:
        return tirx.BufferStore(self._partial[number], value, [self._ramp(part)])

    def _result(self, number: int) -> list[Any]:
        """Combine the partial results two by two, then the halves of the vector, and put the result in its place.

        Each step is stored, and read as often as the combination names it: TVM looks through names, so that nested
        ones would be looked at four to the power of the steps times.
        """
        reduction = self._reductions[number]
        combine = reduction.met if self._forgets_nan else reduction.combine
        parts = [self._get(number, part) for part in range(self._unroll)]
        while len(parts) > 1:
            parts = [combine(a, b) for a, b in zip(parts[::2], parts[1::2], strict=True)]
        total, lanes = parts[0], self._lanes
        if number in self._noted:
            noted = self._get_noted(number)
            total = prim.Select(tirx.isnan(noted), noted, total)
        statements: list[Any] = []
        while lanes > 1:
            whole = self._kept(statements, total, lanes)
            lanes //= 2
            total = combine(*(_slice(whole, start, lanes) for start in (0, lanes)))
        store = reduction.store
        before = tirx.BufferLoad(store.buffer, store.indices)
        combined = combine(before, self._kept(statements, total, 1))
        return [*statements, tirx.BufferStore(store.buffer, combined, store.indices)]

    def _kept(self, statements: list[Any], value: Any, lanes: int) -> Any:
        """Store a value in registers of its own; the result loads it from there."""
        buffer = tirx.decl_buffer((lanes,), element_type(value), "total")
        index = self._ramp(0, lanes) if lanes > 1 else tirx.const(0, "int32")
        statements += [tirx.AllocBuffer(buffer), tirx.BufferStore(buffer, value, [index])]
        return tirx.BufferLoad(buffer, [index])


def _slice(vector: Any, start: int, lanes: int) -> Any:
    """Take ``lanes`` lanes of a vector, from ``start`` on."""
    return prim.Shuffle([vector], [tirx.const(start + lane, "int32") for lane in range(lanes)])


def _sequence(parts: Sequence[Any]) -> Any:
    return parts[0] if len(parts) == 1 else tirx.SeqStmt(list(parts))


def _without_names(statements: list[Any]) -> list[Any]:
    """Put values that are named first and stored later, as in reductions of several values at once, into their stores.

    That moves a load behind a store, which is harmless where they concern different tensors.
    """
    stores = [store for store in statements if isinstance(store, tirx.BufferStore)]
    moved: dict[Any, Any] = {}
    for statement in statements:
        if not isinstance(statement, tirx.Bind):
            continue
        uses_of_name = sum(uses(other.value, statement.var) for other in statements if hasattr(other, "value"))
        store = next((store for store in stores if store.value.same_as(statement.var)), None)
        if store is None or uses_of_name != 1:
            continue
        others = [other for other in stores if not other.same_as(store)]
        if any(load.source.same_as(other.buffer) for load in loads_of(statement.value) for other in others):
            continue
        moved[statement.var] = statement.value
    result = []
    for statement in statements:
        if isinstance(statement, tirx.Bind) and statement.var in moved:
            continue
        if (
            isinstance(statement, tirx.BufferStore)
            and isinstance(statement.value, tvm.ir.Var)
            and statement.value in moved
        ):
            statement = tirx.BufferStore(statement.buffer, moved[statement.value], statement.indices)
        result.append(statement)
    return result
